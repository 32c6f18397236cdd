"""The cache of decoded chunks: one arena of rows, in stored precision, filled by two rings.

The recent ring takes every chunk as it is committed, the faulted ring those that were read back from disk; each is
overwritten in its own order, so a learner that reads old data does not push out what actors just wrote. A batch is
gathered by one `take` per column over the whole arena.

A chunk of n steps takes n + 1 arena rows in every column (its last observation has a row of its own; the last row of the
other columns is unused). Values cast to float16 around an offset keep that offset in a second, smaller arena, one slot a
chunk. A column in which a chunk had to be kept lossless is widened to the declared dtype for good, which empties the
cache once.

Memory is reserved at once but only touched as rows are used. Not thread-safe: the table's lock is held around every call.
"""

import math
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from replaysvc.codec import StoredColumn, widen
from replaysvc.codec.halves import from_float16
from replaysvc.spec import Signature
from replaysvc.types import Allocate, Array

_OFFSET_SHARE = 4  # a column with offsets in more than one item of so many is given out in the declared dtype
_ROWS_PER_SLOT = 8  # a chunk shorter than this on average wastes rows; bounds the arena of offsets


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
        self._first, self._rows = first, rows
        self._first_slot = first_slot
        self._owner = reserve((slots,), np.int64)  # by slot: the index row of the chunk
        self._begin = reserve((slots,), np.int64)  # by slot: its arena row
        self._length = reserve((slots,), np.int64)
        self._head = self._tail = 0  # slots used in all, and the oldest still alive
        self._next = 0  # arena row, within the ring, where the next chunk goes
        self.used = 0

    def take(self, owner: int, length: int) -> tuple[int, int, list[tuple[int, int]]] | None:
        """Returns (arena row, slot, overwritten (owner, arena row)), or None if the chunk is larger than the ring."""
        slots = len(self._owner)
        if length > self._rows or not slots:
            return None
        gone = []
        if self._next + length > self._rows:  # a chunk lies in one piece; the rest up to the end stays unused this time
            gone += self._free(self._next, self._rows)
            self._next = 0
        begin = self._next
        gone += self._free(begin, begin + length)
        if self._head - self._tail == slots:
            gone.append(self._drop())
        slot = self._head % slots
        self._owner[slot], self._begin[slot], self._length[slot] = owner, begin, length
        self._head += 1
        self._next += length
        self.used += length
        return self._first + begin, self._first_slot + slot, gone

    def used_slots(self) -> Array:
        """Returns the slots of all entries that are there."""
        return self._first_slot + np.arange(self._tail, self._head) % max(1, len(self._owner))

    def _free(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Drops the oldest entries while they overlap rows [begin, end)."""
        gone = []
        while self._tail < self._head:
            slot = self._tail % len(self._owner)
            at = int(self._begin[slot])
            if at >= end or at + int(self._length[slot]) <= begin:
                break
            gone.append(self._drop())
        return gone

    def _drop(self) -> tuple[int, int]:
        slot = self._tail % len(self._owner)
        self._tail += 1
        self.used -= int(self._length[slot])
        return int(self._owner[slot]), self._first + int(self._begin[slot])


class Cache:
    """Decoded chunks of one table within a byte budget for each ring."""

    RECENT, FAULTED = 0, 1

    def __init__(self, signature: Signature, recent_bytes: int, faulted_bytes: int) -> None:
        self._specs = signature.columns
        self._wide = [not spec.cast for spec in self._specs]
        self._budgets = (recent_bytes, faulted_bytes)
        self._arenas: list[Array] = []
        self._offsets: list[Array | None] = []
        self._has_offset: list[Array | None] = []
        self._reset()

    def _reset(self) -> None:
        self._row_bytes = 0
        for spec, wide in zip(self._specs, self._wide, strict=True):
            dtype = spec.dtype if wide else spec.stored_dtype
            self._row_bytes += int(np.prod(spec.shape)) * dtype.itemsize
            if not wide:
                self._row_bytes += spec.row_bytes // _ROWS_PER_SLOT + 1
        rows = [budget // max(self._row_bytes, 1) for budget in self._budgets]
        slots = [max(1, count // _ROWS_PER_SLOT) for count in rows]
        self._slots = sum(slots)
        self._rings = (Ring(0, rows[0], 0, slots[0]), Ring(rows[0], rows[1], slots[0], slots[1]))
        self._arenas = [
            reserve((sum(rows), *spec.shape), spec.dtype if wide else spec.stored_dtype)
            for spec, wide in zip(self._specs, self._wide, strict=True)
        ]
        self._offsets = [None] * len(self._specs)
        self._has_offset = [None] * len(self._specs)

    @property
    def used_bytes(self) -> int:
        """Returns the bytes that cached chunks take."""
        return sum(ring.used for ring in self._rings) * self._row_bytes

    def resize(self, recent_bytes: int, faulted_bytes: int) -> None:
        """Changes the budgets and empties the cache; the caller forgets every location."""
        self._budgets = (recent_bytes, faulted_bytes)
        self._reset()

    def fits(self, columns: Sequence[StoredColumn]) -> bool:
        """Returns whether the arena can hold these columns as it is; if not, call `widen_for` first."""
        return all(
            wide or column.values.dtype == spec.stored_dtype
            for column, spec, wide in zip(columns, self._specs, self._wide, strict=True)
        )

    def widen_for(self, columns: Sequence[StoredColumn]) -> None:
        """Widens the columns that these need wide, and empties the cache; the caller forgets every location."""
        self._wide = [
            wide or column.values.dtype != spec.stored_dtype
            for column, spec, wide in zip(columns, self._specs, self._wide, strict=True)
        ]
        self._reset()

    def insert(
        self, ring: int, row: int, columns: Sequence[StoredColumn], n_steps: int
    ) -> tuple[int, int, list[tuple[int, int]]] | None:
        """Copies a decoded chunk in. Returns (location, slot, overwritten (index row, location)); None if it is too large."""
        place = self._rings[ring].take(row, n_steps + 1)
        if place is None:
            return None
        location, slot, _ = place
        for i, (column, spec) in enumerate(zip(columns, self._specs, strict=True)):
            values = widen(column, spec) if self._wide[i] and spec.cast else column.values
            self._arenas[i][location : location + len(values)] = values
            if not self._wide[i]:
                self._put_offset(i, slot, column.offsets)
        return place

    def _put_offset(self, i: int, slot: int, offsets: Array | None) -> None:
        has, values = self._has_offset[i], self._offsets[i]
        if has is None or values is None:
            if offsets is None:
                return
            has = self._has_offset[i] = reserve((self._slots,), np.bool_)
            values = self._offsets[i] = reserve((self._slots, *self._specs[i].shape), self._specs[i].dtype)
            for ring in self._rings:
                values[ring.used_slots()] = -0.0
        has[slot] = offsets is not None
        values[slot] = -0.0 if offsets is None else offsets  # to add -0.0 changes no value, not even -0.0

    def has_offsets(self, i: int) -> bool:
        """Returns whether values of column `i` may stand around offsets at present."""
        return self._has_offset[i] is not None

    def dtype(self, i: int) -> np.dtype[Any]:
        """Returns the dtype in which column `i` is held at present."""
        dtype: np.dtype[Any] = self._arenas[i].dtype
        return dtype

    def take(
        self, i: int, rows: Array, slots: Array | None, allocate: Allocate = np.empty
    ) -> tuple[Array, Array | None, Array | None]:
        """Returns column `i` at arena `rows` [B], and the (items, offsets) of those that stand around an offset.

        Where many do, it is in the declared dtype, with the offsets added: that is smaller then, and faster.
        `slots` [B] are the slots of the chunks that the rows belong to; needed only if `has_offsets(i)`. Rows must be valid;
        memory is the caller's, made by `allocate`.
        """
        arena, shape = self._arenas[i], (len(rows), *self._arenas[i].shape[1:])
        has, offsets = self._has_offset[i], self._offsets[i]
        around = None
        if has is not None and offsets is not None and not self._wide[i]:
            assert slots is not None
            around = has.take(slots)
        count = 0 if around is None else np.count_nonzero(around)
        many = count * _OFFSET_SHARE > len(rows)
        values = (np.empty if many else allocate)(shape, arena.dtype)  # what is widened here goes no further
        arena.take(rows, 0, values, "clip")  # other modes make a copy first
        if not count or around is None or offsets is None or slots is None:
            return values, None, None
        if many:
            wide = from_float16(values, self._specs[i].dtype, allocate)
            wide += offsets.take(slots, axis=0)
            return wide, None, None
        items = np.flatnonzero(around)
        return values, items.astype(np.uint32), offsets.take(slots[items], axis=0)
