"""What stands around every method: a worker of its kind, the request read within bounds, the errors turned into statuses.

gRPC reads the request of a unary method before the method's code runs, however long that takes and however large it is. To its
server, therefore, each method takes a stream of bytes; on the wire that is the same. So a call first gets its place, then its
memory, and only then is read, for a limited time, and parsed on its own worker.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from replaysvc.activity import REQUEST_KEY, Activity, new_request_id, request_id, request_id_of
from replaysvc.config import MAX_MESSAGE_BYTES
from replaysvc.errors import InvalidRequestError, SpecMismatchError
from replaysvc.rpc.admission import Admission, Call, Kind, handled
from replaysvc.rpc.limits import MESSAGE_BYTES, REQUEST_COPIES, SENT_COPIES
from replaysvc.rpc.status import abort, code_of, is_wait
from replaysvc.rpc.wire import check_append

SIZE_KEY = "replaysvc-bytes"
"""Metadata of a call: the bytes of its request. Without it, room for the largest message is taken."""

_asked: ContextVar[bool] = ContextVar("asked", default=False)  # whether the caller has named its call

_OURS = "/replaysvc."
_HEALTH = "/grpc.health.v1.Health/Check"
_REQUEST_S, _CROWDED_REQUEST_S = 5.0, 1.0  # longest that a request may take to come, beside what its size asks for
_REQUEST_BYTES_PER_S, _CROWDED_BYTES_PER_S = 128 << 10, 1 << 20
_ANSWER_S, _ANSWER_BYTES_PER_S = 30.0, 512 << 10  # and an answer to leave


@dataclass(frozen=True, slots=True)
class Method:
    """How a method is admitted.

    kind: whose workers handle it. most_bytes: of its request. copies: how often the request is in memory at most, as it came
    and as a message; 0: it is small, and the worker's one message is all. check: looks at the bytes before they are parsed.
    """

    kind: Kind = Kind.CONTROL
    most_bytes: int = 64 << 10
    copies: int = 0
    check: Callable[[bytes], None] | None = None


_METHODS: Mapping[str, Method] = {
    "Append": Method(Kind.APPENDS, MAX_MESSAGE_BYTES, REQUEST_COPIES, check_append),
    "OpenSession": Method(most_bytes=1 << 20),
    "CreateTable": Method(most_bytes=MESSAGE_BYTES),
    "Sample": Method(Kind.SAMPLES, 256 << 10),
    "UpdatePriorities": Method(Kind.SAMPLES, 17 << 20, 3),  # and as arrays
    "SampleLarge": Method(Kind.TRANSFERS, 256 << 10),
    "DeleteEpisodes": Method(Kind.TRANSFERS, 10 << 20, 16),  # ids of a byte become numbers of eight, and Python's
    "ReadEpisode": Method(Kind.TRANSFERS),
    "SetCapacity": Method(Kind.TRANSFERS),
    "PutParams": Method(Kind.TRANSFERS, MESSAGE_BYTES),
    "GetParams": Method(Kind.TRANSFERS),
    "Snapshot": Method(Kind.TRANSFERS),
    "Compact": Method(Kind.TRANSFERS),
}
"""By name; what is not here is small and quick."""


class CallInterceptor(grpc.ServerInterceptor):
    """Admits calls, reads their requests, turns exceptions of handlers into statuses, and counts what came of all that."""

    def __init__(self, admission: Admission, activity: Activity) -> None:
        self._admission, self._activity = admission, activity
        self._pools = {
            Kind(kind): ThreadPoolExecutor(count, thread_name_prefix=f"replaysvc-{kind}")
            for kind, count in admission.limits.workers.items()
        }
        self._made: dict[str, Any] = {}

    def close(self) -> None:
        """Ends the workers that have nothing to do; to be called when no more calls come."""
        for pool in self._pools.values():
            pool.shutdown(wait=False)

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        method = details.method
        self._name(details.invocation_metadata)
        if (made := self._made.get(method)) is None:  # methods do not change while a server lives
            handler = continuation(details)
            if handler is None:
                self._activity.call(method, grpc.StatusCode.UNIMPLEMENTED.name, 0.0, 0, 0)
                return None
            if not method.startswith(_OURS) and method != _HEALTH:
                return handler
            if handler.request_streaming and handler.response_streaming:
                return handler
            made = self._made[method] = self._around(handler, method.rpartition("/")[2])
        return made

    def _name(self, metadata: Any) -> None:
        """Names a call. The name goes back with its answer if the caller gave one, or if it fails: else nobody would ask for
        it, and each answer would take a hundredth longer."""
        for key, asked in metadata or ():
            if key == REQUEST_KEY:
                _asked.set(True)
                request_id.set(request_id_of(asked))
                return
        request_id.set(new_request_id())

    def _around(self, handler: Any, name: str) -> Any:
        method, ok = _METHODS.get(name, Method()), grpc.StatusCode.OK.name
        activity, clock = self._activity, self._activity.clock
        parse: Callable[[bytes], Any] = handler.request_deserializer
        if handler.request_streaming:
            behaviour, take = handler.stream_unary, self._messages
        else:
            behaviour, take = handler.unary_stream or handler.unary_unary, self._message
        admission, kind = self._admission, method.kind
        workers = admission.workers[kind]

        @contextlib.contextmanager
        def admitted(context: Any) -> Iterator[Call]:
            call = Call(admission, context)
            call.began_at = clock()
            if _asked.get():
                context.set_trailing_metadata(((REQUEST_KEY, request_id.get()),))
            try:
                workers.take(call.peer, 1)
                try:
                    call.hold_answer(0)
                    with handled(call):
                        yield call
                finally:
                    workers.give(call.peer, 1)
                    call.hold_request(0)
            except GeneratorExit:  # who asked does not want the rest
                activity.call(name, grpc.StatusCode.CANCELLED.name, clock() - call.began_at, call.received, call.sent)
                raise
            except Exception as error:
                call.close()
                code, seconds, wait = code_of(error, context), clock() - call.began_at, is_wait(error, name)
                activity.call(name, code, seconds, call.received, call.sent, wait=wait)
                abort(error, context)

        def unary(requests: Iterator[bytes], context: Any) -> Any:
            with admitted(context) as call:
                response = behaviour(take(requests, context, call, method, parse), context)
                size = len(response) if isinstance(response, bytes) else response.ByteSize()
                call.hold_answer(SENT_COPIES * size)
                done_at = clock()

                def left() -> None:
                    activity.call(name, ok, done_at - call.began_at, call.received, size, clock() - done_at)

                call.watch_answer(_ANSWER_S + size / _ANSWER_BYTES_PER_S, left)
                return response

        def streamed(requests: Iterator[bytes], context: Any) -> Iterator[Any]:
            with admitted(context) as call, contextlib.closing(call):
                leaving_s = 0.0
                for response in behaviour(take(requests, context, call, method, parse), context):
                    size = len(response) if isinstance(response, bytes) else response.ByteSize()
                    call.sent += size
                    leaves_at = clock()
                    with admission.watch.limit(_ANSWER_S + size / _ANSWER_BYTES_PER_S, context.cancel):
                        yield response
                    leaving_s += clock() - leaves_at
                activity.call(name, ok, clock() - call.began_at - leaving_s, call.received, call.sent, leaving_s)

        if handler.response_streaming:
            streamed.experimental_thread_pool = self._pools[kind]  # type: ignore[attr-defined]
            return grpc.stream_stream_rpc_method_handler(streamed, response_serializer=handler.response_serializer)
        unary.experimental_thread_pool = self._pools[kind]  # type: ignore[attr-defined]
        return grpc.stream_unary_rpc_method_handler(unary, response_serializer=handler.response_serializer)

    def _message(
        self, requests: Iterator[bytes], context: Any, call: Call, method: Method, parse: Callable[[bytes], Any]
    ) -> Any:
        """Returns the one request of a call."""
        return _parsed(self._read(requests, context, call, method), method, parse)

    def _messages(
        self, requests: Iterator[bytes], context: Any, call: Call, method: Method, parse: Callable[[bytes], Any]
    ) -> Iterator[Any]:
        """Yields the requests of a call that streams them."""
        while (data := self._next(requests, context, method, MESSAGE_BYTES)) is not None:
            call.received += len(data)
            yield _parsed(data, method, parse)

    def _read(self, requests: Iterator[bytes], context: Any, call: Call, method: Method) -> bytes:
        """Returns the bytes of a request, which may come as several messages; what they take is held before they are read."""
        stated = _stated_size(context)
        most = method.most_bytes if stated is None else stated
        if most > method.most_bytes:
            raise SpecMismatchError("request", f"at most {method.most_bytes} bytes", str(most))
        pieces: list[bytes] = []
        size = 0
        while True:
            call.hold_request(method.copies * (size + MESSAGE_BYTES if stated is None else stated))
            piece = self._next(requests, context, method, most - size)
            if piece is None:
                break
            pieces.append(piece)
            size += len(piece)
            call.received = size
            if size > most:
                break
            if not method.copies or size == stated:
                break
        if not pieces:
            raise SpecMismatchError("request", "a message", "none")
        if stated is not None and size != stated:
            raise SpecMismatchError("request", f"{stated} bytes, as {SIZE_KEY} says", f"{size}{' or more' * (size > most)}")
        if size > most:
            raise SpecMismatchError("request", f"at most {most} bytes", f"{size} or more")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _next(self, requests: Iterator[bytes], context: Any, method: Method, size: int) -> bytes | None:
        """Returns the next message of a call, None when there is no more. Who lets it wait too long is cut off."""
        size = min(size, MESSAGE_BYTES)
        if self._admission.workers[method.kind].crowded:
            seconds = _CROWDED_REQUEST_S + size / _CROWDED_BYTES_PER_S
        else:
            seconds = _REQUEST_S + size / _REQUEST_BYTES_PER_S
        with self._admission.watch.limit(seconds, context.cancel):
            return next(requests, None)


def _stated_size(context: Any) -> int | None:
    """Returns the size that a call says its request has. Raises SpecMismatchError."""
    for key, value in context.invocation_metadata() or ():
        if key == SIZE_KEY:
            if not (isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 12):
                raise SpecMismatchError(SIZE_KEY, "a number of bytes", repr(value)[:40])
            return int(value)
    return None


def _parsed(data: bytes, method: Method, parse: Callable[[bytes], Any]) -> Any:
    """Returns the message in `data`. Raises InvalidRequestError."""
    if method.check is not None:
        method.check(data)
    try:
        return parse(data)
    except DecodeError as error:
        raise InvalidRequestError(f"request: expected a protobuf message, found {len(data)} bytes that are none") from error
