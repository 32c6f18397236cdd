"""Peers that stop reading an episode or sending parameters: they keep nobody waiting, and are ended."""

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from replay_client.connection import error_of
from replaysvc import FieldSpec, Signature, TableConfig
from replaysvc.errors import CapacityError, NotFoundError, SpecMismatchError
from replaysvc.rpc import servicer
from replaysvc.v1 import replay_pb2 as pb
from tests.builders import SCALARS
from tests.service.checks import stored_lengths, write_numbered
from tests.service.raw import Raw

WIDE = Signature(FieldSpec("observation", (1 << 16,), np.uint8), FieldSpec("action", (), np.int64))


@pytest.fixture
def long_episode(replay):
    """A table with one episode of 40 MiB that no transport buffers, read by a peer that does not read on."""
    table = replay.create_table("t", WIDE, TableConfig(chunk_steps=32))
    rng = np.random.default_rng(2)
    with table.writer() as writer:
        blobs = rng.integers(0, 256, (65, 1 << 16), np.uint8)
        writer.begin(blobs[0])
        for t in range(640):
            writer.append(t, 0.0, blobs[1 + t % 64], truncated=t == 639)
    return table


def stalled_reader(address):
    """Starts to read the episode, takes one message, and no more."""
    raw = Raw(address)
    reading = raw.stub.ReadEpisode(pb.ReadEpisodeRequest(table="t", episode_id=0))
    next(reading)
    return raw, reading


def test_peers_that_stop_reading_keep_no_append_waiting(serve, connect, replay, long_episode):
    server = serve(max_workers=16)
    stalled = [stalled_reader(server.address) for _ in range(2)]  # of four workers that transfer
    for _ in range(3):
        with pytest.raises(grpc.RpcError) as info:
            stalled_reader(server.address)
        assert type(error_of(info.value, "")) is CapacityError
    table = connect(server.address).create_table("other", SCALARS)
    with table.writer() as writer:
        write_numbered(writer, 0, 5)
    assert stored_lengths(replay.table("other")) == {0: 5}
    for raw, reading in stalled:
        reading.cancel()
        raw.close()


def test_transfer_that_takes_too_long_is_ended_and_its_place_given_to_others(serve, connect, long_episode, monkeypatch):
    monkeypatch.setattr(servicer, "_TRANSFER_S", 0.3)
    server = serve(max_workers=4)
    raw, reading = stalled_reader(server.address)
    monkeypatch.setattr(servicer, "_TRANSFER_S", 300.0)
    episode = connect(server.address).table("t").read_episode(0)  # is turned away until then, and tries again
    assert len(episode["observation"]) == 641
    with pytest.raises(grpc.RpcError):
        list(reading)
    raw.close()


def test_peer_that_stops_sending_parameters_is_ended(serve, connect, replay, monkeypatch):
    monkeypatch.setattr(servicer, "_TRANSFER_S", 0.3)
    server = serve()
    go_on = threading.Event()

    def pieces():
        yield pb.PutParamsRequest(name="slow", version=1, size=100, piece=b"x")
        go_on.wait(60)

    raw = Raw(server.address)
    with ThreadPoolExecutor(4) as pool:
        uploads = [pool.submit(raw.stub.PutParams, pieces()) for _ in range(4)]
        for upload in uploads:
            with pytest.raises(grpc.RpcError):
                upload.result()
        go_on.set()
    connect(server.address).put_params("fast", b"y", version=1)
    assert replay.get_params("fast") == (1, b"y")
    with pytest.raises(NotFoundError):
        replay.get_params("slow")
    raw.close()


@pytest.mark.parametrize("size", [0, 3, 5])
def test_parameters_of_another_size_than_promised_are_refused(raw, replay, size):
    """As from a sender that died on the way, which the server cannot tell from one that ended."""
    pieces = [pb.PutParamsRequest(name="p", version=1, size=size, piece=b"ab"), pb.PutParamsRequest(piece=b"cd")]
    with pytest.raises(SpecMismatchError, match=f"expected {size} bytes in all, found"):
        raw.call("PutParams", iter(pieces))
    with pytest.raises(NotFoundError):
        replay.get_params("p")
