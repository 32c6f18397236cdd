"""`fsck`: is all of a store whole? Read only, unless it is asked to repair; then what is damaged is moved out of the way.

No data file is opened by LMDB in this process: each segment is examined in a process of its own (`examine`), so that a file
which ends LMDB is a finding like any other. The lock of the store is held meanwhile.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replaysvc.errors import FormatVersionError, ReplayError, StorageError, StoreLockedError
from replaysvc.maintenance.examiner import Examiner
from replaysvc.maintenance.findings import Finding, Remedy, Severity
from replaysvc.maintenance.inspection import Inspection, Progress
from replaysvc.maintenance.repair import Repair, preview
from replaysvc.storage.descriptions import FORMAT
from replaysvc.storage.system import System

__all__ = ["Finding", "Progress", "Report", "Severity", "check", "check_tables"]


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in a store. `cannot`: why it could not be checked, empty if it was.

    kept, lost: whole chunks of damaged segments that a repair has kept, or would keep, and chunks that are lost with them.
    """

    path: Path
    findings: tuple[Finding, ...] = ()
    tables: int = 0
    segments: int = 0
    chunks: int = 0
    chunk_bytes: int = 0
    seconds: float = 0.0
    cannot: str = ""
    kept: int = 0
    lost: int = 0

    @property
    def status(self) -> int:
        """Returns 0 for a clean store, 1 if all damage was repaired, 2 if some is left, 3 if it could not be checked."""
        damage = [finding for finding in self.findings if finding.severity is Severity.DAMAGE]
        if self.cannot:
            return 3
        return 0 if not damage else 1 if all(finding.repaired for finding in damage) else 2


def check(path: str | Path, *, repair: bool = False, progress: Progress | None = None, system: System | None = None) -> Report:
    """Checks the store, or snapshot, in a directory; raises nothing.

    Nothing in it is written or made, unless it is to be repaired. A store that is open is not checked: what is written
    meanwhile would look like damage.
    """
    path, system = Path(path).absolute(), system or System()
    started = system.monotonic()
    findings: list[Finding] = []
    try:
        with _locked(path, write=repair), Examiner() as examiner:
            inspection = Inspection(path, examiner, progress)
            findings = inspection.findings
            _check_format(inspection)
            inspection.look()
            if repair:
                repairing = Repair(inspection, system, FORMAT)
                repairing.run()
                kept, lost = repairing.kept, repairing.lost
            else:
                kept, lost = preview(inspection)
            inspection.look_at_chains()
    except (OSError, ReplayError) as error:
        return Report(path, tuple(findings), cannot=str(error), seconds=system.monotonic() - started)
    examined = [segment.examined for table in inspection.tables for segment in table.segments]
    return Report(
        path, tuple(inspection.findings), len(inspection.tables), len(examined), sum(found.chunks for found in examined),
        sum(found.chunk_bytes for found in examined), system.monotonic() - started, kept=kept, lost=lost,
    )  # fmt: skip


def check_tables(path: Path, *, progress: Progress | None = None) -> list[Finding]:
    """Returns the damage in a directory that is a store but for its FORMAT file. Raises OSError.

    What was gone before a copy was made is no damage of the copy.
    """
    with Examiner() as examiner:
        inspection = Inspection(path, examiner, progress)
        inspection.look()
        inspection.look_at_chains()
    found = [finding for finding in inspection.findings if finding not in inspection.absences]
    return [finding for finding in found if finding.severity is Severity.DAMAGE]


def _check_format(inspection: Inspection) -> None:
    """Raises FormatVersionError if the store is of a newer release. A FORMAT that cannot be read is damage."""
    marker = inspection.path / "FORMAT"
    found = inspection.described(marker, _unpack_format)
    if found is None:
        inspection.damage("FORMAT", "it cannot be read; the store does not open", Remedy.FORMAT)
    elif found["min_reader"] > FORMAT:
        raise FormatVersionError(f"store {inspection.path}: expected format version {FORMAT}, found {found['format']}")


def _unpack_format(content: bytes) -> dict[str, Any]:
    """Returns what a FORMAT file says. Raises ValueError and its like."""
    found = dict(json.loads(content))
    return found | {"format": int(found["format"]), "min_reader": int(found["min_reader"])}


@contextmanager
def _locked(path: Path, *, write: bool) -> Iterator[None]:
    """Holds the store's lock; one that is not there is only made for writing. Raises StoreLockedError, StorageError."""
    if not (path / "FORMAT").is_file() and not (path / "FORMAT.bak").is_file():
        found = "no FORMAT file in it" if path.is_dir() else "a file" if path.exists() else "nothing"
        raise StorageError(f"store {path}: expected a store or a snapshot, found {found}")
    lock = path / "LOCK"
    if not write and not lock.exists():
        yield
        return
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC if write else os.O_RDONLY | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLockedError(f"store {path}: another process has it open; stop it first") from None
        yield
    finally:
        os.close(handle)
