"""Episodes of vanished writers over restarts, crashes and pauses: they stay ended, and are read as the same."""

import shutil
import time

import numpy as np
import pytest

from replaysvc import Episodes, Fifo, TableConfig, Uniform
from replaysvc.errors import CapacityError, NotReadyError, WriterFencedError
from replaysvc.replay import Replay
from replaysvc.storage import System
from tests.builders import SCALARS, write_episode, write_episodes

WHOLE = Episodes(max_steps=10)
SAMPLERS = {"uniform": Uniform(), "queue": Fifo()}


class Clock(System):
    """A clock that can be put forward."""

    def __init__(self):
        self.ahead_s = 0.0

    def monotonic(self):
        return time.monotonic() + self.ahead_s


def open_episode(table, length, *, episode=0, actor="a", epoch=None):
    """Returns a writer with an open episode, durable."""
    writer = table.writer(actor=actor, epoch=epoch)
    write_episode(writer, length, episode=episode, end="open")
    writer.flush()
    return writer


def end(table):
    """Ends all open episodes of a table, as if their leases had run out."""
    engine = table._engine
    engine._endings.end_episodes(list(engine._core.open_episodes))


def crash_copy(replay, path):
    """Copies the store's files as they are now: what a machine that fails now finds at its next start."""
    shutil.copytree(replay._store.path, path)
    return Replay(path)


def test_ended_episodes_are_so_after_a_crash_and_their_writers_are_refused(replay, tmp_path):
    table = replay.create_table("t", SCALARS)
    open_episode(table, 3)
    still = open_episode(table, 2, episode=1, actor="b")
    session = table._engine._core.open_episodes and next(iter(table._engine._core.open_episodes))[0]
    engine = table._engine
    engine._endings.end_episodes([name for name in engine._core.open_episodes if name[0] == session])
    with crash_copy(replay, tmp_path / "copy") as after:
        again = after.table("t")
        records = [(record.length, record.truncated, record.end_reason) for record in again.episodes()]
        assert records == [(2, False, ""), (3, True, "lost_actor")]
        assert again.read_episode(0)["truncated"].tolist() == [False, False, True]
        batch = again.sample(200, seed=1)
        assert set(zip(batch.episode_id.tolist(), batch.t.tolist(), batch.truncated.tolist(), strict=True)) == {
            (0, 0, False), (0, 1, False), (0, 2, True), (1, 0, False), (1, 1, False),
        }  # fmt: skip
        assert again.stats().open_episodes == 1
        core = again._engine._core
        assert list(core.lost.values()) == [0]
    still.append(2, 21, 103, terminated=True)
    still.close()
    assert table.episodes()[0].terminated


def test_writer_of_an_ended_episode_is_refused_after_a_restart_too(tmp_path):
    from tests.unit.test_staging import request

    with Replay(tmp_path / "s") as replay:
        table = replay.create_table("t", SCALARS)
        engine = table._engine
        first, second = request((0, 7, 0, 3, False)), request((1, 7, 3, 2, True))
        engine.append(first.session_id, "a", [(0, first.chunks[0])], urgent=True, timeout_s=10)
        end(table)
    with Replay(tmp_path / "s") as replay:
        engine = replay.engine("t")
        assert engine.open_session(first.session_id) == 0
        with pytest.raises(WriterFencedError, match="episode 0 was ended as truncated"):
            engine.append(first.session_id, "a", [(1, second.chunks[0])], urgent=True, timeout_s=10)
        assert engine.stats().steps == 3
        duplicate = engine.append(first.session_id, "a", [(0, first.chunks[0])], urgent=True, timeout_s=10)
        assert duplicate == 0  # what was stored before is acknowledged, whatever became of its episode


def test_epochs_are_known_after_a_restart(tmp_path):
    with Replay(tmp_path / "s") as replay:
        table = replay.create_table("t", SCALARS)
        with table.writer(actor="a", epoch=5) as writer:
            write_episode(writer, 2)
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        with pytest.raises(WriterFencedError, match="expected epoch 5 or a larger one, found 4"):
            table.writer(actor="a", epoch=4)
        with table.writer(actor="a", epoch=5) as writer:
            write_episode(writer, 1, episode=1)


def test_queue_hands_out_what_an_end_made_complete_also_after_a_crash_before_it_was_saved(replay, tmp_path):
    table = replay.create_table("t", SCALARS, TableConfig(samplers=SAMPLERS))
    write_episodes(table, [2])
    assert table.sample(1, WHOLE, sampler="queue").episode_id.tolist() == [0]
    open_episode(table, 3, episode=1)
    table._engine.save_state()
    end(table)
    with crash_copy(replay, tmp_path / "unsaved") as after:
        assert after.table("t").sample(1, WHOLE, sampler="queue").episode_id.tolist() == [1]
        with pytest.raises(NotReadyError):
            after.table("t").sample(1, WHOLE, sampler="queue")
    assert table.sample(1, WHOLE, sampler="queue").episode_id.tolist() == [1]
    table._engine.save_state()
    with crash_copy(replay, tmp_path / "saved") as after, pytest.raises(NotReadyError):
        after.table("t").sample(1, WHOLE, sampler="queue")


def test_numbers_of_ends_are_not_used_again_when_the_episodes_are_gone(tmp_path):
    """Else a queue would take a later end for one that it knows, and never hand its episode out."""
    config = TableConfig(samplers=SAMPLERS, capacity_steps=6, chunk_steps=3)
    with Replay(tmp_path / "s") as replay:
        table = replay.create_table("t", SCALARS, config)
        write_episodes(table, [2])
        table.sample(1, WHOLE, sampler="queue")
        for episode in (1, 2):
            open_episode(table, 3, episode=episode)
            end(table)
        write_episodes(table, [3, 3])  # the ended ones are removed
        assert table._engine._core.index.lost == {}
        table._engine.save_state()
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        assert table._engine._core.next_end == (8 << 12) + 2  # the last one came after eight steps
        open_episode(table, 2, episode=7)
        end(table)
        with crash_copy(replay, tmp_path / "copy") as after:
            ids = [int(after.table("t").sample(1, WHOLE, sampler="queue").episode_id[0]) for _ in range(2)]
            assert 5 in ids


def test_end_that_cannot_be_noted_does_not_happen_and_is_tried_again(tmp_path):
    class Full(System):
        full = False

        def write_file(self, path, data):
            if self.full:
                raise OSError(28, "No space left on device")
            super().write_file(path, data)

    system = Full()
    with Replay(tmp_path / "s", system=system) as replay:
        table = replay.create_table("t", SCALARS)
        writer = open_episode(table, 3)
        system.full = True
        with pytest.raises(CapacityError):
            end(table)
        assert (table.stats().open_episodes, table.episodes()[0].closed) == (1, False)
        system.full = False
        end(table)
        assert table.episodes()[0].end_reason == "lost_actor"
        writer.append(3, 30, 4, terminated=True)
        with pytest.raises(WriterFencedError):
            writer.close()


def test_process_that_stood_still_ends_nobodys_episode(tmp_path):
    clock = Clock()
    with Replay(tmp_path / "s", system=clock) as replay:
        table = replay.create_table("t", SCALARS, TableConfig(lease_s=30))
        open_episode(table, 2).close()
        looked_at = replay._keepers._looked_at
        clock.ahead_s = 3600.0  # as after SIGSTOP and SIGCONT
        deadline = time.monotonic() + 20
        while replay._keepers._looked_at < looked_at + 3600.0 + 0.5:  # it has looked twice since
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert table.stats().open_episodes == 1
        for _ in range(40):  # the same time in which it was awake: leases run
            clock.ahead_s += 1.0
            seen = replay._keepers._looked_at
            while replay._keepers._looked_at == seen:
                assert time.monotonic() < deadline + 40
                time.sleep(0.02)
        assert (table.stats().open_episodes, table.stats().lost_actor_episodes_total) == (0, 1)


def test_leases_begin_anew_at_a_start(tmp_path):
    with Replay(tmp_path / "s") as replay:
        open_episode(replay.create_table("t", SCALARS, TableConfig(lease_s=1)), 2).close()
    time_of_start = time.monotonic()
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        assert table.stats().open_episodes == 1
        while table.stats().open_episodes:
            assert time.monotonic() < time_of_start + 20
            time.sleep(0.02)
        assert time.monotonic() - time_of_start >= 1
        assert table.episodes()[0].end_reason == "lost_actor"


def test_snapshot_knows_the_ends(replay, tmp_path):
    table = replay.create_table("t", SCALARS)
    open_episode(table, 3)
    end(table)
    replay.snapshot(tmp_path / "copy")
    replay.close()
    with Replay(tmp_path / "copy") as copy:
        record = copy.table("t").episodes()[0]
        assert (record.truncated, record.end_reason) == (True, "lost_actor")


def test_ended_episodes_can_be_deleted_and_removed(replay):
    table = replay.create_table("t", SCALARS, TableConfig(chunk_steps=2, capacity_episodes=2))
    for episode in range(2):
        open_episode(table, 3, episode=episode)
    end(table)
    assert table.delete_episodes([0]) == 1
    assert [record.episode_id for record in table.episodes()] == [1]
    write_episodes(table, [2, 2])
    assert [record.episode_id for record in table.episodes()] == [3, 2]
    assert table._engine._core.index.lost == {}
    assert table._engine._core.lost == {}


def test_lost_list_that_cannot_be_read_lets_leases_end_the_episodes_anew(tmp_path):
    with Replay(tmp_path / "s") as replay:
        table = replay.create_table("t", SCALARS, TableConfig(lease_s=1))
        open_episode(table, 2)
        end(table)
    (tmp_path / "s" / "tables" / "t" / "state" / "lost").write_bytes(b"damaged")
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        deadline = time.monotonic() + 20
        while not table.episodes()[0].closed:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert np.array_equal(table.read_episode(0)["truncated"], [False, True])


def test_a_queue_that_is_first_asked_later_hands_lost_episodes_out_when_they_were_lost(tmp_path):
    """Episode 0 (positions 0 to 2) is lost after 1 (3 and 4) ended and before 2 (5): complete are 1, 0, 2, then and later."""
    samplers = {"first": Fifo(), "second": Fifo(), "third": Fifo()}
    with Replay(tmp_path / "s") as replay:
        table = replay.create_table("t", SCALARS, TableConfig(samplers=samplers))
        open_episode(table, 3)
        write_episodes(table, [2])
        end(table)
        write_episodes(table, [1])
        assert table.sample(3, WHOLE, sampler="first").episode_id.tolist() == [1, 0, 2]
        replay.snapshot(tmp_path / "copy")
        assert table.sample(3, WHOLE, sampler="second").episode_id.tolist() == [1, 0, 2]
    with Replay(tmp_path / "copy") as replay:
        assert replay.table("t").sample(3, WHOLE, sampler="third").episode_id.tolist() == [1, 0, 2]
