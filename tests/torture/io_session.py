"""A session of a store in which one call to the system fails, or all from one on; and a look at what is left, without faults.

`python -m tests.torture.io_session`, in the environment of `shim.environment()`, takes orders (a JSON object a line) on
standard input. Each session, and each look, is a fork of this process, so nothing of one is left for the next, and none can
take this one along.
"""

import json
import logging
import os
import random
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from replaysvc import TableConfig
from replaysvc.errors import ReplayError
from replaysvc.options import Limiter
from replaysvc.replay import Replay
from replaysvc.writer import Writer
from tests.torture.powerloss_facts import CHUNK_STEPS, SIGNATURE, Facts, weights, write_steps
from tests.torture.powerloss_images import Found, check_image
from tests.torture.powerloss_life import CONFIG, small_segments
from tests.torture.shim import Fault, Shim

T = TypeVar("T")
_TRIES = 3  # of a call that fails, before the session does something else
_PATIENCE_S = 60  # for one session


class Session:
    """What an application does, and goes on doing when something fails: it tries again, or opens the store anew."""

    def __init__(self, directory: Path, note: Callable[[dict[str, Any]], None]) -> None:
        self._directory, self._write_mark, self.facts = directory, note, Facts()
        self.violations: list[str] = []
        self.failed: Counter[str] = Counter()
        self._replay: Replay | None = None

    def _note(self, what: str, *, done: bool, **fact: Any) -> None:
        mark = {"what": what, "done": done, **fact}
        self._write_mark(mark)
        self.facts.take(mark)

    def _try(self, what: str, call: Callable[[], T], tries: int = _TRIES) -> tuple[bool, T | None]:
        """Calls; again if that fails. Returns whether it succeeded, and what it returned."""
        for _ in range(tries):
            try:
                return True, call()
            except ReplayError as error:
                self.failed[f"{what}: {error.name}"] += 1
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                self.violations.append(f"{what} raised {error!r} ({where.name}), which is no ReplayError")
                return False, None
        return False, None

    def play(self) -> None:
        """Does all that a store can be asked for."""
        if not self._open():
            return
        for name in ("full", "gone"):
            self._make(name)
        for number in range(9):
            self._write("full", number, 3 + number % 6)
        self._put_params(1)
        self._limit()
        self._delete([0, 1, 3, 4, 6])
        self._put_params(2)
        self._snapshot()
        self._write("gone", 100, 2)
        self._drop("gone")
        for number in range(9, 12):
            self._write("full", number, 7)
        self._delete([2, 9])
        self._close()
        if self._open():
            self._write("full", 12, 6)
            self._close()

    def _open(self) -> bool:
        done, self._replay = self._try("open", lambda: Replay(self._directory / "store", CONFIG))
        return done

    def _close(self) -> None:
        replay, self._replay = self._replay, None
        if replay is not None:
            done, wrong = self._try("reading", lambda: self.facts.compare(replay, may_be_fenced=True))
            if not done:
                self.violations.append(f"what is stored could not be read before the store was closed: {dict(self.failed)}")
            self.violations += [f"before the store was closed: {what}" for what in wrong or ()]
            self._try("close", replay.close, 1)

    def _again(self) -> bool:
        """Closes the store and opens it, as an operator would who sees that it takes no more."""
        self._close()
        return self._open()

    def _make(self, name: str) -> None:
        if self._replay is None:
            return
        config = TableConfig(chunk_steps=CHUNK_STEPS, flush_interval_s=3600)
        replay = self._replay
        self._note("make", done=False, table=name, capacity=None)
        done, _ = self._try("create_table", lambda: replay.create_table(name, SIGNATURE, config, exist_ok=True))
        if done:
            self._note("make", done=True, table=name, capacity=None)

    def _write(self, name: str, number: int, steps: int) -> None:
        """Writes an episode and waits until it is durable; once the table takes no more, opens the store and writes another."""
        for attempt in range(2):
            if self._replay is None or name not in self._replay.tables():
                return
            if self._write_once(name, number + 1000 * attempt, steps) or not self._again():
                return

    def _write_once(self, name: str, number: int, steps: int) -> bool:
        assert self._replay is not None
        table = self._replay.table(name)
        self._note("steps", done=False, table=name, episode=number, stop=steps, end=True)
        writer = table.writer(actor="a")
        done = self._append(writer, number, steps)
        if done:
            done, _ = self._try("flush", lambda: writer.flush(timeout_s=10))
        if done:
            fact = {"next_position": table.stats().next_position, "newest_id": table.episodes(limit=1)[0].episode_id}
            self._note("durable", done=True, table=name, episodes=[(number, steps, True)], **fact)
        self._try("writer.close", lambda: writer.close(timeout_s=10), 1)
        return done

    def _append(self, writer: Writer, number: int, steps: int) -> bool:
        for t in range(steps):  # one by one: a step that was refused can be appended again
            done, _ = self._try("append", lambda t=t: write_steps(writer, number, t, t + 1, end=t == steps - 1))
            if not done:
                return False
        return True

    def _put_params(self, version: int) -> None:
        if self._replay is None:
            return
        replay = self._replay
        self._note("params", done=False, name="policy", version=version)
        done, _ = self._try("put_params", lambda: replay.put_params("policy", weights(version), version=version))
        if done:
            self._note("params", done=True, name="policy", version=version)

    def _limit(self) -> None:
        if self._replay is not None and "full" in self._replay.tables():
            table = self._replay.table("full")
            self._try("set_limiter", lambda: table.set_limiter(Limiter(min_steps=2)))

    def _delete(self, numbers: list[int]) -> None:
        if self._replay is None or "full" not in self._replay.tables():
            return
        table = self._replay.table("full")
        done, records = self._try("episodes", lambda: table.episodes(limit=1000, closed_only=True))
        there = {int(record.metadata["number"]): record.episode_id for record in records or ()}
        numbers = [number for number in numbers if number in there]
        if numbers:
            self._note("delete", done=False, table="full", episodes=numbers)
            done, _ = self._try("delete_episodes", lambda: table.delete_episodes([there[number] for number in numbers]))
            if done:
                self._note("delete", done=True, table="full", episodes=numbers)

    def _snapshot(self) -> None:
        if self._replay is None:
            return
        replay = self._replay
        for attempt in range(2):
            name = f"snapshot{attempt}"
            self._note("snapshot", done=False, name=name)
            done, _ = self._try("snapshot", lambda name=name: replay.snapshot(self._directory / name), 1)
            if done:
                self._note("snapshot", done=True, name=name)
                return

    def _drop(self, name: str) -> None:
        if self._replay is None or name not in self._replay.tables():
            return
        replay = self._replay
        self._note("drop", done=False, table=name)
        done, _ = self._try("delete_table", lambda: replay.delete_table(name), 1)
        if done:
            self._note("drop", done=True, table=name)


def _forked(work: Callable[[int], None]) -> tuple[dict[str, Any] | None, str]:
    """Runs `work` in a fork; returns what it wrote to its descriptor, as JSON, and how the process ended if not well."""
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.close(reader)
            signal.alarm(_PATIENCE_S)
            work(writer)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        told = stream.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status == -signal.SIGALRM:
        return None, f"hung for {_PATIENCE_S} s"
    if status:
        return None, f"ended with {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return json.loads(told), ""


def run(shim: Shim, place: Path, fault: Fault, nth: int, *, sticky: bool) -> dict[str, Any]:
    """Plays a session of which the `nth` call of a kind fails, and looks at what is left; returns what was found."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    marks = place.with_name(f"{place.name}.marks")
    marks.unlink(missing_ok=True)

    def play(told: int) -> None:
        logging.disable()  # what fails is logged, of course
        with marks.open("a", buffering=1) as stream:
            session = Session(place, lambda mark: print(json.dumps(mark), file=stream, flush=True))
            shim.watch(place)
            shim.arm(fault, nth, sticky=sticky)
            session.play()
            fired, eligible = shim.fired, shim.eligible
            shim.stop()
        answer = {"fired": fired, "eligible": eligible, "violations": session.violations, "failed": session.failed}
        os.write(told, json.dumps(answer).encode())

    def look(told: int) -> None:
        facts, found = Facts(), Found([], Counter())
        for line in marks.read_text().splitlines():
            facts.take(json.loads(line))
        check_image(place, facts, random.Random(nth), facts.take, found)
        os.write(told, json.dumps({"violations": found.violations}).encode())

    played, how = _forked(play)
    looked, how_looked = _forked(look)
    answer = played or {"fired": 1, "eligible": 0, "failed": {}, "violations": [f"the session {how}"]}
    if looked is None:
        answer["violations"].append(f"afterwards the process {how_looked}")
    else:
        answer["violations"] += [f"afterwards: {what}" for what in looked["violations"]]
    shutil.rmtree(place)
    marks.unlink(missing_ok=True)
    return answer


def main() -> None:
    """Takes orders: {place, fault, nth, sticky}."""
    small_segments()
    shim = Shim()
    for line in sys.stdin:
        order = json.loads(line)
        answer = run(shim, Path(order["place"]), Fault(order["fault"]), order["nth"], sticky=order["sticky"])
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
