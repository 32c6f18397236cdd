"""Bad networks, restarts under load, processes that stand still, and clocks that jump, with the oracle of kills.py.

    python -m tests.torture.network [--count N] [--seed S] [--only NAME ...]

Each scenario plays with real actors, learners and an operator unless it says otherwise; none of them may see an exception, what
was acknowledged is there, and nothing is there twice. `--count` is how often each is played.
"""

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import replay_client
from replay_client import Prioritized, TableConfig, Uniform
from replaysvc.config import StoreConfig
from replaysvc.errors import SequenceError
from replaysvc.replay import Replay
from tests.service.raw import Raw, Sink
from tests.torture import kills
from tests.torture.cast import PATIENT, steps_of
from tests.torture.oracle import SIGNATURE, Findings, Keeps, Log, Oracle, check_table, rows_of
from tests.torture.proxy import Proxy
from tests.torture.report import progress_bar
from tests.torture.zygote import Served, Zygote

_SMALL = StoreConfig(recent_cache_bytes=4 << 20, faulted_cache_bytes=4 << 20)
_SETTINGS = {"recent_cache_bytes": 4 << 20, "faulted_cache_bytes": 2 << 20, "state_interval_s": 0.3}
_LEASE_S = 2.0
_FEW = 3000  # steps, of a table from which what an actor stored is soon gone
_YEAR_S = 365.25 * 86_400


class _Stage:
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
def _stage(directory: Path, report: Findings, what: str, **arguments: Any) -> Iterator[_Stage]:
    """Gives a stage; afterwards lets everybody come to an end, and compares, also in the store without the service."""
    directory.mkdir()
    with Zygote() as zygote:
        served = Served(zygote, directory / "store", settings=_SETTINGS, **arguments)
        served.restart()
        with Proxy(served.port) as proxy:
            stage = _Stage(directory, report, what, zygote, served, proxy)
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


# -- T9: restarts under load ------------------------------------------------------------------------------------------


def killed_under_load(directory: Path, report: Findings, *, restarts: int = 10, clients: int = 32) -> None:
    """SIGKILL and a new start, again and again, with so many clients at work."""
    _restarts(directory, report, signal.SIGKILL, restarts, clients)


def stopped_under_load(directory: Path, report: Findings, *, restarts: int = 10, clients: int = 32) -> None:
    """The same with SIGTERM: the service ends calls that are under way, and saves its state."""
    _restarts(directory, report, signal.SIGTERM, restarts, clients)


def _restarts(directory: Path, report: Findings, number: int, restarts: int, clients: int) -> None:
    directory.mkdir()
    kills.run(directory, report, count=restarts, actors=clients - 1, steps_per_s=2000.0, number=number)
    report.add("scenarios")


# -- T10: the network -------------------------------------------------------------------------------------------------


def lost_answers(directory: Path, report: Findings, *, cuts: int = 40) -> None:
    """Appends that are committed, and whose acknowledgement is lost: the connection is cut before it has passed."""
    with _stage(directory, report, "lost answers") as stage:
        stage.make()
        stage.cast()
        stage.wait_for_acks()
        for number in range(cuts):
            stage.proxy.lose_answer(0.25, reset=bool(number % 2))
            stage.wait_for_acks(30)
        lost = stage.proxy.lost_answers
        report.expect(lost >= cuts * 3 // 4, f"lost answers: {lost} of {cuts} were lost")
        report.add("answers lost after the commit", lost)


def frozen(directory: Path, report: Findings, *, seconds: tuple[float, ...] = (5.0, 20.0)) -> None:
    """Nothing passes for a while, then all of it, or the connections are cut."""
    with _stage(directory, report, "frozen network") as stage:
        stage.make()
        stage.cast()
        for number, pause_s in enumerate(seconds):
            stage.wait_for_acks(200)
            stage.proxy.freeze()
            time.sleep(pause_s)
            if number % 2:
                stage.proxy.cut()
            stage.proxy.thaw()
            _note_recovery(stage, f"{pause_s:g} s without a network", 10.0)


def half_open(directory: Path, report: Findings, *, within_s: float = 60.0) -> None:
    """The server's side of each connection is gone, and nobody tells the clients: they find out by themselves."""
    with _stage(directory, report, "half-open connections") as stage:
        stage.make()
        stage.cast()
        stage.wait_for_acks(200)
        stage.proxy.half_open()
        _note_recovery(stage, "half-open connections", within_s)


def _note_recovery(stage: _Stage, what: str, within_s: float) -> None:
    took = stage.wait_for_acks()
    stage.report.figures[f"seconds to recover from {what}"] = round(took, 1)
    stage.report.expect(took <= within_s, f"{what}: acknowledgements came back after {took:.1f} s")


def slow_link(directory: Path, report: Findings, *, seconds: float = 10.0) -> None:
    """Each piece takes 50 ms longer, and little passes at once."""
    with _stage(directory, report, "slow link") as stage:
        stage.make()
        stage.proxy.delay_s, stage.proxy.bytes_per_s = 0.05, 300_000.0
        stage.cast(steps_per_s=300.0)
        stage.wait_for_acks(200)
        time.sleep(seconds)
        stage.wait_for_acks(50)


def cut_connections(directory: Path, report: Findings, *, cuts: int = 40) -> None:
    """All connections are cut, by RST and by FIN, again and again."""
    rng = np.random.default_rng(report.seed)
    with _stage(directory, report, "cut connections") as stage:
        stage.make()
        stage.cast()
        stage.wait_for_acks()
        for number in range(cuts):
            time.sleep(float(rng.uniform(0.02, 0.4)))
            stage.proxy.cut(reset=bool(number % 2))
        report.add("times that all connections were cut", cuts)


def two_senders(directory: Path, report: Findings, *, rounds: int = 200) -> None:
    """Two connections send the appends of one session, in any order and again: whoever comes first stores each chunk."""
    with _stage(directory, report, "two senders of one session") as stage:
        stage.make()
        chunks, log = _chunks_of_one_actor(60, stage), Log(directory / "oracle" / "actor-0.log")
        stored, lock = [0], threading.Lock()

        def send(number: int) -> None:
            rng = np.random.default_rng((report.seed, number))
            raw = Raw(stage.proxy.address)
            for _ in range(rounds):
                start = int(np.clip(stored[0] + rng.integers(-8, 4), 0, len(chunks) - 1))
                piece = chunks[start : start + int(rng.integers(1, 12))]
                try:
                    last = raw.append(piece, start, actor="actor-0", table="keep").last_sequence
                except SequenceError:  # a gap: refused, as it must be
                    report.add("gaps refused")
                    continue
                with lock:
                    stored[0] = max(stored[0], last + 1)
                    sent = start + len(piece) - 1
                    report.expect(last >= sent, f"chunk {sent} was sent, {last} acknowledged")
            raw.close()

        threads = [threading.Thread(target=send, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        raw = Raw(stage.served.address)
        for start in range(0, len(chunks), 50):  # and in the end everything once more
            raw.append(chunks[start : start + 50], start, actor="actor-0", table="keep")
        raw.close()
        upto = stage.oracle.refresh().written["keep"][0].intended
        log.write(kind="ack", table="keep", actor=0, upto=upto)
        skipped = stage.table.stats().duplicate_chunks_total
        report.expect(skipped > 0, "two senders: no chunk came twice")
        report.add("duplicates that the server skipped", skipped)


def _chunks_of_one_actor(episodes: int, stage: _Stage) -> list[bytes]:
    """Returns the chunks of one session, and writes down what is in them."""
    from replaysvc.writer import Writer
    from tests.torture.cast import Numbers

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


# -- T12: pauses and clocks -------------------------------------------------------------------------------------------


def server_paused(directory: Path, report: Findings, *, pause_s: float = 6.0) -> None:
    """The service stands still for longer than a lease: nobody counts as gone for that, since it could hear of nobody."""
    with _stage(directory, report, "paused service") as stage:
        stage.make(lease_s=_LEASE_S)
        stage.cast(leaves=0.0)
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(stage.table.writer(actor=f"idle-{number}")) for number in range(3)]
            rows = [_begin(stage, writer, 50 + number) for number, writer in enumerate(writers)]
            stage.served.send(signal.SIGSTOP)
            time.sleep(pause_s)
            stage.served.send(signal.SIGCONT)
            time.sleep(2 * _LEASE_S)
            lost = stage.table.stats().lost_actor_episodes_total
            report.expect(lost == 0, f"paused service: {lost} episodes of actors that live were ended")
            for number, (writer, steps) in enumerate(zip(writers, rows, strict=True)):
                _finish(stage, writer, steps, 50 + number)
        report.add("episodes that outlived a pause of the service", len(writers))


def actor_paused(directory: Path, report: Findings, *, pause_s: float = 6.0) -> None:
    """An actor stands still for longer than its lease: its episode is ended, and it learns of that when it comes back."""
    with _stage(directory, report, "paused actor") as stage:
        stage.make(lease_s=_LEASE_S)
        told = directory / "told.json"
        pid = stage.troupe.start("stay", actor=7, table="keep", told=str(told), seed=report.seed)
        while stage.acked() < 20:
            time.sleep(0.02)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(pause_s)
        records = stage.table.episodes()
        lost = [record for record in records if record.end_reason == "lost_actor"]
        good = len(records) == len(lost) == 1 and lost[0].truncated and lost[0].closed and lost[0].length >= 20
        report.expect(good, f"paused actor: expected one episode that ended as lost, found {records}")
        count = stage.table.stats().lost_actor_episodes_total
        report.expect(count == 1, f"paused actor: {count} lost episodes are counted")
        os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 30
        while not told.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        if report.expect(told.exists(), "paused actor: it came back, and nobody told it that its episode was ended"):
            report.expect(told.read_text() == "WriterFencedError", f"paused actor: it got {told.read_text()}")
        stage.wait_for_acks(20)  # of its next episode
        report.add("lost episodes", count)


def clock_jumps(directory: Path, report: Findings, *, years: tuple[float, ...] = (1.0, -1.0)) -> None:
    """The clock that people read jumps by years, forth and back; leases, sessions and order go by another.

    Two actors are silent meanwhile, while others fill segments until none is left of those with their chunks: one has an open
    episode, with which it goes on; the other begins its next episode when the service has also been started again.
    """
    jump = directory.with_suffix(".jump")
    jump.write_text("0")
    with _stage(directory, report, "clock that jumps", jump=str(jump)) as stage:
        stage.make(lease_s=60.0, capacity_steps=_FEW)
        stage.cast(steps_per_s=3000.0, leaves=0.0)
        with stage.table.writer(actor="between") as between, stage.table.writer(actor="within") as within:
            _finish(stage, between, _begin(stage, between, 51), 51)
            rows = _begin(stage, within, 50)
            jump.write_text(str(years[0] * _YEAR_S))
            stage.wait_for_acks(2 * _FEW)
            _finish(stage, within, rows, 50)
            for years_off in (*years[1:], 0.0):
                jump.write_text(str(years_off * _YEAR_S))
                stage.served.end(signal.SIGKILL)
                stage.served.restart()
                stage.wait_for_acks(2 * _FEW)
            _finish(stage, between, _begin(stage, between, 51, episode=1), 51, episode=1)
        lost = stage.table.stats().lost_actor_episodes_total
        report.expect(lost == 0, f"clock that jumps: {lost} episodes were ended")
        report.add("jumps of the clock", len(years) + 1)


def _begin(stage: _Stage, writer: Any, actor: int, *, episode: int = 0) -> np.ndarray:
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


def _finish(stage: _Stage, writer: Any, rows: np.ndarray, actor: int, *, episode: int = 0) -> None:
    """Stores the other steps."""
    for t, (action, reward, after) in list(enumerate(steps_of(rows)))[30:]:
        writer.append(action, reward, after, terminated=t == 59)
    writer.flush(60.0)
    log = Log(stage.directory / "oracle" / f"actor-{actor}.log")
    log.write(kind="ack", table="keep", actor=actor, upto=60 * (episode + 1))


SCENARIOS: dict[str, Callable[..., None]] = {
    scenario.__name__: scenario
    for scenario in (
        killed_under_load, stopped_under_load, lost_answers, cut_connections, frozen, half_open, slow_link, two_senders,
        server_paused, actor_paused, clock_jumps,
    )
}  # fmt: skip


def main() -> int:
    """Runs what the command line asks for; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1, help="how often each scenario is played")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=sorted(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--directory", type=Path, help="where to work, kept afterwards; a temporary one if left out")
    options = parser.parse_args()
    report = Findings("network", options.seed)
    todo = [(name, number) for number in range(options.count) for name in options.only]
    with kills.scratch(options.directory) as directory, progress_bar(len(todo), "scenarios") as advance:
        for name, number in todo:
            began = time.monotonic()
            try:
                SCENARIOS[name](directory / f"{name}-{number}", report)
            except Exception as error:
                report.expect(False, f"{name}: ended with {type(error).__name__}: {error}")
            report.figures[f"seconds of {name}"] = round(time.monotonic() - began, 1)
            advance(1, name)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
