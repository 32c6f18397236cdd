"""What a table tells of its episodes: their records, and the stored chunks of one of them, as they lie on the disk.

Thread-safe. The lock is held to look at the index and never while chunks are read.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from replaysvc.checks import check_number, shown
from replaysvc.codec import checksum_of
from replaysvc.errors import ChunkCorruptError, NotFoundError, SpecMismatchError
from replaysvc.index.episode_list import list_episodes
from replaysvc.index.episode_records import episode_chunk_rows, first_stored_step, parse_metadata
from replaysvc.requests import EpisodeFilter
from replaysvc.table.core import Core
from replaysvc.types import Array, EpisodeRecord

_PIECE_BYTES = 4 << 20  # episodes are read in pieces of about this size


class Reading:
    """Reads episodes of one table. `note_damage`, of a chunk by its id, leaves it out of all that comes."""

    def __init__(self, core: Core, note_damage: Callable[[int, str], None]) -> None:
        self._core, self._note_damage = core, note_damage

    def episodes(
        self, limit: int, before_id: int | None, actor: str | None, closed_only: bool, where: EpisodeFilter | None = None
    ) -> list[EpisodeRecord]:
        """Returns the records of stored episodes that meet `where`, the newest first, with ids below `before_id`."""
        core = self._core
        limit = check_number("limit", limit, 1, 100_000)
        below: int | None = (1 << 63) - 1
        if before_id is not None:
            below = check_number("before_id", before_id, 0, (1 << 63) - 1)
        if where is not None and not isinstance(where, EpisodeFilter):
            raise SpecMismatchError("where", "an EpisodeFilter or None", shown(where))
        complete: list[EpisodeRecord] = []
        while len(complete) < limit and below is not None:
            with core.changed:
                core.check_open()
                records, below = list_episodes(core.index, limit - len(complete), below, actor, closed_only, where)
            for record in records:
                entry = core.store.read_episode_entry(record.episode_id)
                if entry is not None:  # else removed meanwhile, or what is told of it is lost
                    complete.append(replace(record, metadata=parse_metadata(entry.metadata)))
        return complete

    def episode_chunks(self, episode_id: int, start: int | None, stop: int | None) -> Iterator[list[bytes]]:
        """Yields the stored chunks that hold steps [start, stop) of an episode, in order, in pieces of about 4 MiB.

        `start` None: from its `first_step`. `cut_at` tells whether the last of them is where the service itself ended the
        episode.

        Raises:
          NotFoundError: no such episode, or it was removed meanwhile. InvalidRequestError: a range outside what is stored.
          ChunkCorruptError: some of these chunks are damaged; names the steps that can be read.
        """
        core, episode_id = self._core, check_number("episode_id", episode_id, 0, (1 << 63) - 1)
        if start is not None:
            start = check_number("start", start, 0, 1 << 62)
        if stop is not None:
            stop = check_number("stop", stop, 0, 1 << 62)
        with core.changed:
            core.check_open()
            start = first_stored_step(core.index, core.name, episode_id) if start is None else start
            rows = episode_chunk_rows(core.index, core.name, episode_id, start, stop)
            ids, sizes, checksums = (core.index.field(name, rows) for name in ("chunk_id", "stored_bytes", "checksum"))
        return self._read_pieces(episode_id, (start, stop), ids, sizes.astype(np.int64), checksums)

    def first_step(self, episode_id: int) -> int:
        """Returns the first step of an episode that capacity has not removed. Raises NotFoundError."""
        with self._core.changed:
            self._core.check_open()
            return first_stored_step(self._core.index, self._core.name, episode_id)

    def cut_at(self, episode_id: int, stop: int | None) -> bool:
        """Returns whether the service itself ended an episode with the step before `stop`; None: at all."""
        index = self._core.index
        with self._core.changed:
            if episode_id not in index.lost:
                return False
            return stop is None or stop == int(index.episodes["length"][episode_id - index.episodes.base])

    def _read_pieces(
        self, episode_id: int, steps: tuple[int, int | None], ids: Array, sizes: Array, checksums: Array
    ) -> Iterator[list[bytes]]:
        core, piece_of = self._core, np.cumsum(sizes) // _PIECE_BYTES
        for piece in np.unique(piece_of):
            here = piece_of == piece
            data = core.store.read(ids[here])
            whole = [chunk for chunk in data if chunk is not None]
            if len(whole) < len(data):
                raise NotFoundError(f"episode {episode_id}: steps of it were removed while it was read")
            stored = zip(whole, ids[here].tolist(), checksums[here].tolist(), strict=True)
            damaged = [chunk_id for chunk, chunk_id, stated in stored if checksum_of(chunk) != stated]
            for chunk_id in damaged:
                self._note_damage(chunk_id, "its bytes do not have the checksum that the index says")
            if damaged:
                with core.changed:  # which tells the steps, now that it knows
                    episode_chunk_rows(core.index, core.name, episode_id, *steps)
                raise ChunkCorruptError(f"episode {episode_id}: chunk {damaged[0]} is damaged")
            yield whole
