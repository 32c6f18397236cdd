"""What a queue was about to hand out beside a damaged chunk comes out after all, in its place and as often as it should."""

import pytest

from replaysvc import Fifo, Lifo, TableConfig
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
