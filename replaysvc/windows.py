"""Windows: index ranges inside one episode, resolved to chunks, for a whole batch at once.

A window starts at an anchor step and runs forward through the chunks of its episode, along the `next_row` links. It is
clipped where the episode ends, or where what is stored of it ends; so it can never cross into another episode.
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


def resolve_forward(row: Array, offset: Array, length: int, n_steps: Array, next_row: Array, base: int) -> Windows:
    """Returns the windows of up to `length` steps that start at `offset` within chunk `row` (int64 [B] each).

    n_steps, next_row: per chunk, its steps and the row of its successor in the same episode (-1: none stored); their
    entry i is chunk row `base` + i.
    Cost: O(B * length) for each chunk boundary that the longest window crosses.
    """
    counts = np.minimum(n_steps[row - base] - offset, length)
    end_row, end_offset = row, offset + counts - 1
    if length == 1:
        return Windows(row[:, None], offset[:, None], counts, end_row, end_offset)
    place = np.arange(length)
    rows = np.repeat(row[:, None], length, axis=1)
    offsets = np.where(place < counts[:, None], offset[:, None] + place, offset[:, None])
    while True:
        successor = next_row[end_row - base]
        going = np.flatnonzero((counts < length) & (successor >= 0))
        if not going.size:
            return Windows(rows, offsets, counts, end_row, end_offset)
        entered = successor[going]
        begun = counts[going]
        taken = np.minimum(n_steps[entered - base], length - begun)
        inside = (place >= begun[:, None]) & (place < (begun + taken)[:, None])
        rows[going] = np.where(inside, entered[:, None], rows[going])
        offsets[going] = np.where(inside, place - begun[:, None], offsets[going])
        counts = counts.copy()
        counts[going] += taken
        end_row, end_offset = end_row.copy(), end_offset.copy()
        end_row[going], end_offset[going] = entered, taken - 1
