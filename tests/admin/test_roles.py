"""Who may see what: each route, without a token, with a wrong one, and with one of each role."""

import logging

import pytest
from fastapi.routing import APIRoute

from replaysvc.access import OPEN_PAGES, PAGES, Role
from replaysvc.activity import Activity
from replaysvc.admin.app import make_app
from replaysvc.admin.context import Admin
from replaysvc.health import Health
from tests.admin.browser import Browser
from tests.builders import make_table

EVERYBODY = {"viewer", "learner", "admin", "writer"}
LOOKING = {"viewer", "learner", "admin"}
PAGES_OF_LOOKERS = (
    "openapi", "metrics", "overview", "history", "tables", "table", "ages", "columns", "sampler", "episodes", "episode-points",
    "episode", "steps", "priorities", "image", "strip", "actors", "learners", "storage", "jobs",
)  # fmt: skip
PAGES_OF_ADMINS = (
    "configuration", "log", "delete-table", "delete-episodes", "limiter", "capacity", "compact", "snapshot", "scrub",
)  # fmt: skip
EXPECTED = {
    "session": EVERYBODY, **{page: LOOKING for page in PAGES_OF_LOOKERS}, **{page: {"admin"} for page in PAGES_OF_ADMINS},
}  # fmt: skip
"""Written down here once more, by hand: a change of the table is a change of what others may see."""

PATHS = {"table": "t", "sampler": "uniform", "episode_id": "0", "name:path": "app.js"}


@pytest.fixture
def app(replay):
    given = {"access": None, "activity": Activity(), "metrics": None, "status": lambda: "serving", "address": "", "data": ""}
    admin = Admin(replay=replay, health=Health(replay), version="1.2.3", **given)
    return make_app(admin)


def routes_of(app):
    """Returns (name, method, path) of every route."""
    found = []
    for route in app.routes:
        assert isinstance(route, APIRoute), f"{route}: nobody asks who calls it"
        path = route.path
        for name, value in PATHS.items():
            path = path.replace("{" + name + "}", value)
        assert "{" not in path
        found += [(route.name, method, path) for method in route.methods]
    return found


def ask(browser, method, path):
    return browser.get(path) if method == "GET" else browser.post(path, {})


def test_table_of_pages_is_as_written_down():
    assert {page: {role.value for role in roles} for page, roles in PAGES.items()} == EXPECTED
    assert {role.value for role in Role} == EVERYBODY


def test_every_route_is_in_one_table_and_every_page_has_a_route(app):
    names = [name for name, _, _ in routes_of(app)]
    assert len(names) == len(set(names))
    assert set(names) == set(PAGES) | OPEN_PAGES
    assert not set(PAGES) & OPEN_PAGES


def test_every_route_asks_for_a_token_that_is_known(app, secured):
    nobody, stranger = Browser(secured.port), Browser(secured.port, token="x" * 43)
    for name, method, path in routes_of(app):
        for browser in (nobody, stranger):
            answer = ask(browser, method, path)
            if name in OPEN_PAGES:
                assert answer.status == 200, name
            else:
                assert (answer.status, answer.json["error"]) == (401, "UnauthenticatedError"), name
                assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("role", sorted(EVERYBODY))
def test_every_route_lets_in_the_roles_in_the_table_and_no_others(app, secured, secrets, replay, role):
    make_table(replay, [3])
    browser = Browser(secured.port, token=secrets[role])
    for name, method, path in routes_of(app):
        answer = ask(browser, method, path)
        allowed = name in OPEN_PAGES or role in EXPECTED[name]
        assert (answer.status == 403) == (not allowed), (name, answer.status)
        assert answer.status not in (401, 500), (name, answer.body)
        if not allowed:
            assert answer.json["error"] == "PermissionDeniedError"
            assert f"found {role} (of some-{role})" in answer.json["message"]
    assert replay.table("t").stats().steps == 3  # no POST did anything: none was confirmed


@pytest.mark.parametrize("role", sorted(EVERYBODY))
def test_head_lets_in_whom_get_lets_in(app, secured, secrets, replay, role):
    make_table(replay, [3])
    browser, nobody = Browser(secured.port, token=secrets[role]), Browser(secured.port)
    for name, method, path in routes_of(app):
        if method == "GET":
            assert browser.request("HEAD", path).status == browser.get(path).status, name
            assert nobody.request("HEAD", path).status == (200 if name in OPEN_PAGES else 401), name


def test_route_that_is_in_no_table_is_refused_to_everyone(open_door, secrets, tmp_path, secured):
    secured.app.add_api_route("/api/v1/forgotten", lambda: {"secret": 1}, name="forgotten")
    assert Browser(secured.port, token=secrets["admin"]).get("/api/v1/forgotten").status == 403
    alone = open_door()
    alone.app.add_api_route("/api/v1/forgotten", lambda: {"secret": 1}, name="forgotten")
    assert Browser(alone.port).get("/api/v1/forgotten").status == 403


@pytest.mark.parametrize(
    "values", [["Basic abc"], ["Bearer"], ["Bearer "], [""], ["Bearer a", "Bearer a"], ["bearer"], ["Bearer a b"]]
)
def test_authorization_of_another_kind_is_refused(secured, values):
    answer = Browser(secured.port).request("GET", "/api/v1/session", [("Authorization", value) for value in values])
    assert (answer.status, answer.json["error"]) == (401, "UnauthenticatedError")


def test_token_in_the_address_or_a_cookie_is_none(secured, secrets):
    secret = secrets["admin"]
    browser = Browser(secured.port)
    assert browser.get(f"/api/v1/session?token={secret}&access_token={secret}").status == 401
    assert browser.get("/api/v1/session", Cookie=f"token={secret}; authorization=Bearer {secret}").status == 401


def test_session_says_who_asks(secured, secrets, browser):
    told = {role: Browser(secured.port, token=secrets[role]).get("/api/v1/session").json for role in secrets}
    assert told["viewer"] == {
        "name": "some-viewer", "role": "viewer", "tokens": True, "may": {"act": False, "log": False}, "version": "1.2.3",
        "api": "v1",
    }  # fmt: skip
    assert told["admin"]["may"] == {"act": True, "log": True}
    assert told["writer"]["role"] == "writer"
    alone = browser.get("/api/v1/session").json
    assert (alone["name"], alone["role"], alone["tokens"], alone["may"]["act"]) == ("anyone", "admin", False, True)


def test_refusals_are_logged_without_the_secret(secured, caplog):
    with caplog.at_level(logging.WARNING):
        Browser(secured.port, token="not-a-real-secret").get("/api/v1/overview")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("refused 'GET /api/v1/overview' from '127.0.0.1': authorization: ")
    assert "not-a-real-secret" not in caplog.text
