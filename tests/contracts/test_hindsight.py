"""Hindsight goals: which, and from where, the same on both doors.

The agent of episode e stands at 1000 * e + t before step t, so the goal that replaces the unreachable one tells which step's
outcome it is: position - 1.
"""

import numpy as np
import pytest

from replaysvc import Episodes, FieldSpec, Goal, Her, Prioritized, Sequences, Signature, TableConfig, Transitions
from replaysvc.errors import InvalidRequestError, NotReadyError
from tests.builders import (
    GOALS,
    NEAR,
    always,
    chosen,
    flat,
    goal_observation,
    make_goal_table,
    make_table,
    open_door,
    write_goal_episode,
)
from tests.statistics import check_counts, check_draws


@pytest.mark.parametrize("chunk_steps", [1, 2, 3, 64])
@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        (Goal.FUTURE, {0: [0, 1, 2, 3], 1: [1, 2, 3], 2: [2, 3], 3: [3]}),
        (Goal.FINAL, {0: [3], 1: [3], 2: [3], 3: [3]}),
        (Goal.EPISODE, {0: [0, 1, 2, 3], 1: [0, 1, 2, 3], 2: [0, 1, 2, 3], 3: [0, 1, 2, 3]}),
    ],
)
def test_goals_are_drawn_uniformly_from_the_steps_that_the_strategy_allows(door, chunk_steps, goal, expected):
    """Never a goal that was reached before the window's first action, and the last step's outcome is one of them."""
    table = make_goal_table(door, [4, 2, 4], chunk_steps=chunk_steps)
    batch = table.sample(6000, Transitions(her=always(goal)), seed=1)
    assert batch.relabeled.tolist() == [True] * 6000
    outcomes = chosen(batch)
    for episode in (0, 2):
        for t, steps in expected.items():
            at = (batch.episode_id == episode) & (batch.t == t)
            check_draws(outcomes[at], {step: 1 / len(steps) for step in steps})
    assert set(outcomes[batch.episode_id == 1].tolist()) <= {0, 1}
    assert batch.probability == pytest.approx(np.full(6000, 1 / 10))


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_each_window_is_relabelled_with_the_chance_asked_for(door, ratio):
    table = make_goal_table(door, [4])
    batch = table.sample(4000, Transitions(her=Her(goal=Goal.FINAL, ratio=ratio, reward=NEAR)), seed=2)
    check_counts(np.bincount(batch.relabeled, minlength=2), [1 - ratio, ratio])
    goals = np.where(batch.relabeled, 4, 500)
    assert (batch.observation["desired_goal"][:, 0] == goals).all()
    assert (batch.next_observation["desired_goal"][:, 0] == goals).all()
    assert (batch.reward == np.where(batch.relabeled & (batch.t == 3), 10, -1)).all()
    assert (batch.terminated == (batch.relabeled & (batch.t == 3))).all()
    assert (batch.truncated == (~batch.relabeled & (batch.t == 3))).all()
    assert (batch.observation["achieved_goal"][:, 0] == batch.t).all()


def test_without_hindsight_nothing_says_so(door):
    batch = make_goal_table(door, [4]).sample(8, Transitions())
    assert batch.relabeled is None
    assert "relabeled" not in batch.asdict()
    assert (batch.observation["desired_goal"][:, 0] == 500).all()


def test_goals_of_sequences_come_from_their_first_step_on(door):
    table = make_goal_table(door, [6])
    batch = table.sample(2000, Sequences(length=2, her=always(Goal.FUTURE)), seed=12)
    outcomes = chosen(batch)
    for begin in (0, 2, 4):
        check_draws(outcomes[batch.t == begin], dict.fromkeys(range(begin, 6), 1.0))
    unreached = outcomes > batch.t + 1
    assert batch.mask[unreached].all()
    assert (batch.reward[unreached] == -1).all()
    assert (batch.mask[outcomes == batch.t] == [True, False]).all()


def test_whole_episodes_can_be_relabelled(door):
    table = make_goal_table(door, [3, 2])
    batch = table.sample(20, Episodes(gamma=0.5, her=always(Goal.FINAL)), seed=15)
    for i, episode in enumerate(batch.episode_id.tolist()):
        length = 3 - episode
        assert batch.mask[i].sum() == length
        assert batch.reward[i][:length].tolist() == [-1] * (length - 1) + [10]
    assert (chosen(batch) == 2 - batch.episode_id).all()


def test_goals_of_several_actors_never_mix(door):
    table = door.create_table("t", GOALS, TableConfig(chunk_steps=3))
    writers = [table.writer(actor=f"actor-{i}") for i in range(3)]
    lengths, rng = [0, 0, 0], np.random.default_rng(3)
    for i, writer in enumerate(writers):
        writer.begin(goal_observation(i, 0))
    for _ in range(150):
        i = int(rng.integers(3))
        lengths[i] += 1
        end = lengths[i] == 50 or rng.random() < 0.1
        writers[i].append(i, -1.0, goal_observation(i, lengths[i]), truncated=bool(end))
        if end:
            lengths[i] = 0
            writers[i].begin(goal_observation(i, 0))
    for writer in writers:
        writer.close()
    ends = {record.episode_id: record.length for record in table.episodes(closed_only=True)}
    assert len(ends) > 8
    for goal in Goal:
        batch = table.sample(400, Transitions(n_step=2, her=always(goal)), seed=16)
        outcomes, last = chosen(batch), np.array([ends[e] for e in batch.episode_id.tolist()]) - 1
        assert (batch.action == batch.observation["state"][:, 0] // 1000).all()
        assert (outcomes <= last).all()
        assert (outcomes >= (batch.t if goal is Goal.FUTURE else last if goal is Goal.FINAL else 0)).all()


def test_priorities_combine_with_hindsight(door):
    table = make_goal_table(door, [3], samplers={"p": Prioritized(alpha=1.0)})
    table.update_priorities([0, 1, 2], [1, 0, 3], sampler="p")
    batch = table.sample(400, Transitions(her=always(Goal.FUTURE)), sampler="p", seed=17)
    check_draws(batch.t, {0: 0.25, 2: 0.75})
    assert batch.probability == pytest.approx(np.where(batch.t == 0, 0.25, 0.75))
    check_draws(chosen(batch)[batch.t == 0], {0: 1.0, 1: 1.0, 2: 1.0})


def renamed(shape=(2,)):
    return Signature(
        {"goal": {"at": FieldSpec("at", (2,), np.float32), "to": FieldSpec("to", shape, np.float32)},
         "pos": FieldSpec("pos", (1,), np.float64), "target": FieldSpec("target", (1,), np.float64)},
        FieldSpec("action", (), np.int64),
    )  # fmt: skip


def write_renamed(table, shape=(2,)):
    with table.writer() as writer:
        rows = [{"goal": {"at": [t, t], "to": np.full(shape, 9.0)}, "pos": [t + 0.5], "target": [9.0]} for t in range(4)]
        writer.begin(rows[0])
        for t in range(3):
            writer.append(t, -1.0, rows[t + 1], truncated=t == 2)


def test_goals_may_have_names_of_their_own(door):
    table = door.create_table("t", renamed())
    write_renamed(table)
    for achieved, desired in (("pos", "target"), ("observation/pos", "observation/target")):
        batch = table.sample(20, Transitions(her=always(Goal.FINAL, achieved=achieved, desired=desired)), seed=18)
        assert (batch.observation["target"] == 3.5).all()
        assert (batch.observation["goal"]["to"] == 9).all()
        assert (batch.terminated == (batch.t == 2)).all()
    names = {"achieved": "observation/goal/at", "desired": "observation/goal/to"}
    batch = table.sample(20, Transitions(her=always(Goal.FINAL, **names)), seed=18)
    assert (batch.next_observation["goal"]["to"] == 3).all()
    assert (batch.observation["target"] == 9).all()


@pytest.mark.parametrize(
    ("her", "word"), [(Her(), "achieved"), (Her(achieved="pos"), "desired"), (Her(achieved="pos", desired="goal"), "desired")]
)
def test_missing_goal_columns_are_refused_by_name(door, her, word):
    table = door.create_table("t", renamed())
    write_renamed(table)
    with pytest.raises(InvalidRequestError, match=word):
        table.sample(4, Transitions(her=her))


def test_goals_of_different_shapes_and_observations_without_goals_are_refused(door):
    table = door.create_table("u", renamed(shape=(3,)))
    write_renamed(table, shape=(3,))
    names = {"achieved": "observation/goal/at", "desired": "observation/goal/to"}
    with pytest.raises(InvalidRequestError, match="desired"):
        table.sample(4, Transitions(her=Her(**names)))
    with pytest.raises(InvalidRequestError, match="achieved"):
        make_table(door, [3]).sample(4, Transitions(her=Her()))


def test_no_finished_episode_is_said_and_open_ones_are_used_if_asked_for(door):
    table = door.create_table("t", GOALS)
    writer = table.writer()
    write_goal_episode(writer, 4, end="open")
    writer.flush()
    for what in (Transitions(her=Her()), Sequences(length=2, her=Her())):
        with pytest.raises(NotReadyError, match="no finished episode"):
            table.sample(4, what)
    for goal, steps in ((Goal.FINAL, {3}), (Goal.EPISODE, {0, 1, 2, 3})):
        batch = table.sample(100, Transitions(gamma=0.5, her=always(goal, open_episodes=True)), seed=19)
        assert set(batch.t.tolist()) == {0, 1, 2, 3}
        assert set(chosen(batch).tolist()) == steps
    writer.append(4, -1.0, goal_observation(0, 5), terminated=True)
    writer.close()
    assert set(chosen(table.sample(50, Transitions(her=always(Goal.FINAL)), seed=19)).tolist()) == {4}


def test_only_closed_episodes_are_drawn_unless_open_ones_are_asked_for(door):
    table = make_goal_table(door, [2])
    with table.writer() as writer:
        write_goal_episode(writer, 3, episode=1, end="open")
    for ratio in (0.0, 0.5):
        batch = table.sample(60, Transitions(her=Her(ratio=ratio)), seed=20)
        assert set(batch.episode_id.tolist()) == {0}
        assert batch.probability == pytest.approx(np.full(60, 0.5))
    batch = table.sample(60, Transitions(her=Her(open_episodes=True)), seed=20)
    assert set(batch.positions.tolist()) == {0, 1, 2, 3, 4}


def test_stored_data_are_as_they_were(door):
    table = make_goal_table(door, [5, 3], chunk_steps=2)
    before = [flat(table.read_episode(i)) for i in range(2)]
    for goal in Goal:
        table.sample(50, Sequences(length=3, her=always(goal)), seed=21)
        batch = table.sample(50, Transitions(n_step=2, her=always(goal)), seed=21)
        batch.observation["desired_goal"][:] = -7  # the arrays are the caller's own
    for i in range(2):
        after = flat(table.read_episode(i))
        assert all((after[name] == values).all() for name, values in before[i].items())
        assert (after["observation/desired_goal"][:, 0] == 1000 * i + 500).all()
    assert (table.sample(50, Transitions()).observation["desired_goal"][:, 0] % 1000 == 500).all()
    assert set(table.sample(50, Transitions()).reward.tolist()) == {-1.0}


def test_goals_stay_within_their_episode_while_a_full_table_moves_on(door):
    """A thousand steps in episodes of 15 pass through a table of 100, which cuts the oldest one anywhere."""
    table = door.create_table("t", GOALS, TableConfig(capacity_steps=100, chunk_steps=4))
    with table.writer() as writer:
        for episode in range(67):
            write_goal_episode(writer, 15, episode=episode, end=("truncated", "terminated")[episode % 2])
            if episode % 3:
                continue
            writer.flush()
            first_stored = max(0, 15 * (episode + 1) - 100)
            for goal in Goal:
                batch = table.sample(100, Transitions(n_step=2, her=always(goal)), seed=episode)
                outcomes = chosen(batch)
                assert (batch.positions >= first_stored).all()
                assert (outcomes <= 14).all()
                assert (outcomes >= {Goal.FUTURE: batch.t, Goal.FINAL: 14, Goal.EPISODE: 0}[goal]).all()
    assert table.stats().steps == 100


@pytest.mark.parametrize("chunk_steps", [1, 64])
def test_goals_of_an_episode_that_lost_its_beginning_are_those_of_the_steps_that_are_left(door, chunk_steps):
    table = make_goal_table(door, [9], chunk_steps=chunk_steps, capacity_steps=5)
    batch = table.sample(2000, Transitions(her=always(Goal.EPISODE)), seed=23)
    assert set(batch.t.tolist()) == {4, 5, 6, 7, 8}
    check_draws(chosen(batch), dict.fromkeys(range(4, 9), 1.0))


@pytest.mark.parametrize("kind", ["embedded", "client"])
def test_episode_left_open_by_an_earlier_run_is_not_joined_with_the_next(tmp_path, kind):
    with open_door(kind, tmp_path / "s") as door:
        make_goal_table(door, [3], end="open")
    with open_door(kind, tmp_path / "s") as door:
        table = door.table("t")
        with table.writer() as writer:
            write_goal_episode(writer, 7, episode=1)
        assert {record.length for record in table.episodes()} == {3, 7}
        batch = table.sample(50, Transitions(her=always(Goal.FINAL)), seed=22)
        assert set(chosen(batch).tolist()) == {6}
        batch = table.sample(100, Transitions(her=always(Goal.FINAL, open_episodes=True)), seed=22)
        assert (chosen(batch) == np.where(batch.episode_id == 0, 2, 6)).all()
