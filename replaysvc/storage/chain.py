"""The segments of a table in order of their chunk ids: reading from them, and taking them out while others read."""

import bisect
import contextlib
import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from replaysvc.errors import ChunkCorruptError, StorageError
from replaysvc.storage.records import EpisodeEntry
from replaysvc.storage.segment import Segment
from replaysvc.storage.system import System
from replaysvc.types import Array

log = logging.getLogger(__name__)


class Chain:
    """Open segments. Reading is thread-safe; changes belong to one thread."""

    def __init__(self, name: str, trash: Path, system: System) -> None:
        self._name, self._trash, self._system = name, trash, system
        self._lock = threading.Lock()
        self._segments: list[Segment] = []
        self._first_ids = np.empty(0, np.int64)
        self.remains = False  # what is out of use could not be moved away, and a restart would load it again

    @property
    def segments(self) -> list[Segment]:
        """Returns the segments, oldest first."""
        with self._lock:
            return list(self._segments)

    @property
    def disk_bytes(self) -> int:
        """Returns the bytes that the segments take."""
        return sum(allocated(segment.path) for segment in self.segments)

    @property
    def fault(self) -> str:
        """Returns why the newest segment takes no more data until the service restarts, "" if it does."""
        segments = self.segments
        return segments[-1].fault if segments else ""

    @property
    def oldest_chunk_id(self) -> int:
        """Returns the id below which a restart finds no chunk."""
        segments = self.segments
        return int(segments[0].meta["first_chunk_id"]) if segments and not self.remains else 0

    def read(self, ids: Array) -> list[bytes | None]:
        """Returns the bytes of chunks, None for one that is gone. One short transaction a segment, in key order.

        What stands on a damaged page is gone, too.

        Raises:
          StorageError: a segment cannot be read now, which says nothing of what it holds.
        """
        found: list[bytes | None] = [None] * len(ids)
        with self._lock:
            segments, first_ids = list(self._segments), self._first_ids
        order = np.argsort(ids, kind="stable")
        owner = np.searchsorted(first_ids, ids[order], side="right") - 1
        for number in np.unique(owner).tolist():
            if number < 0:
                continue
            places = order[owner == number].tolist()
            for place, data in zip(places, self._read_segment(segments[number], ids[places]), strict=True):
                found[place] = data
        return found

    def _read_segment(self, segment: Segment, ids: Array) -> list[bytes | None]:
        try:
            return segment.read(ids.tolist())
        except StorageError as error:
            if segment not in self.segments:  # removed, or compacted, since the list was taken
                return self.read(ids)
            if not isinstance(error, ChunkCorruptError):
                raise
            if len(ids) > 1:  # the others may well be there
                return [data for place in range(len(ids)) for data in self._read_segment(segment, ids[place : place + 1])]
            log.error("segment %s: chunk %d cannot be read: %s", segment.path, int(ids[0]), error)
            return [None]

    def read_episode_entry(self, episode_id: int) -> EpisodeEntry | None:
        """Returns an episode's entry: from the segment in which it began, or a later one if that was removed."""
        segments = self.segments
        born = bisect.bisect_right([int(segment.meta["next_episode_id"]) for segment in segments], episode_id) - 1
        for segment in segments[max(born, 0) :]:
            try:
                entry = segment.read_episode_entry(episode_id)
            except StorageError:
                if segment not in self.segments:
                    return self.read_episode_entry(episode_id)
                raise
            if entry is not None:
                return entry
        return None

    def count_before(self, chunk_id: int) -> int:
        """Returns how many segments hold only chunks before `chunk_id`."""
        return max(0, int(np.searchsorted(self._first_ids, chunk_id, side="right")) - 1)

    def remove_before(self, chunk_id: int) -> int:
        """Removes the segments that hold only chunks before `chunk_id`. Returns how many."""
        count = self.count_before(chunk_id)
        self.replace(self.segments[:count], [])
        return count

    def replace(self, gone: Sequence[Segment], new: Sequence[Segment]) -> int:
        """Takes segments out of the chain, and others in; removes the former. Returns the bytes that these took."""
        with self._lock:
            kept = [segment for segment in self._segments if segment not in gone]
            self._segments = sorted([*kept, *new], key=lambda segment: int(segment.meta["first_chunk_id"]))
            self._first_ids = np.array([int(segment.meta["first_chunk_id"]) for segment in self._segments], np.int64)
        freed = 0
        for segment in gone:
            segment.close()
            freed += self.discard(segment.path)
        return freed

    def discard(self, path: Path) -> int:
        """Removes a segment that is out of use; returns the bytes that it took."""
        self._system.crashpoint("remove.before_rename")
        target, size = self._trash / f"{self._name}-{path.name}", allocated(path)
        try:
            self._system.rename(path, target)
            self._system.crashpoint("remove.after_rename")
            self._system.remove_tree(target)
        except OSError as error:  # what was appended is durable whatever becomes of old files; a restart tries again
            log.error("segment %s could not be removed: %s", path, error)
            self.remains |= path.exists()
            return 0
        return size

    def close(self) -> None:
        """Closes all segments."""
        with self._lock:
            gone, self._segments = self._segments, []
            self._first_ids = np.empty(0, np.int64)
        for segment in gone:
            segment.close()


def allocated(segment: Path) -> int:
    """Returns the bytes that a segment takes on the disk."""
    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
        return (segment / "data.mdb").stat().st_blocks * 512
    return 0
