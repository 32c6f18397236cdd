"""From the steps of a vector environment to episodes: one writer per environment, whatever the autoreset mode.

What a vector environment returns when one of its environments ends depends on its mode (Gymnasium's AutoresetMode):

    NEXT_STEP   the row is true, final observation included. The NEXT row is no step: its action was ignored and its
                observation starts the next episode. It must not be stored.
    SAME_STEP   the row's observation starts the next episode already; the final one is in infos["final_obs"].
    DISABLED    the row is true. Nothing goes on until the caller resets with options={"reset_mask": ...}.

An episode of T steps is stored with T+1 observations in all three, and the sum of its stored rewards is its return.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv


class EpisodeWriter(Protocol):
    """What is needed of a table's writer."""

    def begin(self, observation: Any, *, metadata: Mapping[str, Any] | None = None, policy_version: int = -1) -> None: ...

    def append(self, action: Any, reward: Any, next_observation: Any, *, terminated: bool, truncated: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Ended:
    """An episode that ended in environment `env`."""

    env: int
    return_: float
    length: int
    terminated: bool
    truncated: bool
    metadata: Mapping[str, Any]
    policy_version: int


@dataclass(slots=True)
class Unended:
    """An episode that goes on in environment `env`."""

    env: int
    metadata: Mapping[str, Any]
    policy_version: int
    return_: float = 0.0
    length: int = 0


class EpisodeRecorder:
    """Writes what a vector environment does. `metadata[i]` and `policy_version` are those of the episodes that start next."""

    def __init__(self, writers: Sequence[EpisodeWriter], mode: AutoresetMode) -> None:
        self._writers, self._mode = writers, mode
        self._episodes: list[Unended | None] = [None] * len(writers)
        self.steps = 0  # appended so far
        self.policy_version = -1
        self.metadata: list[Mapping[str, Any]] = [{"env": i} for i in range(len(writers))]

    def begin(self, observations: Any, mask: np.ndarray | None = None) -> None:
        """Starts an episode in every environment, or in those where `mask` is True: after `reset` of the vector environment."""
        for i in range(len(self._writers)) if mask is None else np.flatnonzero(mask):
            self._begin(int(i), row(observations, int(i)))

    def record(self, actions: np.ndarray, step: tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]) -> list[Ended]:
        """Stores one vector step, as `step(actions)` returned it; returns the episodes that ended with it.

        In mode DISABLED, reset the environments that ended and call `begin` with the same mask before the next step.
        """
        observations, rewards, terminated, truncated, infos = step
        ended = []
        for i, writer in enumerate(self._writers):
            episode, observation = self._episodes[i], row(observations, i)
            if episode is None:
                if self._mode is AutoresetMode.DISABLED:
                    raise RuntimeError(f"environment {i}: expected begin() after its episode ended, found a step")
                self._begin(i, observation)  # NEXT_STEP: the row of the reset
                continue
            over = bool(terminated[i] or truncated[i])
            same_step = over and self._mode is AutoresetMode.SAME_STEP
            final = infos["final_obs"][i] if same_step else observation
            writer.append(actions[i], rewards[i], final, terminated=bool(terminated[i]), truncated=bool(truncated[i]))
            episode.return_ += float(rewards[i])
            episode.length += 1
            self.steps += 1
            if over:
                flags = bool(terminated[i]), bool(truncated[i])
                ended.append(Ended(i, episode.return_, episode.length, *flags, episode.metadata, episode.policy_version))
                self._episodes[i] = None
            if same_step:
                self._begin(i, observation)
        return ended

    def unended(self) -> list[Unended]:
        """Returns the episodes that go on, and have a step already."""
        return [episode for episode in self._episodes if episode is not None and episode.length]

    def _begin(self, i: int, observation: Any) -> None:
        self._writers[i].begin(observation, metadata=self.metadata[i], policy_version=self.policy_version)
        self._episodes[i] = Unended(i, self.metadata[i], self.policy_version)


def autoreset_mode(envs: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """Returns the mode of a vector environment; NEXT_STEP where it does not say, as Gymnasium's own wrappers assume."""
    return AutoresetMode(envs.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))


def row(observations: Any, i: int) -> Any:
    """Returns the observation of environment `i` from a batch of them, nested as they are."""
    if isinstance(observations, Mapping):
        return {key: row(child, i) for key, child in observations.items()}
    if isinstance(observations, tuple):
        return tuple(row(child, i) for child in observations)
    return observations[i]


def stacked(observations: Sequence[Any]) -> Any:
    """Undoes `row`: returns a batch of observations, nested as they are."""
    first = observations[0]
    if isinstance(first, Mapping):
        return {key: stacked([observation[key] for observation in observations]) for key in first}
    if isinstance(first, tuple):
        return tuple(stacked(parts) for parts in zip(*observations, strict=True))
    return np.stack(observations)
