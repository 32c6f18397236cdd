"""Many clients at once: is each of them served, does memory stay within its bound and flat, and is every step there?

    python -m tests.torture.many_clients [--minutes 10] [--clients 256] [--learners 4] [--seed 0]
        [--steps-per-s 40] [--stop-actors N] [--slow-learner]

A service in a process of its own; `--clients` writers, each with a connection of its own, spread over eight processes; learners
in processes of their own that sample in a stream and check every transition. A violation:

- a client's rate of acknowledged steps is less than half or more than twice the mean, or it hears nothing for 10 s
- the server's anonymous memory exceeds the bound that it prints when it starts, or rises by more than 1 MiB a minute over the
  last two thirds of a run of minutes; its open files or threads grow, or exceed what so many clients need
- a step that was acknowledged is missing, one is doubled, or a sampled transition is none; anybody sees an exception

`--stop-actors N` stops N of the writing processes for 60 s (SIGSTOP), `--slow-learner` adds one that asks for large batches and
never reads. Nobody else may notice either.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import replay_client
import replaysvc
from replay_client import TableConfig
from tests.processes import ServiceProcess
from tests.torture.many_clients_roles import SIGNATURE, TABLE, ClientCount, LearnerCount, Load, actors, deaf_learner, learner
from tests.torture.report import Report, progress_bar

PROCESSES = 8  # that the clients are spread over
STOPPED_S = 60.0
MiB = 1 << 20
RECENT, FAULTED, QUEUE = 32 * MiB, 16 * MiB, 64 * MiB
SETTINGS = f"""
recent_cache_bytes = {RECENT}
faulted_cache_bytes = {FAULTED}
queue_bytes = {QUEUE}
request_bytes = {256 * MiB}
answer_bytes = {384 * MiB}
"""
CAPACITY_STEPS = 200_000
LONGEST_GAP_S = 10.0
MIB_PER_MINUTE = 1.0
MOST_THREADS = 320  # workers of all kinds, and some
SLOPE_NEEDS_S = 120.0  # a shorter run tells no slope


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run. stop_actors: writing processes that are stopped for `stopped_s`, a third of the run after its begin."""

    seconds: float
    clients: int = 256
    learners: int = 4
    processes: int = PROCESSES
    steps_per_s: float = 40.0
    batches_per_s: float = 10.0
    episode_steps: int = 500
    capacity_steps: int = CAPACITY_STEPS
    seed: int = 0
    stop_actors: int = 0
    stopped_s: float = STOPPED_S
    slow_learner: bool = False
    gap_s: float = LONGEST_GAP_S


@dataclass
class Watched:
    """The server's process, once a second."""

    time_s: list[float] = field(default_factory=list)
    anonymous_mib: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)

    def look(self, pid: int) -> None:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        self.time_s.append(time.monotonic())
        self.anonymous_mib.append(int(status["RssAnon"].split()[0]) / 1024)
        self.threads.append(int(status["Threads"]))
        self.files.append(len(os.listdir(f"/proc/{pid}/fd")))

    def mib_per_minute(self) -> float:
        """Returns the slope of the memory over the last two thirds."""
        first = len(self.time_s) // 3
        return float(np.polyfit(np.array(self.time_s[first:]) / 60, self.anonymous_mib[first:], 1)[0])


class Crew:
    """The processes around the service. A context manager that kills all of them."""

    def __init__(self) -> None:
        self._spawn = multiprocessing.get_context("spawn")
        self.start, self.stop = self._spawn.Event(), self._spawn.Event()
        self._all: list[tuple[Any, Any]] = []

    def add(self, role: Any, *arguments: Any) -> tuple[Any, Any]:
        """Starts a process; returns it and the pipe from it."""
        here, there = self._spawn.Pipe()
        process = self._spawn.Process(target=role, args=(*arguments, there), daemon=True)
        process.start()
        there.close()
        self._all.append((process, here))
        return self._all[-1]

    def answers(self, timeout_s: float) -> list[Any]:
        """Returns the next word of each process. Raises RuntimeError if one says nothing."""
        deadline = time.monotonic() + timeout_s
        found = []
        for process, pipe in self._all:
            if process.exitcode is None and not pipe.poll(max(0.0, deadline - time.monotonic())):
                raise RuntimeError(f"process {process.pid} says nothing for {timeout_s:g} s")
            found.append(pipe.recv())
        return found

    def forget(self, process: Any) -> None:
        """Kills a process that has no more to say."""
        process.kill()
        self._all = [(other, pipe) for other, pipe in self._all if other is not process]

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        for process, _pipe in self._all:
            process.kill()
            process.join()


def run(plan: Plan, scratch: Path, report: Report) -> None:
    """Runs all processes, then checks, and adds to the report."""
    (scratch / "settings.toml").write_text(SETTINGS)
    with ServiceProcess(scratch / "store", "--config", str(scratch / "settings.toml")) as service, Crew() as crew:
        with replay_client.connect(service.address) as replay:
            config = TableConfig(capacity_steps=plan.capacity_steps, flush_interval_s=0.5, segment_bytes=4 * MiB)
            table = replay.create_table(TABLE, SIGNATURE, config)
            load = Load(
                address=service.address, steps_per_s=plan.steps_per_s, episode_steps=plan.episode_steps,
                batches_per_s=plan.batches_per_s, seed=plan.seed,
            )  # fmt: skip
            edges = [i * plan.clients // plan.processes for i in range(plan.processes + 1)]
            shares = [range(a, b) for a, b in itertools.pairwise(edges)]
            writing = [crew.add(actors, load, share, crew.start, crew.stop)[0] for share in shares]
            for _ in range(plan.learners):
                crew.add(learner, load, crew.start, crew.stop)
            deaf = crew.add(deaf_learner, load, crew.start)[0] if plan.slow_learner else None
            crew.answers(120.0)
            crew.start.set()
            began = time.monotonic()
            watched = _watch(plan, service.pid, [process.pid for process in writing[: plan.stop_actors]])
            ended = time.monotonic()
            if deaf is not None:
                crew.forget(deaf)
            crew.stop.set()
            words = crew.answers(120.0)
            counts = [count for word in words if isinstance(word, list) for count in word]
            stopped = {client for share in shares[: plan.stop_actors] for client in share}
            check_clients(plan, counts, stopped, began, ended, report)
            check_learners([word for word in words if isinstance(word, LearnerCount)], report)
            check_server(plan, watched, service.log.read_text(), report)
            check_stored(table, counts, "the service", report)
        if service.terminate():
            report.violations.append("the service did not end with status 0")
    with replaysvc.open(scratch / "store") as store:
        check_stored(store.table(TABLE), counts, "the store", report)


def _watch(plan: Plan, pid: int, stopped: list[int]) -> Watched:
    """Lets the run go on, and looks at the server every second."""
    watched = Watched()
    began = time.monotonic()
    stop_at, go_on_at = began + plan.seconds / 3, began + plan.seconds / 3 + plan.stopped_s
    with progress_bar(int(plan.seconds), f"{plan.clients} clients") as advance:
        for second in range(1, int(plan.seconds) + 1):
            watched.look(pid)
            advance(1, f"{watched.anonymous_mib[-1]:.0f} MiB")
            now = time.monotonic()
            if stopped and now >= stop_at:
                signal_all(stopped, signal.SIGSTOP)
                stop_at = float("inf")
            if stopped and now >= go_on_at:
                signal_all(stopped, signal.SIGCONT)
                stopped = []
            time.sleep(max(0.0, began + second - time.monotonic()))
    signal_all(stopped, signal.SIGCONT)
    return watched


def signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def check_clients(plan: Plan, counts: list[ClientCount], stopped: set[int], began: float, ended: float, report: Report) -> None:
    for count in counts:
        report.violations += count.errors
        if count.acknowledged != count.appended:
            report.violations.append(f"client {count.client}: {count.appended} appended, {count.acknowledged} acknowledged")
    first = began + (ended - began) / 10  # until then they connect
    going = [count for count in counts if count.client not in stopped]
    rates = {count.client: (count.until(ended) - count.until(first)) / (ended - first) for count in going}
    mean = statistics.fmean(rates.values())
    for client, rate in rates.items():
        if not mean / 2 <= rate <= 2 * mean:
            report.violations.append(f"client {client}: {rate:.1f} steps/s acknowledged, the mean is {mean:.1f}")
    gaps = sorted(gap for count in going for gap in count.gaps())
    longest = max(going, key=lambda count: count.longest_gap_s)
    for count in counts:
        allowed = plan.gap_s + (plan.stopped_s if count.client in stopped else 0)
        if count.longest_gap_s > allowed:
            at = count.gap_at_s - began
            report.violations.append(
                f"client {count.client}: nothing acknowledged for {count.longest_gap_s:.1f} s, until {at:.0f} s"
            )
    report.counts.update(
        clients=len(counts), acknowledged_steps=sum(count.acknowledged for count in counts),
        acknowledgements=sum(len(count.at) for count in counts), refused_calls=sum(count.refusals for count in counts),
    )  # fmt: skip
    report.figures["clients"] = {
        "steps_per_s_min": round(min(rates.values()), 2), "steps_per_s_mean": round(mean, 2),
        "steps_per_s_max": round(max(rates.values()), 2), "steps_per_s_all": round(mean * len(rates)),
        "gap_s_median": round(gaps[len(gaps) // 2], 3), "gap_s_99": round(gaps[len(gaps) * 99 // 100], 3),
        "gap_s_longest": round(longest.longest_gap_s, 3),
    }  # fmt: skip


def check_learners(counts: list[LearnerCount], report: Report) -> None:
    for count in counts:
        report.violations += count.errors
        if count.wrong:
            report.violations.append(f"a learner: {count.wrong} sampled transitions are none that any client wrote")
        if not count.batches:
            report.violations.append("a learner got no batch")
    report.counts.update(
        learners=len(counts), batches=sum(count.batches for count in counts),
        transitions=sum(count.transitions for count in counts),
    )  # fmt: skip
    report.figures["learner_batches"] = [count.batches for count in counts]
    report.figures["learner_longest_wait_s"] = [round(count.longest_wait_s, 2) for count in counts]


def check_server(plan: Plan, watched: Watched, log: str, report: Report) -> None:
    printed = re.search(r"memory: at most (\d+) MiB", log)
    bound = int(printed[1]) if printed else 0
    third = max(1, len(watched.files) // 3)
    peers = plan.clients + plan.learners + plan.slow_learner
    slope = watched.mib_per_minute() if plan.seconds >= SLOPE_NEEDS_S else 0.0
    checks = {
        f"anonymous memory of at most {bound:g} MiB": max(watched.anonymous_mib) <= bound,
        f"memory that rises by at most {MIB_PER_MINUTE:g} MiB a minute, found {slope:.2f}": slope <= MIB_PER_MINUTE,
        f"at most {2 * peers + 128} open files, found {max(watched.files)}": max(watched.files) <= 2 * peers + 128,
        "no more open files at the end": max(watched.files[-third:]) <= max(watched.files[: 2 * third]) + 16,
        f"at most {MOST_THREADS} threads, found {max(watched.threads)}": max(watched.threads) <= MOST_THREADS,
        "no more threads at the end": max(watched.threads[-third:]) <= max(watched.threads[: 2 * third]) + 16,
    }
    report.violations += [f"the server: expected {expected}" for expected, held in checks.items() if not held]
    report.violations += [f"the server's log: {line}" for line in log.splitlines() if re.search(r"Traceback| ERROR ", line)]
    report.figures["server"] = {
        "anonymous_mib_max": round(max(watched.anonymous_mib), 1), "anonymous_mib_end": round(watched.anonymous_mib[-1], 1),
        "bound_mib": bound, "mib_per_minute": round(slope, 3),
        "files_max": max(watched.files), "threads_max": max(watched.threads),
        "anonymous_mib_every_30_s": [round(mib) for mib in watched.anonymous_mib[::30]],
    }  # fmt: skip


def check_stored(table: Any, counts: list[ClientCount], where: str, report: Report) -> None:
    """Compares what is stored with what was acknowledged: in all, and for each client up to its newest step."""
    appended, acknowledged = table.stats().next_position, sum(count.acknowledged for count in counts)
    if appended != acknowledged:
        report.violations.append(f"{where}: {acknowledged} steps were acknowledged, {appended} were ever stored")
    episodes: dict[str, list[Any]] = {}
    for record in reversed(table.episodes(limit=100_000)):
        episodes.setdefault(record.actor, []).append(record)
    for count in counts:
        records = episodes.get(f"client-{count.client}", [])
        at = records[0].metadata["before"] if records else 0
        for record in records:
            if record.metadata["before"] != at:
                report.violations.append(
                    f"{where}: client {count.client}: steps {at} to {record.metadata['before']} are missing"
                )
            at = record.metadata["before"] + record.length
        if at != count.acknowledged and (records or not table.stats().removed_steps_total):
            report.violations.append(f"{where}: client {count.client}: {count.acknowledged} steps acknowledged, {at} stored")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--steps-per-s", type=float, default=40.0, help="of each client; 0: as many as the service takes")
    parser.add_argument("--batches-per-s", type=float, default=10.0, help="of each learner")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop-actors", type=int, default=0, metavar="N", help="writing processes that are stopped for 60 s")
    parser.add_argument("--slow-learner", action="store_true", help="one learner more, which never reads")
    options = parser.parse_args()
    plan = Plan(
        seconds=60 * options.minutes, clients=options.clients, learners=options.learners, steps_per_s=options.steps_per_s,
        batches_per_s=options.batches_per_s, seed=options.seed, stop_actors=options.stop_actors,
        slow_learner=options.slow_learner,
    )  # fmt: skip
    report = Report("many_clients", plan.seed)
    with tempfile.TemporaryDirectory() as scratch:
        run(plan, Path(scratch), report)
    print(json.dumps({name: report.figures[name] for name in ("clients", "server", "learner_longest_wait_s")}, indent=1))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
