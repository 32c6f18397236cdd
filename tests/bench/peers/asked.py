"""What every subject shares: how it is asked, how it times, how it reads the rollouts. Needs numpy alone.

A subject says {"workloads": [...]} when it is ready, then answers each {"workload", "seconds"} with the numbers it measured:
`value`, in the unit that the workload has for everybody, and what it can say besides, such as `p50_ms` of a call.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

BATCH = 256
SEQUENCES, LENGTH, PERIOD = 32, 80, 40
FRAMES = 4
REPEAT = 5  # times that the rollouts of states are stored, so that they do not fit into the processor's caches

Answer = dict[str, Any]
Workloads = Mapping[str, Callable[[float], Answer]]


class Episode(NamedTuple):
    """observations [T+1, ...], actions [T, ...], rewards [T]."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: bool


class Rows(NamedTuple):
    """The same steps as transitions, end to end; `episode` numbers the episodes."""

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_observation: np.ndarray
    terminated: np.ndarray
    episode: np.ndarray

    @property
    def raw_step_bytes(self) -> float:
        """Returns what s, a, r and s' of a step take as they are."""
        return sum(column.nbytes for column in self[:4]) / len(self.reward)


class Rollouts:
    """Episodes of one environment."""

    def __init__(self, file: Path) -> None:
        columns = dict(np.load(file))
        lengths = columns["lengths"].tolist()
        self.steps = sum(lengths)
        self.episodes: list[Episode] = []
        begin = 0
        for number, length in enumerate(lengths):
            row, stop = begin + number, begin + length
            observations = columns["observations"][row : row + length + 1]
            terminated = bool(columns["terminated"][number])
            self.episodes.append(
                Episode(observations, columns["actions"][begin:stop], columns["rewards"][begin:stop], terminated)
            )
            begin = stop

    def rows(self, repeat: int = 1) -> Rows:
        """Returns all transitions, `repeat` times over."""
        episodes = self.episodes * repeat
        ends = [np.arange(len(each.rewards)) == len(each.rewards) - 1 for each in episodes]
        return Rows(
            np.concatenate([each.observations[:-1] for each in episodes]), np.concatenate([each.actions for each in episodes]),
            np.concatenate([each.rewards for each in episodes]), np.concatenate([each.observations[1:] for each in episodes]),
            np.concatenate([end & each.terminated for end, each in zip(ends, episodes, strict=True)]),
            np.repeat(np.arange(len(episodes)), [len(each.rewards) for each in episodes]),
        )  # fmt: skip

    def endless(self) -> Iterator[Episode]:
        """Yields the episodes again and again."""
        return itertools.cycle(self.episodes)


def load(folder: str) -> tuple[Rollouts, Rollouts]:
    """Returns the rollouts of states and those of images."""
    return Rollouts(Path(folder) / "cheetah.npz"), Rollouts(Path(folder) / "pacman.npz")


def rate(call: Callable[[], object], items: int, seconds: float, finish: Callable[[], object] | None = None) -> Answer:
    """Returns items a second of calls one after the other, and what a call took; `finish` ends what they began, in the time."""
    for _ in range(5):
        call()
    times = []
    began = last = time.perf_counter()
    while last - began < seconds or len(times) < 5:
        call()
        now = time.perf_counter()
        times.append(now - last)
        last = now
    if finish is not None:
        finish()
        last = time.perf_counter()
    quantiles = 1e3 * np.quantile(times, (0.5, 0.99))
    return {"value": items * len(times) / (last - began), "p50_ms": quantiles[0], "p99_ms": quantiles[1], "calls": len(times)}


def write_rate(
    episodes: Iterator[Episode], write: Callable[[Episode], None], finish: Callable[[], None], seconds: float
) -> Answer:
    """Returns steps a second of whole episodes, `finish` (which makes them safe, where that is known) in the time."""
    steps, began = 0, time.perf_counter()
    for episode in episodes:
        write(episode)
        steps += len(episode.rewards)
        if time.perf_counter() - began >= seconds:
            break
    finish()
    return {"value": steps / (time.perf_counter() - began), "steps": steps}


def memory_bytes(pid: int | str = "self") -> int:
    """Returns the resident memory of a process that is no page of a file: those are the kernel's cache of the disk."""
    found = 0
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(("RssAnon:", "RssShmem:")):
            found += 1024 * int(line.split()[1])
    return found


def disk_bytes(path: Path, ignored: tuple[str, ...] = ()) -> int:
    """Returns the blocks that files take, as du counts them."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file() and each.name not in ignored]
    return sum(512 * each.stat().st_blocks for each in files)


def answer(workloads: Workloads) -> None:
    """Answers until standard input ends, by a descriptor of its own: libraries print to standard output what they like."""
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)

        def say(message: Answer) -> None:
            out.write(json.dumps(message, default=float) + "\n")
            out.flush()

        say({"workloads": list(workloads)})
        for line in sys.stdin:
            asked = json.loads(line)
            try:
                say(workloads[asked["workload"]](asked["seconds"]))
            except Exception as error:  # one workload that fails must not take the others along
                say({"error": f"{asked['workload']}: {type(error).__name__}: {error}"[:500]})
