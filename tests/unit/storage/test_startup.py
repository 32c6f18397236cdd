"""A start needs nobody: what is damaged is mended from a copy or set aside, what is foreign is left alone, the rest goes on."""

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from replaysvc.errors import StorageError
from replaysvc.storage import System
from replaysvc.storage.descriptions import pack_table, unpack_format, unpack_table
from tests.store_builders import Troubled, append, check, make_table, open_store, reopen, segments


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def with_two_tables(path):
    store, table = make_table(path)
    append(table, 0, 3)
    other = store.create_table("other", {"about": "another"}, segment_bytes=1 << 20)
    other.load()
    append(other, 0, 4)
    store.put_params("policy", 1, b"weights")
    store.close()


def flipped(file):
    """Another digit in the segment size: still JSON, and no longer what was written."""
    content = file.read_bytes()
    at = content.index(b'"segment_bytes": ') + len(b'"segment_bytes": ')
    file.write_bytes(content[:at] + bytes([content[at] ^ 2]) + content[at + 1 :])


def of_another_table(file):
    """Whole, and in the wrong place."""
    values = unpack_table(file.read_bytes())
    file.write_bytes(pack_table(values | {"name": "other"}))


DAMAGE = {
    "cut": lambda file: os.truncate(file, 20),
    "empty": lambda file: os.truncate(file, 0),
    "zeros": lambda file: file.write_bytes(bytes(200)),
    "flipped": flipped,
    "of another table": of_another_table,
    "list": lambda file: file.write_bytes(b"[]"),
    "no text": lambda file: file.write_bytes(b"\xff\xfe{}"),
    "lacks a key": lambda file: file.write_bytes(b'{"name": "t", "uuid": "", "description": {}}'),
    "missing": lambda file: file.unlink(),
    "directory": lambda file: (file.unlink(), file.mkdir()),
}
COPIES = ("table.json", "table.json.bak")


# -- tables ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [value for name, value in DAMAGE.items() if name != "directory"])
@pytest.mark.parametrize("which", [0, 1])
def test_damaged_description_of_a_table_is_mended_from_its_copy(path, damage, which):
    with_two_tables(path)
    file = path / "tables" / "t" / COPIES[which]
    before = file.read_bytes()
    damage(file)
    store, table, loaded = reopen(path)
    check(table, loaded, 3)
    assert (table.description, store.quarantined_tables) == ({"about": "a test"}, {})
    assert file.read_bytes() == before
    store.close()


@pytest.mark.parametrize("first", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("second", DAMAGE.values(), ids=DAMAGE)
def test_table_without_a_description_is_set_aside_and_the_others_go_on(path, first, second, caplog):
    with_two_tables(path)
    for damage, name in zip((first, second), COPIES, strict=True):
        damage(path / "tables" / "t" / name)
    store = open_store(path)
    assert set(store.tables()) == {"other"}
    expected = "table t: expected its description in table.json or table.json.bak, found none whole"
    assert store.quarantined_tables == {"t": expected}
    assert f"table t cannot be used and is moved to {path / 'quarantine' / 't-table'}: {expected}" in caplog.text
    other = store.tables()["other"]
    check(other, other.load(), 4)
    assert store.get_params("policy") == (1, b"weights")
    table = store.create_table("t", {}, segment_bytes=1 << 20)
    check(table, table.load(), 0)
    append(table, 0, 2)
    store.close()
    assert len(list((path / "quarantine" / "t-table").glob("seg-*"))) == 1


def test_table_that_was_set_aside_can_be_moved_back_when_its_description_is_put_back(path):
    with_two_tables(path)
    kept = (path / "tables" / "t" / "table.json").read_bytes()
    for name in COPIES:
        DAMAGE["empty"](path / "tables" / "t" / name)
    open_store(path).close()
    (path / "quarantine" / "t-table" / "table.json").write_bytes(kept)
    (path / "quarantine" / "t-table").rename(path / "tables" / "t")
    store, table, loaded = reopen(path)
    check(table, loaded, 3)
    store.close()


def test_tables_of_one_name_can_be_set_aside_again_and_again(path):
    for _ in range(3):
        store, _ = make_table(path)
        store.close()
        for name in COPIES:
            DAMAGE["cut"](path / "tables" / "t" / name)
        open_store(path).close()
    assert len(list((path / "quarantine").iterdir())) == 3


def test_description_of_an_older_release_has_no_checksum_and_gets_a_copy(path):
    with_two_tables(path)
    file = path / "tables" / "t" / "table.json"
    values = unpack_table(file.read_bytes())
    assert "checksum" not in values
    file.write_text(json.dumps(values))
    (path / "tables" / "t" / "table.json.bak").unlink()
    store, table, loaded = reopen(path)
    check(table, loaded, 3)
    assert file.with_name("table.json.bak").read_bytes() == file.read_bytes() == json.dumps(values).encode()
    store.close()


def test_checksum_of_a_description_does_not_hang_on_how_it_was_given():
    values = {"name": "t", "uuid": "u", "segment_bytes": 5, "description": {"z": (1, 2), 10: 1.5, 9: None, "ü": "ü"}}
    assert unpack_table(pack_table(values))["description"] == {"z": [1, 2], "10": 1.5, "9": None, "ü": "ü"}


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EACCES, errno.ENOMEM])
@pytest.mark.parametrize("name", ["table.json", "deleted", "FORMAT"])
def test_file_that_cannot_be_read_now_is_not_damaged_and_nothing_is_moved(path, monkeypatch, number, name):
    with_two_tables(path)
    store, table, _ = reopen(path)
    table.delete_episodes([0])
    store.close()
    read = Path.read_bytes

    def troubled(file):
        if file.name in (name, f"{name}.bak"):
            raise OSError(number, os.strerror(number))
        return read(file)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", troubled)
        with pytest.raises(StorageError, match=os.strerror(number)):
            open_store(path)
    assert list((path / "quarantine").iterdir()) == []
    store = open_store(path)
    assert set(store.tables()) == {"t", "other"}
    store.close()


@pytest.mark.parametrize("name", ["table.json", "deleted"])
def test_file_that_the_disk_does_not_give_back_is_damaged(path, monkeypatch, name):
    with_two_tables(path)
    store, table, _ = reopen(path)
    table.delete_episodes([0])
    store.close()
    read = Path.read_bytes

    def broken(file):
        if file.name in (name, f"{name}.bak") and file.parent.name == "t":
            raise OSError(errno.EIO, "Input/output error")
        return read(file)

    monkeypatch.setattr(Path, "read_bytes", broken)
    store = open_store(path)
    assert set(store.tables()) == {"other"}
    store.close()


def test_description_that_cannot_be_mended_does_not_keep_the_table_closed(path, caplog):
    with_two_tables(path)
    DAMAGE["cut"](path / "tables" / "t" / "table.json.bak")
    disk = Troubled()
    disk.error, disk.at = OSError(errno.ENOSPC, "No space left on device"), "write_file"
    store, table, loaded = reopen(path, disk)
    check(table, loaded, 3)
    assert "the description of table t could not be mended" in caplog.text
    store.close()


# -- the store ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["cut", "empty", "zeros", "list", "no text", "missing"])
@pytest.mark.parametrize("name", ["FORMAT", "FORMAT.bak"])
def test_damaged_format_file_is_mended_from_its_copy(path, damage, name):
    with_two_tables(path)
    before = (path / name).read_bytes()
    DAMAGE[damage](path / name)
    store = open_store(path)
    assert set(store.tables()) == {"t", "other"}
    assert (path / name).read_bytes() == before
    store.close()


def test_both_copies_of_the_format_are_raised(path):
    with_two_tables(path)
    for lost in ("FORMAT", "FORMAT.bak"):
        store, table, _ = reopen(path)
        table.delete_episodes([0])
        store.close()
        assert unpack_format((path / "FORMAT").read_bytes())["min_reader"] == 2
        assert (path / "FORMAT").read_bytes() == (path / "FORMAT.bak").read_bytes()
        (path / lost).unlink()


def test_file_holds_where_it_and_its_copy_differ(path):
    """The process ended after the file was written and before its copy was."""
    with_two_tables(path)
    values = json.loads((path / "FORMAT").read_bytes())
    (path / "FORMAT").write_text(json.dumps(values | {"format": 2, "min_reader": 2}))
    open_store(path).close()
    assert json.loads((path / "FORMAT.bak").read_bytes()) == values | {"format": 2, "min_reader": 2}


def test_store_is_made_anew_only_where_neither_file_stands(path):
    (path / "tables").mkdir(parents=True)
    with pytest.raises(StorageError, match="found other files"):
        open_store(path)


def test_every_directory_in_which_something_may_just_have_been_renamed_is_synced(path):
    """A process may end between a rename and the sync that makes it durable; the next one sees it, and builds upon it."""
    with_two_tables(path)
    synced = []

    class Watched(System):
        def fsync_directory(self, path):
            synced.append(path)
            super().fsync_directory(path)

    open_store(path, Watched()).close()
    assert {path, path / "tables", path / "params", path / "tables" / "t", path / "tables" / "other"} <= set(synced)


# -- what is foreign, and what is left over -------------------------------------------------------------------------------


def test_what_is_foreign_is_left_alone(path, caplog):
    with_two_tables(path)
    foreign = [
        path / "tables" / "notes.txt",
        path / "params" / "directory",
        path / "tables" / "t" / "seg-old",
        path / "tables" / "t" / "seg-00000000000000000000.old",
    ]
    for file in foreign:
        if file.suffix == ".txt":
            file.write_bytes(b"mine")
        else:
            file.mkdir()
    store, table, loaded = reopen(path)
    check(table, loaded, 3)
    assert set(store.tables()) == {"t", "other"}
    assert store.params() == {"policy": 1}
    for file in foreign:
        assert file.exists()
        assert f"{file} is no " in caplog.text
    store.close()


def test_empty_directory_among_the_tables_is_set_aside(path):
    with_two_tables(path)
    (path / "tables" / "new").mkdir()
    store = open_store(path)
    assert set(store.tables()) == {"t", "other"}
    assert set(store.quarantined_tables) == {"new"}
    store.close()


def test_half_written_files_are_removed_or_left_out(path):
    with_two_tables(path)
    (path / "FORMAT.tmp").write_bytes(b'{"form')
    state = path / "tables" / "t" / "state"
    state.mkdir()
    (state / "queue").write_bytes(b"RPS1")
    (path / "tmp" / "state-t+queue").write_bytes(b"half")
    store, table, loaded = reopen(path)
    check(table, loaded, 3)
    assert table.read_state("queue") is None
    table.write_state("queue", b"whole")
    assert list((path / "tmp").iterdir()) == []
    store.close()


def test_leftover_that_cannot_be_removed_keeps_nothing_closed(path, caplog):
    with_two_tables(path)
    for name in ("tmp", "trash"):
        (path / name / "left").write_bytes(b"over")

    class Stuck(System):
        def remove_tree(self, path):
            if path.name == "left":
                raise OSError(errno.EIO, "Input/output error")
            super().remove_tree(path)

    store, table, loaded = reopen(path, Stuck())
    check(table, loaded, 3)
    assert caplog.text.count("could not be removed") == 2
    store.close()


@pytest.mark.parametrize("content", [b"", b"x", bytes(8192), b"\xff" * 8192, bytes(1 << 17)])
def test_lock_of_lmdb_that_a_dead_process_left_is_of_no_meaning(path, content):
    with_two_tables(path)
    (segments(path)[0] / "lock.mdb").write_bytes(content)
    store, table, loaded = reopen(path)
    check(table, loaded, 3)
    append(table, 3, 5)
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 5)
    store.close()


def test_parameter_set_that_the_disk_does_not_give_back_is_damaged_and_may_be_put_anew(path, monkeypatch):
    with_two_tables(path)
    opening = Path.open

    def broken(file, *arguments, **options):
        if file.name == "policy" and arguments == ("rb",):
            raise OSError(errno.EIO, "Input/output error")
        return opening(file, *arguments, **options)

    monkeypatch.setattr(Path, "open", broken)
    store = open_store(path)
    assert set(store.tables()) == {"t", "other"}
    assert store.params()["policy"] > 1
    store.close()


def test_overlay_of_a_container_is_warned_of(path, monkeypatch, caplog):
    listing = f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 22 0:35 / {path.parent} rw - overlay overlay rw\n"
    real = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, *a: listing if str(path) == "/proc/self/mountinfo" else real(path, *a))
    open_store(path).close()
    assert "lies on the overlay file system of a container" in caplog.text
    shutil.rmtree(path)
