"""What the dashboard costs a learner that samples flat out: with three browsers on it, and without, in turn.

    python -m tests.bench.watched [--rounds 40] [--seconds 4] [--page overview] [--out tests/bench/plots/watched.json]

The browsers are real ones (chromium), each with a page that somebody sees. They are open all the time; where they are not to
count, their processes are stopped (SIGSTOP), so that no slice begins with a page being loaded. A round has three slices, in an
order that turns: stopped, with the browsers, and with what they ask for, at their pace, sent by a process that draws nothing.
The cost is told with its standard error over the rounds.

On a cluster browsers run on somebody's desk. Here they share the processors that service and learner fill already, so they get
only time that nothing else wants (SCHED_IDLE), and their drawing takes from the others what caches and memory have; how much
they draw is told. The third slice is without that. The cost is told of items per second of the clock, and per second of
processor time of service and learner.
"""

import argparse
import contextlib
import http.client
import json
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
from rich.console import Console
from rich.progress import track

import replay_client
from replaysvc import FieldSpec, Signature
from tests.browser.chromium import chromium, page_of
from tests.processes import ServiceProcess

BATCH, BROWSERS, POLL_S, PREFETCH = 256, 3, 2.0, 16
ASKED = {
    "overview": {"/api/v1/overview": 1, "/api/v1/history?window=600": 3},
    "tables": {"/api/v1/tables": 1, "/api/v1/overview": 5},
}
"""What a page asks for, and each how manyth round."""

OUT = Path(__file__).parent / "plots" / "watched.json"


def fill(address: str, steps: int = 200_000, length: int = 500) -> None:
    """Writes episodes of random states."""
    rng = np.random.default_rng(1)
    signature = Signature(FieldSpec("observation", (17,), np.float32), FieldSpec("action", (6,), np.float32))
    with replay_client.connect(address) as replay, replay.create_table("states", signature).writer(actor="actor-0") as writer:
        for _ in range(steps // length):
            seen = rng.standard_normal((length + 1, 17), np.float32).cumsum(0)
            writer.begin(seen[0])
            for t in range(length):
                writer.append(seen[t, :6], 1.0, seen[t + 1], truncated=t == length - 1)


def busy(process: psutil.Process) -> float:
    """Returns the seconds of processor time that a process has had."""
    times = process.cpu_times()
    return float(times.user + times.system)


def rate(batches: Any, service: psutil.Process, seconds: float) -> tuple[float, float]:
    """Returns the items that a learner gets in a second, of the clock and of processor time of the service and of itself."""
    used, count, began = busy(service) + time.process_time(), 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        next(batches)
        count += BATCH
    return count / spent, count / (busy(service) + time.process_time() - used)


def idle_priority() -> None:
    """From now on this process, and those it starts, run only when nothing else wants to."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def browse(url: str, page: str, end: Any) -> None:
    """The process of the browsers: opens the dashboard in each, and tells what they asked for when it is told to end."""
    idle_priority()
    with chromium() as browser, contextlib.ExitStack() as stack:
        pages = [stack.enter_context(page_of(browser, timeout_s=120)) for _ in range(BROWSERS)]
        for shown, _ in pages:
            shown.goto(f"{url}#/{page}")
            shown.locator(".verdict" if page == "overview" else "main").first.wait_for()
        pages[0][0].wait_for_timeout(3 * POLL_S * 1e3)
        for _, heard in pages:
            heard.paths.clear()
        end.send("open")
        while not end.poll():
            pages[0][0].wait_for_timeout(100)
        end.send([path for _, heard in pages for path in heard.paths])


def _get(connection: http.client.HTTPConnection, path: str) -> None:
    """Asks as browsers do: once more on a new connection, if the service has closed the one that was idle."""
    for last in (False, True):
        try:
            connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
            connection.getresponse().read()
            return
        except (ConnectionError, http.client.HTTPException):
            connection.close()
            if last:
                raise


def ask(url: str, page: str, end: Any) -> None:
    """The process that asks for what `BROWSERS` pages ask for, as often as they do, until it is told to end."""
    idle_priority()
    where, round_ = urlsplit(url).netloc, 0
    connections = [http.client.HTTPConnection(where) for _ in range(BROWSERS)]
    end.send("open")
    while not end.poll(POLL_S / BROWSERS):
        number, round_ = round_ % BROWSERS, round_ + 1
        for path, every in ASKED[page].items():
            if (round_ // BROWSERS) % every == 0:
                _get(connections[number], path)
    end.send([])


class Watchers:
    """Browsers with the dashboard open, or what asks in their stead; a context manager that ends them."""

    def __init__(self, task: Callable[[str, str, Any], None], url: str, page: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._end, theirs = context.Pipe()
        self._process = context.Process(target=task, args=(url, page, theirs), daemon=True)
        self._tree: list[psutil.Process] = []

    def __enter__(self) -> "Watchers":
        self._process.start()
        assert self._end.recv() == "open"
        own = psutil.Process(self._process.pid)
        self._tree = [own, *own.children(recursive=True)]
        return self

    def __exit__(self, *_: object) -> None:
        self.signal(signal.SIGCONT)
        if self._process.is_alive() and not self._end.closed:
            self._end.send("end")
        self._process.join()

    def signal(self, number: int) -> None:
        """Sends a signal to all their processes."""
        for process in self._tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def busy(self) -> float:
        """Returns the seconds of processor time that those that live have had."""
        return sum(busy(process) for process in self._tree if process.is_running())

    def asked(self) -> list[str]:
        """Ends them, and returns the paths that they asked for."""
        self.signal(signal.SIGCONT)
        self._end.send("end")
        paths: list[str] = self._end.recv()
        self._end.close()
        return paths


def measure(rounds: int, seconds: float, page: str, scratch: Path) -> dict[str, Any]:
    """Returns the rates of each slice, and what the browsers asked for and used meanwhile."""
    rates: dict[str, list[tuple[float, float]]] = {"stopped": [], "browsers": [], "requests": []}
    drawing = 0.0
    with ServiceProcess(scratch / "store", "--admin-port", "0") as service, contextlib.ExitStack() as stack:
        fill(service.address)
        process = psutil.Process(service.pid)
        tasks = {"browsers": browse, "requests": ask}
        watchers = {kind: stack.enter_context(Watchers(task, service.dashboard, page)) for kind, task in tasks.items()}
        replay = stack.enter_context(replay_client.connect(service.address))
        batches = replay.table("states").stream(BATCH, prefetch=PREFETCH)
        for each in watchers.values():
            each.signal(signal.SIGSTOP)
        rate(batches, process, 2.0)
        kinds = list(rates)
        for number in track(range(rounds), "rounds", console=Console(stderr=True)):
            for kind in (kinds[number % 3 :] + kinds[: number % 3])[:: 1 if number % 2 else -1]:
                if kind in watchers:
                    watchers[kind].signal(signal.SIGCONT)
                before = watchers["browsers"].busy()
                rates[kind].append(rate(batches, process, seconds))
                drawing += watchers["browsers"].busy() - before if kind == "browsers" else 0.0
                if kind in watchers:
                    watchers[kind].signal(signal.SIGSTOP)
        asked = watchers["browsers"].asked()
        watchers["requests"].asked()
    return {
        "page": page, "seconds": seconds, **rates, "asked": len(asked),
        "asked_for": {path: asked.count(path) for path in sorted(set(asked))},
        "drawing_processors": drawing / (rounds * seconds),
    }  # fmt: skip


def cost(found: dict[str, Any], kind: str, unit: int) -> tuple[float, float]:
    """Returns the share of items that a kind of slice costs, of all together, and its standard error over the rounds."""
    with_, without = [np.array([each[unit] for each in found[name]]) for name in (kind, "stopped")]
    return float(1 - with_.sum() / without.sum()), float((with_ / without).std(ddof=1) / len(with_) ** 0.5)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=40)
    options.add_argument("--seconds", type=float, default=4.0)
    options.add_argument("--page", choices=sorted(ASKED), default="overview")
    options.add_argument("--out", type=Path, default=OUT)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(given.rounds, given.seconds, given.page, Path(scratch))
    open_s, drawing = given.rounds * given.seconds, found["drawing_processors"]
    print(f"{given.page}: {np.mean([each[0] for each in found['stopped']]):,.0f} items/s without browsers")
    print(f"{BROWSERS} browsers asked {found['asked'] / open_s:.2f} times/s, and drew with {drawing:.2f} processors")
    for kind in ("browsers", "requests"):
        for unit, name in enumerate(("clock", "processor")):
            found[f"{kind}_cost_by_{name}"], error = cost(found, kind, unit)
            told = f"{found[f'{kind}_cost_by_{name}']:+.2%} (standard error {error:.2%}, {given.rounds} rounds)"
            print(f"{kind} cost, by the {name}: {told}")
    given.out.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
