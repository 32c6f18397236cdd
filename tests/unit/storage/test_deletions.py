"""Deleted episodes stay deleted, whatever happens to the files, and what they had is never given out again."""

import errno
import json
import os
import re

import numpy as np
import pytest

from replaysvc.errors import CapacityError, ChunkCorruptError, StorageError
from replaysvc.storage.deletions import MAGIC
from replaysvc.storage.state import pack_file, unpack_file
from tests.store_builders import BIG, Troubled, append, append_each, chunk, entry, index, make_table, open_store, reopen


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def copies(path):
    return [path / "tables" / "t" / name for name in ("deleted", "deleted.bak")]


def listed(path):
    """The ids that each copy has; they must agree."""
    first, second = (unpack_file(MAGIC, file.read_bytes()) for file in copies(path))
    assert first == second
    return np.frombuffer(first, "<i8").tolist()


def ids_of(loaded):
    return loaded.index["chunk_id"].tolist()


def test_nothing_of_a_deleted_episode_is_loaded_and_the_rest_is_as_it_was(path):
    """Chunks 3 to 5 are episode 1."""
    store, table = make_table(path)
    append(table, 0, 9)
    table.delete_episodes([1])
    store.close()
    assert listed(path) == [1]
    store, table, loaded = reopen(path)
    assert loaded.index.tolist() == [*index(0, 3).tolist(), *index(6, 9).tolist()]
    assert loaded.episodes == [entry(0), entry(2)]
    assert (loaded.deleted.tolist(), loaded.deleted.dtype) == ([1], np.int64)
    assert (loaded.next_chunk_id, loaded.next_position, loaded.next_episode_id) == (9, 36, 3)
    store.close()


def test_ids_and_positions_of_deleted_episodes_are_not_given_out_again_though_they_were_the_newest(path):
    store, table = make_table(path)
    append(table, 0, 9)
    table.delete_episodes([2, 1])
    table.delete_episodes(np.array([0], np.int64))
    store.close()
    store, table, loaded = reopen(path)
    assert (ids_of(loaded), loaded.episodes, loaded.deleted.tolist()) == ([], [], [0, 1, 2])
    assert (loaded.next_chunk_id, loaded.next_position, loaded.next_episode_id) == (9, 36, 3)
    append(table, 9, 12)
    store.close()
    store, table, loaded = reopen(path)
    assert ids_of(loaded) == [9, 10, 11]
    store.close()


def test_table_without_deletions_has_no_such_file_and_loads_an_empty_list(path):
    store, table = make_table(path)
    append(table, 0, 3)
    table.delete_episodes([])
    store.close()
    assert [file.exists() for file in copies(path)] == [False, False]
    store, _, loaded = reopen(path)
    assert loaded.deleted.tolist() == []
    store.close()


def test_episodes_that_do_not_exist_yet_cannot_be_deleted_in_advance(path):
    store, table = make_table(path)
    append(table, 0, 3)
    table.delete_episodes([1, 7])
    append(table, 3, 6)
    store.close()
    store, _, loaded = reopen(path)
    assert (ids_of(loaded), loaded.deleted.tolist()) == ([0, 1, 2, 3, 4, 5], [])
    store.close()


def test_episodes_older_than_all_that_is_stored_are_dropped_from_the_list_when_it_is_written(path):
    """Each segment holds one whole episode."""
    for restart in (False, True):
        place = path.with_name(f"store {restart}")
        store, table = make_table(place)
        append_each(table, 0, 12)
        table.delete_episodes([0, 1])
        table.remove_before(6)
        assert listed(place) == [0, 1]
        if restart:
            store.close()
            store, table, _ = reopen(place)
        table.delete_episodes([0, 2])
        assert listed(place) == [2]
        store.close()


def test_oldest_episode_is_the_oldest_of_any_chunk_not_of_the_oldest_segment(path):
    """Episode 0 goes on in the second segment, in which episode 1 began before it did; the first segment is removed."""
    store, table = make_table(path)
    append(table, 0, 1, size=60_000)
    append(table, 1, 2, size=60_000)
    records = index(2, 4)
    records["episode_id"] = [1, 0]
    table.append(records, [chunk(2), chunk(3)], [entry(1)], {})
    table.remove_before(2)
    table.delete_episodes([0])
    table.delete_episodes([1])
    assert listed(path) == [0, 1]
    store.close()


def test_list_keeps_what_lies_in_a_segment_that_could_not_be_moved_away(path):
    """A restart would load that segment again, and with it what is deleted."""
    disk = Troubled()
    store, table = make_table(path, system=disk)
    append_each(table, 0, 7)
    table.delete_episodes([0])
    disk.error, disk.at = OSError(errno.EIO, "Input/output error"), "rename t-seg-00000000000000000000"
    table.remove_before(3)
    table.delete_episodes([1])
    assert listed(path) == [0, 1]
    store.close()
    store, _, loaded = reopen(path)
    assert ids_of(loaded) == [6]
    store.close()


# -- damage ---------------------------------------------------------------------------------------------------------------

DAMAGE = {
    "bit": lambda file: file.write_bytes(file.read_bytes()[:-1] + b"\xff"),
    "cut": lambda file: os.truncate(file, file.stat().st_size - 8),
    "empty": lambda file: os.truncate(file, 0),
    "odd length": lambda file: file.write_bytes(pack_file(MAGIC, bytes(12))),
    "other kind": lambda file: file.write_bytes(pack_file(b"RPS1", bytes(8))),
    "no file": lambda file: (file.unlink(), file.mkdir()),
}


def with_deletions(path):
    store, table = make_table(path)
    append(table, 0, 9)
    table.delete_episodes([0, 2])
    store.close()


@pytest.mark.parametrize("damage", [value for name, value in DAMAGE.items() if name != "no file"])
@pytest.mark.parametrize("which", [0, 1])
def test_one_damaged_copy_is_made_anew_from_the_other(path, which, damage, caplog):
    with_deletions(path)
    damage(copies(path)[which])
    store, _, loaded = reopen(path)
    assert (ids_of(loaded), loaded.deleted.tolist()) == ([3, 4, 5], [0, 2])
    assert f"the list of deleted episodes {copies(path)[which]} is damaged" in caplog.text
    store.close()
    assert listed(path) == [0, 2]


@pytest.mark.parametrize("which", [0, 1])
def test_one_missing_copy_is_made_anew_from_the_other(path, which):
    with_deletions(path)
    copies(path)[which].unlink()
    store, _, loaded = reopen(path)
    assert ids_of(loaded) == [3, 4, 5]
    store.close()
    assert listed(path) == [0, 2]


@pytest.mark.parametrize("first", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("second", [*DAMAGE.values(), os.unlink], ids=[*DAMAGE, "missing"])
def test_table_of_which_no_list_can_be_read_is_set_aside_for_deleted_data_would_come_back(path, first, second):
    with_deletions(path)
    for damage, file in zip((first, second), copies(path), strict=True):
        damage(file)
    store = open_store(path)
    assert store.tables() == {}
    assert re.search(r"list of its deleted episodes in deleted or deleted\.bak, found none", store.quarantined_tables["t"])
    store.close()
    assert [file.name for file in (path / "quarantine").iterdir()] == ["t-table"]


def test_table_of_which_the_lists_are_damaged_right_before_it_is_loaded_is_not_loaded(path):
    with_deletions(path)
    store = open_store(path)
    for file in copies(path):
        DAMAGE["bit"](file)
    with pytest.raises(ChunkCorruptError, match=r"list of the deleted episodes in deleted or deleted\.bak, found that neither"):
        store.tables()["t"].load()
    store.close()


def test_copies_that_differ_hold_together(path):
    """The process ended after the first copy was renamed."""
    with_deletions(path)
    copies(path)[1].write_bytes(pack_file(MAGIC, np.array([1], "<i8").tobytes()))
    store, _, loaded = reopen(path)
    assert (ids_of(loaded), loaded.deleted.tolist()) == ([], [0, 1, 2])
    store.close()


def test_copy_that_cannot_be_repaired_does_not_keep_the_table_closed(path, caplog):
    with_deletions(path)
    os.truncate(copies(path)[0], 3)
    disk = Troubled()
    disk.error, disk.at = OSError(errno.ENOSPC, "No space left on device"), "write_file deleted-t"
    store, _, loaded = reopen(path, disk)
    assert ids_of(loaded) == [3, 4, 5]
    assert "could not be repaired" in caplog.text
    store.close()


@pytest.mark.parametrize("number, raised", [(errno.ENOSPC, CapacityError), (errno.EIO, StorageError)])
@pytest.mark.parametrize("at", ["write_file deleted-t", "write_file deleted.bak-t", "replace deleted", "write_file FORMAT"])
def test_deletion_for_which_there_is_no_room_deletes_nothing_and_may_be_repeated(path, at, number, raised):
    disk = Troubled()
    store, table = make_table(path, system=disk)
    append(table, 0, 9)
    if not at.endswith("FORMAT"):
        table.delete_episodes([0])
    before = [file.exists() and file.read_bytes() for file in copies(path)]
    disk.error, disk.at = OSError(number, os.strerror(number)), at
    with pytest.raises(raised, match=os.strerror(number)):
        table.delete_episodes([1])
    assert [file.exists() and file.read_bytes() for file in copies(path)] == before
    assert [file.name for file in (path / "tmp").iterdir()] == []
    disk.error = None
    table.delete_episodes([1])
    store.close()
    store, _, loaded = reopen(path)
    assert 1 in loaded.deleted.tolist()
    store.close()


# -- older releases -------------------------------------------------------------------------------------------------------


def format_of(path):
    content = json.loads((path / "FORMAT").read_bytes())
    return content["format"], content["min_reader"]


def test_first_deletion_keeps_older_releases_out_before_it_is_written(path):
    disk = Troubled()
    store, table = make_table(path, system=disk)
    append(table, 0, 3)
    before = json.loads((path / "FORMAT").read_bytes())
    assert format_of(path) == (1, 1)
    disk.error, disk.at = OSError(errno.EIO, "Input/output error"), "write_file deleted-t"
    with pytest.raises(StorageError):
        table.delete_episodes([0])
    assert (format_of(path), [file.exists() for file in copies(path)]) == ((2, 2), [False, False])
    disk.error = None
    table.delete_episodes([0])
    store.close()
    store, table, _ = reopen(path)
    assert json.loads((path / "FORMAT").read_bytes()) == before | {"format": 2, "min_reader": 2}
    store.close()


def test_format_is_written_once(path):
    store, table = make_table(path)
    append(table, 0, 9)
    table.delete_episodes([0])
    written = (path / "FORMAT").stat().st_ino
    table.delete_episodes([1])
    store.close()
    store, table, _ = reopen(path)
    table.delete_episodes([2])
    assert (path / "FORMAT").stat().st_ino == written
    store.close()


def test_deletion_again_writes_nothing(path):
    disk = Troubled()
    store, table = make_table(path, system=disk)
    append_each(table, 0, 6, size=BIG)
    table.delete_episodes([1])
    disk.error, disk.at = OSError(errno.EIO, "Input/output error"), "write_file deleted-t"
    table.delete_episodes([1])
    store.close()
