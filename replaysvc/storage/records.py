"""The records of a segment, to bytes and back. Little-endian; each ends with the XXH3 of the bytes before it."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from replaysvc.codec import checksum
from replaysvc.types import Array

INDEX_DTYPE = np.dtype(
    [
        ("chunk_id", "<i8"), ("position", "<i8"), ("episode_id", "<i8"), ("first_step", "<i8"), ("n_steps", "<i4"),
        ("flags", "<u4"), ("policy_version", "<i8"), ("return_after", "<f8"), ("committed_at_s", "<f8"),
        ("stored_bytes", "<u4"), ("fallbacks", "<u4"), ("checksum", "<u8"),
    ]
)  # fmt: skip
"""What the index knows of a chunk; FORMAT.md tells each field."""

STORED_INDEX_DTYPE = np.dtype([*((name, INDEX_DTYPE[name]) for name in INDEX_DTYPE.names or ()), ("record_checksum", "<u8")])
KEY = struct.Struct(">Q")  # big-endian, so that LMDB's byte order is numeric order
EPISODE = struct.Struct("<Q16sQdHI")
SESSION = struct.Struct("<qd")
CHECKSUM = struct.Struct("<Q")
MAX_SESSIONS = 65_536  # marks carried into a new segment: those used last, whatever a clock says
NEXT_IDS = ("first_chunk_id", "next_position", "next_episode_id")  # of a description and a footer: what the next new thing gets


@dataclass(frozen=True, slots=True)
class EpisodeEntry:
    """What is known of an episode besides its chunks. `metadata` is a JSON object, or empty."""

    episode_id: int
    session_id: bytes
    episode_key: int
    actor: str
    started_at_s: float
    metadata: bytes


def pack_index(index: Array) -> list[bytes]:
    """Returns the stored records of INDEX_DTYPE [n]."""
    size = INDEX_DTYPE.itemsize
    raw = index.tobytes()
    records = (raw[i : i + size] for i in range(0, len(raw), size))
    return [record + CHECKSUM.pack(checksum(record)) for record in records]


def unpack_index(records: list[bytes]) -> tuple[Array, int]:
    """Returns (INDEX_DTYPE [n], how many records were damaged and are left out)."""
    size = INDEX_DTYPE.itemsize
    whole = [record for record in records if len(record) == STORED_INDEX_DTYPE.itemsize]
    stored = np.frombuffer(b"".join(whole), STORED_INDEX_DTYPE)
    found = np.fromiter((checksum(record[:size]) for record in whole), np.uint64, len(whole))
    good = stored[stored["record_checksum"] == found]
    index = np.empty(len(good), INDEX_DTYPE)
    for name in INDEX_DTYPE.names or ():
        index[name] = good[name]
    return index, len(records) - len(good)


def pack_episode(entry: EpisodeEntry) -> bytes:
    """Returns the stored record of an episode."""
    actor = entry.actor.encode()
    sizes = len(actor), len(entry.metadata)
    head = EPISODE.pack(entry.episode_id, entry.session_id, entry.episode_key, entry.started_at_s, *sizes)
    body = head + actor + entry.metadata
    return body + CHECKSUM.pack(checksum(body))


def unpack_episode(record: bytes) -> EpisodeEntry | None:
    """Returns the episode of a stored record, None if it is damaged."""
    body = record[: -CHECKSUM.size]
    if len(body) < EPISODE.size or CHECKSUM.unpack(record[-CHECKSUM.size :])[0] != checksum(body):
        return None
    episode_id, session_id, key, started_at_s, actor_size, metadata_size = EPISODE.unpack_from(body)
    actor, metadata = body[EPISODE.size :][:actor_size], body[EPISODE.size + actor_size :]
    if len(metadata) != metadata_size:
        return None
    try:
        return EpisodeEntry(episode_id, session_id, key, actor.decode(), started_at_s, metadata)
    except UnicodeDecodeError:  # no accident: its checksum is right
        return None


def pack_session(session_id: bytes, last_sequence: int, at_s: float) -> bytes:
    """Returns the stored mark of a session."""
    body = SESSION.pack(last_sequence, at_s)
    return body + CHECKSUM.pack(checksum(session_id, body))


def unpack_session(session_id: bytes, record: bytes) -> tuple[int, float] | None:
    """Returns (last sequence, time) of a stored mark, None if it is damaged."""
    body = record[: -CHECKSUM.size]
    if len(body) != SESSION.size or CHECKSUM.unpack(record[-CHECKSUM.size :])[0] != checksum(session_id, body):
        return None
    last_sequence, at_s = SESSION.unpack(body)
    return last_sequence, at_s


def pack_meta(values: Mapping[str, Any]) -> bytes:
    """Returns the stored form of a segment's description or footer."""
    body = json.dumps(values).encode()
    return body + CHECKSUM.pack(checksum(body))


def unpack_meta(record: bytes) -> dict[str, Any] | None:
    """Returns a stored description or footer, None if it is damaged."""
    body = record[: -CHECKSUM.size]
    if len(record) < CHECKSUM.size or CHECKSUM.unpack(record[-CHECKSUM.size :])[0] != checksum(body):
        return None
    try:
        values = json.loads(body)
    except (ValueError, RecursionError):  # no accident: its checksum is right
        return None
    return values if isinstance(values, dict) else None


def with_ids(values: dict[str, Any] | None) -> Mapping[str, Any]:
    """Returns a description or footer if it has the ids that it must have, nothing if it is another thing, or damaged."""
    whole = values is not None and all(isinstance(values.get(name), int) for name in NEXT_IDS)
    return values if values is not None and whole else {}
