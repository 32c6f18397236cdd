"""A process may end at any point. Whatever was acknowledged is there afterwards, and nothing is there twice.

One life of a store is played to its end by as many processes as it takes: each goes on from what it finds. The first of
them ends at one crash point: at the first, second, fourth and last time that it comes there.
"""

from collections import Counter

import numpy as np
import pytest

from replaysvc.errors import StorageError
from replaysvc.maintenance.restore import restore
from replaysvc.storage import CRASH_POINTS, System
from tests.store_builders import BIG, NOW, SESSION, SMALL_SEGMENT, append, chunk, entry, index, open_store, segments

CHUNKS = 8  # three segments: chunks 0 to 2, 3 to 5, and 6 and 7


class Ended(Exception):
    """The process ended here."""


class Ending(System):
    """Ends the process at the `occurrence`th time that it comes to `point`; counts how often it came to each."""

    def __init__(self, point="", occurrence=0):
        self.point, self.occurrence = point, occurrence
        self.seen = Counter()

    def crashpoint(self, name):
        self.seen[name] += 1
        if name == self.point and self.seen[name] == self.occurrence:
            raise Ended(name)


class EndingAtFirstSight(System):
    """Ends the process at the first point that is not in `known`, and adds it."""

    def __init__(self, known):
        self.known = known

    def crashpoint(self, name):
        if name not in self.known:
            self.known.append(name)
            raise Ended(name)


class Acknowledged:
    """What the store said was done, by its calls returning."""

    def __init__(self):
        self.chunks = 0
        self.removed_before = 0
        self.params = -1
        self.deleted = False
        self.episode_deleted = self.reclaimed = self.merged = False
        self.state = -1


def look_at(table, known):
    """Loads a table and asserts that it holds what was acknowledged, and at most one chunk more."""
    loaded = table.load()
    stop = loaded.next_chunk_id
    assert stop in (known.chunks, known.chunks + 1)
    ids = loaded.index["chunk_id"].tolist()
    start = ids[0] if ids else stop
    assert start in {0, 3, 6} if stop else start == 0
    assert start >= known.removed_before
    assert loaded.index.tolist() == index(start, stop, BIG).tolist()
    assert table.read(np.arange(stop)) == [chunk(k, BIG) if k >= start else None for k in range(stop)]
    assert [table.read_episode_entry(number) for number in range(start // 3, -(-stop // 3))] == [
        entry(number) for number in range(start // 3, -(-stop // 3))
    ]
    assert loaded.sessions == ({SESSION: stop - 1} if stop else {})
    assert (loaded.next_position, loaded.next_episode_id) == (4 * stop, -(-stop // 3))
    assert (table.quarantined_segments, table.damaged_records) == (0, 0)
    return stop


def look_at_sparse(table, known):
    """The same for a table of which episode 1 is deleted, and of the others only chunks 2, 6 and 7 are kept."""
    loaded = table.load()
    ids, stop = loaded.index["chunk_id"].tolist(), loaded.next_chunk_id
    everything = list(range(stop))
    kept = [k for k in everything if not 3 <= k < 6]
    allowed = [[2, 6, 7]] if known.reclaimed else [kept, [2, 6, 7]] if known.episode_deleted else [everything, kept]
    assert ids in allowed
    assert loaded.index.tolist() == [index(k, k + 1, BIG).tolist()[0] for k in ids]
    assert table.read(np.array(ids)) == [chunk(k, BIG) for k in ids]
    assert [e.episode_id for e in loaded.episodes] == sorted({k // 3 for k in ids})
    assert (loaded.next_position, loaded.next_episode_id) == (4 * stop, -(-stop // 3))
    assert (table.quarantined_segments, table.damaged_records) == (0, 0)
    for name in table.state_names():
        assert table.read_state(name) in (b"%d" % known.state, b"%d" % (known.state + 1))
    assert known.state < 0 or table.state_names() == ["one", "other"]
    assert loaded.damaged.tolist() in ([], [7])
    return stop


def live_sparse(store, known):
    """The life of a table in which things are deleted."""
    table = store.tables().get("sparse") or store.create_table("sparse", {}, segment_bytes=SMALL_SEGMENT)
    for k in range(look_at_sparse(table, known), CHUNKS):
        append(table, k, k + 1, size=BIG)
    for number in range(known.state + 1, 2):
        table.write_states({"one": b"%d" % number, "other": b"%d" % number})
        known.state = number
    table.delete_episodes([1])
    known.episode_deleted = True
    table.reclaim(np.array([2, 6, 7]))
    known.reclaimed = True
    table.quarantine_chunk(7, "a test")


def look_at_scattered(table, known):
    """The same for a table of which chunks 2, 3, 6 and 7 are kept: the first two are neighbours in one segment then."""
    loaded = table.load()
    ids, stop = loaded.index["chunk_id"].tolist(), loaded.next_chunk_id
    assert ids in ([[2, 3, 6, 7]] if known.merged else [list(range(stop)), [2, 3, 6, 7]])
    assert loaded.index.tolist() == [index(k, k + 1, BIG).tolist()[0] for k in ids]
    assert table.read(np.arange(stop)) == [chunk(k, BIG) if k in ids else None for k in range(stop)]
    assert loaded.episodes == [entry(number) for number in sorted({k // 3 for k in ids})]
    assert loaded.sessions == ({SESSION: stop - 1} if stop else {})
    assert (loaded.next_position, loaded.next_episode_id) == (4 * stop, -(-stop // 3))
    assert (table.quarantined_segments, table.damaged_records) == (0, 0)
    return stop


def live_scattered(store, known):
    """The life of a table of which something is left in every segment."""
    table = store.tables().get("scattered") or store.create_table("scattered", {}, segment_bytes=SMALL_SEGMENT)
    for k in range(look_at_scattered(table, known), CHUNKS):
        append(table, k, k + 1, size=BIG)
    table.reclaim(np.array([2, 3, 6, 7]))
    known.merged = True


def live(path, known, system):
    """Goes on with the store's life from what is there, noting in `known` what is acknowledged."""
    store = open_store(path, system)
    try:
        tables = store.tables()
        table = tables.get("t") or store.create_table("t", {}, segment_bytes=SMALL_SEGMENT)
        known.chunks = look_at(table, known)
        for k in range(known.chunks, CHUNKS):
            append(table, k, k + 1, size=BIG)
            known.chunks = k + 1
        table.remove_before(6)
        known.removed_before = 6
        found = store.params().get("policy", -1)
        assert found in (known.params, known.params + 1)
        assert found < 0 or store.get_params("policy") == (found, b"weights %d" % found)
        known.params = found
        for version in range(found + 1, 3):
            store.put_params("policy", version, b"weights %d" % version)
            known.params = version
        assert not known.deleted or "gone" not in tables
        if not known.deleted:
            other = tables.get("gone") or store.create_table("gone", {}, segment_bytes=SMALL_SEGMENT)
            if not len(other.load().index):
                append(other, 0, 1)
            store.delete_table("gone")
            known.deleted = True
        live_sparse(store, known)
        live_scattered(store, known)
        if not copy_of(path).exists():
            store.snapshot(copy_of(path), {"sparse": {"one": b"1", "other": b"1"}})
    finally:
        store.close()
    if not restored_of(path).exists():
        restore(copy_of(path), restored_of(path), system=system)


def copy_of(path):
    return path.with_name(f"{path.name} copy")


def restored_of(path):
    return path.with_name(f"{path.name} restored")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """How often a whole life comes to each point."""
    ending = Ending()
    live(tmp_path_factory.mktemp("whole") / "store", Acknowledged(), ending)
    return ending.seen


def test_life_of_a_store_comes_to_every_crash_point(seen):
    assert set(seen) == set(CRASH_POINTS)
    # one in the table that is deleted, one when a segment is compacted, two when two are merged
    assert seen["append.after_commit"] == 3 * CHUNKS + 4
    assert (seen["segment.renamed"], seen["seal.reopened"], seen["remove.after_rename"]) == (10, 8, 6)
    assert (seen["table.renamed"], seen["table.deleted"], seen["params.renamed"]) == (4, 1, 3)
    assert (seen["state.written"], seen["state.renamed"], seen["deletion.copied"]) == (2, 4, 1)
    assert (seen["format.renamed"], seen["compact.renamed"], seen["merge.renamed"], seen["snapshot.renamed"]) == (2, 1, 1, 1)
    assert (seen["copy.renamed"], seen["quarantine.copied"], seen["quarantine.noted"]) == (3, 1, 1)
    assert seen["restore.renamed"] == 1


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_process_that_ends_there_leaves_all_that_it_acknowledged_and_nothing_twice(point, seen, tmp_path):
    for occurrence in sorted({1, 2, 4, seen[point]} & set(range(seen[point] + 1))):
        path, known = tmp_path / f"store{occurrence}", Acknowledged()
        with pytest.raises(Ended, match=point):
            live(path, known, Ending(point, occurrence))
        assert point.startswith(("snapshot", "restore")) or not copy_of(path).exists()
        live(path, known, System())
        assert (known.chunks, known.params, known.deleted, known.state) == (CHUNKS, 2, True, 1)
        for place in (path, copy_of(path), restored_of(path)):
            store = open_store(place)
            assert look_at(store.tables()["t"], known) == CHUNKS
            assert look_at_sparse(store.tables()["sparse"], known) == CHUNKS
            assert look_at_scattered(store.tables()["scattered"], known) == CHUNKS
            assert set(store.tables()) == {"t", "sparse", "scattered"}
            assert store.get_params("policy") == (2, b"weights 2")
            assert [segment.name for segment in segments(place)] == ["seg-00000000000000000006"]
            assert [segment.name for segment in sorted((place / "tables" / "sparse").glob("seg-*"))] == [
                "seg-00000000000000000000.1",
                "seg-00000000000000000006",
            ]
            assert [segment.name for segment in sorted((place / "tables" / "scattered").glob("seg-*"))] == [
                "seg-00000000000000000000.1",
                "seg-00000000000000000006",
            ]
            assert [list((place / name).iterdir()) for name in ("tmp", "trash")] == [[], []]
            copies = [file.name for file in (place / "quarantine").iterdir()]
            assert copies == ([f"sparse-chunk-{7:020d}"] if place == path else [])
            assert store.tables()["sparse"].quarantined_chunks == 1
            store.close()
        left = {file.name for file in tmp_path.iterdir()} - {path.name, copy_of(path).name, restored_of(path).name}
        assert all(name.startswith((f"{copy_of(path).name}.tmp-", f"{restored_of(path).name}.tmp-", "store")) for name in left)


def test_process_that_ends_again_and_again_gets_on(tmp_path):
    """Every process ends at the first point that no earlier one came past: the worst that can happen to a store."""
    path, known, order = tmp_path / "store", Acknowledged(), []
    for _ in range(len(CRASH_POINTS)):
        with pytest.raises(Ended):
            live(path, known, EndingAtFirstSight(order))
    live(path, known, System())
    assert sorted(order) == sorted(CRASH_POINTS)
    assert (known.chunks, known.params, known.deleted) == (CHUNKS, 2, True)


def test_writer_that_got_no_answer_learns_from_its_mark_that_its_chunk_is_stored(tmp_path):
    """The mark is committed with the chunk, so sending the chunk again can be seen to be needless."""
    for point, stored in (("append.before_commit", -1), ("append.after_commit", 0)):
        path = tmp_path / point
        store = open_store(path, Ending(point, 1))
        table = store.create_table("t", {}, segment_bytes=SMALL_SEGMENT)
        table.load()
        with pytest.raises(Ended):
            append(table, 0, 1)
        store.close()
        store = open_store(path)
        assert store.tables()["t"].load().sessions.get(SESSION, -1) == stored
        store.close()


def test_segment_that_was_not_named_yet_is_forgotten_and_its_remains_are_removed(tmp_path):
    path = tmp_path / "store"
    store = open_store(path, Ending("segment.built", 1))
    table = store.create_table("t", {}, segment_bytes=SMALL_SEGMENT)
    table.load()
    with pytest.raises(Ended):
        append(table, 0, 1)
    store.close()
    assert [left.name for left in (path / "tmp").iterdir()] == ["seg-00000000000000000000"]
    assert segments(path) == []
    open_store(path).close()
    assert list((path / "tmp").iterdir()) == []


def test_failure_after_an_ended_write_is_no_surprise_to_the_next_process(tmp_path):
    """Not an end but an error at the point after the commit: the chunk is durable, the segment takes no more until reopened."""

    class Failing(System):
        def crashpoint(self, name):
            if name == "append.after_commit":
                raise OSError(5, "Input/output error")

    path = tmp_path / "store"
    store = open_store(path, Failing(), clock=lambda: NOW)
    table = store.create_table("t", {}, segment_bytes=SMALL_SEGMENT)
    table.load()
    with pytest.raises(StorageError):
        append(table, 0, 1)
    with pytest.raises(StorageError, match="takes no more data"):
        append(table, 1, 2)
    store.close()
    store = open_store(path)
    loaded = store.tables()["t"].load()
    assert (loaded.next_chunk_id, loaded.sessions) == (1, {SESSION: 0})
    store.close()
