"""The sender: one background thread for the writers of a table, that gets their chunks stored exactly once.

Chunks are numbered 0, 1, 2, ... within a session, a random name that the sender makes. One append is under way at a time
and carries all that gathered meanwhile: the busier the writers, the larger the message, and no order to restore at the
server. After any failure the sender asks which number was stored last, forgets up to there, and sends the rest again; the
server skips numbers it has. So nothing is lost and nothing is stored twice, whatever fails when.

A table's limiter that holds chunks back is no failure. The sender asks again and again, with one chunk at first, since the
chunks of one message are let in together; and meanwhile writers wait for that chunk instead of queueing more.
"""

import logging
import os
import random
import threading
import time

from replay_client.backlog import MAX_CHUNKS, Backlog
from replay_client.connection import Connection
from replay_client.failures import is_final, told_apart
from replay_client.lifetimes import finish_all, register, send_all
from replaysvc.errors import (
    CapacityError,
    LimitedError,
    ReplayError,
    SequenceError,
    StorageError,
    UnavailableError,
    WaitTimeoutError,
    WriterFencedError,
    from_wire,
)
from replaysvc.options import WhenFull
from replaysvc.v1 import replay_pb2 as pb
from replaysvc.writer import DEFAULT_LIMIT_TIMEOUT_S, Writer

log = logging.getLogger(__name__)

_TICK_S = 0.1  # how often part-filled chunks are looked at
_BEAT_TIMEOUT_S, _BEAT_PAUSE_S = 5.0, 1.0
_HEARTBEATS = 5  # so often within a lease the server hears that writers are alive whose environments are slow
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_FIRST_LIMITED_PAUSE_S, _LONGEST_LIMITED_PAUSE_S = 0.05, 0.2  # the server itself waits a second before it refuses
_QUICK_S = 0.3  # an append that took less did not wait for the limiter, or hardly
_PATIENCE_S = 2.0  # how long attempts are repeated before an old failure is told again; gRPC reconnects within 1 s

_JOIN_S = 5.0  # how long `close` waits for the thread, which has nothing left to do

_CLOSED = "this writer's client was closed"


class Sender:
    """Stores chunks of one session. Thread-safe; belongs to the process that made it."""

    def __init__(self, connection: Connection, table: str, actor: str, epoch: int | None, lease_s: float, uuid: str) -> None:
        self._connection, self._table, self._uuid, self._actor, self._epoch = connection, table, uuid, actor, epoch
        self._heartbeat_s = lease_s / _HEARTBEATS
        self._heard_at = time.monotonic()  # when the server last heard of the writers
        self._config = connection.config
        self._process = os.getpid()
        self._session = os.urandom(16)
        self._changed = threading.Condition()
        self._backlog = Backlog()
        self._episodes = 0  # so far: the next number
        self._known = False  # whether the server and this sender agree on the session
        self._urgent = self._closing = False  # `_closing`: it takes no more
        self._ending_at: float | None = None  # when `close` began
        self._permanent: ReplayError | None = None  # no chunk will ever be stored again: the thread has ended
        self._transient: ReplayError | None = None  # what has been failing for longer than `reconnect_timeout_s`
        self._failing: ReplayError | None = None  # what failed last, since `_failing_since`
        self._failing_since: float | None = None
        self._limited: LimitedError | None = None  # what the limiter last said, until chunks are let in quickly again
        self._most_chunks = MAX_CHUNKS  # of the next append
        self._attempts = 0  # how many ended, well or not
        self._hurry = False  # whether the pause after a failed attempt is over
        self._told = False  # whether a user has seen the permanent error
        self._writers: set[Writer] = set()
        self._thread: threading.Thread | None = None
        register(self)

    # -- what writers call --------------------------------------------------------------------------------------------

    def put(self, chunk: bytes, *, wait: bool, limit_timeout_s: float = DEFAULT_LIMIT_TIMEOUT_S) -> None:
        self._check_process()
        with self._changed:
            if wait:
                self._wait_for_room(limit_timeout_s)
            if self._closing:
                raise UnavailableError(_CLOSED)
            if wait or self._permanent is not None:
                self._try_again(time.monotonic() + _PATIENCE_S)
                self._raise_error()
            self._backlog.put(chunk)
            self._changed.notify_all()

    def _wait_for_room(self, limit_timeout_s: float) -> None:
        deadline = None
        while self._error() is None and not self._closing:
            if self._held_back is None:
                if self._backlog.bytes < self._config.buffer_bytes:
                    return
                if self._config.when_full is WhenFull.RAISE:
                    full = f"buffer_bytes={self._config.buffer_bytes}, when_full=raise"
                    raise CapacityError(f"append: {self._backlog.bytes} bytes are not acknowledged yet ({full}); not taken")
                self._changed.wait()
                continue
            if self._ending_at is not None:
                raise UnavailableError(_CLOSED)
            now = time.monotonic()
            deadline = now + limit_timeout_s if deadline is None else deadline
            if now >= deadline:
                raise WaitTimeoutError(f"append: nothing was let in for {limit_timeout_s:g} s ({self._held_back})")
            self._changed.wait(deadline - now)

    def flush(self, timeout_s: float) -> None:
        self._check_process()
        now = time.monotonic()
        deadline, patience_end = now + timeout_s, (self._ending_at or now) + _PATIENCE_S
        with self._changed:
            wanted = self._backlog.end
            self._urgent = True
            self._changed.notify_all()
            self._try_again(min(deadline, patience_end))
            while self._backlog.first < wanted or self._unannounced:
                self._raise_error()
                if self._closing:
                    raise UnavailableError(f"flush: the client was closed with {len(self._backlog)} chunks not stored")
                left = deadline - time.monotonic()
                if left <= 0:
                    why = f" ({self._failing or self._limited})" if self._failing or self._limited else ""
                    waited_s = timeout_s if self._ending_at is None else round(time.monotonic() - self._ending_at, 2)
                    left_over = f"{len(self._backlog)} chunks are not durable after {waited_s:g} s; they stay queued"
                    raise WaitTimeoutError(f"flush: {left_over}{why}")
                self._changed.wait(left)

    def _try_again(self, deadline: float) -> None:
        """Waits for attempts made now, if earlier ones have failed for long: what failed then may work again."""
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
            if self._ending_at is not None:  # what it writes would come too late
                raise UnavailableError(_CLOSED)
            self._writers.add(writer)
            self._start()

    def detach(self, writer: Writer) -> None:
        with self._changed:
            self._writers.discard(writer)

    def begin_close(self) -> None:
        """Sends what the writers were given, as far as that needs no waiting; `close` does the rest."""
        if self._process != os.getpid() or self._closing:
            return
        with self._changed:
            self._ending_at, self._urgent, self._hurry = self._ending_at or time.monotonic(), True, True
            self._changed.notify_all()  # whoever waits for the limiter need not wait for what is stored below
        send_all(self._attached())

    def close(self, timeout_s: float) -> None:
        """Stores what the writers were given, for up to `timeout_s`, and ends them and the thread. Raises as `flush`, once."""
        if self._process != os.getpid() or self._closing:
            return
        deadline = time.monotonic() + timeout_s
        self.begin_close()
        try:
            if not self._told:
                left_behind = finish_all(self._attached(), _CLOSED, deadline)
                self.flush(max(0.0, deadline - time.monotonic()))
                if left_behind is not None:
                    raise left_behind
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
        return not self._backlog and not self._writers

    def disown(self) -> None:
        """After a fork, in the child: ends the parent's writers here. Other threads, and the locks that they held, are gone."""
        self._changed = threading.Condition()
        for writer in self._writers:
            writer.end(self._whose)

    def _attached(self) -> list[Writer]:
        with self._changed:
            return list(self._writers)

    @property
    def _unannounced(self) -> bool:
        """Returns whether earlier lives of the actor may still write, since the server has not heard of this one."""
        return self._epoch is not None and not self._known

    @property
    def _held_back(self) -> LimitedError | None:
        """Returns what the limiter said, if a chunk waits for it and others must not queue behind it."""
        return self._limited if self._backlog else None

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"replaysvc-sender-{self._table}", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        pause_s, limited_pause_s = _FIRST_PAUSE_S, _FIRST_LIMITED_PAUSE_S
        while self._wait_for_work():
            try:
                if self._backlog or self._unannounced:
                    self._send()
                else:
                    self._beat()
                self._succeeded()
                pause_s, limited_pause_s = _FIRST_PAUSE_S, _FIRST_LIMITED_PAUSE_S
            except LimitedError as error:
                self._hold_back(error)
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, limited_pause_s)
                limited_pause_s = min(_LONGEST_LIMITED_PAUSE_S, 2 * limited_pause_s)
            except ReplayError as error:
                if is_final(error):
                    log.error("table %s: chunks are refused: %s", self._table, error)
                    return self._end(told_apart(self._table, error))
                self._failed(error)
                wish_s = error.retry_after_s  # of a server that is there, and busy: it knows best
                wait_s = pause_s if wish_s is None else wish_s * random.uniform(1.0, 2.0)
                with self._changed:
                    self._changed.wait_for(lambda: self._closing or self._hurry, wait_s)
                    self._hurry = False
                if wish_s is None:
                    pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
            except Exception as error:  # no thread, no storing: say so to whoever writes, rather than let them wait
                log.exception("table %s: the sender failed", self._table)
                return self._end(StorageError(f"table {self._table}: the sender failed ({error!r}); chunks are not stored"))

    def _end(self, error: ReplayError) -> None:
        with self._changed:
            self._permanent = error
            self._changed.notify_all()
        if isinstance(error, WriterFencedError):
            for writer in self._attached():
                writer.fence(error)

    def _wait_for_work(self) -> bool:
        """Waits for chunks, and looks at part-filled ones now and then; False when the end has come."""
        with self._changed:
            if not self._backlog and not self._unannounced:
                self._changed.wait_for(lambda: self._closing or self._backlog, _TICK_S)
            if self._closing:
                return False
            full = self._backlog.bytes >= self._config.buffer_bytes
            busy = full or self._transient is not None or self._held_back is not None
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
            last = self._open_session()
            with self._changed:
                if last < self._backlog.first - 1:
                    known = f"the server knows this session up to chunk {last}"
                    raise SequenceError(f"{known}, but chunk {self._backlog.first - 1} was acknowledged")
                self._acknowledge(last)
                self._known = True
        with self._changed:
            chunks = self._backlog.next_append(self._most_chunks, self._config.append_bytes)
            urgent = self._urgent or self._limited is not None  # a writer may wait for just these
            self._urgent = self._urgent and len(chunks) < len(self._backlog)
        if not chunks:
            return
        request = pb.AppendRequest(
            table=self._table, session_id=self._session, actor=self._actor, chunks=chunks, urgent=urgent, epoch=self._epoch,
            open_episodes=self._alive(), table_uuid=self._uuid,
        )  # fmt: skip
        began = time.monotonic()
        try:
            last = self._connection.call("Append", request).last_sequence
        except BaseException:
            self._known = False
            self._urgent = self._urgent or urgent
            raise
        with self._changed:
            self._heard_at = time.monotonic()
            self._acknowledge(last)
            if self._limited is not None and time.monotonic() - began < _QUICK_S:
                self._most_chunks = min(MAX_CHUNKS, 2 * self._most_chunks)
                if not self._backlog:
                    self._limited, self._most_chunks = None, MAX_CHUNKS

    def _beat(self) -> None:
        """Tells the server that the writers are alive, if it has not heard of them for long."""
        alive = self._alive() or (self._epoch is not None and self._writers)  # a server that was restarted may know no epoch
        if time.monotonic() - self._heard_at < self._heartbeat_s or not alive:
            return
        try:
            self._open_session(min(self._config.call_timeout_s, _BEAT_TIMEOUT_S))
        except ReplayError as error:
            if is_final(error):  # else nobody waits for this, and chunks will tell when it lasts
                raise
            log.debug("table %s: no heartbeat: %s", self._table, error)
            self._heard_at = time.monotonic() - max(0.0, self._heartbeat_s - _BEAT_PAUSE_S)

    def _open_session(self, timeout_s: float | None = None) -> int:
        request = pb.OpenSessionRequest(
            table=self._table, session_id=self._session, actor=self._actor, epoch=self._epoch, open_episodes=self._alive(),
            table_uuid=self._uuid,
        )  # fmt: skip
        last: int = self._connection.call("OpenSession", request, timeout_s=timeout_s).last_sequence
        self._heard_at = time.monotonic()
        return last

    def _alive(self) -> list[int]:
        """Returns the keys of the episodes that writers go on with."""
        return [key for writer in self._attached() if (key := writer.open_episode) is not None]

    def _acknowledge(self, last: int) -> None:
        self._backlog.acknowledge(last)
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
                level = logging.WARNING if error.retry_after_s is None else logging.DEBUG
                log.log(level, "table %s: cannot append, trying again: %s", self._table, error)
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
