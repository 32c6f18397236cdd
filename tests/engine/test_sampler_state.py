"""What a table remembers besides its steps: saved now and then, put back at the next start, never an obstacle to it."""

import shutil

import numpy as np
import pytest

from replaysvc import Fifo, Lifo, Limiter, Prioritized, Remover, Sequences, StoreConfig, TableConfig, Transitions, Uniform
from replaysvc.replay import Replay
from tests.builders import SCALARS, write_episode, write_episodes

SAMPLERS = {"prioritized": Prioritized(alpha=1.0), "queue": Fifo(), "newest": Lifo(), "uniform": Uniform()}


def crash_copy(replay, path):
    """Copies the store's files as they are now: what a machine that fails now finds at its next start."""
    shutil.copytree(replay._store.path, path)
    return Replay(path)


def leaves(table, count):
    return table._engine._core.samplers.priorities_of("prioritized").leaves(np.arange(count)).tolist()


def test_saved_priorities_are_there_after_a_crash_and_later_steps_have_the_largest(replay, tmp_path):
    table = replay.create_table("t", SCALARS, TableConfig(samplers=SAMPLERS))
    write_episodes(table, [4])
    table.update_priorities([0, 1, 2, 3], [1, 2, 7, 0])
    table._engine.save_state()
    table.update_priorities([0], [100])  # not saved
    write_episodes(table, [2])
    with crash_copy(replay, tmp_path / "copy") as after:
        assert leaves(after.table("t"), 6) == [1, 2, 7, 0, 7, 7]


def test_priorities_of_more_than_one_block_are_saved_apart(replay, tmp_path):
    """Blocks have 65,536 positions: 70,000 steps are two, of which only the one that changed is written again."""
    table = replay.create_table("t", SCALARS, TableConfig(samplers=SAMPLERS, chunk_steps=10_000))
    write_episodes(table, [70_000])
    table.update_priorities([5, 66_000], [3, 4])
    table._engine.save_state()
    states = replay._store.path / "tables" / "t" / "state"
    before = {path.name: path.stat().st_ino for path in states.iterdir()}
    table.update_priorities([69_999], [9])
    table._engine.save_state()
    changed = {path.name for path in states.iterdir() if before.get(path.name) != path.stat().st_ino}
    assert changed == {"sampling", "holes", "priorities.prioritized.1"}
    with crash_copy(replay, tmp_path / "copy") as after:
        found = leaves(after.table("t"), 70_000)
        assert (found[5], found[66_000], found[69_999], sum(found)) == (3, 4, 9, 70_000 + 2 + 3 + 8)


def test_blocks_of_removed_steps_leave_the_disk(replay):
    table = replay.create_table("t", SCALARS, TableConfig(samplers=SAMPLERS, chunk_steps=10_000, capacity_steps=30_000))
    write_episodes(table, [60_000])
    table.update_priorities([59_999], [2])
    table._engine.save_state()
    write_episodes(table, [60_000])
    table._engine.save_state()
    states = replay._store.path / "tables" / "t" / "state"
    assert {path.name for path in states.iterdir() if path.name.startswith("priorities")} == {"priorities.prioritized.1"}


def test_a_queue_goes_on_where_it_was_and_takes_in_what_came_since(replay, tmp_path):
    table = replay.create_table("t", SCALARS, TableConfig(samplers=SAMPLERS, chunk_steps=2))
    with table.writer() as writer:
        write_episode(writer, 5, end="open")
        writer.flush()
        assert table.sample(2, Sequences(length=2), sampler="queue").t.tolist() == [0, 2]
        table._engine.save_state()
        for t in range(5, 9):
            writer.append(t, 0.0, t + 1, terminated=t == 8)
    with crash_copy(replay, tmp_path / "copy") as after:
        batch = after.table("t").sample(3, Sequences(length=2), sampler="queue")
        assert batch.t.tolist() == [4, 6, 8]
        assert batch.mask.tolist() == [[True, True], [True, True], [True, False]]


@pytest.mark.parametrize("damage", [b"", b"\0" * 100, None])
def test_damaged_state_starts_anew_and_the_steps_are_there(tmp_path, damage):
    limiter = Limiter(min_steps=2, samples_per_insert=1, error_buffer=50)
    with Replay(tmp_path / "s") as replay:
        table = replay.create_table("t", SCALARS, TableConfig(samplers=SAMPLERS, limiter=limiter, chunk_steps=4))
        write_episodes(table, [5])
        table.update_priorities([2], [50])
        table.sample(2, sampler="queue")
    for path in (tmp_path / "s" / "tables" / "t" / "state").iterdir():
        path.write_bytes(damage) if damage is not None else path.unlink()
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        assert leaves(table, 5) == [1] * 5
        assert table.stats().limiter["sampled"] == 0
        assert table.stats().limiter["inserted"] == 5
        assert table.sample(5, sampler="queue").t.tolist() == [0, 1, 2, 3, 4]


def test_state_is_saved_without_being_asked(tmp_path):
    with Replay(tmp_path / "s", StoreConfig(state_interval_s=0.01)) as replay:
        table = replay.create_table("t", SCALARS, TableConfig(samplers=SAMPLERS))
        write_episodes(table, [3])
        table.update_priorities([1], [6])
        wanted = tmp_path / "s/tables/t/state/priorities.prioritized.0"
        for _ in range(1_000_000):
            if wanted.exists():
                break
            table.sample(1)  # takes its time
        assert wanted.exists()


def test_samplers_whose_names_begin_alike_keep_their_own_priorities(tmp_path):
    samplers = {"a": Prioritized(alpha=1.0), "a.b": Prioritized(alpha=1.0)}
    with Replay(tmp_path / "s") as replay:
        table = replay.create_table("t", SCALARS, TableConfig(samplers=samplers))
        write_episodes(table, [2])
        table.update_priorities([0, 1], [1, 3], sampler="a")
        table.update_priorities([0, 1], [3, 1], sampler="a.b")
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        for name, first in (("a", 0.25), ("a.b", 0.75)):
            batch = table.sample(100, sampler=name, seed=1)
            assert set(batch.probability[batch.t == 0]) == {first}


def test_draws_without_a_seed_go_on_as_they_would_have(tmp_path):
    with Replay(tmp_path / "s") as replay:
        table = replay.create_table("t", SCALARS)
        write_episodes(table, [50])
        replay.snapshot(tmp_path / "copy")
        expected = [table.sample(8, Transitions()).positions.tolist() for _ in range(10)]
    with Replay(tmp_path / "copy") as copy:
        pass
    with Replay(tmp_path / "copy") as copy:
        assert [copy.table("t").sample(8, Transitions()).positions.tolist() for _ in range(10)] == expected


def test_what_capacity_took_out_of_the_middle_stays_away_however_often_the_store_is_opened(tmp_path):
    """Episode 0 goes on while 1 goes: 2 + 2 + 1 steps are left of 3 episodes."""
    config = TableConfig(chunk_steps=10, capacity_steps=6, remover=Remover.OLDEST_EPISODES)
    with Replay(tmp_path / "s") as replay:
        table = replay.create_table("t", SCALARS, config)
        slow, quick = table.writer(), table.writer()
        write_episode(slow, 1, end="open")
        slow.flush()
        for episode, length in ((1, 3), (2, 2)):
            write_episode(quick, length, episode=episode)
            quick.flush()
        slow.append(1, 0.0, 2)
        slow.flush()
        write_episode(quick, 1, episode=3)
        quick.close()
        slow.close()
        kept = {record.episode_id: (record.first_step, record.length) for record in table.episodes()}
        assert kept == {0: (0, 2), 2: (0, 2), 3: (0, 1)}
    for _ in range(3):
        with Replay(tmp_path / "s") as replay:
            found = {record.episode_id: (record.first_step, record.length) for record in replay.table("t").episodes()}
            assert found == kept


def test_a_table_that_lost_its_last_step_is_as_empty_when_it_is_opened_again(tmp_path):
    with Replay(tmp_path / "s") as replay:
        table = replay.create_table("t", SCALARS, TableConfig(chunk_steps=2))
        write_episodes(table, [4, 2])
        assert table.delete_episodes([0, 1]) == 2
    with Replay(tmp_path / "s") as replay:
        table = replay.table("t")
        assert (table.episodes(), table.stats().steps, table.stats().episodes) == ([], 0, 0)
        write_episodes(table, [3])
        assert table.sample(9, seed=1).positions.min() == 6
