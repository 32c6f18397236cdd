"""Every step is as likely as any other."""

import numpy as np

from replaysvc.types import Array


class Uniform:
    """Draws uniformly from one contiguous range of positions; O(1) memory, O(count) a draw."""

    def __init__(self) -> None:
        self._start = 0
        self._stop = 0

    def insert(self, start: int, stop: int) -> None:
        if self._start == self._stop:
            self._start = start
        self._stop = stop

    def remove(self, start: int, stop: int) -> None:
        self._start = max(self._start, stop)

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        positions = rng.integers(self._start, self._stop, size=count, dtype=np.int64)
        return positions, np.full(count, 1.0 / (self._stop - self._start))
