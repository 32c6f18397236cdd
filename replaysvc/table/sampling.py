"""Batches of one table: draw, resolve and gather under the lock; read and decode what the cache does not hold outside it."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable

import numpy as np

from replaysvc.batch import BatchColumn
from replaysvc.cache import Cache
from replaysvc.checks import check_number, check_text
from replaysvc.codec import GroupDecoder
from replaysvc.config import MAX_LARGE_BYTES
from replaysvc.errors import InvalidRequestError, NotReadyError, SpecMismatchError, StorageError, UnavailableError
from replaysvc.layout import layout_of
from replaysvc.requests import Transitions, Window
from replaysvc.sampling.fetch import Fetched, Reader
from replaysvc.sampling.gather import Source, gather_transitions
from replaysvc.sampling.gather_sequences import gather_sequences
from replaysvc.sampling.planning import Plan, make_plan, missing_rows
from replaysvc.table.core import Core
from replaysvc.types import Allocate, Array, UpdateCounts

log = logging.getLogger(__name__)

MAX_BATCH = 1 << 20
_MOST_BYTES = 2 * MAX_LARGE_BYTES  # of a batch, as raw steps, while it is made
_MIN_STEP_BYTES = 128  # what the places and flags of one step take meanwhile
_PART_STEPS = 1 << 18  # that are gathered at once, under the lock
_PART_BYTES = 16 << 20  # of chunks, decoded, that are read from the disk at once
_READERS = threading.BoundedSemaphore(4)  # parts with chunks from the disk that exist at once in this process
_DRAW_ATTEMPTS = 8  # so often in a row is a draw repeated whose chunks were removed meanwhile, or cannot be read


class _TooLargeError(Exception):
    """A batch should be gathered in parts."""


class Sampling:
    """Draws batches from a table, and takes the priorities that come back. Thread-safe."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._reader = Reader(core.store, core.decoder, GroupDecoder(core.signature))
        self._most_steps = _MOST_BYTES // max(core.signature.raw_step_bytes, _MIN_STEP_BYTES)

    def draw(
        self, batch_size: int, what: Window, *, sampler: str, seed: int | None, beta: float | None, timeout_s: float,
        batches: int = 1, allocate: Allocate = np.empty, waited: Callable[[float], None] = lambda _: None,
    ) -> list[BatchColumn]:  # fmt: skip
        """Returns `batches` batches of `batch_size` items, one after the other in each column, in stored precision.

        `allocate` makes the arrays for the columns of the signature that travel as they are stored. `waited` is told the
        seconds of each wait for data or for the limiter.

        Raises:
          NotReadyError: nothing can be drawn, or not so much, and it stays so for `timeout_s`; says why.
          UnavailableError: steps that were drawn cannot be read now, and no other ones were drawn in their place.
          InvalidRequestError: unknown sampler, batch size out of range, a seed for a queue, a request that does not fit.
        """
        core = self._core
        batch_size = check_number("batch_size", batch_size, 1, MAX_BATCH)
        batches = check_number("batches", batches, 1, MAX_BATCH // batch_size)
        count = batches * batch_size
        timeout_s = check_number("timeout_s", timeout_s, 0, 86_400, whole=False)
        if seed is not None:
            seed = check_number("seed", seed, 0, (1 << 64) - 1)
        if beta is not None:
            beta = check_number("beta", beta, 0, 4, whole=False)
        if not isinstance(what, Window):
            raise SpecMismatchError("what", "Transitions, Sequences or Episodes", type(what).__name__)
        check_text("sampler", sampler)
        layout = layout_of(core.signature, what)
        if core.samplers.is_queue(sampler) and seed is not None:
            raise InvalidRequestError(
                f"seed: expected none for the queue {sampler}, which draws nothing by chance, found {seed}"
            )
        deadline = time.monotonic() + timeout_s
        unreadable: StorageError | None = None
        attempts, corrupt = 0, core.counts["corrupt"]
        while attempts < _DRAW_ATTEMPTS:
            attempts += 1
            if core.counts["corrupt"] > corrupt:  # damage was found, and is drawn no more: each time there is less of it
                attempts, corrupt = 1, core.counts["corrupt"]
            with core.changed:
                self._wait_ready(count, what, sampler, deadline, waited)
                rng, began = core.rng if seed is None else np.random.default_rng(seed), time.perf_counter()
                plan = make_plan(
                    core.index, core.samplers, sampler, rng, count, what, layout, beta, self._most_steps, batches
                )
                if plan is not None:
                    core.counting.times["index"].append(time.perf_counter() - began)
                    core.limiter.count_sample(count)
                    core.changed.notify_all()
                    columns = None
                    try:
                        columns = self._take_cached(plan, sampler, allocate)
                    except BaseException:  # no batch, so none was taken
                        self._give_back(sampler, what, plan)
                        raise
                    if columns is not None:
                        return columns
            if plan is None:
                continue
            try:
                columns = self._gather(plan, sampler, allocate)
            except StorageError as error:  # of a read: it says nothing of what is stored, and may pass
                log.warning("table %s: chunks cannot be read now: %s", core.name, error)
                unreadable = error
            finally:
                if columns is None:
                    with core.changed:
                        self._give_back(sampler, what, plan)
            if columns is not None:
                return columns
        if unreadable is not None:
            raise UnavailableError(f"table {core.name}: steps cannot be read now ({unreadable})") from unreadable
        raise NotReadyError(
            f"table {core.name}: no {count} items in {_DRAW_ATTEMPTS} draws; steps they need are removed or damaged"
        )

    def _give_back(self, sampler: str, what: Window, plan: Plan) -> None:
        """Makes it as if a plan had not been drawn. The lock is held."""
        positions = plan.drawn.positions
        self._core.limiter.count_sample(-len(positions))
        self._core.samplers.give_back(sampler, what, positions)

    def update_priorities(self, sampler: str, positions: Array, priorities: Array) -> UpdateCounts:
        """Sets priorities; see `Samplers.update`."""
        core = self._core
        try:
            where = np.asarray(positions)
        except ValueError:  # lists of different lengths
            where = np.empty((), np.object_)
        check_text("sampler", sampler)
        if where.ndim != 1 or (where.size and where.dtype.kind not in "iu"):
            raise SpecMismatchError("positions", "int64[n]", f"{where.dtype}{list(where.shape)}")
        with core.changed:
            core.check_open()
            counts = core.samplers.update(sampler, where.astype(np.int64), priorities)
            core.counts["updates"] += counts.applied
            core.counts["ignored_updates"] += counts.ignored
            core.changed.notify_all()  # what had no priority above 0 may have one now
        return counts

    def waiting_for(self, batch_size: int, what: Window, sampler: str) -> str:
        """Returns why a batch cannot be drawn now, "" if it can. The lock is held.

        Raises:
          InvalidRequestError: no such sampler, or no such batch can ever be drawn.
        """
        core = self._core
        never = core.limiter.never_samples(batch_size)
        if never:
            raise InvalidRequestError(f"batch_size: {never}")
        waiting = core.limiter.sample_waits(batch_size, core.index.live_steps)
        return waiting or core.samplers.waiting_for(sampler, what, batch_size)

    def _wait_ready(
        self, batch_size: int, what: Window, sampler: str, deadline: float, waited: Callable[[float], None]
    ) -> None:
        core = self._core
        while True:
            core.check_open()
            waiting = self.waiting_for(batch_size, what, sampler)
            if not waiting:
                return
            began = time.monotonic()
            left = deadline - began
            if left <= 0:
                raise NotReadyError(f"table {core.name}: {waiting}")
            core.starving.append(batch_size)
            core.changed.notify_all()  # of two that would wait for each other for ever, the insert goes on
            try:
                with core.counting.waiting("sample"):
                    core.changed.wait(left)
            finally:
                core.starving.remove(batch_size)
                waited(time.monotonic() - began)

    def _take_cached(self, plan: Plan, sampler: str, allocate: Allocate) -> list[BatchColumn] | None:
        """Returns the columns of a plan if all of it is cached, and it is not so large that it is taken in parts. The lock
        is held."""
        core = self._core
        missing = None if plan.steps > _PART_STEPS else missing_rows(plan, core.index)
        if missing is None or missing.size:
            return None
        columns = self._columns(plan, Fetched(), core.clock(), allocate)
        core.counts["hits"] += len(plan.drawn.positions)
        self._count(plan, sampler)
        return columns

    def _count(self, plan: Plan, sampler: str) -> None:
        core = self._core
        core.counts["calls"] += 1
        core.counts["items"] += len(plan.drawn.positions)
        core.counting.count_batch(sampler, plan, core.index.head)

    def _columns(
        self, plan: Plan, fetched: Fetched, now_s: float, allocate: Allocate
    ) -> list[BatchColumn]:
        """Returns the columns of a plan, of which nothing is missing. The lock is held."""
        core, began = self._core, time.perf_counter()
        source = Source(core.index, core.cache, core.signature, fetched, now_s, allocate)
        gather = gather_transitions if isinstance(plan.what, Transitions) else gather_sequences
        columns = gather(plan, source)
        core.counting.times["assemble"].append(time.perf_counter() - began)
        return columns

    def _gather(self, plan: Plan, sampler: str, allocate: Allocate) -> list[BatchColumn] | None:
        """Returns the columns of a plan, or None if some of its chunks are gone and it must be drawn again.

        A batch that would hold the lock, or memory for chunks that are not cached, for long is gathered in parts.
        """
        core, now_s = self._core, self._core.clock()
        parts: list[list[BatchColumn]] = []
        pending = [(0, len(plan.drawn.positions))]
        while pending:
            start, stop = pending.pop()
            whole = stop - start == len(plan.drawn.positions)
            try:
                if whole:
                    columns = self._gather_part(plan, now_s, allocate)
                else:
                    columns = self._gather_part(plan.part(start, stop), now_s, np.empty)
            except _TooLargeError:
                middle = (start + stop) // 2
                pending += [(middle, stop), (start, middle)]
                continue
            if columns is None:
                return None
            parts.append(columns)
        with core.changed:
            self._count(plan, sampler)
        if len(parts) == 1:
            return parts[0]
        specs = {name: spec for spec in core.signature.columns for name in (spec.name, f"next_{spec.name}")}
        return [
            BatchColumn.join(columns, specs.get(name), allocate if name in specs else np.empty)
            for name, columns in zip([column.name for column in parts[0]], zip(*parts, strict=True), strict=True)
        ]

    def _gather_part(self, plan: Plan, now_s: float, allocate: Allocate) -> list[BatchColumn] | None:
        """Returns the columns of a plan, or None if some of its chunks are gone.

        Raises:
          _TooLargeError: it should be made in parts; nothing was done.
        """
        fetched = Fetched()
        if plan.steps > _PART_STEPS and len(plan.drawn.positions) > 1:
            raise _TooLargeError
        with contextlib.ExitStack() as reading:
            while True:
                missing, columns = self._take(plan, fetched, now_s, allocate)
                if not missing.size:
                    return columns
                if not fetched:
                    reading.enter_context(_READERS)
                if not self._read(missing, fetched):
                    return None

    def _take(
        self, plan: Plan, fetched: Fetched, now_s: float, allocate: Allocate
    ) -> tuple[Array, list[BatchColumn] | None]:
        """Returns the rows of chunks that must be read first, or the columns; neither if some chunks are gone."""
        core = self._core
        with core.changed:
            core.check_open()
            missing = missing_rows(plan, core.index, fetched)
            if missing is None:
                return np.empty(0, np.int64), None
            steps = int(core.index.field("n_steps", missing).sum()) if missing.size else 0
            if steps * core.signature.raw_step_bytes > _PART_BYTES and len(plan.drawn.positions) > 1:
                raise _TooLargeError
            core.counts["misses"] += len(missing)
            if not fetched:
                anchors = plan.windows.runs[:, 0]
                core.counts["hits"] += len(anchors) - (int(np.isin(anchors, missing).sum()) if missing.size else 0)
            if missing.size:
                return missing, None
            columns = self._columns(plan, fetched, now_s, allocate)
            for rows, group in fetched.groups:  # not before: they might push out what else the batch needs
                core.cache_group(Cache.FAULTED, rows, group)
            return missing, columns

    def _read(self, missing: Array, fetched: Fetched) -> bool:
        """Reads and decodes chunks into `fetched` and the cache; returns whether all could be read; leaves out what cannot."""
        core = self._core
        with core.changed:
            core.check_open()
            if missing[0] < core.index.chunks.base:  # removed meanwhile
                return False
            ids, checksums = core.index.field("chunk_id", missing), core.index.field("checksum", missing)
        found = self._reader.read(missing, ids, checksums)
        with core.changed:
            core.check_open()  # of a table that was deleted meanwhile, nothing was there to read any more
            damaged = [(chunk_id, reason) for row, chunk_id, reason in found.bad if core.mark_dead(row)]
            core.counts["corrupt"] += len(damaged)
            if found.group is not None:
                core.counting.times["read"].append(found.read_s)
                core.counting.times["decompress"].append(found.decode_s)
                fetched.groups.append((missing, found.group))
        for chunk_id, reason in damaged:  # not what was removed meanwhile
            core.store.quarantine_chunk(chunk_id, reason)
        return found.group is not None
