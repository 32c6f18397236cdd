"""Parallel arrays that grow at one end and lose rows at the other: how a table's index is kept.

Rows are counted from the first ever added and never shift: when old rows are removed, `base` moves, and array index =
row - base. Links between rows therefore stay true. Not thread-safe.

Fields that are wanted together lie together, so that a look at a random row costs one miss of the processor's caches and not
one a field; those that are searched or summed over many rows lie by themselves.
"""

from collections.abc import Mapping

import numpy as np

from replaysvc.types import Array


class Columns:
    """Parallel arrays that grow at the end and lose rows at the start; each append is amortised O(1)."""

    def __init__(self, fields: Mapping[str, str], base: int = 0, together: Mapping[str, str] | None = None) -> None:
        """`fields` lie by themselves, those `together` in one record a row; both are dtypes by name."""
        self.base = base  # the row of the first kept entry
        self._start = self._stop = 0  # kept entries within the arrays
        self._size = 64
        self._records = np.empty(self._size, list((together or {}).items()))
        self._arrays = {name: np.empty(self._size, code) for name, code in fields.items()}
        self._arrays |= {name: self._records[name] for name in together or ()}

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def end(self) -> int:
        """Returns the row after the last one."""
        return self.base + len(self)

    def __getitem__(self, name: str) -> Array:
        """Returns the kept entries of one field, a view: entry i is row base + i. Never `take` from a field that lies with
        others: numpy copies all of it first."""
        return self._arrays[name][self._start : self._stop]

    @property
    def records(self) -> Array:
        """Returns the kept records of the fields that lie together, a view."""
        return self._records[self._start : self._stop]

    def append(self, values: Mapping[str, Array]) -> None:
        """Adds rows; `values` has every field, all of one length."""
        count = len(next(iter(values.values())))
        if self._stop + count > self._size:
            self._move(max(64, 2 * (len(self) + count)))
        for name, array in self._arrays.items():
            array[self._stop : self._stop + count] = values[name]
        self._stop += count

    def remove_to(self, row: int) -> None:
        """Forgets the rows before `row`."""
        gone = max(0, min(row, self.end) - self.base)
        self._start += gone
        self.base += gone
        if self._start > 1024 and self._start > 2 * len(self):
            self._move(max(64, 2 * len(self)))

    def _move(self, size: int) -> None:
        kept = len(self)
        records = np.empty(size, self._records.dtype)
        records[:kept] = self.records
        self._records = records
        for name, array in self._arrays.items():
            if records.dtype.names and name in records.dtype.names:
                self._arrays[name] = records[name]
                continue
            moved = np.empty(size, array.dtype)
            moved[:kept] = array[self._start : self._stop]
            self._arrays[name] = moved
        self._start, self._stop, self._size = 0, kept, size
