"""n-step returns over gathered rewards (Sutton and Barto 2018, section 7.1)."""

from typing import NamedTuple

import numpy as np

from replaysvc.types import Allocate, Array
from replaysvc.windows import past_ends


class Targets(NamedTuple):
    """What a learner makes its target of: reward and discount float32, terminated and truncated bool, all of one shape."""

    reward: Array
    discount: Array
    terminated: Array
    truncated: Array


def nstep_return(rewards: Array, steps: Array, gamma: float) -> Array:
    """Returns float32 [B], the sum of gamma^i * rewards[:, i] over the entries that `steps` (bool [B, n]) marks."""
    factors = gamma ** np.arange(rewards.shape[1], dtype=np.float64)
    return np.asarray(np.where(steps, rewards, 0).astype(np.float64).dot(factors), np.float32)


def nstep_discount(counts: Array, terminated: Array, gamma: float) -> Array:
    """Returns float32 like `counts`: gamma^k for the k steps really summed, 0 where the episode terminated within them."""
    return np.where(terminated, 0.0, gamma ** counts.astype(np.float64)).astype(np.float32)


def transition_targets(rewards: Array, counts: Array, terminated: Array, truncated: Array, gamma: float) -> Targets:
    """Returns the targets [B] of windows of `counts` [B] steps, rewards [B, n], whose last steps have these flags [B]."""
    if rewards.shape[1] == 1:  # every window has its anchor
        discount = np.where(terminated, np.float32(0), np.float32(gamma))
        return Targets(np.asarray(rewards[:, 0], np.float32), discount, terminated, truncated)
    steps = np.arange(rewards.shape[1]) < counts[:, None]
    return Targets(nstep_return(rewards, steps, gamma), nstep_discount(counts, terminated, gamma), terminated, truncated)


def sequence_targets(
    rewards: Array, counts: Array, terminated: Array, truncated: Array, gamma: float, length: int, n_step: int,
    allocate: Allocate = np.empty,
) -> Targets:  # fmt: skip
    """Returns the n-step targets [B, length] of each of the first `length` steps of windows.

    rewards: [B, length + n_step - 1]; counts [B]: steps really in each window, whose last has the flags [B]. Steps that are not
    there get 0 and False. `allocate` makes the arrays of rewards and discounts, unless steps are summed.
    """
    if n_step == 1:
        return _one_step_targets(rewards, counts, terminated, truncated, gamma, allocate)
    place = np.arange(length)
    left = counts[:, None] - place
    there = left > 0
    summed = np.clip(left, 0, n_step)
    real = np.where(np.arange(rewards.shape[1]) < counts[:, None], rewards, 0).astype(np.float64)
    total = np.zeros((len(counts), length))
    for ahead in range(min(n_step, int(counts.max(initial=1)))):
        total += gamma**ahead * real[:, ahead : ahead + length]
    reward = total.astype(np.float32)
    reaches_end = there & (place + summed == counts[:, None])
    ends = reaches_end & terminated[:, None]
    discount = np.where(there, nstep_discount(summed, ends, gamma), 0).astype(np.float32)
    return Targets(reward, discount, ends, reaches_end & truncated[:, None])


def _one_step_targets(
    rewards: Array, counts: Array, terminated: Array, truncated: Array, gamma: float, allocate: Allocate
) -> Targets:
    """Returns what `sequence_targets` does for an n_step of 1: then only the last step of a window can have flags."""
    reward, discount = (allocate(rewards.shape, np.dtype(np.float32)) for _ in range(2))
    reward[:] = rewards
    discount.fill(gamma)
    last = np.arange(len(counts)), counts - 1
    flags = np.zeros((2, *rewards.shape), np.bool_)
    flags[0][last], flags[1][last] = terminated, truncated
    discount[last] = np.where(terminated, 0.0, gamma)
    past = past_ends(counts, rewards.shape[1])
    reward.reshape(-1)[past] = discount.reshape(-1)[past] = 0
    return Targets(reward, discount, *flags)
