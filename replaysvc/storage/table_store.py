"""The chunks of one table on disk: a chain of segments, the last of which is appended to."""

import bisect
import contextlib
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from replaysvc.errors import ChunkCorruptError, StorageError
from replaysvc.storage.filesystem import Filesystem
from replaysvc.storage.records import INDEX_DTYPE, EpisodeEntry
from replaysvc.storage.segment import FORMAT, ROOM, Segment
from replaysvc.types import Array

log = logging.getLogger(__name__)

MAX_SESSIONS = 65_536  # marks carried into a new segment: the most recent ones, no older than a day
_SESSION_AGE_S = 86_400.0
_LOST = 1 << 32  # chunk ids and positions skipped for each lost segment at the end, so that none is given out twice
_MIN_EPISODE_BYTES = 256  # entry, a chunk of two columns and its index record: bounds the episodes of a lost segment
_ENDED = 3  # flags of a chunk that ends its episode


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """All that start-up needs to know of a table: index records (oldest first), episodes, sessions, and the next ids."""

    index: Array
    episodes: list[EpisodeEntry]
    sessions: dict[bytes, int]
    next_chunk_id: int
    next_position: int
    next_episode_id: int


class TableStore:
    """One table's directory. Reading is thread-safe; `append` and `remove_before` belong to the committer's thread."""

    def __init__(
        self, path: Path, scratch: Path, trash: Path, quarantine: Path, filesystem: Filesystem, *, clock: Callable[[], float]
    ) -> None:
        description = json.loads((path / "table.json").read_bytes())
        self.name: str = description["name"]
        self.description: dict[str, Any] = description["description"]
        self._uuid: str = description["uuid"]
        self._segment_bytes: int = description["segment_bytes"]
        self._path, self._scratch, self._trash, self._quarantine = path, scratch, trash, quarantine
        self._filesystem, self._clock = filesystem, clock
        self._lock = threading.Lock()
        self._segments: list[Segment] = []
        self._first_ids = np.empty(0, np.int64)
        self._open_episodes: dict[int, EpisodeEntry] = {}
        self._in_active: set[int] = set()  # open episodes whose entry the active segment holds
        self._sessions: dict[bytes, tuple[int, float]] = {}
        self._next = {"first_chunk_id": 0, "next_position": 0, "next_episode_id": 0}
        self.quarantined_segments = self.damaged_records = 0

    @property
    def segment_count(self) -> int:
        """Returns how many segments are on disk."""
        return len(self._segments)

    @property
    def disk_bytes(self) -> int:
        """Returns the bytes that the table's files take."""
        with self._lock:
            paths = [segment.path / "data.mdb" for segment in self._segments]
        total = 0
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                total += path.stat().st_blocks * 512
        return total

    def load(self) -> LoadedTable:
        """Opens all segments and returns what their index, episode and session records say; reads no chunk.

        A damaged segment is moved to `quarantine/`, and the others go on.

        Raises:
          StorageError: a segment cannot be opened for another reason, such as too many open files; nothing was moved.
        """
        episodes: dict[int, EpisodeEntry] = {}
        indexes = []
        lost = 0  # segments after the last good one
        for path in sorted(self._path.glob("seg-*")):
            try:
                index, entries, marks = self._load_segment(path)
            except ChunkCorruptError as error:
                self._set_aside(path, error)
                lost += 1
                continue
            lost = 0
            indexes.append(index)
            episodes |= {entry.episode_id: entry for entry in entries}
            for session_id, mark in marks.items():
                self._sessions[session_id] = max(mark, self._sessions.get(session_id, (-1, 0.0)))
        if lost:
            most_episodes = (self._segment_bytes + ROOM) // _MIN_EPISODE_BYTES
            skipped = {"first_chunk_id": _LOST, "next_position": _LOST, "next_episode_id": most_episodes}
            self._next = {name: value + lost * skipped[name] for name, value in self._next.items()}
        index = np.concatenate(indexes) if indexes else np.empty(0, INDEX_DTYPE)
        self._renumber()
        ended = set(index["episode_id"][(index["flags"] & _ENDED) != 0].tolist())
        self._open_episodes = {number: entry for number, entry in episodes.items() if number not in ended}
        if self._segments and not self._segments[-1].sealed:
            self._in_active = {entry.episode_id for entry in self._segments[-1].load_episodes()[0]}
        return LoadedTable(
            index, [episodes[number] for number in sorted(episodes)], {key: mark[0] for key, mark in self._sessions.items()},
            self._next["first_chunk_id"], self._next["next_position"], self._next["next_episode_id"],
        )  # fmt: skip

    def _load_segment(self, path: Path) -> tuple[Array, list[EpisodeEntry], dict[bytes, tuple[int, float]]]:
        """Opens a segment and takes it into the chain; returns its index, episodes and sessions."""
        segment = Segment(path, self._filesystem, self._segment_bytes)
        try:
            if segment.meta["table"] != self._uuid:
                raise ChunkCorruptError(f"segment {path}: it belongs to another table")
            index, damaged = segment.load_index()
            entries, damaged_entries = segment.load_episodes()
            marks, damaged_marks = segment.load_sessions()
            self._advance(index, segment.meta)
            self._advance_past_damage(index, segment)
        except StorageError:
            segment.close()
            raise
        self._segments.append(segment)
        if damaged := damaged + damaged_entries + damaged_marks:
            self.damaged_records += damaged
            log.error("segment %s: %d damaged records are left out", path, damaged)
        return index, entries, marks

    def _advance(self, index: Array, meta: Mapping[str, Any]) -> None:
        self._next = {name: max(value, int(meta[name])) for name, value in self._next.items()}
        if len(index):
            last = index[-1]
            ends = (int(last["chunk_id"]) + 1, int(last["position"] + last["n_steps"]), int(index["episode_id"].max()) + 1)
            self._next = {name: max(value, end) for (name, value), end in zip(self._next.items(), ends, strict=True)}

    def _advance_past_damage(self, index: Array, segment: Segment) -> None:
        """Moves the next ids past those whose records are damaged: keys tell what was given out, chunks how long they are."""
        last_chunk_id, last_episode_id = segment.last_key(b"index"), segment.last_key(b"episodes")
        last_good = int(index["chunk_id"][-1]) if len(index) else int(segment.meta["first_chunk_id"]) - 1
        if last_chunk_id > last_good:
            self._next["first_chunk_id"] = max(self._next["first_chunk_id"], last_chunk_id + 1)
            self._next["next_position"] += segment.steps_after(last_good)
        self._next["next_episode_id"] = max(self._next["next_episode_id"], last_episode_id + 1)

    def _set_aside(self, path: Path, error: StorageError) -> None:
        self.quarantined_segments += 1
        target = self._quarantine / f"{self.name}-{path.name}"
        while target.exists():  # a table of the same name was there before
            target = target.with_name(f"{target.name}-again")
        log.error("segment %s cannot be used and is moved to %s: %s", path, target, error)
        self._filesystem.rename(path, target)

    def _renumber(self) -> None:
        self._first_ids = np.array([int(segment.meta["first_chunk_id"]) for segment in self._segments], np.int64)

    def append(
        self, index: Array, chunks: Sequence[bytes], episodes: Sequence[EpisodeEntry], sessions: Mapping[bytes, int]
    ) -> None:
        """Stores chunks with their index records, the entries of new episodes and the sessions' marks: all, durably, or none.

        Raises:
          CapacityError: the disk is full; may succeed later. StorageError: any other failure.
        """
        now = self._clock()
        marks = {session_id: (sequence, now) for session_id, sequence in sessions.items()}
        segment = self._active()
        new = {entry.episode_id: entry for entry in episodes}
        touched = np.unique(index["episode_id"]).tolist()
        elsewhere = (number for number in touched if number not in self._in_active)
        carried = [self._open_episodes[number] for number in elsewhere if number in self._open_episodes]
        segment.append(index, chunks, [*carried, *episodes], marks)
        self._sessions |= marks
        self._open_episodes |= new
        self._in_active |= set(touched)
        for number in index["episode_id"][(index["flags"] & _ENDED) != 0].tolist():
            self._open_episodes.pop(number, None)
            self._in_active.discard(number)
        self._advance(index, self._next)

    def _active(self) -> Segment:
        """Returns the segment to append to, after sealing a full one and making the next."""
        if self._segments and not self._segments[-1].sealed:
            active = self._segments[-1]
            # one that holds no chunk goes on though the marks of many sessions fill it: the next would have the same name
            if not active.full or active.meta["first_chunk_id"] == self._next["first_chunk_id"]:
                return active
            active.seal(self._next)
        meta = {"format": FORMAT, "table": self._uuid, **self._next}
        path = self._path / f"seg-{self._next['first_chunk_id']:020d}"
        segment = Segment.create(path, self._scratch, self._filesystem, self._segment_bytes, meta, self._recent_sessions())
        with self._lock:
            self._segments.append(segment)
            self._renumber()
        self._in_active = set()
        return segment

    def _recent_sessions(self) -> dict[bytes, tuple[int, float]]:
        oldest = self._clock() - _SESSION_AGE_S
        recent = [item for item in self._sessions.items() if item[1][1] >= oldest]
        self._sessions = dict(sorted(recent, key=lambda item: item[1][1])[-MAX_SESSIONS:])
        return self._sessions

    def read(self, chunk_ids: Array) -> list[bytes | None]:
        """Returns the bytes of chunks, None for one that is gone. One short transaction a segment, in key order."""
        ids = np.asarray(chunk_ids, np.int64)
        found: list[bytes | None] = [None] * len(ids)
        with self._lock:
            segments, first_ids = list(self._segments), self._first_ids
        order = np.argsort(ids, kind="stable")
        owner = np.searchsorted(first_ids, ids[order], side="right") - 1
        for number in np.unique(owner).tolist():
            if number < 0:
                continue
            places = order[owner == number].tolist()
            for place, data in zip(places, self._read_segment(segments[number], ids[places].tolist()), strict=True):
                found[place] = data
        return found

    def _read_segment(self, segment: Segment, ids: list[int]) -> list[bytes | None]:
        try:
            return segment.read(ids)
        except StorageError as error:
            if segment not in self._segments:  # removed since the list was taken
                return [None] * len(ids)
            log.error("segment %s cannot be read: %s", segment.path, error)
            return [None] * len(ids)

    def read_episode_entry(self, episode_id: int) -> EpisodeEntry | None:
        """Returns an episode's entry: from the segment in which it began, or a later one if that was removed."""
        with self._lock:
            segments = list(self._segments)
        born = bisect.bisect_right([int(segment.meta["next_episode_id"]) for segment in segments], episode_id) - 1
        found = (segment.read_episode_entry(episode_id) for segment in segments[max(born, 0) :])
        return next((entry for entry in found if entry is not None), None)

    def remove_before(self, chunk_id: int) -> int:
        """Removes the segments that hold only chunks before `chunk_id`; the disk space returns. Returns how many."""
        with self._lock:
            count = max(0, int(np.searchsorted(self._first_ids, chunk_id, side="right")) - 1)
            gone, self._segments = self._segments[:count], self._segments[count:]
            self._renumber()
        for segment in gone:
            segment.close()
            self._filesystem.crashpoint("remove.before_rename")
            target = self._trash / f"{self.name}-{segment.path.name}"
            try:
                self._filesystem.rename(segment.path, target)
                self._filesystem.crashpoint("remove.after_rename")
                self._filesystem.remove_tree(target)
            except OSError as error:  # what was appended is durable whatever becomes of old files; a restart tries again
                log.error("segment %s could not be removed: %s", segment.path, error)
        return len(gone)

    def close(self) -> None:
        """Closes all segments."""
        with self._lock:
            gone, self._segments = self._segments, []
            self._renumber()
        for segment in gone:
            segment.close()
