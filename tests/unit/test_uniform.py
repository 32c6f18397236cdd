import numpy as np

from replaysvc.selectors import Uniform


def counts(selector, draws=60_000, seed=0):
    positions, probability = selector.draw(np.random.default_rng(seed), draws)
    assert np.ptp(probability) == 0
    values, found = np.unique(positions, return_counts=True)
    return dict(zip(values.tolist(), found.tolist(), strict=True)), probability[0]


def test_every_position_is_drawn_equally_often():
    selector = Uniform()
    selector.insert(5, 9)
    selector.insert(9, 11)
    found, probability = counts(selector)
    assert set(found) == {5, 6, 7, 8, 9, 10}
    assert probability == 1 / 6
    assert all(abs(count - 10_000) < 5 * np.sqrt(10_000 * 5 / 6) for count in found.values())


def test_a_gap_however_wide_is_never_drawn_and_costs_nothing():
    selector = Uniform()
    selector.insert(0, 2)
    selector.insert(1 << 40, (1 << 40) + 4)
    found, probability = counts(selector)
    assert set(found) == {0, 1, *range(1 << 40, (1 << 40) + 4)}
    assert probability == 1 / 6


def test_removal_takes_the_oldest_positions_also_whole_runs():
    selector = Uniform()
    selector.insert(0, 3)
    selector.insert(10, 14)
    selector.remove(0, 2)
    assert set(counts(selector)[0]) == {2, 10, 11, 12, 13}
    selector.remove(2, 12)
    assert set(counts(selector)[0]) == {12, 13}
