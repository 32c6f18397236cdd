"""What the dashboard costs a learner that samples flat out: with three browsers on it, and without, in turn.

    python -m tests.bench.watched [--rounds 12] [--seconds 5] [--page tables] [--out tests/bench/plots/watched.json]

The browsers are real ones (chromium), each with a page that is visible and asks every 2 s; what they asked in each round is
counted. On a cluster they run on somebody's desk. Here they share the processors that service and learner fill already, so
they get only time that nothing else wants (SCHED_IDLE), and the cost is told in two ways: of items per second of the clock, in
which the drawing of three browsers counts too, and of items per second of processor time of service and learner, which is what
answering them takes from sampling. Rounds differ by tens of percent where two
processors are full: take many. Beside them, the same requests are sent at the pace of three pages by a client that
draws nothing.
"""

import argparse
import http.client
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
from rich.console import Console
from rich.progress import track

import replay_client
from replaysvc import FieldSpec, Signature
from tests.browser.chromium import Heard, chromium, page_of
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


class Asking(threading.Thread):
    """Sends what a page asks for, again and again, as `BROWSERS` pages would."""

    def __init__(self, url: str, paths: list[str]) -> None:
        super().__init__(daemon=True)
        self._where, self._paths, self._end, self.asked = urlsplit(url).netloc, paths, threading.Event(), 0
        self.start()

    def run(self) -> None:
        connections = [http.client.HTTPConnection(self._where) for _ in range(BROWSERS)]
        while not self._end.wait(POLL_S):
            for connection in connections:
                for path in self._paths:
                    connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
                    connection.getresponse().read()
                    self.asked += 1

    def close(self) -> None:
        self._end.set()
        self.join()


def idle_priority() -> None:
    """From now on this process, and those it starts, run only when nothing else wants to."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def watched(url: str, orders: Any, answers: Any, page: str) -> None:
    """The process of the browsers: opens the dashboard, or leaves it, as it is told; answers with the paths asked for."""
    idle_priority()
    with chromium() as browser:
        opened = [page_of(browser, timeout_s=120) for _ in range(BROWSERS)]
        pages: list[tuple[Any, Heard]] = [each.__enter__() for each in opened]
        while (order := orders.recv()) is not None:
            for shown, heard in pages:
                heard.paths.clear()
                shown.goto(f"{url}#/{page}" if order == "open" else "about:blank")
            if order == "open":
                for shown, heard in pages:
                    shown.wait_for_timeout(3 * POLL_S * 1e3)
                    heard.paths.clear()
            answers.send("ready")
            if order == "open":
                while not orders.poll():
                    pages[0][0].wait_for_timeout(100)
                answers.send([path for _, heard in pages for path in heard.paths])
        for each in opened:
            each.__exit__(None, None, None)
    answers.send("ended")


def measure(rounds: int, seconds: float, page: str, scratch: Path) -> dict[str, Any]:
    """Returns the rates of each round: alone, with browsers, and with their requests alone."""
    import multiprocessing

    found: dict[str, Any] = {"page": page, "alone": [], "browsers": [], "requests": [], "asked": [], "seconds": seconds}
    service = ServiceProcess(scratch / "store", "--admin-port", "0")
    with service:
        url = service.dashboard
        fill(service.address)
        context = multiprocessing.get_context("spawn")
        (orders, theirs), (answers, sent) = context.Pipe(), context.Pipe()
        browsers = context.Process(target=watched, args=(url, theirs, sent, page), daemon=True)
        browsers.start()
        with replay_client.connect(service.address) as replay:
            batches = replay.table("states").stream(BATCH, prefetch=PREFETCH)
            process = psutil.Process(service.pid)
            rate(batches, process, 2.0)
            asked: list[str] = []
            for _ in track(range(rounds), "rounds", console=Console(stderr=True)):
                for kind in ("alone", "browsers", "requests"):
                    orders.send("open" if kind == "browsers" else "blank")
                    assert answers.recv() == "ready"
                    asking = Asking(url, sorted(set(asked))) if kind == "requests" and asked else None
                    found[kind].append(rate(batches, process, seconds))
                    if kind == "browsers":
                        orders.send("blank")
                        asked = answers.recv()
                        found["asked"].append(len(asked))
                        assert answers.recv() == "ready"
                    if asking is not None:
                        asking.close()
            orders.send(None)
            answers.recv()
            browsers.join()
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=12)
    options.add_argument("--seconds", type=float, default=5.0)
    options.add_argument("--page", default="overview")
    options.add_argument("--out", type=Path, default=OUT)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(given.rounds, given.seconds, given.page, Path(scratch))
    for kind in ("browsers", "requests"):
        for number, unit in enumerate(("clock", "processor")):
            pairs = zip(found[kind], found["alone"], strict=True)
            ratios = [with_[number] / alone[number] for with_, alone in pairs]
            found[f"{kind}_cost_by_{unit}"] = 1 - statistics.median(ratios)
            spread = f"median of {len(ratios)} rounds, {min(ratios):.3f} to {max(ratios):.3f}"
            print(f"{kind}, by the {unit}: {found[f'{kind}_cost_by_{unit}']:+.1%} ({spread})")
    polls = BROWSERS * given.seconds / POLL_S
    alone = statistics.median(each[0] for each in found["alone"])
    print(f"alone {alone:,.0f} items/s; in each round of {given.seconds:g} s the pages asked")
    print(f"{statistics.mean(found['asked']):.1f} times; {BROWSERS} of them, each {POLL_S:g} s, are {polls:.1f} polls")
    given.out.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
