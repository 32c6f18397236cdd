"""What takes the place of a damaged segment: a compacted one of its whole chunks. The start and `fsck --repair` make it.

The new one is built in `tmp/`, durable before it gets its name, and has its name before the damaged one is moved. So a process
that ends in between leaves the good one in use, or the damaged one where the next start finds it.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from replaysvc.codec.header import MAX_STEPS
from replaysvc.errors import ChunkCorruptError
from replaysvc.storage.compaction import REPLACES, Plan, build_compacted
from replaysvc.storage.pages import Pages
from replaysvc.storage.records import NEXT_IDS, STORED_INDEX_DTYPE, EpisodeEntry, unpack_meta, with_ids
from replaysvc.storage.salvage import Salvage, salvage
from replaysvc.storage.segment import FORMAT, Segment
from replaysvc.storage.state import StateFiles
from replaysvc.storage.system import System
from replaysvc.types import Array

LOST = 1 << 32  # chunk ids and positions that pass for given out where nobody knows which were
MIN_EPISODE_BYTES = 256  # entry, a chunk of two columns and its index record: bounds the episodes of a lost segment
NO_END = 1 << 62  # above every chunk id
SALVAGED = "salvaged"  # key of a description: name of the damaged segment in whose place it stands


@dataclass(frozen=True, slots=True)
class Damaged:
    """A segment that cannot be used, and what is known of its table around it.

    stop: the first chunk id of the next segment; before, after: the next ids as of the end of what stands before it, and as of
    the beginning of what stands after it, None where nothing does. uncertain: of the newest chunks, no trace may be left.
    """

    path: Path
    first: int
    stop: int
    before: Mapping[str, int] | None
    after: Mapping[str, int] | None
    uncertain: bool


@dataclass(frozen=True, slots=True)
class Replacement:
    """What was made: how many chunks are kept, and which are lost. marks_lost: the newest marks of sessions may be."""

    path: Path
    kept: int
    lost: list[int]
    marks_lost: bool


class Replacing:
    """Makes replacements for one table. `elsewhere` gives records of episodes from other segments."""

    def __init__(
        self, table: Path, uuid: str, segment_bytes: int, scratch: Path, system: System,
        raise_format: Callable[[], None], elsewhere: Callable[[set[int]], Mapping[int, EpisodeEntry]],
    ) -> None:  # fmt: skip
        self._table, self._uuid, self._segment_bytes = table, uuid, segment_bytes
        self._scratch, self._system, self._raise_format, self._elsewhere = scratch, system, raise_format, elsewhere

    def replace(self, damaged: Damaged, *, keep_empty: bool) -> Replacement | None:
        """Names a segment of what is whole of a damaged one; None if that is nothing, unless `keep_empty`.

        Raises:
          OSError, CapacityError, StorageError: the disk; nothing has changed.
        """
        found = salvage(damaged.path, damaged.first, damaged.stop)
        try:
            if not len(found.index) and not keep_empty:
                return None
            _complete(found, damaged, self._uuid)
            footer = _footer(found, damaged)
            missing = set(found.index["episode_id"].tolist()) - found.entries.keys()
            if missing:
                found.entries |= {number: entry for number, entry in self._elsewhere(missing).items() if number in missing}
            if len(found.index):
                self._uncover(int(found.index["position"][0]), footer)
            target = self._build(found, footer, damaged)
            lost = sorted(found.known_ids - set(found.index["chunk_id"].tolist()))
            return Replacement(target, len(found.index), lost, damaged.after is None and bool(found.pages.problems))
        finally:
            found.close()

    def _uncover(self, position: int, footer: Mapping[str, int]) -> None:
        """Moves back the saved position before which steps count as removed, where it passed the segment while that was out
        of use: had capacity removed all of the segment, it would not be here."""
        StateFiles(self._table, self._scratch, self._system).lower_tail(position, beyond=int(footer["next_position"]))

    def _build(self, found: Salvage, footer: dict[str, Any], damaged: Damaged) -> Path:
        stem = f"seg-{damaged.first:020d}"
        taken = [int(path.name.partition(".")[2] or 0) for path in (*self._table.glob(f"{stem}*"), damaged.path)
                 if path.name.partition(".")[2].isdigit() or path.name == stem]  # fmt: skip
        target = self._table / f"{stem}.{max(taken, default=0) + 1}"
        build = self._scratch / f"{self._table.name}-{target.name}"
        self._raise_format()
        try:
            # it reads what a segment offers for reading
            plan = Plan([], [cast(Segment, found)], found.index["chunk_id"], [footer])
            build_compacted(plan, build, self._system, self._segment_bytes)
            self._system.crashpoint("compact.built")
            self._system.rename(build, target)
        except Exception:
            with suppress(OSError):
                self._system.remove_tree(build)
            raise
        self._system.crashpoint("compact.renamed")
        return target


def description_of(segment: Path) -> Mapping[str, Any]:
    """Returns the description of a segment, read without LMDB; nothing if it cannot be read, or is damaged."""
    try:
        with Pages(segment / "data.mdb") as pages:
            if known := with_ids(unpack_meta(dict(pages.values(b"meta")).get(b"segment", b""))):
                return known
            carved = (item for item in pages.carve(STORED_INDEX_DTYPE.itemsize) if item.key == b"segment")
            return next((known for item in carved if (known := with_ids(unpack_meta(pages.read(item.offset, item.size))))), {})
    except (OSError, ChunkCorruptError):
        return {}


def ends_of(index: Array) -> dict[str, int]:
    """Returns the ids that follow those of index records, none if there are no records."""
    if not len(index):
        return {}
    last = index[-1]
    ends = int(last["chunk_id"]) + 1, int(last["position"] + last["n_steps"]), int(index["episode_id"].max()) + 1
    return dict(zip(NEXT_IDS, ends, strict=True))


def _complete(found: Salvage, damaged: Damaged, uuid: str) -> None:
    """Makes the description of a segment anew if it is lost, from what stands before it, else from its first chunk."""
    meta = dict(with_ids(dict(found.meta)))
    if meta.get("table") != uuid or meta.get("first_chunk_id") != damaged.first:
        begin = {"next_position": 0, "next_episode_id": 0}
        if len(found.index):
            begin = {"next_position": int(found.index["position"][0]), "next_episode_id": int(found.index["episode_id"].min())}
        if damaged.before:
            begin = {name: int(damaged.before[name]) for name in begin}
        meta = {"format": FORMAT, "table": uuid, "first_chunk_id": damaged.first, **begin}
    meta.pop(REPLACES, None)  # what it stood for may be there, and whole
    found.meta = meta | {SALVAGED: damaged.path.name}


def _footer(found: Salvage, damaged: Damaged) -> dict[str, Any]:
    """Returns the next ids as of the segment's end, so that none is given out again."""
    if with_ids(dict(found.footer or {})):
        return dict(found.footer or {})
    if damaged.after:
        return {name: int(damaged.after[name]) for name in NEXT_IDS}
    ends = {name: int(found.meta[name]) for name in NEXT_IDS}
    ends = {name: max(ends[name], value) for name, value in (ends_of(found.index) or ends).items()}
    whole = set(found.index["chunk_id"].tolist())
    last = int(found.index["chunk_id"][-1]) if len(found.index) else damaged.first - 1
    beyond = [number for number in found.known_ids if number > last and number not in whole]
    ends["first_chunk_id"] = max(ends["first_chunk_id"], damaged.first + 1, *(number + 1 for number in found.known_ids))
    ends["next_position"] += MAX_STEPS * len(beyond)
    ends["next_episode_id"] = max([ends["next_episode_id"], *(number + 1 for number in found.entries)])
    if damaged.stop < NO_END:  # what follows goes on with its own ids, though they cannot be read now
        ends["first_chunk_id"] = damaged.stop
    elif found.pages.problems or damaged.uncertain:  # nobody knows what was given out in the pages that are lost
        ends["first_chunk_id"] += LOST
        ends["next_position"] += LOST
        ends["next_episode_id"] += found.pages.size // MIN_EPISODE_BYTES
    return ends
