"""Threads that do something again and again while a store is open: save what it remembers, look for writers that are gone."""

import threading
from collections.abc import Callable


class Keeper:
    """Calls `work` every `period_s` until it is closed."""

    def __init__(self, name: str, work: Callable[[], None], period_s: float) -> None:
        self._work, self._period_s = work, period_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"replaysvc-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; what it is doing just now is done."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._period_s):
            self._work()
