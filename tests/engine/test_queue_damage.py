"""What a queue was about to hand out beside a damaged chunk comes out after all, in its place and as often as it should."""

import pytest

from replaysvc import Fifo, Lifo, TableConfig
from replaysvc.errors import NotReadyError
from replaysvc.replay import Replay
from tests.builders import SCALARS, write_episodes
from tests.engine.test_reopen import corrupt


@pytest.mark.parametrize(
    ("kind", "readable"), [(Fifo, [0, 1, 2, 3, 4, *range(10, 20)]), (Lifo, [*range(19, 9, -1), 4, 3, 2, 1, 0])]
)
@pytest.mark.parametrize("size", [1, 3, 4])
def test_each_readable_item_is_handed_out_twice_in_order(tmp_path, kind, readable, size):
    """Twenty steps in chunks of five, of which the second is damaged."""
    with Replay(tmp_path / "s") as replay:
        table = replay.create_table("t", SCALARS, TableConfig(chunk_steps=5, samplers={"queue": kind(max_times_sampled=2)}))
        write_episodes(table, [20])
    corrupt(tmp_path / "s", "t", 1)
    with Replay(tmp_path / "s") as replay:
        table, found = replay.table("t"), []
        with pytest.raises(NotReadyError):
            while True:
                found += table.sample(size, sampler="queue").positions.tolist()
        expected = [position for position in readable for _ in range(2)]
        assert found == expected[: len(expected) // size * size]
