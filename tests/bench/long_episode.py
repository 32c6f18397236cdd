"""One episode of 1,000,000 steps, written while it is sampled, beside 1,000 episodes of 1,000 steps.

    python tests/bench/long_episode.py [--steps 1000000]

A service in a process of its own; a writer process that appends HalfCheetah-shaped rows one step at a time; this process
samples 256 uniform transitions now and then. At 10^4, 10^5 and 10^6 steps the writer pauses, and this
process measures: resident memory of writer and server (anonymous pages: file pages are the kernel's cache of the store),
the append rate since the last mark, and the sample rate. One JSON object a line, then a table.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

import replay_client
from replay_client import FieldSpec, Signature, TableConfig
from tests.processes import ServiceProcess

SIGNATURE = Signature(FieldSpec("observation", (17,), np.dtype(np.float32)), FieldSpec("action", (6,), np.dtype(np.float32)))
MARKS = (10_000, 100_000, 1_000_000)
BLOCK = 10_000  # rows made at a time, so that making them costs the writer nothing to speak of


def anonymous_mib(pid: int | str) -> float:
    """Returns the resident anonymous memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} tells no RssAnon")


def rows(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns BLOCK observations and actions that move as a running robot's do."""
    t = np.arange(BLOCK)[:, None]
    speed, phase = rng.uniform(0.05, 0.4, 17), rng.uniform(0, 6.28, 17)
    observations = np.sin(speed * t + phase) + 0.05 * rng.standard_normal((BLOCK, 17))
    actions = np.clip(0.8 * np.sin(speed[:6] * t + phase[:6]) + 0.2 * rng.standard_normal((BLOCK, 6)), -1, 1)
    return observations.astype(np.float32), actions.astype(np.float32)


def write(address: str, name: str, marks: tuple[int, ...], episode_steps: int, pipe) -> None:
    """The writer process: appends up to each mark, flushes, tells its memory and rate, and waits to go on."""
    rng = np.random.default_rng(0)
    with replay_client.connect(address) as client, client.table(name).writer(actor="long") as writer:
        observations, actions = rows(rng)
        writer.begin(observations[0])
        done, since, begun = 0, time.perf_counter(), 0
        while done < marks[-1]:
            i = done % BLOCK
            last = (done + 1) % episode_steps == 0
            writer.append(actions[i], 0.5, observations[(i + 1) % BLOCK], truncated=last)
            done += 1
            if last and done < marks[-1]:
                writer.begin(observations[(i + 1) % BLOCK])
            if done in marks:
                writer.flush(120)
                rate = (done - begun) / (time.perf_counter() - since)
                pipe.send((done, anonymous_mib("self"), rate))
                pipe.recv()
                since, begun = time.perf_counter(), done


def sample_rate(table, batches: int) -> float:
    """Returns uniform transitions a second, eight requests under way."""
    stream = table.stream(256, prefetch=8)
    for _ in range(20):
        next(stream)
    begin = time.perf_counter()
    for _ in range(batches):
        next(stream)
    rate = batches * 256 / (time.perf_counter() - begin)
    stream.close()
    return rate


def measure(service: ServiceProcess, client, name: str, marks: tuple[int, ...], episode_steps: int) -> list[dict]:
    table = client.create_table(name, SIGNATURE, TableConfig())
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    writer = context.Process(target=write, args=(service.address, name, marks, episode_steps, there))
    writer.start()
    found = []
    for _ in marks:
        drawn = 0
        while not here.poll(0.01):  # sampled while it is written, some twenty times a second
            if table.stats().ready:
                table.sample(256)
                drawn += 1
                here.poll(0.04)
        steps, writer_mib, append_rate = here.recv()
        stats = table.stats()
        row = {
            "table": name,
            "episode_steps": episode_steps,
            "steps": steps,
            "append_steps_s": round(append_rate),
            "sampled_meanwhile": drawn,
            "sample_transitions_s": round(sample_rate(table, 400)),
            "writer_anonymous_mib": round(writer_mib, 1),
            "server_anonymous_mib": round(anonymous_mib(service.pid), 1),
            "cache_mib": round(stats.cache_bytes / 2**20, 1),
            "chunks": stats.chunks,
            "disk_bytes_step": round(stats.disk_bytes / stats.steps, 1),
        }
        print(json.dumps(row), flush=True)
        found.append(row)
        here.send("go on")
    writer.join()
    return found


def main(steps: int) -> None:
    marks = (*(mark for mark in MARKS if mark < steps), steps)
    with tempfile.TemporaryDirectory() as scratch:
        options = ("--recent-cache-bytes", str(256 << 20), "--faulted-cache-bytes", str(64 << 20))
        found = []
        for name, length in (("one-episode", steps), ("thousand-step-episodes", 1000)):  # a service each: memory told apart
            with ServiceProcess(Path(scratch) / name, *options) as service, replay_client.connect(service.address) as client:
                found += measure(service, client, name, marks, length)
    table = RichTable(*found[0])
    for row in found:
        table.add_row(*(f"{value:,}" if isinstance(value, int | float) else value for value in row.values()))
    Console(width=200).print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    main(parser.parse_args().steps)
