"""The run directory: what was asked for, with which versions, what came of it, and where to go on.

    config.json      the hyper-parameters, the seed among them
    versions.json    of Python and of the packages that matter
    metrics.sqlite   one table each for training episodes, what actors left open and had acknowledged at their end, the
                     learner's metrics, evaluations, and outages of a service that the demo kills
    checkpoints/     one directory per checkpoint, named by its updates; written elsewhere and renamed, so always whole
    best.safetensors the network with the best evaluation
    logs/, replay/   what `replaysvc demo` keeps beside them: its processes' output and the service's store

Any number of processes may have it open: the metrics are in WAL mode and each process writes through one connection.
"""

import json
import os
import platform
import sqlite3
import time
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from dqn.config import Config

PACKAGES = ("replaysvc", "torch", "gymnasium", "safetensors", "numpy", "grpcio")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainEpisode:
    """One finished episode of an actor. Its metadata have its name, `episode`, and the `seed` that made it, too."""

    episode: str
    actor: str
    env: int
    policy_version: int
    return_: float
    length: int
    terminated: bool
    truncated: bool
    seed: int
    epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEpisode:
    """An episode that was not over when its actor ended."""

    episode: str
    actor: str
    env: int
    policy_version: int
    return_: float
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """An actor's last row: the service has acknowledged all that it wrote, by its own count.

    `life` tells apart the processes that were this actor, one after another; names of their episodes begin with it.
    """

    actor: str
    life: str
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerMetrics:
    """Means over the updates since the last row.

    `staleness`: versions between the learner's and that of the sampled episodes. `samples_per_s`: transitions trained on.
    `waited_s`: time in which the steps for the next update were not there yet.
    """

    updates: int
    steps: int
    policy_version: int
    loss: float
    staleness: float
    samples_per_s: float
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The returns of one version's greedy episodes. `success_rate`: share that succeeded, if the environment says so."""

    policy_version: int
    steps_learned: int
    episodes: int
    mean_return: float
    min_return: float
    max_return: float
    success_rate: float | None
    solved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """The service was killed, and listened again after so many seconds."""

    seconds: float


Row: TypeAlias = TrainEpisode | OpenEpisode | Acknowledged | LearnerMetrics | Evaluation | Outage
_TABLES: dict[type, str] = {
    TrainEpisode: "train_episodes", OpenEpisode: "open_episodes", Acknowledged: "acknowledged", LearnerMetrics: "learner",
    Evaluation: "evaluations", Outage: "outages",
}  # fmt: skip


class RunDirectory:
    """Paths and configuration of one run. Immutable; every process opens its own."""

    def __init__(self, path: Path) -> None:
        """Opens the run at `path`. Raises FileNotFoundError if there is none."""
        self.path = path
        self.checkpoints, self.best, self.metrics = path / "checkpoints", path / "best.safetensors", path / "metrics.sqlite"
        self.config = Config.from_json((path / "config.json").read_text())

    @staticmethod
    def create(path: Path, config: Config) -> "RunDirectory":
        """Makes the run directory. Raises FileExistsError if `path` holds a run already: resume it, or choose another."""
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        if (path / "config.json").exists():
            raise FileExistsError(f"{path}: expected no run there, found one; resume it or choose another directory")
        replace_file(path / "versions.json", json.dumps(versions(), indent=2).encode())
        with sqlite3.connect(path / "metrics.sqlite") as database:
            database.execute("PRAGMA journal_mode=WAL")
        database.close()
        replace_file(path / "config.json", config.to_json().encode())  # last: a directory with a configuration is whole
        return RunDirectory(path)


class Metrics:
    """A process's connection to the metrics. Used by one thread; a context manager that closes.

    Each row is a transaction of its own: one that stayed open between rows would lock out the other processes.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._database = sqlite3.connect(run.metrics, timeout=30, isolation_level=None)
        self._database.execute("PRAGMA synchronous=OFF")  # a power cut may cost the newest rows
        self._make_tables()

    def _make_tables(self) -> None:
        """Makes what is not there yet: all of a new run, some of one that an earlier version of this program began."""
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        for row, table in _TABLES.items():
            database.execute(f"CREATE TABLE IF NOT EXISTS {table} (time_s REAL NOT NULL)")
            there = {column[1] for column in database.execute(f"PRAGMA table_info({table})")}
            for field in fields(row):
                if field.name not in there:
                    database.execute(f"ALTER TABLE {table} ADD COLUMN {field.name}")
        database.execute("COMMIT")

    def write(self, row: Row) -> None:
        """Adds a row, stamped with the current time."""
        names = [field.name for field in fields(row)]
        values: list[Any] = [time.time(), *(getattr(row, name) for name in names)]
        marks = ", ".join("?" * len(values))
        self._database.execute(f"INSERT INTO {_TABLES[type(row)]} (time_s, {', '.join(names)}) VALUES ({marks})", values)

    def last(self, row: type[Row], count: int) -> list[dict[str, Any]]:
        """Returns the newest `count` rows of a kind, the newest first, by column name; `time_s` is among them."""
        cursor = self._database.execute(f"SELECT * FROM {_TABLES[row]} ORDER BY rowid DESC LIMIT ?", (count,))
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, values, strict=True)) for values in cursor]

    def close(self) -> None:
        """Closes the connection."""
        self._database.close()

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that a run's result depends on."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed as a distribution"
    return found


def replace_file(path: Path, data: bytes) -> None:
    """Writes `data` to `path` so that a reader finds the old content or the new, never a part, also after a power cut."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
