"""The keeper: one thread that saves, now and then, what a store remembers besides its steps."""

import threading
from collections.abc import Callable


class Keeper:
    """Calls `save` every `period_s` until it is closed."""

    def __init__(self, save: Callable[[], None], period_s: float) -> None:
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
