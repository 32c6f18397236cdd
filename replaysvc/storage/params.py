"""Parameter sets: one file a name, replaced whole. `RPP1`, version (i64), length (u64), xxh3 (u64), then the bytes."""

import struct
from pathlib import Path

from replaysvc.codec import checksum
from replaysvc.errors import AlreadyExistsError, ChunkCorruptError
from replaysvc.storage.filesystem import Filesystem

HEADER = struct.Struct("<4sqQQ")
MAGIC = b"RPP1"


class ParamsStore:
    """The newest version of each parameter set. Not thread-safe: its owner holds a lock."""

    def __init__(self, path: Path, scratch: Path, filesystem: Filesystem) -> None:
        self._path, self._scratch, self._filesystem = path, scratch, filesystem
        self.versions: dict[str, int] = {}
        for file in sorted(path.iterdir()):
            with file.open("rb") as stream:
                head = stream.read(HEADER.size)
            if len(head) == HEADER.size and head[:4] == MAGIC:
                self.versions[file.name] = HEADER.unpack(head)[1]

    def put(self, name: str, version: int, data: bytes) -> None:
        """Keeps `data`, durably, in place of a smaller version. Putting the same version with the same bytes is fine."""
        stored = self.versions.get(name, -1)
        if version <= stored:
            found = self.get(name)
            if found == (version, data):
                return
            raise AlreadyExistsError(f"params {name}: expected a version above {stored}, found {version}")
        temporary = self._scratch / f"params-{name}"
        self._filesystem.write_file(temporary, HEADER.pack(MAGIC, version, len(data), checksum(data)) + data)
        self._filesystem.crashpoint("params.written")
        self._filesystem.rename(temporary, self._path / name)
        self._filesystem.crashpoint("params.renamed")
        self.versions[name] = version

    def get(self, name: str) -> tuple[int, bytes] | None:
        """Returns (version, data), None if there is none. Raises ChunkCorruptError."""
        if name not in self.versions:
            return None
        content = (self._path / name).read_bytes()
        _, version, size, expected = HEADER.unpack_from(content)
        data = content[HEADER.size :]
        if len(data) != size or checksum(data) != expected:
            raise ChunkCorruptError(f"params {name}: the stored bytes do not match their checksum")
        return version, data
