"""Hindsight goals: which step's goal, and what rewards follow from it (Andrychowicz et al. 2017).

Pure arithmetic on gathered arrays, the same on the server (declared rewards) and in a learner's process (its own function).
"""

from typing import Any, NamedTuple

import numpy as np

from replaysvc.errors import InvalidRequestError
from replaysvc.requests import DenseReward, Goal, Her, SparseReward, Terminated
from replaysvc.types import Array


class Ends(NamedTuple):
    """Rewards [B, W], steps in each window [B], and the flags [B] of its last step."""

    rewards: Array
    counts: Array
    terminated: Array
    truncated: Array


def choose_steps(rng: np.random.Generator, goal: Goal, t: Array, first: Array, length: Array) -> Array:
    """Returns int64 [B]: the steps after which goals were achieved.

    t: each window's first step; first: the episode's first stored step; length: its steps.
    """
    if goal is Goal.FINAL:
        return np.asarray(length - 1, np.int64)
    low = t if goal is Goal.FUTURE else first
    return np.asarray(low + np.floor(rng.random(len(t)) * (length - low)), np.int64)


def declared_reward(reward: SparseReward | DenseReward, achieved: Array, desired: Array) -> tuple[Array, Array]:
    """Returns (rewards float32 [N], successes bool [N]) of goals [N, ...]."""
    apart = (achieved.astype(np.float64) - desired.astype(np.float64)).reshape(len(achieved), -1)
    distance = np.sqrt(np.square(apart).sum(axis=1))
    success = distance <= reward.threshold
    if isinstance(reward, SparseReward):
        return np.where(success, reward.success, reward.failure).astype(np.float32), success
    return (-reward.scale * distance).astype(np.float32), success


def rewards_of(her: Her, achieved: Array, desired: Array) -> tuple[Array, Array]:
    """Returns (rewards float32 [N], successes bool [N], False throughout if `her` asks for none), by declaration or function.

    Raises:
      InvalidRequestError: a function did not return one number for each goal.
    """
    if isinstance(her.reward, SparseReward | DenseReward):
        return declared_reward(her.reward, achieved, desired)
    made = her.reward(achieved.copy(), desired.copy(), {})  # a function that changes what it gets changes nothing else
    with np.errstate(over="ignore"):
        rewards = _checked("reward", made, len(achieved)).astype(np.float32)
    if not np.isfinite(rewards).all():
        raise InvalidRequestError("her.reward: expected a function that returns finite float32 numbers, found NaN or infinity")
    if her.success is None:
        return rewards, np.zeros(len(achieved), np.bool_)
    success = _checked("success", her.success(achieved.copy(), desired.copy()), len(achieved))
    if not ((success == 0) | (success == 1)).all():
        raise InvalidRequestError("her.success: expected a function that returns bools, found other numbers")
    return rewards, success.astype(np.bool_)


def _checked(name: str, values: Any, count: int) -> Array:
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        array = np.empty((), np.object_)
    if array.shape != (count,) or array.dtype.kind not in "biuf":
        found = f"{array.dtype}{list(array.shape)}"
        raise InvalidRequestError(f"her.{name}: expected a function that returns numbers [{count}], one a goal, found {found}")
    return array


def relabel(her: Her, stored: Ends, relabeled: Array, achieved: Array, goal: Array) -> Ends:
    """Returns what becomes of windows when the goals of those in `relabeled` (bool [B]) are replaced.

    achieved: the goals achieved after each step, [B, W, ...]; goal: the new ones, [B, ...].
    """
    which = np.flatnonzero(relabeled)
    if not which.size:
        return stored
    width = stored.rewards.shape[1]
    after = achieved[which].reshape(len(which) * width, *achieved.shape[2:])
    made, reached = rewards_of(her, after, np.repeat(goal[which], width, axis=0))
    rewards = np.array(stored.rewards, np.float32)
    rewards[which] = made.reshape(len(which), width)
    if her.terminated is Terminated.STORED:
        return Ends(rewards, stored.counts, stored.terminated, stored.truncated)
    counts, terminated, truncated = stored.counts.copy(), stored.terminated.copy(), stored.truncated.copy()
    success = reached.reshape(len(which), width) & (np.arange(width) < counts[which][:, None])
    succeeds = success.any(axis=1)
    terminated[which] = succeeds
    truncated[which] &= ~succeeds
    counts[which] = np.where(succeeds, success.argmax(axis=1) + 1, counts[which])
    return Ends(rewards, counts, terminated, truncated)
