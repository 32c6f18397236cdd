"""Hostile clients beside good ones: do the good ones notice, and does the server's memory stay within the bound that it prints?

    python -m tests.torture.hostile [--seconds 120] [--seed 0] [--only KIND ...] [--scale 1.0]

A service in a process of its own, with small budgets and tokens; four writers and two learners that time their calls. They run
alone, then beside two processes that only use the processor (which is what any further process costs them on a machine of few
cores), then beside hostile clients with a valid token of another name, in two processes: calls without a body, bodies at a byte
a second, the largest legal requests, answers that nobody reads, garbage, thousands of silent connections, corrupt requests,
wrong tokens. A violation:

- a good client sees an error
- the good clients' 99th percentile, of appends or samples, is beside hostile clients more than five times what it is beside
  busy processes, or half a second if that is more
- the server's anonymous memory exceeds its printed bound, its open files or threads what its limits allow
"""

import argparse
import multiprocessing
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from replaysvc.access import Role, new_token
from replaysvc.rpc.limits import Limits, connections_for, raise_descriptors
from tests.processes import ServiceProcess
from tests.torture.hostile_roles import HOSTILE, Target, Timings, good, hostile, make_table, spin
from tests.torture.report import Report, progress_bar

MiB = 1 << 20
WRITERS, LEARNERS = 4, 2
MOST_TIMES, LEAST_S = 5.0, 0.5  # of the 99th percentile
_SPARE_FILES, _SPARE_THREADS = 100, 60
_LOOK_S = 0.1
SETTINGS = {
    "recent_cache_bytes": 64 * MiB, "faulted_cache_bytes": 32 * MiB, "queue_bytes": 64 * MiB, "request_bytes": 256 * MiB,
    "answer_bytes": 384 * MiB,
}  # fmt: skip
UNGUARDED = """
import sys
from replaysvc.rpc import admission, calls
admission.Shares.take = lambda self, peer, amount: None
admission.Shares.give = lambda self, peer, amount: None
calls._REQUEST_S = calls._CROWDED_REQUEST_S = calls._ANSWER_S = 3600.0
from replaysvc.__main__ import main
sys.exit(main())
"""
"""A service without what `rpc/admission.py` does, to see that its absence is found."""


@dataclass(frozen=True)
class Plan:
    """How a run goes. seconds: of the part with hostile clients; the parts without are a quarter of it each."""

    seconds: float = 120.0
    seed: int = 0
    kinds: tuple[str, ...] = tuple(HOSTILE)
    scale: float = 1.0
    unguarded: bool = False


@dataclass
class Looks:
    """What was seen of the server's process."""

    anonymous_mib: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)


class UnguardedProcess(ServiceProcess):
    """The service without its guards."""

    def start(self) -> "UnguardedProcess":
        plain = subprocess.Popen

        def patched(command: list[str], **options: Any) -> Any:
            return plain([sys.executable, "-c", UNGUARDED, *command[3:]], **options)

        subprocess.Popen = patched  # type: ignore[assignment,misc]
        try:
            super().start()
        finally:
            subprocess.Popen = plain  # type: ignore[misc]
        return self


def run(plan: Plan, scratch: Path, report: Report) -> None:
    """Runs a plan and adds what it found to the report."""
    secrets, lines = {}, ""
    for name in ("good", "hostile"):
        secrets[name], entry = new_token(name, Role.ADMIN)
        lines += entry
    tokens = scratch / "tokens.toml"
    tokens.write_text(lines)
    tokens.chmod(0o600)
    config = scratch / "settings.toml"
    config.write_text("".join(f"{name} = {value}\n" for name, value in SETTINGS.items()) + f'tokens_file = "{tokens}"\n')
    kind = UnguardedProcess if plan.unguarded else ServiceProcess
    with kind(scratch / "data", "--config", str(config)) as server:
        make_table(server.address, secrets["good"])
        looks, over = Looks(), threading.Event()
        looking = threading.Thread(target=_look, args=(server.pid, looks, over))
        looking.start()
        try:
            timings, spans, counts = _phases(plan, server.address, secrets)
        finally:
            over.set()
            looking.join()
        report.counts.update(counts)
        check_timings(timings, spans, report)
        check_server(looks, server.log.read_text(), report)


def _phases(plan: Plan, address: str, secrets: dict[str, str]) -> tuple[Timings, dict[str, tuple[float, float]], Counter[str]]:
    """Runs the good clients alone, beside busy processes, and beside hostile clients; returns what they saw, and when."""
    spawn = multiprocessing.get_context("spawn")
    target = Target(address, secrets["hostile"], plan.seed, plan.scale)
    halves = tuple(plan.kinds[::2]), tuple(plan.kinds[1::2])
    spans: dict[str, tuple[float, float]] = {}
    counts: Counter[str] = Counter()

    def crew(roles: list[tuple[Any, tuple[Any, ...]]]) -> tuple[Any, Any, list[Any]]:
        stop, answer = spawn.Event(), spawn.Queue()
        processes = [spawn.Process(target=role, args=(*arguments, stop, answer), daemon=True) for role, arguments in roles]
        for process in processes:
            process.start()
        return stop, answer, processes

    def ended(members: tuple[Any, Any, list[Any]]) -> list[Any]:
        stop, answer, processes = members
        stop.set()
        found = [answer.get(timeout=120) for _ in processes]
        for process in processes:
            process.join(60)
        return found

    quarter = plan.seconds / 4
    with progress_bar(round(plan.seconds + 2 * quarter), "hostile clients") as advance:

        def phase(name: str, seconds: float, members: list[tuple[Any, tuple[Any, ...]]]) -> None:
            crowd = crew(members)
            time.sleep(min(2.0, seconds / 4))  # until the processes are up
            began = time.monotonic()
            while time.monotonic() < began + seconds:
                time.sleep(min(1.0, seconds))
                advance(1, name)
            spans[name] = began, time.monotonic()
            for found in ended(crowd):
                counts.update(found)

        ready = spawn.Semaphore(0)
        clients = crew([(good, (address, secrets["good"], WRITERS, LEARNERS, ready))])
        for _ in range(WRITERS + LEARNERS):
            assert ready.acquire(timeout=120), "the good clients do not begin"
        phase("alone", quarter, [])
        phase("beside busy processes", quarter, [(spin, ()), (spin, ())])
        phase("beside hostile clients", plan.seconds, [(hostile, (kinds, target)) for kinds in halves if kinds])
        (timings,) = ended(clients)
    return timings, spans, counts


def _look(pid: int, looks: Looks, over: threading.Event) -> None:
    process = psutil.Process(pid)
    while not over.wait(_LOOK_S):
        status = Path(f"/proc/{pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        assert found is not None
        looks.anonymous_mib.append(int(found[1]) / 1024)
        looks.files.append(process.num_fds())
        looks.threads.append(process.num_threads())


def check_timings(timings: Timings, spans: dict[str, tuple[float, float]], report: Report) -> None:
    """Adds what good clients noticed."""
    figures: dict[str, Any] = {}
    for kind in timings.calls:
        ends = {}
        for name, (start, stop) in spans.items():
            took = timings.between(kind, start, stop)
            report.counts[f"{kind}s {name}"] += len(took)
            if not len(took):
                report.violations.append(f"{kind}: none was answered {name}")
                continue
            p50, p99 = np.percentile(took, [50, 99]).tolist()
            ends[name] = p99
            figures[f"{kind}_ms {name}"] = {"p50": round(1000 * p50, 1), "p99": round(1000 * p99, 1)}
        if "beside hostile clients" in ends and "beside busy processes" in ends:
            most = max(MOST_TIMES * ends["beside busy processes"], LEAST_S)
            if ends["beside hostile clients"] > most:
                found = f"{ends['beside hostile clients']:.3f} s"
                report.violations.append(
                    f"{kind}: expected 99 of 100 within {most:.3f} s beside hostile clients, found {found}"
                )
    for error in sorted(set(timings.errors)):
        report.violations.append(f"a good client saw {error}")
    report.figures.update(figures)


def check_server(looks: Looks, log: str, report: Report) -> None:
    """Adds what the server took too much of."""
    printed = re.search(r"memory: at most (\d+) MiB", log)
    assert printed is not None, "the server has printed no bound"
    limits = Limits()
    most = {
        "MiB of anonymous memory": (max(looks.anonymous_mib), int(printed[1])),
        "open files": (max(looks.files), connections_for(raise_descriptors()) + _SPARE_FILES),
        "threads": (max(looks.threads), sum(limits.workers.values()) + _SPARE_THREADS),
    }
    for what, (found, bound) in most.items():
        report.figures[what] = {"most": round(found), "bound": bound}
        if found > bound:
            report.violations.append(f"server: {found:.0f} {what}, expected at most {bound}")


def main() -> int:
    """Runs the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="how many hostile clients, 1.0: all")
    parser.add_argument("--only", nargs="+", choices=tuple(HOSTILE), default=tuple(HOSTILE), help="kinds of hostile clients")
    parser.add_argument("--unguarded", action="store_true", help="switch the guards off, to see what they are for")
    options = parser.parse_args()
    report = Report("hostile", options.seed, part=set(options.only) != set(HOSTILE))
    plan = Plan(options.seconds, options.seed, tuple(options.only), options.scale, options.unguarded)
    with tempfile.TemporaryDirectory() as scratch:
        run(plan, Path(scratch), report)
    for name, figure in report.figures.items():
        print(f"  {name:<40} {figure}")
    return report.finish(Path(tempfile.gettempdir()) / "hostile-unguarded.json" if options.unguarded else None)


if __name__ == "__main__":
    sys.exit(main())
