"""RecordToReplayVecEnv against an environment that speaks as those of Stable-Baselines3 do."""

import numpy as np
import pytest
from gymnasium.spaces import Dict, Tuple

from replay_client.gym import RecordToReplayVecEnv
from replaysvc import FieldSpec
from replaysvc.errors import InvalidRequestError, SpecMismatchError
from tests.gym.loops import REAL, Counting, assert_stored, draw_actions, lossless, make, play


class VecEnv:
    """The interface of stable_baselines3.common.vec_env.VecEnv, with the semantics of its DummyVecEnv."""

    def __init__(self, envs, *, seed=0):
        self.envs, self.num_envs, self.first_seed = envs, len(envs), seed
        self.observation_space, self.action_space = envs[0].observation_space, envs[0].action_space
        self.training, self.closed = True, False

    def reset(self):
        return self._batch([env.reset(seed=self.first_seed + i)[0] for i, env in enumerate(self.envs)])

    def step_async(self, actions):
        self.actions = actions

    def step_wait(self):
        observations, rewards, dones, infos = [], [], [], []
        for env, action in zip(self.envs, self.actions, strict=True):
            observation, reward, terminated, truncated, info = env.step(action)
            info["TimeLimit.truncated"] = truncated and not terminated
            if terminated or truncated:
                info["terminal_observation"] = observation
                observation, _ = env.reset()
            observations.append(observation)
            rewards.append(reward)
            dones.append(terminated or truncated)
            infos.append(info)
        return self._batch(observations), np.array(rewards, np.float32), np.array(dones), infos

    def step(self, actions):
        self.step_async(actions)
        return self.step_wait()

    def close(self):
        self.closed = True

    def _batch(self, values):
        space = self.observation_space
        if isinstance(space, Dict):
            return {key: np.stack([value[key] for value in values]) for key in space}
        if isinstance(space, Tuple):
            return tuple(np.stack([value[k] for value in values]) for k in range(len(space)))
        return np.stack(values)


@pytest.mark.parametrize("name", REAL)
def test_a_recorded_vec_env_stores_what_plain_loops_see(door, name):
    venv = VecEnv([make(name) for _ in range(2)], seed=20)
    actions = [draw_actions(venv.action_space, 40, seed=i) for i in range(2)]
    table = door.create_table("t", lossless(venv))
    recorded = RecordToReplayVecEnv(venv, table, actor="sb3")
    recorded.reset()
    for pair in zip(*actions, strict=True):
        recorded.step(np.array(pair))
    recorded.close()
    assert venv.closed
    for i in range(2):
        assert_stored(table, play(make(name), actions[i], seed=20 + i), actor=f"sb3-{i}")


def test_it_passes_for_the_vec_env_that_it_wraps(replay):
    venv = VecEnv([Counting((2,))])
    recorded = RecordToReplayVecEnv(venv, replay.create_table("t", lossless(venv)))
    assert isinstance(recorded, VecEnv)
    assert recorded.num_envs == 1
    recorded.training = False
    assert venv.training is False
    with pytest.raises(AttributeError, match="nothing"):
        _ = recorded.nothing
    recorded.close()


def test_extras_come_from_a_function_of_the_batches(replay):
    venv = VecEnv([Counting((2,)), Counting((9,))])
    table = replay.create_table("t", lossless(venv, seen=FieldSpec("seen", (2,), np.int64)))
    recorded = RecordToReplayVecEnv(
        venv, table, extras=lambda observations, actions: {"seen": np.stack([observations, actions], 1)}
    )
    recorded.reset()
    for v in range(3):
        recorded.step(np.array([v, 10 + v]))
    recorded.close()
    seen = {r.actor + "/" + str(r.length): table.read_episode(r.episode_id)["seen"].tolist() for r in table.episodes()}
    assert seen == {"env-0/2": [[0, 0], [1, 1]], "env-0/1": [[100, 2]], "env-1/3": [[0, 10], [1, 11], [2, 12]]}


def test_a_step_before_reset_is_refused_before_the_environment_sees_it(replay):
    venv = VecEnv([Counting((2,))])
    recorded = RecordToReplayVecEnv(venv, replay.create_table("t", lossless(venv)))
    with pytest.raises(InvalidRequestError, match="reset first"):
        recorded.step(np.array([1]))
    recorded.reset()
    with pytest.raises(SpecMismatchError, match="action"):
        recorded.step(np.array([0.5]))
    assert venv.envs[0].seen == []
    recorded.close()


def test_a_missing_terminal_observation_is_refused(replay):
    class Forgetful(VecEnv):
        def step_wait(self):
            *step, infos = super().step_wait()
            return (*step, [{} for _ in infos])

    venv = Forgetful([Counting((1,))])
    table = replay.create_table("t", lossless(venv))
    recorded = RecordToReplayVecEnv(venv, table)
    recorded.reset()
    with pytest.raises(InvalidRequestError, match="'terminal_observation'"):
        recorded.step(np.array([1]))
    with pytest.raises(InvalidRequestError, match="reset first"):
        recorded.step(np.array([1]))
    recorded.close()
    assert table.episodes() == []
