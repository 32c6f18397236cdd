"""Fixtures: an embedded store, a served one, and `door`, which is either."""

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import replay_client
from replaysvc.activity import request_id
from replaysvc.replay import Replay
from replaysvc.rpc.server import Server

# For `--hypothesis-profile=torture`: new examples each time, for minutes.
settings.register_profile(
    "torture", max_examples=1500, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.fixture(autouse=True)
def no_request():
    """Tests that call an interceptor on their own thread leave the id of a request there."""
    token = request_id.set("")
    yield
    request_id.reset(token)


@pytest.fixture
def rng():
    return np.random.default_rng(12345)


@pytest.fixture
def replay(tmp_path):
    with Replay(tmp_path / "store") as replay:
        yield replay


@pytest.fixture
def served(replay):
    """A client of a real server on a free port, in this process."""
    server = Server(replay, "127.0.0.1:0")
    server.start()
    with replay_client.connect(f"127.0.0.1:{server.port}") as client:
        yield client
    server.stop(5.0)


@pytest.fixture(params=["embedded", "client"])
def door(request):
    """The two ways into a store, with the same methods."""
    return request.getfixturevalue("replay" if request.param == "embedded" else "served")
