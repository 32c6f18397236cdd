"""The processes of a run on one machine: how they are started, watched and ended, and the service killed and started anew.

No process outlives whoever started it: each has its own process group, which is ended in every way out of here, and is told
by the kernel to end should its starter be killed.
"""

import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dqn.rundir import RunDirectory

START_TIMEOUT_S = 60.0  # for the service to listen
_STOP_TIMEOUT_S = 15.0  # for a process to end by itself, then it is killed
_POLL_S = 0.02
_LOG_LINES = 15  # shown of a process that failed

# The child asks to be terminated when its parent dies, then becomes the program that was asked for. A function run between
# fork and exec could do the same, but is unsafe in a process with threads.
_LAUNCH = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
# What nobody wants to find in a log: an exception, an error as `logging` writes it, or as gRPC's core does.
_COMPLAINT = re.compile(r"^Traceback \(most recent call last\)|^[-:,. \d]+ (ERROR|CRITICAL) |^[EF]\d{4} \d\d:\d\d")


@dataclass(frozen=True, slots=True)
class Child:
    """A process of a run, and the file that takes what it prints."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def last_lines(self) -> str:
        """Returns the end of what the process printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


class Children:
    """The processes of a run, in the order of their start. A context manager that ends all of them, the first one last."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._all: dict[str, Child] = {}

    def start(self, name: str, *arguments: str) -> Child:
        """Starts `python -m ARGUMENTS` in a process group of its own; one of this name before it must have ended."""
        log = self._logs / f"{name}.log"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), "-u", "-m", *arguments]
        with log.open("ab" if name in self._all else "wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment, process_group=0
            )
        self._all[name] = Child(name, process, log)
        return self._all[name]

    def failed(self) -> Child | None:
        """Returns a process that ended with an error, or a service that ended at all."""
        for place, child in enumerate(self._all.values()):
            if child.process.poll() not in ((None, 0) if place else (None,)):
                return child
        return None

    def __len__(self) -> int:
        return len(self._all)

    def complaints(self) -> Iterator[str]:
        """Yields the lines of all logs that tell of an exception or an error."""
        for child in self._all.values():
            for line in child.log.read_text(errors="replace").splitlines():
                if _COMPLAINT.match(line):
                    yield f"{child.log}: {line}"

    def end(self, *, keep: int = 0) -> None:
        """Ends all but the first `keep` processes: politely, then not."""
        ending = list(self._all.values())[keep:]
        for child in ending:
            _signal_group(child, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for child in ending:
            try:
                child.process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                _signal_group(child, signal.SIGKILL)
                child.process.wait()

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end(keep=1)  # the service goes on until the others have flushed
        finally:
            self.end()


class Service:
    """The service on a run's store, the first of its processes. Started again, it has the port that it had before.

    address: where it listens, or did before it was killed; "" before the first time. dashboard: its page.
    listening_since: by the monotonic clock; None while it starts. kills: how often it was killed here.
    outages_s: how long each of them kept it from listening.
    """

    def __init__(self, children: Children, run: RunDirectory) -> None:
        self._children, self._data = children, run.path / "replay"
        self._started_at, self._read_from = 0.0, 0
        self.address = self.dashboard = ""
        self.listening_since: float | None = None
        self.kills = 0
        self.outages_s: list[float] = []
        self._start()

    def _start(self) -> None:
        """Starts the process; `poll` sees when it listens."""
        self._started_at, self.listening_since = time.monotonic(), None
        ports = [found[0] if (found := re.findall(r"\d+(?=/?$)", where)) else "0" for where in (self.address, self.dashboard)]
        self._child = self._children.start(
            "service", "replaysvc", "serve", "--data", str(self._data), "--port", ports[0], "--admin-port", ports[1]
        )

    def kill(self) -> None:
        """Kills the process with SIGKILL, as a crash would end it, and starts it again at once."""
        _signal_group(self._child, signal.SIGKILL)
        self._child.process.wait()
        self.kills += 1
        self._read_from = self._child.log.stat().st_size
        self._start()

    def poll(self) -> bool:
        """Returns whether it listens."""
        if self.listening_since is None:
            with self._child.log.open("rb") as log:
                log.seek(self._read_from)
                printed = log.read().decode(errors="replace")
            if found := re.search(r"^listening on (\S+)\ndashboard on (\S+)$", printed, re.MULTILINE):
                self.address, self.dashboard, self.listening_since = found[1], found[2], time.monotonic()
                if self.kills:
                    self.outages_s.append(self.listening_since - self._started_at)
        return self.listening_since is not None and self._child.process.poll() is None

    @property
    def gone(self) -> bool:
        """Returns whether it ended by itself, or does not begin to listen."""
        late = self.listening_since is None and time.monotonic() - self._started_at > START_TIMEOUT_S
        return late or self._child.process.poll() is not None

    def await_listening(self, deadline: float = math.inf) -> bool:
        """Returns True as soon as it listens, False if it does not: it is gone, or the monotonic clock reached `deadline`."""
        while not self.poll():
            if self.gone or time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True


def start_learning(children: Children, run: RunDirectory, address: str) -> tuple[Child, Child]:
    """Starts actors, learner and evaluator of a run; returns learner and evaluator, which end by themselves."""
    learner = children.start("learner", "dqn.learner", "--address", address, "--resume", str(run.path))
    common = ("--address", address, "--run-dir", str(run.path))
    for i in range(run.config.actors):
        children.start(f"actor-{i}", "dqn.actor", *common, "--index", str(i))
    return learner, children.start("evaluator", "dqn.evaluator", *common)


def _signal_group(child: Child, number: signal.Signals) -> None:
    if child.process.poll() is None:  # not reaped yet, so its number cannot name another process
        os.killpg(child.process.pid, number)
