"""Answers that many may ask for at once: made by one of them, and good for a moment. Ten browsers cost as much as one."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

from replaysvc.errors import WaitTimeoutError

Value = TypeVar("Value")
_MOST, _MOST_BYTES = 256, 32 << 20  # remembered; the oldest is forgotten first
_WAIT_S = 20.0  # for whoever makes it


class Cached:
    """Values by key, each made once in a while by whoever asks first; who asks meanwhile waits for it. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[float, Future[Any]]] = OrderedDict()
        self._bytes: dict[Hashable, int] = {}  # of those that are made, the oldest first

    def get(self, key: Hashable, make: Callable[[], Value], good_s: float = 1.0) -> Value:
        """Returns the value of `key`, at most `good_s` old, counted from when somebody began to make it.

        Raises:
          What `make` raises; whoever waited for it gets that, too, and the next one tries again.
          WaitTimeoutError: somebody else is at it, and does not get done.
        """
        with self._lock:
            made_at, value = self._values.get(key, (0.0, None))
            fresh = value is not None and (not value.done() or self._clock() - made_at < good_s)
            if not fresh:
                value = Future()
                self._values[key] = (self._clock(), value)
                self._values.move_to_end(key)
                self._bytes.pop(key, None)
                self._forget_surplus()
        assert value is not None
        if fresh:
            try:
                found: Value = value.result(_WAIT_S)
            except TimeoutError:
                raise WaitTimeoutError(f"this is being looked at, and took more than {_WAIT_S:g} s; come again") from None
            return found
        try:
            made = make()
        except BaseException as error:
            with self._lock:
                if self._values.get(key, (0.0, None))[1] is value:
                    del self._values[key]
            value.set_exception(error)
            raise
        value.set_result(made)
        with self._lock:
            if self._values.get(key, (0.0, None))[1] is value:
                self._bytes[key] = _size(made)
                self._forget_surplus()
        return made

    def _forget_surplus(self) -> None:
        while len(self._values) > _MOST:
            key, _ = self._values.popitem(last=False)
            self._bytes.pop(key, None)
        while sum(self._bytes.values()) > _MOST_BYTES:
            key = next(iter(self._bytes))  # made before all others
            del self._bytes[key], self._values[key]


def _size(value: object) -> int:
    """Returns the bytes of an answer; what is no answer is small."""
    if isinstance(value, tuple):
        return sum(_size(part) for part in value)
    return len(value) if isinstance(value, bytes) else 0
