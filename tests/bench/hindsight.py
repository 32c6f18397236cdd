"""BitFlip with 15 bits: the reference learner with hindsight goals, and without.

    python tests/bench/hindsight.py [--bits 15] [--seeds 1 2 3] [--out tests/bench/plots]

Each run is the demo's: a service, an actor, the learner and an evaluator, each a process of its own. With and without
hindsight differ in `Her` alone, and take the same number of steps. An evaluation is 200 greedy episodes with seeds of its
own. Written: `bitflip.json`, every evaluation of every run, and `bitflip.png`, which shows them. The exit status is 0 if
with hindsight the last evaluation of every seed succeeds in at least 95 % of its episodes, and without it none reaches 10 %.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from dqn.bitflip import bitflip_config
from dqn.processes import Child, Children, Service, start_learning
from dqn.rundir import Evaluation, Metrics, RunDirectory

WITH, WITHOUT = 0.95, 0.10  # success rates that tell hindsight from none
EPISODES = 200
POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class Curve:
    """The evaluations of one run, in their order."""

    seed: int
    hindsight: bool
    wall_s: float
    steps: list[int]
    time_s: list[float]
    success: list[float]

    def first(self) -> int | None:
        """Returns the index of the first evaluation that reaches what is wanted with hindsight."""
        return next((i for i, rate in enumerate(self.success) if rate >= WITH), None)


def run(directory: Path, bits: int, seed: int, hindsight: bool, progress: Progress) -> Curve:
    """Runs one learner to its last step; returns its curve."""
    nothing_ends_it = {"solved_success": None, "solved_return": 1.0}  # no return is above 0
    config = bitflip_config(bits, seed=seed, evaluation_episodes=EPISODES, her_ratio=0.8 if hindsight else 0, **nothing_ends_it)
    directory = RunDirectory.create(directory, config)
    logs = directory.path / "logs"
    logs.mkdir()
    name = f"seed {seed} {'with' if hindsight else 'without'} hindsight"
    task = progress.add_task(name, total=config.max_steps, success="")
    with Children(logs) as children, Metrics(directory) as metrics:
        service = Service(children, directory)
        if not service.await_listening():
            raise RuntimeError(f"the service did not start: see {logs}")
        began, clock = time.time(), time.monotonic()
        learner, evaluator = start_learning(children, directory, service.address)
        while learner.process.poll() is None or evaluator.process.poll() is None:
            check(children, learner, evaluator)
            show(progress, task, metrics)
            time.sleep(POLL_S)
        wall_s = time.monotonic() - clock
        show(progress, task, metrics)
        rows = metrics.last(Evaluation, 1_000_000)[::-1]
        if not rows or rows[-1]["steps_learned"] != config.steps_learned(config.updates_due(config.max_steps)):
            raise RuntimeError(f"the last version was not evaluated:\n{learner.last_lines()}\n{evaluator.last_lines()}")
    return Curve(
        seed, hindsight, round(wall_s, 1), [row["steps_learned"] for row in rows],
        [round(row["time_s"] - began, 1) for row in rows], [row["success_rate"] for row in rows],
    )  # fmt: skip


def check(children: Children, learner: Child, evaluator: Child) -> None:
    """Raises RuntimeError if a process failed. That learner and evaluator end with status 1 is none: nothing solves a run."""
    failed = children.failed()
    at_its_end = "ended without a solution" in learner.last_lines()
    if failed is not None and not (at_its_end and failed in (learner, evaluator)):
        raise RuntimeError(f"{failed.name} ended with status {failed.process.poll()}:\n{failed.last_lines()}")


def show(progress: Progress, task: int, metrics: Metrics) -> None:
    for row in metrics.last(Evaluation, 1):
        progress.update(task, completed=row["steps_learned"], success=f"{row['success_rate']:6.1%} success")


def plot(curves: list[Curve], bits: int, path: Path) -> None:
    """Draws the success rate over stored steps, a line for each run."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for curve in curves:
        colour, label = ("C0", "with HER (future, ratio 0.8)") if curve.hindsight else ("C3", "without HER")
        first = next(other for other in curves if other.hindsight == curve.hindsight)
        axes.plot(curve.steps, curve.success, colour, alpha=0.8, linewidth=1.5, label=label if curve is first else None)
    axes.axhline(WITH, color="0.6", linestyle=":", linewidth=1)
    axes.axhline(WITHOUT, color="0.6", linestyle=":", linewidth=1)
    axes.set(
        xlabel="stored steps", ylabel=f"success rate of {EPISODES} greedy episodes", ylim=(-0.02, 1.02), xlim=(0, None),
        title=f"BitFlip with {bits} bits through the service, {len({curve.seed for curve in curves})} seeds each",
    )  # fmt: skip
    axes.legend(loc="center right", frameon=False)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def table(curves: list[Curve]) -> RichTable:
    shown = RichTable("seed", "hindsight", "last success", "best success", f"steps to {WITH:.0%}", "seconds to it", "run, s")
    for curve in curves:
        first = curve.first()
        reached = ("-", "-") if first is None else (f"{curve.steps[first]:,}", f"{curve.time_s[first]:.1f}")
        rates = f"{curve.success[-1]:.1%}", f"{max(curve.success):.1%}"
        shown.add_row(str(curve.seed), "yes" if curve.hindsight else "no", *rates, *reached, f"{curve.wall_s:.1f}")
    return shown


def main(bits: int, seeds: list[int], out: Path) -> int:
    curves = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[success]}")
    console = Console()
    with tempfile.TemporaryDirectory() as scratch, Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        for seed in seeds:
            for hindsight in (True, False):
                curves.append(run(Path(scratch) / f"{seed}-{hindsight}", bits, seed, hindsight, progress))
    out.mkdir(parents=True, exist_ok=True)
    (out / "bitflip.json").write_text(json.dumps({"bits": bits, "runs": [asdict(curve) for curve in curves]}) + "\n")
    plot(curves, bits, out / "bitflip.png")
    console.print(table(curves))
    console.print(f"written: {out / 'bitflip.json'}, {out / 'bitflip.png'}", soft_wrap=True)
    held = all(c.success[-1] >= WITH if c.hindsight else max(c.success) < WITHOUT for c in curves)
    console.print("held" if held else "NOT held", f": with hindsight at least {WITH:.0%}, without it below {WITHOUT:.0%}")
    return 0 if held else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, default=15)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "plots")
    options = parser.parse_args()
    sys.exit(main(options.bits, options.seeds, options.out))
