"""A queue or stack of positions, each handed out a number of times and then no more."""

import numpy as np

from replaysvc.selectors.strip import Strip
from replaysvc.types import Array


class Queue:
    """Pending positions, the first to become complete first. Draws the oldest (or newest) one, all its times, then the next."""

    def __init__(self, times: int, newest_first: bool) -> None:
        self._times = times
        self._newest_first = newest_first
        # Position; how many times it is still to be handed out, 0 once it was removed; a bound: nothing pending from here on
        # has a lower position. Bounds ascend, so that `remove_before` need look only at items up to where it is reached.
        self._items = Strip(3)
        self._removed = 0  # items that are still in `_items`
        self._available = 0

    @property
    def available(self) -> int:
        """Returns how often anything can still be handed out."""
        return self._available

    @property
    def pending(self) -> tuple[Array, Array]:
        """Returns (positions int64 [n], remaining int64 [n]) in order of completion, for `restore`."""
        positions, remaining, _ = self._items.view
        live = remaining > 0
        return positions[live], remaining[live]

    def restore(self, positions: Array, remaining: Array) -> None:
        """Makes what `pending` returned the content."""
        self._items.replace(np.stack([positions, remaining, _bounds(positions)]))
        self._removed = 0
        self._available = int(remaining.sum())

    def insert(self, positions: Array) -> None:
        """Adds int64 [n] `positions`, in order of becoming complete. Amortised O(n)."""
        if not positions.size:
            return
        added = np.stack([positions, np.full(len(positions), self._times, np.int64), _bounds(positions)])
        bounds = self._items.view[2]
        bounds[bounds.searchsorted(added[2, 0], side="right") :] = added[2, 0]
        self._items.append(added)
        self._available += len(positions) * self._times

    def draw(self, count: int) -> Array:
        """Returns int64 [count] and uses it up; `count` is at most `available`. O(count), amortised."""
        drawn, whole, part, removed = self._plan(count)
        remaining = self._items.view[1]
        if part:
            remaining[-1 - whole if self._newest_first else whole] -= part
        if self._newest_first:
            self._items.drop_last(whole)
        else:
            self._items.drop_first(whole)
        self._removed -= removed
        self._available -= count
        return drawn

    def peek(self, count: int) -> Array:
        """Returns what `draw` would, and uses nothing up."""
        return self._plan(count)[0]

    def remove_before(self, position: int) -> None:
        """Drops what is pending before `position`. O(items that became complete before the last of these)."""
        bounds = self._items.view[2]
        reached = int(bounds.searchsorted(position))
        if reached:
            bounds[:reached] = position
            self._drop(self._items.view[0, :reached] < position)

    def remove(self, positions: Array) -> None:
        """Drops what is pending of int64 `positions`. O(pending)."""
        self._drop(np.isin(self._items.view[0], positions))

    def _plan(self, count: int) -> tuple[Array, int, int, int]:
        """Returns what to hand out, how many items from the drawing end that uses up, how often the one after them is handed
        out, and how many of the items used up had been removed."""
        if count > self._available:
            raise ValueError(f"count: expected at most {self._available}, found {count}")
        items = self._items.view[:, ::-1] if self._newest_first else self._items.view
        seen = count  # each is handed out at least once, but for those that were removed
        while (ends := items[1, :seen].cumsum())[-1:].sum() < count:
            seen *= 2
        whole = int(ends.searchsorted(count, side="right"))  # those that end at or before `count`, and removed ones after them
        part = count - (int(ends[whole - 1]) if whole else 0)
        times = items[1, : whole + (part > 0)].copy()
        if part:
            times[-1] = part
        return np.repeat(items[0, : len(times)], times), whole, part, int(np.count_nonzero(times == 0))

    def _drop(self, dropped: Array) -> None:
        """Drops the items at the front for which bool [n] `dropped` is true."""
        remaining = self._items.view[1]
        dropped &= remaining[: len(dropped)] > 0
        self._available -= int(remaining[: len(dropped)][dropped].sum())
        self._removed += int(np.count_nonzero(dropped))
        remaining[: len(dropped)][dropped] = 0
        if not self._available:
            front = len(remaining)
        else:
            gone = remaining[: len(dropped) + 1] == 0
            front = int(gone.argmin()) if not gone.all() else len(gone)
        self._items.drop_first(front)
        self._removed -= front
        if 2 * self._removed > len(self._items):
            self.restore(*self.pending)


def _bounds(positions: Array) -> Array:
    """Returns, for each, the lowest position from it on."""
    bounds: Array = np.minimum.accumulate(positions[::-1])[::-1]
    return bounds
