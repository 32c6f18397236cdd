"""The scrub: reads all sealed segments again and again, slowly, to find damage while there is a good copy elsewhere.

It reads files page by page (`pages`), not through LMDB's map: a sector that the disk cannot give back is a finding, where
through the map it would end the process. What lies in the page cache is checked there; what only the scrub read is let go of.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from replaysvc.errors import ChunkCorruptError
from replaysvc.storage.chunk_check import check_chunk
from replaysvc.storage.pages import Pages
from replaysvc.storage.records import KEY, unpack_index
from replaysvc.storage.system import System
from replaysvc.views import ScrubView

STEP_BYTES = 1 << 20  # read by one step, at least
ROUND_S = 3600.0  # a round begins no sooner than this after the last one began: a small store is not read all the time
ASKED_BYTES_PER_S = 10 << 20  # of a round that somebody asked for, where none runs by itself
_IDLE_S = 10.0  # longest wait that a step asks for


class Scrubbed(Protocol):
    """What the scrub needs to know of a table."""

    name: str

    def sealed_segments(self) -> list[Path]:
        """Returns the directories of the segments that are not written to any more."""
        ...


class Asked(Protocol):
    """A round that somebody asked for, as the scrub tells of it."""

    def progress(self, done: int, whole: int) -> None:
        """Of `whole` bytes, `done` are read."""

    def finish(self, message: str) -> None:
        """The round has ended."""

    def fail(self, reason: str) -> None:
        """It will not end."""


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """Where the scrub is. `fraction`: of this round's bytes; `table` and `segment` are empty between rounds.

    last_round_ended_at_s: seconds since 1970, 0 before the first has ended. last_round_s: how long it took.
    """

    table: str
    segment: str
    fraction: float
    rounds: int
    last_round_ended_at_s: float
    last_round_s: float
    bytes_total: int
    damage_total: int


class Scrub:
    """Checks every chunk of all sealed segments against its index record, in turn. `step` and `stop` are for one thread.

    on_damage: (table, chunk id, what is wrong); the id is None for damage that is not one chunk's. Told once for each.
    """

    def __init__(
        self,
        tables: Callable[[], Sequence[Scrubbed]],
        bytes_per_s: float,
        system: System,
        on_damage: Callable[[str, int | None, str], None],
    ) -> None:
        """`bytes_per_s`: how fast, 0 for not at all. `tables` is asked anew at the start of each round."""
        self._tables, self._rate, self._system, self._on_damage = tables, bytes_per_s, system, on_damage
        self._told: set[tuple[str, int | None, str]] = set()
        self._round: Iterator[int] | None = None
        self._due = self._next_round = self._began = system.monotonic()
        self._table = self._segment = ""
        self._done = self._whole = self._rounds = self._bytes_total = 0
        self._ended_at_s = self._took_s = 0.0
        self._wanted: deque[Asked] = deque()  # for whom no round has begun yet
        self._asked: list[Asked] = []  # of the round under way
        self._found = 0  # problems in this round, told before or not

    @property
    def progress(self) -> ScrubProgress:
        """Returns where the scrub is."""
        fraction = min(1.0, self._done / self._whole) if self._whole else 0.0
        return ScrubProgress(
            self._table,
            self._segment,
            fraction,
            self._rounds,
            self._ended_at_s,
            self._took_s,
            self._bytes_total,
            len(self._told),
        )

    @property
    def view(self) -> ScrubView:
        """Returns the same for whoever watches."""
        return ScrubView(
            running=bool(self._rate or self._asked or self._wanted), done_bytes=min(self._done, self._whole),
            whole_bytes=self._whole, rounds=self._rounds, damaged=len(self._told), finished_at_s=self._ended_at_s or None,
        )  # fmt: skip

    def start(self, asked: Asked) -> None:
        """Has the next step begin a round from the start, in place of one under way, whose askers wait for the new one, too.
        Thread-safe.

        It runs as fast as all rounds; where none would, at ASKED_BYTES_PER_S.
        """
        self._wanted.append(asked)

    def stop(self, reason: str) -> None:
        """Ends the round under way, and tells those who asked for it, or for the next one."""
        self._drop_round(reason)

    def step(self) -> float:
        """Reads the next piece, if it is time; returns the seconds until the next step."""
        try:
            return self._step(self._system.monotonic())
        except Exception as error:
            self._drop_round(f"{type(error).__name__}: {error}")
            raise

    def _step(self, now: float) -> float:
        if self._wanted:
            self._restart(now)
        rate = self._rate or (ASKED_BYTES_PER_S if self._asked else 0)
        if not rate:
            return _IDLE_S
        if self._round is None and now >= self._next_round:
            self._begin(now)
        if self._round is None:
            return min(_IDLE_S, self._next_round - now)
        if now < self._due:
            return min(_IDLE_S, self._due - now)
        size = next(self._round, None)
        if size is None:
            self._end(self._system.monotonic())
            return min(_IDLE_S, max(0.0, self._next_round - self._system.monotonic()))
        for asked in self._asked:
            asked.progress(min(self._done, self._whole), self._whole)
        self._due = max(self._due, now) + size / rate
        return min(_IDLE_S, max(0.0, self._due - self._system.monotonic()))

    def _restart(self, now: float) -> None:
        self._take_wanted()
        self._leave_round()
        self._begin(now)

    def _take_wanted(self) -> None:
        while self._wanted:
            self._asked.append(self._wanted.popleft())

    def _leave_round(self) -> None:
        self._round = None
        self._table = self._segment = ""

    def _drop_round(self, reason: str) -> None:
        self._leave_round()
        self._take_wanted()
        asked, self._asked = self._asked, []
        for one in asked:
            one.fail(reason)

    def _begin(self, now: float) -> None:
        segments = [(table.name, path) for table in self._tables() for path in table.sealed_segments()]
        self._began, self._next_round, self._due = now, now + ROUND_S, now
        self._done, self._found, self._whole = 0, 0, sum(_size(path) for _, path in segments)
        self._round = self._read_all(segments)

    def _end(self, now: float) -> None:
        self._leave_round()
        self._rounds += 1
        self._ended_at_s, self._took_s = self._system.time(), now - self._began
        asked, self._asked = self._asked, []
        found = f"damaged: {self._found}" if self._found else "nothing is damaged"
        for one in asked:
            one.finish(f"read {self._whole} bytes; {found}")

    def _read_all(self, segments: Sequence[tuple[str, Path]]) -> Iterator[int]:
        """Yields the bytes of each piece that it has read."""
        for self._table, path in segments:
            self._segment = path.name
            before = self._done
            try:
                with Pages(path / "data.mdb") as pages:
                    for size in self._read(pages, path.name):
                        self._done += size
                        self._bytes_total += size
                        yield size
                    if pages.problems:
                        self._tell(None, f"segment {path.name}: {pages.problems[0]}")
            except FileNotFoundError:  # removed, or compacted, since the round began
                pass
            except OSError as error:
                self._tell(None, f"segment {path.name}: its file cannot be read: {error.strerror or error}")
            self._done = before + _size(path)

    def _read(self, pages: Pages, segment: str) -> Iterator[int]:
        records = [record for _, record in pages.values(b"index")]
        index, damaged = unpack_index(records)
        if damaged:
            self._tell(None, f"segment {segment}: {damaged} index records are damaged")
        by_id = dict(zip(index["chunk_id"].tolist(), index, strict=True))
        gathered = sum(map(len, records))
        for item in pages.items(b"chunks"):
            chunk_id = int(KEY.unpack(item.key)[0]) if len(item.key) == KEY.size else -1
            record = by_id.pop(chunk_id, None)
            try:
                problem = check_chunk(pages.value(item), record, None)
            except ChunkCorruptError as error:
                problem = str(error)
            if problem:
                self._tell(chunk_id, problem)
            pages.forget(item)
            gathered += item.size
            if gathered >= STEP_BYTES:
                yield gathered
                gathered = 0
        for chunk_id in by_id:
            self._tell(chunk_id, "it has an index record but is not there")
        yield gathered

    def _tell(self, chunk_id: int | None, problem: str) -> None:
        self._found += 1
        if (self._table, chunk_id, problem) not in self._told:
            self._told.add((self._table, chunk_id, problem))
            self._on_damage(self._table, chunk_id, problem)


def _size(segment: Path) -> int:
    try:
        return (segment / "data.mdb").stat().st_size
    except OSError:
        return 0
