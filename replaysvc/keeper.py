"""The keeper: one thread that saves, now and then, what a store remembers besides its steps."""

import threading
from collections.abc import Callable

_PERIOD_S = 5.0  # chosen by hand: after a crash, priorities and counts are as old as this


class Keeper:
    """Calls `save` every few seconds until it is closed."""

    def __init__(self, save: Callable[[], None], period_s: float = _PERIOD_S) -> None:
        self._save, self._period_s = save, period_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replaysvc-keeper", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; what it is saving just now is saved."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._period_s):
            self._save()
