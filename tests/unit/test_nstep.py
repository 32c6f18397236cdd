import numpy as np
import pytest

from replaysvc.nstep import nstep_discount, nstep_return, sequence_targets


def test_return_sums_only_the_steps_of_the_window():
    rewards = np.array([[1, 2, 4], [1, 2, 4]], np.float32)
    steps = np.array([[True, True, True], [True, True, False]])
    assert nstep_return(rewards, steps, 0.5).tolist() == [3.0, 2.0]


def test_what_stands_past_the_window_does_not_matter_even_if_it_is_not_finite():
    assert nstep_return(np.array([[1, np.nan]], np.float32), np.array([[True, False]]), 0.5).tolist() == [1.0]


def test_gamma_zero_keeps_the_first_reward():
    assert nstep_return(np.array([[3, 5]], np.float32), np.array([[True, True]]), 0.0).tolist() == [3.0]
    assert nstep_discount(np.array([1, 2]), np.array([False, False]), 0.0).tolist() == [0.0, 0.0]


def test_discount_counts_the_steps_really_summed_and_is_zero_after_termination():
    discount = nstep_discount(np.array([3, 2, 1]), np.array([False, False, True]), 0.5)
    assert discount.tolist() == [0.125, 0.25, 0.0]
    assert discount.dtype == np.float32


@pytest.mark.parametrize("n_step", [1, 2])
def test_targets_of_sequences_that_end_in_each_way(n_step):
    """Windows of 3 steps, of which the second has 2 and terminates and the third 1 and is truncated."""
    rewards = np.array([[1, 2, 3, 4], [5, 6, np.nan, np.inf], [7, 8, 9, 9]], np.float32)[:, : 2 + n_step]
    counts = np.array([2 + n_step, 2, 1])
    terminated, truncated = np.array([False, True, False]), np.array([False, False, True])
    found = sequence_targets(rewards, counts, terminated, truncated, 0.5, 3, n_step)
    if n_step == 1:
        assert found.reward.tolist() == [[1, 2, 3], [5, 6, 0], [7, 0, 0]]
        assert found.discount.tolist() == [[0.5, 0.5, 0.5], [0.5, 0, 0], [0.5, 0, 0]]
        assert found.terminated.tolist() == [[False] * 3, [False, True, False], [False] * 3]
    else:
        assert found.reward.tolist() == [[2, 3.5, 5], [8, 6, 0], [7, 0, 0]]
        assert found.discount.tolist() == [[0.25, 0.25, 0.25], [0, 0, 0], [0.5, 0, 0]]
        assert found.terminated.tolist() == [[False] * 3, [True, True, False], [False] * 3]
    assert found.truncated.tolist() == [[False] * 3, [False] * 3, [True, False, False]]
    assert [values.dtype for values in found] == [np.float32, np.float32, np.bool_, np.bool_]


def test_one_step_targets_are_new_arrays_of_whoever_allocates():
    made, rewards = [], np.ones((2, 3), np.float32)

    def allocate(shape, dtype):
        made.append(np.empty(shape, dtype))
        return made[-1]

    found = sequence_targets(rewards, np.array([3, 2]), np.zeros(2, bool), np.zeros(2, bool), 0.9, 3, 1, allocate)
    assert found.reward is made[0]
    assert found.discount is made[1]
    assert rewards.tolist() == [[1, 1, 1], [1, 1, 1]]
