"""The life of a store under the shim: tables, writers, removal, deletion, compaction, parameters, states, snapshots, restarts.

`python -m tests.torture.powerloss_life DIRECTORY LOG SEED PHASE PHASES ACTIONS SABOTAGE`, in the environment of
`shim.environment()`: one process of it. All but the last end in the middle of something; the next one goes on from the log.
"""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb

from replaysvc import StoreConfig, TableConfig
from replaysvc.errors import NotFoundError, ReplayError
from replaysvc.options import Limiter
from replaysvc.replay import EmbeddedTable, Replay
from replaysvc.storage import System
from replaysvc.writer import Writer
from tests.torture.powerloss_disk import MARK, read_log
from tests.torture.powerloss_facts import CHUNK_STEPS, SIGNATURE, Facts, pick, weights, write_steps
from tests.torture.shim import Fault, Shim, environment

SEGMENT_BYTES = 1 << 17  # about seven chunks
CONFIG = StoreConfig(
    recent_cache_bytes=1 << 20, faulted_cache_bytes=1 << 20, commit_interval_s=0, queue_bytes=8 << 20, state_interval_s=3600,
    disk_reserve_bytes=1 << 20, scrub_bytes_per_s=0,
)  # fmt: skip
CAPACITIES: dict[str, int | None] = {"all": None, "ring": 60, "sparse": None}  # of tables; a store has `sparse` and another
PHASES = 3
SABOTAGES = ("fsync_directory", "fsync_file", "write_file", "lmdb", "everything")
"""Syncs that can be left out, to see that it is noticed: of the product's, one kind each; and all that the shim sees."""
FSYNC_FAILS = "fsync fails"
"""In the place of a sabotage: one fsync of each process returns EIO, and the service is started again. Nothing may be lost."""


def small_segments() -> None:
    """Makes segments of this process as small as tests need them: smaller than a configuration may say."""
    TableConfig.full_segment_bytes = property(lambda self: SEGMENT_BYTES)  # type: ignore[method-assign, assignment]


class Ending(System):
    """Ends the process at the `left`th crash point; leaves out the syncs that `sabotage` names."""

    def __init__(self, left: int, sabotage: str, shim: Shim) -> None:
        self._left, self._shim = left, shim
        if sabotage in ("fsync_directory", "fsync_file"):
            setattr(self, sabotage, lambda path: None)
        if sabotage == "write_file":
            self.write_file = Path.write_bytes  # type: ignore[method-assign, assignment]
        if sabotage == "lmdb":
            really = lmdb.open
            lmdb.open = lambda *arguments, **options: really(*arguments, sync=False, **options)

    def crashpoint(self, name: str) -> None:
        self._shim.mark(what="at", point=name)
        self._left -= 1
        if not self._left:
            os._exit(0)


class Life:
    """One process of a store's life."""

    def __init__(
        self, directory: Path, names: list[str], facts: Facts, chance: random.Random, shim: Shim, system: System
    ) -> None:
        self._directory, self._names, self._facts, self._chance = directory, names, facts, chance
        self._shim, self._system = shim, system
        self._writers: dict[tuple[str, int], Writer] = {}
        self._open: dict[tuple[str, int], tuple[int, int]] = {}  # (episode, steps so far) of each writer that has one open
        self._unflushed: dict[tuple[str, int], dict[int, tuple[int, bool]]] = {}
        self._replay = Replay(directory / "store", CONFIG, system=system)

        for name in self._replay.tables():  # a writer that asks learns that this is stored, and does not send it again
            found = self._table(name).episodes(limit=1000)
            episodes = [(int(record.metadata["number"]), record.length, record.terminated) for record in found]
            self._note_durable(name, episodes)

    def _note(self, what: str, *, done: bool, **fact: Any) -> None:
        mark = {"what": what, "done": done, **fact}
        self._shim.mark(**mark)
        self._facts.take(mark)

    def play(self, actions: int) -> None:
        """Does as many things, each of a kind drawn by chance, and closes the store."""
        for name in self._names:
            self._make(name, CAPACITIES[name])
        kinds = {
            self._write: 20, self._flush: 12, self._delete: 5, self._put_params: 2, self._limit: 1, self._make_and_drop: 1,
            self._snapshot: 1, self._reopen: 1, self._thin_out: 1,
        }  # fmt: skip
        plan = self._chance.choices(list(kinds), list(kinds.values()), k=actions)
        for action in [*plan, *kinds]:
            action()
        self._close()

    def _make(self, name: str, capacity: int | None) -> None:
        if name not in self._replay.tables():
            self._note("make", done=False, table=name, capacity=capacity)
            self._replay.create_table(name, SIGNATURE, _table_config(capacity))
        self._note("make", done=True, table=name, capacity=capacity)

    def _table(self, name: str) -> EmbeddedTable:
        return self._replay.table(name)

    def _write(self) -> None:
        self._write_to(self._chance.choice(self._names), self._chance.randrange(2), self._chance.randint(1, 9))

    def _write_to(self, name: str, who: int, count: int) -> None:
        key = (name, who)
        if key not in self._writers:
            self._writers[key] = self._table(name).writer(actor=f"{name}{who}")
        number, start = self._open.pop(key, (self._facts.next_number, 0))
        stop, end = start + count, self._chance.random() < 0.5
        self._note("steps", done=False, table=name, episode=number, stop=stop, end=end)
        write_steps(self._writers[key], number, start, stop, end=end)
        if not end:
            self._open[key] = (number, stop)
        self._unflushed.setdefault(key, {})[number] = (stop, end)

    def _flush(self) -> None:
        for key in pick(self._chance, self._unflushed, 1):
            self._flush_writer(key)

    def _flush_writer(self, key: tuple[str, int]) -> None:
        self._writers[key].flush()
        self._note_durable(key[0], [(number, stop, end) for number, (stop, end) in self._unflushed.pop(key).items()])

    def _note_durable(self, name: str, episodes: list[tuple[int, int, bool]]) -> None:
        stats, newest = self._table(name).stats(), self._table(name).episodes(limit=1)
        fact = {"next_position": stats.next_position, "newest_id": newest[0].episode_id if newest else -1}
        self._note("durable", done=True, table=name, episodes=episodes, **fact)

    def _delete(self) -> None:
        self._delete_of(lambda durable: pick(self._chance, durable, self._chance.randint(1, 4)))

    def _thin_out(self) -> None:
        """Deletes most, and leaves something in every segment, so that neighbours come to be worth merging."""
        self._delete_of(lambda durable: [number for place, number in enumerate(durable) if place % 5])

    def _delete_of(self, choose: Callable[[list[int]], list[int]]) -> None:
        facts, there = self._facts.tables["sparse"], {}
        for record in self._table("sparse").episodes(limit=1000, closed_only=True):
            there[int(record.metadata["number"])] = record.episode_id
        durable = [number for number in there if facts.episodes[number].durably_ended]
        numbers = choose(durable)
        if numbers:
            self._note("delete", done=False, table="sparse", episodes=numbers)
            self._table("sparse").delete_episodes([there[number] for number in numbers])
            self._note("delete", done=True, table="sparse", episodes=numbers)

    def _put_params(self) -> None:
        name = self._chance.choice(("policy", "target"))
        try:
            found = self._replay.get_params(name)
        except NotFoundError:
            found = None
        version = (found.version if found else -1) + self._chance.randint(1, 3)
        self._note("params", done=False, name=name, version=version)
        self._replay.put_params(name, weights(version), version=version)
        self._note("params", done=True, name=name, version=version)

    def _limit(self) -> None:
        table = self._table(self._chance.choice(self._names))
        if table.stats().ready:
            ids = table.sample(4, sampler="prioritized").positions
            table.update_priorities(ids, [self._chance.random() for _ in ids])
        table.set_limiter(Limiter(min_steps=self._chance.randint(1, 4)))

    def _make_and_drop(self) -> None:
        name = f"gone{self._facts.next_number}"
        self._make(name, None)
        self._write_to(name, 0, 4)
        self._flush_writer((name, 0))
        self._note("drop", done=False, table=name)
        self._replay.delete_table(name)
        self._note("drop", done=True, table=name)
        self._writers.pop((name, 0))
        self._open.pop((name, 0), None)

    def _snapshot(self) -> None:
        name = f"snapshot{len(self._facts.snapshots)}"
        self._note("snapshot", done=False, name=name)
        self._replay.snapshot(self._directory / name)
        self._note("snapshot", done=True, name=name)

    def _reopen(self) -> None:
        self._close()
        self._replay = Replay(self._directory / "store", CONFIG, system=self._system)

    def _close(self) -> None:
        for key in list(self._unflushed):
            self._flush_writer(key)
        for writer in self._writers.values():
            writer.close()
        self._replay.close()
        self._writers.clear()
        self._open.clear()


def _table_config(capacity: int | None) -> TableConfig:
    return TableConfig(capacity_steps=capacity, chunk_steps=CHUNK_STEPS, flush_interval_s=3600)


def facts_of(log: Path) -> Facts:
    """Returns what a log says is known at its end."""
    facts = Facts()
    for event in read_log(log) if log.exists() else ():
        if event.kind == MARK:
            facts.take(event.mark())
    return facts


def play(directory: Path, log: Path, seed: int, *, actions: int = 40, phases: int = PHASES, sabotage: str = "") -> None:
    """Plays a whole life of the store `directory`/store, logged to `log`."""
    directory.mkdir(parents=True)
    for phase in range(phases):
        module = [sys.executable, "-m", "tests.torture.powerloss_life"]
        arguments = [str(directory), str(log), str(seed), str(phase), str(phases), str(actions), sabotage]
        done = subprocess.run(
            [*module, *arguments], env=environment(), capture_output=True, text=True, check=False, timeout=120
        )
        if done.returncode:
            raise RuntimeError(f"life {seed}, process {phase}: status {done.returncode}: {done.stderr}")


def main() -> None:
    directory, log = map(Path, sys.argv[1:3])
    seed, phase, phases, actions = map(int, sys.argv[3:7])
    sabotage = sys.argv[7]
    small_segments()
    chance, facts = random.Random(f"{seed} {phase}"), facts_of(log)
    last = phase == phases - 1
    shim = Shim()
    system = Ending(0 if last else chance.randint(20, 150), sabotage, shim)
    shim.watch(directory, log, without_syncs=sabotage == "everything")
    if sabotage == FSYNC_FAILS and not last:
        shim.arm(Fault.FSYNC_EIO, chance.randint(1, 60))
    elif not last and chance.random() < 0.5:
        shim.arm(Fault.END, chance.randint(20, 300))
    names = ["sparse", ("all", "ring")[seed % 2]]
    try:
        Life(directory, names, facts, chance, shim, system).play(actions)
    except ReplayError:
        if not shim.fired:
            raise
        os._exit(0)
    shim.stop()


if __name__ == "__main__":
    main()
