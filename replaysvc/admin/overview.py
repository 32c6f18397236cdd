"""The first page: how all is, on one look."""

import platform
from dataclasses import asdict
from typing import Any

from replaysvc.admin.calls import calls_of
from replaysvc.admin.context import Admin
from replaysvc.admin.tables import Told, share
from replaysvc.metrics import memory
from replaysvc.views import DiskOutlook

_MEMORY = {"anonymous_bytes": "anon", "file_bytes": "file", "shared_bytes": "shmem"}


def overview_of(admin: Admin, started_at_s: float, tables: list[Told], columns: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns how all is. columns: of all tables."""
    health, disk, taken = admin.health, admin.health.disk(), memory()
    return {
        "at_s": admin.wall(), "started_at_s": started_at_s, "version": admin.version,
        "python": platform.python_version(), "address": admin.address, "data": admin.data,
        "verdict": asdict(health.verdict()), "totals": _totals(tables, disk), "rates": health.watch.rates(None),
        "disk": disk_of(disk), "backlog": asdict(admin.replay.backlog()),
        "memory": {name: taken.get(kind, 0) for name, kind in _MEMORY.items()},
        "calls": calls_of(admin.activity.calls()), "tables": [table.row for table in tables], "columns": columns,
    }  # fmt: skip


def disk_of(disk: DiskOutlook | None) -> dict[str, Any] | None:
    """Returns how full the disk is, and when it will be; None if that cannot be known."""
    if disk is None:
        return None
    return asdict(disk.view) | {
        "full_share": disk.view.full_share, "growth_bytes_per_day": disk.growth_bytes_per_day, "days_left": disk.days_left,
    }  # fmt: skip


def _totals(tables: list[Told], disk: DiskOutlook | None) -> dict[str, Any]:
    stats, counts = [table.stats for table in tables], [table.counts for table in tables]
    items = sum(one.sampled_items_total for one in stats)
    return {
        "tables": len(tables), "steps": sum(one.steps for one in stats), "episodes": sum(one.episodes for one in stats),
        "open_episodes": sum(one.open_episodes for one in stats), "stored_bytes": sum(one.stored_bytes for one in stats),
        "raw_bytes": sum(one.raw_bytes for one in stats), "disk_bytes": None if disk is None else disk.view.used_bytes,
        "appended_steps_total": sum(one.appended_steps_total for one in stats), "sampled_items_total": items,
        "lossless_fallbacks": sum(one.lossless_fallbacks_total for one in stats),
        "cache_bytes": sum(one.cache_bytes for one in stats),
        "cache_budget_bytes": sum(one.cache_budget_bytes for one in counts),
        "cache_hit_share": share(sum(one.cache_hits_total for one in stats), items),
    }  # fmt: skip
