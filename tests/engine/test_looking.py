"""Looks at a table: what they tell of small tables, worked by hand, and that they leave no trace."""

import pickle

import numpy as np
import pytest

from replaysvc import (
    EpisodeUniform,
    FieldSpec,
    Fifo,
    Lifo,
    Precision,
    Prioritized,
    Recency,
    Sequences,
    Signature,
    TableConfig,
    Transitions,
    Uniform,
)
from replaysvc.errors import InvalidRequestError, NotFoundError
from replaysvc.replay import Replay
from replaysvc.storage import System
from tests.builders import SCALARS, make_table, write_episode, write_episodes

SAMPLERS = {
    "uniform": Uniform(), "prioritized": Prioritized(alpha=0.5), "recent": Recency(10.0), "by_episode": EpisodeUniform(),
    "first": Fifo(), "last": Lifo(),
}  # fmt: skip


class Clock(System):
    """A clock that is set by hand."""

    now = 1000.0

    def time(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def aged(tmp_path, clock):
    """Ten steps, in chunks of two: of each pair the clock says 100 seconds more than of the one before; it is 2000 at last."""
    with Replay(tmp_path / "store", system=clock) as replay:
        table = replay.create_table("t", SCALARS, TableConfig(chunk_steps=2, samplers=SAMPLERS))
        with table.writer() as writer:
            writer.begin(0)
            for t in range(10):
                clock.now = 1000.0 + 100 * (t // 2)
                writer.append(t, 0.0, t + 1, terminated=t == 9)
                if t % 2:
                    writer.flush()
        clock.now = 2000.0
        yield table


def looking(table):
    return table._engine.looking


# -- ages -----------------------------------------------------------------------------------------------------------------


def test_ages_of_all_steps_are_told_where_there_are_few(aged):
    found = looking(aged).ages()
    assert found.ages_s.tolist() == [600.0, 600.0, 700.0, 700.0, 800.0, 800.0, 900.0, 900.0, 1000.0, 1000.0]
    assert found.steps == 10


def test_ages_of_few_are_those_of_evenly_spaced_steps(aged):
    assert looking(aged).ages(2).ages_s.tolist() == [600.0, 1000.0]
    assert looking(aged).ages(4).ages_s.tolist() == [600.0, 700.0, 900.0, 1000.0]  # steps 0, 3, 6 and 9


def test_a_clock_that_was_set_back_makes_nothing_younger_than_new(aged, clock):
    clock.now = 1150.0
    assert looking(aged).ages().ages_s.tolist() == [0.0] * 6 + [50.0, 50.0, 150.0, 150.0]


def test_ages_leave_out_what_was_deleted(tmp_path, clock):
    with Replay(tmp_path / "store", system=clock) as replay:
        table = make_table(replay, [3])
        clock.now = 1500.0
        write_episodes(table, [2])
        clock.now = 1600.0
        write_episodes(table, [1])
        table.delete_episodes([1])
        found = looking(table).ages()
        assert (found.ages_s.tolist(), found.steps) == ([0.0, 600.0, 600.0, 600.0], 4)


def test_an_empty_table_has_nothing_to_look_at(replay):
    look = looking(make_table(replay, samplers=SAMPLERS))
    assert (look.ages().ages_s.tolist(), look.ages().steps) == ([], 0)
    assert [look.draws(name) for name in SAMPLERS] == [None] * 6
    assert [look.priorities(name) for name in SAMPLERS] == [None] * 6
    assert look.top("prioritized") == []
    assert len(look.episode_columns().episode_id) == 0
    assert [column.chunks for column in look.columns()] == [0, 0, 0]


# -- samplers -------------------------------------------------------------------------------------------------------------


def test_samplers_tell_their_options_and_whether_they_are_in_use(aged):
    known = {view.name: view for view in looking(aged).samplers()}
    assert [(view.name, view.kind, view.built) for view in known.values()] == [
        ("by_episode", "EpisodeUniform", False), ("first", "Fifo", False), ("last", "Lifo", False),
        ("prioritized", "Prioritized", False), ("recent", "Recency", True), ("uniform", "Uniform", True),
    ]  # fmt: skip
    assert known["prioritized"].options == {"alpha": 0.5, "beta": 0.4, "norm": "batch", "initial_priority": None}
    assert known["first"].options == {"max_times_sampled": 1}
    assert known["uniform"].options == {}
    for name in SAMPLERS:
        aged.sample(3, sampler=name)
    known = {view.name: view for view in looking(aged).samplers()}
    assert [view.built for view in known.values()] == [True] * 6
    assert [known[name].available for name in ("uniform", "first", "last")] == [None, 7, 7]


def test_an_unknown_sampler_is_not_found(aged):
    for look in (looking(aged).priorities, looking(aged).draws, looking(aged).top):
        with pytest.raises(NotFoundError, match="'other' is not in table t"):
            look("other")


# -- priorities -----------------------------------------------------------------------------------------------------------


def test_priorities_are_told_as_they_were_given(aged):
    aged.update_priorities([0, 1, 9], [4.0, 0.0, 9.0])  # the others have 1
    found = looking(aged).priorities("prioritized")
    np.testing.assert_allclose(found.values, [4, 0, 1, 1, 1, 1, 1, 1, 1, 9])
    assert found.zero_share == 0.1
    assert found.alpha == 0.5
    assert found.powered_total == 2 + 0 + 7 + 3
    assert found.powered_largest == 3
    assert looking(aged).priorities("prioritized", 2).values.tolist() == [4, 9]


def test_priorities_of_what_keeps_none_are_not_told(aged):
    assert looking(aged).priorities("prioritized") is None  # not in use yet
    assert looking(aged).priorities("uniform") is None


def test_the_top_are_the_steps_with_the_largest_priorities(replay):
    table = make_table(replay, [3, 4], samplers={"prioritized": Prioritized(alpha=0.5)})
    assert looking(table).top("prioritized") == []
    table.update_priorities(range(7), [4.0, 0.0, 1.0, 0.0, 16.0, 4.0, 0.0])
    found = looking(table).top("prioritized")
    assert [(step.position, step.episode_id, step.t) for step in found] == [(4, 1, 1), (0, 0, 0), (5, 1, 2), (2, 0, 2)]
    assert [step.priority for step in found] == [16, 4, 4, 1]
    assert [step.probability for step in found] == pytest.approx([4 / 9, 2 / 9, 2 / 9, 1 / 9])
    assert looking(table).top("prioritized", 2) == found[:2]


def test_priorities_of_an_episode_are_told_step_by_step(replay):
    samplers = {"a": Prioritized(alpha=1.0), "b": Prioritized(), "c": Uniform()}
    table = make_table(replay, [3, 4], chunk_steps=2, samplers=samplers)
    assert looking(table).episode_priorities(1, 0, 4) == {}
    table.update_priorities([3, 5], [5.0, 0.0], sampler="a")
    found = looking(table).episode_priorities(1, 0, 4)
    assert {name: values.tolist() for name, values in found.items()} == {"a": [5.0, 1.0, 0.0, 1.0]}
    assert looking(table).episode_priorities(1, 1, 3)["a"].tolist() == [1.0, 0.0]


def test_steps_that_cannot_be_drawn_have_no_priority(replay):
    """Ten steps in chunks of two: capacity has removed the first three, and steps 6 and 7 are damaged."""
    table = make_table(replay, [10], chunk_steps=2, capacity_steps=7, samplers={"a": Prioritized(alpha=1.0)})
    table.update_priorities(range(10), np.arange(10.0) + 1, sampler="a")
    table._engine.note_damage(3, "so that it is")
    nan = float("nan")
    found = looking(table).episode_priorities(0, 0, 10)["a"]
    np.testing.assert_array_equal(found, [nan, nan, nan, 4, 5, 6, nan, nan, 9, 10])
    np.testing.assert_array_equal(looking(table).episode_priorities(0, 1, 3)["a"], [nan, nan])


@pytest.mark.parametrize(("start", "stop"), [(0, 5), (4, 4), (3, 2), (-1, 2)])
def test_a_range_outside_the_episode_is_refused(replay, start, stop):
    table = make_table(replay, [4])
    with pytest.raises(InvalidRequestError):
        looking(table).episode_priorities(0, start, stop)


def test_priorities_of_more_steps_than_a_look_is_at_are_refused(replay):
    with pytest.raises(InvalidRequestError, match="at most 16,384 steps"):
        looking(make_table(replay, [4])).episode_priorities(0, 0, 16_385)


def test_priorities_of_an_unknown_episode_are_not_found(replay):
    with pytest.raises(NotFoundError):
        looking(make_table(replay, [4])).episode_priorities(1, 0, 1)


# -- draws ----------------------------------------------------------------------------------------------------------------


def test_uniform_draws_are_told_with_their_chances(aged):
    found = looking(aged).draws("uniform", 600)
    assert len(found.ages_s) == len(found.probability) == 600
    assert set(found.ages_s.tolist()) == {600.0, 700.0, 800.0, 900.0, 1000.0}
    assert set(found.probability.tolist()) == {0.1}
    assert found.uniform_probability == 0.1


def test_prioritized_draws_follow_the_priorities(aged):
    assert looking(aged).draws("prioritized") is None  # to draw would build the tree
    aged.update_priorities(range(10), [0.0] * 8 + [1.0, 9.0])
    found = looking(aged).draws("prioritized", 100)
    assert set(found.ages_s.tolist()) == {600.0}
    assert sorted(found.probability.tolist()) == [0.25] * 25 + [0.75] * 75
    aged.update_priorities(range(10), [0.0] * 10)
    assert looking(aged).draws("prioritized") is None


def test_draws_by_episode_are_told_once_they_build_nothing(replay):
    table = make_table(replay, [1, 4], samplers={"by_episode": EpisodeUniform()})
    assert looking(table).draws("by_episode") is None
    table.sample(1, sampler="by_episode")
    assert set(looking(table).draws("by_episode", 64).probability.tolist()) == {1 / 2, 1 / 8}


def test_queues_are_never_drawn_from_to_look(aged):
    for name in ("first", "last"):
        aged.sample(1, sampler=name)
        assert looking(aged).draws(name) is None
        assert aged.stats().queues[name] == 9


# -- columns --------------------------------------------------------------------------------------------------------------


def test_columns_are_told_in_declared_and_in_stored_bytes(replay):
    """Of three float16 chunks one holds a value that float16 cannot: it is kept lossless."""
    observation = FieldSpec("observation", (2,), np.float32, Precision.FLOAT16, max_error=0.01)
    signature = Signature(observation, FieldSpec("action", (), np.int16))
    table = replay.create_table("t", signature, TableConfig(chunk_steps=4))
    with table.writer() as writer:
        for huge in (False, True, False):
            writer.begin(np.zeros(2, np.float32))
            for t in range(4):
                writer.append(t, 0.0, np.array([1e30 * huge, t], np.float32), terminated=t == 3)
    found = looking(table).columns()
    assert [(c.name, c.dtype, c.shape) for c in found] == [
        ("observation", "float32", (2,)), ("action", "int16", ()), ("reward", "float32", ()),
    ]  # fmt: skip
    assert [c.raw_bytes for c in found] == [3 * 5 * 8, 12 * 2, 12 * 4]
    assert [(c.chunks, c.lossless_chunks) for c in found] == [(3, 1), (3, 0), (3, 0)]
    assert all(0 < c.stored_bytes <= c.raw_bytes for c in found)
    assert list(table._engine.counted().columns) == found
    assert [c.chunks for c in looking(table).columns(2)] == [2, 2, 2]
    assert [c.lossless_chunks for c in looking(table).columns(2)] == [0, 0, 0]  # the first and the last


def test_damaged_and_removed_chunks_are_left_out_of_the_columns(replay):
    table = make_table(replay, [2, 2, 2], chunk_steps=2)
    table._engine.note_damage(1, "so that it is")
    table.delete_episodes([0])
    assert [(c.chunks, c.raw_bytes) for c in looking(table).columns()] == [(1, 24), (1, 16), (1, 8)]


def test_columns_of_episodes_are_those_of_the_newest(replay):
    table = make_table(replay, [2, 1, 3])
    with table.writer() as writer:
        write_episode(writer, 2, end="open", policy_version=7)
        writer.flush()
        table.delete_episodes([1])
        found = looking(table).episode_columns()
        assert found.episode_id.tolist() == [0, 2, 3]
        assert found.length.tolist() == [2, 3, 2]
        assert found.return_.tolist() == [10.0, 36.0, 10.0]
        assert found.terminated.tolist() == found.closed.tolist() == [True, True, False]
        assert found.truncated.tolist() == found.lost_actor.tolist() == [False] * 3
        assert found.policy_version.tolist() == [-1, -1, 7]
        assert looking(table).episode_columns(2).episode_id.tolist() == [2, 3]
        assert looking(table).episode_columns(1).episode_id.tolist() == [3]


def test_columns_of_episodes_find_the_newest_behind_many_that_were_deleted(replay):
    table = make_table(replay, [1] * 40)
    table.delete_episodes(range(5, 40))
    assert looking(table).episode_columns(3).episode_id.tolist() == [2, 3, 4]


# -- no trace -------------------------------------------------------------------------------------------------------------


def trace(table):
    """Returns all that a look could leave behind."""
    core = table._engine._core
    samplers = core.samplers
    return {
        "sets": list(samplers._sets), "trees": sorted(map(str, samplers._trees)), "queues": sorted(samplers.queues),
        "priorities": {name: known.tree.nbytes for name, known in samplers.priorities.items()},
        "rng": pickle.dumps(core.rng.bit_generator.state), "counts": dict(core.counts),
        "limiter": (core.limiter.inserted, core.limiter.sampled), "sampled": dict(core.counting.sampled),
        "blocks": set(samplers._changed), "available": [queue.available for _, queue in samplers.queues.values()],
    }  # fmt: skip


def look_at_all(table):
    look = looking(table)
    look.ages(), look.samplers(), look.columns(), look.episode_columns(), look.episode_priorities(0, 0, 2)
    for name in SAMPLERS:
        look.priorities(name), look.draws(name), look.top(name)
    table._engine.actors.seen(), table._engine.counted(), table.stats()


@pytest.mark.parametrize("used", [(), tuple(SAMPLERS)], ids=["before use", "in use"])
def test_a_look_leaves_no_trace(aged, used):
    for name in used:
        aged.sample(2, Transitions(n_step=2), sampler=name)
        aged.sample(2, Sequences(length=2), sampler="by_episode")  # so that other sets stand before the steps' own
    before = trace(aged)
    look_at_all(aged)
    assert trace(aged) == before
