"""What a service refuses: requests that are too large or make no sense, and calls that would keep others waiting."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from replaysvc import FieldSpec, Signature, Transitions
from replaysvc.codec import ChunkEncoder, ChunkInfo
from replaysvc.config import EPISODES_PAGE_BYTES
from replaysvc.errors import (
    ChunkCorruptError,
    InvalidRequestError,
    NotReadyError,
    SpecMismatchError,
)
from replaysvc.v1 import replay_pb2 as pb
from tests.builders import SCALARS, write_episode, write_episodes
from tests.service.checks import stored_lengths, write_numbered
from tests.service.raw import SESSION, chunks_of

WIDE = Signature(FieldSpec("observation", (1 << 16,), np.uint8), FieldSpec("action", (), np.int64))
DOUBLES = Signature(FieldSpec("observation", (4096,), np.float64), FieldSpec("action", (), np.int64))


def write_constant(table, signature, value, steps):
    """Writes one episode whose observations are all `value`."""
    spec = signature.columns[0]
    observation = np.full(spec.shape, value, spec.dtype)
    with table.writer() as writer:
        writer.begin(observation)
        for t in range(steps):
            writer.append(t, 0.0, observation, terminated=t == steps - 1)


def test_batch_too_large_for_a_message_is_refused_before_the_work_with_the_limit(serve, connect, replay, monkeypatch):
    table = replay.create_table("t", WIDE)
    write_constant(table, WIDE, 1, 4)
    monkeypatch.setattr(replay.engine("t"), "draw", lambda *args, **options: pytest.fail("it was drawn"))
    client = connect(serve().address)
    with pytest.raises(InvalidRequestError, match="batch_size: expected a batch within one message of 67108864 bytes"):
        client.table("t").sample(1000)
    with pytest.raises(InvalidRequestError, match="ask for less"):
        next(client.table("t").stream(1000))


def test_batch_found_too_large_when_it_is_made_is_refused(serve, connect, replay):
    """Doubles that no float16 holds: four times the bytes that the signature lets expect."""
    table = replay.create_table("t", DOUBLES)
    write_constant(table, DOUBLES, 1e300, 4)
    client = connect(serve().address)
    with pytest.raises(InvalidRequestError, match="batch_size: expected a batch within one message of 67108864 bytes"):
        client.table("t").sample(1500)
    assert (client.table("t").sample(500).observation == 1e300).all()


def test_windows_too_long_for_so_many_items_are_refused(serve, connect, replay):
    write_episodes(replay.create_table("t", SCALARS), [4])
    table = connect(serve().address).table("t")
    with pytest.raises(InvalidRequestError, match="n_step: expected batch_size \\* \\(n_step \\+ stack\\) of at most 1048576"):
        table.sample(100_000, Transitions(n_step=10_000))
    assert len(table.sample(100, Transitions(n_step=10_000))) == 100


def test_message_too_large_for_the_server_is_refused_and_the_server_lives_on(raw, replay):
    table = replay.create_table("t", SCALARS)
    with pytest.raises(InvalidRequestError, match="request: expected at most 67108864 bytes, found 68157440 or more"):
        raw.append([bytes(65 << 20)])
    raw.append(chunks_of(4))
    assert table.stats().steps == 4


@pytest.mark.parametrize("session", [b"", b"x" * 15, b"x" * 17, b"x" * 10_000])
def test_session_id_of_another_length_is_refused(raw, replay, session):
    replay.create_table("t", SCALARS)
    with pytest.raises(SpecMismatchError, match=f"session_id: expected 16 bytes, found {len(session)} bytes"):
        raw.append(chunks_of(4), session=session)
    with pytest.raises(SpecMismatchError, match="session_id"):
        raw.call("OpenSession", pb.OpenSessionRequest(table="t", session_id=session))


@pytest.mark.parametrize("actor", ["x" * 129, "a\nb", "\x00", "\u202e"])
def test_actor_that_is_too_long_or_unprintable_is_refused_at_both_ends(raw, replay, serve, connect, actor):
    table = replay.create_table("t", SCALARS)
    with pytest.raises(SpecMismatchError, match="actor: expected up to 128 printable characters"):
        raw.append(chunks_of(4), actor=actor)
    with pytest.raises(SpecMismatchError, match="actor"):
        connect(serve().address).table("t").writer(actor=actor)
    assert table.stats().steps == 0
    raw.append(chunks_of(4), actor="ä" * 128)
    assert table.episodes()[0].actor == "ä" * 128


@pytest.mark.parametrize("metadata", [b"no json", b"[1]", b'"text"', b"\xff", b"[" * 60_000, b""])
def test_metadata_that_are_no_json_object_are_refused_or_read_as_none(raw, replay, serve, connect, metadata):
    """A client that does not check must not make the list of episodes unreadable for others."""
    table = replay.create_table("t", SCALARS)
    info = ChunkInfo(
        signature_hash=SCALARS.hash, episode_key=0, first_step=0, n_steps=1, terminated=True, truncated=False,
        policy_version=-1, reward_sum=0.0, metadata=metadata,
    )  # fmt: skip
    columns = [np.zeros(2, np.int64), np.zeros(1, np.int64), np.zeros(1, np.float32)]
    try:
        raw.append([ChunkEncoder(SCALARS).encode(info, columns)])
    except InvalidRequestError:
        assert table.stats().steps == 0
        raw.append(chunks_of(1))
    (record,) = connect(serve().address).table("t").episodes()
    assert record.metadata == {}
    assert record.length == 1


def test_chunk_of_another_signature_is_refused(raw, replay):
    replay.create_table("t", SCALARS)
    other = Signature(FieldSpec("observation", (), np.int32), FieldSpec("action", (), np.int64))
    with pytest.raises(SpecMismatchError, match=f"chunk signature: expected hash {SCALARS.hash:016x}, found {other.hash:016x}"):
        raw.append(chunks_of(4, signature=other))
    assert replay.table("t").stats().steps == 0


def test_append_without_chunks_is_refused(raw, replay):
    replay.create_table("t", SCALARS)
    with pytest.raises(SpecMismatchError, match="chunks: expected 1 to 65536, found 0"):
        raw.append([])


@pytest.mark.parametrize(
    ("signature", "config"),
    [
        ("", ""),
        ("no json", ""),
        ("[]", ""),
        ("{}", ""),
        ('{"observation": 1, "action": 2, "reward": 3, "extras": {}}', ""),
        ('{"observation": {"leaf": {}}, "action": {}, "reward": {}, "extras": {}}', ""),
        ("[" * 100_000, ""),
        ("9" * 10_000, ""),
        ("{" * 1000, ""),
        (None, "[]"),
        (None, '{"capacity_steps": "many"}'),
        (None, '{"capacity_steps": -1}'),
        (None, '{"flush_interval_s": NaN}'),
        (None, '{"no_such_option": 1}'),
        (None, " " * (1 << 21)),
    ],
)
def test_table_of_a_senseless_description_is_refused(raw, replay, signature, config):
    text = json.dumps(SCALARS.to_json()) if signature is None else signature
    with pytest.raises(InvalidRequestError):
        raw.call("CreateTable", pb.CreateTableRequest(name="t", signature_json=text, config_json=config))
    assert replay.tables() == []


@pytest.mark.parametrize(
    "request_",
    [
        pb.SampleRequest(table="t", batch_size=0),
        pb.SampleRequest(table="t", batch_size=(1 << 32) - 1),
        pb.SampleRequest(table="t", batch_size=4, sampler="nosuch"),
        pb.SampleRequest(table="t", batch_size=4, timeout_s=-1),
        pb.SampleRequest(table="t", batch_size=4, timeout_s=float("nan")),
        pb.SampleRequest(table="t", batch_size=4, transitions=pb.Transitions(n_step=0, gamma=0.9)),
        pb.SampleRequest(table="t", batch_size=4, transitions=pb.Transitions(n_step=1, gamma=float("nan"))),
        pb.SampleRequest(table="t", batch_size=4, transitions=pb.Transitions(n_step=1 << 31, gamma=1)),
    ],
    ids=str,
)
def test_senseless_sample_request_is_refused(raw, replay, request_):
    write_episodes(replay.create_table("t", SCALARS), [4])
    with pytest.raises(InvalidRequestError):
        raw.call("Sample", request_)


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.read_episode(0, stop=-1),
        lambda table: table.read_episode(0, stop=1 << 70),
        lambda table: table.read_episode(-1),
        lambda table: table.episodes(before_id=-1),
        lambda table: table.episodes(before_id=1 << 70),
        lambda table: table.episodes(limit=0),
        lambda table: table.episodes(actor=7),
        lambda table: table.sample(4, seed=1 << 64),
        lambda table: table.sample("4"),
    ],
)
def test_numbers_that_no_message_holds_are_refused_by_field(serve, connect, replay, call):
    write_episodes(replay.create_table("t", SCALARS), [4])
    with pytest.raises(InvalidRequestError):
        call(connect(serve().address).table("t"))


def test_episode_records_larger_than_a_message_come_in_pages(raw, replay, serve, connect):
    table = replay.create_table("t", SCALARS)
    text = "x" * 60_000
    with table.writer() as writer:
        for number in range(300):
            write_episode(writer, 1, metadata={"number": number, "text": text})
    page = raw.call("ListEpisodes", pb.ListEpisodesRequest(table="t", limit=300))
    assert EPISODES_PAGE_BYTES <= page.ByteSize() < 3 * EPISODES_PAGE_BYTES
    assert len(page.episodes) < 300
    client_table = connect(serve().address).table("t")
    assert [record.metadata["number"] for record in client_table.episodes(limit=299)] == list(range(299, 0, -1))
    assert len(client_table.episodes(limit=1000)) == 300
    assert len(client_table.episodes(limit=1000, before_id=250)) == 250


def test_waiting_samples_never_keep_an_append_from_its_worker(serve, connect, replay, monkeypatch):
    """Sixteen calls wait at a server of four workers; then the first append goes through, and releases them."""
    server = serve(max_workers=4)
    client = connect(server.address)
    table = client.create_table("t", SCALARS)
    waiting_inside = threading.Event()
    sampling = replay.engine("t").draw.__self__
    wait_ready = sampling._wait_ready
    waits = []

    def counted(*arguments):
        waits.append(arguments)
        if len(waits) >= 16:
            waiting_inside.set()
        wait_ready(*arguments)

    monkeypatch.setattr(sampling, "_wait_ready", counted)
    with ThreadPoolExecutor(16) as pool:
        waiting = [pool.submit(table.sample, 4, timeout_s=60) for _ in range(16)]
        assert waiting_inside.wait(60)
        with table.writer() as writer:
            write_numbered(writer, 0, 5)
        assert [len(batch.result()) for batch in waiting] == [4] * 16
    assert stored_lengths(table) == {0: 5}


def test_streams_that_wait_for_the_first_data_are_released_by_it(serve, connect):
    client = connect(serve(max_workers=4).address)
    table = client.create_table("t", SCALARS)
    streams = [table.stream(4, prefetch=8, timeout_s=60) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        first = [pool.submit(next, stream) for stream in streams]
        with table.writer() as writer:
            write_numbered(writer, 0, 5)
        assert [len(batch.result()) for batch in first] == [4] * 3
    for stream in streams:
        stream.close()


def test_more_calls_than_the_server_takes_are_tried_again(serve, connect):
    """At two workers, four calls may be in the server; the others are turned away by gRPC itself."""
    client = connect(serve(max_workers=2).address)
    table = client.create_table("t", SCALARS)
    write_episodes(table, [20])
    with ThreadPoolExecutor(24) as pool:
        batches = list(pool.map(lambda _: table.sample(64), range(200)))
    assert {len(batch) for batch in batches} == {64}
    stream = table.stream(16, prefetch=32)
    assert {len(next(stream)) for _ in range(100)} == {16}
    stream.close()


def test_waiting_client_does_not_hammer_a_server_that_cannot_let_it_wait(serve, connect, replay, monkeypatch):
    server = serve(max_workers=2)
    table = connect(server.address).create_table("t", SCALARS)
    draws = []
    engine = replay.engine("t")
    draw = engine.draw

    def counted(*args, **options):
        draws.append(options["timeout_s"])
        return draw(*args, **options | {"timeout_s": 0.0})

    monkeypatch.setattr(engine, "draw", counted)
    with pytest.raises(NotReadyError, match="0 of 1 steps"):
        table.sample(4, timeout_s=0.5)
    assert 2 <= len(draws) <= 8


def test_damaged_bytes_on_the_way_to_the_client_are_noticed(serve, connect, replay, monkeypatch):
    write_episodes(replay.create_table("t", SCALARS), [10])
    engine = replay.engine("t")
    read = engine.episode_chunks

    def damaged(*args):
        for chunks in read(*args):
            yield [chunk[:-1] + bytes([chunk[-1] ^ 1]) for chunk in chunks]

    table = connect(serve().address).table("t")
    monkeypatch.setattr(engine, "episode_chunks", damaged)
    with pytest.raises(ChunkCorruptError, match="checksum"):
        table.read_episode(0)


def test_session_of_another_table_is_another_session(raw, replay):
    for name in ("t", "u"):
        replay.create_table(name, SCALARS)
    raw.append(chunks_of(4))
    assert raw.call("OpenSession", pb.OpenSessionRequest(table="u", session_id=SESSION)).last_sequence == -1
    raw.append(chunks_of(4), table="u")
    assert replay.table("u").stats().steps == 4


def test_stream_of_large_batches_keeps_fewer_of_them_under_way(serve, connect, monkeypatch):
    """2,000 steps of 14 kB are 28 MB a batch: four of them fill the 128 MiB that a stream may ask for."""
    client = connect(serve().address)
    signature = Signature(FieldSpec("o", (84, 84), np.uint8), FieldSpec("a", (), np.int64))
    table = client.create_table("t", signature)
    with table.writer() as writer:
        writer.begin(np.zeros((84, 84), np.uint8))
        writer.append(0, 0.0, np.ones((84, 84), np.uint8), terminated=True)
    asked = []
    start_sample = client.connection.start_sample
    monkeypatch.setattr(client.connection, "start_sample", lambda *arguments: asked.append(1) or start_sample(*arguments))
    for batch_size, most in ((2000, 4), (200, 8)):
        asked.clear()
        stream = table.stream(batch_size, prefetch=8)
        assert len(next(stream)) == batch_size
        assert len(asked) == most
        stream.close()
