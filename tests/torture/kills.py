"""The service killed at random moments, again and again, with everybody at work; an oracle outside it says what must be there.

    python -m tests.torture.kills [--count 1000] [--seed S] [--points] [--broken dedupe|acknowledge]

Actors write to three tables (one without bounds, one that keeps its newest steps, one that keeps what has high priorities),
learners sample and set priorities, an operator deletes episodes, puts parameters, makes and deletes tables, makes snapshots.
Nobody may see an exception. After each kill what was acknowledged is looked for; every 50 kills everybody stops, every value of
every table is compared, also in the store itself and in the snapshots, and new tables begin. `--points` instead ends the
service at each crash point (points.py). `--broken` switches a guard of the service off, which must give violations.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import replay_client
from replay_client import Prioritized, Remover, TableConfig, Uniform
from replaysvc.config import StoreConfig
from replaysvc.replay import Replay
from tests.torture.cast import PATIENT, params_of
from tests.torture.oracle import SIGNATURE, Findings, Keeps, Oracle, check_table
from tests.torture.points import drive_points
from tests.torture.report import progress_bar
from tests.torture.zygote import Served, Zygote

_GENERATION = 50  # kills between full comparisons
_CAPACITY = 5000
_SMALL = StoreConfig(recent_cache_bytes=16 << 20, faulted_cache_bytes=4 << 20)
_SETTINGS = {"recent_cache_bytes": 4 << 20, "faulted_cache_bytes": 2 << 20, "state_interval_s": 0.3}
_SHORTEST_S, _LONGEST_S = 0.05, 2.0  # of a life, from the moment that the server listens


class Troupe:
    """The processes that use the service, and the oracle that they write."""

    def __init__(self, zygote: Zygote, directory: Path, address: str, report: Findings) -> None:
        self._zygote, self.directory, self._address, self._report = zygote, directory, address, report
        self._running: dict[int, tuple[str, Path]] = {}
        directory.mkdir(exist_ok=True)

    def start(self, function: str, **arguments: Any) -> int:
        """Starts a process of the cast; returns its id."""
        out = self.directory / f"{function}-{len(list(self.directory.iterdir()))}.json"
        log = out.with_suffix(".out")
        log.touch()
        common = {"address": self._address, "directory": str(self.directory), "out": str(out)}
        pid = self._zygote.start(f"tests.torture.cast:{function}", log, **common, **arguments)
        self._running[pid] = (function, out)
        return pid

    def look(self) -> bool:
        """Notes who has ended before the time; returns whether all are there."""
        for pid in list(self._running):
            if (status := self._zygote.poll(pid)) is not None:
                self._ended(pid, status, "ended")
                return False
        return True

    def stop(self, timeout_s: float = 120.0) -> None:
        """Lets everybody finish what they do, and takes in what they found."""
        for pid in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        for pid in list(self._running):
            try:
                status = self._zygote.wait(pid, max(0.0, deadline - time.monotonic()))
            except AssertionError:
                os.kill(pid, signal.SIGKILL)
                self._zygote.wait(pid)
                self._ended(pid, 1, f"did not come to an end within {timeout_s:g} s")
                continue
            self._ended(pid, status, "ended", early=False)

    def _ended(self, pid: int, status: int, how: str, *, early: bool = True) -> None:
        function, out = self._running.pop(pid)
        tail = out.with_suffix(".out").read_text(errors="replace").strip()[-1500:]
        self._report.expect(not early and status == 0, f"{function}: a process {how} with status {status}: {tail}")
        if out.exists():
            self._report.merge(out)


class Inspector:
    """A thread that looks, once for every life of the server, whether what was acknowledged before it began is there."""

    def __init__(self, look: Callable[[int], None], report: Findings) -> None:
        self._look, self._report = look, report
        self._changed = threading.Condition()
        self._life = self._seen = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def new_life(self) -> None:
        with self._changed:
            self._life += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Looks at the last life, too, then ends the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._life > self._seen)
                if self._life == self._seen:
                    return
                life = self._life
            try:
                self._look(life)
            except Exception as error:
                self._report.expect(False, f"life {life}: the inspector got {type(error).__name__}: {error}")
            self._seen = life


def tables_of(generation: int) -> dict[str, tuple[TableConfig, Keeps, int | None]]:
    """Returns the tables of a generation: configuration, what capacity may take, and the capacity."""
    common: dict[str, Any] = {"chunk_steps": 16, "segment_bytes": 1 << 20, "flush_interval_s": 0.2}
    samplers = {"uniform": Uniform(), "prioritized": Prioritized(alpha=0.8)}
    ring = TableConfig(capacity_steps=_CAPACITY, samplers=samplers, **common)
    rank = TableConfig(capacity_steps=_CAPACITY, remover=Remover.LOWEST_PRIORITY, samplers=samplers, **common)
    return {
        f"keep-{generation}": (TableConfig(samplers=samplers, **common), Keeps.ALL, None),
        f"ring-{generation}": (ring, Keeps.NEWEST, _CAPACITY),
        f"rank-{generation}": (rank, Keeps.EPISODES, _CAPACITY),
    }


@contextlib.contextmanager
def scratch(path: Path | None) -> Iterator[Path]:
    """Gives a directory for one run, removed afterwards unless `path` was given."""
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
        yield path
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def run(
    directory: Path, report: Findings, *, count: int, broken: str = "", steps_per_s: float = 1600.0, actors: int = 6,
    longest_s: float = _LONGEST_S, number: int = signal.SIGKILL,
) -> None:  # fmt: skip
    """Kills a service `count` times under everybody's feet, in generations; stops at the first one with violations."""
    settings = _SETTINGS | {"snapshot_dir": str(directory / "snapshots")}
    (directory / "snapshots").mkdir()
    with Zygote() as zygote, progress_bar(count, "kills") as advance:
        served = Served(zygote, directory / "store", settings=settings, broken=broken)
        served.restart()
        left, generation, before = count, 0, len(report.violations)
        while left and len(report.violations) == before:
            kills = min(_GENERATION, left)
            _generation(
                zygote, served, directory, report, generation=generation, kills=kills, steps_per_s=steps_per_s,
                actors=actors, longest_s=longest_s, number=number, advance=advance,
            )  # fmt: skip
            left, generation = left - kills, generation + 1
        if served.pid:
            served.end(signal.SIGTERM)
    report.figures["tail of the server's log"] = served.tail() if report.violations else ""


def _generation(
    zygote: Zygote, served: Served, directory: Path, report: Findings, *, generation: int, kills: int, steps_per_s: float,
    actors: int, longest_s: float, number: int, advance: Any,
) -> None:  # fmt: skip
    """Plays one generation: new tables, kills, then everything is compared."""
    rng = np.random.default_rng((report.seed, generation))
    tables = tables_of(generation)
    keep = f"keep-{generation}"
    with replay_client.connect(served.address, config=PATIENT) as client:
        handles = {name: client.create_table(name, SIGNATURE, config) for name, (config, _, _) in tables.items()}
        oracle = Oracle(directory / "oracle")
        troupe = Troupe(zygote, directory / "oracle", served.address, report)
        # each generation writes logs of its own actors: numbers go on
        base = 100 * generation
        names = list(tables)
        common = {"seed": report.seed + 7919 * generation}
        share = steps_per_s / (actors + 1)
        for half in (range(base, base + actors // 2), range(base + actors // 2, base + actors)):
            troupe.start("act", actors=list(half), tables=names, steps_per_s=share, **common)
        troupe.start("repeat", actor=base + actors, table=keep, steps_per_s=share, **common)
        troupe.start("learn", learners=2, tables=names, per_s=12.0, **common)
        troupe.start("operate", keep=keep, per_s=3.0, snapshots=2, **common)
        sample_rng = np.random.default_rng((report.seed, generation, 1))

        def look(life: int) -> None:
            for name, (_, keeps, _) in tables.items():
                check_table(handles[name], oracle, report, keeps, where=f"life {life}, {name}", read=0.05, rng=sample_rng)
            _check_names(client, oracle, report, f"life {life}")
            report.add("lives looked at")

        inspector, before = Inspector(look, report), len(report.violations)
        try:
            for _ in range(kills):
                time.sleep(float(rng.uniform(_SHORTEST_S, longest_s)))
                status = served.poll()
                if status is not None:
                    report.expect(False, f"the server ended by itself with status {status}: {served.tail()}")
                    break
                status = served.end(number)
                report.expect(status == (-number if number == signal.SIGKILL else 0), f"the server ended with status {status}")
                served.restart()
                report.add("kills")
                advance(1, f"({len(report.violations)} violations)")
                inspector.new_life()
                if not troupe.look() or len(report.violations) > before:
                    break
        finally:
            inspector.close()
            troupe.stop()
        for name, (_, keeps, capacity) in tables.items():
            check_table(
                handles[name], oracle, report, keeps, where=f"generation {generation}, {name}", quiet=True,
                rng=sample_rng, capacity=capacity,
            )  # fmt: skip
        _check_names(client, oracle, report, f"generation {generation}")
        _check_params(client, oracle, report)
        _note_upkeep(handles, directory, report)
    served.end(signal.SIGTERM)
    _check_store(directory, tables, oracle, report, generation, sample_rng)
    served.restart()
    with replay_client.connect(served.address, config=PATIENT) as client:
        for name in tables:
            client.delete_table(name)
    report.add("generations")
    if not sys.stderr.isatty():
        print(f"{report.counts['kills']} kills, {len(report.violations)} violations", file=sys.stderr, flush=True)


def _check_names(client: Any, oracle: Oracle, report: Findings, where: str) -> None:
    """Whether tables that were made are there, and those that were deleted are not."""
    before = dict(oracle.refresh().gone)
    there = set(client.tables())
    after = oracle.refresh().gone
    for name, gone in before.items():
        if gone is not None and after[name] == gone:
            report.expect((name in there) != gone, f"{where}: table {name} is {'back' if gone else 'gone'}")


def _check_params(client: Any, oracle: Oracle, report: Findings) -> None:
    asked, acked = oracle.refresh().params["policy"]
    if acked >= 0:
        found = client.get_params("policy")
        right = acked <= found.version <= asked
        report.expect(right, f"params: {acked} is acknowledged, {asked} was asked for, {found.version} is stored")
        report.expect(found.data == params_of(found.version), f"params: the data of version {found.version} are others")


def _note_upkeep(handles: dict[str, Any], directory: Path, report: Findings) -> None:
    """Counts what shows that removal, rotation and compaction happened."""
    for handle in handles.values():
        stats = handle.stats()
        report.add("segments at the end", stats.segments)
        report.add("steps removed or deleted", stats.next_position - stats.steps)
        report.expect(stats.corrupt_chunks_total == 0, f"{handle.name}: {stats.corrupt_chunks_total} corrupt chunks")
    compacted = [path for path in (directory / "store" / "tables").glob("*/seg-*") if path.suffix]
    report.add("compacted segments at the end", len(compacted))


def _check_store(
    directory: Path, tables: dict[str, Any], oracle: Oracle, report: Findings, generation: int, rng: np.random.Generator
) -> None:
    """Opens the store without a server, compares its tables again, then its snapshots, and lets fsck look at both."""
    store = directory / "store"
    with Replay(store, _SMALL) as replay:
        for name, (_, keeps, capacity) in tables.items():
            check_table(
                replay.table(name), oracle, report, keeps, where=f"store {generation}, {name}", quiet=True, read=0.2, rng=rng,
                capacity=capacity,
            )  # fmt: skip
    report.expect(not list((store / "quarantine").iterdir()), f"store {generation}: something is quarantined")
    _fsck(store, report)
    for taken in oracle.snapshots:
        path = directory / "snapshots" / taken["name"]
        if not path.exists() or taken["table"] not in tables:
            report.expect(taken["table"] not in tables, f"snapshot {taken['name']} is acknowledged and not there")
            continue
        _fsck(path, report)
        with Replay(path, _SMALL) as replay:
            check_table(
                replay.table(taken["table"]), oracle, report, Keeps.ALL, where=f"snapshot {taken['name']}", read=0.3, rng=rng,
                acked={int(actor): upto for actor, upto in taken["acked"].items()}, earlier=True,
            )  # fmt: skip
        report.add("snapshots compared")
        shutil.rmtree(path)


def _fsck(path: Path, report: Findings) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "replaysvc", "fsck", str(path)], capture_output=True, text=True, check=False, timeout=120
    )
    report.add("stores found clean by fsck")
    report.expect(done.returncode == 0, f"fsck of {path.name} ended with status {done.returncode}: {done.stdout}{done.stderr}")


def main() -> int:
    """Runs what the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="kills, or with --points visits of each point: 0 to 3")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--points", action="store_true", help="end the service at each crash point")
    parser.add_argument("--broken", default="", choices=["", "dedupe", "acknowledge"], help="a guard that is switched off")
    parser.add_argument("--steps-per-s", type=float, default=1600.0, help="that all actors write together")
    parser.add_argument("--directory", type=Path, help="where to work, kept afterwards; a temporary one if left out")
    options = parser.parse_args()
    report = Findings("kills", options.seed)
    with scratch(options.directory) as directory:
        if options.points:
            drive_points(directory, report, visits=min(3, options.count))
        else:
            run(directory, report, count=options.count, broken=options.broken, steps_per_s=options.steps_per_s)
    suffix = "-points" if options.points else f"-{options.broken}" if options.broken else ""
    return report.finish(Path(__file__).parent / "results" / f"kills{suffix}.json")


if __name__ == "__main__":
    sys.exit(main())
