"""Priorities: how they come into being, are drawn by and are changed, the same on both doors."""

import threading

import numpy as np
import pytest

from replaysvc import (
    AtEnd,
    Episodes,
    FieldSpec,
    Goal,
    Her,
    Prioritized,
    Sequences,
    Signature,
    SparseReward,
    Stack,
    Transitions,
    Uniform,
    WeightNorm,
)
from replaysvc.errors import ConfigurationError, InvalidRequestError, NotReadyError
from tests.builders import (
    SCALARS,
    assert_same,
    make_goal_table,
    make_table,
    open_door,
    write_episode,
    write_episodes,
    write_goal_episode,
)
from tests.statistics import check_counts, check_draws

PRIORITIES = [1, 32, 243, 1024]  # to the power of 0.6: 1, 8, 27, 64, which sum to 100
ONE_STEP = Transitions()
LINEAR = {"prioritized": Prioritized(alpha=1.0)}


def chances(table, *, what=ONE_STEP, sampler="prioritized", draws=2000):
    """Returns {position: probability} of all that is drawn in a large batch."""
    batch = table.sample(draws, what, sampler=sampler, seed=1)
    return dict(zip(batch.positions.tolist(), batch.probability.tolist(), strict=True))


@pytest.mark.parametrize(
    ("alpha", "shares"), [(0.0, [0.25] * 4), (0.6, [0.01, 0.08, 0.27, 0.64]), (1.0, [p / 1300 for p in PRIORITIES])]
)
def test_items_are_drawn_in_proportion_to_priority_to_the_alpha(door, alpha, shares):
    table = make_table(door, [4], samplers={"prioritized": Prioritized(alpha=alpha)})
    assert table.update_priorities([0, 1, 2, 3], PRIORITIES) == (4, 0)
    batch = table.sample(20_000, sampler="prioritized", seed=5)
    assert batch.probability == pytest.approx(np.array(shares)[batch.positions], rel=1e-9)
    check_counts(np.bincount(batch.positions, minlength=4), shares)
    assert (batch.observation == batch.positions).all()


def test_single_draws_have_the_same_distribution_as_a_batch(door):
    table = make_table(door, [3], samplers=LINEAR)
    table.update_priorities([0, 1, 2], [1, 2, 5])
    drawn = [int(table.sample(1, sampler="prioritized", seed=seed).positions[0]) for seed in range(400)]
    check_draws(drawn, {0: 0.125, 1: 0.25, 2: 0.625})


def test_draws_of_a_batch_come_one_from_each_equal_stratum(door):
    """Four equal priorities and a batch of four: each item exactly once, whatever the seed."""
    table = make_table(door, [4], samplers=LINEAR)
    for seed in range(20):
        assert sorted(table.sample(4, sampler="prioritized", seed=seed).positions.tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("beta", "weights"), [(0.0, [1, 1, 1, 1]), (0.5, [1, 8**-0.5, 27**-0.5, 1 / 8]), (1.0, [1, 1 / 8, 1 / 27, 1 / 64])]
)
def test_importance_weights_worked_by_hand(door, beta, weights):
    """N * P is 0.04, 0.32, 1.08, 2.56. The rarest item of the table has weight 1, or the rarest of the batch."""
    samplers = {norm.value: Prioritized(beta=beta, norm=norm) for norm in WeightNorm}
    table = make_table(door, [4], samplers=samplers)
    weights, without_the_rarest = np.array(weights), 0
    for sampler in samplers:
        table.update_priorities([0, 1, 2, 3], PRIORITIES, sampler=sampler)
    for seed in range(15):
        batch = table.sample(3, sampler="table", seed=seed)
        assert batch.importance_weight == pytest.approx(weights[batch.positions], rel=1e-5)
        batch = table.sample(3, sampler="batch", seed=seed)
        assert batch.importance_weight == pytest.approx(weights[batch.positions] / weights[batch.positions].max(), rel=1e-5)
        without_the_rarest += 0 not in batch.positions
    assert without_the_rarest > 5
    assert batch.importance_weight.dtype == np.float32


def test_weights_of_the_table_norm_leave_out_what_is_never_drawn(door):
    table = make_table(door, [4], samplers={"prioritized": Prioritized(alpha=1.0, beta=1.0, norm=WeightNorm.TABLE)})
    table.update_priorities([0, 1, 2, 3], [0, 1, 1, 2])
    batch = table.sample(40, sampler="prioritized", seed=0)
    assert batch.importance_weight == pytest.approx(np.array([0, 1, 1, 0.5])[batch.positions])


def test_beta_of_a_request_overrides_that_of_the_sampler(door):
    table = make_table(door, [2], samplers={"prioritized": Prioritized(alpha=1.0, beta=0.0)})
    table.update_priorities([0, 1], [1, 4])
    for beta, weight in ((None, 1.0), (0.0, 1.0), (0.5, 0.5), (1.0, 0.25)):
        batch = table.sample(50, sampler="prioritized", seed=3, beta=beta)
        assert batch.importance_weight == pytest.approx(np.array([1, weight])[batch.positions])
    stream = table.stream(50, sampler="prioritized", beta=1.0)
    batch = next(stream)
    assert batch.importance_weight == pytest.approx(np.array([1, 0.25])[batch.positions])
    stream.close()


@pytest.mark.parametrize("beta", [-0.1, float("nan"), float("inf"), "much"])
def test_beta_out_of_range_is_refused(door, beta):
    table = make_table(door, [2])
    with pytest.raises(InvalidRequestError, match="beta"):
        table.sample(1, sampler="prioritized", beta=beta)


def test_new_steps_get_the_largest_priority_that_is_in_the_table_now(door):
    table = make_table(door, [2], samplers=LINEAR)
    assert chances(table) == {0: 0.5, 1: 0.5}
    table.update_priorities([0, 1], [3, 0.5])
    write_episodes(table, [1])
    assert chances(table) == pytest.approx({0: 3 / 6.5, 1: 0.5 / 6.5, 2: 3 / 6.5})
    table.update_priorities([0, 2], [0.25, 0.25])  # 0.5 is the largest now; 3 was once
    write_episodes(table, [1])
    assert chances(table) == pytest.approx({0: 0.25 / 1.5, 1: 0.5 / 1.5, 2: 0.25 / 1.5, 3: 0.5 / 1.5})


def test_priority_of_a_removed_step_no_longer_counts_as_the_largest(door):
    table = make_table(door, [3], samplers=LINEAR, capacity_steps=3)
    table.update_priorities([0, 1, 2], [8, 2, 2])
    write_episodes(table, [1])  # gets 8, and removes position 0
    assert chances(table) == pytest.approx({1: 2 / 12, 2: 2 / 12, 3: 8 / 12})
    table.update_priorities([3], [1])
    write_episodes(table, [1])  # gets 2, and removes position 1
    assert chances(table) == pytest.approx({2: 0.4, 3: 0.2, 4: 0.4})


def write_rated(table, priorities):
    with table.writer() as writer:
        writer.begin(0)
        for t, priority in enumerate(priorities):
            writer.append(t, 0.0, t + 1, extras={"rating": priority}, truncated=t == len(priorities) - 1)


def rated(dtype, shape=()):
    return Signature(SCALARS.observation, SCALARS.action, rating=FieldSpec("rating", shape, dtype))


def test_priority_that_the_writer_gives_holds_until_an_update(door):
    samplers = {"prioritized": Prioritized(alpha=1.0, initial_priority="rating"), "other": Prioritized(alpha=1.0)}
    table = make_table(door, signature=rated(np.float32), samplers=samplers, chunk_steps=2)
    write_rated(table, [1, 0, 4, 3])
    assert chances(table) == pytest.approx({0: 1 / 8, 2: 4 / 8, 3: 3 / 8})
    assert chances(table, sampler="other") == {0: 0.25, 1: 0.25, 2: 0.25, 3: 0.25}
    table.update_priorities([2, 1], [1, 5])
    assert chances(table) == pytest.approx({0: 0.1, 1: 0.5, 2: 0.1, 3: 0.3})


@pytest.mark.parametrize(
    "signature", [SCALARS, rated(np.int64), rated(np.float32, (2,))], ids=["absent", "integer", "not a scalar"]
)
def test_initial_priority_needs_a_float_scalar_extra_of_that_name(door, signature):
    with pytest.raises(InvalidRequestError, match="initial_priority"):
        make_table(door, signature=signature, samplers={"p": Prioritized(initial_priority="rating")})
    assert door.tables() == []


def test_each_prioritized_sampler_has_its_own_priorities(door):
    table = make_table(door, [2], samplers={"a": Prioritized(alpha=1.0), "b": Prioritized(alpha=1.0), "u": Uniform()})
    assert table.update_priorities([0, 1], [1, 3], sampler="a") == (2, 0)
    assert table.update_priorities([0], [4], sampler="b") == (1, 0)
    assert chances(table, sampler="a") == {0: 0.25, 1: 0.75}
    assert chances(table, sampler="b") == {0: 0.8, 1: 0.2}
    assert chances(table, sampler="u") == {0: 0.5, 1: 0.5}


def test_late_repeated_and_unknown_positions_are_ignored_and_counted(door):
    """Capacity removed positions 0 and 1 of six; 3 is given twice, and the last one holds; 100 was never there."""
    table = make_table(door, [6], samplers=LINEAR, capacity_steps=4)
    counts = table.update_priorities([0, 3, 3, 5, 100], [9, 1, 2, 4, 7])
    assert (counts.applied, counts.ignored) == (2, 3)
    assert chances(table) == pytest.approx({2: 1 / 8, 3: 2 / 8, 4: 1 / 8, 5: 4 / 8})
    write_episodes(table, [1])
    assert chances(table)[6] == pytest.approx(4 / 11)  # 7 for an unknown position was never a priority
    assert table.update_priorities([], []) == (0, 0)


def test_updates_that_do_not_wait_hold_in_their_order_once_one_waits(door):
    """300 updates of position 0, and of another each; what they were called with is changed at once. Then one that waits."""
    table = make_table(door, [301], samplers=LINEAR)
    positions, priorities = np.zeros(2, np.int64), np.zeros(2)
    for number in range(300):
        positions[1], priorities[:] = number + 1, number
        assert table.update_priorities(positions, priorities, wait=False) is None
    positions[:], priorities[:] = 7, 1e9
    assert table.update_priorities([300], [1.0]) == (1, 0)
    total = sum(range(299)) + 299 + 1
    expected = {number + 1: number / total for number in range(1, 299)} | {0: 299 / total, 300: 1 / total}
    assert chances(table, draws=50_000) == pytest.approx(expected)
    stats = table.stats()
    assert stats.priority_updates_total + stats.ignored_updates_total == 601


def test_updates_that_do_not_wait_are_of_their_sampler(door):
    table = make_table(door, [3], samplers={"a": Prioritized(alpha=1.0), "b": Prioritized(alpha=1.0)})
    table.update_priorities([0, 1], [1, 0], sampler="a", wait=False)
    table.update_priorities([0, 1, 9], [0, 3, 5], sampler="b", wait=False)
    assert table.update_priorities([], [], sampler="b") == (0, 0)  # waits for those of the other one, too
    assert chances(table, sampler="a") == {0: 0.5, 2: 0.5}
    assert chances(table, sampler="b") == {1: 0.75, 2: 0.25}


@pytest.mark.parametrize(
    ("positions", "priorities"),
    [
        ([0, 1], [5, float("nan")]), ([0, 1], [5, float("inf")]), ([0, 1], [5, -float("inf")]), ([0, 1], [5, -1]),
        ([0, 1], [5, 1e31]), ([0, 1], [5]), ([0], [5, 5]), ([0, 1], [[5, 5]]), ([0.5, 1], [5, 5]), ([0, 1], ["a", "b"]),
    ],
)  # fmt: skip
def test_illegal_update_is_refused_whole(door, positions, priorities):
    table = make_table(door, [2], samplers=LINEAR)
    table.update_priorities([0, 1], [1, 3])
    for wait in (True, False):
        with pytest.raises(InvalidRequestError):
            table.update_priorities(positions, priorities, wait=wait)
    assert chances(table) == {0: 0.25, 1: 0.75}


def test_zero_is_never_drawn_and_the_largest_priority_is_allowed(door):
    table = make_table(door, [100], samplers={"prioritized": Prioritized(alpha=0.6), "flat": Prioritized(alpha=0.0)})
    for sampler in ("prioritized", "flat"):
        table.update_priorities(np.arange(0, 100, 2), np.zeros(50), sampler=sampler)
        batch = table.sample(50_000, sampler=sampler, seed=1)
        assert (batch.positions % 2 == 1).all()
        check_counts(np.bincount(batch.positions, minlength=100)[1::2], np.ones(50))
    table.update_priorities([0], [1e30])
    assert (table.sample(1000, sampler="prioritized", seed=1).positions == 0).all()


def test_nothing_but_zeros_is_not_ready_and_says_so(door):
    table = make_table(door, [3], samplers=LINEAR)
    table.update_priorities([0, 1, 2], [0, 0, 0])
    with pytest.raises(NotReadyError, match="priorit"):
        table.sample(1, sampler="prioritized")
    table.update_priorities([1], [0.5])
    assert chances(table) == {1: 1.0}


def test_priorities_of_a_sampler_that_has_none_are_refused(door):
    table = make_table(door, [3], samplers={"uniform": Uniform(), "prioritized": Prioritized()})
    for wait in (True, False):
        with pytest.raises(ConfigurationError, match="sampler uniform: expected a prioritized one"):
            table.update_priorities([0], [1.0], sampler="uniform", wait=wait)
        with pytest.raises(InvalidRequestError, match="expected one of .*, found 'nosuch'"):
            table.update_priorities([0], [1.0], sampler="nosuch", wait=wait)
    assert chances(table) == {0: 1 / 3, 1: 1 / 3, 2: 1 / 3}


@pytest.mark.parametrize("kind", ["embedded", "client"])
def test_priorities_and_weights_are_the_same_after_a_restart(tmp_path, kind):
    samplers = {"prioritized": Prioritized(alpha=1.0, beta=0.5, norm=WeightNorm.TABLE), "second": Prioritized(alpha=0.3)}
    with open_door(kind, tmp_path / "s") as door:
        table = make_table(door, [20, 10], samplers=samplers, chunk_steps=4, capacity_steps=25)
        table.update_priorities(np.arange(30), 1.0 + np.arange(30) % 7)
        table.update_priorities([8, 29], [40, 0])
        table.update_priorities([10], [0.01], sampler="second")
        before = [table.sample(32, sampler=name, seed=seed) for name in samplers for seed in range(20)]
    for _ in range(2):
        with open_door(kind, tmp_path / "s") as door:
            table = door.table("t")
            after = [table.sample(32, sampler=name, seed=seed) for name in samplers for seed in range(20)]
            for first, second in zip(before, after, strict=True):
                assert_same(first, second)
    with open_door(kind, tmp_path / "s") as door:
        table = door.table("t")
        write_episodes(table, [1])  # removes position 5, whose priority was 6, and gets the largest, 40
        stored = sum(1 + p % 7 for p in range(6, 29) if p != 8) + 40
        assert chances(table)[30] == pytest.approx(40 / (stored + 40))


def test_probabilities_stay_exact_over_many_updates_of_very_different_size(door, rng):
    table = make_table(door, [90], samplers=LINEAR)
    expected = np.ones(90)
    for _ in range(100):
        positions = rng.permutation(90)[:40]
        expected[positions] = 10.0 ** rng.uniform(-6, 6, 40)
        table.update_priorities(positions, expected[positions])
    batch = table.sample(500, sampler="prioritized", seed=2)
    assert batch.probability == pytest.approx(expected[batch.positions] / expected.sum(), rel=1e-9)


def test_updates_that_race_with_removal_never_reach_another_step(door):
    """A writer pushes a full table along while a learner draws and updates; each position has one priority that is its own."""
    table = make_table(door, [30], samplers=LINEAR, capacity_steps=40, chunk_steps=4)
    failures, done = [], threading.Event()

    def write():
        try:
            with table.writer() as writer:
                for _ in range(25):
                    write_episode(writer, 13)
                    writer.flush()
        except Exception as error:
            failures.append(error)
        finally:
            done.set()

    writer = threading.Thread(target=write)
    writer.start()
    rounds = 0
    while not done.is_set() or rounds < 5:
        rounds += 1
        batch = table.sample(32, Transitions(n_step=3, gamma=1.0), sampler="prioritized")
        assert (batch.observation == batch.action).all()
        assert (batch.probability > 0).all()
        counts = table.update_priorities(batch.positions, 1.0 + batch.positions % 5)
        assert counts.applied + counts.ignored == 32
    writer.join()
    assert failures == []
    last = 30 + 25 * 13
    stored = np.arange(last - 40, last)
    late = np.arange(last - 80, last - 40)
    assert table.update_priorities(np.concatenate([late, stored]), [1e6] * 40 + list(1.0 + stored % 5)) == (40, 40)
    assert chances(table) == pytest.approx({int(p): (1 + p % 5) / (1 + stored % 5).sum() for p in stored})


def test_a_sequence_has_the_priority_of_its_anchor(door):
    """Seven steps in sequences of 3: at 0 and 3, and one more that is named by position 6, wherever it begins."""
    table = make_table(door, [7], samplers=LINEAR)
    table.update_priorities([0, 3, 6, 1], [1, 2, 5, 100])
    for at_end, begin in ((AtEnd.PAD, 6), (AtEnd.SHIFT, 4)):
        what = Sequences(length=3, at_end=at_end)
        batch = table.sample(4000, what, sampler="prioritized", seed=4)
        check_draws(batch.positions, {0: 1 / 8, 3: 2 / 8, 6: 5 / 8})
        assert chances(table, what=what) == pytest.approx({0: 1 / 8, 3: 2 / 8, 6: 5 / 8})
        assert set(zip(batch.positions.tolist(), batch.t.tolist(), strict=True)) == {(0, 0), (3, 3), (6, begin)}
    assert chances(table, what=Sequences(length=3, at_end=AtEnd.DROP)) == pytest.approx({0: 1 / 3, 3: 2 / 3})
    assert chances(table)[1] == pytest.approx(100 / 111)  # the same priorities, of transitions
    table.update_priorities([3, 2], [4, 50])
    assert chances(table, what=Sequences(length=3)) == pytest.approx({0: 1 / 10, 3: 4 / 10, 6: 5 / 10})


def test_an_episode_has_the_priority_of_its_first_step(door):
    table = make_table(door, [3, 2, 2], samplers=LINEAR)
    table.update_priorities([0, 3, 5, 4], [1, 4, 3, 50])
    assert chances(table, what=Episodes(max_steps=10)) == pytest.approx({0: 1 / 8, 3: 4 / 8, 5: 3 / 8})
    assert chances(table, what=Episodes(max_steps=2)) == pytest.approx({3: 4 / 7, 5: 3 / 7})


def test_weights_count_only_the_items_that_can_be_drawn(door):
    """The open episode is no item of a hindsight request, so the closed one has all the chances."""
    table = make_goal_table(door, [3], samplers={"prioritized": Prioritized(alpha=1.0, beta=1.0, norm=WeightNorm.TABLE)})
    with table.writer() as writer:
        write_goal_episode(writer, 3, episode=1, end="open")
    table.update_priorities([0, 1, 2, 3], [1, 2, 1, 0.125])
    batch = table.sample(400, Transitions(her=Her()), sampler="prioritized", seed=1)
    assert batch.probability == pytest.approx(np.array([0.25, 0.5, 0.25])[batch.positions])
    assert batch.importance_weight == pytest.approx(np.array([1, 0.5, 1])[batch.positions])


def test_priorities_combine_with_n_step_stacks_and_hindsight(door):
    """Four steps of -1, the goal after the last: two-step returns with success worth 10 and gamma 1/2."""
    table = make_goal_table(door, [4], samplers=LINEAR, chunk_steps=3)
    table.update_priorities([0, 1, 2, 3], [1, 1, 2, 4])
    her = Her(goal=Goal.FINAL, ratio=1.0, reward=SparseReward(threshold=0.5, success=10.0))
    what = Transitions(n_step=2, gamma=0.5, stack=Stack(frames=2), her=her)
    batch = table.sample(800, what, sampler="prioritized", seed=6)
    t = batch.t
    check_draws(t, {0: 1 / 8, 1: 1 / 8, 2: 2 / 8, 3: 4 / 8})
    assert batch.probability == pytest.approx(np.array([1 / 8, 1 / 8, 2 / 8, 4 / 8])[t])
    assert batch.importance_weight == pytest.approx(np.array([1, 1, 2**-0.4, 4**-0.4])[t])
    assert batch.observation["state"][:, :, 0].tolist() == [[max(0, i - 1), i] for i in t]
    assert batch.next_observation["state"][:, :, 0].tolist() == [[min(i + 1, 3), min(i + 2, 4)] for i in t]
    assert batch.reward.tolist() == [[-1.5, -1.5, 4.0, 10.0][i] for i in t]
    assert batch.discount.tolist() == [[0.25, 0.25, 0.0, 0.0][i] for i in t]
    assert batch.terminated.tolist() == [i >= 2 for i in t]
    assert (batch.observation["desired_goal"] == [4, 0]).all()


def test_check_of_distributions_notices_a_wrong_one():
    with pytest.raises(AssertionError, match="expected about"):
        check_counts([1110, 890], [0.5, 0.5])
    with pytest.raises(AssertionError, match="probability is 0"):
        check_counts([1, 999], [0.0, 1.0])
