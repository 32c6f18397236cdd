"""From a request to places in the index: draw items, resolve their windows, choose goals; each over the whole batch.

The table holds its lock around these functions; nothing here touches the disk.
"""

from dataclasses import dataclass, replace

import numpy as np

from replaysvc.errors import InvalidRequestError, ReplayError
from replaysvc.index.chunk_links import NONE
from replaysvc.index.table_index import TableIndex
from replaysvc.layout import Layout
from replaysvc.relabel import choose_steps
from replaysvc.requests import AtEnd, Episodes, Sequences, Transitions, Window
from replaysvc.sampling.drawing import Samplers
from replaysvc.sampling.fetch import Fetched
from replaysvc.selectors import Drawn
from replaysvc.types import Array
from replaysvc.windows import Frames, Windows, resolve_backward, resolve_forward

_NONE_BAD = np.empty(0, np.int64)
_REDRAWS = 64  # chosen by hand: items whose windows cannot be read are drawn again this often


@dataclass(frozen=True, slots=True)
class Goals:
    """relabeled: bool [B]. rows, offsets: int64 [B], the steps after which the new goals were achieved."""

    relabeled: Array
    rows: Array
    offsets: Array

    def part(self, start: int, stop: int) -> "Goals":
        """Returns those of windows [start, stop)."""
        return Goals(self.relabeled[start:stop], self.rows[start:stop], self.offsets[start:stop])


@dataclass(slots=True)
class Plan:
    """A drawn batch: where its windows stand, as rows of the index, which never shift.

    frames: of the first step's observation and what a stack needs before it, if anything is stacked.
    """

    what: Window
    layout: Layout
    drawn: Drawn
    windows: Windows
    frames: Frames | None
    goals: Goals | None
    weights: Array | None = None  # float32 [B], once the whole batch is drawn

    @property
    def steps(self) -> int:
        """Returns the steps of all windows, with what they are padded by."""
        return len(self.windows.counts) * self.windows.length

    def part(self, start: int, stop: int) -> "Plan":
        """Returns the plan of items [start, stop) alone."""
        return replace(
            self, drawn=Drawn(self.drawn.positions[start:stop], self.drawn.probability[start:stop]),
            windows=self.windows.part(start, stop),
            frames=None if self.frames is None else self.frames.part(start, stop),
            goals=None if self.goals is None else self.goals.part(start, stop),
            weights=None if self.weights is None else self.weights[start:stop],
        )  # fmt: skip

    @property
    def rows(self) -> list[Array]:
        """Returns all chunk rows that the batch is made of."""
        found = [self.windows.runs]
        if self.frames is not None:
            found.append(self.frames.rows)
        if self.goals is not None:
            found.append(self.goals.rows)
        return found


def make_plan(
    index: TableIndex, samplers: Samplers, sampler: str, rng: np.random.Generator, count: int, what: Window, layout: Layout,
    beta: float | None, most_steps: int, batches: int = 1,
) -> Plan | None:  # fmt: skip
    """Draws `count` items, as `batches` equal batches, and resolves their windows; None if readable ones cannot be found.

    Raises:
      InvalidRequestError: windows of more than `most_steps` steps in all.
    """
    exponent = samplers.exponent(sampler, beta)
    drawn = samplers.draw(sampler, what, rng, count, batches)
    for _ in range(_REDRAWS):
        try:
            plan, bad = _resolve(index, rng, what, layout, drawn, most_steps)
        except ReplayError:
            samplers.give_back(sampler, what, drawn.positions)
            raise
        if plan is not None:
            plan.weights = samplers.weigh(sampler, what, drawn.probability, exponent, batches)
            return plan
        if samplers.waiting_for(sampler, what, len(bad)):  # a queue has no more
            break
        drawn.positions[bad], drawn.probability[bad] = samplers.draw(sampler, what, rng, len(bad))
    samplers.give_back(sampler, what, np.delete(drawn.positions, bad))
    return None


def _resolve(
    index: TableIndex, rng: np.random.Generator, what: Window, layout: Layout, drawn: Drawn, most_steps: int
) -> tuple[Plan | None, Array]:
    """Returns the plan of drawn items, or none and the numbers of those that cannot be read."""
    positions, chunks = drawn.positions, index.chunks
    base = chunks.base
    rows = index.row_of(positions)
    offsets, there = index.offsets_of(positions, rows)
    if not there.all():
        return None, np.flatnonzero(~there)
    width = 1
    if isinstance(what, Transitions):
        width = what.n_step
    else:
        rows, offsets, width, wanted = _begin(index, what, rows, offsets, layout.most_frames)
        if (rows < base).any():
            return None, np.flatnonzero(rows < base)
    if len(positions) * (width + layout.most_frames) > most_steps:
        raise InvalidRequestError(
            f"batch_size: expected a batch of at most {most_steps} steps, stacks included, since it is made in memory; "
            f"found {len(positions)} windows of up to {width + layout.most_frames}"
        )
    windows = resolve_forward(rows, offsets, width, chunks["n_steps"], chunks["next_row"], base)
    if isinstance(what, Transitions) and layout.most_frames == 1 and what.her is None:
        return Plan(what, layout, drawn, windows, None, None), _NONE_BAD
    bad = np.zeros(len(rows), np.bool_)
    if not isinstance(what, Transitions):
        bad |= windows.counts < wanted  # a lost chunk cuts it
    frames = None
    if layout.most_frames > 1:
        frames = resolve_backward(
            rows, offsets, layout.most_frames, chunks["n_steps"], chunks["first_step"], chunks["prev_row"], base
        )
        oldest = chunks["position"].take(frames.rows[:, 0] - base) + frames.offsets[:, 0]
        bad |= frames.broken | (oldest < index.tail)
    goals = None
    if what.her is not None:
        goals = _choose_goals(index, rng, what, rows, offsets)
        bad |= goals.rows < base
    if bad.any():
        return None, np.flatnonzero(bad)
    return Plan(what, layout, drawn, windows, frames, goals), np.flatnonzero(bad)


def _begin(
    index: TableIndex, what: Sequences | Episodes, rows: Array, offsets: Array, most_frames: int
) -> tuple[Array, Array, int, Array]:
    """Returns (rows, offsets) of the first steps of windows, the longest's steps, and the steps that each must have."""
    chunks = index.chunks
    at = rows - chunks.base
    here = chunks.records.take(at)
    _, length, _ = index.episode_state(here["episode_id"])
    t = here["first_step"] + offsets
    if isinstance(what, Episodes):
        return rows, offsets, int(length.max()), length
    width = what.length + what.n_step - 1
    if what.at_end is AtEnd.PAD:
        return rows, offsets, width, np.ones_like(length)
    late = np.flatnonzero(t + what.length > length)
    if late.size and what.at_end is AtEnd.SHIFT:
        ids = here["episode_id"][late]
        first_row, _, _ = index.episode_state(ids)
        first = index.first_live_step(first_row)
        first += np.where(first > 0, most_frames - 1, 0)  # where the first stack is whole
        start = np.maximum(length[late] - what.length, first)
        rows, offsets = rows.copy(), offsets.copy()
        rows[late] = index.locate(ids, start)
        known = late[rows[late] >= chunks.base]
        offsets[known] = start[rows[late] >= chunks.base] - chunks["first_step"][rows[known] - chunks.base]
        t = t.copy()
        t[late] = start
    return rows, offsets, width, np.minimum(what.length, length - t)


def _choose_goals(index: TableIndex, rng: np.random.Generator, what: Window, rows: Array, offsets: Array) -> Goals:
    assert what.her is not None
    chunks = index.chunks
    at = rows - chunks.base
    here = chunks.records.take(at)
    ids = here["episode_id"]
    first_row, length, _ = index.episode_state(ids)
    first = index.first_live_step(first_row)
    relabeled = rng.random(len(rows)) < what.her.ratio
    steps = choose_steps(rng, what.her.goal, here["first_step"] + offsets, first, length)
    found = index.locate(ids, steps)
    known = np.where(found >= chunks.base, found - chunks.base, at)
    found = np.where(relabeled, found, rows)  # of the others any will do
    return Goals(relabeled, found, np.where(relabeled, steps - chunks["first_step"][known], offsets))


def missing_rows(plan: Plan, index: TableIndex, fetched: Fetched | None = None) -> Array | None:
    """Returns the chunk rows of a plan, ascending, that are neither cached nor fetched; None if some were removed meanwhile."""
    chunks = index.chunks
    missing = []
    for rows in plan.rows:
        if chunks.base and int(rows.min()) < chunks.base:
            return None
        absent = chunks["location"][rows - chunks.base] == NONE
        if absent.any():
            missing.append(rows[absent])
    if not missing:
        return np.empty(0, np.int64)
    found = np.unique(np.concatenate(missing))
    return found if fetched is None else fetched.lacking(found)
