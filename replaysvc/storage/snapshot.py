"""A complete copy of a store that is in use, made beside its place and named at last."""

import fcntl
import logging
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from replaysvc.errors import ReplayError, StorageError
from replaysvc.storage import manifest
from replaysvc.storage.state import checked
from replaysvc.storage.system import System, disk_error
from replaysvc.storage.table_store import TableStore

DIRECTORIES = ("tables", "params", "tmp", "trash", "quarantine")
UNFINISHED = re.compile(r"(?P<name>.+)\.tmp-[0-9a-f]{8}")
"""What a copy is called until it is complete."""

log = logging.getLogger(__name__)


def write_snapshot(
    store: Path,
    tables: Mapping[str, TableStore],
    target: Path,
    states: Mapping[str, Mapping[str, bytes]],
    system: System,
) -> None:
    """Copies a store to `target`; see Store.snapshot."""
    for name in (name for table in states.values() for name in table):
        checked(name)
    remove_unfinished(target.parent, system, of=target.name)
    with build_beside("snapshot", store, target, system) as build:
        _fill(store, tables, build, states, system)
        system.write_file(build / manifest.NAME, manifest.make_manifest(build, made_at_s=system.time()).to_bytes())
        system.fsync_directory(build)


@contextmanager
def build_beside(what: str, source: Path, target: Path, system: System) -> Iterator[Path]:
    """Yields a new directory beside `target`, with `.tmp-` in its name, that becomes `target` at the end: a copy of `source`.

    What fails leaves nothing behind; a process that ends meanwhile leaves the directory, which is locked until then. `what`
    begins the crash points' names.

    Raises:
      CapacityError: no space. StorageError: `target` holds something, or lies within `source`, or any other failure of the file
        system; and what is raised within.
    """
    made: list[Path] = []
    held = -1
    build = target.with_name(f"{target.name}.tmp-{uuid.uuid4().hex[:8]}")
    try:
        _check_target(what, source, target)
        made = [parent for parent in target.parents if not parent.exists()]
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for parent in made:
            system.fsync_directory(parent.parent)
        build.mkdir(mode=0o700)
        held = _lock(build)
        system.crashpoint(f"{what}.begun")
        yield build
        system.crashpoint(f"{what}.built")
        system.rename(build, target)
        system.crashpoint(f"{what}.renamed")
    except (OSError, ReplayError) as error:
        with suppress(OSError):
            if build.exists():
                system.remove_tree(build)
            for parent in made:
                parent.rmdir()
        if isinstance(error, OSError):
            raise disk_error(target, error) from error
        raise
    finally:
        if held >= 0:
            os.close(held)


def remove_unfinished(directory: Path, system: System, *, of: str | None = None) -> None:
    """Removes the copies in a directory, or those `of` one name, whose processes ended before they were complete."""
    try:
        named = ((path, UNFINISHED.fullmatch(path.name)) for path in directory.iterdir())
        found = [path for path, name in named if name and of in (None, name["name"])]
    except OSError:  # there is no directory yet
        return
    for path in found:
        try:
            if path.is_symlink() or not {entry.name for entry in path.iterdir()} <= {*DIRECTORIES, "FORMAT", manifest.NAME}:
                continue  # not of ours
            held = _lock(path)
            try:
                if held >= 0:
                    log.warning("%s: a copy that was not completed is removed", path)
                    system.remove_tree(path)
            finally:
                if held >= 0:
                    os.close(held)
        except OSError as error:
            log.error("%s: a copy that was not completed could not be removed: %s", path, error)


def _lock(directory: Path) -> int:
    """Locks a directory for as long as the handle that this returns is open; -1: another process holds it, or nobody can."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return -1
    return handle


def _check_target(what: str, source: Path, target: Path) -> None:
    where = target.resolve()
    if UNFINISHED.fullmatch(target.name):
        raise StorageError(f"{what} {target}: expected another name; one that ends like this is of a copy that is not complete")
    if where == source.resolve() or source.resolve() in where.parents:
        raise StorageError(f"{what} {target}: expected a place outside of the store {source}")
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise StorageError(f"{what} {target}: expected no file, or an empty directory, found something else")
    if target.exists() and os.listdir(target):
        raise StorageError(f"{what} {target}: expected no file, or an empty directory, found one with files in it")


def _fill(
    store: Path,
    tables: Mapping[str, TableStore],
    build: Path,
    states: Mapping[str, Mapping[str, bytes]],
    system: System,
) -> None:
    for name in DIRECTORIES:
        (build / name).mkdir(mode=0o700)
    for file in sorted((store / "params").iterdir()):
        system.link(file, build / "params" / file.name)
    for name, table in sorted(tables.items()):
        table.copy_to(build / "tables" / name, states.get(name, {}))
    system.copy(store / "FORMAT", build / "FORMAT")
    for directory in (build / "params", build / "tables"):
        system.fsync_directory(directory)
