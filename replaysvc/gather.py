"""From drawn positions to columns: the draw, resolve, gather and transform of one batch, each over the whole batch.

The table holds its lock around these functions; nothing here touches the disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from replaysvc.batch import BatchColumn
from replaysvc.cache import Cache
from replaysvc.codec import DecodedChunk, widen
from replaysvc.nstep import nstep_discount, nstep_return
from replaysvc.requests import Transitions
from replaysvc.selectors import Selector
from replaysvc.spec import Signature
from replaysvc.table_index import NONE, TERMINATED, TRUNCATED, TableIndex
from replaysvc.types import Array
from replaysvc.windows import Windows, resolve_forward

_REDRAWS = 64  # chosen by hand: a draw that lands on lost steps is repeated this often
_OFFSET_SHARE = 4  # a column with offsets in more than one item of so many travels in the declared dtype: that is smaller then


@dataclass(frozen=True, slots=True)
class Plan:
    """A drawn batch: where its windows stand, as rows of the index, which never shift."""

    what: Transitions
    positions: Array
    probability: Array
    windows: Windows


def plan_transitions(
    index: TableIndex, selector: Selector, rng: np.random.Generator, count: int, what: Transitions
) -> Plan | None:
    """Draws `count` anchors and resolves their windows; None if readable steps cannot be found."""
    positions, probability = selector.draw(rng, count)
    rows = index.row_of(positions)
    for _ in range(_REDRAWS):
        drawable = index.drawable(positions, rows)
        if drawable.all():
            break
        bad = np.flatnonzero(~drawable)
        positions[bad], probability[bad] = selector.draw(rng, len(bad))
        rows[bad] = index.row_of(positions[bad])
    else:
        return None
    chunks = index.chunks
    offsets = positions - chunks["position"].take(rows - chunks.base)
    windows = resolve_forward(rows, offsets, what.n_step, chunks["n_steps"], chunks["next_row"], chunks.base)
    return Plan(what, positions, probability, windows)


def missing_rows(plan: Plan, index: TableIndex, fetched: Mapping[int, DecodedChunk]) -> list[int] | None:
    """Returns the chunk rows of a plan that are neither cached nor fetched; None if some were removed meanwhile."""
    rows, chunks = plan.windows.rows, index.chunks
    if chunks.base and int(rows.min()) < chunks.base:
        return None
    absent = chunks["location"].take(rows - chunks.base) == NONE
    if not absent.any():
        return []
    return [row for row in np.unique(rows[absent]).tolist() if row not in fetched]


def gather(
    plan: Plan, index: TableIndex, cache: Cache, signature: Signature, fetched: Mapping[int, DecodedChunk], now_s: float
) -> list[BatchColumn]:
    """Returns the columns of a planned batch. Every chunk of it is in the cache, or else in `fetched` (by row)."""
    windows, what, chunks = plan.windows, plan.what, index.chunks
    anchor = _Place(index, windows.rows[:, 0], windows.offsets[:, 0])
    after = _Place(index, windows.end_row, windows.end_offset + 1)
    source = _Source(cache, signature, fetched)
    columns = []
    for i, spec in enumerate(signature.columns):
        if spec.name == "reward":
            place = anchor if what.n_step == 1 else _Place(index, windows.rows.ravel(), windows.offsets.ravel())
            rewards = source.take(i, place).values.reshape(windows.rows.shape)
            columns.append(BatchColumn("reward", nstep_return(rewards, windows.steps(), what.gamma)))
            continue
        columns.append(source.take(i, anchor))
        if i < signature.observation_columns:
            column = source.take(i, after)
            columns.append(BatchColumn(f"next_{spec.name}", column.values, column.offset_rows, column.offset_values))
    flags = np.where(windows.end_offset == chunks["n_steps"].take(after.at) - 1, chunks["flags"].take(after.at), 0)
    terminated = (flags & TERMINATED) != 0
    plain = {
        "discount": nstep_discount(windows.counts, terminated, what.gamma),
        "terminated": terminated,
        "truncated": (flags & TRUNCATED) != 0,
        "positions": plan.positions,
        "episode_id": chunks["episode_id"].take(anchor.at),
        "t": chunks["first_step"].take(anchor.at) + anchor.offsets,
        "probability": plan.probability,
        "importance_weight": np.ones(len(plan.positions), np.float32),
        "age_s": (now_s - chunks["committed_at_s"].take(anchor.at)).astype(np.float32),
        "policy_version": chunks["policy_version"].take(anchor.at),
    }
    return columns + [BatchColumn(name, values) for name, values in plain.items()]


class _Place:
    """Steps, as chunk rows and offsets, and where they stand in the cache; found once for all columns."""

    def __init__(self, index: TableIndex, rows: Array, offsets: Array) -> None:
        self.rows, self.offsets = rows, offsets
        self.at = rows - index.chunks.base
        self.location = index.chunks["location"].take(self.at)
        self.slot = index.chunks["slot"].take(self.at)
        self.cached = bool((self.location != NONE).all())
        self.arena_rows = self.location + offsets


class _Source:
    """Takes rows of chunks out of the cache, or out of fetched chunks where the cache could not keep them."""

    def __init__(self, cache: Cache, signature: Signature, fetched: Mapping[int, DecodedChunk]) -> None:
        self._cache, self._signature, self._fetched = cache, signature, fetched

    def take(self, i: int, place: _Place) -> BatchColumn:
        """Returns column `i` at a place."""
        spec = self._signature.columns[i]
        if not place.cached:
            return self._take_mixed(i, place)
        column = BatchColumn(spec.name, *self._cache.take(i, place.arena_rows, place.slot))
        if column.offset_rows is not None and len(column.offset_rows) * _OFFSET_SHARE > len(place.rows):
            return BatchColumn(spec.name, column.widen(spec))
        return column

    def _take_mixed(self, i: int, place: _Place) -> BatchColumn:
        """The rare case that a batch needs more chunks than a ring holds: all of it in the declared dtype."""
        spec, rows, offsets = self._signature.columns[i], place.rows, place.offsets
        values = np.empty((len(rows), *spec.shape), spec.dtype)
        cached = place.location != NONE
        hits = np.flatnonzero(cached)
        if hits.size:
            values[hits] = BatchColumn(spec.name, *self._cache.take(i, place.arena_rows[hits], place.slot[hits])).widen(spec)
        for row in np.unique(rows[~cached]).tolist():
            here = np.flatnonzero(rows == row)
            values[here] = widen(self._fetched[row].columns[i], spec)[offsets[here]]
        return BatchColumn(spec.name, values)
