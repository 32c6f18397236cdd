"""Chunks go to disk whole or not at all, and come back as they were: within a segment, over many, and after reopening."""

import errno

import numpy as np
import pytest

from replaysvc.errors import CapacityError, StorageError
from replaysvc.storage import Filesystem
from tests.store_builders import (
    BIG,
    NOW,
    SESSION,
    append,
    append_each,
    check,
    chunk,
    entry,
    index,
    make_table,
    open_store,
    segments,
)

DAY = 86_400.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def reopen(path, **options):
    """Returns the store opened again, its table and what it loaded."""
    store = open_store(path, **options)
    table = store.tables()["t"]
    return store, table, table.load()


def test_new_table_is_empty_and_begins_at_zero(path):
    make_table(path)[0].close()
    store, table, loaded = reopen(path)
    assert (len(loaded.index), loaded.episodes, loaded.sessions) == (0, [], {})
    assert (loaded.next_chunk_id, loaded.next_position, loaded.next_episode_id) == (0, 0, 0)
    assert (table.segment_count, table.description) == (0, {"about": "a test"})
    assert table.read(np.array([0])) == [None]
    store.close()


def test_what_was_appended_is_read_and_loaded(path):
    store, table = make_table(path)
    append(table, 0, 2)
    append(table, 2, 7)
    assert table.read(np.arange(7)) == [chunk(k) for k in range(7)]
    assert [table.read_episode_entry(number) for number in range(4)] == [entry(0), entry(1), entry(2), None]
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 7)
    assert [table.read_episode_entry(number) for number in range(4)] == [entry(0), entry(1), entry(2), None]
    store.close()


def test_chunks_are_read_in_the_order_asked_for_with_none_for_what_is_not_there(path):
    store, table = make_table(path)
    append_each(table, 0, 12)
    assert table.segment_count > 1
    asked = [7, 0, 99, 11, 7, -1, 3]
    assert table.read(np.array(asked)) == [chunk(k, BIG) if 0 <= k < 12 else None for k in asked]
    assert table.read(np.array([], np.int64)) == []
    store.close()


def test_reopening_goes_on_with_the_same_ids_and_adds_nothing(path):
    make_table(path)[0].close()
    for start in range(0, 20, 4):
        store, table, loaded = reopen(path)
        check(table, loaded, start)
        append(table, start, start + 4)
        store.close()
    listing = segments(path)
    for _ in range(3):
        store, table, loaded = reopen(path)
        check(table, loaded, 20)
        store.close()
    assert segments(path) == listing
    assert len(listing) == 1


# -- all or nothing -------------------------------------------------------------------------------------------------------


class FailingOnce(Filesystem):
    """Raises `error` at one crash point, once, when armed."""

    error: BaseException | None = None
    at = "append.before_commit"

    def crashpoint(self, name):
        if name == self.at and self.error is not None:
            error, self.error = self.error, None
            raise error


def test_append_that_finds_the_disk_full_leaves_nothing_and_may_be_repeated(path):
    disk = FailingOnce()
    store, table = make_table(path, filesystem=disk)
    append(table, 0, 3)
    disk.error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(CapacityError, match="the disk is full"):
        append(table, 3, 7)
    assert table.read(np.arange(3, 7)) == [None] * 4
    assert table.read_episode_entry(1) is None
    append(table, 3, 7)
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 7)
    store.close()


def test_append_that_fails_otherwise_leaves_nothing_and_stops_the_segment_until_it_is_reopened(path):
    """After a failed write nobody knows what the disk holds, so going on would be a guess."""
    disk = FailingOnce()
    store, table = make_table(path, filesystem=disk)
    append(table, 0, 3)
    disk.error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(StorageError, match="Input/output error"):
        append(table, 3, 7)
    with pytest.raises(StorageError, match="takes no more data after a failed write"):
        append(table, 3, 7)
    assert table.read(np.arange(5)) == [chunk(0), chunk(1), chunk(2), None, None]
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 3)
    append(table, 3, 7)
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 7)
    store.close()


def test_chunk_out_of_order_refuses_the_whole_append(path):
    store, table = make_table(path)
    append(table, 0, 3)
    records = index(3, 6)
    records["chunk_id"] = [3, 5, 4]
    with pytest.raises(StorageError, match="chunk 4 is out of order"):
        table.append(records, [chunk(k) for k in (3, 5, 4)], [entry(1)], {SESSION: 5})
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 3)
    store.close()


def test_chunk_id_that_is_taken_is_not_overwritten(path):
    store, table = make_table(path)
    append(table, 0, 3)
    with pytest.raises(StorageError, match="chunk 2 is out of order"):
        table.append(index(2, 3), [b"other"], [], {SESSION: 9})
    assert table.read(np.array([2])) == [chunk(2)]
    store.close()


# -- many segments --------------------------------------------------------------------------------------------------------


def test_full_segment_is_sealed_and_the_next_begins_with_the_next_chunk(path):
    store, table = make_table(path)
    append_each(table, 0, 20)
    names = [segment.name for segment in segments(path)]
    assert len(names) >= 4
    assert table.segment_count == len(names)
    firsts = [int(name.removeprefix("seg-")) for name in names]
    assert firsts[0] == 0
    assert sorted(set(firsts)) == firsts
    assert names[0] == "seg-00000000000000000000"
    assert all((segment / "data.mdb").stat().st_size < (1 << 17) + 2 * BIG + (1 << 16) for segment in segments(path))
    assert table.disk_bytes >= 20 * BIG
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 20, size=BIG)
    append_each(table, 20, 25)
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 25, size=BIG)
    store.close()


def test_store_reopened_after_every_chunk_has_the_same_segments(path, tmp_path):
    make_table(path)[0].close()
    for k in range(12):
        store, table, loaded = reopen(path)
        check(table, loaded, k, size=BIG)
        append(table, k, k + 1, size=BIG)
        store.close()
    store, table = make_table(tmp_path / "other")
    append_each(table, 0, 12)
    assert [segment.name for segment in segments(path)] == [segment.name for segment in segments(tmp_path / "other")]
    store.close()


def grow_one_episode(table, chunks):
    """One long episode, in one transaction a chunk; returns how many segments it spans."""
    for k in range(chunks):
        records = index(k, k + 1, BIG)
        records["episode_id"], records["first_step"], records["flags"] = 0, 4 * k, 0
        table.append(records, [chunk(k, BIG)], [entry(0)] if k == 0 else [], {SESSION: k})
    return table.segment_count


def test_episode_that_goes_on_in_later_segments_keeps_its_entry_when_the_first_is_removed(path):
    store, table = make_table(path)
    assert grow_one_episode(table, 20) >= 3
    last = int(segments(path)[-1].name.removeprefix("seg-"))
    assert table.remove_before(last) == table_before(path, table)
    assert table.read_episode_entry(0) == entry(0)
    store.close()
    store, table, loaded = reopen(path)
    assert loaded.episodes == [entry(0)]
    assert loaded.index["chunk_id"].tolist() == list(range(last, 20))
    store.close()


def table_before(path, table):
    """How many segments a removal took, by what is left: all but the one being written."""
    assert table.segment_count == len(segments(path)) == 1
    return REMOVED


REMOVED = 3


def test_entry_is_carried_over_a_restart_too(path):
    store, table = make_table(path)
    grow_one_episode(table, 4)
    store.close()
    store, table, _ = reopen(path)
    for k in range(4, 16):
        records = index(k, k + 1, BIG)
        records["episode_id"], records["first_step"], records["flags"] = 0, 4 * k, 0
        table.append(records, [chunk(k, BIG)], [], {SESSION: k})
    table.remove_before(int(segments(path)[-1].name.removeprefix("seg-")))
    store.close()
    store, table, loaded = reopen(path)
    assert loaded.episodes == [entry(0)]
    store.close()
