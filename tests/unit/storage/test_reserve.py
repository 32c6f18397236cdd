"""A full disk stops appends in time, and nothing else: what must be noted finds room, and what deletes works."""

import errno
import inspect
import json
import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from replaysvc.errors import CapacityError
from replaysvc.storage import System
from replaysvc.storage.store_system import StoreSystem
from tests.store_builders import BIG, append, append_each, check, chunk, make_table, open_store, reopen

MiB = 1 << 20
RESERVE = 64 * MiB
FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


class Disk(System):
    """A disk with `free` bytes, on which what is named in `full` finds no room while RESERVE is there."""

    def __init__(self, free=1 << 40):
        self.free, self.full, self.path = free, set(), None
        self.calls = Counter()

    def _meet(self, call):
        self.calls[call] += 1
        if call in self.full and (self.path / "RESERVE").exists():
            raise FULL

    def free_bytes(self, path):
        self.calls["free_bytes"] += 1
        return self.free

    def write_file(self, path, data):
        self._meet("write_file")
        super().write_file(path, data)

    def rename(self, source, target):
        self._meet("rename")
        super().rename(source, target)

    def replace(self, source, target):
        self._meet("replace")
        super().replace(source, target)

    def remove_tree(self, path):
        self._meet("remove_tree")
        super().remove_tree(path)


def make(path, disk, **options):
    disk.path = path
    return make_table(path, system=disk, **({"disk_reserve_bytes": RESERVE} | options))


def stamp(path):
    return {str(file): (file.stat().st_mtime_ns, file.stat().st_size) for file in (path / "tables").rglob("*")}


# -- what appends leave free ----------------------------------------------------------------------------------------------


def test_append_that_would_take_of_the_reserve_is_refused_before_anything_is_touched_and_taken_when_there_is_room(path):
    disk = Disk()
    store, table = make(path, disk)
    append_each(table, 0, 3)  # the segment is full: the next append seals it
    size = len(chunk(3, BIG))
    disk.free = RESERVE + size - 1
    before = stamp(path)
    for _ in range(3):
        with pytest.raises(CapacityError) as told:
            append(table, 3, 4, size=BIG)
    assert str(told.value) == (
        f"store {path}: the disk is full: expected {RESERVE + size} bytes free to append {size}"
        f" (disk_reserve_bytes={RESERVE}), found {RESERVE + size - 1}"
    )
    assert stamp(path) == before
    assert table.fault == ""
    assert table.read(np.arange(3)) == [chunk(k, BIG) for k in range(3)]
    disk.free += 1
    append(table, 3, 4, size=BIG)
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 4, size=BIG)
    store.close()


def test_disk_is_asked_once_an_append(path):
    disk = Disk()
    store, table = make(path, disk)
    disk.calls.clear()
    append_each(table, 0, 5)
    assert disk.calls["free_bytes"] == 5
    store.close()


def test_who_runs_the_server_is_told_once_that_appends_are_refused_and_once_that_they_are_not(path, caplog):
    disk = Disk()
    store, table = make(path, disk)
    append(table, 0, 1)
    caplog.clear()
    disk.free = RESERVE
    for _ in range(3):
        with pytest.raises(CapacityError):
            append(table, 1, 2)
    disk.free = 1 << 40
    append(table, 1, 2)
    append(table, 2, 3)
    told = [record.message for record in caplog.records if "appends are" in record.message]
    assert len(told) == 2
    assert told[0].endswith(f"found {RESERVE}; appends are refused until there are")
    assert told[1].endswith(f"{1 << 40} bytes are free: appends are taken again")
    store.close()


def test_without_a_reserve_appends_go_on_to_the_last_byte_and_there_is_no_file(path):
    disk = Disk(free=0)
    store, table = make(path, disk, disk_reserve_bytes=0)
    append_each(table, 0, 5)
    assert disk.calls["free_bytes"] == 0
    assert not (path / "RESERVE").exists()
    store.close()


# -- the file -------------------------------------------------------------------------------------------------------------


def held(path):
    """The size of RESERVE, all of which has its place on the disk; 0 if there is none."""
    file = path / "RESERVE"
    if not file.exists():
        return 0
    assert file.stat().st_blocks * 512 >= file.stat().st_size
    return file.stat().st_size


@pytest.mark.parametrize("reserve, size", [(256 * MiB, 8 * MiB), (1 << 40, 8 * MiB), (32 * MiB, MiB), (31, 0)])
def test_file_is_a_part_of_the_reserve(path, reserve, size):
    open_store(path, disk_reserve_bytes=reserve).close()
    assert held(path) == size


def test_older_store_gets_the_file_and_one_without_a_reserve_loses_it(path):
    open_store(path).close()
    for reserve, size in ((64 * MiB, 2 * MiB), (128 * MiB, 4 * MiB), (64 * MiB, 2 * MiB), (0, 0)):
        open_store(path, disk_reserve_bytes=reserve).close()
        assert held(path) == size


def test_file_with_a_hole_in_it_is_filled(path):
    """A copy of a store may have it as a hole."""
    open_store(path, disk_reserve_bytes=RESERVE).close()
    (path / "RESERVE").write_bytes(b"")
    os.truncate(path / "RESERVE", 2 * MiB)
    open_store(path, disk_reserve_bytes=RESERVE).close()
    assert held(path) == 2 * MiB


NOTES = {
    "deletion": lambda store, table: table.delete_episodes([0]),
    "state": lambda store, table: table.write_state("queue", b"data"),
    "parameters": lambda store, table: store.put_params("policy", 1, b"data"),
    "removal": lambda store, table: table.remove_before(3),
    "space": lambda store, table: table.reclaim(np.arange(3, 7)),
    "damage": lambda store, table: table.quarantine_chunk(1, "a test"),
    "table": lambda store, table: store.delete_table("t"),
    "new table": lambda store, table: store.create_table("new", {}, segment_bytes=MiB),
}


@pytest.mark.parametrize("note", NOTES.values(), ids=NOTES)
@pytest.mark.parametrize("call", ["write_file", "rename", "replace", "remove_tree"])
def test_file_gives_way_to_what_must_be_noted_and_is_there_again_when_there_is_room(path, note, call, caplog):
    disk = Disk()
    store, table = make(path, disk)
    append_each(table, 0, 7)
    other = store.create_table("other", {}, segment_bytes=MiB)
    other.load()
    disk.calls.clear()
    disk.full = {call}
    note(store, table)
    assert ("RESERVE is given up for what must be noted" in caplog.text) == (disk.calls[call] > 0)
    disk.full = set()
    append(other, 0, 1)
    assert held(path) == 2 * MiB
    store.close()
    store = open_store(path)
    names = {"other"} | ({"t"} if "t" in [p.name for p in (path / "tables").iterdir()] else set())
    assert set(store.tables()) - {"new"} == names
    store.close()


def test_file_is_made_again_by_an_append_only_if_there_is_room_for_both(path):
    disk = Disk()
    store, table = make(path, disk)
    append_each(table, 0, 4)
    (path / "RESERVE").unlink()
    store._system._reserve._held = False
    disk.free = RESERVE + 2 * MiB
    append(table, 4, 5)
    assert held(path) == 0
    disk.free += 1000
    append(table, 5, 6)
    assert held(path) == 2 * MiB
    store.close()


class Small(System):
    """A disk of `room` bytes for RESERVE and what stands in tmp/ and params/, to the byte."""

    room = 0
    path = None

    def _left(self):
        if self.path is None:
            return 1 << 40
        files = [*self.path.glob("RESERVE"), *self.path.glob("tmp/*"), *self.path.glob("params/*")]
        return self.room - sum(file.stat().st_size for file in files if file.is_file())

    def reserve(self, path, size):
        there = path.stat().st_size if path.exists() else 0
        if path.name == "RESERVE" and self._left() < size - there:
            raise FULL
        super().reserve(path, size)

    def write_file(self, path, data):
        if path.parent.name == "tmp" and self._left() < len(data):
            super().write_file(path, data[: max(0, self._left())])
            raise FULL
        super().write_file(path, data)


def test_file_is_there_again_at_once_when_what_needed_it_took_the_place_of_another_file(path):
    disk = Small()
    store, _ = make_table(path, system=disk, disk_reserve_bytes=32 * MiB)
    disk.path, disk.room = path, MiB + 310_000
    store.put_params("policy", 0, bytes(200_000))
    for version in range(1, 5):  # each needs room for the old and the new one
        store.put_params("policy", version, bytes(200_000))
        assert held(path) == MiB
        assert store.get_params("policy")[0] == version
    store.close()


def test_what_is_left_of_the_room_after_a_note_is_held_again_for_the_next_one(path):
    disk = Small()
    store, table = make_table(path, system=disk, disk_reserve_bytes=32 * MiB)
    append_each(table, 0, 6)
    disk.path, disk.room = path, MiB + 100
    for version, left in ((1, MiB // 2), (2, MiB // 4)):
        store.put_params(f"policy-{version}", 0, bytes(100_000))
        assert held(path) == left
        disk.room -= disk._left()  # others take the rest
    disk.path = None
    append(table, 6, 7)
    assert held(path) == MiB
    store.close()


def test_first_state_of_a_table_finds_room_for_its_directory_too(path):
    class Narrow(Disk):
        def make_directory(self, path):
            self._meet("make_directory")
            super().make_directory(path)

    disk = Narrow()
    store, table = make(path, disk)
    disk.full = {"make_directory"}
    table.write_state("queue", b"data")
    assert disk.calls["make_directory"] == 2
    assert table.read_state("queue") == b"data"
    store.close()


def test_large_set_of_parameters_does_not_use_up_what_a_deletion_needs(path):
    disk = Small()
    store, table = make_table(path, system=disk, disk_reserve_bytes=32 * MiB)
    append_each(table, 0, 4)
    disk.path, disk.room = path, MiB + 100
    with pytest.raises(CapacityError):
        store.put_params("policy", 1, bytes(600_000))
    assert held(path) == MiB
    assert list((path / "tmp").iterdir()) == []
    table.delete_episodes([0])
    assert held(path) == MiB
    store.close()


def test_what_finds_no_room_even_so_fails_and_nothing_is_lost(path):
    class Full(Disk):
        def _meet(self, call):
            if call in self.full:
                raise FULL

    disk = Full()
    store, table = make(path, disk)
    append_each(table, 0, 4)
    disk.full = {"write_file"}
    with pytest.raises(CapacityError, match="No space left"):
        table.delete_episodes([0])
    assert held(path) == 0
    disk.full = set()
    table.delete_episodes([0])
    store.close()
    store, table, loaded = reopen(path)
    assert loaded.index["chunk_id"].tolist() == [3]
    store.close()


def test_store_for_whose_file_there_is_no_room_opens_without_it(path, caplog):
    class Full(System):
        full = True

        def reserve(self, path, size):
            if self.full and path.name == "RESERVE":
                raise FULL
            super().reserve(path, size)

    disk = Full()
    store, table = make_table(path, system=disk, disk_reserve_bytes=MiB)
    append_each(table, 0, 3)
    assert held(path) == 0
    assert caplog.text.count("no room for") == 1
    disk.full = False
    append_each(table, 3, 4)
    assert held(path) == MiB // 32
    store.close()


def test_snapshot_has_no_such_file_and_making_one_does_not_take_it(path, tmp_path):
    disk = Disk()
    store, table = make(path, disk)
    append_each(table, 0, 4)
    disk.full = {"write_file"}
    with pytest.raises(CapacityError):
        store.snapshot(tmp_path / "copy", {"t": {"queue": b"data"}})
    disk.full = set()
    store.snapshot(tmp_path / "copy", {})
    assert held(path) == 2 * MiB
    assert not (tmp_path / "copy" / "RESERVE").exists()
    store.close()


def test_store_passes_on_whatever_a_system_can_do():
    """A method that it did not pass on would go past the clock and the faults that a test has set."""
    names = {name for name, _ in inspect.getmembers(System, inspect.isfunction) if not name.startswith("_")} | {"fault"}
    assert names <= set(vars(StoreSystem))


# -- a real one -----------------------------------------------------------------------------------------------------------

SCRIPT = """
import json, os, sys
from pathlib import Path
import numpy as np
from replaysvc.errors import CapacityError
from tests.store_builders import BIG, append, append_each, check, chunk, make_table, open_store, reopen

path, reserve, told = Path(sys.argv[1]) / "store", int(sys.argv[2]), {}

def fill():
    name = path.parent / f"ballast{len(list(path.parent.glob('ballast*')))}"
    with open(name, "wb", buffering=0) as ballast:
        for size in (1 << 16, 1 << 12):
            try:
                while ballast.write(bytes(size)) == size:
                    pass
            except OSError:
                pass

store, table = make_table(path, disk_reserve_bytes=reserve)
other = store.create_table("other", {}, segment_bytes=1 << 17)
other.load()
append_each(other, 0, 7)
stored = 0
try:
    while stored < 10_000:
        append(table, stored, stored + 1, size=BIG)
        stored += 1
except CapacityError as error:
    told["refused"] = str(error)
told["left"] = os.statvfs(path).f_bavail * os.statvfs(path).f_frsize
fill()
told["free"] = os.statvfs(path).f_bavail * os.statvfs(path).f_frsize
try:
    append(table, stored, stored + 1, size=BIG)
    told["taken"] = True
except CapacityError:
    told["taken"] = False
assert table.read(np.arange(stored)) == [chunk(k, BIG) for k in range(stored)]
table.delete_episodes([0, 1])
table.write_state("queue", b"data")
other.quarantine_chunk(5, "a test")
store.close()
fill()
store = open_store(path, disk_reserve_bytes=reserve)
table = store.tables()["t"]
loaded = table.load()
assert loaded.deleted.tolist() == [0, 1]
assert loaded.index["chunk_id"].tolist() == list(range(6, stored))
other = store.tables()["other"]
assert other.load().damaged.tolist() == [5]
fill()
store.delete_table("other")
fill()
assert table.remove_before(9) == 3
told["freed"] = os.statvfs(path).f_bavail * os.statvfs(path).f_frsize
for ballast in path.parent.glob("ballast*"):
    ballast.unlink()
append(table, stored, stored + 1, size=BIG)
told["reserve"] = (path / "RESERVE").stat().st_size if (path / "RESERVE").exists() else 0
store.close()
store, table, loaded = reopen(path)
assert loaded.index["chunk_id"].tolist() == list(range(9, stored + 1))
assert set(store.tables()) == {"t"}
store.close()
print(json.dumps(told))
"""


def on_a_small_disk(tmp_path, reserve):
    """Runs SCRIPT on a disk of its own of 12 MiB; returns what it told."""
    mount = tmp_path / "disk"
    mount.mkdir()
    own = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    inner = f'mount -t tmpfs -o size=12m none "{mount}" && exec "$@"'
    done = subprocess.run(
        [*own, "sh", "-c", inner, "sh", sys.executable, "-c", SCRIPT, str(mount), str(reserve)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_on_a_disk_that_is_really_full_everything_works_but_appending(tmp_path):
    reserve = 4 * MiB
    told = on_a_small_disk(tmp_path, reserve)
    assert "the disk is full: expected" in told["refused"]
    assert told["left"] >= reserve - (1 << 18)  # a new segment, and pages that are not full, come on top of an append
    assert told["free"] < 4096
    assert not told["taken"]
    assert told["freed"] > 0
    assert told["reserve"] == reserve // 32


def test_without_a_reserve_the_same_disk_has_no_room_to_note_a_deletion(tmp_path):
    with pytest.raises(AssertionError, match="No space left on device"):
        on_a_small_disk(tmp_path, 0)
