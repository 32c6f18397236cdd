"""Whose a store's directory is: one process at a time, and only as long as the directory stands where it was opened."""

import errno
import fcntl
import logging
import os
from pathlib import Path

from replaysvc.errors import StorageError, StoreLockedError

log = logging.getLogger(__name__)


class Ownership:
    """The lock on a store's directory, held by flock on its file LOCK. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Takes the lock. Raises StoreLockedError: another process has it. OSError: the disk."""
        self._path, self._file = path, path / "LOCK"
        self.fault = ""  # why the directory is not ours any more
        self._handle = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._identity = _identity(os.fstat(self._handle))
        except BlockingIOError:
            self.release()
            raise StoreLockedError(f"store {path}: another process has it open") from None

    def check(self) -> None:
        """Raises StorageError if the directory was removed, moved or replaced, or its LOCK; from then on, always.

        Another process may have the directory then. What is written by name would go into a stranger's store, and what is
        written to open files might be found by nobody.
        """
        if not self.fault:
            try:
                if _identity(os.stat(self._file)) == self._identity:
                    return
                found = "another file in its place"
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                    raise StorageError(f"store {self._path}: {error.strerror}") from error
                found = "nothing there"
            self.fault = (
                f"store {self._path}: expected the file LOCK as it was when the store was opened, found {found}; the directory"
                " was removed, moved or replaced; restart the service"
            )
            log.critical("%s", self.fault)
        raise StorageError(self.fault)

    def release(self) -> None:
        """Gives the directory free; twice is fine."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
