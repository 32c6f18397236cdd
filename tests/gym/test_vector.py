"""RecordToReplayVector: every autoreset mode, every way in which a final observation is handed over."""

import time
from functools import partial

import ale_py
import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import DictInfoToList

import replay_client
from replay_client.gym import RecordToReplayVector, recording
from replaysvc import ClientConfig, FieldSpec, Signature, Transitions
from replaysvc.errors import InvalidRequestError, NotFoundError, SpecMismatchError, UnavailableError, WaitTimeoutError
from replaysvc.rpc.server import Server
from tests.gym.loops import REAL, Counting, Episode, assert_stored, draw_actions, lossless, make, makers, play

MODES = list(AutoresetMode)


def counting(*lengths, mode=AutoresetMode.NEXT_STEP, end="terminated"):
    """Returns a vector environment of Counting ones, each with its own lengths of episodes."""
    return SyncVectorEnv([partial(Counting, own, end=end) for own in lengths], autoreset_mode=mode)


def stack(space, actions):
    """Returns actions, one for each environment, as a vector environment takes them."""
    if isinstance(space, Dict):
        return {key: stack(space[key], [action[key] for action in actions]) for key in space}
    if isinstance(space, Tuple):
        return tuple(stack(child, [action[k] for action in actions]) for k, child in enumerate(space))
    return np.array(actions, space.dtype)


def run(envs, actions, vector_steps, *, seed=None, mode=None):
    """A user's loop. Environment i acts by `actions[i]` in turn, also after ends; returns how many steps each took."""
    mode = mode or envs.metadata["autoreset_mode"]
    envs.reset(seed=seed)
    taken, over = [0] * envs.num_envs, np.zeros(envs.num_envs, bool)
    for _ in range(vector_steps):
        if mode is AutoresetMode.DISABLED and over.any():
            envs.reset(options={"reset_mask": over})
        acting = [not (mode is AutoresetMode.NEXT_STEP and over[i]) for i in range(envs.num_envs)]
        batch = stack(envs.single_action_space, [actions[i][taken[i]] for i in range(envs.num_envs)])
        _, _, terminated, truncated, _ = envs.step(batch)
        taken = [count + acts for count, acts in zip(taken, acting, strict=True)]
        over = terminated | truncated
    return taken


def drawn(space, vector_steps, count):
    return [draw_actions(space, vector_steps, seed=50 + i) for i in range(count)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", REAL)
def test_a_recorded_vector_loop_stores_what_plain_loops_see(door, name, mode):
    envs = SyncVectorEnv(makers(name, 2), autoreset_mode=mode)
    actions = drawn(envs.single_action_space, 25, 2)
    table = door.create_table("t", lossless(envs))
    recorded = RecordToReplayVector(envs, table, actor="actor")
    taken = run(recorded, actions, 25, seed=11)
    recorded.close()
    for i in range(2):
        plain = make(name)
        assert_stored(table, play(plain, actions[i][: taken[i]], seed=11 + i), actor=f"actor-{i}")
        plain.close()


@pytest.mark.parametrize("mode", MODES)
def test_environments_in_processes_of_their_own_are_recorded_alike(replay, mode):
    envs = AsyncVectorEnv(makers("FrozenLake-v1", 2), context="forkserver", autoreset_mode=mode)
    actions = drawn(envs.single_action_space, 30, 2)
    table = replay.create_table("t", lossless(envs))
    recorded = RecordToReplayVector(envs, table)
    taken = run(recorded, actions, 30, seed=2)
    recorded.close()
    for i in range(2):
        assert_stored(table, play(make("FrozenLake-v1"), actions[i][: taken[i]], seed=2 + i), actor=f"env-{i}")


def test_the_step_after_an_end_is_not_stored_in_next_step_mode(door):
    """A12: environment 0 ends at vector step 1, so step 2 is its reset; environment 1 goes on."""
    envs = counting((2, 9), (9,))
    table = door.create_table("t", lossless(envs))
    recorded = RecordToReplayVector(envs, table)
    recorded.reset()
    returned = [recorded.step(np.array([v, 10 + v]))[0].tolist() for v in range(4)]
    recorded.close()
    assert returned == [[1, 1], [2, 2], [100, 3], [101, 4]]
    assert_stored(table, [Episode([0, 1, 2], [0, 1], [0, 10], True), Episode([100, 101], [3], [0])], actor="env-0")
    assert_stored(table, [Episode([0, 1, 2, 3, 4], [10, 11, 12, 13], [0, 10, 20, 30])], actor="env-1")


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_the_final_observation_of_same_step_mode_comes_from_the_infos(door, end):
    """A12: the returned observation is the first of the next episode."""
    envs = counting((2, 9), (9,), mode=AutoresetMode.SAME_STEP, end=end)
    table = door.create_table("t", lossless(envs))
    recorded = RecordToReplayVector(envs, table)
    recorded.reset()
    returned = [recorded.step(np.array([v, 10 + v]))[0].tolist() for v in range(4)]
    recorded.close()
    assert returned == [[1, 1], [100, 2], [101, 3], [102, 4]]
    first = Episode([0, 1, 2], [0, 1], [0, 10], end == "terminated", end == "truncated")
    assert_stored(table, [first, Episode([100, 101, 102], [2, 3], [0, 10])], actor="env-0")
    assert_stored(table, [Episode([0, 1, 2, 3, 4], [10, 11, 12, 13], [0, 10, 20, 30])], actor="env-1")


def test_masked_environments_begin_anew_in_disabled_mode(door):
    """A12, A13: only environments where reset_mask is True begin an episode, also one that had not ended."""
    envs = counting((2, 9), (9,), (9,), mode=AutoresetMode.DISABLED)
    table = door.create_table("t", lossless(envs))
    recorded = RecordToReplayVector(envs, table)
    recorded.reset()
    recorded.step(np.array([1, 2, 3]))
    recorded.step(np.array([4, 5, 6]))
    recorded.reset(options={"reset_mask": np.array([True, False, True])})
    recorded.step(np.array([7, 8, 9]))
    recorded.close()
    assert_stored(table, [Episode([0, 1, 2], [1, 4], [0, 10], True), Episode([100, 101], [7], [0])], actor="env-0")
    assert_stored(table, [Episode([0, 1, 2, 3], [2, 5, 8], [0, 10, 20])], actor="env-1")
    assert_stored(table, [Episode([0, 1, 2], [3, 6], [0, 10]), Episode([100, 101], [9], [0])], actor="env-2")


@pytest.mark.parametrize("mode", MODES)
def test_no_sampled_transition_joins_two_episodes_or_two_environments(replay, mode):
    envs = SyncVectorEnv([partial(Shifted, 1000 * i) for i in range(3)], autoreset_mode=mode)
    table = replay.create_table("t", lossless(envs))
    recorded = RecordToReplayVector(envs, table)
    run(recorded, [[0] * 20] * 3, 20)
    recorded.close()
    batch = table.sample(200, Transitions(n_step=2), seed=1)
    assert set((batch.next_observation - batch.observation).tolist()) == {1, 2}


class Shifted(Counting):
    """Counting from an offset of its own; episodes of 3 steps."""

    def __init__(self, offset):
        super().__init__((3,))
        self.offset = offset

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0] + self.offset, {}

    def step(self, action):
        observation, *rest = super().step(action)
        return (observation + self.offset, *rest)


@pytest.mark.parametrize(
    "mask",
    [
        [True, False],
        np.array([1, 0]),
        np.array([True]),
        np.array([[True, False]]),
        np.array([False, False]),
        np.array([True, False], object),
        True,
        None,
    ],
)
def test_a_reset_mask_that_is_no_array_of_bools_is_refused_and_nothing_is_reset(replay, mask):
    """A13"""
    envs = counting((9,), (9,), mode=AutoresetMode.DISABLED)
    recorded = RecordToReplayVector(envs, replay.create_table("t", lossless(envs)))
    recorded.reset()
    with pytest.raises(InvalidRequestError, match=r"options\['reset_mask'\]: expected a numpy array of 2 bools"):
        recorded.reset(options={"reset_mask": mask})
    assert envs.get_attr("episode") == (0, 0)
    recorded.close()


@pytest.mark.parametrize("mask", [np.array([True, False]), [True, False]])
def test_a_mask_under_another_name_is_refused(replay, mask):
    """A13: Gymnasium would pass it on as an option and reset all environments."""
    envs = counting((9,), (9,), mode=AutoresetMode.DISABLED)
    recorded = RecordToReplayVector(envs, replay.create_table("t", lossless(envs)))
    recorded.reset(options={"other": 3})
    with pytest.raises(InvalidRequestError, match="under 'reset_mask', found one under 'mask'"):
        recorded.reset(options={"mask": mask})
    assert envs.get_attr("episode") == (0, 0)
    recorded.close()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_reset_mask_is_refused_where_environments_reset_themselves(replay, mode):
    envs = counting((9,), (9,), mode=mode)
    recorded = RecordToReplayVector(envs, replay.create_table("t", lossless(envs)))
    recorded.reset()
    with pytest.raises(InvalidRequestError, match="expected autoreset_mode DISABLED"):
        recorded.reset(options={"reset_mask": np.array([True, False])})
    assert envs.get_attr("episode") == (0, 0)
    recorded.close()


def test_stepping_an_ended_environment_in_disabled_mode_is_refused_before_any_moves(replay):
    envs = counting((1,), (9,), mode=AutoresetMode.DISABLED)
    recorded = RecordToReplayVector(envs, replay.create_table("t", lossless(envs)))
    with pytest.raises(InvalidRequestError, match=r"found none in \[0, 1\]"):
        recorded.step(np.array([0, 0]))
    recorded.reset()
    recorded.step(np.array([0, 0]))
    with pytest.raises(InvalidRequestError, match=r"found none in \[0\]; reset first"):
        recorded.step(np.array([0, 0]))
    assert envs.get_attr("t") == (1, 1)
    recorded.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_reset_of_all_abandons_open_episodes(replay, mode):
    envs = counting((1, 9, 9), (9,), mode=mode)
    table = replay.create_table("t", lossless(envs))
    recorded = RecordToReplayVector(envs, table)
    recorded.reset()
    recorded.step(np.array([1, 2]))  # the next row of environment 0 would be its reset, were it not for the reset here
    recorded.reset()
    recorded.step(np.array([3, 4]))
    recorded.close()
    again = 200 if mode is AutoresetMode.SAME_STEP else 100
    assert_stored(table, [Episode([0, 1], [1], [0], True), Episode([again, again + 1], [3], [0])], actor="env-0")
    assert_stored(table, [Episode([0, 1], [2], [0]), Episode([100, 101], [4], [0])], actor="env-1")


class Renamed(VectorWrapper):
    """Hands final observations over in other ways than Gymnasium does now."""

    def __init__(self, envs, change, metadata):
        super().__init__(envs)
        self.change, self.metadata = change, metadata

    def step(self, actions):
        *step, infos = self.env.step(actions)
        return (*step, self.change(infos))


def old_names(infos):
    return {key.replace("final_obs", "final_observation"): value for key, value in infos.items()}


def batched(infos):
    """As ALE's vector environments do: an array with a row for every environment, without a mask."""
    if "final_obs" not in infos:
        return infos
    return {"final_obs": np.array([-1 if value is None else value for value in infos["final_obs"]])}


def per_environment(infos):
    """Old ones gave an object array; where it is None, there is none, whatever the mask."""
    return {"final_observation": infos["final_obs"]} if "final_obs" in infos else {}


SAME = {"autoreset_mode": AutoresetMode.SAME_STEP}


@pytest.mark.parametrize("change", [old_names, batched, per_environment])
def test_final_observations_are_found_however_they_are_handed_over(replay, change):
    envs = Renamed(counting((2, 9), (3, 9), mode=AutoresetMode.SAME_STEP), change, SAME)
    table = replay.create_table("t", lossless(envs))
    recorded = RecordToReplayVector(envs, table)
    run(recorded, [[0] * 4, [1] * 4], 4)
    recorded.close()
    assert_stored(table, play(Counting((2, 9)), [0] * 4, seed=0), actor="env-0")
    assert_stored(table, play(Counting((3, 9)), [1] * 4, seed=0), actor="env-1")


def test_final_observations_are_found_in_a_list_of_infos(replay):
    envs = DictInfoToList(counting((2, 9), (3, 9), mode=AutoresetMode.SAME_STEP))
    table = replay.create_table("t", lossless(envs))
    recorded = RecordToReplayVector(envs, table)
    run(recorded, [[0] * 4, [1] * 4], 4)
    recorded.close()
    assert_stored(table, play(Counting((2, 9)), [0] * 4, seed=0), actor="env-0")
    assert_stored(table, play(Counting((3, 9)), [1] * 4, seed=0), actor="env-1")


@pytest.mark.parametrize("name", ["PointMaze_UMaze-v3", "Blackjack-v1"])
def test_nested_final_observations_may_be_batched_leaf_by_leaf(replay, name):
    """Gymnasium's own helper does this to a dict under the name of 0.29, with masks among the leaves."""

    def gather(space, values):
        if isinstance(space, Dict):
            leaves = {key: gather(space[key], [value and value[key] for value in values]) for key in space}
            return leaves | {f"_{key}": np.array([value is not None for value in values]) for key in space}
        if isinstance(space, Tuple):
            return tuple(gather(child, [value and value[k] for value in values]) for k, child in enumerate(space))
        return np.array([np.zeros(space.shape, space.dtype) if value is None else value for value in values])

    def change(infos):
        if "final_obs" not in infos:
            return infos
        final = gather(envs.single_observation_space, infos["final_obs"])
        return {"final_observation": final, "_final_observation": infos["_final_obs"]}

    envs = SyncVectorEnv(makers(name, 2), autoreset_mode=AutoresetMode.SAME_STEP)
    actions = drawn(envs.single_action_space, 20, 2)
    table = replay.create_table("t", lossless(envs))
    recorded = RecordToReplayVector(Renamed(envs, change, SAME), table)
    taken = run(recorded, actions, 20, seed=7)
    recorded.close()
    for i in range(2):
        assert_stored(table, play(make(name), actions[i][: taken[i]], seed=7 + i), actor=f"env-{i}")


@pytest.mark.parametrize(
    "change", [lambda infos: {}, lambda infos: [{}, {}], lambda infos: infos | {"_final_obs": [False, False]}]
)
def test_a_missing_final_observation_is_refused_and_nothing_goes_on_until_reset(replay, change):
    """The observation at hand is of the next episode: better none than that one."""
    envs = Renamed(counting((2, 9), (9,), mode=AutoresetMode.SAME_STEP), change, SAME)
    table = replay.create_table("t", lossless(envs))
    recorded = RecordToReplayVector(envs, table)
    recorded.reset()
    recorded.step(np.array([0, 0]))
    with pytest.raises(InvalidRequestError, match="expected the final observation of environment 0"):
        recorded.step(np.array([1, 1]))
    with pytest.raises(InvalidRequestError, match=r"found none in \[0, 1\]; reset first"):
        recorded.step(np.array([2, 2]))
    recorded.reset()
    recorded.step(np.array([3, 3]))
    recorded.close()
    assert_stored(table, [Episode([0, 1], [0], [0]), Episode([200, 201], [3], [0])], actor="env-0")
    assert_stored(table, [Episode([0, 1], [0], [0]), Episode([100, 101], [3], [0])], actor="env-1")


def test_environments_that_tell_no_mode_are_taken_for_next_step_with_a_warning(replay):
    envs = Renamed(counting((2, 9), (9,)), dict, {})
    table = replay.create_table("t", lossless(envs))
    with pytest.warns(UserWarning, match=r"missing `autoreset_mode` in its metadata; assuming AutoresetMode.NEXT_STEP"):
        recorded = RecordToReplayVector(envs, table)
    run(recorded, [[1] * 5, [2] * 5], 5, mode=AutoresetMode.NEXT_STEP)
    recorded.close()
    assert_stored(table, play(Counting((2, 9)), [1] * 4, seed=0), actor="env-0")
    assert_stored(table, play(Counting((9,)), [2] * 5, seed=0), actor="env-1")


def test_environments_that_tell_no_mode_show_same_step_by_their_final_observations(replay):
    """What was written for Gymnasium 0.29 has no mode in its metadata and resets in the same step."""
    envs = Renamed(counting((2, 9), (9,), mode=AutoresetMode.SAME_STEP), old_names, {})
    table = replay.create_table("t", lossless(envs))
    with pytest.warns(UserWarning, match="unless its infos hold final observations"):
        recorded = RecordToReplayVector(envs, table)
    run(recorded, [[1] * 5, [2] * 5], 5, mode=AutoresetMode.SAME_STEP)
    recorded.close()
    assert_stored(table, play(Counting((2, 9)), [1] * 5, seed=0), actor="env-0")
    assert_stored(table, play(Counting((9,)), [2] * 5, seed=0), actor="env-1")


def test_a_mode_may_be_given_by_its_word_and_an_unknown_one_is_refused(replay):
    table = replay.create_table("t", lossless(counting((9,))))
    envs = Renamed(counting((2, 9), mode=AutoresetMode.SAME_STEP), dict, {"autoreset_mode": "SameStep"})
    recorded = RecordToReplayVector(envs, table)
    run(recorded, [[1] * 4], 4, mode=AutoresetMode.SAME_STEP)
    recorded.close()
    assert_stored(table, play(Counting((2, 9)), [1] * 4, seed=0), actor="env-0")
    with pytest.raises(InvalidRequestError, match="expected one of"):
        RecordToReplayVector(Renamed(counting((9,)), dict, {"autoreset_mode": "Sometimes"}), table)


def test_a_vector_environment_that_is_written_as_one_is_recorded(door):
    envs = gymnasium.make_vec("CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point")
    envs.unwrapped.max_episode_steps = 12
    table = door.create_table("t", lossless(envs))
    recorded = RecordToReplayVector(envs, table)
    observations, _ = recorded.reset(seed=3)
    expected, over = [[Episode([row])] for row in observations], np.zeros(4, bool)
    for v in range(40):
        actions = np.arange(4) * v % 2
        observations, rewards, terminated, truncated, _ = recorded.step(actions)
        for i in range(4):
            if over[i]:
                expected[i].append(Episode([observations[i]]))
                continue
            episode = expected[i][-1]
            episode.observations.append(observations[i])
            episode.actions.append(actions[i])
            episode.rewards.append(rewards[i])
            episode.terminated, episode.truncated = bool(terminated[i]), bool(truncated[i])
        over = terminated | truncated
    recorded.close()
    for i in range(4):
        assert len(expected[i]) > 2
        assert_stored(table, [episode for episode in expected[i] if episode.actions], actor=f"env-{i}")


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_the_vector_environment_of_ale_is_recorded(replay, mode):
    """Its final observations are one array without a mask. Episodes of 9 steps; a twin tells what was seen."""
    limits = {"num_envs": 2, "max_num_frames_per_episode": 36, "noop_max": 0, "autoreset_mode": mode, "img_height": 21}
    envs, twin = (ale_py.AtariVectorEnv("pong", **limits, img_width=21) for _ in range(2))
    table = replay.create_table("t", Signature.from_env(envs))
    recorded = RecordToReplayVector(envs, table)
    recorded.reset(seed=1)
    observations = [twin.reset(seed=1)[0][0]]
    actions = [2, 3] * 8
    for action in actions:
        recorded.step(np.array([action, 0]))
        step = twin.step(np.array([action, 0]))
        final = step[4]["final_obs"][0] if "final_obs" in step[4] else None
        observations += [step[0][0]] if final is None else [final, step[0][0]]
    recorded.close()
    twin.close()
    first = next(record for record in table.episodes(actor="env-0") if record.closed)
    assert first.truncated
    stored = table.read_episode(first.episode_id)
    np.testing.assert_array_equal(stored["observation"], observations[: first.length + 1])
    later = next(record for record in table.episodes(actor="env-0") if record.episode_id != first.episode_id)
    np.testing.assert_array_equal(table.read_episode(later.episode_id)["observation"], observations[first.length + 1 :])


class Acting(Counting):
    """Counting with actions of another space."""

    def __init__(self, space):
        super().__init__((3,))
        self.action_space = space


@pytest.mark.parametrize(
    "space",
    [
        MultiDiscrete([3, 4]),
        Box(-1, 1, (2, 3), np.float64),
        Dict({"move": Box(-1, 1, (2,), np.float32), "inner": Dict({"jump": Discrete(2)})}),
        Tuple((Discrete(3), Box(-1, 1, (2,), np.float32))),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_actions_of_every_space_are_split_by_environment(replay, space, mode):
    envs = SyncVectorEnv([partial(Acting, space)] * 2, autoreset_mode=mode)
    actions = drawn(space, 10, 2)
    table = replay.create_table("t", lossless(envs))
    recorded = RecordToReplayVector(envs, table)
    taken = run(recorded, actions, 10)
    recorded.close()
    for i in range(2):
        assert_stored(table, play(Acting(space), actions[i][: taken[i]], seed=0), actor=f"env-{i}")


@pytest.mark.parametrize("mode", MODES)
def test_buffers_that_the_environment_uses_again_do_not_change_what_is_stored(replay, mode):
    envs = SyncVectorEnv(makers("CartPole-v1", 2), copy=False, autoreset_mode=mode)
    actions = drawn(envs.single_action_space, 30, 2)
    table = replay.create_table("t", lossless(envs))
    recorded = RecordToReplayVector(envs, table)
    taken = run(recorded, actions, 30, seed=5)
    recorded.close()
    for i in range(2):
        assert_stored(table, play(make("CartPole-v1"), actions[i][: taken[i]], seed=5 + i), actor=f"env-{i}")


def test_extras_are_batches_and_those_of_a_reset_step_are_not_stored(door):
    envs = counting((2, 9), (9,))
    extras = {"log_prob": FieldSpec("log_prob", (), np.float32), "state": {"h": FieldSpec("h", (2,), np.int64)}}
    table = door.create_table("t", lossless(envs, **extras))
    recorded = RecordToReplayVector(
        envs, table, extras=lambda observations, actions: {"state": {"h": np.stack([observations, actions], 1)}}
    )
    recorded.reset()
    for v in range(4):
        recorded.extras = {"log_prob": [-v, -10 - v]}
        recorded.step(np.array([v, 50 + v]))
    recorded.close()
    first, second = (table.read_episode(r.episode_id) for r in reversed(table.episodes(actor="env-0")))
    assert (first["log_prob"].tolist(), second["log_prob"].tolist()) == ([0, -1], [-3])
    assert (first["state"]["h"].tolist(), second["state"]["h"].tolist()) == ([[0, 0], [1, 1]], [[100, 3]])
    (other,) = (table.read_episode(r.episode_id) for r in table.episodes(actor="env-1"))
    assert other["log_prob"].tolist() == [-10, -11, -12, -13]


@pytest.mark.parametrize("value", [3.0, [1.0], [1.0, 2.0, 3.0], ["a", "b"]])
def test_extras_that_are_no_batch_are_refused_before_any_environment_moves(replay, value):
    envs = counting((9,), (9,))
    table = replay.create_table("t", lossless(envs, log_prob=FieldSpec("log_prob", (), np.float32)))
    recorded = RecordToReplayVector(envs, table)
    recorded.reset()
    recorded.extras = {"log_prob": value}
    with pytest.raises(SpecMismatchError, match="log_prob: expected"):
        recorded.step(np.array([0, 0]))
    assert envs.get_attr("t") == (0, 0)
    recorded.close()


def test_actions_of_another_number_are_refused_before_any_environment_moves(replay):
    envs = counting((9,), (9,))
    recorded = RecordToReplayVector(envs, replay.create_table("t", lossless(envs)))
    recorded.reset()
    with pytest.raises(SpecMismatchError, match="action: expected 2 rows, one for each environment, found 3 rows"):
        recorded.step(np.array([0, 0, 0]))
    assert envs.get_attr("t") == (0, 0)
    recorded.close()


def test_marks_apply_to_episodes_that_begin_afterwards(replay):
    envs = counting((1, 9), (9,), mode=AutoresetMode.SAME_STEP)
    table = replay.create_table("t", lossless(envs))
    recorded = RecordToReplayVector(envs, table, policy_version=1, metadata={"run": "a"})
    recorded.reset()
    recorded.policy_version = 2
    for _ in range(2):
        recorded.step(np.array([0, 0]))
    recorded.close()
    marks = sorted((r.actor, r.policy_version, r.metadata["run"]) for r in table.episodes())
    assert marks == [("env-0", 1, "a"), ("env-0", 2, "a"), ("env-1", 1, "a")]


def test_a_reset_that_could_not_be_recorded_is_to_be_made_again(replay):
    envs = counting((1, 9, 9), (9,))
    table = replay.create_table("t", lossless(envs))
    recorded = RecordToReplayVector(envs, table)
    recorded.reset()
    recorded.step(np.array([1, 2]))
    recorded.policy_version = -9
    with pytest.raises(SpecMismatchError, match="policy_version"):
        recorded.reset()
    with pytest.raises(InvalidRequestError, match=r"found none in \[0, 1\]; reset first"):
        recorded.step(np.array([3, 4]))
    recorded.policy_version = 0
    recorded.reset()
    recorded.step(np.array([5, 6]))
    recorded.close()
    assert_stored(table, [Episode([0, 1], [1], [0], True), Episode([200, 201], [5], [0])], actor="env-0")


def test_a_name_too_long_for_some_environment_is_refused_and_no_writer_stays_open(replay, monkeypatch):
    envs, writers = counting(*[(9,)] * 11), []
    table = replay.create_table("t", lossless(envs))
    make_writer = table.writer
    monkeypatch.setattr(table, "writer", lambda actor: writers.append(make_writer(actor)) or writers[-1], raising=False)
    with pytest.raises(SpecMismatchError, match="actor"):
        RecordToReplayVector(envs, table, actor="a" * 126)
    assert len(writers) == 10
    for writer in writers:
        with pytest.raises(UnavailableError, match="closed"):
            writer.begin(0)


def test_the_environments_are_closed_even_if_their_steps_cannot_be_stored(replay):
    envs = counting((9,), (9,))
    recorded = RecordToReplayVector(envs, replay.create_table("t", lossless(envs)))
    recorded.reset()
    recorded.step(np.array([1, 2]))
    replay.delete_table("t")
    with pytest.raises(NotFoundError):
        recorded.close()
    assert envs.closed


class Late(VectorEnv):
    """Hands over fewer rows than it has environments, as those that answer for whoever is ready first do."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    num_envs = 2
    single_observation_space, single_action_space = Counting.observation_space, Counting.action_space
    observation_space, action_space = batch_space(single_observation_space, 2), batch_space(single_action_space, 2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.int64), {}


def test_a_batch_with_fewer_rows_than_environments_is_refused(replay):
    recorded = RecordToReplayVector(Late(), replay.create_table("t", lossless(Late())))
    with pytest.raises(SpecMismatchError, match="observation: expected 2 rows"):
        recorded.reset()
    recorded.close()


def test_writers_of_a_vector_are_closed_within_the_time_of_one(replay, monkeypatch):
    """The server is gone: each writer by itself would wait for as long."""
    server = Server(replay, "127.0.0.1:0")
    server.start()
    client = replay_client.connect(f"127.0.0.1:{server.port}", config=ClientConfig(reconnect_timeout_s=60, call_timeout_s=0.5))
    envs = counting(*[(99,)] * 8, mode=AutoresetMode.SAME_STEP)
    recorded = RecordToReplayVector(envs, client.create_table("t", lossless(envs)))
    monkeypatch.setattr(recording, "_CLOSE_S", 1.0)
    recorded.reset()
    recorded.flush()
    server.stop(5.0)
    recorded.step(np.zeros(8, np.int64))
    began = time.monotonic()
    with pytest.raises(WaitTimeoutError):
        recorded.close()
    assert time.monotonic() - began < 10
    with pytest.raises(WaitTimeoutError):
        client.close()
