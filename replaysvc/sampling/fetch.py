"""Chunks from the disk, decoded, for windows that the cache does not hold. No lock is held here."""

import logging
import time
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np

from replaysvc.codec import ChunkDecoder, DecodedGroup, GroupDecoder
from replaysvc.errors import ReplayError
from replaysvc.spec import FieldSpec
from replaysvc.storage import TableStore
from replaysvc.types import Array

log = logging.getLogger(__name__)


Taken: TypeAlias = tuple[Array, Array | None, Array | None]  # what `take_rows` returns


class Read(NamedTuple):
    """The chunks of some rows, decoded together, if all of them can be, and how long that took; else (row, chunk id, reason) of
    those that cannot."""

    group: DecodedGroup | None
    bad: list[tuple[int, int, str]]
    read_s: float = 0.0
    decode_s: float = 0.0


class Fetched:
    """Chunks that were read for one batch. groups: index rows, which ascend, and their chunks."""

    def __init__(self) -> None:
        self.groups: list[tuple[Array, DecodedGroup]] = []

    def __bool__(self) -> bool:
        return bool(self.groups)

    def lacking(self, rows: Array) -> Array:
        """Returns those of `rows` that are not here."""
        for known, _ in self.groups:
            rows = rows[~np.isin(rows, known)]
        return rows

    def take(self, i: int, spec: FieldSpec, rows: Array, offsets: Array) -> Iterator[tuple[Array, Taken]]:
        """Yields column `i` of steps, all of chunks that are here: (which of the steps, what `take_rows` gives of them)."""
        left = np.arange(len(rows))
        for known, group in self.groups:
            chunks = np.minimum(np.searchsorted(known, rows[left]), len(known) - 1)
            here = known[chunks] == rows[left]
            items, chunks = left[here], chunks[here]
            yield items, group.columns[i].take(group.starts[chunks] + offsets[items], chunks, spec)
            left = left[~here]


class Reader:
    """Reads the chunks of one table."""

    def __init__(self, store: TableStore, decoder: ChunkDecoder, together: GroupDecoder) -> None:
        self._store, self._decoder, self._together = store, decoder, together

    def read(self, rows: Array, chunk_ids: Array, checksums: Array) -> Read:
        """Reads and decodes the chunks of index `rows`.

        Raises:
          StorageError: one cannot be read now, which says nothing of what is stored.
        """
        began = time.perf_counter()
        data = self._store.read(chunk_ids)
        read = time.perf_counter()
        present = [chunk for chunk in data if chunk is not None]
        if len(present) == len(data):
            try:
                group = self._together.decode(present, checksums)
                return Read(group, [], read - began, time.perf_counter() - read)
            except ReplayError:
                log.warning("table %s: a chunk among %d failed its check; looking for it", self._store.name, len(present))
        bad = []
        for row, chunk_id, raw, expected in zip(rows.tolist(), chunk_ids.tolist(), data, checksums.tolist(), strict=True):
            reason = self._fault(raw, expected)
            if reason:
                bad.append((row, chunk_id, reason))
        return Read(None, bad)

    def _fault(self, raw: bytes | None, expected: int) -> str:
        if raw is None:
            return "it is missing"
        try:
            found = self._decoder.decode([raw])[0].header.checksum
        except ReplayError as error:
            return str(error)
        return "" if found == expected else "it is another chunk than the index says"
