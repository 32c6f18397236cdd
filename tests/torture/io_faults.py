"""Lets the first call that changes files fail, then the second, and so on: `python -m tests.torture.io_faults`.

For each kind of fault there is one session for each call that it can meet. Whatever fails, the caller is told by an error of
this project, what was acknowledged is there afterwards, nothing is there twice, and the store opens and goes on.
`--stride N` plays only every Nth of the sessions.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.torture.report import Report, progress_bar
from tests.torture.shim import Fault, environment, in_memory

KINDS: dict[str, tuple[Fault, bool]] = {
    "any call, EIO": (Fault.ANY_EIO, False),
    "any call, ENOSPC": (Fault.ANY_ENOSPC, False),
    "short write": (Fault.SHORT_WRITE, False),
    "fsync, EIO": (Fault.FSYNC_EIO, False),
    "meta page, EIO": (Fault.META_EIO, False),
    "any call from then on, EIO": (Fault.ANY_EIO, True),
    "any call from then on, ENOSPC": (Fault.ANY_ENOSPC, True),
    "fsync from then on, EIO": (Fault.FSYNC_EIO, True),
    "meta page from then on, EIO": (Fault.META_EIO, True),
}

Ask = Callable[[Fault, int, bool], dict[str, Any]]


@contextmanager
def sessions(place: Path) -> Iterator[Ask]:
    """Yields a call that plays one session."""
    command = [sys.executable, "-m", "tests.torture.io_session"]
    with subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout

        def ask(fault: Fault, nth: int, sticky: bool) -> dict[str, Any]:
            asked.write(json.dumps({"place": str(place), "fault": fault, "nth": nth, "sticky": sticky}) + "\n")
            if not (line := answers.readline()):
                raise RuntimeError("the process that plays the sessions has ended; standard error says why")
            return dict(json.loads(line))

        yield ask
        asked.close()


def sweep(
    report: Report, ask: Ask, *, first: int = 1, stride: int = 1, kinds: dict[str, tuple[Fault, bool]] = KINDS,
    advance: Callable[..., None] = lambda *_: None,
) -> None:  # fmt: skip
    """Plays sessions in which call `first`, `first` + `stride`, ... fails, of each kind until none fails any more."""
    for kind, (fault, sticky) in kinds.items():
        nth, fired = first, 1
        while fired:
            answer = ask(fault, nth, sticky)
            fired = answer["fired"]
            report.counts[f"{kind}: sessions"] += 1 if fired else 0
            report.counts["sessions without a fault"] += 0 if fired else 1
            report.counts["sessions in which a call was told of it"] += bool(answer["failed"])
            report.violations += [f"{kind}, call {nth}: {what}" for what in answer["violations"]]
            for failed, count in answer["failed"].items():
                report.counts[f"raised by {failed}"] += count
            advance(1, f"{kind}, call {nth}, {len(report.violations)} violations")
            nth += stride


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--stride", type=int, default=1, help="let every so-manieth call fail")
    parser.add_argument("--seed", type=int, default=1, help="the first call that fails")
    parser.add_argument("--kind", choices=sorted(KINDS), help="only this one")
    options = parser.parse_args()
    report = Report("io_faults", options.seed)
    kinds = {options.kind: KINDS[options.kind]} if options.kind else KINDS
    with (
        in_memory("io-faults") as place,
        sessions(place / "session") as ask,
        progress_bar(estimate(ask, kinds) // options.stride, "sessions") as advance,
    ):
        sweep(report, ask, first=options.seed, stride=options.stride, kinds=kinds, advance=advance)
    return report.finish()


def estimate(ask: Ask, kinds: dict[str, tuple[Fault, bool]]) -> int:
    """Returns about how many sessions a whole sweep has."""
    total = 0
    for fault, sticky in kinds.values():
        total += 1 + ask(fault, 1_000_000, sticky)["eligible"]
    return total


if __name__ == "__main__":
    sys.exit(main())
