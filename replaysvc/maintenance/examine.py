"""One segment, examined byte by byte: what `fsck` runs in a process of its own, since LMDB may end it over a damaged file.

`python -m replaysvc.maintenance.examine` reads questions from stdin, each a line of JSON: {"segment": its directory, "table":
the uuid that it must name or null, "signature": as in the table's description or null, "engine": whether LMDB may open the
file}. It answers each with an `Examined`. Nothing is written to a segment; LMDB opens it read only and without a lock.

The structure is checked by lmdb's own verifier, which reads the file without LMDB. If it is sound, the values are read through
LMDB, as the service would; else page by page, as far as pages are whole (`pages`).
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import lmdb
import numpy as np
from lmdb import verify

from replaysvc.codec import checksum
from replaysvc.spec import Signature
from replaysvc.storage.chunk_check import check_chunk
from replaysvc.storage.pages import Pages
from replaysvc.storage.records import (
    INDEX_DTYPE,
    KEY,
    STORED_INDEX_DTYPE,
    unpack_episode,
    unpack_index,
    unpack_meta,
    unpack_session,
)
from replaysvc.storage.segment import FORMAT
from replaysvc.types import Array

READY = b"ready\n"
Read = Callable[[bytes], Iterator[tuple[bytes, bytes]]]
"""Gives key and value of all that a named database holds, in order of the keys."""


@dataclass
class Examined:
    """What was found. `damage` and `notes` are sentences; `index` has the good records; `missing` episodes without a record."""

    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bad_chunks: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    description: dict[str, Any] | None = None
    footer: dict[str, Any] | None = None
    newer: bool = False  # of a format that this release does not read
    foreign: bool = False  # of another table
    sealed: bool = False
    chunks: int = 0
    chunk_bytes: int = 0
    last_chunk_id: int = -1
    last_episode_id: int = -1
    index: Array = field(default_factory=lambda: np.empty(0, INDEX_DTYPE))

    def write(self, stream: IO[bytes]) -> None:
        """Writes all of it: a line of JSON, then the index records."""
        plain = {name: value for name, value in vars(self).items() if name != "index"}
        stream.write(json.dumps(plain | {"records": len(self.index)}).encode() + b"\n" + self.index.tobytes())
        stream.flush()

    @staticmethod
    def read(stream: IO[bytes]) -> "Examined":
        """Reads what was written. Raises ValueError if it ends early."""
        plain = json.loads(stream.readline())
        size = plain.pop("records") * INDEX_DTYPE.itemsize
        return Examined(**plain, index=np.frombuffer(stream.read(size), INDEX_DTYPE))


def examine(segment: Path, *, table: str | None, signature: Signature | None, engine: bool) -> Examined:
    """Examines the segment in a directory. `table`: uuid that it must name; `engine`: whether LMDB may open the file."""
    found = Examined()
    file = segment / "data.mdb"
    try:
        _check_structure(file, found)
        if engine and not found.damage:
            try:
                with lmdb.open(str(segment), max_dbs=8, readonly=True, lock=False, lib_version=0) as environment:
                    _check_values(lambda name: _items(environment, name), found, segment.name, table, signature)
                return found
            except lmdb.Error as error:
                found = Examined([*found.damage, f"LMDB cannot read it: {error}"])
        with Pages(file) as pages:
            _check_values(pages.values, found, segment.name, table, signature)
            found.damage += [problem for problem in pages.problems if problem not in found.damage]
    except OSError as error:
        found.damage.append(f"its file cannot be read: {error.strerror or error}")
    return found


def _items(environment: Any, name: bytes) -> Iterator[tuple[bytes, bytes]]:
    database = environment.open_db(name, create=False)
    with environment.begin(db=database) as transaction:
        yield from transaction.cursor().iternext()


def _check_structure(file: Path, found: Examined) -> None:
    try:
        verified: list[str] = verify.verify(str(file))  # type: ignore[no-untyped-call]
        found.damage += verified
        with Pages(file) as pages:
            wanted = (pages.last_page + 1) * pages.page_size
            if pages.size < wanted:
                found.damage.append(f"its file is too short: expected at least {wanted} bytes, found {pages.size}")
    except verify.VerifyError as error:
        found.damage.append(str(error))
    except (OSError, RecursionError, ValueError, IndexError) as error:
        found.damage.append(f"its pages cannot be checked: {error}")


def _check_values(read: Read, found: Examined, name: str, table: str | None, signature: Signature | None) -> None:
    first = int(name[4:24])
    _check_meta(dict(read(b"meta")), found, first, table)
    if found.newer:
        return
    records = dict(_keyed(read, b"index", found))
    found.last_chunk_id = max(records, default=-1)
    good: list[bytes] = []
    for chunk_id, record in records.items():
        if len(record) != STORED_INDEX_DTYPE.itemsize or checksum(record[:-8]).to_bytes(8, "little") != record[-8:]:
            found.damage.append(f"chunk {chunk_id}: its index record is damaged")
        elif (named := int.from_bytes(record[:8], "little")) != chunk_id:
            found.damage.append(f"chunk {chunk_id}: its index record is that of chunk {named}")
        else:
            good.append(record)
    found.index, _ = unpack_index(good)
    _check_chunks(_keyed(read, b"chunks", found), records, found, signature)
    _check_order(found, first)
    _check_episodes(_keyed(read, b"episodes", found), found)
    for session_id, record in read(b"sessions"):
        if unpack_session(session_id, record) is None:
            found.damage.append(f"session {session_id.hex()}: its record is damaged")


def _keyed(read: Read, name: bytes, found: Examined) -> Iterator[tuple[int, bytes]]:
    for key, value in read(name):
        if len(key) == KEY.size:
            yield int(KEY.unpack(key)[0]), value
        else:
            found.damage.append(f"a key of {name.decode()}: expected {KEY.size} bytes, found {len(key)}")


def _check_meta(meta: Mapping[bytes, bytes], found: Examined, first: int, table: str | None) -> None:
    found.sealed = b"footer" in meta
    found.description = unpack_meta(meta.get(b"segment", b""))
    if found.description is None:
        found.damage.append("its description is missing or damaged")
    elif found.description["format"] > FORMAT:
        found.newer = True
        found.damage.append(f"expected format version {FORMAT}, found {found.description['format']}: it needs a newer release")
    elif table is not None and found.description["table"] != table:
        found.foreign = True
        found.damage.append("it belongs to another table")
    elif found.description["first_chunk_id"] != first:
        found.damage.append(f"expected chunks from {first} on by its name, found {found.description['first_chunk_id']}")
    if found.sealed:
        found.footer = unpack_meta(meta[b"footer"])
        if found.footer is None:
            found.damage.append("its footer is damaged")


def _check_chunks(
    chunks: Iterator[tuple[int, bytes]], records: Mapping[int, bytes], found: Examined, signature: Signature | None
) -> None:
    known = dict(zip(found.index["chunk_id"].tolist(), range(len(found.index)), strict=True))
    seen: set[int] = set()
    for chunk_id, chunk in chunks:
        seen.add(chunk_id)
        found.chunks += 1
        found.chunk_bytes += len(chunk)
        problem = check_chunk(chunk, found.index[known[chunk_id]] if chunk_id in known else None, signature)
        if chunk_id not in records:
            problem = problem or "it has no index record"
        if problem:
            found.bad_chunks.append(chunk_id)
            found.damage.append(f"chunk {chunk_id}: {problem}")
    for chunk_id in sorted(records.keys() - seen):
        found.bad_chunks.append(chunk_id)
        found.damage.append(f"chunk {chunk_id}: it has an index record but is not there")


def _check_order(found: Examined, first: int) -> None:
    """Ids from the segment's own on, positions that follow each other, and a footer and description that agree with them."""
    index = found.index
    if len(index):
        ends = index["position"] + index["n_steps"]
        for at in np.flatnonzero(index["position"][1:] < ends[:-1]).tolist():
            found.damage.append(
                f"chunk {index['chunk_id'][at + 1]}: expected a position from {ends[at]} on, found {index['position'][at + 1]}"
            )
        if index["chunk_id"][0] < first:
            found.damage.append(f"chunk {index['chunk_id'][0]}: expected ids from {first} on")
        begin = (found.description or {}).get("next_position", 0)
        if index["position"][0] < begin:
            found.damage.append(f"chunk {index['chunk_id'][0]}: expected a position from {begin} on")
        last = {
            "first_chunk_id": int(index["chunk_id"][-1]) + 1, "next_position": int(ends[-1]),
            "next_episode_id": int(index["episode_id"].max()) + 1,
        }  # fmt: skip
        for name, least in last.items():
            if found.footer is not None and found.footer[name] < least:
                found.damage.append(f"its footer: expected {name} from {least} on, found {found.footer[name]}")


def _check_episodes(records: Iterator[tuple[int, bytes]], found: Examined) -> None:
    known = set()
    for episode_id, record in records:
        found.last_episode_id = max(found.last_episode_id, episode_id)
        entry = unpack_episode(record)
        if entry is None:
            found.damage.append(f"episode {episode_id}: its record is damaged")
        elif entry.episode_id != episode_id:
            found.damage.append(f"episode {episode_id}: its record is that of episode {entry.episode_id}")
        else:
            known.add(episode_id)
    found.missing = sorted(set(found.index["episode_id"].tolist()) - known)


def main() -> None:
    """Says that it is ready, then answers the questions on stdin, until that ends."""
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    for line in sys.stdin:
        question = json.loads(line)
        signature = None if question["signature"] is None else Signature.from_json(question["signature"])
        segment = Path(question["segment"])
        examine(segment, table=question["table"], signature=signature, engine=question["engine"]).write(sys.stdout.buffer)


if __name__ == "__main__":
    main()
