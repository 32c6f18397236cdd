"""Giving the disk back what dead chunks take: empty segments go, sparse ones are written anew, alone or with neighbours."""

import contextlib
import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from replaysvc.errors import ChunkCorruptError, ReplayError, StorageError
from replaysvc.storage.chain import Chain
from replaysvc.storage.compaction import Plan, build_compacted, fit, make_plan, unreadable
from replaysvc.storage.descriptions import COMPACTED_FORMAT, MERGED_FORMAT
from replaysvc.storage.gone import Gap, Gone
from replaysvc.storage.loading import NAME
from replaysvc.storage.segment import Segment
from replaysvc.storage.system import System
from replaysvc.types import Array

log = logging.getLogger(__name__)


class Reclaiming:
    """Does so for one table, on the committer's thread.

    meant: chunk ids between segments that were removed on purpose, so far as that is known. missing: ids of chunks of segments
    that are out of use, or gone and nobody knows why: they may come back into their place, which must be free then.
    """

    def __init__(
        self, table: Path, segment_bytes: int, chain: Chain, scratch: Path, system: System, raise_format: Callable[[int], None]
    ) -> None:
        self._table, self._segment_bytes, self._chain = table, segment_bytes, chain
        self._scratch, self._system, self._raise_format = scratch, system, raise_format
        self._skipped: set[Path] = set()  # they cannot be read
        self._crowded: set[tuple[Path, Path]] = set()  # neighbours that do not fit into one segment, though it looked so
        self.meant: list[Gap] = []
        self.missing: list[int] = []

    def reclaim(self, live: Array) -> int:
        """Removes sealed segments without a live chunk, and writes the sparsest anew; see TableStore.reclaim."""
        try:
            plan = make_plan(
                self._chain.segments, live, lambda segment: segment.path in self._skipped, apart=self._are_apart,
                # what is out of use and could not be moved away would be in the way of the next start
                segment_bytes=0 if self._chain.remains else self._segment_bytes,
            )  # fmt: skip
        except StorageError as error:
            log.error("table %s: no space is reclaimed: %s", self._table.name, error)
            return 0
        freed = self._remove_empty(plan.empty)
        return freed + self._rewrite(plan) if plan.sources else freed

    def _are_apart(self, before: Segment, after: Segment) -> bool:
        first, stop = int(before.meta["first_chunk_id"]), int(after.meta["first_chunk_id"])
        return (before.path, after.path) in self._crowded or any(first < number < stop for number in self.missing)

    def _remove_empty(self, empty: Sequence[Segment]) -> int:
        """Removes segments from the middle, after noting that it is on purpose; returns the bytes that the disk got back."""
        segments = self._chain.segments
        oldest = next((at for at, segment in enumerate(segments) if segment not in empty), 0)  # before it, no gap is left
        found = [
            Gap(int(segment.meta["first_chunk_id"]), int(following.meta["first_chunk_id"]))
            for segment, following in pairwise(segments[oldest:])
            if segment in empty
        ]
        try:
            if found:
                first = int(segments[oldest].meta["first_chunk_id"])
                Gone(self._table, self._scratch, self._system).add([*self.meant, *found], oldest=first)
        except OSError as error:
            log.error("table %s: no segment is removed, since that cannot be noted: %s", self._table.name, error)
            return 0
        return self._chain.replace(empty, [])

    def _rewrite(self, plan: Plan) -> int:
        old = plan.sources
        first = f"seg-{old[0].meta['first_chunk_id']:020d}"
        taken = [int(name[2] or 0) for path in self._table.glob(f"{first}*") if (name := NAME.fullmatch(path.name))]
        target = self._table / f"{first}.{max(taken) + 1}"
        build = self._scratch / f"{self._table.name}-{target.name}"
        what, version = ("merge", MERGED_FORMAT) if len(old) > 1 else ("compact", COMPACTED_FORMAT)
        try:
            if len(old) > 1:
                plan = fit(plan, self._segment_bytes)
                if len(plan.sources) == 1:
                    self._crowded.add((old[0].path, old[1].path))
                    return 0
            self._raise_format(version)
            oldest = build_compacted(plan, build, self._system, self._segment_bytes)
            self._system.crashpoint(f"{what}.built")
            self._system.rename(build, target)
            self._system.crashpoint(f"{what}.renamed")
            new = Segment(target, self._system, self._segment_bytes)
        except (OSError, ReplayError) as error:
            log.error("segment %s could not be compacted: %s", old[0].path, error)
            if isinstance(error, ChunkCorruptError):
                self._skip(plan)
            self._chain.remains |= target.exists()
            with contextlib.suppress(OSError):
                self._system.remove_tree(build)
            return 0
        new.oldest_episode = oldest
        return self._chain.replace(plan.sources, [new]) - new.used_bytes

    def _skip(self, plan: Plan) -> None:
        """Leaves alone from now on what cannot be read; all of it where that cannot be told apart now."""
        try:
            found = unreadable(plan) if len(plan.sources) > 1 else []
        except StorageError:
            found = []
        self._skipped |= {segment.path for segment in found or plan.sources}
