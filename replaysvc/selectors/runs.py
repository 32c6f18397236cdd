"""Live positions as runs: one as a rule, more where some were lost or deleted.

Each run has its first position and the rank of that position, counted from an origin that is never moved: taking away at the
front and adding at the end change one run and leave the ranks of all others as they are. O(runs) memory.
"""

import numpy as np

from replaysvc.selectors.strip import Strip
from replaysvc.types import Array


class Runs:
    """An ordered set of int64 positions that grows mostly at its end and shrinks mostly at its front; a `Population`."""

    def __init__(self) -> None:
        self._runs = Strip(2)  # first position, its rank
        self._end = 0  # the rank after the last position

    @property
    def size(self) -> int:
        return self._end - int(self._runs.view[1, 0]) if len(self._runs) else 0

    @property
    def runs(self) -> Array:
        """Returns the runs as int64 [n, 2], half-open, in order; no two of them touch."""
        firsts, ranks = self._runs.view
        return np.stack([firsts, firsts + np.diff(ranks, append=self._end)], axis=1)

    def insert(self, start: int, stop: int) -> None:
        """Takes in [start, stop). Amortised O(1) at the end, O(runs) elsewhere. What is in already stays."""
        if start >= stop:
            return
        firsts, ranks = self._runs.view
        last = int(firsts[-1]) + self._end - int(ranks[-1]) if len(firsts) else start - 1
        if start < last:
            runs = self.runs
            low = int(runs[:, 1].searchsorted(start))  # the first run that overlaps or touches
            high = int(runs[:, 0].searchsorted(stop, side="right"))  # after the last one
            if low < high:
                start, stop = min(start, int(runs[low, 0])), max(stop, int(runs[high - 1, 1]))
            self._replace(runs[:low], [(start, stop)], runs[high:])
            return
        if start > last:
            self._runs.append(np.array([[start], [self._end]]))
        self._end += stop - start

    def remove(self, start: int, stop: int) -> None:
        """Forgets what of [start, stop) is in. Amortised O(1) at the front, O(runs) elsewhere, where it may split a run."""
        if start >= stop or not len(self._runs):
            return
        if start <= self._runs.view[0, 0]:
            self._remove_before(stop)
            return
        runs = self.runs
        low = int(runs[:, 1].searchsorted(start, side="right"))  # the first run that overlaps
        high = int(runs[:, 0].searchsorted(stop))  # after the last one
        if low < high:
            left, right = (int(runs[low, 0]), start), (stop, int(runs[high - 1, 1]))
            self._replace(runs[:low], [part for part in (left, right) if part[0] < part[1]], runs[high:])

    def select(self, ranks: Array) -> Array:
        """Returns the int64 [B] positions at `ranks`, int64 [B] in [0, size); rank 0 is the lowest position."""
        firsts, begins = self._runs.view
        if len(firsts) == 1:
            found: Array = ranks + firsts[0]
            return found
        ranks = ranks + begins[0]
        run = begins.searchsorted(ranks, side="right") - 1
        positions: Array = firsts.take(run) + (ranks - begins.take(run))
        return positions

    def _remove_before(self, stop: int) -> None:
        self._runs.drop_first(max(0, int(self._runs.view[0].searchsorted(stop)) - 1))
        firsts, ranks = self._runs.view
        end = int(ranks[1]) if len(ranks) > 1 else self._end
        taken = min(stop - int(firsts[0]), end - int(ranks[0]))
        if taken <= 0:
            return
        firsts[0] += taken
        ranks[0] += taken
        if ranks[0] == end:
            self._runs.drop_first(1)

    def _replace(self, before: Array, middle: list[tuple[int, int]], after: Array) -> None:
        runs = np.concatenate([before, np.array(middle, np.int64).reshape(-1, 2), after])
        lengths = runs[:, 1] - runs[:, 0]
        ends = lengths.cumsum()
        self._runs.replace(np.stack([runs[:, 0], ends - lengths]))
        self._end = int(lengths.sum())
