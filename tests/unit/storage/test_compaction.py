"""Dead chunks give their space back: empty segments go, sparse ones are written anew, and what is live stays where it was."""

import errno
import os
import shutil
import threading

import numpy as np
import pytest

from replaysvc.errors import ChunkCorruptError
from replaysvc.storage import compaction
from replaysvc.storage.segment import Segment
from tests.store_builders import (
    BIG,
    SESSION,
    Troubled,
    append,
    append_each,
    chunk,
    entry,
    index,
    make_table,
    open_store,
    reopen,
    segments,
)

LOST = 1 << 32


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def names(path):
    """The segments as `first` or `first.generation`."""
    parts = [segment.name.removeprefix("seg-").split(".") for segment in segments(path)]
    return [".".join([str(int(first)), *generation]) for first, *generation in parts]


def check_live(table, loaded, live, stop):
    """Asserts that a table that was loaded holds `live` chunks and goes on after `stop`, all as it was before."""
    assert loaded.index.tolist() == [index(k, k + 1, BIG).tolist()[0] for k in live]
    assert table.read(np.arange(stop)) == [chunk(k, BIG) if k in live else None for k in range(stop)]
    assert loaded.episodes == [entry(number) for number in sorted({k // 3 for k in live})]
    assert [table.read_episode_entry(k // 3) for k in live] == [entry(k // 3) for k in live]
    assert (loaded.next_chunk_id, loaded.next_position, loaded.next_episode_id) == (stop, 4 * stop, -(-stop // 3))
    assert loaded.sessions == {SESSION: stop - 1}
    assert (table.quarantined_segments, table.damaged_records) == (0, 0)


def nothing_is_left_over(path):
    return [list((path / name).iterdir()) for name in ("tmp", "trash", "quarantine")] == [[], [], []]


# -- whole segments -------------------------------------------------------------------------------------------------------


def test_segments_without_a_live_chunk_leave_the_disk_also_from_the_middle(path):
    """Segments begin at 0, 3, 6 and 9; the last is the one that is written to."""
    store, table = make_table(path)
    append_each(table, 0, 11)
    before = table.disk_bytes
    freed = table.reclaim(np.array([0, 1, 2, 6, 7, 8]))
    assert names(path) == ["0", "6", "9"]
    assert before - table.disk_bytes == freed > 3 * BIG
    assert table.reclaim(np.array([6, 7, 8])) > 3 * BIG
    assert names(path) == ["6", "9"]
    assert nothing_is_left_over(path)
    store.close()
    store, table, loaded = reopen(path)
    check_live(table, loaded, [6, 7, 8, 9, 10], 11)
    store.close()


def test_newest_segment_stays_though_nothing_in_it_is_live_or_it_is_sealed(path):
    store, table = make_table(path)
    append_each(table, 0, 6)
    assert table.reclaim(np.array([], np.int64)) > 0
    assert names(path) == ["3"]
    table._chain.segments[-1].seal(table._next)
    assert table.reclaim(np.array([], np.int64)) == table.reclaim(np.array([3])) == 0
    store.close()
    store, table, loaded = reopen(path)
    assert names(path) == ["3"]
    check_live(table, loaded, [3, 4, 5], 6)
    append_each(table, 6, 7)
    assert table.reclaim(np.array([6])) > 0
    assert names(path) == ["6"]
    store.close()


def test_empty_table_and_table_of_which_all_is_live_give_nothing(path):
    store, table = make_table(path)
    assert table.reclaim(np.array([], np.int64)) == 0
    append_each(table, 0, 8)
    assert table.reclaim(np.arange(8)) == 0
    assert names(path) == ["0", "3", "6"]
    store.close()


def test_removing_does_not_keep_older_releases_out(path):
    store, table = make_table(path)
    append_each(table, 0, 8)
    table.reclaim(np.arange(3, 8))
    assert b'"min_reader": 1' in (path / "FORMAT").read_bytes()
    store.close()


# -- compacting -----------------------------------------------------------------------------------------------------------


def test_compacted_segment_keeps_what_is_live_where_it_was(path):
    store, table = make_table(path)
    append_each(table, 0, 11)
    before = table.disk_bytes
    live = [0, 1, 2, 4, 6, 7, 8, 9, 10]
    freed = table.reclaim(np.array(live))
    assert names(path) == ["0", "3.1", "6", "9"]
    assert before - table.disk_bytes == freed > BIG
    assert table.read(np.arange(11)) == [chunk(k, BIG) if k in live else None for k in range(11)]
    assert table.reclaim(np.array(live)) == 0
    assert nothing_is_left_over(path)
    assert b'"format": 2, "min_reader": 2' in (path / "FORMAT").read_bytes()
    append_each(table, 11, 14)
    for _ in range(2):
        store.close()
        store, table, loaded = reopen(path)
        check_live(table, loaded, [*live, 11, 12, 13], 14)
    assert names(path) == ["0", "3.1", "6", "9", "12"]
    store.close()


def test_half_live_is_not_yet_worth_it(path):
    """Six chunks of the same size in one segment: with three live it stays, with two it is compacted."""
    store, table = make_table(path)
    append(table, 0, 6, size=BIG)
    append(table, 6, 7, size=BIG)
    assert len(set(index(0, 6, BIG)["stored_bytes"].tolist())) == 1
    assert table.reclaim(np.array([0, 3, 5, 6])) == 0
    assert table.reclaim(np.array([3, 5, 6])) > 0
    assert names(path) == ["0.1", "6"]
    store.close()


def test_bytes_decide_not_the_number_of_chunks(path):
    """One chunk of four, but by far the largest."""
    store, table = make_table(path)
    append(table, 0, 1, size=80_000)
    append(table, 1, 4, size=100)
    append(table, 4, 5, size=60_000)
    append(table, 5, 6)
    assert names(path) == ["0", "4"]
    assert table.reclaim(np.array([0, 4, 5])) == 0
    assert table.reclaim(np.array([1, 2, 3, 4, 5])) > 0
    assert table.read(np.arange(5))[0] is None
    store.close()


def test_one_segment_a_call_the_one_with_most_to_win_first(path):
    store, table = make_table(path)
    append(table, 0, 6, size=BIG)
    append(table, 6, 15, size=BIG)
    append(table, 15, 21, size=BIG)
    append(table, 21, 22, size=BIG)
    live = np.array([0, 6, 7, 8, 15, 16, 21])  # no two neighbours fit into one segment
    found = [table.reclaim(live) > 0 and names(path) for _ in range(4)]
    assert found == [["0", "6.1", "15", "21"], ["0.1", "6.1", "15", "21"], ["0.1", "6.1", "15.1", "21"], False]
    store.close()
    store, table, loaded = reopen(path)
    check_live(table, loaded, live.tolist(), 22)
    store.close()


def test_compacted_segment_may_be_compacted_again_and_removed(path):
    store, table = make_table(path)
    append(table, 0, 9, size=BIG)
    append(table, 9, 10, size=BIG)
    for live, expected in (([0, 4, 8, 9], ["0.1", "9"]), ([4, 9], ["0.2", "9"]), ([9], ["9"])):
        assert table.reclaim(np.array(live)) > 0
        assert names(path) == expected
        store.close()
        store, table, loaded = reopen(path)
        check_live(table, loaded, live, 10)
    store.close()


def test_chunks_are_written_in_batches(path, monkeypatch):
    """Six live chunks of about 20 kB in transactions of at most 50,000 bytes."""
    commits = []

    class Watched(Troubled):
        def crashpoint(self, name):
            commits.append(name)

    monkeypatch.setattr(compaction, "BATCH_BYTES", 50_000)
    store, table = make_table(path, system=Watched())
    append(table, 0, 15, size=BIG)
    append(table, 15, 16, size=BIG)
    commits.clear()
    live = [0, 1, 6, 8, 13, 14, 15]
    assert table.reclaim(np.array(live)) > 0
    assert commits.count("append.after_commit") == 3
    store.close()
    store, table, loaded = reopen(path)
    check_live(table, loaded, live, 16)
    store.close()


def test_deleting_and_compacting_go_together(path):
    """Episode 0 and two thirds of the first segment go, then all of the list but what is still stored."""
    store, table = make_table(path)
    append(table, 0, 9, size=BIG)
    append(table, 9, 12, size=BIG)
    table.delete_episodes([0, 1])
    table.reclaim(np.arange(6, 12))
    assert names(path) == ["0.1", "9"]
    table.delete_episodes([2])
    store.close()
    store, table, loaded = reopen(path)
    assert loaded.deleted.tolist() == [2]
    assert loaded.index["chunk_id"].tolist() == [9, 10, 11]
    assert table.reclaim(np.arange(9, 12)) > 0
    assert names(path) == ["9"]
    store.close()


# -- what must not get lost -----------------------------------------------------------------------------------------------


def append_to_one_episode(table, start, stop):
    """Episode 0 alone, which never ends, in one transaction a chunk."""
    for k in range(start, stop):
        records = index(k, k + 1, BIG)
        records["episode_id"], records["first_step"], records["flags"] = 0, 4 * k, 0
        table.append(records, [chunk(k, BIG)], [entry(0)] if k == 0 else [], {SESSION: k})


@pytest.mark.parametrize("restart", [False, True])
def test_entry_of_an_open_episode_stays_and_is_carried_on(path, restart):
    """It began in a segment that is removed, goes on in one that is compacted, and ends up in ones that come later."""
    store, table = make_table(path)
    append_to_one_episode(table, 0, 8)
    live = np.array([4, 6, 7])
    assert table.reclaim(live) > 0
    assert names(path) == ["3.1", "6"]
    if restart:
        store.close()
        store, table, loaded = reopen(path)
        assert loaded.episodes == [entry(0)]
    append_to_one_episode(table, 8, 13)
    table.reclaim(np.array([4, 12]))
    assert table.read_episode_entry(0) == entry(0)
    table.reclaim(np.array([12]))
    assert names(path) == ["12"]
    store.close()
    store, table, loaded = reopen(path)
    assert (loaded.episodes, loaded.index["chunk_id"].tolist()) == ([entry(0)], [12])
    store.close()


def test_marks_of_sessions_stay(path):
    store, table = make_table(path)
    append(table, 0, 1, size=BIG, session=b"another session!")
    append_each(table, 1, 4)
    table.reclaim(np.array([1, 3]))
    assert names(path) == ["0.1", "3"]
    shutil.rmtree(segments(path)[1])
    store.close()
    store, _, loaded = reopen(path)
    assert loaded.sessions == {b"another session!": 0, SESSION: 2}
    store.close()


@pytest.mark.parametrize("damaged_footer", [False, True])
def test_ids_of_chunks_that_were_compacted_away_count_when_the_newest_segment_is_lost(path, damaged_footer, monkeypatch):
    """The compacted segment ends with chunk 3, but chunks 4 and 5 were given out in it."""
    store, table = make_table(path)
    append_each(table, 0, 8)
    if damaged_footer:
        table._chain.segments[1].footer = {}
    table.reclaim(np.array([0, 1, 2, 3, 6, 7]))
    assert names(path) == ["0", "3.1", "6"]
    store.close()
    os.truncate(segments(path)[2] / "data.mdb", 100)
    store, table, loaded = reopen(path)
    assert (loaded.next_chunk_id, loaded.next_position) == (6 + LOST, 24 + LOST)
    store.close()


def test_chunk_that_is_missing_from_the_old_segment_is_left_out_with_its_record(path, monkeypatch):
    store, table = make_table(path)
    append(table, 0, 9, size=BIG)
    append(table, 9, 10, size=BIG)
    read = Segment.read
    monkeypatch.setattr(
        Segment, "read", lambda self, ids: [None if k == 4 else data for k, data in zip(ids, read(self, ids), strict=True)]
    )
    table.reclaim(np.array([3, 4, 5, 9]))
    monkeypatch.undo()
    store.close()
    store, table, loaded = reopen(path)
    assert loaded.index["chunk_id"].tolist() == [3, 5, 9]
    assert table.read(np.array([3, 4, 5])) == [chunk(3, BIG), None, chunk(5, BIG)]
    store.close()


# -- readers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("live, expected", [([1, 3], True), ([3], False)], ids=["compacted", "removed"])
def test_reader_that_holds_the_old_list_of_segments_reads_from_the_new_one(path, monkeypatch, live, expected):
    """The segment is compacted, or removed, after the reader chose it and before it reads."""
    store, table = make_table(path)
    append_each(table, 0, 4)
    read, read_entry, meanwhile = Segment.read, Segment.read_episode_entry, []

    def late(original):
        def reading(self, asked):
            if not meanwhile:
                meanwhile.append(True)
                assert table.reclaim(np.array(live)) > 0
            return original(self, asked)

        return reading

    monkeypatch.setattr(Segment, "read", late(read))
    assert table.read(np.array([3, 1, 1])) == [chunk(3, BIG), *[chunk(1, BIG) if expected else None] * 2]
    store.close()
    shutil.rmtree(path)
    meanwhile.clear()
    monkeypatch.setattr(Segment, "read", read)
    store, table = make_table(path)
    append_each(table, 0, 4)
    monkeypatch.setattr(Segment, "read_episode_entry", late(read_entry))
    assert table.read_episode_entry(0) == (entry(0) if expected else None)
    store.close()


def test_readers_go_on_while_segments_are_compacted_and_removed(path):
    store, table = make_table(path)
    append(table, 0, 9, size=BIG)
    append(table, 9, 18, size=BIG)
    append(table, 18, 19, size=BIG)
    expected = [chunk(k, BIG) for k in (3, 12, 18)]
    stop, wrong, rounds = threading.Event(), [], []

    def reading():
        while not stop.is_set():
            found = table.read(np.array([3, 12, 18]))
            entries = [table.read_episode_entry(number) for number in (1, 4)]
            if found != expected or entries != [entry(1), entry(4)]:
                wrong.append((found, entries))
            rounds.append(True)

    threads = [threading.Thread(target=reading) for _ in range(2)]
    for thread in threads:
        thread.start()
    for live in ([3, 4, 5, 6, 12, 13, 14, 15, 18], [3, 12, 13, 14, 15, 18], [3, 12, 18]):  # the last merges them
        done = len(rounds)
        while len(rounds) < done + 4:
            pass
        assert table.reclaim(np.array(live)) > 0
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert names(path) == ["0.2", "18"]
    store.close()


# -- trouble --------------------------------------------------------------------------------------------------------------

LIVE = [0, 1, 2, 4, 6, 7]


def sparse_table(path):
    disk = Troubled()
    store, table = make_table(path, system=disk)
    append_each(table, 0, 8)
    return disk, store, table


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(
    "at",
    ["write_file FORMAT", "append.before_commit", "seal.after_footer", "compact.built", "rename seg-00000000000000000003.1"],
)
def test_compaction_that_fails_changes_nothing_and_is_tried_again(path, at, number, caplog):
    disk, store, table = sparse_table(path)
    disk.error, disk.at = OSError(number, os.strerror(number)), at
    assert table.reclaim(np.array(LIVE)) == 0
    assert "seg-00000000000000000003 could not be compacted" in caplog.text
    assert names(path) == ["0", "3", "6"]
    assert list((path / "tmp").iterdir()) == []
    assert table.read(np.array(LIVE)) == [chunk(k, BIG) for k in LIVE]
    disk.error = None
    assert table.reclaim(np.array(LIVE)) > 0
    assert names(path) == ["0", "3.1", "6"]
    store.close()
    store, table, loaded = reopen(path)
    check_live(table, loaded, LIVE, 8)
    store.close()


def test_compaction_that_fails_leaves_the_space_of_removed_segments_free(path):
    disk, store, table = sparse_table(path)
    disk.error, disk.at = OSError(errno.ENOSPC, "No space left on device"), "append.before_commit"
    assert table.reclaim(np.array([4, 6, 7])) > 3 * BIG
    assert names(path) == ["3", "6"]
    store.close()


def test_compacted_segment_that_has_its_name_but_cannot_be_used_is_passed_over(path):
    """The old one serves on; the next attempt takes the next number; what is deleted stays on the list until the restart."""
    disk, store, table = sparse_table(path)
    disk.error, disk.at = OSError(errno.EIO, "Input/output error"), "compact.renamed"
    assert table.reclaim(np.array(LIVE)) == 0
    assert names(path) == ["0", "3", "3.1", "6"]
    table.delete_episodes([0])
    disk.error = None
    live = [4, 6, 7]
    assert table.reclaim(np.array(live)) > 0
    assert names(path) == ["3.1", "3.2", "6"]
    assert table.read(np.arange(8)) == [chunk(k, BIG) if k in live else None for k in range(8)]
    table.delete_episodes([2])
    store.close()
    store, table, loaded = reopen(path)
    assert loaded.deleted.tolist() == [0, 2]
    assert loaded.index["chunk_id"].tolist() == [4]
    assert names(path) == ["3.2", "6"]
    store.close()


def test_old_segment_that_cannot_be_moved_away_is_moved_at_the_next_start(path):
    disk, store, table = sparse_table(path)
    disk.error, disk.at = OSError(errno.EIO, "Input/output error"), "rename t-seg-00000000000000000003"
    table.reclaim(np.array(LIVE))
    assert names(path) == ["0", "3", "3.1", "6"]
    store.close()
    store, table, loaded = reopen(path, disk)
    assert names(path) == ["0", "3", "3.1", "6"]
    check_live(table, loaded, LIVE, 8)
    store.close()
    store, table, loaded = reopen(path)
    assert names(path) == ["0", "3.1", "6"]
    check_live(table, loaded, LIVE, 8)
    store.close()


def both_generations(path):
    """Leaves segment 3 both as it was and compacted."""
    disk, store, table = sparse_table(path)
    disk.error, disk.at = OSError(errno.EIO, "Input/output error"), "rename t-seg-00000000000000000003"
    table.reclaim(np.array(LIVE))
    store.close()


def test_start_falls_back_to_the_older_one_if_the_compacted_one_is_damaged(path):
    both_generations(path)
    os.truncate(segments(path)[2] / "data.mdb", 100)
    store = open_store(path)
    table = store.tables()["t"]
    loaded = table.load()
    assert names(path) == ["0", "3", "6"]
    assert [file.name for file in (path / "quarantine").iterdir()] == ["t-seg-00000000000000000003.1"]
    assert loaded.index["chunk_id"].tolist() == list(range(8))
    assert (loaded.next_chunk_id, loaded.next_position) == (8, 32)
    assert table.quarantined_segments == 1
    store.close()


def test_start_uses_the_highest_number_of_all_as_a_number(path):
    both_generations(path)
    shutil.copytree(segments(path)[2], segments(path)[2].with_name("seg-00000000000000000003.10"))
    shutil.copytree(segments(path)[1], segments(path)[1].with_name("seg-00000000000000000003.9"))
    store, table, loaded = reopen(path)
    check_live(table, loaded, LIVE, 8)
    assert names(path) == ["0", "3.10", "6"]
    store.close()


def test_all_of_one_segment_being_damaged_counts_as_one_lost_segment(path):
    both_generations(path)
    shutil.rmtree(segments(path)[3])
    for segment in segments(path)[1:]:
        os.truncate(segment / "data.mdb", 100)
    store, table, loaded = reopen(path)
    assert table.quarantined_segments == 2
    assert (loaded.next_chunk_id, loaded.next_position) == (3 + LOST, 12 + LOST)
    store.close()


def test_what_is_no_segment_is_left_alone(path, caplog):
    store, table = make_table(path)
    append(table, 0, 3)
    store.close()
    (path / "tables" / "t" / "seg-0.old").mkdir()
    store, table, loaded = reopen(path)
    assert len(loaded.index) == 3
    assert "seg-0.old is no segment" in caplog.text
    assert table.quarantined_segments == 0
    store.close()


def test_damaged_segment_is_not_tried_again_and_again(path, monkeypatch, caplog):
    _, store, table = sparse_table(path)
    tried = []

    def damaged(self):
        tried.append(self.path.name)
        raise ChunkCorruptError("a damaged page")

    table.reclaim(np.arange(8))
    monkeypatch.setattr(Segment, "load_episodes", damaged)
    assert [table.reclaim(np.array(LIVE)) for _ in range(3)] == [0, 0, 0]
    assert tried == ["seg-00000000000000000003"]
    monkeypatch.undo()
    assert table.reclaim(np.array([0, *LIVE[3:]])) > 0
    assert names(path) == ["0.1", "3", "6"]
    store.close()


def test_segment_whose_index_cannot_be_read_costs_nothing_but_the_space(path, monkeypatch, caplog):
    _, store, table = sparse_table(path)
    monkeypatch.setattr(Segment, "count", lambda self: (_ for _ in ()).throw(ChunkCorruptError("a damaged page")))
    assert table.reclaim(np.array(LIVE)) == 0
    assert "no space is reclaimed: a damaged page" in caplog.text
    assert names(path) == ["0", "3", "6"]
    store.close()
