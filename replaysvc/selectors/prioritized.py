"""In proportion to priority^alpha (Schaul et al. 2016); the tree holds the powers."""

import sys

import numpy as np

from replaysvc.errors import SpecMismatchError
from replaysvc.options import MAX_PRIORITY, PRIORITY_BOUND, Prioritized, WeightNorm
from replaysvc.selectors.drawn import Drawn
from replaysvc.selectors.sum_tree import SumTree, run_starts
from replaysvc.types import Array


class Priorities:
    """A table's priorities. A leaf is priority^alpha; with alpha 0, 1 where the priority is positive. Leaf 0: never drawn."""

    def __init__(self, options: Prioritized) -> None:
        self._alpha = options.alpha
        self.tree = SumTree(extremes=options.norm is WeightNorm.TABLE)

    def insert(self, start: int, stop: int, priorities: Array | None) -> None:
        """Takes in [start, stop) with `priorities`, float64 [stop - start]; None: the largest now in the table, else 1."""
        self.tree.set_range(start, stop, (self.tree.largest() or 1.0) if priorities is None else self.powers(priorities))

    def powers(self, priorities: Array) -> Array:
        """Returns the leaves of `priorities`, float64 [n], which are not checked. What is not 0 stays so, however small."""
        if self._alpha == 1:
            return priorities
        if self._alpha == 0:
            return (priorities > 0).astype(np.float64)
        return np.where(priorities > 0, np.maximum(priorities**self._alpha, sys.float_info.min), 0.0)

    def update(self, positions: Array, leaves: Array) -> None:
        """Sets the `leaves`, as `powers` returns them, of int64 `positions`, each once and in the table."""
        self.tree.set(positions, leaves)

    def restore(self, start: int, stop: int, leaves: Array | float) -> None:
        """Sets the `leaves` of [start, stop), as `leaves` returned them, float64 [stop - start] or one for all."""
        self.tree.set_range(start, stop, leaves)

    def remove_before(self, position: int) -> None:
        self.tree.remove_before(position)

    def remove(self, positions: Array) -> None:
        """Makes int64 `positions`, each once, as if they had never been."""
        self.tree.set(positions, np.zeros(len(positions)))

    def leaves(self, positions: Array) -> Array:
        """Returns float64 [n]; 0 for positions that are not in the table."""
        return self.tree.get(positions)

    def priorities_of(self, positions: Array) -> Array:
        """Returns float64 [n], as given but for rounding; with alpha 0, 1 for all that were positive."""
        return self.unpowered(self.leaves(positions))

    def unpowered(self, leaves: Array) -> Array:
        """Returns the priorities, float64 [n], of which these are the leaves; changes nothing."""
        return leaves if self._alpha in (0, 1) else leaves ** (1 / self._alpha)


def draw_prioritized(rng: np.random.Generator, count: int, tree: SumTree, batches: int = 1) -> Drawn:
    """Returns `count` draws as `batches` equal batches, one after the other. The total is positive.

    Each batch has one draw from each of as many equal strata of the total as it has draws, in random order.
    """
    total, size = tree.total, count // batches
    targets = (np.arange(size) + rng.random((batches, size))) * (total / size)
    keys, _, leaves = tree.find_leaves(targets.ravel())
    order = rng.permuted(np.arange(count).reshape(batches, size), axis=1).ravel()
    return Drawn(keys.take(order), leaves.take(order) / total)


def check_priorities(priorities: object, count: int) -> Array:
    """Returns `priorities` as a float64 array of its own, [count].

    Raises:
      SpecMismatchError: other than `count` numbers, or one that is NaN, negative, or above MAX_PRIORITY.
    """
    try:
        given = np.asarray(priorities)
    except ValueError:
        raise SpecMismatchError("priorities", f"{count} numbers", "lists of different lengths") from None
    if given.dtype.kind not in "fiu" and given.size:
        raise SpecMismatchError("priorities", "an integer or float dtype", str(given.dtype))
    if given.shape != (count,):
        raise SpecMismatchError("priorities", f"shape ({count},), one for each position", str(given.shape))
    found = given.astype(np.float64) + 0.0  # which makes 0.0 of -0.0
    wrong = np.flatnonzero(~((found >= 0) & (found <= PRIORITY_BOUND)))
    if wrong.size:
        first = int(wrong[0])
        raise SpecMismatchError(f"priorities[{first}]", f"a number from 0 to {MAX_PRIORITY:g}", f"{found[first]:g}")
    return found


def deduplicate_last(positions: Array) -> Array:
    """Returns int64: where each distinct value of int64 `positions` [n] occurs last, in the order of the values."""
    count = len(positions)
    if not count:
        return np.empty(0, np.int64)
    lowest, bits = int(positions.min()), count.bit_length()
    if (int(positions.max()) - lowest) >> (63 - bits):  # so far apart that both do not fit one number
        order = positions.argsort(kind="stable")
        values = positions[order]
    else:  # sorting numbers, without asking whence they come, is several times as fast
        keyed = np.sort((positions - lowest) << bits | np.arange(count))
        order, values = keyed & ((1 << bits) - 1), keyed >> bits
    found: Array = order[run_starts(values[::-1])[::-1]]
    return found
