"""Rows of int64 side by side that grow at the end and shrink at both, amortised O(1) a column."""

import numpy as np

from replaysvc.types import Array


class Strip:
    """An int64 array [rows, n] whose n changes; `view` writes through, and is valid until the next `append` or `replace`."""

    def __init__(self, rows: int) -> None:
        self._data = np.empty((rows, 16), np.int64)
        self._head = 0
        self._tail = 0

    def __len__(self) -> int:
        return self._tail - self._head

    @property
    def view(self) -> Array:
        return self._data[:, self._head : self._tail]

    def append(self, columns: Array) -> None:
        """Adds `columns`, [rows, m], at the end."""
        added = columns.shape[1]
        if self._tail + added > self._data.shape[1]:
            live = self.view
            # Twice what lives, so that as much must come or go before the next copy. A strip that emptied out shrinks here too.
            data = np.empty((len(live), max(16, 2 * (live.shape[1] + added))), np.int64)
            data[:, : live.shape[1]] = live
            self._data, self._head, self._tail = data, 0, live.shape[1]
        self._data[:, self._tail : self._tail + added] = columns
        self._tail += added

    def drop_first(self, count: int) -> None:
        self._head += count

    def drop_last(self, count: int) -> None:
        self._tail -= count

    def replace(self, columns: Array) -> None:
        """Makes `columns` the content; they are copied."""
        self._data = np.array(columns, np.int64, order="C")
        self._head, self._tail = 0, columns.shape[1]
