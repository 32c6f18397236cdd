"""From drawn positions to columns: the draw, resolve, gather and transform of one batch, each over the whole batch.

The table holds its lock around both functions; nothing here touches the disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from replaysvc.batch import BatchColumn
from replaysvc.cache import Cache
from replaysvc.codec import DecodedChunk, widen
from replaysvc.nstep import nstep_discount, nstep_return
from replaysvc.selectors import Selector
from replaysvc.spec import Signature
from replaysvc.table_index import NONE, TERMINATED, TRUNCATED, TableIndex
from replaysvc.types import Array, Transitions
from replaysvc.windows import Windows, resolve_forward

_REDRAWS = 64  # chosen by hand: a draw that lands on lost steps is repeated this often


@dataclass(frozen=True, slots=True)
class Plan:
    """A drawn batch: where its windows stand, as rows of the index, which never shift."""

    what: Transitions
    positions: Array
    probability: Array
    windows: Windows
    rows_needed: Array  # unique chunk rows
    first_row: int


def plan_transitions(index: TableIndex, selector: Selector, rng: np.random.Generator, count: int, what: Transitions) -> Plan | None:
    """Draws `count` anchors and resolves their windows; None if readable steps cannot be found."""
    positions, probability = selector.draw(rng, count)
    rows = index.row_of(positions)
    for _ in range(_REDRAWS):
        bad = np.flatnonzero(~index.drawable(positions, rows))
        if not bad.size:
            break
        positions[bad], probability[bad] = selector.draw(rng, len(bad))
        rows[bad] = index.row_of(positions[bad])
    else:
        return None
    chunks = index.chunks
    offsets = positions - chunks["position"][rows - chunks.base]
    windows = resolve_forward(rows, offsets, what.n_step, chunks["n_steps"], chunks["next_row"], chunks.base)
    needed = np.unique(windows.rows)
    return Plan(what, positions, probability, windows, needed, int(needed[0]))


def gather(
    plan: Plan, index: TableIndex, cache: Cache, signature: Signature, fetched: Mapping[int, DecodedChunk], now_s: float
) -> list[BatchColumn]:
    """Returns the columns of a planned batch. Every chunk of it is in the cache, or else in `fetched` (by row)."""
    windows, what = plan.windows, plan.what
    anchor, anchor_offset = windows.rows[:, 0], windows.offsets[:, 0]
    arena = _Arena(index, cache, signature, fetched)
    columns = []
    for i, spec in enumerate(signature.columns):
        if spec.name == "reward":
            rewards = arena.take(i, windows.rows.ravel(), windows.offsets.ravel()).values.reshape(windows.rows.shape)
            columns.append(BatchColumn("reward", nstep_return(rewards, windows.steps(), what.gamma)))
            continue
        columns.append(arena.take(i, anchor, anchor_offset))
        if i < signature.observation_columns:
            after = arena.take(i, windows.end_row, windows.end_offset + 1)
            columns.append(BatchColumn(f"next_{spec.name}", after.values, after.offset_rows, after.offset_values))
    flags = index.field("flags", windows.end_row)
    at_end = windows.end_offset == index.field("n_steps", windows.end_row) - 1
    terminated = at_end & ((flags & TERMINATED) != 0)
    plain = {
        "discount": nstep_discount(windows.counts, terminated, what.gamma),
        "terminated": terminated,
        "truncated": at_end & ((flags & TRUNCATED) != 0),
        "positions": plan.positions,
        "episode_id": index.field("episode_id", anchor),
        "t": index.field("first_step", anchor) + anchor_offset,
        "probability": plan.probability,
        "importance_weight": np.ones(len(plan.positions), np.float32),
        "age_s": (now_s - index.field("committed_at_s", anchor)).astype(np.float32),
        "policy_version": index.field("policy_version", anchor),
    }
    return columns + [BatchColumn(name, values) for name, values in plain.items()]


class _Arena:
    """Takes rows of chunks out of the cache, or out of fetched chunks where the cache could not keep them."""

    def __init__(self, index: TableIndex, cache: Cache, signature: Signature, fetched: Mapping[int, DecodedChunk]) -> None:
        self._index, self._cache, self._signature, self._fetched = index, cache, signature, fetched

    def take(self, i: int, rows: Array, offsets: Array) -> BatchColumn:
        """Returns column `i` at `offsets` within chunk `rows`."""
        name = self._signature.columns[i].name
        location, slot = self._index.field("location", rows), self._index.field("slot", rows)
        cached = location != NONE
        if cached.all():
            return BatchColumn(name, *self._cache.take(i, location + offsets, slot))
        return self._take_mixed(i, rows, offsets, cached, location, slot)

    def _take_mixed(self, i: int, rows: Array, offsets: Array, cached: Array, location: Array, slot: Array) -> BatchColumn:
        """The rare case that a batch needs more chunks than a ring holds: all of it in the declared dtype."""
        spec = self._signature.columns[i]
        values = np.empty((len(rows), *spec.shape), spec.dtype)
        hits = np.flatnonzero(cached)
        if hits.size:
            values[hits] = BatchColumn(spec.name, *self._cache.take(i, location[hits] + offsets[hits], slot[hits])).widen(spec)
        for row in np.unique(rows[~cached]).tolist():
            here = np.flatnonzero(rows == row)
            values[here] = widen(self._fetched[row].columns[i], spec)[offsets[here]]
        return BatchColumn(spec.name, values)
