"""Clients that are slow, many, or do not read: they give way, and probes are answered meanwhile."""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from replaysvc.access import Role, append_token, new_token
from replaysvc.admin import connection as connection_module
from replaysvc.admin import guard, pages, room
from replaysvc.admin.server import THREADS
from tests.admin.browser import Browser, rest
from tests.waiting import wait_until

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def many(browser):
    """Opens connections on which nothing is sent; all are closed at the end."""
    opened = []

    def connect(count):
        opened.extend(browser.connect() for _ in range(count))
        return opened

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def stuck(monkeypatch):
    """Makes looks at tables wait; gives what lets them go on, which happens at the end anyway."""
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def look(admin, name):
        begun.release()
        go_on.wait(60)
        return {"name": name}

    monkeypatch.setattr(pages.tables, "table_of", look)
    begun.go_on = go_on.set
    yield begun
    go_on.set()


def test_probes_are_answered_though_many_connections_idle(browser, many, open_door):
    many(200)
    for path in ("/livez", "/readyz", "/", "/api/v1/session"):
        assert browser.get(path).status == 200


def test_connection_beyond_the_most_takes_the_place_of_the_one_that_waited_longest(browser, many, monkeypatch):
    monkeypatch.setattr(connection_module, "MOST_CONNECTIONS", 3)
    first, second, third = many(3)
    wait_until(lambda: _answers(third))  # so all three were taken
    assert browser.get("/livez").status == 200
    assert rest(first) == b""
    assert _answers(second)


def test_many_newcomers_at_once_each_take_the_place_of_another_one(browser, open_door, monkeypatch):
    monkeypatch.setattr(connection_module, "MOST_CONNECTIONS", 20)
    server = open_door()
    held = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    made = connection_module.Connection.connection_made

    def noting(self, transport):
        loops.append(self.loop)
        made(self, transport)

    monkeypatch.setattr(connection_module.Connection, "connection_made", noting)
    assert Browser(server.port).get("/livez").status == 200
    loops[0].call_soon_threadsafe(held.wait, 30)  # so that all of them are taken in one go
    opened = [Browser(server.port).connect() for _ in range(100)]
    held.set()
    try:
        assert _answers(opened[-1])
        wait_until(lambda: server.connections == 20)
    finally:
        for one in opened:
            one.close()


def _answers(connection: socket.socket) -> bool:
    connection.sendall(LIVEZ)
    found = b""
    while not found.endswith(b'{"status":"ok"}'):
        part = connection.recv(1 << 16)
        if not part:
            return False
        found += part
    return True


def test_answer_under_way_is_not_cut_off_for_a_newcomer(browser, many, stuck, monkeypatch):
    monkeypatch.setattr(connection_module, "MOST_CONNECTIONS", 1)
    (busy,) = many(1)
    busy.sendall(b"GET /api/v1/tables/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert stuck.acquire(timeout=30)
    assert browser.get("/livez").status == 200
    busy.settimeout(0.05)
    with pytest.raises(TimeoutError):  # it is still there, and waits
        busy.recv(1)


POST = b"POST /api/v1/scrub HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"


@pytest.mark.parametrize("sent", [b"", b"GET /livez HTT", LIVEZ[:-2], POST], ids=["nothing", "line", "headers", "body"])
def test_request_without_an_end_is_cut_off(browser, many, monkeypatch, sent):
    monkeypatch.setattr(connection_module, "REQUEST_S", 0.2)
    (slow,) = many(1)
    slow.sendall(sent)
    assert rest(slow) == b""
    assert browser.get("/livez").status == 200


def test_request_that_trickles_is_cut_off_too(many, monkeypatch):
    monkeypatch.setattr(connection_module, "REQUEST_S", 0.5)
    (slow,) = many(1)
    slow.settimeout(0.05)
    sent = 0
    while True:  # a byte each 50 ms, for as long as it is taken
        try:
            slow.sendall(LIVEZ[sent % 20 : sent % 20 + 1])
            sent += 1
            if not slow.recv(1):
                break
        except TimeoutError:
            assert sent < 200, "nobody cut it off"
        except OSError:
            break
    assert 3 < sent < 200


def test_second_request_of_a_connection_has_its_own_time(many, monkeypatch):
    monkeypatch.setattr(connection_module, "REQUEST_S", 0.5)
    (kept,) = many(1)
    for _ in range(3):
        assert _answers(kept)
    kept.sendall(b"GET /livez HTT")
    assert rest(kept) == b""


def test_client_that_does_not_read_is_cut_off(open_door, monkeypatch):
    monkeypatch.setattr(connection_module, "ANSWER_S", 0.3)
    monkeypatch.setattr(connection_module, "REQUEST_S", 60.0)
    server = open_door()
    with socket.socket() as greedy:
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        greedy.connect(("127.0.0.1", server.port))
        greedy.sendall(b"GET /static/plotly.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: server.connections == 1)
        wait_until(lambda: server.connections == 0)
        assert len(rest(greedy)) < 4_000_000  # of 4.8 MB
    assert Browser(server.port).get("/livez").status == 200


def test_slow_readers_give_way_and_take_no_place_of_others(browser, monkeypatch):
    monkeypatch.setattr(room, "MOST_REQUESTS", 2)
    monkeypatch.setattr(connection_module, "MOST_CONNECTIONS", 4)
    greedy = [socket.socket() for _ in range(5)]
    try:
        for one in greedy:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", browser.port))
            one.sendall(b"GET /static/plotly.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert one.recv(8).startswith(b"HTTP/1.1")  # its answer is under way
        assert browser.get("/api/v1/session").status == 200
        assert len(rest(greedy[0])) < 4_000_000  # it was there first, and gave way
    finally:
        for one in greedy:
            one.close()


def test_long_answers_are_held_in_pieces(browser):
    """A connection keeps no copy of what its client has not taken: however many do not read, they share the file."""
    assert len(browser.get("/static/plotly.min.js").body) > 4_000_000
    sent = []

    async def send(message):
        sent.append(message)

    wrapped = guard._with_headers(send, "an-id")
    body = bytes(range(256)) * 1000
    asyncio.run(_send(wrapped, body))
    assert sent[0]["type"] == "http.response.start"
    assert b"".join(message["body"] for message in sent[1:]) == body
    assert [len(message["body"]) for message in sent[1:]] == [65_536] * 3 + [256_000 - 3 * 65_536]
    assert [message["more_body"] for message in sent[1:]] == [True] * 3 + [False]


async def _send(send, body):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def test_only_so_many_requests_are_under_way_but_probes_are_answered(browser, stuck, monkeypatch):
    monkeypatch.setattr(room, "MOST_REQUESTS", THREADS + 1)
    with ThreadPoolExecutor(THREADS + 1) as pool:
        waiting = [pool.submit(browser.get, f"/api/v1/tables/t{i}") for i in range(THREADS)]
        for _ in range(THREADS):
            assert stuck.acquire(timeout=30)
        waiting.append(pool.submit(browser.get, "/api/v1/tables/one-more"))  # which has no thread
        wait_until(lambda: browser.get("/api/v1/session").status == 503)
        refused = browser.get("/api/v1/session")
        assert (refused.json["error"], refused.headers["retry-after"]) == ("UnavailableError", "1")
        assert [browser.get(path).status for path in ("/livez", "/readyz")] == [200, 200]
        assert not stuck.acquire(blocking=False)  # nor did a fifth look begin
        assert not any(one.done() for one in waiting)
        stuck.go_on()
        assert [one.result(30).status for one in waiting] == [200] * len(waiting)


def slow(browser, token=None):
    """Returns a connection on which a body is on its way, and known to be."""
    connection = browser.connect()
    shown = b"" if token is None else b"Authorization: Bearer %s\r\n" % token.encode()
    connection.sendall(POST.replace(b"\r\n\r\n", b"\r\n%sExpect: 100-continue\r\n\r\n" % shown))
    assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")  # which comes when somebody waits for it
    return connection


def test_bodies_on_their_way_take_no_place_of_pages(browser, monkeypatch):
    monkeypatch.setattr(room, "MOST_REQUESTS", 2)
    monkeypatch.setattr(room, "MOST_OF_ONE", 2)
    slows = [slow(browser) for _ in range(8)]
    try:
        assert browser.get("/api/v1/session").status == 200
        assert browser.post("/api/v1/scrub", {}).status == 400  # of which all has come
    finally:
        for one in slows:
            one.close()


def test_body_that_is_whole_takes_its_place(browser, stuck, monkeypatch):
    monkeypatch.setattr(room, "MOST_REQUESTS", 1)
    with slow(browser) as half, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(browser.get, "/api/v1/tables/t")
        assert stuck.acquire(timeout=30)
        half.sendall(b" " * 98 + b"}")
        assert half.recv(1000).startswith(b"HTTP/1.1 503 ")
        stuck.go_on()
        assert waiting.result(30).status == 200


def test_body_that_keeps_us_waiting_longest_gives_way(browser, monkeypatch):
    monkeypatch.setattr(room, "MOST_BODIES", 2)
    slows = [slow(browser) for _ in range(3)]
    answer = slows[0].recv(10_000).lower()
    assert answer.startswith(b"http/1.1 503 ")
    assert b"\r\nretry-after: 1\r\n" in answer
    for one in slows[1:]:
        one.sendall(b" " * 98 + b"}")
        assert one.recv(1000).startswith(b"HTTP/1.1 400 ")  # it was not confirmed
    for one in slows:
        one.close()


def test_bodies_of_whoever_has_most_of_them_give_way_first(secured, secrets, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "MOST_BODIES", 3)
    other, lines = new_token("other-admin", Role.ADMIN)
    append_token(tmp_path / "tokens.toml", lines)
    browser = Browser(secured.port)
    wait_until(lambda: Browser(secured.port, token=other).get("/api/v1/session").status == 200)
    slows = [slow(browser, other), *(slow(browser, secrets["admin"]) for _ in range(3))]
    assert slows[1].recv(1000).startswith(b"HTTP/1.1 503 ")
    slows[0].sendall(b" " * 98 + b"}")
    assert slows[0].recv(1000).startswith(b"HTTP/1.1 400 ")
    for one in slows:
        one.close()


def test_body_without_a_token_is_not_waited_for(secured):
    with Browser(secured.port).connect() as connection:
        connection.sendall(POST)
        assert connection.recv(1000).startswith(b"HTTP/1.1 401 ")


def test_one_caller_leaves_room_for_others(secured, secrets, stuck, monkeypatch):
    monkeypatch.setattr(room, "MOST_OF_ONE", 2)
    one, other = (Browser(secured.port, token=secrets[role]) for role in ("viewer", "learner"))
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(one.get, f"/api/v1/tables/t{i}") for i in range(2)]
        for _ in range(2):
            assert stuck.acquire(timeout=30)
        refused = one.get("/api/v1/session")
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.json["message"] == "2 requests of this caller are under way; come again"
        assert other.get("/api/v1/session").status == 200
        stuck.go_on()
        assert [each.result(30).status for each in waiting] == [200, 200]
    assert one.get("/api/v1/session").status == 200


def test_answers_are_shared_while_they_are_made(browser, stuck):
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(browser.get, "/api/v1/tables/t") for _ in range(3)]
        assert stuck.acquire(timeout=30)
        assert not stuck.acquire(timeout=0.2)
        assert not any(one.done() for one in asked)
        stuck.go_on()
        assert [one.result(30).json for one in asked] == [{"name": "t"}] * 3
