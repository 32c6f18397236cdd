"""Threads that do something again and again while a store is open: save what it remembers, look for lost writers, scrub."""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from replaysvc.errors import NotFoundError, ReplayError, UnavailableError
from replaysvc.jobs import Jobs
from replaysvc.storage import Scrub, System, TableStore
from replaysvc.table import Table
from replaysvc.views import ScrubView

log = logging.getLogger(__name__)

_LOOK_S = 0.25  # between two looks for writers that are gone
_STOOD_STILL_S = 2.0  # two looks that lie so far apart tell that this process was stopped


class Keeper:
    """Calls `work` every `period_s`, or after as many seconds as it returned, until it is closed."""

    def __init__(self, name: str, work: Callable[[], float | None], period_s: float) -> None:
        self._work, self._period_s = work, period_s
        self._woken, self._closing = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name=f"replaysvc-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; what it is doing just now is done."""
        self._closing = True
        self._woken.set()
        self._thread.join()

    def wake(self) -> None:
        """Has the work done now, or once more if it is being done."""
        self._woken.set()

    def _run(self) -> None:
        pause_s = self._period_s
        while True:
            self._woken.wait(pause_s)
            self._woken.clear()
            if self._closing:
                return
            wish_s = None
            try:
                wish_s = self._work()
            except Exception:  # nobody else does this work: it must be tried again
                log.exception("%s: failed, and goes on", self._thread.name)
            pause_s = self._period_s if wish_s is None else wish_s


class Tables(Protocol):
    """The tables of a store."""

    def engines(self) -> dict[str, Table]:
        """Returns the engines of all tables by name."""

    def engine(self, name: str) -> Table:
        """Returns the engine of a table. Raises NotFoundError."""


class Keepers:
    """The three threads of a store, which work from now on."""

    def __init__(
        self, tables: Tables, stores: Callable[[], list[TableStore]], jobs: Jobs, system: System,
        *, state_interval_s: float, scrub_bytes_per_s: float,
    ) -> None:  # fmt: skip
        self._tables, self._jobs, self._system = tables, jobs, system
        self._looked_at = system.monotonic()
        self._scrub = Scrub(stores, scrub_bytes_per_s, system, self._note_damage)
        self._scrubbing = Keeper("scrub", self._scrub.step, _LOOK_S)
        self._all = (
            Keeper("keeper", self.save_states, state_interval_s), Keeper("leases", self._check_leases, _LOOK_S), self._scrubbing
        )  # fmt: skip

    def save_states(self) -> None:
        """Saves what changed of what each table remembers besides its steps."""
        for name, table in self._tables.engines().items():
            try:
                table.save_state()
            except NotFoundError:  # deleted meanwhile
                log.debug("table %s: not there any more", name)
            except ReplayError as error:
                log.warning("table %s: its sampler state could not be saved: %s", name, error)

    def _check_leases(self) -> None:
        now = self._system.monotonic()
        stood_still, self._looked_at = now - self._looked_at - _LOOK_S, now
        for name, table in self._tables.engines().items():
            try:
                if stood_still > _STOOD_STILL_S:
                    table.excuse_leases(stood_still)
                table.end_lost()
            except (NotFoundError, UnavailableError):  # deleted, or closed, meanwhile
                log.debug("table %s: not there any more", name)
            except ReplayError as error:
                log.warning("table %s: episodes of writers that are gone could not be ended: %s", name, error)

    def _note_damage(self, table: str, chunk_id: int | None, reason: str) -> None:
        """Of the scrub: leaves a damaged chunk out of what is drawn, before anybody draws it."""
        if chunk_id is None:
            log.error("table %s: %s", table, reason)
            return
        try:
            self._tables.engine(table).note_damage(chunk_id, reason)
        except (NotFoundError, UnavailableError):  # deleted, or closed, meanwhile
            log.debug("table %s: not there any more", table)

    @property
    def scrub(self) -> ScrubView:
        """Returns how far the scrub is."""
        return self._scrub.view

    def start_scrub(self) -> int:
        """Begins a round of the scrub now; returns the number of the job, which ends with it."""
        job = self._jobs.begin("scrub")
        self._scrub.start(job)
        self._scrubbing.wake()
        return job.number

    def close(self, reason: str) -> None:
        """Ends the threads; what they do just now is done. A round of the scrub that was asked for fails, for `reason`."""
        for keeper in self._all:
            keeper.close()
        self._scrub.stop(reason)
