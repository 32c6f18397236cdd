"""How the service's costs grow with what it holds: 10^5 to 10^8 steps, and episodes of 10^2 to 10^6 steps.

    python tests/bench/growth.py [--largest 100000000] [--seconds 3] [--out tests/bench/plots]

Measured of each size, in a process of its own: what a batch of 256 uniform and 256 prioritized transitions takes, the insert
rate of one writer, one step at a time, and the memory beside the cache, which holds everything: so every size has the same
share of hits, all of them. Then the store is closed, and a service is started on it, as long as that takes.

Rows are tiny (4 bytes, an action, a reward) and synthetic, and all chunks but the writer's hold the same values under headers
of their own: so 10^8 steps are written in minutes and take some hundred MiB of disk.
"""

import argparse
import json
import multiprocessing
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import replaysvc
from replaysvc import FieldSpec, Signature, StoreConfig
from replaysvc.codec import ChunkInfo
from replaysvc.codec.encoder import ChunkEncoder
from replaysvc.codec.header import read_header, write_chunk
from tests.bench import plots
from tests.bench.peers.asked import BATCH, memory_bytes, rate
from tests.processes import ServiceProcess

MiB = 1 << 20
SIGNATURE = Signature(FieldSpec("observation", (4,), np.dtype(np.uint8)), FieldSpec("action", (), np.dtype(np.uint8)))
EPISODE = 1000  # steps, where their number is what grows
CHUNK = 1000  # steps of a chunk at most
SIZES = (10**5, 10**6, 10**7, 10**8)
LENGTHS = (10**2, 10**3, 10**4, 10**5, 10**6)
LENGTHS_STEPS = 10**6  # stored, where the length of episodes is what grows
CACHED_STEP_BYTES = 24  # more than a step takes decoded, with the ring's gaps
WANTED = {
    "sample_ms": "ms, 256 uniform", "prioritized_ms": "ms, 256 prioritized", "insert": "insert, steps/s",
    "memory_mib": "MiB beside the cache", "start_s": "s to start a service",
}  # fmt: skip


def fill(replay: Any, name: str, steps: int, length: int) -> None:
    """Writes `steps` steps in episodes of `length`, chunk after chunk, and waits until they are durable."""
    sink = replay.make_sink(replay.engine(name), "filler", None)
    size = min(length, CHUNK)
    rng = np.random.default_rng(0)
    columns = [
        np.cumsum(rng.integers(0, 2, (size + 1, 4)), axis=0).astype(np.uint8), rng.integers(0, 4, size).astype(np.uint8),
        np.ones(size, np.float32),
    ]  # fmt: skip
    info = ChunkInfo(
        signature_hash=SIGNATURE.hash, episode_key=0, first_step=0, n_steps=size, terminated=False, truncated=False,
        policy_version=-1, reward_sum=float(size), metadata=b"{}",
    )  # fmt: skip
    chunk = ChunkEncoder(SIGNATURE).encode(info, columns)
    payloads = [(p.stages, p.raw, chunk[p.start : p.start + p.stored]) for p in read_header(chunk, SIGNATURE).payloads]
    for _ in range(0, steps, length):
        key = sink.next_episode_key()
        for first in range(0, length, size):
            last = first + size == length
            changed = replace(info, episode_key=key, first_step=first, truncated=last, metadata=b"" if first else b"{}")
            sink.put(write_chunk(changed, payloads), wait=True)
    sink.flush(600.0)


def insert_rate(table: Any, seconds: float) -> float:
    """Returns the steps a second of one writer, until all are durable."""
    observation, steps, began = np.zeros(4, np.uint8), 0, time.perf_counter()
    with table.writer() as writer:
        while time.perf_counter() - began < seconds:
            writer.begin(observation)
            for t in range(EPISODE):
                writer.append(1, 1.0, observation, truncated=t == EPISODE - 1)
            steps += EPISODE
    return steps / (time.perf_counter() - began)


def hold(path: str, steps: int, length: int, seconds: float, pipe: Any) -> None:
    """The process that holds the steps: measures all but the start of a service."""
    before = memory_bytes()
    cache = max(64 * MiB, CACHED_STEP_BYTES * steps)
    with replaysvc.open(path, StoreConfig(recent_cache_bytes=cache, faulted_cache_bytes=MiB)) as replay:
        table = replay.create_table("t", SIGNATURE)
        began = time.perf_counter()
        fill(replay, "t", steps, length)
        filled_s = time.perf_counter() - began
        uniform = rate(lambda: table.sample(BATCH), BATCH, seconds)
        prioritized = rate(lambda: table.sample(BATCH, sampler="prioritized"), BATCH, seconds)
        stats = table.stats()
        memory = memory_bytes() - before - stats.cache_bytes
        found = {
            "sample_ms": uniform["p50_ms"], "sample_p99_ms": uniform["p99_ms"], "prioritized_ms": prioritized["p50_ms"],
            "memory_mib": memory / MiB, "cache_mib": stats.cache_bytes / MiB, "chunks": stats.chunks, "filled_s": filled_s,
            "hits": stats.cache_hits_total / max(1, stats.sampled_items_total), "disk_mib": stats.disk_bytes / MiB,
        }  # fmt: skip
        pipe.send(found | {"insert": insert_rate(table, seconds)})


def measure(steps: int, length: int, seconds: float, scratch: Path) -> dict[str, Any]:
    """Returns what is found of a store of `steps` steps in episodes of `length`."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    path = scratch / f"{steps}-{length}"
    holder = context.Process(target=hold, args=(str(path), steps, length, seconds, there))
    holder.start()
    there.close()
    found: dict[str, Any] = here.recv()
    holder.join()
    began = time.perf_counter()
    with ServiceProcess(path):
        found["start_s"] = time.perf_counter() - began
    shutil.rmtree(path)
    return {"steps": steps, "episode_steps": length} | found


def exponent(rows: list[dict[str, Any]], by: str, what: str) -> float:
    """Returns the slope in the logarithms of both: 0 does not grow, 1 grows in proportion."""
    return float(np.polyfit(np.log([row[by] for row in rows]), np.log([max(row[what], 1e-6) for row in rows]), 1)[0])


def plot(curves: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draws a panel for each cost, a row for each thing that grows."""
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, len(WANTED), figsize=(2.6 * len(WANTED), 5), layout="constrained")
    words = {"steps": "stored steps", "episode_steps": f"steps of an episode, {LENGTHS_STEPS:,} stored"}
    for line, (by, rows) in zip(grid, curves.items(), strict=True):
        for axes, (what, unit) in zip(line, WANTED.items(), strict=True):
            values = [max(row[what], 1e-6) for row in rows]
            axes.loglog([row[by] for row in rows], values, color=plots.BLUE, marker="o", markersize=4)
            axes.set_ylim(min(values) / 4, max(values) * 4)
            for row, value in zip(rows, values, strict=True):
                axes.annotate(
                    plots.number(value), (row[by], value), (0, 6), textcoords="offset points", fontsize=7, ha="center"
                )
            axes.set_title(f"{unit}: n^{exponent(rows, by, what):.2f}", fontsize=9, loc="left")
            axes.set_xlabel(words[by], fontsize=8)
            axes.tick_params(labelsize=7)
            axes.minorticks_off()
            plots.plain(axes)
    plots.save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "plots")
    options = parser.parse_args()
    sizes = [(steps, EPISODE) for steps in SIZES if steps <= options.largest]
    lengths = [(min(LENGTHS_STEPS, options.largest), length) for length in LENGTHS if length <= options.largest]
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for steps, length in track(sizes + lengths, "filling and measuring", transient=True, console=Console(stderr=True)):
            rows.append(measure(steps, length, options.seconds, Path(scratch)))
            print(json.dumps(rows[-1]), flush=True)
    curves = {"steps": rows[: len(sizes)], "episode_steps": rows[len(sizes) :]}
    grid = Table("steps", "steps an episode", *WANTED.values())
    for row in rows:
        grid.add_row(f"{row['steps']:,}", f"{row['episode_steps']:,}", *(f"{row[what]:,.3g}" for what in WANTED))
    for by, found in curves.items():
        grid.add_section()
        grid.add_row(f"grows with {by} as n^", "", *(f"{exponent(found, by, what):.2f}" for what in WANTED))
    Console(width=140).print(grid)
    first, last = curves["steps"][0], curves["steps"][-1]
    grown = last["sample_ms"] / first["sample_ms"]
    print(f"{last['steps']:,} steps: a batch takes {grown:.2f}x as long as of {first['steps']:,} (wanted: at most 2x), "
          f"a start {last['start_s']:.1f} s (at most 10)")  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "growth.json").write_text(json.dumps(rows) + "\n")
    plot(curves, options.out / "growth.png")


if __name__ == "__main__":
    main()
