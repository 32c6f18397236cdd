"""Where clients on this host give their memory to the server, to put batches into.

A client makes the memory and passes it over a Unix socket, to which a nonce that it got over gRPC lets it in; replay.proto says
how. Nothing has a name in a file system, and the kernel frees it all with the last process that has it, so a kill leaves
nothing behind. The socket stays open as long as the client lives: its end is the end of the client's regions.
"""

import contextlib
import logging
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from replaysvc.access import Identity
from replaysvc.rpc.admission import Peer, Shares
from replaysvc.rpc.regions import Regions, Slot

log = logging.getLogger(__name__)

_NONCE_S = 10.0  # a nonce is good for so long
_STRANGER_S = 5.0  # a connection may say nothing for so long
_MOST_STRANGERS = 16  # then the one that has said nothing longest makes room
_MOST_CLIENTS = 256
_BACKLOG = 64
_MESSAGE_BYTES = 32
_PAUSE_S = 0.1  # after what looks like a lack of descriptors


@dataclass(frozen=True, slots=True)
class Offer:
    """What a client needs to give memory: the name of a socket, what lets it in, and what the server says then."""

    socket: bytes
    nonce: bytes
    proof: bytes


@dataclass(frozen=True, slots=True)
class _Awaited:
    """Who was given a nonce."""

    peer: Peer
    owner: Identity
    proof: bytes
    until: float


@dataclass(eq=False, slots=True)
class _Connection:
    """One at the socket; a stranger until it has shown a nonce."""

    socket: socket.socket
    since: float
    client: _Awaited | None = None
    regions: set[bytes] = field(default_factory=set)


class _RefusedError(Exception):
    """What came at the socket is nothing that a client of ours says."""


class SharedMemory:
    """Takes memory from clients. Thread-safe; one thread listens, from the first offer on."""

    def __init__(self, total_bytes: int, most_regions: int) -> None:
        """`total_bytes` of 0: takes none."""
        self._total_bytes, self._most_regions = total_bytes, most_regions
        self._clients = Shares("clients with shared memory", _MOST_CLIENTS)
        self._lock = threading.Lock()
        self._awaited: dict[bytes, _Awaited] = {}  # by nonce
        self._listener: _Listener | None = None
        self._is_open = total_bytes > 0

    def offer(self, peer: Peer, owner: Identity) -> Offer | None:
        """Returns what lets a client give memory; None if this server takes none. Raises CapacityError."""
        with self._lock:
            if self._is_open and self._listener is None:
                self._listen()
            if self._listener is None:
                return None
            now = time.monotonic()
            for nonce in [nonce for nonce, awaited in self._awaited.items() if awaited.until < now]:
                self._clients.give(self._awaited.pop(nonce).peer, 1)
            self._clients.take(peer, 1)
            nonce, proof = secrets.token_bytes(16), secrets.token_bytes(16)
            self._awaited[nonce] = _Awaited(peer, owner, proof, now + _NONCE_S)
            return Offer(self._listener.name, nonce, proof)

    def slot(self, region_id: bytes, owner: Identity) -> Slot | None:
        """Returns a region to write to, None if there is none of this id that is the caller's."""
        return self._listener.regions.slot(region_id, owner) if self._listener is not None else None

    def close(self) -> None:
        """Forgets all regions; no more are taken."""
        with self._lock:
            self._is_open = False
            listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _listen(self) -> None:
        try:
            regions = Regions(self._total_bytes, self._most_regions)
            self._listener = _Listener(regions, self._recognised, lambda awaited: self._clients.give(awaited.peer, 1))
        except OSError as error:
            log.warning("clients on this host cannot share their memory: %s", error)
            self._is_open = False

    def _recognised(self, nonce: bytes) -> _Awaited | None:
        """Returns who shows a nonce, the first time."""
        with self._lock:
            awaited = self._awaited.pop(nonce, None)
        if awaited is not None and awaited.until < time.monotonic():
            self._clients.give(awaited.peer, 1)
            return None
        return awaited


class _Listener:
    """The socket, and the thread that hears what is said there."""

    def __init__(
        self, regions: Regions, recognised: Callable[[bytes], _Awaited | None], left: Callable[[_Awaited], None]
    ) -> None:  # fmt: skip
        self.name, self.regions = f"replaysvc-{secrets.token_hex(16)}".encode(), regions
        self._recognised, self._left = recognised, left
        self._connections: set[_Connection] = set()
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.bind(b"\0" + self.name)
            self._socket.listen(_BACKLOG)
        except OSError:
            self._release()
            raise
        self._socket.setblocking(False)
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="replaysvc-shared", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._wake.send(b"x")
        self._thread.join()
        self._release()

    def _release(self) -> None:
        for part in (self._selector, self._socket, self._wake, self._woken):
            part.close()

    def _run(self) -> None:
        while True:
            strangers = [connection for connection in self._connections if connection.client is None]
            ready = [key for key, _ in self._selector.select(1.0 if strangers else None)]
            late = time.monotonic() - _STRANGER_S
            for connection in strangers:
                if connection.since < late:
                    self._end(connection)
            if any(key.fileobj is self._woken for key in ready):
                break
            for key in ready:
                if key.fileobj is self._socket:
                    self._accept()
                elif key.data in self._connections:  # not ended meanwhile
                    self._hear(key.data)
        for connection in list(self._connections):
            self._end(connection)

    def _accept(self) -> None:
        strangers = [connection for connection in self._connections if connection.client is None]
        if len(strangers) >= _MOST_STRANGERS:
            self._end(min(strangers, key=lambda connection: connection.since))
        try:
            accepted, _ = self._socket.accept()
        except OSError as error:
            if not isinstance(error, BlockingIOError | ConnectionError):
                time.sleep(_PAUSE_S)
            return
        accepted.setblocking(False)
        connection = _Connection(accepted, time.monotonic())
        self._connections.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _hear(self, connection: _Connection) -> None:
        """Reads one message and answers it, or ends the connection."""
        descriptors: list[int] = []
        try:
            data, descriptors, flags, _ = socket.recv_fds(connection.socket, _MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            if not data or flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
                raise _RefusedError
            answer = self._answer(connection, data, descriptors)
            if answer is not None:
                connection.socket.send(answer)
        except (OSError, _RefusedError):
            self._end(connection)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _answer(self, connection: _Connection, data: bytes, descriptors: list[int]) -> bytes | None:
        client = connection.client
        if client is None:
            connection.client = client = self._recognised(data)
            if client is None:
                raise _RefusedError
            return client.proof
        kind, content = data[:1], data[1:]
        if kind == b"A" and len(content) == 8 and len(descriptors) == 1:
            size = int.from_bytes(content, "little")
            region_id = self.regions.admit(client.peer, client.owner, descriptors[0], size)
            if region_id is None:
                return b"\0"
            connection.regions.add(region_id)
            return region_id
        if kind == b"D" and content in connection.regions:
            connection.regions.discard(content)
            self.regions.forget(content)
            return None
        raise _RefusedError

    def _end(self, connection: _Connection) -> None:
        """Closes a connection and forgets its regions."""
        self._connections.discard(connection)
        with contextlib.suppress(KeyError):
            self._selector.unregister(connection.socket)
        for region_id in connection.regions:
            self.regions.forget(region_id)
        self.regions.settle()
        if connection.client is not None:
            self._left(connection.client)
        connection.socket.close()
