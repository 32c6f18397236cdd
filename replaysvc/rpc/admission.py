"""Who gets in: workers and memory of the server, shared so that no client can use up what the others need.

A client is known by its connection, and beside that by its name if it has shown a token or certificate, else by its host if
that is another machine. What it may hold depends on what is left for others. A call that gets nothing is refused at once with
CapacityError and a wish when to come again; nothing here waits.
"""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from replaysvc.access import ANYONE, Identity
from replaysvc.errors import CapacityError, InvalidRequestError
from replaysvc.rpc.auth import caller
from replaysvc.rpc.limits import Limits

ANSWER_LEAST_BYTES = 16 << 10  # what a call is counted for until its answer has left, however small that is
_BUSY_S, _FULL_S = 0.1, 0.25  # when to come again: for a worker, for memory
_PRINCIPAL_SHARE = 7
_STALLED_S, _STALLED_BYTES_PER_S = 5.0, 4 << 20  # an answer that leaves more slowly must make room when others need it
_OWN_MACHINE = re.compile(r"unix:|ipv4:127\.|ipv6:(\[|%5B)::1(\]|%5D):")  # gRPC quotes brackets


class Kind(Enum):
    """Classes of calls. Each has workers of its own: appends that wait keep none from sampling, and so on."""

    APPENDS = "append"
    SAMPLES = "sample"
    TRANSFERS = "transfer"  # streamed answers, parameter sets, and what takes long
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Peer:
    """Who calls: a connection, and the name or host that several connections may share; None: a host that all may share.

    shown: how people see it: the caller's name if it has one, else where its connection comes from.
    """

    connection: str
    principal: str | None
    shown: str = field(default="", compare=False)


def peer_of(context: Any) -> Peer:
    """Returns who makes the call that is being handled."""
    return _peer(str(context.peer()), caller.get())


@lru_cache(maxsize=1024)
def _peer(address: str, identity: Identity) -> Peer:
    if identity is not ANYONE:
        return Peer(address, f"name {identity.name}", identity.name)
    shown = unquote(address.removeprefix("ipv4:").removeprefix("ipv6:"))
    return Peer(address, None if _OWN_MACHINE.match(address) else address.rpartition(":")[0], shown)


class Shares:
    """So much of something, taken and given back. Thread-safe.

    A connection may hold as much as it leaves free for others, so one alone gets half; a name, or a host of another machine,
    seven times as much as it leaves. So whoever asks for little finds something beside many who take all they may.

    what: how a refusal calls it. setting: the setting that is its size, None if there is none.
    """

    def __init__(self, what: str, total: int, setting: str | None = None) -> None:
        self._what, self._total, self._setting = what, total, setting
        self._lock = threading.Lock()
        self._held = 0
        self._connections: dict[str, int] = {}
        self._principals: dict[str, int] = {}

    @property
    def held(self) -> int:
        """Returns how much is taken."""
        return self._held

    @property
    def crowded(self) -> bool:
        """Returns whether more is taken than is left."""
        return 2 * self._held > self._total

    def take(self, peer: Peer, amount: int) -> None:
        """Takes `amount` for a client.

        Raises:
          InvalidRequestError: nobody ever gets so much. CapacityError: it is not free now, or not for this client.
        """
        most = max(1, self._total // 2)
        if amount > most:
            half = f" (half of {self._setting})" if self._setting else ""
            raise InvalidRequestError(f"request: expected it to take at most {most} {self._what}{half}, found {amount}")
        with self._lock:
            left = self._total - self._held
            for holders, key, share in self._holders(peer):
                held = holders.get(key, 0)
                last = amount == 1 and not held and left  # a single worker is somebody's, too
                if held + amount > share * (left - amount) and not last:
                    raise self._refusal(f"{self._held} of {self._total} {self._what} are in use, {held} of them by {key}")
            self._add(peer, amount)

    def give(self, peer: Peer, amount: int) -> None:
        """Gives back what `take` took, or a part of it."""
        with self._lock:
            self._add(peer, -amount)

    def _holders(self, peer: Peer) -> tuple[tuple[dict[str, int], str, int], ...]:
        connection = self._connections, peer.connection, 1
        return (connection,) if peer.principal is None else (connection, (self._principals, peer.principal, _PRINCIPAL_SHARE))

    def _add(self, peer: Peer, amount: int) -> None:
        self._held += amount
        for holders, key, _ in self._holders(peer):
            left = holders.get(key, 0) + amount
            if left:
                holders[key] = left
            else:
                del holders[key]

    def _refusal(self, sentence: str) -> CapacityError:
        error = CapacityError(f"the server is busy: {sentence}")
        error.retry_after_s = _FULL_S if self._setting else _BUSY_S
        return error


class Watch:
    """One thread that ends what takes too long."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: dict[int, tuple[float, Callable[[], None]]] = {}
        self._next = 0
        self._wakes_at = float("inf")
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self, seconds: float, end: Callable[[], None]) -> int:
        """Has `end` called after `seconds`, unless `done` is called with what this returns. `end` must be quick."""
        with self._changed:
            self._next += 1
            due = time.monotonic() + seconds
            self._entries[self._next] = due, end
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="replaysvc-watch", daemon=True)
                self._thread.start()
            if due < self._wakes_at:
                self._changed.notify()
            return self._next

    def done(self, entry: int) -> None:
        """Forgets an entry, if it is there still."""
        with self._changed:
            self._entries.pop(entry, None)

    @contextlib.contextmanager
    def limit(self, seconds: float, end: Callable[[], None]) -> Iterator[None]:
        """Has `end` called if the block takes longer than `seconds`."""
        entry = self.begin(seconds, end)
        try:
            yield
        finally:
            self.done(entry)

    def close(self) -> None:
        """Ends the thread; nothing is ended any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                due = [entry for entry, (at, _) in self._entries.items() if at <= now]
                ends = [self._entries.pop(entry)[1] for entry in due]
                if not ends:
                    self._wakes_at = min((at for at, _ in self._entries.values()), default=float("inf"))
                    self._changed.wait(None if self._wakes_at == float("inf") else self._wakes_at - now)
                    self._wakes_at = -float("inf")
            for end in ends:
                end()


class Admission:
    """The workers and the memory that calls share, and the watch over how long they take."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.workers = {Kind(name): Shares(f"{name} workers", count) for name, count in limits.workers.items()}
        self.requests = Shares("bytes of requests", limits.request_bytes, "request_bytes")
        self.answers = Shares("bytes of answers", limits.answer_bytes, "answer_bytes")
        self.watch = Watch()
        self._lock = threading.Lock()
        self._leaving: dict[Call, float] = {}  # calls whose answers are on their way, and when each counts as stalled

    def leaves(self, call: "Call", size: int) -> None:
        """Notes that an answer is on its way."""
        with self._lock:
            self._leaving[call] = time.monotonic() + _STALLED_S + size / _STALLED_BYTES_PER_S

    def has_left(self, call: "Call") -> None:
        """Notes that it is no more."""
        with self._lock:
            self._leaving.pop(call, None)

    def make_room(self, by: "Call") -> None:
        """Cancels the other calls whose clients hardly read their answers: `by` needs the memory."""
        now = time.monotonic()
        with self._lock:
            stalled = [call for call, at in self._leaving.items() if at < now and call is not by]
        for call in stalled:
            call.cancel()


class Call:
    """What one call holds: memory for its request until it is handled, and for its answer until that has left.

    Its worker is not among it: a unary answer leaves after the worker went on to other calls.

    received, sent: bytes of its messages so far. began_at: when, by the clock of whoever counts it.
    """

    def __init__(self, admission: Admission, context: Any) -> None:
        self.received = self.sent = 0
        self.began_at = 0.0
        self.admission, self.peer = admission, peer_of(context)
        self.cancel: Callable[[], None] = context.cancel
        self._add_callback: Callable[[Callable[[], None]], bool] = context.add_callback
        self._request = self._answer = 0
        self._over = False
        self._lock = threading.Lock()

    def hold_request(self, size: int) -> None:
        """Holds `size` bytes for the request, in place of what it held. Raises CapacityError, InvalidRequestError."""
        self._request = self._changed(self.admission.requests, self._request, size)

    def hold_answer(self, size: int) -> None:
        """Holds `size` bytes for the answer, in place of what it held; nothing any more once the call is over.

        Raises:
          CapacityError: the memory is not free now. InvalidRequestError: no call gets so much.
        """
        with self._lock:
            if not self._over:
                try:
                    self._answer = self._changed(self.admission.answers, self._answer, max(size, ANSWER_LEAST_BYTES))
                except CapacityError:
                    self.admission.make_room(self)
                    raise

    def _changed(self, shares: Shares, held: int, size: int) -> int:
        if size > held:
            shares.take(self.peer, size - held)
        elif size < held:
            shares.give(self.peer, held - size)
        return size

    def watch_answer(self, seconds: float, left: Callable[[], None] | None = None) -> None:
        """Gives the answer's memory back when it has left, and calls `left`; cancels the call if it has not within
        `seconds`."""
        entry = self.admission.watch.begin(seconds, self.cancel)
        self.admission.leaves(self, self._answer)

        def over() -> None:
            self.admission.watch.done(entry)
            self.admission.has_left(self)
            self.close()
            if left is not None:
                left()

        if not self._add_callback(over):  # it is over already
            over()

    def close(self) -> None:
        """Gives back what the answer held, for good."""
        with self._lock:
            self._over = True
            self._answer = self._changed(self.admission.answers, self._answer, 0)


_current: ContextVar[Call | None] = ContextVar("current", default=None)


@contextlib.contextmanager
def handled(call: Call) -> Iterator[None]:
    """Makes `call` the one that is being handled.

    Not for longer: gRPC keeps the variables of a call as long as the call, and a call that is kept by its own variables would
    live until the garbage collector comes, as would its connection's stream.
    """
    _current.set(call)
    try:
        yield
    finally:
        _current.set(None)


def current() -> Call:
    """Returns the call that is being handled."""
    call = _current.get()
    assert call is not None, "no call is being handled"
    return call
