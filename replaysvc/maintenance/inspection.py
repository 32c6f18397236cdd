"""Everything that `fsck` looks at, and what it says of it. Reads only; each segment is examined in a process of its own."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from replaysvc.checks import NAME as NAME_PATTERN
from replaysvc.codec import checksum
from replaysvc.errors import ReplayError
from replaysvc.maintenance.continuity import misfits, oddities, some
from replaysvc.maintenance.examine import Examined
from replaysvc.maintenance.examiner import Examiner
from replaysvc.maintenance.findings import Finding, Findings, Remedy
from replaysvc.spec import Signature
from replaysvc.storage import deletions, gone, manifest, params, state
from replaysvc.storage.compaction import REPLACES
from replaysvc.storage.descriptions import unpack_table
from replaysvc.storage.gone import Gap, Gone, Span, gaps, lost
from replaysvc.storage.loading import removes
from replaysvc.storage.replacement import ends_of
from replaysvc.storage.set_aside import NOTE, SetAside, held, unsalvaged
from replaysvc.storage.snapshot import DIRECTORIES
from replaysvc.storage.state import StateFiles
from replaysvc.storage.system import System

Progress = Callable[[int, int, str], None]
"""Is told (bytes done, bytes in all, what is looked at now)."""

TOP_LEVEL = {*DIRECTORIES, "FORMAT", "FORMAT.bak", "FORMAT.tmp", "LOCK", "RESERVE", "lost+found", manifest.NAME}
IN_TABLE = {"table.json", "table.json.bak", "damaged", "state", gone.LIST, *deletions.COPIES}
LIST_OF_DAMAGED = b"RPQ1"
_SEGMENT = re.compile(r"seg-(\d{20})(?:\.(\d+))?")
_TABLE = re.compile(r".+-table(-again)*")


@dataclass
class SegmentFound:
    """A segment's directory and what is in it."""

    path: Path
    place: str
    first: int
    generation: int
    examined: Examined


@dataclass
class TableFound:
    """A table: `segments` are those in use, by their ids; `others` have the id of one in use, and a lower or damaged N."""

    path: Path
    place: str
    uuid: str
    segment_bytes: int
    signature: dict[str, Any] | None
    segments: list[SegmentFound] = field(default_factory=list)
    others: list[SegmentFound] = field(default_factory=list)
    aside: list[SetAside] = field(default_factory=list)

    def around(self, first: int) -> tuple[SegmentFound | None, SegmentFound | None]:
        """Returns the segments in use before and after the one whose first chunk id is `first`, None where there is none."""
        before = [segment for segment in self.segments if segment.first < first]
        after = [segment for segment in self.segments if segment.first > first]
        return before[-1] if before else None, after[0] if after else None


class Inspection(Findings):
    """Looks at a store. What it finds is in `findings` and `tables`; `repair` changes both."""

    def __init__(self, path: Path, examiner: Examiner, progress: Progress | None) -> None:
        super().__init__(path)
        self._examiner = examiner
        self.tables: list[TableFound] = []
        self.gaps: dict[str, tuple[TableFound, Gap]] = {}  # by the place where a segment should be
        self.absences: list[Finding] = []  # what is said of segments that are gone
        self._tell = progress or (lambda done, whole, what: None)
        self._whole = sum(file.stat().st_size for file in path.glob("tables/*/seg-*/data.mdb"))
        self._done = 0

    def find_segment(self, place: str) -> tuple[TableFound, SegmentFound]:
        """Returns the segment at a place, and its table."""
        found = ((table, segment) for table in self.tables for segment in (*table.segments, *table.others))
        return next((table, segment) for table, segment in found if segment.place == place)

    def find_aside(self, place: str) -> tuple[TableFound, SetAside]:
        """Returns the segment at a place in quarantine, and its table."""
        found = ((table, aside) for table in self.tables for aside in table.aside)
        return next((table, aside) for table, aside in found if f"quarantine/{aside.path.name}" == place)

    def look(self) -> None:
        """Looks at everything but how segments fit together. Raises OSError if a directory cannot be read."""
        for entry in _entries(self.path):
            if entry.name not in TOP_LEVEL:
                self.note(entry.name, "it does not belong into a store, and is left alone")
        self._look_at_manifest()
        for file in _entries(self.path / "params"):
            self._look_at_params(file)
        for path in _entries(self.path / "tables"):
            table = self._look_at_table(path)
            if table is not None:
                self.tables.append(table)
                self._look_at_small_files(table)
                self._look_at_segments(table)
                self._look_at_quarantined(table)
                before = len(self.findings)
                self._look_for_gone(table)
                self.absences += self.findings[before:]
        self._look_at_quarantined_tables()
        self._tell(self._whole, self._whole, "")
        held = len(_entries(self.path / "quarantine"))
        if held:
            self.note("quarantine", f"it holds {held} damaged things; remove them when you are done with them")

    def look_at_chains(self) -> None:
        """Looks at how the segments of each table fit together, as they are by now."""
        for table in self.tables:
            examined = [(segment.first, segment.examined) for segment in table.segments]
            places = {i: segment.place for i, segment in enumerate(table.segments)}
            for i, sentence in misfits(examined):
                self.damage(places.get(i, table.place), sentence)
            for i, sentence in oddities(examined):
                self.note(places.get(i, table.place), sentence)

    def _look_at_manifest(self) -> None:
        if not (self.path / manifest.NAME).exists():
            return
        if (self.path / "LOCK").exists():
            self.note(manifest.NAME, "it tells nothing any more: this snapshot was opened as a store")
            return
        try:
            files = manifest.read_manifest(self.path).files
        except ReplayError as error:
            self.damage(manifest.NAME, str(error))
            return
        for name, entry in files.items():
            if problem := manifest.difference(self.path / name, entry):
                self.damage(manifest.NAME, f"{name}: {problem}")

    def _look_at_params(self, file: Path) -> None:
        place = f"params/{file.name}"
        content = self._read(file, place)
        if content is None:
            return
        head = content[: params.HEADER.size]
        good = len(head) == params.HEADER.size and params.HEADER.unpack(head)[::2] == (params.MAGIC, len(content) - len(head))
        stated = params.HEADER.unpack(head)[3] if good else 0
        if not good or checksum(head[:-8], memoryview(content)[len(head) :]) != stated:
            self.damage(place, "the parameter set does not match its checksum", Remedy.MOVE)

    def _read(self, file: Path, place: str) -> bytes | None:
        try:
            return file.read_bytes()
        except OSError as error:
            self.damage(place, f"it cannot be read: {error.strerror or error}", Remedy.MOVE)
            return None

    def _look_at_table(self, path: Path) -> TableFound | None:
        place = f"tables/{path.name}"
        if not path.is_dir():
            self.damage(place, "expected a table, found a file, which the store leaves alone", Remedy.MOVE)
            return None
        described = self.described(path / "table.json", lambda content: _unpack_table(content, path.name))
        if described is None:
            self.damage(place, "its table.json cannot be read; the table cannot be opened", Remedy.MOVE)
            return None
        signature = described["description"].get("signature")
        return TableFound(path, place, str(described["uuid"]), int(described["segment_bytes"]), signature)

    def _look_at_small_files(self, table: TableFound) -> None:
        copies: dict[str, bytes | None] = {}
        for name in deletions.COPIES:
            if (table.path / name).exists():
                content = self._read(table.path / name, f"{table.place}/{name}")
                copies[name] = None if content is None else state.unpack_file(deletions.MAGIC, content)
                if content is not None and (copies[name] is None or len(copies[name] or b"") % 8):
                    copies[name] = None
                    self.damage(f"{table.place}/{name}", "the list of deleted episodes does not match its checksum")
        for name in (name for name, content in copies.items() if content is None and any(copies.values())):
            self.remedies[f"{table.place}/{name}"] = Remedy.LIST
        if copies and not any(content is not None for content in copies.values()):
            self.damage(
                table.place,
                f"no list of deleted episodes can be read; the table cannot be opened: put {' or '.join(deletions.COPIES)} back"
                " from a snapshot, or remove both if all deleted episodes may come back",
            )
        if len(copies) == 1:
            (missing,) = set(deletions.COPIES) - copies.keys()
            self.note(
                f"{table.place}/{missing}", "one copy of the list of deleted episodes is missing; the next start writes it anew"
            )
        elif len(set(copies.values())) > 1 and None not in copies.values():
            self.note(
                f"{table.place}/{deletions.COPIES[1]}",
                "the copies of the list of deleted episodes differ; what either says holds",
            )
        for file in _entries(table.path / "state"):
            content = self._read(file, f"{table.place}/state/{file.name}")
            if content is not None and state.unpack_file(state.STATE_MAGIC, content) is None:
                self.damage(
                    f"{table.place}/state/{file.name}",
                    "the state does not match its checksum, or is of a newer version",
                    Remedy.MOVE,
                )
        noted = self._read(table.path / "damaged", f"{table.place}/damaged") if (table.path / "damaged").exists() else None
        if noted is not None and state.unpack_file(LIST_OF_DAMAGED, noted) is None:
            self.damage(f"{table.place}/damaged", "the list of damaged chunks does not match its checksum", Remedy.MOVE)
        place = f"{table.place}/{gone.LIST}"
        removed = self._read(table.path / gone.LIST, place) if (table.path / gone.LIST).exists() else None
        if removed is not None and state.unpack_file(gone.MAGIC, removed) is None:
            self.damage(place, "the list of removed chunks does not match its checksum", Remedy.MOVE)
        for entry in _entries(table.path):
            if entry.name not in IN_TABLE and not _SEGMENT.fullmatch(entry.name):
                self.note(f"{table.place}/{entry.name}", "it does not belong into a table, and is left alone")

    def _look_at_segments(self, table: TableFound) -> None:
        found: dict[int, list[SegmentFound]] = {}
        for path in _entries(table.path):
            if name := _SEGMENT.fullmatch(path.name):
                segment = SegmentFound(path, f"{table.place}/{path.name}", int(name[1]), int(name[2] or 0), Examined())
                self.examine(segment, table)
                found.setdefault(segment.first, []).append(segment)
        merged: SegmentFound | None = None
        for first in sorted(found):
            same = sorted(found[first], key=lambda segment: -segment.generation)
            used = next((segment for segment in same if not segment.examined.damage), same[0])
            if merged is not None and (first in _replaced(merged) or first <= merged.examined.last_chunk_id):
                table.others += same
                for other in same:
                    if first in _replaced(merged):
                        self.note(other.place, f"{merged.path.name} has taken its place; the next start removes it")
                    else:
                        self.damage(other.place, f"{merged.path.name} has chunks from before and after it", Remedy.SEGMENT)
                continue
            table.segments.append(used)
            merged = used if _replaced(used) else merged
            for other in (segment for segment in same if segment is not used):
                table.others.append(other)
                if not other.examined.damage:
                    self.note(other.place, f"{used.path.name} has taken its place; the next start removes it")

    def _look_at_quarantined(self, table: TableFound) -> None:
        table.aside = held(self.path / "quarantine", table.path.name, table.uuid)
        for one in unsalvaged(table.aside, {segment.first for segment in table.segments}):
            self.damage(
                f"quarantine/{one.path.name}",
                f"a start could not use this segment of table {table.path.name}, and nothing of it was salvaged",
                Remedy.QUARANTINED,
            )

    def _look_for_gone(self, table: TableFound) -> None:
        """Looks for segments of which not even a directory is left."""
        spans = [Span(segment.first, _stop(segment.examined, segment.first)) for segment in table.segments]
        aside = unsalvaged(table.aside, {span.first for span in spans})
        known = Gone(table.path, table.path, System()).load()
        found = gaps(spans)
        missing = lost(found, known, [one.first for one in aside], removes=removes(table.path))
        for gap in found:
            place, chunks = f"{table.place}/seg-{gap.start:020d}", f"chunks {gap.start} to {gap.stop - 1} are in no segment"
            if gap in missing:
                self.gaps[place] = table, gap
                self.damage(place, f"{chunks}, and nobody removed them: the segment is gone", Remedy.GONE)
            elif known is None and not any(gap.start <= one.first < gap.stop for one in aside):
                self.note(place, f"{chunks}; older releases did not note whether such were removed on purpose")
        head, _ = StateFiles(table.path, table.path, System()).bounds()
        end = max((_end(segment.examined) for segment in table.segments), default=0)
        if head > end and not any(segment.examined.damage for segment in table.segments[-1:]) and not aside:
            self.damage(
                table.place,
                f"its newest segments are gone: by its saved state, steps up to position {head} were there, and the segments"
                f" end at {end}; the next start goes on after them",
            )

    def _look_at_quarantined_tables(self) -> None:
        for path in _entries(self.path / "quarantine"):
            if _TABLE.fullmatch(path.name) and path.is_dir():
                self.damage(
                    f"quarantine/{path.name}",
                    "a table that could not be opened, with all its segments: put a whole table.json, or list of deleted"
                    " episodes, into it and move it back to tables/, or remove it",
                )

    def examine(self, segment: SegmentFound, table: TableFound) -> None:
        """Examines a segment in a process of its own, and adds what was found."""
        size = _size(segment.path / "data.mdb")
        self._tell(self._done, self._whole, segment.place)
        segment.examined = found = self._examiner.examine(segment.path, table=table.uuid, signature=table.signature)
        self._done += size
        for sentence in found.damage:
            self.damage(segment.place, sentence, None if found.newer else Remedy.SEGMENT)
        for sentence in found.notes:
            self.note(segment.place, sentence)
        if found.missing:
            self.note(
                segment.place, f"no record of {some('episode', found.missing)}: who wrote it, when, and its metadata are lost"
            )
        for entry in _entries(segment.path):
            if entry.name not in ("data.mdb", "lock.mdb", NOTE):
                self.note(f"{segment.place}/{entry.name}", "it does not belong into a segment, and is left alone")


def _replaced(segment: SegmentFound) -> list[int]:
    """Returns the first chunk ids of the segments that a whole one stands for besides its own."""
    found = segment.examined
    return [] if found.damage else list((found.description or {}).get(REPLACES, []))


def _unpack_table(content: bytes, name: str) -> dict[str, Any]:
    """Returns what a table.json says. Raises ValueError and its like, InvalidRequestError."""
    described = unpack_table(content)
    if described is None:
        raise ValueError("its checksum does not match its bytes, or a key is missing")
    if described["name"] != name or not NAME_PATTERN.fullmatch(name):
        raise ValueError(f"expected the name {name}, found {described['name']!r}")
    if (signature := described["description"].get("signature")) is not None:
        Signature.from_json(signature)
    return described


def _stop(found: Examined, first: int) -> int | None:
    """Returns the chunk id after the last of a segment, None if it is not known."""
    if found.sealed or found.description is None:
        return None if found.footer is None else int(found.footer.get("first_chunk_id", first))
    return max(found.last_chunk_id + 1, first)


def _end(found: Examined) -> int:
    """Returns the position after the last that a segment tells of."""
    told = [found.footer or {}, found.description or {}, ends_of(found.index)]
    return max(int(one.get("next_position", 0)) for one in told)


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
