"""How long a learner waits for its next batch, with 0, 2 and 4 requests under way.

    python tests/bench/waits.py [--seconds 5] [--step-ms 5] [--out tests/bench/plots]

The learner is a loop of `batch.torch()` and a torch step of fixed work (a product of matrices, again and again, sized at the
start to take `--step-ms`), one thread; the service is another process. With 0, each batch is asked for when it is needed.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import replay_client
from replaysvc import Sequences, Transitions
from tests.bench import plots, rollouts
from tests.bench.crowd import write_episodes
from tests.bench.peers.asked import BATCH, FRAMES, LENGTH, PERIOD, SEQUENCES, load
from tests.bench.stores import IMAGES, STATES, Listed
from tests.processes import ServiceProcess

PREFETCH = (0, 2, 4)


def work_of(milliseconds: float) -> Callable[[], None]:
    """Returns a step that takes about so long by itself."""
    torch.set_num_threads(1)
    left, right = torch.rand(256, 256), torch.rand(256, 256)

    def best(times: int) -> float:
        found = []
        for _ in range(20):
            began = time.perf_counter()
            for _ in range(times):
                left @ right
            found.append(time.perf_counter() - began)
        return min(found)

    times = max(1, round(milliseconds / 1e3 / (best(10) / 10)))

    def step() -> None:
        for _ in range(times):
            left @ right

    return step


def learn(batches: Iterator[Any], step: Callable[[], None], seconds: float) -> dict[str, float]:
    """Returns what a step's batch and its work took, in ms."""
    waits, works = [], []
    for _ in range(5):
        next(batches).torch()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(waits) < 20:
        began = time.perf_counter()
        batch = next(batches).torch()
        there = time.perf_counter()
        step()
        works.append(time.perf_counter() - there)
        waits.append(there - began)
        del batch
    share = sum(waits) / (sum(waits) + sum(works))
    quantiles = 1e3 * np.quantile(waits, (0.5, 0.99))
    return {"wait_p50_ms": quantiles[0], "wait_p99_ms": quantiles[1], "work_ms": 1e3 * float(np.median(works)), "share": share}


def one_by_one(table: Any, batch: int, what: Any) -> Iterator[Any]:
    while True:
        yield table.sample(batch, what)


def measure(folder: Path, seconds: float, step_ms: float, episodes: int, frames: int) -> list[dict[str, Any]]:
    rollouts.make(folder / "rollouts", episodes, frames)
    states, images = load(str(folder / "rollouts"))
    step, rows = work_of(step_ms), []
    with ServiceProcess(folder / "store") as service, replay_client.connect(service.address) as client:
        tables = {name: client.create_table(name, signature) for name, signature in (("states", STATES), ("images", IMAGES))}
        for name, found in (("states", states), ("images", images)):
            write_episodes(tables[name], Listed(found.episodes), float("inf"))
        kinds = {
            "HalfCheetah, 256": ("states", BATCH, Transitions()),
            "sequences, 32 x 80": ("states", SEQUENCES, Sequences(length=LENGTH, period=PERIOD)),
            "MsPacman, 32 x 4 frames": ("images", 32, Transitions(stack=FRAMES)),
            "MsPacman, 256 x 4 frames": ("images", BATCH, Transitions(stack=FRAMES)),
        }
        for words, (name, size, what) in kinds.items():
            for prefetch in PREFETCH:
                table = tables[name]
                batches = table.stream(size, what, prefetch=prefetch) if prefetch else one_by_one(table, size, what)
                rows.append({"batch": words, "prefetch": prefetch} | learn(batches, step, seconds))
                batches.close()
                print(json.dumps(rows[-1]), flush=True)
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draws the share of its time that the learner waits, a bar for each number of requests under way."""
    from matplotlib import pyplot

    names = list(dict.fromkeys(row["batch"] for row in rows))
    colours = dict(zip(PREFETCH, (plots.GREY, plots.LIGHT, plots.BLUE), strict=True))
    figure, axes = pyplot.subplots(figsize=(7, 0.75 * len(names) + 0.8), layout="constrained")
    for row in rows:
        y = len(names) - 1 - names.index(row["batch"]) + 0.27 * (1 - PREFETCH.index(row["prefetch"]))
        axes.barh(y, row["share"], 0.25, color=colours[row["prefetch"]])
        text = f"{row['share']:.0%}, {row['prefetch']} under way, {row['wait_p50_ms']:.2f} ms"
        axes.annotate(text, (row["share"], y), (4, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_yticks(range(len(names)), names[::-1], fontsize=8)
    axes.set(xlim=(0, 1.3), xticks=[])
    axes.spines["bottom"].set_visible(False)
    work = float(np.median([row["work_ms"] for row in rows]))
    axes.set_title(f"share of its time that a learner waits for batches; its step takes {work:.1f} ms", fontsize=9, loc="left")
    plots.plain(axes)
    plots.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--frames", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "plots")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = measure(Path(scratch), options.seconds, options.step_ms, options.episodes, options.frames)
    grid = Table("batch", "under way", "wait p50 ms", "wait p99 ms", "work ms", "waits, share of the time")
    for row in rows:
        numbers = (f"{row[name]:.2f}" for name in ("wait_p50_ms", "wait_p99_ms", "work_ms"))
        grid.add_row(row["batch"], str(row["prefetch"]), *numbers, f"{row['share']:.1%}")
    Console(width=120).print(grid)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "waits.json").write_text(json.dumps(rows) + "\n")
    plot(rows, options.out / "waits.png")


if __name__ == "__main__":
    main()
