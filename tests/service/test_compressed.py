"""Batches whose large columns are compressed for the socket: what they hold, when they are, and that no answer can harm."""

import struct
from dataclasses import replace

import grpc
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_client import ClientConfig, Episodes, Sequences, SpecMismatchError, Transitions
from replay_client.frames import join_pieces, read_frame
from replaysvc import FieldSpec, Precision
from replaysvc.batch import BatchColumn
from replaysvc.codec import zstd
from replaysvc.config import MAX_MESSAGE_BYTES
from replaysvc.errors import ChunkCorruptError
from replaysvc.rpc import servicer
from replaysvc.rpc.frames import COMPRESSED_COLUMN_BYTES, encode_frame, frame_pieces
from replaysvc.spec import DTYPES
from replaysvc.v1 import replay_pb2 as pb
from tests.builders import assert_same
from tests.frames import decode_frame
from tests.service.frame_table import BATCH, FRAMES, STACKED, write_frames
from tests.service.test_frames import frame_of, same

ROWS = 64
SHAPE = ROWS, COMPRESSED_COLUMN_BYTES // ROWS  # of whatever dtype, it is large enough
WINDOWS = {
    "stack": STACKED,
    "stack of three steps": Transitions(stack=4, n_step=3),
    "single frames": Transitions(),
    "sequences": Sequences(length=8),
    "stacked sequences": Sequences(length=4, stack=3, n_step=2),
    "episodes": Episodes(max_steps=200),
}


def large(dtype, name="x"):
    """Returns a column that repeats itself."""
    dtype = np.dtype(dtype)
    values = np.resize(np.random.default_rng(1).integers(0, 256, 1024, np.uint8), np.prod(SHAPE) * dtype.itemsize)
    values &= {"b": 1, "f": 0x3B, "c": 0x3B}.get(dtype.kind, 0xFF)  # bools, and finite numbers
    return BatchColumn(name, values.view(dtype).reshape(SHAPE))


def noise(size=COMPRESSED_COLUMN_BYTES):
    return np.random.default_rng(5).integers(0, 256, (1, size), np.uint8)


def headers_of(frame):
    """Returns the headers of a frame's columns by name."""
    (size,) = struct.unpack_from("<I", frame)
    return {column.name: column for column in pb.BatchHeader.FromString(frame[4 : 4 + size]).columns}


# -- frames --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_columns_of_every_dtype_return_as_they_were(dtype, compressed):
    made = [large(dtype), BatchColumn("small", np.arange(ROWS)), large(dtype, "y")]
    frame = encode_frame(made, compressed=compressed)
    decoded = decode_frame(frame, {})
    assert list(decoded) == ["x", "small", "y"]
    assert all(same(decoded[column.name].values, column.values) for column in made)
    assert [bool(header.compressed_bytes) for header in headers_of(frame).values()] == [compressed, False, compressed]
    assert (len(frame) < sum(column.values.nbytes for column in made) / 4) == compressed
    before = bytes(frame)
    for column in decoded.values():
        column.values[...] = 0  # they belong to the caller
    assert frame == before


@pytest.mark.parametrize("compressed", [False, True])
def test_offsets_and_other_columns_stand_beside_compressed_ones(compressed):
    rows, values = np.array([1, ROWS - 1], np.uint32), np.full((2, SHAPE[1]), 1e5, np.float32)
    made = [large(np.bool_, "first"), BatchColumn("x", large(np.float16).values, rows, values), large(np.uint8, "last")]
    spec = FieldSpec("x", SHAPE[1:], np.float32, Precision.FLOAT16)
    decoded = decode_frame(encode_frame(made, compressed=compressed), {"x": spec})
    assert same(decoded["first"].values, made[0].values)
    assert same(decoded["last"].values, made[2].values)
    assert same(decoded["x"].offset_rows, rows)
    assert same(decoded["x"].widen(spec), made[1].widen(spec))


@pytest.mark.parametrize("values", [large(np.int16).values.T, large(np.dtype(">i4")).values, large(np.uint8).values[::-1]])
def test_values_in_any_order_return(values):
    frame = encode_frame([BatchColumn("x", values)], compressed=True)
    assert headers_of(frame)["x"].compressed_bytes
    assert (decode_frame(frame, {})["x"].values == values).all()


@pytest.mark.parametrize("piece_bytes", [999, 1 << 20])
def test_pieces_joined_are_the_compressed_frame(piece_bytes):
    made = [large(np.uint8), BatchColumn("n", noise()), large(np.float64, "y")]
    assert join_pieces(frame_pieces(made, piece_bytes, compressed=True)) == encode_frame(made, compressed=True)


STAY = {
    "small": np.zeros(COMPRESSED_COLUMN_BYTES - 1, np.uint8),
    "empty": np.zeros((0, 1 << 20)),
    "noise": noise(),
    "noise that begins well": np.concatenate([np.zeros(1 << 18, np.uint8), noise()[0]]),
    "a third of it noise": np.where(np.arange(1 << 20) % 3 == 0, noise(1 << 20)[0], 0).astype(np.uint8),
}


@pytest.mark.parametrize("name", STAY)
def test_what_does_not_become_small_stays_as_it_is(name):
    made = [BatchColumn("x", STAY[name])]
    assert encode_frame(made, compressed=True) == encode_frame(made)


def test_of_noise_only_the_beginning_is_tried(monkeypatch):
    tried = []
    compress = zstd.Compressor.compress
    monkeypatch.setattr(zstd.Compressor, "compress", lambda self, data: tried.append(len(data)) or compress(self, data))
    for values in (noise(8 << 20), np.zeros(8 << 20, np.uint8)):
        encode_frame([BatchColumn("x", values)], compressed=True)
    assert tried == [1 << 17, 1 << 17, 8 << 20]


# -- hostile answers -----------------------------------------------------------------------------------------------------


def packed(content, **options):
    return zstandard.ZstdCompressor(level=1, **options).compress(content)


def answer(packed, **change):
    """Returns a frame whose one column is compressed so."""
    fields = {"name": "x", "dtype": "uint8", "shape": [4, 1000], "compressed_bytes": len(packed)} | change
    return frame_of(pb.ColumnHeader(**fields), payload=packed)


CONTENT = bytes(4000)
GOOD = packed(CONTENT)
HOSTILE = {
    "no zstd": answer(b"x" * 100),
    "nothing of a zstd frame but its first bytes": answer(GOOD[:6]),
    "content of another size": answer(packed(bytes(4001))),
    "content of no stated size": answer(packed(CONTENT, write_content_size=False)),
    "another shape": answer(GOOD, shape=[4, 1001]),
    "a wider dtype": answer(GOOD, dtype="uint16"),
    "last byte missing": answer(GOOD[:-1]),
    "one byte more": answer(GOOD + b"\0"),
    "two frames": answer(GOOD + GOOD),
    "a skippable frame before it": answer(struct.pack("<II", 0x184D2A50, 4) + bytes(4) + GOOD),
    "a wrong checksum": answer(packed(CONTENT, write_checksum=True)[:-1] + b"\0"),
    "more bytes than there are": answer(GOOD, compressed_bytes=len(GOOD) + 1),
    "begins past the end": answer(GOOD, offset=1 << 62),
    "as many bytes as there can be": answer(GOOD, compressed_bytes=(1 << 64) - 1),
    "shape whose product overflows to 4000": answer(GOOD, shape=[(1 << 63) + 2000, 2]),
    "more dimensions than an array has": answer(GOOD, shape=[4000] + [1] * 100),
    "bools that are none": answer(packed(bytes([2]) * 4000), dtype="bool"),
}


def test_what_hostile_answers_are_changed_from_is_good():
    assert not decode_frame(answer(GOOD), {})["x"].values.any()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_compressed_column_is_refused(name):
    with pytest.raises(ChunkCorruptError, match="column|shape|zstd frame|bytes that are compressed"):
        decode_frame(HOSTILE[name], {})


def bomb(size):
    """Returns a frame of a few bytes for each 128 KiB of zeros that it holds."""
    block = struct.pack("<I", 128 << 13 | 2)[:3] + b"\0"  # of the kind that repeats a byte
    blocks = bytearray(block * (size >> 17))
    blocks[-4] |= 1  # the last one
    return struct.pack("<IBQ", 0xFD2FB528, 0xE0, size) + blocks


def test_no_more_is_decompressed_than_an_answer_may_hold():
    most = MAX_MESSAGE_BYTES // 2
    two = [pb.ColumnHeader(name=name, dtype="uint8", shape=[most], compressed_bytes=len(bomb(most))) for name in "xy"]
    assert read_frame(frame_of(*two, payload=bomb(most)), {}).columns.keys() == {"x", "y"}
    two[0].shape[0] += 1
    with pytest.raises(ChunkCorruptError, match=f"at most {MAX_MESSAGE_BYTES} bytes that are compressed"):
        read_frame(frame_of(*two, payload=bomb(most)), {})
    terabyte = answer(bomb(1 << 30), shape=[1 << 40])
    for most in (MAX_MESSAGE_BYTES, 1 << 30):
        with pytest.raises(ChunkCorruptError, match=f"at most {most} bytes"):
            read_frame(terabyte, {}, most=most)


def test_compressed_column_in_shared_memory_is_refused():
    slot = bytearray(GOOD.ljust(8192, b"\0"))
    with pytest.raises(ChunkCorruptError, match="column x is compressed in shared memory"):
        read_frame(answer(GOOD, shared=True), {}, slot)


MADE = encode_frame([large(np.uint8), BatchColumn("n", np.arange(ROWS)), large(np.bool_, "done")], compressed=True)


@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_answer_gives_columns_or_is_refused(data):
    frame = bytearray(MADE)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(frame) - 1))
        if data.draw(st.booleans()):
            frame[at] = data.draw(st.integers(0, 255))
        else:
            del frame[at : at + data.draw(st.integers(1, 9))]
    try:
        decoded = decode_frame(bytes(frame), {})
    except ChunkCorruptError:
        return
    for column in decoded.values():
        assert column.values.nbytes <= MAX_MESSAGE_BYTES
        assert column.values.dtype != np.bool_ or column.values.view(np.uint8).max(initial=0) <= 1


# -- over the wire -------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(replay):
    table = replay.create_table("t", FRAMES)
    write_frames(table)
    return table


@pytest.fixture
def frames(serve):
    """The raw methods of a server, called by hand."""
    with grpc.insecure_channel(serve().address) as channel:
        whole, pieces = (
            channel.unary_unary("/replaysvc.v1.ReplayFrames/Sample"),
            channel.unary_stream("/replaysvc.v1.ReplayFrames/SampleLarge"),
        )
        yield {
            "Sample": lambda request: whole(request.SerializeToString()),
            "SampleLarge": lambda request: bytes(join_pieces(pieces(request.SerializeToString()))),
        }


REQUEST = pb.SampleRequest(table="t", batch_size=BATCH, seed=3, transitions=pb.Transitions(n_step=1, stack=pb.Stack(frames=4)))


@pytest.mark.parametrize("method", ["Sample", "SampleLarge"])
def test_only_who_asks_for_it_gets_compressed_columns(table, frames, method):
    plain = frames[method](REQUEST)
    wish = pb.SampleRequest(compressed=True)
    wish.MergeFrom(REQUEST)
    small = frames[method](wish)
    assert not any(header.compressed_bytes for header in headers_of(plain).values())
    assert [name for name, header in headers_of(small).items() if header.compressed_bytes] == ["observation"]
    assert len(plain) > BATCH * 5 * 64 * 64 > 40 * len(small)
    first, second = decode_frame(plain, {}), decode_frame(small, {})
    assert all(same(first[name].values, second[name].values) for name in first if name != "age_s")


def test_messages_are_never_compressed(table, raw):
    response = raw.stub.Sample(pb.SampleRequest(table="t", batch_size=BATCH, compressed=True))
    for column in response.columns:
        assert len(column.values) == np.prod(column.header.shape) * np.dtype(column.header.dtype).itemsize


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_batches_are_those_of_the_store(table, serve, connect, monkeypatch, name, compressed):
    packed = []

    def note(function):
        def noted(*arguments, **options):
            found = function(*arguments, **options)
            parts = [found] if isinstance(found, bytes) else list(found)
            frame = parts[0] if isinstance(found, bytes) else bytes(join_pieces(parts))
            packed.append(any(header.compressed_bytes for header in headers_of(frame).values()))
            return found if isinstance(found, bytes) else parts

        return noted

    for function in ("encode_frame", "frame_pieces"):
        monkeypatch.setattr(servicer, function, note(getattr(servicer, function)))
    remote = connect(serve().address, shared_bytes=0, compressed=compressed).table("t")
    for sampler in ("uniform", "prioritized"):
        found = remote.sample(2 * BATCH, WINDOWS[name], sampler=sampler, seed=7)
        assert_same(found, table.sample(2 * BATCH, WINDOWS[name], sampler=sampler, seed=7))
    assert packed == [compressed, compressed]


def test_arrays_of_a_compressed_batch_are_the_callers_to_write_to(table, serve, connect):
    batch = connect(serve().address, shared_bytes=0).table("t").sample(256)
    batch.observation[:] = 7
    assert (batch.observation == 7).all()


def test_older_server_that_passes_the_wish_over_gives_the_same(table, serve, connect, monkeypatch):
    encode = servicer.encode_frame
    monkeypatch.setattr(servicer, "encode_frame", lambda columns, slot, **_: encode(columns, slot))
    remote = connect(serve().address, shared_bytes=0).table("t")
    assert_same(remote.sample(BATCH, STACKED, seed=1), table.sample(BATCH, STACKED, seed=1))


def test_stream_gives_compressed_batches(table, serve, connect):
    batches = connect(serve().address, shared_bytes=0).table("t").stream(BATCH, STACKED)
    for _ in range(12):
        batch = next(batches)
        assert (batch.next_observation[:, -1, 0, 0] == (batch.t + 1) % 251).all()
    batches.close()


def test_damaged_answer_is_an_error_of_this_project(table, serve, connect, monkeypatch):
    encode = servicer.encode_frame

    def damage(*arguments, **options):
        frame = encode(*arguments, **options)
        at = frame.index(struct.pack("<I", zstandard.MAGIC_NUMBER)) + 4
        return frame[:at] + b"\xff" + frame[at + 1 :]

    monkeypatch.setattr(servicer, "encode_frame", damage)
    with pytest.raises(ChunkCorruptError, match="zstd frame"):
        connect(serve().address, shared_bytes=0).table("t").sample(BATCH, STACKED)


def test_config_takes_a_bool():
    assert ClientConfig().compressed is True
    assert replace(ClientConfig(), compressed=np.False_).compressed is False
    with pytest.raises(SpecMismatchError, match="compressed: expected a bool"):
        ClientConfig(compressed=1)
