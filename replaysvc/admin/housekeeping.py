"""What is told to whoever looks after the store: how it lies on disk, jobs, settings, the log."""

import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from replaysvc.admin.context import Admin
from replaysvc.admin.overview import disk_of
from replaysvc.errors import NotFoundError
from replaysvc.histogram import quantile
from replaysvc.views import HistogramView, TableStorage

_SHOWN = frozenset({
    "data", "host", "port", "insecure", "tls_certificate", "tls_client_ca", "grace_s", "log_level", "log_format", "admin_port",
    "admin_host", "admin_names", "reflection", "recent_cache_bytes", "faulted_cache_bytes", "commit_interval_s", "commit_bytes",
    "queue_bytes", "request_bytes", "answer_bytes", "shared_bytes", "state_interval_s", "disk_reserve_bytes",
    "scrub_bytes_per_s", "snapshot_dir",
})  # fmt: skip
"""Settings whose values are shown. Of all others, it is told whether they are given."""

_PACKAGES = ("numpy", "zstandard", "xxhash", "lmdb", "grpcio", "protobuf", "fastapi", "starlette", "uvicorn", "h11", "plotly")


def storage_of(admin: Admin) -> dict[str, Any]:
    """Returns how all tables lie on disk, and what is done for their safety."""
    replay, tables = admin.replay, []
    for name in replay.tables():
        try:
            tables.append(_table(name, replay.engine(name).storage()))
        except NotFoundError:  # deleted meanwhile
            continue
    return {
        "disk": disk_of(admin.health.disk()), "tables": tables, "scrub": asdict(replay.scrub()),
        "snapshots": [asdict(snapshot) for snapshot in replay.snapshots()], "snapshot_dir": replay.config.snapshot_dir,
        "quarantined_tables": replay.quarantined_tables,
    }  # fmt: skip


def _table(name: str, storage: TableStorage) -> dict[str, Any]:
    return {
        "name": name, "segments": [asdict(segment) for segment in storage.segments], "commit": _durations(storage.commit_s),
        "sync": _durations(storage.sync_s), "readers": storage.readers, "quarantined_chunks": storage.quarantined_chunks,
        "quarantined_segments": storage.quarantined_segments, "lost_segments": storage.lost_segments,
    }  # fmt: skip


def _durations(view: HistogramView) -> dict[str, Any]:
    return {
        "count": sum(view.counts), "p50_s": quantile(view, 0.5), "p99_s": quantile(view, 0.99),
        "edges": [0, *view.bounds, view.bounds[-1] * 2], "counts": view.counts,
    }  # fmt: skip


def jobs_of(admin: Admin) -> dict[str, Any]:
    """Returns the long pieces of work, the newest first."""
    return {"jobs": [asdict(job) for job in admin.replay.jobs.views()]}


def configuration_of(admin: Admin) -> dict[str, Any]:
    """Returns how the service was started. No setting is a secret; paths of files that hold one are not shown either."""
    settings = [
        {"name": name, "value": value if name in _SHOWN else ("given" if value else None), "secret": name not in _SHOWN}
        for name, value in admin.settings.items()
    ]
    return {
        "settings": settings, "store": asdict(admin.replay.config), "limits": admin.limits,
        "python": platform.python_version(), "packages": {name: found for name in _PACKAGES if (found := _version(name))},
    }  # fmt: skip


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def log_of(admin: Admin) -> dict[str, Any]:
    """Returns the last lines of the log, the oldest first."""
    return {"lines": list(admin.log_lines())}
