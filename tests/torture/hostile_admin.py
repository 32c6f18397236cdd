"""Hostile clients of the admin door beside honest ones: is anything let in, does anybody notice, does anything grow?

    python -m tests.torture.hostile_admin [--seconds 120] [--seed 0] [--only KIND ...] [--scale 1.0]

A service in a process of its own, with tokens of each role. A learner samples, a dashboard polls, an administrator changes the
limiter, and probes ask whether the service is up: first alone, then beside hostile clients in two processes, which hold a valid
token of each role. They ask for every page with every token, by other names and on behalf of other sites, send heads and bodies
slowly or without an end, close half of a connection, pipeline, send what is hardly HTTP, keep hundreds of connections, read
nothing of what they ask for, and ask for the most expensive pages on dozens of connections. A violation:

- a page, or an action, lets in whom it must not
- an answer of 500 or above, but a 503 that says when to come again; a traceback in an answer or in the log
- an honest page or action that takes longer than 20 s, with all the times that it was told to come again
- two probes in a row without an answer (one may be among so many newcomers that it gives way), or one that takes more than 5 s
- a learner that gets no batch for 3 s
- memory beyond the bound that the server prints, or more than 184 MiB above what it was, once the hostile clients are gone, or
  64 MiB more in the last quarter of their time than in the second one
- descriptors beyond those of 256 connections and some newcomers, or afterwards more than 20 above what they were
- a server that does not end within 15 s of SIGTERM, with status 0, amid its hostile clients
"""

import argparse
import multiprocessing
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from replaysvc.access import Role, new_token
from replaysvc.activity import Activity
from replaysvc.admin.app import make_app
from replaysvc.admin.connection import MOST_CONNECTIONS
from replaysvc.admin.context import Admin
from replaysvc.health import Health
from tests.processes import ServiceProcess
from tests.torture.hostile_admin_roles import HONEST, HOSTILE, Found, Target, crew, make_table
from tests.torture.report import Report, progress_bar

LONGEST_S = {"page": 20.0, "action": 20.0, "probe": 5.0, "sample": 3.0}
STOP_S = 15.0
BACK_MIB, BACK_FILES = 184, 20  # 160 is what the server says that the admin door may take, and 24 are caches that fill
GROWTH_MIB = 64  # from the second quarter of the time with hostile clients to the last one
_NEWCOMERS = 4 * 129  # that are taken before as many others have gone: so many at a time, and it takes a few turns of the loop
_SPARE_FILES = 50  # of the store, the other door, and honest clients
_BACK_S = 15.0  # until what hostile clients left behind is gone
_LOOK_S = 0.1
_PARTS = {"{table}": "t", "{sampler}": "uniform", "{episode_id}": "1", "{name:path}": "app.js"}
SETTINGS = "recent_cache_bytes = 16_777_216\nfaulted_cache_bytes = 8_388_608\n"


@dataclass(frozen=True)
class Plan:
    """How a run goes. seconds: of the part with hostile clients; the one without is a quarter of it."""

    seconds: float = 120.0
    seed: int = 0
    kinds: tuple[str, ...] = tuple(HOSTILE)
    scale: float = 1.0


@dataclass
class Looks:
    """What was seen of the server's process: MiB of anonymous memory and open files, meanwhile, before and afterwards."""

    mib: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    mib_before: float = 0.0
    files_before: int = 0
    mib_after: float = 0.0
    files_after: int = 0


def routes() -> list[tuple[str, str, str]]:
    """Returns name, method and path of every route of the admin door."""
    unused: Any = None
    admin = Admin(
        replay=unused, health=Health(unused), access=None, activity=Activity(), metrics=unused, status=str, address="", data="",
        version="",
    )  # fmt: skip
    found = []
    for route in make_app(admin).routes:
        path: str = route.path  # type: ignore[attr-defined]
        for name, value in _PARTS.items():
            path = path.replace(name, value)
        found += [(route.name, method, path) for method in sorted(route.methods)]  # type: ignore[attr-defined]
    return found


def run(plan: Plan, scratch: Path, report: Report) -> None:
    """Runs a plan and adds what it found to the report."""
    secrets: dict[str, dict[str, str]] = {"honest": {}, "hostile": {}}
    lines = ""
    for who, of_roles in secrets.items():
        for role in Role:
            of_roles[role.value], entry = new_token(f"{who}-{role.value}", role)
            lines += entry
    tokens, settings = scratch / "tokens.toml", scratch / "settings.toml"
    tokens.write_text(lines)
    tokens.chmod(0o600)
    settings.write_text(f'{SETTINGS}tokens_file = "{tokens}"\n')
    with ServiceProcess(scratch / "data", "--config", str(settings), "--admin-port", "0") as server:
        port = int(server.dashboard.rstrip("/").rpartition(":")[2])
        target = Target(server.address, port, secrets["honest"], secrets["hostile"], routes(), plan.seed, plan.scale)
        make_table(target)
        looks, over = Looks(), threading.Event()
        looking = threading.Thread(target=_look, args=(server.pid, looks, over))
        try:
            honest, hostile, spans, ended = _phases(plan, target, server, looks, looking)
        finally:
            over.set()
            looking.join()
        log = server.log.read_text()
    check_honest(honest, spans, report)
    check_hostile(hostile, report)
    check_server(looks, log, ended, report)


@dataclass(frozen=True)
class Ended:
    """How the server ended: its exit status, None if it did not, and the seconds that it took."""

    status: int | None
    seconds: float


def _phases(
    plan: Plan, target: Target, server: ServiceProcess, looks: Looks, looking: threading.Thread
) -> tuple[Found, list[Found], dict[str, tuple[float, float]], Ended]:
    """Runs honest clients alone and beside hostile ones, lets all go, and ends the server amid hostile ones that come again."""
    spawn = multiprocessing.get_context("spawn")
    spans: dict[str, tuple[float, float]] = {}

    class Crew:
        def __init__(self, of_kinds: Sequence[tuple[str, ...]], target: Target) -> None:
            self._stop, self._answer, ready = spawn.Event(), spawn.Queue(), spawn.Semaphore(0)
            self._members = [
                spawn.Process(target=crew, args=(kinds, target, ready, self._stop, self._answer), daemon=True)
                for kinds in of_kinds if kinds
            ]  # fmt: skip
            for member in self._members:
                member.start()
            for _ in range(sum(map(len, of_kinds))):
                assert ready.acquire(timeout=60), "the clients do not begin"

        def end(self) -> list[Found]:
            self._stop.set()
            found = [self._answer.get(timeout=120) for _ in self._members]
            for member in self._members:
                member.join(60)
            return found

    halves = [plan.kinds[::2], plan.kinds[1::2]]
    quarter = plan.seconds / 4
    with progress_bar(round(plan.seconds + quarter), "hostile clients of the admin door") as advance:

        def phase(name: str, seconds: float) -> None:
            began = time.monotonic()
            while time.monotonic() < began + seconds:
                time.sleep(min(1.0, seconds))
                advance(1, name)
            spans[name] = began, time.monotonic()

        honest = Crew([tuple(HONEST)], target)
        phase("alone", quarter)
        looks.mib_before, looks.files_before = _size(server.pid)
        looking.start()
        hostile = Crew(halves, target)
        phase("beside hostile clients", plan.seconds)
        found = hostile.end()
        looks.mib_after, looks.files_after = _size_after(server.pid, looks)
        (seen,) = honest.end()
    hostile = Crew(halves, replace(target, seed=target.seed + 1))
    time.sleep(1.0)  # until their connections are many
    ended = _end(server)
    hostile.end()
    return seen, found, spans, ended


def _size(pid: int) -> tuple[float, int]:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024, psutil.Process(pid).num_fds()


def _size_after(pid: int, looks: Looks) -> tuple[float, int]:
    """Returns what the server is once it is back to what it was, or what it is when it has had time for that."""
    until = time.monotonic() + _BACK_S
    while True:
        mib, files = _size(pid)
        back = mib <= looks.mib_before + BACK_MIB and files <= looks.files_before + BACK_FILES
        if back or time.monotonic() > until:
            return mib, files
        time.sleep(0.5)


def _look(pid: int, looks: Looks, over: threading.Event) -> None:
    while not over.wait(_LOOK_S):
        try:
            mib, files = _size(pid)
        except (OSError, AssertionError, psutil.Error):  # it has ended
            return
        looks.mib.append(mib)
        looks.files.append(files)


def _end(server: ServiceProcess) -> Ended:
    began = time.monotonic()
    server.signal(signal.SIGTERM)
    killer = threading.Timer(3 * STOP_S, lambda: server.signal(signal.SIGKILL))
    killer.start()
    status = server.wait()
    killer.cancel()
    return Ended(status, time.monotonic() - began)


def check_honest(honest: Found, spans: dict[str, tuple[float, float]], report: Report) -> None:
    """Adds what honest clients noticed."""
    report.counts.update(honest.counts)
    report.violations += sorted(set(honest.wrong))
    for name, (start, stop) in spans.items():
        for kind in ("page", "action", "probe", "sample"):
            began = [at for at, _ in honest.took.get(kind, []) if start <= at < stop]
            took = [seconds for at, seconds in honest.took.get(kind, []) if start <= at < stop]
            report.counts[f"{kind}s {name}"] += len(took)
            if not took:
                report.violations.append(f"{kind}: none was answered {name}")
                continue
            p50, p99, most = np.percentile(took, [50, 99, 100]).tolist()
            told = (("p50", p50), ("p99", p99), ("most", most))
            report.figures[f"{kind}_ms {name}"] = {key: round(1000 * seconds, 1) for key, seconds in told}
            bound = LONGEST_S[kind]
            if most > bound:
                report.violations.append(f"{kind}: expected at most {bound:g} s {name}, found {most:.1f} s")
            if kind == "sample":
                ends = sorted(at + seconds for at, seconds in zip(began, took, strict=True))
                silent = max(np.diff([start, *ends, stop]).tolist())
                report.figures[f"longest_without_a_batch_s {name}"] = round(silent, 2)
                if silent > bound:
                    report.violations.append(f"learner: expected a batch in {bound:g} s {name}, found none for {silent:.1f} s")


def check_hostile(hostile: Sequence[Found], report: Report) -> None:
    """Adds what hostile clients could do."""
    for found in hostile:
        report.counts.update(found.counts)
        report.violations += sorted(set(found.wrong))


def check_server(looks: Looks, log: str, ended: Ended, report: Report) -> None:
    """Adds what the server took too much of, kept, wrote into its log, and how it ended."""
    printed = re.search(r"memory: at most (\d+) MiB", log)
    assert printed is not None, "the server has printed no bound"
    files = looks.files_before + MOST_CONNECTIONS + _NEWCOMERS + _SPARE_FILES
    for what, most, bound, before, after, back in (
        ("MiB of anonymous memory", max(looks.mib), int(printed[1]), looks.mib_before, looks.mib_after, BACK_MIB),
        ("open files", max(looks.files), files, looks.files_before, looks.files_after, BACK_FILES),
    ):
        report.figures[what] = {"before": round(before), "most": round(most), "bound": bound, "after": round(after)}
        if most > bound:
            report.violations.append(f"server: {most:.0f} {what}, expected at most {bound}")
        if after > before + back:
            report.violations.append(f"server: {after:.0f} {what} afterwards, expected at most {before + back:.0f}")
    quarters = np.array_split(looks.mib, 4)
    growth = float(np.median(quarters[3]) - np.median(quarters[1])) if len(looks.mib) >= 4 else 0.0
    report.figures["growth_mib"] = round(growth)
    if growth > GROWTH_MIB:
        said = f"server: {growth:.0f} MiB more in the last quarter than in the second, expected at most {GROWTH_MIB}"
        report.violations.append(said)
    errors = [line for line in log.splitlines() if "Traceback" in line or " ERROR " in line]
    report.violations += [f"log: {line[:200]}" for line in errors[:5]]
    report.figures["log_lines"] = len(log.splitlines())
    report.figures["stop_s"] = round(ended.seconds, 1)
    if ended.status != 0 or ended.seconds > STOP_S:
        report.violations.append(f"server: ended with status {ended.status} {ended.seconds:.1f} s after SIGTERM")


def main() -> int:
    """Runs the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="how many hostile clients, 1.0: all")
    parser.add_argument("--only", nargs="+", choices=tuple(HOSTILE), default=tuple(HOSTILE), help="kinds of hostile clients")
    options = parser.parse_args()
    report = Report("hostile_admin", options.seed, part=set(options.only) != set(HOSTILE))
    with tempfile.TemporaryDirectory() as scratch:
        run(Plan(options.seconds, options.seed, tuple(options.only), options.scale), Path(scratch), report)
    for name, figure in report.figures.items():
        print(f"  {name:<40} {figure}")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
