"""replaysvc as a subject: `service`, over gRPC from this process, or `embedded`, the object in this process.

An insert ends when every step is durable on disk. Batches come as a learner takes them, with requests under way; one workload
asks for them one after the other.
"""

import contextlib
import functools
import itertools
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import replay_client
from replaysvc import ClientConfig, Her, Sequences, Signature, StoreConfig, TableConfig, Transitions
from tests.bench.crowd import PREFETCH, together, write_episodes
from tests.bench.peers.asked import (
    BATCH,
    FRAMES,
    LENGTH,
    PERIOD,
    REPEAT,
    SEQUENCES,
    Answer,
    Rollouts,
    answer,
    disk_bytes,
    load,
    memory_bytes,
    rate,
)
from tests.bench.stores import IMAGES, STATES, MiB, Stores

TRANSITIONS = Transitions()
WINDOW = Sequences(length=LENGTH, period=PERIOD)
MIXED_STEPS = 200_000  # kept of the table that is sampled while it is written


class Ours:
    """What is measured of one door."""

    def __init__(self, stores: Stores) -> None:
        self.stores, self.rng, self._numbers = stores, np.random.default_rng(0), itertools.count()

    def insert(self, signature: Signature, rollouts: Rollouts, seconds: float) -> Answer:
        name = f"insert-{next(self._numbers)}"
        table = self.stores.main.replay.create_table(name, signature)
        try:
            return write_episodes(table, rollouts, seconds)
        finally:
            self.stores.main.replay.delete_table(name)

    def stream(self, table: Any, batch: int, seconds: float, what: Any = TRANSITIONS) -> Answer:
        """Batches as a learner takes them: with requests under way."""
        batches = table.stream(batch, what, prefetch=PREFETCH)
        try:
            return rate(functools.partial(next, batches), batch, seconds)
        finally:
            batches.close()

    def call(self, seconds: float) -> Answer:
        """One batch after the other, each asked for when the one before is there."""
        table, _ = self.stores.warm
        return rate(lambda: table.sample(BATCH), BATCH, seconds)

    def prioritized(self, seconds: float) -> Answer:
        """A learner that does not wait for the answer to its priorities; at the end it does, in the time that counts."""
        table, _ = self.stores.warm
        batches = table.stream(BATCH, sampler="prioritized", prefetch=PREFETCH)

        def learn() -> None:
            batch = next(batches)
            table.update_priorities(batch.positions, self.rng.random(BATCH) + 1e-6, wait=False)

        try:
            return rate(learn, BATCH, seconds, finish=lambda: table.update_priorities([], []))
        finally:
            batches.close()

    def mixed(self, seconds: float) -> Answer:
        """Sampling while one actor writes as fast as it can."""
        name = f"mixed-{next(self._numbers)}"
        table = self.stores.main.replay.create_table(name, STATES, TableConfig(capacity_steps=MIXED_STEPS))
        write_episodes(table, self.stores.states, 0.0)
        try:
            with self._actor(name, 2 * seconds + 2) as has_begun:
                has_begun()
                return self.stream(table, BATCH, seconds)
        finally:
            self.stores.main.replay.delete_table(name)

    @contextlib.contextmanager
    def _actor(self, name: str, seconds: float) -> Iterator[Callable[[], Any]]:
        """Writes for `seconds` beside the caller: in a thread of an embedded store, in a process of a service."""
        if self.stores.embedded:
            table = self.stores.main.replay.table(name)
            thread = threading.Thread(target=write_episodes, args=(table, self.stores.states, seconds))
            thread.start()
            yield lambda: None
            thread.join()
            return
        context = multiprocessing.get_context("spawn")
        begun = context.Event()
        process = context.Process(
            target=_write_beside, args=(self.stores.main.address, name, self.stores.folder, seconds, begun)
        )
        process.start()
        yield lambda: begun.wait(60)
        process.join()

    def crowd(self, role: str, count: int, seconds: float) -> Answer:
        if role == "learners":
            assert self.stores.warm
            return together(role, count, self.stores.main.address, "states", self.stores.folder, seconds)
        name = f"crowd-{next(self._numbers)}"
        self.stores.main.replay.create_table(name, STATES)
        try:
            return together(role, count, self.stores.main.address, name, self.stores.folder, seconds)
        finally:
            self.stores.main.replay.delete_table(name)

    def memory(self, seconds: float) -> Answer:
        """What holding a step takes; and all that the process has, beside what the design allows it by its settings."""
        table, step_bytes = self.stores.warm
        stats, config = table.stats(), StoreConfig()
        cache = config.recent_cache_bytes + config.faulted_cache_bytes
        allowed = cache + 200 * MiB + 150 * stats.chunks + 10 * stats.steps
        return {
            "value": step_bytes,
            "resident": memory_bytes(self.stores.main.pid),
            "allowed": allowed,
            "cache": stats.cache_bytes,
        }

    def by_socket(self, seconds: float) -> Answer:
        """Without memory that client and server share, as from another host."""
        assert self.stores.frames
        with replay_client.connect(self.stores.main.address, config=ClientConfig(shared_bytes=0)) as client:
            return self.stream(client.table("images"), BATCH, seconds, Transitions(stack=FRAMES))

    def disk(self, rollouts: Rollouts, repeat: int, signature: Signature, seconds: float) -> Answer:
        """A store of its own that holds the data alone, closed; without the room that it keeps for itself."""
        fresh = self.stores.store(f"disk-{next(self._numbers)}")
        table = self.stores.fill(fresh, "only", signature, rollouts.episodes * repeat)
        chunks = table.stats().stored_bytes / (repeat * rollouts.steps)
        fresh.close()
        size = disk_bytes(fresh.path, ignored=("RESERVE",)) / (repeat * rollouts.steps)
        return {"value": size, "chunks": chunks, "raw": rollouts.rows().raw_step_bytes}


def _write_beside(address: str, name: str, folder: str, seconds: float, begun: Any) -> None:
    states, _ = load(folder)
    with replay_client.connect(address) as client:
        begun.set()
        write_episodes(client.table(name), states, seconds)


def workloads(ours: Ours, stores: Stores) -> dict[str, Callable[[float], Answer]]:
    def uniform(share: float, seconds: float) -> Answer:
        table, pid = stores.cached(share)
        return ours.stream(table, BATCH, seconds) | {"resident": memory_bytes(pid)}

    def cold_stacks(seconds: float) -> Answer:
        table, pid = stores.cold_frames
        return ours.stream(table, 32, seconds, Transitions(stack=FRAMES)) | {"resident": memory_bytes(pid)}

    def stacks(batch: int, seconds: float) -> Answer:
        return ours.stream(stores.frames, batch, seconds, Transitions(stack=FRAMES))

    found: dict[str, Callable[[float], Answer]] = {
        "memory": ours.memory,
        "insert": functools.partial(ours.insert, STATES, stores.states),
        "insert-images": functools.partial(ours.insert, IMAGES, stores.images),
        "uniform": lambda seconds: ours.stream(stores.warm[0], BATCH, seconds),
        "uniform-call": ours.call,
        "uniform-half": functools.partial(uniform, 0.5),
        "uniform-cold": functools.partial(uniform, 0.1),
        "uniform-mixed": ours.mixed,
        "prioritized": ours.prioritized,
        "sequences": lambda seconds: ours.stream(stores.warm[0], SEQUENCES, seconds, WINDOW),
        "her": lambda seconds: ours.stream(stores.goals, BATCH, seconds, Transitions(her=Her())),
        "stack-256": functools.partial(stacks, 256),
        "stack-32": functools.partial(stacks, 32),
        "stack-32-cold": cold_stacks,
        "disk": functools.partial(ours.disk, stores.states, REPEAT, STATES),
        "disk-images": functools.partial(ours.disk, stores.images, 1, IMAGES),
    }
    if not stores.embedded:
        found["stack-256-tcp"] = ours.by_socket
        counts = {"learners": (1, 2, 4), "actors": (1, 4, 16)}
        found |= {
            f"{role}-{count}": functools.partial(ours.crowd, role, count) for role, each in counts.items() for count in each
        }
    return found


if __name__ == "__main__":
    stores = Stores(*sys.argv[1:])
    try:
        answer(workloads(Ours(stores), stores))
    finally:
        stores.close()
