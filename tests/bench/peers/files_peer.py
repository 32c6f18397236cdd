"""What people write by hand: an HDF5 file with gzip chunks, and LMDB with one pickled transition a key.

Both take one step at a time and make an episode durable at its end, which is the fastest of what people do: HDF5 gets an
episode's rows at once, LMDB one transaction an episode. Sampling reads from the file, which the kernel has in its cache.
"""

import functools
import itertools
import os
import pickle
import sys
from pathlib import Path

import h5py
import lmdb
import numpy as np
from asked import BATCH, REPEAT, Answer, Episode, Rollouts, answer, disk_bytes, load, rate, write_rate

ROW = ("observation", "action", "reward", "next_observation", "terminated")


class Hdf5:
    """Columns of transitions, in chunks of 100 rows."""

    def __init__(self, path: Path, like: Episode) -> None:
        self.path, self._file, self._rows = path, h5py.File(path, "w"), 0
        self._pending: list[tuple] = []
        for name, row in zip(ROW, self._row(like, 0), strict=True):
            value = np.asarray(row)
            self._file.create_dataset(
                name, (0, *value.shape), value.dtype, maxshape=(None, *value.shape), chunks=(100, *value.shape),
                compression="gzip",
            )  # fmt: skip

    @staticmethod
    def _row(episode: Episode, t: int) -> tuple:
        ends = episode.terminated and t == len(episode.rewards) - 1
        return episode.observations[t], episode.actions[t], episode.rewards[t], episode.observations[t + 1], ends

    def write(self, episode: Episode) -> None:
        for t in range(len(episode.rewards)):
            self._pending.append(self._row(episode, t))
        start, self._rows = self._rows, self._rows + len(self._pending)
        for name, column in zip(ROW, zip(*self._pending, strict=True), strict=True):
            self._file[name].resize(self._rows, axis=0)
            self._file[name][start:] = np.asarray(column)
        self._pending.clear()
        self._file.flush()
        descriptor = os.open(self.path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def sample(self, rng: np.random.Generator) -> list[np.ndarray]:
        at = np.unique(rng.integers(0, self._rows, BATCH))  # it takes rising numbers alone
        return [self._file[name][at] for name in ROW]

    def close(self) -> None:
        self._file.close()


class Pickled:
    """One key a transition, its number."""

    def __init__(self, path: Path, like: Episode) -> None:
        self.path, self._rows = path, 0
        self._env = lmdb.open(str(path), map_size=1 << 36)

    def write(self, episode: Episode) -> None:
        with self._env.begin(write=True) as transaction:
            for t in range(len(episode.rewards)):
                transaction.put(self._rows.to_bytes(8, "big"), pickle.dumps(Hdf5._row(episode, t), pickle.HIGHEST_PROTOCOL))
                self._rows += 1

    def sample(self, rng: np.random.Generator) -> list[np.ndarray]:
        with self._env.begin(buffers=True) as transaction:
            at = rng.integers(0, self._rows, BATCH).tolist()
            rows = [pickle.loads(transaction.get(number.to_bytes(8, "big"))) for number in at]
        return [np.array(column) for column in zip(*rows, strict=True)]

    def close(self) -> None:
        self._env.close()


class Files:
    def __init__(self, kind: str, folder: str, scratch: str) -> None:
        self.kind, self.scratch, self._numbers = {"h5py": Hdf5, "lmdb": Pickled}[kind], Path(scratch), itertools.count()
        self.states, self.images = load(folder)
        self.rng = np.random.default_rng(0)

    def _new(self, rollouts: Rollouts) -> Hdf5 | Pickled:
        return self.kind(self.scratch / str(next(self._numbers)), rollouts.episodes[0])

    def _filled(self, rollouts: Rollouts, repeat: int) -> Hdf5 | Pickled:
        buffer = self._new(rollouts)
        for episode in rollouts.episodes * repeat:
            buffer.write(episode)
        return buffer

    @functools.cached_property
    def filled(self) -> Hdf5 | Pickled:
        return self._filled(self.states, REPEAT)

    @functools.cached_property
    def filled_images(self) -> Hdf5 | Pickled:
        return self._filled(self.images, 1)

    def insert(self, seconds: float) -> Answer:
        buffer = self._new(self.states)
        return write_rate(self.states.endless(), buffer.write, buffer.close, seconds)

    def uniform(self, seconds: float) -> Answer:
        buffer = self.filled
        return rate(lambda: buffer.sample(self.rng), BATCH, seconds)

    def disk(self, seconds: float) -> Answer:
        return {"value": disk_bytes(self.filled.path) / (REPEAT * self.states.steps), "raw": self.states.rows().raw_step_bytes}

    def disk_of_images(self, seconds: float) -> Answer:
        raw = self.images.rows().raw_step_bytes
        return {"value": disk_bytes(self.filled_images.path) / self.images.steps, "raw": raw}


if __name__ == "__main__":
    files = Files(*sys.argv[1:])
    answer({"insert": files.insert, "uniform": files.uniform, "disk": files.disk, "disk-images": files.disk_of_images})
