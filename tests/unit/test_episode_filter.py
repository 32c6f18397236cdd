"""What an EpisodeFilter takes and refuses."""

import numpy as np
import pytest

from replaysvc.errors import SpecMismatchError
from replaysvc.requests import EpisodeFilter


def test_an_empty_filter_asks_for_nothing():
    assert EpisodeFilter() == EpisodeFilter(end=None, min_length=None, max_return=None)


def test_numbers_are_kept_as_plain_ones():
    found = EpisodeFilter(min_length=np.int64(3), max_return=np.float32(0.5), min_policy_version=np.int32(-1))
    assert (type(found.min_length), type(found.max_return), type(found.min_policy_version)) == (int, float, int)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("end", "done"), ("end", 1), ("end", ["open"]), ("min_length", -1), ("min_length", 1.5), ("max_length", True),
        ("min_return", float("nan")), ("min_return", float("-inf")), ("max_return", float("inf")), ("max_return", "9"),
        ("min_policy_version", -2), ("max_policy_version", 1 << 63),
    ],
)  # fmt: skip
def test_what_is_no_such_value_is_refused_by_name(name, value):
    with pytest.raises(SpecMismatchError, match=name):
        EpisodeFilter(**{name: value})


@pytest.mark.parametrize("what", ["length", "return", "policy_version"])
def test_bounds_that_nothing_lies_between_are_refused(what):
    EpisodeFilter(**{f"min_{what}": 3, f"max_{what}": 3})
    with pytest.raises(SpecMismatchError, match=f"max_{what}.*at least min_{what}=4"):
        EpisodeFilter(**{f"min_{what}": 4, f"max_{what}": 3})
