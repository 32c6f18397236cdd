import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replaysvc.selectors import SumTree
from replaysvc.selectors.sum_tree import _sums

BLOCK = 65_536


def ints(*values):
    return np.array(values, np.int64)


def floats(*values):
    return np.array(values, np.float64)


def tree_of(*leaves, start=0, extremes=False):
    tree = SumTree(extremes=extremes)
    tree.set_range(start, start + len(leaves), floats(*leaves))
    return tree


def found(tree, *targets):
    keys, rests = tree.find(floats(*targets))
    return list(zip(keys.tolist(), rests.tolist(), strict=True))


def test_an_empty_tree_has_nothing():
    tree = SumTree(extremes=True)
    assert (tree.total, tree.largest(), tree.smallest(), tree.start, tree.stop) == (0, 0, 0, 0, 0)
    assert tree.get(ints(0, 1 << 40)).tolist() == [0, 0]
    with pytest.raises(ValueError):
        tree.find(floats(0.0))
    tree.set(ints(), floats())
    tree.set_range(3, 3, floats())
    assert tree.total == 0


def test_each_target_falls_on_the_leaf_that_covers_it():
    tree = tree_of(2, 0, 3, 1, start=10)
    assert tree.total == 6
    assert found(tree, 0, 1.5, 2, 4.5, 5, 5.5) == [(10, 0), (10, 1.5), (12, 0), (12, 2.5), (13, 0), (13, 0.5)]
    assert (tree.start, tree.stop) == (10, 14)
    assert tree.find(floats())[0].tolist() == []


def test_growing_adds_leaves_of_zero_and_takes_no_memory():
    tree = SumTree()
    before = tree.nbytes
    tree.grow(20, start=10)
    tree.grow(1 << 40)
    assert (tree.start, tree.stop, tree.nbytes) == (10, 1 << 40, before)
    tree.set(ints((1 << 40) - 1, 11), floats(1, 2))
    assert found(tree, 0, 2) == [(11, 0), ((1 << 40) - 1, 0)]
    tree.grow(15)
    assert (tree.start, tree.stop) == (10, 1 << 40)


def test_the_first_key_may_be_anywhere_and_later_ones_lower():
    tree = SumTree()
    tree.set(ints(1_000_000), floats(4))
    assert (tree.start, tree.stop) == (1_000_000, 1_000_001)
    tree.set(ints(5), floats(1))
    assert (tree.start, tree.stop) == (5, 1_000_001)
    assert found(tree, 0.5, 1) == [(5, 0.5), (1_000_000, 0)]


def test_extremes_are_of_positive_leaves_and_follow_updates():
    tree = tree_of(0, 5, 0.25, 3, extremes=True)
    assert (tree.largest(), tree.smallest()) == (5, 0.25)
    tree.set(ints(1, 2), floats(0, 0))
    assert (tree.largest(), tree.smallest()) == (3, 3)
    tree.set_range(BLOCK, BLOCK + 2, floats(7, 1))
    assert (tree.largest(), tree.smallest()) == (7, 1)
    tree.remove_before(BLOCK + 1)
    assert (tree.largest(), tree.smallest()) == (1, 1)
    tree.remove_before(BLOCK + 2)
    assert (tree.largest(), tree.smallest()) == (0, 0)


def test_one_number_for_a_whole_range_across_blocks():
    tree = SumTree()
    tree.set_range(BLOCK - 2, 2 * BLOCK + 3, 0.5)
    assert tree.total == 0.5 * (BLOCK + 5)
    assert found(tree, 0, 1, 0.5 * (BLOCK + 4)) == [(BLOCK - 2, 0), (BLOCK, 0), (2 * BLOCK + 2, 0)]
    tree.set_range(BLOCK - 1, 2 * BLOCK + 2, 0.0)
    assert tree.total == 1
    assert found(tree, 0, 0.5) == [(BLOCK - 2, 0), (2 * BLOCK + 2, 0)]


def test_clearing_a_range_that_was_never_written_takes_no_memory():
    tree = tree_of(1)
    before = tree.nbytes
    tree.set_range(1, 1 << 40, 0.0)
    assert (tree.nbytes, tree.total) == (before, 1)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 255, 256, 257, 4095, 4097, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
@pytest.mark.parametrize("start", [0, BLOCK - 3, 123_457])
def test_any_size_finds_first_middle_and_last(size, start):
    tree = SumTree()
    tree.set_range(start, start + size, 1.0)
    keys, rests = tree.find(floats(0, size // 2, size - 1, size - 0.5))
    assert keys.tolist() == [start, start + size // 2, start + size - 1, start + size - 1]
    assert rests.tolist() == [0, 0, 0, 0.5]
    assert tree.get(ints(start - 1, start, start + size - 1, start + size)).tolist() == [0, 1, 1, 0]


def test_integer_leaves_make_exact_ranks():
    counts = np.random.default_rng(1).integers(0, 5, 200_000)
    tree = SumTree()
    tree.set_range(70_000, 270_000, counts.astype(np.float64))
    ranks = np.arange(0, counts.sum(), 7)
    keys, rests = tree.find(ranks.astype(np.float64))
    owner = np.repeat(np.arange(200_000), counts)
    first = np.concatenate(([0], counts.cumsum()[:-1]))
    assert np.array_equal(keys, 70_000 + owner[ranks])
    assert np.array_equal(rests, ranks - first[owner[ranks]])


def test_a_target_at_the_very_end_never_falls_on_a_zero_leaf():
    """0.1 ten times adds up to less than 1; a target of the total, or one rounded up to it, has no leaf of its own."""
    tree = SumTree()
    tree.set_range(0, 10, 0.1)
    tree.grow(BLOCK * 2)
    keys, _ = tree.find(floats(tree.total, np.nextafter(tree.total, 0), tree.total * 2, 1.0))
    assert keys.tolist() == [9, 9, 9, 9]


def test_rounding_off_the_end_of_an_inner_node_stays_on_its_last_positive_leaf():
    """Leaf 0 is so large that what is left of a target after it is rounded by more than the leaves after it are worth."""
    tree = SumTree()
    tree.set_range(0, 16, floats(2**53, *[0.4] * 12, 0, 0, 0))  # 16 makes up a node; each 0.4 is lost when added up in order
    tree.set_range(16, 32, 1.0)
    targets = np.linspace(2**53 - 4, tree.total, 4001)
    keys, _, leaves = tree.find_leaves(targets)
    assert leaves.min() > 0
    assert np.array_equal(leaves, tree.get(keys))


def test_random_totals_never_fall_on_zero_leaves():
    """Sums of a block and of its nodes are added up in different orders, so that some targets near the end fall off."""
    rng = np.random.default_rng(2)
    for _ in range(20):
        tree = SumTree()
        leaves = np.where(rng.random(5_000) < 0.3, 0.0, 10 ** rng.uniform(-9, 9, 5_000))
        leaves[-1_000:] = 0
        tree.set_range(0, 5_000, leaves)
        ends = leaves.cumsum()
        near = np.concatenate([ends, np.nextafter(ends, 0), np.nextafter(ends, np.inf)])
        keys, _, drawn = tree.find_leaves(near)
        assert drawn.min() > 0
        assert np.array_equal(drawn, leaves[keys])


def test_the_total_does_not_drift_over_a_million_updates_of_very_different_size():
    rng = np.random.default_rng(3)
    size = 1_000_000
    leaves = 10 ** rng.uniform(-6, 6, size)
    tree = SumTree()
    tree.set_range(0, size, leaves)
    for exponent in range(10):
        keys = rng.permutation(size)[:100_000]
        leaves[keys] = 10 ** rng.uniform(-exponent, exponent, 100_000)
        tree.set(keys, leaves[keys])
    keys = rng.permutation(size)[:500_000]
    leaves[keys] = 0
    tree.set(keys, leaves[keys])
    assert abs(tree.total - math.fsum(leaves)) / math.fsum(leaves) < 1e-12
    assert tree.largest() == leaves.max()
    for _ in range(20):
        drawn, rests = tree.find(rng.random(50_000) * tree.total)
        assert leaves[drawn].min() > 0
        assert rests.min() >= 0


def test_how_leaves_came_in_makes_no_difference_to_the_last_bit():
    """A restarted table fills its tree in one go; the same seed must give the same batch."""
    rng = np.random.default_rng(4)
    leaves = rng.random(200_000)
    grown = SumTree()
    grown.set_range(0, 100_000, 1.0)
    for start in range(100_000, 200_000, 100):
        grown.set_range(start, start + 100, 3.0)
    grown.remove_before(80_123)
    for part in np.array_split(80_123 + rng.permutation(200_000 - 80_123), 60):
        grown.set(part, leaves[part])
    for key in range(199_000, 199_040):
        grown.set(ints(key), leaves[key : key + 1])
    whole = SumTree()
    whole.set_range(80_123, 200_000, leaves[80_123:])
    targets = rng.random(20_000) * whole.total
    assert grown.total == whole.total
    assert [part.tolist() for part in grown.find(targets)] == [part.tolist() for part in whole.find(targets)]


def test_a_parent_that_updated_leaves_share_is_computed_once(monkeypatch):
    """Of 64 keys in a row, 4 nodes above the leaves, then one a level; with others between them, in any order, when many."""
    computed = []

    def counting(children):
        computed.append(children.shape[1])
        return _sums(children)

    monkeypatch.setattr("replaysvc.selectors.sum_tree._sums", counting)
    tree = SumTree()
    tree.set(np.arange(64), np.ones(64))
    assert computed == [4, 1, 1, 1]
    computed.clear()
    tree.set(np.random.default_rng(6).permutation(8192), np.ones(8192))
    assert computed == [512, 32, 2, 1]


def test_a_node_is_the_sum_of_its_children_as_numpy_adds_them_up():
    leaves = 10 ** np.random.default_rng(7).uniform(-9, 9, (1000, 16))
    assert _sums(np.ascontiguousarray(leaves.T)).tolist() == leaves.sum(axis=1).tolist()


def test_a_range_that_moves_forward_keeps_its_sums_and_its_memory():
    tree = SumTree()
    live = 2 * BLOCK + 1_000
    tree.set_range(0, live, 1.0)
    start, step, most = 0, 10_007, 0
    while start < 40 * BLOCK:
        start += step
        tree.set_range(start + live - step, start + live, 1.0)
        tree.remove_before(start)
        assert tree.total == live
        assert (tree.start, tree.stop) == (start, start + live)
        most = max(most, tree.nbytes)
    assert found(tree, 0, live - 1) == [(start, 0), (start + live - 1, 0)]
    assert tree.get(ints(start - 1, start)).tolist() == [0, 1]
    assert most <= 5 * 9.1 * BLOCK  # 2 and a bit blocks lie in at most 4, and the next comes before the first goes


def test_memory_is_given_back_when_most_is_removed():
    tree = SumTree(extremes=True)
    tree.set_range(0, 40 * BLOCK, 2.0)
    assert tree.nbytes / (40 * BLOCK) < 9.7 * 1.125
    tree.remove_before(37 * BLOCK + 5)
    assert tree.nbytes <= 4 * 9.7 * BLOCK
    assert tree.total == 2.0 * (3 * BLOCK - 5)
    assert (tree.largest(), tree.smallest()) == (2, 2)
    tree.remove_before(100 * BLOCK)
    assert (tree.total, tree.start, tree.stop, tree.largest(), tree.smallest()) == (0, 100 * BLOCK, 100 * BLOCK, 0, 0)


def test_a_freed_block_comes_back_as_zeros():
    tree = SumTree(extremes=True)
    for block in range(12):
        tree.set_range(block * BLOCK, (block + 1) * BLOCK, 9.0)
    tree.remove_before(2 * BLOCK)
    tree.set(ints(12 * BLOCK + 7, 13 * BLOCK + 8), floats(1, 1))
    assert tree.total == 9.0 * 10 * BLOCK + 2
    assert tree.get(np.arange(12 * BLOCK, 14 * BLOCK)).sum() == 2
    tree.remove_before(12 * BLOCK)
    assert (tree.total, tree.largest(), tree.smallest()) == (2, 1, 1)


def test_removed_keys_are_gone_for_good():
    tree = tree_of(1, 2, 4, 8)
    tree.remove_before(2)
    tree.remove_before(1)
    tree.set(ints(0, 3, 1), floats(100, 16, 100))
    tree.set_range(0, 3, floats(100, 100, 5))
    tree.grow(4, start=0)
    assert tree.total == 21
    assert tree.start == 2
    assert tree.get(ints(0, 1, 2, 3)).tolist() == [0, 0, 5, 16]


KEYS = st.integers(0, 3 * BLOCK) | st.integers(BLOCK - 5, BLOCK + 5)
VALUES = st.sampled_from([0, 0, 1, 2, 3, 1_000])
ACTIONS = st.one_of(
    st.tuples(st.just("set"), st.dictionaries(KEYS, VALUES, max_size=8)),
    st.tuples(st.just("range"), st.tuples(KEYS, st.lists(VALUES, max_size=20))),
    st.tuples(st.just("fill"), st.tuples(KEYS, st.integers(0, 40), VALUES)),
    st.tuples(st.just("remove"), KEYS),
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(ACTIONS, max_size=12))
def test_a_tree_holds_what_a_dictionary_would(actions):
    tree, plain, floor = SumTree(extremes=True), {}, 0
    for kind, value in actions:
        if kind == "set":
            tree.set(ints(*value), floats(*value.values()))
            written = value
        elif kind == "range":
            tree.set_range(value[0], value[0] + len(value[1]), floats(*value[1]))
            written = {value[0] + offset: leaf for offset, leaf in enumerate(value[1])}
        elif kind == "fill":
            tree.set_range(value[0], value[0] + value[1], float(value[2]))
            written = dict.fromkeys(range(value[0], value[0] + value[1]), value[2])
        else:
            tree.remove_before(value)
            floor, written = max(floor, value), {}
        plain = {key: leaf for key, leaf in {**plain, **written}.items() if key >= floor}
        positive = {key: leaf for key, leaf in sorted(plain.items()) if leaf}
        assert tree.total == sum(positive.values())
        assert tree.largest() == max(positive.values(), default=0)
        assert tree.smallest() == min(positive.values(), default=0)
        begun = 0
        for key, leaf in positive.items():
            assert found(tree, begun, begun + leaf - 0.5) == [(key, 0), (key, leaf - 0.5)]
            begun += leaf
        asked = ints(*plain, floor - 1, 4 * BLOCK)
        assert tree.get(asked).tolist() == [*plain.values(), 0, 0]
