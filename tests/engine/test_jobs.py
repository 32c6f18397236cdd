"""Long pieces of work on a store are its jobs, whichever way they end."""

import threading

import pytest

from replaysvc.errors import InvalidRequestError, NotFoundError, StorageError, UnavailableError
from replaysvc.jobs import asked_by
from replaysvc.replay import Replay
from replaysvc.storage import System
from tests.builders import SCALARS, make_table, write_episode, write_episodes


def jobs(replay):
    return [(view.kind, view.table, view.state, view.message) for view in replay.jobs.views()]


def test_work_that_ends_well_says_what_came_of_it(replay, tmp_path):
    table = make_table(replay, [5, 4, 3])
    assert jobs(replay) == []
    assert table.delete_episodes([0, 2, 77]) == 2
    freed = table.compact()
    replay.snapshot(tmp_path / "copy")
    replay.delete_table("t")
    assert jobs(replay) == [
        ("delete_table", "t", "done", ""),
        ("snapshot", "", "done", str(tmp_path / "copy")),
        ("compact", "t", "done", f"the disk got {freed} bytes back"),
        ("delete_episodes", "t", "done", "2 episodes of 3 were there, and are deleted"),
    ]
    assert [view.number for view in replay.jobs.views()] == [4, 3, 2, 1]
    assert {view.who for view in replay.jobs.views()} == {""}


def test_work_that_fails_says_why_and_raises_it(replay, tmp_path):
    table = replay.create_table("t", SCALARS)
    with table.writer() as writer:
        write_episode(writer, 3, end="open")
        writer.flush()
        with pytest.raises(InvalidRequestError) as refused:
            table.delete_episodes([0])
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "file").touch()
        with pytest.raises(StorageError) as failed:
            replay.snapshot(tmp_path / "full")
        assert jobs(replay) == [
            ("snapshot", "", "failed", str(failed.value)), ("delete_episodes", "t", "failed", str(refused.value)),
        ]  # fmt: skip
        assert "which is open" in str(refused.value)
        writer.append(3, 30, 4, terminated=True)


def test_disk_that_fails_a_deletion_is_the_jobs_failure(tmp_path):
    class Failing(System):
        failing = False

        def rename(self, source, target):
            if self.failing and target.parent.name == "trash":
                raise OSError(5, "Input/output error")
            super().rename(source, target)

    system = Failing()
    with Replay(tmp_path / "s", system=system) as replay:
        make_table(replay, [3])
        system.failing = True
        with pytest.raises(StorageError):
            replay.delete_table("t")
        ((kind, table, state, message),) = jobs(replay)
        assert (kind, table, state) == ("delete_table", "t", "failed")
        assert "Input/output error" in message
        system.failing = False
        replay.delete_table("t")
        assert jobs(replay)[0] == ("delete_table", "t", "done", "")


def test_what_cannot_begin_is_no_job(replay, tmp_path):
    table = make_table(replay, [3])
    with pytest.raises(NotFoundError):
        replay.delete_table("absent")
    with pytest.raises(InvalidRequestError):
        table.delete_episodes(["a"])
    replay.close()
    with pytest.raises(UnavailableError):
        replay.snapshot(tmp_path / "copy")
    with pytest.raises(UnavailableError):
        replay.start_scrub()
    assert jobs(replay) == []


def test_job_is_seen_while_it_runs(tmp_path):
    inside, go_on = threading.Event(), threading.Event()

    class Waiting(System):
        def crashpoint(self, name):
            if name == "snapshot.begun":
                inside.set()
                assert go_on.wait(30)

    with Replay(tmp_path / "s", system=Waiting()) as replay:
        write_episodes(replay.create_table("t", SCALARS), [3])

        def ask():
            asked_by.set("ann")
            replay.snapshot(tmp_path / "copy")

        thread = threading.Thread(target=ask)
        thread.start()
        assert inside.wait(30)
        (running,) = replay.jobs.views()
        go_on.set()
        thread.join(30)
        (ended,) = replay.jobs.views()
    assert (running.state, running.who, running.message) == ("running", "ann", str(tmp_path / "copy"))
    assert (ended.state, ended.number) == ("done", running.number)
    assert ended.seconds >= running.seconds > 0
