"""What a store takes of its file system, and what that has left."""

import os
from contextlib import suppress
from pathlib import Path

from replaysvc.storage.reserve import NAME
from replaysvc.storage.system import System
from replaysvc.views import DiskView

KEPT_S = 60.0  # for so long it holds what the files took


class DiskUse:
    """Looks at a store's directory. Holds no lock: two who look at once may both count the files."""

    def __init__(self, path: Path, reserve_bytes: int, system: System) -> None:
        """`reserve_bytes`: what appends leave free."""
        self._path, self._reserve_bytes, self._system = path, reserve_bytes, system
        self._counted: tuple[float, int] | None = None  # when, and how much

    def view(self) -> DiskView:
        """Returns how the disk is: what is free as of now, what the files take as of the last minute. Raises OSError."""
        free = self._system.free_bytes(self._path)
        return DiskView(
            used_bytes=self._used_bytes(), set_aside_bytes=_bytes_of(self._path / NAME), free_bytes=free,
            root_bytes=self._system.root_bytes(self._path), total_bytes=self._system.total_bytes(self._path),
            reserve_bytes=self._reserve_bytes,
            refuses=self._reserve_bytes > 0 and free <= self._reserve_bytes,  # an append takes at least a byte
        )  # fmt: skip

    def _used_bytes(self) -> int:
        now, counted = self._system.monotonic(), self._counted
        if counted is not None and now - counted[0] < KEPT_S:
            return counted[1]
        used = _allocated(self._path)
        self._counted = now, used
        return used


def _bytes_of(file: Path) -> int:
    with suppress(OSError):  # there is none now
        return file.lstat().st_blocks * 512
    return 0


def _allocated(directory: Path | str) -> int:
    """Returns the bytes that all files below a directory take on the disk; follows no link."""
    total = 0
    with suppress(OSError), os.scandir(directory) as entries:  # removed meanwhile, or nobody may look into it
        for entry in entries:
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    total += _allocated(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total
