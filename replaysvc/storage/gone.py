"""Chunk ids that are between two segments, and in none: which of them were removed on purpose, and which are lost.

Segments are removed from the old end, where nothing tells that they were there, and, when nothing in them is live, from
the middle: that is noted in a list before, so that a directory that vanished in another way is seen.
"""

import logging
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from replaysvc.storage.state import pack_file, unpack_file
from replaysvc.storage.system import System

log = logging.getLogger(__name__)

MAGIC = b"RPG1"
LIST = "removed"


class Span(NamedTuple):
    """The chunk ids of a segment: the first, and the one that follows its last, None where that is not known."""

    first: int
    stop: int | None


class Gap(NamedTuple):
    """Chunk ids from `start` to below `stop` that no segment holds."""

    start: int
    stop: int


def gaps(spans: Sequence[Span]) -> list[Gap]:
    """Returns what lies between segments, which are in order of their ids."""
    return [
        Gap(before.stop, after.first)
        for before, after in pairwise(spans)
        if before.stop is not None and before.stop < after.first
    ]


class Gone:
    """The list of one table. For one thread at a time."""

    def __init__(self, table: Path, scratch: Path, system: System) -> None:
        self._file, self._temporary, self._system = table / LIST, scratch / f"{LIST}-{table.name}", system

    def load(self) -> list[Gap] | None:
        """Returns what was removed on purpose; None if nothing was ever noted, or if the list is damaged."""
        try:
            data = unpack_file(MAGIC, self._file.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            log.error("the list of removed chunks %s cannot be read and is left out: %s", self._file, error)
            return None
        if data is None or len(data) % 16:
            log.error("the list of removed chunks %s is damaged, and is left out", self._file)
            return None
        return [Gap(*pair) for pair in np.frombuffer(data, "<i8").reshape(-1, 2).tolist()]

    def add(self, new: Iterable[Gap], *, oldest: int = 0) -> None:
        """Notes, durably, that chunks are removed on purpose; forgets those below `oldest`. Raises OSError."""
        ranges: list[Gap] = []
        for one in sorted({*(self.load() or []), *new}):
            if one.stop <= oldest:
                continue
            if ranges and one.start <= ranges[-1].stop:
                ranges[-1] = Gap(ranges[-1].start, max(ranges[-1].stop, one.stop))
            else:
                ranges.append(one)
        self._system.write_file(self._temporary, pack_file(MAGIC, np.array(ranges, "<i8").reshape(-1, 2).tobytes()))
        self._system.rename(self._temporary, self._file)


def lost(found: Sequence[Gap], known: Sequence[Gap] | None, held: Iterable[int], *, removes: bool) -> list[Gap]:
    """Returns the gaps that nobody meant.

    known: what was noted as removed, None if nothing ever was. held: first ids of segments that are told of by themselves, in
    quarantine or damaged in place. removes: things were deleted or taken out of the middle, perhaps by a release that noted
    nothing; where there is no list, a gap may then be of that.
    """
    if known is None and removes:
        return []
    ids = sorted(held)
    meant = [*(known or []), *(Gap(one, one + 1) for one in ids)]
    return [gap for gap in found if not any(one.start < gap.stop and gap.start < one.stop for one in meant)]
