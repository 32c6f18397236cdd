"""Where an embedded writer's chunks go: straight to the committer, and kept until they are durable.

A commit that failed (a full disk, say) is tried again by the next `flush` or `put`; so nothing that was appended is lost
while the writer lives.
"""

import logging
import os
import threading
import time
from collections import deque
from concurrent.futures import TimeoutError as FutureTimeoutError

from replaysvc.committer import Committer
from replaysvc.errors import CapacityError, UnavailableError, WaitTimeoutError
from replaysvc.staging import AppendRequest
from replaysvc.table import Table
from replaysvc.writer import Writer

log = logging.getLogger(__name__)

_BUFFER_CHUNKS = 1024  # unacknowledged chunks a writer may be ahead by, before `append` waits
_PUT_TIMEOUT_S = 30.0


class Ticker:
    """One thread for all writers of a store: sends their part-filled chunks when they are due."""

    def __init__(self, period_s: float = 0.1) -> None:
        self._period_s = period_s
        self._writers: set[Writer] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def attach(self, writer: Writer) -> None:
        with self._lock:
            self._writers.add(writer)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="replaysvc-ticker", daemon=True)
                self._thread.start()

    def detach(self, writer: Writer) -> None:
        with self._lock:
            self._writers.discard(writer)

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._period_s):
            with self._lock:
                writers = list(self._writers)
            for writer in writers:
                try:
                    writer.flush_due()
                except (CapacityError, UnavailableError) as error:  # the writer's own next call will say so to its user
                    log.warning("a chunk could not be sent yet: %s", error)


class EmbeddedSink:
    """One writer session on a table in this process."""

    def __init__(self, table: Table, committer: Committer, ticker: Ticker, actor: str) -> None:
        self._table, self._committer, self._ticker, self._actor = table, committer, ticker, actor
        self._session = os.urandom(16)
        self._lock = threading.Lock()
        self._pending: deque[tuple[int, bytes, AppendRequest | None]] = deque()  # not known to be durable, in order
        self._sequence = 0
        self._episodes = 0

    def put(self, chunk: bytes, *, wait: bool) -> None:
        wait_s = _PUT_TIMEOUT_S if wait else 0.0
        with self._lock:
            request = None
            try:
                self._settle(wait_s)
                if wait and len(self._pending) >= _BUFFER_CHUNKS:
                    self._await_durable(time.monotonic() + wait_s, keep=_BUFFER_CHUNKS // 2)
                request = self._submit(self._sequence, chunk, wait_s, urgent=False)
            except CapacityError:
                if wait:
                    raise
            self._pending.append((self._sequence, chunk, request))  # one that was not submitted is so by the next call
            self._sequence += 1

    def flush(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._settle(timeout_s)
            self._committer.hurry()
            self._await_durable(deadline, keep=0)

    def _submit(self, sequence: int, chunk: bytes, wait_s: float, *, urgent: bool) -> AppendRequest:
        return self._table.submit(self._session, self._actor, [(sequence, chunk)], urgent=urgent, wait_s=wait_s)

    def _settle(self, wait_s: float) -> None:
        """Forgets what is durable; submits again, in order, what a failed commit left behind. Waits for room in the queue."""
        failed = False
        for i, (sequence, chunk, request) in enumerate(self._pending):
            failed = failed or request is None or (request.done.done() and request.done.exception() is not None)
            if failed:
                self._pending[i] = (sequence, chunk, None)  # and so it stays if it cannot be submitted now
                self._pending[i] = (sequence, chunk, self._submit(sequence, chunk, wait_s, urgent=True))
        while (
            self._pending
            and (first := self._pending[0][2]) is not None
            and first.done.done()
            and first.done.exception() is None
        ):
            self._pending.popleft()

    def _await_durable(self, deadline: float, *, keep: int) -> None:
        while len(self._pending) > keep:
            request = self._pending[0][2]
            assert request is not None
            try:
                request.done.result(max(0.0, deadline - time.monotonic()))
            except FutureTimeoutError:
                raise WaitTimeoutError(f"flush: {len(self._pending)} chunks are not durable yet; they stay queued") from None
            self._pending.popleft()

    def next_episode_key(self) -> int:
        with self._lock:
            self._episodes += 1
            return self._episodes - 1

    def make_lock(self) -> threading.Lock:
        return threading.Lock()

    def attach(self, writer: Writer) -> None:
        self._ticker.attach(writer)

    def detach(self, writer: Writer) -> None:
        self._ticker.detach(writer)
