"""The first page: how all is, on one look."""

import platform
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from replaysvc.admin.calls import calls_of
from replaysvc.admin.context import Admin
from replaysvc.admin.history import days_left
from replaysvc.admin.tables import Told, share
from replaysvc.admin.verdict import verdict
from replaysvc.admin.watch import Watch
from replaysvc.metrics import memory
from replaysvc.views import DiskView

_MEMORY = {"anonymous_bytes": "anon", "file_bytes": "file", "shared_bytes": "shmem"}


def overview_of(
    admin: Admin, watch: Watch, started_at_s: float, tables: list[Told], columns: list[dict[str, Any]],
    actors: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Returns how all is. columns: of all tables; actors: as `participants` tells of them."""
    replay = admin.replay
    disk, backlog = replay.disk(), replay.backlog()
    told, taken, rows = disk_of(disk, watch), memory(), [table.row for table in tables]
    return {
        "at_s": admin.wall(), "started_at_s": started_at_s, "version": admin.version,
        "python": platform.python_version(), "address": admin.address, "data": admin.data,
        "verdict": verdict(
            admin.status(), rows, disk, told["days_left"], backlog, actors["actors"], replay.quarantined_tables
        ),
        "totals": _totals(tables, disk), "rates": watch.rates(None), "disk": told, "backlog": asdict(backlog),
        "memory": {name: taken.get(kind, 0) for name, kind in _MEMORY.items()},
        "calls": calls_of(admin.activity.calls()), "tables": rows, "columns": columns,
    }  # fmt: skip


def disk_of(disk: DiskView, watch: Watch) -> dict[str, Any]:
    """Returns how full the disk is, and when it will be."""
    growth = watch.growth()
    left = days_left(disk.free_bytes, disk.reserve_bytes, growth)
    return asdict(disk) | {"growth_bytes_per_day": growth, "days_left": left}


def _totals(tables: list[Told], disk: DiskView) -> dict[str, Any]:
    stats, counts = [table.stats for table in tables], [table.counts for table in tables]
    items = sum(one.sampled_items_total for one in stats)
    return {
        "tables": len(tables), "steps": sum(one.steps for one in stats), "episodes": sum(one.episodes for one in stats),
        "open_episodes": sum(one.open_episodes for one in stats), "stored_bytes": sum(one.stored_bytes for one in stats),
        "raw_bytes": sum(one.raw_bytes for one in stats), "disk_bytes": disk.used_bytes,
        "appended_steps_total": sum(one.appended_steps_total for one in stats), "sampled_items_total": items,
        "lossless_fallbacks": sum(one.lossless_fallbacks_total for one in stats),
        "cache_bytes": sum(one.cache_bytes for one in stats),
        "cache_budget_bytes": sum(one.cache_budget_bytes for one in counts),
        "cache_hit_share": share(sum(one.cache_hits_total for one in stats), items),
    }  # fmt: skip
