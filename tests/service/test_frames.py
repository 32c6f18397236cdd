"""The frame that carries a batch: what it returns, and that no frame can harm who decodes it."""

import struct

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replay_client.frames import read_frame
from replaysvc import FieldSpec, Signature, Transitions
from replaysvc.batch import BatchColumn, assemble
from replaysvc.errors import ChunkCorruptError, ReplayError
from replaysvc.rpc.frames import ALIGN, encode_frame, encode_message
from replaysvc.spec import DTYPES
from replaysvc.v1 import replay_pb2 as pb
from replaysvc.v1 import replay_pb2_grpc
from tests.builders import SCALARS, write_episodes
from tests.frames import decode_frame

ROWS = 5
SIGNATURE = Signature(
    {"x": FieldSpec("x", (3,), np.float32), "n": FieldSpec("n", (), np.int64)},
    FieldSpec("action", (2,), np.float32),
    done=FieldSpec("done", (), np.bool_),
)
SPECS = {name: FieldSpec("x", (3,), np.float32) for name in ("observation/x", "next_observation/x")}
PLAIN = {
    "reward": np.float32, "discount": np.float32, "terminated": np.bool_, "truncated": np.bool_, "positions": np.int64,
    "episode_id": np.int64, "t": np.int64, "probability": np.float64, "importance_weight": np.float32, "age_s": np.float32,
    "policy_version": np.int64,
}  # fmt: skip


def columns():
    """Returns a batch of the signature, one column of it with offsets."""
    rng = np.random.default_rng(1)
    made = [BatchColumn(name, rng.integers(0, 2, ROWS).astype(dtype)) for name, dtype in PLAIN.items()]
    for prefix in ("", "next_"):
        values = rng.normal(size=(ROWS, 3)).astype(np.float16)
        offsets = (np.array([1, 3], np.uint32), np.full((2, 3), 1000, np.float32)) if not prefix else (None, None)
        made.append(BatchColumn(f"{prefix}observation/x", values, *offsets))
        made.append(BatchColumn(f"{prefix}observation/n", np.arange(ROWS)))
    made.append(BatchColumn("action", rng.normal(size=(ROWS, 2)).astype(np.float32)))
    made.append(BatchColumn("done", np.array([True, False, True, False, True])))
    return made


def frame_of(*headers, payload=bytes(256)):
    """Returns a frame made by hand."""
    head = pb.BatchHeader(columns=headers).SerializeToString()
    start = struct.pack("<I", len(head)) + head
    return start + bytes(-len(start) % ALIGN) + payload


def header(**options):
    return pb.ColumnHeader(**({"name": "observation/x", "dtype": "float16", "shape": [2, 3]} | options))


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def test_frame_returns_what_was_encoded():
    decoded = decode_frame(encode_frame(columns()), SPECS)
    assert list(decoded) == [column.name for column in columns()]
    for column in columns():
        found = decoded[column.name]
        assert same(found.values, column.values)
        assert (found.offset_rows is None) == (column.offset_rows is None)
        if column.offset_rows is not None:
            assert same(found.offset_rows, column.offset_rows)
            assert same(found.offset_values, column.offset_values)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_frames_of_any_columns_return_what_was_encoded(data):
    rows = data.draw(st.integers(0, 40))
    made, specs = [], {}
    for i in range(data.draw(st.integers(0, 6))):
        dtype = data.draw(st.sampled_from(DTYPES))
        shape = (rows, *data.draw(st.lists(st.integers(0, 4), max_size=3)))
        count = int(np.prod(shape)) * dtype.itemsize
        raw = np.frombuffer(data.draw(st.binary(min_size=count, max_size=count)), np.uint8)
        values = (raw & 1).view(dtype) if dtype.kind == "b" else raw.view(dtype)
        own = shape[data.draw(st.integers(1, len(shape))) :]  # the field's own axes, after one or more leading ones
        rows_with_offsets = data.draw(st.integers(0, int(np.prod(shape[: len(shape) - len(own)]))))
        offsets = (None, None)
        if dtype == np.float16 and rows_with_offsets:
            specs[f"c{i}"] = FieldSpec("c", own, np.float64)
            offsets = (np.arange(rows_with_offsets, dtype=np.uint32), np.ones((rows_with_offsets, *own)))
        made.append(BatchColumn(f"c{i}", values.reshape(shape), *offsets))
    decoded = decode_frame(encode_frame(made), specs)
    assert list(decoded) == [column.name for column in made]
    for column in made:
        assert same(decoded[column.name].values, column.values)
        if column.offset_rows is not None:
            assert same(decoded[column.name].offset_values, column.offset_values)


def test_columns_are_aligned_and_belong_to_the_caller():
    frame = encode_frame(columns())
    before = bytes(frame)
    decoded = decode_frame(frame, SPECS)
    for column in decoded.values():
        column.values[...] = 0
    assert frame == before
    starts = [column.values.__array_interface__["data"][0] for column in decoded.values()]
    assert len({start % ALIGN for start in starts}) == 1


HOSTILE = {
    "no length": b"\x01\x00",
    "header past the end": struct.pack("<I", 1000) + bytes(100),
    "header that is no message": struct.pack("<I", 8) + b"\xff" * 8 + bytes(100),
    "column past the end": frame_of(header(offset=250)),
    "column that begins past the end": frame_of(header(offset=1 << 62)),
    "column of which only the last byte is missing": frame_of(header(offset=256 - 11)),
    "empty column past the end": frame_of(header(offset=10_000, shape=[0, 3])),
    "unknown dtype": frame_of(header(dtype="object")),
    "dtype in another byte order": frame_of(header(dtype=">f2")),
    "no dtype": frame_of(header(dtype="")),
    "no shape": frame_of(header(shape=[])),
    "shape whose product overflows to 0": frame_of(header(shape=[1 << 32, 1 << 32])),
    "shape whose product overflows to 6": frame_of(header(shape=[(1 << 63) + 3, 2])),
    "huge sizes beside a 0": frame_of(header(shape=[0, 1 << 63, 1 << 63])),
    "more dimensions than an array has": frame_of(header(shape=[1] * 100)),
    "bools that are none": frame_of(header(dtype="bool", shape=[4]), payload=b"\x02" * 64),
    "offsets on a column that has none": frame_of(header(name="reward", offset_count=1)),
    "more offsets than there are bytes": frame_of(header(offset_count=(1 << 32) - 1)),
    "offset rows past the end": frame_of(header(offset_count=2, offset_rows_at=253)),
    "offset values past the end": frame_of(header(offset_count=2, offset_values_at=250)),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_frame_is_refused(name):
    with pytest.raises(ChunkCorruptError):
        decode_frame(HOSTILE[name], SPECS)


def test_values_in_shared_memory_are_views_of_it():
    slot = bytearray(256)
    np.frombuffer(slot, np.float16, 6, 64)[:] = np.arange(6)
    frame = frame_of(header(shared=True, offset=64), header(name="n", offset=0), payload=bytes(64))
    decoded = read_frame(frame, {}, slot).columns
    assert decoded["observation/x"].values.tolist() == [[0, 1, 2], [3, 4, 5]]
    slot[64:76] = bytes(12)
    assert not decoded["observation/x"].values.any()
    assert not decoded["n"].values.any()


BESIDE = {
    "no memory was named": (header(shared=True), None),
    "past its end": (header(shared=True, offset=256 - 11), bytearray(256)),
    "begins past its end": (header(shared=True, offset=1 << 62), bytearray(256)),
    "empty and past its end": (header(shared=True, offset=257, shape=[0, 3]), bytearray(256)),
    "larger than it": (header(shared=True, shape=[1 << 40]), bytearray(256)),
    "bools that are none": (header(shared=True, dtype="bool", shape=[4]), bytearray(b"\2" * 256)),
    "within it but not within the frame": (header(offset=256 - 11), bytearray(1024)),
}


@pytest.mark.parametrize("name", BESIDE)
def test_hostile_frame_beside_shared_memory_is_refused(name):
    column, slot = BESIDE[name]
    with pytest.raises(ChunkCorruptError):
        read_frame(frame_of(column), SPECS, slot)


def replaced(name, **change):
    """Returns the columns with one of them changed."""
    return {
        column.name: column if column.name != name else BatchColumn(**{slot: getattr(column, slot) for slot in SLOTS} | change)
        for column in columns()
    }


SLOTS = ("name", "values", "offset_rows", "offset_values")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("observation/x", {"offset_rows": np.array([1, ROWS], np.uint32)}),
        ("observation/x", {"offset_values": np.zeros((3, 3), np.float32)}),
        ("observation/x", {"values": np.zeros((ROWS, 4), np.float16)}),
        ("observation/x", {"values": np.zeros((ROWS - 1, 3), np.float32)}),
        ("observation/n", {"values": np.zeros(ROWS, np.float64)}),
        ("observation/n", {"values": np.zeros((), np.int64)}),
        ("action", {"values": np.zeros((ROWS, 2), np.float16)}),
        ("reward", {"values": np.zeros(ROWS, np.float64)}),
        ("reward", {"values": np.zeros((ROWS, 1), np.float32)}),
        ("t", {"values": np.zeros(ROWS + 1, np.int64)}),
    ],
)
def test_batch_that_does_not_fit_the_signature_is_refused(name, change):
    with pytest.raises(ChunkCorruptError, match="batch"):
        assemble(SIGNATURE, Transitions(), replaced(name, **change))


@pytest.mark.parametrize("name", [column.name for column in columns()])
def test_batch_without_one_of_its_columns_is_refused(name):
    made = replaced(name)
    del made[name]
    with pytest.raises(ChunkCorruptError, match=f"column {name} is missing"):
        assemble(SIGNATURE, Transitions(), made)


def test_batch_is_widened_around_its_offsets():
    batch = assemble(SIGNATURE, Transitions(), decode_frame(encode_frame(columns()), SPECS))
    stored = {column.name: column.values for column in columns()}
    assert batch.observation["x"].dtype == np.float32
    expected = stored["observation/x"].astype(np.float32)
    expected[[1, 3]] += 1000
    assert (batch.observation["x"] == expected).all()
    assert (batch.next_observation["x"] == stored["next_observation/x"].astype(np.float32)).all()


@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_mutated_frame_gives_a_batch_or_is_refused(data):
    frame = bytearray(encode_frame(columns()))
    head = struct.unpack_from("<I", frame)[0] + 4
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["header", "anywhere", "cut", "insert"]))
        at = data.draw(st.integers(0, head - 1 if kind == "header" else len(frame) - 1))
        if kind == "cut":
            del frame[at : at + data.draw(st.integers(1, 200))]
        elif kind == "insert":
            frame[at:at] = data.draw(st.binary(min_size=1, max_size=20))
        else:
            frame[at] = data.draw(st.integers(0, 255))
        head = min(head, len(frame))
        if not head:
            break
    try:
        batch = assemble(SIGNATURE, Transitions(), decode_frame(bytes(frame), SPECS))
    except ChunkCorruptError:
        return
    assert batch.observation["x"].shape == (len(batch), 3)
    assert batch.extras["done"].dtype == np.bool_


@given(frame=st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_no_frame(frame):
    try:
        decoded = decode_frame(frame, SPECS)
    except ChunkCorruptError:
        return
    with pytest.raises(ChunkCorruptError):
        assemble(SIGNATURE, Transitions(), decoded)


@pytest.fixture
def stub(serve):
    with grpc.insecure_channel(serve().address) as channel:
        yield replay_pb2_grpc.ReplayServiceStub(channel)


@pytest.mark.parametrize("what", [Transitions(), Transitions(n_step=3, gamma=0.5)])
def test_protobuf_sample_returns_the_same_batch_as_the_frame(replay, stub, what):
    """One episode of eight stands at 20 km and moves by centimetres, so that there are offsets."""
    table = replay.create_table("t", SIGNATURE)
    with table.writer() as writer:
        for episode in range(8):
            at = 20_000 if episode == 3 else 0
            writer.begin({"x": np.array([at, 0, 1], np.float32), "n": 0})
            for t in range(8):
                observation = {"x": np.array([at + 0.01 * t, t, -t], np.float32), "n": t}
                writer.append(np.array([t, -t], np.float32), t, observation, truncated=t == 7, extras={"done": np.bool_(t % 2)})
    request = pb.SampleRequest(
        table="t", batch_size=64, seed=9, transitions=pb.Transitions(n_step=what.n_step, gamma=what.gamma)
    )
    plain = {}
    response = stub.Sample(request)
    assert any(column.header.offset_count for column in response.columns)
    for column in response.columns:
        shape = tuple(column.header.shape)
        values = np.frombuffer(column.values, column.header.dtype).reshape(shape)
        rows = offsets = None
        if column.header.offset_count:
            rows = np.frombuffer(column.offset_rows, np.uint32)
            offsets = np.frombuffer(column.offset_values, np.float32).reshape(len(rows), 3)
        plain[column.header.name] = BatchColumn(column.header.name, values, rows, offsets)
    found, expected = assemble(SIGNATURE, what, plain), table.sample(64, what, seed=9)
    for name, value in expected.asdict().items():
        if name == "age_s":
            continue
        for part in value if isinstance(value, dict) else (None,):
            a, b = (value, found.asdict()[name]) if part is None else (value[part], found.asdict()[name][part])
            assert same(a, b), name


def test_messages_and_frames_carry_the_same_bytes():
    decoded = decode_frame(encode_frame(columns()), SPECS)
    response = encode_message(columns())
    assert any(column.header.offset_count for column in response.columns)
    for column in response.columns:
        framed = decoded[column.header.name]
        assert column.values == framed.values.tobytes()
        assert (column.header.dtype, tuple(column.header.shape)) == (framed.values.dtype.name, framed.values.shape)
        if column.header.offset_count:
            assert column.offset_rows == framed.offset_rows.tobytes()
            assert column.offset_values == framed.offset_values.tobytes()


def test_batches_of_a_client_may_be_changed_in_place(replay, serve, connect):
    write_episodes(replay.create_table("t", SCALARS), [20])
    batch = connect(serve().address).table("t").sample(8)
    for value in batch.asdict().values():
        value[...] = 0
    assert not batch.observation.any()


def test_answer_that_is_no_frame_is_an_error_of_this_project(replay, serve, connect, monkeypatch):
    write_episodes(replay.create_table("t", SCALARS), [20])
    monkeypatch.setattr("replaysvc.rpc.servicer.encode_frame", lambda *_, **__: b"not a frame at all")
    with pytest.raises(ReplayError, match="frame"):
        connect(serve().address).table("t").sample(8)
