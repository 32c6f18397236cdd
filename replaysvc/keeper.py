"""Threads that do something again and again while a store is open: save what it remembers, look for lost writers, scrub."""

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class Keeper:
    """Calls `work` every `period_s`, or after as many seconds as it returned, until it is closed."""

    def __init__(self, name: str, work: Callable[[], float | None], period_s: float) -> None:
        self._work, self._period_s = work, period_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"replaysvc-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; what it is doing just now is done."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s = self._period_s
        while not self._closing.wait(pause_s):
            wish_s = None
            try:
                wish_s = self._work()
            except Exception:  # nobody else does this work: it must be tried again
                log.exception("%s: failed, and goes on", self._thread.name)
            pause_s = self._period_s if wish_s is None else wish_s
