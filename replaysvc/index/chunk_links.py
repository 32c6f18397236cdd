"""Links between the chunks of an episode, by which any step is found in O(log chunks), for a whole batch at once.

Each chunk knows its predecessor, and one chunk further back: the jump pointers of Myers (1983, "An applicative random-access
stack"). The chunk at depth d (chunks before it in an unbroken run) jumps over as many chunks as the lowest digit of d in
skew-binary says, so links never change once they are made, whatever is appended or removed later. The first of a run jumps to
itself.
"""

import numpy as np

from replaysvc.types import Array

NONE = -1


def jump_lengths(depth: Array) -> Array:
    """Returns int64: over how many chunks the chunk at each `depth` (int64, >= 0) jumps back; 0 at depth 0."""
    rest = np.asarray(depth, np.int64).copy()
    lengths = np.zeros(rest.shape, np.int64)
    top = int(rest.max()).bit_length() if rest.size else 0
    for power in range(top, 0, -1):
        weight = (1 << power) - 1
        digit = np.minimum(rest // weight, 2)
        rest -= digit * weight
        lengths = np.where(digit > 0, weight, lengths)
    return lengths


def find_depth(row: Array, wanted: Array, depth: Array, prev_row: Array, jump_row: Array, base: int) -> Array:
    """Returns the ancestors of `row` (int64 [B]) at depths `wanted`; rows below `base` where those are removed."""
    row = row.copy()
    while True:
        going = np.flatnonzero((row >= base) & (depth[np.maximum(row, base) - base] > wanted))
        if not going.size:
            return row
        at = row[going] - base
        jump = jump_row[at]
        known = jump >= base
        far = known & (jump < row[going]) & (depth[np.where(known, jump, base) - base] >= wanted[going])
        row[going] = np.where(far, jump, prev_row[at])


def find_step(row: Array, step: Array, first_step: Array, prev_row: Array, jump_row: Array, base: int) -> Array:
    """Returns, of each `row` (int64 [B], the last of an episode) and its ancestors, the one that begins at or before `step`.

    NONE where that one is not linked or not stored any more.
    """
    row = row.copy()
    while True:
        going = np.flatnonzero((row >= base) & (first_step[np.maximum(row, base) - base] > step))
        if not going.size:
            return np.where(row >= base, row, NONE)
        at = row[going] - base
        jump = jump_row[at]
        known = jump >= base
        far = known & (jump < row[going]) & (first_step[np.where(known, jump, base) - base] > step[going])
        row[going] = np.where(far, jump, prev_row[at])
