"""What the dashboard shows in its tests: a running demo on CartPole, and Atari frames beside it."""

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np

import replay_client
from replay_client import FieldSpec, Signature, TableConfig

_RUN = """
import sys
from pathlib import Path
from replaysvc.demo import run_demo
sys.exit(run_demo(directory=Path(sys.argv[1]), sampler="prioritized", solved_return=1e9, max_steps=10**9, time_limit_s=1200))
"""
"""The demo, of a task that is never solved: it runs until it is interrupted."""

_START_S = 120.0


@dataclass(frozen=True, slots=True)
class Demo:
    """A running demo. address: of its service; page: of its dashboard."""

    address: str
    page: str
    directory: Path


@contextlib.contextmanager
def running_demo(directory: Path) -> Iterator[Demo]:
    """Runs the demo's service, actors, learner and evaluator in `directory` meanwhile."""
    printed = directory.parent / "demo.txt"
    with printed.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", _RUN, str(directory)],
            stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        service = _awaited(process, printed, r"service at ([^\s,]+)")
        yield Demo(service, _awaited(process, printed, r"dashboard (?:on|at) (http://[^\s,]+)"), directory)
        assert process.poll() is None, f"the demo ended: {printed.read_text()}"
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()
        process.wait()


def _awaited(process: "subprocess.Popen[bytes]", printed: Path, pattern: str) -> str:
    deadline = time.monotonic() + _START_S
    while (found := re.search(pattern, printed.read_text())) is None:
        assert process.poll() is None, f"the demo ended: {printed.read_text()}"
        assert time.monotonic() < deadline, f"not printed: {pattern}; but {printed.read_text()}"
        time.sleep(0.1)
    return found[1]


ATARI = Signature(FieldSpec("observation", (210, 160, 3), np.uint8), FieldSpec("action", (), np.int64))


def write_atari(address: str, table: str = "breakout", episodes: int = 3, steps: int = 240, actor: str = "atari-0") -> None:
    """Writes rollouts of Breakout in colour, under random play."""
    gymnasium.register_envs(ale_py)
    env, rng = gymnasium.make("ALE/Breakout-v5", frameskip=4), np.random.default_rng(7)
    with replay_client.connect(address) as replay:
        stored = replay.create_table(table, ATARI, TableConfig(capacity_steps=100_000), exist_ok=True)
        with stored.writer(actor=actor) as writer:
            for seed in range(episodes):
                observation, _ = env.reset(seed=seed)
                writer.begin(observation, metadata={"seed": seed, "game": "Breakout"})
                for t in range(steps):
                    action: Any = int(rng.integers(4))
                    observation, reward, terminated, truncated, _ = env.step(action)
                    truncated = truncated or (t == steps - 1 and not terminated)
                    writer.append(action, float(reward), observation, terminated=terminated, truncated=truncated)
                    if terminated or truncated:
                        break
    env.close()
