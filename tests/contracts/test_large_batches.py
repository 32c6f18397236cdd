"""Batches that would take more memory than a machine has are refused before they are made."""

import numpy as np
import pytest

from replaysvc import Episodes, FieldSpec, Fifo, Signature, TableConfig, Uniform
from replaysvc.errors import InvalidRequestError

MEGABYTES = Signature(FieldSpec("observation", (1 << 20,), np.uint8), FieldSpec("action", (), np.int64))


@pytest.mark.parametrize("sampler", ["uniform", "queue"])
def test_episodes_that_are_too_large_together_are_refused_and_none_is_used_up(door, sampler):
    """A step is 2 MiB with both its observations, so a batch may have 1,000 steps or so; twenty of 60 steps are too many."""
    table = door.create_table("t", MEGABYTES, TableConfig(samplers={"uniform": Uniform(), "queue": Fifo(400)}))
    frame = np.zeros(1 << 20, np.uint8)
    with table.writer() as writer:
        writer.begin(frame)
        for t in range(60):
            writer.append(t, 0.0, frame, truncated=t == 59)
    with pytest.raises(InvalidRequestError, match="batch_size"):
        table.sample(20, Episodes(max_steps=60), sampler=sampler)
    for _ in range(2):
        assert table.sample(1, Episodes(max_steps=60), sampler=sampler).mask.sum() == 60
