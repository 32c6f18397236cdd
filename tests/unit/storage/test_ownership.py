"""Whose directory it is: one that was removed, moved or replaced under a running service is noticed before anything is
acknowledged, and a stranger's files are left alone."""

import os
import shutil

import numpy as np
import pytest

from replaysvc.errors import StorageError
from replaysvc.storage.ownership import Ownership
from replaysvc.storage.place import Place
from tests.store_builders import append, append_each, check, chunk, make_table, open_store, reopen, segments


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def removed(path):
    shutil.rmtree(path)


def moved(path):
    path.rename(path.with_name("elsewhere"))


def replaced_by_a_copy(path):
    moved(path)
    shutil.copytree(path.with_name("elsewhere"), path)


def lock_removed(path):
    (path / "LOCK").unlink()


def lock_replaced(path):
    (path / "LOCK").unlink()
    (path / "LOCK").touch()


STORE = [removed, moved, replaced_by_a_copy, lock_removed, lock_replaced]


@pytest.mark.parametrize("change", STORE)
def test_store_that_is_gone_takes_nothing_says_so_and_still_serves(path, change):
    store, table = make_table(path)
    append(table, 0, 3)
    other = store.create_table("other", {}, segment_bytes=1 << 20)
    other.load()
    change(path)
    for _ in range(2):
        with pytest.raises(StorageError, match=r"expected the file LOCK as it was .* restart the service"):
            append(table, 3, 4)
    assert "was removed, moved or replaced" in table.fault
    assert table.fault == other.fault == store.fault
    assert table.read(np.arange(4)) == [*(chunk(k) for k in range(3)), None]
    store.close()


def test_directory_that_comes_back_is_not_taken_up_again(path):
    """Another process may have had it meanwhile."""
    store, table = make_table(path)
    append(table, 0, 3)
    moved(path)
    with pytest.raises(StorageError, match="LOCK"):
        append(table, 3, 4)
    path.with_name("elsewhere").rename(path)
    with pytest.raises(StorageError, match="LOCK"):
        append(table, 3, 4)
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 3)
    store.close()


def segment_removed(segment):
    shutil.rmtree(segment)


def segment_replaced(segment):
    shutil.copytree(segment, segment.with_name("copy"))
    shutil.rmtree(segment)
    segment.with_name("copy").rename(segment)


def table_removed(segment):
    shutil.rmtree(segment.parent)


@pytest.mark.parametrize("change", [segment_removed, segment_replaced, table_removed])
def test_append_to_a_file_that_no_restart_would_find_is_not_acknowledged(path, change):
    store, table = make_table(path)
    append(table, 0, 3)
    change(segments(path)[-1])
    with pytest.raises(StorageError, match=r"its file was removed|another file was put in its place"):
        append(table, 3, 4)
    with pytest.raises(StorageError, match="takes no more data"):
        append(table, 3, 4)
    assert "while the service runs" in table.fault
    assert table.read(np.arange(3)) == [chunk(k) for k in range(3)]
    store.close()


@pytest.mark.parametrize(
    "change, guards",
    [*((change, "lock") for change in STORE), (segment_removed, "place"), (segment_replaced, "place")],
)
def test_without_looking_the_append_would_be_acknowledged_and_lost(path, change, guards, monkeypatch):
    monkeypatch.setattr(Ownership, "check", lambda self: None)
    monkeypatch.setattr(Place, "check", lambda self: None)
    store, table = make_table(path)
    append(table, 0, 3)
    change(segments(path)[-1] if guards == "place" else path)
    append(table, 3, 4)
    store.close()


def test_nothing_is_written_by_name_into_a_strangers_store(path):
    store, table = make_table(path)
    append_each(table, 0, 4)
    table.write_state("queue", b"ours")
    store.put_params("policy", 1, b"ours")
    replaced_by_a_copy(path)
    before = {file: file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
    for attempt in (
        lambda: table.write_state("queue", b"again"),
        lambda: table.delete_episodes([0]),
        lambda: store.put_params("policy", 2, b"again"),
        lambda: store.create_table("new", {}, segment_bytes=1 << 20),
        lambda: store.delete_table("t"),
    ):
        with pytest.raises(StorageError, match="expected the file LOCK as it was"):
            attempt()
    table.remove_before(3)
    table.quarantine_chunk(3, "a test")
    store.close()
    assert {file: file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()} == before
    open_store(path).close()


def test_lock_of_a_dead_process_is_no_lock(path):
    """It ends with the process, whatever becomes of the file."""
    store, table = make_table(path)
    append(table, 0, 3)
    store.close()
    (path / "LOCK").write_text("4711\n")
    (segments(path)[0] / "lock.mdb").write_bytes(os.urandom(8192))
    store, table, loaded = reopen(path)
    check(table, loaded, 3)
    append(table, 3, 5)
    store.close()
