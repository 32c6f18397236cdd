"""The finished snapshots in a directory."""

import logging
from pathlib import Path

from replaysvc.errors import ReplayError
from replaysvc.storage import manifest
from replaysvc.storage.snapshot import UNFINISHED
from replaysvc.views import SnapshotView

log = logging.getLogger(__name__)


class Snapshots:
    """Lists a directory's snapshots; reads a manifest again only if its file has changed. Holds no lock."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, tuple[tuple[int, int, int], SnapshotView | None]] = {}

    def views(self) -> list[SnapshotView]:
        """Returns the snapshots that have a manifest as it should be, the newest first; none if there is no directory."""
        try:
            paths = sorted(path for path in self._directory.iterdir() if not UNFINISHED.fullmatch(path.name))
        except OSError:
            return []
        known, seen = self._read, {}
        for path in paths:
            try:
                status = (path / manifest.NAME).stat()
            except OSError:  # it is none
                continue
            mark = status.st_ino, status.st_mtime_ns, status.st_size
            found = known.get(path)
            seen[path] = found if found is not None and found[0] == mark else (mark, _view(path))
        self._read = seen
        return sorted((view for _, view in seen.values() if view is not None), key=lambda view: -view.made_at_s)


def _view(path: Path) -> SnapshotView | None:
    try:
        found = manifest.read_manifest(path)
        return SnapshotView(name=path.name, made_at_s=float(found.made_at_s), bytes=found.size)
    except (ReplayError, ValueError, TypeError) as error:
        log.warning("snapshot %s is not listed: %s", path, error)
        return None
