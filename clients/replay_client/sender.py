"""The sender: one background thread for the writers of a table, that gets their chunks stored exactly once.

Chunks are numbered 0, 1, 2, ... within a session, a random name that the sender makes. One append is under way at a time
and carries all that gathered meanwhile: the busier the writers, the larger the message, and no order to restore at the
server. After any failure the sender asks which number was stored last, forgets up to there, and sends the rest again; the
server skips numbers it has. So nothing is lost and nothing is stored twice, whatever fails when.

A table's limiter that holds chunks back is no failure. The sender asks again and again, with one chunk at first, since the
chunks of one message are let in together; and meanwhile writers wait for that chunk instead of queueing more.
"""

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass

from replay_client.connection import Connection
from replaysvc.codec.header import decoded_bytes
from replaysvc.errors import (
    CapacityError,
    ChunkCorruptError,
    FormatVersionError,
    LimitedError,
    ReplayError,
    SequenceError,
    StorageError,
    UnavailableError,
    WaitTimeoutError,
    from_wire,
)
from replaysvc.v1 import replay_pb2 as pb
from replaysvc.writer import DEFAULT_LIMIT_TIMEOUT_S, Writer

log = logging.getLogger(__name__)

_TICK_S = 0.1  # how often part-filled chunks are looked at
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_FIRST_LIMITED_PAUSE_S, _LONGEST_LIMITED_PAUSE_S = 0.05, 0.2  # the server itself waits a second before it refuses
_QUICK_S = 0.3  # an append that took less did not wait for the limiter, or hardly
_PATIENCE_S = 2.0  # how long attempts are repeated before an old failure is told again; gRPC reconnects within 1 s
_EXIT_FLUSH_S = 5.0  # how long the interpreter's exit waits for chunks that nobody flushed
_JOIN_S = 5.0  # how long `close` waits for the thread, which has nothing left to do
_MAX_CHUNKS = 16_384  # of one append
_MAX_DECODED_BYTES = 32 << 20  # of one append's chunks: however well they compress, the server must hold them decoded
_TRANSIENT = (UnavailableError, WaitTimeoutError, CapacityError, StorageError)  # a restart may cure the last, too
_CLOSED = "this writer's client was closed"
_PERMANENT = (ChunkCorruptError, FormatVersionError)  # which are StorageErrors, but what is refused once is refused again


@dataclass(frozen=True, slots=True)
class _Queued:
    sequence: int
    chunk: bytes
    decoded_bytes: int


class Sender:
    """Stores chunks of one session. Thread-safe; belongs to the process that made it."""

    def __init__(self, connection: Connection, table: str, actor: str) -> None:
        self._connection, self._table, self._actor = connection, table, actor
        self._config = connection.config
        self._process = os.getpid()
        self._session = os.urandom(16)
        self._changed = threading.Condition()
        self._queue: deque[_Queued] = deque()  # not acknowledged, in order
        self._queued_bytes = 0
        self._put = self._episodes = 0  # chunks and episodes so far: the next numbers
        self._known = False  # whether the server and this sender agree on the session
        self._urgent = self._ending = self._closing = False  # `_ending`: `close` has begun; `_closing`: it takes no more
        self._permanent: ReplayError | None = None  # no chunk will ever be stored again: the thread has ended
        self._transient: ReplayError | None = None  # what has been failing for longer than `reconnect_timeout_s`
        self._failing: ReplayError | None = None  # what failed last, since `_failing_since`
        self._failing_since: float | None = None
        self._limited: LimitedError | None = None  # what the limiter last said, until chunks are let in quickly again
        self._most_chunks = _MAX_CHUNKS  # of the next append
        self._attempts = 0  # how many ended, well or not
        self._hurry = False  # whether the pause after a failed attempt is over
        self._told = False  # whether a user has seen the permanent error
        self._writers: set[Writer] = set()
        self._thread: threading.Thread | None = None
        _senders.add(self)

    # -- what writers call --------------------------------------------------------------------------------------------

    def put(self, chunk: bytes, *, wait: bool, limit_timeout_s: float = DEFAULT_LIMIT_TIMEOUT_S) -> None:
        self._check_process()
        queued_bytes = decoded_bytes(chunk)
        with self._changed:
            if wait:
                self._wait_for_room(limit_timeout_s)
            if self._closing:
                raise UnavailableError(_CLOSED)
            if wait or self._permanent is not None:
                self._try_again()
                self._raise_error()
            self._queue.append(_Queued(self._put, chunk, queued_bytes))
            self._queued_bytes += len(chunk)
            self._put += 1
            self._changed.notify_all()

    def _wait_for_room(self, limit_timeout_s: float) -> None:
        deadline = None
        while self._error() is None and not self._closing:
            if self._held_back is None:
                if not self._full:
                    return
                self._changed.wait()
                continue
            if self._ending:
                raise UnavailableError(_CLOSED)
            now = time.monotonic()
            deadline = now + limit_timeout_s if deadline is None else deadline
            if now >= deadline:
                raise WaitTimeoutError(f"append: nothing was let in for {limit_timeout_s:g} s ({self._held_back})")
            self._changed.wait(deadline - now)

    def flush(self, timeout_s: float) -> None:
        self._check_process()
        deadline = time.monotonic() + timeout_s
        with self._changed:
            wanted = self._put
            self._urgent = True
            self._changed.notify_all()
            self._try_again()
            while self._queue and self._queue[0].sequence < wanted:
                self._raise_error()
                if self._closing:
                    raise UnavailableError(f"flush: this writer's client was closed with {len(self._queue)} chunks not stored")
                left = deadline - time.monotonic()
                if left <= 0:
                    count, why = len(self._queue), self._failing or self._limited
                    raise WaitTimeoutError(
                        f"flush: {count} chunks are not durable after {timeout_s:g} s; they stay queued"
                        + (f" ({why})" if why is not None else "")
                    )
                self._changed.wait(left)

    def _try_again(self) -> None:
        """Waits a little for attempts made now, if earlier ones have failed for long: what failed then may work again."""
        deadline = time.monotonic() + _PATIENCE_S
        while self._transient is not None and not self.ended and (left := deadline - time.monotonic()) > 0:
            seen, self._hurry = self._attempts, True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._attempts != seen or self.ended, left)  # noqa: B023 - called within the round
            if self._transient is not None:
                self._changed.wait(min(left, _TICK_S))

    def next_episode_key(self) -> int:
        self._check_process()
        with self._changed:
            self._episodes += 1
            return self._episodes - 1

    def make_lock(self) -> threading.Lock:
        return threading.Lock()

    def attach(self, writer: Writer) -> None:
        self._check_process()
        with self._changed:
            self._writers.add(writer)
            self._start()

    def detach(self, writer: Writer) -> None:
        with self._changed:
            self._writers.discard(writer)

    def close(self, timeout_s: float) -> None:
        """Stores what the writers were given, for up to `timeout_s`, and ends them and the thread. Raises as `flush`, once."""
        if self._process != os.getpid() or self._closing:
            return
        with self._changed:
            self._ending = True
            self._changed.notify_all()  # whoever waits for the limiter need not wait for what is stored below
        try:
            if not self._told:
                for writer in self._attached():
                    writer.flush_due(at_once=True)
                self.flush(timeout_s)
        finally:
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            for writer in self._attached():
                writer.end(_CLOSED)

    def join(self) -> None:
        """Waits for the thread to end, after `close`; not for long."""
        if self._thread is not None and self._process == os.getpid():
            self._thread.join(_JOIN_S)

    @property
    def ended(self) -> bool:
        """Returns whether new writers need another sender: this one was closed, or can store nothing any more."""
        return self._closing or self._permanent is not None

    @property
    def idle(self) -> bool:
        """Returns whether nothing waits to be stored, and nobody is there to write more."""
        return not self._queue and not self._writers

    def disown(self) -> None:
        """After a fork, in the child: ends the parent's writers here. Other threads, and the locks that they held, are gone."""
        self._changed = threading.Condition()
        for writer in self._writers:
            writer.end(self._whose)

    def _attached(self) -> list[Writer]:
        with self._changed:
            return list(self._writers)

    @property
    def _full(self) -> bool:
        return self._queued_bytes >= self._config.buffer_bytes

    @property
    def _held_back(self) -> LimitedError | None:
        """Returns what the limiter said, if a chunk waits for it and others must not queue behind it."""
        return self._limited if self._queue else None

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"replaysvc-sender-{self._table}", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        pause_s, limited_pause_s = _FIRST_PAUSE_S, _FIRST_LIMITED_PAUSE_S
        while self._wait_for_work():
            try:
                if self._queue:
                    self._send()
                self._succeeded()
                pause_s, limited_pause_s = _FIRST_PAUSE_S, _FIRST_LIMITED_PAUSE_S
            except LimitedError as error:
                self._hold_back(error)
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, limited_pause_s)
                limited_pause_s = min(_LONGEST_LIMITED_PAUSE_S, 2 * limited_pause_s)
            except ReplayError as error:
                if not isinstance(error, _TRANSIENT) or isinstance(error, _PERMANENT):
                    log.error("table %s: chunks are refused: %s", self._table, error)
                    return self._end(self._told_apart(error))
                self._failed(error)
                with self._changed:
                    self._changed.wait_for(lambda: self._closing or self._hurry, pause_s)
                    self._hurry = False
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
            except Exception as error:  # no thread, no storing: say so to whoever writes, rather than let them wait
                log.exception("table %s: the sender failed", self._table)
                return self._end(StorageError(f"table {self._table}: the sender failed ({error!r}); chunks are not stored"))

    def _told_apart(self, error: ReplayError) -> ReplayError:
        """Returns the error with what it means for whoever writes."""
        if not isinstance(error, SequenceError):
            return error
        meaning = "was deleted and made anew, or its store was put back to an earlier state; make a new writer"
        return SequenceError(f"table {self._table}: it {meaning} ({error})")

    def _end(self, error: ReplayError) -> None:
        with self._changed:
            self._permanent = error
            self._changed.notify_all()

    def _wait_for_work(self) -> bool:
        """Waits for chunks, and looks at part-filled ones now and then; False when the end has come."""
        with self._changed:
            if not self._queue:
                self._changed.wait_for(lambda: self._closing or self._queue, _TICK_S)
            if self._closing:
                return False
            busy = self._full or self._transient is not None or self._held_back is not None
            writers = [] if busy else list(self._writers)
        for writer in writers:
            try:
                writer.flush_due()
            except ReplayError as error:  # the writer's own next call raises it to its user
                log.debug("a part-filled chunk stays with its writer: %s", error)
        return True

    def _send(self) -> None:
        """Makes one attempt to store the first chunks of the queue."""
        if not self._known:
            opening = pb.OpenSessionRequest(table=self._table, session_id=self._session)
            last = self._connection.call("OpenSession", opening).last_sequence
            with self._changed:
                first = self._queue[0].sequence if self._queue else self._put
                if last < first - 1:
                    known = f"the server knows this session up to chunk {last}"
                    raise SequenceError(f"{known}, but chunk {first - 1} was acknowledged")
                self._acknowledge(last)
                self._known = True
        with self._changed:
            chunks: list[pb.AppendChunk] = []
            size = decoded = 0
            for queued in self._queue:
                size += len(queued.chunk)
                decoded += queued.decoded_bytes
                full = size > self._config.append_bytes or decoded > _MAX_DECODED_BYTES or len(chunks) >= self._most_chunks
                if chunks and full:
                    break
                chunks.append(pb.AppendChunk(sequence=queued.sequence, chunk=queued.chunk))
            urgent = self._urgent or self._limited is not None  # a writer may wait for just these
            self._urgent = self._urgent and len(chunks) < len(self._queue)
        if not chunks:
            return
        request = pb.AppendRequest(table=self._table, session_id=self._session, actor=self._actor, chunks=chunks, urgent=urgent)
        began = time.monotonic()
        try:
            last = self._connection.call("Append", request).last_sequence
        except BaseException:
            self._known = False
            self._urgent = self._urgent or urgent
            raise
        with self._changed:
            self._acknowledge(last)
            if self._limited is not None and time.monotonic() - began < _QUICK_S:
                self._most_chunks = min(_MAX_CHUNKS, 2 * self._most_chunks)
                if not self._queue:
                    self._limited, self._most_chunks = None, _MAX_CHUNKS

    def _acknowledge(self, last: int) -> None:
        while self._queue and self._queue[0].sequence <= last:
            self._queued_bytes -= len(self._queue.popleft().chunk)
        self._changed.notify_all()

    def _succeeded(self) -> None:
        with self._changed:
            self._failing = self._transient = self._failing_since = None
            self._attempts += 1
            self._changed.notify_all()

    def _hold_back(self, error: LimitedError) -> None:
        with self._changed:
            if self._limited is None:
                log.info("table %s: %s", self._table, error)
            self._limited, self._most_chunks = error, 1
            self._failing = self._transient = self._failing_since = None  # the server answers
            self._attempts += 1
            self._changed.notify_all()

    def _failed(self, error: ReplayError) -> None:
        now = time.monotonic()
        with self._changed:
            self._failing = error
            if self._failing_since is None:
                self._failing_since = now
                log.warning("table %s: cannot append, trying again: %s", self._table, error)
            if now - self._failing_since >= self._config.reconnect_timeout_s:
                self._transient = error
            self._attempts += 1
            self._changed.notify_all()

    def _error(self) -> ReplayError | None:
        return self._permanent or self._transient

    def _raise_error(self) -> None:
        error = self._error()
        if error is not None:
            self._told = self._told or error is self._permanent
            raise from_wire(error.name, str(error)) from error

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise UnavailableError(self._whose)

    @property
    def _whose(self) -> str:
        return f"this writer belongs to process {self._process}; make one in this process with table.writer()"


_senders: "weakref.WeakSet[Sender]" = weakref.WeakSet()


def _disown_all() -> None:
    for sender in list(_senders):
        sender.disown()


os.register_at_fork(after_in_child=_disown_all)


@atexit.register
def _flush_at_exit() -> None:
    for sender in list(_senders):
        try:
            sender.close(_EXIT_FLUSH_S)
        except ReplayError as error:
            log.error("at exit, chunks were not stored: %s", error)
