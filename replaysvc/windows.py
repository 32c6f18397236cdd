"""Windows: index ranges inside one episode, resolved to chunks, for a whole batch at once.

A window starts at an anchor step and runs forward through the chunks of its episode, along the `next_row` links, or backward
along `prev_row`. It is clipped where the episode ends, or where what is stored of it ends; so it can never cross into another
episode.
"""

from dataclasses import dataclass

import numpy as np

from replaysvc.types import Array


@dataclass(frozen=True, slots=True)
class Windows:
    """B windows of up to L steps.

    rows, offsets: int64 [B, L], the chunk (index row) and the place in it of each step; where a window is shorter than L
      the anchor is repeated, so that every entry can be gathered. counts: int64 [B], steps really in each window, >= 1.
    end_row, end_offset: int64 [B], of the last step; the observation after it is the next row of the same chunk.
    """

    rows: Array
    offsets: Array
    counts: Array
    end_row: Array
    end_offset: Array

    def steps(self) -> Array:
        """Returns bool [B, L]: which entries are steps of their window."""
        return np.asarray(np.arange(self.rows.shape[1]) < self.counts[:, None])

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

    def part(self, start: int, stop: int) -> "Windows":
        """Returns windows [start, stop)."""
        parts = (self.rows, self.offsets, self.counts, self.end_row, self.end_offset)
        return Windows(*(array[start:stop] for array in parts))

    def cut(self, counts: Array) -> "Windows":
        """Returns the windows with only their first `counts` steps, 1 <= counts <= self.counts."""
        at = np.arange(len(counts)), counts - 1
        return Windows(self.rows, self.offsets, counts, self.rows[at], self.offsets[at])


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


def resolve_forward(row: Array, offset: Array, length: int, n_steps: Array, next_row: Array, base: int) -> Windows:
    """Returns the windows of up to `length` steps that start at `offset` within chunk `row` (int64 [B] each).

    n_steps, next_row: per chunk, its steps and the row of its successor in the same episode (-1: none stored); their
    entry i is chunk row `base` + i.
    Cost: O(B * length), and O(B) for each chunk boundary that the longest window crosses.
    """
    if length == 1:
        return Windows(row[:, None], offset[:, None], np.ones_like(row), row, offset)
    counts = np.minimum(n_steps[row - base] - offset, length)
    end_row, end_offset = row, offset + counts - 1
    # each window as the runs of steps that it takes from one chunk after the other, which need no look at single steps
    runs, taken = [row], [counts]
    while True:
        successor = next_row[end_row - base]
        going = np.flatnonzero((counts < length) & (successor >= 0))
        if not going.size:
            break
        entered = successor[going]
        more = np.zeros_like(counts)
        more[going] = np.minimum(n_steps[entered - base], length - counts[going])
        end_row = end_row.copy()
        end_row[going] = entered
        end_offset = np.where(more > 0, more - 1, end_offset)
        counts = counts + more
        runs.append(end_row)
        taken.append(more)
    each = np.stack(taken, axis=1)
    first = np.zeros_like(each)
    first[:, 0] = offset
    shift = first.ravel() - (np.cumsum(each.ravel()) - each.ravel())
    flat_rows = np.repeat(np.stack(runs, axis=1).ravel(), each.ravel())
    flat_offsets = np.arange(len(flat_rows)) + np.repeat(shift, each.ravel())
    if len(flat_rows) == len(row) * length:
        shape = len(row), length
        return Windows(flat_rows.reshape(shape), flat_offsets.reshape(shape), counts, end_row, end_offset)
    inside = np.arange(length) < counts[:, None]
    rows = np.repeat(row[:, None], length, axis=1)
    offsets = np.repeat(offset[:, None], length, axis=1)
    rows[inside], offsets[inside] = flat_rows, flat_offsets
    return Windows(rows, offsets, counts, end_row, end_offset)


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
