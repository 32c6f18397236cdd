"""Errors to gRPC statuses.

The error's class name travels in the trailing metadata, with the milliseconds after which to try again if the error says so;
its sentence as the status details. What is no error of ours is logged with the id of the request, and only that is told to the
client.
"""

import logging
from typing import Any, NoReturn

import grpc

from replaysvc.activity import REQUEST_KEY, new_request_id, request_id
from replaysvc.errors import LimitedError, NotReadyError, ReplayError, WaitTimeoutError

log = logging.getLogger(__name__)

ERROR_KEY = "replaysvc-error"
RETRY_KEY = "replaysvc-retry-after-ms"
_WAITS = (NotReadyError, LimitedError)
_FOR_DATA = ("Sample", "SampleLarge")  # calls that wait for data; of an append, a wait that ends is a commit that is late
_MAX_SENTENCE = 2000  # bytes; gRPC triples most of them, and drops trailing metadata of more than 8 KiB with all that they say


def code_of(error: Exception, context: Any) -> str:
    """Returns the name of the status with which `abort` ends a call."""
    if isinstance(error, ReplayError):
        return error.grpc_status
    code = context.code()
    return str(code.name) if code is not None else "CANCELLED" if isinstance(error, grpc.RpcError) else "INTERNAL"


def is_wait(error: Exception, method: str) -> bool:
    """Returns whether a call found nothing for it yet: no data, or a limiter that holds it back. Nothing is wrong then, and its
    caller comes again. Only the class tells: others share the codes."""
    return isinstance(error, _WAITS) or (isinstance(error, WaitTimeoutError) and method in _FOR_DATA)


def abort(error: Exception, context: Any) -> NoReturn:
    """Ends the call that is being handled with the status that stands for `error`."""
    if isinstance(error, ReplayError):
        metadata = [(REQUEST_KEY, request_id.get()), (ERROR_KEY, error.name)]
        if error.retry_after_s is not None:
            metadata.append((RETRY_KEY, str(max(0, round(1000 * error.retry_after_s)))))
        context.set_trailing_metadata(tuple(metadata))
        context.abort(grpc.StatusCode[error.grpc_status], _shortened(str(error)))
    if isinstance(error, grpc.RpcError) or context.code() is not None:  # the caller is gone, or was told already
        raise error
    number = request_id.get() or new_request_id()
    log.error("request %s failed", number, exc_info=error)
    context.set_trailing_metadata(((REQUEST_KEY, number), (ERROR_KEY, "StorageError")))
    context.abort(grpc.StatusCode.INTERNAL, f"internal error {number}; the server's log has the cause")
    raise error  # `abort` has raised


def _shortened(sentence: str) -> str:
    """Returns a sentence that fits: its beginning and its end, which say what was expected and what was found."""
    encoded, half = sentence.encode(errors="replace"), _MAX_SENTENCE // 2
    if len(encoded) > 2 * half:
        encoded = encoded[:half] + b" ... " + encoded[-half:]
    return encoded.decode(errors="ignore")
