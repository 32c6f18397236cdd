"""Space that dead chunks take in sealed segments: which segments can go, which is worth writing anew, and the writing."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from replaysvc.storage.records import NEXT_IDS
from replaysvc.storage.segment import Segment
from replaysvc.storage.system import System
from replaysvc.types import Array

BATCH_BYTES = 16 << 20  # of chunks that one transaction writes


@dataclass(frozen=True, slots=True)
class Plan:
    """What can be done about a table's space: segments that hold nothing live, and the one with most to win, if any."""

    empty: list[Segment]
    sparse: Segment | None
    live: Array
    footer: dict[str, Any]


def make_plan(segments: Sequence[Segment], live: Array, skip: Callable[[Segment], bool]) -> Plan:
    """Judges all segments but the newest, which alone may be unsealed, by the sorted ids of live chunks.

    `skip` names those that are not to be written anew.
    """
    bounds = np.searchsorted(live, np.array([segment.meta["first_chunk_id"] for segment in segments], np.int64))
    empty: list[Segment] = []
    best, chosen = 0, Plan(empty, None, live[:0], {})
    for segment, following, start, stop in zip(segments, segments[1:], bounds, bounds[1:], strict=False):
        if start == stop:
            empty.append(segment)
        elif not skip(segment) and stop - start < segment.count():
            ids, sizes = segment.sizes()
            whole, kept = int(sizes.sum()), int(sizes[np.isin(ids, live[start:stop])].sum())
            if 2 * kept < whole and whole - kept > best:
                best = whole - kept
                ends = segment.footer or {name: following.meta[name] for name in NEXT_IDS}
                chosen = Plan(empty, segment, live[start:stop], dict(ends))
    return chosen


def build_compacted(source: Segment, plan: Plan, build: Path, system: System, segment_bytes: int) -> int:
    """Writes a segment at `build` with the live chunks of `source`, their records, and the marks of its sessions; sealed.

    Returns the oldest episode in it.

    Raises:
      ChunkCorruptError: the source cannot be read. CapacityError: no space. StorageError: any other failure.
    """
    index, _ = source.load_index()
    index = index[np.isin(index["chunk_id"], plan.live)]
    entries = {entry.episode_id: entry for entry in source.load_episodes()[0]}
    segment = Segment.create_unnamed(build, system, segment_bytes, source.meta, source.load_sessions()[0])
    try:
        for part in _batches(index):
            chunks = source.read(part["chunk_id"].tolist())
            here = np.array([chunk is not None for chunk in chunks], bool)
            known = [entries[number] for number in np.unique(part["episode_id"]).tolist() if number in entries]
            segment.append(part[here], [chunk for chunk in chunks if chunk is not None], known, {})
        segment.seal(plan.footer)
    finally:
        segment.close()
    return segment.oldest_episode


def _batches(index: Array) -> Iterator[Array]:
    if not len(index):
        return
    number = (np.cumsum(index["stored_bytes"], dtype=np.int64) - 1) // BATCH_BYTES
    yield from np.split(index, np.flatnonzero(np.diff(number)) + 1)
