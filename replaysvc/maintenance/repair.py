"""Repairs what an inspection found: everything damaged is moved to `quarantine/`, nothing is removed.

Of a damaged segment, a compacted one is made of its whole chunks (`salvage`) and takes its place. It does so before the damaged
one is moved, so a process that ends in between leaves the good one in use.
"""

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from replaysvc.codec.header import MAX_STEPS
from replaysvc.errors import ReplayError, StorageError
from replaysvc.maintenance.continuity import some
from replaysvc.maintenance.findings import Remedy, Severity
from replaysvc.maintenance.inspection import Inspection, SegmentFound, TableFound
from replaysvc.maintenance.salvage import Salvage, salvage
from replaysvc.storage.compaction import Plan, build_compacted
from replaysvc.storage.deletions import Deletions
from replaysvc.storage.records import NEXT_IDS
from replaysvc.storage.segment import FORMAT as SEGMENT_FORMAT
from replaysvc.storage.segment import Segment
from replaysvc.storage.snapshot import DIRECTORIES
from replaysvc.storage.system import System

_SKIPPED = 1 << 32  # chunk ids and positions that pass for given out where nobody knows which were
_MIN_EPISODE_BYTES = 256  # of an entry, a chunk and its record: bounds the episodes of a file
_NO_END = 1 << 62  # above every chunk id


class Repair:
    """Repairs the findings of one inspection. The caller holds the store's lock."""

    def __init__(self, inspection: Inspection, system: System, format_version: int) -> None:
        self._inspection, self._path, self._system = inspection, inspection.path, system
        self._format = format_version

    def run(self) -> None:
        """Repairs what can be; what was done stands in the findings. One thing that fails does not keep others from it."""
        actions: dict[Remedy, Callable[[str], str]] = {
            Remedy.MOVE: lambda place: f"moved to {self._move(place)}", Remedy.LIST: self._rewrite_list,
            Remedy.SEGMENT: self._replace_segment, Remedy.FORMAT: self._rewrite_format, Remedy.COPY: self._copy_anew,
        }  # fmt: skip
        for name in DIRECTORIES:
            (self._path / name).mkdir(mode=0o700, exist_ok=True)
        for place, remedy in sorted(self._inspection.remedies.items(), key=lambda item: item[1]):
            try:
                self._mark(place, actions[remedy](place))
            except (OSError, ReplayError) as error:
                self._inspection.note(place, f"it could not be repaired: {error}")

    def _mark(self, place: str, done: str) -> None:
        findings = self._inspection.findings
        for i, finding in enumerate(findings):
            if finding.place == place and finding.severity is Severity.DAMAGE and not finding.repaired:
                findings[i] = replace(finding, repaired=done)

    def _move(self, place: str) -> str:
        """Moves a file or directory of the store to quarantine, durably; returns where it is now, as a path in the store."""
        kind, _, rest = place.partition("/")
        name = f"{rest.replace('/', '-')}{'' if '/' in rest else '-table'}" if kind == "tables" else place.replace("/", "-")
        target = self._path / "quarantine" / name
        while target.exists():
            target = target.with_name(f"{target.name}-again")
        self._system.rename(self._path / place, target)
        return f"quarantine/{target.name}"

    def _copy_anew(self, place: str) -> str:
        file, temporary = self._path / place, self._path / "tmp" / Path(place).name
        other = file.with_name(file.name.removesuffix(".bak") if file.suffix == ".bak" else f"{file.name}.bak")
        self._system.write_file(temporary, other.read_bytes())
        moved = f"moved to {self._move(place)}; " if file.exists() else ""
        self._system.rename(temporary, file)
        return f"{moved}written anew from {other.name}"

    def _rewrite_format(self, place: str) -> str:
        moved = self._move(place)
        self._write_format({"created_by": "replaysvc fsck", "uuid": str(uuid.uuid4())})
        return f"moved to {moved}; a new one was written, of format version {self._format}"

    def _write_format(self, content: dict[str, Any]) -> None:
        temporary = self._path / "tmp" / "FORMAT"
        content = {"format": self._format, "min_reader": self._format} | content
        self._system.write_file(temporary, json.dumps(content).encode())
        self._system.rename(temporary, self._path / "FORMAT")

    def _raise_format(self) -> None:
        """Keeps releases out that know no compacted segments."""
        content = json.loads((self._path / "FORMAT").read_bytes())
        if int(content["min_reader"]) < self._format:
            self._write_format(content | {"format": max(self._format, int(content["format"])), "min_reader": self._format})

    def _rewrite_list(self, place: str) -> str:
        table = self._path / "tables" / place.split("/")[1]
        moved = self._move(place)
        Deletions(table, self._path / "tmp", self._system, self._raise_format).load()
        return f"moved to {moved}; written anew from the other copy"

    def _replace_segment(self, place: str) -> str:
        table, segment = self._inspection.find_segment(place)
        if segment in table.others or segment.examined.foreign:
            return f"moved to {self._move(place)}"
        at = table.segments.index(segment)
        before = table.segments[at - 1] if at else None
        after = table.segments[at + 1] if at + 1 < len(table.segments) else None
        found = salvage(segment.path, segment.first, after.first if after else _NO_END)
        try:
            _complete(found, segment, table, before)
            footer = _footer(found, segment, after)
            new = self._build(found, footer, segment, table)
        finally:
            found.close()
        moved = self._move(place)
        if (table.path / "damaged").exists():  # what it says was of the old segment; and what is whole now is to be used
            self._move(f"{table.place}/damaged")
        replaced = SegmentFound(new, f"{table.place}/{new.name}", segment.first, segment.generation + 1, segment.examined)
        table.segments[at] = replaced
        self._inspection.examine(replaced, table)
        if replaced.examined.damage:
            raise StorageError(f"the segment made of its whole chunks is damaged, too: {replaced.examined.damage[0]}")
        lost = sorted(found.known_ids - set(found.index["chunk_id"].tolist()))
        if lost:
            self._inspection.note(replaced.place, f"lost: {some('chunk', lost)}")
        if after is None and (found.pages.problems or any(text.startswith("session") for text in segment.examined.damage)):
            self._inspection.note(
                replaced.place,
                "the newest marks of writer sessions may be lost: a writer that sends again may store twice",
            )
        return f"moved to {moved}; {len(found.index)} whole chunks of it are in {new.name}, {len(lost)} are lost"

    def _build(self, found: Salvage, footer: dict[str, Any], segment: SegmentFound, table: TableFound) -> Path:
        taken = [other.generation for other in (*table.segments, *table.others) if other.first == segment.first]
        target = table.path / f"seg-{segment.first:020d}.{max(taken) + 1}"
        build = self._path / "tmp" / f"{table.path.name}-{target.name}"
        self._raise_format()
        plan = Plan([], None, found.index["chunk_id"], footer)
        self._add_entries(found, table)
        # it reads what a segment offers for reading
        build_compacted(cast(Segment, found), plan, build, self._system, table.segment_bytes)
        (build / "lock.mdb").unlink(missing_ok=True)
        self._system.fsync_directory(build)
        self._system.rename(build, target)
        return target

    def _add_entries(self, found: Salvage, table: TableFound) -> None:
        """Takes records of episodes that are lost here from other segments."""
        missing = set(found.index["episode_id"].tolist()) - found.entries.keys()
        for other in table.segments if missing else ():
            if other.examined.damage:
                continue
            elsewhere = Salvage.entries_of(other.path)
            found.entries |= {number: elsewhere[number] for number in missing & elsewhere.keys()}


def _complete(found: Salvage, segment: SegmentFound, table: TableFound, before: SegmentFound | None) -> None:
    """Makes the description of a segment anew if it is lost, from what stands before it, else from its first chunk."""
    if found.meta.get("table") == table.uuid and found.meta.get("first_chunk_id") == segment.first:
        return
    begin = {"next_position": 0, "next_episode_id": 0}
    if len(found.index):
        begin = {"next_position": int(found.index["position"][0]), "next_episode_id": int(found.index["episode_id"].min())}
    if before is not None:
        ends = before.examined.footer or _ends(before.examined.index)
        begin = {name: int(ends[name]) for name in begin if name in ends} or begin
    found.meta = {"format": SEGMENT_FORMAT, "table": table.uuid, "first_chunk_id": segment.first, **begin}


def _ends(index: Any) -> dict[str, int]:
    """Returns the ids that follow those of index records, none if there are no records."""
    if not len(index):
        return {}
    last = index[-1]
    ends = int(last["chunk_id"]) + 1, int(last["position"] + last["n_steps"]), int(index["episode_id"].max()) + 1
    return dict(zip(NEXT_IDS, ends, strict=True))


def _footer(found: Salvage, segment: SegmentFound, after: SegmentFound | None) -> dict[str, Any]:
    """Returns the next ids as of the segment's end, so that none is given out again."""
    if found.footer is not None:
        return dict(found.footer)
    if after is not None and after.examined.description is not None:
        return {name: after.examined.description[name] for name in NEXT_IDS}
    ends = {name: int(found.meta[name]) for name in NEXT_IDS}
    ends = {name: max(ends[name], value) for name, value in (_ends(found.index) or ends).items()}
    whole = set(found.index["chunk_id"].tolist())
    last = int(found.index["chunk_id"][-1]) if len(found.index) else segment.first - 1
    beyond = [number for number in found.known_ids if number > last and number not in whole]
    ends["first_chunk_id"] = max(ends["first_chunk_id"], segment.first + 1, *(number + 1 for number in found.known_ids))
    ends["next_position"] += MAX_STEPS * len(beyond)
    ends["next_episode_id"] = max([ends["next_episode_id"], *(number + 1 for number in found.entries)])
    if after is None and found.pages.problems:  # nobody knows what was given out in the pages that are lost
        ends["first_chunk_id"] += _SKIPPED
        ends["next_position"] += _SKIPPED
        ends["next_episode_id"] += found.pages.size // _MIN_EPISODE_BYTES
    return ends
