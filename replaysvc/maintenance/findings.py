"""What `fsck` says: where, how bad, and what was done about it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

from replaysvc.errors import ReplayError


class Severity(StrEnum):
    """DAMAGE: something stored is not as it was written, or keeps the store from opening. NOTE: worth knowing, no damage."""

    DAMAGE = "damage"
    NOTE = "note"


class Remedy(IntEnum):
    """What repairs the damage at a place, in the order in which it is done."""

    FORMAT = 0  # FORMAT is written anew
    COPY = 1  # the file is moved away, if it is there, and written anew from its second copy, or that from it
    MOVE = 2  # it is moved away
    LIST = 3  # the copy of the list is moved away, and written anew from the other
    SEGMENT = 4  # its whole chunks get a new segment, and it is moved away
    QUARANTINED = 5  # it lies in quarantine, and its whole chunks get a new segment
    GONE = 6  # it is noted that it is gone


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found. `place`: a path in the store; `repaired`: what was done about it, empty for nothing."""

    severity: Severity
    place: str
    sentence: str
    repaired: str = ""


class Findings:
    """What was found in a store so far, and what repairs it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.findings: list[Finding] = []
        self.remedies: dict[str, Remedy] = {}

    def damage(self, place: str, sentence: str, remedy: Remedy | None = None) -> None:
        """Adds a finding of damage; `remedy` is what repairs all damage at the place."""
        self.findings.append(Finding(Severity.DAMAGE, place, sentence))
        if remedy is not None:
            self.remedies[place] = remedy

    def note(self, place: str, sentence: str) -> None:
        """Adds a note."""
        self.findings.append(Finding(Severity.NOTE, place, sentence))

    def described(self, file: Path, unpack: Callable[[bytes], dict[str, Any]]) -> dict[str, Any] | None:
        """Returns what a file that has a second copy says, by the first of them that is whole; None if none is."""
        found: dict[Path, dict[str, Any]] = {}
        wrong: dict[Path, str] = {}
        for copy in (file, file.with_name(f"{file.name}.bak")):
            try:
                found[copy] = unpack(copy.read_bytes())
            except FileNotFoundError:
                if copy == file:
                    wrong[copy] = "it is missing"
            except OSError as error:
                wrong[copy] = f"it cannot be read: {error.strerror or error}"
            except (ValueError, KeyError, TypeError, AttributeError, ReplayError) as error:
                wrong[copy] = f"it is damaged: {_in_words(error)}"
        for copy, sentence in wrong.items():
            if found:
                self.damage(copy.relative_to(self.path).as_posix(), f"{sentence}; its second copy is whole", Remedy.COPY)
            else:
                self.note(copy.relative_to(self.path).as_posix(), sentence)
        return next(iter(found.values()), None)


def _in_words(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "it is no JSON"
    return f"it lacks {error.args[0]}" if isinstance(error, KeyError) and error.args else str(error)
