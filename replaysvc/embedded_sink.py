"""Where an embedded writer's chunks go: straight to the committer, and kept until they are durable.

A commit that failed (a full disk, say) is tried again by the next `flush` or `put`, and by the store's end; so nothing that was
appended is lost in silence. What was refused for good is not: it would be again, and all that follows it too.
What the table's limiter does not let in waits with whoever puts it; only a chunk that nobody may wait for (part-filled, and
due) stays here, one at most beside those of `flush`, and the ticker tries it again.
"""

import itertools
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager

from replaysvc.errors import (
    CapacityError,
    ChunkCorruptError,
    FormatVersionError,
    LimitedError,
    NotFoundError,
    ReplayError,
    StorageError,
    UnavailableError,
    WaitTimeoutError,
    WriterFencedError,
    from_wire,
)
from replaysvc.table import Table
from replaysvc.table.committer import Committer
from replaysvc.table.staging import AppendRequest
from replaysvc.writer import DEFAULT_LIMIT_TIMEOUT_S, Writer

log = logging.getLogger(__name__)

_BUFFER_CHUNKS = 1024  # unacknowledged chunks a writer may be ahead by, before `append` waits
_PUT_TIMEOUT_S = 30.0
_SLICE_S = 0.05  # shortest wait, while another one is not over yet
_CLOSE_S = 30.0  # how long the store's end waits for what its writers hold
_HANDOVER_S = 0.1  # but at least so long for a writer whose call is under way
_CLOSED = "the store is closed"
_PASSING = (CapacityError, UnavailableError, StorageError)  # of a commit: the same chunk may be stored later
_FINAL = (ChunkCorruptError, FormatVersionError)  # which are StorageErrors, but what is refused once is refused again


class Ticker:
    """One thread for all writers of a store: sends their part-filled chunks when they are due."""

    def __init__(self, period_s: float = 0.1) -> None:
        self._period_s = period_s
        self._sinks: dict[EmbeddedSink, Writer | None] = {}  # None: of a writer that is closed, with chunks not let in yet
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def attach(self, sink: "EmbeddedSink", writer: Writer) -> None:
        with self._lock:
            if self._closing.is_set():  # what it writes would come too late
                raise UnavailableError(_CLOSED)
            self._sinks[sink] = writer
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="replaysvc-ticker", daemon=True)
                self._thread.start()

    def detach(self, sink: "EmbeddedSink") -> None:
        with self._lock:
            self._sinks[sink] = None

    def begin_close(self) -> None:
        """Takes no more writers, and lets none begin to wait for the limiter."""
        with self._lock:
            self._closing.set()
            for sink in self._sinks:
                sink.begin_close()

    def close(self) -> list[ReplayError]:
        """Stores what the writers hold, ends them, and the thread; returns what could not be stored, and why."""
        self.begin_close()
        if self._thread is not None:
            self._thread.join()
        sinks, deadline, errors = list(self._sinks.items()), time.monotonic() + _CLOSE_S, []
        for sink, writer in sinks:
            try:
                try:
                    if writer is not None and not sink.told:
                        writer.finish(_CLOSED, max(_HANDOVER_S, deadline - time.monotonic()))
                finally:
                    sink.close(deadline)
            except NotFoundError as error:  # its table was deleted, with all that was in it
                log.debug("a writer's last steps are not stored: %s", error)
            except ReplayError as error:
                if writer is not None:
                    errors.append(error)
                else:  # its user was told when it was closed
                    log.error("chunks of a writer are not stored: %s", error)
            if writer is not None:
                writer.end(_CLOSED)
        return errors

    def disown(self, reason: str) -> None:
        """After a fork, in the child: ends the parent's writers here. Other threads, and the locks that they held, are gone."""
        self._lock = threading.Lock()
        for sink, writer in self._sinks.items():
            sink.disown(reason)
            if writer is not None:
                writer.end(reason)

    def _run(self) -> None:
        while not self._closing.wait(self._period_s):
            with self._lock:
                sinks = list(self._sinks.items())
            for sink, writer in sinks:
                try:
                    if writer is not None:
                        sink.renew(writer.open_episode)
                    if sink.settle_due():
                        if writer is not None:
                            writer.flush_due()
                        else:
                            self._forget(sink)
                except LimitedError as error:  # it lasts, and whoever waits for it is told
                    log.debug("a chunk is not let in yet: %s", error)
                except CapacityError as error:  # the writer's own next call will say so to its user
                    log.warning("a chunk could not be sent yet: %s", error)
                except WriterFencedError as error:
                    if writer is not None:
                        writer.fence(error)
                    else:
                        self._forget(sink)
                except ReplayError as error:  # so will it, and it goes on failing
                    log.debug("a chunk cannot be sent: %s", error)
                    if writer is None:
                        self._forget(sink)

    def _forget(self, sink: "EmbeddedSink") -> None:
        with self._lock:
            self._sinks.pop(sink, None)


class EmbeddedSink:
    """One writer session on a table in this process."""

    def __init__(self, table: Table, committer: Committer, ticker: Ticker, actor: str, epoch: int | None) -> None:
        self._table, self._committer, self._ticker, self._actor = table, committer, ticker, actor
        self._session, self._epoch = os.urandom(16), epoch
        self._table.open_session(self._session, actor, epoch=epoch)
        self._lock = threading.Lock()
        self._pending: deque[tuple[int, bytes, AppendRequest | None]] = deque()  # not known to be durable, in order
        self._sequence = 0
        self._episodes = 0
        self._refused: ReplayError | None = None  # why nothing will be stored any more
        self._closing = False
        self.told = False  # whether a user has seen that

    def put(self, chunk: bytes, *, wait: bool, limit_timeout_s: float = DEFAULT_LIMIT_TIMEOUT_S) -> None:
        now = time.monotonic()
        room, limit = (now + _PUT_TIMEOUT_S, now + limit_timeout_s) if wait else (now, now)
        with self._lock, self._telling(wait):
            request = None
            try:
                self._settle(room, limit)
                if wait and len(self._pending) >= _BUFFER_CHUNKS:
                    self._await_durable(time.monotonic() + _PUT_TIMEOUT_S, keep=_BUFFER_CHUNKS // 2)
                request = self._submit(self._sequence, chunk, room, limit, urgent=False)
            except LimitedError as error:
                if wait and self._closing:
                    raise UnavailableError(f"append: {_CLOSED}") from error
                if wait:
                    raise WaitTimeoutError(f"append: nothing was let in for {limit_timeout_s:g} s ({error})") from error
            except CapacityError:
                if wait:
                    raise
            self._pending.append((self._sequence, chunk, request))  # one that was not submitted is so by the next call
            self._sequence += 1

    def flush(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        with self._lock, self._telling():
            try:
                self._settle(deadline, deadline)
            except LimitedError as error:
                if self._closing:
                    raise UnavailableError(f"flush: {_CLOSED} with {len(self._pending)} chunks not stored") from error
                raise WaitTimeoutError(
                    f"flush: {len(self._pending)} chunks are not durable after {timeout_s:g} s; they stay queued ({error})"
                ) from error
            self._committer.hurry()
            self._await_durable(deadline, keep=0)

    def begin_close(self) -> None:
        """From now on nobody begins to wait for the limiter."""
        self._closing = True

    def close(self, deadline: float) -> None:
        """Stores what was put, and takes no more. What the limiter does not let in now, it never will.

        Raises:
          WaitTimeoutError: not all of it could be stored by then. And what it was refused with, unless a user was told.
        """
        with self._lock:
            try:
                if not self.told:
                    self._store_last(deadline)
            finally:
                self._refused = self._refused or UnavailableError(_CLOSED)

    def _store_last(self, deadline: float) -> None:
        kept_out: LimitedError | None = None
        try:
            self._settle(deadline, time.monotonic())
        except LimitedError as error:
            kept_out = error
        left = len(list(itertools.dropwhile(lambda entry: entry[2] is not None, self._pending)))
        self._committer.hurry()
        self._await_durable(deadline, keep=left)
        if kept_out is not None:
            raise WaitTimeoutError(f"close: {left} chunks of a writer are not stored ({kept_out})") from kept_out

    def disown(self, reason: str) -> None:
        """After a fork, in the child: takes nothing any more."""
        self._lock, self._refused = threading.Lock(), UnavailableError(reason)

    def renew(self, episode_key: int | None) -> None:
        """Says that the open episode of this sink's writer is alive."""
        if episode_key is not None:
            self._table.renew(self._session, (episode_key,))

    def settle_due(self) -> bool:
        """Submits what was not let in, or found no room, without waiting; False if another call is under way. For the ticker.

        What a failed commit left behind stays for the next `put` or `flush`: it would fail again and again here.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._check_refused()
            if any(request is None for _, _, request in self._pending):
                now = time.monotonic()
                self._settle(now, now)
        finally:
            self._lock.release()
        return True

    def _submit(self, sequence: int, chunk: bytes, room: float, limit: float, *, urgent: bool) -> AppendRequest:
        """Submits a chunk; waits until `room` for room in the queue, and until `limit` for the limiter. Raises as the table."""
        while True:
            now = time.monotonic()
            wait_s = 0.0 if now >= max(room, limit) else max(_SLICE_S, min(room, limit) - now)
            try:
                return self._table.submit(
                    self._session, self._actor, [(sequence, chunk)], urgent=urgent, wait_s=wait_s, epoch=self._epoch
                )
            except LimitedError:
                if (now := time.monotonic()) >= limit or self._closing:
                    raise
                room = now + _PUT_TIMEOUT_S  # there was room
            except CapacityError:
                if room <= limit or time.monotonic() >= room:  # the table waited as long as it may
                    raise

    @contextmanager
    def _telling(self, user: bool = True) -> Iterator[None]:
        """Around a call of a user, who then knows of what was refused."""
        try:
            yield
        finally:
            self.told = self.told or (user and self._refused is not None)

    def _check_refused(self) -> None:
        """Raises what the first chunk that failed was refused with, if that is for good. Those after it only lack it."""
        for _, _, request in self._pending:
            if request is None:
                break
            if request.done.done() and (error := request.done.exception()) is not None:
                if isinstance(error, ReplayError) and (isinstance(error, _FINAL) or not isinstance(error, _PASSING)):
                    self._refused = self._refused or error
                break
        if self._refused is not None:
            raise from_wire(self._refused.name, str(self._refused)) from self._refused

    def _settle(self, room: float, limit: float) -> None:
        """Forgets what is durable; submits again, in order, what a failed commit left behind. Waits as `_submit`."""
        self._check_refused()
        self._drop_durable()
        failed = False
        for i, (sequence, chunk, request) in enumerate(self._pending):
            failed = failed or request is None or (request.done.done() and request.done.exception() is not None)
            if failed:
                self._pending[i] = (sequence, chunk, None)  # and so it stays if it cannot be submitted now
                self._pending[i] = (sequence, chunk, self._submit(sequence, chunk, room, limit, urgent=True))
        self._drop_durable()

    def _drop_durable(self) -> None:
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
            except ReplayError:
                self._check_refused()
                raise
            self._pending.popleft()

    def next_episode_key(self) -> int:
        with self._lock:
            self._episodes += 1
            return self._episodes - 1

    def make_lock(self) -> threading.Lock:
        return threading.Lock()

    def attach(self, writer: Writer) -> None:
        self._ticker.attach(self, writer)

    def detach(self, writer: Writer) -> None:
        self._ticker.detach(self)
