"""Neighbours of which little is live become one segment: what lies on the disk stays in proportion to what is live."""

import errno
import json
import shutil

import numpy as np
import pytest

from replaysvc.maintenance.fsck import check as fsck
from replaysvc.storage.segment import Segment
from replaysvc.storage.system import System
from tests.store_builders import BIG, Troubled, append, append_each, chunk, make_table, open_store, reopen, segments
from tests.unit.storage.test_compaction import check_live, names, nothing_is_left_over

LIVE = [1, 4, 8, 9]  # of each of the segments 0, 3 and 6 one chunk of three, and the newest segment, 9


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def scattered(path, system=None):
    store, table = make_table(path, system=system)
    append_each(table, 0, 10)
    assert names(path) == ["0", "3", "6", "9"]
    return store, table


def ended_between(path):
    """Leaves the merged segment and those that it stands for."""
    disk = Troubled()
    store, table = scattered(path, disk)
    disk.error, disk.at = OSError(errno.EIO, "Input/output error"), "merge.renamed"
    assert table.reclaim(np.array(LIVE)) == 0
    store.close()
    assert names(path) == ["0", "0.1", "3", "6", "9"] or names(path) == ["0.1", "0", "3", "6", "9"]


def test_neighbours_become_one_segment_that_covers_the_ids_of_all(path):
    """Two of them: three chunks of 20 kB and what a segment takes by itself do not fit into 128 KiB."""
    store, table = scattered(path)
    before = table.disk_bytes
    freed = table.reclaim(np.array(LIVE))
    assert names(path) == ["0.1", "6", "9"]
    assert before - table.disk_bytes == freed > 6 * BIG
    assert table.read(np.arange(10)) == [chunk(k, BIG) if k in (1, 4, 6, 7, 8, 9) else None for k in range(10)]
    assert b'"format": 3, "min_reader": 3' in (path / "FORMAT").read_bytes()
    store.close()
    segment = Segment(segments(path)[0], System(), 1 << 17)
    assert (segment.meta["first_chunk_id"], segment.meta["replaces"]) == (0, [3])
    assert segment.footer == {"first_chunk_id": 6, "next_position": 24, "next_episode_id": 2}
    segment.close()
    store, table, loaded = reopen(path)
    check_live(table, loaded, [1, 4, 6, 7, 8, 9], 10)
    store.close()
    assert fsck(path).findings == ()


def test_merged_segment_is_merged_again(path):
    store, table = scattered(path)
    live = [4, 8, 9]
    for expected in (["0.1", "6", "9"], ["0.2", "9"]):
        assert table.reclaim(np.array(LIVE if expected[1] == "6" else live)) > 0
        assert names(path) == expected
    assert table.reclaim(np.array(live)) == 0
    store.close()
    store, table, loaded = reopen(path)
    check_live(table, loaded, live, 10)
    assert nothing_is_left_over(path)
    store.close()


def test_neighbours_that_are_wholly_live_and_large_stay(path):
    store, table = scattered(path)
    assert table.reclaim(np.arange(10)) == 0
    assert names(path) == ["0", "3", "6", "9"]
    assert b'"min_reader": 1' in (path / "FORMAT").read_bytes()
    store.close()


def test_start_that_finds_both_uses_the_merged_one_and_removes_the_others(path):
    ended_between(path)
    report = fsck(path)
    assert report.status == 0
    assert [finding.place[-1] for finding in report.findings] == ["0", "3"]
    store, table, loaded = reopen(path)
    assert names(path) == ["0.1", "6", "9"]
    check_live(table, loaded, [1, 4, 6, 7, 8, 9], 10)
    assert nothing_is_left_over(path)
    store.close()


def test_start_uses_the_old_ones_if_the_merged_one_is_damaged(path):
    ended_between(path)
    file = path / "tables" / "t" / f"seg-{0:020d}.1" / "data.mdb"
    file.write_bytes(file.read_bytes()[:8000])
    store, table, loaded = reopen(path)
    assert names(path) == ["0", "3", "6", "9"]
    assert loaded.index["chunk_id"].tolist() == list(range(10))
    assert table.read(np.arange(10)) == [chunk(k, BIG) for k in range(10)]
    assert [left.name for left in (path / "quarantine").iterdir()] == [f"t-seg-{0:020d}.1"]
    store.close()


def test_segment_that_has_no_place_beside_a_merged_one_is_quarantined_not_removed(path):
    """Somebody puts back, from a copy, a segment in whose ids the merged one has chunks from both sides."""
    store, table = make_table(path, segment_bytes=1 << 17)
    append_each(table, 0, 10)
    table.reclaim(np.array([1, 6, 7, 8, 9]))  # 3 is removed, since it is empty, and 0 compacted
    kept = path.with_name("kept")
    shutil.copytree(segments(path)[1], kept)
    assert table.reclaim(np.array([1, 8, 9])) > 0
    assert names(path) == ["0.2", "9"]
    store.close()
    shutil.copytree(kept, path / "tables" / "t" / f"seg-{5:020d}")
    assert fsck(path).status == 2
    store, table, loaded = reopen(path)
    assert loaded.index["chunk_id"].tolist() == [1, 8, 9]
    assert names(path) == ["0.2", "9"]
    assert [left.name for left in (path / "quarantine").iterdir()] == [f"t-seg-{5:020d}"]
    store.close()


def test_nothing_is_merged_across_a_segment_that_may_come_back(path):
    store, _ = scattered(path)
    store.close()
    kept = path.with_name("kept")
    shutil.move(segments(path)[1], kept)  # nobody knows why it is gone
    store, table, _ = reopen(path)
    for _ in range(4):
        table.reclaim(np.array([1, 8, 9]))
    assert names(path) == ["0.1", "6.1", "9"]
    store.close()


def test_merging_that_fails_changes_nothing_and_is_tried_again(path):
    disk = Troubled()
    store, table = scattered(path, disk)
    for disk.at in ("write_file FORMAT", "append.before_commit", "seal.after_footer", "merge.built"):
        disk.error = OSError(errno.ENOSPC, "No space left on device")
        assert table.reclaim(np.array(LIVE)) == 0
        disk.error = None
        assert names(path) == ["0", "3", "6", "9"]
        assert table.read(np.array(LIVE)) == [chunk(k, BIG) for k in LIVE]
        assert nothing_is_left_over(path)
    assert table.reclaim(np.array(LIVE)) > 0
    assert names(path) == ["0.1", "6", "9"]
    store.close()


def test_many_nearly_empty_segments_become_few(path):
    """One small chunk of four stays in each of 40 segments: of 5 MB, 40 times 500 bytes."""
    store, table = make_table(path)
    live, stop = [], 0
    while len(live) < 40:
        live.append(stop)
        append(table, stop, stop + 1, size=500)
        append_each(table, stop + 1, stop + 4)
        stop += 4
        table.reclaim(np.array([*live, *range(stop - 3, stop)]))
    for _ in range(3):
        table.reclaim(np.array(live))
    assert table.segment_count <= 4
    assert table.disk_bytes <= 2 * 40 * 4096 + 3 * (1 << 17)
    store.close()
    store, table, loaded = reopen(path)
    assert loaded.index["chunk_id"].tolist() == [k for k in loaded.index["chunk_id"].tolist() if k in live or k >= stop - 4]
    assert set(live) <= set(loaded.index["chunk_id"].tolist())
    store.close()


def test_ids_given_out_in_a_merged_segment_that_is_lost_are_not_given_out_again(path):
    """Nothing of it nor of the newest can be read, but the newest one's name tells that 9 chunks were given out before it."""
    store, table = scattered(path)
    table.reclaim(np.array([4, 8, 9]))
    table.reclaim(np.array([4, 8, 9]))
    store.close()
    for segment in segments(path):
        (segment / "data.mdb").write_bytes(bytes(100))
    store, _, loaded = reopen(path)
    assert loaded.next_chunk_id >= 9 + (1 << 32)
    assert loaded.next_position >= 36
    assert loaded.next_episode_id >= 4
    store.close()


def test_release_before_merging_refuses_the_store(path):
    store, table = scattered(path)
    table.reclaim(np.array(LIVE))
    store.close()
    assert json.loads((path / "FORMAT").read_bytes())["min_reader"] == 3
    open_store(path).close()
