"""The whole product as a plain object, without a network: a store and its tables in this process.

`Replay` and `EmbeddedTable` have the methods of the client's objects and pass the same tests. The doors (gRPC, admin)
call `Replay.engine` for the engine of a table.
"""

import itertools
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from replaysvc.batch import assemble, episode_columns
from replaysvc.checks import check_actor, check_epoch_number, check_name, check_number
from replaysvc.codec import ChunkDecoder
from replaysvc.config import StoreConfig, TableConfig
from replaysvc.embedded_sink import EmbeddedSink, Ticker
from replaysvc.errors import AlreadyExistsError, NotFoundError, ReplayError, SpecMismatchError, UnavailableError
from replaysvc.keeper import Keeper
from replaysvc.options import Limiter
from replaysvc.requests import Transitions, Window
from replaysvc.spec import Signature
from replaysvc.storage import Scrub, Store, System, TableStore
from replaysvc.table import Table, check_table
from replaysvc.table.committer import Committer
from replaysvc.types import Batch, EpisodeRecord, Params, TableStats, UpdateCounts
from replaysvc.writer import DEFAULT_LIMIT_TIMEOUT_S, Writer

log = logging.getLogger(__name__)

_LOOK_S = 0.25  # between two looks for writers that are gone
_STOOD_STILL_S = 2.0  # two looks that lie so far apart tell that this process was stopped


class Replay:
    """A store directory, opened by this process alone. Thread-safe; a context manager that closes."""

    def __init__(
        self, path: str | Path, config: StoreConfig | None = None, *, system: System | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:  # fmt: skip
        """Opens the store at `path`, or makes one in a directory that is absent or empty.

        `system` is the clock and the file system. `rng` makes the draws that have no seed of their own.

        Raises:
          StoreLockedError, FormatVersionError, StorageError: the directory cannot be used; nothing in it was touched.
        """
        self.config = config or StoreConfig()
        self._system, self._rng = system or System(), rng or np.random.default_rng()
        self._changing = (
            threading.Lock()
        )  # held by whoever makes, deletes or copies; before `_lock`, which is not held for long
        self._lock = threading.Lock()
        self._store = Store(path, system=self._system, disk_reserve_bytes=self.config.disk_reserve_bytes)
        self._committer = Committer(self.config, monotonic=self._system.monotonic)
        self._ticker = Ticker()
        self._looked_at = self._system.monotonic()
        self._scrub = Scrub(
            lambda: list(self._store.tables().values()), self.config.scrub_bytes_per_s, self._system, self._note_damage
        )
        self._tables: dict[str, Table] = {}
        self._closed = False
        stores = self._store.tables()
        try:
            for name, store in sorted(stores.items()):
                self._tables[name] = self._load_table(store, self._shares(len(stores)))
        except BaseException:  # else the directory would stay locked until this process ends
            self._committer.close()
            self._store.close()
            raise
        self._keepers = (  # last, since they look at all of it, at once
            Keeper("keeper", self._save_states, self.config.state_interval_s), Keeper("leases", self._check_leases, _LOOK_S),
            Keeper("scrub", self._scrub.step, _LOOK_S),
        )  # fmt: skip

    def _load_table(self, store: TableStore, shares: tuple[int, int]) -> Table:
        return Table(store, self._committer, shares, system=self._system, rng=self._rng.spawn(1)[0])

    def _shares(self, tables: int) -> tuple[int, int]:
        count = max(1, tables)
        return self.config.recent_cache_bytes // count, self.config.faulted_cache_bytes // count

    def create_table(
        self, name: str, signature: Signature, config: TableConfig | None = None, *, exist_ok: bool = False
    ) -> "EmbeddedTable":
        """Makes a table; with `exist_ok`, returns the existing one, whose own configuration holds.

        Raises:
          AlreadyExistsError: the name is taken, or (with `exist_ok`) by a table of another signature.
        """
        check_name("table", name)
        if not isinstance(signature, Signature):
            raise SpecMismatchError("signature", "a Signature", type(signature).__name__)
        if config is not None and not isinstance(config, TableConfig):
            raise SpecMismatchError("config", "a TableConfig", type(config).__name__)
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
            for other in self._tables.values():
                other.resize_cache(*shares)
            table = self._load_table(store, shares)
            with self._lock:
                self._tables[name] = table
            return EmbeddedTable(self, table)

    def table(self, name: str) -> "EmbeddedTable":
        """Returns a table. Raises NotFoundError."""
        return EmbeddedTable(self, self.engine(name))

    def engine(self, name: str) -> Table:
        """Returns the engine of a table, for the doors. Raises NotFoundError."""
        with self._lock:
            self._check_open()
            if name not in self._tables:
                raise NotFoundError(f"table {name!r} does not exist; there are {sorted(self._tables)}")
            return self._tables[name]

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
        """Deletes a table with all its data. Raises NotFoundError."""
        with self._changing:
            table = self.engine(name)
            with self._lock:
                del self._tables[name]
            table.close(NotFoundError(f"table {name!r} was deleted"))
            self._store.delete_table(name)
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
        newer_than = check_number("newer_than", newer_than, -1, (1 << 63) - 1)
        with self._lock:
            self._check_open()
            version = self._store.params().get(name)
            if version is None:
                raise NotFoundError(f"params {name!r} do not exist")
            if version <= newer_than:
                return None
        found = self._store.get_params(name)  # replaced by a rename, so whole without the lock that every call needs
        if found is None:
            raise NotFoundError(f"params {name!r} do not exist")
        return Params(*found)

    def snapshot(self, path: str | Path) -> None:
        """Makes a complete copy of the store in a new directory, which can be opened as a store of its own.

        All that is durable is in it, with priorities, queues, limiter counts and the state of the generators. Appends wait
        meanwhile, sampling goes on. Most of the data are hard links where `path` is on the same file system: a process that has
        this store open cannot open the copy, too.

        Raises:
          StorageError: `path` holds something, or cannot be written. CapacityError: the disk is full; nothing is left behind.
        """
        with self._changing:
            self._check_open()
            tables = dict(self._tables)

            def task() -> None:
                self._store.snapshot(path, {name: table.whole_state() for name, table in tables.items()})

            self._committer.run(task)

    def _check_leases(self) -> None:
        now = self._system.monotonic()
        stood_still, self._looked_at = now - self._looked_at - _LOOK_S, now
        with self._lock:
            tables = list(self._tables.items())
        for name, table in tables:
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
            self.engine(table).note_damage(chunk_id, reason)
        except (NotFoundError, UnavailableError):  # deleted, or closed, meanwhile
            log.debug("table %s: not there any more", table)

    def _save_states(self) -> None:
        with self._lock:
            tables = list(self._tables.items())
        for name, table in tables:
            try:
                table.save_state()
            except NotFoundError:  # deleted meanwhile
                log.debug("table %s: not there any more", name)
            except ReplayError as error:
                log.warning("table %s: its sampler state could not be saved: %s", name, error)

    def close(self) -> None:
        """Makes durable what was appended, and closes the store. Closing twice is fine."""
        with self._changing, self._lock:
            if self._closed:
                return
            self._closed = True
        self._ticker.close()
        for keeper in self._keepers:
            keeper.close()
        self._committer.run(lambda: None)  # so that what is saved is of the last commit
        self._save_states()
        self._committer.close()
        for table in self._tables.values():
            table.close(UnavailableError("the store is closed"))
        self._store.close()

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the store is closed")

    def __enter__(self) -> "Replay":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def make_sink(self, engine: Table, actor: str, epoch: int | None) -> EmbeddedSink:
        """Returns a sink that appends to `engine` as a new session."""
        return EmbeddedSink(engine, self._committer, self._ticker, actor, epoch)


class EmbeddedTable:
    """A table of a store in this process."""

    def __init__(self, replay: Replay, engine: Table) -> None:
        self._replay, self._engine = replay, engine
        self.name, self.signature = engine.name, engine.signature

    @property
    def config(self) -> TableConfig:
        """Returns the table's configuration, with the limiter that holds now."""
        return self._engine.config

    def writer(
        self, actor: str = "", *, epoch: int | None = None, limit_timeout_s: float = DEFAULT_LIMIT_TIMEOUT_S
    ) -> Writer:
        """Returns a writer of episodes; `actor` names who writes, up to 128 characters.

        epoch: a number that rises with each life of the actor (0 to 2^62; a restart count, or seconds since 1970): earlier
          writers of the actor, should they still live, are refused from now on, and their open episodes ended as truncated.
          None: others may write as the same actor.
        limit_timeout_s: longest that an `append` of it waits for the table's limiter.

        Raises:
          WriterFencedError: a writer of a larger epoch was there already.
        """
        actor, epoch = check_actor(actor), check_epoch_number(epoch)
        sink = self._replay.make_sink(self._engine, actor, epoch)
        return Writer(self.signature, self.config, sink, clock=time.monotonic, limit_timeout_s=limit_timeout_s)

    def sample(
        self, batch_size: int, what: Window = Transitions(), *, sampler: str = "uniform", seed: int | None = None,
        beta: float | None = None, timeout_s: float = 0.0,
    ) -> Batch:  # fmt: skip
        """Returns a batch of `batch_size` items: transitions, sequences or episodes, as `what` says.

        The same seed, table state and request give the same batch. `timeout_s` waits for a table that is not ready, or whose
        limiter lets nobody sample now.

        sampler: the name of one in the table's configuration. seed: 0 to 2^64 - 1; none for a queue.
        beta: exponent of the importance weights, 0 to 4; None: that of the sampler.

        Raises:
          NotReadyError: nothing can be drawn; says why, and how many of how many.
        """
        columns = self._engine.draw(batch_size, what, sampler=sampler, seed=seed, beta=beta, timeout_s=timeout_s)
        return assemble(self.signature, what, {column.name: column for column in columns})

    def stream(
        self, batch_size: int, what: Window = Transitions(), *, sampler: str = "uniform", beta: float | None = None,
        prefetch: int = 4, timeout_s: float = 60.0,
    ) -> Iterator[Batch]:  # fmt: skip
        """Yields batches without end, each as `sample` gives it. `prefetch` has no use without a network."""
        check_number("prefetch", prefetch, 1, 64)
        return (self.sample(batch_size, what, sampler=sampler, beta=beta, timeout_s=timeout_s) for _ in itertools.count())

    def update_priorities(self, positions: Any, priorities: Any, *, sampler: str = "prioritized") -> UpdateCounts:
        """Gives the items named by `positions` (of batches) new priorities, 0 to 1e30; 0 is never drawn. All or none.

        A repeated position has its last priority.

        Raises:
          InvalidRequestError: lengths that differ, or a priority out of range. ConfigurationError: `sampler` has none.
        """
        return self._engine.update_priorities(sampler, positions, priorities)

    def set_limiter(self, limiter: Limiter) -> None:
        """Puts `limiter` in the place of the table's, durably; who waits is asked anew.

        Raises:
          InvalidRequestError: it asks for more steps than the table may keep, or lets no chunk in.
        """
        if not isinstance(limiter, Limiter):
            raise SpecMismatchError("limiter", "a Limiter", repr(limiter))
        self._engine.set_limiter(limiter)

    def compact(self) -> int:
        """Gives back the disk space of removed and deleted steps as far as it can; returns the bytes that the disk got back."""
        return self._engine.compact()

    def delete_episodes(self, episode_ids: Any, *, open_episodes: bool = False) -> int:
        """Deletes episodes, durably, and returns how many of them were there. All or none.

        open_episodes: also those that have no end (yet): of writers that are gone. One that goes on is refused from then on.

        Raises:
          InvalidRequestError: an episode is open, and `open_episodes` is not set; nothing is deleted.
        """
        if isinstance(episode_ids, str | bytes) or not isinstance(episode_ids, Iterable):
            raise SpecMismatchError("episode_ids", "a collection of episode ids", repr(episode_ids))
        return self._engine.delete_episodes(episode_ids, open_episodes=open_episodes)

    def stats(self) -> TableStats:
        """Returns the table's counters."""
        return self._engine.stats()

    def episodes(
        self, *, limit: int = 100, before_id: int | None = None, actor: str | None = None, closed_only: bool = False
    ) -> list[EpisodeRecord]:
        """Returns records of stored episodes, the newest first."""
        return self._engine.episodes(limit, before_id, actor, closed_only)

    def read_episode(self, episode_id: int, start: int = 0, stop: int | None = None) -> dict[str, Any]:
        """Returns steps [start, stop) of an episode by column name; observations have one row more.

        Raises:
          NotFoundError: no such episode. InvalidRequestError: a range outside the stored steps.
          ChunkCorruptError: the stored bytes are damaged.
        """
        pieces = self._engine.episode_chunks(episode_id, start, stop)
        decoder = ChunkDecoder(self.signature)
        decoded = [chunk for piece in pieces for chunk in decoder.decode(piece)]
        info = decoded[-1].header.info
        cut = self._engine.cut_at(episode_id, stop)
        stop = info.first_step + info.n_steps if stop is None else stop
        return episode_columns(self.signature, decoded, start, stop, cut=cut)
