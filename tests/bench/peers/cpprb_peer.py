"""cpprb 11: buffers in C++ of this process. Transitions hold their next observation, so it is stored twice."""

import functools
import sys

import cpprb
import numpy as np
from asked import BATCH, REPEAT, Answer, Episode, answer, load, memory_bytes, rate, write_rate

COLUMNS = {"obs": {"shape": 17}, "act": {"shape": 6}, "rew": {}, "next_obs": {"shape": 17}, "done": {}}


class Cpprb:
    def __init__(self, folder: str) -> None:
        self.states, _ = load(folder)
        self.rng = np.random.default_rng(0)

    @functools.cached_property
    def plain(self) -> tuple[cpprb.ReplayBuffer, float]:
        return self._filled(cpprb.ReplayBuffer)

    @functools.cached_property
    def by_priority(self) -> tuple[cpprb.PrioritizedReplayBuffer, float]:
        return self._filled(cpprb.PrioritizedReplayBuffer)

    def _filled(self, kind: type) -> tuple[cpprb.ReplayBuffer, float]:
        """Returns a buffer that holds the rollouts, and what a step of it takes in memory."""
        rows, before = self.states.rows(REPEAT), memory_bytes()
        buffer = kind(len(rows.reward), COLUMNS)
        buffer.add(obs=rows.observation, act=rows.action, rew=rows.reward, next_obs=rows.next_observation, done=rows.terminated)
        return buffer, (memory_bytes() - before) / len(rows.reward)

    def insert(self, seconds: float) -> Answer:
        buffer = cpprb.ReplayBuffer(1_000_000, COLUMNS)

        def write(episode: Episode) -> None:
            seen, last = episode.observations, len(episode.rewards) - 1
            for t, (action, reward) in enumerate(zip(episode.actions, episode.rewards, strict=True)):
                buffer.add(obs=seen[t], act=action, rew=reward, next_obs=seen[t + 1], done=t == last and episode.terminated)
            buffer.on_episode_end()

        return write_rate(self.states.endless(), write, lambda: None, seconds)

    def uniform(self, seconds: float) -> Answer:
        buffer, _ = self.plain
        return rate(lambda: buffer.sample(BATCH), BATCH, seconds)

    def prioritized(self, seconds: float) -> Answer:
        buffer, _ = self.by_priority

        def learn() -> None:
            batch = buffer.sample(BATCH, beta=0.4)
            buffer.update_priorities(batch["indexes"], self.rng.random(BATCH) + 1e-6)

        return rate(learn, BATCH, seconds)

    def memory(self, seconds: float) -> Answer:
        return {"value": self.plain[1]}


if __name__ == "__main__":
    cpprb_buffers = Cpprb(sys.argv[1])
    names = ("insert", "uniform", "prioritized", "memory")
    answer({name: getattr(cpprb_buffers, name) for name in names})
