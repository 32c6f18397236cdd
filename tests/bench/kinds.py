"""Time of a batch of each kind of window and sampler, embedded and warm: the cost of an item must fall with the batch.

Items are small on purpose, a few KB at most: of larger ones a big batch outgrows the processor's caches, and its items cost
what copying them from memory costs, however many there are. Times are the least of many, since other work disturbs only upward.

python tests/bench/kinds.py [--steps 200000] [--seconds 0.5]
"""

import argparse
import tempfile
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import replaysvc
from replaysvc import (
    Episodes,
    EpisodeUniform,
    FieldSpec,
    Fifo,
    Her,
    Lifo,
    Prioritized,
    Recency,
    Sequences,
    Signature,
    TableConfig,
    Transitions,
    Uniform,
)

EPISODE = 250
SHORT = 8  # steps of the episodes that are sampled whole
BATCHES = (32, 256, 2048)
SIGNATURE = Signature(
    {
        "observation": FieldSpec("observation", (17,), np.float32),
        "achieved_goal": FieldSpec("achieved_goal", (3,), np.float32),
        "desired_goal": FieldSpec("desired_goal", (3,), np.float32),
    },
    FieldSpec("action", (6,), np.float32),
    carry=FieldSpec("carry", (16,), np.float32),
)
SAMPLERS = {
    "uniform": Uniform(), "prioritized": Prioritized(), "recency": Recency(), "episode_uniform": EpisodeUniform(),
    "fifo": Fifo(max_times_sampled=1 << 30), "lifo": Lifo(max_times_sampled=1 << 30),
}  # fmt: skip
SEQUENCE = Sequences(length=8, burn_in=2, period=4, state=("carry",))
KINDS = {
    "transitions": (Transitions(), "uniform"),
    "3-step": (Transitions(n_step=3), "uniform"),
    "4 frames": (Transitions(stack=4), "uniform"),
    "hindsight": (Transitions(her=Her()), "uniform"),
    "3-step, 4 frames, hindsight": (Transitions(n_step=3, stack=4, her=Her()), "prioritized"),
    "sequences of 8": (SEQUENCE, "uniform"),
    "sequences of 8, prioritized": (SEQUENCE, "prioritized"),
    "sequences of 8, 4 frames": (Sequences(length=8, period=4, stack=4), "uniform"),
    "sequences of 8, hindsight": (Sequences(length=8, period=4, her=Her()), "uniform"),
    f"episodes of {SHORT}": (Episodes(max_steps=SHORT), "uniform"),
} | {name: (Transitions(), name) for name in SAMPLERS if name != "uniform"}


def fill(table: Any, steps: int, length: int) -> None:
    """Writes episodes of random walks, `length` steps each."""
    rng = np.random.default_rng(0)
    action, extras = np.zeros(6, np.float32), {"carry": np.zeros(16, np.float32)}
    with table.writer() as writer:
        for _ in track(range(steps // length), "writing", transient=True):
            walk = rng.standard_normal((length + 1, 17), np.float32).cumsum(axis=0)
            seen = [{"observation": row, "achieved_goal": row[:3], "desired_goal": walk[-1, :3]} for row in walk]
            writer.begin(seen[0])
            for t in range(length):
                writer.append(action, -1.0, seen[t + 1], truncated=t == length - 1, extras=extras)


def measure(table: Any, kind: str, batch_size: int, seconds: float) -> float:
    """Returns the least seconds that a batch took."""
    what, sampler = KINDS[kind]
    table.sample(batch_size, what, sampler=sampler)  # makes the set of items
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 10:
        start = time.perf_counter()
        table.sample(batch_size, what, sampler=sampler)
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    """Prints the table; exits with 1 if the cost of an item of some kind does not fall with the batch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    shown = Table("kind", *(f"{size}: ms" for size in BATCHES), *(f"{size}: us an item" for size in BATCHES))
    rising = []
    with tempfile.TemporaryDirectory() as folder, replaysvc.open(f"{folder}/store") as replay:
        table = replay.create_table("t", SIGNATURE, TableConfig(samplers=SAMPLERS))
        fill(table, options.steps, EPISODE)
        short = replay.create_table("short", SIGNATURE)
        fill(short, options.steps // 10, SHORT)
        for kind in track(KINDS, "measuring", transient=True):
            found = [measure(short if "episodes" in kind else table, kind, size, options.seconds) for size in BATCHES]
            each = [1e6 * seconds / size for seconds, size in zip(found, BATCHES, strict=True)]
            shown.add_row(kind, *(f"{1e3 * seconds:.2f}" for seconds in found), *(f"{cost:.1f}" for cost in each))
            if not each[0] > each[1] > each[2]:
                rising.append(kind)
    Console(width=140).print(shown)
    if rising:
        raise SystemExit(f"the cost of an item does not fall with the batch: {', '.join(rising)}")


if __name__ == "__main__":
    main()
