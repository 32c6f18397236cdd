import math

import numpy as np
import pytest

from replaysvc.errors import SpecMismatchError
from replaysvc.options import Prioritized, WeightNorm
from replaysvc.selectors import Priorities, check_priorities, deduplicate_last, importance_weights, largest_weight


def ints(*values):
    return np.array(values, np.int64)


def floats(*values):
    return np.array(values, np.float64)


def test_new_ones_get_the_largest_priority_now_in_the_table_and_1_without_any():
    priorities = Priorities(Prioritized(alpha=0.5))
    priorities.insert(0, 2, None)
    assert priorities.leaves(ints(0, 1, 2)).tolist() == [1, 1, 0]
    priorities.update(ints(1), priorities.powers(floats(16)))
    priorities.insert(2, 3, None)
    assert priorities.leaves(ints(0, 1, 2)).tolist() == [1, 4, 4]
    priorities.update(ints(1, 2), priorities.powers(floats(9, 0)))
    priorities.insert(3, 4, None)
    assert priorities.priorities_of(ints(0, 1, 2, 3)).tolist() == [1, 9, 0, 9]
    priorities.remove(ints(1, 3))
    priorities.insert(4, 5, None)
    assert priorities.leaves(ints(0, 1, 2, 3, 4)).tolist() == [1, 0, 0, 0, 1]
    priorities.remove_before(5)
    priorities.insert(5, 6, floats(0))
    priorities.insert(6, 7, None)
    assert priorities.leaves(ints(4, 5, 6)).tolist() == [0, 0, 1]


def test_a_new_one_may_bring_its_priority():
    priorities = Priorities(Prioritized(alpha=2))
    priorities.insert(10, 13, floats(3, 0, 1))
    assert priorities.tree.total == 10
    assert priorities.priorities_of(ints(10, 11, 12)).tolist() == [3, 0, 1]


def test_alpha_0_keeps_only_whether_a_priority_is_positive():
    priorities = Priorities(Prioritized(alpha=0))
    assert priorities.powers(floats(0, 1e-300, 7)).tolist() == [0, 1, 1]


def test_a_positive_priority_never_becomes_zero_and_the_largest_never_infinite():
    priorities = Priorities(Prioritized(alpha=4, norm=WeightNorm.TABLE))
    leaves = priorities.powers(floats(1e-200, 5e-324, 1e30, 0))
    assert leaves[:2].min() > 0
    assert leaves[2] == pytest.approx(1e120)
    assert leaves[3] == 0
    priorities.insert(0, 4, floats(1e-200, 5e-324, 1e30, 0))
    assert 0 < priorities.tree.smallest() < 1e-300


def test_only_the_table_norm_pays_for_the_smallest():
    with pytest.raises(IndexError):
        Priorities(Prioritized()).tree.smallest()


@pytest.mark.parametrize("good", [[0, 1, 2], (0.5, 0, 1e30), np.float32([1, 2, 3]), np.array([1, 2, 3], np.uint8)])
def test_numbers_are_taken_as_a_copy(good):
    found = check_priorities(good, 3)
    assert found.dtype == np.float64
    assert found.tolist() == [float(value) for value in good]
    assert found is not good


def test_minus_zero_is_zero_and_no_priorities_are_fine():
    assert math.copysign(1, check_priorities([-0.0], 1)[0]) == 1
    assert check_priorities([], 0).shape == (0,)


@pytest.mark.parametrize(("bad", "field", "found"), [
    ([1, math.nan, -1], "priorities[1]", "nan"),
    ([math.inf, 1, 1], "priorities[0]", "inf"),
    ([1, 1, -0.5], "priorities[2]", "-0.5"),
    ([1, 2e30, 1], "priorities[1]", "2e+30"),
    ([1, 2], "priorities", "(2,)"),
    ([[1, 2, 3]], "priorities", "(1, 3)"),
    (1.0, "priorities", "()"),
    ([[1], [2, 3]], "priorities", "lists of different lengths"),
    ([True, False, True], "priorities", "bool"),
    (["1", "2", "3"], "priorities", "<U1"),
    ([1j, 1, 1], "priorities", "complex128"),
    ([None, 1, 1], "priorities", "object"),
])  # fmt: skip
def test_what_is_no_priority_is_refused_by_name(bad, field, found):
    with pytest.raises(SpecMismatchError) as error:
        check_priorities(bad, 3)
    assert (error.value.field, error.value.found) == (field, found)


def test_the_last_of_each_position_holds():
    assert deduplicate_last(ints(5, 3, 5, 7, 3, 5)).tolist() == [4, 5, 3]
    assert deduplicate_last(ints(1, 2, 3)).tolist() == [0, 1, 2]
    assert deduplicate_last(ints()).tolist() == []
    assert deduplicate_last(ints(5, -(1 << 62), 1 << 62, 5, -(1 << 62))).tolist() == [4, 3, 2]  # far apart


def test_weights_are_relative_to_the_batch():
    """(4 * P)^-1 = 1/2, 2, 1; divided by 2."""
    weights = importance_weights(floats(0.5, 0.125, 0.25), 4, 1.0, None)
    assert weights.dtype == np.float32
    assert weights.tolist() == [0.25, 1, 0.5]


def test_weights_of_several_batches_are_relative_to_each_ones_own():
    weights = importance_weights(floats(0.5, 0.125, 0.25, 0.5).reshape(2, 2), 4, 1.0, None)
    assert weights.tolist() == [[0.25, 1], [1, 0.5]]


def test_weights_are_relative_to_the_table():
    """The smallest leaf is 1 of 16 in all: (4 * 1/16)^-0.5 = 2. Of the draws: (4 * P)^-0.5 = 0.5, 1."""
    largest = largest_weight(1.0, 16.0, 4, 0.5)
    assert largest == pytest.approx(2)
    assert importance_weights(floats(1, 0.25), 4, 0.5, largest).tolist() == pytest.approx([0.25, 0.5])


@pytest.mark.parametrize("norm", ["batch", "table"])
def test_beta_0_gives_1(norm):
    largest = largest_weight(1e-300, 1e120, 10, 0.0) if norm == "table" else None
    assert importance_weights(floats(1e-300, 0.5), 10, 0.0, largest).tolist() == [1, 1]


@pytest.mark.parametrize("beta", [0.4, 4.0])
def test_weights_neither_overflow_nor_exceed_1(beta):
    largest = largest_weight(1e-300, 1e120, 10**9, beta)
    assert largest < math.inf
    for bound in (None, largest, math.inf):
        weights = importance_weights(floats(1e-300, 0.0, 1e-100, 0.9), 10**9, beta, bound)
        assert np.isfinite(weights).all()
        assert (weights <= 1).all()
        assert (weights >= 0).all()
    assert importance_weights(floats(), 1, beta, None).shape == (0,)
