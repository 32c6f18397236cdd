"""The whole product as a plain object, without a network: a store and its tables in this process.

`Replay` and `EmbeddedTable` have the methods of the client's objects and pass the same tests. The doors (gRPC, admin)
call `Replay.engine` for the engine of a table.
"""

import logging
import os
import threading
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from replaysvc.checks import check_flag, check_name, check_number, check_path, check_text, shown
from replaysvc.config import StoreConfig, TableConfig
from replaysvc.embedded_sink import EmbeddedSink, Ticker
from replaysvc.embedded_table import NO_PICKLE, EmbeddedTable
from replaysvc.errors import (
    AlreadyExistsError,
    ChunkCorruptError,
    NotFoundError,
    ReplayError,
    SpecMismatchError,
    UnavailableError,
)
from replaysvc.jobs import Jobs
from replaysvc.keeper import Keepers
from replaysvc.spec import Signature
from replaysvc.storage import Snapshots, Store, System, TableStore
from replaysvc.table import Table, check_table
from replaysvc.table.actors import heard_last, newest_policy
from replaysvc.table.committer import Committer
from replaysvc.types import Params
from replaysvc.views import ActivityView, BacklogView, DiskView, ScrubView, SnapshotView

log = logging.getLogger(__name__)

_CLOSED = "the store is closed"


_open: "weakref.WeakSet[Replay]" = weakref.WeakSet()


def _disown_all() -> None:
    for replay in list(_open):
        replay.disown()


os.register_at_fork(after_in_child=_disown_all)


class Replay:
    """A store directory, opened by this process alone. Thread-safe; a context manager that closes.

    In a process that was forked off this one, every call raises UnavailableError, but for `close`, which does nothing.
    """

    def __init__(
        self, path: str | Path, config: StoreConfig | None = None, *, system: System | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:  # fmt: skip
        """Opens the store at `path`, or makes one in a directory that is absent or empty.

        `system` is the clock and the file system. `rng` makes the draws that have no seed of their own.

        Raises:
          StoreLockedError, FormatVersionError, StorageError: the directory cannot be used; nothing in it was touched.
        """
        path = check_path("path", path)
        if config is not None and not isinstance(config, StoreConfig):
            raise SpecMismatchError("config", "a StoreConfig", shown(config))
        self.config = config or StoreConfig()
        self._system, self._rng = system or System(), rng or np.random.default_rng()
        self.jobs = Jobs(self._system)
        self._process = os.getpid()
        self._changing = (
            threading.Lock()
        )  # held by whoever makes, deletes or copies; before `_lock`, which is not held for long
        self._lock = threading.Lock()
        self._store = Store(path, system=self._system, disk_reserve_bytes=self.config.disk_reserve_bytes)
        self._committer = Committer(self.config, monotonic=self._system.monotonic)
        self._ticker = Ticker()
        self._snapshots = None if self.config.snapshot_dir is None else Snapshots(Path(self.config.snapshot_dir).absolute())
        self._tables: dict[str, Table] = {}
        self._closed = False
        stores = self._store.tables()
        try:
            for _, store in sorted(stores.items()):
                self._take_table(store, self._shares(len(stores)))
            if self.config.snapshot_dir is not None:
                self._store.remove_unfinished_snapshots(self.config.snapshot_dir)
        except BaseException:  # else the directory would stay locked until this process ends
            self._committer.close()
            self._store.close()
            raise
        self._keepers = Keepers(  # last, since they look at all of it, at once
            self, lambda: list(self._store.tables().values()), self.jobs, self._system,
            state_interval_s=self.config.state_interval_s, scrub_bytes_per_s=self.config.scrub_bytes_per_s,
        )  # fmt: skip
        _open.add(self)

    def _take_table(self, store: TableStore, shares: tuple[int, int]) -> None:
        """Loads a table at the start. One that cannot be, for what it is itself, is set aside, so that the others go on."""
        try:
            self._tables[store.name] = self._load_table(store, shares)
        except (OSError, MemoryError):  # for what the machine is now
            raise
        except Exception as error:
            if isinstance(error, ReplayError) and not isinstance(error, ChunkCorruptError | SpecMismatchError):
                raise  # for the disk's sake, or since a later release made the table
            log.error("table %s: it cannot be loaded", store.name, exc_info=error)
            self._store.set_aside(store.name, f"it cannot be loaded ({error!r})")

    def _load_table(self, store: TableStore, shares: tuple[int, int]) -> Table:
        return Table(store, self._committer, shares, system=self._system, rng=self._rng.spawn(1)[0])

    def _shares(self, tables: int) -> tuple[int, int]:
        count = max(1, tables)
        return self.config.recent_cache_bytes // count, self.config.faulted_cache_bytes // count

    def create_table(
        self, name: str, signature: Signature, config: TableConfig | None = None, *, exist_ok: bool = False
    ) -> EmbeddedTable:
        """Makes a table; with `exist_ok`, returns the existing one, whose own configuration holds.

        Raises:
          AlreadyExistsError: the name is taken, or (with `exist_ok`) by a table of another signature.
        """
        check_name("table", name)
        if not isinstance(signature, Signature):
            raise SpecMismatchError("signature", "a Signature", type(signature).__name__)
        if config is not None and not isinstance(config, TableConfig):
            raise SpecMismatchError("config", "a TableConfig", type(config).__name__)
        exist_ok = check_flag("exist_ok", exist_ok)
        config = config or TableConfig()
        with self._changing:
            with self._lock:
                self._check_open()
                existing = self._tables.get(name)
            if existing is not None:
                if not exist_ok:
                    raise AlreadyExistsError(f"table {name} exists already")
                if existing.signature != signature:
                    raise AlreadyExistsError(f"table {name} exists with another signature: {existing.signature}")
                return EmbeddedTable(self, existing)
            check_table(signature, config)
            description = {"signature": signature.to_json(), "config": config.to_json()}
            store = self._store.create_table(name, description, segment_bytes=config.full_segment_bytes)
            shares = self._shares(len(self._tables) + 1)
            try:
                table = self._load_table(store, shares)
            except BaseException:  # no later start could load it either
                self._take_back(name)
                raise
            for other in self._tables.values():
                other.resize_cache(*shares)
            with self._lock:
                self._tables[name] = table
            return EmbeddedTable(self, table)

    def _take_back(self, name: str) -> None:
        try:
            self._store.delete_table(name)
        except ReplayError as error:
            log.error("table %s: it cannot be loaded, and could not be removed: %s", name, error)

    def table(self, name: str) -> EmbeddedTable:
        """Returns a table. Raises NotFoundError."""
        return EmbeddedTable(self, self.engine(check_text("table", name)))

    def engine(self, name: str, uuid: str = "") -> Table:
        """Returns the engine of a table, for the doors; with a `uuid`, only if the table has it. Raises NotFoundError."""
        with self._lock:
            self._check_open()
            if name not in self._tables:
                raise NotFoundError(f"table {shown(name)} does not exist; there are {sorted(self._tables)}")
            if uuid and uuid != self._tables[name].uuid:
                raise NotFoundError(f"table {name} was deleted and made anew; get it again with table({name!r})")
            return self._tables[name]

    def engines(self) -> dict[str, Table]:
        """Returns the engines of all tables by name; also while the store closes."""
        with self._lock:
            return dict(self._tables)

    def tables(self) -> list[str]:
        """Returns the names of all tables."""
        with self._lock:
            self._check_open()
            return sorted(self._tables)

    @property
    def fault(self) -> str:
        """Returns why a table takes no appends until the store is opened anew, "" if all do."""
        return next((store.fault for store in self._store.tables().values() if store.fault), "")

    def delete_table(self, name: str) -> None:
        """Deletes a table with all its data. What its writers hold is dropped, and their next calls raise NotFoundError.

        Raises:
          NotFoundError: no such table. StorageError: the disk; a table that could not be moved away is there as before.
        """
        self.engine(check_text("table", name))  # what is not there is no job
        with self.jobs.running("delete_table", name), self._changing:
            table = self.engine(name)

            def gone() -> None:
                with self._lock:
                    del self._tables[name]
                table.close(NotFoundError(f"table {name!r} was deleted"))

            # not beside a commit, which might put a segment into the directory of a new table of this name
            self._committer.run(lambda: self._store.delete_table(name, gone))
            for other in self._tables.values():
                other.resize_cache(*self._shares(len(self._tables)))

    def put_params(self, name: str, data: bytes, *, version: int) -> None:
        """Keeps a parameter set, durably, in place of the one of a smaller version.

        Raises:
          AlreadyExistsError: the stored version is as large or larger (putting the same again is fine).
        """
        check_name("params", name)
        version = check_number("version", version, 0, (1 << 63) - 1)
        if not isinstance(data, bytes):
            raise SpecMismatchError("data", "bytes", type(data).__name__)
        with self._changing:
            self._check_open()
            self._store.put_params(name, version, data)

    def get_params(self, name: str, *, newer_than: int = -1) -> Params | None:
        """Returns the parameter set `name` if its version is above `newer_than`, else None.

        Raises:
          NotFoundError: nothing was put under this name yet.
        """
        check_text("params", name)
        newer_than = check_number("newer_than", newer_than, -1, (1 << 63) - 1)
        with self._lock:
            self._check_open()
            version = self._store.params().get(name)
            if version is None:
                raise NotFoundError(f"params {shown(name)} do not exist")
            if version <= newer_than:
                return None
        found = self._store.get_params(name)  # replaced by a rename, so whole without the lock that every call needs
        if found is None:
            raise NotFoundError(f"params {shown(name)} do not exist")
        return Params(*found)

    def activity(self, table: str | None = None) -> ActivityView:
        """Returns who writes, to all tables or one: of the actors at most 1,000, those that were heard of last. Who samples is
        told apart by a service alone. The newest policy version is that of the parameter set "policy", or where there is none,
        the newest that an actor wrote with.

        Raises:
          NotFoundError: no such table.
        """
        engines = list(self.engines().values()) if table is None else [self.engine(check_text("table", table))]
        actors, written = heard_last({engine.name: engine.actors for engine in engines})
        return ActivityView(actors=actors, learners=(), newest_policy_version=newest_policy(self.params_versions(), [written]))

    def snapshot(self, path: str | Path) -> None:
        """Makes a complete copy of the store in a new directory, which can be opened as a store of its own.

        All that is durable is in it, with priorities, queues, limiter counts and the state of the generators. Appends wait
        meanwhile, sampling goes on. Most of the data are hard links where `path` is on the same file system: a process that has
        this store open cannot open the copy, too.

        Raises:
          StorageError: `path` holds something, or cannot be written. CapacityError: the disk is full; nothing is left behind.
        """
        path = check_path("path", path)
        self._check_open()
        with self.jobs.running("snapshot") as job, self._changing:
            self._check_open()
            tables = dict(self._tables)

            def task() -> None:
                self._store.snapshot(path, {name: table.whole_state() for name, table in tables.items()})

            job.message = str(path)
            self._committer.run(task)

    def snapshots(self) -> list[SnapshotView]:
        """Returns the finished snapshots in `snapshot_dir`, the newest first; none without one."""
        self._check_open()
        return [] if self._snapshots is None else self._snapshots.views()

    def disk(self) -> DiskView:
        """Returns what is free on the disk now, and what the store's files took within the last minute. Raises StorageError."""
        self._check_open()
        return self._store.disk()

    def backlog(self) -> BacklogView:
        """Returns what waits for a commit."""
        self._check_open()
        return self._committer.backlog

    def params_versions(self) -> dict[str, int]:
        """Returns the stored version of each parameter set, but for those that are known to be damaged."""
        self._check_open()
        return self._store.params_versions()

    @property
    def quarantined_tables(self) -> list[str]:
        """Returns the names of the tables that lie in quarantine, put there at this start or an earlier one."""
        return sorted(self._store.tables_in_quarantine)

    def scrub(self) -> ScrubView:
        """Returns how far the scrub is."""
        self._check_open()
        return self._keepers.scrub

    def start_scrub(self) -> int:
        """Begins a round of the scrub now, from the start; one under way is left. Returns the number of its job.

        It is as fast as `scrub_bytes_per_s` says; with 0, where no round begins by itself, it runs at 10 MiB/s.
        """
        self._check_open()
        return self._keepers.start_scrub()

    def close(self) -> None:
        """Makes durable what was appended, ends the writers, and closes the store. Closing twice is fine.

        Raises:
          ReplayError: what kept steps of a writer from being stored, if it was not told before; the store is closed even so.
        """
        if os.getpid() != self._process:
            return
        with self._changing, self._lock:
            if self._closed:
                return
            self._closed = True
        self._ticker.begin_close()
        for table in self._tables.values():
            table.end_waits()
        errors = self._ticker.close()
        self._keepers.close(_CLOSED)
        self._committer.run(lambda: None)  # so that what is saved is of the last commit
        self._keepers.save_states()
        self._committer.close()
        for table in self._tables.values():
            table.close(UnavailableError(_CLOSED))
        self._store.close()
        if errors:
            raise errors[0]

    def _check_open(self) -> None:
        self.check_process()
        if self._closed:
            raise UnavailableError(_CLOSED)

    def check_process(self) -> None:
        """Raises UnavailableError in a process that was forked off the one that opened the store."""
        if os.getpid() != self._process:
            raise UnavailableError(self._whose)

    def disown(self) -> None:
        """After a fork, in the child: ends all that belongs to the parent. Other threads, and the locks they held, are gone."""
        self._changing, self._lock, self.jobs = threading.Lock(), threading.Lock(), Jobs(self._system)
        self._ticker.disown(self._whose)

    @property
    def _whose(self) -> str:
        return f"this store is open in process {self._process} alone: serve it, and use replay_client.connect in others"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError(NO_PICKLE)

    def __enter__(self) -> "Replay":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except ReplayError as closing:
            if error is None:
                raise
            error.add_note(f"and the store could not store all: {closing}")  # what went wrong in the block comes first

    def make_sink(self, engine: Table, actor: str, epoch: int | None) -> EmbeddedSink:
        """Returns a sink that appends to `engine` as a new session."""
        return EmbeddedSink(engine, self._committer, self._ticker, actor, epoch)
