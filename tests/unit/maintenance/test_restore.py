"""A restored store is the snapshot, whole, on its own, or it is not there."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from replaysvc import StoreConfig, TableConfig
from replaysvc.errors import CapacityError, ChunkCorruptError, StorageError, StoreLockedError
from replaysvc.maintenance.fsck import check
from replaysvc.maintenance.restore import restore
from replaysvc.replay import Replay
from replaysvc.storage import System
from tests.builders import SCALARS, write_episode
from tests.store_builders import Troubled, append_each, make_table, open_store, reopen, segments
from tests.unit.maintenance.test_fsck import flip
from tests.unit.storage.test_snapshot import ENVIRONMENT, check_whole, make_whole


@pytest.fixture
def snapshot(tmp_path):
    store, _ = make_whole(tmp_path / "store")
    store.snapshot(tmp_path / "copy", {"t": {"priorities": b"new"}})
    store.close()
    return tmp_path / "copy"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "restored"


def files(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("verify", [False, True])
def test_restored_store_is_the_snapshot_and_shares_nothing_with_it(snapshot, target, verify):
    told = []
    done = restore(snapshot, target, verify=verify, progress=lambda *progress: told.append(progress))
    here, there = files(snapshot), files(target)
    assert {name: data for name, data in there.items() if name != "FORMAT"} == {
        name: data for name, data in here.items() if name not in ("FORMAT", "MANIFEST.json")
    }
    assert (done.path, done.files, done.size, done.verified) == (target, len(there), sum(map(len, here.values())) - len(
        here["MANIFEST.json"]
    ), verify)  # fmt: skip
    assert all(file.stat().st_nlink == 1 for file in target.rglob("*") if file.is_file())
    assert {(file.is_dir(), file.stat().st_mode & 0o777) for file in [target, *target.rglob("*")]} == {
        (True, 0o700), (False, 0o600)
    }  # fmt: skip
    assert told[0][:2] == (0, done.size)
    assert (done.size, done.size, "") in told
    assert check_whole(target) == {"priorities": b"new"}
    assert check(target).status == 0


def test_restored_store_has_a_uuid_of_its_own_and_all_else_of_its_format(snapshot, target):
    restore(snapshot, target)
    old, new = (json.loads((path / "FORMAT").read_bytes()) for path in (snapshot, target))
    assert old["uuid"] != new["uuid"]
    assert old | {"uuid": ""} == new | {"uuid": ""}


def test_store_and_restored_one_can_be_open_in_one_process(snapshot, target, tmp_path):
    restore(snapshot, target)
    store, table, _ = reopen(tmp_path / "store")
    check_whole(target)
    append_each(table, 11, 12)
    store.close()


# -- what is refused ------------------------------------------------------------------------------------------------------

SEALED = "tables/t/seg-00000000000000000006/data.mdb"
ALL = ["FORMAT", "params/policy", "tables/empty/table.json", "tables/t/deleted", "tables/t/state/priorities", SEALED]


def refused(snapshot, target, match, kind=ChunkCorruptError, **options):
    before = sorted(target.parent.iterdir())
    with pytest.raises(kind, match=match):
        restore(snapshot, target, **options)
    assert sorted(target.parent.iterdir()) == before


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("harm", ["missing", "short", "longer", "altered"])
def test_file_that_is_missing_or_short_or_altered_is_named(snapshot, target, name, harm):
    file = snapshot / name
    size = file.stat().st_size
    if harm == "missing":
        file.unlink()
        words = f"expected {size} bytes, found no file"
    elif harm == "altered":
        flip(file, 20)
        words = "expected XXH3 [0-9a-f]{16} over its first"
    else:
        os.truncate(file, size - 1 if harm == "short" else size + 1)
        words = f"expected {size} bytes, found {size + (1 if harm == 'longer' else -1)}"
    refused(snapshot, target, f"snapshot .*copy: {name}: {words}")


def test_bit_within_a_segment_is_found_if_every_checksum_is_asked_for(snapshot, target):
    flip(snapshot / SEALED, (snapshot / SEALED).stat().st_size - 30_000)
    refused(snapshot, target, "copy: tables/t/seg-00000000000000000006: chunk [678]: its checksum does not", verify=True)
    restore(snapshot, target)  # the manifest does not reach there; a read of the chunk will tell
    assert check(target).status == 2


def test_manifest_that_is_damaged_or_missing_is_told(snapshot, target, tmp_path):
    flip(snapshot / "MANIFEST.json", 40)
    refused(snapshot, target, "MANIFEST.json: ")
    (snapshot / "MANIFEST.json").unlink()
    refused(snapshot, target, "expected a MANIFEST.json in it, found none", StorageError)
    refused(tmp_path / "absent", target, "expected a directory, found nothing", StorageError)


def test_what_stands_at_the_target_is_not_touched(snapshot, target):
    target.mkdir()
    (target / "thesis").write_text("words")
    refused(snapshot, target, "restore .*restored: expected no file, or an empty directory, found one with files", StorageError)
    refused(snapshot, snapshot / "in", "expected a place outside", StorageError)
    assert (target / "thesis").read_text() == "words"


def test_snapshot_that_is_open_as_a_store_is_refused_and_told_what_happened_when_it_was(snapshot, target):
    store, table, _ = reopen(snapshot)
    refused(snapshot, target, "another process has it open as a store", StoreLockedError)
    append_each(table, 11, 12)
    store.close()
    refused(snapshot, target, "it was opened as a store since: take a snapshot of it")


def test_disk_without_room_for_it_all_is_told_before_anything_is_copied(snapshot, target):
    class Full(System):
        def free_bytes(self, path):
            return 1000

        def copy(self, source, target):
            raise AssertionError("nothing is to be copied")

    refused(snapshot, target, r"the disk is full: expected \d+ bytes free, found 1000", CapacityError, system=Full())


PLACES = [
    "restore.begun",
    "restore.built",
    "copy policy",
    "copy data.mdb",
    "write_file FORMAT",
    "fsync_directory t",
    "rename restored",
]


@pytest.mark.parametrize("number, raised", [(errno.ENOSPC, CapacityError), (errno.EIO, StorageError)])
@pytest.mark.parametrize("at", PLACES)
def test_restore_that_fails_leaves_nothing_behind_and_may_be_repeated(snapshot, tmp_path, at, number, raised):
    disk = Troubled()
    target = tmp_path / "restored"
    disk.error, disk.at = OSError(number, os.strerror(number)), at
    refused(snapshot, target, os.strerror(number), raised, system=disk)
    disk.error = None
    restore(snapshot, target, system=disk)
    check_whole(target)


# -- processes that end ---------------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
from replaysvc.storage import System
from replaysvc.maintenance.restore import restore

class Killing(System):
    copied = 0

    def crashpoint(self, name):
        self.end(name)

    def copy(self, source, target):
        super().copy(source, target)
        self.copied += 1
        self.end(f"copied {self.copied}")

    def end(self, name):
        if name == sys.argv[3]:
            os.kill(os.getpid(), signal.SIGKILL)

restore(sys.argv[1], sys.argv[2], system=Killing())
"""


@pytest.mark.parametrize("point", ["restore.begun", "copied 1", "copied 5", "copied 8", "restore.built", "restore.renamed"])
def test_restore_whose_process_is_killed_is_complete_or_not_there(snapshot, target, tmp_path, point):
    command = [sys.executable, "-c", KILLED, str(snapshot), str(target), point]
    child = subprocess.run(command, env=ENVIRONMENT, timeout=120, check=False)
    assert child.returncode == -signal.SIGKILL
    left = sorted(file.name for file in tmp_path.iterdir() if file.name not in ("store", "copy"))
    if point != "restore.renamed":
        assert [name[: len("restored.tmp-")] for name in left] == ["restored.tmp-"]
        if point != "restore.built":  # before that it has no FORMAT
            if point != "restore.begun":
                with pytest.raises(StorageError, match="expected a store or an empty directory, found other files"):
                    open_store(tmp_path / left[0])
            assert check(tmp_path / left[0]).status == 3
        restore(snapshot, target)
    else:
        assert left == ["restored"]
    check_whole(target)


# -- under load -----------------------------------------------------------------------------------------------------------


def test_snapshot_that_is_made_under_load_is_restored_chunk_by_chunk(tmp_path, target):
    """Appends and samples go on; every chunk of the restored store is that of the store, from the first one without a gap."""
    config = TableConfig(chunk_steps=3)
    stop, failed = threading.Event(), []
    with Replay(tmp_path / "store", StoreConfig()) as replay:
        table = replay.create_table("t", SCALARS, config)

        def write():
            with table.writer() as writer:
                episode = 0
                while not stop.is_set():
                    write_episode(writer, 7, episode=episode)
                    writer.flush()
                    episode += 1

        def sample():
            while not stop.is_set():
                try:
                    table.sample(32, timeout_s=30)
                except Exception as error:
                    failed.append(error)
                    raise

        threads = [threading.Thread(target=write), threading.Thread(target=sample)]
        for thread in threads:
            thread.start()
        try:
            for number in range(3):
                before = table.stats().chunks
                while table.stats().chunks < before + 20:
                    table.sample(1, timeout_s=30)
                replay.snapshot(tmp_path / f"copy{number}")
                done = table.stats().chunks
                restore(tmp_path / f"copy{number}", tmp_path / f"restored{number}", verify=True)
                assert done >= before + 20
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert failed == []
    store, table, loaded = reopen(tmp_path / "store")
    for number in range(3):
        other, copied, found = reopen(tmp_path / f"restored{number}")
        ids = found.index["chunk_id"]
        assert ids.tolist() == list(range(len(ids)))
        assert found.index.tolist() == loaded.index[: len(ids)].tolist()
        assert copied.read(ids) == table.read(ids)
        assert None not in copied.read(ids)
        assert [entry for entry in loaded.episodes if entry.episode_id < found.next_episode_id] == found.episodes
        other.close()
        assert check(tmp_path / f"restored{number}").status == 0
    store.close()


def test_writer_that_was_acknowledged_more_than_the_snapshot_holds_is_known_with_its_old_mark(tmp_path, target):
    store, table = make_table(tmp_path / "store")
    append_each(table, 0, 5)
    store.snapshot(tmp_path / "copy", {})
    append_each(table, 5, 9)
    store.close()
    restore(tmp_path / "copy", target)
    store, table, loaded = reopen(target)
    assert list(loaded.sessions.values()) == [4]
    assert np.array_equal(loaded.index["chunk_id"], np.arange(5))
    assert len(segments(target)) == 2
    store.close()
