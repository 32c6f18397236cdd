"""Do learners learn as well from float16 observations as from float32 ones? CartPole and HalfCheetah, five seeds each.

    python -m tests.bench.precision [--seeds 1 2 3 4 5] [--out tests/bench/plots]

The runs of a pair differ in nothing but the precision that the table keeps observations in. Written: `precision.json`, every
evaluation of every run, and `precision.png`. The exit status is 0 if, for each task, the mean return over the last third of the
evaluations differs between the precisions by no more than twice the standard error that the scatter of seeds gives it.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import matplotlib
import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as RichTable

import replaysvc
from replaysvc import FieldSpec, Precision, Signature
from tests.bench.agents import Curve, learn_cartpole, learn_cheetah

PRECISIONS = {"float16": Precision.FLOAT16, "float32": Precision.LOSSLESS}


@dataclass(frozen=True, slots=True)
class Task:
    """What is learnt, how long, and how often it is looked at, in environment steps."""

    learn: object
    shape: tuple[int, ...]
    action: FieldSpec
    steps: int
    every: int


TASKS = {
    "CartPole-v1": Task(learn_cartpole, (4,), FieldSpec("action", (), np.int64), 24_000, 1_000),
    "HalfCheetah-v5": Task(learn_cheetah, (17,), FieldSpec("action", (6,), np.float32), 10_000, 1_000),
}


def run(name: str, precision: str, seed: int) -> Curve:
    """Learns once."""
    torch.set_num_threads(1)
    task = TASKS[name]
    observation = FieldSpec("observation", task.shape, np.float32, precision=PRECISIONS[precision])
    with tempfile.TemporaryDirectory() as scratch, replaysvc.open(Path(scratch) / "store") as replay:
        table = replay.create_table("t", Signature(observation, task.action))
        return task.learn(table, seed, task.steps, task.every, lambda step: None)  # type: ignore[operator]


def late(curve: Curve) -> float:
    """Returns the mean return over the last third of the evaluations."""
    return statistics.fmean(value for _, value in curve[-(len(curve) // 3) :])


def verdict(found: dict[str, list[Curve]]) -> tuple[float, float, float, float]:
    """Returns the two means, their difference, and twice its standard error."""
    ends = {precision: [late(curve) for curve in curves] for precision, curves in found.items()}
    means = {precision: statistics.fmean(values) for precision, values in ends.items()}
    error = math.sqrt(sum(statistics.variance(values) / len(values) for values in ends.values()))
    return means["float16"], means["float32"], means["float16"] - means["float32"], 2 * error


def plot(curves: dict[str, dict[str, list[Curve]]], path: Path) -> None:
    """Draws each seed thin and the mean thick, a panel a task."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(curves), figsize=(5.5 * len(curves), 3.6), layout="constrained")
    for axes, (name, found) in zip(np.atleast_1d(panels), curves.items(), strict=True):
        for (precision, runs), colour in zip(found.items(), ("C0", "C1"), strict=True):
            for curve in runs:
                axes.plot(*zip(*curve, strict=True), colour, alpha=0.25, linewidth=0.8)
            steps = [step for step, _ in runs[0]]
            mean = np.mean([[value for _, value in curve] for curve in runs], axis=0)
            axes.plot(steps, mean, colour, linewidth=2.2, label=f"{precision}, mean of {len(runs)} seeds")
        axes.set(title=name, xlabel="environment steps", ylabel="return of greedy episodes", xlim=(0, None))
        axes.legend(frameon=False, loc="upper left")
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def main(seeds: list[int], out: Path, workers: int) -> int:
    jobs = [(name, precision, seed) for name in TASKS for seed in seeds for precision in PRECISIONS]
    curves: dict[str, dict[str, list[Curve]]] = {name: {precision: [] for precision in PRECISIONS} for name in TASKS}
    with Progress() as progress, ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        shown = progress.add_task("learning", total=len(jobs))
        for (name, precision, _), curve in zip(jobs, pool.map(run, *zip(*jobs, strict=True)), strict=True):
            curves[name][precision].append(curve)
            progress.advance(shown)
    out.mkdir(parents=True, exist_ok=True)
    (out / "precision.json").write_text(json.dumps({"seeds": seeds, "curves": curves}) + "\n")
    plot(curves, out / "precision.png")
    shown_table, held = RichTable("task", "float16", "float32", "difference", "twice its standard error"), True
    for name, found in curves.items():
        *values, bound = verdict(found)
        shown_table.add_row(name, *(f"{value:,.1f}" for value in values), f"{bound:,.1f}")
        held &= abs(values[-1]) <= bound
    console = Console()
    console.print(shown_table)
    console.print("within the noise of seeds" if held else "NOT within the noise of seeds")
    return 0 if held else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "plots")
    parser.add_argument("--workers", type=int, default=2, help="processes at once")
    options = parser.parse_args()
    sys.exit(main(options.seeds, options.out, options.workers))
