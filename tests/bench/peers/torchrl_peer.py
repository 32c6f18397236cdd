"""TorchRL 0.14 in this process, its storage in memory maps or in tensors. One thread, as for every subject.

Transitions hold their next observation. Sequences are slices of 80 steps that its SliceSampler cuts from whole episodes.
"""

import functools
import itertools
import sys
import time
from pathlib import Path

import numpy as np
import torch
from asked import BATCH, LENGTH, REPEAT, SEQUENCES, Answer, answer, disk_bytes, load, memory_bytes, rate
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import PrioritizedSampler, SliceSampler

torch.set_num_threads(1)


class TorchRL:
    def __init__(self, kind: str, folder: str, scratch: str) -> None:
        self.kind, self.scratch, self._numbers = kind, Path(scratch), itertools.count()
        states, _ = load(folder)
        rows = states.rows(REPEAT)
        self.raw_step_bytes = rows.raw_step_bytes
        self.columns = TensorDict(
            {name: torch.from_numpy(column) for name, column in rows._asdict().items()}, [len(rows.reward)]
        )
        self.rng = np.random.default_rng(0)

    def _storage(self) -> LazyMemmapStorage | LazyTensorStorage:
        if self.kind == "tensor":
            return LazyTensorStorage(len(self.columns))
        return LazyMemmapStorage(len(self.columns), scratch_dir=str(self.scratch / str(next(self._numbers))))

    def _filled(self, **options) -> TensorDictReplayBuffer:
        buffer = TensorDictReplayBuffer(storage=self._storage(), **options)
        buffer.extend(self.columns.clone())
        return buffer

    @functools.cached_property
    def plain(self) -> tuple[TensorDictReplayBuffer, float]:
        """Returns a buffer, and what a step of it takes in memory."""
        before = memory_bytes()
        buffer = self._filled(batch_size=BATCH)
        return buffer, (memory_bytes() - before) / len(self.columns)

    @functools.cached_property
    def slices(self) -> TensorDictReplayBuffer:
        sampler = SliceSampler(slice_len=LENGTH, traj_key="episode", cache_values=True)
        return self._filled(sampler=sampler, batch_size=SEQUENCES * LENGTH)

    @functools.cached_property
    def by_priority(self) -> TensorDictReplayBuffer:
        return self._filled(sampler=PrioritizedSampler(len(self.columns), 0.6, 0.4), batch_size=BATCH)

    def insert(self, seconds: float) -> Answer:
        buffer, steps, began = TensorDictReplayBuffer(storage=self._storage()), 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            buffer.add(self.columns[steps % len(self.columns)])
            steps += 1
        return {"value": steps / (time.perf_counter() - began), "steps": steps}

    def uniform(self, seconds: float) -> Answer:
        return rate(self.plain[0].sample, BATCH, seconds)

    def sequences(self, seconds: float) -> Answer:
        return rate(self.slices.sample, SEQUENCES, seconds)

    def prioritized(self, seconds: float) -> Answer:
        buffer = self.by_priority

        def learn() -> None:
            batch = buffer.sample()
            buffer.update_priority(batch["index"], torch.from_numpy(self.rng.random(BATCH) + 1e-6))

        return rate(learn, BATCH, seconds)

    def memory(self, seconds: float) -> Answer:
        return {"value": self.plain[1]}

    def disk(self, seconds: float) -> Answer:
        buffer, folder = self._filled(batch_size=BATCH), self.scratch / str(next(self._numbers) - 1)
        return {"value": disk_bytes(folder) / len(buffer), "raw": self.raw_step_bytes}


if __name__ == "__main__":
    torchrl = TorchRL(*sys.argv[1:])
    names = ["insert", "uniform", "sequences", "prioritized", "memory", *(["disk"] if sys.argv[1] == "memmap" else [])]
    answer({name: getattr(torchrl, name) for name in names})
