"""The real service in a process that ends at a chosen crash point, or whose clock jumps, or one of whose guards is off.

    python -m tests.torture.crash_server --data DIR --port N [--point NAME --visit K]

The process is killed by SIGKILL, from within, when it comes to the point for the K-th time.
"""

import argparse
import json
import logging
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from replaysvc.cli import run_service
from replaysvc.settings import load
from replaysvc.storage import CRASH_POINTS, System
from replaysvc.table import staging
from replaysvc.table.table import Table


class CrashingSystem(System):
    """Kills this process at the `visit`-th time that it comes to `point`, and counts how often it came to each.

    jump: a file with the seconds by which the clock that people read is wrong. known: a file of points, one a line; the process
    is killed at the first that is not among them, which is then.
    """

    def __init__(self, point: str = "", visit: int = 0, *, jump: Path | None = None, known: Path | None = None) -> None:
        self._point, self._visit, self._jump, self._known = point, visit, jump, known
        self._lock = threading.Lock()
        self.seen: Counter[str] = Counter()

    def crashpoint(self, name: str) -> None:
        assert name in CRASH_POINTS, name
        with self._lock:
            self.seen[name] += 1
            new = self._known is not None and name not in self._known.read_text().split()
            if new and self._known is not None:
                with self._known.open("a") as file:
                    file.write(f"{name}\n")
            if new or (name == self._point and self.seen[name] == self._visit):
                os.kill(os.getpid(), signal.SIGKILL)

    def time(self) -> float:
        return super().time() + (float(self._jump.read_text()) if self._jump is not None else 0.0)


def take_every_chunk_as_new() -> None:
    """Switches off the guard that lets a chunk be sent again: the harness must notice."""
    guarded = staging.stage

    def stage(staged: Any, request: Any, sessions: Any, open_episodes: Any, *rest: Any, **options: Any) -> None:
        """Stores what comes again under another session, as if nobody had seen it."""
        last = staged.sessions.get(request.session_id, sessions.get(request.session_id, -1))
        if request.sequences and request.sequences[0] <= last:
            request.session_id, request.sequences = os.urandom(16), range(len(request.chunks))
        guarded(staged, request, sessions, open_episodes, *rest, **options)

    staging.stage = stage


def acknowledge_before_the_commit() -> None:
    """Switches off the wait for the commit: the harness must notice."""

    def append(self: Any, session_id: bytes, actor: str, chunks: Sequence[tuple[int, bytes]], **options: Any) -> int:
        options = {name: value for name, value in options.items() if name != "timeout_s"}
        self.submit(session_id, actor, chunks, **options | {"urgent": False})
        return chunks[-1][0]

    Table.append = append  # type: ignore[method-assign]


_BROKEN = {"dedupe": take_every_chunk_as_new, "acknowledge": acknowledge_before_the_commit}


def serve(
    *, data: str, port: int, settings: dict[str, Any] | None = None, point: str = "", visit: int = 0, jump: str = "",
    known: str = "", visits: str = "", broken: str = "",
) -> None:  # fmt: skip
    """Serves the store at `data` until a signal, or until it comes to `point`.

    settings: more of them, by name. visits: a file that gets how often each point was seen, should the service end well.
    broken: a guard that is switched off. jump, known: see CrashingSystem.
    """
    if broken:
        _BROKEN[broken]()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    system = CrashingSystem(point, visit, jump=Path(jump) if jump else None, known=Path(known) if known else None)
    run_service(load({"data": Path(data), "port": port} | (settings or {}), None), system=system)
    if visits:
        Path(visits).write_text(json.dumps(system.seen))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--point", default="", choices=["", *CRASH_POINTS])
    parser.add_argument("--visit", type=int, default=1)
    options = parser.parse_args()
    serve(data=options.data, port=options.port, point=options.point, visit=options.visit)
