"""What goes into a chunk comes out of it: to the last bit where nothing lossy was declared."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from replaysvc.codec import ChunkDecoder, ChunkEncoder, read_header, widen
from replaysvc.errors import InvalidRequestError
from replaysvc.spec import DTYPES, FieldSpec, Precision, Signature
from tests.chunk_builders import NAN_PAYLOADS, columns_for, decode_first, encode, field, make_info, one_column, same_bits

SHAPES = [(), (0,), (3, 0), (4,), (2, 1, 3, 1, 2)]
exactly = settings(derandomize=True, database=None, deadline=None)


def elements(dtype):
    """Values of a dtype, with a liking for the odd ones."""
    options = {"allow_nan": True, "allow_infinity": True, "allow_subnormal": True}
    if dtype.kind == "f":
        return st.floats(width=8 * dtype.itemsize, **options)
    if dtype.kind == "c":
        return st.complex_numbers(width=64, **options)
    return hnp.from_dtype(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(exactly, max_examples=8)
@given(data=st.data())
def test_lossless_column_of_any_dtype_and_shape_comes_back_bit_for_bit(dtype, shape, data):
    steps = data.draw(st.integers(1, 6))
    values = data.draw(hnp.arrays(dtype, (steps + 1, *shape), elements=elements(dtype)))
    signature = one_column(dtype, shape)
    assert same_bits(decode_first(signature, encode(signature, values)), values)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_bit_pattern_of_a_dtype_survives_in_slow_and_in_random_series(dtype, rng):
    width = dtype.itemsize
    noise = rng.integers(0, 2 if dtype.kind == "b" else 256, (300, 5 * width), dtype=np.uint8)
    slow = np.repeat(noise[:10], 30, axis=0)
    for raw in (noise, slow, np.zeros_like(noise)):
        values = raw.view(dtype)
        signature = one_column(dtype, (5,))
        assert same_bits(decode_first(signature, encode(signature, values)), values)


@pytest.mark.parametrize("name", sorted(NAN_PAYLOADS))
def test_nan_payloads_infinities_signed_zeros_and_subnormals_survive_lossless(name):
    unsigned, patterns = NAN_PAYLOADS[name]
    tiny = np.finfo(name).smallest_subnormal
    odd = np.array([np.inf, -np.inf, 0.0, -0.0, tiny, -tiny], name)
    values = np.concatenate([np.array(patterns, unsigned).view(name), odd])
    signature = one_column(name)
    assert same_bits(decode_first(signature, encode(signature, values)), values)


def test_real_and_imaginary_parts_of_complex_values_keep_their_bits():
    values = np.array([complex(-0.0, np.inf), complex(np.nan, -0.0), complex(1e-45, 3.4e38)], np.complex64)
    signature = one_column("complex64")
    assert same_bits(decode_first(signature, encode(signature, values)), values)


def test_float16_field_is_its_own_stored_form_and_never_cast():
    values = np.array(NAN_PAYLOADS["float16"][1], "u2").view(np.float16)
    signature = one_column("float16", precision=Precision.FLOAT16)
    assert same_bits(decode_first(signature, encode(signature, values)), values)


def test_header_tells_what_the_writer_said():
    signature = one_column("int32")
    values = np.arange(6, dtype=np.int32)
    info = {
        "episode_key": (1 << 64) - 1, "first_step": 0, "terminated": True, "truncated": True, "policy_version": (1 << 63) - 1,
        "reward_sum": -1.5, "metadata": '{"ключ": 1}'.encode(),
    }  # fmt: skip
    header = read_header(encode(signature, values, **info), signature)
    assert header.info == make_info(signature, 5, **info)
    assert header.fallbacks == 0
    assert header.raw_bytes == 6 * 4 + 5 * 1 + 5 * 4  # int32 observation, uint8 action, float32 reward


def test_smallest_chunk_has_one_step_and_two_observations():
    signature = one_column("uint8", (2,))
    chunk = encode(signature, np.array([[1, 2], [3, 4]], np.uint8), policy_version=-1, first_step=(1 << 62) - 1)
    (decoded,) = ChunkDecoder(signature).decode([chunk])
    assert [column.values.shape for column in decoded.columns] == [(2, 2), (1,), (1,)]
    assert decoded.header.info.first_step == (1 << 62) - 1


def test_columns_of_many_kinds_keep_their_places():
    signature = Signature(
        {"image": FieldSpec("", (4, 4), np.uint8), "state": FieldSpec("", (2,), np.float64, Precision.LOSSLESS)},
        (FieldSpec("", (), np.int64), FieldSpec("", (3,), np.bool_)),
        log_prob=FieldSpec("", (), np.float32),
    )
    shapes = [(3, 4, 4), (3, 2), (2,), (2, 3), (2,), (2,)]
    columns = [
        (np.arange(np.prod(shape)) % 2 + i).reshape(shape).astype(spec.dtype)
        for i, (shape, spec) in enumerate(zip(shapes, signature.columns, strict=True))
    ]
    (decoded,) = ChunkDecoder(signature).decode([ChunkEncoder(signature).encode(make_info(signature, 2), columns)])
    assert [spec.name for spec in signature.columns] == [
        "observation/image", "observation/state", "action/0", "action/1", "reward", "log_prob",
    ]  # fmt: skip
    for column, spec, values in zip(decoded.columns, signature.columns, columns, strict=True):
        assert same_bits(widen(column, spec), values), spec.name


def test_many_chunks_are_decoded_in_order_from_bytes_and_views():
    signature = one_column("int16")
    chunks = [encode(signature, np.full(40, i, np.int16), first_step=i) for i in range(30)]
    decoded = ChunkDecoder(signature).decode([chunk if i % 2 else memoryview(chunk) for i, chunk in enumerate(chunks)])
    assert [int(chunk.columns[0].values[-1]) for chunk in decoded] == list(range(30))
    assert [chunk.header.info.first_step for chunk in decoded] == list(range(30))
    assert ChunkDecoder(signature).decode([]) == []


def test_encoder_that_decides_anew_after_many_chunks_stays_right(rng):
    """The kind of data changes after the stages were chosen, so the choice is a bad one, yet an exact one."""
    signature = one_column("int32", (8,))
    encoder, decoder = ChunkEncoder(signature), ChunkDecoder(signature)
    smooth = np.arange(33 * 8, dtype=np.int32).reshape(33, 8) * 1000
    for i in range(130):
        values = smooth + i if i < 40 else rng.integers(-(1 << 31), 1 << 31, (33, 8), dtype=np.int32)
        (decoded,) = decoder.decode([encoder.encode(make_info(signature, 32), columns_for(signature, values))])
        assert same_bits(decoded.columns[0].values, values)


def test_encoder_neither_changes_nor_keeps_what_it_is_given():
    signature = one_column("float32", (3,), Precision.FLOAT16)
    values = np.linspace(0, 1, 30, dtype=np.float32).reshape(10, 3)
    before = values.copy()
    encoder = ChunkEncoder(signature)
    first = encoder.encode(make_info(signature, 9), columns_for(signature, values))
    assert same_bits(values, before)
    values[:] = 7
    assert encoder.encode(make_info(signature, 9), columns_for(signature, before)) == first


def test_columns_laid_out_in_another_order_are_taken_by_their_values():
    values = np.arange(24, dtype=np.int16).reshape(4, 6)
    signature = one_column("int16", (6,))
    assert encode(signature, np.asfortranarray(values)) == encode(signature, values)
    assert encode(signature, np.repeat(values, 2, axis=0)[::2]) == encode(signature, values)
    with_cast = one_column("float64", (6,), Precision.FLOAT16)
    assert encode(with_cast, np.asfortranarray(values.astype(float))) == encode(with_cast, values.astype(float))


def test_column_larger_than_a_compression_window_comes_back():
    signature = one_column("uint8", (1 << 20,))
    values = np.zeros((17, 1 << 20), np.uint8)
    values[:, ::4096] = np.arange(17, dtype=np.uint8)[:, None]
    assert same_bits(decode_first(signature, encode(signature, values)), values)


@pytest.mark.parametrize(
    "changes",
    [{"n_steps": 0}, {"n_steps": 65_536}, {"n_steps": 5}, {"metadata": bytes(65_537)}],
    ids=["no step", "too many steps", "more than the columns", "metadata"],
)
def test_sizes_out_of_range_are_not_encoded(changes):
    signature = one_column("int8")
    with pytest.raises(InvalidRequestError, match="chunk"):
        encode(signature, np.zeros(5, np.int8), **changes)


@pytest.mark.parametrize(
    "first", [np.zeros(5, np.int16), np.zeros((5, 1), np.int8), np.zeros(4, np.int8)], ids=["dtype", "shape", "rows"]
)
def test_columns_that_do_not_fit_the_signature_are_not_encoded(first):
    signature = one_column("int8")
    columns = [first, np.zeros(4, np.uint8), np.zeros(4, np.float32)]
    with pytest.raises(InvalidRequestError, match="observation"):
        ChunkEncoder(signature).encode(make_info(signature, 4), columns)
    with pytest.raises(InvalidRequestError, match="3 columns"):
        ChunkEncoder(signature).encode(make_info(signature, 4), columns[:2])


def test_chunk_larger_than_any_decoder_takes_is_not_encoded():
    """256 MiB before compression is the most that a decoder takes: 17 rows of 16 MiB are more."""
    signature = Signature(field("uint8", (16 << 20,)), field("uint8"))
    first = np.broadcast_to(np.uint8(0), (17, 16 << 20))
    with pytest.raises(InvalidRequestError, match="268435456 bytes"):
        encode(signature, first)
