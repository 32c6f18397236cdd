"""DeepMind Reverb 0.14.0: a server process, and this process as its one client.

Items are what its users make: 2 steps for a transition, 80 steps every 40 for a sequence, 5 frames for a stack of four and the
next. The writer is flushed every 64 steps, the fastest setting found that does not grow without bound. Its samples come by
TrajectoryDataset with four workers, its own way to keep requests under way.
"""

import functools
import itertools
import socket
import subprocess
import sys

import numpy as np
import reverb
import tensorflow as tf
from asked import (
    BATCH,
    FRAMES,
    LENGTH,
    PERIOD,
    REPEAT,
    SEQUENCES,
    Answer,
    Episode,
    Rollouts,
    answer,
    load,
    memory_bytes,
    rate,
    write_rate,
)

SERVER = """
import sys, reverb
select = reverb.selectors
kinds = {"uniform": select.Uniform(), "prioritized": select.Prioritized(0.6), "sequences": select.Uniform(),
         "images": select.Uniform(), "insert": select.Uniform(), "insert-images": select.Uniform()}
tables = [reverb.Table(name, kind, select.Fifo(), max_size=2_000_000, rate_limiter=reverb.rate_limiters.MinSize(1))
          for name, kind in kinds.items()]
server = reverb.Server(tables, port=int(sys.argv[1]))
sys.stdin.read()  # it ends with the process that started it
"""
FLUSH_STEPS = 64
STATE = {
    "observation": (tf.float32, (17,)),
    "action": (tf.float32, (6,)),
    "reward": (tf.float32, ()),
    "discount": (tf.float32, ()),
}


class Reverb:
    def __init__(self, folder: str) -> None:
        self.states, self.images = load(folder)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.address = f"localhost:{probe.getsockname()[1]}"
        self.server = subprocess.Popen([sys.executable, "-c", SERVER, self.address.partition(":")[2]], stdin=subprocess.PIPE)
        self.client = reverb.Client(self.address)
        self.client.server_info(timeout=120)
        self.rng = np.random.default_rng(0)
        self._stacked: dict[int, object] = {}

    def _write(
        self, writer: reverb.TrajectoryWriter, table: str, length: int, period: int, counter: itertools.count, episode: Episode
    ) -> None:
        """Appends an episode, one step at a time, with an item of `length` steps every `period`."""
        for t, (action, reward) in enumerate(zip(episode.actions, episode.rewards, strict=True)):
            row = {"observation": episode.observations[t], "action": action, "reward": reward, "discount": np.float32(1)}
            writer.append(row)
            if t >= length - 1 and (t - length + 1) % period == 0:
                writer.create_item(table, 1.0, {name: column[-length:] for name, column in writer.history.items()})
            if next(counter) % FLUSH_STEPS == 0:
                writer.flush(FLUSH_STEPS)
        writer.end_episode()

    def _fill(self, table: str, rollouts: Rollouts, repeat: int, length: int, period: int = 1) -> None:
        with self.client.trajectory_writer(num_keep_alive_refs=length + 1) as writer:
            counter = itertools.count(1)
            for episode in rollouts.episodes * repeat:
                self._write(writer, table, length, period, counter, episode)

    def _insert(self, table: str, rollouts: Rollouts, length: int, seconds: float) -> Answer:
        counter = itertools.count(1)
        with self.client.trajectory_writer(num_keep_alive_refs=length + 1) as writer:
            write = functools.partial(self._write, writer, table, length, 1, counter)
            found = write_rate(rollouts.endless(), write, writer.flush, seconds)
        self.client.reset(table)
        return found

    def insert(self, seconds: float) -> Answer:
        return self._insert("insert", self.states, 2, seconds)

    def insert_images(self, seconds: float) -> Answer:
        return self._insert("insert-images", self.images, FRAMES + 1, seconds)

    def _batches(self, table: str, batch: int, length: int, shapes: dict) -> object:
        dataset = reverb.TrajectoryDataset(
            self.address, table, dtypes={name: dtype for name, (dtype, _) in shapes.items()},
            shapes={name: tf.TensorShape((length, *shape)) for name, (_, shape) in shapes.items()},
            max_in_flight_samples_per_worker=2 * batch, num_workers_per_iterator=4,
        )  # fmt: skip
        return iter(dataset.batch(batch).prefetch(4))

    @functools.cached_property
    def transitions(self) -> tuple[object, float]:
        """Returns batches, and what a step takes in the server's memory."""
        before = memory_bytes(self.server.pid)
        self._fill("uniform", self.states, REPEAT, 2)
        step_bytes = (memory_bytes(self.server.pid) - before) / (REPEAT * self.states.steps)
        return self._batches("uniform", BATCH, 2, STATE), step_bytes

    @functools.cached_property
    def by_priority(self) -> object:
        self._fill("prioritized", self.states, REPEAT, 2)
        return self._batches("prioritized", BATCH, 2, STATE)

    @functools.cached_property
    def long(self) -> object:
        self._fill("sequences", self.states, REPEAT, LENGTH, PERIOD)
        return self._batches("sequences", SEQUENCES, LENGTH, STATE)

    def _stacks(self, batch: int) -> object:
        if batch not in self._stacked:
            if not self._stacked:
                self._fill("images", self.images, 1, FRAMES + 1)
            shapes = STATE | {"observation": (tf.uint8, (84, 84)), "action": (tf.int64, ())}
            self._stacked[batch] = self._batches("images", batch, FRAMES + 1, shapes)
        return self._stacked[batch]

    def uniform(self, seconds: float) -> Answer:
        found = rate(functools.partial(next, self.transitions[0]), BATCH, seconds)
        return found | {"resident": memory_bytes(self.server.pid)}

    def sequences(self, seconds: float) -> Answer:
        return rate(functools.partial(next, self.long), SEQUENCES, seconds)

    def prioritized(self, seconds: float) -> Answer:
        batches = self.by_priority

        def learn() -> None:
            keys = next(batches).info.key.numpy()
            priorities = self.rng.random(BATCH) + 1e-6
            self.client.mutate_priorities("prioritized", dict(zip(keys.tolist(), priorities.tolist(), strict=True)))

        return rate(learn, BATCH, seconds)

    def stacks(self, batch: int, seconds: float) -> Answer:
        return rate(functools.partial(next, self._stacks(batch)), batch, seconds) | {"resident": memory_bytes(self.server.pid)}

    def memory(self, seconds: float) -> Answer:
        return {"value": self.transitions[1]}


if __name__ == "__main__":
    subject = Reverb(sys.argv[1])
    try:
        answer({
            "insert": subject.insert, "insert-images": subject.insert_images, "uniform": subject.uniform,
            "prioritized": subject.prioritized, "sequences": subject.sequences,
            "stack-256": lambda seconds: subject.stacks(256, seconds), "stack-32": lambda seconds: subject.stacks(32, seconds),
            "memory": subject.memory,
        })  # fmt: skip
    finally:
        subject.server.kill()
