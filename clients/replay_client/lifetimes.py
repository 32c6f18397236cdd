"""What becomes of senders when their process ends, or forks."""

import atexit
import logging
import os
import weakref
from typing import Protocol

from replaysvc.errors import ReplayError

log = logging.getLogger(__name__)

_EXIT_FLUSH_S = 5.0  # how long the interpreter's exit waits for chunks that nobody flushed


class Owned(Protocol):
    """What belongs to the process that made it."""

    def close(self, timeout_s: float) -> None:
        """Stores what it was given, for up to `timeout_s`, and ends."""

    def disown(self) -> None:
        """After a fork, in the child: ends what belongs to the parent."""


_owned: "weakref.WeakSet[Owned]" = weakref.WeakSet()


def register(owned: Owned) -> None:
    """From now on closes `owned` at the exit of this process, and disowns it in a child of it."""
    _owned.add(owned)


def _disown_all() -> None:
    for owned in list(_owned):
        owned.disown()


os.register_at_fork(after_in_child=_disown_all)


@atexit.register
def _close_all() -> None:
    for owned in list(_owned):
        try:
            owned.close(_EXIT_FLUSH_S)
        except ReplayError as error:
            log.error("at exit, chunks were not stored: %s", error)
