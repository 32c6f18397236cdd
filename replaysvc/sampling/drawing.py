"""The samplers of a table, and the sets of items that they draw from.

A set of items is made when a request first asks for its kind, from the whole index, and kept up to date from then on; the
least recently used ones are given up. A prioritized sampler keeps one priority for each step; for items other than steps it
has a second sum tree over those alone, made when first asked for. Not thread-safe: the table's lock is held around every call.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from replaysvc.errors import InvalidRequestError
from replaysvc.index.table_index import Added, TableIndex
from replaysvc.options import (
    EpisodeUniform,
    Fifo,
    Lifo,
    Prioritized,
    Recency,
    Sampler,
    WeightNorm,
    check_prioritized,
    check_sampler,
)
from replaysvc.requests import Episodes, Sequences, Transitions, Window
from replaysvc.sampling.items import STEPS, ItemSet, Kind, kind_of
from replaysvc.sampling.steps import StepSet
from replaysvc.selectors import (
    Drawn,
    Priorities,
    Queue,
    SumTree,
    check_priorities,
    deduplicate_last,
    draw_prioritized,
    draw_recent,
    draw_uniform,
    importance_weights,
    largest_weight,
    run_starts,
)
from replaysvc.types import Array, UpdateCounts

BLOCK = 1 << 16  # positions whose priorities are saved together
_MOST_SETS = 8  # kinds of items other than steps that are kept at once


class Samplers:
    """All samplers of one table."""

    def __init__(self, options: Mapping[str, Sampler], index: TableIndex) -> None:
        self.options, self._index = dict(options), index
        self.steps = StepSet(index)
        self._sets: OrderedDict[Kind, ItemSet] = OrderedDict()
        self.priorities: dict[str, Priorities] = {}  # of the prioritized samplers that are in use
        self._trees: dict[tuple[str, Kind], SumTree] = {}
        self.queues: dict[str, tuple[Kind, Queue]] = {}
        self._changed: set[tuple[str, int]] = set()  # blocks of priorities to save: sampler and number
        for name, sampler in self.options.items():
            if isinstance(sampler, Prioritized) and sampler.initial_priority is not None:
                self.priorities_of(name)

    # -- drawing ------------------------------------------------------------------------------------------------------

    def waiting_for(self, name: str, what: Window, count: int) -> str:
        """Returns why `count` items cannot be drawn now, "" if they can.

        Raises:
          InvalidRequestError: no such sampler, or a queue that hands out another kind of window.
        """
        options = self._options(name)
        if isinstance(options, Fifo | Lifo):
            kind = kind_of(what, complete=True)
            # a request that gets nothing does not bind the queue to its kind of window
            bound = name in self.queues
            available = self._queue(name, what).available if bound else self._set(kind).size * options.max_times_sampled
            return "" if available >= count else f"{available:,} of {count:,} items in the queue {name}"
        items = self._items(kind_of(what))
        if not items.size:
            return self._why_none(what)
        if isinstance(options, Prioritized) and not self._tree(name, items.kind).total:
            return f"every priority of sampler {name} is 0, which means never drawn"
        return ""

    def draw(self, name: str, what: Window, rng: np.random.Generator, count: int, batches: int = 1) -> Drawn:
        """Draws items, with replacement but for queues, as `batches` equal ones; `waiting_for` said that there are enough."""
        options = self._options(name)
        if isinstance(options, Fifo | Lifo):
            return Drawn(self._queue(name, what).draw(count), np.ones(count))
        items = self._items(kind_of(what))
        if isinstance(options, Prioritized):
            return draw_prioritized(rng, count, self._tree(name, items.kind), batches)
        if isinstance(options, EpisodeUniform):
            return self._set(items.kind).draw_by_episode(rng, count)
        if isinstance(options, Recency):
            return draw_recent(rng, count, items, options.half_life)
        if items.kind.whole_stacks and 2 * items.size >= self.steps.size:
            # drawn from all steps, which takes no tree: a step whose stack is cut cannot be read and is drawn again, as often
            # as it takes, so each item is as likely as any other
            return Drawn(draw_uniform(rng, count, self.steps).positions, np.full(count, 1.0 / items.size))
        return draw_uniform(rng, count, items)

    def is_built(self, name: str) -> bool:
        """Returns whether what a sampler draws steps from is there."""
        options = self.options[name]
        if isinstance(options, EpisodeUniform):
            return STEPS in self._sets and self._sets[STEPS].counts_episodes
        if isinstance(options, Prioritized):
            return name in self.priorities
        return name in self.queues if isinstance(options, Fifo | Lifo) else True

    def try_draw(self, name: str, rng: np.random.Generator, count: int) -> Drawn | None:
        """Draws steps, if that builds nothing and uses nothing up; else, and where there are none, returns None."""
        options = self.options[name]
        if isinstance(options, Fifo | Lifo) or not self.is_built(name) or not self.steps.size:
            return None
        if isinstance(options, EpisodeUniform):
            return self._sets[STEPS].draw_by_episode(rng, count)  # which does not count as a use of the set
        if isinstance(options, Prioritized) and not self.priorities[name].tree.total:
            return None
        return self.draw(name, Transitions(), rng, count)

    def exponent(self, name: str, beta: float | None) -> float:
        """Returns the exponent of importance weights: `beta`, or else the sampler's own; 0 of one that has no weights.

        Raises:
          InvalidRequestError: `beta` given to a sampler that has no weights.
        """
        options = self._options(name)
        if isinstance(options, Prioritized):
            return options.beta if beta is None else beta
        if beta is not None:
            raise InvalidRequestError(f"beta: expected none for sampler {name}, which is not prioritized, found {beta:g}")
        return 0.0

    def weigh(self, name: str, what: Window, probability: Array, exponent: float, batches: int = 1) -> Array:
        """Returns the importance weights, float32 [B], of `batches` whole batches, by each one's largest of which they may be
        divided."""
        options = self._options(name)
        if not isinstance(options, Prioritized):
            return np.ones(len(probability), np.float32)
        items = self._items(kind_of(what))
        tree = self._tree(name, items.kind)
        table = options.norm is WeightNorm.TABLE
        largest = largest_weight(tree.smallest(), tree.total, items.size, exponent) if table else None
        return importance_weights(probability.reshape(batches, -1), items.size, exponent, largest).ravel()

    def _norm(self, name: str) -> WeightNorm:
        options = self.options[name]
        assert isinstance(options, Prioritized)
        return options.norm

    def give_back(self, name: str, what: Window, positions: Array) -> None:
        """Takes items back into a queue that could not be read after all: they are the next to be handed out."""
        options = self._options(name)
        if not isinstance(options, Fifo | Lifo) or not len(self._index.chunks):
            return
        queue, items = self._queue(name, what), self._set(kind_of(what, complete=True))
        given, times = np.unique(positions[positions >= self._index.tail], return_counts=True)
        readable = items.holds(given)
        given, times = given[readable], times[readable]
        pending, remaining = queue.pending
        again = np.isin(given, pending)
        order = np.argsort(pending)
        remaining[order[np.searchsorted(pending, given[again], sorter=order)]] += times[again]
        fresh = items.by_completion(given[~again])
        left = times[np.searchsorted(given, fresh)]
        both = ((fresh, left), (pending, remaining)) if isinstance(options, Fifo) else ((pending, remaining), (fresh, left))
        queue.restore(np.concatenate([part[0] for part in both]), np.concatenate([part[1] for part in both]))

    def is_queue(self, name: str) -> bool:
        """Returns whether a sampler hands out each item a limited number of times. Raises InvalidRequestError."""
        return isinstance(self._options(name), Fifo | Lifo)

    def priorities_of(self, name: str) -> Priorities:
        """Returns the priorities of a prioritized sampler. Until it is used none are kept: all steps have the same."""
        if name not in self.priorities:
            options = self.options[name]
            assert isinstance(options, Prioritized)
            self.priorities[name] = Priorities(options)
            for start, stop in self._index.runs():
                self.priorities[name].insert(start, stop, None)
        return self.priorities[name]

    def _options(self, name: str) -> Sampler:
        return check_sampler(self.options, name)

    def _why_none(self, what: Window) -> str:
        index = self._index
        _, lengths, closed = index.episode_state(index.episode_ids())
        if not lengths.size:
            return f"{index.live_steps:,} of 1 steps"
        closed_only = (what.her is not None and not what.her.open_episodes) or (
            isinstance(what, Episodes) and not what.open_episodes
        )
        if closed_only and not closed.any():
            return f"no finished episode among {lengths.size:,} (open_episodes=True takes unfinished ones, too)"
        longest, shortest = int(lengths.max()), int(lengths.min())
        if isinstance(what, Episodes):
            return f"no whole episode of at most {what.max_steps:,} steps; the shortest of {lengths.size:,} has {shortest:,}"
        if isinstance(what, Sequences):
            return f"no sequence of {what.length:,} steps; the longest of {lengths.size:,} episodes has {longest:,}"
        return f"none of {index.live_steps:,} steps can be drawn"

    # -- items --------------------------------------------------------------------------------------------------------

    def _items(self, kind: Kind) -> ItemSet | StepSet:
        return self.steps if kind is STEPS else self._set(kind)

    def _set(self, kind: Kind) -> ItemSet:
        if kind not in self._sets:
            self._sets[kind] = ItemSet(kind, self._index)
            bound = {bound for bound, _ in self.queues.values()}
            unbound = [known for known in self._sets if known not in bound and known != kind]
            for old in unbound[: max(0, len(unbound) + 1 - _MOST_SETS)]:
                del self._sets[old]
                self._trees = {key: tree for key, tree in self._trees.items() if key[1] != old}
        self._sets.move_to_end(kind)
        return self._sets[kind]

    def _tree(self, name: str, kind: Kind) -> SumTree:
        """Returns the sum tree over the items of one kind, of a prioritized sampler."""
        priorities = self.priorities_of(name)
        if kind is STEPS:
            return priorities.tree
        key = (name, kind)
        items = self._set(kind)
        if key not in self._trees:
            tree = SumTree(extremes=self._norm(name) is WeightNorm.TABLE)
            tree.grow(self._index.head, start=self._index.tail)
            positions = items.positions()
            tree.set(positions, priorities.leaves(positions))
            self._trees[key] = tree
        return self._trees[key]

    def _queue(self, name: str, what: Window) -> Queue:
        """Returns the queue of a sampler, which its first request has bound to a kind of window."""
        kind = kind_of(what, complete=True)
        if name not in self.queues:
            options = self.options[name]
            assert isinstance(options, Fifo | Lifo)
            queue = Queue(options.max_times_sampled, newest_first=isinstance(options, Lifo))
            queue.insert(self._set(kind).by_completion(self._set(kind).positions()))
            self.queues[name] = kind, queue
        bound, queue = self.queues[name]
        if bound != kind:
            raise InvalidRequestError(
                f"sampler {name}: expected the kind of window that this queue hands out ({bound.words}), found {kind.words}"
            )
        return queue

    # -- keeping up ---------------------------------------------------------------------------------------------------

    def insert(self, added: Added, initial: Mapping[str, Array]) -> None:
        """Takes in what an append added; `initial` has the new steps' priorities where the writer gave any, by sampler."""
        index = self._index
        start = int(index.field("position", [added.rows.start])[0])
        self.steps.insert(start, index.head)
        for name, priorities in self.priorities.items():
            priorities.insert(start, index.head, initial.get(name))
            self._changed.update((name, number) for number in range(start // BLOCK, (index.head - 1) // BLOCK + 1))
        self.update_items(added)

    def update_items(self, added: Added) -> None:
        """Brings the sets of items up to date with chunks that were added, or episodes that were ended."""
        index = self._index
        for kind, items in self._sets.items():
            changed = items.add(added)
            for (name, of), tree in self._trees.items():
                if of == kind:
                    tree.grow(index.head, start=index.tail)
                    if changed.added.size:
                        tree.set(changed.added, self.priorities[name].leaves(changed.added))
                    if changed.removed.size:
                        tree.set(changed.removed, np.zeros(changed.removed.size))
            for of, queue in self.queues.values():
                if of == kind and changed.added.size:
                    queue.insert(items.by_completion(changed.added))

    def remove_before(self, tail: int, touched: Array) -> None:
        """Forgets the steps before `tail`, the index's new one; `touched`: ids of the episodes that lost steps."""
        self.steps.remove_before(tail)
        for priorities in self.priorities.values():
            priorities.remove_before(tail)
        for tree in self._trees.values():
            tree.remove_before(tail)
        for _, queue in self.queues.values():
            queue.remove_before(tail)
        for kind, items in self._sets.items():
            self._drop(kind, items.trim(touched))

    def take_out(self, rows: Array, touched: Array) -> None:
        """Forgets chunks, wherever they stand, that cannot be drawn any more."""
        index = self._index
        starts, n_steps = index.field("position", rows), index.field("n_steps", rows)
        shift = np.repeat(starts - (np.cumsum(n_steps) - n_steps), n_steps)
        positions = shift + np.arange(len(shift))
        positions = positions[positions >= index.tail]
        for start, stop in zip(starts.tolist(), (starts + n_steps).tolist(), strict=True):
            self.steps.remove(max(start, index.tail), max(stop, index.tail))
        for priorities in self.priorities.values():
            priorities.remove(positions)
        for kind, items in self._sets.items():
            self._drop(kind, items.take_out(rows, touched))

    def _drop(self, kind: Kind, removed: Array) -> None:
        """Takes positions that are items of a kind no more out of what draws them."""
        if removed.size:
            for (_, of), tree in self._trees.items():
                if of == kind:
                    tree.set(removed, np.zeros(removed.size))
            for of, queue in self.queues.values():
                if of == kind:
                    queue.remove(removed)

    # -- priorities ---------------------------------------------------------------------------------------------------

    def update(self, name: str, positions: Array, priorities: Array) -> UpdateCounts:
        """Sets priorities; positions that are not in the table are ignored, of repeated ones the last holds.

        Raises:
          ConfigurationError: the sampler has no priorities. InvalidRequestError: no such sampler, or a bad priority.
        """
        check_prioritized(self.options, name)
        given = check_priorities(priorities, len(positions))
        index, count = self._index, len(positions)
        inside = (positions >= index.tail) & (positions < index.head)
        if not len(index.chunks) or not inside.any():
            return UpdateCounts(0, count)
        positions, given = positions[inside], given[inside]
        last = deduplicate_last(positions)
        positions, given = positions[last], given[last]  # ascending, which all that follows is faster for
        live = index.drawable(positions, index.row_of(positions))
        known = self.priorities_of(name)
        chosen, leaves = positions[live], known.powers(given[live])
        if chosen.size:
            known.update(chosen, leaves)
            blocks = chosen // BLOCK
            self._changed.update((name, number) for number in blocks[run_starts(blocks)].tolist())
        for (of, kind), tree in self._trees.items():
            if of == name and chosen.size:
                within = self._sets[kind].holds(chosen)
                tree.set(chosen[within], leaves[within])
        return UpdateCounts(int(chosen.size), count - int(chosen.size))

    # -- state --------------------------------------------------------------------------------------------------------

    def take_changed_blocks(self) -> list[tuple[str, int]]:
        """Returns (sampler, number) of the blocks of priorities that changed since the last call."""
        changed, self._changed = self._changed, set()
        return sorted(changed & set(self.all_blocks()))

    def put_back_blocks(self, blocks: Iterable[tuple[str, int]]) -> None:
        """Notes that blocks could not be saved."""
        self._changed.update(blocks)

    def all_blocks(self) -> list[tuple[str, int]]:
        """Returns (sampler, number) of all blocks of priorities that are kept."""
        numbers = range(self._index.tail // BLOCK, (self._index.head - 1) // BLOCK + 1)
        return [(name, number) for name in sorted(self.priorities) for number in numbers]

    def block(self, name: str, number: int) -> tuple[int, Array]:
        """Returns (first position, leaves) of what is stored of a block of priorities."""
        start, stop = max(number * BLOCK, self._index.tail), min((number + 1) * BLOCK, self._index.head)
        return start, self.priorities[name].leaves(np.arange(start, stop))

    def restore_priorities(self, name: str, blocks: Sequence[tuple[int, Array]]) -> None:
        """Takes saved leaves back; steps that none were saved of get the largest."""
        priorities = self.priorities_of(name)
        runs = [(max(start, self._index.tail), stop) for start, stop in self._index.runs()]
        starts, stops = [start for start, _ in runs], [stop for _, stop in runs]
        pieces = [  # of what was saved and is live: first position, leaves
            (max(first, start), leaves[max(start - first, 0) : stop - first])
            for first, leaves in blocks
            for start, stop in runs[bisect_right(stops, first) : bisect_left(starts, first + len(leaves))]
        ]
        if not pieces:
            return
        largest = max(float(leaves.max()) for _, leaves in pieces) or 1.0
        for start, stop in runs:
            priorities.restore(start, stop, largest)
        for first, leaves in pieces:
            priorities.restore(first, first + len(leaves), leaves)

    def restore_queue(self, name: str, kind: Kind, positions: Array, remaining: Array, head: int, ends: int) -> None:
        """Takes a queue's saved content back, and what became complete since: by steps from `head` on, ends from `ends` on."""
        options, index = self.options[name], self._index
        assert isinstance(options, Fifo | Lifo)
        items = self._set(kind)
        queue = Queue(options.max_times_sampled, newest_first=isinstance(options, Lifo))
        live = (positions >= index.tail) & (positions < index.head)
        if positions.size and len(index.chunks):
            live &= items.holds(positions)
        queue.restore(positions[live], remaining[live])
        queue.insert(items.by_completion(items.since(head, ends)))
        self.queues[name] = kind, queue
