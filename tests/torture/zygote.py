"""Processes that start at once: one process imports everything, and forks those that are asked for.

The process that forks has made no gRPC object, no thread and no store, so its children are as good as fresh ones. It also waits
for them, and none outlives it.
"""

import ctypes
import importlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_PDEATHSIG = 1  # of prctl
_PRELOAD = ("replaysvc.cli", "replay_client", "tests.torture.crash_server", "tests.torture.cast")
_START_S = 30.0


class Zygote:
    """Starts processes that run a function, `module:function`, with plain arguments. A context manager."""

    def __init__(self) -> None:
        paths = os.pathsep.join((str(_ROOT), str(_ROOT / "clients"), os.environ.get("PYTHONPATH", "")))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.torture.zygote"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT,
            env=os.environ | {"PYTHONPATH": paths},
        )  # fmt: skip

    def _ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, function: str, log: Path, **arguments: Any) -> int:
        """Starts a process whose output goes to the end of `log`; returns its id."""
        return int(self._ask(start=function, log=str(log), arguments=arguments))

    def poll(self, pid: int) -> int | None:
        """Returns the exit status of a process, negative for a signal; None while it runs. A process is asked for once only."""
        status: int | None = self._ask(poll=pid)
        return status

    def wait(self, pid: int, timeout_s: float = 120.0) -> int:
        """Waits for the end of a process; returns its exit status, negative for a signal."""
        deadline = time.monotonic() + timeout_s
        while (status := self.poll(pid)) is None:
            if time.monotonic() > deadline:
                raise AssertionError(f"process {pid} did not end within {timeout_s:g} s")
            time.sleep(0.002)
        return status

    def close(self) -> None:
        """Ends the process, and with it all that it started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> "Zygote":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def free_port() -> int:
    """Returns a port that is free, and not one that the system gives to clients: none takes it while the server is away."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Served:
    """A service on a store that is killed and started again on the same port."""

    def __init__(self, zygote: Zygote, data: Path, **arguments: Any) -> None:
        self._zygote, self.data, self.arguments = zygote, data, arguments
        self.port = free_port()
        self.log = data.parent / f"{data.name}.log"
        self.log.touch()
        self.pid = 0
        self.starts = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, **arguments: Any) -> int | None:
        """Starts it and returns None when it listens, or else the status with which it ended before."""
        assert not self.pid, "it runs already"
        size = self.log.stat().st_size
        self.starts += 1
        every = {"data": str(self.data), "port": self.port} | self.arguments | arguments
        pid = self._zygote.start("tests.torture.crash_server:serve", self.log, **every)
        deadline = time.monotonic() + _START_S
        while True:
            with self.log.open("rb") as log:
                log.seek(size)
                if b"listening on " in log.read():
                    self.pid = pid
                    return None
            if (status := self._zygote.poll(pid)) is not None:
                return status
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                raise AssertionError(f"the server does not listen after {_START_S:g} s: {self.tail()}")
            time.sleep(0.002)

    def restart(self) -> None:
        """Starts it; fails if it does not come to listen."""
        status = self.start()
        assert status is None, f"the server ended with status {status}: {self.tail()}"

    def tail(self) -> str:
        """Returns the end of its output."""
        return self.log.read_text(errors="replace")[-2000:]

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """Returns its exit status if it has ended, after which it may be started."""
        status = self._zygote.poll(self.pid)
        if status is not None:
            self.pid = 0
        return status

    def end(self, number: int = signal.SIGKILL) -> int:
        """Ends it by a signal; returns its exit status."""
        os.kill(self.pid, number)
        status = self._zygote.wait(self.pid)
        self.pid = 0
        return status


def _run(request: dict[str, Any]) -> int:
    """In a child: runs the function; returns the exit status."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(old, new)
    try:
        module, _, name = request["start"].partition(":")
        status: int | None = getattr(importlib.import_module(module), name)(**request["arguments"])
        return status or 0
    except Exception:
        traceback.print_exc()
        return 1


def _poll(pid: int) -> int | None:
    done, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def main() -> int:
    """Reads requests from standard input until it is closed; returns the exit status of this process, or of a child in it."""
    for name in _PRELOAD:
        importlib.import_module(name)
    started: set[int] = set()
    data = b""
    while piece := os.read(0, 1 << 16):
        data += piece
        while b"\n" in data:
            line, _, data = data.partition(b"\n")
            request = json.loads(line)
            if "start" in request:
                answer: int | None = os.fork()
                if answer == 0:
                    return _run(request)
                started.add(answer or 0)
            else:
                answer = _poll(request["poll"])
                if answer is not None:
                    started.discard(request["poll"])
            os.write(1, json.dumps(answer).encode() + b"\n")
    for pid in started:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
