"""How many items each of a run of keys has, and which key has the r-th item: whole numbers that change mostly at both ends.

What is kept is how many items begin before each key, counted from an origin that moves; so the r-th is one binary search away.
A count that changes shifts the keys on that side of it that has fewer of them: next to nothing at either end, and at most, in
the middle of a million keys, one addition over half of them. 8 bytes a key.
"""

import numpy as np

from replaysvc.selectors.strip import Strip
from replaysvc.types import Array


class Tally:
    """Counts, int64 and 0 unless set, of the keys [start, stop)."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self._begins = Strip(1)  # the items before each key, and those before `stop`
        self._begins.append(np.zeros((1, 1), np.int64))

    @property
    def stop(self) -> int:
        """Returns the key after the last one."""
        return self.start + len(self._begins) - 1

    @property
    def total(self) -> int:
        """Returns the sum of all counts."""
        begins = self._begins.view[0]
        return int(begins[-1] - begins[0])

    def grow(self, stop: int) -> None:
        """Makes the keys up to `stop` exist. Amortised O(1) a key."""
        if (added := stop - self.stop) > 0:
            self._begins.append(np.full((1, added), self._begins.view[0, -1]))

    def remove_before(self, key: int) -> None:
        """Forgets the keys before `key`. O(1)."""
        if key > self.start:
            self.grow(key)
            self._begins.drop_first(key - self.start)
            self.start = key

    def get(self, keys: Array) -> Array:
        """Returns the counts of int64 `keys`, all in [start, stop)."""
        begins, at = self._begins.view[0], keys - self.start
        counts: Array = begins.take(at + 1) - begins.take(at)
        return counts

    def set(self, keys: Array, counts: Array) -> None:
        """Sets the counts of int64 `keys`, each once and in [start, stop)."""
        if not keys.size:
            return
        begins, at = self._begins.view[0], keys - self.start
        low, stop = int(at.min()), int(at.max()) + 1
        more = np.zeros(stop - low, np.int64)
        more[at - low] = counts - self.get(keys)
        more = more.cumsum()
        begins[low + 1 : stop + 1] += more
        if low < len(begins) - stop:  # fewer stand before than behind: the origin moves instead of what stands behind
            begins[low + 1 : stop + 1] -= more[-1]
            begins[: low + 1] -= more[-1]
        else:
            begins[stop + 1 :] += more[-1]

    def find(self, ranks: Array) -> tuple[Array, Array]:
        """Returns (keys, rests) of int64 `ranks` in [0, total): the key that has the item, and which of that key's it is."""
        begins = self._begins.view[0]
        ranks = ranks + begins[0]
        at = begins.searchsorted(ranks, side="right") - 1
        return at + self.start, ranks - begins.take(at)
