"""Fields of steps that differ in length: token lists as observations, allowed actions as an extra; the same on both doors."""

from contextlib import contextmanager

import numpy as np
import pytest

import replay_client
from replaysvc import (
    FieldSpec,
    Her,
    RaggedArray,
    Sequences,
    Signature,
    SparseReward,
    Stack,
    StackPadding,
    TableConfig,
    Transitions,
)
from replaysvc.errors import InvalidRequestError, SpecMismatchError
from replaysvc.replay import Replay
from replaysvc.rpc.server import Server

TOKENS = Signature(
    FieldSpec("tokens", (4,), np.int32, ragged=True),
    FieldSpec("action", (), np.int64),
    legal=FieldSpec("legal", (3,), np.uint8, ragged=True),
)
LISTS = [[7], [], [1, 2, 3, 4], [5, 6], [8]]  # of each observation: none, some, and as many as there may be
LEGAL = [[0, 1, 2], [2], [], [0, 1]]  # of each step


def write(table, **end):
    """Writes one episode of four steps, over as many chunks as the table is made for."""
    with table.writer() as writer:
        writer.begin(LISTS[0])
        for t in range(4):
            writer.append(t, 0.0, LISTS[t + 1], extras={"legal": LEGAL[t]}, **({"terminated": t == 3} | end))


def lists(ragged):
    """Returns the items of a ragged array with one leading axis as lists."""
    assert isinstance(ragged, RaggedArray)
    return [item.tolist() for item in ragged]


@pytest.mark.parametrize("chunk_steps", [1, 3, 64])
def test_transitions_have_the_lists_of_their_steps(door, chunk_steps):
    table = door.create_table("t", TOKENS, TableConfig(chunk_steps=chunk_steps))
    write(table)
    batch = table.sample(60, seed=1)
    assert set(batch.t.tolist()) == {0, 1, 2, 3}
    assert lists(batch.observation) == [LISTS[t] for t in batch.t]
    assert lists(batch.next_observation) == [LISTS[t + 1] for t in batch.t]
    assert lists(batch.extras["legal"]) == [LEGAL[t] for t in batch.t]
    assert batch.observation.lead == batch.next_observation.lead == batch.extras["legal"].lead == (60,)
    assert (batch.observation.values.dtype, batch.extras["legal"].values.dtype) == (np.int32, np.uint8)
    assert lists(batch.asdict()["legal"]) == lists(batch.extras["legal"])


def test_values_and_offsets_worked_by_hand(door):
    """One step, drawn three times: from [3, 4] by a step with [1] to an empty list."""
    table = door.create_table("t", TOKENS)
    with table.writer() as writer:
        writer.begin([3, 4])
        writer.append(0, 0.0, [], extras={"legal": [1]}, truncated=True)
    batch = table.sample(3)
    assert batch.observation.values.tolist() == [3, 4, 3, 4, 3, 4]
    assert batch.observation.offsets.tolist() == [0, 2, 4, 6]
    assert batch.next_observation.values.tolist() == []
    assert batch.next_observation.offsets.tolist() == [0, 0, 0, 0]
    assert batch.extras["legal"].values.tolist() == [1, 1, 1]
    assert batch.extras["legal"].offsets.tolist() == [0, 1, 2, 3]
    array, mask = batch.observation.padded(fill=-1, length=3)
    assert array.tolist() == [[3, 4, -1]] * 3
    assert mask.tolist() == [[True, True, False]] * 3


def test_n_step_transitions_end_at_the_right_list(door):
    table = door.create_table("t", TOKENS, TableConfig(chunk_steps=2))
    write(table)
    batch = table.sample(40, Transitions(n_step=3), seed=2)
    assert lists(batch.next_observation) == [LISTS[min(t + 3, 4)] for t in batch.t]


def test_read_episode_has_one_list_more_than_steps(door):
    table = door.create_table("t", TOKENS, TableConfig(chunk_steps=3))
    write(table)
    episode = table.read_episode(0)
    assert lists(episode["observation"]) == LISTS
    assert lists(episode["legal"]) == LEGAL
    assert (episode["observation"].lead, episode["legal"].lead, episode["action"].shape) == ((5,), (4,), (4,))
    part = table.read_episode(0, 2, 4)
    assert (lists(part["observation"]), lists(part["legal"])) == (LISTS[2:], LEGAL[2:])


NESTED = Signature(
    {"moves": (FieldSpec("moves", (3, 2), np.float32, ragged=True), FieldSpec("n", (), np.int64))},
    {"moves": FieldSpec("moves", (2,), np.bool_, ragged=True)},
)


def test_ragged_leaves_stand_where_they_are_declared(door):
    table = door.create_table("t", NESTED)
    with table.writer() as writer:
        writer.begin({"moves": ([[0.1, 1e30], [np.inf, -0.0]], 0)})
        writer.append({"moves": [True]}, 0.0, {"moves": (np.empty((0, 2), np.float32), 1)}, truncated=True)
    batch = table.sample(2)
    moves, n = batch.observation["moves"]
    assert n.tolist() == [0, 0]
    exact = np.array([[0.1, 1e30], [np.inf, -0.0]], np.float32)
    assert moves[1].tobytes() == exact.tobytes()
    assert batch.next_observation["moves"][0].values.shape == (0, 2)
    assert lists(batch.action["moves"]) == [[True], [True]]


@pytest.mark.parametrize(
    ("observation", "legal", "field", "found"),
    [
        ([1, 2, 3, 4, 5], [0], "observation", "shape (5,)"),
        ([[1]], [0], "observation", "shape (1, 1)"),
        ([0.5], [0], "observation", "dtype float64"),
        ([1], [0, 1, 2, 0], "legal", "shape (4,)"),
        ([1], [256], "legal", "int64 values outside it"),
        ([1], 0, "legal", "shape ()"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_and_the_table_unchanged(door, observation, legal, field, found):
    table = door.create_table("t", TOKENS)
    with table.writer() as writer:
        writer.begin([9])
        with pytest.raises(SpecMismatchError) as caught:
            writer.append(0, 0.0, observation, extras={"legal": legal}, truncated=True)
        assert (caught.value.field, caught.value.found) == (field, found)
        writer.flush()
        assert table.stats().steps == 0
        writer.append(0, 0.0, [6], extras={"legal": []}, truncated=True)
        with pytest.raises(SpecMismatchError, match=r"^observation: expected shape up to \(4,\), found shape \(5,\)$"):
            writer.begin([1, 2, 3, 4, 5])
    episode = table.read_episode(0)
    assert (lists(episode["observation"]), lists(episode["legal"])) == ([[9], [6]], [[]])
    assert table.stats().steps == 1


@contextmanager
def opened(path, kind):
    """A store that was closed before, by one door or the other."""
    with Replay(path) as replay:
        if kind == "embedded":
            yield replay
            return
        server = Server(replay, "127.0.0.1:0")
        server.start()
        with replay_client.connect(f"127.0.0.1:{server.port}") as client:
            yield client
        server.stop(5.0)


@pytest.mark.parametrize("kind", ["embedded", "client"])
def test_lists_survive_a_restart(tmp_path, kind):
    with opened(tmp_path / "store", kind) as replay:
        write(replay.create_table("t", TOKENS, TableConfig(chunk_steps=3)))
    with opened(tmp_path / "store", kind) as replay:
        table = replay.table("t")
        assert table.signature == TOKENS
        assert lists(table.read_episode(0)["observation"]) == LISTS
        batch = table.sample(20, seed=3)
        assert lists(batch.observation) == [LISTS[t] for t in batch.t]
        assert lists(batch.extras["legal"]) == [LEGAL[t] for t in batch.t]


def test_sequences_of_lists_are_ragged_over_both_axes(door):
    """Of four steps, three at a time: steps 0 to 2, and step 3 with two steps of padding."""
    table = door.create_table("t", TOKENS, TableConfig(chunk_steps=2))
    write(table)
    batch = table.sample(20, Sequences(length=3), seed=4)
    assert batch.observation.lead == batch.extras["legal"].lead == (20, 3)
    expected = {
        0: ([[7], [], [1, 2, 3, 4]], [[], [1, 2, 3, 4], [5, 6]], [[0, 1, 2], [2], []]),
        3: ([[5, 6], [8], [8]], [[8], [8], [8]], [[0, 1], [], []]),
    }
    assert set(batch.t.tolist()) == {0, 3}
    for i, t in enumerate(batch.t.tolist()):
        assert (lists(batch.observation[i]), lists(batch.next_observation[i]), lists(batch.extras["legal"][i])) == expected[t]
    array, mask = batch.observation.padded()
    assert (array.shape, mask.shape) == ((20, 3, 4), (20, 3, 4))


@pytest.mark.parametrize(("padding", "before"), [(StackPadding.REPEAT, [7]), (StackPadding.ZERO, [])])
def test_stacked_lists_have_one_axis_more(door, padding, before):
    table = door.create_table("t", TOKENS, TableConfig(chunk_steps=2))
    write(table)
    batch = table.sample(40, Transitions(stack=Stack(frames=2, padding=padding)), seed=5)
    assert batch.observation.lead == (40, 2)
    frames = [before, *LISTS]
    for i, t in enumerate(batch.t.tolist()):
        assert lists(batch.observation[i]) == frames[t : t + 2]
        assert lists(batch.next_observation[i]) == frames[t + 1 : t + 3]


def test_a_stack_of_one_of_several_observations_takes_its_lengths_along(door):
    table = door.create_table("t", Signature({"n": FieldSpec("n", (), np.int64), "tokens": TOKENS.observation}, TOKENS.action))
    with table.writer() as writer:
        writer.begin({"n": 0, "tokens": [5]})
        writer.append(0, 0.0, {"n": 1, "tokens": [6, 7]}, truncated=True)
    batch = table.sample(2, Transitions(stack=Stack(frames=2, columns=("tokens",))))
    assert batch.next_observation["n"].tolist() == [1, 1]
    assert [lists(item) for item in batch.next_observation["tokens"]] == [[[5], [6, 7]]] * 2
    for name in ("tokens/length", "observation/tokens/length", "n"):
        with pytest.raises(InvalidRequestError, match="stack"):
            table.sample(2, Transitions(stack=Stack(frames=2, columns=(name,))))


def test_recurrent_state_may_be_ragged(door):
    """Three steps of a sequence, and the extra of the first of them alone."""
    table = door.create_table("t", TOKENS, TableConfig(chunk_steps=2))
    write(table)
    batch = table.sample(10, Sequences(length=3, state=("legal",)), seed=6)
    assert lists(batch.extras["legal"]) == [LEGAL[t] for t in batch.t]
    assert batch.extras["legal"].lead == (10,)


@pytest.mark.parametrize("suffix", ["", "/length"])
def test_ragged_goals_cannot_be_relabelled(door, suffix):
    goal = FieldSpec("goal", (4,), np.float32, ragged=True)
    table = door.create_table("t", Signature({"achieved_goal": goal, "desired_goal": goal}, TOKENS.action))
    with table.writer() as writer:
        writer.begin({"achieved_goal": [1.0], "desired_goal": [2.0]})
        writer.append(0, 0.0, {"achieved_goal": [], "desired_goal": [2.0]}, truncated=True)
    assert lists(table.sample(1).observation["desired_goal"]) == [[2.0]]
    her = Her(reward=SparseReward(0.5), achieved=f"achieved_goal{suffix}", desired=f"desired_goal{suffix}")
    with pytest.raises(InvalidRequestError, match="her.achieved"):
        table.sample(1, Transitions(her=her))
