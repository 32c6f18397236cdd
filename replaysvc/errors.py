"""Every error that crosses a door of the service, and the one mapping to gRPC and HTTP.

ReplayError
  InvalidRequestError        the caller's fault                  INVALID_ARGUMENT     400
    SpecMismatchError        field, expected, found
  NotFoundError              table, episode or parameters        NOT_FOUND            404
  AlreadyExistsError         exists with other content           ALREADY_EXISTS       409
  NotReadyError              too little data to draw from        FAILED_PRECONDITION  409
  ConfigurationError         the table is not made for this      FAILED_PRECONDITION  409
  WriterFencedError          lease ended, or a newer one writes  FAILED_PRECONDITION  409
  SequenceError              a writer session lost its place     ABORTED              409
  WaitTimeoutError           a wait ended at its deadline        DEADLINE_EXCEEDED    504
  CapacityError              disk, queue or message size full    RESOURCE_EXHAUSTED   507
    LimitedError             the limiter lets nobody insert now  RESOURCE_EXHAUSTED   507
  UnauthenticatedError       no token, or one that is not known  UNAUTHENTICATED      401
  PermissionDeniedError      the token's role may not do this    PERMISSION_DENIED    403
  UnavailableError           no server answers, or it shuts down UNAVAILABLE          503
  StorageError               our fault, or the disk's            INTERNAL             500
    ChunkCorruptError        key, reason                         DATA_LOSS            500
    StoreLockedError         another process has the store open  UNAVAILABLE          503
    FormatVersionError       found, supported                    UNIMPLEMENTED        501

A class maps to exactly one status; two leaves may share one, and then `name` tells them apart on the wire.
None derives from ValueError, so that argument parsing can never swallow a storage fault.
"""

from typing import ClassVar

_FOUND = 200  # characters of what was found that a sentence repeats


class ReplayError(Exception):
    """Base of all errors that this project raises on purpose."""

    grpc_status: ClassVar[str] = "UNKNOWN"
    http_status: ClassVar[int] = 500
    retry_after_s: float | None = None  # how long the server asks to wait before the next attempt; None: no wish

    @property
    def name(self) -> str:
        """Returns the word that names this error on the wire."""
        return type(self).__name__


class InvalidRequestError(ReplayError):
    """The request can never succeed as it is; nothing was changed."""

    grpc_status = "INVALID_ARGUMENT"
    http_status = 400


class SpecMismatchError(InvalidRequestError):
    """A value does not fit the signature: names the field, what was expected and what was found."""

    def __init__(self, field: str, expected: str, found: str) -> None:
        found = found if len(found) <= _FOUND else f"{found[: _FOUND - 3]}..."
        super().__init__(f"{field}: expected {expected}, found {found}")
        self.field = field
        self.expected = expected
        self.found = found

    def __reduce__(self) -> tuple[type["SpecMismatchError"], tuple[str, str, str]]:
        return (type(self), (self.field, self.expected, self.found))


class NotFoundError(ReplayError):
    """The named table, episode or parameter set does not exist."""

    grpc_status = "NOT_FOUND"
    http_status = 404


class AlreadyExistsError(ReplayError):
    """The name is taken by something with other content."""

    grpc_status = "ALREADY_EXISTS"
    http_status = 409


class NotReadyError(ReplayError):
    """Nothing legal to draw yet; the sentence says why and how far ("3,200 of 10,000 steps")."""

    grpc_status = "FAILED_PRECONDITION"
    http_status = 409


class ConfigurationError(ReplayError):
    """The table is not configured for this: priorities of a sampler that has none, say."""

    grpc_status = "FAILED_PRECONDITION"
    http_status = 409


class WriterFencedError(ReplayError):
    """A writer may not go on: its lease ended and its open episodes were closed, or a newer writer of its actor took over."""

    grpc_status = "FAILED_PRECONDITION"
    http_status = 409


class SequenceError(ReplayError):
    """A writer session sent a chunk out of order; the session must resume from `expected_sequence`."""

    grpc_status = "ABORTED"
    http_status = 409


class WaitTimeoutError(ReplayError):
    """A wait ended at its deadline; what was waited for may still happen."""

    grpc_status = "DEADLINE_EXCEEDED"
    http_status = 504


class CapacityError(ReplayError):
    """The disk, a queue or a message is full; try again later, or smaller."""

    grpc_status = "RESOURCE_EXHAUSTED"
    http_status = 507


class LimitedError(CapacityError):
    """The table's limiter holds insertion back until more was sampled; the sentence says how much."""

    grpc_status = "RESOURCE_EXHAUSTED"
    http_status = 507


class UnauthenticatedError(ReplayError):
    """The server asks who calls, and got no token or certificate, or one that it does not know."""

    grpc_status = "UNAUTHENTICATED"
    http_status = 401


class PermissionDeniedError(ReplayError):
    """Who calls is known, and may not do this; the sentence names the role that may."""

    grpc_status = "PERMISSION_DENIED"
    http_status = 403


class UnavailableError(ReplayError):
    """No server answers at the address, or it is shutting down, or this object was closed."""

    grpc_status = "UNAVAILABLE"
    http_status = 503


class StorageError(ReplayError):
    """The store failed; the server's log has the cause."""

    grpc_status = "INTERNAL"
    http_status = 500


class ChunkCorruptError(StorageError):
    """Bytes that fail a check: wrong magic, checksum, size or content."""

    grpc_status = "DATA_LOSS"
    http_status = 500


class StoreLockedError(StorageError):
    """Another process has the store open."""

    grpc_status = "UNAVAILABLE"
    http_status = 503


class FormatVersionError(StorageError):
    """The store was written in a format version that this release does not read."""

    grpc_status = "UNIMPLEMENTED"
    http_status = 501


def _tree(root: type[ReplayError]) -> list[type[ReplayError]]:
    found = [root]
    for child in root.__subclasses__():
        found.extend(_tree(child))
    return found


ERRORS: dict[str, type[ReplayError]] = {error.__name__: error for error in _tree(ReplayError)}
"""Class name -> class: the name travels on the wire, so that the client raises the same class."""


def from_wire(name: str, message: str) -> ReplayError:
    """Returns the error that `name` and its sentence stand for; an unknown name gives a plain ReplayError."""
    error = ERRORS.get(name, ReplayError)
    if error is SpecMismatchError:
        field, _, rest = message.partition(": expected ")
        expected, _, found = rest.rpartition(", found ")
        return SpecMismatchError(field, expected, found)
    return error(message)
