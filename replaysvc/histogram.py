"""Counts of values in ranges that are fixed from the start. Not thread-safe: who has one holds a lock around it."""

from bisect import bisect_left

import numpy as np

from replaysvc.types import Array
from replaysvc.views import HistogramView

SECONDS = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Bounds for what waits: calls, commits, syncs."""

SHORT_SECONDS = (
    0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip
"""Bounds for what computes: the stages of a batch."""

STEPS = tuple(float(4**power) for power in range(15))
"""Bounds for distances in steps: 1 to 4^14, which is 2.7e8."""


class Histogram:
    """How many values fell into each range (bounds[i-1], bounds[i]], and above the last bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds` rise."""
        self._bounds, self._counts, self._total = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Counts a value, `count` times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._total += value * count

    def observe_all(self, values: Array) -> None:
        """Counts each of float64 or int64 `values` [n]."""
        found = np.bincount(np.searchsorted(self._bounds, values), minlength=len(self._counts))
        self._counts = [a + b for a, b in zip(self._counts, found.tolist(), strict=True)]
        self._total += float(values.sum())

    def view(self) -> HistogramView:
        """Returns what was counted so far."""
        return HistogramView(bounds=self._bounds, counts=tuple(self._counts), total=self._total)


def quantile(view: HistogramView, q: float) -> float:
    """Returns about the value below which a share `q` of all lies, 0 to 1: within a range, values count as evenly spread.

    Those above the last bound count as that bound. NaN where nothing was counted.
    """
    wanted, seen = q * sum(view.counts), 0
    if not any(view.counts):
        return float("nan")
    low = 0.0
    for high, count in zip(view.bounds, view.counts, strict=False):
        if count and seen + count >= wanted:
            return low + (high - low) * (wanted - seen) / count
        low, seen = high, seen + count
    return low
