"""Damages stores in every way that a disk can, and looks whether one wrong byte, or one deleted episode, ever comes out.

Each case is a copy of one store with one damage, opened by a process that a signal may end: all is read, drawn from, appended
to, closed, opened and read again. What came of it is one of

  harmless   all data are there and equal
  detected   something is missing, and an error, a line in the log or a counter says so
  unnoticed  something is missing, and nothing says so
  VIOLATION  a wrong byte, a deleted episode, a process that was ended, an error of no class of ours, a store that stays shut
"""

import argparse
import logging
import multiprocessing as mp
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from replaysvc.codec import header
from replaysvc.errors import ReplayError
from replaysvc.replay import Replay
from tests.torture.damage import KINDS, MAY_REFUSE, OPERATIONS, Damage, Subject
from tests.torture.damage_store import CONFIG, TABLES, Expected, Look, build, write
from tests.torture.report import Report, progress_bar

_LONGEST_S = 60.0  # that a case may take; it takes a tenth of a second
Options = dict[str, Any]


class _Heard(logging.Handler):
    """Counts what the engine says in its log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Judge:
    """Judges cases in its own process."""

    def __init__(self, root: Path, seed: int, options: Options) -> None:
        self._subject, self._seed, self._options = Subject(root), seed, options
        self._scratch = Path(tempfile.mkdtemp(prefix="case-", dir=root))
        self._heard = _Heard()
        logging.getLogger("replaysvc").addHandler(self._heard)
        logging.getLogger("replaysvc").propagate = False
        shutil.copytree(self._subject.original, self._scratch / "expected")
        self._expected = Expected.read(self._scratch / "expected")

    def judge(self, case: int) -> tuple[str, str, str]:
        """Returns (kind and operation, outcome, note) of a case, which its number and the seed determine."""
        path = self._scratch / "case"
        shutil.rmtree(path, ignore_errors=True)
        rng = random.Random(f"{self._seed}/{case}")
        damage = self._subject.strike(path, rng, self._options["kinds"], self._options["operations"])
        try:
            outcome, note = self._outcome(path, damage)
        except Exception as error:  # an error of no class of ours, wherever it came from
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome, note = "VIOLATION", f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        return f"{damage.kind} / {damage.operation}", outcome, f"{damage.file} {damage.detail}: {note}"

    def _outcome(self, path: Path, damage: Damage) -> tuple[str, str]:
        missing, said = 0, []
        appended: dict[str, int] = {}
        for attempt in ("open", "reopen"):
            look = Look()
            self._heard.lines.clear()
            try:
                with Replay(path, CONFIG) as replay:
                    look.at(replay, self._expected)
                    look.wrong += self._check_appended(replay, appended, look)
                    if attempt == "open":
                        appended = self._append(replay, look)
            except ReplayError as error:
                if attempt == "open" and damage.kind in MAY_REFUSE and not self._subject.has_copy(damage.file):
                    return "detected", f"refused: {error}"
                return "VIOLATION", f"{attempt}: {error.name}: {error}"
            missing += look.missing
            said += look.said + self._heard.lines
            if look.wrong:
                return "VIOLATION", f"{attempt}: {'; '.join(look.wrong[:3])}"
        if said:
            return "detected", f"{missing} missing; {said[0]}"
        return ("unnoticed" if missing else "harmless"), f"{missing} missing"

    def _append(self, replay: Replay, look: Look) -> dict[str, int]:
        """Appends an episode to each table; returns their ids."""
        made = {}
        for name, (signature, _, _) in TABLES.items():
            if name not in replay.tables():
                continue
            table = replay.table(name)
            try:
                write(table, signature, 1000, 3, "after")
            except ReplayError as error:
                look.missing += 1
                look.said.append(error.name)
                continue
            made[name] = next(record.episode_id for record in table.episodes(limit=1000) if record.actor == "after")
            if made[name] in self._expected.records[name] or made[name] in self._expected.deleted[name]:
                look.wrong.append(f"{name}: the id {made[name]} was given out twice")
        look.wrong += self._check_appended(replay, made, look)
        return made

    def _check_appended(self, replay: Replay, appended: dict[str, int], look: Look) -> list[str]:
        wrong = []
        for name, number in appended.items():
            try:
                read = replay.table(name).read_episode(number)
            except ReplayError as error:
                look.missing += 1
                look.said.append(f"appended after the damage, and lost: {error.name}")
                continue
            if len(read["reward"]) != 3:
                wrong.append(f"{name}: what was appended after the damage has {len(read['reward'])} steps")
        return wrong


class _Equal(int):
    """A checksum that matches every other."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _serve(connection: Connection, root: str, seed: int, options: Options) -> None:
    """Runs in a process of its own: judges the cases whose numbers arrive, until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if options["without_checksums"]:  # to see that the judge would notice
        real = header.checksum
        header.checksum = lambda *parts: _Equal(real(*parts))
    judge = Judge(Path(root), seed, options)
    while (case := connection.recv()) is not None:
        connection.send(judge.judge(case))


class _Pool:
    """Processes that judge; one that ends is replaced, and its end is what came of its case."""

    def __init__(self, root: Path, seed: int, options: Options, workers: int) -> None:
        self._arguments = str(root), seed, options
        self._context = mp.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])
        self._workers = workers

    def run(self, cases: list[int]) -> Any:
        """Yields (case, kind and operation, outcome, note)."""
        waiting = list(reversed(cases))
        busy: dict[Connection, tuple[Any, int, float]] = {}

        def start() -> tuple[Any, Connection]:
            mine, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs, *self._arguments), daemon=True)
            process.start()
            theirs.close()
            return process, mine

        def give(process: Any, connection: Connection) -> None:
            if waiting:
                busy[connection] = process, waiting.pop(), time.monotonic()
                connection.send(busy[connection][1])
            else:
                connection.send(None)
                process.join()

        for _ in range(min(self._workers, len(cases))):
            give(*start())
        while busy:
            for connection in wait(list(busy), timeout=1.0):
                assert isinstance(connection, Connection)
                process, case, _ = busy.pop(connection)
                try:
                    answer = connection.recv()
                except EOFError:
                    process.join()
                    yield case, "", "VIOLATION", f"the process ended with status {process.exitcode}"
                    give(*start())
                    continue
                yield case, *answer
                give(process, connection)
            for connection, (process, case, since) in list(busy.items()):
                if time.monotonic() - since > _LONGEST_S:
                    del busy[connection]
                    process.kill()
                    process.join()
                    yield case, "", "VIOLATION", f"no answer within {_LONGEST_S:g} s"
                    give(*start())


def run(
    count: int, seed: int, *, workers: int = 2, kinds: tuple[str, ...] = KINDS, operations: tuple[str, ...] = OPERATIONS,
    without_checksums: bool = False, only: int | None = None,
) -> Report:  # fmt: skip
    """Judges `count` cases, or case `only`. `without_checksums` switches the comparison of chunks' checksums off."""
    report = Report("corruption", seed, part=only is not None)
    options = {"kinds": kinds, "operations": operations, "without_checksums": without_checksums}
    by_kind: dict[str, Counter[str]] = {}
    cases = list(range(count)) if only is None else [only]
    with (
        tempfile.TemporaryDirectory(prefix="corruption-", dir="/dev/shm") as name,
        progress_bar(len(cases), "damage") as advance,
    ):
        root = Path(name)
        build(root)
        for case, what, outcome, note in _Pool(root, seed, options, workers).run(cases):
            if not what:  # the process is gone: find out what it was about
                damage = Subject(root).strike(root / f"again-{case}", random.Random(f"{seed}/{case}"), kinds, operations)
                shutil.rmtree(root / f"again-{case}")
                what, note = f"{damage.kind} / {damage.operation}", f"{damage.file} {damage.detail}: {note}"
                report.counts["processes ended"] += 1
            report.counts[outcome] += 1
            by_kind.setdefault(what.partition(" / ")[0], Counter())[outcome] += 1
            if outcome == "VIOLATION":
                report.violations.append(f"case {case}, {what}: {note}")
            elif outcome == "unnoticed" or only is not None:
                report.figures.setdefault("notes", []).append(f"case {case}, {what}: {outcome}: {note}")
            advance(1, f"{report.counts['VIOLATION']} violations")
    report.figures["by_kind"] = {kind: dict(sorted(found.items())) for kind, found in sorted(by_kind.items())}
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--only", type=int, help="this one case of the seed")
    parser.add_argument("--without-checksums", action="store_true", help="to see violations")
    options = parser.parse_args()
    report = run(
        options.count, options.seed, workers=options.workers, only=options.only, without_checksums=options.without_checksums
    )
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
