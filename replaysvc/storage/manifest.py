"""The manifest of a snapshot: which files it has, and of which bytes. Written last.

What it proves. That no file is missing, has another size, or was put in another's place: of `FORMAT` and `table.json`, which
have no checksum of their own, by the XXH3 of all their bytes; of any other file by the XXH3 of its first 64 KiB, which are both
meta pages of a segment (the roots, counts and size of all its trees), or the header of a parameter set or small file. So a
manifest costs the same for a segment of any size, and a snapshot of 100 GB takes no reading of 100 GB while appends wait. What
lies behind those bytes has checksums of its own, in the file itself: `restore(verify=True)` and `fsck` check every one of them.
It finds accidents, not forgeries.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from replaysvc.codec import checksum
from replaysvc.errors import ChunkCorruptError, FormatVersionError, StorageError

NAME = "MANIFEST.json"
VERSION = 1
HEAD_BYTES = 64 << 10
_WHOLE = ("FORMAT", "FORMAT.bak", "table.json", "table.json.bak")  # files without a checksum of their own


@dataclass(frozen=True, slots=True)
class Entry:
    """A file: its size, and the XXH3 of its first `hashed` bytes."""

    size: int
    hashed: int
    xxh3: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a snapshot by their paths in it, with `/`; `store` is the uuid of the store that it is of."""

    store: str
    made_at_s: float
    files: Mapping[str, Entry]

    @property
    def size(self) -> int:
        """Returns the bytes of all files."""
        return sum(entry.size for entry in self.files.values())

    def to_bytes(self) -> bytes:
        """Returns the file's bytes."""
        files = {
            name: {"bytes": entry.size, "hashed": entry.hashed, "xxh3": f"{entry.xxh3:016x}"}
            for name, entry in sorted(self.files.items())
        }
        content = {"manifest": VERSION, "store": self.store, "made_at_s": self.made_at_s, "files": files}
        return json.dumps(content | {"checksum": _seal(content)}, indent=1).encode() + b"\n"

    @staticmethod
    def from_bytes(path: Path, written: bytes) -> "Manifest":
        """Reads a manifest; `path` is the file's, for the sentences.

        Raises:
          ChunkCorruptError: damaged. FormatVersionError: a newer one.
        """
        try:
            content = json.loads(written)
            stated = content.pop("checksum")
            if content["manifest"] > VERSION:
                raise FormatVersionError(f"manifest {path}: expected version {VERSION}, found {content['manifest']}")
            if stated != _seal(content):
                raise ChunkCorruptError(f"manifest {path}: its checksum does not match its bytes")
            files = {
                checked_path(path, name): Entry(int(entry["bytes"]), int(entry["hashed"]), int(entry["xxh3"], 16))
                for name, entry in content["files"].items()
            }
            return Manifest(content["store"], content["made_at_s"], files)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise ChunkCorruptError(f"manifest {path}: it cannot be read: {error!r}") from error


def checked_path(manifest: Path, name: str) -> str:
    """Returns a path of a manifest if it stays within the snapshot. Raises ChunkCorruptError."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "/".join(parts) != name or "\0" in name:
        raise ChunkCorruptError(f"manifest {manifest}: expected paths within the snapshot, found {name!r}")
    return name


def _seal(content: Mapping[str, Any]) -> str:
    return f"{checksum(json.dumps(content, sort_keys=True, separators=(',', ':')).encode()):016x}"


def make_manifest(snapshot: Path, *, made_at_s: float) -> Manifest:
    """Returns the manifest of a snapshot that is built, `FORMAT` included. Reads at most 64 KiB of most files.

    Raises:
      OSError: a file cannot be read.
    """
    names = sorted(file.relative_to(snapshot).as_posix() for file in snapshot.rglob("*") if file.is_file())
    files = {name: describe(snapshot / name) for name in names if name != NAME}
    store = json.loads((snapshot / "FORMAT").read_bytes())["uuid"]
    return Manifest(store, made_at_s, files)


def describe(file: Path, hashed: int | None = None) -> Entry:
    """Returns the entry of a file, by its first `hashed` bytes; None: as many as a manifest has. Raises OSError."""
    size = file.stat().st_size
    if hashed is None:
        hashed = size if file.name in _WHOLE else min(size, HEAD_BYTES)
    with file.open("rb") as stream:
        return Entry(size, hashed, checksum(stream.read(hashed)))


def read_manifest(snapshot: Path) -> Manifest:
    """Returns the manifest of a snapshot.

    Raises:
      StorageError: there is none. ChunkCorruptError: damaged. FormatVersionError: a newer one.
    """
    file = snapshot / NAME
    try:
        written = file.read_bytes()
    except FileNotFoundError:
        raise StorageError(
            f"snapshot {snapshot}: expected a {NAME} in it, found none; `replaysvc snapshot` makes one"
        ) from None
    except OSError as error:
        raise StorageError(f"snapshot {snapshot}: its {NAME} cannot be read: {error.strerror or error}") from error
    return Manifest.from_bytes(file, written)


def difference(file: Path, entry: Entry) -> str:
    """Returns in what a file differs from its entry: the end of a sentence; an empty string if it does not."""
    try:
        found = describe(file, entry.hashed)
    except FileNotFoundError:
        return f"expected {entry.size} bytes, found no file"
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    if found.size != entry.size:
        return f"expected {entry.size} bytes, found {found.size}"
    if found.xxh3 != entry.xxh3:
        return f"expected XXH3 {entry.xxh3:016x} over its first {entry.hashed} bytes, found {found.xxh3:016x}"
    return ""
