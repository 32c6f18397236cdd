"""Loses power: lives of a store are logged call by call, and disks as they may be after a loss of power are opened.

`python -m tests.torture.powerloss --count 10000 --seed 1`: so many disks. Every acknowledged step must be there with its bytes,
nothing twice, what was deleted stays deleted, the store opens by itself and can be written to.
"""

import argparse
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.torture.powerloss_life import FSYNC_FAILS, SABOTAGES, play
from tests.torture.report import RESULTS, Report, progress_bar
from tests.torture.shim import environment, in_memory

PER_LIFE = 250  # images made of one log
_PATIENCE_S = 120.0  # for one image


class Looker:
    """A process that makes and checks images; started anew when one ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def look(self, order: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the answers to an order; an image that ends the process, or takes for ever, is one with a violation."""
        left = list(order["indices"])
        while left:
            begun = left[0]  # where it dies before it says anything
            for answer in self._ask(order | {"indices": left}):
                if "begun" in answer:
                    begun = answer["begun"]
                elif "index" in answer:
                    left.remove(answer["index"])
                    yield answer
            if left:
                left.remove(begun)
                yield {
                    "index": begun,
                    "violations": [f"the process {self.end()}"],
                    "counts": {"images": 1, "processes_ended": 1},
                }

    def _ask(self, order: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._process is None:
            command = [sys.executable, "-m", "tests.torture.powerloss_images"]
            self._process = subprocess.Popen(
                command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        for line in self._lines():
            answer = json.loads(line)
            yield answer
            if "done" in answer:
                return

    def _lines(self) -> Iterator[bytes]:
        """Yields lines until the process ends, or says nothing for too long."""
        assert self._process is not None
        assert self._process.stdout is not None
        rest, handle = b"", self._process.stdout.fileno()
        with selectors.DefaultSelector() as ready:
            ready.register(handle, selectors.EVENT_READ)
            while ready.select(_PATIENCE_S) and (data := os.read(handle, 1 << 16)):
                *lines, rest = (rest + data).split(b"\n")
                yield from lines

    def end(self) -> str:
        """Ends the process; returns how it ended."""
        process, self._process = self._process, None
        if process is None:
            return "was not there"
        hung = process.poll() is None
        if hung:
            process.kill()
        status = process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()
        if hung:
            return f"did nothing for {_PATIENCE_S:g} s"
        return f"ended with {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def lose_power(
    report: Report, place: Path, count: int, *, sabotage: str = "", one_sync_renames: bool = False, actions: int = 40,
    per_life: int = PER_LIFE, advance: Callable[..., None] = lambda *_: None, enough: int = 1000,
) -> None:  # fmt: skip
    """Makes and checks `count` images; ends early at `enough` violations. Logs with violations stay in `place`."""
    looker = Looker()
    for life in range(-(-count // per_life)):
        log, directory = place / f"life{life}.log", place / f"life{life}"
        play(directory, log, report.seed * 1000 + life, actions=actions, sabotage=sabotage)
        shutil.rmtree(directory)
        report.counts["lives"] += 1
        report.counts["logged_bytes"] += log.stat().st_size
        indices = list(range(min(per_life, count - life * per_life)))
        order = {"log": str(log), "place": str(place), "seed": f"{report.seed} {life}", "indices": indices}
        before = len(report.violations)
        for answer in looker.look(order | {"one_sync_renames": one_sync_renames}):
            report.counts.update(answer["counts"])
            report.violations += [
                f"{log} --seed '{report.seed} {life}' image {answer['index']}: {what}" for what in answer["violations"]
            ]
            advance(1, f"{len(report.violations)} violations")
            if len(report.violations) >= enough:
                looker.end()
                return
        shutil.rmtree(place / "image", ignore_errors=True)
        if len(report.violations) == before:
            log.unlink()
    looker.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=10_000, help="images")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sabotage", choices=SABOTAGES, default="", help="leave out syncs, to see that it is noticed")
    parser.add_argument("--fsync-fails", action="store_true", help="let one fsync of each process fail")
    parser.add_argument(
        "--one-sync-renames", action="store_true", help="a rename is durable once its target's directory is synced"
    )
    options = parser.parse_args()
    report, sabotage = Report("powerloss", options.seed), FSYNC_FAILS if options.fsync_fails else options.sabotage
    with in_memory("powerloss") as place, progress_bar(options.count, "images") as advance:
        lose_power(report, place, options.count, sabotage=sabotage, one_sync_renames=options.one_sync_renames, advance=advance)
    return report.finish(RESULTS / f"powerloss-{sabotage.replace(' ', '-')}.json" if sabotage else None)


if __name__ == "__main__":
    sys.exit(main())
