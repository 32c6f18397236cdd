"""Chunks go to disk whole or not at all, and come back as they were: within a segment, over many, and after reopening."""

import errno

import numpy as np
import pytest

from replaysvc.errors import CapacityError, StorageError
from replaysvc.storage import System
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


class FailingOnce(System):
    """Raises `error` at one crash point, once, when armed."""

    error: BaseException | None = None
    at = "append.before_commit"

    def crashpoint(self, name):
        if name == self.at and self.error is not None:
            error, self.error = self.error, None
            raise error


def test_append_that_finds_the_disk_full_leaves_nothing_and_may_be_repeated(path):
    disk = FailingOnce()
    store, table = make_table(path, system=disk)
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
    store, table = make_table(path, system=disk)
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


def names(path):
    return [segment.name for segment in segments(path)]


def test_full_segment_is_sealed_and_the_next_begins_with_the_next_chunk(path):
    store, table = make_table(path)
    append_each(table, 0, 10)
    assert names(path) == [f"seg-{k:020d}" for k in (0, 3, 6, 9)]
    assert table.segment_count == 4
    assert 10 * BIG < table.disk_bytes < 30 * BIG
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 10, size=BIG)
    append_each(table, 10, 14)
    assert names(path) == [f"seg-{k:020d}" for k in (0, 3, 6, 9, 12)]
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 14, size=BIG)
    store.close()


def test_store_reopened_after_every_chunk_has_the_same_segments(path):
    make_table(path)[0].close()
    for k in range(8):
        store, table, loaded = reopen(path)
        check(table, loaded, k, size=BIG)
        append(table, k, k + 1, size=BIG)
        store.close()
    assert names(path) == [f"seg-{k:020d}" for k in (0, 3, 6)]


def test_batch_much_larger_than_a_segment_still_goes_in_whole(path):
    """A segment may grow past its size by one batch: a batch is never split."""
    store, table = make_table(path)
    append(table, 0, 60, size=BIG)
    assert names(path) == ["seg-00000000000000000000"]
    append(table, 60, 61, size=BIG)
    assert names(path) == ["seg-00000000000000000000", "seg-00000000000000000060"]
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 61, size=BIG)
    store.close()


def append_to_one_episode(table, start, stop):
    """Episode 0 alone, which never ends, in one transaction a chunk."""
    for k in range(start, stop):
        records = index(k, k + 1, BIG)
        records["episode_id"], records["first_step"], records["flags"] = 0, 4 * k, 0
        table.append(records, [chunk(k, BIG)], [entry(0)] if k == 0 else [], {SESSION: k})


def test_entry_of_an_episode_that_goes_on_is_carried_into_every_later_segment(path):
    store, table = make_table(path)
    append_to_one_episode(table, 0, 8)
    assert table.segment_count == 3
    assert table.remove_before(6) == 2
    assert table.read_episode_entry(0) == entry(0)
    store.close()
    store, table, loaded = reopen(path)
    assert loaded.episodes == [entry(0)]
    assert loaded.index["chunk_id"].tolist() == [6, 7]
    store.close()


def test_entry_is_carried_across_a_restart(path):
    store, table = make_table(path)
    append_to_one_episode(table, 0, 3)
    store.close()
    store, table, _ = reopen(path)
    append_to_one_episode(table, 3, 5)
    table.remove_before(3)
    store.close()
    store, table, loaded = reopen(path)
    assert loaded.episodes == [entry(0)]
    store.close()


def test_entry_of_an_episode_that_ended_is_not_carried(path):
    """Each segment of this history holds one whole episode."""
    store, table = make_table(path)
    append_each(table, 0, 7)
    table.remove_before(6)
    assert [table.read_episode_entry(number) for number in range(3)] == [None, None, entry(2)]
    store.close()


def test_marks_of_sessions_are_carried_into_later_segments(path):
    store, table = make_table(path)
    append(table, 0, 1, size=BIG, session=b"another session!")
    append_each(table, 1, 7)
    table.remove_before(6)
    store.close()
    store, table, loaded = reopen(path)
    assert loaded.sessions == {b"another session!": 0, SESSION: 6}
    store.close()


def test_marks_are_kept_whatever_the_clock_says(path):
    now = [NOW]
    store, table = make_table(path, clock=lambda: now[0])
    append(table, 0, 1, size=BIG, session=b"a quiet session!")
    now[0] = NOW + 400 * DAY
    append(table, 1, 2, size=BIG, session=b"of the future!!!")
    now[0] = NOW - 400 * DAY
    append_each(table, 2, 7)
    table.remove_before(6)
    store.close()
    store, table, loaded = reopen(path)
    assert loaded.sessions == {b"a quiet session!": 0, b"of the future!!!": 1, SESSION: 6}
    store.close()


def test_most_recent_marks_are_kept_when_there_are_too_many(path, monkeypatch):
    monkeypatch.setattr("replaysvc.storage.table_store.MAX_SESSIONS", 2)
    now = [NOW]
    store, table = make_table(path, clock=lambda: now[0])
    for k in range(4):
        now[0] -= 1  # the order in which they were used is what counts
        append(table, k, k + 1, size=BIG, session=b"session number %d" % k)
    table.remove_before(3)
    store.close()
    store, table, loaded = reopen(path)
    assert loaded.sessions == {b"session number 1": 1, b"session number 2": 2, b"session number 3": 3}
    store.close()


def test_removing_gives_the_disk_back_and_reads_of_what_is_gone_give_none(path):
    store, table = make_table(path)
    append_each(table, 0, 12)
    before = table.disk_bytes
    assert table.remove_before(6) == 2
    assert names(path) == [f"seg-{k:020d}" for k in (6, 9)]
    assert list((path / "trash").iterdir()) == []
    assert table.disk_bytes < before * 0.6
    assert table.read(np.arange(12)) == [None] * 6 + [chunk(k, BIG) for k in range(6, 12)]
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 12, start=6, size=BIG)
    store.close()


@pytest.mark.parametrize("before, left", [(0, 4), (2, 4), (3, 3), (5, 3), (9, 1), (11, 1), (10_000, 1)])
def test_only_segments_that_hold_nothing_newer_are_removed(path, before, left):
    """Segments begin at 0, 3, 6 and 9; the one that is written to stays whatever happens."""
    store, table = make_table(path)
    append_each(table, 0, 12)
    assert table.remove_before(before) == 4 - left
    assert table.segment_count == left
    assert table.remove_before(before) == 0
    append_each(table, 12, 13)
    assert table.read(np.array([11, 12])) == [chunk(11, BIG), chunk(12, BIG)]
    store.close()


def test_removal_that_the_file_system_refuses_costs_nothing_but_the_space(path):
    class Stubborn(System):
        def rename(self, source, target):
            if target.parent.name == "trash":
                raise OSError(errno.EIO, "Input/output error")
            super().rename(source, target)

    store, table = make_table(path, system=Stubborn())
    append_each(table, 0, 5)
    assert table.remove_before(3) == 1
    append_each(table, 5, 6)
    assert table.read(np.array([2, 5])) == [None, chunk(5, BIG)]
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 6, size=BIG)
    assert table.remove_before(3) == 1
    assert names(path) == ["seg-00000000000000000003"]
    store.close()
