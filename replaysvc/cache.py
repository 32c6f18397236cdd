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

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from replaysvc.codec import DecodedGroup, GroupColumn, StoredColumn, take_rows, widen
from replaysvc.ring import Ring, reserve
from replaysvc.spec import Signature
from replaysvc.types import Allocate, Array

_ROWS_PER_SLOT = 8  # a chunk shorter than this on average wastes rows; bounds the arena of offsets


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

    @property
    def budget_bytes(self) -> int:
        """Returns the bytes that cached chunks may take."""
        return sum(self._budgets)

    def resize(self, recent_bytes: int, faulted_bytes: int) -> None:
        """Changes the budgets and empties the cache; the caller forgets every location."""
        self._budgets = (recent_bytes, faulted_bytes)
        self._reset()

    def fits(self, columns: Sequence[StoredColumn | GroupColumn]) -> bool:
        """Returns whether the arena can hold these columns as it is; if not, call `widen_for` first."""
        return all(
            wide or column.values.dtype == spec.stored_dtype
            for column, spec, wide in zip(columns, self._specs, self._wide, strict=True)
        )

    def widen_for(self, columns: Sequence[StoredColumn | GroupColumn]) -> None:
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
                self._put_offsets(i, slot, None if column.offsets is None else True, column.offsets)
        return place

    def insert_group(
        self, ring: int, rows: Array, group: DecodedGroup, chunks: Array
    ) -> Iterator[tuple[Array, Array, Array, Array, Array]]:
        """Copies in those of a group's chunks that are numbered `chunks`, in the order in which they lie: as many as the ring
        holds at once. `rows` (int64 [chunks]) are the index rows of all.

        Yields, a few times, (index rows, locations, slots, overwritten index rows, overwritten locations), all int64 [n].
        """
        lengths = group.n_steps[chunks] + 1
        left = int(np.searchsorted(np.cumsum(lengths), self._rings[ring].rows, side="right"))
        done = 0
        while done < left:
            count, location, slots, gone_rows, gone_at = self._rings[ring].take_run(rows[chunks[done:left]], lengths[done:left])
            if not count:
                return
            now, sizes = chunks[done : done + count], lengths[done : done + count]
            ends = location + np.cumsum(sizes)
            source = group.rows_of(now)
            for i, (column, spec) in enumerate(zip(group.columns, self._specs, strict=True)):
                values = column.values[source]
                if self._wide[i] and values.dtype != spec.dtype:
                    values = values.astype(spec.dtype)
                    if column.offsets is not None:
                        values += column.offsets[now].repeat(sizes, axis=0)
                self._arenas[i][location : int(ends[-1])] = values
                if not self._wide[i]:
                    around = None if column.around is None else column.around[now]
                    self._put_offsets(i, slots, around, None if column.offsets is None else column.offsets[now])
            yield rows[now], ends - sizes, slots, gone_rows, gone_at
            done += count

    def _put_offsets(self, i: int, slots: Any, around: Any, offsets: Array | None) -> None:
        """Notes of one slot or many whether values stand around offsets, and which; all other offsets are -0.0."""
        has, values = self._has_offset[i], self._offsets[i]
        if has is None or values is None:
            if offsets is None:
                return
            has = self._has_offset[i] = reserve((self._slots,), np.bool_)
            values = self._offsets[i] = reserve((self._slots, *self._specs[i].shape), self._specs[i].dtype)
            for ring in self._rings:
                values[ring.used_slots()] = -0.0
        has[slots] = around is not None and around
        values[slots] = -0.0 if offsets is None else offsets  # to add -0.0 changes no value, not even -0.0

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
        around = offsets = None
        if not self._wide[i]:
            around, offsets = self._has_offset[i], self._offsets[i]
        return take_rows(self._arenas[i], rows, around, offsets, slots, self._specs[i], allocate)
