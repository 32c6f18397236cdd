"""Counts by key: four keys from 10 on with 2, 0, 3 and 1 items; and any sequence of changes beside a plain array."""

import numpy as np
import pytest

from replaysvc.selectors import Tally


def make():
    tally = Tally(10)
    tally.grow(14)
    tally.set(np.array([12, 10, 13]), np.array([3, 2, 1]))
    return tally


def test_items_are_numbered_in_the_order_of_their_keys():
    tally = make()
    assert (tally.start, tally.stop, tally.total) == (10, 14, 6)
    assert tally.get(np.array([13, 10, 11, 12])).tolist() == [1, 2, 0, 3]
    keys, rests = tally.find(np.array([0, 1, 2, 3, 4, 5, 0]))
    assert keys.tolist() == [10, 10, 12, 12, 12, 13, 10]
    assert rests.tolist() == [0, 1, 0, 1, 2, 0, 0]


def test_first_key_loses_items_and_goes():
    tally = make()
    tally.set(np.array([10]), np.array([1]))
    keys, rests = tally.find(np.arange(5))
    assert (keys.tolist(), rests.tolist()) == ([10, 12, 12, 12, 13], [0, 0, 1, 2, 0])
    tally.remove_before(12)
    keys, rests = tally.find(np.arange(4))
    assert (tally.start, tally.total, keys.tolist(), rests.tolist()) == (12, 4, [12, 12, 12, 13], [0, 1, 2, 0])


def test_all_keys_go_and_later_ones_come():
    tally = make()
    tally.remove_before(20)
    assert (tally.start, tally.stop, tally.total) == (20, 20, 0)
    tally.remove_before(15)
    tally.grow(15)
    tally.set(np.empty(0, np.int64), np.empty(0, np.int64))
    assert (tally.start, tally.stop) == (20, 20)
    tally.grow(22)
    tally.set(np.array([21]), np.array([2]))
    keys, rests = tally.find(np.array([1, 0]))
    assert (keys.tolist(), rests.tolist()) == ([21, 21], [1, 0])


@pytest.mark.parametrize("seed", range(20))
def test_any_changes_leave_what_a_plain_array_would(seed):
    rng = np.random.default_rng(seed)
    tally, start, counts = Tally(5), 5, np.empty(0, np.int64)
    for _ in range(60):
        added = int(rng.integers(0, 8))
        tally.grow(start + len(counts) + added)
        counts = np.concatenate((counts, np.zeros(added, np.int64)))
        if len(counts):
            at = rng.choice(len(counts), rng.integers(0, len(counts) + 1), replace=False)
            if rng.random() < 0.5:
                at = at[at > 0.8 * len(counts)] if rng.random() < 0.5 else at[at < 0.2 * len(counts)]
            counts[at] = rng.integers(0, 4, len(at))
            tally.set(start + at, counts[at])
        if rng.random() < 0.3:
            gone = int(rng.integers(0, len(counts) // 2 + 1))
            start, counts = start + gone, counts[gone:]
            tally.remove_before(start)
        assert (tally.start, tally.stop, tally.total) == (start, start + len(counts), counts.sum())
        np.testing.assert_array_equal(tally.get(np.arange(start, tally.stop)), counts)
        keys, rests = tally.find(np.arange(tally.total))
        np.testing.assert_array_equal(keys, np.repeat(np.arange(start, tally.stop), counts))
        np.testing.assert_array_equal(rests, np.arange(len(rests)) - np.repeat(np.cumsum(counts) - counts, counts))
