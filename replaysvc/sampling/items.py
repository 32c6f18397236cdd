"""Which items a request can draw, kept up to date as steps come and go: the anchors of transitions, sequences and episodes.

The anchors in a chunk are always a run of multiples of a period, so a set of items is one count a chunk. A tally of the counts
finds the r-th item in O(log chunks); its total is the number of items, exactly. Not thread-safe: the table's lock is held
around every call.
"""

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from replaysvc.index.chunk_links import NONE
from replaysvc.index.episode_records import end_number
from replaysvc.index.table_index import DEAD, Added, TableIndex
from replaysvc.requests import AtEnd, Episodes, Stack, Transitions, Window
from replaysvc.selectors import Drawn, SumTree, Tally
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
    is closed (0: at once). max_steps: only in episodes of at most so many steps, wholly stored (0: any). back: only with so
    many steps before the anchor stored, or all from the episode's start, for stacks.
    """

    length: int = 1
    period: int = 1
    rest: Rest = Rest.ALL
    closed_only: bool = False
    span: int = 0
    max_steps: int = 0
    back: int = 0

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
    def whole_stacks(self) -> bool:
        """Returns whether these are all steps but those whose stacks are cut."""
        return self.back > 0 and self == Kind(back=self.back)

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


@lru_cache(maxsize=256)  # learners ask for the same again and again
def kind_of(what: Window, *, complete: bool = False) -> Kind:
    """Returns the kind of the items of `what`; `complete` for queues, which hand each out but once."""
    closed_only = what.her is not None and not what.her.open_episodes
    assert isinstance(what.stack, Stack)
    back = what.stack.frames - 1
    if isinstance(what, Transitions):
        kind = Kind(closed_only=closed_only, span=what.n_step if complete else 0, back=back)
        return STEPS if kind == STEPS else kind
    if isinstance(what, Episodes):
        return Kind(period=_WHOLE, closed_only=closed_only or complete or not what.open_episodes, max_steps=what.max_steps)
    assert what.period is not None
    rest = Rest.NONE if what.at_end is AtEnd.DROP else Rest.ONE
    span = what.length + what.n_step - 1 if complete else 0
    return Kind(length=what.length, period=what.period, rest=rest, closed_only=closed_only, span=span, back=back)


class Changed(NamedTuple):
    """Anchors (positions) that became items, and that are items no more; each in no particular order."""

    added: Array
    removed: Array


class ItemSet:
    """The items of one kind in a table."""

    def __init__(self, kind: Kind, index: TableIndex) -> None:
        self.kind, self._index = kind, index
        self._counts = Tally(index.chunks.base)  # by chunk row
        self._episodes: SumTree | None = None  # by episode id, 1 where it has items; made when first asked for
        chunks = index.chunks
        self._counts.grow(chunks.end)
        if len(chunks):
            rows = np.arange(chunks.base, chunks.end)
            self._counts.set(rows, self._ranges(rows)[1])

    @property
    def size(self) -> int:
        """Returns how many items there are."""
        return self._counts.total

    @property
    def counts_episodes(self) -> bool:
        """Returns whether `draw_by_episode` was called."""
        return self._episodes is not None

    def select(self, ranks: Array) -> Array:
        """Returns the positions of the items with these ranks, 0 the oldest chunk's first."""
        rows, rests = self._counts.find(ranks)
        return self._position(rows, self._begin(rows) + rests)

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
        return self.select(np.arange(self.size)) if self.size else np.empty(0, np.int64)

    def by_completion(self, positions: Array) -> Array:
        """Returns items in the order in which they became complete: by the step that completed each, then by themselves."""
        if not positions.size:
            return positions
        index, chunks = self._index, self._index.chunks
        at = index.row_of(positions) - chunks.base
        ids = chunks["episode_id"][at]
        _, length, _ = index.episode_state(ids)
        last, by_end = length - 1, np.ones(len(ids), np.bool_)
        if self.kind.span and not self.kind.closed_only:
            last = chunks["first_step"][at] + positions - chunks["position"][at] + self.kind.span - 1
            by_end = last >= length
            last = np.minimum(last, length - 1)
        row = index.locate(ids, last)
        found = np.where(row >= chunks.base, row - chunks.base, at)
        when = end_number(chunks["position"][found] + last - chunks["first_step"][found] + 1) - 1
        if index.lost:
            ended = np.array(sorted(index.lost.items()), np.int64)
            place = np.minimum(np.searchsorted(ended[:, 0], ids), len(ended) - 1)
            by_end &= ended[place, 0] == ids
            when = np.where(by_end, ended[place, 1], when)  # what its service ended is complete since then
        return positions[np.lexsort((positions, when))]

    def since(self, head: int, ends: int) -> Array:
        """Returns the positions of the items that became such by what was added from position `head` on.

        `ends`: and by the ends of lost episodes from this number on.
        """
        index, chunks = self._index, self._index.chunks
        new = np.flatnonzero(chunks["position"] >= head)
        ids, of = np.unique(chunks["episode_id"][new], return_inverse=True)
        before = np.full(len(ids), np.iinfo(np.int64).max)
        np.minimum.at(before, of, chunks["first_step"][new])
        ended = np.array([number for number, end in index.lost.items() if end >= ends], np.int64)
        ended = np.setdiff1d(ended, ids)
        ids, before = np.concatenate((ids, ended)), np.concatenate((before, index.episode_state(ended)[1]))
        order = np.argsort(ids)
        ids, before = ids[order], before[order]
        if not ids.size:
            return np.empty(0, np.int64)
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
        self._counts.grow(index.chunks.end)
        older = self._older_rows(added) if self._reaches_back else np.empty(0, np.int64)
        changed = self._recount(np.concatenate((older, np.arange(added.rows.start, added.rows.stop))), grows=True)
        if self._episodes is not None:
            self._count_episodes(added.episode_ids)
        return changed

    def trim(self, touched: Array) -> Array:
        """Forgets what was removed at the old end; `touched`: ids of the episodes that lost steps.

        Returns the positions of stored steps that are items no more.
        """
        index, base = self._index, self._index.chunks.base
        self._counts.remove_before(base)
        removed = np.empty(0, np.int64)
        if len(index.chunks):
            rows = np.array([base])
            if self.kind.back:
                first_row, _, _ = index.episode_state(touched)
                left = first_row >= base
                rows = np.union1d(rows, self._rows_from(touched[left], index.first_live_step(first_row[left])))
            removed = self._recount(rows, grows=False).removed
        if self._episodes is not None:
            self._count_episodes(touched)
        return removed[removed >= index.tail]

    def take_out(self, rows: Array, touched: Array) -> Array:
        """Forgets chunks that cannot be drawn any more; returns the positions that are items no more."""
        if self.kind.back and rows.size:
            chunks = self._index.chunks
            at = rows - chunks.base
            after = self._rows_from(chunks["episode_id"][at], chunks["first_step"][at] + chunks["n_steps"][at])
            rows = np.union1d(rows, after)
        removed = self._recount(rows, grows=False).removed
        if self._episodes is not None:
            self._count_episodes(touched)
        return removed

    def _rows_from(self, ids: Array, steps: Array) -> Array:
        """Returns the chunks of episodes in which a stack may need what stands before these steps."""
        index, chunks = self._index, self._index.chunks
        found: list[Array] = []
        row, end = index.locate(ids, steps), steps + self.kind.back
        while True:
            going = (row >= chunks.base) & (chunks["first_step"][np.maximum(row - chunks.base, 0)] < end)
            row, end = row[going], end[going]
            if not row.size:
                return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)
            found.append(row)
            row = chunks["next_row"][row - chunks.base]

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

    def _recount(self, rows: Array, *, grows: bool) -> Changed:
        """Counts the items of chunks again; what came or went did so at the end if the table `grows`, else at the start."""
        old = self._counts.get(rows)
        first, new = self._ranges(rows)
        different = np.flatnonzero(old != new)
        if not different.size:
            return Changed(np.empty(0, np.int64), np.empty(0, np.int64))
        rows, first, old, new = rows[different], first[different], old[different], new[different]
        self._counts.set(rows, new)
        if grows:
            return Changed(self._expand(rows, first, old, new), self._expand(rows, first, new, old))
        end = self._end(rows)
        return Changed(np.empty(0, np.int64), self._expand(rows, end, -old, -new))

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
        begin, end = self._begin(rows), self._end(rows)
        live = (self._index.chunks["flags"][rows - self._index.chunks.base] & DEAD) == 0
        return begin, np.where(live, np.maximum(end - begin, 0), 0)

    def _begin(self, rows: Array) -> Array:
        """Returns of chunks the number, within its episode, of the first anchor that is stored."""
        index, chunks = self._index, self._index.chunks
        at = rows - chunks.base
        low: Array = chunks["first_step"][at]
        if rows.size and index.tail > chunks["position"][0]:  # of the oldest chunk a part is removed
            low += np.maximum(index.tail - chunks["position"][at], 0)
        if self.kind.back:
            low = np.maximum(low, self._first_stackable(at))
        begin: Array = -(-low // self.kind.period)
        return begin

    def _end(self, rows: Array) -> Array:
        """Returns of chunks the number, within its episode, of the anchor after the last item."""
        chunks = self._index.chunks
        at = rows - chunks.base
        _, length, closed = self._index.episode_state(chunks["episode_id"][at])
        high = np.minimum(chunks["first_step"][at] + chunks["n_steps"][at], self.kind.limit(length, closed))
        end: Array = -(-high // self.kind.period)
        return end

    def _first_stackable(self, at: Array) -> Array:
        """Returns of chunks (entries of the index) the first step that has `back` steps, or its whole episode, before it."""
        chunks, tail, back = self._index.chunks, self._index.tail, self.kind.back
        begin, cut = chunks["first_step"][at], chunks["position"][at] < tail
        begin = begin + np.where(cut, tail - chunks["position"][at], 0)  # from here on all is stored, as far as is known yet
        wanted = chunks["first_step"][at] - back
        row = np.where(cut | (begin <= 0), NONE, chunks["prev_row"][at])
        while True:
            going = np.flatnonzero((row >= chunks.base) & (begin > wanted))
            if not going.size:
                return np.where(begin == 0, 0, begin + back)
            before = row[going] - chunks.base
            removed = np.maximum(tail - chunks["position"][before], 0)
            begin[going] = chunks["first_step"][before] + np.minimum(removed, chunks["n_steps"][before])
            row[going] = np.where(removed > 0, NONE, chunks["prev_row"][before])

    def _episode_range(self, ids: Array) -> tuple[Array, Array]:
        """Returns the numbers [low, high) of the anchors of episodes that are items; a lost chunk between is not looked for."""
        index, chunks, period = self._index, self._index.chunks, self.kind.period
        first_row, length, closed = index.episode_state(ids)
        stored = first_row >= chunks.base
        at = np.where(stored, first_row - chunks.base, 0)
        first = chunks["first_step"][at] + np.maximum(index.tail - chunks["position"][at], 0)
        if self.kind.back:
            first = np.maximum(first, self._first_stackable(at))
        low, high = -(-first // period), -(-self.kind.limit(length, closed) // period)
        return low, np.where(stored, np.maximum(high, low), low)

    def _count_episodes(self, ids: Array) -> None:
        assert self._episodes is not None
        if not ids.size:
            return
        self._episodes.grow(int(ids.max()) + 1, start=int(ids.min()))
        low, high = self._episode_range(ids)
        self._episodes.set(ids, (high > low).astype(np.float64))
