"""Windows: index ranges inside one episode, resolved to chunks, for a whole batch at once.

A window starts at an anchor step and runs forward through the chunks of its episode, along the `next_row` links, or backward
along `prev_row`. It is clipped where the episode ends, or where what is stored of it ends; so it can never cross into another
episode.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from replaysvc.types import Array


@dataclass(frozen=True)
class Windows:
    """B windows of up to L steps, each as the K runs of steps that it takes from one chunk after the other.

    runs: int64 [B, K], the chunk (index row) of each run. firsts: int64 [B, K], the place in it of the run's first step.
    taken: int64 [B, K], its steps; where a window has fewer runs, those after the last are of no steps, and stand behind it.
    counts: int64 [B], steps really in each window, >= 1.
    end_row, end_offset: int64 [B], of the last step; the observation after it is the next row of the same chunk.
    length: L.
    """

    runs: Array
    firsts: Array
    taken: Array
    counts: Array
    end_row: Array
    end_offset: Array
    length: int

    @property
    def rows(self) -> Array:
        """Returns int64 [B, L], the chunk of each step; where a window is shorter than L the anchor is repeated, so that every
        entry can be gathered."""
        return self._each[0]

    @property
    def offsets(self) -> Array:
        """Returns int64 [B, L], the place of each step in its chunk; as for `rows`."""
        return self._each[1]

    @cached_property
    def _each(self) -> tuple[Array, Array]:
        if self.length == 1:
            return self.runs[:, :1], self.firsts[:, :1]
        taken = self.taken.ravel()
        shift = self.firsts.ravel() - (np.cumsum(taken) - taken)
        flat_rows = np.repeat(self.runs.ravel(), taken)
        flat_offsets = np.arange(len(flat_rows)) + np.repeat(shift, taken)
        shape = len(self.counts), self.length
        if len(flat_rows) == shape[0] * shape[1]:
            return flat_rows.reshape(shape), flat_offsets.reshape(shape)
        inside = self.steps()
        rows = np.repeat(self.runs[:, :1], self.length, axis=1)
        offsets = np.repeat(self.firsts[:, :1], self.length, axis=1)
        rows[inside], offsets[inside] = flat_rows, flat_offsets
        return rows, offsets

    def steps(self) -> Array:
        """Returns bool [B, L]: which entries are steps of their window."""
        return np.asarray(np.arange(self.length) < self.counts[:, None])

    def observations(self) -> tuple[Array, Array]:
        """Returns (rows, offsets), int64 [B, L + 1]: of each step's observation, then the one after the last step, repeated."""
        count, length = self.rows.shape
        rows, offsets = np.empty((count, length + 1), np.int64), np.empty((count, length + 1), np.int64)
        rows[:, :-1], offsets[:, :-1] = self.rows, self.offsets
        rows[:, -1], offsets[:, -1] = self.end_row, self.end_offset + 1
        if (self.counts < length).any():
            past = np.arange(length + 1) >= self.counts[:, None]
            rows, offsets = np.where(past, self.end_row[:, None], rows), np.where(past, self.end_offset[:, None] + 1, offsets)
        return rows, offsets

    def spread(self, values: Array) -> Array:
        """Returns `values` [B, K], one a run, as [B, L + 1]: for each step, and the observation after the last one."""
        if values.shape[1] == 1:
            return np.repeat(values, self.length + 1, axis=1)
        times = self.taken.copy()
        times[:, -1] += self.length + 1 - self.counts  # of a run that ends there, or of none and stands behind the end
        return np.repeat(values.ravel(), times.ravel()).reshape(len(values), self.length + 1)

    def places(self, begins: Array) -> tuple[Array, Array]:
        """Returns where steps, [B, L], and observations with the one after the last, [B, L + 1], stand in an array that holds
        each run's chunk from `begins` [B, K] on. Past the end of a window, those of the end are repeated."""
        found = self.spread(begins + self.firsts - (np.cumsum(self.taken, axis=1) - self.taken))
        time = np.arange(self.length + 1)
        if int(self.counts.min(initial=self.length)) == self.length:
            found += time
            return found[:, :-1], found
        return found[:, :-1] + np.minimum(time[:-1], self.counts[:, None] - 1), found + np.minimum(time, self.counts[:, None])

    def part(self, start: int, stop: int) -> "Windows":
        """Returns windows [start, stop)."""
        parts = (self.runs, self.firsts, self.taken, self.counts, self.end_row, self.end_offset)
        runs, firsts, taken, counts, end_row, end_offset = (array[start:stop] for array in parts)
        return Windows(runs, firsts, taken, counts, end_row, end_offset, self.length)

    def cut(self, counts: Array) -> "Windows":
        """Returns the windows with only their first `counts` steps, 1 <= counts <= self.counts."""
        before = np.cumsum(self.taken, axis=1) - self.taken
        taken = np.clip(counts[:, None] - before, 0, self.taken)
        at = np.arange(len(counts)), np.count_nonzero(taken, axis=1) - 1
        end_row, end_offset = self.runs[at], self.firsts[at] + taken[at] - 1
        runs = np.where(taken > 0, self.runs, end_row[:, None])
        firsts = np.where(taken > 0, self.firsts, end_offset[:, None] + 1)
        return Windows(runs, firsts, taken, counts, end_row, end_offset, self.length)

    def until(self, length: int) -> "Windows":
        """Returns the windows with their first `length` steps, 1 <= length <= self.length, or as many as there are."""
        return replace(self.cut(np.minimum(self.counts, length)), length=length)


@dataclass(frozen=True, slots=True)
class Frames:
    """The K observations up to and including one, of B windows, oldest first.

    rows, offsets: int64 [B, K]; before the episode's first observation, that one is repeated. missing: int64 [B], how many are
    so. broken: bool [B], where observations are missing though the episode did not begin there: they were removed or lost.
    """

    rows: Array
    offsets: Array
    missing: Array
    broken: Array

    def part(self, start: int, stop: int) -> "Frames":
        """Returns those of windows [start, stop)."""
        return Frames(*(array[start:stop] for array in (self.rows, self.offsets, self.missing, self.broken)))

    def padded(self) -> Array:
        """Returns bool [B, K]: which entries stand before the episode's first observation."""
        return np.asarray(np.arange(self.rows.shape[1]) < self.missing[:, None])


def past_ends(counts: Array, length: int) -> Array:
    """Returns the numbers, among B * length entries, of those that are past the end of windows of `counts` [B] steps."""
    short = np.flatnonzero(counts < length)  # few, as a rule
    which, time = np.nonzero(np.arange(length) >= counts[short, None])
    numbers: Array = short[which] * length + time
    return numbers


def resolve_forward(row: Array, offset: Array, length: int, n_steps: Array, next_row: Array, base: int) -> Windows:
    """Returns the windows of up to `length` steps that start at `offset` within chunk `row` (int64 [B] each).

    n_steps, next_row: per chunk, its steps and the row of its successor in the same episode (-1: none stored); their
    entry i is chunk row `base` + i.
    Cost: O(B) for each chunk boundary that the longest window crosses.
    """
    if length == 1:
        counts = np.ones_like(row)
        return Windows(row[:, None], offset[:, None], counts[:, None], counts, row, offset, 1)
    counts = np.minimum(n_steps[row - base] - offset, length)
    end_row, end_offset = row, offset + counts - 1
    runs, firsts, taken = [row], [offset], [counts.copy()]
    going = np.flatnonzero(counts < length)
    while going.size:
        entered = next_row[end_row[going] - base]
        follows = entered >= 0
        if not follows.all():
            going, entered = going[follows], entered[follows]
            if not going.size:
                break
        more = np.minimum(n_steps[entered - base], length - counts[going])
        first, steps, end_row, end_offset = end_offset + 1, np.zeros_like(counts), end_row.copy(), end_offset.copy()
        first[going], steps[going], end_row[going], end_offset[going] = 0, more, entered, more - 1
        counts[going] += more
        going = going[counts[going] < length]
        runs.append(end_row)
        firsts.append(first)
        taken.append(steps)
    in_order = (np.concatenate(parts).reshape(len(parts), len(row)).T for parts in (runs, firsts, taken))
    all_runs, all_firsts, all_taken = in_order
    return Windows(all_runs, all_firsts, all_taken, counts, end_row, end_offset, length)


def resolve_backward(
    row: Array, offset: Array, count: int, n_steps: Array, first_step: Array, prev_row: Array, base: int
) -> Frames:
    """Returns the `count` observations that end with row `offset` of chunk `row` (int64 [B] each).

    n_steps, first_step, prev_row: per chunk, its steps, the step that its first is, and its predecessor's row (< base: none
    stored); their entry i is chunk row `base` + i.
    """
    rows = np.repeat(row[:, None], count, axis=1)
    offsets = offset[:, None] - (count - 1) + np.arange(count)
    before = offsets < 0
    while before.any():
        items, places = np.nonzero(before)
        previous = prev_row[rows[items, places] - base]
        stored = previous >= base
        before[items[~stored], places[~stored]] = False  # and their offsets stay negative
        items, places, previous = items[stored], places[stored], previous[stored]
        rows[items, places] = previous
        offsets[items, places] += n_steps[previous - base]
        before[items, places] = offsets[items, places] < 0
    absent = offsets < 0
    missing = absent.sum(axis=1)
    broken = (missing > 0) & (first_step[rows[:, 0] - base] > 0)
    first = rows[:, :1]  # the chunk that the way back ended in, in all absent entries
    return Frames(np.where(absent, first, rows), np.where(absent, 0, offsets), missing, broken)
