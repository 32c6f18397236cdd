"""Which failures of an append a sender waits out, and which are the end of its session."""

from replaysvc.errors import (
    CapacityError,
    ChunkCorruptError,
    FormatVersionError,
    ReplayError,
    SequenceError,
    StorageError,
    UnavailableError,
    WaitTimeoutError,
)

_TRANSIENT = (UnavailableError, WaitTimeoutError, CapacityError, StorageError)  # a restart may cure the last, too
_PERMANENT = (ChunkCorruptError, FormatVersionError)  # which are StorageErrors, but what is refused once is refused again


def is_final(error: ReplayError) -> bool:
    """Returns whether the same chunks would be refused again and again."""
    return not isinstance(error, _TRANSIENT) or isinstance(error, _PERMANENT)


def told_apart(table: str, error: ReplayError) -> ReplayError:
    """Returns the error with what it means for whoever writes."""
    if not isinstance(error, SequenceError):
        return error
    meaning = "was deleted and made anew, or its store was put back to an earlier state; make a new writer"
    return SequenceError(f"table {table}: it {meaning} ({error})")
