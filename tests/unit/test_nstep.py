import numpy as np

from replaysvc.nstep import nstep_discount, nstep_return


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
