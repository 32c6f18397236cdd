"""Draws beside a damaged chunk: queues hand out the rest in its place and as often as they should, weights fit the batch."""

import numpy as np
import pytest

from replaysvc import AtEnd, Fifo, Lifo, Sequences, TableConfig
from replaysvc.errors import NotReadyError
from replaysvc.replay import Replay
from tests.builders import SCALARS, write_episodes
from tests.engine.test_reopen import corrupt

READABLE = {Fifo: [0, 1, 2, 3, 4, *range(10, 20)], Lifo: [*range(19, 9, -1), 4, 3, 2, 1, 0]}


def handed_out(table, size):
    """Returns all that the queue gives in batches of `size`."""
    found = []
    while True:
        try:
            found += table.sample(size, sampler="queue").positions.tolist()
        except NotReadyError:
            return found


@pytest.mark.parametrize("kind", READABLE)
@pytest.mark.parametrize("size", [1, 3, 4])
def test_each_readable_item_is_handed_out_twice_in_order(tmp_path, kind, size):
    """Twenty steps in chunks of five, of which the second is damaged."""
    with Replay(tmp_path / "s") as replay:
        table = replay.create_table("t", SCALARS, TableConfig(chunk_steps=5, samplers={"queue": kind(max_times_sampled=2)}))
        write_episodes(table, [20])
    corrupt(tmp_path / "s", "t", 1)
    with Replay(tmp_path / "s") as replay:
        expected = [position for position in READABLE[kind] for _ in range(2)]
        assert handed_out(replay.table("t"), size) == expected[: len(expected) // size * size]


def test_weights_are_of_the_whole_batch_though_some_of_it_is_drawn_again(tmp_path):
    """Sequences of four that would cross the damaged chunk are drawn again; the largest weight of the batch is 1 even so."""
    with Replay(tmp_path / "s") as replay:
        table = replay.create_table("t", SCALARS, TableConfig(chunk_steps=5))
        write_episodes(table, [20])
        table.update_priorities(np.arange(20), 1.0 + np.arange(20) % 7)
    corrupt(tmp_path / "s", "t", 1)
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        for seed in range(20):
            what = Sequences(length=4, period=1, at_end=AtEnd.DROP)
            batch = table.sample(40, what, sampler="prioritized", beta=0.7, seed=seed)
            assert batch.mask.all()
            chances = batch.probability
            np.testing.assert_allclose(batch.importance_weight, (chances.min() / chances) ** 0.7, rtol=1e-6)
