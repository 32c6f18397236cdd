"""What a server takes of its machine at most: memory, computed and told at its start; connections; descriptors."""

import logging
import resource
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from replaysvc import StoreConfig
from replaysvc.errors import ConfigurationError, InvalidRequestError, SpecMismatchError
from replaysvc.rpc import limits as limits_module
from replaysvc.rpc import server as server_module
from replaysvc.rpc.limits import (
    Limits,
    Memory,
    allowed_memory,
    connections_for,
    most_memory,
    raise_descriptors,
    report_memory,
)
from replaysvc.rpc.server import Server
from replaysvc.settings import load
from tests.service import http2

MiB = 1 << 20


def test_most_memory_is_the_sum_of_what_was_computed_by_hand():
    """(64 + 192 + 16 + 16) workers, each with a message of 1,088 KiB; 3 more in gRPC's hands."""
    found = most_memory(StoreConfig(), Limits(), 1024)
    assert found == Memory(
        caches=1280 * MiB,
        queue=(64 + 256) * MiB + 32 * MiB + 64 * MiB,
        requests=512 * MiB + (288 + 3) * 1088 * 1024,
        answers=2048 * MiB + 128 * MiB,
        shared=1024 * MiB,
        reads=128 * MiB,
        fixed=96 * MiB + (288 + 40) * 256 * 1024 + 1024 * 64 * 1024 + 1024 * 96 * 1024,
    )
    assert str(found) == (
        "memory: at most 6184 MiB = caches 1280 + queue 416 + requests 822 + answers 2176 + shared 1024 + reads 128 + "
        "fixed 338; and about 110 bytes for each stored chunk"
    )


def test_admin_door_takes_memory_of_its_own():
    alone, beside = most_memory(StoreConfig(), Limits(), 1), most_memory(StoreConfig(), Limits(), 1, admin=True)
    assert beside == replace(alone, fixed=alone.fixed + 160 * MiB)


def test_queue_larger_than_the_largest_request_counts_as_it_is():
    small = most_memory(StoreConfig(queue_bytes=1 * MiB, commit_bytes=1 * MiB), Limits(), 1)
    large = most_memory(StoreConfig(queue_bytes=2048 * MiB, commit_bytes=1 * MiB), Limits(), 1)
    assert (small.queue, large.queue) == (385 * MiB, (2048 + 65) * MiB)


def test_workers_of_each_kind():
    assert Limits().workers == {"append": 192, "sample": 64, "transfer": 16, "control": 16}
    assert Limits(max_workers=1).workers == {"append": 3, "sample": 1, "transfer": 1, "control": 1}


@pytest.mark.parametrize("name", ["request_bytes", "answer_bytes"])
def test_less_than_the_largest_message_needs_is_refused(name):
    with pytest.raises(SpecMismatchError, match=name):
        Limits(**{name: 200 * MiB})
    with pytest.raises(InvalidRequestError, match=f"setting {name}"):
        load({name: 200 * MiB}, None)
    assert getattr(load({name: 1 << 30}, None).limits(), name) == 1 << 30


@pytest.mark.parametrize(
    ("files", "allowed"),
    [
        ({"memory.max": "max\n"}, None),
        ({"memory.max": "1073741824\n"}, 1 << 30),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ({"memory/memory.limit_in_bytes": "536870912\n"}, 1 << 29),
        ({}, None),
    ],
)
def test_memory_that_the_container_may_take_is_read(tmp_path, files, allowed):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert allowed_memory(tmp_path) == allowed


def test_report_warns_if_the_container_has_less(caplog):
    memory = Memory(caches=MiB, queue=MiB, requests=MiB, answers=MiB, shared=MiB, reads=MiB, fixed=MiB)
    with caplog.at_level(logging.INFO, limits_module.__name__):
        report_memory(memory, None)
        report_memory(memory, memory.total)
        assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]
        report_memory(replace(memory, fixed=2 * MiB), memory.total)
    assert caplog.records[-1].levelname == "WARNING"
    assert "this container has 7 MiB, less than the server may take (8 MiB)" in caplog.records[-1].getMessage()


def test_service_tells_its_memory_at_its_start(server_process):
    line = next(line for line in server_process.log.read_text().splitlines() if "memory: at most" in line)
    assert line.endswith(str(most_memory(StoreConfig(), Limits(), connections_for(raise_descriptors()))))


def test_half_of_the_descriptors_are_kept_for_the_store():
    assert [connections_for(n) for n in (1, 100, 1024, 2048, 1 << 20)] == [1, 50, 512, 1024, 1024]


def test_limit_of_descriptors_is_raised_to_what_the_system_allows():
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]));"
        "from replaysvc.rpc.limits import raise_descriptors;"
        "print(raise_descriptors(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(hard)] * 3


@pytest.fixture
def few_connections(monkeypatch, serve):
    monkeypatch.setattr(server_module, "connections_for", lambda descriptors: 8)
    return serve()


def test_connections_beyond_the_limit_are_closed_and_those_before_go_on(few_connections, connect):
    client = connect(few_connections.address)
    assert client.tables() == []
    peers = [http2.Peer(few_connections.port) for _ in range(20)]
    for peer in peers[10:]:
        peer.wait_for_end()
    assert client.tables() == []
    for peer in peers:
        peer.close()


def test_new_client_gets_in_when_others_have_left(few_connections, connect):
    peers = [http2.Peer(few_connections.port) for _ in range(20)]
    peers[-1].wait_for_end()
    for peer in peers:
        peer.close()
    assert connect(few_connections.address).tables() == []


@pytest.mark.parametrize(
    ("option", "hello"), [("grpc.server_handshake_timeout_ms", False), ("grpc.max_connection_idle_ms", True)]
)
def test_connections_that_say_nothing_are_closed(serve, monkeypatch, option, hello):
    assert dict(server_module.OPTIONS)[option] >= 10_000
    monkeypatch.setattr(server_module, "OPTIONS", tuple((dict(server_module.OPTIONS) | {option: 300}).items()))
    with http2.Peer(serve().port, hello=hello) as peer:
        peer.wait_for_end()


def test_what_is_no_http2_is_closed_at_once(serve):
    with socket.create_connection(("127.0.0.1", serve().port), timeout=60) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(100))
        while peer.recv(1 << 16):
            pass


def test_one_connection_may_have_few_streams(serve):
    with http2.Peer(serve().port) as peer:
        kind, _, _, payload = peer.read()
        assert kind == http2.SETTINGS
        settings = {
            int.from_bytes(payload[i : i + 2], "big"): int.from_bytes(payload[i + 2 : i + 6], "big")
            for i in range(0, len(payload), 6)
        }
        assert settings[http2.MAX_CONCURRENT_STREAMS] == 32


def test_streams_beyond_the_limit_are_refused_and_hold_no_worker(serve):
    server = serve()
    with http2.Peer(server.port) as peer:
        streams = [peer.begin(http2.SERVICE + "Append") for _ in range(40)]
        peer.wait_for(http2.RST_STREAM, streams[-1])
        assert sum(shares.held for shares in server._admission.workers.values()) <= 32


def test_protobuf_in_pure_python_is_refused(replay, monkeypatch):
    monkeypatch.setattr(server_module.api_implementation, "Type", lambda: "python")
    with pytest.raises(ConfigurationError, match=r"protobuf: expected its compiled implementation \(upb\), found 'python'"):
        Server(replay, "127.0.0.1:0")
