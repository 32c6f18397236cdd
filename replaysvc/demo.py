"""`replaysvc demo`: a service, two actors, a learner and an evaluator, each a process of its own, learn CartPole-v1.

This module starts the processes, watches them, shows how far they are and ends them; what they do is in `clients/dqn`.
No child outlives it: each has its own process group, which is ended in every way out of here, and is told by the kernel
to end should this process be killed.
"""

import importlib.util
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table as Grid

import replay_client
from dqn.config import Config
from dqn.rundir import Metrics, RunDirectory
from dqn.watch import Watch
from replay_client import ClientConfig
from replaysvc.errors import InvalidRequestError

_NEEDED = ("torch", "gymnasium", "safetensors", "lmdb")
_START_TIMEOUT_S = 60.0  # for the service to listen
_STOP_TIMEOUT_S = 15.0  # for a process to end by itself, then it is killed
_GIVE_UP_S = 2.0  # for an answer of the service: it is on this machine
_POLL_S = 0.25
_LINE_INTERVAL_S = 5.0  # between two lines where there is no terminal
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


@dataclass(frozen=True, slots=True)
class Child:
    """A process of the demo, and the file that takes what it prints."""

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def last_lines(self) -> str:
        """Returns the end of what the process printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:])


class Children:
    """The processes of the demo, in the order of their start. A context manager that ends all of them, the first one last."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._all: list[Child] = []

    def start(self, name: str, *arguments: str) -> Child:
        """Starts `python -m ARGUMENTS` in a process group of its own."""
        log = self._logs / f"{name}.log"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), "-u", "-m", *arguments]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment, process_group=0
            )
        self._all.append(Child(name, process, log))
        return self._all[-1]

    def failed(self) -> Child | None:
        """Returns a process that ended with an error, or a service that ended at all."""
        for child in self._all:
            if child.process.poll() not in ((None,) if child is self._all[0] else (None, 0)):
                return child
        return None

    def end(self, *, keep: int = 0) -> None:
        """Ends all but the first `keep` processes: politely, then not."""
        ending = self._all[keep:]
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


def start_service(children: Children, run: RunDirectory, deadline: float = math.inf) -> str | None:
    """Starts the service on the run's store; returns its address as soon as it listens, None if it does not."""
    service = children.start("service", "replaysvc", "serve", "--data", str(run.path / "replay"), "--port", "0")
    give_up_at = min(deadline, time.monotonic() + _START_TIMEOUT_S)
    while service.process.poll() is None and time.monotonic() < give_up_at:
        if found := re.search(r"^listening on (\S+)$", service.log.read_text(errors="replace"), re.MULTILINE):
            return found[1]
        time.sleep(0.02)
    return None


def start_learning(children: Children, run: RunDirectory, address: str) -> tuple[Child, Child]:
    """Starts actors, learner and evaluator of a run; returns learner and evaluator, which end by themselves."""
    learner = children.start("learner", "dqn.learner", "--address", address, "--resume", str(run.path))
    common = ("--address", address, "--run-dir", str(run.path))
    for i in range(run.config.actors):
        children.start(f"actor-{i}", "dqn.actor", *common, "--index", str(i))
    return learner, children.start("evaluator", "dqn.evaluator", *common)


def run_demo(
    *, directory: Path | None = None, seed: int = 1, sampler: str | None = None, n_step: int | None = None,
    time_limit_s: float = 300.0, resume: bool = False, console: Console | None = None,
) -> int:  # fmt: skip
    """Runs the demo to its end; returns 0 if the task was solved, 1 if not.

    `directory` is the run directory, kept afterwards; by default a new one under `runs`. `resume` goes on with the run in it.
    `sampler` and `n_step` are those of a new run; None: those of `Config`.
    """
    console = console or Console(highlight=False)
    if missing := [package for package in _NEEDED if importlib.util.find_spec(package) is None]:
        console.print(f"the demo needs {', '.join(missing)}: install replaysvc with the extras server, torch and gym")
        return 1
    given: dict[str, Any] = {name: value for name, value in (("sampler", sampler), ("n_step", n_step)) if value is not None}
    config = Config(seed=seed, **given)
    path = directory or Path("runs") / time.strftime(f"demo-%Y%m%d-%H%M%S-seed{seed}")
    try:
        run = RunDirectory(path) if resume else RunDirectory.create(path, config)
    except FileExistsError as error:
        raise InvalidRequestError(f"option --dir: {error}") from error
    except OSError as error:
        what = "a run to go on with" if resume else "a directory that can be made"
        raise InvalidRequestError(f"option --dir: expected {what}, found {path}: {error.strerror or error}") from error
    logs = path / "logs"
    logs.mkdir(exist_ok=True)
    try:
        with _sigterm_interrupts(), Children(logs) as children:
            return _Demo(run, children, console, time_limit_s).run()
    except KeyboardInterrupt:
        console.print(f"interrupted; run directory {path} is kept", markup=False, soft_wrap=True)
        return 1


class _Demo:
    """One pass of the demo over a run directory."""

    def __init__(self, run: RunDirectory, children: Children, console: Console, time_limit_s: float) -> None:
        self._run, self._children, self._console = run, children, console
        self._started_at = time.monotonic()
        self._deadline = self._started_at + time_limit_s

    def run(self) -> int:
        """Starts, watches, ends, reports; returns the exit status."""
        address = start_service(self._children, self._run, self._deadline)
        if address is None:
            return self._fail()
        self._print(f"service at {address}, run directory {self._run.path}")
        start_learning(self._children, self._run, address)
        with ExitStack() as stack:
            metrics = stack.enter_context(Metrics(self._run))
            replay = stack.enter_context(replay_client.connect(address, config=ClientConfig(reconnect_timeout_s=_GIVE_UP_S)))
            watch = Watch(replay, metrics, self._run.config)
            ended = self._watch(watch, address)
            failed = self._children.failed()
            self._children.end(keep=1)  # now every step is stored
            watch.look()
        for line in watch.summary():
            self._print(line)
        self._print(f"wall time {time.monotonic() - self._started_at:.1f} s ({ended})")
        self._print(f"run directory {self._run.path}")
        if failed is not None and not watch.solved:
            return self._fail(failed)
        return 0 if watch.solved else 1

    def _watch(self, watch: Watch, address: str) -> str:
        """Shows the progress until the run ends; returns why it did."""
        with ExitStack() as stack:
            live = None
            if self._console.is_terminal:
                live = stack.enter_context(Live(console=self._console, auto_refresh=False, transient=True))
            next_line_at = time.monotonic()
            while True:
                watch.look()
                now = time.monotonic()
                if live is not None:
                    elapsed = f"{now - self._started_at:.0f} s"
                    live.update(_grid(watch.figures() | {"service": address, "time": elapsed}), refresh=True)
                elif watch.stats is not None and now >= next_line_at:
                    self._print("  ".join(f"{name} {value}" for name, value in watch.figures().items()))
                    next_line_at = now + _LINE_INTERVAL_S
                if watch.solved:
                    return "solved"
                if self._children.failed() is not None:
                    return "a process failed"
                if now >= self._deadline:
                    return "out of time"
                time.sleep(_POLL_S)

    def _fail(self, child: Child | None = None) -> int:
        child = child or self._children.failed()
        if child is None:
            self._print(f"the service did not listen within {_START_TIMEOUT_S:g} s")
        else:
            self._print(f"{child.name} ended with status {child.process.poll()}; the end of {child.log}:\n{child.last_lines()}")
        return 1

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def _grid(figures: dict[str, str]) -> Grid:
    grid = Grid(title="replaysvc demo", show_header=False)
    for name, value in figures.items():
        grid.add_row(name, value)
    return grid


def _signal_group(child: Child, number: signal.Signals) -> None:
    if child.process.poll() is None:  # not reaped yet, so its number cannot name another process
        os.killpg(child.process.pid, number)


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Makes SIGTERM end the demo as Ctrl-C does. Only the main thread may change what signals do."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
