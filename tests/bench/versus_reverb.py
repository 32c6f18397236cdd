"""replaysvc beside DeepMind Reverb 0.14.0: insert and uniform sampling, on the same rollouts, in turn, in one run.

    python tests/bench/versus_reverb.py [--rounds 3] [--reverb-python PATH]

Both: one server process, one client process, on loopback. Insert: one HalfCheetah step at a time from one actor; ours ends
when all is durable on disk, Reverb's when all is in its RAM. Sample: 256 uniform transitions; ours with eight requests
under way and one by one, Reverb's through TrajectoryDataset with four workers. Prints a JSON line a measurement, then
medians and ratios.
Reverb gets an environment of its own, made here unless one is given; only ratios from one run mean anything.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import tempfile
import time
import venv
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

import replay_client
from replay_client import FieldSpec, Signature
from tests.bench.rollouts import make
from tests.processes import ServiceProcess

SIGNATURE = Signature(FieldSpec("observation", (17,), np.dtype(np.float32)), FieldSpec("action", (6,), np.dtype(np.float32)))
PEER = Path(__file__).parent / "peers" / "reverb_peer.py"


def reverb_python(given: str | None) -> str | None:
    """Returns a Python that has Reverb, or None and a line that says why there is none."""
    if given:
        return given
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "replaysvc-bench" / "reverb"
    python = home / "bin" / "python"
    if not (home / ".installed").exists():
        print(f"installing dm-reverb 0.14.0 into {home} (large: it brings TensorFlow)", flush=True)
        venv.create(home, with_pip=True)
        done = subprocess.run(
            [python, "-m", "pip", "install", "-q", "dm-reverb[tensorflow]==0.14.0"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(f"Reverb cannot be installed here, measuring ours alone: {done.stderr.strip().splitlines()[-1]}", flush=True)
            return None
        (home / ".installed").touch()
    return str(python)


class Reverb:
    """The peer's process, asked over its standard input."""

    def __init__(self, python: str, file: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.process = subprocess.Popen(
            [python, str(PEER), str(port), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answer()

    def ask(self, command: str) -> float:
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return float(next(iter(self._answer().values())))

    def _answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the Reverb process ended; run reverb_peer.py by hand to see why")
        return json.loads(line)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)


def insert(table, data) -> float:
    row = begin = 0
    started = time.perf_counter()
    with table.writer() as writer:
        for length in data["lengths"]:
            observations, actions, rewards = data["observations"][row:], data["actions"][begin:], data["rewards"][begin:]
            writer.begin(observations[0])
            for t in range(length):
                writer.append(actions[t], rewards[t], observations[t + 1], truncated=bool(t == length - 1))
            row, begin = row + length + 1, begin + length
    return begin / (time.perf_counter() - started)


def sample(batches, count: int = 400) -> float:
    for _ in range(10):
        next(batches)
    started = time.perf_counter()
    for _ in range(count):
        next(batches)
    return count * 256 / (time.perf_counter() - started)


def main(rounds: int, given: str | None) -> None:
    found: dict[str, list[float]] = {}

    def note(peer: str, metric: str, value: float, unit: str) -> None:
        print(
            json.dumps({"peer": peer, "workload": "HalfCheetah-v5", "metric": metric, "value": round(value, 1), "unit": unit}),
            flush=True,
        )
        found.setdefault(f"{peer}: {metric}", []).append(value)

    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "cheetah.npz"
        make(file)
        data = dict(np.load(file))
        python = reverb_python(given)
        reverb = Reverb(python, file) if python else None
        with ServiceProcess(Path(scratch) / "store") as service, replay_client.connect(service.address) as client:
            for number in range(rounds):
                table = client.create_table(f"t{number}", SIGNATURE)
                note("replaysvc", "insert", insert(table, data), "steps/s")
                if reverb:
                    note("reverb", "insert", reverb.ask("insert"), "steps/s")
                stream = table.stream(256, prefetch=8)
                note("replaysvc", "uniform 256", sample(stream), "transitions/s")
                stream.close()
                if reverb:
                    note("reverb", "uniform 256", reverb.ask("sample"), "transitions/s")
                note("replaysvc", "uniform 256, one by one", sample(iter(lambda t=table: t.sample(256), None)), "transitions/s")
        if reverb:
            reverb.close()
    grid = RichTable("workload", "replaysvc", "Reverb", "ratio")
    for metric in ("insert", "uniform 256", "uniform 256, one by one"):
        ours = statistics.median(found[f"replaysvc: {metric}"])
        other = found.get(f"reverb: {metric.partition(',')[0]}")
        theirs = statistics.median(other) if other else None
        grid.add_row(metric, f"{ours:,.0f}", f"{theirs:,.0f}" if theirs else "-", f"{ours / theirs:.1f}x" if theirs else "-")
    Console().print(grid)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reverb-python")
    options = parser.parse_args()
    main(options.rounds, options.reverb_python)
