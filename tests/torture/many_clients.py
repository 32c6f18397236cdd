"""Many clients at once: is each of them served, does memory stay within its bound and flat, and is every step there?

    python -m tests.torture.many_clients [--minutes 10] [--clients 256] [--learners 4] [--seed 0]
        [--steps-per-s 40] [--stop-actors N] [--slow-learner]

A service in a process of its own; `--clients` writers, each with a connection of its own, spread over eight processes; learners
in processes of their own that sample in a stream and check every transition. A violation:

- a client's rate of acknowledged steps is less than half or more than twice the mean, or it hears nothing for 10 s
- the server's anonymous memory exceeds the bound that it prints when it starts, or rises by more than 1 MiB a minute over the
  last two thirds of a run of five minutes or more; its open files or threads grow, or exceed what so many clients need
- a step that was acknowledged is missing, one is doubled, or a sampled transition is none; anybody sees an exception

`--stop-actors N` stops N of the writing processes for 60 s (SIGSTOP), `--slow-learner` adds one that asks for large batches and
never reads. Nobody else may notice either.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import replay_client
import replaysvc
from replay_client import TableConfig
from tests.processes import ServiceProcess
from tests.torture.many_clients_checks import Plan, Watched, check_clients, check_learners, check_server, check_stored
from tests.torture.many_clients_roles import SIGNATURE, TABLE, LearnerCount, Load, actors, deaf_learner, learner
from tests.torture.report import Report, progress_bar

MiB = 1 << 20
RECENT, FAULTED, QUEUE = 32 * MiB, 16 * MiB, 64 * MiB
SETTINGS = f"""
recent_cache_bytes = {RECENT}
faulted_cache_bytes = {FAULTED}
queue_bytes = {QUEUE}
request_bytes = {256 * MiB}
answer_bytes = {384 * MiB}
"""


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
