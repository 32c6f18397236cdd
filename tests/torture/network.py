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
from collections.abc import Callable
from pathlib import Path

import numpy as np

import replay_client
from replaysvc.errors import ReplayError, SequenceError
from tests.service.raw import Raw
from tests.torture import kills
from tests.torture.oracle import Findings, Log
from tests.torture.report import progress_bar
from tests.torture.stage import Stage, begin, chunks_of_one_actor, finish, on_stage

_LEASE_S = 3.0
_FEW = 3000  # steps, of a table from which what an actor stored is soon gone
_YEAR_S = 365.25 * 86_400


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
    with on_stage(directory, report, "lost answers") as stage:
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
    with on_stage(directory, report, "frozen network") as stage:
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


def half_open(directory: Path, report: Findings, *, within_s: float = 50.0) -> None:
    """The server's side of each connection is gone, and nobody tells the clients: they find out by themselves."""
    with on_stage(directory, report, "half-open connections") as stage:
        stage.make()
        stage.cast()
        stage.wait_for_acks(200)
        before = stage.oracle.refresh().acked_of("keep")
        stage.proxy.half_open()
        _note_recovery(stage, "half-open connections", 15.0)
        began = time.monotonic()
        while (now := stage.oracle.refresh().acked_of("keep")) and any(now[actor] <= before[actor] for actor in before):
            if not stage.troupe.look() or time.monotonic() - began > within_s:
                break
            time.sleep(0.05)
        _note(stage, "half-open connections of every actor", time.monotonic() - began, within_s)


def _note_recovery(stage: Stage, what: str, within_s: float) -> None:
    _note(stage, what, stage.wait_for_acks(), within_s)


def _note(stage: Stage, what: str, took: float, within_s: float) -> None:
    stage.report.figures[f"seconds to recover from {what}"] = round(took, 1)
    stage.report.expect(took <= within_s, f"{what}: acknowledgements came back after {took:.1f} s")


def slow_link(directory: Path, report: Findings, *, seconds: float = 10.0) -> None:
    """Each piece takes 50 ms longer, and little passes at once."""
    with on_stage(directory, report, "slow link") as stage:
        stage.make()
        stage.proxy.delay_s, stage.proxy.bytes_per_s = 0.05, 300_000.0
        stage.cast(steps_per_s=300.0)
        stage.wait_for_acks(200)
        time.sleep(seconds)
        stage.wait_for_acks(50)


def cut_connections(directory: Path, report: Findings, *, cuts: int = 40) -> None:
    """All connections are cut, by RST and by FIN, again and again."""
    rng = np.random.default_rng(report.seed)
    with on_stage(directory, report, "cut connections") as stage:
        stage.make()
        stage.cast()
        stage.wait_for_acks()
        for number in range(cuts):
            time.sleep(float(rng.uniform(0.02, 0.4)))
            stage.proxy.cut(reset=bool(number % 2))
        report.add("times that all connections were cut", cuts)


def two_senders(directory: Path, report: Findings, *, rounds: int = 200, broken: str = "") -> None:
    """Two connections send the appends of one session, in any order and again: whoever comes first stores each chunk."""
    with on_stage(directory, report, "two senders of one session", broken=broken) as stage:
        stage.make()
        chunks, log = chunks_of_one_actor(60, stage), Log(directory / "oracle" / "actor-0.log")
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
                except ReplayError as error:
                    report.expect(False, f"two senders: chunks from {start} were refused: {error}")
                    break
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


# -- T12: pauses and clocks -------------------------------------------------------------------------------------------


def server_paused(directory: Path, report: Findings, *, pause_s: float = 8.0) -> None:
    """The service stands still for longer than a lease: nobody counts as gone for that, since it could hear of nobody.

    What actors said meanwhile comes late, too: else the service would hear of them before it looks at the leases.
    """
    with on_stage(directory, report, "paused service") as stage:
        stage.make(lease_s=_LEASE_S)
        stage.cast(leaves=0.0)
        with replay_client.connect(stage.proxy.address) as client, contextlib.ExitStack() as stack:
            table = client.table("keep")
            writers = [stack.enter_context(table.writer(actor=f"idle-{number}")) for number in range(3)]
            rows = [begin(stage, writer, 50 + number) for number, writer in enumerate(writers)]
            stage.proxy.freeze()
            stage.served.send(signal.SIGSTOP)
            time.sleep(pause_s)
            stage.served.send(signal.SIGCONT)
            time.sleep(_LEASE_S / 3)
            stage.proxy.thaw()
            time.sleep(2 * _LEASE_S)
            lost = stage.table.stats().lost_actor_episodes_total
            report.expect(lost == 0, f"paused service: {lost} episodes of actors that live were ended")
            for number, (writer, steps) in enumerate(zip(writers, rows, strict=True)):
                finish(stage, writer, steps, 50 + number)
        report.add("episodes that outlived a pause of the service", len(writers))


def actor_paused(directory: Path, report: Findings, *, pause_s: float = 8.0) -> None:
    """An actor stands still for longer than its lease: its episode is ended, and it learns of that when it comes back."""
    with on_stage(directory, report, "paused actor") as stage:
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
    with on_stage(directory, report, "clock that jumps", jump=str(jump)) as stage:
        stage.make(lease_s=60.0, capacity_steps=_FEW)
        stage.cast(steps_per_s=3000.0, leaves=0.0)
        with stage.table.writer(actor="between") as between, stage.table.writer(actor="within") as within:
            finish(stage, between, begin(stage, between, 51), 51)
            rows = begin(stage, within, 50)
            jump.write_text(str(years[0] * _YEAR_S))
            stage.wait_for_acks(2 * _FEW)
            finish(stage, within, rows, 50)
            for years_off in (*years[1:], 0.0):
                jump.write_text(str(years_off * _YEAR_S))
                stage.served.end(signal.SIGKILL)
                stage.served.restart()
                stage.wait_for_acks(2 * _FEW)
            finish(stage, between, begin(stage, between, 51, episode=1), 51, episode=1)
        lost = stage.table.stats().lost_actor_episodes_total
        report.expect(lost == 0, f"clock that jumps: {lost} episodes were ended")
        report.add("jumps of the clock", len(years) + 1)


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
    report = Findings("network", options.seed, part=set(options.only) != set(SCENARIOS))
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
