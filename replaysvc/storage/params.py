"""Parameter sets: one file a name, replaced whole. `RPP1`, version (i64), length (u64), xxh3 (u64) over all else, the bytes."""

import logging
import struct
from contextlib import suppress
from pathlib import Path

from replaysvc.codec import checksum
from replaysvc.errors import AlreadyExistsError, ChunkCorruptError
from replaysvc.storage.records import CHECKSUM
from replaysvc.storage.system import DAMAGED, System

log = logging.getLogger(__name__)

HEADER = struct.Struct("<4sqQQ")
MAGIC = b"RPP1"
DAMAGED_VERSION = (1 << 63) - 1
"""Stands for the version of a file that is no parameter set: whoever asks for it learns of the damage."""


class ParamsStore:
    """The newest version of each parameter set. Not thread-safe: its owner holds a lock."""

    def __init__(self, path: Path, scratch: Path, system: System) -> None:
        self._path, self._scratch, self._system = path, scratch, system
        self.versions: dict[str, int] = {}
        for file in sorted(path.iterdir()):
            if not file.is_file():
                log.error("%s is no parameter set, and is left alone", file)
                continue
            try:
                with file.open("rb") as stream:
                    head = stream.read(HEADER.size)
            except OSError as error:
                if error.errno not in DAMAGED:
                    raise
                log.error("parameter set %s cannot be read: %s", file, error)
                head = b""
            good = len(head) == HEADER.size and head[:4] == MAGIC
            self.versions[file.name] = HEADER.unpack(head)[1] if good else DAMAGED_VERSION

    def put(self, name: str, version: int, data: bytes) -> None:
        """Keeps `data`, durably, in place of a smaller version, or of a damaged one. Putting the same again is fine.

        Raises:
          AlreadyExistsError: the stored version is as large or larger.
        """
        stored = self.versions.get(name, -1)
        if version <= stored and (found := self._get_intact(name)) is not None:
            if found == (version, data):
                return
            raise AlreadyExistsError(f"params {name}: expected a version above {stored}, found {version}")
        temporary = self._scratch / f"params-{name}"
        head = HEADER.pack(MAGIC, version, len(data), 0)[: -CHECKSUM.size]
        try:
            self._system.write_file(temporary, head + CHECKSUM.pack(checksum(head, data)) + data)
        except OSError:
            with suppress(OSError):  # on a full disk, what there is of it is in the way
                temporary.unlink()
            raise
        self._system.crashpoint("params.written")
        self._system.rename(temporary, self._path / name)
        self._system.crashpoint("params.renamed")
        self.versions[name] = version

    def get(self, name: str) -> tuple[int, bytes] | None:
        """Returns (version, data), None if there is none. Raises ChunkCorruptError."""
        if name not in self.versions:
            return None
        content = (self._path / name).read_bytes()
        head, data = content[: HEADER.size - CHECKSUM.size], content[HEADER.size :]
        if len(content) >= HEADER.size:
            magic, version, size, expected = HEADER.unpack_from(content)
            if magic == MAGIC and len(data) == size and checksum(head, data) == expected:
                return version, data
        raise ChunkCorruptError(f"params {name}: the stored bytes do not match their checksum")

    def _get_intact(self, name: str) -> tuple[int, bytes] | None:
        try:
            return self.get(name)
        except ChunkCorruptError:
            return None
