"""A store's directory: who may open it, what is refused without being touched, and its tables."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from replaysvc.errors import CapacityError, FormatVersionError, StorageError, StoreLockedError
from replaysvc.storage import System, system
from tests.store_builders import append, check, make_table, open_store, segments


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def look(path):
    """Everything in a directory: names, sizes, times and contents."""
    found = {}
    for file in sorted([path, *path.rglob("*")]):
        status = file.stat()
        found[str(file)] = (status.st_mtime_ns, status.st_size, status.st_mode, file.read_bytes() if file.is_file() else None)
    return found


def test_new_store_has_all_its_directories_and_only_its_owner_may_look(path):
    open_store(path).close()
    assert {entry.name for entry in path.iterdir()} == {
        "FORMAT", "FORMAT.bak", "LOCK", "tables", "params", "tmp", "trash", "quarantine",
    }  # fmt: skip
    assert (path / "FORMAT.bak").read_bytes() == (path / "FORMAT").read_bytes()
    assert path.stat().st_mode & 0o777 == 0o700
    content = json.loads((path / "FORMAT").read_bytes())
    assert (content["format"], content["min_reader"]) == (1, 1)


@pytest.mark.parametrize("given", ["absent", "absent/below/absent", "empty", "lost+found"])
def test_store_is_made_where_there_is_nothing(tmp_path, given):
    path = tmp_path / given
    if given == "empty":
        path.mkdir()
    if given == "lost+found":
        path = tmp_path / "disk"
        (path / "lost+found").mkdir(parents=True)
    store, table = make_table(path)
    append(table, 0, 3)
    store.close()
    store = open_store(path)
    check(store.tables()["t"], store.tables()["t"].load(), 3)
    store.close()


def test_every_directory_that_was_made_on_the_way_is_made_durable(tmp_path):
    synced = []

    class Watched(System):
        def fsync_directory(self, path):
            synced.append(path)
            super().fsync_directory(path)

    open_store(tmp_path / "a" / "b" / "c", Watched()).close()
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"} <= set(synced)


# -- refused, and nothing touched -----------------------------------------------------------------------------------------


def test_store_of_a_newer_format_is_refused_untouched(path):
    store, table = make_table(path)
    append(table, 0, 3)
    store.close()
    (path / "FORMAT").write_text(json.dumps({"format": 5, "min_reader": 4}))
    (path / "LOCK").unlink()
    before = look(path)
    with pytest.raises(FormatVersionError, match="expected format version 3, found 5"):
        open_store(path)
    assert look(path) == before


def test_store_of_a_newer_format_that_this_release_can_read_is_opened(path):
    open_store(path).close()
    (path / "FORMAT").write_text(json.dumps({"format": 3, "min_reader": 1, "new": "things"}))
    open_store(path).close()


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"format": "x", "min_reader": 1}', "\x00\x00", '{"format": 1}'])
def test_format_file_that_cannot_be_read_is_refused_untouched(path, content):
    open_store(path).close()
    for name in ("FORMAT", "FORMAT.bak"):
        (path / name).write_text(content)
    before = look(path)
    with pytest.raises(StorageError, match=r"expected a FORMAT or a FORMAT\.bak that can be read, found none"):
        open_store(path)
    assert look(path) == before


def test_directory_with_foreign_files_is_refused_untouched(path):
    (path / "photos").mkdir(parents=True)
    (path / "photos" / "cat.jpg").write_bytes(b"cat")
    before = look(path)
    with pytest.raises(StorageError, match="expected a store or an empty directory, found other files"):
        open_store(path)
    assert look(path) == before


def test_path_that_is_a_file_is_refused_untouched(path):
    path.write_bytes(b"thesis")
    with pytest.raises(StorageError, match="expected a directory, found a file"):
        open_store(path)
    assert path.read_bytes() == b"thesis"


def test_path_below_a_file_is_refused(path):
    path.write_bytes(b"thesis")
    with pytest.raises(StorageError, match="cannot be used: Not a directory"):
        open_store(path / "store")
    assert path.read_bytes() == b"thesis"


def test_directory_that_is_not_writable_is_refused(path, monkeypatch):
    path.mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)  # the tests may run as root, who may write everywhere
    with pytest.raises(StorageError, match="not writable"):
        open_store(path)
    assert list(path.iterdir()) == []


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:35 / {mount} rw,relatime - {kind} server:/export rw
"""


@pytest.mark.parametrize(
    "kind, refused", [("nfs4", True), ("cifs", True), ("fuse.sshfs", True), ("xfs", False), ("tmpfs", False)]
)
def test_network_file_systems_are_refused_before_anything_is_made_there(tmp_path, monkeypatch, kind, refused):
    mount = tmp_path / "a mount"
    mount.mkdir()
    listing = MOUNTS.format(mount=str(mount).replace(" ", "\\040"), kind=kind)
    real = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, *a: listing if str(path) == "/proc/self/mountinfo" else real(path, *a))
    if refused:
        with pytest.raises(StorageError, match=f"found {kind} at .*a mount; LMDB is not safe there"):
            open_store(mount)
        assert list(mount.iterdir()) == []
    else:
        open_store(mount).close()
    system.refuse_remote(tmp_path / "beside it")


# -- one owner ------------------------------------------------------------------------------------------------------------

OPEN = """
import sys
from replaysvc.errors import StoreLockedError
from replaysvc.storage import Store
try:
    Store(sys.argv[1])
except StoreLockedError as error:
    print(error)
"""


def test_second_process_is_refused_and_touches_nothing(path):
    store, table = make_table(path)
    append(table, 0, 2)
    before = look(path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    told = subprocess.run(
        [sys.executable, "-c", OPEN, str(path)], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout == f"store {path}: another process has it open\n"
    assert look(path) == before
    append(table, 2, 3)
    store.close()


def test_second_opening_in_the_same_process_is_refused_and_the_first_goes_on(path):
    store, table = make_table(path)
    with pytest.raises(StoreLockedError, match="another process has it open"):
        open_store(path)
    append(table, 0, 3)
    store.close()
    store = open_store(path)
    check(store.tables()["t"], store.tables()["t"].load(), 3)
    store.close()


def test_store_that_could_not_be_opened_does_not_stay_locked(path):
    class Broken(System):
        def fsync_directory(self, path):
            raise self.error

    open_store(path).close()
    for error, raised in ((OSError(errno.EIO, "Input/output error"), StorageError), (RuntimeError("a bug"), RuntimeError)):
        disk = Broken()
        disk.error = error
        with pytest.raises(raised, match=str(error.args[-1])):
            open_store(path, disk)
    open_store(path).close()


# -- tables ---------------------------------------------------------------------------------------------------------------


def test_tables_are_told_apart_and_found_again(path):
    store = open_store(path)
    for name in ("b", "a.1"):
        store.create_table(name, {"name": f"about {name}"}, segment_bytes=1 << 20).load()
    append(store.tables()["b"], 0, 3)
    store.close()
    store = open_store(path)
    tables = store.tables()
    assert {name: table.description for name, table in tables.items()} == {
        "a.1": {"name": "about a.1"},
        "b": {"name": "about b"},
    }
    check(tables["a.1"], tables["a.1"].load(), 0)
    check(tables["b"], tables["b"].load(), 3)
    store.close()


def test_deleted_table_leaves_nothing_and_its_name_is_free(path):
    store, table = make_table(path)
    append(table, 0, 3)
    store.delete_table("t")
    assert store.tables() == {}
    assert [list((path / name).iterdir()) for name in ("tables", "trash")] == [[], []]
    table = store.create_table("t", {}, segment_bytes=1 << 20)
    check(table, table.load(), 0)
    store.close()


@pytest.mark.parametrize(
    "number, raised", [(errno.ENOSPC, CapacityError), (errno.EDQUOT, CapacityError), (errno.EIO, StorageError)]
)
def test_table_that_could_not_be_made_does_not_exist_and_may_be_made_later(path, number, raised):
    class Refusing(System):
        refuse = True

        def write_file(self, path, data):
            if self.refuse and path.name == "table.json":
                raise OSError(number, os.strerror(number))
            super().write_file(path, data)

    disk = Refusing()
    store = open_store(path, disk)
    with pytest.raises(raised, match=os.strerror(number)):
        store.create_table("t", {}, segment_bytes=1 << 20)
    assert store.tables() == {}
    disk.refuse = False
    table = store.create_table("t", {}, segment_bytes=1 << 20)
    table.load()
    append(table, 0, 3)
    store.close()


def test_leftovers_in_tmp_and_trash_are_removed_at_the_start(path):
    open_store(path).close()
    for name in ("tmp", "trash"):
        (path / name / "seg-1").mkdir()
        (path / name / "seg-1" / "data.mdb").write_bytes(bytes(100))
        (path / name / "params-x").write_bytes(b"half")
        (path / name / "link").symlink_to(path / "FORMAT")
    open_store(path).close()
    assert [list((path / name).iterdir()) for name in ("tmp", "trash")] == [[], []]
    assert (path / "FORMAT").exists()


def test_segment_that_could_not_be_made_is_made_by_the_next_append(path):
    class Refusing(System):
        refuse = True

        def rename(self, source, target):
            if self.refuse and target.name.startswith("seg-"):
                raise OSError(errno.ENOSPC, "No space left on device")
            super().rename(source, target)

    disk = Refusing()
    store, table = make_table(path, system=disk)
    with pytest.raises(CapacityError, match="No space left"):
        append(table, 0, 3)
    assert segments(path) == []
    disk.refuse = False
    append(table, 0, 3)
    store.close()
    store = open_store(path)
    check(store.tables()["t"], store.tables()["t"].load(), 3)
    store.close()


def test_segment_that_another_table_left_in_the_place_of_the_next_one_is_not_appended_to(path):
    """Nothing leaves one there; if it were, what is acknowledged would be moved away at the next start."""
    store, table = make_table(path)
    other = store.create_table("other", {}, segment_bytes=1 << 17)
    other.load()
    append(other, 0, 1)
    (there,) = (path / "tables" / "other").glob("seg-*")
    shutil.copytree(there, path / "tables" / "t" / there.name)
    (path / "tables" / "t" / there.name / "lock.mdb").unlink()
    with pytest.raises(StorageError, match="expected table "):
        append(table, 0, 1)
    store.close()
