"""The committer's thread: what it runs besides commits comes after what was queued before it."""

import threading
import time
from types import SimpleNamespace

from replaysvc import StoreConfig
from replaysvc.table.committer import Committer
from replaysvc.views import BacklogView


def test_a_task_runs_after_all_that_was_queued_before_it():
    """Three requests, of which the first is being committed when the other two and the task arrive; a commit takes one."""
    done, inside, go_on = [], threading.Event(), threading.Event()

    class Target:
        def commit(self, requests):
            inside.set()
            assert go_on.wait(30)
            done.extend(request.name for request in requests)

    committer = Committer(StoreConfig(commit_bytes=1 << 16, commit_interval_s=0.0), monotonic=time.monotonic)
    target = Target()
    try:
        for name in "abc":
            committer.submit(target, SimpleNamespace(name=name, urgent=False), 1 << 16)
            assert inside.wait(30)
        task = threading.Thread(target=lambda: committer.run(lambda: done.append("task")))
        task.start()
        while not committer._tasks:
            assert task.is_alive()
        go_on.set()
        task.join(30)
    finally:
        go_on.set()
        committer.close()
    assert done == ["a", "b", "c", "task"]


def test_backlog_is_what_is_queued_and_what_is_being_committed():
    """Three requests of 64, 128 and 192 KiB, of which the first is being committed while its clock goes on by 5 s."""
    inside, go_on, clock = threading.Event(), threading.Event(), SimpleNamespace(now=100.0)

    class Target:
        def commit(self, requests):
            inside.set()
            assert go_on.wait(30)

    committer = Committer(StoreConfig(commit_bytes=1 << 16, commit_interval_s=0.0), monotonic=lambda: clock.now)
    limit = StoreConfig().queue_bytes
    empty = BacklogView(requests=0, held_bytes=0, limit_bytes=limit, oldest_s=0.0)
    try:
        assert committer.backlog == empty
        for number in (1, 2, 3):
            committer.reserve(number << 16, 0.0)
        assert committer.backlog == BacklogView(requests=0, held_bytes=6 << 16, limit_bytes=limit, oldest_s=0.0)
        for number in (1, 2, 3):
            committer.submit(Target(), SimpleNamespace(urgent=False), number << 16)
            assert inside.wait(30)
        clock.now += 5.0
        assert committer.backlog == BacklogView(requests=3, held_bytes=6 << 16, limit_bytes=limit, oldest_s=5.0)
        go_on.set()
        committer.run(lambda: None)
        assert committer.backlog == empty
    finally:
        go_on.set()
        committer.close()


def test_task_is_no_commit_however_long_it_takes():
    clock = SimpleNamespace(now=100.0)
    committer = Committer(StoreConfig(), monotonic=lambda: clock.now)

    def task():
        clock.now += 60.0
        return committer.backlog.oldest_s

    try:
        assert committer.run(task) == 0.0
    finally:
        committer.close()
