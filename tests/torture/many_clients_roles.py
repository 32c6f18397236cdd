"""The processes of `many_clients`: actors, each many clients with a connection of its own, and learners.

Steps say whose they are and in what order: an observation is [client, steps before it, ...] as int32, so that a learner sees a
step that is missing, doubled or somebody else's in any transition, and the parent can add up what is stored of each client.
"""

import bisect
import itertools
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np

import replay_client
from replay_client import ClientConfig, FieldSpec, Signature
from replay_client import connection as connection_module
from replaysvc.codec.header import steps_of

TABLE = "many"
SIGNATURE = Signature(FieldSpec("observation", (8,), np.dtype(np.int32)), FieldSpec("action", (2,), np.dtype(np.float32)))
TICK_S = 0.2  # between two bursts of steps of one client
CLIENT = ClientConfig(reconnect_timeout_s=120.0, buffer_bytes=1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What every client does. steps_per_s: of each; 0: as many as the service takes. episode_steps: of one episode."""

    address: str
    steps_per_s: float
    episode_steps: int
    batches_per_s: float
    seed: int


@dataclass(slots=True)
class ClientCount:
    """What one client saw. Times by the monotonic clock, which all processes of a machine share.

    acknowledged: steps. longest_gap_s: between two acknowledgements, `gap_at_s` is its end. at: (time, acknowledged) at
    every tick or so.
    """

    client: int
    appended: int = 0
    acknowledged: int = 0
    longest_gap_s: float = 0.0
    gap_at_s: float = 0.0
    last_s: float = 0.0
    refusals: int = 0  # calls that failed and were repeated
    errors: list[str] = field(default_factory=list)
    at: list[tuple[float, int]] = field(default_factory=list)

    def until(self, time_s: float) -> int:
        """Returns how many steps were acknowledged by then."""
        place = bisect.bisect_right(self.at, time_s, key=lambda entry: entry[0])
        return self.at[place - 1][1] if place else 0

    def gaps(self) -> list[float]:
        """Returns the seconds between one acknowledgement and the next."""
        return [after - before for (before, _), (after, _) in itertools.pairwise(self.at)]


def own_connections() -> None:
    """From now on each client of this process has a connection of its own: gRPC shares one among equal channels else."""
    connection_module._OPTIONS = (*connection_module._OPTIONS, ("grpc.use_local_subchannel_pool", 1))


def count_acknowledgements(client: Any, count: ClientCount) -> None:
    """Notes in `count` what the service acknowledges to a client's appends."""
    connection, sent = client.connection, {}
    call: Callable[..., Any] = connection.call

    def counting(method: str, request: Any, **options: Any) -> Any:
        if method == "Append":
            sent.update({chunk.sequence: steps_of(chunk.chunk) for chunk in request.chunks})
        try:
            answer = call(method, request, **options)
        except replay_client.ReplayError:
            count.refusals += 1
            raise
        if method in ("Append", "OpenSession"):
            stored = [sequence for sequence in sent if sequence <= answer.last_sequence]
            count.acknowledged += sum(sent.pop(sequence) for sequence in stored)
            now = time.monotonic()
            if stored:
                if now - count.last_s > count.longest_gap_s:
                    count.longest_gap_s, count.gap_at_s = now - count.last_s, now
                count.last_s = now
                count.at.append((now, count.acknowledged))
        return answer

    connection.call = counting


def act(load: Load, client: int, count: ClientCount, start: threading.Event, stop: threading.Event) -> None:
    """Appends steps as one client, in episodes that say how many steps came before them, until it is told to stop."""
    rng = random.Random(f"{load.seed}-{client}")
    try:
        with replay_client.connect(load.address, config=CLIENT) as replay:
            count_acknowledgements(replay, count)
            table = replay.table(TABLE)
            with table.writer(actor=f"client-{client}") as writer:
                start.wait()
                count.last_s = time.monotonic()
                due = count.last_s + rng.random() * TICK_S
                total, action = 0, np.zeros(2, np.float32)
                observation = np.zeros(8, np.int32)
                observation[0] = client
                left = burst(load, rng)
                while not stop.is_set():
                    if total % load.episode_steps == 0:
                        observation[1] = total
                        writer.begin(observation, metadata={"before": total}, policy_version=0)
                    total += 1
                    observation[1] = total
                    writer.append(action, float(total % 1000), observation, truncated=total % load.episode_steps == 0)
                    count.appended = total
                    left -= 1
                    if left <= 0 and load.steps_per_s:
                        left = burst(load, rng)
                        due = max(due + TICK_S, time.monotonic() - TICK_S)  # what was missed is not made up for in a flood
                        stop.wait(max(0.0, due - time.monotonic()))
    except Exception:
        count.errors.append(f"client {client}: {traceback.format_exc()}")


def burst(load: Load, rng: random.Random) -> int:
    """Returns how many steps come at once, `steps_per_s` on average."""
    wanted = load.steps_per_s * TICK_S
    return int(wanted) + (rng.random() < wanted - int(wanted))


def actors(load: Load, clients: range, start: Event, stop: Event, parent: Pipe) -> None:
    """A process with a thread for each of its clients. Sends "ready", and at its end what they counted."""
    own_connections()
    counts = [ClientCount(client) for client in clients]
    begin, end = threading.Event(), threading.Event()
    threads = [threading.Thread(target=act, args=(load, count.client, count, begin, end)) for count in counts]
    for thread in threads:
        thread.start()
    parent.send("ready")
    start.wait()
    begin.set()
    stop.wait()
    end.set()
    for thread in threads:
        thread.join()
    parent.send(counts)


@dataclass(slots=True)
class LearnerCount:
    """What a learner saw. longest_wait_s: for one batch. wrong: transitions that are none."""

    batches: int = 0
    transitions: int = 0
    longest_wait_s: float = 0.0
    wrong: int = 0
    errors: list[str] = field(default_factory=list)


def learner(load: Load, start: Event, stop: Event, parent: Pipe) -> None:
    """A process that samples in a stream, and checks every transition."""
    count = LearnerCount()
    try:
        with replay_client.connect(load.address, config=CLIENT) as replay:
            table = replay.table(TABLE)
            parent.send("ready")
            start.wait()
            while not table.stats().ready and not stop.is_set():
                time.sleep(0.1)
            stream = table.stream(256)
            due = time.monotonic()
            while not stop.is_set():
                asked = time.monotonic()
                batch = next(stream)
                count.longest_wait_s = max(count.longest_wait_s, time.monotonic() - asked)
                now, after = batch.observation, batch.next_observation
                right = (after[:, 0] == now[:, 0]) & (after[:, 1] == now[:, 1] + 1)
                right &= batch.reward == (after[:, 1] % 1000).astype(np.float32)
                count.wrong += int((~right).sum())
                count.batches += 1
                count.transitions += len(batch)
                due = max(due + 1 / load.batches_per_s, time.monotonic() - 1.0)
                time.sleep(max(0.0, due - time.monotonic()))
    except Exception:
        count.errors.append(f"learner: {traceback.format_exc()}")
    parent.send(count)


def deaf_learner(load: Load, start: Event, parent: Pipe) -> None:
    """A process that asks for as many large batches as a stream may, and then never reads again: it stops itself."""
    with replay_client.connect(load.address) as replay:
        table = replay.table(TABLE)
        parent.send("ready")
        start.wait()
        while not table.stats().ready:
            time.sleep(0.1)
        next(table.stream(4096, prefetch=16))
        for _ in range(64):
            connection = table._client.connection
            connection.start_sample(table._request(65_536, replay_client.Transitions(), "uniform", None, None, 0.0), 600.0)
        os.kill(os.getpid(), signal.SIGSTOP)
