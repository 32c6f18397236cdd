"""Processes that are really killed, and disks that are really full: each in a child of the test."""

import json
import os
import signal
import subprocess
import sys

import pytest

from replaysvc.storage import segment
from tests.store_builders import BIG, append_each, check, make_table, open_store

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

APPEND = """
import itertools, sys
from tests.store_builders import BIG, append, open_store
store = open_store(sys.argv[1])
table = store.tables()["t"] if store.tables() else store.create_table("t", {}, segment_bytes=1 << 17)
for k in itertools.count(table.load().next_chunk_id):
    append(table, k, k + 1, size=BIG)
    if k % 3 == 2:
        table.remove_before(k - 8)
    print(k, flush=True)
"""


def test_every_acknowledged_chunk_survives_kill_9(tmp_path):
    path, acknowledged = tmp_path / "store", -1
    for lines in (1, 4, 9, 14):
        with subprocess.Popen(
            [sys.executable, "-c", APPEND, str(path)], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        ) as child:
            try:
                told = [int(child.stdout.readline()) for _ in range(lines)]
            finally:
                child.send_signal(signal.SIGKILL)
            told += map(int, child.stdout)
        assert child.returncode == -signal.SIGKILL
        assert told == list(range(acknowledged + 1, acknowledged + 1 + len(told)))
        acknowledged += len(told)
        store = open_store(path)
        table = store.tables()["t"]
        loaded = table.load()
        stop = loaded.next_chunk_id
        assert stop in (acknowledged + 1, acknowledged + 2)  # the last one may be stored without having been told
        start = int(loaded.index["chunk_id"][0])
        assert start <= max(0, stop - 9)
        check(table, loaded, stop, start=start, size=BIG)
        assert (table.quarantined_segments, table.damaged_records) == (0, 0)
        acknowledged = stop - 1
        store.close()


FULL = """
import json, os, resource, signal, sys
import numpy as np
from replaysvc.errors import CapacityError
from pathlib import Path
from replaysvc.storage import System
from tests.store_builders import BIG, append, chunk, make_table

def limit_files(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

class Disk(System):
    def crashpoint(self, name):
        if name == at and not told:
            limit_files(size)

told = []
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write past the limit fails with EFBIG, as one on a full disk with ENOSPC
path, at, size = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store, table = make_table(path, system=Disk())
stored = 2 if at == "now" else 3
for k in range(stored):
    append(table, k, k + 1, size=BIG)
if at == "now":
    (file,) = path.glob("tables/t/seg-*/data.mdb")
    limit_files(file.stat().st_size + size)
for _ in range(8):
    try:
        append(table, stored, stored + 1, size=BIG)
        stored += 1
        told.append("stored")
    except CapacityError as error:
        assert table.read(np.arange(stored + 1)) == [chunk(k, BIG) for k in range(stored)] + [None]
        told.append("full")
limit_files(hard)
for k in range(stored, 9):
    append(table, k, k + 1, size=BIG)
assert table.read(np.arange(9)) == [chunk(k, BIG) for k in range(9)]
store.close()
print(json.dumps(told))
"""


def run_full(path, at, size, script=FULL):
    """Returns what became of eight appends while no file may grow past a limit, set `at` some point of the store's life."""
    child = subprocess.run(
        [sys.executable, "-c", script, str(path), at, str(size)], capture_output=True, text=True, env=ENVIRONMENT, timeout=120
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


@pytest.mark.parametrize("left", [0, 1, 5_000, 8_192, 30_000])
def test_full_disk_refuses_appends_loses_nothing_and_works_again_when_space_returns(tmp_path, left):
    """Where part of a write still fits, LMDB reports EIO, as of a broken disk; that is told apart, or nothing would be taken
    any more until a restart."""
    told = run_full(tmp_path / "store", "now", left)
    assert "full" in told
    assert told == sorted(told, reverse=True)
    store = open_store(tmp_path / "store")
    table = store.tables()["t"]
    check(table, table.load(), 9, size=BIG)
    store.close()


@pytest.mark.parametrize("size", [0, 100, 10_000, 40_000])
def test_disk_too_full_for_a_new_segment_is_no_different(tmp_path, size):
    """The limit comes when the first segment is sealed. A segment takes 28 kB to begin with, and then a chunk of 20 kB."""
    told = run_full(tmp_path / "store", "seal.reopened", size)
    assert told == ["full"] * 8
    store = open_store(tmp_path / "store")
    table = store.tables()["t"]
    check(table, table.load(), 9, size=BIG)
    store.close()


def test_without_telling_the_two_apart_a_partly_taken_write_stops_the_segment(tmp_path):
    """The guard is what recovers: with it switched off, the same child fails."""
    broken = FULL.replace("told = []", "told = []\nSystem.can_grow = lambda *_: True", 1)
    with pytest.raises(AssertionError, match="Input/output error"):
        run_full(tmp_path / "store", "now", 5_000, broken)


# -- what makes a commit durable ------------------------------------------------------------------------------------------


def flags_of(path):
    """The syncing flags of each segment that a table has open: two sealed ones and one that is written to."""
    store, table = make_table(path)
    append_each(table, 0, 7)
    flags = [opened._environment.flags() for opened in table._chain.segments]
    sealed = [opened.sealed for opened in table._chain.segments]
    store.close()
    assert sealed == [True, True, False]
    return flags


def all_durable(flags):
    return all(f["sync"] and f["metasync"] and not f["writemap"] and not f["map_async"] for f in flags)


def test_every_commit_is_synced_before_it_returns_and_nothing_is_written_through_the_map(tmp_path):
    flags = flags_of(tmp_path / "store")
    assert all_durable(flags)
    assert [f["readonly"] for f in flags] == [True, True, False]


@pytest.mark.parametrize("weak", [{"sync": False}, {"metasync": False}, {"writemap": True}], ids=str)
def test_looking_at_the_flags_would_notice_weaker_ones(tmp_path, monkeypatch, weak):
    strong = segment.lmdb.open
    monkeypatch.setattr(segment.lmdb, "open", lambda *args, **options: strong(*args, **options | weak))
    assert not all_durable(flags_of(tmp_path / "store"))
