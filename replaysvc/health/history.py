"""How fast things went: counters as they were, every two seconds for half an hour and every minute for a day.

What is kept counts up from 0 at the start of the process, whatever becomes of tables meanwhile; rates are differences. A
difference over a time in which nobody looked is a gap.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from replaysvc.types import Array

FINE_S, FINE = 2.0, 900
COARSE_S, COARSE = 60.0, 1440
POINTS = 450  # told at most
MOST_TABLES = 64  # that have a history of their own, some 150 KB each
_LEAST_GROWTH_S, _GROWTH_S = 600.0, 3600.0  # over which growth is told: of a minute it would be a guess
_LATE = 3.0  # periods without a look that make a gap
_AT, _CLOCK, _STEPS, _ITEMS, _HITS, _RECEIVED, _SENT, _DISK = range(8)
_COUNTERS = slice(_STEPS, _DISK)  # those that count up; the disk goes up and down


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Of one table: steps ever appended; items drawn, and those found in the cache, since the start; bytes on disk now."""

    uuid: str
    steps: int
    items: int
    hits: int
    disk_bytes: int


class _Ring:
    """The last rows of counters, at most one each `period_s`."""

    def __init__(self, period_s: float, size: int) -> None:
        self.period_s = period_s
        self._rows = np.zeros((size, 8))
        self._count = 0

    def add(self, row: Array) -> None:
        if self._count and row[_CLOCK] - self._rows[(self._count - 1) % len(self._rows)][_CLOCK] < 0.5 * self.period_s:
            return
        self._rows[self._count % len(self._rows)] = row
        self._count += 1

    @property
    def is_whole(self) -> bool:
        """Returns whether nothing was forgotten yet."""
        return self._count <= len(self._rows)

    def rows(self, since: float, stride: int = 1) -> Array:
        """Returns rows from `since` on, by the monotonic clock, oldest first: each `stride`th of all that there ever were."""
        first = max(0, self._count - len(self._rows))
        numbers = np.arange(first + (-first) % stride, self._count, stride)
        rows = self._rows[numbers % len(self._rows)]
        return rows[rows[:, _CLOCK] >= since]


class _Series:
    def __init__(self) -> None:
        self.fine, self.coarse = _Ring(FINE_S, FINE), _Ring(COARSE_S, COARSE)
        self.sums = np.zeros(8)

    def add(self, at_s: float, clock: float, more: Array, disk_bytes: float) -> None:
        self.sums[_COUNTERS] += more
        self.sums[_AT], self.sums[_CLOCK], self.sums[_DISK] = at_s, clock, disk_bytes
        self.fine.add(self.sums)
        self.coarse.add(self.sums)


class History:
    """Counters of all tables together and of each. Not thread-safe: a lock is held around every call."""

    def __init__(self) -> None:
        self._all = _Series()
        self._tables: dict[str, _Series] = {}
        self._last: dict[str, Counters] = {}
        self._bytes: tuple[int, int] | None = None  # none: nobody looked yet

    def note(self, at_s: float, clock: float, tables: Mapping[str, Counters], received: int, sent: int) -> None:
        """Notes counters as they are. at_s: in seconds since 1970; clock: monotonic; received, sent: bytes, since the start."""
        begun = self._bytes is not None
        before = self._bytes or (received, sent)
        of_all = np.array([0, 0, 0, received - before[0], sent - before[1]], np.float64)
        for name, now in tables.items():
            last = self._last.get(name)
            if last is not None and last.uuid != now.uuid:
                last = None
                self._tables.pop(name, None)
            old = (last.steps, last.items, last.hits) if last is not None else (0, 0, 0) if begun else None
            old = old or (now.steps, now.items, now.hits)  # it was there before anybody looked
            more = np.maximum([now.steps - old[0], now.items - old[1], now.hits - old[2], 0, 0], 0).astype(np.float64)
            of_all += more
            if name not in self._tables and len(self._tables) < MOST_TABLES:
                self._tables[name] = _Series()
            if name in self._tables:
                self._tables[name].add(at_s, clock, more, now.disk_bytes)
        for name in self._tables.keys() - tables.keys():
            del self._tables[name]
        self._all.add(at_s, clock, of_all, sum(now.disk_bytes for now in tables.values()))
        self._last, self._bytes = dict(tables), (received, sent)

    def points(self, table: str | None, window_s: float) -> dict[str, Any]:
        """Returns columns of at most 450 points of the last `window_s`; NaN where nothing is known."""
        series = self._all if table is None else self._tables.get(table) or _Series()
        ring = series.fine if series.fine.is_whole or window_s <= FINE * FINE_S else series.coarse
        since = series.sums[_CLOCK] - window_s
        stride = max(1, math.ceil(len(ring.rows(since)) / POINTS))
        rows = ring.rows(since - stride * ring.period_s, stride)[-POINTS - 1 :]
        seconds = np.diff(rows[:, _CLOCK])
        seconds[seconds > _LATE * stride * ring.period_s] = np.nan
        more = np.diff(rows, axis=0)
        more[np.isnan(seconds)] = np.nan
        with np.errstate(divide="ignore", invalid="ignore"):
            found = {
                "at_s": rows[1:, _AT],
                "steps_in_per_s": more[:, _STEPS] / seconds,
                "items_out_per_s": more[:, _ITEMS] / seconds,
                "bytes_in_per_s": more[:, _RECEIVED] / seconds,
                "bytes_out_per_s": more[:, _SENT] / seconds,
                "samples_per_insert": np.where(more[:, _STEPS] > 0, more[:, _ITEMS] / more[:, _STEPS], np.nan),
                "cache_hit_share": np.where(more[:, _ITEMS] > 0, more[:, _HITS] / more[:, _ITEMS], np.nan),
                "disk_bytes": rows[1:, _DISK],
            }
        if table is not None:  # whose bytes on the wire nobody counts
            found["bytes_in_per_s"] = found["bytes_out_per_s"] = np.full(len(seconds), np.nan)
        return found

    def rates(self, table: str | None, over_s: float = 10.0) -> dict[str, float]:
        """Returns steps and items, and of all tables bytes, a second over the last `over_s`; 0.0 where nothing is known."""
        series = self._all if table is None else self._tables.get(table)
        names = ("steps_in_per_s", "items_out_per_s", "bytes_in_per_s", "bytes_out_per_s")
        rows = series.fine.rows(series.sums[_CLOCK] - over_s - 0.5 * FINE_S) if series is not None else np.zeros((0, 8))
        if len(rows) < 2:
            return dict.fromkeys(names, 0.0)
        seconds = rows[-1, _CLOCK] - rows[0, _CLOCK]
        return {
            name: float((rows[-1, at] - rows[0, at]) / seconds)
            for name, at in zip(names, (_STEPS, _ITEMS, _RECEIVED, _SENT), strict=True)
        }

    def growth(self) -> float | None:
        """Returns by how many bytes a day the disk fills, as in the last hour; None: not known yet, within the first ten
        minutes."""
        since = self._all.sums[_CLOCK] - _GROWTH_S
        ring = self._all.fine if self._all.fine.is_whole else self._all.coarse
        rows = ring.rows(since)
        if len(rows) < 2 or rows[-1, _CLOCK] - rows[0, _CLOCK] < _LEAST_GROWTH_S:
            return None
        return float((rows[-1, _DISK] - rows[0, _DISK]) / (rows[-1, _CLOCK] - rows[0, _CLOCK]) * 86_400)


def days_left(free_bytes: int, reserve_bytes: int, growth: float | None) -> float | None:
    """Returns in how many days less than the reserve is free, at a growth in bytes a day; None: never, or not known."""
    if growth is None or growth <= 0:
        return None
    return max(0, free_bytes - reserve_bytes) / growth
