"""The file system as one store may use it: in a directory that is still its own, and with something to give up when full."""

from collections.abc import Callable
from pathlib import Path

from replaysvc.errors import StorageError
from replaysvc.storage.ownership import Ownership
from replaysvc.storage.reserve import Reserve
from replaysvc.storage.system import DISK_FULL, GONE, System


class StoreSystem(System):
    """Passes everything on to another System. A write into the store's directory that finds the disk full is tried again
    after the reserve is given up; one into a directory that is not the store's any more is refused."""

    def __init__(self, inner: System, path: Path, ownership: Ownership, disk_reserve_bytes: int) -> None:
        self._inner, self._path, self._ownership = inner, path, ownership
        self._reserve = Reserve(path, disk_reserve_bytes, inner)

    @property
    def fault(self) -> str:
        """Returns why the directory is not ours any more."""
        return self._ownership.fault

    def admit(self, size: int) -> None:
        """Raises StorageError: the directory is not ours any more. CapacityError: too little would be left free."""
        self._ownership.check()
        self._reserve.admit(size)

    def _write(self, path: Path, action: Callable[[], None], size: int = 0) -> None:
        if self._path not in path.parents:  # a snapshot's
            action()
            return
        try:
            self._ownership.check()
        except StorageError as error:
            raise OSError(GONE, str(error)) from error
        try:
            action()
        except OSError as error:
            if error.errno not in DISK_FULL or not self._reserve.give_up(size):
                raise
            action()

    def rename(self, source: Path, target: Path) -> None:
        """Renames, and makes both directories durable."""
        self._write(target, lambda: self._inner.rename(source, target))
        self._reserve.take_again()

    def replace(self, source: Path, target: Path) -> None:
        """Renames; durable once the target's directory is."""
        self._write(target, lambda: self._inner.replace(source, target))
        self._reserve.take_again()

    def write_file(self, path: Path, data: bytes) -> None:
        """Writes a whole file, durably but for its directory entry."""
        self._write(path, lambda: self._inner.write_file(path, data), len(data))

    def make_directory(self, path: Path) -> None:
        """Makes a directory; durable once its parent is."""
        self._write(path, lambda: self._inner.make_directory(path))

    def remove_tree(self, path: Path) -> None:
        """Removes a directory with all in it, or a file."""
        self._write(path, lambda: self._inner.remove_tree(path))
        self._reserve.take_again()

    def reserve(self, path: Path, size: int) -> None:
        """Makes sure that the first `size` bytes of a file, made if absent, have their place on the disk."""
        self._write(path, lambda: self._inner.reserve(path, size))

    # -- the rest is the other's alone --------------------------------------------------------------------------------

    def time(self) -> float:
        """Returns seconds since 1970."""
        return self._inner.time()

    def monotonic(self) -> float:
        """Returns seconds of a clock that nobody sets."""
        return self._inner.monotonic()

    def crashpoint(self, name: str) -> None:
        """Does nothing, unless a test wants it."""
        self._inner.crashpoint(name)

    def fsync_directory(self, path: Path) -> None:
        """Makes the entries of a directory durable."""
        self._inner.fsync_directory(path)

    def fsync_file(self, path: Path) -> None:
        """Makes the contents of a file durable."""
        self._inner.fsync_file(path)

    def link(self, source: Path, target: Path) -> None:
        """Gives a file a second name, or copies it."""
        self._inner.link(source, target)

    def copy(self, source: Path, target: Path) -> None:
        """Copies a file, durably but for its directory entry."""
        self._inner.copy(source, target)

    def free_bytes(self, path: Path) -> int:
        """Returns the bytes that may still be written."""
        return self._inner.free_bytes(path)

    def root_bytes(self, path: Path) -> int:
        """Returns the bytes that are free, but for root alone."""
        return self._inner.root_bytes(path)

    def total_bytes(self, path: Path) -> int:
        """Returns the size of the file system."""
        return self._inner.total_bytes(path)

    def can_grow(self, path: Path) -> bool:
        """Returns whether the disk has room for one more page of a file."""
        return self._inner.can_grow(path)
