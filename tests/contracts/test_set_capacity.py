"""Other bounds for a table that is in use, over both doors."""

import pytest

from replaysvc import Limiter, TableConfig
from replaysvc.errors import InvalidRequestError, NotFoundError
from tests.builders import SCALARS, make_table, open_door, write_episodes


def kept(table):
    """Returns {episode: (first stored step, length)}."""
    return {record.episode_id: (record.first_step, record.length) for record in table.episodes()}


def bounds(table):
    config = table.config
    return config.capacity_steps, config.capacity_bytes, config.capacity_episodes


def test_what_is_over_new_bounds_is_removed_at_once(door):
    table = make_table(door, [4, 4, 4], chunk_steps=1)
    table.set_capacity(capacity_steps=6)
    assert kept(table) == {1: (2, 4), 2: (0, 4)}
    assert bounds(table) == bounds(door.table("t")) == (6, None, None)
    write_episodes(table, [3])
    assert table.stats().steps == 6
    table.set_capacity(capacity_episodes=1)
    assert kept(table) == {3: (0, 3)}
    assert bounds(door.table("t")) == (None, None, 1)


def test_a_change_of_bounds_is_a_job(replay, door):
    table = make_table(door, [4, 4])
    table.set_capacity(capacity_episodes=1)
    job = replay.jobs.views()[0]
    assert (job.kind, job.table, job.state) == ("set_capacity", "t", "done")


def test_larger_bounds_bring_nothing_back_and_none_end_them(door):
    table = make_table(door, [4, 4], chunk_steps=1, capacity_steps=5)
    table.set_capacity(capacity_steps=100, capacity_bytes=1 << 30)
    assert (kept(table), bounds(table)) == ({0: (3, 4), 1: (0, 4)}, (100, 1 << 30, None))
    table.set_capacity()
    write_episodes(table, [200])
    assert (table.stats().steps, bounds(table)) == (205, (None, None, None))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"capacity_steps": 0}, "capacity_steps: expected"),
        ({"capacity_steps": -1}, "capacity_steps: expected"),
        ({"capacity_steps": 2.5}, "capacity_steps: expected"),
        ({"capacity_bytes": 10}, "capacity_bytes: expected"),
        ({"capacity_episodes": 1 << 60}, "capacity_episodes: expected"),
        ({"capacity_steps": 4}, "limiter.min_steps: expected at most capacity_steps=4, found 5"),
    ],
)
def test_bounds_that_cannot_be_are_refused_and_nothing_changes(door, options, words):
    table = make_table(door, [4, 4], capacity_steps=8, limiter=Limiter(min_steps=5))
    with pytest.raises(InvalidRequestError, match=words):
        table.set_capacity(**options)
    assert (table.stats().steps, bounds(table), bounds(door.table("t"))) == (8, (8, None, None), (8, None, None))


@pytest.mark.parametrize("kind", ["embedded", "client"])
def test_new_bounds_hold_after_a_restart(tmp_path, kind):
    with open_door(kind, tmp_path / "s") as door:
        make_table(door, [4, 4], chunk_steps=1).set_capacity(capacity_steps=6)
    with open_door(kind, tmp_path / "s") as door:
        table = door.table("t")
        assert (kept(table), bounds(table)) == ({0: (2, 4), 1: (0, 4)}, (6, None, None))
        write_episodes(table, [3])
        assert table.stats().steps == 6


def test_a_table_that_is_gone_is_not_mistaken_for_its_successor(door):
    table = make_table(door, [3])
    door.delete_table("t")
    newer = door.create_table("t", SCALARS, TableConfig(capacity_steps=9))
    with pytest.raises(NotFoundError):
        table.set_capacity(capacity_steps=1)
    assert bounds(newer) == bounds(door.table("t")) == (9, None, None)
