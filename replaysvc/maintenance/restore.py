"""A store made of a snapshot: checked against the manifest, copied file by file, and named at last.

The new store shares no file with the snapshot, and has a uuid of its own: it is another store from here on. The marks of
writer sessions stay: a writer that was acknowledged more than the snapshot holds is told so when it sends on (SequenceError),
and what it sends again is stored once.
"""

import fcntl
import json
import os
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from replaysvc.errors import CapacityError, ChunkCorruptError, StorageError, StoreLockedError
from replaysvc.maintenance.fsck import check_tables
from replaysvc.storage.manifest import Manifest, difference, read_manifest
from replaysvc.storage.snapshot import DIRECTORIES, build_beside
from replaysvc.storage.store import check_format
from replaysvc.storage.system import System, refuse_remote

Progress = Callable[[int, int, str], None]
"""Is told (bytes done, bytes in all, what is done now)."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was restored: files, their bytes, and when the snapshot was made, in seconds since 1970."""

    path: Path
    files: int
    size: int
    made_at_s: float
    verified: bool


def restore(
    source: str | Path, target: str | Path, *, verify: bool = False, progress: Progress | None = None,
    system: System | None = None,
) -> Restored:  # fmt: skip
    """Makes a store at `target`, which must be absent or empty, of the snapshot at `source`.

    Every file is compared with the manifest after it was copied; with `verify`, every checksum in the copy is checked, too,
    those of all chunks among them. `target` appears at last and at once: until then, what is built stands beside it with
    `.tmp-` in its name; if the process ends meanwhile, that is no store, and may be removed.

    Raises:
      StorageError: no snapshot, or `target` holds something. ChunkCorruptError: a file is missing, short, altered or damaged;
        the sentence names it. StoreLockedError: `source` is in use. CapacityError: no space. Nothing is left behind.
    """
    source, target, system = Path(source).absolute(), Path(target).absolute(), system or System()
    tell = progress or (lambda done, whole, what: None)
    _check_source(source)
    manifest = read_manifest(source)
    _compare(manifest, source, "FORMAT", source / "FORMAT")
    version = check_format(source / "FORMAT")
    refuse_remote(next(parent for parent in (target, *target.parents) if parent.exists()))
    with build_beside("restore", source, target, system) as build:
        if system.free_bytes(build) < manifest.size:
            raise CapacityError(
                f"restore {target}: the disk is full: expected {manifest.size} bytes free, found {system.free_bytes(build)}"
            )
        _copy(manifest, source, build, system, tell)
        if verify:
            _verify(build, source, tell)
        # a directory without FORMAT is no store, so it comes when all else is durable
        version |= {"uuid": str(uuid.uuid4())}
        system.write_file(build / "FORMAT", json.dumps(version).encode())
        system.fsync_directory(build)
    return Restored(target, len(manifest.files), manifest.size, manifest.made_at_s, verify)


def _check_source(source: Path) -> None:
    if not source.is_dir():
        raise StorageError(f"snapshot {source}: expected a directory, found {'a file' if source.exists() else 'nothing'}")
    with suppress(FileNotFoundError):
        handle = os.open(source / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLockedError(f"snapshot {source}: another process has it open as a store") from None
        finally:
            os.close(handle)


def _copy(manifest: Manifest, source: Path, build: Path, system: System, tell: Progress) -> None:
    directories = {parent for name in manifest.files for parent in PurePosixPath(name).parents if parent.parts}
    directories |= {PurePosixPath(name) for name in DIRECTORIES}
    for directory in sorted(directories):
        (build / directory).mkdir(mode=0o700)
    done = 0
    for name, entry in manifest.files.items():
        tell(done, manifest.size, name)
        if name != "FORMAT":
            with suppress(FileNotFoundError):
                system.copy(source / name, build / name)
            _compare(manifest, source, name, build / name)
        done += entry.size
    tell(done, manifest.size, "")
    for directory in sorted(directories, reverse=True):
        system.fsync_directory(build / directory)


def _compare(manifest: Manifest, source: Path, name: str, file: Path) -> None:
    """Raises ChunkCorruptError if a file differs from the manifest's entry of `name`."""
    entry = manifest.files.get(name)
    problem = difference(file, entry) if entry is not None else "expected it in the manifest, found that it is not"
    if problem:
        # what was opened as a store is written to, and no snapshot any more
        opened = "; it was opened as a store since: take a snapshot of it" if (source / "LOCK").exists() else ""
        raise ChunkCorruptError(f"snapshot {source}: {name}: {problem}{opened}")


def _verify(build: Path, source: Path, tell: Progress) -> None:
    damage = check_tables(build, progress=tell)
    if damage:
        more = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
        raise ChunkCorruptError(f"snapshot {source}: {damage[0].place}: {damage[0].sentence}{more}")
