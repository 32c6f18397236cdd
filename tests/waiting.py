"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Returns as soon as `condition()` is true. Fails if it does not come true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)
