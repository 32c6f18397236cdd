"""Where a scenario of network.py plays: a service, a table in it, a bad network before it, those who use it, and the oracle."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import replay_client
from replay_client import Prioritized, TableConfig, Uniform
from replaysvc.config import StoreConfig
from replaysvc.replay import Replay
from replaysvc.writer import Writer
from tests.service.raw import Sink
from tests.torture import kills
from tests.torture.cast import PATIENT, Numbers, steps_of
from tests.torture.oracle import SIGNATURE, Findings, Keeps, Log, Oracle, check_table, rows_of
from tests.torture.proxy import Proxy
from tests.torture.zygote import Served, Zygote

_SMALL = StoreConfig(recent_cache_bytes=4 << 20, faulted_cache_bytes=4 << 20)
_SETTINGS = {"recent_cache_bytes": 4 << 20, "faulted_cache_bytes": 2 << 20, "state_interval_s": 0.3}


class Stage:
    """A service, a table `keep` in it, a network between it and those who use it, and the oracle."""

    def __init__(self, directory: Path, report: Findings, what: str, zygote: Zygote, served: Served, proxy: Proxy) -> None:
        self.directory, self.report, self.what = directory, report, what
        self.zygote, self.served, self.proxy = zygote, served, proxy
        self.troupe = kills.Troupe(zygote, directory / "oracle", proxy.address, report)
        self.oracle = Oracle(directory / "oracle")
        self.client = replay_client.connect(served.address, config=PATIENT)  # not through the network that fails
        self.table: Any = None
        self.capacity: int | None = None

    def make(self, **config: Any) -> None:
        """Makes the table."""
        self.capacity = config.get("capacity_steps")
        samplers = {"uniform": Uniform(), "prioritized": Prioritized()}
        common = {"chunk_steps": 16, "segment_bytes": 1 << 20, "flush_interval_s": 0.2, "samplers": samplers}
        self.table = self.client.create_table("keep", SIGNATURE, TableConfig(**common | config))

    def cast(self, *, actors: int = 4, steps_per_s: float = 800.0, leaves: float = 0.03) -> None:
        """Lets actors, one that repeats itself, and a learner begin."""
        common: dict[str, Any] = {"seed": self.report.seed}
        rate = {"steps_per_s": steps_per_s / (actors + 1)}
        self.troupe.start("act", actors=list(range(actors)), tables=["keep"], leaves=leaves, **rate, **common)
        self.troupe.start("repeat", actor=actors, table="keep", **rate, **common)
        self.troupe.start("learn", learners=1, tables=["keep"], per_s=10.0, **common)

    def acked(self) -> int:
        """Returns how many steps are acknowledged by now."""
        return sum(self.oracle.refresh().acked_of("keep").values())

    def wait_for_acks(self, more: int = 1, timeout_s: float = 90.0) -> float:
        """Waits until `more` steps are acknowledged than are now; returns the seconds that it took."""
        began, wanted = time.monotonic(), self.acked() + more
        while self.acked() < wanted:
            alive = self.troupe.look()
            if not alive or time.monotonic() - began > timeout_s:
                self.report.expect(not alive, f"{self.what}: nothing was acknowledged for {timeout_s:g} s")
                break
            time.sleep(0.02)
        return time.monotonic() - began

    def compare(self, table: Any, *, read: float = 1.0) -> None:
        """Compares the table with the oracle when nobody writes."""
        keeps = Keeps.ALL if self.capacity is None else Keeps.NEWEST
        rng = np.random.default_rng(self.report.seed)
        check_table(
            table, self.oracle, self.report, keeps, where=self.what, quiet=True, rng=rng, read=read, capacity=self.capacity
        )


@contextlib.contextmanager
def on_stage(directory: Path, report: Findings, what: str, **arguments: Any) -> Iterator[Stage]:
    """Gives a stage; afterwards lets everybody come to an end, and compares, also in the store without the service."""
    directory.mkdir()
    with Zygote() as zygote:
        served = Served(zygote, directory / "store", settings=_SETTINGS, **arguments)
        served.restart()
        with Proxy(served.port) as proxy:
            stage = Stage(directory, report, what, zygote, served, proxy)
            with stage.client:
                try:
                    yield stage
                finally:
                    stage.troupe.stop()
                if stage.table is not None:
                    stage.compare(stage.table)
            status = served.end(signal.SIGTERM)
            report.expect(status == 0, f"{what}: the service ended with status {status}: {served.tail()}")
    with Replay(directory / "store", _SMALL) as replay:
        stage.compare(replay.table("keep"), read=0.2)
    report.add("scenarios")


def begin(stage: Stage, writer: Any, actor: int, *, episode: int = 0) -> np.ndarray:
    """Begins an episode of 60 steps and stores 30 of them; returns its observations."""
    log, first = Log(stage.directory / "oracle" / f"actor-{actor}.log"), 60 * episode
    rows = rows_of(actor, episode, np.arange(61), first)
    log.write(kind="intent", table="keep", actor=actor, episode=episode, first=first, length=60)
    writer.begin(rows[0], metadata={"actor": actor, "episode": episode, "first": first})
    for action, reward, after in list(steps_of(rows))[:30]:
        writer.append(action, reward, after)
    writer.flush(60.0)
    log.write(kind="ack", table="keep", actor=actor, upto=first + 30)
    return rows


def finish(stage: Stage, writer: Any, rows: np.ndarray, actor: int, *, episode: int = 0) -> None:
    """Stores the other steps."""
    for t, (action, reward, after) in list(enumerate(steps_of(rows)))[30:]:
        writer.append(action, reward, after, terminated=t == 59)
    writer.flush(60.0)
    log = Log(stage.directory / "oracle" / f"actor-{actor}.log")
    log.write(kind="ack", table="keep", actor=actor, upto=60 * (episode + 1))


def chunks_of_one_actor(episodes: int, stage: Stage) -> list[bytes]:
    """Returns the chunks of one session, and writes down what is in them."""
    log = Log(stage.directory / "oracle" / "actor-0.log")
    numbers, sink, rng = Numbers(0, ["keep"], log), Sink(), np.random.default_rng(stage.report.seed)
    with Writer(SIGNATURE, stage.table.config, sink, clock=time.monotonic) as writer:
        for _ in range(episodes):
            length = int(rng.integers(1, 100))
            rows, names = numbers.intend("keep", length)
            writer.begin(rows[0], metadata=names)
            for t, (action, reward, after) in enumerate(steps_of(rows)):
                writer.append(action, reward, after, terminated=t == length - 1)
    return sink.chunks
