"""What a table counts for whoever watches it, in small tables, by hand."""

import contextlib
import threading

import numpy as np
import pytest

from replaysvc import FieldSpec, Fifo, Goal, Limiter, Prioritized, Signature, StoreConfig, TableConfig, Transitions, Uniform
from replaysvc.errors import NotFoundError, NotReadyError
from replaysvc.replay import Replay
from replaysvc.table import counting
from tests.builders import always, make_goal_table, make_table, write_episode, write_episodes
from tests.waiting import wait_until


def counted(table):
    return table._engine.counted()


def test_items_are_counted_by_the_sampler_that_drew_them(replay):
    table = make_table(replay, [5], samplers={"uniform": Uniform(), "first": Fifo(), "prioritized": Prioritized()})
    assert counted(table).sampled_items == {}
    table.sample(3)
    table.sample(4)
    table.sample(2, sampler="first")
    with pytest.raises(NotReadyError):
        table.sample(4, sampler="first")  # of three that are left
    assert counted(table).sampled_items == {"uniform": 7, "first": 2}


def test_ages_count_sixteen_items_of_every_fourth_batch(replay):
    """Of the queue's items 0 to 31 every second: 0, 2, ... 30, which lie 39, 37, ... 9 behind the newest step, 39."""
    table = make_table(replay, [40], samplers={"first": Fifo(), "last": Fifo()})
    table.sample(32, sampler="first")
    found = counted(table).sample_age_steps
    assert found.bounds[:4] == (1, 4, 16, 64)
    assert found.counts[:4] == (0, 0, 4, 12)
    assert found.total == sum(range(9, 40, 2))
    for _ in range(3):
        table.sample(2, sampler="last")
    assert counted(table).sample_age_steps == found
    table.sample(3, sampler="last")
    assert counted(table).sample_age_steps.counts[:4] == (0, 0, 4, 15)


def test_ages_count_as_of_when_their_batch_was_drawn(replay):
    table = make_table(replay, [1])
    table.sample(1)
    write_episodes(table, [10])
    found = counted(table).sample_age_steps
    assert (found.counts[0], found.total) == (1, 0.0)


def test_what_many_batches_leave_behind_is_counted_before_anybody_asks(replay):
    table = make_table(replay, [1])
    for _ in range(counting._BATCHES + 5):
        table.sample(1)
    inner = table._engine._core.counting
    assert len(inner._aged) == 1
    assert len(inner.times["assemble"]) == 4
    assert counted(table).sample_age_steps.counts[0] == counting._BATCHES // 4 + 2
    assert times(table)["index"] == counting._BATCHES + 5


def test_a_batch_may_be_changed_once_it_is_there(replay):
    table = make_table(replay, [10])
    batch = table.sample(8)
    ages = (9 - batch.positions).sum()
    batch.positions[:] = 0
    assert counted(table).sample_age_steps.total == ages


def test_ends_are_counted_by_their_kind(replay):
    table = make_table(replay, [2, 2])
    write_episodes(table, [3], end="truncated")
    writer = table.writer("a", epoch=1)
    writer.begin(0)
    writer.append(0, 0.0, 1, terminated=True, truncated=True)
    write_episode(writer, 2, end="open")
    writer.flush()
    assert counted(table).ended_episodes == {"terminated": 3, "truncated": 1, "lost_actor": 0}
    table.writer("a", epoch=2)
    assert counted(table).ended_episodes == {"terminated": 3, "truncated": 1, "lost_actor": 1}


def test_what_is_sent_again_is_not_counted_again(replay):
    table = make_table(replay, [2])
    chunk = next(iter(table._engine.episode_chunks(0, None, None)))[0]
    for _ in range(2):
        table._engine.append(b"b" * 16, "b", [(0, chunk)], urgent=True, timeout_s=30)
    assert table.stats().duplicate_chunks_total == 1
    assert counted(table).ended_episodes["terminated"] == 2
    assert {view.name: view.steps for view in table._engine.actors.seen()} == {"": 2, "b": 2}
    assert [column.chunks for column in counted(table).columns] == [2, 2, 2]


def test_removed_steps_are_counted_by_reason(replay):
    table = make_table(replay, [3, 4, 5], chunk_steps=2, capacity_steps=10)
    assert counted(table).removed_steps == {"capacity": 2, "deleted": 0, "damaged": 0}
    table.delete_episodes([1])
    assert counted(table).removed_steps == {"capacity": 2, "deleted": 4, "damaged": 0}
    table._engine.note_damage(4, "so that it is")  # steps 0 and 1 of the last episode
    assert counted(table).removed_steps == {"capacity": 2, "deleted": 4, "damaged": 2}
    write_episodes(table, [8])
    stats, removed = table.stats(), counted(table).removed_steps
    assert stats.appended_steps_total - sum(removed.values()) == stats.steps


def test_relabeled_items_are_counted_among_those_that_ask_for_goals(replay):
    table = make_goal_table(replay, [5])
    table.sample(4)
    assert (counted(table).her_items, counted(table).her_relabeled) == (0, 0)
    table.sample(6, Transitions(her=always(Goal.FUTURE)))
    assert (counted(table).her_items, counted(table).her_relabeled) == (6, 6)


def test_waits_for_the_limiter_are_counted_while_they_last_and_after(replay):
    table = make_table(replay, [3], limiter=Limiter(min_steps=5))
    done = threading.Event()

    def draw():
        table.sample(2, timeout_s=30.0)
        done.set()

    threading.Thread(target=draw).start()
    wait_until(lambda: counted(table).waiting["sample"] == 1)
    assert counted(table).waiting["insert"] == 0
    write_episodes(table, [2])
    assert done.wait(30)
    assert counted(table).waiting == {"insert": 0, "sample": 0}
    assert counted(table).waited_s["sample"] > 0 == counted(table).waited_s["insert"]


def test_inserts_that_wait_are_counted_and_the_reason_is_told(replay):
    table = make_table(replay, [10], chunk_steps=2, limiter=Limiter.queue(10))
    assert "inserted for 0 items sampled" in counted(table).inserting_waits_for
    assert table.stats().inserting_waits_for == counted(table).inserting_waits_for
    writer = table.writer()
    thread = threading.Thread(target=lambda: (write_episode(writer, 2), writer.flush()))
    thread.start()
    wait_until(lambda: counted(table).waiting["insert"] == 1)
    table.sample(2)
    thread.join(30)
    assert counted(table).waiting["insert"] == 0
    assert counted(table).waited_s["insert"] > 0
    table.sample(1)
    assert counted(table).inserting_waits_for == table.stats().inserting_waits_for == ""


def test_a_wait_that_fails_is_counted_too(replay):
    table = make_table(replay, limiter=Limiter(min_steps=5))
    with contextlib.suppress(NotReadyError):
        table.sample(1, timeout_s=0.01)
    assert counted(table).waiting["sample"] == 0
    assert counted(table).waited_s["sample"] >= 0.01


def test_stages_are_timed_as_often_as_they_happen(tmp_path):
    with Replay(tmp_path / "store") as replay:
        table = make_table(replay, [40], chunk_steps=20)
        table.sample(8)
        table.sample(8)
        assert times(table) == {"index": 2, "read": 0, "decompress": 0, "assemble": 2}
    with Replay(tmp_path / "store") as replay:
        table = replay.table("t")
        table.sample(8)  # from the disk
        assert times(table) == {"index": 1, "read": 1, "decompress": 1, "assemble": 1}
        assert all(view.total > 0 for view in counted(table).stages.values())


def times(table):
    return {name: sum(view.counts) for name, view in counted(table).stages.items()}


def test_chunks_that_make_room_in_the_cache_are_counted_but_not_those_that_are_removed(tmp_path):
    """A MiB holds three of the chunks of sixteen steps, each 17 rows of 16 KiB."""
    signature = Signature(FieldSpec("observation", (1 << 14,), np.uint8), FieldSpec("action", (), np.uint8))
    with Replay(tmp_path / "store", StoreConfig(recent_cache_bytes=1 << 20, faulted_cache_bytes=1 << 20)) as replay:
        table = replay.create_table("t", signature, TableConfig(chunk_steps=16))
        assert counted(table).cache_budget_bytes == 2 << 20
        write_wide(table, 3)
        assert counted(table).cache_evictions == 0
        write_wide(table, 2)
        assert counted(table).cache_evictions == 2
        table.sample(200)  # the first two are read back, into a MiB of their own
        assert counted(table).cache_evictions == 2
        table.delete_episodes([0, 1, 2, 3])
        write_wide(table, 3)  # over two that are deleted, and the last of the five
        assert counted(table).cache_evictions == 3


def write_wide(table, episodes):
    with table.writer() as writer:
        for _ in range(episodes):
            writer.begin(np.zeros(1 << 14, np.uint8))
            for t in range(16):
                writer.append(0, 0.0, np.zeros(1 << 14, np.uint8), terminated=t == 15)


def test_counts_begin_anew_with_the_process(tmp_path):
    with Replay(tmp_path / "store") as replay:
        table = make_table(replay, [5], samplers={"uniform": Uniform()})
        table.sample(3)
    with Replay(tmp_path / "store") as replay:
        found = counted(replay.table("t"))
        assert (found.sampled_items, found.ended_episodes["terminated"]) == ({}, 0)
        assert [column.chunks for column in found.columns] == [0, 0, 0]


def test_a_ragged_column_has_no_size_along_its_axis(replay):
    signature = Signature(FieldSpec("observation", (6, 2), np.uint8, ragged=True), FieldSpec("action", (), np.uint8))
    shapes = {column.name: column.shape for column in counted(replay.create_table("t", signature)).columns}
    assert [shape for shape in shapes.values() if None in shape] == [(None, 2)]


def test_bytes_of_columns_are_as_declared(replay):
    table = make_table(replay, [3, 4], chunk_steps=2)  # chunks of 2, 1, 2 and 2 steps
    found = counted(table).columns
    assert [column.raw_bytes for column in found] == [11 * 8, 7 * 8, 7 * 4]
    assert sum(column.stored_bytes for column in found) < table.stats().stored_bytes  # which has the headers, too


def test_a_deleted_table_tells_nothing_any_more(replay):
    table = make_table(replay, [3])
    engine = table._engine
    replay.delete_table("t")
    for look in (engine.counted, engine.looking.ages, engine.looking.samplers, engine.looking.columns):
        with pytest.raises(NotFoundError):
            look()

