"""The JSON files that nothing can stand in for, FORMAT and table.json: each has a second copy beside it."""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from replaysvc.codec import checksum
from replaysvc.errors import ChunkCorruptError
from replaysvc.storage.deletions import COPIES, MAGIC
from replaysvc.storage.state import unpack_file
from replaysvc.storage.system import DAMAGED, System

log = logging.getLogger(__name__)

FIRST_FORMAT = 1  # of a store of which nothing was deleted: any release reads it
COMPACTED_FORMAT = 2  # with lists of deleted episodes and compacted segments
MERGED_FORMAT = 3  # with merged segments, which stand for several
FORMAT = MERGED_FORMAT  # up to which this release reads stores
_TABLE_KEYS = {"name": str, "uuid": str, "segment_bytes": int, "description": dict}


def copy_of(file: Path) -> Path:
    """Returns the name of a file's second copy."""
    return file.with_name(f"{file.name}.bak")


def unpack_format(content: bytes) -> dict[str, Any] | None:
    """Returns what a FORMAT file says, None if it is damaged."""
    try:
        values = json.loads(content)
        good = int(values["format"]) > 0 and int(values["min_reader"]) > 0
    except (ValueError, KeyError, TypeError):
        return None
    return dict(values) if good else None


def pack_table(values: Mapping[str, Any]) -> bytes:
    """Returns a table.json: the values, and a checksum over them as JSON with sorted keys."""
    plain = json.loads(json.dumps(values))
    return json.dumps({**plain, "checksum": _sum(plain)}).encode()


def unpack_table(content: bytes) -> dict[str, Any] | None:
    """Returns what a table.json says, None if it is damaged. Those of older releases have no checksum."""
    try:
        values = json.loads(content)
        good = all(isinstance(values[key], kind) for key, kind in _TABLE_KEYS.items())
        expected = values.pop("checksum", None)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return values if good and expected in (None, _sum(values)) else None


def _sum(values: Mapping[str, Any]) -> str:
    return f"{checksum(json.dumps(values, sort_keys=True).encode()):016x}"


def find(file: Path, unpack: Callable[[bytes], dict[str, Any] | None]) -> tuple[bytes, dict[str, Any]] | None:
    """Returns the content of a file, and what it says, or those of its copy if it is damaged; None if neither can be read.

    Raises:
      OSError: a file is there and cannot be read now, which says nothing of what is in it.
    """
    for source in (file, copy_of(file)):
        content = _read(source)
        values = None if content is None else unpack(content)
        if content is not None and values is not None:
            return content, values
        if content is not None:
            log.error("%s is damaged", source)
    return None


def mend(file: Path, content: bytes, scratch: Path, system: System) -> None:
    """Writes a file and its copy, durably, where they are not as they should be. Raises OSError."""
    for target in (file, copy_of(file)):
        if _read(target) != content:
            temporary = scratch / f"mended-{target.name}"
            system.write_file(temporary, content)
            system.rename(temporary, target)
            system.crashpoint("copy.renamed")


def check_table(path: Path, scratch: Path, system: System) -> None:
    """Makes sure that a table can be opened, and mends its description where one copy of it is damaged.

    Raises:
      ChunkCorruptError: both copies are, or both lists of its deleted episodes. OSError: something cannot be read now.
    """

    def unpack(content: bytes) -> dict[str, Any] | None:
        """That of another table says nothing of this one."""
        values = unpack_table(content)
        return values if values is not None and values["name"] == path.name else None

    found = find(path / "table.json", unpack)
    if found is None:
        raise ChunkCorruptError(
            f"table {path.name}: expected its description in table.json or table.json.bak, found none whole"
        )
    lists = [file for file in (path / name for name in COPIES) if file.exists()]
    contents = [_read(file) for file in lists]
    if lists and not any(_is_list(content) for content in contents):
        raise ChunkCorruptError(
            f"table {path.name}: expected a list of its deleted episodes in {' or '.join(COPIES)}, found none that can be read"
        )
    try:
        mend(path / "table.json", found[0], scratch, system)
    except OSError as error:
        log.error("the description of table %s could not be mended: %s", path.name, error)


def _is_list(content: bytes | None) -> bool:
    data = None if content is None else unpack_file(MAGIC, content)
    return data is not None and len(data) % 8 == 0


def _read(file: Path) -> bytes | None:
    """Returns a file's content, None if there is none, or none that can be read."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in DAMAGED:
            raise
        log.error("%s cannot be read: %s", file, error)
        return None
