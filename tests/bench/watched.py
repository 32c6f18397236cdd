"""What the dashboard costs a learner that samples flat out: with three browsers on it, and without, in turn.

    python -m tests.bench.watched [--pairs 60] [--seconds 4] [--page overview] [--out tests/bench/plots/watched.json]

The browsers are real ones (chromium), each with a page that somebody sees. They are open all the time; for half of the slices
their processes are stopped (SIGSTOP), so that a slice begins without a page being loaded. Slices come in pairs, open and
stopped, whose order turns each time, and the cost is told with its standard error over the pairs.

On a cluster browsers run on somebody's desk. Here they share the processors that service and learner fill already, so they get
only time that nothing else wants (SCHED_IDLE), and the cost is told in two ways: of items per second of the clock, in which the
drawing of three browsers counts too (how much that is, is told), and of items per second of processor time of service and
learner.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console
from rich.progress import track

import replay_client
from replaysvc import FieldSpec, Signature
from tests.browser.chromium import chromium, page_of
from tests.processes import ServiceProcess

BATCH, BROWSERS, POLL_S, PREFETCH = 256, 3, 2.0, 16
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


class Browsers:
    """Three browsers with the dashboard open; a context manager that ends them."""

    def __init__(self, url: str, page: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._end, theirs = context.Pipe()
        self._process = context.Process(target=browse, args=(url, page, theirs), daemon=True)
        self._tree: list[psutil.Process] = []

    def __enter__(self) -> "Browsers":
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


def measure(pairs: int, seconds: float, page: str, scratch: Path) -> dict[str, Any]:
    """Returns the rates of each slice, and what the browsers asked for and used meanwhile."""
    rates: dict[str, list[tuple[float, float]]] = {"open": [], "stopped": []}
    drawing = 0.0
    with ServiceProcess(scratch / "store", "--admin-port", "0") as service:
        fill(service.address)
        process = psutil.Process(service.pid)
        with Browsers(service.dashboard, page) as browsers, replay_client.connect(service.address) as replay:
            batches = replay.table("states").stream(BATCH, prefetch=PREFETCH)
            browsers.signal(signal.SIGSTOP)
            rate(batches, process, 2.0)
            for number in track(range(pairs), "pairs of slices", console=Console(stderr=True)):
                for kind in ("open", "stopped") if number % 2 else ("stopped", "open"):
                    browsers.signal(signal.SIGCONT if kind == "open" else signal.SIGSTOP)
                    before = browsers.busy()
                    rates[kind].append(rate(batches, process, seconds))
                    drawing += browsers.busy() - before if kind == "open" else 0.0
            asked = browsers.asked()
    return {
        "page": page, "seconds": seconds, **rates, "asked": len(asked),
        "asked_for": {path: asked.count(path) for path in sorted(set(asked))},
        "drawing_processors": drawing / (pairs * seconds),
    }  # fmt: skip


def cost(found: dict[str, Any], unit: int) -> tuple[float, float]:
    """Returns the share of items that the browsers cost, of all slices together, and its standard error over the pairs."""
    with_, without = [np.array([each[unit] for each in found[kind]]) for kind in ("open", "stopped")]
    return float(1 - with_.sum() / without.sum()), float((with_ / without).std(ddof=1) / len(with_) ** 0.5)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pairs", type=int, default=60)
    options.add_argument("--seconds", type=float, default=4.0)
    options.add_argument("--page", default="overview")
    options.add_argument("--out", type=Path, default=OUT)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(given.pairs, given.seconds, given.page, Path(scratch))
    open_s = given.pairs * given.seconds
    print(f"{given.page}: {np.mean([each[0] for each in found['stopped']]):,.0f} items/s without browsers")
    drawing = found["drawing_processors"]
    print(f"{BROWSERS} browsers asked {found['asked'] / open_s:.2f} times/s, and drew with {drawing:.2f} processors")
    for unit, name in enumerate(("clock", "processor")):
        found[f"cost_by_{name}"], error = cost(found, unit)
        print(f"they cost, by the {name}: {found[f'cost_by_{name}']:+.2%} (standard error {error:.2%}, {given.pairs} pairs)")
    given.out.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
