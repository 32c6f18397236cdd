"""Draws by chance, against their exact distribution.

Tolerance of all chi-square tests: with k cells the statistic has mean k - 1 and variance 2 (k - 1), for draws that are
independent; it must lie within 5 standard deviations of its mean. Stratified draws vary less: only the upper side counts.
"""

import math

import numpy as np
import pytest

from replaysvc.options import Prioritized, WeightNorm
from replaysvc.selectors import Priorities, Runs, SumTree, draw_prioritized, draw_recent, draw_uniform

DRAWS = 200_000


class Row:
    """Positions 0, 1, 2, ..., as many as you like."""

    def __init__(self, size):
        self.size = size

    def select(self, ranks):
        return ranks


def check_chi_square(positions, expected, *, independent=True):
    """`expected`: the probability of each position from 0 on; cells with fewer than 5 expected draws are put together."""
    counts = np.bincount(positions, minlength=len(expected)).astype(np.float64)
    means = np.asarray(expected) * len(positions)
    assert counts[means == 0].sum() == 0
    rare = means < 5
    counts, means = np.append(counts[~rare], counts[rare].sum()), np.append(means[~rare], means[rare].sum())
    counts, means = counts[means > 0], means[means > 0]
    degrees = len(means) - 1
    excess = ((counts - means) ** 2 / means).sum() - degrees
    assert excess <= 5 * math.sqrt(2 * degrees)
    assert not independent or excess >= -5 * math.sqrt(2 * degrees)


def test_uniform_draws_every_live_position_equally_often():
    runs = Runs()
    runs.insert(0, 60)
    runs.remove(20, 30)
    positions, probability = draw_uniform(np.random.default_rng(1), DRAWS, runs)
    assert (positions.dtype, probability.dtype) == (np.int64, np.float64)
    assert set(probability) == {1 / 50}
    check_chi_square(positions, [1 / 50] * 20 + [0] * 10 + [1 / 50] * 30)


def test_a_gap_however_wide_is_never_drawn():
    runs = Runs()
    runs.insert(0, 2)
    runs.insert(1 << 40, (1 << 40) + 4)
    positions, _ = draw_uniform(np.random.default_rng(2), 1_000, runs)
    assert set(positions.tolist()) == {0, 1, *range(1 << 40, (1 << 40) + 4)}


@pytest.mark.parametrize("half_life", [1e-3, 0.5, 1.0, 7.0, 1e3, 1e15])
def test_recency_halves_with_every_half_life(half_life):
    size = 40
    shares = np.array([2.0 ** (-(size - 1 - position) / half_life) for position in range(size)])
    shares /= shares.sum()
    positions, probability = draw_recent(np.random.default_rng(3), DRAWS, Row(size), half_life)
    check_chi_square(positions, shares)
    np.testing.assert_allclose(probability, shares[positions], rtol=1e-12)


def test_recency_of_three_with_half_life_one():
    """4 + 2 + 1 parts of 7, the newest first."""
    positions, probability = draw_recent(np.random.default_rng(4), 1_000, Row(3), 1.0)
    np.testing.assert_allclose(probability, np.array([1 / 7, 2 / 7, 4 / 7])[positions], rtol=1e-15)


@pytest.mark.parametrize("size", [1, 2, 10**10])
@pytest.mark.parametrize("half_life", [1e-3, 1.0, 1e5, 1e10, 1e15])
def test_recency_keeps_its_digits_at_any_size(size, half_life):
    """Ages a quarter of the probability apart, and the mean age, are known in closed form."""
    positions, probability = draw_recent(np.random.default_rng(5), 100_000, Row(size), half_life)
    assert positions.min() >= 0
    assert positions.max() < size
    ages = size - 1 - positions
    rate = math.log(2) / half_life
    quartile = -math.log1p(math.expm1(-rate * size) * 0.25) / rate  # a quarter is younger
    younger = (1 - math.exp(-rate * math.ceil(quartile))) / (1 - math.exp(-rate * size)) if rate * size > 1e-9 else None
    if size == 10**10 and younger is not None:
        assert abs(np.mean(ages < math.ceil(quartile)) - younger) < 5 * math.sqrt(0.25 / 100_000)
    if half_life == 1e15:  # all but uniform
        np.testing.assert_allclose(probability, 1 / size, rtol=1e-5)
        assert abs(ages.mean() - (size - 1) / 2) <= 5 * size / math.sqrt(12 * 100_000)
    if half_life == 1e-3:
        assert set(ages.tolist()) == {0}
        assert set(probability.tolist()) == {1.0}


class Highest:
    """A generator that draws the highest number there is below 1."""

    def random(self, count):
        return np.full(count, np.nextafter(1, 0))


def test_rounding_never_makes_an_age_of_the_whole_size():
    for half_life in (0.5, 1.0, 10.0, 1e5, 1e15):
        for size in range(1, 400):
            positions, _ = draw_recent(Highest(), 1, Row(size), half_life)
            assert positions[0] >= 0


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_prioritized_draws_in_proportion_to_priority_to_the_alpha(alpha):
    given = np.random.default_rng(6).integers(0, 6, 70).astype(np.float64)
    shares = np.array([priority**alpha if priority else 0.0 for priority in given])
    shares /= shares.sum()
    priorities = Priorities(Prioritized(alpha=alpha))
    priorities.insert(0, 70, given)
    rng = np.random.default_rng(7)
    batches = [draw_prioritized(rng, 100, priorities.tree) for _ in range(1_000)]
    positions = np.concatenate([batch.positions for batch in batches])
    check_chi_square(positions, shares, independent=False)
    np.testing.assert_allclose(np.concatenate([batch.probability for batch in batches]), shares[positions], rtol=1e-12)
    ones = np.concatenate([draw_prioritized(rng, 1, priorities.tree).positions for _ in range(3_000)])
    check_chi_square(ones, shares)  # one a batch: independent


def test_a_batch_has_one_draw_from_each_stratum_in_random_order():
    tree = SumTree()
    tree.set_range(0, 8, 1.0)
    rng = np.random.default_rng(8)
    batches = [draw_prioritized(rng, 8, tree) for _ in range(700)]
    assert all(sorted(batch.positions.tolist()) == list(range(8)) for batch in batches)
    assert all(batch.probability.tolist() == [1 / 8] * 8 for batch in batches)
    check_chi_square(np.array([batch.positions[0] for batch in batches]), [1 / 8] * 8)
    check_chi_square(np.array([batch.positions[7] for batch in batches]), [1 / 8] * 8)


def test_of_several_batches_drawn_together_each_has_its_own_strata():
    tree = SumTree()
    tree.set_range(0, 8, 1.0)
    rng = np.random.default_rng(8)
    rows = np.concatenate([draw_prioritized(rng, 24, tree, 3).positions.reshape(3, 8) for _ in range(300)])
    assert (np.sort(rows, axis=1) == np.arange(8)).all()
    check_chi_square(rows[:, 0], [1 / 8] * 8)
    assert len({tuple(row) for row in rows.tolist()}) > 800  # of 40,320 orders


def test_zero_priorities_are_never_drawn():
    given = np.random.default_rng(9).random(100_000)
    given[::2] = 0
    priorities = Priorities(Prioritized(norm=WeightNorm.TABLE))
    priorities.insert(5, 100_005, given)
    rng = np.random.default_rng(10)
    for _ in range(20):
        positions, probability = draw_prioritized(rng, 50_000, priorities.tree)
        assert not ((positions - 5) % 2 == 0).any()
        assert probability.min() > 0


@pytest.mark.parametrize("draw", [
    lambda rng: draw_uniform(rng, 50, Row(1_000)),
    lambda rng: draw_recent(rng, 50, Row(1_000), 100.0),
    lambda rng: draw_prioritized(rng, 50, ones(1_000)),
])  # fmt: skip
def test_one_seed_gives_one_batch(draw):
    first, second, other = (draw(np.random.default_rng(seed)).positions.tolist() for seed in (1, 1, 2))
    assert first == second != other


def ones(size):
    tree = SumTree()
    tree.set_range(0, size, 1.0)
    return tree
