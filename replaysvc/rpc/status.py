"""Errors to gRPC statuses: one interceptor around every method of ours, response iterators included.

The error's class name travels in the trailing metadata, its sentence as the status details. What is no error of ours is
logged with a number, and only the number is told to the client.
"""

import logging
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from replaysvc.errors import ReplayError

log = logging.getLogger(__name__)

ERROR_KEY = "replaysvc-error"
_MAX_SENTENCE = 2000  # bytes; gRPC triples most of them, and drops trailing metadata of more than 8 KiB with all that they say


class ErrorInterceptor(grpc.ServerInterceptor):
    """Turns exceptions of handlers into statuses. The methods of other services (health) stay as they are."""

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = continuation(details)
        if handler is None or not details.method.startswith("/replaysvc."):
            return handler
        if handler.request_streaming:
            behaviour, make = handler.stream_unary, grpc.stream_unary_rpc_method_handler
        elif handler.response_streaming:
            behaviour, make = handler.unary_stream, grpc.unary_stream_rpc_method_handler
        else:
            behaviour, make = handler.unary_unary, grpc.unary_unary_rpc_method_handler
        if behaviour is None:  # streaming both ways, which this service has none of
            return handler
        wrapped = _wrap_stream(behaviour) if handler.response_streaming else _wrap(behaviour)
        return make(wrapped, request_deserializer=handler.request_deserializer, response_serializer=handler.response_serializer)


def _wrap(behaviour: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def call(request: Any, context: Any) -> Any:
        try:
            return behaviour(request, context)
        except Exception as error:
            _abort(error, context)

    return call


def _wrap_stream(behaviour: Callable[[Any, Any], Iterator[Any]]) -> Callable[[Any, Any], Iterator[Any]]:
    def call(request: Any, context: Any) -> Iterator[Any]:
        try:
            yield from behaviour(request, context)
        except Exception as error:
            _abort(error, context)

    return call


def _abort(error: Exception, context: Any) -> None:
    if isinstance(error, ReplayError):
        context.set_trailing_metadata(((ERROR_KEY, error.name),))
        context.abort(grpc.StatusCode[error.grpc_status], _shortened(str(error)))
    if isinstance(error, grpc.RpcError) or context.code() is not None:  # the caller is gone, or was told already
        raise error
    number = uuid.uuid4().hex[:12]
    log.error("request %s failed", number, exc_info=error)
    context.set_trailing_metadata(((ERROR_KEY, "StorageError"),))
    context.abort(grpc.StatusCode.INTERNAL, f"internal error {number}; the server's log has the cause")


def _shortened(sentence: str) -> str:
    """Returns a sentence that fits: its beginning and its end, which say what was expected and what was found."""
    encoded, half = sentence.encode(errors="replace"), _MAX_SENTENCE // 2
    if len(encoded) > 2 * half:
        encoded = encoded[:half] + b" ... " + encoded[-half:]
    return encoded.decode(errors="ignore")
