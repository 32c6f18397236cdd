"""A write of which nobody knows what the disk has is the last one of a segment, until a restart; reading goes on.

The disk is broken for real: another file is put under the descriptor that LMDB writes to.
"""

import errno
import fcntl
import os
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from replaysvc.codec import ChunkEncoder
from replaysvc.errors import CapacityError, StorageError
from replaysvc.replay import Replay
from replaysvc.storage import System
from replaysvc.storage.commit_times import CommitTimes
from replaysvc.storage.segment import Segment
from tests.builders import SCALARS, write_episodes
from tests.chunk_builders import make_info
from tests.store_builders import (
    BIG,
    SESSION,
    SMALL_SEGMENT,
    append,
    append_each,
    check,
    chunk,
    index,
    make_table,
    reopen,
    segments,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def descriptor(file, *, meta):
    """The descriptor by which LMDB writes to `file`: its pages, or those that make them count."""
    wanted = file.stat().st_ino
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.stat(int(name)).st_ino == wanted and bool(fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_DSYNC) is meta:
                return int(name)
        except OSError:
            continue
    raise AssertionError(f"{file} is not open")


@contextmanager
def broken(segment, kind, *, meta):
    """Within it, writes to a segment fail: `full` as on a full disk, `broken` otherwise."""
    handle = descriptor(segment / "data.mdb", meta=meta)
    flags = fcntl.fcntl(handle, fcntl.F_GETFL)
    assert flags & (os.O_WRONLY | os.O_RDWR)
    saved = os.dup(handle)
    other = os.open("/dev/full" if kind == "full" else os.devnull, os.O_WRONLY if kind == "full" else os.O_RDONLY)
    os.dup2(other, handle)
    device = os.fstat(other).st_rdev
    os.close(other)
    try:
        yield
    finally:
        with suppress(OSError):  # closed meanwhile
            if os.fstat(handle).st_rdev == device:
                os.dup2(saved, handle)
        os.close(saved)


def two_tables(path, system=None):
    store, table = make_table(path, system=system)
    append_each(table, 0, 5)  # segment 0 to 2 is sealed
    other = store.create_table("other", {}, segment_bytes=SMALL_SEGMENT)
    other.load()
    append(other, 0, 2)
    return store, table, other


def check_fenced(path, store, table, other):
    """Nothing more is taken; what is there is served, also by other tables, and is there after a restart, to go on with."""
    assert f"{segments(path)[-1]}: it takes no more data after a failed write (" in table.fault
    assert table.fault.endswith("; restart the service")
    for _ in range(2):
        with pytest.raises(StorageError, match="takes no more data after a failed write"):
            append(table, 5, 6, size=BIG)
    assert table.read(np.arange(6)) == [*(chunk(k, BIG) for k in range(5)), None]
    assert other.fault == ""
    append(other, 2, 5)
    assert other.read(np.arange(5)) == [chunk(k) for k in range(5)]
    table.delete_episodes([0])
    assert table.remove_before(3) == 1
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 5, start=3, size=BIG)
    assert (table.fault, table.quarantined_segments) == ("", 0)
    append_each(table, 5, 9)
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 9, start=3, size=BIG)
    store.close()


@pytest.mark.parametrize("kind", ["broken", "full"])
def test_failed_write_of_a_meta_page_ends_appending_and_reading_goes_on(path, kind):
    """LMDB itself then lets nobody in, readers neither. `full`: though it looks like a full disk, it will not pass."""
    store, table, other = two_tables(path)
    with broken(segments(path)[-1], kind, meta=True), pytest.raises((StorageError, CapacityError)):
        append(table, 5, 6, size=BIG)
    check_fenced(path, store, table, other)


def test_without_opening_the_file_anew_nobody_could_read_it(path, monkeypatch):
    monkeypatch.setattr(Segment, "_reopen", lambda segment, **_: None)
    store, table, _ = two_tables(path)
    with broken(segments(path)[-1], "broken", meta=True), pytest.raises(StorageError):
        append(table, 5, 6, size=BIG)
    with pytest.raises(StorageError, match="MDB_PANIC"):
        table.read(np.array([4]))
    store.close()


def test_failed_write_of_other_pages_ends_appending_and_reading_goes_on(path):
    store, table, other = two_tables(path)
    with broken(segments(path)[-1], "broken", meta=False), pytest.raises(StorageError, match="Bad file descriptor"):
        append(table, 5, 6, size=BIG)
    check_fenced(path, store, table, other)


def test_full_disk_ends_nothing(path):
    store, table, _ = two_tables(path)
    with broken(segments(path)[-1], "full", meta=False):
        for _ in range(2):
            with pytest.raises(CapacityError, match="No space left on device"):
                append(table, 5, 6, size=BIG)
    assert table.fault == ""
    append_each(table, 5, 9)
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 9, size=BIG)
    store.close()


class Sealing(System):
    """Breaks the descriptor of the newest segment when it is about to be sealed."""

    path = None
    meta = False

    def crashpoint(self, name):
        if name == "seal.before_footer" and self.path is not None:
            other = os.open(os.devnull, os.O_RDONLY)
            os.dup2(other, descriptor(segments(self.path)[-1] / "data.mdb", meta=self.meta))
            os.close(other)
            self.path = None


@pytest.mark.parametrize("meta", [False, True], ids=["pages", "meta page"])
def test_failed_footer_ends_appending_like_any_write(path, meta):
    disk = Sealing()
    store, table, _ = two_tables(path, disk)
    append(table, 5, 6, size=BIG)
    disk.path, disk.meta = path, meta
    with pytest.raises(StorageError):
        append(table, 6, 7, size=BIG)
    assert "takes no more data after a failed write" in table.fault
    with pytest.raises(StorageError, match="takes no more data after a failed write"):
        append(table, 6, 7, size=BIG)
    assert table.read(np.arange(7)) == [*(chunk(k, BIG) for k in range(6)), None]
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 6, size=BIG)
    append_each(table, 6, 8)
    store.close()


def test_sealed_segment_that_cannot_be_opened_for_a_while_is_unreadable_for_a_while(path, monkeypatch):
    store, table = make_table(path)
    append_each(table, 0, 3)
    opening, trouble = Segment._open, [True]

    def maybe(segment, *, readonly):
        if trouble and readonly and segment.path == segments(path)[0]:
            raise StorageError("Too many open files")
        opening(segment, readonly=readonly)

    monkeypatch.setattr(Segment, "_open", maybe)
    with pytest.raises(StorageError, match="Too many open files"):
        append(table, 3, 4, size=BIG)
    with pytest.raises(StorageError, match="Too many open files"):
        table.read(np.arange(3))
    append(table, 3, 4, size=BIG)
    assert table.read(np.array([3])) == [chunk(3, BIG)]
    trouble.clear()
    assert table.read(np.arange(4)) == [chunk(k, BIG) for k in range(4)]
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 4, size=BIG)
    store.close()


def test_table_that_is_deleted_under_an_append_is_not_opened_again(path):
    store, table = make_table(path)
    append(table, 0, 3)
    store.delete_table("t")
    assert table.segment_count == 0
    store.close()
    store, table = make_table(path.with_name("other"))
    append(table, 0, 3)
    (segment,) = table._chain.segments
    segment.close()
    with pytest.raises(StorageError):
        segment.append(index(3, 4), [chunk(3)], [], {}, CommitTimes(System().monotonic))
    assert segment.fault == ""
    store.close()


# -- sending again --------------------------------------------------------------------------------------------------------


class FailingAfter(System):
    """The commit is durable, and yet fails."""

    fail = False

    def crashpoint(self, name):
        if self.fail and name == "append.after_commit":
            raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("durable", [True, False])
def test_chunks_of_a_failed_commit_that_are_sent_again_after_a_restart_are_there_once(path, durable):
    """Whether the disk has them is not known before; the service tells the writer when it asks, or takes no notice of them."""
    disk = FailingAfter()
    sent = [(sequence, episode_of(sequence)) for sequence in range(3)]
    replay = Replay(path, system=disk)
    replay.create_table("t", SCALARS)
    table = replay.engine("t")
    assert table.append(SESSION, "a", sent[:1], urgent=True, timeout_s=60) == 0
    if durable:
        disk.fail = True
        with pytest.raises(StorageError):
            table.append(SESSION, "a", sent[1:], urgent=True, timeout_s=60)
    else:
        with broken(segments(path)[-1], "broken", meta=True), pytest.raises(StorageError):
            table.append(SESSION, "a", sent[1:], urgent=True, timeout_s=60)
    disk.fail = False
    with pytest.raises(StorageError, match="takes no more data"):
        table.append(SESSION, "a", sent[1:], urgent=True, timeout_s=60)
    assert table.stats().next_position == 4
    replay.close()
    with Replay(path) as replay:
        table = replay.engine("t")
        assert table.stats().next_position == (12 if durable else 4)
        assert table.open_session(SESSION) == (2 if durable else 0)
        for _ in range(2):
            assert table.append(SESSION, "a", sent[1:], urgent=True, timeout_s=60) == 2
        stats = table.stats()
        assert (stats.next_position, stats.chunks, stats.episodes) == (12, 3, 3)
        assert stats.duplicate_chunks_total == (4 if durable else 2)
        write_episodes(replay.table("t"), [2])
        lengths = [record.length for record in replay.table("t").episodes()]
        assert lengths == [2, 4, 4, 4]


def episode_of(number):
    """A chunk that is a whole episode of four steps."""
    info = make_info(SCALARS, 4, episode_key=number, terminated=True)
    first = 100 * number + np.arange(5)
    columns = [first, *(np.zeros((4, *spec.shape), spec.dtype) for spec in SCALARS.columns[1:])]
    return ChunkEncoder(SCALARS).encode(info, columns)
