"""What is told of tables: a row of each, and of one of them all that it knows of itself."""

from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from replaysvc.admin.context import Admin
from replaysvc.chunk_steps import choose_chunk_steps
from replaysvc.errors import NotFoundError
from replaysvc.health.verdict import SeenTable
from replaysvc.table import Table
from replaysvc.types import Array, TableStats
from replaysvc.views import ColumnView, HistogramView, TableCounts

_BINS = 40
_DAMAGE = ("quarantined_chunks", "quarantined_segments", "lost_segments")


def share(part: float, whole: float) -> float | None:
    """Returns part / whole, None of nothing."""
    return part / whole if whole else None


class Told(NamedTuple):
    """A table: what it counts, and the row that tells of it."""

    stats: TableStats
    counts: TableCounts
    row: dict[str, Any]


def told_tables(admin: Admin) -> list[Told]:
    """Returns all tables, in the order of names."""
    return [Told(seen.stats, seen.counts, _row(seen)) for seen in admin.health.tables()]


def _row(seen: SeenTable) -> dict[str, Any]:
    stats, counts, limiter = seen.stats, seen.counts, seen.stats.limiter
    return {
        "name": stats.name, "steps": stats.steps, "episodes": stats.episodes, "open_episodes": stats.open_episodes,
        "disk_bytes": stats.disk_bytes, "stored_bytes": stats.stored_bytes, "raw_bytes": stats.raw_bytes,
        "ratio": share(stats.raw_bytes, stats.stored_bytes), "steps_in_per_s": seen.steps_in_per_s,
        "items_out_per_s": seen.items_out_per_s, "samples_per_insert": share(limiter["sampled"], limiter["inserted"]),
        "samples_per_insert_target": limiter["samples_per_insert"],
        "cache_hit_share": share(stats.cache_hits_total, stats.sampled_items_total), "ready": stats.ready,
        "sampling_waits_for": stats.waiting_for, "inserting_waits_for": counts.inserting_waits_for,
        "waiting": {side: counts.waiting.get(side, 0) for side in ("insert", "sample")}, "fault": stats.fault,
    } | {name: getattr(stats, name) for name in _DAMAGE}  # fmt: skip


def table_of(admin: Admin, name: str) -> dict[str, Any]:
    """Returns all that a table tells of itself. Raises NotFoundError."""
    table = admin.replay.engine(name)
    stats, counts, config, rates = table.stats(), table.counted(), table.config, admin.health.watch.rates(name)
    row = _row(SeenTable(stats, counts, rates["steps_in_per_s"], rates["items_out_per_s"]))
    limiter = {key: config.limiter.to_json()[key] for key in ("min_steps", "samples_per_insert", "error_buffer")}
    return row | {
        "uuid": table.uuid, "config": config.to_json(), "signature": table.signature.to_json(),
        "chunk_steps": choose_chunk_steps(table.signature, config), "capacity": _capacity(table, stats),
        "limiter": limiter | {"inserted": stats.limiter["inserted"], "sampled": stats.limiter["sampled"]},
        "waited_s": {side: counts.waited_s.get(side, 0.0) for side in ("insert", "sample")}, "stats": asdict(stats),
        "samplers": [asdict(sampler) for sampler in table.looking.samplers()], "removed_steps": counts.removed_steps,
        "ended_episodes": counts.ended_episodes, "her": {"items": counts.her_items, "relabeled": counts.her_relabeled},
        "sampled_items": counts.sampled_items, "cache": {
            "used_bytes": stats.cache_bytes, "budget_bytes": counts.cache_budget_bytes, "evictions": counts.cache_evictions,
        },
    }  # fmt: skip


def _capacity(table: Table, stats: TableStats) -> dict[str, Any]:
    config = table.config
    bounds = {"steps": config.capacity_steps, "bytes": config.capacity_bytes, "episodes": config.capacity_episodes}
    used = {"steps": stats.steps, "bytes": stats.stored_bytes, "episodes": stats.episodes}
    shares = [used[name] / bound for name, bound in bounds.items() if bound]
    return bounds | {"full_share": max(shares, default=None)}


def ages_of(admin: Admin, name: str) -> dict[str, Any]:
    """Returns how old the stored steps are, and how far behind the newest the sampled ones lay. Raises NotFoundError."""
    table = admin.replay.engine(name)
    view, sampled = table.looking.ages(1024), table.counted().sample_age_steps
    edges, shares = distribution(view.ages_s)
    quantiles = np.quantile(view.ages_s, (0, 0.5, 0.9, 1)).tolist() if len(view.ages_s) else [None] * 4
    return {
        "stored": {"edges_s": edges, "share": shares}, "sampled": {"edges_steps": _edges(sampled), "counts": sampled.counts},
        "quantiles": dict(zip(("p0", "p50", "p90", "p100"), quantiles, strict=True)), "steps": view.steps,
    }  # fmt: skip


def _edges(view: HistogramView) -> list[float]:
    """Returns the edges of a histogram's bins, one more than counts: the first begins at 0, the last ends somewhere."""
    last = view.bounds[-1] if view.bounds else 0
    return [0, *view.bounds, last * 4]


def distribution(values: Array, low: float | None = None, high: float | None = None) -> tuple[Array, Array]:
    """Returns edges [n + 1] and the share of values in each bin [n]; no bins of no values."""
    if not len(values):
        return np.empty(0), np.empty(0)
    low = float(values.min()) if low is None else low
    high = float(values.max()) if high is None else high
    if not np.isfinite(high - low) or high <= low:
        high = low + max(abs(low) * 1e-6, 1e-9)
    counts, edges = np.histogram(values, bins=_BINS, range=(low, high))
    return edges, counts / len(values)


def columns_of(admin: Admin, name: str) -> list[dict[str, Any]]:
    """Returns the bytes of each column of a table. Raises NotFoundError."""
    return [told_column(name, view) for view in admin.replay.engine(name).looking.columns(256)]


def told_column(table: str, view: ColumnView) -> dict[str, Any]:
    """Returns what is told of a column."""
    return {
        "table": table, "name": view.name, "dtype": view.dtype, "shape": view.shape, "raw_bytes": view.raw_bytes,
        "stored_bytes": view.stored_bytes, "ratio": share(view.raw_bytes, view.stored_bytes),
        "lossless_share": share(view.lossless_chunks, view.chunks), "lossless_chunks": view.lossless_chunks,
        "chunks": view.chunks,
    }  # fmt: skip


def sampler_of(admin: Admin, name: str, sampler: str) -> dict[str, Any]:
    """Returns what a sampler would draw now, and of a prioritized one the priorities. Raises NotFoundError."""
    looking = admin.replay.engine(name).looking
    found = next((asdict(view) for view in looking.samplers() if view.name == sampler), None)
    if found is None:
        raise NotFoundError(f"table {name}: no sampler {sampler!r}")
    return found | {
        "priorities": _priorities(admin, name, sampler), "draws": _draws(admin, name, sampler),
        "top": [asdict(step) for step in looking.top(sampler, 20)],
    }  # fmt: skip


def _priorities(admin: Admin, name: str, sampler: str) -> dict[str, Any] | None:
    view = admin.replay.engine(name).looking.priorities(sampler)
    if view is None:
        return None
    edges, shares = distribution(view.values)
    return {
        "edges": edges, "share": shares, "zero_share": view.zero_share, "total": view.powered_total,
        "largest": view.powered_largest, "alpha": view.alpha,
    }  # fmt: skip


def _draws(admin: Admin, name: str, sampler: str) -> dict[str, Any] | None:
    looking = admin.replay.engine(name).looking
    view = looking.draws(sampler)
    if view is None or not len(view.ages_s):
        return None
    stored = looking.ages(1024).ages_s
    both = np.concatenate((view.ages_s, stored))
    low, high = float(both.min()), float(both.max())
    edges, drawn = distribution(view.ages_s, low, high)
    _, there = distribution(stored, low, high)
    chances = np.quantile(view.probability, (0, 0.5, 1)).tolist()
    return {
        "age_edges_s": edges, "drawn_share": drawn, "stored_share": there,
        "probability": dict(zip(("min", "p50", "max"), chances, strict=True)) | {"uniform": view.uniform_probability},
    }  # fmt: skip
