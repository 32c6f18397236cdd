"""A complete copy of a store that is in use, made beside its place and named at last."""

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from replaysvc.errors import ReplayError, StorageError
from replaysvc.storage.state import checked
from replaysvc.storage.system import System, disk_error
from replaysvc.storage.table_store import TableStore

DIRECTORIES = ("tables", "params", "tmp", "trash", "quarantine")


def write_snapshot(
    store: Path,
    tables: Mapping[str, TableStore],
    target: Path,
    states: Mapping[str, Mapping[str, bytes]],
    system: System,
) -> None:
    """Copies a store to `target`; see Store.snapshot."""
    made: list[Path] = []
    build = target.with_name(f"{target.name}.tmp-{uuid.uuid4().hex[:8]}")
    for name in (name for table in states.values() for name in table):
        checked(name)
    try:
        _check_target(store, target)
        made = [parent for parent in target.parents if not parent.exists()]
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for parent in made:
            system.fsync_directory(parent.parent)
        build.mkdir(mode=0o700)
        system.crashpoint("snapshot.begun")
        _fill(store, tables, build, states, system)
        system.crashpoint("snapshot.built")
        system.rename(build, target)
        system.crashpoint("snapshot.renamed")
    except (OSError, ReplayError) as error:
        with suppress(OSError):
            if build.exists():
                system.remove_tree(build)
            for parent in made:
                parent.rmdir()
        if isinstance(error, OSError):
            raise disk_error(target, error) from error
        raise


def _check_target(store: Path, target: Path) -> None:
    where = target.resolve()
    if where == store.resolve() or store.resolve() in where.parents:
        raise StorageError(f"snapshot {target}: expected a place outside of the store {store}")
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise StorageError(f"snapshot {target}: expected no file, or an empty directory, found something else")
    if target.exists() and os.listdir(target):
        raise StorageError(f"snapshot {target}: expected no file, or an empty directory, found one with files in it")


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
    for directory in (build / "params", build / "tables", build):
        system.fsync_directory(directory)
