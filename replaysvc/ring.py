"""Where chunks stand in an arena: rows and slots, handed out in order, the oldest overwritten; and memory for an arena."""

import math
import mmap
from typing import Any

import numpy as np

from replaysvc.types import Array

_LOOK_AHEAD = 256  # entries looked at together when many are overwritten


def reserve(shape: tuple[int, ...], dtype: Any) -> Array:
    """Returns an array of zeros that takes memory only as it is written, and gives it back when it is dropped.

    The allocator would do neither for sizes that it keeps to itself: what it was given back it hands out again, all written.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < mmap.PAGESIZE:
        return np.zeros(shape, dtype)
    return np.frombuffer(mmap.mmap(-1, size), dtype, math.prod(shape)).reshape(shape)


class Ring:
    """A range of arena rows and slots, handed out in order; the oldest entries are overwritten."""

    def __init__(self, first: int, rows: int, first_slot: int, slots: int) -> None:
        self._first, self.rows = first, rows
        self._first_slot = first_slot
        self._owner = reserve((slots,), np.int64)  # by slot: the index row of the chunk
        self._begin = reserve((slots,), np.int64)  # by slot: its arena row
        self._length = reserve((slots,), np.int64)
        self._head = self._tail = 0  # slots used in all, and the oldest still alive
        self._next = 0  # arena row, within the ring, where the next chunk goes
        self.used = 0

    def take(self, owner: int, length: int) -> tuple[int, int, list[tuple[int, int]]] | None:
        """Returns (arena row, slot, overwritten (owner, arena row)), or None if the chunk is larger than the ring."""
        count, begin, slots, gone, at = self.take_run(np.array([owner]), np.array([length]))
        return (begin, int(slots[0]), list(zip(gone.tolist(), at.tolist(), strict=True))) if count else None

    def take_run(self, owners: Array, lengths: Array) -> tuple[int, int, Array, Array, Array]:
        """Takes rows and slots for chunks that follow each other, for as many of the first as fit up to the end of the range.

        Returns (how many, arena row of the first, slots, overwritten index rows, overwritten arena rows); how many is 0 if
        the first chunk is larger than the ring.
        """
        slots, none = len(self._owner), np.empty(0, np.int64)
        if not slots or not len(lengths) or int(lengths[0]) > self.rows:
            return 0, 0, none, none, none
        gone = [none], [none]
        if self._next + int(lengths[0]) > self.rows:
            self._free_run(self._next, self.rows, gone)
            self._next = 0
        ends = self._next + np.cumsum(lengths)
        count = min(int(np.searchsorted(ends, self.rows, side="right")), slots)
        begin, end = self._next, int(ends[count - 1])
        self._free_run(begin, end, gone)
        self._drop_run(max(0, self._head - self._tail + count - slots), gone)
        taken = (self._head + np.arange(count)) % slots
        self._owner[taken], self._length[taken] = owners[:count], lengths[:count]
        self._begin[taken] = ends[:count] - lengths[:count]
        self._head += count
        self._next = end
        self.used += end - begin
        return count, self._first + begin, self._first_slot + taken, np.concatenate(gone[0]), np.concatenate(gone[1])

    def _free_run(self, begin: int, end: int, gone: tuple[list[Array], list[Array]]) -> None:
        """Drops the oldest entries while they overlap rows [begin, end)."""
        while self._tail < self._head:
            slots = np.arange(self._tail, min(self._head, self._tail + _LOOK_AHEAD)) % len(self._owner)
            at = self._begin[slots]
            apart = (at >= end) | (at + self._length[slots] <= begin)
            count = int(apart.argmax()) if apart.any() else len(slots)
            self._drop_run(count, gone)
            if count < len(slots):
                return

    def _drop_run(self, count: int, gone: tuple[list[Array], list[Array]]) -> None:
        """Drops the `count` oldest entries."""
        if not count:
            return
        slots = np.arange(self._tail, self._tail + count) % len(self._owner)
        self._tail += count
        self.used -= int(self._length[slots].sum())
        gone[0].append(self._owner[slots])
        gone[1].append(self._first + self._begin[slots])

    def used_slots(self) -> Array:
        """Returns the slots of all entries that are there."""
        return self._first_slot + np.arange(self._tail, self._head) % max(1, len(self._owner))
