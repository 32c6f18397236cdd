"""Stable-Baselines3 2.9: its replay buffer, and the one with hindsight goals, in this process."""

import functools
import sys

import gymnasium
import numpy as np
import torch
from asked import BATCH, REPEAT, Answer, Episode, answer, load, memory_bytes, rate, write_rate
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.her import HerReplayBuffer

torch.set_num_threads(1)
GOAL, CLOSE = 3, 0.05
ROBOT, ACTIONS = gymnasium.spaces.Box(-np.inf, np.inf, (17,)), gymnasium.spaces.Box(-1, 1, (6,))
GOALS = gymnasium.spaces.Box(-np.inf, np.inf, (GOAL,))
WITH_GOALS = gymnasium.spaces.Dict({"observation": ROBOT, "achieved_goal": GOALS, "desired_goal": GOALS})


class RewardEnv:
    """What the hindsight buffer asks of a vector environment: the reward of other goals."""

    num_envs = 1

    def env_method(
        self, name: str, achieved: np.ndarray, desired: np.ndarray, infos: object, indices: object
    ) -> list[np.ndarray]:
        return [-(np.linalg.norm(achieved - desired, axis=-1) > CLOSE).astype(np.float32)]


class StableBaselines:
    def __init__(self, folder: str) -> None:
        self.states, _ = load(folder)

    @functools.cached_property
    def plain(self) -> tuple[ReplayBuffer, float]:
        """Returns a buffer, and what a step of it takes in memory. Its arrays are filled at once: `add` takes single steps."""
        rows, before = self.states.rows(REPEAT), memory_bytes()
        buffer = ReplayBuffer(len(rows.reward), ROBOT, ACTIONS, handle_timeout_termination=False)
        buffer.observations[:, 0], buffer.next_observations[:, 0] = rows.observation, rows.next_observation
        buffer.actions[:, 0], buffer.rewards[:, 0], buffer.dones[:, 0] = rows.action, rows.reward, rows.terminated
        buffer.pos, buffer.full = 0, True
        return buffer, (memory_bytes() - before) / len(rows.reward)

    @functools.cached_property
    def hindsight(self) -> HerReplayBuffer:
        buffer = HerReplayBuffer(self.states.steps, WITH_GOALS, ACTIONS, RewardEnv(), n_sampled_goal=4)
        for episode in self.states.episodes:
            seen = [
                {"observation": row, "achieved_goal": row[:GOAL], "desired_goal": episode.observations[-1][:GOAL]}
                for row in episode.observations
            ]
            for t in range(len(episode.rewards)):
                done = np.array([t == len(episode.rewards) - 1])
                now, after = ({name: value[None] for name, value in seen[t + i].items()} for i in (0, 1))
                buffer.add(now, after, episode.actions[t], episode.rewards[t : t + 1], done, [{}])
        return buffer

    def insert(self, seconds: float) -> Answer:
        buffer = ReplayBuffer(1_000_000, ROBOT, ACTIONS, handle_timeout_termination=False)

        def write(episode: Episode) -> None:
            seen, last = episode.observations, len(episode.rewards) - 1
            for t, action in enumerate(episode.actions):
                done = np.array([t == last])
                buffer.add(seen[t], seen[t + 1], action, episode.rewards[t : t + 1], done, [{}])

        return write_rate(self.states.endless(), write, lambda: None, seconds)

    def uniform(self, seconds: float) -> Answer:
        buffer, _ = self.plain
        return rate(lambda: buffer.sample(BATCH), BATCH, seconds)

    def her(self, seconds: float) -> Answer:
        buffer = self.hindsight
        return rate(lambda: buffer.sample(BATCH), BATCH, seconds)

    def memory(self, seconds: float) -> Answer:
        return {"value": self.plain[1]}


if __name__ == "__main__":
    buffers = StableBaselines(sys.argv[1])
    answer({name: getattr(buffers, name) for name in ("insert", "uniform", "her", "memory")})
