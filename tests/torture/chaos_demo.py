"""`replaysvc demo` while its service is killed again and again: CartPole is solved, and every acknowledged step is there once.

    python -m tests.torture.chaos_demo [--seed 1] [--count 3] [--kill-every 20 5]

One demo for each of `--count` seeds, from `--seed` on, and each interval in seconds. A violation: it is not solved within its
time, a log has an error, or the audit finds that something was lost, doubled or changed (see `clients/dqn/audit.py`): every
episode is compared with its actor's notes, and made again from its seed and its stored actions.
"""

import argparse
import io
import sys
import tempfile
from pathlib import Path

from rich.console import Console

import replaysvc
from dqn.audit import audit
from dqn.rundir import Metrics, Outage, RunDirectory
from replaysvc.demo import run_demo
from tests.torture.report import Report, progress_bar

LIMIT_S = 600.0


def run_one(path: Path, seed: int, kill_every_s: float, report: Report, *, limit_s: float = LIMIT_S) -> str:
    """Runs one demo and adds what came of it to the report; returns a line."""
    console = Console(file=io.StringIO(), width=200, highlight=False)
    what = f"seed {seed}, kill every {kill_every_s:g} s"
    status = run_demo(directory=path, seed=seed, kill_every_s=kill_every_s, time_limit_s=limit_s, console=console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    if status:
        report.violations.append(f"{what}: the demo ended with status {status}:\n{printed}")
    run = RunDirectory(path)
    with Metrics(run) as metrics, replaysvc.open(path / "replay") as replay:  # which nobody has cached anything of
        found = audit(replay, metrics, run.config)
        kills = len(metrics.last(Outage, 1_000_000))
    report.violations += [f"{what}: {sentence}" for sentence in (*found.lost, *found.doubled, *found.changed)]
    if not found.steps:
        report.violations.append(f"{what}: expected steps, found none: it tried nothing")
    report.counts.update(
        demos=1, solved=int(status == 0), kills=kills, acknowledged_steps=found.steps, steps_made_again=found.again,
        finished_episodes=found.finished, lost=len(found.lost), doubled=len(found.doubled), changed=len(found.changed),
    )  # fmt: skip
    wall = next((line for line in printed.splitlines() if line.startswith("wall time")), "no wall time")
    return f"{what}: {'solved' if status == 0 else 'NOT SOLVED'}, {kills} kills, {found.steps:,} steps, {wall}"


def expect_kills(report: Report, kill_every_s: float, before: int) -> None:
    """Adds a violation if there are no more kills than `before`: a fast machine may solve a demo before the first, not all."""
    if report.counts["kills"] == before:
        report.violations.append(f"kill every {kill_every_s:g} s: expected kills, found none: it tried nothing")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the first demo")
    parser.add_argument("--count", type=int, default=3, help="seeds")
    parser.add_argument("--kill-every", type=float, nargs="+", default=[20.0, 5.0], metavar="SECONDS")
    options = parser.parse_args()
    report = Report("chaos_demo", options.seed)
    lines = []
    with progress_bar(options.count * len(options.kill_every), "demos") as advance:
        for kill_every_s in options.kill_every:
            before = report.counts["kills"]
            for seed in range(options.seed, options.seed + options.count):
                with tempfile.TemporaryDirectory() as scratch:
                    lines.append(run_one(Path(scratch) / "run", seed, kill_every_s, report))
                advance()
            expect_kills(report, kill_every_s, before)
    report.figures["runs"] = lines
    print("\n".join(lines))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
