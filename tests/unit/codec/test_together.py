"""Chunks decoded together hold what each holds by itself, where it says; and nothing else than what was stored passes."""

from functools import partial

import numpy as np
import pytest

from replaysvc.codec import ChunkDecoder, ChunkEncoder, GroupDecoder, read_header, take_rows
from replaysvc.codec.delta import delta_decode_many, delta_encode
from replaysvc.codec.header import Stage
from replaysvc.errors import ChunkCorruptError
from replaysvc.spec import FieldSpec, Precision, Signature
from tests.chunk_builders import make_info, same_bits, with_checksum

SIGNATURE = Signature(
    {
        "joints": FieldSpec("joints", (17,), np.float32),
        "pixels": FieldSpec("pixels", (9, 8), np.uint8),
        "nothing": FieldSpec("nothing", (0,), np.float32),
    },
    FieldSpec("action", (3,), np.float64, precision=Precision.LOSSLESS),
    done=FieldSpec("done", (), np.bool_),
    words=FieldSpec("words", (4,), np.int64),
)
"""Columns that are cast, images, empty, float, bool and wide integers."""


PIXELS = SIGNATURE.columns.index(SIGNATURE.observation["pixels"])
MIXED = ["slow", "far", "noise", "wide", "far", "slow"]


def walk(rng, rows, spec, kind):
    """Values of a column that bring a chunk to use different stages."""
    if spec.dtype.kind == "b":
        return rng.random((rows, *spec.shape)) < 0.5
    if spec.dtype.kind in "iu":
        if kind == "noise":
            return rng.integers(0, 100, (rows, *spec.shape)).astype(spec.dtype)
        values = np.arange(rows).reshape(-1, *(1,) * len(spec.shape))
        return np.broadcast_to(values, (rows, *spec.shape)).astype(spec.dtype)
    values = np.cumsum(rng.standard_normal((rows, *spec.shape)) * 0.01, axis=0)
    if kind == "far":  # away from 0: stands around an offset
        values = values + 20_000
    if kind == "wide":  # beyond float16: kept lossless
        values = values * 1e30
    if kind == "noise":
        values = rng.standard_normal((rows, *spec.shape))
    return values.astype(spec.dtype)


def make_chunks(lengths, kinds, rng, signature=SIGNATURE):
    chunks = []
    for n_steps, kind in zip(lengths, kinds, strict=True):
        rows = [n_steps + (i < signature.observation_columns) for i in range(len(signature.columns))]
        columns = [walk(rng, n, spec, kind) for n, spec in zip(rows, signature.columns, strict=True)]
        metadata = b'{"a": 1}' if kind == "far" else b""
        chunks.append(ChunkEncoder(signature).encode(make_info(signature, n_steps, metadata=metadata), columns))
    return chunks


def checksums_of(chunks, signature=SIGNATURE):
    return np.array([read_header(chunk, signature).checksum for chunk in chunks], np.uint64)


def assert_as_one_by_one(chunks, signature=SIGNATURE):
    group = GroupDecoder(signature).decode(chunks, checksums_of(chunks, signature))
    alone = ChunkDecoder(signature).decode(chunks)
    assert group.n_steps.tolist() == [chunk.header.info.n_steps for chunk in alone]
    taken = np.zeros(int((group.n_steps + 1).sum()), int)
    for k, chunk in enumerate(alone):
        taken[group.starts[k] : group.starts[k] + group.n_steps[k] + 1] += 1
        for i, (spec, column) in enumerate(zip(signature.columns, chunk.columns, strict=True)):
            found = group.columns[i]
            rows = found.values[group.starts[k] : group.starts[k] + len(column.values)]
            if found.values.dtype == column.values.dtype:
                assert same_bits(np.ascontiguousarray(rows), column.values)
                moved = found.around is not None and bool(found.around[k])
                assert moved == (column.offsets is not None)
                if moved:
                    assert same_bits(found.offsets[k], column.offsets)
            else:
                wide = column.values.astype(spec.dtype) + (0 if column.offsets is None else column.offsets)
                np.testing.assert_array_equal(rows, wide)
    assert (taken == 1).all()  # no row of two chunks, none of no chunk
    return group


@pytest.mark.parametrize("kinds", [["slow"] * 6, ["far"] * 6, ["noise"] * 6, MIXED], ids=str)
@pytest.mark.parametrize("lengths", [[8] * 6, [5, 1, 300, 5, 2, 300]], ids=str)
def test_chunks_together_hold_what_each_holds_alone(lengths, kinds, rng):
    group = assert_as_one_by_one(make_chunks(lengths, kinds, rng))
    joints = group.columns[SIGNATURE.columns.index(SIGNATURE.observation["joints"])]
    assert joints.values.dtype == (np.float32 if "wide" in kinds else np.float16)


def test_large_images_are_copied_in_once_each(rng):
    images = Signature(FieldSpec("o", (84, 84), np.uint8), FieldSpec("a", (), np.int64))
    assert_as_one_by_one(make_chunks([12, 12, 3], ["slow", "noise", "noise"], rng, images), images)


def test_different_stages_within_one_length_are_told_apart(rng):
    chunks = make_chunks([40] * 8, ["slow", "noise", "far", "noise", "slow", "far", "noise", "slow"], rng)
    stages = {tuple(int(payload.stages) for payload in read_header(chunk, SIGNATURE).payloads) for chunk in chunks}
    assert len(stages) >= 3
    assert_as_one_by_one(chunks)


def test_order_lists_chunks_as_they_lie_and_rows_of_some_are_found(rng):
    chunks = make_chunks([3, 1, 2], ["slow"] * 3, rng)
    group = GroupDecoder(SIGNATURE).decode(chunks, checksums_of(chunks))
    assert group.order.tolist() == [1, 2, 0]
    assert group.starts.tolist() == [5, 0, 2]  # 2 rows of chunk 1, 3 of chunk 2, then 4 of chunk 0
    assert group.rows_of(np.array([1, 2])) == slice(0, 5)
    assert group.rows_of(np.array([1, 0])).tolist() == [0, 1, 5, 6, 7, 8]


def test_any_flipped_bit_is_noticed(rng):
    chunks = make_chunks([4, 4], ["slow", "far"], rng)
    checksums, decoder = checksums_of(chunks), GroupDecoder(SIGNATURE)
    for at in range(len(chunks[0])):
        damaged = bytearray(chunks[0])
        damaged[at] ^= 1 << at % 8
        with pytest.raises(ChunkCorruptError):
            decoder.decode([bytes(damaged), chunks[1]], checksums)


def test_intact_chunk_in_the_place_of_another_is_noticed(rng):
    chunks = make_chunks([4, 4], ["slow", "far"], rng)
    with pytest.raises(ChunkCorruptError, match="2 of 2 are not what was stored"):
        GroupDecoder(SIGNATURE).decode(chunks[::-1], checksums_of(chunks))


def test_short_bytes_and_bytes_of_another_signature_are_noticed(rng):
    other = Signature(FieldSpec("o", (17,), np.float32), FieldSpec("a", (), np.int64))
    chunks = make_chunks([4], ["slow"], rng, other)
    with pytest.raises(ChunkCorruptError):
        GroupDecoder(SIGNATURE).decode(chunks, checksums_of(chunks, other))
    with pytest.raises(ChunkCorruptError, match="ends within its header"):
        GroupDecoder(SIGNATURE).decode([b"RPC1"], np.zeros(1, np.uint64))


@pytest.mark.parametrize(
    ("offset", "new"),
    [
        (4, b"\2"),  # format version
        (40, (5).to_bytes(4, "little")),  # more steps than there are
        (64, (9).to_bytes(4, "little")),  # more metadata
        (68, (3).to_bytes(4, "little")),  # fewer columns
        (72 + 4, (1 << 30).to_bytes(4, "little")),  # bytes before zstd
        (72 + 8, (7).to_bytes(4, "little")),  # bytes in the chunk
        (72 + 12 * PIXELS, bytes([int(Stage.CAST | Stage.ZSTD)])),  # a cast of what is not to be cast
        (72 + 12 * PIXELS, b"\x40"),  # a stage that is not known
        (72 + 1, b"\1"),  # a reserved byte
    ],
)
def test_sizes_are_checked_though_the_checksum_is_right(offset, new, rng):
    """Memory is asked for by these: even the writer of the store's files shall not make it any other amount."""
    (chunk,) = make_chunks([4], ["slow"], rng)
    dishonest = with_checksum(chunk, {offset: new})
    stated = np.frombuffer(dishonest[8:16], np.uint64)
    with pytest.raises(ChunkCorruptError):
        GroupDecoder(SIGNATURE).decode([dishonest], stated)


def test_damaged_frame_behind_a_right_checksum_is_noticed(rng):
    (chunk,) = make_chunks([40], ["slow"], rng)
    payload = next(each for each in read_header(chunk, SIGNATURE).payloads if each.stages & Stage.ZSTD)
    damaged = with_checksum(chunk, {payload.start: b"\0\0\0\0"})
    with pytest.raises(ChunkCorruptError, match="does not decompress"):
        GroupDecoder(SIGNATURE).decode([damaged], np.frombuffer(damaged[8:16], np.uint64))


@pytest.mark.parametrize("shape", [(3, 1), (3, 9, 2), (40, 7, 200)], ids=str)
def test_differences_of_many_arrays_are_undone_in_either_way(shape, rng):
    values = rng.integers(0, 1 << 16, shape).astype(np.uint16)
    deltas = np.stack([delta_encode(each) for each in values])
    deltas.flags.writeable = False
    np.testing.assert_array_equal(delta_decode_many(deltas), values)


def test_few_offsets_stay_apart_and_many_are_added():
    values, offsets = np.arange(10, dtype=np.float16)[:, None], np.array([[-0.0], [1000.0]], np.float32)
    around, spec = np.array([False, True]), FieldSpec("o", (1,), np.float32)
    take = partial(take_rows, values, around=around, offsets=offsets, spec=spec)
    few = take(rows=np.arange(8), chunks=np.array([0] * 7 + [1]))
    assert few[0].dtype == np.float16
    assert (few[1].tolist(), few[2].tolist()) == ([7], [[1000.0]])
    many, items, left = take(rows=np.array([1, 2]), chunks=np.array([0, 1]))
    assert many.tolist() == [[1.0], [1002.0]]
    assert items is left is None
