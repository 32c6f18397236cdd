"""Damaged chunks are noted, so that a restart leaves them out; what merely could not be read for a while is not."""

import errno
import os

import numpy as np
import pytest

from replaysvc.errors import ChunkCorruptError, StorageError
from replaysvc.storage import System, quarantine
from replaysvc.storage.chain import Chain
from replaysvc.storage.quarantine import MAGIC
from replaysvc.storage.segment import Segment
from replaysvc.storage.state import pack_file, unpack_file
from tests.store_builders import BIG, Troubled, append, append_each, check, chunk, make_table, open_store, reopen, segments


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def copies(path):
    return {file.name: file.read_bytes() for file in (path / "quarantine").iterdir()}


def copy_name(k):
    return f"t-chunk-{k:020d}"


def listed(path):
    return np.frombuffer(unpack_file(MAGIC, (path / "tables" / "t" / "damaged").read_bytes()), "<i8").tolist()


# -- reading --------------------------------------------------------------------------------------------------------------


def test_segment_that_cannot_be_read_now_is_not_taken_for_a_lost_one(path, monkeypatch):
    store, table = make_table(path)
    append_each(table, 0, 7)
    read, trouble = Segment.read, [True]

    def maybe(segment, ids):
        if trouble and segment.path == segments(path)[1]:
            raise StorageError("no reader can be had")
        return read(segment, ids)

    monkeypatch.setattr(Segment, "read", maybe)
    for ids in ([4], [0, 4], [5, 6, 3]):
        with pytest.raises(StorageError, match="no reader can be had"):
            table.read(np.array(ids))
    assert table.read(np.array([0, 6, 99])) == [chunk(0, BIG), chunk(6, BIG), None]
    trouble.clear()
    assert table.read(np.arange(7)) == [chunk(k, BIG) for k in range(7)]
    store.close()


def test_chunk_on_a_damaged_page_reads_as_none_and_its_neighbours_are_there(path, monkeypatch, caplog):
    store, table = make_table(path)
    append_each(table, 0, 7)
    read = Segment.read

    def damaged(segment, ids):
        if 4 in ids:
            raise ChunkCorruptError("MDB_PAGE_NOTFOUND")
        return read(segment, ids)

    monkeypatch.setattr(Segment, "read", damaged)
    assert table.read(np.arange(7)) == [chunk(k, BIG) if k != 4 else None for k in range(7)]
    assert "chunk 4 cannot be read: MDB_PAGE_NOTFOUND" in caplog.text
    assert caplog.text.count("cannot be read") == 1
    store.close()


@pytest.mark.parametrize("message, damaged", [("Input/output error", False), ("MDB_CORRUPTED", True)])
def test_what_the_disk_does_not_give_back_may_pass_and_what_it_gives_back_wrong_does_not(path, message, damaged):
    import lmdb

    store, table = make_table(path)
    append(table, 0, 3)
    (segment,) = table._chain.segments

    class Broken:
        def begin(self, **_):
            raise lmdb.CorruptedError(message) if damaged else lmdb.Error(message)

    environment, segment._environment = segment._environment, Broken()
    if damaged:
        assert table.read(np.arange(3)) == [None] * 3
    else:
        with pytest.raises(StorageError, match=message):
            table.read(np.arange(3))
    segment._environment = environment
    assert table.read(np.arange(3)) == [chunk(k) for k in range(3)]
    store.close()


# -- noting ---------------------------------------------------------------------------------------------------------------


def test_damaged_chunks_are_known_after_a_restart_and_their_bytes_are_kept(path, caplog):
    store, table = make_table(path)
    append_each(table, 0, 7)
    for k in (5, 2, 5):
        table.quarantine_chunk(k, f"reason {k}")
    assert table.quarantined_chunks == 2
    assert copies(path) == {copy_name(k): chunk(k, BIG) for k in (2, 5)}
    assert listed(path) == [2, 5]
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"table t: chunk {k} is damaged, and left out from now on: reason {k}; its bytes are in"
        f" {path / 'quarantine' / copy_name(k)}"
        for k in (5, 2)
    ]
    assert [(path / "quarantine" / name).stat().st_mode & 0o777 for name in copies(path)] == [0o600] * 2
    store.close()
    store, table, loaded = reopen(path)
    assert (loaded.damaged.tolist(), loaded.damaged.dtype) == ([2, 5], np.int64)
    assert table.quarantined_chunks == 2
    check(table, loaded, 7, size=BIG)  # the index still has them: where an episode ends is known
    store.close()


def test_chunk_of_which_nothing_can_be_read_is_noted_all_the_same(path):
    store, table = make_table(path)
    append(table, 0, 3)
    table.quarantine_chunk(77, "it is missing")
    assert (listed(path), copies(path)) == ([77], {})
    store.close()


@pytest.mark.parametrize(
    "content", [b"", b"x", pack_file(MAGIC, bytes(12)), pack_file(b"RPD1", bytes(8)), pack_file(MAGIC, bytes(8))[:-1]]
)
def test_damaged_list_is_left_out_and_made_anew(path, content, caplog):
    store, table = make_table(path)
    append(table, 0, 3)
    table.quarantine_chunk(1, "a test")
    store.close()
    (path / "tables" / "t" / "damaged").write_bytes(content)
    store, table, loaded = reopen(path)
    assert (loaded.damaged.tolist(), table.quarantined_chunks) == ([], 0)
    assert "the list of damaged chunks" in caplog.text
    table.quarantine_chunk(2, "a test")
    assert listed(path) == [2]
    store.close()


def test_list_that_cannot_be_read_is_left_out(path, caplog):
    store, _ = make_table(path)
    store.close()
    (path / "tables" / "t" / "damaged").mkdir()
    store, _, loaded = reopen(path)
    assert loaded.damaged.tolist() == []
    assert "cannot be read and is left out" in caplog.text
    store.close()


def test_chunks_older_than_all_that_is_stored_are_dropped_from_the_list(path):
    store, table = make_table(path)
    append_each(table, 0, 10)
    table.quarantine_chunk(1, "a test")
    table.remove_before(3)
    table.quarantine_chunk(4, "a test")
    assert listed(path) == [4]
    assert table.quarantined_chunks == 1
    store.close()


@pytest.mark.parametrize("at", ["write_file", "rename"])
def test_what_cannot_be_noted_is_logged_and_found_again(path, at, caplog):
    disk = Troubled()
    store, table = make_table(path, system=disk)
    append(table, 0, 3)
    disk.error, disk.at = OSError(errno.EIO, "Input/output error"), at
    table.quarantine_chunk(1, "a test")
    assert "the damaged chunk 1 of table t could not be noted on disk: [Errno 5] Input/output error" in caplog.text
    assert table.quarantined_chunks == 1
    disk.error = None
    table.quarantine_chunk(2, "a test")
    assert listed(path) == [1, 2]
    store.close()


def test_copies_are_bounded_in_number_and_size_and_by_the_room_on_the_disk(path, monkeypatch, caplog):
    class Disk(System):
        free = 1 << 40

        def free_bytes(self, path):
            return self.free

    disk = Disk()
    monkeypatch.setattr(quarantine, "MOST_COPIES", 4)
    monkeypatch.setattr(quarantine, "MOST_COPIED_BYTES", 3 * len(chunk(0, BIG)))
    store, table = make_table(path, system=disk)
    append_each(table, 0, 5)
    append(table, 5, 12)
    disk.free = (256 << 20) - 1
    table.quarantine_chunk(0, "a test")
    assert copies(path) == {}
    disk.free += 1
    for k in range(1, 12):
        table.quarantine_chunk(k, "a test")
    assert sorted(copies(path)) == [copy_name(k) for k in (1, 2, 3)]
    assert listed(path) == list(range(12))
    assert caplog.text.count("its bytes are not copied") == 9
    (path / "quarantine" / copy_name(1)).unlink()
    (path / "quarantine" / copy_name(2)).unlink()
    append(table, 12, 20)
    for k in range(12, 20):
        table.quarantine_chunk(k, "a test")
    assert len(copies(path)) == 4
    store.close()


def test_copies_of_a_table_with_a_similar_name_do_not_count(path, monkeypatch):
    monkeypatch.setattr(quarantine, "MOST_COPIES", 1)
    store, table = make_table(path)
    other = store.create_table("t-chunk-1", {}, segment_bytes=1 << 20)
    other.load()
    append(other, 0, 2)
    append(table, 0, 2)
    other.quarantine_chunk(0, "a test")
    table.quarantine_chunk(0, "a test")
    assert sorted(copies(path)) == [copy_name(0), f"t-chunk-1-chunk-{0:020d}"]
    store.close()


def test_list_is_bounded(path, monkeypatch):
    monkeypatch.setattr(quarantine, "MOST_LISTED", 2)
    store, table = make_table(path)
    append(table, 0, 5)
    for k in range(5):
        table.quarantine_chunk(k, "a test")
    assert listed(path) == [0, 1]
    assert table.quarantined_chunks == 5
    store.close()


def test_snapshot_knows_what_is_damaged_and_has_no_copies(path, tmp_path):
    store, table = make_table(path)
    append(table, 0, 3)
    table.quarantine_chunk(1, "a test")
    store.snapshot(tmp_path / "copy", {})
    store.close()
    store, table, loaded = reopen(tmp_path / "copy")
    assert loaded.damaged.tolist() == [1]
    assert copies(tmp_path / "copy") == {}
    store.close()


def test_oldest_chunk_is_unknown_while_something_could_not_be_moved_away(path):
    chain = Chain("t", path, System())
    assert chain.oldest_chunk_id == 0
    disk = Troubled()
    store, table = make_table(path, system=disk)
    append_each(table, 0, 7)
    disk.error, disk.at = OSError(errno.EIO, os.strerror(errno.EIO)), "rename t-seg-00000000000000000000"
    table.remove_before(3)
    table.quarantine_chunk(1, "a test")
    table.quarantine_chunk(4, "a test")
    assert listed(path) == [1, 4]
    store.close()
    open_store(path).close()


def test_damage_of_a_table_that_was_deleted_is_not_noted_in_another_of_its_name(path):
    """A reader may find chunks missing just as the table goes."""
    store, table = make_table(path)
    append(table, 0, 3)
    store.delete_table("t")
    store.create_table("t", {}, segment_bytes=1 << 20)
    table.quarantine_chunk(1, "it is missing")
    assert not (path / "tables" / "t" / "damaged").exists()
    store.close()
