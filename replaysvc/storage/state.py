"""Small files beside a table's segments, each replaced whole: what samplers keep, and which episodes are deleted."""

import json
import logging
import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from replaysvc.codec import checksum
from replaysvc.storage.records import CHECKSUM
from replaysvc.storage.system import System, disk_error

log = logging.getLogger(__name__)

HEADER = struct.Struct("<4sIQQ")
STATE_MAGIC = b"RPS1"
VERSION = 1
SAMPLING = "sampling"  # the one state that is read here: JSON, with the table's `head` and `tail` as of when it was saved
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_GONE_WITH = {  # what is lost with a state file, by the first part of its name
    "sampling": "where its queues stand, the counts of its limiter and the state of its generator start anew; steps that"
    " capacity removed may come back until it removes them again",
    "priorities": "the priorities of its steps start anew",
    "queue": "its queue does not give out what it had not given out yet",
    "holes": "steps that capacity took out of the middle may come back",
    "capacity": "its bounds are those of the copy, or else those it was made with",
    "lost": "episodes that ended since their writer was gone are open until their leases end them again",
}


def pack_file(magic: bytes, data: bytes) -> bytes:
    """Returns the stored form of a small file."""
    head = HEADER.pack(magic, VERSION, len(data), 0)[: -CHECKSUM.size]
    return head + CHECKSUM.pack(checksum(head, data)) + data


def unpack_file(magic: bytes, content: bytes) -> bytes | None:
    """Returns the data of a small file, None if it is damaged, of another kind or of an unknown version."""
    if len(content) < HEADER.size:
        return None
    head, data = content[: HEADER.size - CHECKSUM.size], content[HEADER.size :]
    found, version, size, expected = HEADER.unpack_from(content)
    good = (found, version, size) == (magic, VERSION, len(data)) and checksum(head, data) == expected
    return data if good else None


def write_state_files(directory: Path, states: Mapping[str, bytes], system: System) -> None:
    """Writes state files into a new directory, durably but for the directory's own entry."""
    directory.mkdir(mode=0o700)
    for name, data in states.items():
        system.write_file(directory / checked(name), pack_file(STATE_MAGIC, data))
    system.fsync_directory(directory)


def checked(name: str) -> str:
    """Returns a name of a state file. Raises ValueError."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"state {name!r}: expected at most 128 letters, digits, '_', '.' and '-', the first a letter or digit")
    return name


class StateFiles:
    """The state files of one table. A missing or damaged one is no obstacle: what it says can be made anew.

    Writing and dropping is for one thread at a time.
    """

    def __init__(self, table: Path, scratch: Path, system: System) -> None:
        self._path, self._system = table / "state", system
        self._scratch = scratch / f"state-{table.name}"

    def write(self, states: Mapping[str, bytes]) -> None:
        """Replaces files, durably: each whole or not at all. Raises CapacityError, StorageError."""
        temporaries = {name: self._scratch.with_name(f"{self._scratch.name}+{checked(name)}") for name in states}
        if not states:
            return
        try:
            if not self._path.exists():
                self._system.make_directory(self._path)
                self._system.fsync_directory(self._path.parent)
            for name, data in states.items():
                self._system.write_file(temporaries[name], pack_file(STATE_MAGIC, data))
            self._system.crashpoint("state.written")
            for name, temporary in temporaries.items():
                self._system.replace(temporary, self._path / name)
                self._system.crashpoint("state.renamed")
            self._system.fsync_directory(self._path)
            self._system.fsync_directory(self._scratch.parent)
        except OSError as error:
            for temporary in temporaries.values():
                with suppress(OSError):
                    temporary.unlink()
            raise disk_error(self._path, error) from error

    def read(self, name: str) -> bytes | None:
        """Returns what was written, None if there is nothing, or nothing whole."""
        try:
            content = (self._path / checked(name)).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            log.error("state %s cannot be read and is left out: %s", self._path / name, error)
            return None
        data = unpack_file(STATE_MAGIC, content)
        if data is None:
            what = _GONE_WITH.get(name.partition(".")[0], "what it held starts anew")
            log.error("state %s is damaged or of an unknown version, and is left out: %s", self._path / name, what)
        return data

    def bounds(self) -> tuple[int, int]:
        """Returns (head, tail), the next position and the first one not removed as of when `sampling` was saved; 0 for none."""
        try:
            found = self._sampling()
            return max(0, int(found.get("head", 0))), max(0, int(found.get("tail", 0)))
        except (ValueError, TypeError):
            return 0, 0

    def lower_tail(self, position: int, *, beyond: int) -> None:
        """Saves `position` as the first one that is not removed, if what is saved is `beyond` or above. Raises OSError."""
        if self.bounds()[1] >= beyond > position:
            content = json.dumps(self._sampling() | {"tail": position}).encode()
            temporary = self._scratch.with_name(f"{self._scratch.name}+{SAMPLING}")
            self._system.write_file(temporary, pack_file(STATE_MAGIC, content))
            self._system.rename(temporary, self._path / SAMPLING)

    def _sampling(self) -> dict[str, Any]:
        try:
            found = json.loads(unpack_file(STATE_MAGIC, (self._path / SAMPLING).read_bytes()) or b"{}")
        except (OSError, ValueError):  # `read` says so
            return {}
        return found if isinstance(found, dict) else {}

    def names(self) -> list[str]:
        """Returns the names of the files, damaged ones too."""
        try:
            return sorted(file.name for file in self._path.iterdir() if _NAME.fullmatch(file.name))
        except FileNotFoundError:
            return []
        except OSError as error:
            log.error("state %s cannot be listed and is left out: %s", self._path, error)
            return []

    def drop(self, name: str) -> None:
        """Removes a file, durably, if it is there. Raises StorageError."""
        try:
            (self._path / checked(name)).unlink()
            self._system.fsync_directory(self._path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise disk_error(self._path, error) from error
