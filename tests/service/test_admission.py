"""Workers and memory are shared: whoever takes all they get leaves enough for others, and is told when to come again."""

import contextlib
import gc
import threading

import grpc
import numpy as np
import pytest

from replay_client.connection import error_of
from replaysvc import FieldSpec, Signature
from replaysvc.errors import CapacityError, InvalidRequestError, UnavailableError
from replaysvc.rpc import calls
from replaysvc.rpc.admission import Admission, Call, Kind, Peer
from replaysvc.rpc.limits import Limits
from replaysvc.v1 import replay_pb2 as pb
from tests.builders import SCALARS, write_episodes
from tests.service import http2
from tests.service.checks import stored_lengths, write_numbered
from tests.waiting import wait_until

METHODS = {Kind.APPENDS: "Append", Kind.SAMPLES: "Sample", Kind.TRANSFERS: "ReadEpisode", Kind.CONTROL: "TableStats"}
WIDE = Signature(FieldSpec("observation", (1 << 16,), np.uint8), FieldSpec("action", (), np.int64))


# -- workers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", METHODS, ids=str)
def test_calls_without_a_body_on_one_connection_leave_workers_to_others(serve, connect, replay, kind):
    server = serve(max_workers=16)
    table = connect(server.address, reconnect_timeout_s=0.0, call_timeout_s=20.0).create_table("t", SCALARS)
    write_episodes(table, [5])
    workers = server._admission.workers[kind]
    with http2.Peer(server.port) as hostile:
        for _ in range(30):
            hostile.begin(http2.SERVICE + METHODS[kind])
        wait_until(lambda: workers.held >= min(30, workers._total // 2))
        assert len(table.sample(4)) == 4
        assert table.stats().steps == 5
        assert len(table.read_episode(0)["action"]) == 5
        with table.writer() as writer:
            write_numbered(writer, 1, 5)
        assert workers.held >= workers._total // 2 - 1


@pytest.mark.parametrize("kind", METHODS, ids=str)
def test_call_whose_body_does_not_come_is_cut_off_and_its_worker_freed(serve, monkeypatch, kind):
    monkeypatch.setattr(calls, "_REQUEST_S", 0.2)
    monkeypatch.setattr(calls, "_REQUEST_BYTES_PER_S", 1 << 40)
    server = serve()
    with http2.Peer(server.port) as hostile:
        stream = hostile.begin(http2.SERVICE + METHODS[kind])
        wait_until(lambda: server._admission.workers[kind].held == 1)
        hostile.wait_for(http2.RST_STREAM, stream)
        wait_until(lambda: server._admission.workers[kind].held == 0)
        assert server._admission.requests.held == 0


def test_body_that_comes_byte_by_byte_is_cut_off(serve, monkeypatch):
    monkeypatch.setattr(calls, "_REQUEST_S", 0.5)
    monkeypatch.setattr(calls, "_REQUEST_BYTES_PER_S", 1 << 40)
    server = serve()
    over = threading.Event()
    with http2.Peer(server.port) as hostile:
        stream = hostile.begin(http2.SERVICE + "Append", replaysvc_bytes=1000)
        hostile.send(stream, http2.message(bytes(1000))[:5])

        def drip():
            while not over.wait(0.02):
                hostile.send(stream, b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        hostile.wait_for(http2.RST_STREAM, stream)
        over.set()
        dripping.join()
        wait_until(lambda: server._admission.workers[Kind.APPENDS].held == 0)


def test_crowded_server_has_less_patience(serve, monkeypatch):
    """With more than half of the workers taken, a body has 0.2 s to come instead of a minute."""
    monkeypatch.setattr(calls, "_REQUEST_S", 60.0)
    monkeypatch.setattr(calls, "_CROWDED_REQUEST_S", 0.2)
    monkeypatch.setattr(calls, "_CROWDED_BYTES_PER_S", 1 << 40)
    server = serve(max_workers=4)
    workers = server._admission.workers[Kind.SAMPLES]
    with http2.Peer(server.port) as first, http2.Peer(server.port) as second:
        for _ in range(2):
            first.begin(http2.SERVICE + "Sample")
        wait_until(lambda: workers.held == 2)
        stream = second.begin(http2.SERVICE + "Sample")
        second.wait_for(http2.RST_STREAM, stream)
        wait_until(lambda: workers.held == 2)


def test_refused_call_says_when_to_come_again_and_is_tried_again_then(serve, connect, replay):
    write_episodes(replay.create_table("t", SCALARS), [5])
    server = serve()
    shares = server._admission.workers[Kind.SAMPLES]
    peers = [Peer(f"connection {i}", None) for i in range(64)]
    for peer in peers:
        shares.take(peer, 1)
    with pytest.raises(CapacityError, match="64 of 64 sample workers are in use") as refused:
        connect(server.address, reconnect_timeout_s=0.0).table("t").sample(4)
    assert refused.value.retry_after_s == 0.1
    client = connect(server.address)
    pauses = []
    pause = client.connection._pause

    def noted(seconds, closes):
        pauses.append(seconds)
        if len(pauses) == 3:
            shares.give(peers[0], 1)
        pause(seconds, closes)

    client.connection._pause = noted
    assert len(client.table("t").sample(4)) == 4
    assert len(pauses) == 3
    assert all(0.1 <= seconds <= 0.2 for seconds in pauses)


def test_capacity_error_without_a_wish_is_not_tried_again(connect):
    attempts = []

    def attempt():
        attempts.append(1)
        raise CapacityError("the disk is full")

    with pytest.raises(CapacityError, match="the disk is full"):
        connect("127.0.0.1:1").connection.retrying(attempt)
    assert len(attempts) == 1


def test_close_ends_attempts_that_wait_for_the_server(connect):
    client = connect("127.0.0.1:1", reconnect_timeout_s=3600.0)
    closing = threading.Timer(0.2, client.connection.close)

    def attempt():
        if not closing.is_alive() and not closing.finished.is_set():
            closing.start()
        client.connection._connect()
        raise UnavailableError("nobody answers")

    with pytest.raises(UnavailableError, match="nobody answers"):
        client.connection.retrying(attempt)
    closing.join()


def test_calls_leave_nothing_to_the_garbage_collector(serve, connect, replay):
    """A call that lives on keeps its stream, and a connection has few of these."""
    write_episodes(replay.create_table("t", SCALARS), [5])
    table = connect(serve().address).table("t")

    def calls():
        return sum(type(found) is Call for found in gc.get_objects())  # isinstance asks objects that warn when they are asked

    gc.collect()
    before = calls()  # of servers of other tests
    gc.disable()
    try:
        for _ in range(40):
            table.sample(4)
            with pytest.raises(InvalidRequestError):
                table.sample(4, sampler="nosuch")
        wait_until(lambda: calls() <= before + 2)
    finally:
        gc.enable()


# -- memory for requests --------------------------------------------------------------------------------------------------


def test_requests_on_their_way_hold_memory_and_leave_some_to_others(serve, connect, replay):
    """Of 512 MiB, two appends of 64 MiB hold half; a third waits outside, an append of another client goes through."""
    table = replay.create_table("t", SCALARS)
    server = serve()
    with http2.Peer(server.port) as hostile:
        streams = [hostile.begin(http2.SERVICE + "Append", replaysvc_bytes=64 << 20) for _ in range(2)]
        wait_until(lambda: server._admission.requests.held == 256 << 20)
        refused = hostile.begin(http2.SERVICE + "Append", replaysvc_bytes=64 << 20)
        payload = hostile.wait_for(http2.HEADERS, refused)
        assert b"replaysvc-retry-after-ms" in payload
        assert b"CapacityError" in payload
        with connect(server.address, reconnect_timeout_s=0.0).table("t").writer() as writer:
            write_numbered(writer, 0, 5)
        assert stored_lengths(table) == {0: 5}
        assert server._admission.requests.held == 256 << 20
        assert len(streams) == 2
    wait_until(lambda: server._admission.requests.held == 0)


def test_request_of_unknown_size_holds_room_for_the_largest_message(serve):
    server = serve()
    with http2.Peer(server.port) as peer:
        peer.begin(http2.SERVICE + "Append")
        wait_until(lambda: server._admission.requests.held == 2 * ((1 << 20) + (64 << 10)))


def test_memory_is_free_again_after_each_call(serve, connect, replay):
    server = serve()
    table = connect(server.address).create_table("t", WIDE)
    rng = np.random.default_rng(0)
    with table.writer() as writer:
        writer.begin(rng.integers(0, 256, 1 << 16, np.uint8))
        for t in range(100):
            writer.append(t, 0.0, rng.integers(0, 256, 1 << 16, np.uint8), truncated=t == 99)
    table.sample(16)
    table.read_episode(0)
    with pytest.raises(InvalidRequestError):
        table.sample(4, sampler="nosuch")
    admission = server._admission
    wait_until(lambda: (admission.requests.held, admission.answers.held) == (0, 0))
    wait_until(lambda: {shares.held for shares in admission.workers.values()} == {0})
    assert admission.requests._connections == admission.answers._connections == {}
    wait_until(lambda: not admission.watch._entries)


# -- memory for answers ---------------------------------------------------------------------------------------------------


@pytest.fixture
def wide(replay):
    """A table of which 64 transitions are 8 MiB that do not compress."""
    table = replay.create_table("t", WIDE)
    rng = np.random.default_rng(0)
    with table.writer() as writer:
        writer.begin(rng.integers(0, 256, 1 << 16, np.uint8))
        for t in range(100):
            writer.append(t, 0.0, rng.integers(0, 256, 1 << 16, np.uint8), truncated=t == 99)
    return table


SAMPLE = pb.SampleRequest(table="t", batch_size=64)


def test_answers_that_nobody_reads_are_counted_until_they_are_cut_off(serve, wide, monkeypatch):
    monkeypatch.setattr(calls, "_ANSWER_S", 1.0)
    monkeypatch.setattr(calls, "_ANSWER_BYTES_PER_S", 1 << 40)
    server = serve()
    with http2.Peer(server.port) as hostile:
        for _ in range(3):
            hostile.call(http2.FRAMES + "Sample", SAMPLE)
        wait_until(
            lambda: server._admission.workers[Kind.SAMPLES].held == 0 and server._admission.answers.held >= 3 * (16 << 20)
        )
        assert server._admission.answers.held < 3 * (18 << 20)
        wait_until(lambda: server._admission.answers.held == 0)


def test_client_that_never_reads_does_not_take_the_memory_of_others(serve, connect, wide):
    """Of 384 MiB, answers that are made hold thrice and made ones twice their 8 MiB."""
    server = serve(answer_bytes=384 << 20)
    table = connect(server.address, reconnect_timeout_s=0.0).table("t")
    with http2.Peer(server.port) as hostile:
        for _ in range(30):
            hostile.call(http2.FRAMES + "Sample", SAMPLE)
        wait_until(lambda: server._admission.answers.held > 128 << 20)
        for _ in range(5):
            assert len(table.sample(64)) == 64
        assert server._admission.answers.held <= 224 << 20


def test_who_needs_memory_gets_that_of_answers_that_hardly_move(serve, connect, wide, monkeypatch):
    monkeypatch.setattr("replaysvc.rpc.admission._STALLED_S", 0.0)
    monkeypatch.setattr("replaysvc.rpc.admission._STALLED_BYTES_PER_S", 1 << 40)
    server = serve(answer_bytes=384 << 20)
    table = connect(server.address).table("t")
    answers, workers, made = server._admission.answers, server._admission.workers[Kind.SAMPLES], 0
    with contextlib.ExitStack() as peers:
        for count in (8, 5, 3, 2, 1, 1):  # each as many as it gets: one that is refused would have the others cancelled
            peer = peers.enter_context(http2.Peer(server.port))
            for _ in range(count):
                peer.call(http2.FRAMES + "Sample", SAMPLE)
                made += 1
                wait_until(lambda made=made: workers.held == 0 and answers.held >= made * (16 << 20))
        assert answers.held >= 320 << 20
        assert len(table.sample(400)) == 400


def test_reader_of_a_stream_who_stops_is_cut_off(serve, wide, monkeypatch):
    monkeypatch.setattr(calls, "_ANSWER_S", 0.3)
    monkeypatch.setattr(calls, "_ANSWER_BYTES_PER_S", 1 << 40)
    server = serve()
    with http2.Peer(server.port) as hostile:
        stream = hostile.call(http2.SERVICE + "ReadEpisode", pb.ReadEpisodeRequest(table="t", episode_id=0))
        wait_until(lambda: server._admission.workers[Kind.TRANSFERS].held == 1)
        hostile.wait_for(http2.RST_STREAM, stream)
        wait_until(lambda: server._admission.workers[Kind.TRANSFERS].held == 0)
        assert server._admission.answers.held == 0


def test_call_is_over_before_its_answer_is_watched():
    """A client that left while its answer was made: its memory is given back at once."""

    class Gone:
        def peer(self):
            return "ipv4:127.0.0.1:1"

        def cancel(self):
            raise AssertionError

        def add_callback(self, callback):
            return False

    admission = Admission(Limits())
    call = Call(admission, Gone())
    call.hold_answer(1 << 20)
    assert admission.answers.held == 1 << 20
    call.watch_answer(60.0)
    call.hold_answer(1 << 20)
    assert admission.answers.held == 0
    admission.watch.close()


def test_error_with_a_wish_that_is_none_arrives_without(serve):
    class Future:
        def __init__(self, wish):
            self.wish = wish

        def code(self):
            return grpc.StatusCode.RESOURCE_EXHAUSTED

        def details(self):
            return "busy"

        def trailing_metadata(self):
            return (("replaysvc-error", "CapacityError"), ("replaysvc-retry-after-ms", self.wish))

    assert [error_of(Future(wish), "").retry_after_s for wish in ("250", "-1", "x", "9" * 30, "86400000")] == [
        0.25, None, None, None, 60.0
    ]  # fmt: skip
