"""Stacks of frames: made when they are sampled, from single frames of one episode, the same on both doors."""

import numpy as np
import pytest

from replaysvc import (
    AtEnd,
    Episodes,
    FieldSpec,
    Her,
    Precision,
    Sequences,
    Signature,
    Stack,
    StackPadding,
    TableConfig,
    Transitions,
)
from replaysvc.errors import InvalidRequestError, NotReadyError, SpecMismatchError
from replaysvc.spec import DTYPES
from tests.builders import make_goal_table, make_table
from tests.statistics import check_draws

ZERO = StackPadding.ZERO
PIXELS = Signature(
    {
        "image": FieldSpec("image", (2, 3), np.uint8),
        "place": FieldSpec("place", (2,), np.float64),
        "speed": FieldSpec("speed", (), np.float32, Precision.LOSSLESS),
    },
    FieldSpec("action", (), np.int64),
)


def frame(episode, t):
    """Returns the observation whose image is 50 * episode + t + 1 all over; the place is 20 km off, in millimetre moves."""
    return {
        "image": np.full((2, 3), 50 * episode + t + 1, np.uint8),
        "place": np.array([20_000 + 1000 * episode + 0.001 * t, 7.0]),
        "speed": np.float32(t / 2),
    }


def write_frames(writer, length, *, episode=0, end="truncated"):
    writer.begin(frame(episode, 0))
    for t in range(length):
        last = t == length - 1
        writer.append(
            t, float(t), frame(episode, t + 1), terminated=last and end == "terminated", truncated=last and end == "truncated"
        )


def make_frames(door, lengths, *, end="truncated", **config):
    table = door.create_table("t", PIXELS, TableConfig(**config))
    with table.writer() as writer:
        for episode, length in enumerate(lengths):
            write_frames(writer, length, episode=episode, end=end)
    return table


def shown(images, episode):
    """Returns the step of each frame in stacked images [..., 2, 3] of an episode; -1 for a black one."""
    assert (images == images[..., :1, :1]).all()
    steps = images[..., 0, 0].astype(int) - 50 * episode - 1
    return np.where(images[..., 0, 0] == 0, -1, steps).tolist()


@pytest.mark.parametrize("chunk_steps", [1, 2, 3, 5, 64])
def test_stacks_of_three_worked_by_hand(door, chunk_steps):
    """Oldest frame first; before the episode's first step that observation again and again, or zeros."""
    repeat = {0: [0, 0, 0], 1: [0, 0, 1], 2: [0, 1, 2], 3: [1, 2, 3], 4: [2, 3, 4], 5: [3, 4, 5]}
    zero = {0: [-1, -1, 0], 1: [-1, 0, 1], 2: [0, 1, 2], 3: [1, 2, 3], 4: [2, 3, 4], 5: [3, 4, 5]}
    table = make_frames(door, [5, 2, 5], chunk_steps=chunk_steps)
    for padding, stacks in ((StackPadding.REPEAT, repeat), (ZERO, zero)):
        batch = table.sample(80, Transitions(stack=Stack(frames=3, padding=padding)), seed=1)
        assert batch.observation["image"].shape == (80, 3, 2, 3)
        assert batch.observation["image"].dtype == np.uint8
        for i, (episode, t) in enumerate(zip(batch.episode_id.tolist(), batch.t.tolist(), strict=True)):
            assert shown(batch.observation["image"][i], episode) == stacks[t]
            assert shown(batch.next_observation["image"][i], episode) == stacks[t + 1]
            speed = [max(0, u) / 2 for u in stacks[t]]
            assert batch.observation["speed"][i].tolist() == speed
            place = [20_000 + 1000 * episode + 0.001 * u if u >= 0 else 0 for u in stacks[t]]
            assert batch.observation["place"][i][:, 0] == pytest.approx(place, abs=0.0005)
            assert batch.observation["place"][i][:, 1] == pytest.approx([7.0 if u >= 0 else 0 for u in stacks[t]])
        assert set(batch.episode_id.tolist()) == {0, 1, 2}
        assert (batch.observation["place"].dtype, batch.observation["speed"].shape) == (np.float64, (80, 3))


@pytest.mark.parametrize("chunk_steps", [1, 2, 64])
def test_next_stack_of_an_n_step_transition_ends_where_its_window_ends(door, chunk_steps):
    table = make_frames(door, [5, 3], chunk_steps=chunk_steps)
    batch = table.sample(60, Transitions(n_step=3, stack=2), seed=2)
    following = {0: [[2, 3], [3, 4], [4, 5], [4, 5], [4, 5]], 1: [[2, 3], [2, 3], [2, 3]]}
    for i, (episode, t) in enumerate(zip(batch.episode_id.tolist(), batch.t.tolist(), strict=True)):
        assert shown(batch.observation["image"][i], episode) == [max(0, t - 1), t]
        assert shown(batch.next_observation["image"][i], episode) == following[episode][t]


def test_eight_steps_give_eight_stacked_transitions_with_one_end_and_the_last_reward(door):
    table = make_frames(door, [8], end="terminated")
    batch = table.sample(100, Transitions(stack=4), seed=3)
    assert set(batch.t.tolist()) == set(range(8))
    assert (batch.terminated == (batch.t == 7)).all()
    assert (batch.reward == batch.t).all()
    last = int(np.flatnonzero(batch.t == 7)[0])
    assert shown(batch.next_observation["image"][last], 0) == [5, 6, 7, 8]


@pytest.mark.parametrize("chunk_steps", [1, 3, 64])
def test_stacks_in_sequences_reach_back_before_the_sequence(door, chunk_steps):
    table = make_frames(door, [7, 2], chunk_steps=chunk_steps)
    batch = table.sample(40, Sequences(length=3, stack=3), seed=4)
    assert batch.observation["image"].shape == (40, 3, 3, 2, 3)
    for i, (episode, begin) in enumerate(zip(batch.episode_id.tolist(), batch.t.tolist(), strict=True)):
        for u in range(int(batch.mask[i].sum())):
            t = begin + u
            assert shown(batch.observation["image"][i, u], episode) == [max(0, t - 2), max(0, t - 1), t]
            assert shown(batch.next_observation["image"][i, u], episode) == [max(0, t - 1), t, t + 1]
        final = shown(batch.observation["image"][i, ~batch.mask[i], -1], episode)
        assert final == [(7, 2)[episode]] * len(final)
    assert set(zip(batch.episode_id.tolist(), batch.t.tolist(), strict=True)) == {(0, 0), (0, 3), (0, 6), (1, 0)}


def test_stacks_of_shifted_sequences_and_of_whole_episodes(door):
    table = make_frames(door, [4])
    batch = table.sample(20, Sequences(length=3, at_end=AtEnd.SHIFT, stack=Stack(frames=2, padding=ZERO)), seed=5)
    for i, begin in enumerate(batch.t.tolist()):
        stacks = {0: [[-1, 0], [0, 1], [1, 2]], 1: [[0, 1], [1, 2], [2, 3]]}
        assert shown(batch.observation["image"][i], 0) == stacks[begin]
    assert set(batch.t.tolist()) == {0, 1}
    batch = table.sample(2, Episodes(stack=Stack(frames=2, padding=ZERO)))
    for i in range(2):
        assert shown(batch.observation["image"][i], 0) == [[-1, 0], [0, 1], [1, 2], [2, 3]]
        assert shown(batch.next_observation["image"][i], 0) == [[0, 1], [1, 2], [2, 3], [3, 4]]


def test_interleaved_episodes_of_several_writers_never_share_a_frame(door):
    table = door.create_table("t", PIXELS, TableConfig(chunk_steps=2))
    writers = [table.writer() for _ in range(4)]
    for i, writer in enumerate(writers):
        writer.begin(frame(i, 0))
    for t in range(9):
        for i, writer in enumerate(writers):
            writer.append(i, 0.0, frame(i, t + 1), truncated=t == 8)
        writers[t % 4].flush()
    for writer in writers:
        writer.close()
    batch = table.sample(200, Transitions(n_step=2, stack=4), seed=6)
    for i, (actor, t) in enumerate(zip(batch.action.tolist(), batch.t.tolist(), strict=True)):
        assert shown(batch.observation["image"][i], actor) == [max(0, u) for u in range(t - 3, t + 1)]
        following = min(t + 2, 9)
        assert shown(batch.next_observation["image"][i], actor) == [max(0, u) for u in range(following - 3, following + 1)]


def test_only_the_named_columns_are_stacked(door):
    table = make_frames(door, [3])
    for names in (("image",), ("observation/image",)):
        batch = table.sample(8, Transitions(stack=Stack(frames=2, columns=names)), seed=7)
        for observation in (batch.observation, batch.next_observation):
            assert observation["image"].shape == (8, 2, 2, 3)
            assert observation["place"].shape == (8, 2)
            assert observation["speed"].shape == (8,)
        assert (batch.observation["speed"] == batch.t / 2).all()
    with pytest.raises(InvalidRequestError, match="lidar"):
        table.sample(8, Transitions(stack=Stack(frames=2, columns=("lidar",))))


def test_no_stack_means_no_axis(door):
    table = make_frames(door, [3])
    for stack in (1, Stack(frames=1)):
        assert table.sample(4, Transitions(stack=stack)).observation["image"].shape == (4, 2, 3)


COUNTED = Signature(
    {
        "image": FieldSpec("image", (2,), np.uint8),
        "count": FieldSpec("count", (), np.int64),
        "on": FieldSpec("on", (), np.bool_),
    },
    FieldSpec("action", (), np.int64),
)


@pytest.mark.parametrize(
    ("columns", "word"), [((), "count|on"), (("count",), "count"), (("image", "on"), "on"), (("observation/count",), "count")]
)
def test_integers_and_bools_that_are_no_arrays_are_not_stacked(door, columns, word):
    table = door.create_table("t", COUNTED)
    with table.writer() as writer:
        writer.begin({"image": [1, 1], "count": 0, "on": False})
        writer.append(0, 0.0, {"image": [2, 2], "count": 1, "on": True}, terminated=True)
    with pytest.raises(InvalidRequestError, match=f"observation/({word})"):
        table.sample(1, Transitions(stack=Stack(frames=2, columns=columns)))
    batch = table.sample(1, Transitions(stack=Stack(frames=2, columns=("image",))))
    assert batch.next_observation["image"].tolist() == [[[1, 1], [2, 2]]]
    assert (batch.next_observation["count"].tolist(), batch.next_observation["on"].tolist()) == ([1], [True])


def test_a_lone_integer_observation_is_not_stacked(door):
    table = make_table(door, [3])
    with pytest.raises(InvalidRequestError, match="observation"):
        table.sample(1, Transitions(stack=2))
    with pytest.raises(InvalidRequestError, match="observation"):
        table.sample(1, Sequences(length=2, stack=2))
    assert len(table.sample(1)) == 1


def test_goals_are_not_stacked(door):
    table = make_goal_table(door, [3])
    for what in (Transitions(stack=3), Transitions(stack=3, her=Her(ratio=1.0))):
        batch = table.sample(20, what, seed=8)
        assert batch.observation["state"].shape == (20, 3, 1)
        for observation in (batch.observation, batch.next_observation):
            assert observation["achieved_goal"].shape == (20, 2)
            assert observation["desired_goal"].shape == (20, 2)
        assert (batch.observation["achieved_goal"][:, 0] == batch.t).all()


@pytest.mark.parametrize("chunk_steps", [1, 3, 64])
def test_anchors_whose_stack_would_need_removed_steps_are_not_drawn(door, chunk_steps):
    """Of eight steps capacity keeps 3 to 7: a stack of three is whole from step 5 on, and needs no padding there."""
    table = make_frames(door, [8], chunk_steps=chunk_steps, capacity_steps=5)
    for padding in StackPadding:
        batch = table.sample(60, Transitions(stack=Stack(frames=3, padding=padding)), seed=9)
        assert set(batch.t.tolist()) == {5, 6, 7}
        assert shown(batch.observation["image"], 0) == [[t - 2, t - 1, t] for t in batch.t.tolist()]
        assert shown(batch.next_observation["image"], 0) == [[t - 1, t, t + 1] for t in batch.t.tolist()]
    assert set(table.sample(60, seed=9).t.tolist()) == {3, 4, 5, 6, 7}
    assert set(table.sample(60, Sequences(length=2, period=1, stack=3), seed=9).t.tolist()) == {5, 6}
    with pytest.raises(NotReadyError):
        table.sample(1, Transitions(stack=6))


def test_chances_count_only_anchors_that_have_their_stack(door):
    table = make_frames(door, [8], chunk_steps=1, capacity_steps=5)
    for sampler in ("uniform", "prioritized"):
        batch = table.sample(600, Transitions(stack=3), sampler=sampler, seed=9)
        check_draws(batch.t, {5: 1.0, 6: 1.0, 7: 1.0})
        assert batch.probability == pytest.approx(np.full(600, 1 / 3))


def test_stacks_of_a_table_at_capacity_stay_within_their_episodes(door):
    """The oldest episode has lost its beginning, so its first frames have no stack; all others have theirs."""
    table = make_frames(door, [4, 3, 4], capacity_steps=9, chunk_steps=2)
    batch = table.sample(200, Transitions(stack=2), seed=10)
    drawn = set(zip(batch.episode_id.tolist(), batch.t.tolist(), strict=True))
    assert drawn == {(0, 3)} | {(1, t) for t in range(3)} | {(2, t) for t in range(4)}
    for i, (episode, t) in enumerate(zip(batch.episode_id.tolist(), batch.t.tolist(), strict=True)):
        assert shown(batch.observation["image"][i], episode) == [max(0, t - 1), t]


def test_every_dtype_comes_back_as_declared_from_every_window(door):
    names = [dtype.name for dtype in DTYPES]
    signature = Signature({name: FieldSpec(name, (2,), np.dtype(name)) for name in names}, FieldSpec("action", (), np.int8))

    def observation(t):
        return {name: np.array([t % 2, 1]).astype(name) for name in reversed(names)}

    table = door.create_table("t", signature, TableConfig(chunk_steps=2))
    with table.writer() as writer:
        writer.begin(observation(0))
        for t in range(5):
            writer.append(t, 0.0, observation(t + 1), truncated=t == 4)
    for what in (Transitions(stack=2), Sequences(length=3, stack=2), Episodes(stack=2), Sequences(length=5)):
        batch = table.sample(6, what, seed=11)
        assert batch.action.dtype == np.int8
        for name in names:
            values = batch.observation[name]
            assert values.dtype == batch.next_observation[name].dtype == np.dtype(name)
            first = values.reshape(6, -1, 2)[:, :2, 0]
            newest = first[:, 1 if what.stack.frames == 2 else 0]
            assert (newest == (batch.t % 2).astype(name)).all()


def test_bad_stack_options_fail_when_they_are_made():
    for options in ({"frames": 0}, {"frames": 1000}, {"frames": 2, "padding": "mirror"}, {"frames": 2, "columns": "image"}):
        with pytest.raises(SpecMismatchError, match=list(options)[-1]):
            Stack(**options)
