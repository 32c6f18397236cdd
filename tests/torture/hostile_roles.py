"""Who takes part in `hostile`: good clients that time their calls, and hostile ones, each kind in its own way.

Every function runs in a process of its own until `stop` is set. Hostile clients hold a valid token, unless that is their point.
"""

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

import replay_client
from replaysvc import Episodes, FieldSpec, Sequences, Signature, TableConfig, Transitions
from replaysvc.errors import ReplayError
from replaysvc.v1 import replay_pb2 as pb
from tests.service import http2

TABLE = "t"
SIGNATURE = Signature(FieldSpec("observation", (32, 32), np.uint8), FieldSpec("action", (), np.int64))
METHODS = (
    "Append", "Sample", "TableStats", "OpenSession", "ReadEpisode", "ListEpisodes", "UpdatePriorities", "PutParams",
    "GetParams", "CreateTable", "DeleteEpisodes",
)  # fmt: skip
_PACE_S = 0.05  # between two calls of one good client
_STEPS = 20


@dataclass
class Timings:
    """What good clients saw: seconds of each call by kind, with when it began, and the errors that reached their users."""

    calls: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {"append": [], "sample": []})
    errors: list[str] = field(default_factory=list)

    def between(self, kind: str, start: float, stop: float) -> np.ndarray[Any, Any]:
        """Returns the seconds of calls that began within [start, stop)."""
        return np.array([took for began, took in self.calls[kind] if start <= began < stop])


def make_table(address: str, secret: str) -> None:
    """Makes the table and writes some episodes, one of 5,000 steps among them."""
    rng = np.random.default_rng(0)
    with replay_client.connect(address, token=secret) as client:
        table = client.create_table(TABLE, SIGNATURE, TableConfig(capacity_steps=60_000))
        with table.writer("first") as writer:
            for length in (5000, *([200] * 20)):
                _write(writer, rng.integers(0, 256, (32, 32), np.uint8), length)


def _write(writer: Any, frame: Any, length: int) -> None:
    writer.begin(frame)
    for t in range(length):
        writer.append(t, 1.0, np.roll(frame, t, 0), truncated=t == length - 1)


def good(address: str, secret: str, writers: int, learners: int, ready: Any, stop: Any, answer: Any) -> None:
    """Runs writers and learners, each a client of its own, at a gentle pace; releases `ready` once for each that has begun."""
    timings, lock = Timings(), threading.Lock()

    def repeat(kind: str, call: Callable[[], None]) -> None:
        call()
        ready.release()
        while not stop.wait(_PACE_S):
            began = time.monotonic()
            try:
                call()
            except ReplayError as error:
                with lock:
                    timings.errors.append(f"{kind}: {type(error).__name__}: {error}")
                continue
            with lock:
                timings.calls[kind].append((began, time.monotonic() - began))

    def write(number: int) -> None:
        rng = np.random.default_rng(number)
        with replay_client.connect(address, token=secret) as client, client.table(TABLE).writer(f"good {number}") as writer:

            def episode() -> None:
                _write(writer, rng.integers(0, 256, (32, 32), np.uint8), _STEPS)
                writer.flush(timeout_s=60)

            repeat("append", episode)

    def learn() -> None:
        with replay_client.connect(address, token=secret) as client:
            table = client.table(TABLE)
            repeat("sample", lambda: _checked(table.sample(64)))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    threads += [threading.Thread(target=learn) for _ in range(learners)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answer.put(timings)


def _checked(batch: Any) -> None:
    assert len(batch) == 64
    assert (batch.reward == 1.0).all()


def spin(stop: Any, answer: Any) -> None:
    """Uses a core, as hostile clients do, and nothing of the service."""
    number = 0
    while number % 10_000 or not stop.is_set():
        number += 1
    answer.put(Counter())


@dataclass(frozen=True)
class Target:
    """What hostile clients need to know, and how hard they try: `scale` 1.0 is all they can think of."""

    address: str
    secret: str
    seed: int
    scale: float = 1.0

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def many(self, number: int) -> int:
        return max(1, round(number * self.scale))

    def peer(self) -> http2.Peer:
        peer = http2.Peer(self.port)
        peer.socket.settimeout(2.0)
        return peer

    @property
    def shown(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.secret}"}


def without_body(target: Target, stop: Any, counts: Counter[str]) -> None:
    """Begins calls of every method and sends no body, on several connections."""
    rng = random.Random(target.seed)
    while not stop.is_set():
        with suppress(OSError):
            peers = [target.peer() for _ in range(target.many(8))]
            for _ in range(30):
                for peer in peers:
                    peer.begin(http2.SERVICE + rng.choice(METHODS), **target.shown)
                    counts["calls without a body"] += 1
            stop.wait(2.0)
            for peer in peers:
                peer.close()


def dripping(target: Target, stop: Any, counts: Counter[str]) -> None:
    """Sends the bodies of appends of 64 MiB at a byte a second."""
    peers: list[tuple[http2.Peer, int]] = []
    while not stop.is_set():
        with suppress(OSError):
            while len(peers) < target.many(16):
                peer = target.peer()
                stream = peer.begin(http2.SERVICE + "Append", replaysvc_bytes=64 << 20, **target.shown)
                peer.send(stream, b"\0" + (1 << 20).to_bytes(4, "big"))
                peers.append((peer, stream))
                counts["bodies that drip"] += 1
        for peer, stream in list(peers):
            try:
                peer.send(stream, b"x")
            except OSError:
                peers.remove((peer, stream))
        stop.wait(1.0)


def huge_requests(target: Target, stop: Any, counts: Counter[str]) -> None:
    """Asks for the largest batches that are legal, one after the other, on one connection."""
    windows = [
        (200, Sequences(length=5000, n_step=10)), (104, Transitions(n_step=10_000)), (30_000, Transitions()),
        (13_000, Sequences(length=80)), (250, Episodes(max_steps=200)), (500, Transitions(stack=60)),
    ]  # fmt: skip
    with replay_client.connect(target.address, token=target.secret) as client:
        table = client.table(TABLE)
        number = 0
        while not stop.is_set():
            batch_size, what = windows[number % len(windows)]
            number += 1
            try:
                table.sample(max(1, round(batch_size * min(1.0, target.scale))), what)
                counts["huge batches"] += 1
            except ReplayError as error:
                counts[f"huge batches refused with {type(error).__name__}"] += 1
            stop.wait(0.5)


def never_reading(target: Target, stop: Any, counts: Counter[str]) -> None:
    """Asks for batches of 60 MB and reads none of their answers."""
    request = pb.SampleRequest(table=TABLE, batch_size=29_000, transitions=pb.Transitions(n_step=1, gamma=0.9))
    while not stop.is_set():
        with suppress(OSError):
            peers = [target.peer() for _ in range(target.many(8))]
            for _ in range(4):
                for peer in peers:
                    peer.call(http2.FRAMES + "Sample", request, **target.shown)
                    counts["answers that nobody reads"] += 1
                stop.wait(1.0)
            stop.wait(5.0)
            for peer in peers:
                peer.close()


def garbage(target: Target, stop: Any, counts: Counter[str]) -> None:
    """Sends random bytes, some of them behind the greeting of HTTP/2."""
    rng = random.Random(target.seed)
    while not stop.wait(0.1):
        with suppress(OSError), socket.create_connection(("127.0.0.1", target.port), timeout=2.0) as connection:
            if rng.random() < 0.5:
                connection.sendall(http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0))
            connection.sendall(rng.randbytes(rng.randrange(1, 5000)))
            counts["connections of garbage"] += 1


def silent_connections(target: Target, stop: Any, counts: Counter[str]) -> None:
    """Opens thousands of connections and says nothing, or only hello; and opens them again when they are closed."""
    kept: list[socket.socket] = []
    while not stop.wait(1.0):  # after the first second, so that the other hostile clients are in
        with suppress(OSError):
            for number in range(target.many(200)):
                connection = socket.create_connection(("127.0.0.1", target.port), timeout=2.0)
                kept.append(connection)
                counts["silent connections"] += 1
                if number % 2:
                    connection.sendall(http2.PREFACE + http2.frame(http2.SETTINGS, 0, 0))
        while len(kept) > target.many(3000):
            kept.pop(0).close()


def corrupt_requests(target: Target, stop: Any, counts: Counter[str]) -> None:
    """Sends requests that are no protobuf messages, or no sensible ones, to every method."""
    rng = random.Random(target.seed)
    metadata = tuple(target.shown.items())
    with grpc.insecure_channel(target.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        while not stop.wait(0.02):
            method = rng.choice(METHODS)
            body = rng.choice([rng.randbytes(rng.randrange(1, 2000)), b"\x22\x00" * 200_000, b"[" * 1000, b"\x0a\x01t" * 1000])
            try:
                channel.stream_unary(http2.SERVICE + method)(iter([body]), timeout=5.0, metadata=metadata)
            except grpc.RpcError as error:
                counts[f"corrupt requests: {error.code().name}"] += 1


def wrong_tokens(target: Target, stop: Any, counts: Counter[str]) -> None:
    """Calls with tokens that are none, and sends 1 MiB with each call."""
    with grpc.insecure_channel(target.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        while not stop.wait(0.02):
            try:
                channel.unary_unary(http2.SERVICE + "Append")(
                    bytes(1 << 20), timeout=5.0, metadata=(("authorization", f"Bearer {random.random()}"),)
                )
            except grpc.RpcError as error:
                counts[f"wrong tokens: {error.code().name}"] += 1


HOSTILE: dict[str, Callable[[Target, Any, Counter[str]], None]] = {
    "without_body": without_body, "dripping": dripping, "huge_requests": huge_requests, "never_reading": never_reading,
    "garbage": garbage, "silent_connections": silent_connections, "corrupt_requests": corrupt_requests,
    "wrong_tokens": wrong_tokens,
}  # fmt: skip


def hostile(kinds: tuple[str, ...], target: Target, stop: Any, answer: Any) -> None:
    """Runs some kinds of hostile clients at once; one that fails by itself is started again."""
    counts: Counter[str] = Counter()

    def again(kind: str) -> None:
        while not stop.is_set():
            try:
                HOSTILE[kind](target, stop, counts)
            except (OSError, ReplayError, grpc.RpcError) as error:
                counts[f"{kind} began anew after {type(error).__name__}"] += 1
                stop.wait(0.5)

    threads = [threading.Thread(target=again, args=(kind,)) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answer.put(counts)
