"""What goes into a chunk comes out of it: to the last bit where nothing lossy was declared."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from replaysvc.codec import ChunkDecoder, ChunkEncoder, read_header, widen, zstd
from replaysvc.codec.header import Stage
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


@pytest.mark.parametrize("together", [1, 500, 4 << 20], ids=["each alone", "some", "all"])
def test_columns_keep_their_places_however_many_are_decompressed_in_one_call(together, monkeypatch):
    """Frames of nothing and columns without a frame stand between the others; 40 int16 are 80 bytes."""
    monkeypatch.setattr(zstd, "_CALL_BYTES", together)
    signature = Signature(field("int16"), field("uint8", (0,)), noise=field("uint8"))
    chunks = []
    for i in range(30):
        n = 40 + i
        noise = ((np.arange(n - 1) * 97 + i * 31) % 251).astype(np.uint8)
        columns = [np.full(n, i, np.int16), np.zeros((n - 1, 0), np.uint8), np.zeros(n - 1, np.float32), noise]
        chunks.append((ChunkEncoder(signature).encode(make_info(signature, n - 1), columns), columns))
    decoded = ChunkDecoder(signature).decode([chunk for chunk, _ in chunks])
    for found, (_, columns) in zip(decoded, chunks, strict=True):
        for column, values in zip(found.columns, columns, strict=True):
            assert same_bits(column.values, values)


def test_frames_share_a_call_up_to_its_bytes_and_empty_ones_take_part_in_none(monkeypatch):
    """80 + 20 is just enough; 90 alone is under it; 30 would make it 120; 500 is a call of its own."""
    monkeypatch.setattr(zstd, "_CALL_BYTES", 100)
    assert list(zstd._groups([80, 0, 20, 90, 30, 500, 0, 1, 99])) == [[0, 2], [3], [4], [5], [7, 8]]
    assert list(zstd._groups([0, 0])) == list(zstd._groups([])) == []


def test_chunks_without_a_single_frame_are_decoded():
    """The decompressor must not be called for no frames at all: it divides by their number."""
    signature = one_column("int8")
    chunk = encode(signature, np.array([1, -2], np.int8))
    assert not any(payload.stages & Stage.ZSTD for payload in read_header(chunk, signature).payloads)
    assert ChunkDecoder(signature).decode([chunk, chunk])[1].columns[0].values.tolist() == [1, -2]
    assert zstd.decompress([], []) == []


def test_one_decoder_serves_many_threads():
    signature = one_column("float64", (5,))
    decoder = ChunkDecoder(signature)
    chunks = [encode(signature, np.full((60, 5), i, np.float64)) for i in range(24)]

    def right(k):
        order = [(k + j) % 24 for j in range(24)]
        decoded = decoder.decode([chunks[i] for i in order])
        return [float(chunk.columns[0].values.min()) for chunk in decoded] == order == [
            int(chunk.columns[0].values.max()) for chunk in decoded
        ]  # fmt: skip

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(right, range(32))) == [True] * 32


def test_each_thread_has_a_decompressor_of_its_own():
    """zstandard's objects must not be used by two threads at once."""

    def mine(_):
        barrier.wait(timeout=30)
        zstd.decompress([], [])
        return id(zstd._local.decompressor)

    barrier = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(mine, range(2)))) == 2


def test_decoded_chunk_stays_right_when_all_else_of_the_call_is_gone():
    """Columns of one call share memory; whoever keeps one keeps it alive."""
    signature = one_column("uint8", (64,))
    chunks = [encode(signature, np.full((20, 64), i, np.uint8)) for i in range(20)]
    kept = ChunkDecoder(signature).decode(chunks)[7].columns[0].values
    gc.collect()
    ChunkDecoder(signature).decode(chunks[::-1])
    assert (kept == 7).all()


def test_encoder_that_decides_anew_after_many_chunks_stays_right(rng):
    """The kind of data changes after the stages were chosen, so the choice is a bad one, yet an exact one."""
    signature = one_column("int32", (8,))
    encoder, decoder = ChunkEncoder(signature), ChunkDecoder(signature)
    smooth = np.arange(33 * 8, dtype=np.int32).reshape(33, 8) * 1000
    for i in range(130):
        values = smooth + i if i < 40 else rng.integers(-(1 << 31), 1 << 31, (33, 8), dtype=np.int32)
        (decoded,) = decoder.decode([encoder.encode(make_info(signature, 32), columns_for(signature, values))])
        assert same_bits(decoded.columns[0].values, values)


@pytest.mark.parametrize(("alike", "shuffled"), [(150, False), (200, True)])
def test_stage_that_gains_less_than_two_percent_is_left_out(alike, shuffled):
    """Of 8000 random bytes, `alike` highest ones are 0: shuffle puts them side by side and gains about so many bytes."""
    raw = np.random.default_rng(0).integers(0, 256, (2000, 4), dtype=np.uint8)
    raw[:alike, 3] = 0
    signature = one_column("int32")
    header = read_header(encode(signature, raw.view(np.int32)[:, 0]), signature)
    assert bool(header.payloads[0].stages & Stage.SHUFFLE) == shuffled
    assert header.payloads[0].stored == 8000 or shuffled


def test_encoder_decides_anew_every_64_chunks():
    """Noise wants no delta, a slow series does; the first chunk of the series is the 2nd, the next decision the 65th."""
    signature = one_column("int32", (8,))
    encoder = ChunkEncoder(signature)
    noise = np.random.default_rng(0).integers(-(1 << 31), 1 << 31, (65, 8), dtype=np.int32)
    slow = (np.arange(65 * 8, dtype=np.int32).reshape(65, 8) % 8 * 1_000_003) + np.arange(65, dtype=np.int32)[:, None] * 77
    stages = []
    for i in range(66):
        chunk = encoder.encode(make_info(signature, 64), columns_for(signature, slow if i else noise))
        stages.append(read_header(chunk, signature).payloads[0].stages)
    assert not any(bits & Stage.DELTA for bits in stages[:64])
    assert all(bits & Stage.DELTA for bits in stages[64:])


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
