"""A server process on a fresh store, and a server in this process whose parts can be replaced."""

import pytest

import replay_client
from replaysvc import ClientConfig, StoreConfig
from replaysvc.replay import Replay
from replaysvc.rpc.limits import Limits
from replaysvc.rpc.server import Server
from tests.processes import ServiceProcess
from tests.service.raw import Raw


@pytest.fixture
def server_process(tmp_path):
    """A running server process on an empty store."""
    with ServiceProcess(tmp_path / "data") as server:
        yield server


@pytest.fixture
def remote(server_process):
    """A client of `server_process`."""
    with replay_client.connect(server_process.address) as client:
        yield client


@pytest.fixture
def serve(replay):
    """Starts servers of the store `replay` in this process; all are stopped at the end."""
    servers = []

    def start(port: int = 0, *, access=None, tls=None, **limits) -> Server:
        server = Server(replay, f"127.0.0.1:{port}", access=access, tls=tls, limits=Limits(**limits))
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop(5.0)


@pytest.fixture
def connect():
    """Makes clients; all are closed at the end."""
    clients = []

    def make(address: str, **options) -> replay_client.Client:
        client = replay_client.connect(address, config=ClientConfig(**options))
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def raw(serve):
    """The methods of a server in this process, called by hand."""
    raw = Raw(serve().address)
    yield raw
    raw.close()


@pytest.fixture
def small_replay(tmp_path):
    """A store with the smallest commit queue."""
    with Replay(tmp_path / "small", StoreConfig(queue_bytes=1 << 20)) as replay:
        yield replay
