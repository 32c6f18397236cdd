"""The disk has no room for a lock, or gives back damaged pages; open files run out; marks outgrow a segment."""

import errno
import os
import resource
import shutil
import subprocess
import sys

import lmdb
import numpy as np
import pytest

from replaysvc.errors import CapacityError, FormatVersionError, StorageError
from replaysvc.storage import System
from replaysvc.storage.records import pack_meta, unpack_meta
from tests.store_builders import BIG, SESSION, append, append_each, check, chunk, entry, index, make_table, open_store, segments


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


def reopen(path, **options):
    store = open_store(path, **options)
    table = store.tables()["t"]
    return store, table, table.load()


def run(script, *arguments):
    """Returns what a script printed in a process of its own, which a signal would end."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- full disk ------------------------------------------------------------------------------------------------------------


def test_lock_file_has_its_place_on_the_disk_before_lmdb_maps_it(path):
    """A page that is first written through memory and finds no room ends the process, whatever Python does."""
    store, table = make_table(path)
    append_each(table, 0, 5)
    for segment in segments(path):
        status = (segment / "lock.mdb").stat()
        assert status.st_blocks * 512 >= status.st_size >= 1 << 14
    store.close()


def test_segment_for_whose_lock_there_is_no_room_is_made_when_there_is(path):
    class Full(System):
        full = False

        def reserve(self, path, size):
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().reserve(path, size)

    disk = Full()
    store, table = make_table(path, system=disk)
    append_each(table, 0, 3)
    disk.full = True
    for _ in range(2):
        with pytest.raises(CapacityError, match="the disk is full"):
            append(table, 3, 4, size=BIG)
    assert table.read(np.arange(4)) == [*(chunk(k, BIG) for k in range(3)), None]
    disk.full = False
    append_each(table, 3, 7)
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 7, size=BIG)
    store.close()


# -- damaged pages --------------------------------------------------------------------------------------------------------

PAGES = """
import os, shutil, sys
from pathlib import Path
import numpy as np
from tests.store_builders import BIG, chunk, open_store, segments

original, path = Path(sys.argv[1]), Path(sys.argv[1] + "-copy")
rng = np.random.default_rng(0)
pages = (segments(original)[1] / "data.mdb").stat().st_size // 4096
quarantined = 0
for page in range(pages):
    for damage in (bytes(4096), rng.bytes(4096)):
        shutil.copytree(original, path)
        file = segments(path)[1] / "data.mdb"
        with file.open("r+b") as stream:
            stream.seek(4096 * page)
            stream.write(damage)
        store = open_store(path)
        table = store.tables()["t"]
        loaded = table.load()
        others = [0, 1, 2, 6, 7]
        assert table.read(np.array(others)) == [chunk(k, BIG) for k in others], page
        assert {0, 1, 2, 6, 7} <= set(loaded.index["chunk_id"].tolist()), page
        assert (loaded.next_chunk_id, loaded.next_position) == (8, 32), page
        table.read(np.arange(3, 6))
        table.read_episode_entry(1)
        quarantined += table.quarantined_segments
        store.close()
        shutil.rmtree(path)
print(pages, quarantined)
"""


def test_whatever_page_of_a_segment_is_damaged_the_store_opens_and_the_other_segments_serve(path):
    """Each page in turn is zeroed, and filled with random bytes, in a process that such a page must not end."""
    store, table = make_table(path)
    append_each(table, 0, 8)
    store.close()
    pages, quarantined = map(int, run(PAGES, path).split())
    assert pages > 20
    assert 0 < quarantined < 2 * pages


# -- not damage -----------------------------------------------------------------------------------------------------------


def test_running_out_of_open_files_moves_no_segment_to_quarantine(path):
    store, table = make_table(path)
    append_each(table, 0, 12)
    store.close()
    store = open_store(path)
    free = [os.open(os.devnull, os.O_RDONLY) for _ in range(4)]
    for handle in free:
        os.close(handle)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], limits[1]))
    try:
        with pytest.raises(StorageError, match="Too many open files"):
            store.tables()["t"].load()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    store.close()
    assert list((path / "quarantine").iterdir()) == []
    store, table, loaded = reopen(path)
    check(table, loaded, 12, size=BIG)
    store.close()


def test_segment_of_a_newer_format_is_refused_and_stays_where_it_is(path):
    store, table = make_table(path)
    append_each(table, 0, 5)
    store.close()
    environment = lmdb.open(str(segments(path)[1]), max_dbs=8, map_size=1 << 28)
    with environment.begin(write=True) as transaction:
        meta = environment.open_db(b"meta", transaction)
        description = unpack_meta(transaction.get(b"segment", db=meta))
        transaction.put(b"segment", pack_meta(description | {"format": 2}), db=meta)
    environment.close()
    store = open_store(path)
    with pytest.raises(FormatVersionError, match="expected format version 1, found 2"):
        store.tables()["t"].load()
    store.close()
    assert len(segments(path)) == 2
    assert list((path / "quarantine").iterdir()) == []


def test_segment_of_another_table_is_set_aside(path, tmp_path):
    store, table = make_table(path)
    append_each(table, 0, 7)
    store.close()
    other, table = make_table(tmp_path / "other")
    append_each(table, 0, 7)
    other.close()
    shutil.rmtree(segments(path)[1])
    shutil.copytree(segments(tmp_path / "other")[1], segments(path)[0].with_name("seg-00000000000000000003"))
    store, table, loaded = reopen(path)
    assert table.quarantined_segments == 1
    assert loaded.index.tolist() == [*index(0, 3, BIG).tolist(), *index(6, 7, BIG).tolist()]
    store.close()


# -- a new segment --------------------------------------------------------------------------------------------------------


def test_segment_that_got_its_name_but_could_not_be_opened_is_taken_up_by_the_next_append(path):
    class Flaky(System):
        fail = True

        def rename(self, source, target):
            super().rename(source, target)
            if self.fail and target.name.startswith("seg-"):
                raise OSError(errno.EIO, "Input/output error")

    disk = Flaky()
    store, table = make_table(path, system=disk)
    with pytest.raises(StorageError, match="Input/output error"):
        append(table, 0, 3)
    disk.fail = False
    append(table, 0, 3)
    store.close()
    store, table, loaded = reopen(path)
    check(table, loaded, 3)
    store.close()


def test_marks_that_fill_a_segment_by_themselves_do_not_keep_chunks_out(path):
    """Two thousand marks take more than a small segment; each new one is full from the start."""

    class FailingOnce(System):
        fail = False

        def crashpoint(self, name):
            if self.fail and name == "append.before_commit":
                self.fail = False
                raise OSError(errno.ENOSPC, "No space left on device")

    disk = FailingOnce()
    store, table = make_table(path, system=disk)
    marks = {b"session %8d" % number: number for number in range(2000)}
    table.append(index(0, 1), [chunk(0)], [entry(0)], marks)
    disk.fail = True
    with pytest.raises(CapacityError):
        append(table, 1, 2)
    append(table, 1, 2)
    append(table, 2, 3)
    store.close()
    store, table, loaded = reopen(path)
    assert loaded.sessions == marks | {SESSION: 2}
    assert loaded.index.tolist() == index(0, 3).tolist()
    append(table, 3, 4)
    store.close()
