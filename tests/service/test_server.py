"""The life of a server: its address, its health, its end."""

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import replay_client
from replaysvc import ClientConfig, TableConfig
from replaysvc.errors import UnavailableError
from replaysvc.health import Health
from replaysvc.rpc.server import SERVICE, Server
from tests.builders import SCALARS
from tests.service.checks import stored_lengths, write_numbered

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def gate(monkeypatch, replay, table):
    """Holds the table's next commit; returns (event set when it is held, event that lets it go on)."""
    held, go_on = threading.Event(), threading.Event()
    store = replay.engine(table)._store
    append = store.append

    def gated(*args):
        held.set()
        assert go_on.wait(60)
        append(*args)

    monkeypatch.setattr(store, "append", gated)
    return held, go_on


def test_used_port_is_refused(serve, replay):
    port = serve().port
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}"):
        Server.probe(f"127.0.0.1:{port}")
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}"):
        Server(replay, f"127.0.0.1:{port}")


def test_free_port_is_probed_and_bound(replay, serve):
    first = serve()
    first.stop()
    Server.probe(first.address)
    assert serve(first.port).port == first.port


def test_health_is_serving_until_the_server_stops(serve):
    server = serve()
    with grpc.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == SERVING
        with pytest.raises(grpc.RpcError) as unknown:
            health.Check(health_pb2.HealthCheckRequest(service="nosuch"))
        assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
        server.stop(5.0)
        with pytest.raises(grpc.RpcError):
            health.Check(health_pb2.HealthCheckRequest())


def test_watching_the_health_is_not_offered(serve):
    server = serve()
    with grpc.insecure_channel(server.address) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            next(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()))
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_graceful_stop_lets_a_running_append_finish(serve, connect, replay, monkeypatch):
    server = serve()
    client = connect(server.address)
    writer = client.create_table("t", SCALARS).writer()
    write_numbered(writer, 0, 5)
    held, go_on = gate(monkeypatch, replay, "t")
    with grpc.insecure_channel(server.address) as channel, ThreadPoolExecutor(2) as pool:
        health = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest()).status == SERVING
        flush = pool.submit(writer.flush)
        assert held.wait(60)
        stopping = pool.submit(server.stop, 60.0)
        with pytest.raises(grpc.RpcError):  # noqa: PT012 - no new call is taken any more
            while health.Check(health_pb2.HealthCheckRequest(), timeout=60).status in (SERVING, NOT_SERVING):
                pass
        assert not flush.done()
        assert not stopping.done()
        go_on.set()
        flush.result()
        stopping.result()
    assert stored_lengths(replay.table("t")) == {0: 5}


def test_stop_does_not_wait_longer_than_its_grace(serve, connect, replay, monkeypatch):
    server = serve()
    client = connect(server.address)
    writer = client.create_table("t", SCALARS).writer()
    write_numbered(writer, 0, 5)
    held, go_on = gate(monkeypatch, replay, "t")
    assert held.wait(60)
    server.stop(0.05)
    go_on.set()
    serve(server.port)
    writer.flush()
    assert stored_lengths(replay.table("t")) == {0: 5}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_process_with_status_0_and_all_that_was_acknowledged_is_there(server_process, number):
    with replay_client.connect(server_process.address) as client:
        with client.create_table("t", SCALARS, TableConfig(chunk_steps=4)).writer() as writer:
            for episode in range(5):
                write_numbered(writer, episode, 10)
        client.put_params("policy", b"weights", version=3)
    server_process.signal(number)
    assert server_process.wait() == 0
    server_process.start()
    with replay_client.connect(server_process.address) as client:
        assert stored_lengths(client.table("t")) == dict.fromkeys(range(5), 10)
        assert client.get_params("policy") == (3, b"weights")


def test_sigterm_while_a_writer_appends_loses_nothing(server_process):
    with replay_client.connect(server_process.address, config=ClientConfig(reconnect_timeout_s=60)) as client:
        table = client.create_table("t", SCALARS, TableConfig(chunk_steps=4))
        with ThreadPoolExecutor(1) as pool, table.writer() as writer:
            for episode in range(60):
                write_numbered(writer, episode, 10)
                if episode == 20:
                    ending = pool.submit(server_process.terminate)
                elif episode == 40:
                    assert ending.result() == 0
                    server_process.start()
        assert stored_lengths(table) == dict.fromkeys(range(60), 10)


def test_verdict_on_a_server_that_stops_is_that_it_drains(replay):
    health = Health(replay)
    server = Server(replay, "127.0.0.1:0", health=health)
    server.start()
    assert health.activity().verdict.status == "ok"
    server.stop(1.0)
    assert health.status() == "draining"
