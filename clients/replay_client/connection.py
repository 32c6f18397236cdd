"""One connection to a server: made on first use, once a process, with retries that ride out a restart.

gRPC channels do not survive a fork, so a child process makes its own. All calls of this service may be repeated: appends
are told apart by their sequence numbers, and most other calls change nothing, or the same thing again. The few that do not
(making and deleting a table) say what to do when an answer was lost.
"""

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import grpc

from replay_client import shared
from replay_client.credentials import Tls as Tls
from replay_client.credentials import Token, mismatch
from replay_client.frames import join_pieces
from replaysvc.checks import shown
from replaysvc.config import MAX_MESSAGE_BYTES, ClientConfig
from replaysvc.errors import (
    InvalidRequestError,
    PermissionDeniedError,
    ReplayError,
    SpecMismatchError,
    UnauthenticatedError,
    UnavailableError,
    WaitTimeoutError,
    from_wire,
)  # fmt: skip
from replaysvc.v1 import replay_pb2 as pb
from replaysvc.v1 import replay_pb2_grpc

_HOST = re.compile(r"\[[^\[\]/]+\]|[^:/@\[\]]+")  # an IPv6 address in brackets; no URL
_PORT = re.compile("[0-9]{1,5}")
ERROR_KEY = "replaysvc-error"
RETRY_KEY = "replaysvc-retry-after-ms"
SIZE_KEY = "replaysvc-bytes"
_LARGE = ("Append", "UpdatePriorities", "DeleteEpisodes")  # methods whose requests may be larger than one message to the server
_PIECE_BYTES = 1 << 20
_LONGEST_WISH_S = 60.0  # a server's wish to be left alone for longer is none that we grant
_OFFER_S = 2.0  # longest that a batch waits for the server to say whether memory can be shared
_TICK_S = 0.1  # how often a pause looks whether the connection was closed
_FORK_WAIT_S = 5.0  # how long a fork waits for calls that are under way
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 15_000),
    ("grpc.keepalive_timeout_ms", 8_000),
    ("grpc.http2.ping_timeout_ms", 8_000),  # of all other pings, which otherwise decide after 60 s that nobody is there
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),  # this module retries, and knows what may be retried
)
_BY_STATUS: dict[grpc.StatusCode, type[ReplayError]] = {
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.CANCELLED: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: WaitTimeoutError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: UnavailableError,  # too many calls are under way there
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,  # these two, from a proxy
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
}
"""For statuses that gRPC itself gives, without the name of an error class."""

_NOT_BEGUN = ("RST_STREAM", "error code 7")  # HTTP/2's REFUSED_STREAM: on a new connection, which does not know the limit yet
_NOT_BEGUN_PAUSE_S = 0.05  # chosen by hand; that call was not looked at
_TOO_LARGE = "larger than max"  # within the details of gRPC's other RESOURCE_EXHAUSTED

Answer = TypeVar("Answer")
_inherited: list[Any] = []  # channels of a parent process: closing one in a child may hang, so they are kept


class ProcessLock:
    """A lock that is free in a child process, whoever held it at the fork."""

    def __init__(self) -> None:
        self._lock, self._process = threading.Lock(), os.getpid()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            self._lock, self._process = threading.Lock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _Gate:
    """Counts the calls that are within gRPC, and keeps others out while the process forks.

    A fork in the middle of a call leaves the child with gRPC's locks as they were, locked by threads that are no more.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._forking = False

    def enter(self) -> None:
        with self._changed:
            while self._forking:
                self._changed.wait()
            self._inside += 1

    def leave(self, _: object = None) -> None:
        with self._changed:
            self._inside = max(0, self._inside - 1)  # in a child, a call of the parent may still end
            if self._forking:
                self._changed.notify_all()

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *_: object) -> None:
        self.leave()

    def close(self) -> None:
        """Before a fork."""
        with self._changed:
            self._forking = True
            self._changed.wait_for(lambda: not self._inside, _FORK_WAIT_S)

    def open(self) -> None:
        """After it, in the parent."""
        with self._changed:
            self._forking = False
            self._changed.notify_all()


_gate = _Gate()
os.register_at_fork(before=_gate.close, after_in_parent=_gate.open, after_in_child=_gate.__init__)  # type: ignore[misc]
os.register_at_fork(  # its `before` is called before the gate's: who makes a slot there must still get through
    before=shared.before_fork, after_in_parent=shared.after_fork_in_parent, after_in_child=shared.after_fork_in_child
)


class Connection:
    """Calls to one address. Thread-safe and picklable; a copy in another process connects by itself."""

    def __init__(self, address: str, token: str | Token | None, tls: Tls | None, config: ClientConfig) -> None:
        host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
        if not host.isprintable() or not _HOST.fullmatch(host) or not _PORT.fullmatch(port) or not 0 < int(port) < 65_536:
            raise SpecMismatchError("address", "host:port", shown(address))
        if tls is not None and not isinstance(tls, Tls):
            raise SpecMismatchError("tls", "a Tls", shown(tls))
        if token is not None and tls is None and host not in ("localhost", "127.0.0.1", "[::1]"):
            raise SpecMismatchError("token", "tls with it, since the host is not this machine", "no tls")
        self.address, self.config = address, config
        self._token = token if token is None or isinstance(token, Token) else Token(token)
        self._tls = tls
        self._answered = False  # whether a server was ever there
        self._lock = ProcessLock()
        self._process = -1
        self._closes = 0
        self._channel: Any = None
        self._stub: Any = None
        self._joined: Any = None  # the methods of _LARGE, for requests in several messages
        self._frames: Any = None
        self._pieces: Any = None
        self.shared = shared.SharedMemory(self._offer, config.shared_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Connection, (self.address, self._token, self._tls, self.config))

    def _connect(self) -> None:
        process = os.getpid()
        if self._process == process:
            return
        with self._lock:
            if self._process == process:
                return
            if self._process != -1:
                _inherited.append((self._channel, self._stub, self._joined, self._frames, self._pieces))
            if self._tls is None:
                channel = grpc.insecure_channel(self.address, options=_OPTIONS)
            else:
                credentials = grpc.ssl_channel_credentials(
                    self._tls.root_certificates, self._tls.private_key, self._tls.certificate_chain
                )
                channel = grpc.secure_channel(self.address, credentials, options=_OPTIONS)
            self._channel = channel
            self._stub = replay_pb2_grpc.ReplayServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
            self._joined = {
                method: channel.stream_unary(
                    f"/replaysvc.v1.ReplayService/{method}",
                    response_deserializer=getattr(pb, f"{method}Response").FromString,
                )
                for method in _LARGE
            }
            self._frames = channel.unary_unary("/replaysvc.v1.ReplayFrames/Sample")
            self._pieces = channel.unary_stream("/replaysvc.v1.ReplayFrames/SampleLarge")
            self._process = process

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return self._token.metadata if self._token is not None else ()

    def call(self, method: str, request: Any, *, timeout_s: float | None = None) -> Any:
        """Returns the answer of one attempt of a unary method.

        Raises:
          ReplayError: as the server said, or UnavailableError, WaitTimeoutError.
        """
        self._connect()
        timeout_s = self.config.call_timeout_s if timeout_s is None else timeout_s
        metadata, call, message = self._metadata, getattr(self._stub, method), request
        if method in _LARGE:
            size = request.ByteSize()
            if size > MAX_MESSAGE_BYTES:
                raise InvalidRequestError(f"{method}: expected a request of at most {MAX_MESSAGE_BYTES} bytes, found {size}")
            metadata += ((SIZE_KEY, str(size)),)
            if size > _PIECE_BYTES:
                call, message = self._joined[method], _pieces_of(request.SerializeToString())
        with translated(self.address), _gate:
            return call(message, timeout=timeout_s, metadata=metadata)

    def call_stream(self, method: str, request: Any) -> list[Any]:
        """Returns all answers of one attempt of a method that streams them. Raises as `call`."""
        self._connect()
        with translated(self.address), _gate:
            return list(getattr(self._stub, method)(request, timeout=self.config.call_timeout_s * 10, metadata=self._metadata))

    def _offer(self) -> pb.OpenSharedResponse:
        offer: pb.OpenSharedResponse = self.call("OpenShared", pb.OpenSharedRequest(), timeout_s=_OFFER_S)
        return offer

    def start_sample(self, request: bytes, timeout_s: float) -> Any:
        """Starts one attempt of a sample call, of which `request` is the message; returns its future."""
        self._connect()
        _gate.enter()
        try:
            with translated(self.address):
                future = self._frames.future(request, timeout=timeout_s, metadata=self._metadata)
        except BaseException:
            _gate.leave()
            raise
        future.add_done_callback(_gate.leave)
        return future

    def sample(self, request: bytes, timeout_s: float) -> bytes:
        """Returns the frame of one attempt of a sample call. Raises as `call`."""
        self._connect()
        with translated(self.address), _gate:
            frame: bytes = self._frames(request, timeout=timeout_s, metadata=self._metadata)
        return frame

    def sample_large(self, request: bytes, timeout_s: float) -> bytearray:
        """Returns the frame of one attempt of a sample call whose answer is streamed in pieces.

        Raises:
          ChunkCorruptError: the pieces make no whole frame. And as `call`.
        """
        self._connect()
        with translated(self.address), _gate:
            pieces = self._pieces(request, timeout=timeout_s, metadata=self._metadata)
            try:
                return join_pieces(pieces)
            finally:
                pieces.cancel()  # else one that is refused half-way would go on

    def retrying(
        self, attempt: Callable[[], Answer], *, again: Callable[[], Answer] | None = None, closes: int | None = None
    ) -> Answer:
        """Returns what `attempt` returns, trying again for `reconnect_timeout_s` while the server does not answer or is busy.
        One that is there but cannot be talked to, since only one side speaks TLS, say, is given up at once.

        `again` takes the place of `attempt` from the second time on, when an earlier one may have been done and only its
        answer lost. A `close` after this began, or after the count `closes` was taken, ends the trying.
        """
        closes = self._closes if closes is None else closes
        deadline = time.monotonic() + self.config.reconnect_timeout_s
        pause_s, reason = _FIRST_PAUSE_S, None
        while True:
            try:
                answer = attempt()
                self._answered = True
                return answer
            except ReplayError as error:
                left = deadline - time.monotonic()
                if isinstance(error, UnavailableError | WaitTimeoutError):
                    settled = self._answered or error.retry_after_s is not None  # a server is there, and can be talked to
                    before, reason = reason, None if settled else mismatch(self.address, self._tls, str(error))
                    if reason is not None and reason == before:  # twice: a server that is ending may look like that, once
                        raise UnavailableError(reason) from error
                elif error.retry_after_s is None:
                    raise
                attempt = again or attempt
                if left <= 0 or self._closes != closes:
                    raise
                if error.retry_after_s is not None:  # it is there, and knows best
                    wait_s = error.retry_after_s * random.uniform(1.0, 2.0)
                else:
                    wait_s = pause_s * random.uniform(0.5, 1.0)  # jitter: many clients come back at once
                    pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
                self._pause(min(left, wait_s), closes)

    def _pause(self, seconds: float, closes: int) -> None:
        """Waits, but not beyond a `close`."""
        end = time.monotonic() + seconds
        while self._closes == closes and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _TICK_S))

    @property
    def closes(self) -> int:
        """Returns how often this connection was closed so far."""
        return self._closes

    def close(self) -> None:
        """Closes this process's channel; a later call makes a new one."""
        self.shared.close()
        if self._process == os.getpid():
            with self._lock:
                self._closes += 1
                self._channel.close()
                self._process = -1


def _pieces_of(data: bytes) -> Iterator[bytes]:
    """Yields the messages that a large request is sent as."""
    return (data[start : start + _PIECE_BYTES] for start in range(0, len(data), _PIECE_BYTES))


class translated:
    """Turns a gRPC error within a with statement into the error class that the server named.

    A ValueError there is gRPC's way to say that the channel was closed meanwhile.
    """

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, grpc.RpcError):
            raise error_of(error, self._address) from None  # all that a gRPC error tells is in it
        if isinstance(error, ValueError):
            raise UnavailableError(f"the connection to {self._address} was closed") from error


def error_of(error: Any, address: str) -> ReplayError:
    """Returns the error of this project that a gRPC error stands for."""
    code, sentence = error.code(), (error.details() or "").replace("%5B", "[").replace("%5D", "]")  # of peers: ipv6:[::1]:7777
    metadata = dict(error.trailing_metadata() or ())
    if ERROR_KEY in metadata:
        found = from_wire(str(metadata[ERROR_KEY]), sentence)
        wish = str(metadata.get(RETRY_KEY, ""))
        if wish.isdigit() and len(wish) < 10:
            found.retry_after_s = min(_LONGEST_WISH_S, int(wish) / 1000)
        return found
    if code is grpc.StatusCode.UNAVAILABLE and all(words in sentence for words in _NOT_BEGUN):
        busy = UnavailableError(f"the server at {address} takes no more calls of one connection at a time ({sentence})")
        busy.retry_after_s = _NOT_BEGUN_PAUSE_S
        return busy
    if code is grpc.StatusCode.UNAVAILABLE:
        return UnavailableError(f"no server answers at {address} ({sentence})")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return WaitTimeoutError(f"the server at {address} did not answer in time")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE in sentence:
        return InvalidRequestError(f"{address}: expected smaller messages; {sentence}")
    return _BY_STATUS.get(code, ReplayError)(f"{address}: {sentence or code}")
