"""Chunks from the disk, decoded, for windows that the cache does not hold. No lock is held here."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

from replaysvc.codec import ChunkDecoder, DecodedChunk
from replaysvc.errors import ReplayError
from replaysvc.storage import TableStore
from replaysvc.types import Array

log = logging.getLogger(__name__)


class Fetched(NamedTuple):
    """Decoded chunks by row, and the rows that cannot be read, each with the reason and its chunk id."""

    chunks: dict[int, DecodedChunk]
    bad: list[tuple[int, int, str]]


def fetch(store: TableStore, decoder: ChunkDecoder, rows: Sequence[int], chunk_ids: Array, checksums: Array) -> Fetched:
    """Reads and decodes the chunks of `rows`: all of them, or none if one is removed or damaged.

    Raises:
      StorageError: one cannot be read now, which says nothing of what is stored.
    """
    data = store.read(chunk_ids)
    present = [chunk for chunk in data if chunk is not None]
    try:
        decoded = decoder.decode(present)
        if len(present) == len(data) and all(
            chunk.header.checksum == int(expected) for chunk, expected in zip(decoded, checksums, strict=True)
        ):
            return Fetched(dict(zip(rows, decoded, strict=True)), [])
    except ReplayError:
        log.warning("table %s: a chunk among %d failed its check; looking for it", store.name, len(present))
    bad = []
    for row, chunk_id, raw, expected in zip(rows, chunk_ids.tolist(), data, checksums.tolist(), strict=True):
        reason = _fault(decoder, raw, expected)
        if reason:
            bad.append((row, chunk_id, reason))
    return Fetched({}, bad)


def _fault(decoder: ChunkDecoder, raw: bytes | None, expected: int) -> str:
    if raw is None:
        return "it is missing"
    try:
        found = decoder.decode([raw])[0].header.checksum
    except ReplayError as error:
        return str(error)
    return "" if found == expected else "it is another chunk than the index says"
