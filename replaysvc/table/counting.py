"""What a table counts for whoever watches it, beyond what it needs itself. The table's lock is held around every call."""

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from replaysvc.codec import ChunkHeader
from replaysvc.codec.header import Stage
from replaysvc.histogram import SHORT_SECONDS, STEPS, Histogram
from replaysvc.sampling.planning import Plan
from replaysvc.spec import Signature
from replaysvc.table.staging import Written
from replaysvc.types import Array
from replaysvc.views import ColumnView, TableCounts

STAGES = ("index", "read", "decompress", "assemble")
_EVERY = 4  # batches, of which the first has its ages counted,
_ITEMS = 16  # of so many items, evenly spaced
_BATCHES = 256  # what these many leave behind is put into the histograms together, which is several times as fast


class Counting:
    """Counts of one table since its process started."""

    def __init__(self, signature: Signature) -> None:
        self.sampled: dict[str, int] = defaultdict(int)  # items, by sampler
        self.waited_s = {"insert": 0.0, "sample": 0.0}  # for the limiter; with `waits`, how many do so now
        self.waits = {"insert": 0, "sample": 0}
        self.ended = {"terminated": 0, "truncated": 0}
        self.removed = {"capacity": 0, "deleted": 0, "damaged": 0}
        self.evictions = self.her_items = self.her_relabeled = 0
        # seconds of stages that are not in the histograms yet
        self.times = {name: deque[float](maxlen=16 * _BATCHES) for name in STAGES}
        self._stages = {name: Histogram(SHORT_SECONDS) for name in STAGES}
        self._batches = 0
        self._ages = Histogram(STEPS)
        self._aged: list[tuple[int, Array]] = []  # nor these: of batches, the next position and some of their own
        self._signature = signature
        self._bytes = ColumnBytes(signature)

    @contextmanager
    def waiting(self, side: str) -> Iterator[None]:
        """Notes a wait of one who wants to "insert" or "sample"."""
        began = time.monotonic()
        self.waits[side] += 1
        try:
            yield
        finally:
            self.waits[side] -= 1
            self.waited_s[side] += time.monotonic() - began

    def count_batch(self, sampler: str, plan: Plan, head: int) -> None:
        """Counts a batch that was drawn from a table whose next position is `head`."""
        positions = plan.drawn.positions
        count = len(positions)
        self.sampled[sampler] += count
        if plan.goals is not None:
            self.her_items += count
            self.her_relabeled += int(np.count_nonzero(plan.goals.relabeled))
        if not self._batches % _EVERY:
            self._aged.append((head, positions[:: -(-count // _ITEMS)].copy()))
            if not self._batches % _BATCHES:
                self._settle()
        self._batches += 1

    def _settle(self) -> None:
        """Puts into the histograms what is not there yet."""
        for name, times in self.times.items():
            if times:
                self._stages[name].observe_all(np.array(times))
                times.clear()
        if self._aged:
            heads = np.repeat([head for head, _ in self._aged], [len(positions) for _, positions in self._aged])
            self._ages.observe_all(heads - 1 - np.concatenate([positions for _, positions in self._aged]))
            self._aged.clear()

    def count_written(self, written: Iterable[Written]) -> None:
        """Counts the ends of episodes that were committed."""
        for part in written:
            self.ended["terminated"] += part.terminated
            self.ended["truncated"] += part.truncated

    def count_committed(self, headers: Sequence[ChunkHeader]) -> None:
        """Counts the bytes of chunks that were committed."""
        self._bytes.add(headers)

    def view(self, *, inserting_waits_for: str, lost_actors: int, cache_budget_bytes: int) -> TableCounts:
        """Returns all of it, with what else the table knows."""
        self._settle()
        return TableCounts(
            sampled_items=dict(self.sampled), waited_s=dict(self.waited_s), waiting=dict(self.waits),
            inserting_waits_for=inserting_waits_for, ended_episodes=self.ended | {"lost_actor": lost_actors},
            removed_steps=dict(self.removed), cache_evictions=self.evictions, cache_budget_bytes=cache_budget_bytes,
            her_items=self.her_items, her_relabeled=self.her_relabeled, sample_age_steps=self._ages.view(),
            stages={name: histogram.view() for name, histogram in self._stages.items()}, columns=self._bytes.views(),
        )  # fmt: skip


class ColumnBytes:
    """Sums over chunks of the bytes that each column takes. Adding takes a microsecond or two a chunk."""

    def __init__(self, signature: Signature) -> None:
        self._specs, self._observations = signature.columns, signature.observation_columns
        self._stored, self._lossless = np.zeros((2, len(self._specs)), np.int64)
        self._chunks = self._steps = 0

    def add(self, headers: Sequence[ChunkHeader]) -> None:
        """Adds chunks by their headers."""
        if not headers:
            return
        self._chunks += len(headers)
        self._steps += sum(header.info.n_steps for header in headers)
        self._stored += np.array([[payload.stored for payload in header.payloads] for header in headers]).sum(axis=0)
        for header in headers:
            if header.fallbacks:
                self._lossless += [
                    spec.cast and Stage.CAST not in payload.stages
                    for spec, payload in zip(self._specs, header.payloads, strict=True)
                ]

    def views(self) -> tuple[ColumnView, ...]:
        """Returns what was added so far, in the order of the signature's columns."""
        return tuple(
            ColumnView(
                name=spec.name, dtype=spec.dtype.name, shape=(None, *spec.shape[1:]) if spec.ragged else spec.shape,
                raw_bytes=spec.row_bytes * (self._steps + self._chunks * (i < self._observations)), stored_bytes=stored,
                chunks=self._chunks, lossless_chunks=lossless,
            )
            for i, (spec, stored, lossless) in enumerate(
                zip(self._specs, self._stored.tolist(), self._lossless.tolist(), strict=True)
            )
        )  # fmt: skip
