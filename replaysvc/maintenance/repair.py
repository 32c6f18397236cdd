"""Repairs what an inspection found: everything damaged is moved to `quarantine/`, nothing is removed.

Of a damaged segment, also of one that a start had set aside, a compacted one is made of its whole chunks and takes its place
(`replacement`), before the damaged one is moved: a process that ends in between leaves the good one in use.
"""

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from replaysvc.errors import ReplayError, StorageError
from replaysvc.maintenance.continuity import some
from replaysvc.maintenance.examine import Examined
from replaysvc.maintenance.findings import Remedy, Severity
from replaysvc.maintenance.inspection import Inspection, SegmentFound, TableFound
from replaysvc.storage.deletions import Deletions
from replaysvc.storage.descriptions import COMPACTED_FORMAT
from replaysvc.storage.gone import Gap, Gone
from replaysvc.storage.records import EpisodeEntry
from replaysvc.storage.replacement import NO_END, Damaged, Replacement, Replacing, ends_of
from replaysvc.storage.salvage import Salvage, salvage
from replaysvc.storage.set_aside import SetAside, note
from replaysvc.storage.snapshot import DIRECTORIES
from replaysvc.storage.system import System


class Repair:
    """Repairs the findings of one inspection. The caller holds the store's lock."""

    def __init__(self, inspection: Inspection, system: System, format_version: int) -> None:
        self._inspection, self._path, self._system = inspection, inspection.path, system
        self._format = format_version
        self.kept = self.lost = 0  # chunks of damaged segments

    def run(self) -> None:
        """Repairs what can be; what was done stands in the findings. One thing that fails does not keep others from it."""
        actions: dict[Remedy, Callable[[str], str]] = {
            Remedy.MOVE: lambda place: f"moved to {self._move(place)}", Remedy.LIST: self._rewrite_list,
            Remedy.SEGMENT: self._replace_segment, Remedy.FORMAT: self._rewrite_format, Remedy.COPY: self._copy_anew,
            Remedy.QUARANTINED: self._salvage_from_quarantine, Remedy.GONE: self._note_gap,
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
        if int(content["min_reader"]) < COMPACTED_FORMAT:
            versions = {"format": max(COMPACTED_FORMAT, int(content["format"])), "min_reader": COMPACTED_FORMAT}
            self._write_format(content | versions)

    def _rewrite_list(self, place: str) -> str:
        table = self._path / "tables" / place.split("/")[1]
        moved = self._move(place)
        Deletions(table, self._path / "tmp", self._system, self._raise_format).load()
        return f"moved to {moved}; written anew from the other copy"

    def _replace_segment(self, place: str) -> str:
        table, segment = self._inspection.find_segment(place)
        if segment in table.others or segment.examined.foreign:
            note(segment.path, table.uuid, 0, self._system)
            moved = self._move(place)
            if segment in table.segments:  # what should be in its place is nowhere
                table.segments.remove(segment)
                after = table.around(segment.first)[1]
                self._gone(table).add([] if after is None else [Gap(segment.first, after.first)])
            return f"moved to {moved}"
        newest = segment is table.segments[-1]
        made = self._replace(table, self._damaged(table, segment.path, segment.first))
        note(segment.path, table.uuid, made.kept, self._system)
        moved = self._move(place)
        if (table.path / "damaged").exists():  # what it says was of the old segment; and what is whole now is to be used
            self._move(f"{table.place}/damaged")
        replaced = self._take(table, made, segment)
        if made.marks_lost or (newest and any(text.startswith("session") for text in segment.examined.damage)):
            self._note_marks(replaced)
        return f"moved to {moved}; {_words(made)}"

    def _salvage_from_quarantine(self, place: str) -> str:
        table, aside = self._inspection.find_aside(place)
        self._check_free(table, aside)
        made = self._replace(table, self._damaged(table, aside.path, aside.first))
        note(aside.path, table.uuid, made.kept, self._system)
        replaced = self._take(table, made, None)
        if made.marks_lost:
            self._note_marks(replaced)
        return _words(made)

    def _check_free(self, table: TableFound, aside: SetAside) -> None:
        """Raises StorageError if the ids of a segment from quarantine may have been given out to others."""
        before, after = table.around(aside.first)
        ends = {} if before is None else before.examined.footer or ends_of(before.examined.index)
        if ends and ends["first_chunk_id"] > aside.first:
            raise StorageError(f"{aside.path.name}: {before.place if before else ''} has chunks of its ids")
        if not aside.table and after is None:
            raise StorageError(f"{aside.path.name}: nothing tells that it belongs to table {table.path.name}")

    def _damaged(self, table: TableFound, path: Path, first: int) -> Damaged:
        before, after = table.around(first)
        ends = None if before is None else before.examined.footer or ends_of(before.examined.index) or None
        begin = None if after is None else after.examined.description
        return Damaged(path, first, after.first if after else NO_END, ends, begin, uncertain=False)

    def _replacing(self, table: TableFound) -> Replacing:
        def elsewhere(missing: set[int]) -> Mapping[int, EpisodeEntry]:
            found: dict[int, EpisodeEntry] = {}
            for other in table.segments:
                if not other.examined.damage and not missing <= found.keys():
                    found |= Salvage.entries_of(other.path)
            return found

        return Replacing(
            table.path, table.uuid, table.segment_bytes, self._path / "tmp", self._system, self._raise_format, elsewhere
        )

    def _replace(self, table: TableFound, damaged: Damaged) -> Replacement:
        made = self._replacing(table).replace(damaged, keep_empty=True)
        if made is None:
            raise StorageError(f"nothing could be made of {damaged.path.name}")
        self.kept += made.kept
        self.lost += len(made.lost)
        return made

    def _take(self, table: TableFound, made: Replacement, old: SegmentFound | None) -> SegmentFound:
        """Puts a segment that was made among those of the table, and examines it."""
        name, _, generation = made.path.name.partition(".")
        new = SegmentFound(made.path, f"{table.place}/{made.path.name}", int(name[4:]), int(generation), Examined())
        table.segments = sorted([*(one for one in table.segments if one is not old), new], key=lambda one: one.first)
        self._inspection.examine(new, table)
        if new.examined.damage:
            raise StorageError(f"the segment made of its whole chunks is damaged, too: {new.examined.damage[0]}")
        if made.lost:
            self._inspection.note(new.place, f"lost: {some('chunk', made.lost)}")
        return new

    def _note_marks(self, segment: SegmentFound) -> None:
        self._inspection.note(
            segment.place, "the newest marks of writer sessions may be lost: a writer that sends again may store twice"
        )

    def _note_gap(self, place: str) -> str:
        """Notes that chunks are gone for good, so that it is not told again and again."""
        table, gap = self._inspection.gaps[place]
        self._gone(table).add([gap])
        return "noted as lost, and not told again"

    def _gone(self, table: TableFound) -> Gone:
        return Gone(table.path, self._path / "tmp", self._system)


def preview(inspection: Inspection) -> tuple[int, int]:
    """Returns how many chunks of damaged segments a repair would keep, and how many are lost. Reads the segments."""
    kept = lost = 0
    for place, remedy in inspection.remedies.items():
        try:
            if remedy is Remedy.SEGMENT:
                table, segment = inspection.find_segment(place)
                if segment in table.others or segment.examined.foreign:
                    continue
                path, first = segment.path, segment.first
            elif remedy is Remedy.QUARANTINED:
                table, aside = inspection.find_aside(place)
                path, first = aside.path, aside.first
            else:
                continue
            after = table.around(first)[1]
            found = salvage(path, first, after.first if after else NO_END)
        except OSError:  # a finding says that it cannot be read
            continue
        found.close()
        kept += len(found.index)
        lost += len(found.known_ids - set(found.index["chunk_id"].tolist()))
    return kept, lost


def _words(made: Replacement) -> str:
    """Returns in words what was kept."""
    return f"{made.kept} whole chunks of it are in {made.path.name}, {len(made.lost)} are lost"
