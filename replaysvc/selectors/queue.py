"""A queue or stack of positions, each handed out a number of times and then no more."""

import numpy as np

from replaysvc.selectors.strip import Strip
from replaysvc.types import Array


class Queue:
    """Pending positions, the first to become complete first. Draws the oldest (or newest) one, all its times, then the next."""

    def __init__(self, times: int, newest_first: bool) -> None:
        self._times = times
        self._newest_first = newest_first
        # Position; how many times it is still to be handed out; a bound: nothing pending from here on has a lower position.
        # Bounds ascend, so that `remove_before` need look only at items up to where its position is reached.
        self._items = Strip(3)
        self._available = 0

    @property
    def available(self) -> int:
        """Returns how often anything can still be handed out."""
        return self._available

    @property
    def pending(self) -> tuple[Array, Array]:
        """Returns (positions int64 [n], remaining int64 [n]) in order of completion, for `restore`."""
        positions, remaining, _ = self._items.view.copy()
        return positions, remaining

    def restore(self, positions: Array, remaining: Array) -> None:
        """Makes what `pending` returned the content."""
        self._items.replace(np.stack([positions, remaining, _bounds(positions)]))
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
        """Returns int64 [count] and uses it up; `count` is at most `available`. O(count)."""
        drawn, whole, part = self._plan(count)
        if part:
            self._items.view[1, -1 - whole if self._newest_first else whole] -= part
        if self._newest_first:
            self._items.drop_last(whole)
        else:
            self._items.drop_first(whole)
        self._available -= count
        return drawn

    def remove_before(self, position: int) -> None:
        """Drops what is pending before `position`. O(items that became complete before the last of these)."""
        bounds = self._items.view[2]
        reached = int(bounds.searchsorted(position))
        keep = self._items.view[0, :reached] >= position
        bounds[:reached] = position  # it holds once the others are gone, and saves a look at those that stay
        self._filter_front(keep)

    def remove(self, positions: Array) -> None:
        """Drops what is pending of int64 `positions`. O(pending)."""
        self._filter_front(~np.isin(self._items.view[0], positions))

    def _plan(self, count: int) -> tuple[Array, int, int]:
        """Returns what to hand out, how many items from the drawing end that uses up, how often the next is handed out."""
        if count > self._available:
            raise ValueError(f"count: expected at most {self._available}, found {count}")
        items = self._items.view[:, ::-1] if self._newest_first else self._items.view
        ends = items[1, :count].cumsum()  # each is handed out at least once
        whole = int(ends.searchsorted(count, side="right"))
        part = count - (int(ends[whole - 1]) if whole else 0)
        times = items[1, : whole + (part > 0)].copy()
        if part:
            times[-1] = part
        return np.repeat(items[0, : len(times)], times), whole, part

    def _filter_front(self, keep: Array) -> None:
        """Drops those of the first items for which bool [n] `keep` is false."""
        front = self._items.view[:, : len(keep)]
        gone = len(keep) - int(np.count_nonzero(keep))
        self._available -= int(front[1, ~keep].sum())
        front[:, gone:] = front[:, keep]
        self._items.drop_first(gone)


def _bounds(positions: Array) -> Array:
    """Returns, for each, the lowest position from it on."""
    bounds: Array = np.minimum.accumulate(positions[::-1])[::-1]
    return bounds
