"""What is no legal argument is refused by field, what was expected and what was found, the same on both doors."""

import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest

import replay_client
import replaysvc
from replaysvc import Episodes, Fifo, Her, Sequences, Stack, TableConfig, Uniform
from replaysvc.errors import InvalidRequestError, NotFoundError, SpecMismatchError
from tests.builders import GOALS, SCALARS, write_episode, write_episodes

HALF = "\ud800"  # of a surrogate pair: no text that could be sent
NO_NAMES = [None, 3, [], {}, np.array(["a"]), HALF]
NO_FLAGS = [None, 1, "yes", [], np.array([1, 2]), 0.5]
NO_TIMEOUTS = [None, "1", [], 1j, float("nan"), float("inf"), 2**63, -1, np.array([1, 2])]


@pytest.mark.parametrize("wrong", NO_NAMES, ids=repr)
def test_names_are_text(door, wrong):
    table = door.create_table("t", SCALARS)
    for field, call in {
        "table": lambda: door.table(wrong),
        "params": lambda: door.get_params(wrong),
        "sampler": lambda: table.sample(1, sampler=wrong),
    }.items():
        with pytest.raises(SpecMismatchError, match=f"^{field}: expected a name"):
            call()
    with pytest.raises(SpecMismatchError, match="^table: expected a name"):
        door.delete_table(wrong)
    with pytest.raises(SpecMismatchError, match="^sampler: expected a name"):
        table.update_priorities([0], [1.0], sampler=wrong)
    if wrong is not None:
        with pytest.raises(SpecMismatchError, match="^actor: expected up to 128 printable characters"):
            table.episodes(actor=wrong)


def test_names_within_requests_are_text():
    with pytest.raises(SpecMismatchError, match="^state: expected a tuple of names"):
        Sequences(length=2, state=(HALF,))
    with pytest.raises(SpecMismatchError, match="^columns: expected a tuple of names"):
        Stack(2, columns=(HALF,))
    for name in ("achieved", "desired"):
        with pytest.raises(SpecMismatchError, match=f"^{name}: expected the name of an observation"):
            Her(**{name: HALF})


@pytest.mark.parametrize("wrong", NO_FLAGS, ids=repr)
def test_flags_are_bools(door, wrong):
    table = door.create_table("t", SCALARS)
    for field, call in {
        "exist_ok": lambda: door.create_table("t", SCALARS, exist_ok=wrong),
        "closed_only": lambda: table.episodes(closed_only=wrong),
        "open_episodes": lambda: table.delete_episodes([], open_episodes=wrong),
        "wait": lambda: table.update_priorities([], [], wait=wrong),
    }.items():
        with pytest.raises(SpecMismatchError, match=f"^{field}: expected a bool"):
            call()
    with pytest.raises(SpecMismatchError, match="^open_episodes: expected a bool"):
        Episodes(open_episodes=wrong)


def test_flags_of_numpy_are_bools_too(door):
    table = door.create_table("t", SCALARS, exist_ok=np.bool_(False))
    write_episodes(table, [2])
    assert len(table.episodes(closed_only=np.bool_(True))) == 1
    assert table.delete_episodes([0], open_episodes=np.bool_(True)) == 1


@pytest.mark.parametrize("wrong", NO_TIMEOUTS, ids=repr)
def test_timeouts_of_a_writer_are_seconds(door, wrong):
    with door.create_table("t", SCALARS).writer() as writer:
        for call in (writer.flush, writer.close):
            with pytest.raises(SpecMismatchError, match="^timeout_s: expected a number from 0 to 86400"):
                call(wrong)
        write_episode(writer, 2)  # neither ended it


@pytest.mark.parametrize("seconds", [30, np.float32(30), np.int64(30)], ids=repr)
def test_timeouts_of_a_writer_may_be_numbers_of_any_kind(door, seconds):
    table = door.create_table("t", SCALARS)
    writer = table.writer()
    write_episode(writer, 2)
    writer.flush(seconds)
    writer.close(seconds)
    assert table.stats().steps == 2


@pytest.mark.parametrize("wrong", [np.array(3), 3, None, "12", [0.5], [None]], ids=repr)
def test_episodes_to_delete_are_a_collection_of_ids(door, wrong):
    with pytest.raises(SpecMismatchError, match="^episode_ids: expected"):
        door.create_table("t", SCALARS).delete_episodes(wrong)


@pytest.mark.parametrize("metadata", [{1: 2}, {"a": {None: 1}}, {"a": [{"b": {True: 1}}]}, [], "text", 3], ids=repr)
def test_metadata_that_json_would_change_are_refused(door, metadata):
    with door.create_table("t", SCALARS).writer() as writer, pytest.raises(SpecMismatchError, match="^metadata: expected"):
        writer.begin(0, metadata=metadata)


def test_what_was_found_is_not_repeated_whole(door):
    long = "a" * 5000
    table = door.create_table("t", SCALARS, TableConfig(samplers={"uniform": Uniform(), "queue": Fifo()}))
    goals = door.create_table("goals", GOALS)
    for call in (
        lambda: door.create_table(long, SCALARS), lambda: door.table(long), lambda: door.delete_table(long),
        lambda: door.get_params(long), lambda: door.put_params(long, b"", version=0), lambda: table.writer(long),
        lambda: table.sample(long), lambda: table.sample(1, sampler=long), lambda: table.sample(1, beta=long),
        lambda: table.update_priorities([0], [1.0], sampler=long), lambda: table.episodes(limit=long),
        lambda: table.sample(1, Sequences(length=2, state=(long,))),
        lambda: table.sample(1, replaysvc.Transitions(stack=Stack(2, columns=(long,)))),
        lambda: goals.sample(1, replaysvc.Transitions(her=Her(achieved=long))), lambda: door.snapshot([long]),
        lambda: table.read_episode(10**5000),
    ):  # fmt: skip
        with pytest.raises((InvalidRequestError, NotFoundError)) as caught:
            call()
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize("wrong", [None, 3, b"there", "", "a\0b", HALF, []], ids=repr)
def test_paths_of_stores_and_snapshots_are_paths(tmp_path, monkeypatch, wrong):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecMismatchError, match="^path: expected the path of a directory"):
        replaysvc.open(wrong)
    with replaysvc.open(tmp_path / "store") as replay, pytest.raises(SpecMismatchError, match="^path: expected the path"):
        replay.snapshot(wrong)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("wrong", ["zz", {}, 3], ids=repr)
def test_configurations_are_of_their_class(tmp_path, wrong):
    with pytest.raises(SpecMismatchError, match="^config: expected a StoreConfig"):
        replaysvc.open(tmp_path / "store", wrong)
    assert not Path(tmp_path / "store").exists()
    with pytest.raises(SpecMismatchError, match="^config: expected a ClientConfig"):
        replay_client.connect("localhost:7777", config=wrong)


@pytest.mark.parametrize("wrong", [None, 7777, b"x:1", ("h", 1), "localhost:\u00b2", f"{HALF}:7", "x\n:7", "x:"], ids=repr)
def test_addresses_are_host_and_port(wrong):
    with pytest.raises(SpecMismatchError, match="^address: expected host:port"):
        replay_client.connect(wrong)


def test_transport_security_is_of_its_class():
    with pytest.raises(SpecMismatchError, match="^tls: expected a Tls"):
        replay_client.connect("localhost:7777", tls="x")


def test_what_lives_in_one_process_says_that_it_cannot_be_pickled(replay, served):
    table = replay.create_table("t", SCALARS)
    write_episodes(table, [4])
    with table.writer() as writer, served.table("t").writer() as remote_writer:
        streams = [table.stream(2), served.table("t").stream(2)]
        for value, words in (
            (replay, "serve the store"), (table, "serve the store"),
            (writer, r"table\.writer\(\)"), (remote_writer, r"table\.writer\(\)"),
            *zip(streams, itertools.repeat(r"table\.stream"), strict=False),
        ):  # fmt: skip
            with pytest.raises(TypeError, match=words):
                pickle.dumps(value)
        for stream in streams:
            assert len(next(stream)) == 2
            stream.close()
            assert next(stream, None) is None
