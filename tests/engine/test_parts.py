"""Batches that are gathered in parts, lest one of them hold the table's lock or much memory: the same as in one piece."""

import numpy as np
import pytest

from replaysvc import FieldSpec, Fifo, Her, Limiter, Sequences, Signature, StoreConfig, TableConfig, Transitions
from replaysvc.replay import Replay
from replaysvc.sampling.fetch import Reader
from replaysvc.table import sampling
from tests.builders import NEAR, assert_same, make_goal_table

SMALL = StoreConfig(recent_cache_bytes=1 << 20, faulted_cache_bytes=1 << 20)
MIXED = Signature(
    FieldSpec("observation", (3,), np.float32),  # far from zero in every other episode: float16 around an offset
    FieldSpec("action", (), np.int64),
    tokens=FieldSpec("tokens", (4,), np.int32, ragged=True),
)


def write_mixed(table, episodes, length, rng):
    with table.writer() as writer:
        for episode in range(episodes):
            origin = 30_000.0 * (episode % 2)
            writer.begin(rng.normal(size=3) + origin)
            for t in range(length):
                tokens = rng.integers(0, 9, rng.integers(0, 5))
                writer.append(t, 1.0, rng.normal(size=3) + origin, extras={"tokens": tokens}, truncated=t == length - 1)


REQUESTS = (
    Transitions(), Transitions(n_step=3, stack=2), Sequences(length=5, period=2, n_step=2), Sequences(length=9, stack=3),
)  # fmt: skip


@pytest.fixture
def mixed(replay, rng):
    table = replay.create_table("mixed", MIXED, TableConfig(chunk_steps=4))
    write_mixed(table, 6, 11, rng)
    return table


def in_parts(monkeypatch, table, *arguments, steps=7, size=64 << 20, **options):
    """Samples with the bounds of a part set so low that many are needed."""
    with monkeypatch.context() as patch:
        patch.setattr(sampling, "_PART_STEPS", steps)
        patch.setattr(sampling, "_PART_BYTES", size)
        return table.sample(*arguments, **options)


@pytest.mark.parametrize("what", REQUESTS, ids=repr)
def test_batch_in_parts_is_the_batch_in_one_piece(mixed, monkeypatch, what):
    whole = mixed.sample(33, what, sampler="prioritized", seed=4)
    before = mixed.stats()
    assert_same(in_parts(monkeypatch, mixed, 33, what, sampler="prioritized", seed=4), whole)
    after = mixed.stats()
    assert after.sampled_items_total == before.sampled_items_total + 33
    assert after.sample_calls_total == before.sample_calls_total + 1


def test_hindsight_in_parts_is_hindsight_in_one_piece(replay, monkeypatch):
    table = make_goal_table(replay, [7, 9, 4], chunk_steps=3)
    for what in (Transitions(n_step=2, her=Her(reward=NEAR)), Sequences(length=4, her=Her("final", reward=NEAR))):
        assert_same(in_parts(monkeypatch, table, 40, what, seed=2), table.sample(40, what, seed=2))


def test_cold_batch_never_holds_more_than_a_part_of_its_chunks(tmp_path, monkeypatch, rng):
    """Each chunk has 4 steps; a bound of three chunks lets a batch of 40 chunks be read in fourteen parts or more."""
    with Replay(tmp_path / "s", SMALL) as replay:
        write_mixed(replay.create_table("t", MIXED, TableConfig(chunk_steps=4)), 40, 4, rng)
        whole = replay.table("t").sample(200, seed=1)
    with Replay(tmp_path / "s", SMALL) as replay:
        table = replay.table("t")
        store, reads = table._engine._store, []
        read = store.read
        monkeypatch.setattr(store, "read", lambda ids: reads.append(len(ids)) or read(ids))
        monkeypatch.setattr(table._engine._core.cache, "insert_group", lambda *_: ())  # nothing stays there
        bound = 3 * 4 * MIXED.raw_step_bytes
        assert_same(in_parts(monkeypatch, table, 200, steps=1 << 18, size=bound, seed=1), whole)
        assert max(reads) <= 3
        assert sum(reads) >= 40


def test_chunks_that_are_removed_while_they_are_read_leave_the_cache_alone(tmp_path, monkeypatch, rng):
    """Their rows are gone; those that took their places in the arrays must not be thought to lie where they were put."""
    config = TableConfig(chunk_steps=4, capacity_steps=40)
    with Replay(tmp_path / "s", SMALL) as replay:
        write_mixed(replay.create_table("t", MIXED, config), 10, 4, rng)
    with Replay(tmp_path / "s", SMALL) as replay:
        table, read = replay.table("t"), Reader.read

        def slow(*arguments):
            found = read(*arguments)
            monkeypatch.setattr(Reader, "read", read)
            write_mixed(table, 8, 4, rng)
            table._engine.resize_cache(1 << 20, 1 << 20)  # which empties it
            return found

        monkeypatch.setattr(Reader, "read", slow)
        table.sample(64, seed=1)
        for record in table.episodes():
            columns = table.read_episode(record.episode_id)
            batch = table.sample(300, seed=3)
            mine = batch.episode_id == record.episode_id
            np.testing.assert_array_equal(batch.observation[mine], columns["observation"][batch.t[mine]])


def test_one_item_is_gathered_however_large_it_is(mixed, monkeypatch):
    what = Sequences(length=11)
    assert_same(in_parts(monkeypatch, mixed, 1, what, steps=1, size=1, seed=1), mixed.sample(1, what, seed=1))


@pytest.mark.parametrize("where", ["_take_cached", "_gather"])
def test_batch_that_cannot_be_made_counts_for_nothing(tmp_path, monkeypatch, where):
    """Whatever went wrong: the limiter's share, and what a queue handed out, are there for the next one."""
    config = TableConfig(
        samplers={"fifo": Fifo(1)}, limiter=Limiter(samples_per_insert=1.0, error_buffer=10.0), chunk_steps=4
    )
    with Replay(tmp_path / "s", SMALL) as replay:
        table = replay.create_table("t", MIXED, config)
        write_mixed(table, 2, 4, np.random.default_rng(0))
        engine_sampling = table._engine.draw.__self__
        with monkeypatch.context() as broken:
            broken.setattr(engine_sampling, where, lambda *_: 1 / 0)
            if where == "_gather":
                broken.setattr(engine_sampling, "_take_cached", lambda *_: None)
            with pytest.raises(ZeroDivisionError):
                table.sample(3, sampler="fifo")
        assert table.stats().limiter["sampled"] == 0
        assert table.sample(3, sampler="fifo").positions.tolist() == [0, 1, 2]
