"""Another capacity for a table that is there: at once, durably, and never at the cost of what it keeps."""

import errno
import shutil

import numpy as np
import pytest

from replaysvc import Limiter, Prioritized, Remover, StoreConfig
from replaysvc.errors import CapacityError, InvalidRequestError, NotFoundError, SpecMismatchError
from replaysvc.replay import Replay
from replaysvc.storage import System
from tests.builders import make_table, write_episodes

NEVER = StoreConfig(state_interval_s=3600.0)  # state is saved by nothing but what asks for it


def bounds(table):
    config = table.config
    return config.capacity_steps, config.capacity_bytes, config.capacity_episodes


def kept(table):
    """Returns (position of the first step, steps, episodes)."""
    stats = table.stats()
    return stats.first_position, stats.steps, stats.episodes


def crash_copy(tmp_path, store):
    """Returns a copy of a store's files as they are now, as a crash would leave them."""
    target = tmp_path / "crashed"
    shutil.copytree(store, target)
    return target


def test_what_is_over_the_new_capacity_goes_at_once(replay):
    table = make_table(replay, [4, 4, 4], chunk_steps=2)
    table.set_capacity(capacity_steps=7)
    assert (bounds(table), kept(table)) == ((7, None, None), (5, 7, 2))
    table.set_capacity(capacity_episodes=1)
    assert (bounds(table), kept(table)) == ((None, None, 1), (8, 4, 1))
    assert table.sample(50).positions.min() >= 8


def test_a_larger_capacity_keeps_more_from_then_on(replay):
    table = make_table(replay, [10], chunk_steps=2, capacity_steps=6)
    assert kept(table) == (4, 6, 1)
    table.set_capacity(capacity_steps=9)
    assert kept(table) == (4, 6, 1)
    write_episodes(table, [10])
    assert kept(table) == (11, 9, 1)
    table.set_capacity()
    write_episodes(table, [100])
    assert kept(table) == (11, 109, 2)


@pytest.mark.parametrize("remover", list(Remover))
def test_every_remover_minds_the_new_capacity(replay, remover):
    table = make_table(replay, [4, 4, 4], chunk_steps=2, remover=remover)
    table.update_priorities(range(12), [1.0] * 4 + [0.5] * 4 + [2.0] * 4)
    table.set_capacity(capacity_steps=9)
    expected = {
        Remover.OLDEST_STEPS: [3, *range(4, 12)], Remover.OLDEST_EPISODES: list(range(4, 12)),
        Remover.LOWEST_PRIORITY: [0, 1, 2, 3, 8, 9, 10, 11],
    }  # fmt: skip
    assert sorted(set(table.sample(400).positions.tolist())) == expected[remover]


def test_the_new_capacity_survives_a_restart(tmp_path):
    with Replay(tmp_path / "store", NEVER) as replay:
        make_table(replay, [10], chunk_steps=2, capacity_steps=50).set_capacity(
            capacity_steps=6, capacity_bytes=1 << 30, capacity_episodes=3
        )
    with Replay(tmp_path / "store") as replay:
        table = replay.table("t")
        assert (bounds(table), kept(table)) == ((6, 1 << 30, 3), (4, 6, 1))
        write_episodes(table, [1])
        assert kept(table) == (5, 6, 2)


def test_the_new_capacity_survives_a_crash(tmp_path):
    with Replay(tmp_path / "store", NEVER) as replay:
        make_table(replay, [10], chunk_steps=2, capacity_steps=50).set_capacity(capacity_steps=6)
        crashed = crash_copy(tmp_path, tmp_path / "store")
    with Replay(crashed) as replay:
        assert (bounds(replay.table("t")), kept(replay.table("t"))) == ((6, None, None), (4, 6, 1))


@pytest.mark.parametrize("remover", list(Remover))
def test_what_the_old_capacity_removed_does_not_come_back_under_a_larger_one(tmp_path, remover):
    """The chunks of the removed steps are in the segment still."""
    with Replay(tmp_path / "store", NEVER) as replay:
        table = make_table(replay, [4, 4, 4], chunk_steps=2, capacity_steps=6, remover=remover)
        before = kept(table)
        table.set_capacity(capacity_steps=1000)
        crashed = crash_copy(tmp_path, tmp_path / "store")
    with Replay(crashed) as replay:
        assert kept(replay.table("t")) == before


def test_one_damaged_note_of_the_capacity_is_no_loss(tmp_path):
    with Replay(tmp_path / "store", NEVER) as replay:
        table = make_table(replay, [4], chunk_steps=2, capacity_steps=4)
        table.set_capacity(capacity_steps=20)
        write_episodes(table, [10])
    state = tmp_path / "store" / "tables" / "t" / "state"
    (state / "capacity").write_bytes(b"damaged")
    with Replay(tmp_path / "store") as replay:
        assert (bounds(replay.table("t")), kept(replay.table("t"))) == ((20, None, None), (0, 14, 2))
    (state / "capacity.copy").unlink()
    with Replay(tmp_path / "store") as replay:
        assert bounds(replay.table("t")) == (4, None, None)


def test_a_limiter_that_does_not_fit_the_saved_capacity_gives_way(tmp_path):
    """The table is made for 100 steps of which 50 must be there; the state that says otherwise is lost."""
    with Replay(tmp_path / "store") as replay:
        table = make_table(replay, [30], chunk_steps=2, capacity_steps=100, limiter=Limiter(min_steps=50))
        table.set_limiter(Limiter(min_steps=5))
        table.set_capacity(capacity_steps=20)
    (tmp_path / "store" / "tables" / "t" / "state" / "sampling").unlink()
    with Replay(tmp_path / "store") as replay:
        table = replay.table("t")
        assert (bounds(table), table.config.limiter, table.stats().steps) == ((20, None, None), Limiter(), 20)
        assert len(table.sample(3)) == 3


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"capacity_steps": 9}, "limiter.min_steps"), ({"capacity_steps": 0}, "capacity_steps"),
        ({"capacity_steps": 2.5}, "capacity_steps"), ({"capacity_bytes": 10}, "capacity_bytes"),
        ({"capacity_episodes": True}, "capacity_episodes"), ({"capacity_episodes": "all"}, "capacity_episodes"),
    ],
)  # fmt: skip
def test_bounds_that_no_table_could_have_are_refused_and_change_nothing(replay, asked, named):
    table = make_table(replay, [30], capacity_steps=40, limiter=Limiter(min_steps=10))
    with pytest.raises(SpecMismatchError, match=named):
        table.set_capacity(**asked)
    assert (bounds(table), kept(table)) == ((40, None, None), (0, 30, 1))


def test_a_limiter_is_checked_against_the_new_capacity(replay):
    table = make_table(replay, capacity_steps=40)
    table.set_capacity(capacity_steps=100)
    table.set_limiter(Limiter(min_steps=60))
    with pytest.raises(InvalidRequestError, match="limiter.min_steps"):
        table.set_limiter(Limiter(min_steps=101))


class Full(System):
    """A disk that takes no state files while it is `full`."""

    full = False

    def write_file(self, path, data):
        if self.full and "state-" in path.name:
            raise OSError(errno.ENOSPC, "no space left")
        super().write_file(path, data)


def test_a_capacity_that_cannot_be_noted_changes_nothing(tmp_path):
    system = Full()
    with Replay(tmp_path / "store", NEVER, system=system) as replay:
        table = make_table(replay, [10], capacity_steps=50)
        system.full = True
        with pytest.raises(CapacityError):
            table.set_capacity(capacity_steps=3)
        system.full = False
        assert (bounds(table), kept(table)) == ((50, None, None), (0, 10, 1))
        write_episodes(table, [1])
        assert kept(table) == (0, 11, 2)


def test_a_snapshot_has_the_new_capacity(tmp_path):
    with Replay(tmp_path / "store") as replay:
        table = make_table(replay, [10], chunk_steps=2, capacity_steps=50)
        table.set_capacity(capacity_steps=6)
        replay.snapshot(tmp_path / "snapshot")
    with Replay(tmp_path / "snapshot") as replay:
        assert (bounds(replay.table("t")), kept(replay.table("t"))) == ((6, None, None), (4, 6, 1))


def test_priorities_outlast_a_change_of_capacity(replay):
    table = make_table(replay, [10], chunk_steps=2, samplers={"prioritized": Prioritized(alpha=1.0)})
    table.update_priorities(range(10), np.arange(10.0))
    table.set_capacity(capacity_steps=3)
    batch = table.sample(240, sampler="prioritized")
    assert {(p, round(float(c), 6)) for p, c in zip(batch.positions.tolist(), batch.probability.tolist(), strict=True)} == {
        (7, round(7 / 24, 6)), (8, round(8 / 24, 6)), (9, round(9 / 24, 6)),
    }  # fmt: skip


def test_a_deleted_table_has_no_capacity_to_change(replay):
    table = make_table(replay)
    replay.delete_table("t")
    with pytest.raises(NotFoundError):
        table.set_capacity(capacity_steps=5)
