"""A sum tree over int64 keys: finds in which leaf's share of the total a number falls.

Keys lie in blocks of 65,536, aligned to multiples of that, and only blocks that were written to exist; so a range that moves
forward needs no copying, a gap costs nothing, and how leaves are grouped does not depend on when the tree was built. A block
has four levels of fan-out 16 over its leaves. Above the blocks there is no tree: their sums, added up in key order, are
searched. A block lives in any free slot of the arrays; `_slots` says in which.

Sums are float64 and always computed anew from the children, never adjusted by a difference: they do not drift. Integer-valued
leaves give exact sums (below 2^53), hence ranks. About 9.1 bytes a key: the leaf, its share of the sums and of the maxima.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from replaysvc.types import Array

FANOUT_BITS = 4
FANOUT = 1 << FANOUT_BITS
DEPTH = 4  # levels between leaves and blocks
BLOCK_BITS = FANOUT_BITS * DEPTH
BLOCK = 1 << BLOCK_BITS
_NEVER = np.iinfo(np.int64).max  # a block number above all others
_SORTED_FROM = 4096  # updates; from here on it pays to sort them, so that more are found to share a parent. Chosen by hand


class _Fold(NamedTuple):
    """One aggregate: `of` folds [16, n] children to [n]; `levels[d]` holds nodes of d levels above the leaves, slot by slot.
    Nodes that nothing was written under are 0."""

    of: Callable[[Array], Array]
    levels: list[Array]


def _sums(children: Array) -> Array:
    """Returns the sums, each added up in the same order however many there are: by halves, as numpy adds up 16 in a row."""
    halves = children[:8] + children[8:]
    while len(halves) > 1:
        halves = halves[0::2] + halves[1::2]
    total: Array = halves[0]
    return total


def _largest(children: Array) -> Array:
    largest: Array = np.maximum.reduce(children, axis=0)
    return largest


def _smallest(children: Array) -> Array:
    """Returns the smallest positive child, inf if there is none."""
    smallest: Array = np.minimum.reduce(np.where(children > 0, children, np.inf), axis=0)
    return smallest


def run_starts(values: Array) -> Array:
    """Returns bool [n]: which of `values` [n], at least one, are not what stands before them."""
    starts = np.empty(len(values), np.bool_)
    starts[0] = True
    np.not_equal(values[1:], values[:-1], out=starts[1:])
    return starts


class SumTree:
    """Leaves, 0 unless set, over the keys [start, stop). What lies before the last `remove_before` is 0 for good.

    extremes: also keeps the smallest positive leaf, for `smallest`.
    """

    def __init__(self, *, extremes: bool = False) -> None:
        self._start = 0
        self._stop = 0
        self._floor = 0  # keys before it are ignored
        self._blocks = np.array([_NEVER])  # those that exist, ascending, and a sentinel, so that a search always hits one
        self._slots = np.array([-1])
        self._free = [0]  # slots, descending: the lowest is used first, so that high ones stay untouched memory
        folds = [_sums, _largest, _smallest] if extremes else [_sums, _largest]
        leaves = np.zeros(BLOCK)
        self._folds = [
            _Fold(of, [leaves, *[np.zeros(BLOCK >> FANOUT_BITS * depth) for depth in range(1, DEPTH + 1)]]) for of in folds
        ]
        self._bounds: Array | None = None  # 0 and the cumulative sums of the blocks, once they are asked for

    @property
    def start(self) -> int:
        return self._start

    @property
    def stop(self) -> int:
        return self._stop

    @property
    def nbytes(self) -> int:
        """Returns the memory asked for; up to a ninth of it is kept for growth."""
        leaves = self._folds[0].levels[0]
        return leaves.nbytes + sum(level.nbytes for fold in self._folds for level in fold.levels[1:])

    @property
    def total(self) -> float:
        """Returns the sum of all leaves."""
        return float(self._block_bounds()[-1])

    def largest(self) -> float:
        """Returns the largest leaf, 0 if there is none."""
        return float(self._folds[1].levels[DEPTH][self._slots[:-1]].max(initial=0.0))

    def smallest(self) -> float:
        """Returns the smallest positive leaf, 0 if there is none. Only of a tree with `extremes`."""
        found = float(self._folds[2].levels[DEPTH][self._slots[:-1]].min(initial=np.inf))
        return found if found < np.inf else 0.0

    def grow(self, stop: int, start: int | None = None) -> None:
        """Makes keys up to `stop` exist, from `start` on (0 if not given) where there are none yet. O(1)."""
        if self._start == self._stop:
            self._start = self._stop = max(self._floor, start or 0)
        elif start is not None:
            self._start = max(self._floor, min(self._start, start))
        self._stop = max(self._stop, stop)

    def get(self, keys: Array) -> Array:
        """Returns the leaves of int64 `keys`, float64 [n]; 0 for keys that do not exist."""
        blocks = keys >> BLOCK_BITS
        at = self._blocks.searchsorted(blocks)
        there = self._blocks[at] == blocks
        index = np.where(there, self._slots[at] << BLOCK_BITS | keys & (BLOCK - 1), 0)
        return np.where(there, self._folds[0].levels[0].take(index), 0.0)

    def set(self, keys: Array, values: Array) -> None:
        """Sets leaves: int64 [n] `keys`, each once, float64 [n] `values`, not negative. Keys that do not exist yet come to."""
        if not keys.size:
            return
        lowest = int(keys.min())
        if lowest < self._floor:
            kept = keys >= self._floor
            self.set(keys[kept], values[kept])
            return
        self.grow(int(keys.max()) + 1, lowest)
        blocks = keys >> BLOCK_BITS
        at = self._blocks.searchsorted(blocks)
        absent = self._blocks[at] != blocks
        if absent.any():
            self._add_blocks(np.unique(blocks[absent]))
            at = self._blocks.searchsorted(blocks)
        index = self._slots[at] << BLOCK_BITS | keys & (BLOCK - 1)
        self._folds[0].levels[0][index] = values
        self._refresh(index)

    def set_range(self, start: int, stop: int, values: Array | float) -> None:
        """Sets the leaves of [start, stop) to `values`, float64 [stop - start] or one for all."""
        if start < self._floor:
            values = values if isinstance(values, float | int) else values[self._floor - start :]
            start = self._floor
        if start >= stop:
            return
        self.grow(stop, start)
        present = self._blocks[:-1]
        blocks = np.arange(start >> BLOCK_BITS, ((stop - 1) >> BLOCK_BITS) + 1)
        if isinstance(values, float | int) and values == 0:
            blocks = present[present.searchsorted(blocks[0]) : present.searchsorted(blocks[-1], side="right")]
        elif len(absent := np.setdiff1d(blocks, present, assume_unique=True)):
            self._add_blocks(absent)
        leaves = self._folds[0].levels[0]
        for block, slot in zip(blocks.tolist(), self._slots[self._blocks.searchsorted(blocks)].tolist(), strict=True):
            base = block << BLOCK_BITS
            low, high = max(start, base), min(stop, base + BLOCK)
            shift = (slot << BLOCK_BITS) - base
            part = values if isinstance(values, float | int) else values[low - start : high - start]
            leaves[low + shift : high + shift] = part
            self._refresh(slice(low + shift, high + shift))

    def find(self, targets: Array) -> tuple[Array, Array]:
        """Returns (keys int64 [B], rests float64 [B]) of float64 `targets` in [0, total), which must be positive.

        A key's leaf is never 0. A rest is the target minus the sum of the leaves before the key.
        """
        keys, rests, _ = self.find_leaves(targets)
        return keys, rests

    def find_leaves(self, targets: Array) -> tuple[Array, Array, Array]:
        """Returns what `find` returns, and the leaves of the keys."""
        if self.total <= 0:
            raise ValueError("find: expected a positive leaf, found none")
        keys, rests, leaves = self._descend(targets, careful=False)
        if leaves.size and leaves.min() <= 0:
            ended = np.flatnonzero(leaves <= 0)
            keys[ended], rests[ended], leaves[ended] = self._descend(targets[ended], careful=True)
        return keys, rests, leaves

    def top(self, n: int) -> tuple[Array, Array]:
        """Returns (keys int64 [n], leaves float64 [n]) of the `n` largest leaves, the largest first, of equals the lowest key.

        Fewer if there are not so many above 0. O(blocks log blocks + n log n).
        """
        node, block, levels = self._slots[:-1], self._blocks[:-1], self._folds[1].levels
        for level in levels[DEPTH::-1]:
            values = level.take(node)
            best = np.argsort(-values, kind="stable")[:n]  # of equal nodes the first ones: they have n leaves as large
            best = np.sort(best) if level is not levels[0] else best
            node, block, values = node[best], block[best], values[best]
            if level is not levels[0]:
                node, block = (node[:, None] * FANOUT + np.arange(FANOUT)).ravel(), block.repeat(FANOUT)
        above = values > 0
        return (block << BLOCK_BITS | node & (BLOCK - 1))[above], values[above]

    def remove_before(self, key: int) -> None:
        """Removes all keys before `key`, for good. Amortised O(1) a key."""
        if key <= self._floor:
            return
        gone = int(self._blocks.searchsorted(key >> BLOCK_BITS))
        self.set_range(max(self._start, key >> BLOCK_BITS << BLOCK_BITS), min(key, self._stop), 0.0)
        self._floor = key
        self._start = max(self._start, key)
        self._stop = max(self._stop, self._start)
        if not gone:
            return
        freed = self._slots[:gone].tolist()
        self._blocks, self._slots = self._blocks[gone:], self._slots[gone:]
        self._bounds = None
        capacity, used = len(self._free) + gone + len(self._slots) - 1, len(self._slots) - 1
        if 2 * used + 2 < capacity:
            self._reallocate(used + 1)
            return
        self._free = sorted([*self._free, *freed], reverse=True)
        for fold in self._folds:
            for level in fold.levels:
                level.reshape(capacity, -1)[freed] = 0

    def _descend(self, targets: Array, *, careful: bool) -> tuple[Array, Array, Array]:
        """Returns keys, rests and leaves. Not `careful`, rounding may lead off a node's end to a last child that is 0."""
        bounds = self._block_bounds()
        at = bounds[1:].searchsorted(np.minimum(targets, np.nextafter(bounds[-1], 0.0)), side="right")
        rests = targets - bounds.take(at)
        node = self._slots.take(at)
        sums = self._folds[0].levels
        count = len(targets)
        begins = np.zeros((FANOUT, count))  # the sum of the children before each child
        columns = np.arange(count)
        for level in sums[DEPTH - 1 :: -1]:
            children = np.ascontiguousarray(level.reshape(-1, FANOUT).take(node, axis=0).T)
            for child in range(FANOUT - 1):  # 16 additions of rows are faster than cumsum along either axis
                np.add(begins[child], children[child], out=begins[child + 1])
            passed = begins[1:] <= rests
            if careful:
                passed &= begins[1:] < begins[-1] + children[-1]
            choice = np.add.reduce(passed.view(np.int8), axis=0, dtype=np.int8).astype(np.int64)
            rests = rests - begins.take(choice * count + columns)
            node = node * FANOUT + choice
        return self._blocks.take(at) << BLOCK_BITS | node & (BLOCK - 1), rests, sums[0].take(node)

    def _block_bounds(self) -> Array:
        if self._bounds is None:
            # One after the other, in key order: blocks of zeros before or between the others make no difference.
            self._bounds = np.append(0.0, self._folds[0].levels[DEPTH][self._slots[:-1]]).cumsum()
        return self._bounds

    def _refresh(self, leaves: Array | slice) -> None:
        """Computes anew all that stands above `leaves`, given by their index in the arrays."""
        self._bounds = None
        where: Array | slice = leaves
        for depth in range(1, DEPTH + 1):
            if isinstance(where, slice):
                where = slice(where.start >> FANOUT_BITS, (where.stop + FANOUT - 1) >> FANOUT_BITS)
            else:
                where = where >> FANOUT_BITS
                if depth == 1 and len(where) >= _SORTED_FROM:
                    where.sort()
                if len(where) > 1:  # neighbours share a parent, which is computed once; elsewhere, once more does no harm
                    where = where[run_starts(where)]
            children: Array | None = None
            for fold in self._folds:
                if children is None or depth > 1:  # the leaves are the same to all folds
                    nodes = fold.levels[depth - 1].reshape(-1, FANOUT)
                    rows = nodes[where] if isinstance(where, slice) else nodes.take(where, axis=0)
                    children = np.ascontiguousarray(rows.T)  # to fold whole rows is several times as fast
                fold.levels[depth][where] = fold.of(children)

    def _add_blocks(self, blocks: Array) -> None:
        """Gives `blocks`, ascending and not there yet, a slot of zeros each."""
        if len(blocks) > len(self._free):
            needed = len(self._slots) - 1 + len(blocks)
            self._reallocate(needed + needed // 8)
        slots = [self._free.pop() for _ in range(len(blocks))]
        at = self._blocks.searchsorted(blocks)
        self._blocks, self._slots = np.insert(self._blocks, at, blocks), np.insert(self._slots, at, slots)
        self._bounds = None

    def _reallocate(self, capacity: int) -> None:
        """Moves all blocks to new arrays of `capacity` slots, in order."""
        leaves = self._moved(self._folds[0].levels[0], capacity, 0)
        for fold in self._folds:
            fold.levels[:] = [leaves, *[self._moved(level, capacity, depth) for depth, level in enumerate(fold.levels[1:], 1)]]
        used = len(self._slots) - 1
        self._slots = np.append(np.arange(used), -1)
        self._free = list(range(capacity - 1, used - 1, -1))

    def _moved(self, old: Array, capacity: int, depth: int) -> Array:
        width = BLOCK >> FANOUT_BITS * depth
        slots = self._slots[:-1]
        new = np.zeros(capacity * width)  # which take no memory until they are written to
        np.take(old.reshape(-1, width), slots, axis=0, out=new.reshape(-1, width)[: len(slots)], mode="clip")
        return new
