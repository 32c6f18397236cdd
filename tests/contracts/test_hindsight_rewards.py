"""What follows from a hindsight goal: rewards, ends and masks, the same on both doors.

The agent of episode e stands at 1000 * e + t before step t, so the goal that replaces the unreachable one tells which step's
outcome it is: position - 1.
"""

import numpy as np
import pytest

from replaysvc import DenseReward, Goal, Her, Sequences, SparseReward, Terminated, Transitions
from replaysvc.errors import InvalidRequestError, SpecMismatchError
from tests.builders import GOALS, NEAR, always, assert_same, chosen, flat, goal_observation, make_goal_table


def test_success_ends_the_window_worked_by_hand(door):
    """Four steps of -1, three-step returns, gamma 1/2, success worth 10; the goal is the outcome of step j."""
    table = make_goal_table(door, [4], chunk_steps=2)
    batch = table.sample(600, Transitions(n_step=3, gamma=0.5, her=always(Goal.EPISODE)), seed=3)
    expected = {  # (t, j): reward, discount, next position, terminated, truncated
        (0, 0): (10, 0, 1, True, False),
        (0, 1): (-1 + 5, 0, 2, True, False),
        (0, 2): (-1 - 0.5 + 2.5, 0, 3, True, False),
        (0, 3): (-1.75, 0.125, 3, False, False),
        (1, 0): (-1.75, 0.125, 4, False, True),
        (1, 1): (10, 0, 2, True, False),
        (1, 2): (4, 0, 3, True, False),
        (1, 3): (1, 0, 4, True, False),
        (2, 0): (-1.5, 0.25, 4, False, True),
        (2, 1): (-1.5, 0.25, 4, False, True),
        (2, 2): (10, 0, 3, True, False),
        (2, 3): (4, 0, 4, True, False),
        (3, 0): (-1, 0.5, 4, False, True),
        (3, 1): (-1, 0.5, 4, False, True),
        (3, 2): (-1, 0.5, 4, False, True),
        (3, 3): (10, 0, 4, True, False),
    }
    seen = set()
    for i, key in enumerate(zip(batch.t.tolist(), chosen(batch).tolist(), strict=True)):
        place = batch.next_observation["state"][i, 0]
        found = (batch.reward[i], batch.discount[i], place, batch.terminated[i], batch.truncated[i])
        assert found == expected[key], key
        assert batch.next_observation["achieved_goal"][i, 0] == place
        seen.add(key)
    assert seen == set(expected)


def test_first_success_of_a_window_counts(door):
    """The agent stays where it is, so every goal is reached by the first step."""
    table = door.create_table("t", GOALS)
    with table.writer() as writer:
        writer.begin(goal_observation(0, 3))
        for t in range(5):
            writer.append(t, -1.0, goal_observation(0, 3), truncated=t == 4)
    batch = table.sample(30, Transitions(n_step=4, gamma=0.5, her=always(Goal.FINAL)), seed=4)
    assert (batch.reward == 10).all()
    assert (batch.discount == 0).all()
    assert batch.terminated.all()
    assert not batch.truncated.any()


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_stored_flags_are_kept_if_asked_for(door, end):
    table = make_goal_table(door, [4], end=end)
    her = always(Goal.EPISODE, terminated=Terminated.STORED)
    batch = table.sample(200, Transitions(n_step=2, gamma=0.5, her=her), seed=5)
    for i, (t, j) in enumerate(zip(batch.t.tolist(), chosen(batch).tolist(), strict=True)):
        rewards = [10 if u == j else -1 for u in range(t, min(t + 2, 4))]
        assert batch.reward[i] == sum(r * 0.5**u for u, r in enumerate(rewards))
        at_end = t >= 2
        assert (batch.terminated[i], batch.truncated[i]) == (at_end and end == "terminated", at_end and end == "truncated")
        assert batch.discount[i] == (0 if at_end and end == "terminated" else 0.5 ** len(rewards))
        assert batch.next_observation["state"][i, 0] == min(t + 2, 4)


def test_stored_termination_that_is_no_success_is_not_kept_by_default(door):
    """The environment ended the episode for a reason of its own; of the new goal only reaching it is an end."""
    table = make_goal_table(door, [3], end="terminated")
    batch = table.sample(200, Transitions(gamma=0.5, her=always(Goal.EPISODE)), seed=6)
    success = chosen(batch) == batch.t
    assert (batch.terminated == success).all()
    assert (batch.discount == np.where(success, 0, 0.5)).all()
    assert not batch.truncated.any()


def plane(door, places):
    """Returns a table of one truncated episode whose achieved goals are the given points."""
    table = door.create_table("t", GOALS)

    def observation(t):
        return {"state": [t], "achieved_goal": np.array(places[t], np.float32), "desired_goal": np.full(2, 99, np.float32)}

    with table.writer() as writer:
        writer.begin(observation(0))
        for t in range(len(places) - 1):
            writer.append(t, 0.0, observation(t + 1), truncated=t == len(places) - 2)
    return table


@pytest.mark.parametrize(("threshold", "reward", "success"), [(5.0, 1.0, True), (4.99, -2.0, False)])
def test_distance_is_the_euclidean_norm_and_the_threshold_is_within(door, threshold, reward, success):
    """After the first step the goal, which is the final place (0, 0), is (3, 4) away."""
    table = plane(door, [(9, 9), (3, 4), (0, 0)])
    her = always(Goal.FINAL, reward=SparseReward(threshold=threshold, success=1.0, failure=-2.0))
    batch = table.sample(20, Transitions(her=her), seed=7)
    at = batch.t == 0
    assert (batch.reward[at] == reward).all()
    assert (batch.terminated[at] == success).all()
    assert (batch.reward[~at] == 1).all()


def test_dense_reward_is_the_scaled_distance_to_the_new_goal(door):
    table = plane(door, [(9, 9), (3, 4), (0, 2), (0, 0)])
    her = always(Goal.FINAL, reward=DenseReward(scale=2.0, threshold=2.0))
    batch = table.sample(40, Transitions(gamma=0.5, her=her), seed=8)
    assert batch.reward.tolist() == [[-10.0, -4.0, 0.0][t] for t in batch.t.tolist()]
    assert batch.terminated.tolist() == [t > 0 for t in batch.t.tolist()]
    batch = table.sample(40, Transitions(n_step=3, gamma=0.5, her=her), seed=8)
    assert batch.reward.tolist() == [[-12.0, -4.0, 0.0][t] for t in batch.t.tolist()]


def own_reward(calls):
    def compute_reward(achieved, desired, info):
        calls.append((achieved.shape, desired.shape, info))
        return np.where(np.linalg.norm(achieved - desired, axis=-1) <= 0.5, 10.0, -1.0)

    return compute_reward


def own_success(achieved, desired):
    return np.linalg.norm(achieved - desired, axis=-1) <= 0.5


@pytest.mark.parametrize("what", [Transitions, Sequences])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("goal", list(Goal))
def test_reward_function_gives_what_the_same_declared_reward_gives(door, what, n_step, goal):
    """It is called once with arrays; next_observation is that of the whole window, which discount 0 makes no difference to."""
    table = make_goal_table(door, [6, 3])
    options = {"n_step": n_step, "gamma": 0.5} | ({"length": 4} if what is Sequences else {})
    calls = []
    own = Her(goal=goal, ratio=0.7, reward=own_reward(calls), success=own_success)
    declared = table.sample(64, what(her=Her(goal=goal, ratio=0.7, reward=NEAR), **options), seed=9)
    batch = table.sample(64, what(her=own, **options), seed=9)
    seen = ("observation/state", "observation/achieved_goal", "action")
    after = ("next_observation/state", "next_observation/achieved_goal")
    assert_same(batch, declared, but=("age_s", *seen, *after))
    there = np.ones(64, bool) if declared.mask is None else declared.mask
    mine, theirs = flat(batch), flat(declared)
    for names, steps in ((seen, there), (after, there & (declared.discount > 0))):
        for name in names:
            assert (mine[name] == theirs[name])[steps].all(), name
    ((achieved, desired, info),) = calls
    assert achieved == desired
    assert (len(achieved), achieved[1], info) == (2, 2, {})


def test_reward_function_with_stored_flags(door):
    table = make_goal_table(door, [5, 4], end="terminated")
    options = {"goal": Goal.FUTURE, "ratio": 0.7, "terminated": Terminated.STORED}
    declared = table.sample(64, Transitions(n_step=2, her=Her(reward=NEAR, **options)), seed=10)
    batch = table.sample(64, Transitions(n_step=2, her=Her(reward=own_reward([]), **options)), seed=10)
    assert_same(batch, declared)
    stream = table.stream(16, Transitions(her=Her(reward=own_reward([]), goal=Goal.FINAL, terminated="stored", ratio=1.0)))
    batch = next(stream)
    assert (batch.reward == np.where(batch.terminated, 10, -1)).all()
    stream.close()


def test_reward_function_of_the_wrong_shape_is_refused(door):
    table = make_goal_table(door, [4])
    for reward in (lambda achieved, desired, info: 0.0, lambda achieved, desired, info: np.zeros((len(achieved), 2))):
        with pytest.raises(InvalidRequestError, match="reward"):
            table.sample(4, Transitions(her=always(Goal.FINAL, reward=reward, terminated=Terminated.STORED)))


def test_sequences_have_one_goal_and_end_with_its_success(door):
    table = make_goal_table(door, [4], chunk_steps=3)
    batch = table.sample(100, Sequences(length=5, gamma=0.5, her=always(Goal.EPISODE)), seed=11)
    outcomes = chosen(batch)
    for i, j in enumerate(outcomes.tolist()):
        pad = [0] * (4 - j)
        assert batch.mask[i].tolist() == [True] * (j + 1) + [False] * (4 - j)
        assert batch.reward[i].tolist() == [-1] * j + [10, *pad]
        assert batch.terminated[i].tolist() == [False] * j + [True] + [False] * (4 - j)
        assert batch.discount[i].tolist() == [0.5] * j + [0, *pad]
        assert not batch.truncated[i].any()
        real = j + 1
        assert batch.observation["state"][i, :real, 0].tolist() == list(range(real))
        assert batch.next_observation["state"][i, :real, 0].tolist() == list(range(1, real + 1))
    assert set(outcomes.tolist()) == {0, 1, 2, 3}


def test_stored_flags_mask_nothing_in_a_sequence(door):
    table = make_goal_table(door, [4])
    batch = table.sample(50, Sequences(length=4, gamma=0.5, her=always(Goal.EPISODE, terminated=Terminated.STORED)), seed=13)
    assert batch.mask.all()
    for i, j in enumerate(chosen(batch).tolist()):
        assert batch.reward[i].tolist() == [10 if t == j else -1 for t in range(4)]
        assert batch.truncated[i].tolist() == [False, False, False, True]
        assert batch.discount[i].tolist() == [0.5] * 4


def test_n_step_returns_in_a_sequence_stop_at_the_success(door):
    """Two sequences of two, returns of two steps, gamma 1/2; the goal is the outcome of the last step, 3."""
    table = make_goal_table(door, [4])
    batch = table.sample(20, Sequences(length=2, n_step=2, gamma=0.5, her=always(Goal.FINAL)), seed=14)
    expected = {0: ([-1.5, -1.5], [0.25, 0.25], [False, False]), 2: ([4, 10], [0, 0], [True, True])}
    for i, t in enumerate(batch.t.tolist()):
        assert (batch.reward[i].tolist(), batch.discount[i].tolist(), batch.terminated[i].tolist()) == expected[t]
        assert batch.mask[i].all()


def test_bad_hindsight_options_fail_when_they_are_made():
    cases = (
        {"goal": "nearest"}, {"ratio": 1.5}, {"reward": 3}, {"success": own_success}, {"achieved": ""}, {"open_episodes": 1},
    )  # fmt: skip
    for options in cases:
        with pytest.raises(SpecMismatchError, match=next(iter(options))):
            Her(**options)
    with pytest.raises(SpecMismatchError, match="terminated"):
        Her(reward=own_reward([]))
