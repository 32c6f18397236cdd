"""The service ended at each of the store's crash points while it is used: at its first visit there, its second, its last.

One session of a client comes to every point. The server is started again as soon as it is gone, and the client is to notice
nothing. What was acknowledged is then looked for by the oracle of kills.py. Points that no such session
comes to are those of tools, which are ended there, and of damage, for which a chunk is damaged. The list is the store's own: a
new point is a violation until something here comes to it.
"""

import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import replay_client
from replay_client import Prioritized, TableConfig, Transitions, Uniform
from replaysvc.config import StoreConfig
from replaysvc.errors import AlreadyExistsError
from replaysvc.maintenance.restore import restore
from replaysvc.replay import Replay
from replaysvc.storage import CRASH_POINTS
from tests.torture.cast import PATIENT, Numbers, params_of, steps_of, write_episode
from tests.torture.crash_server import CrashingSystem
from tests.torture.oracle import SIGNATURE, BatchCheck, Findings, Keeps, Log, Oracle, check_table, rows_of
from tests.torture.report import progress_bar
from tests.torture.zygote import Served, Zygote

_SMALL = StoreConfig(recent_cache_bytes=4 << 20, faulted_cache_bytes=4 << 20)
_SETTINGS = {
    "recent_cache_bytes": 4 << 20, "faulted_cache_bytes": 2 << 20, "state_interval_s": 0.05, "commit_interval_s": 0.01,
}  # fmt: skip
_CAPACITY = 1500
_EPISODES, _STEPS = 42, 100  # of each table: two full segments of 1 MiB, and more
_TRIES = 3


def drive_points(directory: Path, report: Findings, *, visits: int, points: tuple[str, ...] = CRASH_POINTS) -> None:
    """Ends the service at each of `points`, at `visits` of first, second and last time; compares with the oracle each time.

    visits 0: in one session, at the first time that it comes to each.
    """
    with Zygote() as zygote:
        play = _Play(zygote, directory / "whole", report)
        play.run()
        whole = play.seen
        tools = {name for name in points if name.startswith(("restore.", "quarantine."))}
        for name in points:
            driven = whole[name] > 0 or name in tools
            report.expect(driven, f"crash point {name}: nothing in tests/torture/points.py comes to it")
        todo = [(name, n) for name in points if name not in tools for n in _chosen(whole[name], visits, report.seed, name)]
        if not visits:
            again = _Play(zygote, directory / "again", report, every=True)
            again.run()
            missed = [name for name in points if name not in tools and name not in again.ended_at]
            report.expect(not missed, f"crash points {missed}: the session with an end at each did not come to them")
            report.add("ends at a crash point", len(again.ended_at))
        with progress_bar(len(todo) + len(tools), "points") as advance:
            for name, visit in todo:
                _end_at(zygote, directory / f"{name}-{visit}", report, name, visit)
                advance(1, name)
            for name in sorted(tools):
                if name.startswith("quarantine."):
                    _end_at_damage(zygote, directory / name, report, name)
                else:
                    _end_restore_at(zygote, directory, directory / "whole" / "snapshots" / "copy", report, name, play.oracle)
                advance(1, name)


def _chosen(seen: int, visits: int, seed: int, name: str) -> list[int]:
    """Returns at which visits of a point to end: `visits` of the first, the second and the last, by the seed."""
    all_of_them = sorted({1, 2, seen} & set(range(1, seen + 1)))
    rng = np.random.default_rng([seed, *name.encode()])
    return sorted(rng.permutation(all_of_them)[:visits].tolist())


def _end_at(zygote: Zygote, directory: Path, report: Findings, point: str, visit: int) -> None:
    """Plays the session with a service that ends at a point."""
    for attempt in range(_TRIES):
        play = _Play(zygote, directory.with_name(f"{directory.name}.{attempt}"), report, point, visit)
        play.run()
        if play.hit:
            report.add("ends at a crash point")
            return
        # how often a point is come to depends on how appends fall into commits: the last visit may come earlier
        report.expect(play.seen[point] > 0, f"crash point {point}: this session did not come to it")
        visit = max(1, min(visit, play.seen[point]))
    report.expect(False, f"crash point {point}: visit {visit} was not met in {_TRIES} sessions")


class _Play:
    """One session of a client with a service, which may end meanwhile: once, or with `every` at each point in turn."""

    def __init__(
        self, zygote: Zygote, directory: Path, report: Findings, point: str = "", visit: int = 0, *, every: bool = False
    ) -> None:
        self._report, self._point, self._visit, self._every = report, point, visit, every
        self._where = f"{point} ({visit})" if point else "every point" if every else "session without an end"
        self._directory, self._visits = directory, directory / "visits.json"
        for made in (directory, directory / "snapshots", directory / "oracle"):
            made.mkdir()
        settings = _SETTINGS | {"snapshot_dir": str(directory / "snapshots")}
        self._served = Served(zygote, directory / "store", settings=settings)
        self.oracle = Oracle(directory / "oracle")
        self.seen: Counter[str] = Counter()  # of a session in which the service did not end
        self.hit = False
        self._gone: set[int] = set()  # episodes that were deleted before the snapshot
        self._known = directory / "known"  # the points at which the service ended, with `every`
        self._known.touch()

    @property
    def ended_at(self) -> list[str]:
        """Returns at which points the service ended, with `every`."""
        return self._known.read_text().split()

    def run(self) -> None:
        """Plays the session, ends the service well, and compares."""
        self._start(point=self._point, visit=self._visit, visits=str(self._visits))
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(over,))
        watch.start()
        try:
            self._session()
        except Exception as error:
            self._report.expect(False, f"{self._where}: a client got {type(error).__name__}: {error}")
        finally:
            over.set()
            watch.join()
        while (status := self._served.end(signal.SIGTERM)) != 0:
            ended_at_a_point = self._is_end(status)
            self._report.expect(ended_at_a_point, f"{self._where}: ended with {status}: {self._served.tail()}")
            if not (self._every and ended_at_a_point):
                break
            self._start()
        if self._visits.exists():
            self.seen.update(json.loads(self._visits.read_text()))
        try:
            self._compare()
        except Exception as error:
            self._report.expect(False, f"{self._where}: comparing ended with {type(error).__name__}: {error}")

    def _start(self, **arguments: Any) -> None:
        arguments |= {"known": str(self._known)} if self._every else {}
        while (status := self._served.start(**arguments)) is not None and self._is_end(status):
            arguments = {"known": str(self._known)} if self._every else {}
        listens = status is None
        self._report.expect(listens, f"{self._where}: the service does not start, status {status}: {self._served.tail()}")

    def _is_end(self, status: int) -> bool:
        """Notes the end at the point, which may come once, or with `every` at each point."""
        expected = status == -signal.SIGKILL and (self._every or (bool(self._point) and not self.hit))
        self.hit = self.hit or expected
        return expected

    def _watch(self, over: threading.Event) -> None:
        """Starts the service again when it is gone."""
        while not over.wait(0.005):
            status = self._served.poll()
            if status is not None:
                self._report.expect(self._is_end(status), f"{self._where}: ended with {status}: {self._served.tail()}")
                self._start()

    def _session(self) -> None:
        """Comes to every point, most of them several times; writes down what is acknowledged."""
        log = Log(self._directory / "oracle" / "operator.log")
        common: dict[str, Any] = {"chunk_steps": 25, "segment_bytes": 1 << 20, "flush_interval_s": 0.05}
        samplers = {"uniform": Uniform(), "prioritized": Prioritized()}
        with replay_client.connect(self._served.address, config=PATIENT) as client:
            log.write(kind="table", table="side", gone=None)
            keep = client.create_table("keep", SIGNATURE, TableConfig(samplers=samplers, **common))
            ring = client.create_table("ring", SIGNATURE, TableConfig(capacity_steps=_CAPACITY, samplers=samplers, **common))
            side = client.create_table("side", SIGNATURE, TableConfig(**common))
            self._write(side, 2, 5)
            for number, table in enumerate((keep, ring)):
                self._write(table, number, _EPISODES)
            for version in range(3):
                log.write(kind="params", name="policy", version=version, durable=0)
                client.put_params("policy", params_of(version), version=version)
                log.write(kind="params", name="policy", version=version, durable=1)
            batch = keep.sample(256, sampler="prioritized", timeout_s=60)
            keep.update_priorities(batch.positions, np.full(256, 2.0))
            self._delete(keep, log, range(0, 18))
            self._delete(keep, log, range(4, 20))
            self._write(keep, 8, 42)
            self._delete(keep, log, range(6, 46))  # little is left of neighbours: they are merged
            self._snapshot(client)
            client.delete_table("side")
            log.write(kind="table", table="side", gone=True)
            self._write(keep, 3, 10)
            for more in range(4, 8):  # what was about to happen when the service ended need not come again by itself
                wanted = {f"{what}.{how}" for what in ("compact", "merge") for how in ("built", "renamed")}
                if not self._every or wanted <= set(self.ended_at):
                    break
                self._write(keep, more, 40)
                self._delete(keep, log, range(35))

    def _write(self, table: Any, actor: int, episodes: int) -> None:
        """Writes episodes as an actor of the cast does."""
        log = Log(self._directory / "oracle" / f"actor-{actor}.log")
        numbers, rng = Numbers(actor, [table.name], log), np.random.default_rng(actor)
        with table.writer(actor=f"actor-{actor}") as writer:
            for _ in range(episodes):
                write_episode(writer, numbers, table.name, _STEPS, rng, flushes=0.15)
            writer.flush(60.0)
            numbers.acknowledge(table.name, numbers.upto[table.name])

    def _delete(self, table: Any, log: Log, chosen: range) -> None:
        """Deletes closed episodes by their place, the oldest first."""
        records = table.episodes(limit=1000, closed_only=True)[::-1]
        records = [records[i] for i in chosen]
        names = [(record.metadata["actor"], record.metadata["episode"]) for record in records]
        ids = [record.episode_id for record in records]
        log.write(kind="deleting", table=table.name, ids=ids, names=names)
        table.delete_episodes(ids)
        log.write(kind="deleted", table=table.name, ids=ids)

    def _snapshot(self, client: Any) -> None:
        self._gone = set(self.oracle.refresh().deleted["keep"])
        try:
            client.snapshot("copy")
        except AlreadyExistsError:
            may_be = self._point == "snapshot.renamed" or self._every
            self._report.expect(may_be, f"{self._where}: there is a snapshot that nobody made")

    def _compare(self) -> None:
        """Opens what is left without a service: everything acknowledged is there, and there is nothing besides."""
        rng, store = np.random.default_rng(0), self._directory / "store"
        with Replay(store, _SMALL) as replay:
            self._report.expect(replay.tables() == ["keep", "ring"], f"{self._where}: there are tables {replay.tables()}")
            for name, keeps, capacity in (("keep", Keeps.ALL, None), ("ring", Keeps.NEWEST, _CAPACITY)):
                check_table(
                    replay.table(name), self.oracle, self._report, keeps, where=f"{self._where}, {name}", quiet=True, rng=rng,
                    read=0.3, capacity=capacity,
                )  # fmt: skip
            found = replay.get_params("policy")
            self._report.expect(found == (2, params_of(2)), f"{self._where}: version {found and found.version} of the params")
        for name in ("tmp", "trash", "quarantine"):
            left = os.listdir(store / name)
            self._report.expect(not left, f"{self._where}: {name} holds {left}")
        with Replay(self._directory / "snapshots" / "copy", _SMALL) as replay:
            where, table = f"{self._where}, snapshot", replay.table("keep")
            check_table(table, self.oracle, self._report, Keeps.ALL, where=where, rng=rng, read=0.1, acked={}, earlier=True)
            back = self._gone & {record.episode_id for record in table.episodes(limit=1000)}
            self._report.expect(not back, f"{where}: episodes that were deleted before are in it: {sorted(back)[:5]}")


def _end_at_damage(zygote: Zygote, directory: Path, report: Findings, point: str) -> None:
    """Ends the service while it sets a damaged chunk aside: what is whole stays, what is damaged is never given out."""
    directory.mkdir()
    served = Served(zygote, directory / "store", settings=_SETTINGS)
    served.restart()
    with replay_client.connect(served.address, config=PATIENT) as client:
        table = client.create_table("keep", SIGNATURE, TableConfig(chunk_steps=25))
        with table.writer() as writer:
            for episode in range(3):
                rows = rows_of(0, episode, np.arange(51), 0)
                writer.begin(rows[0])
                for t, (action, reward, after) in enumerate(steps_of(rows)):
                    writer.append(action, reward, after, terminated=t == 49)
        served.end(signal.SIGTERM)
        _damage(directory / "store", episode_id=1)
        served.start(point=point, visit=1)
        died = threading.Thread(target=_revive, args=(served, report, point))
        died.start()
        check, deadline = BatchCheck(report), time.monotonic() + 30
        while not table.stats().quarantined_chunks and time.monotonic() < deadline:
            check.transitions(table.sample(64, Transitions(gamma=0.99)), 1, 0.99)
        died.join()
        for episode in (0, 2):
            whole = np.array_equal(table.read_episode(episode)["observation"], rows_of(0, episode, np.arange(51), 0))
            report.expect(whole, f"{point}: episode {episode} is not what was written")
        report.expect(
            table.stats().quarantined_chunks == 1, f"{point}: {table.stats().quarantined_chunks} chunks are set aside"
        )
    served.end(signal.SIGTERM)
    copies = os.listdir(directory / "store" / "quarantine")
    report.expect(len(copies) == 1, f"{point}: the quarantine holds {copies}")
    report.add("ends at a crash point")


def _damage(store: Path, *, episode_id: int) -> None:
    """Flips a bit of the first chunk of an episode, on the disk."""
    with Replay(store, _SMALL) as replay:
        chunk = next(iter(replay.engine("keep").episode_chunks(episode_id, 0, None)))[0]
    for path in (store / "tables" / "keep").glob("seg-*/data.mdb"):
        data = bytearray(path.read_bytes())
        at = data.find(chunk)
        if at >= 0:
            data[at + len(chunk) // 2] ^= 1
            path.write_bytes(data)


def _revive(served: Served, report: Findings, point: str) -> None:
    """Waits for the service to end at its point, and starts it again."""
    deadline = time.monotonic() + 30
    while (status := served.poll()) is None and time.monotonic() < deadline:
        time.sleep(0.005)
    if report.expect(status == -signal.SIGKILL, f"{point}: the service did not come to it, status {status}"):
        served.restart()


def restore_until(*, source: str, target: str, point: str) -> None:
    """Restores a snapshot in a process that ends at a point."""
    restore(source, target, verify=True, system=CrashingSystem(point, 1))


def _end_restore_at(zygote: Zygote, directory: Path, source: Path, report: Findings, point: str, oracle: Oracle) -> None:
    """Ends a restore at a point: what stands at the target is whole, or nothing does, and then another one succeeds."""
    target = directory / f"{point}-target"
    made = ("tests.torture.points:restore_until", directory / f"{point}.log")
    pid = zygote.start(made[0], made[1], source=str(source), target=str(target), point=point)
    status = zygote.wait(pid)
    report.expect(status == -signal.SIGKILL, f"{point}: a restore ended with {status}: {made[1].read_text()}")
    if not target.exists():
        restore(source, target, verify=True)
    with Replay(target, _SMALL) as replay:
        check_table(
            replay.table("keep"), oracle, report, Keeps.ALL, where=f"{point}, restored", rng=np.random.default_rng(0), acked={}
        )
    report.add("ends at a crash point")
