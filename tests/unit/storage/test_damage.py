"""What a store does with what the disk gives back wrong: it leaves it out, counts it, serves the rest, reuses no id."""

import errno
import os
import re
import shutil

import lmdb
import numpy as np
import pytest

from replaysvc.codec import steps_of
from replaysvc.errors import StorageError
from replaysvc.storage.segment import ROOM
from tests.store_builders import (
    BIG,
    SESSION,
    SMALL_SEGMENT,
    Troubled,
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

LOST = 1 << 32


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def reopen(path):
    store = open_store(path)
    table = store.tables()["t"]
    return store, table, table.load()


def change(segment, database, key, replace):
    """Replaces the stored value of `key` by what `replace` makes of it, behind the store's back."""
    environment = lmdb.open(str(segment), max_dbs=8, map_size=1 << 28)
    with environment.begin(write=True) as transaction:
        handle = environment.open_db(database, transaction)
        value = replace(bytes(transaction.get(key, db=handle)))
        if value is None:
            transaction.delete(key, db=handle)
        else:
            transaction.put(key, value, db=handle)
    environment.close()


def key_of(number):
    return number.to_bytes(8, "big")


def flip(value):
    return bytes([*value[:20], value[20] ^ 1, *value[21:]])


# -- records --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [flip, lambda value: value[:-1], lambda value: b""], ids=["bit", "cut", "empty"])
def test_damaged_index_record_is_left_out_and_counted_and_the_rest_is_there(path, damage):
    store, table = make_table(path)
    append(table, 0, 9)
    store.close()
    change(segments(path)[0], b"index", key_of(4), damage)
    store, table, loaded = reopen(path)
    assert table.damaged_records == 1
    assert loaded.index["chunk_id"].tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert (loaded.next_chunk_id, loaded.next_position, loaded.next_episode_id) == (9, 36, 3)
    assert table.read(np.arange(9)) == [chunk(k) for k in range(9)]
    store.close()


@pytest.mark.parametrize("first_damaged", [0, 3, 5, 6])
def test_ids_of_damaged_records_at_the_end_are_not_given_out_again(path, first_damaged):
    """The keys are whole, and each chunk itself tells its 4 steps."""
    store, table = make_table(path)
    append(table, 0, 7)
    store.close()
    for k in range(first_damaged, 7):
        change(segments(path)[0], b"index", key_of(k), flip)
    change(segments(path)[0], b"episodes", key_of(2), flip)
    store, table, loaded = reopen(path)
    assert table.damaged_records == 7 - first_damaged + 1
    assert loaded.index["chunk_id"].tolist() == list(range(first_damaged))
    assert (loaded.next_chunk_id, loaded.next_position, loaded.next_episode_id) == (7, 28, 3)
    append(table, 7, 10)
    store.close()
    store, table, loaded = reopen(path)
    assert loaded.index["chunk_id"].tolist() == [*range(first_damaged), 7, 8, 9]
    assert (loaded.next_chunk_id, loaded.next_position, loaded.next_episode_id) == (10, 40, 4)
    store.close()


def test_chunk_that_is_damaged_with_its_record_counts_as_the_longest_there_is(path):
    """65535 steps: nothing tells how many positions it had, so all that it may have had are skipped."""
    store, table = make_table(path)
    append(table, 0, 3)
    store.close()
    change(segments(path)[0], b"index", key_of(2), flip)
    change(segments(path)[0], b"chunks", key_of(2), flip)
    store, table, loaded = reopen(path)
    assert (loaded.next_chunk_id, loaded.next_position) == (3, 8 + 65_535)
    store.close()
    assert steps_of(chunk(0)) == 4
    assert [steps_of(data) for data in (b"", chunk(0)[:-1], flip(chunk(0)))] == [65_535] * 3


def test_damaged_entry_of_an_episode_is_left_out_and_counted(path):
    store, table = make_table(path)
    append(table, 0, 9)
    store.close()
    change(segments(path)[0], b"episodes", key_of(1), flip)
    store, table, loaded = reopen(path)
    assert table.damaged_records == 1
    assert loaded.episodes == [entry(0), entry(2)]
    assert table.read_episode_entry(1) is None
    assert len(loaded.index) == 9
    store.close()


def test_damaged_mark_of_a_session_is_left_out_and_counted(path):
    store, table = make_table(path)
    append(table, 0, 1, session=b"another session!")
    append(table, 1, 2)
    store.close()
    change(segments(path)[0], b"sessions", SESSION, lambda value: bytes([value[0] ^ 1]) + value[1:])
    store, table, loaded = reopen(path)
    assert table.damaged_records == 1
    assert loaded.sessions == {b"another session!": 0}
    store.close()


def test_chunk_that_is_missing_from_its_segment_reads_as_none(path):
    store, table = make_table(path)
    append(table, 0, 3)
    store.close()
    change(segments(path)[0], b"chunks", key_of(1), lambda _: None)
    store, table, _ = reopen(path)
    assert table.read(np.arange(3)) == [chunk(0), None, chunk(2)]
    store.close()


# -- whole segments -------------------------------------------------------------------------------------------------------


def truncated(size):
    return lambda segment: os.truncate(segment / "data.mdb", size)


def zeroed(segment):
    (segment / "data.mdb").write_bytes(bytes(1 << 16))


def no_file(segment):
    (segment / "data.mdb").unlink()


def no_description(segment):
    change(segment, b"meta", b"segment", lambda _: None)


def damaged_description(segment):
    change(segment, b"meta", b"segment", flip)


DAMAGE = {
    "five pages": truncated(20_480),
    "two pages": truncated(8_192),
    "one page": truncated(4_096),
    "few bytes": truncated(100),
    "no bytes": truncated(0),
    "zeros": zeroed,
    "no file": no_file,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_damaged_segment_is_quarantined_and_the_others_keep_working(path, damage):
    """The segments hold chunks 0-2, 3-5, 6-8 and 9."""
    store, table = make_table(path)
    append_each(table, 0, 10)
    store.close()
    damage(segments(path)[1])
    store, table, loaded = reopen(path)
    assert (table.quarantined_segments, table.segment_count) == (1, 3)
    assert [set_aside.name for set_aside in (path / "quarantine").iterdir()] == ["t-seg-00000000000000000003"]
    assert loaded.index.tolist() == [*index(0, 3, BIG).tolist(), *index(6, 10, BIG).tolist()]
    assert (loaded.next_chunk_id, loaded.next_position, loaded.next_episode_id) == (10, 40, 4)
    expected = [None if 3 <= k < 6 else chunk(k, BIG) for k in range(10)]
    assert table.read(np.arange(10)) == expected
    append_each(table, 10, 14)
    store.close()
    store, table, loaded = reopen(path)
    assert table.quarantined_segments == 1  # as long as it lies there
    assert loaded.index["chunk_id"].tolist() == [0, 1, 2, *range(6, 14)]
    assert table.remove_before(6) == 1
    store.close()


@pytest.mark.parametrize("damage", [no_description, damaged_description])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_segment_that_lacks_its_description_is_made_anew_with_all_its_chunks(path, damage, number):
    store, table = make_table(path)
    append_each(table, 0, 8)
    store.close()
    damage(segments(path)[number])
    store, table, loaded = reopen(path)
    assert (table.quarantined_segments, table.segment_count) == (1, 3)
    assert loaded.index.tolist() == index(0, 8, BIG).tolist()
    assert table.read(np.arange(8)) == [chunk(k, BIG) for k in range(8)]
    assert loaded.next_chunk_id == (8 if number < 2 else 8 + LOST)  # of the newest one, nobody knows
    store.close()


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_ids_of_a_lost_newest_segment_are_never_given_out_again(path, damage):
    """Nobody knows what it held. An episode takes 256 bytes at least, which bounds how many ids of episodes to skip."""
    store, table = make_table(path)
    append_each(table, 0, 8)
    store.close()
    damage(segments(path)[2])
    store, table, loaded = reopen(path)
    skipped = (SMALL_SEGMENT + ROOM) // 256
    assert (table.quarantined_segments, table.segment_count) == (1, 3)  # one of the next ids is made at once
    assert loaded.index["chunk_id"].tolist() == list(range(6))
    assert (loaded.next_chunk_id, loaded.next_position, loaded.next_episode_id) == (6 + LOST, 24 + LOST, 2 + skipped)
    records = index(0, 1)
    records["chunk_id"], records["position"], records["episode_id"] = 6 + LOST, 24 + LOST, 2 + skipped
    table.append(records, [chunk(0)], [], {SESSION: 50})
    store.close()
    store, table, loaded = reopen(path)
    assert loaded.index["chunk_id"].tolist() == [*range(6), 6 + LOST]
    assert (loaded.next_chunk_id, loaded.next_position, loaded.next_episode_id) == (7 + LOST, 28 + LOST, 3 + skipped)
    assert table.read(np.array([5, 6, 6 + LOST])) == [chunk(5, BIG), None, chunk(0)]
    store.close()


def test_each_lost_segment_at_the_end_skips_ids_of_its_own(path):
    store, table = make_table(path)
    append_each(table, 0, 8)
    store.close()
    for segment in segments(path)[1:]:
        truncated(100)(segment)
    store, table, loaded = reopen(path)
    assert (loaded.next_chunk_id, loaded.next_position) == (3 + 2 * LOST, 12 + 2 * LOST)
    store.close()


def test_store_of_which_every_segment_is_lost_still_opens_and_takes_data(path):
    store, table = make_table(path)
    append(table, 0, 3)
    store.close()
    truncated(100)(segments(path)[0])
    store, table, loaded = reopen(path)
    assert (len(loaded.index), loaded.next_chunk_id, table.segment_count) == (0, LOST, 1)
    records = index(0, 1)
    records["chunk_id"] = LOST
    table.append(records, [chunk(0)], [], {SESSION: 0})
    assert table.read(np.array([LOST])) == [chunk(0)]
    store.close()


def test_segment_can_be_quarantined_where_one_of_the_same_name_was_before(path):
    """The table was deleted and made anew, so its segments have the old names."""
    for _ in range(3):
        store, table = make_table(path)
        append(table, 0, 3)
        store.close()
        truncated(100)(segments(path)[0])
        store, table, _ = reopen(path)
        assert table.quarantined_segments == 1
        store.delete_table("t")
        store.close()
    assert len(list((path / "quarantine").iterdir())) == 3


def test_damaged_footer_seals_all_the_same(path):
    """The footer's presence says that the segment was sealed; what it says stands in the next segment too."""
    store, table = make_table(path)
    append_each(table, 0, 5)
    store.close()
    environment = lmdb.open(str(segments(path)[0]), max_dbs=8, map_size=1 << 28)
    with environment.begin(write=True) as transaction:
        transaction.put(b"footer", b"?", db=environment.open_db(b"meta", transaction))
    environment.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 5, size=BIG)
    store.close()


def test_torn_file_that_lmdb_would_open_is_quarantined(path):
    """LMDB opens a file that lacks its end without a word, and a read there would end the process."""
    store, table = make_table(path)
    append(table, 0, 60, size=BIG)
    store.close()
    torn = segments(path)[0]
    os.truncate(torn / "data.mdb", (torn / "data.mdb").stat().st_size - (1 << 16))
    copy = path.parent / "copy"
    shutil.copytree(torn, copy, ignore=shutil.ignore_patterns("lock.mdb"))
    environment = lmdb.open(str(copy), max_dbs=8, map_size=1 << 28, readonly=True, lock=False)
    assert (environment.info()["last_pgno"] + 1) * 4096 > (copy / "data.mdb").stat().st_size
    environment.close()
    store, table, _ = reopen(path)
    assert table.quarantined_segments == 1
    store.close()


def test_log_names_the_segment_and_the_reason(path, caplog):
    store, table = make_table(path)
    append(table, 0, 3)
    store.close()
    os.truncate(segments(path)[0] / "data.mdb", 8192)
    store, table, _ = reopen(path)
    moved, left = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
    said = moved
    assert "seg-00000000000000000000" in said
    assert re.search(r"expected a file of at least \d+ bytes, found 8192", said)
    assert "nothing of it could be salvaged; to look again, stop the service and run `replaysvc fsck --repair`" in left
    store.close()


def test_segment_that_cannot_even_be_set_aside_is_an_error_in_words(path):
    """A disk on which nothing can be renamed any more."""
    store, table = make_table(path)
    append_each(table, 0, 7)
    store.close()
    (segments(path)[0] / "data.mdb").write_bytes(b"")
    disk = Troubled()
    store = open_store(path, disk)
    disk.error, disk.at = OSError(errno.EIO, "Input/output error"), "rename"
    with pytest.raises(StorageError, match="Input/output error"):
        store.tables()["t"].load()
    disk.error = None
    store.close()
    store, table, _ = reopen(path)
    assert table.quarantined_segments == 1
    store.close()
