"""Who uses the service while it is killed: actors, learners and an operator, each in processes of their own.

Each runs until SIGTERM; then it finishes what it is doing, and ends with status 0. Any exception that the client raises ends
its process with status 1: nobody is to see one. What was done is written to a file as a report.
"""

import contextlib
import hashlib
import json
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import replay_client
from replay_client import ClientConfig, Sequences, TableConfig, Transitions
from replaysvc.errors import AlreadyExistsError, CapacityError, UnavailableError, WaitTimeoutError, WriterFencedError
from replaysvc.v1 import replay_pb2 as pb
from replaysvc.writer import Writer
from tests.service.raw import Sink
from tests.torture.oracle import SIGNATURE, BatchCheck, Findings, Log, Oracle, actions_of, rewards_of, rows_of

N_STEP, GAMMA = 3, 0.9
PATIENT = ClientConfig(reconnect_timeout_s=60.0)
_LONGEST = 120  # steps of an episode
_BLUNT_CHUNK = 16


class _Running:
    """Threads of one process, which all end at SIGTERM, or when one of them fails."""

    def __init__(self, report: Findings, out: Path) -> None:
        self._report, self._out = report, out
        self.stop = threading.Event()
        self._failed = False
        signal.signal(signal.SIGTERM, lambda *_: self.stop.set())

    def run(self, *bodies: Callable[[], None]) -> int:
        """Runs the bodies in threads; returns the exit status when all have ended."""
        threads = [threading.Thread(target=self._guarded, args=(body,)) for body in bodies]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            self.stop.wait(0.1)
            for thread in threads:
                thread.join(0.05)
        self._out.write_text(json.dumps(self._report.as_json()))
        return int(self._failed)

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException:
            traceback.print_exc()
            self._failed = True
            self.stop.set()


class _Pace:
    """Keeps a thread to so many steps a second, on average."""

    def __init__(self, steps_per_s: float, stop: threading.Event) -> None:
        self._per_s, self._stop = steps_per_s, stop
        self._next = time.monotonic()

    def wait(self, steps: int) -> None:
        self._next = max(self._next + steps / self._per_s, time.monotonic() - 1.0)
        self._stop.wait(max(0.0, self._next - time.monotonic()))


class Numbers:
    """What an actor has written to its tables so far: the next episode, and the next serial number of each table."""

    def __init__(self, actor: int, tables: list[str], log: Log) -> None:
        self.actor, self._log = actor, log
        self.upto = dict.fromkeys(tables, 0)
        self._episode = 0

    def intend(self, table: str, length: int) -> tuple[np.ndarray, dict[str, int]]:
        """Writes down an episode that is about to be appended; returns its observations [length + 1, 64] and metadata."""
        names = {"actor": self.actor, "episode": self._episode, "first": self.upto[table]}
        self._log.write(kind="intent", table=table, length=length, **names)
        self._episode += 1
        self.upto[table] += length
        return rows_of(self.actor, names["episode"], np.arange(length + 1), names["first"]), names

    def acknowledge(self, table: str, upto: int) -> None:
        """Writes down that all before serial number `upto` is durable."""
        self._log.write(kind="ack", table=table, actor=self.actor, upto=upto)


def steps_of(rows: np.ndarray) -> Iterator[tuple[int, np.float32, np.ndarray]]:
    """Yields what `append` takes for each step of an episode."""
    return zip(actions_of(rows).tolist(), rewards_of(rows), rows[1:], strict=False)


def act(
    *, address: str, directory: str, actors: list[int], tables: list[str], seed: int, steps_per_s: float, out: str,
    leaves: float = 0.03,
) -> int:  # fmt: skip
    """Runs actors, one thread each with a client of its own, that write episodes to tables chosen at random.

    They flush in the middle of an episode, at its end, or not; of the episodes a share, `leaves`, is left without an end.
    """
    report = Findings("act", seed)
    running = _Running(report, Path(out))

    def body(actor: int) -> None:
        rng = np.random.default_rng((seed, actor))
        log = Log(Path(directory) / f"actor-{actor}.log")
        numbers, pace = Numbers(actor, tables, log), _Pace(steps_per_s, running.stop)
        with replay_client.connect(address, config=PATIENT) as client:
            writers = {name: client.table(name).writer(actor=f"actor-{actor}") for name in tables}
            while not running.stop.is_set():
                table = str(rng.choice(tables))
                length = int(rng.integers(1, _LONGEST))
                report.add("episodes written")
                report.add("steps written", length)
                write_episode(writers[table], numbers, table, length, rng, leaves=leaves)
                pace.wait(length)
            for table, writer in writers.items():
                writer.close(60.0)
                numbers.acknowledge(table, numbers.upto[table])

    return running.run(*(lambda actor=actor: body(actor) for actor in actors))  # type: ignore[misc]


def write_episode(
    writer: Any, numbers: Numbers, table: str, length: int, rng: np.random.Generator, *, flushes: float = 1.0,
    leaves: float = 0.03,
) -> None:  # fmt: skip
    """Writes one episode of `length` steps, flushing here and there, `flushes` times on average."""
    rows, names = numbers.intend(table, length)
    leave = rng.random() < leaves
    at = set(np.flatnonzero(rng.random(length) < flushes / length).tolist())
    writer.begin(rows[0], metadata=names)
    for t, (action, reward, after) in enumerate(steps_of(rows)):
        last = t == length - 1 and not leave
        writer.append(action, reward, after, terminated=last and bool(length % 2), truncated=last and not length % 2)
        if t in at:
            writer.flush(60.0)
            numbers.acknowledge(table, names["first"] + t + 1)
    if leave:
        writer.abandon()


def repeat(*, address: str, directory: str, actor: int, table: str, seed: int, steps_per_s: float, out: str) -> int:
    """Runs an actor that never asks what is stored: after each failure it sends again what is acknowledged, too."""
    report = Findings("repeat", seed)
    running = _Running(report, Path(out))

    def body() -> None:
        rng = np.random.default_rng((seed, actor))
        log = Log(Path(directory) / f"actor-{actor}.log")
        numbers, pace = Numbers(actor, [table], log), _Pace(steps_per_s, running.stop)
        sink, session, sent, skipped = Sink(), rng.bytes(16), 0, 0
        before: deque[list[bytes]] = deque(maxlen=2)  # the chunks of the last episodes, which are acknowledged
        with (
            replay_client.connect(address, config=PATIENT) as client,
            Writer(SIGNATURE, TableConfig(chunk_steps=_BLUNT_CHUNK), sink, clock=time.monotonic) as writer,
        ):
            while not running.stop.is_set():
                length = int(rng.integers(1, _LONGEST))
                rows, names = numbers.intend(table, length)
                writer.begin(rows[0], metadata=names)
                for t, (action, reward, after) in enumerate(steps_of(rows)):
                    writer.append(action, reward, after, terminated=t == length - 1)
                chunks, sink.chunks = list(sink.chunks), []
                again = min(len(before), int(rng.random() < 0.1))
                while True:
                    head = [chunk for episode in list(before)[len(before) - again :] for chunk in episode]
                    pairs = [pb.AppendChunk(sequence=sent - len(head) + i, chunk=c) for i, c in enumerate(head + chunks)]
                    request = pb.AppendRequest(
                        table=table, session_id=session, actor=f"actor-{actor}", chunks=pairs, urgent=True
                    )
                    try:
                        last = client.connection.call("Append", request, timeout_s=10.0).last_sequence
                        break
                    except (UnavailableError, WaitTimeoutError, CapacityError):
                        again = len(before)
                        report.add("blunt retries")
                        running.stop.wait(0.05)
                sent += len(chunks)
                report.add("acknowledged chunks sent again", len(head))
                report.expect(last == sent - 1, f"chunk {sent - 1} was sent, {last} acknowledged")
                if head:
                    now = client.table(table).stats().duplicate_chunks_total  # since the server was started
                    report.add("duplicates that the server skipped", now - skipped if now >= skipped else now)
                    skipped = now
                before.append(chunks)
                numbers.acknowledge(table, numbers.upto[table])
                pace.wait(length)

    return running.run(body)


def learn(*, address: str, directory: str, learners: int, tables: list[str], seed: int, per_s: float, out: str) -> int:
    """Runs learners that sample transitions and sequences, check each row, and set priorities."""
    report = Findings("learn", seed)
    running = _Running(report, Path(out))

    def body(number: int) -> None:
        rng = np.random.default_rng((seed, 1000 + number))
        oracle = Oracle(Path(directory))
        with replay_client.connect(address, config=PATIENT) as client:
            handles = {name: (client.table(name), BatchCheck(report)) for name in tables}
            while not running.stop.wait(1.0 / per_s):
                table, check = handles[str(rng.choice(tables))]
                sampler = str(rng.choice(["uniform", "prioritized"]))
                if rng.random() < 0.7:
                    batch = table.sample(64, Transitions(n_step=N_STEP, gamma=GAMMA), sampler=sampler, timeout_s=60.0)
                    check.transitions(batch, N_STEP, GAMMA)
                else:
                    batch = table.sample(8, Sequences(length=12), sampler=sampler, timeout_s=60.0)
                    check.sequences(batch)
                counts = table.update_priorities(batch.positions, rng.random(len(batch)) + 0.01)
                report.expect(sum(counts) == len(batch), f"{counts} of {len(batch)} priorities")
                report.add("batches checked")
                if rng.random() < 0.1:
                    wanted = oracle.refresh().params["policy"][1]
                    if wanted >= 0:
                        _check_params(client, wanted, report)

    return running.run(*(lambda number=number: body(number) for number in range(learners)))  # type: ignore[misc]


def _check_params(client: Any, wanted: int, report: Findings) -> None:
    found = client.get_params("policy")
    report.expect(found.version >= wanted, f"params: version {wanted} is acknowledged, {found.version} is stored")
    report.expect(found.data == params_of(found.version), f"params: the data of version {found.version} are others")


def params_of(version: int) -> bytes:
    """Returns the parameters of a version, 40 KiB."""
    return hashlib.sha256(b"%d" % version).digest() * 1280


def operate(*, address: str, directory: str, keep: str, seed: int, per_s: float, snapshots: int, out: str) -> int:
    """Runs the operator: deletes episodes, puts parameters, makes and deletes tables, makes snapshots."""
    report = Findings("operate", seed)
    running = _Running(report, Path(out))

    def body() -> None:
        rng = np.random.default_rng((seed, 2000))
        log, oracle = Log(Path(directory) / f"operator-{keep}.log"), Oracle(Path(directory))
        version, made, left = oracle.refresh().params["policy"][0], 0, snapshots
        with replay_client.connect(address, config=PATIENT) as client:
            todo: list[str] = []
            while not running.stop.wait(1.0 / per_s):
                todo = todo or rng.permutation(["delete", "delete", "delete", "params", "table", "snapshot"]).tolist()
                what = todo[0]
                if what == "delete" and not _delete_some(client.table(keep), log, rng, report):
                    continue  # not enough is there yet
                todo.pop(0)
                if what == "params":
                    version += 1
                    log.write(kind="params", name="policy", version=version, durable=0)
                    client.put_params("policy", params_of(version), version=version)
                    log.write(kind="params", name="policy", version=version, durable=1)
                elif what == "table":
                    _make_and_delete(client, f"side-{made % 3}", log, report)
                    made += 1
                elif what == "snapshot" and left:
                    left -= 1
                    _snapshot(client, f"{keep}-{left}", keep, log, oracle)
                    report.add("snapshots")

    return running.run(body)


def _delete_some(table: Any, log: Log, rng: np.random.Generator, report: Findings) -> bool:
    """Deletes most of some neighbouring episodes, so that segments come to be worth compacting; False: there are too few."""
    records = table.episodes(limit=400, closed_only=True)
    if len(records) < 15:
        return False
    start = int(rng.integers(max(1, len(records) - 50)))
    chosen = [record for record in records[start : start + 50] if rng.random() < 0.8]
    ids = [record.episode_id for record in chosen]
    log.write(
        kind="deleting", table=table.name, ids=ids,
        names=[(record.metadata["actor"], record.metadata["episode"]) for record in chosen],
    )  # fmt: skip
    table.delete_episodes(ids)
    log.write(kind="deleted", table=table.name, ids=ids)
    report.add("episodes deleted", len(ids))
    return True


def _make_and_delete(client: Any, name: str, log: Log, report: Findings) -> None:
    log.write(kind="table", table=name, gone=None)
    table = client.create_table(name, SIGNATURE, TableConfig(chunk_steps=8))
    log.write(kind="table", table=name, gone=False)
    rows = rows_of(0, 0, np.arange(31), 0)
    with table.writer() as writer:
        writer.begin(rows[0])
        for t, (action, reward, after) in enumerate(steps_of(rows)):
            writer.append(action, reward, after, terminated=t == 29)
        writer.flush(60.0)
    stats = table.stats()
    report.expect((stats.steps, stats.episodes) == (30, 1), f"{name}: {stats.steps} steps, {stats.episodes} episodes")
    log.write(kind="table", table=name, gone=None)
    client.delete_table(name)
    log.write(kind="table", table=name, gone=True)
    report.add("tables made and deleted")


def _snapshot(client: Any, name: str, keep: str, log: Log, oracle: Oracle) -> None:
    acked = oracle.refresh().acked_of(keep)
    with contextlib.suppress(AlreadyExistsError):  # the answer of an earlier attempt was lost: documented
        client.snapshot(name)
    log.write(kind="snapshot", table=keep, name=name, acked=acked)


def stay(*, address: str, directory: str, actor: int, table: str, told: str, seed: int, out: str) -> int:
    """Runs an actor whose episode goes on and on; when it is told that it may not go on, it notes that and begins another."""
    report = Findings("stay", seed)
    running = _Running(report, Path(out))

    def body() -> None:
        numbers = Numbers(actor, [table], Log(Path(directory) / f"actor-{actor}.log"))
        with replay_client.connect(address, config=PATIENT) as client:
            while not running.stop.is_set():
                try:
                    with client.table(table).writer(actor=f"actor-{actor}") as writer:
                        _go_on(writer, numbers, table, running.stop)
                except WriterFencedError as error:
                    Path(told).write_text(type(error).__name__)

    return running.run(body)


def _go_on(writer: Any, numbers: Numbers, table: str, stop: threading.Event) -> None:
    """Appends to one long episode, a step each 50 ms, until it is stopped."""
    start = numbers.upto[table]
    rows, names = numbers.intend(table, 2000)
    numbers.upto[table] = start
    writer.begin(rows[0], metadata=names)
    for action, reward, after in steps_of(rows):
        if stop.wait(0.05):
            break
        writer.append(action, reward, after)
        writer.flush(60.0)
        numbers.upto[table] += 1
        numbers.acknowledge(table, numbers.upto[table])
