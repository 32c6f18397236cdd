"""Reflection: tools such as grpcurl ask the server what methods there are. Off unless it is asked for.

The library's servicer keeps a thread for as long as a caller keeps its stream open. Here it has threads of its own, a call may
take a few seconds, and there is always one thread that refuses those for whom there is no other.
"""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from replaysvc.activity import REQUEST_KEY, Activity, request_id
from replaysvc.errors import CapacityError
from replaysvc.rpc.admission import Watch
from replaysvc.rpc.status import abort, code_of

_SERVICE = "grpc.reflection.v1alpha.ServerReflection"
_NAME = "ServerReflectionInfo"
REFLECTION = f"/{_SERVICE}/{_NAME}"
"""The path of its method."""

_CALLS = 2  # at once
_CALL_S = 5.0  # tools ask all they want within a fraction of a second


class Reflection:
    """Tells of `services`, by their full names."""

    def __init__(self, services: Sequence[str], watch: Watch, activity: Activity) -> None:
        from grpc_reflection.v1alpha import reflection, reflection_pb2  # they ask for a newer protobuf than all else does

        self._watch, self._activity = watch, activity
        self._answers = reflection.ReflectionServicer((*services, _SERVICE)).ServerReflectionInfo
        self._places = threading.BoundedSemaphore(_CALLS)
        self._pool = ThreadPoolExecutor(_CALLS + 1, thread_name_prefix="replaysvc-reflection")

        def reflect(requests: Iterator[Any], context: Any) -> Iterator[Any]:
            yield from self._reflect(requests, context)

        reflect.experimental_thread_pool = self._pool  # type: ignore[attr-defined]
        method = grpc.stream_stream_rpc_method_handler(
            reflect, request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )  # fmt: skip
        self.handlers = grpc.method_handlers_generic_handler(_SERVICE, {_NAME: method})

    def close(self) -> None:
        """Ends the threads that have nothing to do; to be called when no more calls come."""
        self._pool.shutdown(wait=False)

    def _reflect(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        began_at, code, sent = self._activity.clock(), grpc.StatusCode.CANCELLED.name, 0
        context.set_trailing_metadata(((REQUEST_KEY, request_id.get()),))
        has_place, late = self._places.acquire(blocking=False), threading.Event()

        def end() -> None:
            late.set()  # its requests may look as if they had ended
            context.cancel()

        try:
            if not has_place:
                raise CapacityError(f"reflection: {_CALLS} others ask now; try again")
            with self._watch.limit(_CALL_S, end):
                for answer in self._answers(requests, context):
                    sent += answer.ByteSize()
                    yield answer
            if not late.is_set():
                code = grpc.StatusCode.OK.name
        except Exception as error:
            code = code_of(error, context)
            abort(error, context)
        finally:
            if has_place:
                self._places.release()
            self._activity.call(_NAME, code, self._activity.clock() - began_at, 0, sent)
