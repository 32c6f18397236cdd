"""The chunks of one table on disk: a chain of segments, the last of which is appended to."""

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from replaysvc.errors import CapacityError, StorageError
from replaysvc.storage.chain import Chain
from replaysvc.storage.commit_times import CommitTimes
from replaysvc.storage.deletions import COPIES, Deletions
from replaysvc.storage.gone import LIST as REMOVED
from replaysvc.storage.loading import Loading, advance
from replaysvc.storage.quarantine import LIST, Quarantine
from replaysvc.storage.reclaiming import Reclaiming
from replaysvc.storage.records import MAX_SESSIONS, NEXT_IDS, EpisodeEntry
from replaysvc.storage.segment import FORMAT, NO_EPISODE, Segment
from replaysvc.storage.segment_views import SegmentViews
from replaysvc.storage.set_aside import held, unsalvaged
from replaysvc.storage.state import StateFiles, write_state_files
from replaysvc.storage.system import System
from replaysvc.types import Array
from replaysvc.views import TableStorage

log = logging.getLogger(__name__)

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
        raise_format: Callable[..., None],
    ) -> None:
        description = json.loads((path / "table.json").read_bytes())
        self.name: str = description["name"]
        self.description: dict[str, Any] = description["description"]
        self.uuid: str = description["uuid"]
        self._segment_bytes: int = description["segment_bytes"]
        self._path, self._scratch, self._quarantine = path, scratch, quarantine
        self._system = system
        self._chain = Chain(self.name, trash, system)
        self._times, self._views = CommitTimes(system.monotonic), SegmentViews(self._chain)
        self._open_episodes: dict[int, EpisodeEntry] = {}
        self._in_active: set[int] = set()  # open episodes whose entry the active segment holds
        self._sessions: dict[bytes, tuple[int, float]] = {}  # in order of their last use
        self._states = StateFiles(path, scratch, system)
        self._damaged = Quarantine(path, quarantine, scratch, system)
        self._deletions = Deletions(path, scratch, system, raise_format)
        self._raise_format = raise_format
        self._loaded = False
        self._unsalvaged = 0  # segments in quarantine of which what is whole may come back
        self._reclaiming = Reclaiming(path, self._segment_bytes, self._chain, scratch, system, raise_format)
        self._next = dict.fromkeys(NEXT_IDS, 0)
        self.quarantined_segments = self.damaged_records = self.lost_segments = 0

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

        What is whole of a damaged segment is put in its place, the damaged one is moved to `quarantine/`, and the others go on.

        Raises:
          StorageError: a segment cannot be opened for another reason, such as too many open files; nothing was moved.
          ChunkCorruptError: it cannot be known which episodes are deleted.
        """
        deleted = self._deletions.load()
        found = Loading(
            self._path, self.uuid, self._segment_bytes, self._chain, self._scratch, self._quarantine, self._system,
            self._raise_format,
        )  # fmt: skip
        found.run()
        self._next, self._sessions, self.damaged_records = found.next, found.sessions, found.damaged_records
        self._chain.remains |= bool(found.unused)
        self.lost_segments = len(found.lost)
        self._reclaiming.meant, self._reclaiming.missing = found.meant, found.missing
        index = np.concatenate(found.indexes)
        index = index[~np.isin(index["episode_id"], deleted)]
        gone = set(deleted.tolist())
        episodes = {number: entry for number, entry in found.episodes.items() if number not in gone}
        self._loaded = True
        ended = set(index["episode_id"][(index["flags"] & _ENDED) != 0].tolist())
        self._open_episodes = {number: entry for number, entry in episodes.items() if number not in ended}
        segments = self._chain.segments
        if segments and not segments[-1].sealed:
            self._in_active = {entry.episode_id for entry in segments[-1].load_episodes()[0]}
        if found.ends:
            self._go_on_after_loss(found.ends)
        self._tell_of_quarantine()
        return LoadedTable(
            index, [episodes[number] for number in sorted(episodes)], {key: mark[0] for key, mark in self._sessions.items()},
            self._next["first_chunk_id"], self._next["next_position"], self._next["next_episode_id"], deleted,
            self._damaged.load(),
        )  # fmt: skip

    def _go_on_after_loss(self, ends: Mapping[str, int]) -> None:
        """Makes a segment of the next ids, which keeps them from being given out again after the next start.

        The one before it is sealed after that, and with its own end: so what is lost in between stays to be seen.
        """
        segments = self._chain.segments
        try:
            self._make_active()
            if segments and not segments[-1].sealed:
                segments[-1].seal(ends)
        except (CapacityError, StorageError) as error:
            log.error("table %s: no segment could be made after a lost one: %s", self.name, error)

    def _tell_of_quarantine(self) -> None:
        aside = held(self._quarantine, self.name, self.uuid)
        left = len(unsalvaged(aside, {int(segment.meta["first_chunk_id"]) for segment in self._chain.segments}))
        self.quarantined_segments, self._unsalvaged = len(aside), left
        if aside:
            log.warning(
                "table %s: %d of its segments lie in quarantine, %d of which were not salvaged%s", self.name, len(aside), left,
                ": stop the service and run `replaysvc fsck --repair`" if left else "",
            )  # fmt: skip

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
        segment.append(index, chunks, [*carried, *episodes], marks, self._times)
        for session_id, mark in marks.items():
            self._sessions.pop(session_id, None)
            self._sessions[session_id] = mark
        self._open_episodes |= new
        self._in_active |= set(touched)
        for number in index["episode_id"][(index["flags"] & _ENDED) != 0].tolist():
            self._open_episodes.pop(number, None)
            self._in_active.discard(number)
        self._next = advance(self._next, index, {})

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
        meta = {"format": FORMAT, "table": self.uuid, **self._next}
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

    def told(self, live_chunk_ids: Callable[[], Array]) -> TableStorage:
        """Returns how the table lies on the disk. `live_chunk_ids` returns the sorted ids of the chunks that are in the table.

        Takes no lock that a commit holds while it writes; reads a page or two of each segment, of a sealed one only once.
        """
        return TableStorage(
            segments=self._views.views(np.asarray(live_chunk_ids(), np.int64)), readers=self._views.readers(),
            commit_s=self._times.whole, sync_s=self._times.sync, quarantined_chunks=self.quarantined_chunks,
            quarantined_segments=self.quarantined_segments, lost_segments=self.lost_segments,
        )  # fmt: skip

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
        """Removes sealed segments without a live chunk, and writes anew, alone or merged with others, those with most to win.

        Every id in `live`, sorted, stays readable; ids and positions stay as they are. What fails is logged and tried again
        by the next call. Returns the bytes that the disk got back.
        """
        return self._reclaiming.reclaim(np.asarray(live, np.int64))

    def delete_episodes(self, episode_ids: Sequence[int] | Array) -> None:
        """Notes, durably, that episodes are deleted: they are not loaded again. Ids that were not given out yet are ignored.

        Raises:
          CapacityError, StorageError: the disk; whether the episodes are deleted is seen at the next start.
        """
        ids = np.asarray(episode_ids, np.int64)
        oldest = min((segment.oldest_episode for segment in self._chain.segments), default=NO_EPISODE)
        # a segment out of use may come back, and what was deleted of it must not come with it
        keep_all = self._chain.remains or self._unsalvaged
        self._deletions.add(ids[ids < self._next["next_episode_id"]], 0 if keep_all else oldest)

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
        for name in ("table.json", *COPIES, LIST, REMOVED):
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
        self._damaged.close()
        self._chain.close()
