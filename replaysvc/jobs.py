"""Long pieces of work on a store, while they run and some time after: what they are, who asked for them, what came of them."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from replaysvc.errors import ReplayError
from replaysvc.storage import System
from replaysvc.views import JobView

KEPT = 100
"""So many jobs are remembered. Those that run stay, however many; of the others, the oldest go first."""

asked_by: ContextVar[str] = ContextVar("asked_by", default="")
"""Who asks for what is done in this context: the name of a caller that a door knows, "" for the program itself."""


class Job:
    """One piece of work. Whoever does it may set `message` to what came of it, and tell how far it is."""

    def __init__(self, number: int, kind: str, table: str, who: str, system: System) -> None:
        self.number, self.message = number, ""
        self._kind, self._table, self._who, self._system = kind, table, who, system
        self._state = "running"
        self._started_at_s, self._began, self._seconds = system.time(), system.monotonic(), 0.0
        self._done = self._whole = 0

    @property
    def running(self) -> bool:
        """Returns whether it has not ended yet."""
        return self._state == "running"

    def progress(self, done: int, whole: int) -> None:
        """Of `whole`, `done` is done, in whatever unit; whole 0: nobody knows."""
        self._done, self._whole = done, whole

    def finish(self, message: str = "") -> None:
        """It has ended well; a message takes the place of the one that was set."""
        self._end("done", message or self.message)

    def fail(self, reason: str) -> None:
        """It has failed, and why: a sentence."""
        self._end("failed", reason)

    def _end(self, state: str, message: str) -> None:
        self._seconds = self._system.monotonic() - self._began
        self.message, self._state = message, state

    def view(self) -> JobView:
        """Returns how it is now."""
        return JobView(
            number=self.number, kind=self._kind, table=self._table, who=self._who, state=self._state,
            started_at_s=self._started_at_s, done=self._done, whole=self._whole, message=self.message,
            seconds=self._system.monotonic() - self._began if self.running else self._seconds,
        )  # fmt: skip


class Jobs:
    """The jobs of one store, numbered from 1 on since it was opened. Thread-safe."""

    def __init__(self, system: System) -> None:
        """`system` is the clock."""
        self._system = system
        self._numbers = itertools.count(1)
        self._jobs: list[Job] = []  # oldest first
        self._lock = threading.Lock()

    def begin(self, kind: str, table: str = "", who: str = "") -> Job:
        """Notes a job that runs until its `finish` or `fail` is called. who: "" is whoever asks in this context."""
        with self._lock:
            job = Job(next(self._numbers), kind, table, who or asked_by.get(), self._system)
            self._jobs.append(job)
            surplus = len(self._jobs) - KEPT
            if surplus > 0:
                gone = set(itertools.islice((old.number for old in self._jobs if not old.running), surplus))
                self._jobs = [old for old in self._jobs if old.number not in gone]
        return job

    @contextmanager
    def running(self, kind: str, table: str = "", who: str = "") -> Iterator[Job]:
        """Notes a job that runs as long as this context does. What is raised within is its failure, and is raised on."""
        job = self.begin(kind, table, who)
        try:
            yield job
        except BaseException as error:
            job.fail(str(error) if isinstance(error, ReplayError) else f"{type(error).__name__}: {error}")
            raise
        job.finish()

    def views(self) -> list[JobView]:
        """Returns the jobs, the newest first."""
        with self._lock:
            jobs = list(self._jobs)
        return [job.view() for job in reversed(jobs)]
