"""The chunks of one table on disk: a chain of segments, the last of which is appended to."""

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from replaysvc.errors import CapacityError, ChunkCorruptError, ReplayError, StorageError
from replaysvc.storage.chain import Chain
from replaysvc.storage.compaction import Plan, build_compacted, make_plan
from replaysvc.storage.deletions import COPIES, Deletions
from replaysvc.storage.quarantine import LIST, Quarantine
from replaysvc.storage.records import INDEX_DTYPE, NEXT_IDS, EpisodeEntry
from replaysvc.storage.segment import FORMAT, NO_EPISODE, ROOM, Segment
from replaysvc.storage.state import StateFiles, write_state_files
from replaysvc.storage.system import System, disk_error
from replaysvc.types import Array

log = logging.getLogger(__name__)

MAX_SESSIONS = 65_536  # marks carried into a new segment: those used last, whatever a clock says
_LOST = 1 << 32  # chunk ids and positions skipped for each lost segment at the end, so that none is given out twice
_MIN_EPISODE_BYTES = 256  # entry, a chunk of two columns and its index record: bounds the episodes of a lost segment
_NAME = re.compile(r"seg-(\d{20})(?:\.(\d+))?")  # of a segment: its first chunk id, and how often it was compacted
_ENDED = 3  # flags of a chunk that ends its episode


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """All that start-up needs to know of a table: index records (oldest first), episodes, sessions, and the next ids.

    Nothing of deleted episodes is in `index` and `episodes`. `damaged` are ids of chunks in `index` that cannot be read.
    """

    index: Array
    episodes: list[EpisodeEntry]
    sessions: dict[bytes, int]
    next_chunk_id: int
    next_position: int
    next_episode_id: int
    deleted: Array
    damaged: Array


class TableStore:
    """One table's directory. Reading is thread-safe; state files are for one thread at a time, all else is the committer's."""

    def __init__(
        self,
        path: Path,
        scratch: Path,
        trash: Path,
        quarantine: Path,
        system: System,
        *,
        raise_format: Callable[[], None],
    ) -> None:
        description = json.loads((path / "table.json").read_bytes())
        self.name: str = description["name"]
        self.description: dict[str, Any] = description["description"]
        self._uuid: str = description["uuid"]
        self._segment_bytes: int = description["segment_bytes"]
        self._path, self._scratch, self._quarantine = path, scratch, quarantine
        self._system = system
        self._chain = Chain(self.name, trash, system)
        self._open_episodes: dict[int, EpisodeEntry] = {}
        self._in_active: set[int] = set()  # open episodes whose entry the active segment holds
        self._sessions: dict[bytes, tuple[int, float]] = {}  # in order of their last use
        self._states = StateFiles(path, scratch, system)
        self._damaged = Quarantine(path, quarantine, scratch, system)
        self._deletions = Deletions(path, scratch, system, raise_format)
        self._raise_format = raise_format
        self._loaded = False
        self._not_compactable: set[Path] = set()
        self._next = dict.fromkeys(NEXT_IDS, 0)
        self.quarantined_segments = self.damaged_records = 0

    @property
    def segment_count(self) -> int:
        """Returns how many segments are on disk."""
        return len(self._chain.segments)

    @property
    def disk_bytes(self) -> int:
        """Returns the bytes that the table's files take."""
        return self._chain.disk_bytes

    @property
    def fault(self) -> str:
        """Returns why no append can succeed until the service restarts, "" if one may."""
        return self._system.fault or self._chain.fault

    @property
    def quarantined_chunks(self) -> int:
        """Returns how many chunks are known to be damaged."""
        return self._damaged.count

    def quarantine_chunk(self, chunk_id: int, reason: str) -> None:
        """Notes, durably, that a chunk is damaged, and keeps a copy of what can be read of it. Thread-safe, does not raise."""
        try:
            (data,) = self._chain.read(np.array([chunk_id], np.int64))
        except StorageError:
            data = None
        self._damaged.add(chunk_id, data, reason, oldest=self._chain.oldest_chunk_id)

    def load(self) -> LoadedTable:
        """Opens all segments and returns what their index, episode and session records say; reads no chunk.

        A damaged segment is moved to `quarantine/`, and the others go on.

        Raises:
          StorageError: a segment cannot be opened for another reason, such as too many open files; nothing was moved.
          ChunkCorruptError: it cannot be known which episodes are deleted.
        """
        deleted = self._deletions.load()
        episodes: dict[int, EpisodeEntry] = {}
        indexes = []
        lost = 0  # segments after the last good one
        for paths in self._find_segments():
            loaded = self._load_newest(paths)
            if loaded is None:
                lost += 1
                continue
            index, entries, marks = loaded
            lost = 0
            indexes.append(index)
            episodes |= {entry.episode_id: entry for entry in entries}
            for session_id, mark in sorted(marks.items(), key=lambda item: item[1][1]):
                self._sessions[session_id] = max(mark, self._sessions.pop(session_id, (-1, 0.0)))
        if lost:
            most_episodes = (self._segment_bytes + ROOM) // _MIN_EPISODE_BYTES
            skipped = {"first_chunk_id": _LOST, "next_position": _LOST, "next_episode_id": most_episodes}
            self._next = {name: value + lost * skipped[name] for name, value in self._next.items()}
        index = np.concatenate(indexes) if indexes else np.empty(0, INDEX_DTYPE)
        index = index[~np.isin(index["episode_id"], deleted)]
        gone = set(deleted.tolist())
        episodes = {number: entry for number, entry in episodes.items() if number not in gone}
        self._loaded = True
        ended = set(index["episode_id"][(index["flags"] & _ENDED) != 0].tolist())
        self._open_episodes = {number: entry for number, entry in episodes.items() if number not in ended}
        segments = self._chain.segments
        if segments and not segments[-1].sealed:
            self._in_active = {entry.episode_id for entry in segments[-1].load_episodes()[0]}
        if lost:  # a segment of the next ids keeps them from being given out again after the next start
            try:
                if segments and not segments[-1].sealed:
                    segments[-1].seal(self._next)
                self._make_active()
            except (CapacityError, StorageError) as error:
                log.error("table %s: no segment could be made after a lost one: %s", self.name, error)
        return LoadedTable(
            index, [episodes[number] for number in sorted(episodes)], {key: mark[0] for key, mark in self._sessions.items()},
            self._next["first_chunk_id"], self._next["next_position"], self._next["next_episode_id"], deleted,
            self._damaged.load(),
        )  # fmt: skip

    def _find_segments(self) -> list[list[Path]]:
        """Returns the paths of segments in order of their ids, those of one id from the last compacted to the first."""
        found: dict[int, list[tuple[int, Path]]] = {}
        for path in self._path.glob("seg-*"):
            if name := _NAME.fullmatch(path.name):
                found.setdefault(int(name[1]), []).append((int(name[2] or 0), path))
            else:
                log.error("%s is no segment, and is left alone", path)
        return [[path for _, path in sorted(found[number], reverse=True)] for number in sorted(found)]

    def _load_newest(self, paths: list[Path]) -> tuple[Array, list[EpisodeEntry], dict[bytes, tuple[int, float]]] | None:
        """Loads the first whole one of segments with the same chunks; removes those after it."""
        for i, path in enumerate(paths):
            try:
                loaded = self._load_segment(path)
            except ChunkCorruptError as error:
                self._set_aside(path, error)
                continue
            for older in paths[i + 1 :]:
                self._chain.discard(older)
            return loaded
        return None

    def _load_segment(self, path: Path) -> tuple[Array, list[EpisodeEntry], dict[bytes, tuple[int, float]]]:
        """Opens a segment and takes it into the chain; returns its index, episodes and sessions."""
        segment = Segment(path, self._system, self._segment_bytes)
        try:
            if segment.meta["table"] != self._uuid:
                raise ChunkCorruptError(f"segment {path}: it belongs to another table")
            index, damaged = segment.load_index()
            entries, damaged_entries = segment.load_episodes()
            marks, damaged_marks = segment.load_sessions()
            self._advance(index, segment.meta)
            self._advance_past_damage(index, segment)
            self._advance(index[:0], {**self._next, **segment.footer})
        except StorageError:
            segment.close()
            raise
        self._chain.replace([], [segment])
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
        try:
            self._system.rename(path, target)
        except OSError as failed:
            raise disk_error(path, failed) from failed

    def append(
        self, index: Array, chunks: Sequence[bytes], episodes: Sequence[EpisodeEntry], sessions: Mapping[bytes, int]
    ) -> None:
        """Stores chunks with their index records, the entries of new episodes and the sessions' marks: all, durably, or none.

        Raises:
          CapacityError: the disk is full; may succeed later. StorageError: any other failure.
        """
        self._system.admit(sum(map(len, chunks)))
        now = self._system.time()
        marks = {session_id: (sequence, now) for session_id, sequence in sessions.items()}
        segment = self._active()
        new = {entry.episode_id: entry for entry in episodes}
        touched = np.unique(index["episode_id"]).tolist()
        elsewhere = (number for number in touched if number not in self._in_active)
        carried = [self._open_episodes[number] for number in elsewhere if number in self._open_episodes]
        segment.append(index, chunks, [*carried, *episodes], marks)
        for session_id, mark in marks.items():
            self._sessions.pop(session_id, None)
            self._sessions[session_id] = mark
        self._open_episodes |= new
        self._in_active |= set(touched)
        for number in index["episode_id"][(index["flags"] & _ENDED) != 0].tolist():
            self._open_episodes.pop(number, None)
            self._in_active.discard(number)
        self._advance(index, self._next)

    def end_episodes(self, episode_ids: Iterable[int]) -> None:
        """Forgets open episodes that get no more steps: their entries need not be carried into the next segments."""
        for number in episode_ids:
            self._open_episodes.pop(number, None)
            self._in_active.discard(number)

    def _active(self) -> Segment:
        """Returns the segment to append to, after sealing a full one and making the next."""
        segments = self._chain.segments
        if segments and not segments[-1].sealed:
            active = segments[-1]
            # one that holds no chunk goes on though the marks of many sessions fill it: the next would have the same name
            if not active.full or active.meta["first_chunk_id"] == self._next["first_chunk_id"]:
                return active
            active.seal(self._next)
        return self._make_active()

    def _make_active(self) -> Segment:
        """Makes the segment that begins with the next ids, and appends to it from now on."""
        meta = {"format": FORMAT, "table": self._uuid, **self._next}
        path = self._path / f"seg-{self._next['first_chunk_id']:020d}"
        segment = Segment.create(path, self._scratch, self._system, self._segment_bytes, meta, self._recent_sessions())
        self._chain.replace([], [segment])
        self._in_active = set()
        return segment

    def _recent_sessions(self) -> dict[bytes, tuple[int, float]]:
        self._sessions = dict(list(self._sessions.items())[-MAX_SESSIONS:])
        return self._sessions

    def sealed_segments(self) -> list[Path]:
        """Returns the directories of the sealed segments, oldest first: nothing in them changes any more."""
        return [segment.path for segment in self._chain.segments if segment.sealed]

    def read(self, chunk_ids: Array) -> list[bytes | None]:
        """Returns the bytes of chunks, None for one that is gone. One short transaction a segment, in key order."""
        return self._chain.read(np.asarray(chunk_ids, np.int64))

    def read_episode_entry(self, episode_id: int) -> EpisodeEntry | None:
        """Returns an episode's entry: from the segment in which it began, or a later one if that was removed."""
        return self._chain.read_episode_entry(episode_id)

    def count_before(self, chunk_id: int) -> int:
        """Returns how many segments `remove_before` would remove."""
        return self._chain.count_before(chunk_id)

    def remove_before(self, chunk_id: int) -> int:
        """Removes the segments that hold only chunks before `chunk_id`; the disk space returns. Returns how many."""
        return self._chain.remove_before(chunk_id)

    def reclaim(self, live: Array) -> int:
        """Removes sealed segments without a live chunk, and compacts the emptiest if less than half of its bytes are live.

        Every id in `live`, sorted, stays readable; ids and positions stay as they are. What fails is logged and tried again
        by the next call. Returns the bytes that the disk got back.
        """
        live = np.asarray(live, np.int64)
        try:
            plan = make_plan(self._chain.segments, live, lambda segment: segment.path in self._not_compactable)
        except StorageError as error:
            log.error("table %s: no space is reclaimed: %s", self.name, error)
            return 0
        freed = self._chain.replace(plan.empty, [])
        return freed if plan.sparse is None else freed + self._compact(plan.sparse, plan)

    def _compact(self, old: Segment, plan: Plan) -> int:
        first = f"seg-{old.meta['first_chunk_id']:020d}"
        taken = [int(name[2] or 0) for path in self._path.glob(f"{first}*") if (name := _NAME.fullmatch(path.name))]
        target = self._path / f"{first}.{max(taken) + 1}"
        build = self._scratch / f"{self.name}-{target.name}"
        try:
            self._raise_format()
            oldest = build_compacted(old, plan, build, self._system, self._segment_bytes)
            self._system.crashpoint("compact.built")
            self._system.rename(build, target)
            self._system.crashpoint("compact.renamed")
            new = Segment(target, self._system, self._segment_bytes)
        except (OSError, ReplayError) as error:
            log.error("segment %s could not be compacted: %s", old.path, error)
            if isinstance(error, ChunkCorruptError):
                self._not_compactable.add(old.path)
            self._chain.remains |= target.exists()
            with contextlib.suppress(OSError):
                self._system.remove_tree(build)
            return 0
        new.oldest_episode = oldest
        return self._chain.replace([old], [new]) - new.used_bytes

    def delete_episodes(self, episode_ids: Sequence[int] | Array) -> None:
        """Notes, durably, that episodes are deleted: they are not loaded again. Ids that were not given out yet are ignored.

        Raises:
          CapacityError, StorageError: the disk; whether the episodes are deleted is seen at the next start.
        """
        ids = np.asarray(episode_ids, np.int64)
        oldest = min((segment.oldest_episode for segment in self._chain.segments), default=NO_EPISODE)
        self._deletions.add(ids[ids < self._next["next_episode_id"]], 0 if self._chain.remains else oldest)

    def write_state(self, name: str, data: bytes) -> None:
        """Keeps `data`, durably, in place of what had the name before. Raises CapacityError, StorageError."""
        self._states.write({name: data})

    def write_states(self, states: Mapping[str, bytes]) -> None:
        """The same for many names: each is replaced whole, but not all at once."""
        self._states.write(states)

    def read_state(self, name: str) -> bytes | None:
        """Returns what was written, None if there is nothing, or nothing whole."""
        return self._states.read(name)

    def state_names(self) -> list[str]:
        """Returns the names of what was written."""
        return self._states.names()

    def drop_state(self, name: str) -> None:
        """Removes what was written, if it is there. Raises StorageError."""
        self._states.drop(name)

    def copy_to(self, target: Path, states: Mapping[str, bytes]) -> None:
        """Copies the table, durably, into a new directory, with `states` in place of its own. Nothing may be written meanwhile.

        Raises:
          OSError, CapacityError, StorageError: the disk.
        """
        if not self._loaded:
            raise StorageError(f"table {self.name}: expected it to be loaded before it is copied")
        target.mkdir(mode=0o700)
        for name in ("table.json", *COPIES, LIST):
            if (self._path / name).exists():
                self._system.copy(self._path / name, target / name)
        for segment in self._chain.segments:
            directory = target / segment.path.name
            directory.mkdir(mode=0o700)
            segment.copy_to(directory)
        write_state_files(target / "state", states, self._system)
        self._system.fsync_directory(target)

    def close(self) -> None:
        """Closes all segments."""
        self._chain.close()
