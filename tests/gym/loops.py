"""Plain loops over environments, and what a table must hold after the same steps were recorded."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium
import gymnasium_robotics
import numpy as np
from gymnasium.spaces import Box, Discrete

from replaysvc import Precision, Signature
from replaysvc.spec import FieldSpec

gymnasium.register_envs(gymnasium_robotics)

REAL = {
    "CartPole-v1": 25,  # ends by itself and by its limit
    "Pendulum-v1": 7,  # ends by its limit alone
    "FrozenLake-v1": 100,  # observations are plain numbers
    "Blackjack-v1": 100,  # observations are tuples; many episodes of one step
    "PointMaze_UMaze-v3": 9,  # dicts of float64
    "FetchReach-v4": 8,
}
"""Real environments, with the length at which TimeLimit ends their episodes."""


class Counting(gymnasium.Env):
    """Observation t of episode e is 100 * e + t; reward t is 10 * t. Episode e ends after lengths[e] steps."""

    observation_space = Box(0, 10_000, (), np.int64)
    action_space = Discrete(1000)

    def __init__(self, lengths=(3,), *, end="terminated"):
        self.lengths, self.end = lengths, end
        self.episode, self.t = -1, 0
        self.seen = []  # actions

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return np.int64(100 * self.episode), {}

    def step(self, action):
        self.seen.append(action)
        self.t += 1
        over = self.t == self.lengths[self.episode % len(self.lengths)]
        flags = over and self.end == "terminated", over and self.end == "truncated"
        return np.int64(100 * self.episode + self.t), 10.0 * (self.t - 1), *flags, {}


@dataclass
class Episode:
    observations: list[Any]
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False


def make(name):
    """Returns one of the environments in REAL."""
    return gymnasium.make(name, max_episode_steps=REAL[name])


def makers(name, count):
    """Returns functions that make the environments of a vector environment."""
    return [partial(make, name) for _ in range(count)]


def lossless(env, **extras):
    """Returns the signature of `env` with every field bit for bit as the environment gives it."""

    def exact(tree):
        if isinstance(tree, FieldSpec):
            return replace(tree, precision=Precision.LOSSLESS)
        return {key: exact(child) for key, child in tree.items()} if isinstance(tree, dict) else tuple(map(exact, tree))

    signature = Signature.from_env(env, keep_float64=True)
    return Signature(exact(signature.observation), exact(signature.action), **extras)


def draw_actions(space, count, *, seed):
    """Returns `count` actions drawn from a space of its own seed."""
    space.seed(seed)
    return [space.sample() for _ in range(count)]


def play(env, actions, *, seed):
    """Returns the episodes that a loop without any wrapper sees, the last of them perhaps open."""
    episodes, over = [Episode([env.reset(seed=seed)[0]])], False
    for action in actions:
        if over:
            episodes.append(Episode([env.reset()[0]]))
        episode = episodes[-1]
        observation, reward, episode.terminated, episode.truncated, _ = env.step(action)
        episode.observations.append(observation)
        episode.actions.append(action)
        episode.rewards.append(reward)
        over = episode.terminated or episode.truncated
    return episodes


def assert_same(tree, stored, expected):
    """Compares stored columns with a list of values, leaf by leaf, dtypes included."""
    if isinstance(tree, FieldSpec):
        np.testing.assert_array_equal(stored, np.array(expected))
        assert stored.dtype == tree.dtype
        return
    for key in tree if isinstance(tree, dict) else range(len(tree)):
        assert_same(tree[key], stored[key], [value[key] for value in expected])


def assert_stored(table, expected, *, actor=""):
    """Compares every episode of `actor` in the table with those that a plain loop saw."""
    records = sorted(table.episodes(limit=1000, actor=actor), key=lambda record: record.episode_id)
    assert [record.length for record in records] == [len(episode.actions) for episode in expected]
    for record, episode in zip(records, expected, strict=True):
        stored, length = table.read_episode(record.episode_id), len(episode.actions)
        assert len(episode.observations) == length + 1
        assert_same(table.signature.observation, stored["observation"], episode.observations)
        assert_same(table.signature.action, stored["action"], episode.actions)
        np.testing.assert_array_equal(stored["reward"], np.array(episode.rewards, np.float32))
        np.testing.assert_allclose(record.return_, sum(episode.rewards), rtol=1e-6)
        assert stored["terminated"].tolist() == [False] * (length - 1) + [episode.terminated]
        assert stored["truncated"].tolist() == [False] * (length - 1) + [episode.truncated]
        assert (record.terminated, record.truncated) == (episode.terminated, episode.truncated)
