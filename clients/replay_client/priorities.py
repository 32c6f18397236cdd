"""New priorities that nobody waits for: a background thread sends them, those of many batches in one call.

A call costs both sides several times what the priorities of one batch cost in it. So one call is under way at a time, and the
next takes all that came meanwhile and within a few milliseconds more; batches that a stream has under way were drawn without
them anyway. Of a position that comes several times the service keeps what comes last, which makes one call of many what they
would be one after the other. Samplers have nothing in common, so each has a call of its own.
"""

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from replay_client.connection import Connection
from replay_client.lifetimes import register
from replaysvc.errors import ReplayError, StorageError, UnavailableError, WaitTimeoutError, from_wire
from replaysvc.types import Array, UpdateCounts
from replaysvc.v1 import replay_pb2 as pb

log = logging.getLogger(__name__)

MOST_ITEMS = 1 << 16  # whose priorities are not answered for; 256 batches of 256. Beyond it, who brings more waits
_GATHER_S = 0.005  # how long a call waits for more priorities to go with the first
_IDLE_S = 5.0  # how long a thread that has nothing to do stays
_JOIN_S = 5.0  # how long `join` waits for the thread, which has nothing left to do

_CLOSED = "the client was closed meanwhile; these priorities were not taken"

Send = Callable[[str, Array, Array], object]


def send_priorities(
    connection: Connection, table: str, uuid: str, sampler: str, positions: Array, priorities: Array
) -> UpdateCounts:
    """Sets the `priorities`, float64 [n], of `positions`, int64 [n], both checked; rides out what `Connection.retrying` does.

    Raises:
      ReplayError: as the service says; the priorities are as they were, or, if no answer came, perhaps not.
    """
    request = pb.UpdatePrioritiesRequest(
        table=table, table_uuid=uuid, sampler=sampler, positions=positions.tobytes(), priorities=priorities.tobytes()
    )
    response = connection.retrying(lambda: connection.call("UpdatePriorities", request))
    return UpdateCounts(response.applied, response.ignored)


@dataclass(frozen=True, slots=True)
class _Round:
    """What is sent together: positions and priorities by sampler, of `items` items, up to update number `last`."""

    updates: dict[str, list[tuple[Array, Array]]]
    items: int
    last: int


class PrioritySender:
    """Sends the new priorities of one table, in order. Thread-safe; belongs to the process that made it.

    What fails is logged and left out, and what came after it is still sent. The first error since one was raised last is
    raised by the next `put`, `drain` or `close`.
    """

    def __init__(self, table: str, send: Send) -> None:
        """`send` sets (sampler, positions, priorities) and returns when that is done."""
        self._table, self._send, self._process = table, send, os.getpid()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # for the thread
        self._answered = threading.Condition(self._lock)  # for whoever waits for it
        self._pending: dict[str, list[tuple[Array, Array]]] = {}
        self._items = 0  # in updates that are not answered: pending ones, and those under way
        self._put = self._done = 0  # updates so far: taken, and answered, well or not
        self._hurry = self._closing = False
        self._error: ReplayError | None = None  # that nobody was told of
        self._thread: threading.Thread | None = None
        register(self)

    def put(self, sampler: str, positions: Array, priorities: Array) -> None:
        """Takes new `priorities`, float64 [n], of `positions`, int64 [n]: both are kept as they are, and must not change.

        Waits while MOST_ITEMS items are not answered for; more than that are taken alone.

        Raises:
          ReplayError: of an earlier update; these ones are not taken. UnavailableError: closed.
        """
        count = len(positions)
        with self._lock:
            while self._items and self._items + count > MOST_ITEMS and self._error is None and not self._closing:
                self._wake()
                self._answered.wait()
            self._raise_error()
            if self._closing:
                raise UnavailableError(_CLOSED)
            if not count:
                return
            if not self._pending:
                self._work.notify()
            self._pending.setdefault(sampler, []).append((positions, priorities))
            self._items += count
            self._put += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"replaysvc-priorities-{self._table}", daemon=True)
                self._thread.start()

    def drain(self) -> None:
        """Waits until all that was taken so far is answered. Raises the error of an earlier update, at once."""
        with self._lock:
            wanted = self._put
            while self._done < wanted and self._error is None and not self._closing:
                self._wake()
                self._answered.wait()
            self._raise_error()
            if self._done < wanted:
                raise UnavailableError(_CLOSED)

    def begin_close(self) -> None:
        """Lets the thread send at once what it has; `close` waits for that."""
        if self._process == os.getpid():
            with self._lock:
                self._wake()

    def close(self, timeout_s: float) -> None:
        """Waits for up to `timeout_s` until all is answered, and ends; what is not sent by then is dropped, and logged.

        Raises:
          ReplayError: of an earlier update. WaitTimeoutError: priorities were dropped.
        """
        if self._process != os.getpid() or self._closing:
            return
        with self._lock:
            self._wake()
            self._answered.wait_for(lambda: self._done == self._put, timeout_s)
            self._closing = True
            self._pending.clear()
            self._work.notify()
            self._answered.notify_all()
            late = self._put - self._done
            if late:
                log.error("table %s: at close, %d updates of priorities were not answered", self._table, late)
            self._raise_error()
            if late:
                raise WaitTimeoutError(
                    f"table {self._table}: {late} updates of priorities, of {self._items} items, were not answered within "
                    f"{timeout_s:g} s and are given up"
                )

    def join(self) -> None:
        """Waits for the thread to end, after `close`; not for long."""
        if (thread := self._thread) is not None and self._process == os.getpid():
            thread.join(_JOIN_S)

    def disown(self) -> None:
        """After a fork, in the child: there is nothing to end. The parent sends what it took; the child makes its own."""

    @property
    def ended(self) -> bool:
        """Returns whether it takes no more."""
        return self._closing

    @property
    def idle(self) -> bool:
        """Returns whether there is nothing to send, and no error to tell."""
        return not self._items and self._error is None

    def _wake(self) -> None:
        self._hurry = True
        self._work.notify()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise from_wire(error.name, f"an earlier update of priorities failed: {error}") from error

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            for sampler, updates in taken.updates.items():
                self._send_together(sampler, updates)
            with self._lock:
                self._items -= taken.items
                self._done = taken.last
                self._answered.notify_all()

    def _take(self) -> _Round | None:
        """Returns all that waits, once there is something; None when the thread is to end."""
        with self._lock:
            self._work.wait_for(lambda: self._pending or self._closing, _IDLE_S)
            if self._pending:
                self._work.wait_for(lambda: self._hurry or self._closing, _GATHER_S)
            if not self._pending or self._closing:
                self._thread = None
                return None
            updates, self._pending, self._hurry = self._pending, {}, False
            items = sum(len(positions) for parts in updates.values() for positions, _ in parts)
            return _Round(updates, items, self._put)

    def _send_together(self, sampler: str, updates: list[tuple[Array, Array]]) -> None:
        positions, priorities = (np.concatenate(parts) for parts in zip(*updates, strict=True))
        try:
            self._send(sampler, positions, priorities)
            return
        except ReplayError as error:
            failed = error
        except Exception as error:  # no thread, no priorities: say so to the learner, and go on
            log.exception("table %s: the sender of priorities failed", self._table)
            failed = StorageError(f"table {self._table}: the sender of priorities failed ({error!r})")
        log.error("table %s: %d priorities of sampler %s are lost: %s", self._table, len(positions), sampler, failed)
        with self._lock:
            self._error = self._error or failed
            self._answered.notify_all()
