"""What the parts of a table share: the one lock, and all that it guards."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from replaysvc.cache import Cache
from replaysvc.codec import ChunkDecoder, DecodedChunk, DecodedGroup
from replaysvc.config import TableConfig
from replaysvc.errors import ReplayError
from replaysvc.index.chunk_links import NONE
from replaysvc.index.table_index import DELETED, TableIndex
from replaysvc.limiter import LimiterState
from replaysvc.sampling.drawing import Samplers
from replaysvc.spec import Signature
from replaysvc.storage import TableStore
from replaysvc.table.actors import Actors
from replaysvc.table.counting import Counting
from replaysvc.table.leases import Leases
from replaysvc.table.staging import EpisodeName, OpenEpisode
from replaysvc.types import Array

_COUNTS = (
    "items", "calls", "duplicates", "corrupt", "commits", "hits", "misses", "updates", "ignored_updates", "deleted_episodes",
    "lost",
)  # fmt: skip


@dataclass(slots=True)
class Core:
    """The state of one table. `changed` is held around every use of what stands below it, and notified when that may let
    somebody go on who waits."""

    name: str
    signature: Signature
    config: TableConfig
    store: TableStore
    decoder: ChunkDecoder
    clock: Callable[[], float]
    changed: threading.Condition
    index: TableIndex
    cache: Cache
    samplers: Samplers
    limiter: LimiterState
    rng: np.random.Generator
    open_episodes: dict[EpisodeName, OpenEpisode]
    next_episode_id: int
    leases: Leases
    lost: dict[EpisodeName, int]  # ids of episodes that the service ended: their writers are refused
    next_end: int  # number of the next of these ends
    holes: Array  # int64 [n, 2], positions that had been taken out when the table was opened
    actors: Actors
    counting: Counting
    state_lock: threading.Lock = field(default_factory=threading.Lock)  # who writes state files; taken before `changed`
    starving: list[int] = field(default_factory=list)  # of each batch that waits for inserts, by the limiter, its size
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    ending: bool = False  # whether nobody waits for the limiter any more
    closed: ReplayError | None = None

    @property
    def has_holes(self) -> bool:
        """Returns whether steps were taken out of the middle, here or before the table was opened."""
        return bool(len(self.holes)) or bool((self.index.chunks["flags"] & DELETED).any())

    def check_open(self) -> None:
        """Raises why the table is closed, if it is."""
        if self.closed is not None:
            raise type(self.closed)(str(self.closed))

    def cache_chunk(self, ring: int, row: int, chunk: DecodedChunk) -> None:
        """Puts a decoded chunk into the cache."""
        if not self.cache.fits(chunk.columns):
            self.cache.widen_for(chunk.columns)
            self.index.forget_locations()
        place = self.cache.insert(ring, row, chunk.columns, chunk.header.info.n_steps)
        if place is not None:
            location, slot, overwritten = place
            gone = np.array(overwritten, np.int64).reshape(-1, 2)
            self._count_evicted(gone[:, 0])
            self.index.note_cached(np.array([row]), np.array([location]), np.array([slot]), gone[:, 0], gone[:, 1])

    def cache_group(self, ring: int, rows: Array, group: DecodedGroup) -> None:
        """Puts those of a group's chunks into the cache that are stored and not there; `rows` [chunks] are by the index."""
        order = group.order[rows[group.order] >= self.index.chunks.base]  # the others were removed meanwhile
        chunks = order[self.index.field("location", rows[order]) == NONE]
        if not chunks.size:
            return
        if not self.cache.fits(group.columns):
            self.cache.widen_for(group.columns)
            self.index.forget_locations()
        for placed in self.cache.insert_group(ring, rows, group, chunks):
            self._count_evicted(placed[3])
            self.index.note_cached(*placed)

    def _count_evicted(self, rows: Array) -> None:
        """Counts the chunks that made room in the cache, but for those that are not in the table any more."""
        if rows.size:
            self.counting.evictions += int(np.count_nonzero(rows >= self.index.chunks.base))

    def mark_dead(self, row: int) -> bool:
        """Leaves a chunk that cannot be read out of everything from now on; returns whether that is news."""
        before = self.index.live_steps
        if not self.index.mark_dead(row):
            return False
        self.counting.removed["damaged"] += before - self.index.live_steps
        self.samplers.take_out(np.array([row]), self.index.field("episode_id", [row]))
        return True
