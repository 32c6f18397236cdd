"""Histograms, with every count worked by hand."""

import math

import numpy as np
import pytest

from replaysvc.histogram import SECONDS, SHORT_SECONDS, STEPS, Histogram, quantile


def counted(*values, bounds=(1.0, 2.0, 4.0)):
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)
    return histogram.view()


def test_a_value_counts_in_the_range_whose_upper_bound_it_does_not_pass():
    view = counted(0.0, 1.0, 1.5, 2.0, 2.1, 4.0, 4.1, 1000.0)
    assert view.counts == (2, 2, 2, 2)
    assert view.bounds == (1.0, 2.0, 4.0)
    assert view.total == pytest.approx(1014.7)


def test_a_value_may_count_many_times():
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.5, 10)
    assert histogram.view().counts == (0, 10, 0)
    assert histogram.view().total == 15.0


def test_an_array_counts_as_its_values_do_one_by_one(rng):
    values = rng.integers(0, 6, 50)
    histogram = Histogram((1.0, 2.0, 4.0))
    histogram.observe_all(values)
    assert histogram.view() == counted(*values.tolist())


def test_a_view_stays_as_it_was():
    histogram = Histogram((1.0,))
    before = histogram.view()
    histogram.observe(0.5)
    histogram.observe_all(np.array([7.0]))
    assert before.counts == (0, 0)
    assert histogram.view().counts == (1, 1)


def test_quantiles_lie_evenly_within_a_range():
    view = counted(0.5, 1.5, 1.5, 1.5, 1.5)  # one up to 1, four up to 2
    assert quantile(view, 0.2) == 1.0
    assert quantile(view, 0.6) == 1.5
    assert quantile(view, 1.0) == 2.0
    assert quantile(view, 0.1) == 0.5


def test_quantiles_pass_over_ranges_without_values():
    view = counted(0.5, 3.0)
    assert quantile(view, 0.5) == 1.0
    assert quantile(view, 0.75) == 3.0


def test_what_is_above_all_bounds_counts_as_the_last_of_them():
    assert quantile(counted(0.5, 100.0), 1.0) == 4.0
    assert quantile(counted(100.0), 0.5) == 4.0


def test_nothing_counted_has_no_quantiles():
    assert math.isnan(quantile(counted(), 0.5))


@pytest.mark.parametrize("bounds", [SECONDS, SHORT_SECONDS, STEPS])
def test_bounds_rise(bounds):
    assert list(bounds) == sorted(set(bounds))


def test_bounds_of_steps_are_powers_of_four():
    assert (STEPS[0], STEPS[1], STEPS[-1]) == (1, 4, 4**14)
