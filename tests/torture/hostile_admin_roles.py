"""Who takes part in `hostile_admin`: an honest learner, an honest dashboard and an honest administrator, and hostile clients of
the admin door, each kind in its own way.

Hostile clients note what must not be: a page that lets in whom it must not, an answer that tells of a fault of the service.
"""

import http.client
import json
import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import replay_client
from replaysvc import FieldSpec, Signature, TableConfig
from replaysvc.access import OPEN_PAGES, PAGES, Role
from replaysvc.errors import ReplayError

TABLE = "t"
EPISODES, STEPS = 8, 1500
SIGNATURE = Signature(
    {"image": FieldSpec("image", (4, 42, 42), np.uint8), "vector": FieldSpec("vector", (64,), np.float32)},
    FieldSpec("action", (), np.int64),
)
_PACE_S = 0.1
_PATIENCE_S = 30.0
_AT = f"/api/v1/tables/{TABLE}"
_POLLED = ("/api/v1/overview", "/api/v1/tables", _AT, f"{_AT}/episodes", "/api/v1/history?window=600", "/api/v1/actors",
           "/api/v1/learners", "/api/v1/storage", f"{_AT}/samplers/uniform")  # fmt: skip
_ORIGINS: tuple[tuple[dict[str, str], int], ...] = (
    ({"Host": "evil.example"}, 400), ({"Host": "localhost.evil.example"}, 400), ({"Host": ""}, 400), ({"Host": "a" * 300}, 400),
    ({"Origin": "http://evil.example"}, 403), ({"Origin": "null"}, 403), ({"Sec-Fetch-Site": "cross-site"}, 403),
    ({"Sec-Fetch-Site": "same-site"}, 403),
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """Where the doors are. honest, hostile: the tokens that they show, one of each role. routes: name, method, path."""

    address: str
    port: int
    honest: dict[str, str]
    hostile: dict[str, str]
    routes: list[tuple[str, str, str]]
    seed: int
    scale: float = 1.0

    def many(self, number: int) -> int:
        return max(1, round(number * self.scale))


@dataclass
class Found:
    """What a crew has seen. took: seconds of each call by kind, with when it began. wrong: what must not be."""

    counts: Counter[str] = field(default_factory=Counter)
    took: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def note(self, kind: str, began: float) -> None:
        """Notes a call that has ended just now."""
        self.took.setdefault(kind, []).append((began, time.monotonic() - began))


@dataclass(frozen=True)
class Answer:
    """What came of one request."""

    status: int
    headers: Any
    body: bytes


def ask(
    target: Target, found: Found, method: str, path: str, token: str | None = None, *, headers: dict[str, str] | None = None,
    body: Any = None,
) -> Answer | None:  # fmt: skip
    """Returns the answer to one request, None if there was none; notes one that there must not be."""
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=_PATIENCE_S)
    sent = {"Authorization": f"Bearer {token}"} if token is not None else {}
    if body is not None:
        sent["Content-Type"] = "application/json"
    try:
        connection.request(method, path, None if body is None else json.dumps(body), sent | (headers or {}))
        response = connection.getresponse()
        answer = Answer(response.status, response.headers, response.read())
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    if answer.status >= 500 and not (answer.status == 503 and answer.headers["retry-after"]):
        found.wrong.append(f"{method} {path[:100]}: answered with {answer.status}: {answer.body[:200]!r}")
    if b"Traceback" in answer.body:
        found.wrong.append(f"{method} {path[:100]}: a traceback in the answer")
    return answer


def make_table(target: Target) -> None:
    """Makes the table and fills it."""
    rng = np.random.default_rng(0)
    frame = rng.integers(0, 256, (4, 42, 42), np.uint8)

    def step(t: int) -> dict[str, Any]:
        return {"image": np.roll(frame, t, 1), "vector": rng.normal(size=64).astype(np.float32)}

    with replay_client.connect(target.address, token=target.honest["admin"]) as client:
        table = client.create_table(TABLE, SIGNATURE, TableConfig(capacity_steps=60_000))
        with table.writer("first") as writer:
            for _ in range(EPISODES):
                writer.begin(step(0))
                for t in range(STEPS):
                    writer.append(t, 1.0, step(t + 1), terminated=t == STEPS - 1)


# -- honest ones, each in a thread of one process ------------------------------------------------------------------------


def learn(target: Target, stop: Any, found: Found) -> None:
    """Samples at a gentle pace."""
    with replay_client.connect(target.address, token=target.honest["learner"]) as client:
        table = client.table(TABLE)
        while not stop.wait(0.02):
            began = time.monotonic()
            try:
                assert len(table.sample(32)) == 32
            except ReplayError as error:
                found.wrong.append(f"the learner saw {type(error).__name__}: {error}")
            found.note("sample", began)


def _until_answered(target: Target, stop: Any, found: Found, method: str, path: str, token: str, body: Any = None) -> None:
    """Asks until there is an answer, as the page does: after the time that a refusal names, or at once if there was none."""
    began = time.monotonic()
    while not stop.is_set():
        answer = ask(target, found, method, path, token, body=body)
        if answer is not None and answer.status == 503:
            found.counts["honest requests told to come again"] += 1
            stop.wait(float(answer.headers["retry-after"] or 1))
        elif answer is not None:
            if answer.status != 200:
                found.wrong.append(f"an honest {method} {path} was answered with {answer.status}: {answer.body[:200]!r}")
            break
        else:
            found.counts["honest requests without an answer"] += 1
    found.note("page" if method == "GET" else "action", began)


def poll(target: Target, stop: Any, found: Found) -> None:
    """Looks at one page after the other, as a dashboard that is left open."""
    number = 0
    while not stop.wait(_PACE_S):
        _until_answered(target, stop, found, "GET", _POLLED[number % len(_POLLED)], target.honest["viewer"])
        number += 1


def administer(target: Target, stop: Any, found: Found) -> None:
    """Changes the limiter now and then."""
    body = {"limiter": {"min_steps": 1, "samples_per_insert": None, "error_buffer": None}, "confirm": TABLE}
    while not stop.wait(0.5):
        _until_answered(target, stop, found, "POST", f"{_AT}/limiter", target.honest["admin"], body)


def probe(target: Target, stop: Any, found: Found) -> None:
    """Asks whether the service is up, as Kubernetes does, which takes more than one failure in a row to restart it."""
    missed = 0
    while not stop.wait(_PACE_S):
        for path in ("/livez", "/readyz"):
            began = time.monotonic()
            answer = ask(target, found, "GET", path)
            missed = 0 if answer is not None else missed + 1
            found.counts["probes without an answer"] += answer is None
            if missed > 1 or (answer is not None and answer.status != 200):
                found.wrong.append(f"{path}: answered with {answer and answer.status} after {time.monotonic() - began:.1f} s")
            found.note("probe", began)


HONEST: dict[str, Callable[[Target, Any, Found], None]] = {
    "learner": learn, "dashboard": poll, "administrator": administer, "probes": probe,
}  # fmt: skip


# -- hostile ones --------------------------------------------------------------------------------------------------------


def strangers(target: Target, stop: Any, found: Found) -> None:
    """Asks for every page without a token, with wrong ones and with one of each role, and tries every action unconfirmed."""
    rng = random.Random(target.seed)
    tokens: dict[str, str | None] = {"nobody": None, "a stranger": "x" * 43, **target.hostile}
    while not stop.is_set():
        name, method, path = rng.choice(target.routes)
        who = rng.choice(list(tokens))
        method = "HEAD" if method == "GET" and rng.random() < 0.3 else method
        answer = ask(target, found, method, path, tokens[who], body={} if method == "POST" else None)
        if answer is None or answer.status == 503:
            found.counts["strangers: no answer, or come again"] += 1
            continue
        found.counts["strangers: answers"] += 1
        may = name in OPEN_PAGES or (who in target.hostile and Role(who) in PAGES[name])
        expected = {True: (200, 400), False: (403,) if who in target.hostile else (401,)}[may]
        if answer.status not in expected or (method == "POST" and answer.status == 200):
            found.wrong.append(f"{method} {path} of {who}: answered with {answer.status}, expected one of {expected}")
        if method == "HEAD" and answer.body:
            found.wrong.append(f"HEAD {path}: answered with a body")


def other_sites(target: Target, stop: Any, found: Found) -> None:
    """Makes requests by other names and on behalf of other sites, with an administrator's token, on one connection each."""
    rng = random.Random(target.seed)
    while not stop.is_set():
        headers, status = rng.choice(_ORIGINS)
        _, method, path = rng.choice(target.routes)
        body = {"confirm": TABLE} if method == "POST" else None
        answer = ask(target, found, method, path, target.hostile["admin"], headers=headers, body=body)
        if answer is not None:
            found.counts["other sites: refused"] += 1
            if answer.status != status:
                found.wrong.append(f"{method} {path} with {headers}: answered with {answer.status}, expected {status}")


def _connect(target: Target, receive_bytes: int = 0) -> socket.socket:
    connection = socket.socket()
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.settimeout(2.0)
    try:
        connection.connect(("127.0.0.1", target.port))
    except OSError:
        connection.close()
        raise
    return connection


def _head(target: Target, method: str = "GET", path: str = "/livez", *more: str, role: str = "admin") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {target.hostile[role]}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _drip(target: Target, stop: Any, found: Found, begin: Callable[[], bytes], what: str, most: int) -> None:
    """Keeps connections that send what `begin` gives, and then a byte at a time."""
    kept: list[socket.socket] = []
    while not stop.wait(0.5):
        with suppress(OSError):
            while len(kept) < target.many(most):
                connection = _connect(target)
                kept.append(connection)
                connection.sendall(begin())
                found.counts[what] += 1
        for connection in list(kept):
            try:
                connection.sendall(b"a")
            except OSError:
                kept.remove(connection)
                connection.close()
    for connection in kept:
        connection.close()


def slow_heads(target: Target, stop: Any, found: Found) -> None:
    """Sends heads a byte at a time."""
    _drip(target, stop, found, lambda: b"GET /api/v1/overview HTTP/1.1\r\nHost: localhost\r\nX: ", "slow heads", 80)


def slow_bodies(target: Target, stop: Any, found: Found) -> None:
    """Sends bodies of actions a byte at a time, with an administrator's token: what would have taken all places."""
    head = _head(target, "POST", "/api/v1/scrub", "Content-Type: application/json", "Content-Length: 200000")
    _drip(target, stop, found, lambda: head + b"{", "slow bodies", 100)


def endless_chunks(target: Target, stop: Any, found: Found) -> None:
    """Sends bodies in chunks that never end, where there must be none, or a length before them."""
    rng = random.Random(target.seed)

    def begin() -> bytes:
        method, path = rng.choice([("POST", "/api/v1/scrub"), ("GET", "/api/v1/overview"), ("POST", "/api/v1/overview")])
        more = "Transfer-Encoding: chunked", "Content-Type: application/json"
        return _head(target, method, path, *more) + b"4000\r\n"

    _drip(target, stop, found, begin, "endless chunks", 40)


def half_closed(target: Target, stop: Any, found: Found) -> None:
    """Ends its side amid a head, amid a body, or at once after a request, and waits for the other to do so."""
    rng = random.Random(target.seed)
    post = _head(target, "POST", "/api/v1/scrub", "Content-Type: application/json", "Content-Length: 50")
    page = _head(target, "GET", "/api/v1/overview")
    while not stop.wait(0.05):
        with suppress(OSError), _connect(target) as connection:
            connection.sendall(rng.choice([b"", b"GET / HT", post, post + b"{", page, page * 3]))
            connection.shutdown(socket.SHUT_WR)
            found.counts["half-closed connections"] += 1
            _check(found, _all(connection), "half-closed")


def pipelining(target: Target, stop: Any, found: Found) -> None:
    """Sends hundreds of requests in one piece, and reads slowly or not at all."""
    rng = random.Random(target.seed)
    while not stop.wait(0.1):
        paths = [rng.choice(["/livez", "/api/v1/session", "/api/v1/overview", "/nowhere"]) for _ in range(200)]
        with suppress(OSError), _connect(target, 4096) as connection:
            connection.sendall(b"".join(_head(target, "GET", path) for path in paths))
            found.counts["pipelined requests"] += len(paths)
            if rng.random() < 0.5:
                connection.settimeout(0.5)
                _check(found, _all(connection), "pipelined")


def odd_heads(target: Target, stop: Any, found: Found) -> None:
    """Sends heads that are huge, of many lines, doubled, contradictory, and bytes that are no HTTP at all."""
    rng = random.Random(target.seed)
    plain = f"Authorization: Bearer {target.hostile['admin']}"
    kinds: list[Callable[[], bytes]] = [
        lambda: _head(target, "GET", "/", "X: " + "a" * 100_000),
        lambda: _head(target, "GET", "/" + "a" * 100_000),
        lambda: _head(target, "GET", "/", *[f"X{i}: {i}" for i in range(1000)]),
        lambda: _head(target, "GET", "/", "Host: localhost"),
        lambda: _head(target, "GET", "/api/v1/session", plain),
        lambda: _head(target, "POST", "/api/v1/scrub", "Content-Length: 5", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
        lambda: _head(target, "POST", "/api/v1/scrub", "Content-Length: 5", "Content-Length: 6") + b"{}",
        lambda: _head(target, "POST", "/api/v1/scrub", f"Content-Length: {'9' * 5000}"),
        lambda: _head(target, "POST", "/api/v1/scrub", "Content-Type: application/json", "Content-Length: 2") + b"\xff\xfe",
        lambda: _head(target, rng.choice(["PUT", "DELETE", "TRACE", "BREW", "CONNECT", "OPTIONS"]), "/api/v1/overview"),
        lambda: _head(target, "GET", rng.choice(["*", "//", "/%00", "/%ff", "/%2e%2e/", "/static/..%2fapp.py", "http://a/"])),
        lambda: _head(target, "GET", f"{_AT}/episodes?actor=%00&end=\u00ff"),
        lambda: _head(target, "GET", "/", "Upgrade: websocket", "Connection: upgrade", "Sec-WebSocket-Version: 13"),
        lambda: _head(target, "GET", "/", "Expect: 100-continue", "Range: bytes=0-5,-1", "Accept-Encoding: " + "gzip," * 500),
        lambda: b"GET / HTTP/9.9\r\n\r\n",
        lambda: b"\r\n" * 5000,
        lambda: rng.randbytes(rng.randrange(1, 5000)),
        lambda: b"\x16\x03\x01" + rng.randbytes(300),
    ]
    while not stop.wait(0.02):
        with suppress(OSError), _connect(target) as connection:
            connection.settimeout(0.3)
            connection.sendall(rng.choice(kinds)())
            found.counts["odd heads"] += 1
            _check(found, _all(connection), "an odd head")


def _all(connection: socket.socket, most: int = 1 << 20) -> bytes:
    """Returns what comes until the end, or until nothing comes."""
    said = b""
    with suppress(OSError):
        while len(said) < most and (part := connection.recv(1 << 16)):
            said += part
    return said


def _check(found: Found, said: bytes, what: str) -> None:
    for head in re.findall(rb"HTTP/1\.1 5\d\d [^\r]*\r\n(?:[^\r]+\r\n)*", said):
        if not (head.startswith(b"HTTP/1.1 503") and b"retry-after" in head.lower()):
            found.wrong.append(f"{what}: answered with {head[:40]!r}")
    if b"Traceback" in said:
        found.wrong.append(f"{what}: a traceback in the answer")


def idle_connections(target: Target, stop: Any, found: Found) -> None:
    """Opens hundreds of connections, and again when they are closed."""
    kept: list[socket.socket] = []
    while not stop.wait(0.5):
        with suppress(OSError):
            for _ in range(target.many(60)):
                kept.append(_connect(target))
                found.counts["idle connections"] += 1
        while len(kept) > target.many(400):
            kept.pop(0).close()
    for connection in kept:
        connection.close()


def never_reading(target: Target, stop: Any, found: Found) -> None:
    """Asks for the largest files and pages, and reads none of them."""
    rng = random.Random(target.seed)
    kept: list[socket.socket] = []
    steps = f"{_AT}/episodes/1/steps?column=observation%2Fvector&start="
    while not stop.wait(0.5):
        with suppress(OSError):
            for _ in range(target.many(10)):
                connection = _connect(target, 4096)
                kept.append(connection)
                path = rng.choice(["/static/plotly.min.js", f"{steps}{rng.randrange(1000)}"])
                connection.sendall(_head(target, "GET", path, role="learner"))
                found.counts["answers that nobody reads"] += 1
        while len(kept) > target.many(60):
            kept.pop(0).close()
    for connection in kept:
        connection.close()


def floods(target: Target, stop: Any, found: Found) -> None:
    """Asks for the most expensive pages there are, each another one, on many connections at once."""

    def flood(number: int) -> None:
        rng = random.Random(1000 * target.seed + number)
        while not stop.is_set():
            episode = f"{_AT}/episodes/{rng.randrange(EPISODES)}"
            path = rng.choice([
                f"{_AT}/episodes?limit=200&min_return={rng.random()}",
                f"{_AT}/episode-points?limit={rng.randrange(1000, 5000)}",
                f"{episode}/steps?column=observation%2Fvector&column=reward&start={rng.randrange(STEPS)}",
                f"{episode}/strip?column=observation%2Fimage&count=32&width={rng.randrange(200, 257)}&plane={rng.randrange(4)}",
                f"{episode}/priorities?start={rng.randrange(STEPS)}",
                f"{_AT}/columns", f"{_AT}/ages", f"{_AT}/samplers/uniform", "/metrics", "/api/v1/openapi.json",
            ])  # fmt: skip
            answer = ask(target, found, "GET", path, target.hostile["viewer"])
            found.counts[f"floods: {'no answer' if answer is None else answer.status}"] += 1

    threads = [threading.Thread(target=flood, args=(number,)) for number in range(target.many(48))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


HOSTILE: dict[str, Callable[[Target, Any, Found], None]] = {
    "strangers": strangers, "other_sites": other_sites, "slow_heads": slow_heads, "slow_bodies": slow_bodies,
    "endless_chunks": endless_chunks, "half_closed": half_closed, "pipelining": pipelining, "odd_heads": odd_heads,
    "idle_connections": idle_connections, "never_reading": never_reading, "floods": floods,
}  # fmt: skip


def crew(kinds: tuple[str, ...], target: Target, ready: Any, stop: Any, answer: Any) -> None:
    """Runs some kinds of clients at once, in a process of its own, until `stop` is set; releases `ready` for each of them."""
    found = Found()

    def act(kind: str) -> None:
        ready.release()
        try:
            (HONEST | HOSTILE)[kind](target, stop, found)
        except Exception as error:  # a client that is not there any more would be no test
            found.wrong.append(f"the client {kind} itself failed: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=act, args=(kind,)) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answer.put(found)
