"""What is refused before it costs much: requests too large, not as stated, corrupt, or of few bytes that make many objects."""

import json

import grpc
import numpy as np
import pytest

from replay_client.connection import error_of
from replaysvc import FieldSpec, Signature, TableConfig
from replaysvc.codec import ChunkEncoder, ChunkInfo
from replaysvc.errors import CapacityError, InvalidRequestError, NotFoundError, SpecMismatchError
from replaysvc.rpc.limits import Limits
from replaysvc.rpc.wire import check_append
from replaysvc.v1 import replay_pb2 as pb
from tests.builders import SCALARS
from tests.service import http2
from tests.service.raw import SESSION, Raw, chunks_of

SERVICE = "/replaysvc.v1.ReplayService/"
FRAMES = Signature(FieldSpec("observation", (84, 84, 4), np.uint8), FieldSpec("action", (), np.int64))
UNARY = (
    "CreateTable", "GetTable", "ListTables", "DeleteTable", "OpenSession", "Append", "Sample", "UpdatePriorities", "SetLimiter",
    "DeleteEpisodes", "TableStats", "Activity", "SetCapacity", "ListEpisodes", "Snapshot", "Compact",
)  # fmt: skip
SMALL = [method for method in UNARY if method not in ("Append", "UpdatePriorities", "DeleteEpisodes", "CreateTable")]


class Bytes:
    """Methods called with bytes of one's own making."""

    def __init__(self, address):
        self._channel = grpc.insecure_channel(address)

    def call(self, method, *messages, metadata=()):
        """Returns the answer's bytes to a call of so many messages; raises what the client would."""
        return self.stream(method, iter(messages), metadata=metadata)

    def stream(self, method, messages, metadata=()):
        try:
            return self._channel.stream_unary(SERVICE + method)(messages, timeout=60, metadata=metadata)
        except grpc.RpcError as error:
            raise error_of(error, "") from error

    def close(self):
        self._channel.close()


@pytest.fixture
def sender(serve):
    sender = Bytes(serve().address)
    yield sender
    sender.close()


@pytest.fixture
def table(replay):
    return replay.create_table("t", SCALARS)


def append_bytes(chunks, **fields):
    pairs = [pb.AppendChunk(sequence=i, chunk=chunk) for i, chunk in enumerate(chunks)]
    return pb.AppendRequest(table="t", session_id=SESSION, chunks=pairs, urgent=True, **fields).SerializeToString()


def stated(size):
    return (("replaysvc-bytes", str(size)),)


# -- sizes ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 2, 7])
@pytest.mark.parametrize("says_size", [True, False])
def test_request_in_several_messages_is_their_bytes_joined(sender, table, pieces, says_size):
    data = append_bytes(chunks_of(6))
    step = -(-len(data) // pieces)
    messages = [data[start : start + step] for start in range(0, len(data), step)]
    answer = sender.call("Append", *messages, metadata=stated(len(data)) if says_size else ())
    assert pb.AppendResponse.FromString(answer).last_sequence == 2
    assert table.stats().steps == 6


def test_large_requests_of_the_client_go_through_in_pieces(serve, connect, replay):
    """A chunk of 3 MiB that does not compress, priorities of 4 MiB, ids of 1.4 MiB."""
    signature = Signature(FieldSpec("observation", (1 << 20,), np.uint8), FieldSpec("action", (), np.int64))
    table = connect(serve().address).create_table("t", signature, TableConfig(chunk_steps=8))
    observations = np.random.default_rng(0).integers(0, 256, (3, 1 << 20), np.uint8)
    with table.writer() as writer:
        writer.begin(observations[0])
        writer.append(0, 0.0, observations[1])
        writer.append(1, 0.0, observations[2], truncated=True)
    assert (table.read_episode(0)["observation"] == observations).all()
    counts = table.update_priorities(np.arange(1 << 18), np.ones(1 << 18))
    assert (counts.applied, counts.ignored) == (2, (1 << 18) - 2)
    assert table.delete_episodes([0, *range(1 << 60, (1 << 60) + 150_000)]) == 1


def test_request_larger_than_any_is_refused_by_the_client(serve, connect, table):
    client = connect(serve().address)
    request = pb.AppendRequest(table="t", chunks=[pb.AppendChunk(chunk=bytes(65 << 20))])
    with pytest.raises(InvalidRequestError, match="Append: expected a request of at most 67108864 bytes, found 6815"):
        client.connection.call("Append", request)


@pytest.mark.parametrize("off", [-1, 1])
def test_request_of_another_size_than_stated_is_refused(sender, table, off):
    data = append_bytes(chunks_of(4))
    with pytest.raises(SpecMismatchError, match=f"request: expected {len(data) + off} bytes, as replaysvc-bytes says, found"):
        sender.call("Append", data, metadata=stated(len(data) + off))
    assert table.stats().steps == 0


def test_no_more_is_read_than_was_stated(serve, table):
    """Of a hundred pieces of 64 KiB, where 100 KiB were stated, the server takes two."""
    server = serve()
    taken = []

    def pieces():
        for _ in range(100):
            taken.append(1)
            yield bytes(64 << 10)

    sender = Bytes(server.address)
    with pytest.raises(SpecMismatchError, match="found 131072 or more"):
        sender.stream("Append", pieces(), metadata=stated(100 << 10))
    assert len(taken) <= 6
    sender.close()


@pytest.mark.parametrize("size", ["", "-1", "1e3", "x", "9" * 13])
def test_stated_size_that_is_no_number_is_refused(sender, size):
    with pytest.raises(SpecMismatchError, match="replaysvc-bytes: expected a number of bytes"):
        sender.call("TableStats", b"", metadata=(("replaysvc-bytes", size),))


def test_stated_size_above_the_limit_is_refused_before_anything_is_read(serve):
    with http2.Peer(serve().port) as peer:
        stream = peer.begin(http2.SERVICE + "Append", replaysvc_bytes=(64 << 20) + 1)
        payload = peer.wait_for(http2.HEADERS, stream)
        assert b"SpecMismatchError" in payload
        assert b"67108864" in payload


@pytest.mark.parametrize("method", SMALL)
def test_large_requests_of_methods_that_need_none_are_refused(sender, method):
    with pytest.raises(SpecMismatchError, match="request: expected at most"):
        sender.call(method, bytes((1 << 20) + 1))


def test_message_above_the_limit_of_messages_is_refused_by_its_first_bytes(serve):
    with http2.Peer(serve().port) as peer:
        stream = peer.begin(http2.SERVICE + "Append", replaysvc_bytes=32 << 20)
        peer.send(stream, b"\0" + (32 << 20).to_bytes(4, "big") + b"x")
        assert b"larger than max" in peer.wait_for(http2.HEADERS, stream)


def test_call_without_any_message_is_refused(sender):
    with pytest.raises(SpecMismatchError, match="request: expected a message, found none"):
        sender.call("TableStats")


def test_parameters_larger_than_the_limit_are_refused_before_they_come(serve, connect, replay):
    connect(serve().address).put_params("p", b"x" * 1000, version=1)
    raw = Raw(serve().address)
    most = Limits().params_bytes
    sent = []

    def pieces():
        yield pb.PutParamsRequest(name="p", version=2, size=most + 1, piece=b"x")
        while len(sent) < 1000:
            sent.append(1)
            yield pb.PutParamsRequest(piece=bytes(1 << 20))

    with pytest.raises(InvalidRequestError, match=rf"at most {most} bytes \(a quarter of request_bytes\), found {most + 1}"):
        raw.call("PutParams", pieces())
    assert len(sent) < 10
    raw.close()
    assert replay.get_params("p") == (1, b"x" * 1000)


def test_parameters_on_their_way_hold_memory(serve, monkeypatch):
    server = serve()
    seen = []

    def pieces():
        yield pb.PutParamsRequest(name="p", version=1, size=100 << 20, piece=b"x")
        while server._admission.requests.held != 200 << 20:
            yield pb.PutParamsRequest(piece=b"")
        with pytest.raises(CapacityError):  # half of what there is is held by this connection
            Raw(server.address).call("PutParams", iter([pb.PutParamsRequest(name="q", version=1, size=100 << 20)]))
        seen.append(1)

    raw = Raw(server.address)
    with pytest.raises(SpecMismatchError, match="found 1"):
        raw.call("PutParams", pieces())
    assert seen == [1]
    raw.close()


# -- contents -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05ab", b"\x0b\x0b\x0b", b"\x0a\xff", b"\x0a\x02\xff\xfe"], ids=repr)
@pytest.mark.parametrize("method", UNARY)
def test_corrupt_request_is_refused_with_a_sentence(sender, caplog, method, data):
    if method == "ListTables" and data == b"\x0a\x02\xff\xfe":
        return  # a field that it does not know
    with pytest.raises(InvalidRequestError, match=r"expected|found") as info:
        sender.call(method, data)
    assert "\n" not in str(info.value)
    assert caplog.records == []


@pytest.mark.parametrize("method", ["PutParams", "ReadEpisode", "GetParams"])
def test_corrupt_streamed_request_is_refused_with_a_sentence(sender, method):
    with pytest.raises(InvalidRequestError, match="request: expected a protobuf message, found 3 bytes that are none"):
        sender.call(method, b"\xff\xff\xff")


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\x22\x00" * 70_000, "chunks: expected 1 to 65536"),
        (b"\x08\x01" * 70_000, "chunks: expected 1 to 65536"),
        (b"\x3a\x81\x80\x40" + bytes((1 << 20) + 1), "fields other than chunks of at most 1048576 bytes"),
        (b"\x22\x05ab", "expected a protobuf message"),
        (b"\x22", "expected a protobuf message"),
        (b"\xff" * 11, "expected a protobuf message"),
        (b"\x27", "expected a protobuf message"),
        (b"\x09abc", "expected a protobuf message"),
    ],
    ids=["empty chunks", "fields", "numbers", "short", "no length", "endless number", "no such type", "short number"],
)
def test_append_that_would_become_many_objects_is_refused_unparsed(sender, table, data, sentence):
    with pytest.raises(InvalidRequestError, match=sentence):
        check_append(data)
    with pytest.raises(InvalidRequestError, match=sentence):
        sender.call("Append", data)


def test_appends_as_clients_make_them_pass_the_look_at_their_bytes():
    check_append(b"")
    check_append(append_bytes([b"x" * 300] * 1000, actor="a" * 128, epoch=1 << 62, open_episodes=range(65_536)))
    check_append(append_bytes([b""] * 65_536))
    check_append(b"\x09" + bytes(8) + b"\x0d" + bytes(4))  # fields of a later version


def test_chunks_that_decode_to_much_are_refused_before_they_are_decoded(raw, replay, monkeypatch):
    """Ten chunks of a kilobyte or two, of a thousand black frames each: 280 MB."""
    replay.create_table("t", FRAMES)
    steps = 1000
    info = ChunkInfo(
        signature_hash=FRAMES.hash, episode_key=0, first_step=0, n_steps=steps, terminated=True, truncated=False,
        policy_version=-1, reward_sum=0.0, metadata=b"",
    )  # fmt: skip
    columns = [np.zeros((steps + (i == 0), *spec.shape), spec.dtype) for i, spec in enumerate(FRAMES.columns)]
    chunk = ChunkEncoder(FRAMES).encode(info, columns)
    assert len(chunk) < 5000
    monkeypatch.setattr(replay.engine("t"), "append", lambda *args, **options: pytest.fail("it reached the engine"))
    with pytest.raises(SpecMismatchError, match="chunks: expected at most 268435456 bytes in one request, once decoded"):
        raw.append([chunk] * 10)


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
def test_json_that_nests_deeply_is_refused(raw, opening):
    text = opening * 1000
    for request in (
        pb.CreateTableRequest(name="t", signature_json=text),
        pb.CreateTableRequest(name="t", signature_json=json.dumps(SCALARS.to_json()), config_json=text),
    ):
        with pytest.raises(SpecMismatchError, match="JSON of at most 32 levels"):
            raw.call("CreateTable", request)


def test_brackets_within_texts_are_no_nesting(raw, replay):
    with pytest.raises(InvalidRequestError, match="unknown option"):
        raw.call(
            "CreateTable",
            pb.CreateTableRequest(
                name="t", signature_json=json.dumps(SCALARS.to_json()), config_json=json.dumps({"[" * 100 + '"{' * 100: 1})
            ),
        )
    with pytest.raises(NotFoundError):
        replay.table("t")


def test_description_too_long_is_refused_unread(raw):
    with pytest.raises(SpecMismatchError, match="signature_json: expected at most 524288 characters, found 600000"):
        raw.call("CreateTable", pb.CreateTableRequest(name="t", signature_json=" " * 600_000))


def test_limiter_json_too_long_is_refused(raw, table):
    with pytest.raises(InvalidRequestError, match="at most"):
        raw.call("SetLimiter", pb.SetLimiterRequest(table="t", limiter_json=" " * 60_000 + "[" * 40))
    with pytest.raises(SpecMismatchError, match="request: expected at most 65536 bytes"):
        raw.call("SetLimiter", pb.SetLimiterRequest(table="t", limiter_json=" " * 100_000))
