"""What can still be had of a damaged segment: read page by page (`pages`), each record and chunk by its own checksum.

A chunk counts if its bytes match their checksum and an index record that is whole names that checksum. Where a tree leads to a
record, that one holds; else one that lies in any other page, if it fits between the others: LMDB leaves older versions of its
pages behind. Marks of sessions count only where the tree leads to them: an older one, or one that was never committed, would
say something false.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from replaysvc.errors import ChunkCorruptError
from replaysvc.storage.chunk_check import check_chunk
from replaysvc.storage.pages import Item, Pages
from replaysvc.storage.records import (
    INDEX_DTYPE,
    KEY,
    STORED_INDEX_DTYPE,
    EpisodeEntry,
    unpack_episode,
    unpack_index,
    unpack_meta,
    unpack_session,
)
from replaysvc.types import Array


@dataclass
class Salvage:
    """What was found, in the form in which `build_compacted` reads a segment. Close it after that."""

    pages: Pages
    meta: Mapping[str, Any] = field(default_factory=dict)
    footer: Mapping[str, Any] | None = None
    index: Array = field(default_factory=lambda: np.empty(0, INDEX_DTYPE))
    entries: dict[int, EpisodeEntry] = field(default_factory=dict)
    sessions: dict[bytes, tuple[int, float]] = field(default_factory=dict)
    places: dict[int, Item] = field(default_factory=dict)
    known_ids: set[int] = field(default_factory=set)  # of all chunks of which there is any trace

    def load_index(self) -> tuple[Array, int]:
        """Returns the index records of the chunks that are whole, and 0."""
        return self.index, 0

    def load_episodes(self) -> tuple[list[EpisodeEntry], int]:
        """Returns the episodes' entries, and 0."""
        return list(self.entries.values()), 0

    def load_sessions(self) -> tuple[dict[bytes, tuple[int, float]], int]:
        """Returns the marks of sessions, and 0."""
        return self.sessions, 0

    def read(self, chunk_ids: Sequence[int]) -> list[bytes | None]:
        """Returns the bytes of chunks. Raises ChunkCorruptError."""
        return [self.pages.value(self.places[chunk_id]) for chunk_id in chunk_ids]

    @staticmethod
    def entries_of(segment: Path) -> dict[int, EpisodeEntry]:
        """Returns the episodes' entries of a segment, as far as they are whole. Raises OSError."""
        found = Salvage(Pages(segment / "data.mdb"))
        with found.pages:
            for key, value in found.pages.values(b"episodes"):
                _add_entry(found, key, value)
        return found.entries

    def close(self) -> None:
        """Closes the file."""
        self.pages.close()


def salvage(segment: Path, first: int, stop: int) -> Salvage:
    """Reads what is whole of a segment with chunk ids from `first` to below `stop`. Raises OSError."""
    found = Salvage(Pages(segment / "data.mdb"))
    try:
        reached = _reach(found)
        carved, chunks = _carve(found, first, stop)
        records = _choose({key: one for key, one in reached.items() if first <= key < stop}, carved)
        found.known_ids |= records.keys()
        index, _ = unpack_index([records[number] for number in sorted(records)])
        whole = [_place(found, record, chunks) for record in index]
        found.index = index[np.array(whole, bool)] if len(index) else index
        return found
    except BaseException:
        found.close()
        raise


def _reach(found: Salvage) -> dict[int, bytes]:
    """Follows the trees; returns the whole index records by chunk id."""
    meta = dict(found.pages.values(b"meta"))
    found.meta = unpack_meta(meta.get(b"segment", b"")) or {}
    found.footer = unpack_meta(meta.get(b"footer", b""))
    records = {}
    for key, value in found.pages.values(b"index"):
        if (number := _index_key(key, value)) is not None:
            records[number] = value
        if len(key) == KEY.size:
            found.known_ids.add(int(KEY.unpack(key)[0]))
    for item in found.pages.items(b"chunks"):
        if len(item.key) == KEY.size:
            found.places[int(KEY.unpack(item.key)[0])] = item
    found.known_ids |= found.places.keys()
    for key, value in found.pages.values(b"episodes"):
        _add_entry(found, key, value)
    for key, value in found.pages.values(b"sessions"):
        if (mark := unpack_session(key, value)) is not None:
            found.sessions[key] = mark
    return records


def _carve(found: Salvage, first: int, stop: int) -> tuple[dict[int, list[bytes]], dict[int, Item]]:
    """Looks at every page; returns whole index records by chunk id, and where chunks are by the checksums they state."""
    records: dict[int, list[bytes]] = {}
    chunks: dict[int, Item] = {}
    for item in found.pages.carve(STORED_INDEX_DTYPE.itemsize):
        big = not item.key or item.size > STORED_INDEX_DTYPE.itemsize
        head = found.pages.read(item.offset, 16) if big and item.size >= 16 else b""
        if head[:4] == b"RPC1":
            chunks[int.from_bytes(head[8:], "little")] = item
            continue
        try:
            value = found.pages.value(item) if item.size < 1 << 17 else b""
        except ChunkCorruptError:
            continue
        number = _index_key(item.key, value)
        if number is not None and first <= number < stop and value not in records.setdefault(number, []):
            records[number].append(value)
        elif number is None and len(item.key) == KEY.size:
            _add_entry(found, item.key, value)
        elif item.key == b"segment" and not found.meta:
            found.meta = unpack_meta(value) or {}
    return records, chunks


def _index_key(key: bytes, value: bytes) -> int | None:
    """Returns the chunk id of an index record that is whole and stands under its key."""
    if len(key) != KEY.size or len(value) != STORED_INDEX_DTYPE.itemsize:
        return None
    index, _ = unpack_index([value])
    return int(index["chunk_id"][0]) if len(index) and index["chunk_id"][0] == KEY.unpack(key)[0] else None


def _add_entry(found: Salvage, key: bytes, value: bytes) -> None:
    try:
        entry = unpack_episode(value)
    except UnicodeDecodeError:
        entry = None
    if entry is not None and len(key) == KEY.size and entry.episode_id == KEY.unpack(key)[0]:
        found.entries.setdefault(entry.episode_id, entry)


def _choose(reached: dict[int, bytes], carved: dict[int, list[bytes]]) -> dict[int, bytes]:
    """Adds to the records that the tree leads to those others that are the only ones of their chunk and fit in between."""
    candidates = reached | {number: ones[0] for number, ones in carved.items() if number not in reached and len(ones) == 1}
    ids = sorted(candidates)
    index, _ = unpack_index([candidates[number] for number in ids])
    following = np.full(len(ids) + 1, np.iinfo(np.int64).max)
    for at in range(len(ids) - 1, -1, -1):
        following[at] = index["position"][at] if ids[at] in reached else following[at + 1]
    chosen, end = {}, 0
    for at, number in enumerate(ids):
        begins, ends = int(index["position"][at]), int(index["position"][at]) + int(index["n_steps"][at])
        if number in reached or (begins >= end and ends <= following[at + 1]):
            chosen[number], end = candidates[number], max(end, ends)
    return chosen


def _place(found: Salvage, record: Any, chunks: Mapping[int, Item]) -> bool:
    """Finds the chunk of an index record; returns whether it is whole."""
    chunk_id = int(record["chunk_id"])
    for item in _candidates(found.places.get(chunk_id), chunks.get(int(record["checksum"]))):
        try:
            chunk = found.pages.value(item)
        except ChunkCorruptError:
            continue
        if not check_chunk(chunk, record, None):
            found.places[chunk_id] = item
            return True
    return False


def _candidates(*items: Item | None) -> Iterator[Item]:
    yield from (item for item in items if item is not None)
