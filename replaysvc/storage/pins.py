"""Readers inside of something that must now and then be closed: it waits for them, and they for it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Pins:
    """Counts who is inside. Thread-safe; within `alone`, the same thread must not ask for `held`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held = 0
        self._alone = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds off those who want to be alone; waits for one who is."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._held += 1
        try:
            yield
        finally:
            with self._changed:
                self._held -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lets nobody in, and waits until all who are inside have left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._alone)
            self._alone = True
            self._changed.wait_for(lambda: self._held == 0)
        try:
            yield
        finally:
            with self._changed:
                self._alone = False
                self._changed.notify_all()
