"""Segments in `quarantine/`: moved there with a note of what became of their chunks, and found there again."""

import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path

from replaysvc.storage.replacement import description_of
from replaysvc.storage.system import System

log = logging.getLogger(__name__)

NOTE = "set-aside.json"  # in a segment's directory; its absence is no obstacle
_NAME = re.compile(r"(.+)-seg-(\d{20})(?:\.(\d+))?(?:-again)*")


@dataclass(frozen=True, slots=True)
class SetAside:
    """A segment in quarantine. table: uuid of the table that it belongs to, "" if nothing tells; kept: how many of its chunks
    are in the segment that took its place, None if it was not salvaged."""

    path: Path
    first: int
    generation: int
    table: str
    kept: int | None


def set_aside(segment: Path, name: str, uuid: str, kept: int | None, quarantine: Path, system: System) -> Path:
    """Moves a segment of the table `name` into quarantine, durably, with a note; returns where it is. Raises OSError."""
    target = quarantine / f"{name}-{segment.name}"
    while target.exists():  # a table of the same name was there before
        target = target.with_name(f"{target.name}-again")
    note(segment, uuid, kept, system)
    system.rename(segment, target)
    return target


def note(segment: Path, uuid: str, kept: int | None, system: System) -> None:
    """Writes into a segment's directory what became of its chunks; logs if that fails."""
    try:
        system.write_file(segment / NOTE, json.dumps({"table": uuid, "kept": kept}).encode())
        system.fsync_directory(segment)
    except OSError as error:
        log.warning("segment %s: what became of it could not be noted: %s", segment, error)


def held(quarantine: Path, name: str, uuid: str) -> list[SetAside]:
    """Returns the segments of a table that lie in quarantine, those of which nothing tells whose they are among them."""
    try:
        paths = sorted(quarantine.iterdir())
    except OSError:
        return []
    found = []
    for path in paths:
        parts = _NAME.fullmatch(path.name)
        if parts and parts[1] == name and path.is_dir():
            owner, kept = _read(path)
            owner = owner or str(description_of(path).get("table", ""))
            if owner in ("", uuid):
                found.append(SetAside(path, int(parts[2]), int(parts[3] or 0), owner, kept))
    return found


def unsalvaged(found: list[SetAside], firsts: set[int]) -> list[SetAside]:
    """Returns those that no segment has taken the place of; `firsts` are the first chunk ids of the table's segments."""
    return [one for one in found if one.kept is None and one.first not in firsts]


def _read(path: Path) -> tuple[str, int | None]:
    try:
        told = json.loads((path / NOTE).read_bytes())
        return str(told["table"]), None if told["kept"] is None else int(told["kept"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", None
