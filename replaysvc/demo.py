"""`replaysvc demo`: a service, two actors, a learner and an evaluator, each a process of its own, learn CartPole-v1.

This module watches them and shows how far they are; what they do, and how they are started and ended, is in `clients/dqn`.
On request it kills the service again and again, which none of the others may notice but by waiting, and checks afterwards
that what the actors wrote is there: all of it, once, and as they wrote it.
"""

import importlib.util
import os
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table as Grid

import replay_client
from dqn.config import Config
from dqn.processes import START_TIMEOUT_S, Child, Children, Service, start_learning
from dqn.rundir import Metrics, Outage, RunDirectory
from dqn.watch import Watch
from replay_client import ClientConfig, Replay
from replaysvc.errors import InvalidRequestError

if TYPE_CHECKING:
    from dqn.audit import Audit

_NEEDED = ("torch", "gymnasium", "safetensors", "lmdb", "fastapi")
_GIVE_UP_S = 2.0  # for an answer of the service: it is on this machine
_POLL_S = 0.25
_LINE_INTERVAL_S = 5.0  # between two lines where there is no terminal
_COMPLAINTS = 10  # shown of the errors in logs


def run_demo(
    *, directory: Path | None = None, seed: int = 1, sampler: str | None = None, n_step: int | None = None,
    kill_every_s: float | None = None, time_limit_s: float = 300.0, resume: bool = False, console: Console | None = None,
    **changes: Any,
) -> int:  # fmt: skip
    """Runs the demo to its end; returns 0 if the task was solved, 1 if not, or if something is missing or wrong after kills.

    `directory` is the run directory, kept afterwards; by default a new one under `runs`. `resume` goes on with the run in it.
    `sampler`, `n_step` and `changes` are those of a new run; None: those of `Config`. `kill_every_s`: the service is killed
    whenever it has listened for so long.
    """
    console = console or Console(highlight=False)
    if missing := [package for package in _NEEDED if importlib.util.find_spec(package) is None]:
        console.print(f"the demo needs {', '.join(missing)}: install replaysvc with the extras server, torch and gym")
        return 1
    given: dict[str, Any] = {name: value for name, value in (("sampler", sampler), ("n_step", n_step)) if value is not None}
    config = Config(seed=seed, **(given | changes))
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
            return _Demo(run, children, console, time_limit_s, kill_every_s).run()
    except KeyboardInterrupt:
        console.print(f"interrupted; run directory {path} is kept", markup=False, soft_wrap=True)
        return 1


class _Demo:
    """One pass of the demo over a run directory."""

    def __init__(
        self, run: RunDirectory, children: Children, console: Console, time_limit_s: float, kill_every_s: float | None
    ) -> None:
        self._run, self._children, self._console, self._kill_every_s = run, children, console, kill_every_s
        self._started_at = time.monotonic()
        self._deadline = self._started_at + time_limit_s
        self._service = Service(children, run)

    def run(self) -> int:
        """Starts, watches, ends, reports; returns the exit status."""
        if not self._service.await_listening(self._deadline):
            return self._fail()
        address = self._service.address
        self._print(f"service at {address}, dashboard at {self._service.dashboard}, run directory {self._run.path}")
        if self._kill_every_s is not None:
            self._print(f"the service is killed (SIGKILL) whenever it has listened for {self._kill_every_s:g} s")
        start_learning(self._children, self._run, address)
        with ExitStack() as stack:
            metrics = stack.enter_context(Metrics(self._run))
            replay = stack.enter_context(replay_client.connect(address, config=ClientConfig(reconnect_timeout_s=_GIVE_UP_S)))
            watch = Watch(replay, metrics, self._run.config)
            ended = self._watch(watch)
            failed = self._children.failed()
            listens = self._service.await_listening()  # else the others could not flush
            self._children.end(keep=1)  # now every step is stored
            watch.look()
            check = listens and self._kill_every_s is not None
            whole, found = self._check(replay, metrics) if check else (True, [])
        for line in [*watch.summary(), *found]:
            self._print(line)
        self._print(f"wall time {time.monotonic() - self._started_at:.1f} s ({ended})")
        self._print(f"run directory {self._run.path}; to look at what it stored:")
        self._print(f"  {_command()} serve --data {shlex.quote(str(self._run.path / 'replay'))} --port 0 --admin-port 8080")
        if not listens or (failed is not None and not watch.solved):
            return self._fail(failed)
        return 0 if watch.solved and whole else 1

    def _watch(self, watch: Watch) -> str:
        """Shows the progress until the run ends, and kills the service now and then; returns why it ended."""
        with ExitStack() as stack:
            live = None
            if self._console.is_terminal:
                live = stack.enter_context(Live(console=self._console, auto_refresh=False, transient=True))
            next_line_at = time.monotonic()
            while True:
                if self._service.poll():
                    watch.look()
                now = time.monotonic()
                if live is not None:
                    live.update(_grid(watch.figures() | self._about_service(now)), refresh=True)
                elif watch.stats is not None and now >= next_line_at:
                    figures = watch.figures() | ({"kills": str(self._service.kills)} if self._kill_every_s is not None else {})
                    self._print("  ".join(f"{name} {value}" for name, value in figures.items()))
                    next_line_at = now + _LINE_INTERVAL_S
                if watch.solved:
                    return "solved"
                if self._service.gone or self._children.failed() is not None:
                    return "a process failed"
                if now >= self._deadline:
                    return "out of time"
                self._kill_if_due(watch, now)
                time.sleep(_POLL_S)

    def _kill_if_due(self, watch: Watch, now: float) -> None:
        since = self._service.listening_since
        if self._kill_every_s is not None and since is not None and now - since >= self._kill_every_s:
            self._service.kill()
            watch.service_restarted()

    def _about_service(self, now: float) -> dict[str, str]:
        away = "" if self._service.listening_since is not None else " (starting again)"
        rows = {"service": self._service.address + away, "dashboard": self._service.dashboard}
        rows["time"] = f"{now - self._started_at:.0f} s"
        return rows | ({"kills": str(self._service.kills)} if self._kill_every_s is not None else {})

    def _check(self, replay: Replay, metrics: Metrics) -> tuple[bool, list[str]]:
        """Compares what is stored with what the actors wrote; returns whether all is well, and what is to be said of it."""
        from dqn.audit import audit  # which needs gymnasium and torch

        for seconds in self._service.outages_s:
            metrics.write(Outage(seconds=seconds))
        return verdict(audit(replay, metrics, self._run.config), self._service, self._children)

    def _fail(self, child: Child | None = None) -> int:
        child = child or self._children.failed()
        if child is None:
            self._print(f"the service did not listen within {START_TIMEOUT_S:g} s")
        else:
            self._print(f"{child.name} ended with status {child.process.poll()}; the end of {child.log}:\n{child.last_lines()}")
        return 1

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def verdict(found: "Audit", service: Service, children: Children) -> tuple[bool, list[str]]:
    """Returns whether a run with kills did no harm, and what is to be said of it: nothing is wrong, and no log has an error."""
    complaints = list(children.complaints())
    away = f", and listened again within {max(service.outages_s):.1f} s" if service.outages_s else ""
    lines = [f"the service was killed {service.kills} times{away}", *found.summary()]
    lines += [f"{len(complaints)} errors in the logs of {len(children)} processes", *complaints[:_COMPLAINTS]]
    return found.clean and not complaints, lines


def _command() -> str:
    """Returns the command line's program, as it can be typed from here."""
    found = Path(sys.executable).parent / "replaysvc"
    if shutil.which("replaysvc") or not found.exists():
        return "replaysvc"
    return shlex.quote(os.path.relpath(found))


def _grid(figures: dict[str, str]) -> Grid:
    grid = Grid(title="replaysvc demo", show_header=False)
    for name, value in figures.items():
        grid.add_row(name, value)
    return grid


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
