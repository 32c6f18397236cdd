"""The scenarios of network.py in small, and the proxy by itself."""

import contextlib
import socket
import threading

import pytest

import replay_client
from replay_client import connection
from replaysvc.errors import ReplayError
from tests.torture import network
from tests.torture import stage as stages
from tests.torture.oracle import Findings
from tests.torture.proxy import Proxy

SMALL = {
    "killed_under_load": {"restarts": 2}, "stopped_under_load": {"restarts": 2}, "lost_answers": {"cuts": 6},
    "cut_connections": {"cuts": 8}, "frozen": {"seconds": (2.0,)}, "slow_link": {"seconds": 0.5},
    "two_senders": {"rounds": 60}, "server_paused": {"pause_s": 5.0}, "actor_paused": {"pause_s": 6.0}, "clock_jumps": {},
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_clients_and_data_survive(name, tmp_path):
    report = Findings("network", 3)
    network.SCENARIOS[name](tmp_path / name, report, **SMALL[name])
    assert report.violations == []
    assert report.counts["scenarios"] == 1
    assert report.counts["steps compared"] > 0


def test_scenario_notices_a_service_that_stores_again_what_comes_again(tmp_path):
    report = Findings("network", 3)
    with contextlib.suppress(ReplayError):  # of the last round, which such a service refuses
        network.two_senders(tmp_path / "two senders", report, rounds=60, broken="dedupe")
    assert any("acknowledged" in found or "refused" in found for found in report.violations)


def test_only_half_open_connections_are_too_slow_for_here():
    assert set(network.SCENARIOS) - set(SMALL) == {"half_open"}


def test_half_open_connection_is_noticed_by_its_pings(tmp_path, monkeypatch):
    """With the client's own option for it, made shorter; its real value is in the scenario."""
    options = dict(connection._OPTIONS)
    assert options["grpc.http2.ping_timeout_ms"] <= 10_000
    monkeypatch.setattr(connection, "_OPTIONS", tuple((options | {"grpc.http2.ping_timeout_ms": 1_000}).items()))
    report = Findings("network", 3)
    with stages.on_stage(tmp_path / "half open", report, "half open") as stage:
        stage.make()
        with replay_client.connect(stage.proxy.address) as client, client.table("keep").writer(actor="actor-1") as writer:
            rows = stages.begin(stage, writer, 1)
            stage.proxy.half_open()
            stages.finish(stage, writer, rows, 1)
    assert report.violations == []
    assert report.counts["steps compared"] > 0


@pytest.fixture
def echo():
    """A server that sends back what it gets; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        def answer(connection):
            with connection, contextlib.suppress(ConnectionError):
                while data := connection.recv(1 << 16):
                    connection.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(echo):
    with Proxy(echo) as proxy:
        yield proxy


@pytest.fixture
def connect(proxy):
    made = []

    def connect():
        made.append(socket.create_connection(("127.0.0.1", proxy.port), timeout=10))
        return made[-1]

    yield connect
    for one in made:
        one.close()


def say(connection, data=b"hello"):
    connection.sendall(data)
    received = b""
    while len(received) < len(data):
        received += connection.recv(1 << 16)
    return received


def test_proxy_forwards(connect):
    data = bytes(range(256)) * 5000
    assert say(connect(), data) == data


def test_proxy_cuts_by_reset_and_by_end(proxy, connect):
    first = connect()
    say(first)
    proxy.cut(reset=True)
    with pytest.raises(ConnectionResetError):
        first.recv(1)
    second = connect()
    say(second)
    proxy.cut(reset=False)
    assert second.recv(1) == b""
    assert say(connect()) == b"hello"


def test_proxy_frozen_passes_nothing_and_loses_nothing(proxy, connect):
    connection = connect()
    say(connection)
    proxy.freeze()
    connection.sendall(b"later")
    connection.settimeout(0.2)
    with pytest.raises(TimeoutError):
        connection.recv(5)
    proxy.thaw()
    connection.settimeout(10)
    assert connection.recv(5) == b"later"


def test_proxy_half_open_answers_nothing_and_tells_nobody(proxy, connect):
    connection = connect()
    say(connection)
    proxy.half_open()
    connection.sendall(b"nobody")
    connection.settimeout(0.2)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    assert say(connect()) == b"hello"


def test_proxy_loses_the_answer_to_a_large_request_alone(proxy, connect):
    connection = connect()
    proxy.lose_answer(0.1)
    assert say(connection, b"small") == b"small"
    connection.sendall(bytes(4000))
    with pytest.raises(ConnectionResetError):
        connection.recv(1)
    assert proxy.lost_answers == 1


def test_slow_proxy_takes_its_time(proxy, connect):
    connection = connect()
    proxy.bytes_per_s = 100_000.0
    assert say(connection, bytes(20_000)) == bytes(20_000)  # 0.2 s there and 0.2 s back
    proxy.bytes_per_s = None
    proxy.delay_s = 0.1
    assert say(connection) == b"hello"
