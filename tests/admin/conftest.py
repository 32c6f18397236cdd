"""Admin doors on the store `replay`, in this process, on free ports."""

import pytest

from replaysvc.access import Access, Role, append_token, new_token
from replaysvc.activity import Activity
from replaysvc.admin.context import Admin
from replaysvc.admin.server import AdminServer, bind
from replaysvc.health import Health
from tests.admin.browser import Browser

METRICS = b"replaysvc_up 1\n"


class PlainMetrics:
    """Metrics that say one thing."""

    def render(self):
        return METRICS, "text/plain; version=0.0.4; charset=utf-8"


@pytest.fixture
def open_door(replay):
    """Opens admin doors, with the parts that are given; all are closed at the end."""
    opened = []

    def start(**parts) -> AdminServer:
        given = {
            "replay": replay, "access": None, "activity": Activity(), "metrics": PlainMetrics(), "status": lambda: "serving",
            "address": "127.0.0.1:7777", "data": "store", "version": "1.2.3",
        } | parts  # fmt: skip
        health = Health(given["replay"], given["activity"])
        health.status = given["status"]
        health.watch.start()
        server = AdminServer(Admin(health=health, **given), bind("127.0.0.1", 0))
        opened.append((server, health))
        server.start()
        return server

    yield start
    for server, health in opened:
        server.stop()
        health.watch.stop(5.0)


@pytest.fixture
def browser(open_door):
    """Asks a door that asks nobody who they are."""
    return Browser(open_door().port)


@pytest.fixture
def secrets(tmp_path):
    """A tokens file with one token of each role; their secrets by role."""
    made = {}
    for role in Role:
        made[role.value], lines = new_token(f"some-{role}", role)
        append_token(tmp_path / "tokens.toml", lines)
    return made


@pytest.fixture
def secured(open_door, secrets, tmp_path):
    """A door that asks for tokens."""
    return open_door(access=Access(tmp_path / "tokens.toml"))
