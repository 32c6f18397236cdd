"""The engine of one table: index, samplers, cache and capacity around one lock.

Three kinds of threads meet here. Appending threads decode and check chunks, then wait for the committer. The committer
thread stages, stores and publishes them. Sampling threads draw, resolve and gather under the lock, and read and decode
missing chunks outside it. The lock is never held during disk access.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace

import numpy as np

from replaysvc.batch import BatchColumn
from replaysvc.cache import Cache
from replaysvc.checks import check_number
from replaysvc.codec import ChunkDecoder, DecodedChunk
from replaysvc.committer import Committer
from replaysvc.config import TableConfig
from replaysvc.errors import (
    InvalidRequestError,
    NotFoundError,
    NotReadyError,
    ReplayError,
    SpecMismatchError,
    StorageError,
    WaitTimeoutError,
)
from replaysvc.gather import Plan, gather, missing_rows, plan_transitions
from replaysvc.requests import Transitions
from replaysvc.selectors import Selector, Uniform
from replaysvc.spec import Signature
from replaysvc.staging import AppendRequest, Staged, open_episodes_of, refuse, stage_all
from replaysvc.storage import TableStore
from replaysvc.table_index import TableIndex, parse_metadata
from replaysvc.types import Array, EpisodeRecord, TableStats

log = logging.getLogger(__name__)

MAX_BATCH = 1 << 20
MAX_SESSIONS = 65_536  # remembered writer sessions; the least recently used is forgotten first
_PIECE_BYTES = 4 << 20  # episodes are read in pieces of about this size
_IDLE_EPISODE_S = 3600.0  # an open episode whose steps are all removed is given up when its writer was silent for so long
_DRAW_ATTEMPTS = 8  # a draw is repeated when its chunks were removed or found damaged meanwhile


class Table:
    """One table of a store. Thread-safe."""

    def __init__(
        self, store: TableStore, committer: Committer, cache_bytes: tuple[int, int], *, clock: Callable[[], float],
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        self.name = store.name
        self.signature = Signature.from_json(store.description["signature"])
        self.config = TableConfig.from_json(store.description["config"])
        self._store, self._committer, self._clock, self._rng = store, committer, clock, rng
        self._decoder = ChunkDecoder(self.signature)
        self._changed = threading.Condition(threading.Lock())
        self._cache = Cache(self.signature, *cache_bytes)
        loaded = store.load()
        self._index = TableIndex(loaded)
        self._sessions: OrderedDict[bytes, int] = OrderedDict(loaded.sessions)
        self._open = open_episodes_of(loaded)
        self._next_chunk_id, self._next_episode_id = loaded.next_chunk_id, loaded.next_episode_id
        self._samplers: dict[str, Selector] = {"uniform": Uniform()}
        self._counts = dict.fromkeys(("items", "calls", "duplicates", "corrupt", "commits", "hits", "misses"), 0)
        self._closed: ReplayError | None = None
        for sampler in self._samplers.values():
            for start, stop in self._index.runs():
                sampler.insert(start, stop)
        self._remove_excess()

    # -- writing ------------------------------------------------------------------------------------------------------

    def open_session(self, session_id: bytes) -> int:
        """Returns the last durable sequence number of a writer session, -1 if there is none."""
        with self._changed:
            self._check_open()
            return self._sessions.get(session_id, -1)

    def submit(
        self, session_id: bytes, actor: str, chunks: Sequence[tuple[int, bytes]], *, urgent: bool, wait_s: float = 0.0
    ) -> AppendRequest:
        """Checks and decodes chunks and queues them for the next commit; the request's `done` tells the outcome.

        Waits up to `wait_s` for room in the queue.

        Raises:
          ChunkCorruptError, SpecMismatchError: a chunk is damaged or of another signature; none is taken.
          CapacityError: too much waits for a commit.
        """
        data = [chunk for _, chunk in chunks]
        headers = self._decoder.headers(data)
        size = sum(map(len, data)) + sum(header.raw_bytes for header in headers)
        self._committer.reserve(size, wait_s)  # before the bytes are decoded: little data may decode to much
        try:
            decoded = self._decoder.decode(data, headers)
            request = AppendRequest(session_id, actor, [sequence for sequence, _ in chunks], data, decoded, urgent)
            with self._changed:
                self._check_open()
            self._committer.submit(self, request, size)
        except BaseException:
            self._committer.release(size)
            raise
        return request

    def append(
        self, session_id: bytes, actor: str, chunks: Sequence[tuple[int, bytes]], *, urgent: bool, timeout_s: float
    ) -> int:
        """Stores chunks of a session, returns its last durable sequence number when they are durable.

        Raises:
          WaitTimeoutError: not within `timeout_s`; the chunks may still be stored. And all that `submit` and the commit raise.
        """
        request = self.submit(session_id, actor, chunks, urgent=urgent)
        try:
            return request.done.result(timeout_s)
        except FutureTimeoutError:
            raise WaitTimeoutError(f"append: not durable within {timeout_s:g} s; it may still become so") from None

    def commit(self, requests: list[AppendRequest]) -> None:
        """Stores and publishes requests, and settles each. Called by the committer thread alone; does not raise."""
        staged = Staged(self._next_chunk_id, self._index.head, self._next_episode_id, self._clock())
        try:
            stage_all(staged, requests, self._sessions, self._open)
            with self._changed:
                self._check_open()
            index = staged.index()
            if len(index):
                self._store.append(index, staged.chunks, staged.entries, staged.sessions)
                self._publish(staged, index)
                self._remove_excess()
        except ReplayError as error:
            refuse(requests, error)
        except Exception as error:  # the committer must live on; whoever waits learns that it failed
            log.exception("table %s: a commit failed", self.name)
            refuse(
                requests, StorageError(f"table {self.name}: the commit failed ({type(error).__name__}); see the server's log")
            )
        with self._changed:
            self._counts["duplicates"] += staged.duplicates
        for request in requests:
            if not request.done.done():
                request.done.set_result(self._sessions.get(request.session_id, -1))

    def _publish(self, staged: Staged, index: Array) -> None:
        """Makes stored chunks sampleable."""
        with self._changed:
            rows = self._index.add(index, staged.entries)
            self._next_chunk_id += len(index)
            self._next_episode_id += len(staged.entries)
            for session, sequence in staged.sessions.items():
                self._sessions[session] = sequence
                self._sessions.move_to_end(session)
            while len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
            for name, episode in staged.open.items():
                if episode is None:
                    self._open.pop(name, None)
                else:
                    self._open[name] = episode
            for row, chunk in zip(rows, staged.decoded, strict=True):
                self._cache_chunk(Cache.RECENT, row, chunk)
            for sampler in self._samplers.values():
                sampler.insert(int(index["position"][0]), self._index.head)
            self._counts["commits"] += 1
            self._changed.notify_all()

    def _remove_excess(self) -> None:
        """Removes the oldest steps beyond capacity; whole segments that hold nothing else leave the disk."""
        with self._changed:
            tail = self._index.tail
            if not self._index.remove_excess(self.config.capacity_steps, self.config.capacity_bytes):
                return
            for sampler in self._samplers.values():
                sampler.remove(tail, self._index.tail)
            kept = self._index.first_chunk_id
            self._forget_removed_episodes()
        if kept is not None:
            self._store.remove_before(kept)

    def _forget_removed_episodes(self) -> None:
        """Drops what is known of episodes of which no step is left, unless a writer may still go on with them."""
        limit = self._clock() - _IDLE_EPISODE_S
        idle = [
            name
            for name, episode in self._open.items()
            if episode.last_at_s < limit and self._index.is_removed(episode.episode_id)
        ]
        for name in idle:
            del self._open[name]
        self._index.forget_episodes_before(min((e.episode_id for e in self._open.values()), default=self._next_episode_id))

    def _cache_chunk(self, ring: int, row: int, chunk: DecodedChunk) -> None:
        if not self._cache.fits(chunk.columns):
            self._cache.widen_for(chunk.columns)
            self._index.forget_locations()
        place = self._cache.insert(ring, row, chunk.columns, chunk.header.info.n_steps)
        if place is not None:
            location, slot, overwritten = place
            self._index.locate(row, location, slot, overwritten)

    # -- sampling -----------------------------------------------------------------------------------------------------

    def draw(
        self, batch_size: int, what: Transitions, *, sampler: str, seed: int | None, timeout_s: float
    ) -> list[BatchColumn]:
        """Returns a batch of `batch_size` windows, drawn with replacement, in stored precision.

        Raises:
          NotReadyError: the table holds fewer than `limiter.min_steps` steps, and goes on so for `timeout_s`.
          InvalidRequestError: unknown sampler, batch size out of range, negative seed.
        """
        batch_size = check_number("batch_size", batch_size, 1, MAX_BATCH)
        timeout_s = check_number("timeout_s", timeout_s, 0, 86_400, whole=False)
        if seed is not None:
            seed = check_number("seed", seed, 0, (1 << 64) - 1)
        if not isinstance(what, Transitions):
            raise SpecMismatchError("what", "Transitions", type(what).__name__)
        if sampler not in self._samplers:
            raise InvalidRequestError(f"sampler: expected one of {sorted(self._samplers)}, found {sampler!r}")
        deadline = time.monotonic() + timeout_s
        for _ in range(_DRAW_ATTEMPTS):
            with self._changed:
                self._wait_ready(deadline)
                rng = self._rng if seed is None else np.random.default_rng(seed)
                plan = plan_transitions(self._index, self._samplers[sampler], rng, batch_size, what)
            columns = self._gather(plan) if plan is not None else None
            if columns is not None:
                return columns
        raise NotReadyError(
            f"table {self.name}: no {batch_size} readable steps in {_DRAW_ATTEMPTS} draws; many chunks are damaged or removed"
        )

    def _gather(self, plan: Plan) -> list[BatchColumn] | None:
        """Returns the columns of a plan, or None if some of its chunks are gone and it must be drawn again."""
        fetched: dict[int, DecodedChunk] = {}
        while True:
            with self._changed:
                self._check_open()
                missing = missing_rows(plan, self._index, fetched)
                if missing is None:
                    return None
                self._counts["misses"] += len(missing)
                if not fetched:
                    self._counts["hits"] += len(plan.positions) - int(np.isin(plan.windows.rows[:, 0], missing).sum())
                if not missing:
                    self._counts["calls"] += 1
                    self._counts["items"] += len(plan.positions)
                    return gather(plan, self._index, self._cache, self.signature, fetched, self._clock())
                ids = self._index.field("chunk_id", missing)
                checksums = self._index.field("checksum", missing)
            found = self._read(missing, ids, checksums)
            if found is None:
                return None
            fetched |= found
            with self._changed:
                for row, chunk in found.items():
                    if self._index.uncached(np.array([row])):
                        self._cache_chunk(Cache.FAULTED, row, chunk)

    def _read(self, rows: Sequence[int], ids: Array, checksums: Array) -> dict[int, DecodedChunk] | None:
        """Reads and decodes chunks; None if one is removed or damaged (then it is marked and never drawn again)."""
        data = self._store.read(ids)
        present = [chunk for chunk in data if chunk is not None]
        try:
            decoded = self._decoder.decode(present)
            if len(present) == len(data) and all(
                chunk.header.checksum == int(expected) for chunk, expected in zip(decoded, checksums, strict=True)
            ):
                return dict(zip(rows, decoded, strict=True))
        except ReplayError:
            log.warning("table %s: a chunk among %d failed its check; looking for it", self.name, len(present))
        for row, chunk_id, raw, expected in zip(rows, ids, data, checksums, strict=True):
            self._check_chunk(row, int(chunk_id), raw, int(expected))
        return None

    def _check_chunk(self, row: int, chunk_id: int, raw: bytes | None, expected: int) -> None:
        reason = "it is missing"
        if raw is not None:
            try:
                if self._decoder.decode([raw])[0].header.checksum == expected:
                    return
                reason = "it is another chunk than the index says"
            except ReplayError as error:
                reason = str(error)
        with self._changed:
            if self._index.mark_dead(row):
                self._counts["corrupt"] += 1
                log.error("table %s: chunk %d cannot be read and is left out from now on: %s", self.name, chunk_id, reason)

    def _wait_ready(self, deadline: float) -> None:
        while True:
            self._check_open()
            waiting = self._waiting_for()
            if not waiting:
                return
            left = deadline - time.monotonic()
            if left <= 0:
                raise NotReadyError(f"table {self.name}: {waiting}")
            self._changed.wait(left)

    def _waiting_for(self) -> str:
        steps, wanted = self._index.live_steps, self.config.limiter.min_steps
        return "" if steps >= wanted else f"{steps:,} of {wanted:,} steps"

    # -- looking ------------------------------------------------------------------------------------------------------

    def stats(self) -> TableStats:
        """Returns the table's counters as of now."""
        segments, disk = self._store.segment_count, self._store.disk_bytes
        with self._changed:
            self._check_open()
            index, counts = self._index, self._counts
            return TableStats(
                name=self.name, steps=index.live_steps, episodes=index.episode_count, chunks=len(index.chunks),
                segments=segments, first_position=index.tail, next_position=index.head,
                stored_bytes=index.stored_bytes, disk_bytes=disk,
                raw_bytes=index.live_steps * self.signature.raw_step_bytes,
                appended_steps_total=index.head, removed_steps_total=index.tail,
                sampled_items_total=counts["items"], sample_calls_total=counts["calls"],
                duplicate_chunks_total=counts["duplicates"], corrupt_chunks_total=counts["corrupt"],
                lossless_fallbacks_total=index.fallbacks, commits_total=counts["commits"], cache_hits_total=counts["hits"],
                cache_misses_total=counts["misses"], cache_bytes=self._cache.used_bytes, open_episodes=len(self._open),
                ready=not self._waiting_for(), waiting_for=self._waiting_for(),
            )  # fmt: skip

    def episodes(self, limit: int, before_id: int | None, actor: str | None, closed_only: bool) -> list[EpisodeRecord]:
        """Returns the records of stored episodes, the newest first, with ids below `before_id`."""
        limit = check_number("limit", limit, 1, 100_000)
        if before_id is not None:
            before_id = check_number("before_id", before_id, 0, (1 << 63) - 1)
        with self._changed:
            self._check_open()
            records = self._index.episodes(limit, before_id, actor, closed_only)
        complete = []
        for record in records:
            entry = self._store.read_episode_entry(record.episode_id)
            if entry is not None:
                complete.append(replace(record, metadata=parse_metadata(entry.metadata)))
        return complete

    def episode_chunks(self, episode_id: int, start: int, stop: int | None) -> Iterator[list[bytes]]:
        """Yields the stored chunks that hold steps [start, stop) of an episode, in order, in pieces of about 4 MiB.

        Raises:
          NotFoundError: no such episode, or it was removed meanwhile. InvalidRequestError: a range outside what is stored.
        """
        episode_id = check_number("episode_id", episode_id, 0, (1 << 63) - 1)
        start = check_number("start", start, 0, 1 << 62)
        if stop is not None:
            stop = check_number("stop", stop, 0, 1 << 62)
        with self._changed:
            self._check_open()
            ids, sizes = self._index.episode_chunk_ids(self.name, episode_id, start, stop)
        return self._read_pieces(episode_id, ids, sizes)

    def _read_pieces(self, episode_id: int, ids: Array, sizes: Array) -> Iterator[list[bytes]]:
        piece_of = np.cumsum(sizes) // _PIECE_BYTES
        for piece in np.unique(piece_of):
            data = self._store.read(ids[piece_of == piece])
            if any(chunk is None for chunk in data):
                raise NotFoundError(f"episode {episode_id}: steps of it were removed while it was read")
            yield [chunk for chunk in data if chunk is not None]

    # -- life ---------------------------------------------------------------------------------------------------------

    def resize_cache(self, recent_bytes: int, faulted_bytes: int) -> None:
        """Changes the cache's budgets, which empties it."""
        with self._changed:
            self._cache.resize(recent_bytes, faulted_bytes)
            self._index.forget_locations()

    def close(self, reason: ReplayError) -> None:
        """Ends the table: every call from now on, and every one that waits, raises `reason`."""
        with self._changed:
            self._closed = reason
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed is not None:
            raise type(self._closed)(str(self._closed))
