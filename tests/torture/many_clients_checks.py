"""What a run of `many_clients` is, what is seen of the server meanwhile, and what counts as a violation."""

import os
import re
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.torture.many_clients_roles import ClientCount, LearnerCount
from tests.torture.report import Report

PROCESSES = 8  # that the clients are spread over
STOPPED_S = 60.0
CAPACITY_STEPS = 200_000
LONGEST_GAP_S = 10.0
MIB_PER_MINUTE = 1.0
MOST_THREADS = 320  # workers of all kinds, and some
SLOPE_NEEDS_S = 300.0  # a shorter run tells no slope: memory still fills


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
