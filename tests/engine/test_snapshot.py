"""A snapshot is a store of its own, with all that a table remembers, made while others write and sample."""

import threading

import numpy as np
import pytest

import replay_client
from replaysvc import Fifo, Limiter, Prioritized, Sequences, StoreConfig, TableConfig, Transitions, Uniform
from replaysvc.errors import ConfigurationError, SpecMismatchError, StorageError, UnavailableError
from replaysvc.replay import Replay
from replaysvc.rpc.server import Server
from tests.builders import SCALARS, write_episode, write_episodes

CONFIG = TableConfig(
    chunk_steps=4,
    samplers={"uniform": Uniform(), "prioritized": Prioritized(), "second": Prioritized(alpha=1.0), "queue": Fifo()},
)


def columns(batch):
    return {name: value for name, value in batch.asdict().items() if name != "age_s"}


def assert_same(first, second):
    for name, value in columns(first).items():
        np.testing.assert_array_equal(value, columns(second)[name], err_msg=name)


@pytest.fixture
def table(replay):
    """A table with some history: updates, a queue in use, a deletion."""
    table = replay.create_table("t", SCALARS, CONFIG)
    write_episodes(table, [9, 5, 7])
    table.update_priorities(np.arange(10), np.arange(10) * 0.7)
    table.update_priorities([3], [11.0], sampler="second")
    table.sample(4, sampler="queue")
    table.delete_episodes([1])
    return table


def test_the_next_hundred_batches_are_the_same(replay, table, tmp_path):
    """Of every sampler, without seeds: the generator's state is part of a snapshot."""
    replay.snapshot(tmp_path / "copy")
    with Replay(tmp_path / "copy") as copy:
        other = copy.table("t")
        assert other.episodes() == table.episodes()
        for i in range(100):
            sampler = ("uniform", "prioritized", "second")[i % 3]
            what = (Transitions(n_step=2), Sequences(length=3))[i % 2]
            assert_same(table.sample(8, what, sampler=sampler), other.sample(8, what, sampler=sampler))
        assert_same(table.sample(12, sampler="queue"), other.sample(12, sampler="queue"))


def test_a_snapshot_of_a_snapshot_is_the_same_again(replay, table, tmp_path):
    replay.snapshot(tmp_path / "one")
    with Replay(tmp_path / "one") as one:
        one.snapshot(tmp_path / "two")
    with Replay(tmp_path / "two") as two:
        assert two.table("t").episodes() == table.episodes()
        assert_same(table.sample(20, sampler="prioritized", seed=3), two.table("t").sample(20, sampler="prioritized", seed=3))


def test_an_empty_store_can_be_copied(replay, tmp_path):
    replay.create_table("empty", SCALARS)
    replay.put_params("policy", b"weights", version=3)
    replay.snapshot(tmp_path / "copy")
    with Replay(tmp_path / "copy") as copy:
        assert copy.tables() == ["empty"]
        assert copy.get_params("policy").data == b"weights"
        assert copy.table("empty").stats().steps == 0


def test_limiter_counts_go_along(replay, tmp_path):
    limiter = Limiter(min_steps=5, samples_per_insert=2, error_buffer=30)
    table = replay.create_table("t", SCALARS, TableConfig(chunk_steps=1, limiter=limiter))
    write_episodes(table, [10])
    table.sample(7)
    replay.snapshot(tmp_path / "copy")
    with Replay(tmp_path / "copy") as copy:
        found = copy.table("t").stats().limiter
        assert (found["inserted"], found["sampled"]) == (10, 7)


def test_a_copy_goes_its_own_way(replay, table, tmp_path):
    replay.snapshot(tmp_path / "copy")
    write_episodes(table, [6])
    with Replay(tmp_path / "copy") as copy:
        write_episodes(copy.table("t"), [2, 2])
        assert copy.table("t").stats().steps == 9 + 7 + 4
    assert table.stats().steps == 9 + 7 + 6


def test_a_writer_goes_on_in_the_copy_of_its_open_episode(replay, tmp_path):
    """What was durable at the snapshot is there, in an episode without an end."""
    table = replay.create_table("t", SCALARS)
    with table.writer() as writer:
        write_episode(writer, 3, end="open")
        writer.flush()
        replay.snapshot(tmp_path / "copy")
        writer.append(3, 0.0, 4, terminated=True)
    with Replay(tmp_path / "copy") as copy:
        (record,) = copy.table("t").episodes()
        assert (record.length, record.closed) == (3, False)


def test_snapshots_under_load_hold_a_prefix_of_what_was_written(replay, tmp_path):
    """Each copy has whole chunks in order: every window in it is right, and no step is there without those before it."""
    table = replay.create_table("t", SCALARS, TableConfig(chunk_steps=3))
    stop = threading.Event()

    def write():
        with table.writer() as writer:
            episode = 0
            while not stop.is_set():
                write_episode(writer, 7, episode=episode)
                writer.flush()
                episode += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        table.sample(1, timeout_s=30)
        for i in range(5):
            before = table.stats().steps
            replay.snapshot(tmp_path / f"copy-{i}")
            with Replay(tmp_path / f"copy-{i}") as copy:
                found = copy.table("t")
                steps = found.stats().steps
                assert steps >= before
                batch = found.sample(200, Transitions(gamma=1.0))
                assert (batch.observation == 100 * batch.episode_id + batch.t).all()
                assert (batch.next_observation == batch.observation + 1).all()
                assert sum(record.length for record in found.episodes(limit=10_000)) == steps
    finally:
        stop.set()
        thread.join()


def test_a_target_that_holds_something_is_refused_and_kept(replay, table, tmp_path):
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "thesis").write_text("mine")
    with pytest.raises(StorageError, match="copy"):
        replay.snapshot(tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["thesis"]
    assert len(table.sample(3)) == 3


def test_a_closed_store_makes_none(tmp_path):
    replay = Replay(tmp_path / "s")
    replay.close()
    with pytest.raises(UnavailableError):
        replay.snapshot(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_clients_name_snapshots_that_the_server_puts_into_its_directory(tmp_path):
    with Replay(tmp_path / "s", StoreConfig(snapshot_dir=str(tmp_path / "snapshots"))) as replay:
        server = Server(replay, "127.0.0.1:0")
        server.start()
        with replay_client.connect(f"127.0.0.1:{server.port}") as client:
            write_episodes(client.create_table("t", SCALARS), [4])
            client.snapshot("monday")
            for name in ("../monday", "/tmp/monday", "", "a/b"):
                with pytest.raises(SpecMismatchError, match="snapshot"):
                    client.snapshot(name)
        server.stop(5.0)
    with Replay(tmp_path / "snapshots" / "monday") as copy:
        assert copy.table("t").stats().steps == 4


def test_a_server_without_a_directory_makes_none_for_clients(served):
    with pytest.raises(ConfigurationError, match="snapshot_dir"):
        served.snapshot("monday")
