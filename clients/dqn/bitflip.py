"""BitFlip (Andrychowicz et al. 2017, section 3.1): turn one string of bits into another, with no reward on the way there.

With 15 bits no run of random actions ever finds the goal, so there is nothing to learn from, except in hindsight.
`gymnasium.make("dqn.bitflip:BitFlip-v0", bits=15)` makes it.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from dqn.config import Config

Observation = dict[str, np.ndarray]


class BitFlip(gym.Env[Any, np.int64]):
    """Action i flips bit i. Reward 0 for the step that reaches the goal, which terminates, else -1; `bits` steps truncate.

    The bits are float32 0 and 1, so that they are a network's input as they are.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, bits: int = 15) -> None:
        if bits < 1:
            raise ValueError(f"bits: expected at least 1, found {bits}")
        string = Box(0, 1, (bits,), np.float32)
        self.observation_space = Dict({"observation": string, "achieved_goal": string, "desired_goal": string})
        self.action_space = Discrete(bits)
        self._bits, self._t = bits, 0
        self._state = self._goal = np.zeros(bits, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        """Draws the bits and a goal, each pair of unequal ones as likely as any other."""
        super().reset(seed=seed)
        self._t = 0
        self._state = self._goal = self._draw()
        while self._reached:
            self._goal = self._draw()
        return self._observation, {"is_success": False}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Flips a bit."""
        self._t += 1
        self._state = self._state.copy()
        self._state[action] = 1 - self._state[action]
        reached = self._reached
        reward = float(self.compute_reward(self._state, self._goal, {}))
        return self._observation, reward, reached, self._t >= self._bits and not reached, {"is_success": reached}

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        """Returns 0 where the goals are equal, else -1: float32 [...] of goals [..., bits]."""
        equal: np.ndarray = np.all(achieved_goal == desired_goal, axis=-1)
        return np.where(equal, np.float32(0), np.float32(-1))

    def _draw(self) -> np.ndarray:
        return self.np_random.integers(0, 2, self._bits).astype(np.float32)

    @property
    def _reached(self) -> bool:
        return bool(np.array_equal(self._state, self._goal))

    @property
    def _observation(self) -> Observation:
        return {"observation": self._state.copy(), "achieved_goal": self._state.copy(), "desired_goal": self._goal.copy()}


gym.register("BitFlip-v0", entry_point="dqn.bitflip:BitFlip")


def bitflip_config(bits: int = 15, **changes: Any) -> Config:
    """Returns the settings that solve BitFlip by hindsight: nearly those of the paper's appendix A, with `changes`.

    16 episodes are stored for 40 updates, as there. No reward tells how far a version is, so success ends the run.
    """
    values: dict[str, Any] = {
        "env_id": "dqn.bitflip:BitFlip-v0", "env_options": {"bits": bits}, "table": "bitflip", "actors": 1,
        "envs_per_actor": 16, "hidden": (256,), "gamma": 0.98, "n_step": 1, "batch_size": 256, "her_ratio": 0.8,
        "her_threshold": 0.5, "warmup_steps": 64 * bits, "steps_per_update": 16 * bits / 40, "max_ahead_steps": 32 * bits,
        "epsilon_end": 0.1, "epsilon_steps": 800 * bits, "refresh_vector_steps": bits, "publish_interval_updates": 40,
        "max_steps": 2000 * bits, "evaluation_episodes": 200, "evaluation_interval_versions": 2, "solved_success": 0.95,
        "flush_interval_s": 0.02,
    }  # fmt: skip
    return Config(**(values | changes))
