"""The largest leaves of a sum tree, beside a sort of them all."""

import numpy as np
import pytest

from replaysvc.selectors import SumTree
from replaysvc.selectors.sum_tree import BLOCK


def by_brute_force(values, n):
    """Returns (keys, leaves) of a dict of leaves: the largest first, of equal ones the lowest key."""
    found = sorted(((key, leaf) for key, leaf in values.items() if leaf > 0), key=lambda pair: (-pair[1], pair[0]))[:n]
    return [key for key, _ in found], [leaf for _, leaf in found]


def check(tree, values, n):
    keys, leaves = tree.top(n)
    assert (keys.tolist(), leaves.tolist()) == by_brute_force(values, n)


@pytest.mark.parametrize("n", [1, 2, 20, 300])
@pytest.mark.parametrize("distinct", [2, 10_000_000])
def test_the_top_is_what_a_sort_finds(rng, n, distinct):
    """With two values, most are equal."""
    keys = np.unique(rng.integers(3 * BLOCK - 50, 7 * BLOCK, 500))
    leaves = rng.integers(0, distinct, len(keys)).astype(np.float64)
    tree = SumTree()
    tree.set(keys, leaves)
    check(tree, dict(zip(keys.tolist(), leaves.tolist(), strict=True)), n)


def test_the_top_follows_what_changes_and_goes():
    tree = SumTree()
    values = {key: 1.0 + key % 7 for key in range(100)}
    tree.set(np.array(list(values)), np.array(list(values.values())))
    check(tree, values, 10)
    tree.set(np.array([13, 50]), np.array([0.0, 99.0]))
    values |= {13: 0.0, 50: 99.0}
    check(tree, values, 10)
    tree.remove_before(51)
    check(tree, {key: leaf for key, leaf in values.items() if key >= 51}, 10)


def test_blocks_that_came_out_of_order_count_by_their_keys():
    tree = SumTree()
    tree.set_range(5 * BLOCK, 5 * BLOCK + 3, 2.0)
    tree.set_range(2 * BLOCK, 2 * BLOCK + 3, 2.0)
    keys, leaves = tree.top(4)
    assert keys.tolist() == [2 * BLOCK, 2 * BLOCK + 1, 2 * BLOCK + 2, 5 * BLOCK]
    assert leaves.tolist() == [2.0] * 4


def test_a_tree_without_leaves_has_no_top():
    tree = SumTree()
    assert tree.top(5)[0].tolist() == []
    tree.set_range(0, 10, 0.0)
    assert tree.top(5)[0].tolist() == []


def test_to_look_at_the_top_changes_nothing(rng):
    tree = SumTree(extremes=True)
    tree.set(np.arange(1000), rng.random(1000))
    before = [level.copy() for fold in tree._folds for level in fold.levels]
    tree.top(20)
    for level, was in zip((level for fold in tree._folds for level in fold.levels), before, strict=True):
        np.testing.assert_array_equal(level, was)
