"""The engine of one table: what is appended to it, what is removed, what is remembered; `sampling` gives its steps out.

Three kinds of threads meet here. Appending threads decode and check chunks, wait for the limiter, then for the committer. The
committer thread stages, stores and publishes them, and removes and deletes. Sampling threads draw, resolve and gather under the
lock, and read and decode missing chunks outside it. The lock is never held during disk access.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace

import numpy as np

from replaysvc.cache import Cache
from replaysvc.codec import ChunkDecoder
from replaysvc.config import TableConfig
from replaysvc.errors import (
    LimitedError,
    ReplayError,
    StorageError,
    WaitTimeoutError,
)
from replaysvc.index.episode_records import end_lost
from replaysvc.index.table_index import DEAD, TableIndex
from replaysvc.limiter import LimiterState
from replaysvc.options import LostActor
from replaysvc.sampling.drawing import Samplers
from replaysvc.spec import Signature
from replaysvc.storage import System, TableStore
from replaysvc.table import sampler_state
from replaysvc.table.actors import Actors
from replaysvc.table.committer import Committer
from replaysvc.table.core import Core
from replaysvc.table.counting import Counting
from replaysvc.table.endings import Endings
from replaysvc.table.initial import InitialPriorities
from replaysvc.table.leases import Leases
from replaysvc.table.looking import Looking
from replaysvc.table.reading import Reading
from replaysvc.table.sampling import Sampling
from replaysvc.table.staging import (
    AppendRequest,
    EpisodeName,
    Staged,
    check_epoch,
    epoch_mark,
    open_episodes_of,
    refuse,
    stage_all,
)
from replaysvc.table.upkeep import Upkeep
from replaysvc.types import Array, TableStats
from replaysvc.views import TableCounts, TableStorage

log = logging.getLogger(__name__)

MAX_SESSIONS = 65_536  # remembered writer sessions; the least recently used is forgotten first


class Table:
    """One table of a store. Thread-safe."""

    def __init__(
        self, store: TableStore, committer: Committer, cache_bytes: tuple[int, int], *, system: System,
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        self.name, self.uuid = store.name, store.uuid
        self.signature = Signature.from_json(store.description["signature"])
        config = TableConfig.from_json(store.description["config"])
        self._store, self._committer, self._clock = store, committer, system.time
        self._changed = threading.Condition(threading.Lock())
        loaded = store.load()
        holes = sampler_state.saved_holes(store, loaded.next_position)
        tail = min(sampler_state.saved_number(store, "tail"), loaded.next_position)
        records = sampler_state.without_holes(loaded.index, holes)
        records = records[records["position"] + records["n_steps"] > tail]
        lost = sampler_state.saved_lost(store)
        index = TableIndex(replace(loaded, index=records))
        if tail > index.tail:
            index.remove_before(tail)
        end_lost(index, lost)
        store.end_episodes(lost)
        open_episodes = open_episodes_of(loaded, lost)
        samplers, limiter = Samplers(config.samplers, index), LimiterState(config.limiter)
        saved = sampler_state.saved_number(store, "head")
        since = loaded.index[loaded.index["position"] >= saved]  # positions that were skipped after a loss are no steps
        sampler_state.restore(store, samplers, limiter, rng, min(index.head, saved + int(since["n_steps"].sum())))
        self.actors = Actors(self._changed, system.monotonic, index, open_episodes)
        config = sampler_state.settled(store, config, limiter.options)
        limiter.set_options(config.limiter)
        self._core = Core(
            self.name, self.signature, config, store, ChunkDecoder(self.signature), system.time,
            self._changed, index, Cache(self.signature, *cache_bytes), samplers, limiter, rng, open_episodes,
            loaded.next_episode_id,
            Leases(system.monotonic, config.lease_s if config.lost_actor is LostActor.TRUNCATE else None, open_episodes),
            {(entry.session_id, entry.episode_key): entry.episode_id for entry in loaded.episodes if entry.episode_id in lost},
            max(sampler_state.saved_number(store, "ends"), *(end + 1 for end in lost.values()), 0), holes,
            self.actors, Counting(self.signature),
        )  # fmt: skip
        for at in np.flatnonzero(np.isin(index.chunks["chunk_id"], loaded.damaged)).tolist():
            self._core.mark_dead(at + index.chunks.base)
        self._initial = InitialPriorities(self.signature, config)
        self._sessions: OrderedDict[bytes, int] = OrderedDict(loaded.sessions)
        self._next_chunk_id = loaded.next_chunk_id
        sampling, self._upkeep = Sampling(self._core), Upkeep(self._core, committer)
        self._endings = Endings(self._core, committer)
        self.draw, self.update_priorities = sampling.draw, sampling.update_priorities
        self.delete_episodes, self.set_limiter = self._upkeep.delete_episodes, self._upkeep.set_limiter
        self.set_capacity = self._upkeep.set_capacity
        self.save_state, self.whole_state = self._upkeep.save_state, self._upkeep.whole_state
        self.note_damage = self._upkeep.note_damage
        self.looking, reading = Looking(self._core), Reading(self._core, self.note_damage)
        self.episodes, self.episode_chunks = reading.episodes, reading.episode_chunks
        self.first_step, self.cut_at = reading.first_step, reading.cut_at
        self.compact, self.end_lost, self.excuse_leases = self._upkeep.compact, self._endings.end_lost, self._endings.excuse
        self._upkeep.remove_excess()

    @property
    def config(self) -> TableConfig:
        """Returns the table's configuration, with the limiter and the capacity that hold now."""
        return self._core.config

    # -- writing ------------------------------------------------------------------------------------------------------

    def open_session(
        self, session_id: bytes, actor: str = "", *, epoch: int | None = None, alive: Iterable[int] = ()
    ) -> int:
        """Returns the last durable sequence number of a writer session, -1 if there is none.

        `alive`: keys of its open episodes that its writers go on with. With an epoch larger than any before, the session takes
        over from the actor's other ones: their open episodes are ended.

        Raises:
          WriterFencedError: a session of a larger epoch writes as this actor.
        """
        taken_over: list[EpisodeName] = []
        with self._changed:
            self._core.check_open()
            check_epoch(actor, epoch, self._sessions)
            if epoch is not None and epoch > self._sessions.get(epoch_mark(actor), -1):
                self._sessions[epoch_mark(actor)] = epoch
                taken_over = self._endings.others_open(actor, session_id)
            self._core.leases.renew(session_id, alive)
            self.actors.meet(session_id, actor)
            last = self._sessions.get(session_id, -1)
        if taken_over:
            self._endings.end_episodes(taken_over)
        return last

    def renew(self, session_id: bytes, alive: Iterable[int]) -> None:
        """Notes that a session's writers go on with these open episodes, by their keys."""
        with self._changed:
            self._core.leases.renew(session_id, alive)
            self.actors.hear(session_id)

    def submit(
        self, session_id: bytes, actor: str, chunks: Sequence[tuple[int, bytes]], *, urgent: bool, wait_s: float = 0.0,
        epoch: int | None = None, alive: Sequence[int] = (),
    ) -> AppendRequest:  # fmt: skip
        """Checks and decodes chunks and queues them for the next commit; the request's `done` tells the outcome.

        Waits up to `wait_s` for room in the queue, and for the limiter, which lets all of them in or none.

        Raises:
          ChunkCorruptError, SpecMismatchError: a chunk is damaged or of another signature; none is taken.
          CapacityError: too much waits for a commit. LimitedError: the limiter does not let them in.
        """
        deadline = time.monotonic() + wait_s
        data = [chunk for _, chunk in chunks]
        headers = self._core.decoder.headers(data)
        keys = tuple({*alive, *(header.info.episode_key for header in headers)})
        self.renew(session_id, keys)
        admitted = self._admit(
            session_id, [(n, header.info.n_steps) for (n, _), header in zip(chunks, headers, strict=True)], deadline
        )
        try:
            size = sum(map(len, data)) + sum(header.raw_bytes for header in headers)
            # before the bytes are decoded: little data may decode to much
            self._committer.reserve(size, max(0.0, deadline - time.monotonic()))
            try:
                decoded = self._core.decoder.decode(data, headers)
                self._initial.check(decoded)
                request = AppendRequest(
                    session_id, actor, [sequence for sequence, _ in chunks], data, decoded, urgent, epoch, keys, admitted,
                )  # fmt: skip
                with self._changed:
                    self._core.check_open()
                self._committer.submit(self, request, size)
            except BaseException:
                self._committer.release(size)
                raise
        except BaseException:
            self._withdraw(admitted)
            raise
        return request

    def _admit(self, session_id: bytes, steps: Sequence[tuple[int, int]], deadline: float) -> int:
        """Waits for the limiter to let the steps of chunks, (sequence, steps) each, in; returns how many are new."""
        core = self._core
        with self._changed:
            while True:
                core.check_open()
                last = self._sessions.get(session_id, -1)
                count = sum(n for sequence, n in steps if sequence > last)
                waiting = core.limiter.insert_waits(count, core.index.live_steps) if count else ""
                starves = len(steps) == 1 and any(core.limiter.starves(n, core.index.live_steps) for n in core.starving)
                if not waiting or starves:
                    core.limiter.admit(count)
                    return count
                left = deadline - time.monotonic()
                if left <= 0 or core.ending:
                    raise LimitedError(f"table {self.name}: {waiting}")
                with core.counting.waiting("insert"):
                    self._changed.wait(left)

    def _withdraw(self, admitted: int) -> None:
        with self._changed:
            self._core.limiter.withdraw(admitted)
            self._changed.notify_all()

    def append(
        self, session_id: bytes, actor: str, chunks: Sequence[tuple[int, bytes]], *, urgent: bool, timeout_s: float,
        wait_s: float = 0.0, epoch: int | None = None, alive: Sequence[int] = (),
    ) -> int:  # fmt: skip
        """Stores chunks of a session, returns its last durable sequence number when they are durable.

        `wait_s`: longest to wait for room and for the limiter.

        Raises:
          WaitTimeoutError: not within `timeout_s`; the chunks may still be stored. And all that `submit` and the commit raise.
        """
        request = self.submit(session_id, actor, chunks, urgent=urgent, wait_s=wait_s, epoch=epoch, alive=alive)
        try:
            return request.done.result(timeout_s)
        except FutureTimeoutError:
            raise WaitTimeoutError(f"append: not durable within {timeout_s:g} s; it may still become so") from None

    def commit(self, requests: list[AppendRequest]) -> None:
        """Stores and publishes requests, and settles each. Called by the committer thread alone; does not raise."""
        staged = Staged(self._next_chunk_id, self._core.index.head, self._core.next_episode_id, self._clock())
        try:
            stage_all(staged, requests, self._sessions, self._core.open_episodes, self._core.lost)
            with self._changed:
                self._core.check_open()
            index = staged.index()
            if len(index):
                self._store.append(index, staged.chunks, staged.entries, staged.sessions)
                self._publish(staged, index)
                self._upkeep.remove_excess()
        except ReplayError as error:
            refuse(requests, error)
        except Exception as error:  # the committer must live on; whoever waits learns that it failed
            log.exception("table %s: a commit failed", self.name)
            refuse(
                requests, StorageError(f"table {self.name}: the commit failed ({type(error).__name__}); see the server's log")
            )
        with self._changed:
            self._core.counts["duplicates"] += staged.duplicates
            self._core.limiter.withdraw(sum(request.admitted for request in requests))
            self._changed.notify_all()
        for request in requests:
            if not request.done.done():
                request.done.set_result(self._sessions.get(request.session_id, -1))

    def _publish(self, staged: Staged, index: Array) -> None:
        """Makes stored chunks sampleable."""
        with self._changed:
            added = self._core.index.add(index, staged.entries)
            self._next_chunk_id += len(index)
            self._core.next_episode_id += len(staged.entries)
            for session, sequence in staged.sessions.items():
                self._sessions[session] = sequence
                self._sessions.move_to_end(session)
            while len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
            for name, episode in staged.open.items():
                if episode is None:
                    self._core.open_episodes.pop(name, None)
                    self._core.leases.end(name)
                else:
                    self._core.open_episodes[name] = episode
                    self._core.leases.begin(name)
            for request in staged.requests:
                self._core.leases.renew(request.session_id, request.alive)
            for row, chunk in zip(added.rows, staged.decoded, strict=True):
                self._core.cache_chunk(Cache.RECENT, row, chunk)
            self._core.samplers.insert(added, self._initial.of(staged.decoded))
            self._core.limiter.count_insert(int(index["n_steps"].sum()))
            self._core.counting.count_written(staged.written)
            self._core.counting.count_committed([chunk.header for chunk in staged.decoded])
            self.actors.count(staged.written)
            self._core.counts["commits"] += 1
            self._changed.notify_all()

    # -- looking ------------------------------------------------------------------------------------------------------

    def stats(self) -> TableStats:
        """Returns the table's counters as of now."""
        segments, disk = self._store.segment_count, self._store.disk_bytes
        with self._changed:
            core = self._core
            core.check_open()
            index, counts, limiter = core.index, core.counts, core.limiter
            waiting = limiter.sample_waits(1, index.live_steps)
            return TableStats(
                name=self.name, steps=index.live_steps, episodes=index.episode_count, chunks=len(index.chunks),
                segments=segments, first_position=index.tail, next_position=index.head,
                quarantined_chunks=self._store.quarantined_chunks, quarantined_segments=self._store.quarantined_segments,
                lost_segments=self._store.lost_segments,
                fault=self._store.fault,
                stored_bytes=index.stored_bytes, disk_bytes=disk,
                raw_bytes=index.live_steps * self.signature.raw_step_bytes,
                appended_steps_total=index.head, removed_steps_total=index.tail,
                sampled_items_total=counts["items"], sample_calls_total=counts["calls"],
                duplicate_chunks_total=counts["duplicates"], corrupt_chunks_total=counts["corrupt"],
                lossless_fallbacks_total=index.fallbacks, commits_total=counts["commits"], cache_hits_total=counts["hits"],
                cache_misses_total=counts["misses"], priority_updates_total=counts["updates"],
                ignored_updates_total=counts["ignored_updates"], deleted_episodes_total=counts["deleted_episodes"],
                cache_bytes=core.cache.used_bytes, open_episodes=len(core.open_episodes),
                ready=not waiting, waiting_for=waiting, lost_actor_episodes_total=counts["lost"],
                limiter=limiter.options.to_json() | {"inserted": limiter.inserted, "sampled": limiter.sampled},
                queues={name: queue.available for name, (_, queue) in core.samplers.queues.items()},
                inserting_waits_for=limiter.insert_waits(1, index.live_steps),
            )  # fmt: skip

    def counted(self) -> TableCounts:
        """Returns what else was counted since the process started."""
        core = self._core
        with self._changed:
            core.check_open()
            return core.counting.view(
                inserting_waits_for=core.limiter.insert_waits(1, core.index.live_steps), lost_actors=core.counts["lost"],
                cache_budget_bytes=core.cache.budget_bytes,
            )

    def storage(self) -> TableStorage:
        """Returns how the table lies on the disk."""

        def live() -> Array:
            with self._changed:
                self._core.check_open()
                chunk_ids, flags = self._core.index.chunks["chunk_id"], self._core.index.chunks["flags"]
            ids: Array = chunk_ids[(flags & DEAD) == 0]  # what is removed meanwhile is in these arrays still
            return ids

        return self._store.told(live)

    # -- life ---------------------------------------------------------------------------------------------------------

    def resize_cache(self, recent_bytes: int, faulted_bytes: int) -> None:
        """Changes the cache's budgets, which empties it."""
        with self._changed:
            self._core.cache.resize(recent_bytes, faulted_bytes)
            self._core.index.forget_locations()

    def end_waits(self) -> None:
        """Lets in only what the limiter lets in at once, from now on: the store is about to be closed."""
        with self._changed:
            self._core.ending = True
            self._changed.notify_all()

    def close(self, reason: ReplayError) -> None:
        """Ends the table: every call from now on, and every one that waits, raises `reason`."""
        with self._core.state_lock, self._changed:  # so that no state file is written after this
            self._core.closed = reason
            self._changed.notify_all()
