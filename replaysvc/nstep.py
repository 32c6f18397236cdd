"""n-step returns over gathered rewards (Sutton and Barto 2018, section 7.1)."""

import numpy as np

from replaysvc.types import Array


def nstep_return(rewards: Array, steps: Array, gamma: float) -> Array:
    """Returns float32 [B], the sum of gamma^i * rewards[:, i] over the entries that `steps` (bool [B, n]) marks."""
    if rewards.shape[1] == 1:  # every window has its anchor
        return np.asarray(rewards[:, 0], np.float32)
    factors = gamma ** np.arange(rewards.shape[1], dtype=np.float64)
    return np.asarray(np.where(steps, rewards, 0).astype(np.float64).dot(factors), np.float32)


def nstep_discount(counts: Array, terminated: Array, gamma: float) -> Array:
    """Returns float32 [B]: gamma^k for the k steps really summed, 0 where the episode terminated within them."""
    return np.where(terminated, 0.0, gamma ** counts.astype(np.float64)).astype(np.float32)
