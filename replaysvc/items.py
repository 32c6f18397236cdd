"""Which items a request can draw, kept up to date as steps come and go: the anchors of transitions, sequences and episodes.

The anchors in a chunk are always a run of multiples of a period, so a set of items is one count a chunk. A sum tree over the
counts finds the r-th item in O(log chunks); its total is the number of items, exactly. Not thread-safe: the table's lock is
held around every call.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from replaysvc.chunk_links import NONE
from replaysvc.requests import AtEnd, Episodes, Transitions, Window
from replaysvc.selectors import Drawn, Runs, SumTree
from replaysvc.table_index import DEAD, Added, TableIndex
from replaysvc.types import Array

_WHOLE = 1 << 62  # a period longer than any episode: only step 0 is an anchor
_MANY_CHUNKS = 64  # from so many chunks of an episode on, all chunks are looked through rather than followed one by one


class Rest(Enum):
    """Which anchors there are besides those of windows that are full."""

    ALL = "all"  # every one: windows are cut where the episode ends
    ONE = "one"  # the first that is cut, if the last full window leaves steps over
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Kind:
    """What makes a step the anchor of an item: windows of `length` steps begin every `period` steps of an episode.

    closed_only: only in episodes that have an end. span: only once so many steps from the anchor on are stored, or its episode
    is closed (0: at once). max_steps: only in episodes of at most so many steps, wholly stored (0: any).
    """

    length: int = 1
    period: int = 1
    rest: Rest = Rest.ALL
    closed_only: bool = False
    span: int = 0
    max_steps: int = 0

    def limit(self, length: Array, closed: Array) -> Array:
        """Returns the step before which anchors lie, in episodes of `length` steps."""
        full = np.maximum(length - self.length + 1, 0)
        if self.rest is Rest.NONE:
            limit = full
        elif self.rest is Rest.ALL:
            limit = length
        else:
            limit = np.maximum(np.minimum(length, length - self.length + self.period), np.minimum(length, 1))
        if self.span:
            limit = np.where(closed, limit, np.minimum(limit, np.maximum(length - self.span + 1, 0)))
        if self.max_steps:
            limit = np.where((length <= self.max_steps) & (length > 0), 1, 0)
        if self.closed_only:
            limit = np.where(closed, limit, 0)
        return np.asarray(limit, np.int64)

    @property
    def words(self) -> str:
        """Returns what this kind is, for an error's sentence."""
        if self.period == _WHOLE:
            return f"whole episodes of at most {self.max_steps:,} steps"
        closed = " in closed episodes" if self.closed_only else ""
        if self.rest is Rest.ALL:
            return f"transitions of up to {max(self.span, 1):,} steps{closed}"
        rest = "" if self.rest is Rest.NONE else " and what is left"
        return f"sequences of {self.length:,} steps every {self.period:,}{rest}, complete at {self.span:,}{closed}"


STEPS = Kind()


def kind_of(what: Window, *, complete: bool = False) -> Kind:
    """Returns the kind of the items of `what`; `complete` for queues, which hand each out but once."""
    closed_only = what.her is not None and not what.her.open_episodes
    if isinstance(what, Transitions):
        return Kind(closed_only=closed_only, span=what.n_step if complete else 0)
    if isinstance(what, Episodes):
        return Kind(period=_WHOLE, closed_only=closed_only or complete or not what.open_episodes, max_steps=what.max_steps)
    assert what.period is not None
    rest = Rest.NONE if what.at_end is AtEnd.DROP else Rest.ONE
    span = what.length + what.n_step - 1 if complete else 0
    return Kind(length=what.length, period=what.period, rest=rest, closed_only=closed_only, span=span)


class Changed(NamedTuple):
    """Anchors (positions) that became items, and that are items no more; each in no particular order."""

    added: Array
    removed: Array


class ItemSet:
    """The items of one kind in a table."""

    def __init__(self, kind: Kind, index: TableIndex) -> None:
        self.kind, self._index = kind, index
        self._counts = SumTree()  # by chunk row
        self._episodes: SumTree | None = None  # by episode id, 1 where it has items; made when first asked for
        chunks = index.chunks
        self._counts.grow(chunks.end, start=chunks.base)
        if len(chunks):
            rows = np.arange(chunks.base, chunks.end)
            self._counts.set_range(chunks.base, chunks.end, self._ranges(rows)[1].astype(np.float64))

    @property
    def size(self) -> int:
        """Returns how many items there are."""
        return int(self._counts.total)

    def select(self, ranks: Array) -> Array:
        """Returns the positions of the items with these ranks, 0 the oldest chunk's first."""
        rows, rests = self._counts.find(np.asarray(ranks, np.float64))
        first, _ = self._ranges(rows)
        return self._position(rows, first + np.asarray(rests, np.int64))

    def holds(self, positions: Array) -> Array:
        """Returns bool: which of these stored positions are items."""
        rows = self._index.row_of(positions)
        chunks, period = self._index.chunks, self.kind.period
        at = rows - chunks.base
        step = chunks["first_step"][at] + positions - chunks["position"][at]
        begin, count = self._ranges(rows)
        number = step // period
        return np.asarray((step % period == 0) & (number >= begin) & (number < begin + count))

    def positions(self) -> Array:
        """Returns all items' positions, oldest first. O(items)."""
        return self.select(np.arange(self.size))

    def since(self, head: int) -> Array:
        """Returns the positions of the items that became such by what was added from position `head` on."""
        index, chunks = self._index, self._index.chunks
        new = np.flatnonzero(chunks["position"] >= head)
        if not new.size:
            return np.empty(0, np.int64)
        ids, of = np.unique(chunks["episode_id"][new], return_inverse=True)
        before = np.full(len(ids), np.iinfo(np.int64).max)
        np.minimum.at(before, of, chunks["first_step"][new])
        limits = self.kind.limit(before, np.zeros(len(ids), np.bool_))
        rows = np.flatnonzero(np.isin(chunks["episode_id"], ids)) + chunks.base
        first, count = self._ranges(rows)
        positions = self._expand(rows, first, np.zeros_like(count), count)
        at = index.row_of(positions) - chunks.base
        steps = chunks["first_step"][at] + positions - chunks["position"][at]
        fresh: Array = positions[steps >= limits[np.searchsorted(ids, chunks["episode_id"][at])]]
        return fresh

    def draw_by_episode(self, rng: np.random.Generator, count: int) -> Drawn:
        """Draws episodes uniformly among those with items, then one of its items uniformly."""
        index, kind = self._index, self.kind
        if self._episodes is None:
            self._episodes = SumTree()
            self._count_episodes(index.episode_ids())
        episodes = int(self._episodes.total)
        ids, _ = self._episodes.find(rng.integers(0, episodes, count).astype(np.float64))
        low, high = self._episode_range(ids)
        numbers = low + np.floor(rng.random(count) * (high - low)).astype(np.int64)
        steps = numbers * kind.period
        rows = index.locate(ids, steps)
        chunks = index.chunks
        at = np.maximum(rows - chunks.base, 0)
        positions = np.where(rows >= 0, chunks["position"][at] + steps - chunks["first_step"][at], NONE)
        return Drawn(positions, 1.0 / (episodes * (high - low)))

    # -- keeping up ---------------------------------------------------------------------------------------------------

    def add(self, added: Added) -> Changed:
        """Takes in what an append added; anchors in older chunks of its episodes may have become items, too."""
        index = self._index
        self._counts.grow(index.chunks.end, start=index.chunks.base)
        older = self._older_rows(added) if self._reaches_back else np.empty(0, np.int64)
        changed = self._recount(np.concatenate((older, np.arange(added.rows.start, added.rows.stop))))
        if self._episodes is not None:
            self._count_episodes(added.episode_ids)
        return changed

    def trim(self, touched: Array) -> None:
        """Forgets what was removed at the old end; `touched`: ids of the episodes that lost steps."""
        base = self._index.chunks.base
        self._counts.remove_before(base)
        if len(self._index.chunks):
            self._recount(np.array([base]))
        if self._episodes is not None:
            self._count_episodes(touched)

    def take_out(self, rows: Array, touched: Array) -> Array:
        """Forgets chunks that cannot be drawn any more; returns the positions of their items."""
        removed = self._recount(rows).removed
        if self._episodes is not None:
            self._count_episodes(touched)
        return removed

    @property
    def _reaches_back(self) -> bool:
        return self.kind != STEPS

    def _older_rows(self, added: Added) -> Array:
        """Returns the chunks, older than what was added, in which anchors may have become items, or are none any more."""
        index, chunks = self._index, self._index.chunks
        base = chunks.base
        known = added.lengths > 0
        ids, lengths = added.episode_ids[known], added.lengths[known]
        if not ids.size:
            return np.empty(0, np.int64)
        first_row, _, closed = index.episode_state(ids)
        if self.kind.max_steps:
            return first_row[(first_row >= base) & (first_row < added.rows.start)]
        before = self.kind.limit(lengths, np.zeros(len(ids), np.bool_))  # an episode that gets steps was open
        wanted = closed | ~np.bool_(self.kind.closed_only)
        ids, before = ids[wanted], before[wanted]
        row = index.locate(ids, lengths[wanted] - 1)
        deepest = int(chunks["depth"][row[row >= base] - base].max(initial=0))
        if self.kind.closed_only and deepest > _MANY_CHUNKS:
            old = chunks["episode_id"][: added.rows.start - base]
            return np.flatnonzero(np.isin(old, ids)) + base
        found: list[Array] = []
        while True:
            live = np.flatnonzero(row >= base)
            row, before = row[live], before[live]
            at = row - base
            reached = chunks["first_step"][at] + chunks["n_steps"][at] > before
            row, before = row[reached], before[reached]
            if not row.size:
                return np.concatenate(found) if found else np.empty(0, np.int64)
            found.append(row)
            row = chunks["prev_row"][row - base]

    def _recount(self, rows: Array) -> Changed:
        """Counts the items of chunks again and says which came and went."""
        old = self._counts.get(rows).astype(np.int64)
        first, new = self._ranges(rows)
        different = np.flatnonzero(old != new)
        if not different.size:
            return Changed(np.empty(0, np.int64), np.empty(0, np.int64))
        rows, first, old, new = rows[different], first[different], old[different], new[different]
        self._counts.set(rows, new.astype(np.float64))
        return Changed(self._expand(rows, first, old, new), self._expand(rows, first, new, old))

    def _expand(self, rows: Array, first: Array, start: Array, stop: Array) -> Array:
        """Returns the positions of the anchors with numbers [start, stop) in each chunk."""
        counts = np.maximum(stop - start, 0)
        which = np.repeat(np.arange(len(rows)), counts)
        number = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts) + start[which]
        return self._position(rows[which], first[which] + number)

    def _position(self, rows: Array, numbers: Array) -> Array:
        """Returns the positions of anchors, counted in their episode, that lie in chunk `rows`."""
        chunks = self._index.chunks
        at = rows - chunks.base
        return np.asarray(chunks["position"][at] + numbers * self.kind.period - chunks["first_step"][at])

    def _ranges(self, rows: Array) -> tuple[Array, Array]:
        """Returns of chunks the number, within its episode, of the first anchor that is stored, and how many are items."""
        chunks, period = self._index.chunks, self.kind.period
        at = rows - chunks.base
        first, n_steps, position = chunks["first_step"][at], chunks["n_steps"][at], chunks["position"][at]
        _, length, closed = self._index.episode_state(chunks["episode_id"][at])
        low = first + np.maximum(self._index.tail - position, 0)
        high = np.minimum(first + n_steps, self.kind.limit(length, closed))
        begin = -(-low // period)
        end = -(-high // period)
        return begin, np.where((chunks["flags"][at] & DEAD) == 0, np.maximum(end - begin, 0), 0)

    def _episode_range(self, ids: Array) -> tuple[Array, Array]:
        """Returns the numbers [low, high) of the anchors of episodes that are items; a lost chunk between is not looked for."""
        index, chunks, period = self._index, self._index.chunks, self.kind.period
        first_row, length, closed = index.episode_state(ids)
        stored = first_row >= chunks.base
        at = np.where(stored, first_row - chunks.base, 0)
        first = chunks["first_step"][at] + np.maximum(index.tail - chunks["position"][at], 0)
        low, high = -(-first // period), -(-self.kind.limit(length, closed) // period)
        return low, np.where(stored, np.maximum(high, low), low)

    def _count_episodes(self, ids: Array) -> None:
        assert self._episodes is not None
        if not ids.size:
            return
        self._episodes.grow(int(ids.max()) + 1, start=int(ids.min()))
        low, high = self._episode_range(ids)
        self._episodes.set(ids, (high > low).astype(np.float64))


class StepSet:
    """The items that are all steps: what an ItemSet of STEPS would be, without a tree."""

    def __init__(self, index: TableIndex) -> None:
        self.kind = STEPS
        self._runs = Runs()
        for start, stop in index.runs():
            self._runs.insert(start, stop)
        self._runs.remove(0, index.tail)

    @property
    def size(self) -> int:
        """Returns how many steps there are."""
        return self._runs.size

    def select(self, ranks: Array) -> Array:
        """Returns the positions of the steps with these ranks, 0 the oldest."""
        return self._runs.select(ranks)

    def insert(self, start: int, stop: int) -> None:
        """Takes in the steps at positions [start, stop)."""
        self._runs.insert(start, stop)

    def remove(self, start: int, stop: int) -> None:
        """Forgets the steps at positions [start, stop), wherever they stand."""
        self._runs.remove(start, stop)

    def remove_before(self, position: int) -> None:
        """Forgets the steps before a position."""
        self._runs.remove(0, position)
