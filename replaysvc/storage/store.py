"""A store: one directory, owned by one process, with a directory a table. FORMAT.md describes it.

The directories are the catalogue: a table exists if `tables/NAME/table.json` does. Everything is built in `tmp/` and gets its
place by a rename, everything goes by a rename to `trash/`; so a crash leaves nothing half-made, and start-up empties both.
"""

import json
import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from replaysvc.errors import ChunkCorruptError, FormatVersionError, StorageError
from replaysvc.storage.descriptions import (
    COMPACTED_FORMAT,
    FIRST_FORMAT,
    FORMAT,
    check_table,
    copy_of,
    find,
    mend,
    pack_table,
    unpack_format,
)
from replaysvc.storage.disk_use import DiskUse
from replaysvc.storage.ownership import Ownership
from replaysvc.storage.params import DAMAGED_VERSION, ParamsStore
from replaysvc.storage.snapshot import DIRECTORIES, remove_unfinished, write_snapshot
from replaysvc.storage.store_system import StoreSystem
from replaysvc.storage.system import System, disk_error, refuse_remote
from replaysvc.storage.table_store import TableStore
from replaysvc.views import DiskView

log = logging.getLogger(__name__)

_BEFORE_FORMAT = ("lost+found", "LOCK", "FORMAT.tmp")  # what may stand in a directory that is no store yet


class Store:
    """An open store. Making and deleting tables and putting parameters is for one thread at a time."""

    def __init__(self, path: str | Path, *, system: System | None = None, disk_reserve_bytes: int = 0) -> None:
        """Opens the store at `path`; makes one if the directory is absent or empty.

        `disk_reserve_bytes`: appends are refused that would leave less free on the disk; 0: none are.

        A table that cannot be read is moved to `quarantine/`, and named in `quarantined_tables` with the reason.

        Raises:
          StoreLockedError: another process has it. FormatVersionError: of a newer format. StorageError: no store, not
            writable, or on a network file system. Nothing in the directory was touched then.
        """
        self.path = Path(path).absolute()
        self._format: dict[str, Any] = {}
        self._format_lock = threading.Lock()
        self._tables: dict[str, TableStore] = {}
        self.quarantined_tables: dict[str, str] = {}
        self.tables_in_quarantine: set[str] = set()  # since whenever
        self._ownership: Ownership | None = None
        try:
            self._ownership, written = self._claim(system or System())
            self._system = StoreSystem(system or System(), self.path, self._ownership, disk_reserve_bytes)
            self._disk_use = DiskUse(self.path, disk_reserve_bytes, self._system)
            for name in DIRECTORIES:
                (self.path / name).mkdir(mode=0o700, exist_ok=True)
            for name in ("tmp", "trash"):
                for leftover in (self.path / name).iterdir():
                    self._remove_leftover(leftover)
            # what was renamed right before a process ended may be seen, and yet not be durable
            for directory in (self.path, *(self.path / name for name in DIRECTORIES)):
                self._system.fsync_directory(directory)
            mend(self.path / "FORMAT", written, self.path / "tmp", self._system)
            self._params = ParamsStore(self.path / "params", self.path / "tmp", self._system)
            for table in sorted((self.path / "tables").iterdir()):
                self._take_table(table)
            for table in sorted((self.path / "quarantine").glob("*-table*")):
                if table.is_dir():
                    log.warning("%s holds a table that could not be opened; `replaysvc fsck` tells more", table)
                    self.tables_in_quarantine.add(table.name.rpartition("-table")[0])
        except OSError as error:
            self._unlock()
            raise StorageError(f"store {self.path}: cannot be used: {error.strerror or error}") from error
        except BaseException:
            self._unlock()
            raise

    def _claim(self, system: System) -> tuple[Ownership, bytes]:
        """Makes or checks the FORMAT file, and takes the lock; returns it, and what FORMAT says."""
        refuse_remote(self.path)
        marker, written = self.path / "FORMAT", b""
        if self.path.exists():
            if not self.path.is_dir():
                raise StorageError(f"store {self.path}: expected a directory, found a file")
            if marker.exists() or copy_of(marker).exists():
                written, self._format = _read_format(marker)
            elif any(entry.name not in _BEFORE_FORMAT for entry in self.path.iterdir()):
                raise StorageError(f"store {self.path}: expected a store or an empty directory, found other files")
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise StorageError(f"store {self.path}: the directory is not writable")
        else:
            made = [self.path, *(parent for parent in self.path.parents if not parent.exists())]
            self.path.mkdir(mode=0o700, parents=True)
            for path in made:
                system.fsync_directory(path.parent)
        ownership = Ownership(self.path)
        try:
            system.crashpoint("store.locked")
            if written or marker.exists():
                written, self._format = _read_format(marker)  # again: another process may have had the store until now
                return ownership, written
            with suppress(PermissionError):  # whoever made the directory may have ended before its name was durable
                system.fsync_directory(self.path.parent)
            self._format = {"format": FIRST_FORMAT, "min_reader": FIRST_FORMAT, "created_by": "replaysvc 0.1.0"}
            self._format["uuid"] = str(uuid.uuid4())
            written, temporary = json.dumps(self._format).encode(), self.path / "FORMAT.tmp"
            system.write_file(temporary, written)
            system.rename(temporary, marker)
        except BaseException:
            ownership.release()
            raise
        return ownership, written

    def _remove_leftover(self, path: Path) -> None:
        try:
            self._system.remove_tree(path)
        except OSError as error:  # it is of no use, and in nobody's way
            log.error("%s could not be removed: %s", path, error)

    def _take_table(self, path: Path) -> None:
        """Opens a table, or moves it to `quarantine/` if it cannot be known what is in it, or what was deleted of it."""
        if not path.is_dir():
            log.error("%s is no table, and is left alone", path)
            return
        try:
            check_table(path, self.path / "tmp", self._system)
        except ChunkCorruptError as error:
            self._quarantine_table(path, str(error))
            return
        self._system.fsync_directory(path)
        self._tables[path.name] = self._open_table(path)

    def _open_table(self, path: Path) -> TableStore:
        scratch, trash, quarantine = (self.path / name for name in ("tmp", "trash", "quarantine"))
        try:
            return TableStore(path, scratch, trash, quarantine, self._system, raise_format=self._raise_format)
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"store {self.path}: the description of table {path.name} lacks a key, or has one of another kind: {error}"
            ) from error

    def _raise_format(self, version: int = COMPACTED_FORMAT) -> None:
        """Keeps older releases out, durably, before something is written that they would not heed. Raises OSError."""
        marker, temporary = self.path / "FORMAT", self.path / "tmp" / "FORMAT"
        with self._format_lock:
            if int(self._format["min_reader"]) >= version:
                return
            content = self._format | {"format": max(version, int(self._format["format"])), "min_reader": version}
            written = json.dumps(content).encode()
            self._system.write_file(temporary, written)
            self._system.crashpoint("format.written")
            self._system.rename(temporary, marker)
            self._system.crashpoint("format.renamed")
            self._format = content
            mend(marker, written, self.path / "tmp", self._system)

    @property
    def fault(self) -> str:
        """Returns why nothing may be written any more until the service restarts, "" if it may."""
        return self._system.fault

    def tables(self) -> dict[str, TableStore]:
        """Returns the tables by name."""
        return dict(self._tables)

    def create_table(self, name: str, description: Mapping[str, Any], *, segment_bytes: int) -> TableStore:
        """Makes a table, durably. `description` is kept as JSON.

        Raises:
          CapacityError, StorageError: the disk.
        """
        build, target = self.path / "tmp" / f"table-{name}", self.path / "tables" / name
        content = {"name": name, "uuid": str(uuid.uuid4()), "segment_bytes": segment_bytes, "description": description}
        try:
            if build.exists():
                self._system.remove_tree(build)
            build.mkdir(mode=0o700)
            for file in (build / "table.json", copy_of(build / "table.json")):
                self._system.write_file(file, pack_table(content))
            self._system.fsync_directory(build)
            self._system.crashpoint("table.built")
            self._system.rename(build, target)
            self._system.crashpoint("table.renamed")
        except OSError as error:
            raise disk_error(self.path, error) from error
        self._tables[name] = self._open_table(target)
        return self._tables[name]

    def delete_table(self, name: str, gone: Callable[[], None] = lambda: None) -> None:
        """Deletes a table and all its data. No append may run meanwhile; reading may.

        `gone` is called when the table has left its place, before its files are closed.

        Raises:
          StorageError: the disk. If the table could not be moved away, it is there and open as before.
        """
        source, target = self.path / "tables" / name, self.path / "trash" / f"{name}-{uuid.uuid4()}"
        failed: OSError | None = None
        try:
            self._system.rename(source, target)
        except OSError as error:
            if source.exists():
                raise disk_error(self.path, error) from error
            failed = error  # it has moved, and only whether that lasts is not known
        table = self._tables.pop(name)
        gone()
        table.close()
        if failed is not None:
            raise disk_error(self.path, failed) from failed
        self._system.crashpoint("table.deleted")
        self._remove_leftover(target)

    def set_aside(self, name: str, reason: str) -> None:
        """Closes a table that cannot be used, moves it to `quarantine/`, and notes why. Raises StorageError."""
        self._tables.pop(name).close()
        try:
            self._quarantine_table(self.path / "tables" / name, reason)
        except OSError as error:
            raise disk_error(self.path, error) from error

    def _quarantine_table(self, path: Path, reason: str) -> None:
        target = self.path / "quarantine" / f"{path.name}-table"
        while target.exists():
            target = target.with_name(f"{target.name}-again")
        log.error("table %s cannot be used and is moved to %s: %s", path.name, target, reason)
        self.quarantined_tables[path.name] = reason
        self.tables_in_quarantine.add(path.name)
        self._system.rename(path, target)

    def put_params(self, name: str, version: int, data: bytes) -> None:
        """Keeps a parameter set, durably; see ParamsStore.put."""
        try:
            self._params.put(name, version, data)
        except OSError as error:
            raise disk_error(self.path, error) from error

    def get_params(self, name: str) -> tuple[int, bytes] | None:
        """Returns (version, data) of a parameter set, None if there is none. Raises ChunkCorruptError, StorageError."""
        try:
            return self._params.get(name)
        except OSError as error:
            raise disk_error(self.path, error) from error

    def params(self) -> dict[str, int]:
        """Returns the stored version of each parameter set."""
        return dict(self._params.versions)

    def params_versions(self) -> dict[str, int]:
        """Returns the stored version of each parameter set that is not known to be damaged."""
        return {name: version for name, version in self.params().items() if version != DAMAGED_VERSION}

    def disk(self) -> DiskView:
        """Returns how the disk is, and what the store takes of it as of the last minute. Raises StorageError."""
        try:
            return self._disk_use.view()
        except OSError as error:
            raise disk_error(self.path, error) from error

    def snapshot(self, target: str | Path, states: Mapping[str, Mapping[str, bytes]]) -> None:
        """Makes a complete copy of the store at `target`, with the state files of `states` (by table) in place of its own.

        Sealed segments and parameter sets are hard links where that is possible. No append, deletion, removal or put may
        run meanwhile; reading may. `target` appears at last and at once: until then, what is built stands beside it with
        `.tmp-` in its name.

        Raises:
          CapacityError: no space, nothing is left behind. StorageError: `target` holds something, or any other failure.
        """
        write_snapshot(self.path, self._tables, Path(target).absolute(), states, self._system)

    def remove_unfinished_snapshots(self, directory: str | Path) -> None:
        """Removes what snapshots of processes that ended meanwhile left in a directory."""
        remove_unfinished(Path(directory).absolute(), self._system)

    def close(self) -> None:
        """Closes all tables and gives the directory free."""
        for table in self._tables.values():
            table.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._ownership is not None:
            self._ownership.release()


def check_format(marker: Path) -> dict[str, Any]:
    """Returns what a store's FORMAT says, or its copy. Raises StorageError, FormatVersionError."""
    return _read_format(marker)[1]


def _read_format(marker: Path) -> tuple[bytes, dict[str, Any]]:
    try:
        found = find(marker, unpack_format)
    except OSError as error:
        raise StorageError(f"store {marker.parent}: its FORMAT file cannot be read: {error}") from error
    if found is None:
        raise StorageError(f"store {marker.parent}: expected a FORMAT or a FORMAT.bak that can be read, found none")
    if int(found[1]["min_reader"]) > FORMAT:
        raise FormatVersionError(f"store {marker.parent}: expected format version {FORMAT}, found {found[1]['format']}")
    return found
