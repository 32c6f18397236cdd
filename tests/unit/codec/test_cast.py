"""Float fields kept as float16: how far a value may move, and when nothing may."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from replaysvc.codec import ChunkDecoder, widen
from replaysvc.codec.cast import cast_to_float16
from replaysvc.codec.header import Stage
from replaysvc.spec import Precision
from tests.chunk_builders import decode_first, encode, field, one_column, same_bits


def cast_field(dtype="float32", shape=(), **options):
    return field(dtype, shape, precision=Precision.FLOAT16, **options)


def through_a_chunk(values, **options):
    """Returns the values after a chunk, whether they were cast, and the fallbacks that the header counts."""
    signature = one_column(values.dtype, values.shape[1:], Precision.FLOAT16, **options)
    (decoded,) = ChunkDecoder(signature).decode([encode(signature, values)])
    cast = bool(decoded.header.payloads[0].stages & Stage.CAST)
    return widen(decoded.columns[0], signature.columns[0]), cast, decoded.header.fallbacks


def test_robot_at_20_km_keeps_its_millimetres():
    """float16 alone would put every step at 20000 m, since its neighbours there lie 16 m apart.

    At 20 km a float64 still tells nanometres, and the moves cover 99 mm, so an error of 0.1 mm (99 mm / 1024) is allowed.
    """
    values = 20_000.0 + 0.001 * np.arange(100.0)
    back, cast, fallbacks = through_a_chunk(values)
    assert (cast, fallbacks) == (True, 0)
    assert np.abs(back - values).max() <= 0.099 / 1024
    assert np.abs(values.astype(np.float16).astype(float) - values).max() > 0.09
    assert same_bits(np.sort(back), back)


def test_each_dimension_has_an_offset_of_its_own():
    t = np.arange(64.0)
    values = np.stack([np.cos(t), 5_000 + t / 64, -3e6 + 100 * t], axis=1).astype(np.float32)
    back, cast, _ = through_a_chunk(values)
    assert cast
    ranges = values.max(axis=0) - values.min(axis=0)
    assert (np.abs(back.astype(float) - values).max(axis=0) <= ranges.astype(float) / 1024).all()


def test_values_around_zero_get_no_offset():
    """The offset is there for values far from zero; without one a chunk is smaller and widens faster."""
    column = cast_to_float16(np.linspace(-1, 1, 50, dtype=np.float32)[:, None], cast_field(shape=(1,)))
    assert column.offsets is None
    assert column.values.dtype == np.float16


def test_values_beyond_float16_that_no_offset_brings_near_are_kept_lossless_and_counted():
    """65504 is the largest float16. From -7e4 to 7e4 the middle is 0, so no offset helps."""
    back, cast, fallbacks = through_a_chunk(np.array([-7e4, 0.25, 7e4], np.float32))
    assert back.tolist() == [-70_000.0, 0.25, 70_000.0]
    assert (cast, fallbacks) == (False, 1)


def test_one_overflowing_dimension_keeps_the_whole_column_lossless():
    values = np.array([[1.0, -7e4], [2.0, 7e4], [3.3, 1.0]], np.float32)
    back, cast, fallbacks = through_a_chunk(values)
    assert same_bits(back, values)
    assert (cast, fallbacks) == (False, 1)


def test_infinite_value_beside_an_overflowing_one_does_not_hide_it():
    values = np.array([np.inf, 7e4, -7e4], np.float32)
    back, cast, fallbacks = through_a_chunk(values)
    assert same_bits(back, values)
    assert (cast, fallbacks) == (False, 1)


def test_range_that_itself_overflows_is_kept_lossless():
    """The range of these is infinite in float64, and so would be an error bound taken from it."""
    values = np.array([-1.7e308, 0.0, 1.7e308])
    back, cast, fallbacks = through_a_chunk(values)
    assert same_bits(back, values)
    assert (cast, fallbacks) == (False, 1)


def test_error_of_zero_demands_exactness():
    halves = np.array([0.5, -1.5, 2048.0, 0.0], np.float32)
    assert through_a_chunk(halves, max_error=0.0) == (pytest.approx(halves, abs=0), True, 0)
    thirds = np.array([1 / 3, 2 / 3, 1.0], np.float32)
    back, cast, fallbacks = through_a_chunk(thirds, max_error=0.0)
    assert same_bits(back, thirds)
    assert (cast, fallbacks) == (False, 1)


def test_max_error_bounds_every_value_and_decides_the_fallback():
    """Between 512 and 1024 float16 has steps of 0.5, so rounding moves a value by up to 0.25.

    The offset 512 halves the range to [-511, 511]: steps of 0.25 there, so rounding moves by up to 0.125.
    """
    values = np.linspace(1, 1023, 5000, dtype=np.float32)
    back, cast, _ = through_a_chunk(values, max_error=0.126)
    assert cast
    assert 0.12 < np.abs(back.astype(float) - values).max() <= 0.126
    back, cast, fallbacks = through_a_chunk(values, max_error=0.12)
    assert same_bits(back, values)
    assert (cast, fallbacks) == (False, 1)


@pytest.mark.parametrize("value", [0.1, -1e30, 65_520.0, 1e-40, 3.0, -0.0, np.nan, -np.inf])
def test_constant_column_is_exact(value):
    values = np.full((9, 2), value, np.float32)
    back, _, _ = through_a_chunk(values)
    assert same_bits(back, values) or np.isnan(value)
    assert np.array_equal(back, values, equal_nan=True)


def test_nan_and_infinities_survive_among_values_within_the_bound():
    values = np.array([np.nan, 1.0, np.inf, -np.inf, 2.0, -0.0, 0.0], np.float32)
    back, cast, fallbacks = through_a_chunk(values)
    assert (cast, fallbacks) == (True, 0)
    assert np.array_equal(back, values, equal_nan=True)
    assert np.signbit(back[5])
    assert not np.signbit(back[6])


def test_negative_zero_survives_beside_a_dimension_with_an_offset():
    values = np.array([[-0.0, 20_000.0], [0.0, 20_000.01], [-0.0, 20_000.02]], np.float32)
    signature = one_column("float32", (2,), Precision.FLOAT16)
    (decoded,) = ChunkDecoder(signature).decode([encode(signature, values)])
    assert decoded.columns[0].offsets is not None
    assert np.signbit(widen(decoded.columns[0], signature.columns[0])[:, 0]).tolist() == [True, False, True]


@pytest.mark.parametrize("odd", [np.nan, np.inf, -0.0])
def test_dimension_with_an_odd_value_gets_no_offset_and_so_may_be_kept_lossless(odd):
    """At 20 km only an offset would do, and -0.0, NaN and infinities are kept out of sums."""
    values = np.append(20_000.0 + 0.001 * np.arange(100.0), odd)
    back, cast, fallbacks = through_a_chunk(values, max_error=0.001)
    assert same_bits(back, values)
    assert (cast, fallbacks) == (False, 1)


@pytest.mark.parametrize(("top", "fits"), [(1.3, False), (1.6, True)])
def test_error_may_reach_one_1024th_of_the_range_and_no_more(top, fits):
    """Near 1 the nearest float16 to 1.00048 is 1: an error of 0.00048. 0.3 / 1024 is less, 0.6 / 1024 is more.

    The NaN keeps offsets out.
    """
    values = np.array([1.0, 1.00048, top, np.nan], np.float32)
    _, cast, fallbacks = through_a_chunk(values)
    assert (cast, fallbacks) == (fits, 1 - fits)


def test_fields_declared_lossless_are_never_cast():
    values = np.array([1 / 3, 1e30], np.float32)
    signature = one_column("float32")
    (decoded,) = ChunkDecoder(signature).decode([encode(signature, values)])
    assert decoded.columns[0].values.dtype == np.float32
    assert decoded.header.fallbacks == 0


def test_empty_field_counts_as_cast():
    values = np.empty((4, 0), np.float32)
    assert through_a_chunk(values)[1:] == (True, 0)


def test_decoding_gives_exactly_the_float16_values_that_were_stored():
    signature = one_column("float64", (3,), Precision.FLOAT16)
    values = np.linspace(-2, 2, 60).reshape(20, 3)
    stored = cast_to_float16(values, signature.columns[0])
    (decoded,) = ChunkDecoder(signature).decode([encode(signature, values)])
    assert same_bits(decoded.columns[0].values, stored.values)
    assert same_bits(decode_first(signature, encode(signature, values)), values.astype(np.float16).astype(np.float64))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(derandomize=True, database=None, deadline=None, max_examples=150)
@given(data=st.data())
def test_no_value_moves_by_more_than_the_bound(dtype, data):
    """By the definition: 2^-10 of the widest dimension's range, or `max_error`; otherwise nothing moves at all."""
    shape = (data.draw(st.integers(2, 8)), data.draw(st.integers(1, 3)))
    width = 8 * np.dtype(dtype).itemsize
    base = data.draw(hnp.arrays(dtype, (1, shape[1]), elements=st.floats(-1e6, 1e6, width=width)))
    moves = data.draw(hnp.arrays(dtype, shape, elements=st.floats(width=width) | st.floats(-1, 1, width=width)))
    with np.errstate(all="ignore"):
        values = (base + moves).astype(dtype)
    max_error = data.draw(st.sampled_from([None, 0.0, 1e-3, 1e3]))
    back, cast, fallbacks = through_a_chunk(values, max_error=max_error)
    assert fallbacks == (not cast)
    if not cast:
        assert same_bits(back, values)
        return
    finite = np.isfinite(values)
    assert np.array_equal(back[~finite], values[~finite], equal_nan=True)
    assert (np.signbit(back) == np.signbit(values))[values == 0].all()
    exact = np.where(finite, values, np.nan).astype(np.float64)
    columns = [column[np.isfinite(column)] for column in exact.T]
    ranges = [float(column.max() - column.min()) for column in columns if len(column)]
    bound = max(ranges, default=0.0) / 1024 if max_error is None else max_error
    assert (np.abs(back.astype(np.float64) - exact)[finite] <= bound).all()
