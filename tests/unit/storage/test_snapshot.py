"""A snapshot is the whole store or not there; it shares what never changes, and what comes later does not touch it."""

import errno
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from replaysvc.errors import CapacityError, StorageError
from replaysvc.storage import System
from tests.store_builders import (
    BIG,
    SESSION,
    Troubled,
    append_each,
    chunk,
    entry,
    index,
    make_table,
    open_store,
    reopen,
    segments,
)

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "copy"


def make_whole(path, system=None):
    """A store with everything: of chunks 0 to 10, episode 0 deleted, segment 3 compacted to chunk 4; state, parameters."""
    store, table = make_table(path, system=system)
    append_each(table, 0, 11)
    table.delete_episodes([0])
    table.reclaim(np.array([4, 6, 7, 8, 9, 10]))
    table.write_states({"priorities": b"old", "queue": b"old"})
    store.put_params("policy", 3, b"weights")
    store.create_table("empty", {"about": "nothing"}, segment_bytes=1 << 17).load()
    return store, table


def check_whole(path, system=None):
    """Asserts that the store at `path` has what make_whole() made; returns the states."""
    store, table, loaded = reopen(path, system)
    assert loaded.index.tolist() == [index(k, k + 1, BIG).tolist()[0] for k in (4, 6, 7, 8, 9, 10)]
    assert table.read(np.arange(11)) == [chunk(k, BIG) if k in (4, *range(6, 11)) else None for k in range(11)]
    assert loaded.episodes == [entry(1), entry(2), entry(3)]
    assert (loaded.sessions, loaded.deleted.tolist()) == ({SESSION: 10}, [0])
    assert (loaded.next_chunk_id, loaded.next_position, loaded.next_episode_id) == (11, 44, 4)
    assert (table.quarantined_segments, table.damaged_records, table.description) == (0, 0, {"about": "a test"})
    assert (store.params(), store.get_params("policy")) == ({"policy": 3}, (3, b"weights"))
    assert sorted(store.tables()) == ["empty", "t"]
    assert len(store.tables()["empty"].load().index) == 0
    states = {name: table.read_state(name) for name in table.state_names()}
    store.close()
    return states


def files(path):
    """The files of a store, but for locks, states, the manifest and second copies, by their paths in it."""
    names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    left_out = ("LOCK", "lock.mdb", "MANIFEST.json", "FORMAT.bak", "table.json.bak")
    return [name for name in names if not name.endswith(left_out) and "/state/" not in name]


def test_snapshot_has_every_file_and_opens_as_a_store_of_its_own(path, target):
    store, _ = make_whole(path)
    store.snapshot(target, {"t": {"priorities": b"new", "limiter": b"1"}})
    store.close()
    assert files(target) == files(path)
    assert len(files(path)) == 9  # FORMAT, two table.json, two lists, one parameter set, three segments
    assert not [file for file in target.rglob("*") if file.name in ("LOCK", "lock.mdb")]
    for name in files(path):
        if not name.startswith("tables/t/seg-00000000000000000009"):
            assert (target / name).read_bytes() == (path / name).read_bytes(), name
    assert check_whole(target) == {"priorities": b"new", "limiter": b"1"}
    assert check_whole(path) == {"priorities": b"old", "queue": b"old"}


def test_tables_for_which_no_state_is_given_have_none_in_the_snapshot(path, target):
    store, _ = make_whole(path)
    store.snapshot(str(target), {})
    store.close()
    assert check_whole(target) == {}


def test_sealed_segments_and_parameters_are_shared_and_the_rest_is_not(path, target):
    store, _ = make_whole(path)
    store.snapshot(target, {})
    store.close()
    shared = [name for name in files(path) if (path / name).stat().st_ino == (target / name).stat().st_ino]
    assert shared == [
        "params/policy",
        "tables/t/seg-00000000000000000003.1/data.mdb",
        "tables/t/seg-00000000000000000006/data.mdb",
    ]


def test_only_the_owner_may_look_at_a_snapshot(path, target):
    store, _ = make_whole(path)
    store.snapshot(target, {"t": {"one": b"1"}})
    store.close()
    modes = {(file.is_dir(), file.stat().st_mode & 0o777) for file in [target, *target.rglob("*")]}
    assert modes == {(True, 0o700), (False, 0o600)}


def test_store_and_snapshot_go_separate_ways(path, target):
    store, table = make_whole(path)
    store.snapshot(target, {})
    append_each(table, 11, 14)
    table.delete_episodes([2])
    table.reclaim(np.arange(9, 14))
    store.put_params("policy", 4, b"later")
    store.close()
    check_whole(target)
    store, table, loaded = reopen(target)
    append_each(table, 11, 13)
    store.close()
    store, table, loaded = reopen(path)
    assert loaded.index["chunk_id"].tolist() == [9, 10, 11, 12, 13]
    store.close()
    store, table, loaded = reopen(target)
    assert loaded.index["chunk_id"].tolist() == [4, *range(6, 13)]
    store.close()


def test_snapshot_of_a_snapshot_is_the_same_again(path, target, tmp_path):
    store, _ = make_whole(path)
    store.snapshot(target, {})
    store.close()
    store = open_store(target)
    for table in store.tables().values():
        table.load()
    store.snapshot(tmp_path / "again", {})
    store.close()
    assert files(tmp_path / "again") == files(path)
    check_whole(tmp_path / "again")


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
def test_where_there_can_be_no_links_files_are_copied(path, target, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    store, _ = make_whole(path)
    monkeypatch.setattr(os, "link", refuse)
    store.snapshot(target, {})
    store.close()
    assert not [name for name in files(path) if (path / name).stat().st_ino == (target / name).stat().st_ino]
    check_whole(target)


def test_link_that_fails_for_want_of_space_is_no_reason_to_copy(path, target, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store, _ = make_whole(path)
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(CapacityError, match="No space left"):
        store.snapshot(target, {})
    store.close()


def test_footer_that_was_committed_by_a_sealing_that_failed_does_not_share_the_file(path, target):
    """As long as the segment is open for writing, its file is copied."""
    disk = Troubled()
    store, table = make_table(path, system=disk)
    append_each(table, 0, 3)
    disk.error, disk.at = OSError(errno.EIO, "Input/output error"), "seal.after_footer"
    with pytest.raises(OSError, match="Input/output error"):
        append_each(table, 3, 4)
    disk.error = None
    store.snapshot(target, {})
    store.close()
    assert segments(target)[0].joinpath("data.mdb").stat().st_nlink == 1
    store, table, loaded = reopen(target)
    assert loaded.index["chunk_id"].tolist() == [0, 1, 2]
    store.close()


def test_reading_goes_on_meanwhile(path, target):
    store, table = make_whole(path)
    stop, wrong, rounds = threading.Event(), [], []
    ids = [4, 6, 10]
    expected = [chunk(k, BIG) for k in ids]

    def reading():
        while not stop.is_set():
            if table.read(np.array(ids)) != expected:
                wrong.append(True)
            rounds.append(True)

    thread = threading.Thread(target=reading)
    thread.start()
    for number in range(3):
        store.snapshot(target.with_name(f"copy {number}"), {})
    stop.set()
    thread.join()
    assert (wrong, bool(rounds)) == ([], True)
    store.close()
    for number in range(3):
        check_whole(target.with_name(f"copy {number}"))


# -- where it may stand ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["absent", "empty", "below/what/is/absent"])
def test_snapshot_is_made_where_there_is_nothing(path, tmp_path, given):
    target = tmp_path / given
    if given == "empty":
        target.mkdir()
    store, _ = make_whole(path)
    store.snapshot(target, {})
    store.close()
    check_whole(target)


def test_every_directory_that_was_made_is_made_durable_and_the_name_comes_last(path, tmp_path):
    done = []

    class Watched(System):
        def fsync_directory(self, path):
            done.append(path)
            super().fsync_directory(path)

        def rename(self, source, target):
            done.append((source.name[:9], target))
            super().rename(source, target)

    store, _ = make_whole(path, Watched())
    done.clear()
    target = tmp_path / "a" / "b" / "copy"
    store.snapshot(target, {"t": {"one": b"1"}})
    store.close()
    renamed = next(place for place, entry in enumerate(done) if isinstance(entry, tuple))
    assert done[renamed:] == [("copy.tmp-", target), target.parent]
    build = next(entry for entry in done if not isinstance(entry, tuple) and entry.name.startswith("copy.tmp-"))
    made = {directory.relative_to(target) for directory in target.rglob("*") if directory.is_dir()}
    synced = {entry.relative_to(build) for entry in done[:renamed] if build in (entry, *entry.parents)}
    assert {directory for directory in made if any((target / directory).iterdir())} <= synced
    assert {tmp_path, tmp_path / "a"} <= set(done[:renamed])


def refuse(store, target, words):
    before = sorted(target.parent.iterdir())
    with pytest.raises(StorageError, match=words):
        store.snapshot(target, {})
    assert sorted(target.parent.iterdir()) == before


def test_what_stands_at_the_target_is_not_touched(path, target, tmp_path):
    store, _ = make_whole(path)
    target.mkdir()
    (target / "thesis").write_bytes(b"words")
    refuse(store, target, r"snapshot .*copy: expected no file, or an empty directory, found one with files in it")
    assert (target / "thesis").read_bytes() == b"words"
    refuse(store, target / "thesis", "expected no file, or an empty directory, found something else")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    refuse(store, tmp_path / "link", "found something else")
    store.close()
    check_whole(path)


def test_snapshot_within_the_store_is_refused(path, tmp_path):
    store, _ = make_whole(path)
    (tmp_path / "link").symlink_to(path)
    for target in (path / "copy", path / "tables" / "copy", tmp_path / "link" / "copy"):
        refuse(store, target, "expected a place outside of the store")
    with pytest.raises(StorageError, match="expected a place outside of the store"):
        store.snapshot(path, {})
    store.close()
    check_whole(path)


def test_table_that_was_not_loaded_is_not_copied_without_its_chunks(path, target, tmp_path):
    make_whole(path)[0].close()
    store = open_store(path)
    refuse(store, target, "expected it to be loaded before it is copied")
    store.close()


def test_names_of_states_are_checked_before_anything_is_made(path, target, tmp_path):
    store, _ = make_whole(path)
    with pytest.raises(ValueError, match="expected at most 128 letters"):
        store.snapshot(target, {"t": {"../x": b""}})
    assert [file.name for file in tmp_path.iterdir()] == ["store"]
    store.close()


# -- trouble --------------------------------------------------------------------------------------------------------------

PLACES = [
    "snapshot.begun", "snapshot.built", "link policy", "copy table.json", "copy deleted", "copy FORMAT", "link data.mdb",
    "write_file priorities", "fsync_directory state", "rename copy",
]  # fmt: skip


@pytest.mark.parametrize("number, raised", [(errno.ENOSPC, CapacityError), (errno.EIO, StorageError)])
@pytest.mark.parametrize("at", PLACES)
def test_snapshot_that_fails_leaves_nothing_behind_and_may_be_repeated(path, tmp_path, at, number, raised):
    disk = Troubled()
    store, table = make_whole(path, disk)
    target = tmp_path / "made" / "on the way" / "copy"
    disk.error, disk.at = OSError(number, os.strerror(number)), at
    with pytest.raises(raised, match=os.strerror(number)):
        store.snapshot(target, {"t": {"priorities": b"new"}})
    assert [file.name for file in tmp_path.iterdir()] == ["store"]
    disk.error = None
    append_each(table, 11, 12)
    store.snapshot(target, {"t": {"priorities": b"new"}})
    store.close()
    store, table, loaded = reopen(target)
    assert loaded.index["chunk_id"].tolist() == [4, *range(6, 12)]
    store.close()


FULL = """
import resource, signal, sys
from pathlib import Path
from replaysvc.errors import CapacityError
from tests.store_builders import append_each, make_table, System

class Disk(System):
    def crashpoint(self, name):
        if name == "snapshot.begun":
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), hard))

_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
store, table = make_table(path, system=Disk())
append_each(table, 0, 5)
try:
    store.snapshot(path.with_name("copy"), {})
except CapacityError as error:
    print("full")
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
append_each(table, 5, 6)
store.close()
"""


@pytest.mark.parametrize("size", [0, 5 * 4_096, 10 * 4_096])
def test_disk_too_full_for_the_copy_of_the_newest_segment_is_told_as_such(path, size, tmp_path):
    """LMDB writes that copy itself, past the page cache: whole pages. It needs about 70 kB."""
    child = subprocess.run(
        [sys.executable, "-c", FULL, str(path), str(size)], capture_output=True, text=True, env=ENVIRONMENT, timeout=120
    )
    assert (child.returncode, child.stdout) == (0, "full\n"), child.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["store"]
    store, _, loaded = reopen(path)
    assert len(loaded.index) == 6
    store.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.store_builders import append_each, make_table, System

class Killing(System):
    def crashpoint(self, name):
        if name == sys.argv[2]:
            os.kill(os.getpid(), signal.SIGKILL)

path = Path(sys.argv[1])
store, table = make_table(path, system=Killing())
append_each(table, 0, 5)
store.snapshot(path.with_name("copy"), {})
"""


@pytest.mark.parametrize("point", ["snapshot.begun", "snapshot.built", "snapshot.renamed"])
def test_snapshot_whose_process_is_killed_is_complete_or_not_there(path, target, tmp_path, point):
    child = subprocess.run([sys.executable, "-c", KILLED, str(path), point], env=ENVIRONMENT, timeout=120, check=False)
    assert child.returncode == -signal.SIGKILL
    others = sorted(file.name for file in tmp_path.iterdir() if file != path)
    if point == "snapshot.renamed":
        assert others == ["copy"]
    else:
        assert (len(others), others[0][: len("copy.tmp-")]) == (1, "copy.tmp-")
        store, _, _ = reopen(path)
        store.snapshot(target, {})
        store.close()
        assert sorted(file.name for file in tmp_path.iterdir() if file != path) == ["copy"]
    store, _, loaded = reopen(target)
    assert loaded.index["chunk_id"].tolist() == list(range(5))
    store.close()


def test_half_a_snapshot_is_no_store(path, target):
    """FORMAT comes last."""

    class Stopped(Exception):
        pass

    class Stopping(System):
        def copy(self, source, target):
            if target.name == "FORMAT":
                raise Stopped
            super().copy(source, target)

    store, _ = make_whole(path, Stopping())
    with pytest.raises(Stopped):
        store.snapshot(target, {})
    store.close()
    (left,) = target.parent.glob("copy.tmp-*")
    with pytest.raises(StorageError, match="expected a store or an empty directory, found other files"):
        open_store(left)


def test_store_and_its_snapshot_cannot_be_open_in_one_process(path, target):
    """They share files, and LMDB must not have a file open twice; nothing is quarantined for that."""
    store, _ = make_whole(path)
    store.snapshot(target, {})
    other = open_store(target)
    with pytest.raises(StorageError, match="already open in this process"):
        other.tables()["t"].load()
    other.close()
    store.close()
    check_whole(target)
