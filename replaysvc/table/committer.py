"""The committer: one thread that owns every write transaction of a store, and makes many appends durable with one sync.

A commit takes all that waits. The next one starts `commit_interval_s` after it began, or sooner if a writer waits in
`flush` or enough bytes have gathered; so a quiet store answers at once and a busy one syncs twenty times a second.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from replaysvc.config import StoreConfig
from replaysvc.errors import CapacityError, UnavailableError
from replaysvc.table.staging import AppendRequest
from replaysvc.views import BacklogView

log = logging.getLogger(__name__)

T = TypeVar("T")


class Target(Protocol):
    """A table, as the committer sees it."""

    def commit(self, requests: list[AppendRequest]) -> None:
        """Stores the requests and settles each `done`; must not raise."""


class Committer:
    """Gathers append requests of all tables and commits them in order of arrival."""

    def __init__(self, config: StoreConfig, *, monotonic: Callable[[], float]) -> None:
        self._config, self._monotonic = config, monotonic
        lock = threading.Lock()
        self._changed = threading.Condition(lock)  # for the thread
        self._room = threading.Condition(lock)  # for those who wait in `reserve`
        self._queue: deque[tuple[Target, AppendRequest, int]] = deque()
        self._tasks: deque[tuple[int, Callable[[], Any], Future[Any]]] = deque()  # each after so many requests
        self._submitted = self._taken = 0  # requests so far
        self._queued_bytes = self._held_bytes = 0  # of the queue, and of all that is between `reserve` and the commit's end
        self._urgent = self._closing = False
        self._last_begin = -float("inf")
        self._committing = 0  # requests of the commit under way, which began at `_last_begin`
        self._thread = threading.Thread(target=self._run, name="replaysvc-committer", daemon=True)
        self._thread.start()

    def reserve(self, size: int, wait_s: float) -> None:
        """Sets aside the memory of a request, its chunks as sent and decoded. What is larger than all there is goes alone.

        Raises:
          CapacityError: `queue_bytes` are in use, and go on so for `wait_s`; send it again later.
        """
        with self._changed:
            fits = self._room.wait_for(
                lambda: not self._held_bytes or self._held_bytes + size <= self._config.queue_bytes, wait_s
            )
            if not fits:
                raise CapacityError(
                    f"append: {self._held_bytes} bytes wait for a commit (queue_bytes={self._config.queue_bytes})"
                )
            self._held_bytes += size

    def release(self, size: int) -> None:
        """Gives back what was reserved, for a request that is not submitted after all."""
        with self._changed:
            self._held_bytes -= size
            self._room.notify_all()

    def submit(self, target: Target, request: AppendRequest, size: int) -> None:
        """Queues a request of which `size` bytes are reserved; the commit gives them back.

        Raises:
          UnavailableError: the store is closing.
        """
        with self._changed:
            if self._closing:
                raise UnavailableError("append: the store is closing")
            self._queue.append((target, request, size))
            self._submitted += 1
            self._queued_bytes += size
            self._urgent |= request.urgent
            self._changed.notify()

    @property
    def backlog(self) -> BacklogView:
        """Returns what is not durable yet: the requests that are queued, and those of the commit under way."""
        with self._changed:
            return BacklogView(
                requests=len(self._queue) + self._committing, held_bytes=self._held_bytes,
                limit_bytes=self._config.queue_bytes,
                oldest_s=self._monotonic() - self._last_begin if self._committing else 0.0,
            )  # fmt: skip

    def hurry(self) -> None:
        """Commits what is queued without gathering more."""
        with self._changed:
            self._urgent = True
            self._changed.notify()

    def run(self, task: Callable[[], T]) -> T:
        """Runs `task` on the committer's thread, after what is queued by now, and returns or raises what it does.

        Raises:
          UnavailableError: the store is closing.
        """
        done: Future[T] = Future()
        with self._changed:
            if self._closing:
                raise UnavailableError("the store is closing")
            self._tasks.append((self._submitted, task, done))
            self._changed.notify()
        return done.result()

    def _run_tasks(self) -> None:
        while True:
            with self._changed:
                if not self._tasks or self._tasks[0][0] > self._taken:
                    return
                _, task, done = self._tasks.popleft()
            try:
                done.set_result(task())
            except BaseException as error:  # it is the caller's, who waits for it
                done.set_exception(error)

    def close(self) -> None:
        """Commits what is queued, then ends the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _gather(self) -> list[tuple[Target, AppendRequest, int]]:
        """Waits for a commit's worth of requests; an empty list says that there are tasks, or that the end has come."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._tasks or self._closing)
            due = self._last_begin + self._config.commit_interval_s

            def ready() -> bool:
                return bool(self._tasks) or self._urgent or self._closing or self._queued_bytes >= self._config.commit_bytes

            while not ready() and (left := due - self._monotonic()) > 0:
                self._changed.wait(left)
            self._last_begin = self._monotonic()
            taken, size = [], 0
            while self._queue and size < self._config.commit_bytes:
                taken.append(self._queue.popleft())
                size += taken[-1][2]
            self._queued_bytes -= size
            self._taken += len(taken)
            self._committing = len(taken)
            if not self._queue:
                self._urgent = False
            return taken

    def _run(self) -> None:
        while self._run_round():
            pass

    def _run_round(self) -> bool:
        """Commits what was gathered, and runs the tasks due; False when the end has come. What it held ends with it: a thread
        that waits for the next round must not keep a deleted table's requests."""
        taken = self._gather()
        if not (taken or self._tasks or not self._closing):
            return False
        by_target: dict[int, tuple[Target, list[AppendRequest]]] = {}
        for target, request, _ in taken:
            by_target.setdefault(id(target), (target, []))[1].append(request)
        for target, requests in by_target.values():
            target.commit(requests)
        with self._changed:
            self._committing = 0
            self._held_bytes -= sum(size for _, _, size in taken)
            self._room.notify_all()
        self._run_tasks()
        return True
