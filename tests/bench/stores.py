"""Our stores, behind either door, and the tables in them that hold the rollouts. Each is filled when it is first asked for."""

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import replay_client
import replaysvc
from replaysvc import FieldSpec, Signature, StoreConfig
from tests.bench.crowd import write_episodes
from tests.bench.peers.asked import REPEAT, Episode, load, memory_bytes
from tests.processes import ServiceProcess

MiB = 1 << 20
GOAL = 3  # leading coordinates of an observation that stand for a goal
ROBOT, ACTION = FieldSpec("observation", (17,), np.dtype(np.float32)), FieldSpec("action", (6,), np.dtype(np.float32))
STATES = Signature(ROBOT, ACTION)
IMAGES = Signature(FieldSpec("observation", (84, 84), np.dtype(np.uint8)), FieldSpec("action", (), np.dtype(np.int64)))
GOALS = Signature(
    {"observation": ROBOT}
    | {name: FieldSpec(name, (GOAL,), np.dtype(np.float32)) for name in ("achieved_goal", "desired_goal")},
    ACTION,
)


def with_goals(episode: Episode) -> Any:
    """Returns an episode whose observations are dicts: its goals are the robot's first coordinates, now and at the end."""
    seen = [
        {"observation": row, "achieved_goal": row[:GOAL], "desired_goal": episode.observations[-1][:GOAL]} for row in episode[0]
    ]
    return episode._replace(observations=seen)


class Store:
    """An open store behind either door. `pid`: of the process that holds the data."""

    def __init__(self, embedded: bool, path: Path, recent: int | None = None, faulted: int | None = None) -> None:
        self.path = path
        self._ends = contextlib.ExitStack()
        caches = {"recent_cache_bytes": recent, "faulted_cache_bytes": faulted}
        given = {name: max(MiB, size) for name, size in caches.items() if size is not None}
        if embedded:
            self.address, self.pid = "", os.getpid()
            self.replay: Any = self._ends.enter_context(replaysvc.open(str(path), StoreConfig(**given)))
        else:
            options = [text for name, size in given.items() for text in (f"--{name.replace('_', '-')}", str(size))]
            service = self._ends.enter_context(ServiceProcess(path, *options))
            self.address, self.pid = service.address, service.pid
            self.replay = self._ends.enter_context(replay_client.connect(service.address))

    def close(self) -> None:
        self._ends.close()


class Listed:
    """Rollouts that end, for a table that is filled once."""

    def __init__(self, episodes: list[Any]) -> None:
        self._episodes = episodes

    def endless(self) -> Iterator[Any]:
        return iter(self._episodes)


class Stores:
    """One store with a table of states, one of images, and one of states with goals cut from them; others with small caches."""

    def __init__(self, kind: str, folder: str, scratch: str) -> None:
        self.embedded, self.folder, self.scratch = kind == "embedded", folder, Path(scratch)
        self.states, self.images = load(folder)
        self._open: list[Store] = []
        self._cached: dict[float, tuple[Any, int]] = {}
        self.main = self.store("main")

    def store(self, name: str, **caches: int) -> Store:
        self._open.append(Store(self.embedded, self.scratch / name, **caches))
        return self._open[-1]

    def close(self) -> None:
        for store in self._open:
            store.close()

    @staticmethod
    def fill(store: Store, name: str, signature: Signature, episodes: list[Any]) -> Any:
        """Returns a new table that holds the episodes, durably."""
        table = store.replay.create_table(name, signature)
        write_episodes(table, Listed(episodes), float("inf"))
        return table

    @functools.cached_property
    def warm(self) -> tuple[Any, float]:
        """Returns the table of states, and what holding a step of it takes in memory."""
        before = memory_bytes(self.main.pid)
        table = self.fill(self.main, "states", STATES, self.states.episodes * REPEAT)
        return table, (memory_bytes(self.main.pid) - before) / (REPEAT * self.states.steps)

    @functools.cached_property
    def frames(self) -> Any:
        return self.fill(self.main, "images", IMAGES, self.images.episodes)

    @functools.cached_property
    def goals(self) -> Any:
        return self.fill(self.main, "goals", GOALS, [with_goals(each) for each in self.states.episodes])

    def cached(self, share: float) -> tuple[Any, int]:
        """Returns a table of which the cache holds this share, and the process that holds that."""
        if share not in self._cached:
            self._cached[share] = self._with_cache(share)
        return self._cached[share]

    def _with_cache(self, share: float) -> tuple[Any, int]:
        """Returns a new table of states in a store whose cache holds this share of it: half of that for recent chunks."""
        table, _ = self.warm
        step_bytes = table.stats().cache_bytes / table.stats().steps
        repeat = -(-int(2 * MiB / min(share, 0.1) / step_bytes) // self.states.steps)  # a ring has 1 MiB at least
        ring = int(share * repeat * self.states.steps * step_bytes / 2)
        store = self.store(f"cached-{share}", recent=ring, faulted=ring)
        return self.fill(store, "states", STATES, self.states.episodes * repeat), store.pid

    @functools.cached_property
    def cold_frames(self) -> tuple[Any, int]:
        ring = self.images.steps * 84 * 84 // 20
        store = self.store("cold-images", recent=ring, faulted=ring)
        return self.fill(store, "images", IMAGES, self.images.episodes), store.pid
