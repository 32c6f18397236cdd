"""Tables that go, and stores that close: beside commits, with a disk that refuses, and with writers that hold steps."""

import contextlib
import errno
import fcntl
import gc
import os
import threading
import time
import weakref
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from replaysvc import Limiter, StoreConfig, TableConfig
from replaysvc.errors import (
    AlreadyExistsError,
    CapacityError,
    InvalidRequestError,
    NotFoundError,
    StorageError,
    UnavailableError,
    WaitTimeoutError,
)
from replaysvc.replay import Replay
from replaysvc.storage import System
from replaysvc.storage.descriptions import copy_of, pack_table, unpack_table
from replaysvc.table.committer import Committer
from tests.builders import SCALARS, write_episode, write_episodes
from tests.processes import run_script
from tests.waiting import wait_until


class Held(System):
    """Holds a commit at a crash point, as a slow disk does, until it is let go."""

    def __init__(self, at):
        self.at, self.armed, self.reached, self.go_on = at, False, threading.Event(), threading.Event()

    def crashpoint(self, name):
        if name == self.at and self.armed:
            self.armed = False
            self.reached.set()
            assert self.go_on.wait(30)


class Refusing(System):
    """Refuses, while `error` is set, to move anything to the trash: before the move, or after it as if it might not last."""

    error = None
    moves = False

    def rename(self, source, target):
        if self.error is not None and target.parent.name == "trash":
            if self.moves:
                super().rename(source, target)
            raise self.error
        super().rename(source, target)


# -- tables that cannot be loaded -----------------------------------------------------------------------------------------


def replaced(store, name, change):
    """Puts a changed description into both files of a table, as a release that made such tables would have."""
    file = store / "tables" / name / "table.json"
    values = unpack_table(file.read_bytes())
    change(values["description"])
    for target in (file, copy_of(file)):
        target.write_bytes(pack_table(values))


def test_a_table_that_cannot_be_loaded_is_set_aside_and_the_others_go_on(tmp_path, caplog):
    """A field of shape (2^40, 0) takes no bytes, and yet numpy refuses an array of some rows of it."""
    with Replay(tmp_path / "s") as replay:
        for name in ("bad", "good"):
            write_episodes(replay.create_table(name, SCALARS), [3])
    replaced(tmp_path / "s", "bad", lambda d: d["signature"]["observation"]["leaf"].update(shape=[1 << 40, 0]))
    with Replay(tmp_path / "s") as replay:
        assert replay.tables() == ["good"]
        assert replay.table("good").stats().steps == 3
        write_episodes(replay.create_table("bad", SCALARS), [2])
    assert "table bad cannot be used and is moved to" in caplog.text
    assert "bytes a step" in caplog.text
    assert any((tmp_path / "s" / "quarantine" / "bad-table").glob("seg-*"))
    with Replay(tmp_path / "s") as replay:
        assert replay.table("bad").stats().steps == 2


def test_a_table_that_cannot_be_loaded_once_made_is_taken_away_again(tmp_path):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Wider(TableConfig):
        note: int = 0

    with Replay(tmp_path / "s") as replay:
        with pytest.raises(InvalidRequestError, match="unknown option 'note'"):
            replay.create_table("t", SCALARS, Wider())
        assert replay.tables() == []
        write_episodes(replay.create_table("t", SCALARS), [2])
    with Replay(tmp_path / "s") as replay:
        assert replay.table("t").stats().steps == 2


# -- deletion -------------------------------------------------------------------------------------------------------------


def test_a_table_is_not_deleted_under_a_commit_which_would_write_into_a_new_one_of_its_name(tmp_path):
    disk = Held("segment.built")
    with Replay(tmp_path / "s", system=disk) as replay:
        old = replay.create_table("t", SCALARS)
        disk.armed = True
        writing = threading.Thread(target=write_episodes, args=(old, [5]))
        writing.start()
        assert disk.reached.wait(30)
        made = []

        def again():
            replay.delete_table("t")
            made.append(replay.create_table("t", SCALARS))

        deleting = threading.Thread(target=again)
        deleting.start()
        wait_until(lambda: made or replay._committer._tasks)
        disk.go_on.set()
        writing.join(30)
        deleting.join(30)
        assert list((tmp_path / "s" / "tables" / "t").glob("seg-*")) == []
        write_episodes(made[0], [4])
    with Replay(tmp_path / "s") as replay:
        stats = replay.table("t").stats()
        assert (stats.steps, stats.quarantined_segments) == (4, 0)


def test_what_a_table_that_is_being_deleted_remembers_does_not_get_into_a_new_one_of_its_name(tmp_path):
    disk = Held("state.written")
    with Replay(tmp_path / "s", StoreConfig(state_interval_s=3600), system=disk) as replay:
        write_episodes(replay.create_table("t", SCALARS), [5])
        engine, made = replay.engine("t"), []

        def save():
            with contextlib.suppress(StorageError):  # it finds its directory gone
                engine.save_state()

        def again():
            replay.delete_table("t")
            made.append(replay.create_table("t", SCALARS))

        disk.armed = True
        threads = [threading.Thread(target=save), threading.Thread(target=again)]
        threads[0].start()
        assert disk.reached.wait(30)
        threads[1].start()
        wait_until(lambda: made or any((tmp_path / "s" / "trash").iterdir()))
        disk.go_on.set()
        for thread in threads:
            thread.join(30)
        assert not (tmp_path / "s" / "tables" / "t" / "state").exists()
        with pytest.raises(NotFoundError):
            engine.save_state()


def test_the_committer_keeps_nothing_of_a_round_that_is_over():
    """Else a table that was deleted would stay open until the next commit of any."""

    class Target:
        def commit(self, requests):
            for request in requests:
                request.done.set()

    committer = Committer(StoreConfig(commit_interval_s=0.0), monotonic=time.monotonic)
    target, done = Target(), threading.Event()
    gone = weakref.ref(target)
    committer.submit(target, SimpleNamespace(urgent=False, done=done), 1)
    del target
    assert done.wait(30)
    wait_until(lambda: gc.collect() is not None and gone() is None, 10.0)
    committer.close()


def test_a_table_that_could_not_be_moved_away_goes_on_as_before(tmp_path):
    disk = Refusing()
    with Replay(tmp_path / "s", system=disk) as replay:
        table = replay.create_table("t", SCALARS)
        write_episodes(table, [3])
        disk.error = OSError(errno.EPERM, "Operation not permitted")
        for _ in range(2):
            with pytest.raises(StorageError, match="not permitted"):
                replay.delete_table("t")
        assert replay.tables() == ["t"]
        write_episodes(table, [2])
        assert len(table.sample(8)) == 8
        with pytest.raises(AlreadyExistsError):
            replay.create_table("t", SCALARS)
        disk.error = None
        replay.delete_table("t")
        assert replay.tables() == []
        write_episodes(replay.create_table("t", SCALARS), [1])
    with Replay(tmp_path / "s") as replay:
        assert replay.table("t").stats().steps == 1


def test_a_table_that_was_moved_away_is_gone_though_it_is_not_known_to_be_durable(tmp_path):
    disk = Refusing()
    with Replay(tmp_path / "s", system=disk) as replay:
        table = replay.create_table("t", SCALARS)
        write_episodes(table, [3])
        disk.error, disk.moves = OSError(errno.EIO, "Input/output error"), True
        with pytest.raises(StorageError, match="Input/output"):
            replay.delete_table("t")
        assert replay.tables() == []
        with pytest.raises(NotFoundError, match="was deleted"):
            table.stats()
        disk.error = None
        write_episodes(replay.create_table("t", SCALARS), [1])


# -- writers at the end ---------------------------------------------------------------------------------------------------


def test_closing_the_store_stores_what_its_writers_hold_and_ends_them(tmp_path):
    replay = Replay(tmp_path / "s")
    writer = replay.create_table("t", SCALARS).writer()
    write_episode(writer, 3, end="open")
    replay.close()
    for call in (lambda: writer.append(3, 0.0, 4), writer.flush, lambda: writer.begin(0)):
        with pytest.raises(UnavailableError, match="the store is closed"):
            call()
    writer.close()
    replay.close()
    with Replay(tmp_path / "s") as replay:
        assert replay.table("t").stats().steps == 3


def test_closing_the_store_says_what_the_limiter_kept_out(tmp_path):
    limiter = Limiter(min_steps=1, samples_per_insert=1.0, error_buffer=3.0)  # 4 steps, then nothing until somebody samples
    replay = Replay(tmp_path / "s")
    writer = replay.create_table("t", SCALARS, TableConfig(limiter=limiter, chunk_steps=2)).writer()
    write_episode(writer, 5, end="open")
    with pytest.raises(WaitTimeoutError, match="1 chunks of a writer are not stored"):
        replay.close()
    with Replay(tmp_path / "s") as replay:
        assert replay.table("t").stats().steps == 4


def test_a_writer_that_waits_for_the_limiter_does_not_hold_up_the_end(tmp_path):
    limiter = Limiter(min_steps=1, samples_per_insert=1.0, error_buffer=3.0)
    replay = Replay(tmp_path / "s")
    table = replay.create_table("t", SCALARS, TableConfig(limiter=limiter, chunk_steps=2))
    writer, raised = table.writer(), []

    def write():
        try:
            write_episode(writer, 6)
        except UnavailableError as error:
            raised.append(str(error))

    thread = threading.Thread(target=write)
    thread.start()
    wait_until(lambda: table.stats().steps == 4 and writer._lock.locked())
    with pytest.raises(WaitTimeoutError, match="not stored"):  # the step that the thread could not put
        replay.close()
    thread.join(30)
    assert raised == ["append: the store is closed"]


def test_closing_the_store_says_that_the_disk_was_full_and_lets_go_of_it(tmp_path):
    class Full(System):
        full = False

        def crashpoint(self, name):
            if self.full and name == "append.before_commit":
                raise OSError(errno.ENOSPC, "No space left on device")

    disk = Full()
    replay = Replay(tmp_path / "s", system=disk)
    writer = replay.create_table("t", SCALARS).writer()
    write_episode(writer, 2, end="open")
    writer.flush()
    writer.append(2, 0.0, 3)
    disk.full = True
    with pytest.raises(CapacityError, match="No space left"):
        replay.close()
    with Replay(tmp_path / "s") as replay:
        assert replay.table("t").stats().steps == 2


def test_what_went_wrong_in_the_block_of_a_store_comes_before_what_it_could_not_store(tmp_path):
    limiter = Limiter(min_steps=1, samples_per_insert=1.0, error_buffer=3.0)
    with pytest.raises(ZeroDivisionError) as raised, Replay(tmp_path / "s") as replay:  # noqa: PT012 - both are the block
        write_episode(replay.create_table("t", SCALARS, TableConfig(limiter=limiter, chunk_steps=2)).writer(), 5, end="open")
        raise ZeroDivisionError
    assert "the store could not store all" in raised.value.__notes__[0]


def test_a_chunk_that_was_refused_for_good_is_not_sent_again(replay):
    """It would be with every further chunk, and all that wait behind it."""
    table = replay.create_table("t", SCALARS, TableConfig(chunk_steps=2))
    writer = table.writer()
    write_episode(writer, 2, end="open")
    writer.flush()
    assert table.delete_episodes([0], open_episodes=True) == 1
    with pytest.raises(InvalidRequestError, match="expected a step of an open episode"):  # noqa: PT012 - by one of the chunks
        for t in range(2, 40):
            writer.append(t, 0.0, t + 1)
        writer.flush()
    submitted = replay._committer._submitted
    for _ in range(5):
        with pytest.raises(InvalidRequestError, match="expected a step of an open episode"):
            writer.flush()
    assert replay._committer._submitted == submitted
    with pytest.raises(InvalidRequestError):
        writer.close()


# -- other processes ------------------------------------------------------------------------------------------------------

FORK = """
import os, sys
import replaysvc
from replaysvc import FieldSpec, Signature
from replaysvc.errors import UnavailableError

SCALARS = Signature(FieldSpec("observation", (), "int64"), FieldSpec("action", (), "int64"))
replay = replaysvc.open(sys.argv[1])
table = replay.create_table("t", SCALARS)
writer = table.writer()
writer.begin(0)
writer.append(0, 0.0, 1)
writer.flush()
replay._lock.acquire(), table._engine._changed.acquire(), writer._lock.acquire()  # as a thread may hold them at a fork
jobs = replay.jobs
jobs._lock.acquire()
pid = os.fork()
if not pid:
    status = 1
    try:
        calls = (
            replay.tables, lambda: replay.table("t"), lambda: replay.create_table("u", SCALARS),
            lambda: replay.delete_table("t"), lambda: replay.put_params("p", b"", version=1),
            lambda: replay.snapshot(sys.argv[1] + "-copy"), table.stats, lambda: table.sample(1), table.writer, table.compact,
            lambda: writer.append(1, 0.0, 2), writer.flush, lambda: table.delete_episodes([0]), replay.disk, replay.backlog,
            replay.scrub, replay.start_scrub, replay.snapshots, replay.params_versions,
        )
        for call in calls:
            try:
                call()
            except UnavailableError as error:
                assert f"process {os.getppid()}" in str(error), error
            else:
                raise AssertionError("a child used its parent's store")
        assert replay.jobs.views() == []
        writer.close()
        replay.close()
        status = 0
    finally:
        os._exit(status)
assert os.waitpid(pid, 0)[1] == 0, "the child failed"
jobs._lock.release(), replay._lock.release(), table._engine._changed.release(), writer._lock.release()
writer.append(1, 0.0, 2, terminated=True)
writer.close()
assert table.stats().steps == 2
replay.close()
"""


def test_a_store_belongs_to_the_process_that_opened_it(tmp_path):
    run_script(FORK, tmp_path / "s")


def test_a_server_removes_at_its_start_what_snapshots_of_ended_ones_left(tmp_path):
    folder = tmp_path / "snapshots"
    for name in ("monday.tmp-0123abcd", "tuesday.tmp-0123abcd", "wednesday.tmp-0123abcd", "thursday.tmp-x", "friday"):
        (folder / name / "tables").mkdir(parents=True)
    (folder / "wednesday.tmp-0123abcd" / "thesis").write_text("mine")
    handle = os.open(folder / "tuesday.tmp-0123abcd", os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)  # of another server, which is just making it
    Replay(tmp_path / "s", StoreConfig(snapshot_dir=str(folder))).close()
    os.close(handle)
    left = sorted(entry.name for entry in folder.iterdir())
    assert left == ["friday", "thursday.tmp-x", "tuesday.tmp-0123abcd", "wednesday.tmp-0123abcd"]


def test_no_snapshot_may_be_called_like_one_that_is_not_complete(tmp_path):
    with Replay(tmp_path / "s") as replay:
        with pytest.raises(StorageError, match="expected another name"):
            replay.snapshot(tmp_path / "monday.tmp-0123abcd")
        assert not (tmp_path / "monday.tmp-0123abcd").exists()
