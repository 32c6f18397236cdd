"""Space that dead chunks take in sealed segments: which segments can go, which are worth writing anew, and the writing.

Neighbours are written into one segment (merged) where that frees more than it writes, or where every chunk ends up in a segment
at least twice as large as before. The first is paid for by bytes that were appended and freed since, the second happens to a
chunk as often as a segment can double. So what is written stays in proportion to what was appended.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from replaysvc.errors import ChunkCorruptError
from replaysvc.storage.chain import allocated
from replaysvc.storage.commit_times import CommitTimes
from replaysvc.storage.records import MAX_SESSIONS, NEXT_IDS, STORED_INDEX_DTYPE, EpisodeEntry, pack_episode
from replaysvc.storage.segment import Segment
from replaysvc.storage.system import System
from replaysvc.types import Array

BATCH_BYTES = 16 << 20  # of chunks that one transaction writes
REPLACES = "replaces"  # key of a description: first chunk ids of the segments after it that it stands for
BASE_BYTES = 13 * 4096  # that a segment with hardly anything in it takes, as measured
MOST_NEIGHBOURS = 256  # that are merged at once: bounds the description, and the search
_PAGE = 4096
_IN_PAGE = 2000  # bytes up to which a value lies in a leaf; a larger one has pages of its own
_NODE = 26  # bytes that LMDB adds to a value of an eight-byte key
_MARK_BYTES = 75  # of a session: they come in no order, so leaves are not full


@dataclass(frozen=True, slots=True)
class Plan:
    """What can be done about a table's space.

    empty: segments that hold nothing live. sources: what is worth writing anew: nothing, one segment, or neighbours that become
    one. ends: the next ids as of the end of each. live: what is to be kept of them.
    """

    empty: list[Segment]
    sources: list[Segment]
    live: Array
    ends: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class _Share:
    """A segment with live chunks. disk: bytes of its file; need: of these, what its live chunks would take elsewhere."""

    place: int
    disk: int
    need: int
    sparse: bool


@dataclass(frozen=True, slots=True)
class _Choice:
    won: int = 0
    first: int = 0
    stop: int = 0


def make_plan(
    segments: Sequence[Segment], live: Array, skip: Callable[[Segment], bool],
    *, segment_bytes: int, apart: Callable[[Segment, Segment], bool],
) -> Plan:  # fmt: skip
    """Judges all segments but the newest, which alone may be unsealed, by the sorted ids of live chunks.

    `skip` names those that are not to be written anew, `apart` neighbours that are not to be merged. A merged segment takes at
    most about `segment_bytes`; 0: none are merged.
    """
    bounds = np.searchsorted(live, np.array([segment.meta["first_chunk_id"] for segment in segments], np.int64))
    empty: list[Segment] = []
    runs: list[list[_Share]] = [[]]
    for place, (start, stop) in enumerate(pairwise(bounds.tolist())):
        segment = segments[place]
        if start == stop:
            empty.append(segment)
        elif skip(segment):
            runs.append([])
        else:
            if runs[-1] and apart(segments[runs[-1][-1].place], segment):
                runs.append([])
            runs[-1].append(_share(segment, place, live[start:stop]))
    found = [_best(run, segment_bytes) for run in runs]
    at, best = max(enumerate(found), key=lambda item: item[1].won)
    places = [share.place for share in runs[at][best.first : best.stop]]
    if not places:
        return Plan(empty, [], live[:0], [])
    ends = [dict(segments[k].footer or {name: segments[k + 1].meta[name] for name in NEXT_IDS}) for k in places]
    kept = live[bounds[places[0]] : bounds[places[-1] + 1]]
    return Plan(empty, [segments[k] for k in places], kept, [{name: end[name] for name in NEXT_IDS} for end in ends])


def _share(segment: Segment, place: int, live: Array) -> _Share:
    disk = allocated(segment.path)
    if len(live) >= segment.count():
        return _Share(place, disk, max(0, disk - BASE_BYTES), sparse=False)
    ids, sizes = segment.sizes()
    whole, kept = int(sizes.sum()), int(sizes[np.isin(ids, live)].sum())
    need = max(kept, (disk - BASE_BYTES) * kept // max(whole, 1))
    return _Share(place, disk, need, sparse=2 * kept < whole)


def _best(run: Sequence[_Share], segment_bytes: int) -> _Choice:
    """Returns which neighbours, or which one, to write anew: those that free most."""
    best = _Choice()
    for first, share in enumerate(run):
        disk, need, largest = share.disk, share.need, share.need
        if share.sparse:
            best = max(best, _Choice(max(1, disk - need - BASE_BYTES), first, first + 1), key=lambda choice: choice.won)
        for place in range(first + 1, min(len(run), first + MOST_NEIGHBOURS)):
            disk, need, largest = disk + run[place].disk, need + run[place].need, max(largest, run[place].need)
            if need + BASE_BYTES > segment_bytes:
                break
            won = disk - need - BASE_BYTES
            if (2 * (need + BASE_BYTES) < disk or need >= 2 * largest) and won > best.won:
                best = _Choice(won, first, place + 1)
    return best


def fit(plan: Plan, segment_bytes: int) -> Plan:
    """Returns the plan for as many of its first sources as fit into one segment by what they really hold.

    Raises:
      ChunkCorruptError: a source cannot be read. StorageError: not now.
    """
    taken, marks = BASE_BYTES, 0
    for count, source in enumerate(plan.sources):
        content = _Content.of(source, plan.live)
        marks = max(marks, len(source.load_sessions()[0]))
        taken += content.size
        if count and taken + marks * _MARK_BYTES > segment_bytes:
            return replace(plan, sources=plan.sources[:count], ends=plan.ends[:count])
    return plan


def unreadable(plan: Plan) -> list[Segment]:
    """Returns the sources of which something cannot be read because it is damaged."""
    found = []
    for source in plan.sources:
        try:
            source.load_sessions()
            for part in _batches(_Content.of(source, plan.live).index):
                source.read(part["chunk_id"].tolist())
        except ChunkCorruptError:
            found.append(source)
    return found


@dataclass(frozen=True, slots=True)
class _Content:
    """What is live of a segment."""

    index: Array
    entries: dict[int, EpisodeEntry]

    @classmethod
    def of(cls, source: Segment, live: Array) -> "_Content":
        index, _ = source.load_index()
        index = index[np.isin(index["chunk_id"], live)]
        needed = set(index["episode_id"].tolist())
        return cls(index, {entry.episode_id: entry for entry in source.load_episodes()[0] if entry.episode_id in needed})

    @property
    def size(self) -> int:
        """Returns the bytes that it takes in a segment."""
        sizes = self.index["stored_bytes"].astype(np.int64)
        chunks = np.where(sizes <= _IN_PAGE, sizes, -(-(sizes + 16) // _PAGE) * _PAGE) + _NODE
        records = len(sizes) * (STORED_INDEX_DTYPE.itemsize + _NODE)
        return int(chunks.sum()) + records + sum(len(pack_episode(entry)) + _NODE for entry in self.entries.values())


def build_compacted(plan: Plan, build: Path, system: System, segment_bytes: int) -> int:
    """Writes a segment at `build` with what is live of the sources, its records, and the marks of their sessions; sealed.

    Returns the oldest episode in it.

    Raises:
      ChunkCorruptError: a source cannot be read. CapacityError: no space. StorageError: any other failure.
    """
    sources = plan.sources
    meta = dict(sources[0].meta)
    if len(sources) > 1:
        meta[REPLACES] = [int(source.meta["first_chunk_id"]) for source in sources[1:]]
    times = CommitTimes(system.monotonic)  # nobody waits for these
    segment = Segment.create_unnamed(build, system, segment_bytes, meta, _marks(sources))
    try:
        for source in sources:
            content = _Content.of(source, plan.live)
            for part in _batches(content.index):
                chunks = source.read(part["chunk_id"].tolist())
                here = np.array([chunk is not None for chunk in chunks], bool)
                known = [content.entries[n] for n in np.unique(part["episode_id"]).tolist() if n in content.entries]
                segment.append(part[here], [chunk for chunk in chunks if chunk is not None], known, {}, times)
        segment.seal(plan.ends[-1])
    finally:
        segment.close()
    (build / "lock.mdb").unlink(missing_ok=True)  # only who appends needs it
    system.fsync_directory(build)
    return segment.oldest_episode


def _marks(sources: Sequence[Segment]) -> dict[bytes, tuple[int, float]]:
    """Returns how far each session has come by the end of the last of some segments: of many, those used last."""
    marks: dict[bytes, tuple[int, float]] = {}
    for source in sources:
        for session_id, mark in source.load_sessions()[0].items():
            marks[session_id] = max(mark, marks.get(session_id, mark))
    return dict(sorted(marks.items(), key=lambda item: item[1][1])[-MAX_SESSIONS:]) if len(sources) > 1 else marks


def _batches(index: Array) -> Iterator[Array]:
    if not len(index):
        return
    number = (np.cumsum(index["stored_bytes"], dtype=np.int64) - 1) // BATCH_BYTES
    yield from np.split(index, np.flatnonzero(np.diff(number)) + 1)
