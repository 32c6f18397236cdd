"""From a plan to columns: one `take` a column over the cache's arena, then the transforms of transitions.

The table holds its lock around these functions; nothing here touches the disk.
"""

import numpy as np

from replaysvc.batch import HER_COLUMNS, BatchColumn
from replaysvc.cache import Cache
from replaysvc.index.chunk_links import NONE
from replaysvc.index.table_index import TERMINATED, TRUNCATED, TableIndex
from replaysvc.nstep import transition_targets
from replaysvc.relabel import Ends, relabel
from replaysvc.requests import Stack, StackPadding, Transitions
from replaysvc.sampling.fetch import Fetched
from replaysvc.sampling.planning import Plan
from replaysvc.spec import Signature
from replaysvc.types import Allocate, Array
from replaysvc.windows import Frames, Windows, resolve_backward


class Place:
    """Steps, as chunk rows and offsets, and where they stand in the cache; found once for all columns.

    Of any shape, which the columns taken there begin with.
    """

    __slots__ = ("_index", "_slot", "arena_rows", "at", "cached", "location", "offsets", "records", "rows", "shape")

    def __init__(self, index: TableIndex, rows: Array, offsets: Array, *, records: bool = False) -> None:
        """`records`: those of the chunks are wanted, too."""
        self._index, self.shape = index, rows.shape
        self.rows, self.offsets = rows.ravel(), offsets.ravel()
        self.at = self.rows - index.chunks.base
        self.records = index.chunks.records.take(self.at) if records else None
        self.location: Array = index.chunks["location"][self.at] if self.records is None else self.records["location"]
        self._slot: Array | None = None
        self.cached = bool(self.location.min(initial=0) > NONE)
        self.arena_rows = self.location + self.offsets

    @property
    def slots(self) -> Array:
        """Returns the cache's slots of the chunks."""
        if self._slot is None:
            self._slot = self._index.chunks["slot"][self.at] if self.records is None else self.records["slot"]
        return self._slot

    def following(self) -> "Place":
        """Returns the rows after these, of the same chunks."""
        after = Place.__new__(Place)
        after._index, after.shape, after.rows, after.at, after.records = (
            self._index, self.shape, self.rows, self.at, self.records,
        )  # fmt: skip
        after.location, after._slot, after.cached = self.location, self._slot, self.cached
        after.offsets, after.arena_rows = self.offsets + 1, self.arena_rows + 1
        return after


class _CachedSteps(Place):
    """Steps of windows, all of them cached: found a run at a time, since arena rows and slots are all that is asked for."""

    __slots__ = ("_windows",)

    def __init__(self, index: TableIndex, windows: Windows, arena_rows: Array) -> None:
        self._index, self._windows, self._slot, self.cached = index, windows, None, True
        self.shape, self.arena_rows = arena_rows.shape, arena_rows.ravel()

    @property
    def slots(self) -> Array:
        if self._slot is None:
            chunks = self._index.chunks
            found = self._windows.spread(chunks["slot"][self._windows.runs - chunks.base])
            self._slot = found[:, : self.shape[1]].ravel()
        return self._slot


class Source:
    """Takes rows of chunks out of the cache, or out of fetched chunks where the cache could not keep them."""

    def __init__(
        self, index: TableIndex, cache: Cache, signature: Signature, fetched: Fetched, now_s: float,
        allocate: Allocate = np.empty,
    ) -> None:  # fmt: skip
        self.index, self.signature, self.now_s, self.allocate = index, signature, now_s, allocate
        self._cache, self._fetched = cache, fetched

    def place(self, rows: Array, offsets: Array) -> Place:
        """Returns where these steps stand."""
        return Place(self.index, rows, offsets)

    def anchors(self, rows: Array, offsets: Array) -> Place:
        """Returns where these steps stand, one a window, with what is known of their chunks."""
        return Place(self.index, rows, offsets, records=True)

    def along(self, windows: Windows) -> tuple[Place, Place]:
        """Returns where the steps of windows stand, [B, L], and their observations with the one after the last, [B, L + 1].
        Past the end of a window, some step of it is repeated, and the last observation."""
        location = self.index.chunks["location"][windows.runs - self.index.chunks.base]
        if int(location.min(initial=0)) <= NONE:
            return self.place(windows.rows, windows.offsets), self.place(*windows.observations())
        steps, observations = windows.places(location)
        return _CachedSteps(self.index, windows, steps), _CachedSteps(self.index, windows, observations)

    def take(self, i: int, place: Place, name: str = "") -> BatchColumn:
        """Returns column `i` at a place, in stored precision, to travel as it is."""
        return self._take(i, place, name, self.allocate)

    def take_own(self, i: int, place: Place) -> BatchColumn:
        """Returns column `i` at a place, in stored precision, to be reckoned with."""
        return self._take(i, place, "", np.empty)

    def _take(self, i: int, place: Place, name: str, allocate: Allocate) -> BatchColumn:
        spec = self.signature.columns[i]
        name = name or spec.name
        if not place.cached:
            return self._take_mixed(i, place, name, allocate)
        slots = place.slots if self._cache.has_offsets(i) else None
        values, rows, offsets = self._cache.take(i, place.arena_rows, slots, allocate)
        return BatchColumn(name, values.reshape(*place.shape, *spec.shape), rows, offsets)

    def take_wide(self, i: int, place: Place) -> Array:
        """Returns column `i` at a place, in the declared dtype."""
        return self.take_own(i, place).widen(self.signature.columns[i])

    def _take_mixed(self, i: int, place: Place, name: str, allocate: Allocate) -> BatchColumn:
        """Where not all is in the cache: one take from there, and one from what was fetched."""
        spec = self.signature.columns[i]
        cached = place.location != NONE
        hits, others = np.flatnonzero(cached), np.flatnonzero(~cached)
        parts = []
        if hits.size:
            slots = place.slots[hits] if self._cache.has_offsets(i) else None
            parts.append((hits, BatchColumn(name, *self._cache.take(i, place.arena_rows[hits], slots))))
        for items, found in self._fetched.take(i, spec, place.rows[others], place.offsets[others]):
            parts.append((others[items], BatchColumn(name, *found)))
        if len({part.values.dtype for _, part in parts}) > 1:
            parts = [(items, BatchColumn(name, part.widen(spec))) for items, part in parts]
        values = allocate((len(place.rows), *spec.shape), parts[0][1].values.dtype)
        for items, part in parts:
            values[items] = part.values
        values = values.reshape(*place.shape, *spec.shape)
        moved = [(items[part.offset_rows], part.offset_values) for items, part in parts if part.offset_rows is not None]
        if not moved:
            return BatchColumn(name, values)
        rows, offsets = zip(*moved, strict=True)
        return BatchColumn(name, values, np.concatenate(rows).astype(np.uint32), np.concatenate(offsets))

    def take_frames(self, i: int, place: Place, frames: Array, padding: StackPadding, name: str = "") -> BatchColumn:
        """Returns a stack at a place [B, K]; `frames` (bool [B, K]) says which of its entries stand before the episode."""
        column = self.take(i, place, name)
        if padding is StackPadding.REPEAT or not frames.any():
            return column
        if column.offset_rows is not None:
            column = BatchColumn(column.name, column.widen(self.signature.columns[i]))
        column.values[frames] = 0
        return column

    def flags(self, ends: Place) -> tuple[Array, Array]:
        """Returns (terminated, truncated), bool [B], of the windows whose last steps are at `ends`."""
        assert ends.records is not None
        flags = self.index.chunks["flags"].take(ends.at) * (ends.offsets == ends.records["n_steps"] - 1)
        return (flags & TERMINATED) != 0, (flags & TRUNCATED) != 0


def frames_until(index: TableIndex, row: Array, offset: Array, count: int) -> Frames:
    """Returns the `count` observations that end with row `offset` of chunk `row`."""
    chunks = index.chunks
    return resolve_backward(row, offset, count, chunks["n_steps"], chunks["first_step"], chunks["prev_row"], chunks.base)


def item_columns(plan: Plan, source: Source, anchor: Place) -> list[BatchColumn]:
    """Returns the columns that tell where each window, whose first step is at `anchor`, comes from."""
    here, drawn = anchor.records, plan.drawn
    assert here is not None
    assert plan.weights is not None
    plain = {
        "positions": drawn.positions,
        "episode_id": here["episode_id"].copy(),
        "t": here["first_step"] + anchor.offsets,
        "probability": drawn.probability,
        "importance_weight": plan.weights,
        "age_s": np.maximum(source.now_s - here["committed_at_s"], 0.0).astype(np.float32),  # clocks are set back
        "policy_version": here["policy_version"].copy(),
    }
    if plan.goals is not None:
        plain["relabeled"] = plan.goals.relabeled
    return [BatchColumn(name, values) for name, values in plain.items()]


def relabeled_ends(plan: Plan, source: Source, stored: Ends) -> tuple[Ends, Array, list[BatchColumn]]:
    """Returns what hindsight makes of the windows' ends, the new goals [B, ...], and what a learner's own function needs.

    Where the reward is a function, only the learner can tell the ends: they come back as they were.
    """
    her, goals, windows, layout = plan.what.her, plan.goals, plan.windows, plan.layout
    assert her is not None
    assert goals is not None
    goal = source.take_wide(layout.achieved, source.place(goals.rows, goals.offsets + 1))
    after = source.take_wide(layout.achieved, source.place(windows.rows, windows.offsets + 1))
    if her.declared:
        return relabel(her, stored, goals.relabeled, after, goal), goal, []
    extra = (after, goal, stored.rewards, stored.counts)
    return stored, goal, [BatchColumn(name, values) for name, values in zip(HER_COLUMNS, extra, strict=True)]


def gather_transitions(plan: Plan, source: Source) -> list[BatchColumn]:
    """Returns the columns of planned transitions. Every chunk of them is in the cache, or else among the fetched."""
    what, windows, layout, index = plan.what, plan.windows, plan.layout, source.index
    assert isinstance(what, Transitions)
    signature, observations = source.signature, source.signature.observation_columns
    reward_at = layout.reward
    anchor = last = source.anchors(windows.runs[:, 0], windows.firsts[:, 0])
    stored = anchor
    if what.n_step > 1:
        last, stored = source.anchors(windows.end_row, windows.end_offset), source.place(windows.rows, windows.offsets)
    rewards = source.take_own(reward_at, stored).values
    ends = Ends(rewards.reshape(len(windows.counts), windows.length), windows.counts, *source.flags(last))
    goal, columns = None, item_columns(plan, source, anchor)
    if plan.goals is not None:
        ends, goal, extra = relabeled_ends(plan, source, ends)
        columns += extra
        if ends.counts is not windows.counts:
            windows = windows.cut(ends.counts)
            last = source.place(windows.end_row, windows.end_offset)
    after = last.following()
    stack = what.stack
    assert isinstance(stack, Stack)
    together = what.n_step == 1  # then a stack and the next one are the same frames but for one
    frames = after_frames = None
    if layout.most_frames > 1:
        if not together:
            frames = plan.frames
        after_frames = frames_until(index, windows.end_row, windows.end_offset + 1, layout.most_frames + together)
    for i, spec in enumerate(signature.columns):
        if i == reward_at:
            continue
        name = f"next_{spec.name}"
        if layout.frames[i]:
            assert after_frames is not None
            if frames is not None:
                columns.append(_stack(source, i, frames, stack, spec.name))
            columns.append(_stack(source, i, after_frames, stack, spec.name if together else name))
        elif i == layout.desired:
            assert goal is not None
            assert plan.goals is not None
            for column_name, place in ((spec.name, anchor), (name, after)):
                values = source.take_wide(i, place)
                columns.append(BatchColumn(column_name, np.where(_lead(plan.goals.relabeled, values), goal, values)))
        else:
            columns.append(source.take(i, anchor))
            if i < observations:
                columns.append(source.take(i, after, name))
    targets = transition_targets(*ends, what.gamma)
    return columns + [BatchColumn(name, values) for name, values in targets._asdict().items()]


def _stack(source: Source, i: int, frames: Frames, stack: Stack, name: str) -> BatchColumn:
    return source.take_frames(i, source.place(frames.rows, frames.offsets), frames.padded(), stack.padding, name)


def _lead(flags: Array, values: Array) -> Array:
    """Returns flags [B] shaped to choose among values [B, ...]."""
    return flags.reshape(-1, *(1,) * (values.ndim - 1))
