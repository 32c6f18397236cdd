"""Values as whole numbers of a step: how coarse it may be, what survives it, and when there is none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from replaysvc.codec import ChunkDecoder, ChunkEncoder, widen
from replaysvc.codec.cast import measure
from replaysvc.codec.grid import STEPS, fit_grid, from_grid, unzigzag, zigzag
from replaysvc.codec.header import Stage
from replaysvc.spec import Precision
from tests.chunk_builders import columns_for, encode, field, make_info, one_column, same_bits


def fit(values, **options):
    spec = field(values.dtype, values.shape[1:], precision=Precision.FLOAT16, **options)
    return fit_grid(measure(values, spec))


def through_a_chunk(values, **options):
    """The values after a chunk, and what was done to them."""
    signature = one_column(values.dtype, values.shape[1:], Precision.FLOAT16, **options)
    (decoded,) = ChunkDecoder(signature).decode([encode(signature, values)])
    return widen(decoded.columns[0], signature.columns[0]), decoded.header.payloads[0].stages


def wave(rows=100, dtype=np.float32):
    """Two dimensions: one from -1 to 1, one from -1/16 to 1/16."""
    t = np.arange(rows)
    return np.stack([np.cos(t), np.sin(t) / 16], axis=1).astype(dtype)


def test_steps_are_powers_of_two_and_float16():
    assert STEPS[[22, 23, 24, 25]].tolist() == [0.25, 0.5, 1.0, 2.0]
    assert STEPS[0] == np.finfo(np.float16).smallest_subnormal
    assert STEPS[-1] == 2.0**15  # 2^16 is none
    assert np.isfinite(STEPS.astype(np.float16)).all()


def test_small_numbers_of_either_sign_have_only_low_bits():
    numbers = np.array([0, -1, 1, -2, 2, 32767, -32768], np.int16)
    coded = zigzag(numbers.view(np.uint16))
    assert coded.tolist() == [0, 1, 2, 3, 4, 65534, 65535]
    assert unzigzag(coded).view(np.int16).tolist() == numbers.tolist()


def test_value_is_its_number_times_its_step():
    numbers = np.array([[3, -4], [0, 2048]], np.int16)
    found = from_grid(numbers, np.array([26, 23], np.uint8))  # 4 and 0.5
    assert found.dtype == np.float16
    assert found.tolist() == [[12.0, -2.0], [0.0, 1024.0]]


def test_step_is_the_coarsest_power_of_two_that_the_bound_allows():
    """An error of 0.4 allows a step of 0.8; 0.5 is the power of two below it."""
    grid = fit(np.array([[0.0], [300.0], [100.3]], np.float32), max_error=0.4)
    assert STEPS[grid.scales].tolist() == [0.5]
    assert grid.numbers.tolist() == [[0], [600], [201]]
    assert grid.offsets is None


def test_dimension_of_small_range_keeps_a_256th_of_it_whatever_the_others_cover():
    """The bound is 1000 / 1024; the second dimension covers 1, and would be lost within it."""
    values = np.stack([np.linspace(0, 1000, 50), np.linspace(0, 1, 50)], axis=1).astype(np.float32)
    back, stages = through_a_chunk(values)
    assert stages & Stage.GRID
    assert np.abs(back - values)[:, 0].max() <= 1000 / 1024
    assert np.abs(back - values)[:, 1].max() <= 1 / 256


def test_saturated_values_come_back_exactly():
    """Noise clipped at -1, 0.5 and 0: the bound alone, 1.5 / 1024, would let each of them move."""
    noise = np.random.default_rng(5).normal(0, 1, (400, 2)).astype(np.float32)
    values = np.stack([noise[:, 0].clip(-1, 0.5), np.maximum(noise[:, 1], 0).clip(0, 1)], axis=1)
    back, stages = through_a_chunk(values)
    assert stages & Stage.GRID
    for value in (-1.0, 0.0, 0.5, 1.0):
        assert (saturated := values == value).any()
        assert same_bits(back[saturated], values[saturated])
    assert (np.abs(back) <= 1).all()


def test_value_next_to_either_end_of_the_range_becomes_the_nearest_number_inside():
    """The first covers 1.5, a step of 2^-7 = 1/128: -0.7 is 89.6 of them, 0.8 102.4; 90 would be outside. The second makes the
    bound large, 100 / 1024."""
    values = np.array([[-0.7, 0], [0.8, 100], [0.3, 0.3], [-0.698, 0], [0.1, 7]], np.float32)
    grid = fit(values)
    assert STEPS[grid.scales[0]] == 1 / 128
    assert grid.numbers[:, 0].tolist() == [-89, 102, 38, -89, 13]


def test_value_at_the_end_is_rounded_where_the_bound_is_too_narrow():
    """An error of 0.3 allows a step of 0.5: 10.4 may become 10.5, which is 0.1 away, but 10 is 0.4 away."""
    grid = fit(np.array([-100, 10.4, 3.3], np.float32), max_error=0.3)
    assert STEPS[grid.scales] == 0.5
    assert grid.numbers.tolist() == [-200, 21, 7]


def test_dimension_far_from_zero_gets_an_offset_and_the_others_do_not():
    """At 20000 float16 lie 16 apart; the offset is the middle of 20000 and 20001."""
    values = np.array([[20_000.0, -1.0], [20_001.0, 1.0]])
    grid = fit(values)
    assert grid.offsets.tolist() == [20_000.5, 0.0]
    assert np.signbit(grid.offsets[1])  # adding -0.0 changes nothing
    assert (grid.numbers[0] == -grid.numbers[1]).all()


@pytest.mark.parametrize(
    ("values", "step"),
    [([0, 1, 1, 0, 1], 1.0), ([0, 3, 700, 2047, 5], 1.0), ([-8, 0, 24, 1000, 16], 8.0), ([0.5, 0.25, 3, -1, 0], 0.25)],
    ids=["flags", "counts", "multiples of 8", "quarters"],
)
def test_flags_counts_and_fractions_stay_what_they_are(values, step):
    """The bound would allow more: 2 for the counts, say, of which the range is 2047."""
    column = np.stack([values, np.linspace(0, 3000, 5)], axis=1).astype(np.float32)
    back, stages = through_a_chunk(column)
    assert stages & Stage.GRID
    assert same_bits(back[:, 0], column[:, 0])
    assert STEPS[fit(column).scales[0]] == step


def test_one_value_off_the_common_grid_ends_it():
    values = np.append(np.arange(100), 7.3).astype(np.float32)
    assert STEPS[fit(values).scales] == 0.125  # 99 / 1024 is the bound; 0.1934 is twice that
    assert STEPS[fit(values[:-1]).scales] == 1.0


def test_offset_is_a_multiple_of_the_step_so_that_nothing_is_rounded_when_it_is_added():
    """The bound is 31 / 1024, and float32 lie 2^-9 apart at 20000, 32 of them to a step."""
    values = (20_000 + np.random.default_rng(3).uniform(0, 32, 4000)).astype(np.float32).clip(20_001, None)
    grid = fit(values)
    assert STEPS[grid.scales] == 2.0**-5
    assert grid.offsets % STEPS[grid.scales] == 0
    back, stages = through_a_chunk(values)
    assert stages & Stage.GRID
    assert np.abs(back.astype(float) - values).max() <= 31 / 1024
    assert (saturated := values == 20_001).any()
    assert (back[saturated] == 20_001).all()


def test_constant_that_is_a_float16_gets_no_offset():
    """Offsets cost bytes on the disk and on the wire, and one-hot and constant dimensions are common."""
    values = np.stack([np.linspace(-1, 1, 40), np.full(40, 1.0), np.full(40, 300.5)], axis=1).astype(np.float32)
    grid = fit(values)
    assert grid.offsets is None
    assert same_bits(from_grid(grid.numbers, grid.scales)[:, 1:].astype(np.float32), values[:, 1:])


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf, -0.0])
def test_no_grid_where_a_value_would_not_survive_it(odd):
    values = wave()
    values[7, 1] = odd
    assert fit(values) is None
    back, stages = through_a_chunk(values)
    assert Stage.CAST in stages
    assert Stage.GRID not in stages
    assert np.array_equal(back[7], values[7].astype(np.float16), equal_nan=True)
    assert np.signbit(back[7, 1]) == np.signbit(odd)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -3e30, 1e-45, 65_504.0, 65_520.0])
def test_constant_dimension_is_exact_beside_a_moving_one(value):
    values = np.stack([np.linspace(-1, 1, 40), np.full(40, value)], axis=1).astype(np.float32)
    back, stages = through_a_chunk(values)
    assert stages & Stage.GRID
    assert same_bits(back[:, 1], values[:, 1])


def test_one_step_of_one_value_has_a_grid():
    back, _ = through_a_chunk(np.array([0.5, 0.75], np.float32))
    assert np.abs(back - [0.5, 0.75]).max() <= 0.25 / 1024
    assert fit(np.array([0.5, 0.75], np.float32)).numbers.shape == (2,)


def test_error_of_zero_demands_a_grid_on_which_all_values_lie():
    halves = np.array([0.5, -1.5, 1023.0, 0.0], np.float32)  # float16 lie 0.5 apart below 1024
    assert STEPS[fit(halves, max_error=0.0).scales] == 0.5
    assert same_bits(through_a_chunk(halves, max_error=0.0)[0], halves)
    assert fit(np.array([1 / 3, 2 / 3], np.float32), max_error=0.0) is None
    wide = np.array([2.0**-14, 1024.0], np.float32)  # float16 has both, but no grid of 2048 numbers does
    assert fit(wide, max_error=0.0) is None
    assert same_bits(through_a_chunk(wide, max_error=0.0)[0], wide)


def test_subnormal_float16_values_keep_their_bound():
    values = (np.arange(40, dtype=np.float32) - 20) * np.float32(3e-7)
    back, _ = through_a_chunk(values)
    assert np.abs(back.astype(float) - values).max() <= 39 * 3e-7 / 1024 or same_bits(back, values)


def test_values_beyond_float16_have_no_grid():
    assert fit(np.array([-7e4, 0.25, 7e4], np.float32)) is None
    assert fit(np.array([-1.7e308, 0.0, 1.7e308])) is None


def test_chunk_without_a_grid_among_others_that_have_one_comes_back():
    """Stages are decided at the first chunk; the second has a NaN."""
    signature = one_column("float32", (2,), Precision.FLOAT16)
    encoder, decoder = ChunkEncoder(signature), ChunkDecoder(signature)
    gap = wave()
    gap[3] = np.nan
    chunks = [encoder.encode(make_info(signature, 99), columns_for(signature, values)) for values in (wave(), gap, wave())]
    decoded = decoder.decode(chunks)
    assert [bool(chunk.header.payloads[0].stages & Stage.GRID) for chunk in decoded] == [True, False, True]
    assert [chunk.header.fallbacks for chunk in decoded] == [0, 0, 0]
    assert same_bits(decoded[0].columns[0].values, decoded[2].columns[0].values)
    assert np.isnan(decoded[1].columns[0].values[3]).all()


def test_chunks_decoded_together_are_what_they_are_alone():
    """Columns of the same stages and length are decoded many at a time: these have two lengths, and some have offsets."""
    signature = one_column("float32", (2,), Precision.FLOAT16)
    encoder, decoder = ChunkEncoder(signature), ChunkDecoder(signature)
    chunks = []
    for i in range(70):
        values = wave(40 + i % 2) + np.float32((i % 3) * 5000)
        chunks.append(encoder.encode(make_info(signature, len(values) - 1), columns_for(signature, values)))
    for chunk, together in zip(chunks, decoder.decode(chunks), strict=True):
        (alone,) = decoder.decode([chunk])
        for left, right in zip(alone.columns, together.columns, strict=True):
            assert same_bits(left.values, right.values)
            assert (left.offsets is None) == (right.offsets is None)
            assert left.offsets is None or same_bits(left.offsets, right.offsets)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(derandomize=True, database=None, deadline=None, max_examples=300)
@given(data=st.data())
def test_no_value_moves_by_more_than_the_bound_or_a_256th_of_its_dimension(dtype, data):
    """By the definition, on slow series of every size, around every place."""
    rows, columns = data.draw(st.integers(2, 40)), data.draw(st.integers(1, 4))
    exponents = st.integers(-40, 14).map(lambda e: 2.0**e)
    sizes = np.array(data.draw(st.lists(exponents, min_size=columns, max_size=columns)))
    places = np.array(data.draw(st.lists(st.just(0.0) | st.floats(-1e5, 1e5), min_size=columns, max_size=columns)))
    moves = data.draw(hnp.arrays(np.float64, (rows, columns), elements=st.floats(-1, 1)))
    values = (np.cumsum(moves, axis=0) * sizes + places).astype(dtype) + np.zeros((), dtype)
    max_error = data.draw(st.sampled_from([None, 0.0, 1e-6, 1e-2, 10.0]))
    grid = fit(values, max_error=max_error)
    back, stages = through_a_chunk(values, max_error=max_error)
    exact = values.astype(np.float64)
    spread = exact.max(axis=0) - exact.min(axis=0)
    bound = spread.max() / 1024 if max_error is None else max_error
    error = np.abs(back.astype(np.float64) - exact).max(axis=0)
    if stages & Stage.CAST:
        assert (error <= bound).all()
    else:
        assert same_bits(back, values)
    if grid is not None:
        assert (np.abs(grid.numbers.astype(int)) <= 2048).all()
        around = 0 if grid.offsets is None else grid.offsets.astype(np.float64)
        steps = STEPS[grid.scales].astype(np.float64)
        stored = from_grid(grid.numbers, grid.scales).astype(np.float64)
        assert (stored == grid.numbers * steps).all()  # nothing is rounded twice
        assert (np.abs(stored - (exact - around)) <= steps).all()
        least = np.maximum(np.abs(exact - around).max(axis=0) / 1024, 2.0**-24)  # float16 near the offset does no better
        moves_none = (stored == exact - around).all(axis=0)
        assert ((steps <= np.maximum(spread / 128, least)) | moves_none).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(derandomize=True, database=None, deadline=None, max_examples=150)
@given(data=st.data())
def test_multiples_of_the_step_stay_what_they_are_and_no_value_passes_one(dtype, data):
    """Noise of every size around every place, saturated at multiples of a 64th of its size, each at least the step."""
    size = 2.0 ** data.draw(st.integers(-9, 9))
    place = data.draw(st.sampled_from([0, 0, 1, -3, 40, 1000])) * size
    low, high = (place + end * size / 64 for end in sorted(data.draw(st.sets(st.integers(-64, 64), min_size=2, max_size=2))))
    noise = data.draw(hnp.arrays(np.float64, (40,), elements=st.floats(-1, 1))) * size
    noise[:2] = -2 * size, 2 * size
    values = (place + noise).clip(low, high).astype(dtype) + np.zeros((), dtype)
    back, stages = through_a_chunk(values)
    assert stages & Stage.GRID
    step = STEPS[fit(values).scales].astype(np.float64)
    multiples = values % step == 0
    assert same_bits(back[multiples], values[multiples])
    saturated = (values == low) | (values == high)
    assert same_bits(back[saturated], values[saturated])
    assert ((low <= back) & (back <= high)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(derandomize=True, database=None, deadline=None, max_examples=150)
@given(data=st.data())
def test_range_is_left_only_where_the_bound_forbids_the_last_number_inside(dtype, data):
    sizes = 2.0 ** np.array(data.draw(st.lists(st.floats(-9, 9), min_size=3, max_size=3)))
    places = np.array(data.draw(st.lists(st.just(0.0) | st.floats(-1e4, 1e4), min_size=3, max_size=3)))
    moves = data.draw(hnp.arrays(np.float64, (40, 3), elements=st.floats(-1, 1)))
    values = (moves * sizes + places).astype(dtype) + np.zeros((), dtype)
    if (grid := fit(values)) is None:
        return
    back, _ = through_a_chunk(values)
    low, high = values.min(axis=0).astype(np.float64), values.max(axis=0).astype(np.float64)
    around = 0 if grid.offsets is None else grid.offsets.astype(np.float64)
    first, last = (low - around) / STEPS[grid.scales], (high - around) / STEPS[grid.scales]
    away = np.maximum(np.ceil(first) - first, last - np.floor(last)) * STEPS[grid.scales]
    allowed = away <= (high - low).max() / 1024
    assert ((low <= back) & (back <= high))[:, allowed].all()
    assert (np.ceil(last) * STEPS[grid.scales] + around >= back).all()
    assert (np.floor(first) * STEPS[grid.scales] + around <= back).all()
