"""The clock, every touch of the file system besides LMDB's own, and the places at which a process may end: one object, so that
tests can set the first, fail the second, and be ended at the third."""

import errno
import logging
import os
import shutil
import time
from pathlib import Path

from replaysvc.errors import CapacityError, ReplayError, StorageError

log = logging.getLogger(__name__)

CRASH_POINTS = (
    "store.locked", "copy.renamed", "segment.built", "segment.renamed", "append.before_commit", "append.after_commit",
    "seal.before_footer", "seal.after_footer", "seal.reopened", "remove.before_rename", "remove.after_rename", "table.built",
    "table.renamed", "table.deleted", "params.written", "params.renamed", "state.written", "state.renamed", "deletion.written",
    "deletion.renamed", "deletion.copied", "format.written", "format.renamed", "compact.built", "compact.renamed",
    "merge.built", "merge.renamed",
    "quarantine.copied", "quarantine.written", "quarantine.noted", "snapshot.begun", "snapshot.built", "snapshot.renamed",
    "restore.begun", "restore.built", "restore.renamed",
)  # fmt: skip
"""The places at which a process may end, in the words of FORMAT.md's crash table."""

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
GONE = errno.ESTALE  # of a write into a directory that is not the store's any more
DAMAGED = (errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.EISDIR, errno.ENOTDIR)  # of a read: trying again gives no more
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)  # here a copy does what a link would
_REMOTE = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "glusterfs", "afs")


class System:
    """The real clock and file system. All paths are directories or files of one store."""

    def time(self) -> float:
        """Returns seconds since 1970: for people to read, never to order by."""
        return time.time()

    def monotonic(self) -> float:
        """Returns seconds of a clock that nobody sets: what leases and deadlines go by."""
        return time.monotonic()

    def crashpoint(self, name: str) -> None:
        """Does nothing; a test's subclass ends the process, or the test, here."""

    @property
    def fault(self) -> str:
        """Returns why nothing may be written any more, "" if it may."""
        return ""

    def admit(self, size: int) -> None:
        """Raises CapacityError or StorageError if `size` bytes must not be appended now. A store has its own view of that."""

    def fsync_directory(self, path: Path) -> None:
        """Makes the entries of a directory durable."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, source: Path, target: Path) -> None:
        """Renames, and makes both directories durable."""
        os.rename(source, target)
        self.fsync_directory(target.parent)
        if source.parent != target.parent:
            self.fsync_directory(source.parent)

    def replace(self, source: Path, target: Path) -> None:
        """Renames; durable once the target's directory is."""
        os.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Gives a file that is never written to again a second name, or copies it, durably but for the directory entry."""
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            self.copy(source, target)

    def copy(self, source: Path, target: Path) -> None:
        """Copies a file, durably but for its directory entry."""
        shutil.copyfile(source, target)
        target.chmod(0o600)
        self.fsync_file(target)

    def fsync_file(self, path: Path) -> None:
        """Makes the contents of a file durable."""
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def write_file(self, path: Path, data: bytes) -> None:
        """Writes a whole file, durably but for its directory entry."""
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        finally:
            os.close(handle)

    def make_directory(self, path: Path) -> None:
        """Makes a directory; durable once its parent is."""
        path.mkdir(mode=0o700)

    def remove_tree(self, path: Path) -> None:
        """Removes a directory with all in it, or a file."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

    def free_bytes(self, path: Path) -> int:
        """Returns the bytes that may still be written."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def root_bytes(self, path: Path) -> int:
        """Returns the bytes that are free, but for root alone."""
        status = os.statvfs(path)
        return (status.f_bfree - status.f_bavail) * status.f_frsize

    def total_bytes(self, path: Path) -> int:
        """Returns the size of the file system, with what is taken of it."""
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize

    def reserve(self, path: Path, size: int) -> None:
        """Makes sure that the first `size` bytes of a file, made if absent, have their place on the disk."""
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(handle, 0, size)
        finally:
            os.close(handle)

    def can_grow(self, path: Path) -> bool:
        """Returns whether the disk has room for one more page of a file; leaves the file a page longer if it has."""
        try:
            handle = os.open(path, os.O_WRONLY)
            try:
                os.posix_fallocate(handle, os.fstat(handle).st_size, 4096)
            finally:
                os.close(handle)
        except OSError as error:
            return error.errno not in DISK_FULL
        return True


def disk_error(path: Path, error: OSError) -> ReplayError:
    """Returns what a failure of the file system is called outside."""
    kind = CapacityError if error.errno in DISK_FULL else StorageError
    return kind(f"store {path}: {error.strerror or error}")


def refuse_remote(path: Path) -> None:
    """Raises StorageError if `path` lies on a network file system, on which LMDB's locks and maps do not hold.

    Warns of an overlay: what is written there is lost with the container.
    """
    where = path.resolve()
    best, kind = "", ""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        head, _, tail = line.partition(" - ")
        mount = head.split()[4].encode().decode("unicode_escape")
        if (where == Path(mount) or Path(mount) in where.parents) and len(mount) >= len(best):
            best, kind = mount, tail.split()[0]
    if kind.startswith(_REMOTE):
        raise StorageError(f"store {path}: expected a local file system, found {kind} at {best}; LMDB is not safe there")
    if kind == "overlay":
        log.warning("store %s lies on the overlay file system of a container, and goes with it; give it a volume", path)
