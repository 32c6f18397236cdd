"""Memory of this process that a server on the same host puts large batches into.

Each slot is a memfd of its own, which the server maps; replay.proto says how it gets there. A slot is given to one request at a
time, and its batch's arrays are views of it: it is free again when the last of them is gone. A slot whose request did not end
with an answer is never used again, since the server may still write there.

Nothing here raises: where memory cannot be shared (the server is on another host, takes none, is older, was killed), batches
come through the socket, and another try is made after a while.
"""

import ctypes
import logging
import mmap
import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from replaysvc.config import MAX_MESSAGE_BYTES
from replaysvc.errors import CapacityError, ReplayError, UnavailableError, WaitTimeoutError
from replaysvc.v1 import replay_pb2 as pb

log = logging.getLogger(__name__)

LEAST_BYTES = 256 << 10  # of a batch: what could share less comes through the socket
_ROUND_BYTES = 64 << 10
_MOST_SLOTS = 128  # each takes a descriptor
_ANSWER_S = 2.0  # longest that the server may take to answer at its Unix socket
_FULL_S = 10.0  # how long a server that takes no more memory is not asked again
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 600.0
_FORK_WAIT_S = 5.0  # how long a fork waits for a slot that is being made
_MESSAGE_BYTES = 32


class Slot:
    """Memory for one batch. Made by a session alone."""

    def __init__(self, region: bytes, memory: mmap.mmap, session: "_Session") -> None:
        self.region, self.size, self._memory = region, len(memory), memory
        self.is_spoilt = False  # somebody may write there, or look there, for whom the next batch is not
        self._session = weakref.ref(session)

    def buffer(self) -> Any:
        """Returns the memory, for the arrays of a batch that is there. When it is gone, with all that are views of it, the slot
        comes back."""
        buffer = (ctypes.c_char * self.size).from_buffer(self._memory)
        weakref.finalize(buffer, self.come_back).atexit = False
        return buffer

    def spoil(self) -> None:
        """Gives the slot up: its request ended without an answer."""
        self.is_spoilt = True
        self.come_back()

    def come_back(self) -> None:
        """Ends the use of a slot. Called by finalizers, so it takes no lock."""
        session = self._session()
        if session is not None:
            session.returned.append(self)


class _Session:
    """One server that takes this process's memory: the socket that stays open as long, and the slots."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self._hangup = select.poll()
        self._hangup.register(link, 0)
        self._is_over = False
        self.slots: set[Slot] = set()
        self.free: list[Slot] = []
        self.returned: deque[Slot] = deque()
        self.bytes = 0
        self.full_until = 0.0

    def settle(self) -> None:
        """Sorts the slots that came back: those that are free, and those to drop."""
        while self.returned:
            slot = self.returned.popleft()
            if slot.is_spoilt:
                self.drop(slot)
            else:
                self.free.append(slot)

    def take(self, size: int) -> Slot | None:
        """Returns a free slot, the one used last, which is the warmest."""
        for place in range(len(self.free) - 1, -1, -1):
            if size <= self.free[place].size <= 2 * size:
                return self.free.pop(place)
        return None

    def drop(self, slot: Slot) -> None:
        """Forgets a slot, and has the server forget it."""
        self.slots.discard(slot)
        self.bytes -= slot.size
        try:
            self.link.send(b"D" + slot.region)
        except OSError:  # else the server would keep what nobody knows of here
            self._is_over = True

    def add(self, size: int) -> Slot | None:
        """Makes a slot; None if the server takes no more. Raises OSError."""
        import fcntl  # not where there are no memfds either

        descriptor = os.memfd_create("replay-client", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            socket.send_fds(self.link, [b"A" + size.to_bytes(8, "little")], [descriptor])
        finally:
            os.close(descriptor)
        answer = self.link.recv(_MESSAGE_BYTES)
        if not answer:
            raise ConnectionResetError("the server has closed its socket")
        return Slot(answer, memory, self) if len(answer) == 16 else None

    def is_over(self) -> bool:
        """Returns whether the server is gone."""
        return self._is_over or bool(self._hangup.poll(0))


class SharedMemory:
    """The slots of one connection in this process. Thread-safe."""

    def __init__(self, offer: Callable[[], pb.OpenSharedResponse], most_bytes: int) -> None:
        """`offer` asks the server for its socket, and may raise ReplayError. `most_bytes`: of all slots; 0: there are none."""
        self._offer, self._most_bytes = offer, most_bytes if hasattr(os, "memfd_create") else 0
        self._lock = threading.Lock()  # of the slots
        self._setup = threading.Lock()  # held by whoever asks the server for something; taken before the other
        self._is_quiet = False  # while the process forks: whether nothing is asked of the server
        self._session: _Session | None = None
        self._pause_s, self._next = _FIRST_PAUSE_S, 0.0
        _all.add(self)

    def take(self, size: int) -> Slot | None:
        """Returns a slot of at least `size` bytes; None if there is none now, or a batch so small or large gets none."""
        if not LEAST_BYTES <= size <= min(self._most_bytes, MAX_MESSAGE_BYTES):
            return None
        with self._lock:
            session = self._session
            if session is not None:
                session.settle()
                if session.is_over():
                    self._part(session, "the server is gone")
                elif (slot := session.take(size)) is not None:
                    return slot
        if not self._setup.acquire(blocking=False):  # another thread makes a slot now
            return None
        try:
            return self._make(-(-size // _ROUND_BYTES) * _ROUND_BYTES)
        finally:
            self._setup.release()

    def close(self) -> None:
        """Gives all slots up; batches that are there stay as they are."""
        with self._setup, self._lock:
            self._leave()
            self._pause_s, self._next = _FIRST_PAUSE_S, 0.0

    def _make(self, size: int) -> Slot | None:
        """Makes a slot, in place of free ones of other sizes if there is no room else."""
        now = time.monotonic()
        if self._session is None:
            if now < self._next:
                return None
            self._session = self._connected()
        with self._lock:
            session = self._session
            if session is None or now < session.full_until:
                return None
            while session.free and not self._has_room(session, size):
                session.drop(session.free.pop(0))
            if not self._has_room(session, size):
                return None
        try:
            slot = session.add(size)
        except (OSError, ValueError) as error:
            with self._lock:
                self._part(session, str(error))
            return None
        with self._lock:
            if slot is None:
                session.full_until = time.monotonic() + _FULL_S
            else:
                self._pause_s = _FIRST_PAUSE_S
                session.slots.add(slot)
                session.bytes += slot.size
        return slot

    def _has_room(self, session: _Session, size: int) -> bool:
        return session.bytes + size <= self._most_bytes and len(session.slots) < _MOST_SLOTS

    def _connected(self) -> _Session | None:
        """Returns a session with the server; None if there can be none now."""
        link = None
        try:
            offer = self._offer()
            if not offer.socket:
                self._later(_LONGEST_PAUSE_S, "the server takes none")
                return None
            link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            link.settimeout(_ANSWER_S)
            link.connect(b"\0" + offer.socket)
            link.send(offer.nonce)
            if link.recv(_MESSAGE_BYTES) == offer.proof:
                return _Session(link)
            reason: Exception = ConnectionResetError("the server does not answer")
        except (ReplayError, OSError) as error:
            reason = error
        if link is not None:
            link.close()
        passing = isinstance(reason, UnavailableError | WaitTimeoutError | CapacityError | TimeoutError | ConnectionError)
        passing = passing and not isinstance(reason, ConnectionRefusedError)
        self._later(self._pause_s if passing else _LONGEST_PAUSE_S, str(reason))  # else it is on another host, most likely
        return None

    def _part(self, session: _Session, reason: str) -> None:
        """Ends a session. The lock is held."""
        if self._session is session:
            self._leave()
            self._later(self._pause_s, reason)

    def _leave(self) -> None:
        if self._session is not None:
            self._session.link.close()
            self._session = None

    def _later(self, pause_s: float, reason: str) -> None:
        """Tries no more for a while."""
        log.info("no memory is shared with the server: %s", reason)
        self._next = time.monotonic() + pause_s
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)

    def before_fork(self) -> None:
        """The child will see the memory of batches that there are now, as long as it likes: theirs is the last use of it."""
        self._is_quiet = self._setup.acquire(timeout=_FORK_WAIT_S)
        self._lock.acquire()
        if self._session is not None:
            self._session.settle()
            for slot in self._session.slots.difference(self._session.free):
                slot.is_spoilt = True

    def after_fork_in_parent(self) -> None:
        self._lock.release()
        if self._is_quiet:
            self._setup.release()

    def after_fork_in_child(self) -> None:
        """What the parent shares is no business of the child, which must not keep the parent's socket open."""
        self._lock, self._setup = threading.Lock(), threading.Lock()
        self._leave()


_all: "weakref.WeakSet[SharedMemory]" = weakref.WeakSet()
_forking = threading.local()  # in a thread that forks: those whose locks it holds


def before_fork() -> None:
    """To be called before those fork handlers that keep calls from the server."""
    _forking.held = []
    for shared in list(_all):
        shared.before_fork()
        _forking.held.append(shared)


def after_fork_in_parent() -> None:
    for shared in _forking.held:
        shared.after_fork_in_parent()


def after_fork_in_child() -> None:
    for shared in _forking.held:
        shared.after_fork_in_child()
