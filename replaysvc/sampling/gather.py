"""From a plan to columns: one `take` a column over the cache's arena, then the transforms of transitions.

The table holds its lock around these functions; nothing here touches the disk.
"""

from collections.abc import Mapping

import numpy as np

from replaysvc.batch import HER_COLUMNS, BatchColumn
from replaysvc.cache import Cache
from replaysvc.codec import DecodedChunk, widen
from replaysvc.index.chunk_links import NONE
from replaysvc.index.table_index import TERMINATED, TRUNCATED, TableIndex
from replaysvc.nstep import transition_targets
from replaysvc.relabel import Ends, relabel
from replaysvc.requests import Stack, StackPadding, Transitions
from replaysvc.sampling.planning import Plan
from replaysvc.spec import Signature
from replaysvc.types import Array
from replaysvc.windows import Frames, Windows, resolve_backward

_OFFSET_SHARE = 4  # a column with offsets in more than one item of so many travels in the declared dtype: that is smaller then


class Place:
    """Steps, as chunk rows and offsets, and where they stand in the cache; found once for all columns.

    Of any shape, which the columns taken there begin with.
    """

    def __init__(self, index: TableIndex, rows: Array, offsets: Array) -> None:
        self.shape = rows.shape
        self.rows, self.offsets = rows.ravel(), offsets.ravel()
        self.at = self.rows - index.chunks.base
        self.location = index.chunks["location"].take(self.at)
        self.slot = index.chunks["slot"].take(self.at)
        self.cached = bool((self.location != NONE).all())
        self.arena_rows = self.location + self.offsets


class Source:
    """Takes rows of chunks out of the cache, or out of fetched chunks where the cache could not keep them."""

    def __init__(
        self, index: TableIndex, cache: Cache, signature: Signature, fetched: Mapping[int, DecodedChunk], now_s: float
    ) -> None:
        self.index, self.signature, self.now_s = index, signature, now_s
        self._cache, self._fetched = cache, fetched

    def place(self, rows: Array, offsets: Array) -> Place:
        """Returns where these steps stand."""
        return Place(self.index, rows, offsets)

    def take(self, i: int, place: Place, name: str = "") -> BatchColumn:
        """Returns column `i` at a place, in stored precision."""
        spec = self.signature.columns[i]
        name = name or spec.name
        if not place.cached:
            return BatchColumn(name, self._take_mixed(i, place))
        values, rows, offsets = self._cache.take(i, place.arena_rows, place.slot)
        column = BatchColumn(name, values.reshape(*place.shape, *spec.shape), rows, offsets)
        if rows is not None and len(rows) * _OFFSET_SHARE > len(place.rows):
            return BatchColumn(name, column.widen(spec))
        return column

    def take_wide(self, i: int, place: Place) -> Array:
        """Returns column `i` at a place, in the declared dtype."""
        return self.take(i, place).widen(self.signature.columns[i])

    def _take_mixed(self, i: int, place: Place) -> Array:
        """The rare case that a batch needs more chunks than a ring holds: all of it in the declared dtype."""
        spec, rows, offsets = self.signature.columns[i], place.rows, place.offsets
        values = np.empty((len(rows), *spec.shape), spec.dtype)
        cached = place.location != NONE
        hits = np.flatnonzero(cached)
        if hits.size:
            stored = self._cache.take(i, place.arena_rows[hits], place.slot[hits])
            values[hits] = BatchColumn(spec.name, *stored).widen(spec)
        for row in np.unique(rows[~cached]).tolist():
            here = np.flatnonzero(rows == row)
            values[here] = widen(self._fetched[row].columns[i], spec)[offsets[here]]
        return values.reshape(*place.shape, *spec.shape)

    def take_frames(self, i: int, place: Place, frames: Array, padding: StackPadding, name: str = "") -> BatchColumn:
        """Returns a stack at a place [B, K]; `frames` (bool [B, K]) says which of its entries stand before the episode."""
        column = self.take(i, place, name)
        if padding is StackPadding.REPEAT or not frames.any():
            return column
        if column.offset_rows is not None:
            column = BatchColumn(column.name, column.widen(self.signature.columns[i]))
        column.values[frames] = 0
        return column

    def flags(self, windows: Windows) -> tuple[Array, Array]:
        """Returns (terminated, truncated), bool [B], of the windows' last steps."""
        chunks = self.index.chunks
        at = windows.end_row - chunks.base
        flags = np.where(windows.end_offset == chunks["n_steps"].take(at) - 1, chunks["flags"].take(at), 0)
        return (flags & TERMINATED) != 0, (flags & TRUNCATED) != 0


def frames_until(index: TableIndex, row: Array, offset: Array, count: int) -> Frames:
    """Returns the `count` observations that end with row `offset` of chunk `row`."""
    chunks = index.chunks
    return resolve_backward(row, offset, count, chunks["n_steps"], chunks["first_step"], chunks["prev_row"], chunks.base)


def item_columns(plan: Plan, source: Source) -> list[BatchColumn]:
    """Returns the columns that tell where each window comes from."""
    index, drawn = source.index, plan.drawn
    assert plan.weights is not None
    chunks = index.chunks
    at = plan.windows.rows[:, 0] - chunks.base
    plain = {
        "positions": drawn.positions,
        "episode_id": chunks["episode_id"].take(at),
        "t": chunks["first_step"].take(at) + plan.windows.offsets[:, 0],
        "probability": drawn.probability,
        "importance_weight": plan.weights,
        "age_s": (source.now_s - chunks["committed_at_s"].take(at)).astype(np.float32),
        "policy_version": chunks["policy_version"].take(at),
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
    anchor = source.place(windows.rows[:, 0], windows.offsets[:, 0])
    reward_at = layout.reward
    rewards = source.take(reward_at, anchor if what.n_step == 1 else source.place(windows.rows, windows.offsets)).values
    ends = Ends(rewards.reshape(windows.rows.shape), windows.counts, *source.flags(windows))
    goal, columns = None, item_columns(plan, source)
    if plan.goals is not None:
        ends, goal, extra = relabeled_ends(plan, source, ends)
        columns += extra
        if ends.counts is not windows.counts:
            windows = windows.cut(ends.counts)
    after = source.place(windows.end_row, windows.end_offset + 1)
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
