"""Clocks around functions of the service, and the service in a process of its own with clocks in it."""

import importlib
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from replaysvc import StoreConfig
from replaysvc.replay import Replay
from replaysvc.rpc.server import Server

Places = Mapping[str, tuple[str, ...]]


class Clocks:
    """Seconds spent in each part since the last look. Clocks stay where they are put: this process ends with the script."""

    def __init__(self, parts: Places) -> None:
        """`parts`: where each is done, "module:name" of functions or methods."""
        self._spent: dict[str, float] = {}
        self._inner = threading.local()
        for part, places in parts.items():
            for place in places:
                self._put(part, place)

    def _put(self, part: str, place: str) -> None:
        module, _, name = place.partition(":")
        owner: Any = importlib.import_module(module)
        *owners, name = name.split(".")
        for each in owners:
            owner = getattr(owner, each)
        plain = getattr(owner, name)
        timed = self._timed(part, plain)
        setattr(owner, name, timed)
        for other in list(sys.modules.values()):  # those that imported it by name
            if getattr(other, "__name__", "").startswith(("replaysvc", "replay_client")) and vars(other).get(name) is plain:
                setattr(other, name, timed)

    def _timed(self, part: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            outer = getattr(self._inner, "seconds", 0.0)
            self._inner.seconds = 0.0
            began = time.perf_counter()
            try:
                return plain(*arguments, **options)
            finally:
                passed = time.perf_counter() - began
                self._spent[part] = self._spent.get(part, 0.0) + passed - self._inner.seconds
                self._inner.seconds = outer + passed

        return timed

    def take(self) -> dict[str, float]:
        """Returns what each part took since the last look. Seconds of inner parts count for these alone."""
        spent, self._spent = self._spent, {}
        return spent


def _serve(path: str, config: StoreConfig, parts: Places, pipe: Any) -> None:
    clocks = Clocks(parts)
    with Replay(path, config) as replay:
        server = Server(replay, "127.0.0.1:0")
        server.start()
        pipe.send(f"127.0.0.1:{server.port}")
        while pipe.recv():
            pipe.send(clocks.take())
        server.stop(5.0)


@contextmanager
def clocked_service(path: Path, config: StoreConfig, parts: Places) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    """Gives the address of a service, and what tells the seconds spent in its parts since that was last asked."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(str(path), config, parts, there))
    process.start()
    there.close()

    def take() -> dict[str, float]:
        here.send(True)
        return dict(here.recv())

    try:
        yield here.recv(), take
    finally:
        here.send(False)
        process.join(30)
