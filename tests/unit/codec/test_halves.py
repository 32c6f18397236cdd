"""Every float16 there is, few at a time and many, beside numpy's own conversion."""

import numpy as np
import pytest
import torch

from replaysvc.codec.halves import from_float16

ALL = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
FINITE = ALL[np.isfinite(ALL)]


def assert_exact(values, dtype, allocate=None):
    found = from_float16(values, np.dtype(dtype), allocate)
    assert found.dtype == dtype
    bits = np.uint32 if dtype == np.float32 else np.uint64
    np.testing.assert_array_equal(found.view(bits), values.astype(dtype).view(bits))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("values", [ALL, FINITE, FINITE[::97], FINITE[:0]], ids=["all", "finite", "few", "none"])
def test_every_value_is_exact(values, dtype):
    assert_exact(values, dtype)


@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan])
def test_many_values_with_one_that_is_not_finite_are_exact(odd):
    values = np.ones((100, 100), np.float16)
    values[99, 99] = odd
    assert_exact(values, np.float32)


def test_smallest_values_are_exact_where_the_processor_is_told_to_take_them_for_zero():
    try:
        torch.set_flush_denormal(True)
        found = from_float16(FINITE, np.dtype(np.float32))
    finally:
        torch.set_flush_denormal(False)
    np.testing.assert_array_equal(found.view(np.uint32), FINITE.astype(np.float32).view(np.uint32))


def test_values_are_made_where_the_caller_wants_them():
    room = np.full((300, 200), 7, np.float32)
    assert from_float16(FINITE[:60_000].reshape(300, 200), np.dtype(np.float32), lambda shape, dtype: room) is room
    np.testing.assert_array_equal(room.ravel(), FINITE[:60_000].astype(np.float32))
