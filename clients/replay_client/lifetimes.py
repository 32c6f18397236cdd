"""What becomes of senders, of chunks and of priorities, when they are closed, and when their process ends, or forks."""

import atexit
import contextlib
import logging
import multiprocessing.util
import os
import time
import weakref
from collections.abc import Iterable
from typing import Protocol

from replaysvc.errors import ReplayError
from replaysvc.writer import Writer

log = logging.getLogger(__name__)

_HANDOVER_S = 0.1  # for a writer whose part-filled chunk is just being sent, even where time is up
_EXIT_FLUSH_S = 5.0  # how long the interpreter's exit waits for what nobody flushed


class Owned(Protocol):
    """What belongs to the process that made it."""

    def begin_close(self) -> None:
        """Begins to store what it was given; does not wait."""

    def close(self, timeout_s: float) -> None:
        """Stores what it was given, for up to `timeout_s`, and ends."""

    def disown(self) -> None:
        """After a fork, in the child: ends what belongs to the parent."""


_owned: "weakref.WeakSet[Owned]" = weakref.WeakSet()


_watched = -1  # the process whose end by multiprocessing's own way is watched


def register(owned: Owned) -> None:
    """From now on closes `owned` at the exit of this process, and disowns it in a child of it."""
    global _watched
    _owned.add(owned)
    if _watched != os.getpid():
        _watched = os.getpid()
        if multiprocessing.parent_process() is not None:  # forked workers end without what atexit was told
            multiprocessing.util.Finalize(None, _close_all, exitpriority=0)


def close_together(owned: Iterable[Owned], timeout_s: float) -> list[ReplayError]:
    """Closes all of them for up to `timeout_s` in all: each stores while another is waited for. Returns what failed."""
    owned, deadline, errors = list(owned), time.monotonic() + timeout_s, []
    for one in owned:
        one.begin_close()
    for one in owned:
        try:
            one.close(max(0.0, deadline - time.monotonic()))
        except ReplayError as error:
            errors.append(error)
    return errors


def send_all(writers: Iterable[Writer]) -> None:
    """Sends what writers hold, as far as that needs no waiting; who waits for them later meets what failed again."""
    for writer in writers:
        with contextlib.suppress(ReplayError):
            writer.flush_due(at_once=True)


def finish_all(writers: Iterable[Writer], reason: str, deadline: float) -> ReplayError | None:
    """Ends writers for `reason` with all that they hold sent; returns why one could not send it."""
    failed: ReplayError | None = None
    for writer in writers:
        try:
            writer.finish(reason, max(_HANDOVER_S, deadline - time.monotonic()))
        except ReplayError as error:
            failed = failed or error
    return failed


def _disown_all() -> None:
    for owned in list(_owned):
        owned.disown()


os.register_at_fork(after_in_child=_disown_all)


@atexit.register
def _close_all() -> None:
    for error in close_together(_owned, _EXIT_FLUSH_S):
        log.error("at exit, not everything was stored: %s", error)
