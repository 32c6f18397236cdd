"""The process that examines segments (`examine`): started when it is needed, and again when a segment has ended it."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from replaysvc.errors import StorageError
from replaysvc.maintenance.examine import READY, Examined

_SLOWEST_BYTES_PER_S = 1 << 20  # a process that examines a segment slower than this hangs
_STARTING_S = 120.0


class Examiner:
    """Examines segments one by one, in a process of its own. A context manager that ends the process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Examiner":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._end()

    def examine(self, segment: Path, *, table: str | None, signature: dict[str, Any] | None) -> Examined:
        """Examines a segment; if that ends the process, again without LMDB. `table`: the uuid that it must name.

        Raises:
          StorageError: no process can be started, which says nothing of the segment.
        """
        ended = ""
        for engine in (True, False):
            question = {"segment": str(segment), "table": table, "signature": signature, "engine": engine}
            try:
                found = self._ask(question, _size(segment / "data.mdb"))
                found.damage[:0] = [ended] if ended else []
                return found
            except (OSError, ValueError):
                ended = self._end()
        return Examined([ended])

    def _ask(self, question: dict[str, Any], size: int) -> Examined:
        process = self._process = self._process or _start()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(_STARTING_S + size / _SLOWEST_BYTES_PER_S, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            return Examined.read(process.stdout)
        finally:
            timer.cancel()

    def _end(self) -> str:
        """Waits for the process, which has ended or is about to; returns how it ended, in words."""
        process, self._process = self._process, None
        assert process is not None
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:  # what was not written to it is of no use any more
                    continue
        status = process.wait()
        if status == -signal.SIGKILL:
            return "reading it takes for ever, or too much memory (SIGKILL)"
        return f"reading it ends the process ({signal.Signals(-status).name if status < 0 else f'status {status}'})"


def _start() -> "subprocess.Popen[bytes]":
    """Starts a process and waits until it is ready. Raises StorageError: a segment must not be blamed for what fails here."""
    root = str(Path(__file__).parents[2])  # where this very package lies, installed or not
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "replaysvc.maintenance.examine"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=os.environ | {"PYTHONPATH": path},
        )  # fmt: skip
    except OSError as error:
        raise StorageError(f"segments cannot be examined: no process can be started for that: {error}") from error
    assert process.stdout is not None
    timer = threading.Timer(_STARTING_S, process.kill)
    timer.start()
    try:
        if process.stdout.readline() == READY:
            return process
    finally:
        timer.cancel()
    process.kill()
    process.communicate()
    raise StorageError(f"segments cannot be examined: the process for that does not start ({sys.executable} ends at once)")


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
