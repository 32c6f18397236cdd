"""One segment: an LMDB environment that is appended to, then sealed, then read only. The only module that imports lmdb.

LMDB's rules, kept here: default syncing (a commit returns when it is durable), never writemap, never a resize, one writer
thread, short read transactions, no memoryview past the end of its transaction, never twice in a process, never across a fork.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from replaysvc.codec import steps_of
from replaysvc.errors import CapacityError, ChunkCorruptError, FormatVersionError, ReplayError, StorageError
from replaysvc.storage.commit_times import CommitTimes
from replaysvc.storage.pins import Pins
from replaysvc.storage.place import Place
from replaysvc.storage.records import (
    KEY,
    EpisodeEntry,
    pack_episode,
    pack_index,
    pack_meta,
    pack_session,
    unpack_episode,
    unpack_index,
    unpack_meta,
    unpack_session,
    with_ids,
)
from replaysvc.storage.structure import check_structure
from replaysvc.storage.system import DISK_FULL, System
from replaysvc.types import Array

log = logging.getLogger(__name__)

MAX_BATCH_BYTES = 128 << 20  # most bytes of one append
ROOM = MAX_BATCH_BYTES + (64 << 20)  # above the size at which a segment is full, so that a batch begun below it always fits
FORMAT = 1
NO_EPISODE = 1 << 62  # above every episode id
_MAX_READERS = 256
_LOCK_BYTES = 64 << 10  # more than LMDB's table of that many readers takes
_NAMES = (b"chunks", b"index", b"episodes", b"sessions", b"meta")
_DAMAGED = (  # what LMDB says of a file that is not as it wrote it
    lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError, lmdb.BadTxnError,
    lmdb.NotFoundError,
)  # fmt: skip

Marks = Mapping[bytes, tuple[int, float]]
"""Session id -> (last sequence, time of it)."""


class Segment:
    """An open segment. Reading is thread-safe; `append` and `seal` belong to one thread."""

    def __init__(self, path: Path, system: System, segment_bytes: int) -> None:
        """Opens the segment at `path`, for appending unless it is sealed.

        Raises:
          ChunkCorruptError: it is damaged. FormatVersionError: of a newer format. StorageError: it cannot be opened now.
        """
        self.path, self._system, self.map_bytes = path, system, segment_bytes + ROOM
        self._full_bytes = segment_bytes
        self._pins = Pins()
        self._lost = False  # closed to be opened anew, which failed: whoever comes next tries again
        self._closed = False
        self.fault = ""  # why it takes no more until the service restarts
        self.oldest_episode = NO_EPISODE
        self._sizes: tuple[Array, Array] | None = None
        with _translated(path, system, reading=True):
            check_structure(path / "data.mdb")
        self._open(readonly=True)
        try:
            footer = self._get_meta(b"footer")
            self.sealed = footer is not None
            self.footer = with_ids(unpack_meta(footer or b""))
            self.meta = with_ids(unpack_meta(self._get_meta(b"segment") or b""))
            if not isinstance(self.meta.get("format"), int) or "table" not in self.meta:
                raise ChunkCorruptError(f"segment {path}: its description is missing or damaged")
            if self.meta["format"] > FORMAT:
                raise FormatVersionError(f"segment {path}: expected format version {FORMAT}, found {self.meta['format']}")
            if not self.sealed:
                self._environment.close()
                self._open(readonly=False)
                with _translated(self.path, self._system):  # a meta page written as a process ended is perhaps only in RAM
                    self._environment.sync(True)
        except ReplayError:
            self.close()
            raise

    @staticmethod
    def create(
        path: Path, scratch: Path, system: System, segment_bytes: int, meta: Mapping[str, Any], sessions: Marks
    ) -> "Segment":
        """Builds a segment in `scratch`, durable before it gets its name, and returns it open."""
        build = scratch / path.name
        with _translated(scratch, system, build / "data.mdb"):
            if path.exists():  # an earlier attempt failed after the rename: it is whole, and empty
                system.fsync_directory(path.parent)
                system.fsync_directory(scratch)
                found = Segment(path, system, segment_bytes)
                if found.meta["table"] != meta["table"]:
                    found.close()
                    raise StorageError(f"segment {path}: expected table {meta['table']}'s, found {found.meta['table']}'s")
                return found
            _build(build, system, segment_bytes, meta, sessions)
            system.crashpoint("segment.built")
            system.rename(build, path)
            system.crashpoint("segment.renamed")
        return Segment(path, system, segment_bytes)

    @staticmethod
    def create_unnamed(path: Path, system: System, segment_bytes: int, meta: Mapping[str, Any], sessions: Marks) -> "Segment":
        """Builds a segment in place and returns it open; whoever asked for it gives it its name when it is complete."""
        with _translated(path.parent, system, path / "data.mdb"):
            _build(path, system, segment_bytes, meta, sessions)
        return Segment(path, system, segment_bytes)

    def _open(self, *, readonly: bool) -> None:
        with _translated(self.path, self._system, reading=True, may_pass=True):  # what LMDB reads here, the check just read
            self._place = Place(self.path)
            if not (self.path / "data.mdb").stat().st_size:
                raise ChunkCorruptError(f"segment {self.path}: its file is empty")  # LMDB would make a new one of it
            self._environment = _environment(self.path, self.map_bytes, self._system, readonly=readonly)
            try:
                # a read past the end of a torn file would be a SIGBUS, not an exception
                wanted = (self._environment.info()["last_pgno"] + 1) * self._environment.stat()["psize"]
                found = (self.path / "data.mdb").stat().st_size
                if found < wanted:
                    raise ChunkCorruptError(f"segment {self.path}: expected a file of at least {wanted} bytes, found {found}")
                # each in a transaction of its own: a handle lives on only if its transaction is committed
                self._databases = {name: self._environment.open_db(name, create=False) for name in _NAMES}
            except BaseException:
                self._environment.close()
                raise

    def _get_meta(self, key: bytes) -> bytes | None:
        with self._reading(b"meta") as transaction:
            value: bytes | None = transaction.get(key)
        return value

    @property
    def used_bytes(self) -> int:
        """Returns the bytes of pages in use."""
        with self._inside(), _translated(self.path, self._system):
            return int((self._environment.info()["last_pgno"] + 1) * self._environment.stat()["psize"])

    @property
    def readers(self) -> int:
        """Returns how many places of LMDB's table of readers were taken at once, at most; a sealed segment has no table."""
        with self._inside(), _translated(self.path, self._system):
            return int(self._environment.info()["num_readers"])

    @property
    def full(self) -> bool:
        """Returns whether the next append belongs to another segment."""
        return self.used_bytes >= self._full_bytes

    def append(
        self, index: Array, chunks: Sequence[bytes], episodes: Sequence[EpisodeEntry], sessions: Marks, times: CommitTimes
    ) -> None:
        """Adds chunks in one transaction; durable on return, nothing of it visible on failure. `times` has how long it took.

        Raises:
          CapacityError: no space on the disk. StorageError: any other failure; the segment takes no more until reopened.
        """
        with self._fencing():
            databases = self._databases
            with self._inside(), _translated(self.path, self._system):  # a table may be deleted under the commit
                with times.measured(self._environment.begin(write=True)) as transaction:
                    for record, chunk, chunk_id in zip(pack_index(index), chunks, index["chunk_id"].tolist(), strict=True):
                        key = KEY.pack(chunk_id)
                        # append=True returns False for a key out of order, it does not raise
                        if not transaction.put(key, chunk, db=databases[b"chunks"], append=True):
                            raise StorageError(f"segment {self.path}: chunk {chunk_id} is out of order")
                        if not transaction.put(key, record, db=databases[b"index"], append=True):
                            raise StorageError(f"segment {self.path}: index record {chunk_id} is out of order")
                    for entry in episodes:
                        transaction.put(KEY.pack(entry.episode_id), pack_episode(entry), db=databases[b"episodes"])
                    for session_id, (last_sequence, at_s) in sessions.items():
                        transaction.put(session_id, pack_session(session_id, last_sequence, at_s), db=databases[b"sessions"])
                    self._system.crashpoint("append.before_commit")
                self._place.check()
                self._system.crashpoint("append.after_commit")
            self.oldest_episode = min([self.oldest_episode, *index["episode_id"].tolist()])

    @contextmanager
    def _fencing(self) -> Iterator[None]:
        """Around a write: one that fails, but for lack of space, is the last; from then on the segment is only read.

        Nobody knows what the disk has of such a write, and a later sync may claim success for what it has not.
        """
        if self.fault:
            raise StorageError(self.fault)
        try:
            yield
        except ReplayError as error:
            poisoned = self._is_poisoned()
            if self._closed or (isinstance(error, CapacityError) and not poisoned):
                raise  # the old snapshot is whole, and space may come back
            self.fault = f"segment {self.path}: it takes no more data after a failed write ({error}); restart the service"
            log.critical("%s", self.fault)
            if poisoned:
                try:
                    self._reopen()
                except ReplayError as problem:
                    log.error("segment %s cannot be read for now: %s", self.path, problem)
            raise

    def _is_poisoned(self) -> bool:
        """Returns whether LMDB lets nobody use the environment any more, not even readers: its meta page was not written."""
        try:
            with self._pins.held():
                self._environment.begin().abort()
        except lmdb.Error as error:
            return isinstance(error, lmdb.PanicError)
        return False

    def _reopen(self, *, lost: bool = False) -> None:
        """Opens the file anew, read only, when no reader is inside; with `lost`, only if nobody did so meanwhile."""
        with self._pins.alone():
            if self._closed or (lost and not self._lost):
                return
            self._lost = True
            self._environment.close()
            self._open(readonly=True)
            self._lost = False

    def seal(self, footer: Mapping[str, Any]) -> None:
        """Ends appending: writes the footer and reopens read only, when no reader is inside."""
        self._system.crashpoint("seal.before_footer")
        with self._fencing(), self._inside(), _translated(self.path, self._system):
            with self._environment.begin(write=True) as transaction:
                transaction.put(b"footer", pack_meta(footer), db=self._databases[b"meta"])
            self._place.check()
        self._system.crashpoint("seal.after_footer")
        self.sealed, self.footer = True, dict(footer)
        self._reopen()
        self._system.crashpoint("seal.reopened")

    def read(self, chunk_ids: Sequence[int]) -> list[bytes | None]:
        """Returns the chunks' bytes, None for one that is not here.

        Raises:
          ChunkCorruptError: the pages that lead to one are damaged. StorageError: it cannot be read now, which may pass.
        """
        with self._reading(b"chunks", buffers=True, may_pass=True) as transaction:
            views = (transaction.get(KEY.pack(chunk_id)) for chunk_id in chunk_ids)
            return [None if view is None else bytes(view) for view in views]

    def read_episode_entry(self, episode_id: int) -> EpisodeEntry | None:
        """Returns an episode's entry if it is here and intact."""
        with self._reading(b"episodes") as transaction:
            record = transaction.get(KEY.pack(episode_id))
        entry = None if record is None else unpack_episode(record)
        return entry if entry is not None and entry.episode_id == episode_id else None

    def load_index(self) -> tuple[Array, int]:
        """Returns the index records and how many damaged ones were left out."""
        values, misplaced = self._records(b"index")
        index, damaged = unpack_index(values)
        self.oldest_episode = min([self.oldest_episode, *index["episode_id"].tolist()])
        return index, damaged + misplaced

    def sizes(self) -> tuple[Array, Array]:
        """Returns (chunk ids, stored bytes) by the index records; kept once they are asked for, so not for one that grows."""
        if self._sizes is None:
            index, _ = self.load_index()
            self._sizes = index["chunk_id"].copy(), index["stored_bytes"].copy()
        return self._sizes

    def count(self) -> int:
        """Returns how many index records there are, damaged ones too."""
        with self._reading(b"index") as transaction:
            return int(transaction.stat(self._databases[b"index"])["entries"])

    def copy_to(self, directory: Path) -> None:
        """Copies the data file, durably, into an empty directory; of a sealed segment it is a second name of the same file.

        Raises:
          CapacityError: no space there. StorageError: any other failure.
        """
        target = directory / "data.mdb"
        with self._inside(), _translated(directory, self._system, target):
            if self.sealed:
                self._system.link(self.path / "data.mdb", target)
            else:
                self._environment.copy(str(directory))  # LMDB's own: as of the last commit
                target.chmod(0o600)
                self._system.fsync_file(target)
            self._system.fsync_directory(directory)

    def load_episodes(self) -> tuple[list[EpisodeEntry], int]:
        """Returns the episode entries and how many damaged ones were left out."""
        values, misplaced = self._records(b"episodes")
        entries = [unpack_episode(value) for value in values]
        good = [entry for entry in entries if entry is not None]
        return good, len(entries) - len(good) + misplaced

    def load_sessions(self) -> tuple[dict[bytes, tuple[int, float]], int]:
        """Returns the marks of sessions, (last sequence, time) each, and how many damaged ones were left out."""
        with self._reading(b"sessions") as transaction:
            marks = {key: unpack_session(key, value) for key, value in transaction.cursor().iternext()}
        good = {session_id: mark for session_id, mark in marks.items() if mark is not None}
        return good, len(marks) - len(good)

    def last_key(self, name: bytes) -> int:
        """Returns the last key of `chunks`, `index` or `episodes`, -1 if there is none: an id that was given out."""
        with self._reading(name) as transaction, transaction.cursor() as cursor:
            return int(KEY.unpack(cursor.key())[0]) if cursor.last() else -1

    def steps_after(self, chunk_id: int) -> int:
        """Returns the steps of all chunks above `chunk_id`, by what the chunks themselves say."""
        with self._reading(b"chunks") as transaction, transaction.cursor() as cursor:
            found = cursor.set_range(KEY.pack(chunk_id + 1))
            return sum(steps_of(chunk) for chunk in cursor.iternext(keys=False)) if found else 0

    def _records(self, name: bytes) -> tuple[list[bytes], int]:
        """Returns the records that begin with their own key, and how many do not, or are not there though they are counted."""
        with self._reading(name) as transaction:
            found = [value for key, value in transaction.cursor().iternext() if value[:8] == key[::-1]]
            return found, max(0, int(transaction.stat(self._databases[name])["entries"]) - len(found))

    @contextmanager
    def _reading(self, name: bytes, *, buffers: bool = False, may_pass: bool = False) -> Iterator[Any]:
        """Yields a short read transaction on a database; what it gives as buffers must not leave it."""
        with (
            self._inside(),
            _translated(self.path, self._system, reading=True, may_pass=may_pass),
            self._environment.begin(db=self._databases[name], buffers=buffers) as transaction,
        ):
            yield transaction

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Keeps the environment open; opens it if the last attempt to open it anew failed."""
        if self._lost:
            self._reopen(lost=True)
        with self._pins.held():
            yield

    def close(self) -> None:
        """Closes when no reader is inside."""
        with self._pins.alone():
            self._closed = True
            self._environment.close()


def _build(path: Path, system: System, segment_bytes: int, meta: Mapping[str, Any], sessions: Marks) -> None:
    """Makes a segment without chunks at `path`, durably, in place of what an earlier attempt left there."""
    if path.exists():
        system.remove_tree(path)
    path.mkdir(mode=0o700)
    environment = _environment(path, segment_bytes + ROOM, system, readonly=False)
    try:
        with environment.begin(write=True) as transaction:
            databases = {name: environment.open_db(name, transaction) for name in _NAMES}
            transaction.put(b"segment", pack_meta(meta), db=databases[b"meta"])
            for session_id, (last_sequence, at_s) in sessions.items():
                transaction.put(session_id, pack_session(session_id, last_sequence, at_s), db=databases[b"sessions"])
        environment.sync(True)
    finally:
        environment.close()
    system.fsync_directory(path)


def _environment(path: Path, map_size: int, system: System, *, readonly: bool) -> Any:
    if not readonly:
        # LMDB writes to this file through memory; where the disk had no place for that, the process would die of SIGBUS
        system.reserve(path / "lock.mdb", _LOCK_BYTES)
    return lmdb.open(
        str(path), map_size=map_size, max_dbs=len(_NAMES), max_readers=_MAX_READERS, readonly=readonly, lock=not readonly,
        lib_version=0, mode=0o600, max_spare_txns=8,
    )  # fmt: skip


@contextmanager
def _translated(
    path: Path, system: System, written: Path | None = None, *, reading: bool = False, may_pass: bool = False
) -> Iterator[None]:
    """Turns failures of LMDB and of the file system into errors of this project.

    `written` is the file that is written to, if not the segment's own. `reading` tells what is damaged from what merely
    failed; `may_pass` takes what the disk does not give back for the latter. A write that fails says nothing of what is stored.
    """
    try:
        yield
    except (lmdb.MapFullError, lmdb.DiskError, lmdb.Error, OSError) as error:
        full = isinstance(error, lmdb.MapFullError | lmdb.DiskError) or getattr(error, "errno", None) in DISK_FULL
        full = full or any(word in str(error) for word in ("No space left", "File too large", "quota"))
        # where the disk takes only part of a write, LMDB says EIO, as if the disk were broken
        broken = "Input/output error" in str(error)
        if full or (broken and not reading and not system.can_grow(written or path / "data.mdb")):
            free = system.free_bytes(path)
            raise CapacityError(f"store {path}: the disk is full ({error}); free {free} bytes") from error
        damaged = (broken and not may_pass) or isinstance(error, (*_DAMAGED, FileNotFoundError))
        raise (ChunkCorruptError if reading and damaged else StorageError)(f"store {path}: {error}") from error
