"""Which episodes of a table are deleted: a list in two copies, for without it deleted data would come back."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from replaysvc.errors import ChunkCorruptError
from replaysvc.storage.state import pack_file, unpack_file
from replaysvc.storage.system import System, disk_error
from replaysvc.types import Array

log = logging.getLogger(__name__)

MAGIC = b"RPD1"
COPIES = ("deleted", "deleted.bak")


class Deletions:
    """The deleted episodes of one table. For one thread at a time."""

    def __init__(self, table: Path, scratch: Path, system: System, raise_format: Callable[[], None]) -> None:
        self._path, self._scratch, self._system = table, scratch, system
        self._raise_format = raise_format
        self.ids: Array = np.empty(0, np.int64)

    def load(self) -> Array:
        """Reads the list and repairs a copy that is damaged or missing; returns the ids, sorted.

        Raises:
          ChunkCorruptError: no copy can be read.
        """
        present = [file for file in (self._path / name for name in COPIES) if file.exists()]
        found = [_read(file) for file in present]
        good = [ids for ids in found if ids is not None]
        if present and not good:
            raise ChunkCorruptError(
                f"store {self._path}: expected a list of the deleted episodes in {' or '.join(COPIES)}, found that neither can"
                " be read; put one back from a backup, or remove both files if all deleted episodes may come back"
            )
        self.ids = np.unique(np.concatenate([self.ids, *good]))
        if good and len(good) < len(COPIES):
            try:
                self._write(self.ids)
            except OSError as error:
                log.error("the list of deleted episodes in %s could not be repaired: %s", self._path, error)
        return self.ids

    def add(self, episode_ids: Sequence[int] | Array, oldest: int) -> None:
        """Notes, durably, that episodes are deleted, and forgets those below `oldest`. Raises CapacityError, StorageError."""
        ids = np.union1d(self.ids, np.asarray(episode_ids, np.int64))
        ids = ids[ids >= oldest]
        if np.isin(ids, self.ids).all():
            return
        try:
            self._raise_format()
            self._write(ids)
        except OSError as error:
            raise disk_error(self._path, error) from error
        self.ids = ids

    def _write(self, ids: Array) -> None:
        """Replaces both copies. A process that ends in between leaves one with the new ids, and the union of both holds."""
        temporaries = [self._scratch / f"{name}-{self._path.name}" for name in COPIES]
        content = pack_file(MAGIC, ids.astype("<i8").tobytes())
        try:
            for temporary in temporaries:
                self._system.write_file(temporary, content)
            self._system.crashpoint("deletion.written")
            self._system.replace(temporaries[0], self._path / COPIES[0])
            self._system.crashpoint("deletion.renamed")
            self._system.replace(temporaries[1], self._path / COPIES[1])
            self._system.fsync_directory(self._path)
            self._system.fsync_directory(self._scratch)
            self._system.crashpoint("deletion.copied")
        except OSError:
            for temporary in temporaries:
                with suppress(OSError):
                    temporary.unlink()
            raise


def _read(file: Path) -> Array | None:
    try:
        data = unpack_file(MAGIC, file.read_bytes())
    except OSError as error:
        log.error("the list of deleted episodes %s cannot be read: %s", file, error)
        return None
    if data is None or len(data) % 8:
        log.error("the list of deleted episodes %s is damaged", file)
        return None
    return np.frombuffer(data, "<i8").astype(np.int64)
