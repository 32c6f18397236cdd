"""The committer's thread: what it runs besides commits comes after what was queued before it."""

import threading
import time
from types import SimpleNamespace

from replaysvc import StoreConfig
from replaysvc.table.committer import Committer


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
