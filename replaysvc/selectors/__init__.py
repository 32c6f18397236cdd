"""Selectors choose positions; they know nothing of the data.

Calls are never concurrent: the table owns the one lock. Positions are handed in as half-open ranges, since a table adds
at its end and removes at its start; a selector that keeps state per step (priorities) learns of both by `insert` and `remove`.
"""

from typing import Protocol

import numpy as np

from replaysvc.selectors.uniform import Uniform
from replaysvc.types import Array

__all__ = ["Selector", "Uniform"]


class Selector(Protocol):
    """Draws positions of steps with replacement."""

    def insert(self, start: int, stop: int) -> None:
        """Takes in the steps at positions [start, stop); `start` is the last `stop`, or later if steps were lost."""

    def remove(self, start: int, stop: int) -> None:
        """Forgets the steps at positions [start, stop), the oldest ones."""

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        """Returns int64 [count] positions and float64 [count], the probability of each at its draw. The range is not empty."""
