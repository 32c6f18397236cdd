"""Chunks that were found damaged: which, so that a restart leaves them out, and their bytes, for whoever looks into it."""

import logging
import re
import threading
from pathlib import Path

import numpy as np

from replaysvc.storage.state import pack_file, unpack_file
from replaysvc.storage.system import System
from replaysvc.types import Array

log = logging.getLogger(__name__)

MAGIC = b"RPQ1"
LIST = "damaged"
MOST_LISTED = 65_536  # chunks; more of them are found damaged again after a restart
MOST_COPIES = 100  # of a table
MOST_COPIED_BYTES = 64 << 20
_ROOM = 256 << 20  # on the disk; with less free, nothing is copied


class Quarantine:
    """The damaged chunks of one table. Thread-safe.

    All that it keeps can be found out anew by reading the chunks. So what cannot be written is logged, and no more.
    """

    def __init__(self, table: Path, quarantine: Path, scratch: Path, system: System) -> None:
        self._name, self._file, self._system = table.name, table / LIST, system
        self._directory, self._scratch = quarantine, scratch
        self._lock = threading.Lock()
        self._ids: set[int] = set()
        self._closed = False

    def load(self) -> Array:
        """Reads the list; returns the ids of damaged chunks, int64, ascending: none if the list itself is damaged."""
        with self._lock:
            try:
                data = unpack_file(MAGIC, self._file.read_bytes())
                if data is None or len(data) % 8:
                    log.error("the list of damaged chunks %s is damaged, and is left out", self._file)
                    data = b""
            except FileNotFoundError:
                data = b""
            except OSError as error:
                log.error("the list of damaged chunks %s cannot be read and is left out: %s", self._file, error)
                data = b""
            self._ids = set(np.frombuffer(data, "<i8").tolist())
            return np.array(sorted(self._ids), np.int64)

    @property
    def count(self) -> int:
        """Returns how many chunks are known to be damaged."""
        return len(self._ids)

    def add(self, chunk_id: int, data: bytes | None, reason: str, *, oldest: int = 0) -> None:
        """Notes, durably, that a chunk is damaged, and copies what could be read of it; forgets chunks below `oldest`."""
        with self._lock:
            if self._closed or chunk_id in self._ids:
                return
            self._ids = {known for known in self._ids if known >= oldest} | {chunk_id}
            try:
                copied = "" if data is None else self._copy(chunk_id, data)
                log.error(
                    "table %s: chunk %d is damaged, and left out from now on: %s; %s",
                    self._name, chunk_id, reason, f"its bytes are in {copied}" if copied else "its bytes are not copied",
                )  # fmt: skip
                if len(self._ids) <= MOST_LISTED:
                    self._write()
            except OSError as error:
                log.error("the damaged chunk %d of table %s could not be noted on disk: %s", chunk_id, self._name, error)

    def close(self) -> None:
        """Notes nothing any more: another table of this name may be there."""
        with self._lock:
            self._closed = True

    def _copy(self, chunk_id: int, data: bytes) -> str:
        """Keeps a chunk's bytes, unless there are many already, or the disk is short; returns where."""
        ours = re.compile(rf"{re.escape(self._name)}-chunk-\d+")
        copies = [file.stat().st_size for file in self._directory.iterdir() if ours.fullmatch(file.name)]
        full = len(copies) >= MOST_COPIES or sum(copies) + len(data) > MOST_COPIED_BYTES
        if full or self._system.free_bytes(self._directory) < _ROOM:
            return ""
        target = self._directory / f"{self._name}-chunk-{chunk_id:020d}"
        temporary = self._scratch / target.name
        self._system.write_file(temporary, data)
        self._system.rename(temporary, target)
        self._system.crashpoint("quarantine.copied")
        return str(target)

    def _write(self) -> None:
        temporary = self._scratch / f"{LIST}-{self._name}"
        self._system.write_file(temporary, pack_file(MAGIC, np.array(sorted(self._ids), "<i8").tobytes()))
        self._system.crashpoint("quarantine.written")
        self._system.rename(temporary, self._file)
        self._system.crashpoint("quarantine.noted")
