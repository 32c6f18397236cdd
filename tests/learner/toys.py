"""Environments whose steps are readable by eye, and a configuration small enough for tests."""

import gymnasium as gym
import numpy as np

from dqn.config import Config

CHAIN = "ReplayTestChain-v0"


class Counter(gym.Env):
    """Counts: episode k starts at `first` + 10 k, each step adds 1, and the reward is the number reached.

    Every episode ends after `length` steps, in the way that `truncates` says.
    """

    observation_space = gym.spaces.Box(-1e6, 1e6, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, first: int, length: int, *, truncates: bool) -> None:
        self._first, self._length, self._truncates = first, length, truncates
        self._episode = -1
        self._t = 0

    def reset(self, *, seed=None, options=None):
        self._episode += 1
        self._t = 0
        return self._observation(), {}

    def step(self, action):
        self._t += 1
        over = self._t == self._length
        observation = self._observation()
        return observation, float(observation[0]), over and not self._truncates, over and self._truncates, {}

    def _observation(self):
        return np.array([self._first + 10 * self._episode + self._t], np.float32)


class Chain(gym.Env):
    """Five states in a row. Action 1 goes right, 0 left; reaching the right end pays 1 and terminates; 10 steps truncate."""

    observation_space = gym.spaces.Box(0, 1, (5,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._state, self._t = int(self.np_random.integers(0, 2)), 0
        return self._observation(), {}

    def step(self, action):
        self._t += 1
        self._state = max(self._state + (1 if action == 1 else -1), 0)
        won = self._state == 4
        return self._observation(), float(won), won, self._t == 10 and not won, {}

    def _observation(self):
        return np.eye(5, dtype=np.float32)[self._state]


def register() -> None:
    """Makes the chain known to Gymnasium, so that a configuration can name it."""
    gym.register(CHAIN, entry_point=Chain)


def small_config(**changes) -> Config:
    """Returns a configuration for the chain, with `changes`."""
    values = {
        "env_id": CHAIN, "table": "chain", "actors": 1, "envs_per_actor": 2, "hidden": (16,), "batch_size": 16, "n_step": 2,
        "learning_rate": 5e-3, "target_update_rate": 0.1, "warmup_steps": 50, "steps_per_update": 1.0, "max_ahead_steps": 100,
        "epsilon_steps": 300, "publish_interval_updates": 10, "checkpoint_interval_updates": 100, "max_steps": 5_000,
        "evaluation_episodes": 4, "evaluation_interval_versions": 2, "solved_return": 1.0, "flush_interval_s": 0.01,
    }  # fmt: skip
    return Config(**(values | changes))
