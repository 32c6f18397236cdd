"""What a store keeps of the disk for itself: room that no append may take, and a file that gives way to a small write."""

import logging
import os
import threading
from pathlib import Path

from replaysvc.errors import CapacityError
from replaysvc.storage.system import System

log = logging.getLogger(__name__)

NAME = "RESERVE"
MOST_BYTES = 8 << 20
_SHARE = 32  # of the reserve, the file is this part
_LEAST_BYTES = 16 << 10  # where there is no room for all of the file, as much of it is made as there is room for


class Reserve:
    """Bytes that stay free for what a store must note whatever happens: deletions, descriptions, states. Thread-safe.

    The file system may be filled by others, too; then the file RESERVE has a part of them, which a small write is given.
    """

    def __init__(self, path: Path, wanted_bytes: int, system: System) -> None:
        """`wanted_bytes`: to be left free by appends; 0: none, and no file is kept."""
        self._path, self._file, self._system = path, path / NAME, system
        self._wanted, self._size = wanted_bytes, min(MOST_BYTES, wanted_bytes // _SHARE)
        self._lock = threading.Lock()
        self._held, self._told, self._refuses = 0, False, False
        if self._size:
            self._take()
        else:
            self._file.unlink(missing_ok=True)

    def admit(self, size: int) -> None:
        """Makes the file again, if it was given up and there is room. Raises CapacityError: `size` bytes more are too many."""
        if not self._wanted:
            return
        free = self._system.free_bytes(self._path)
        if free < self._wanted + size:
            full = f"the disk is full: expected {self._wanted + size} bytes free to append {size}"
            found = f"(disk_reserve_bytes={self._wanted}), found {free}"
            if not self._refuses:
                self._refuses = True
                log.warning("store %s: %s %s; appends are refused until there are", self._path, full, found)
            raise CapacityError(f"store {self._path}: {full} {found}")
        if self._refuses:
            self._refuses = False
            log.warning("store %s: %d bytes are free: appends are taken again", self._path, free)
        if self._held < self._size and free >= self._wanted + size + self._size:
            self._take()

    def give_up(self, size: int) -> bool:
        """Gives the file's room to whoever found the disk full; returns whether there was any, enough for `size` bytes."""
        with self._lock:
            if not self._held or 2 * size > self._held:  # a large set of parameters must not use up what deletions need
                return False
            self._file.unlink(missing_ok=True)
            self._held, self._told = 0, True
            self._system.fsync_directory(self._path)  # a journal may give the blocks to nobody before it is written
        log.warning("store %s: the disk is full; %s is given up for what must be noted", self._path, self._file)
        return True

    def take_again(self) -> None:
        """Makes the file anew if it was given up, as large as there is room: what needed it may have replaced an older file."""
        if self._held < self._size:
            self._take()

    def _take(self) -> None:
        with self._lock:
            size, failed = self._size, None
            while size >= min(_LEAST_BYTES, self._size) and size > self._held:
                try:
                    if self._file.exists() and self._file.stat().st_size > size:
                        self._file.unlink()
                    self._system.reserve(self._file, size)
                    self._held, self._told = size, False
                    return
                except OSError as error:
                    failed = error
                    self._shrink()
                    size //= 2
            if not self._held and not self._told:
                log.warning("store %s: no room for %s: %s", self._path, self._file, failed)
                self._told = True

    def _shrink(self) -> None:
        """Gives back what an attempt that failed has taken of the disk."""
        if self._held:
            os.truncate(self._file, self._held)
        else:
            self._file.unlink(missing_ok=True)
