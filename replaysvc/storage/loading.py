"""What a start does with the segments of a table: opens them in order, salvages what is damaged, notices what is gone."""

import logging
import re
import struct
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from replaysvc.codec.header import MAX_STEPS
from replaysvc.errors import ChunkCorruptError, ReplayError, StorageError
from replaysvc.storage.chain import Chain
from replaysvc.storage.compaction import REPLACES
from replaysvc.storage.deletions import COPIES
from replaysvc.storage.gone import Gap, Gone, Span, gaps, lost
from replaysvc.storage.records import INDEX_DTYPE, NEXT_IDS, EpisodeEntry
from replaysvc.storage.replacement import (
    LOST,
    MIN_EPISODE_BYTES,
    NO_END,
    SALVAGED,
    Damaged,
    Replacing,
    description_of,
    ends_of,
)
from replaysvc.storage.salvage import Salvage
from replaysvc.storage.segment import ROOM, Segment
from replaysvc.storage.set_aside import held, set_aside, unsalvaged
from replaysvc.storage.state import StateFiles
from replaysvc.storage.system import System, disk_error
from replaysvc.types import Array

log = logging.getLogger(__name__)

NAME = re.compile(r"seg-(\d{20})(?:\.(\d+))?")  # of a segment: its first chunk id, and how often it was compacted
_BROUGHT_ABOUT = (OSError, ReplayError, ArithmeticError, LookupError, MemoryError, TypeError, ValueError, struct.error)
"""What damage may bring about where it is looked through, foreseen or not."""
_REPAIR = "stop the service and run `replaysvc fsck --repair`"
_HEAD_OF_HOLES = 16  # bytes of a state of ranges that has none


def advance(next_ids: dict[str, int], index: Array, meta: Mapping[str, Any]) -> dict[str, int]:
    """Returns the next ids, moved past what a description or footer says and past index records."""
    least = {name: max(value, int(meta.get(name, 0))) for name, value in next_ids.items()}
    return {name: max(value, ends_of(index).get(name, 0)) for name, value in least.items()}


class Loading:
    """One start of one table. `run` fills the chain and all that is public here."""

    def __init__(
        self, path: Path, uuid: str, segment_bytes: int, chain: Chain, scratch: Path, quarantine: Path, system: System,
        raise_format: Callable[[], None],
    ) -> None:  # fmt: skip
        self.name = path.name
        self._path, self._uuid, self._segment_bytes, self._chain = path, uuid, segment_bytes, chain
        self._scratch, self._quarantine, self._system = scratch, quarantine, system
        self._replacing = Replacing(path, uuid, segment_bytes, scratch, system, raise_format, self._find_entries)
        self._groups: list[list[Path]] = []
        self._spans: list[Span] = []
        self.indexes: list[Array] = [np.empty(0, INDEX_DTYPE)]
        self.episodes: dict[int, EpisodeEntry] = {}
        self.sessions: dict[bytes, tuple[int, float]] = {}
        self.next = dict.fromkeys(NEXT_IDS, 0)
        self.ends: dict[str, int] = {}  # the next ids as of the end of the last good segment, if others are lost after it
        self.damaged_records = 0
        self.unused: list[Path] = []  # damaged segments that stay in the table, since they could not be salvaged for now
        self.meant: list[Gap] = []  # chunk ids that were removed on purpose, so far as that is known
        self.lost: list[Gap] = []  # those that are gone, and nobody knows why
        self.missing: list[int] = []  # first ids of what may come back into its place

    def run(self) -> None:
        """Opens all segments.

        Raises:
          StorageError: one cannot be opened for another reason than damage; nothing was moved.
        """
        self._groups = find_segments(self._path)
        last_good = -1
        for at, paths in enumerate(self._groups):
            if self._load_newest(paths, at):
                last_good = at
        aside = unsalvaged(held(self._quarantine, self.name, self._uuid), {span.first for span in self._spans})
        newest = _first(self._groups[last_good]) if last_good >= 0 else -1
        later = {one.first for one in aside if one.first > newest and one.table == self._uuid}  # nothing took their place yet
        self._skip_lost(later | {_first(paths) for paths in self._groups[last_good + 1 :]})
        self._look_for_gaps([one.first for one in aside])

    def _load_newest(self, paths: list[Path], at: int) -> bool:
        """Loads the first whole one of segments with the same chunks, or what is whole of them; removes those after it."""
        damaged: list[tuple[Path, ChunkCorruptError]] = []
        for i, path in enumerate(paths):
            try:
                segment = self._load_segment(path)
            except ChunkCorruptError as error:
                damaged.append((path, error))
                continue
            for worse, problem in damaged:
                self._set_aside(worse, problem, kept=0)
            for older in paths[i + 1 :]:
                if segment.meta.get(SALVAGED) == older.name:  # a process ended after it had salvaged it
                    self._set_aside(older, ChunkCorruptError(f"{path.name} has its whole chunks"), kept=segment.count())
                else:
                    self._chain.discard(older)
            self._drop_replaced(segment, at)
            return True
        return self._salvage(damaged, at)

    def _load_segment(self, path: Path) -> Segment:
        """Opens a segment and takes it into the chain, with its index, episodes and sessions."""
        segment = Segment(path, self._system, self._segment_bytes)
        try:
            if segment.meta["table"] != self._uuid:
                raise ChunkCorruptError(f"segment {path}: it belongs to another table")
            index, damaged = segment.load_index()
            entries, damaged_entries = segment.load_episodes()
            marks, damaged_marks = segment.load_sessions()
            next_ids = self._past_damage(advance(self.next, index, segment.meta), index, segment)
            last = max(segment.last_key(b"index"), int(segment.meta["first_chunk_id"]) - 1) + 1
        except StorageError:
            segment.close()
            raise
        self.next = advance(next_ids, index[:0], segment.footer)
        stop = (segment.footer or {"first_chunk_id": None})["first_chunk_id"] if segment.sealed else last
        self._spans.append(Span(int(segment.meta["first_chunk_id"]), stop))
        self._chain.replace([], [segment])
        self.indexes.append(index)
        self.episodes |= {entry.episode_id: entry for entry in entries}
        for session_id, mark in sorted(marks.items(), key=lambda item: item[1][1]):
            self.sessions[session_id] = max(mark, self.sessions.pop(session_id, (-1, 0.0)))
        if damaged := damaged + damaged_entries + damaged_marks:
            self.damaged_records += damaged
            log.error("segment %s: %d damaged records are left out", path, damaged)
        return segment

    def _drop_replaced(self, segment: Segment, at: int) -> None:
        """Removes what a merged segment stands for, and moves to quarantine what has no place beside it; neither is opened."""
        replaced, last = set(segment.meta.get(REPLACES, ())), segment.last_key(b"index")
        for paths in self._groups[at + 1 :] if replaced else ():
            if _first(paths) in replaced:
                for path in paths:
                    self._chain.discard(path)
            elif _first(paths) <= last:
                for path in paths:
                    self._set_aside(path, ChunkCorruptError(f"{segment.path.name} has chunks from before and after it"), kept=0)
            else:
                continue
            self._groups.remove(paths)

    def _past_damage(self, next_ids: dict[str, int], index: Array, segment: Segment) -> dict[str, int]:
        """Moves the next ids past those whose records are damaged: keys tell what was given out, chunks how long they are."""
        last_chunk_id, last_episode_id = segment.last_key(b"index"), segment.last_key(b"episodes")
        last_good = int(index["chunk_id"][-1]) if len(index) else int(segment.meta["first_chunk_id"]) - 1
        if last_chunk_id > last_good:
            next_ids["first_chunk_id"] = max(next_ids["first_chunk_id"], last_chunk_id + 1)
            next_ids["next_position"] += segment.steps_after(last_good)
        next_ids["next_episode_id"] = max(next_ids["next_episode_id"], last_episode_id + 1)
        return next_ids

    def _salvage(self, damaged: list[tuple[Path, ChunkCorruptError]], at: int) -> bool:
        """Puts what is whole of a damaged segment in its place, and loads that; returns whether there is any."""
        own = [(path, error) for path, error in damaged if description_of(path).get("table", self._uuid) == self._uuid]
        for path, error in own:
            try:
                made = self._replacing.replace(self._around(path, at), keep_empty=False)
                if made is None:
                    continue
                self._load_segment(made.path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue
            except _BROUGHT_ABOUT as failed:  # this segment is out of use, and not the table
                log.error(
                    "segment %s cannot be used (%s) and is left out, and what is whole of it could not be salvaged: %s; the"
                    " next start tries again, or %s", path, error, failed, _REPAIR,
                    exc_info=not isinstance(failed, (OSError, ReplayError)),
                )  # fmt: skip
                self.unused += [one for one, _ in damaged]
                return False
            for other, problem in damaged:
                self._set_aside(other, problem, kept=made.kept if other == path else 0)
            marks = "; the newest marks of sessions may be, too: a writer that sends again may store twice"
            log.error(
                "segment %s: %d of its chunks are kept, in %s, and %d are lost%s",
                path, made.kept, made.path.name, len(made.lost), marks if made.marks_lost else "",
            )  # fmt: skip
            return True
        for path, error in damaged:
            self._set_aside(path, error, kept=None if (path, error) in own else 0)
            log.error("segment %s: nothing of it could be salvaged; to look again, %s", path, _REPAIR)
        return False

    def _around(self, path: Path, at: int) -> Damaged:
        following = self._groups[at + 1] if at + 1 < len(self._groups) else []
        after = next((known for known in map(description_of, following) if known), None)
        before, stop = self.next if self._spans else None, _first(following) if following else NO_END
        return Damaged(path, _first([path]), stop, before, after, uncertain=not following)

    def _find_entries(self, episode_ids: set[int]) -> Mapping[int, EpisodeEntry]:
        """Gives records of episodes from the segments that were read, and from those after them."""
        found = {number: self.episodes[number] for number in episode_ids & self.episodes.keys()}
        for paths in islice(self._groups, len(self._spans) + 1, None):
            if episode_ids <= found.keys():
                break
            try:
                found = Salvage.entries_of(paths[0]) | found
            except OSError as error:
                log.warning("segment %s: its episodes cannot be read for now: %s", paths[0], error)
        return found

    def _set_aside(self, path: Path, error: StorageError, *, kept: int | None) -> Path:
        try:
            target = set_aside(path, self.name, self._uuid, kept, self._quarantine, self._system)
        except OSError as failed:
            raise disk_error(path, failed) from failed
        log.error("segment %s cannot be used and was moved to %s: %s", path, target, error)
        return target

    def _skip_lost(self, firsts: set[int]) -> None:
        """Skips what may have been given out in segments that are lost at the end, so that none of it is given out again.

        `firsts`: their first chunk ids. What they tell counts, too: a merged segment stands for more than one that is not.
        """
        segments, given = len(firsts), max(firsts, default=0) - self.next["first_chunk_id"]
        head, _ = StateFiles(self._path, self._scratch, self._system).bounds()
        vanished = max(0, head - self.next["next_position"]) if not segments else 0
        if vanished:
            log.warning(
                "table %s: its newest segments are gone: by saved state, %d steps more were there, up to position %d",
                self.name, vanished, head,
            )  # fmt: skip
        if count := segments or bool(vanished):
            most_episodes = (self._segment_bytes + ROOM) // MIN_EPISODE_BYTES
            skipped = {"first_chunk_id": LOST, "next_position": LOST, "next_episode_id": most_episodes}
            self.ends = dict(self.next)
            known = {"first_chunk_id": given, "next_position": given * MAX_STEPS, "next_episode_id": given}
            self.next = {
                name: value + vanished + skipped[name] + max((count - 1) * skipped[name], known[name])
                for name, value in self.next.items()
            }
        if vanished:
            self.lost.append(Gap(self.ends["first_chunk_id"], self.next["first_chunk_id"]))

    def _look_for_gaps(self, aside: list[int]) -> None:
        known = Gone(self._path, self._scratch, self._system).load()
        found = gaps(sorted(self._spans))
        told = [*aside, *(_first([path]) for path in self.unused)]
        self.lost = [*lost(found, known, told, removes=removes(self._path)), *self.lost]
        self.meant = [gap for gap in found if gap not in self.lost]
        self.missing = [*aside, *(_first([path]) for path in self.unused), *(gap.start for gap in self.lost)]
        if self.lost:
            log.warning(
                "table %s: segments are gone, and nobody removed them: chunks %s; `replaysvc fsck` tells more",
                self.name, ", ".join(f"{gap.start} to {gap.stop - 1}" for gap in self.lost[:5]),
            )  # fmt: skip


def find_segments(table: Path) -> list[list[Path]]:
    """Returns the paths of segments in order of their ids, those of one id from the last compacted to the first."""
    found: dict[int, list[tuple[int, Path]]] = {}
    for path in table.glob("seg-*"):
        if name := NAME.fullmatch(path.name):
            found.setdefault(int(name[1]), []).append((int(name[2] or 0), path))
        else:
            log.error("%s is no segment, and is left alone", path)
    return [[path for _, path in sorted(found[number], reverse=True)] for number in sorted(found)]


def removes(table: Path) -> bool:
    """Returns whether steps may have been removed from the middle of a table: episodes were deleted, or there are holes."""
    holes = StateFiles(table, table, System()).read("holes") if (table / "state" / "holes").exists() else None
    return any((table / name).exists() for name in COPIES) or len(holes or b"") > _HEAD_OF_HOLES


def _first(paths: list[Path]) -> int:
    return int(paths[0].name[4:24])
