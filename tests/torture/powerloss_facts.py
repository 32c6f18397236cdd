"""What a store said was done, and what it was asked to do: told by marks in the shim's log, and compared with what is there."""

import copy
import functools
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from replaysvc import FieldSpec, Signature
from replaysvc.replay import EmbeddedTable, Replay
from replaysvc.types import EpisodeRecord

WIDTH = 2500  # of an observation; 4 steps take about 12 KB, and they do not compress
SIGNATURE = Signature(FieldSpec("observation", (WIDTH,), np.uint8), FieldSpec("action", (), np.int64))
CHUNK_STEPS = 4
_SLACK = 16  # steps by which the order of writing and that of commits may differ


@functools.cache
def _noise() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)


def observation(number: int, t: int) -> np.ndarray:
    """Returns observation `t` of an episode: nothing else in any store has the same bytes."""
    at = (number * 7919 + t) * 104729 % (len(_noise()) - WIDTH)
    row = _noise()[at : at + WIDTH].copy()
    row[:16] = np.array([number, t], np.int64).view(np.uint8)
    return row


def weights(version: int) -> bytes:
    """Returns the parameters of a version."""
    return b"%d" % version + _noise()[version : version + 5000].tobytes()


@dataclass(slots=True)
class Episode:
    """How far an episode was written, and how much of that is acknowledged. `ended`: with the last step written."""

    written: int = 0
    durable: int = 0
    ended: bool = False
    durably_ended: bool = False
    deleted: int = 0  # 1: it may be, 2: it is


@dataclass(slots=True)
class TableFacts:
    """One table. `made`, `dropped`: 1: it may be, 2: it is."""

    capacity: int | None
    made: int = 1
    dropped: int = 0
    episodes: dict[int, Episode] = field(default_factory=dict)
    order: list[tuple[int, int]] = field(default_factory=list)  # (episode, step) as written
    deletions: list[list[int]] = field(default_factory=list)
    next_position: int = 0
    newest_id: int = -1


@dataclass(slots=True)
class Facts:
    """All that is known of a store. `params` and `asked_params`: version by name. `snapshots`: what was known as each began."""

    tables: dict[str, TableFacts] = field(default_factory=dict)
    params: dict[str, int] = field(default_factory=dict)
    asked_params: dict[str, int] = field(default_factory=dict)
    snapshots: dict[str, "Facts"] = field(default_factory=dict)
    whole_snapshots: set[str] = field(default_factory=set)
    next_number: int = 0

    def take(self, mark: dict[str, Any]) -> None:
        """Takes in a mark."""
        getattr(self, f"_take_{mark['what']}")(mark)

    def _take_at(self, mark: dict[str, Any]) -> None:
        """Which crash point a process came to says nothing of what is stored."""

    def _take_make(self, mark: dict[str, Any]) -> None:
        table = self.tables.setdefault(mark["table"], TableFacts(mark["capacity"]))
        table.made = max(table.made, 1 + mark["done"])

    def _take_drop(self, mark: dict[str, Any]) -> None:
        self.tables[mark["table"]].dropped = 1 + mark["done"]

    def _take_steps(self, mark: dict[str, Any]) -> None:
        table = self.tables[mark["table"]]
        episode = table.episodes.setdefault(mark["episode"], Episode())
        table.order += [(mark["episode"], t) for t in range(episode.written, mark["stop"])]
        episode.written, episode.ended = mark["stop"], mark["end"]
        self.next_number = max(self.next_number, mark["episode"] + 1)

    def _take_durable(self, mark: dict[str, Any]) -> None:
        table = self.tables[mark["table"]]
        for number, stop, end in mark["episodes"]:
            episode = table.episodes[number]
            episode.durable, episode.durably_ended = max(episode.durable, stop), episode.durably_ended or end
        table.next_position = max(table.next_position, mark["next_position"])
        table.newest_id = max(table.newest_id, mark["newest_id"])

    def _take_delete(self, mark: dict[str, Any]) -> None:
        table = self.tables[mark["table"]]
        for number in mark["episodes"]:
            table.episodes[number].deleted = 1 + mark["done"]
        if not mark["done"]:
            table.deletions.append(mark["episodes"])

    def _take_params(self, mark: dict[str, Any]) -> None:
        (self.params if mark["done"] else self.asked_params)[mark["name"]] = mark["version"]

    def _take_snapshot(self, mark: dict[str, Any]) -> None:
        if mark["done"]:
            self.whole_snapshots.add(mark["name"])
        else:
            begun = copy.deepcopy(self)
            begun.snapshots, begun.whole_snapshots = {}, set()
            self.snapshots[mark["name"]] = begun

    # -- comparing --------------------------------------------------------------------------------------------------------

    def compare(self, replay: Replay, *, may_be_fenced: bool = False) -> list[str]:
        """Returns what is wrong with an open store; `may_be_fenced`: it may refuse appends after a failed write."""
        wrong = []
        there = set(replay.tables())
        for name, facts in self.tables.items():
            if facts.made == 2 and not facts.dropped and name not in there:
                wrong.append(f"table {name} is not there, though its making was acknowledged")
            if facts.dropped == 2 and name in there:
                wrong.append(f"table {name} is there, though its deletion was acknowledged")
            if name in there:
                wrong += [f"table {name}: {what}" for what in _compare_table(replay.table(name), facts, may_be_fenced)]
        wrong += [f"table {name} was never made" for name in there - set(self.tables)]
        return wrong + list(self._compare_params(replay))

    def _compare_params(self, replay: Replay) -> Iterable[str]:
        for name, asked in self.asked_params.items():
            least = self.params.get(name, -1)
            try:
                version, data = replay.get_params(name) or (-1, b"")
            except Exception as error:
                if least >= 0 or "do not exist" not in str(error):
                    yield f"params {name}: version {least} was acknowledged, found {error!r}"
                continue
            if not least <= version <= asked:
                yield f"params {name}: expected version {least} to {asked}, found {version}"
            if data != weights(version):
                yield f"params {name}: version {version} has other bytes"


def _compare_table(table: EmbeddedTable, facts: TableFacts, may_be_fenced: bool) -> Iterable[str]:
    records = table.episodes(limit=100_000)
    numbers = [int(record.metadata["number"]) for record in records]
    yield from (f"episode {number} is there {often} times" for number, often in Counter(numbers).items() if often > 1)
    found = dict(zip(numbers, records, strict=True))
    for number, record in found.items():
        yield from (f"episode {number}: {what}" for what in _compare_episode(table, number, record, facts))
    for number, least in _least_lengths(facts).items():
        episode = facts.episodes[number]
        if not episode.deleted and (number not in found or found[number].length < least):
            has = found[number].length if number in found else "nothing"
            yield f"episode {number}: expected {least} acknowledged steps, found {has}"
    for group in facts.deletions:
        # one that was not acknowledged may not have happened, and some of its episodes be deleted later, by other calls
        alone = [number for number in group if sum(number in other for other in facts.deletions) == 1]
        here = [number for number in alone if number in found]
        if here and len(here) < len(alone):
            yield f"of episodes {group}, deleted in one call, {here} are there"
    stats = table.stats()
    steps = sum(record.length - record.first_step for record in records)
    if stats.steps != steps:
        yield f"expected as many steps as all episodes have, {steps}, found {stats.steps}"
    if facts.capacity is not None and stats.steps > facts.capacity:
        yield f"expected at most {facts.capacity} steps, found {stats.steps}"
    if facts.next_position > stats.next_position:
        yield f"positions up to {facts.next_position} were given out, found that the next is {stats.next_position}"
    fenced = stats.fault and not may_be_fenced
    if stats.corrupt_chunks_total or stats.quarantined_segments or stats.quarantined_chunks or fenced:
        yield f"something is damaged: {stats}"
    if stats.steps and stats.ready:
        batch = table.sample(4, seed=1)
        by_id = {record.episode_id: number for number, record in found.items()}
        for row, episode_id, t in zip(batch.observation, batch.episode_id.tolist(), batch.t.tolist(), strict=True):
            if not np.array_equal(row, observation(by_id[episode_id], t)):
                yield f"step {t} of episode {by_id[episode_id]} was sampled with other bytes"


def _least_lengths(facts: TableFacts) -> dict[int, int]:
    """Returns how many steps of each episode must be there: what is acknowledged, but for what capacity may have removed."""
    if facts.capacity is None:
        return {number: episode.durable for number, episode in facts.episodes.items() if episode.durable}
    newest = facts.order[-max(0, facts.capacity - _SLACK) :]
    least: dict[int, int] = {}
    for number, t in newest:
        if t < facts.episodes[number].durable:
            least[number] = max(least.get(number, 0), t + 1)
    return least


def _compare_episode(table: EmbeddedTable, number: int, record: EpisodeRecord, facts: TableFacts) -> Iterable[str]:
    episode = facts.episodes.get(number)
    if episode is None:
        yield "nobody wrote it"
        return
    if episode.deleted == 2:
        yield "it is there, though its deletion was acknowledged"
    if record.length > episode.written:
        yield f"expected at most {episode.written} steps, found {record.length}"
        return
    if episode.durably_ended and not record.terminated:
        yield "its end was acknowledged, found it without"
    if record.terminated and not (episode.ended and record.length == episode.written):
        yield f"it was not ended at step {record.length}"
    columns = table.read_episode(record.episode_id, record.first_step)
    steps = range(record.first_step, record.length)
    expected = np.stack([observation(number, t) for t in range(record.first_step, record.length + 1)])
    if not np.array_equal(columns["observation"], expected):
        yield "its observations are others"
    if columns["action"].tolist() != list(steps) or columns["reward"].tolist() != [float(number % 100 + t) for t in steps]:
        yield "its actions or rewards are others"


def write_steps(writer: Any, number: int, start: int, stop: int, *, end: bool) -> None:
    """Appends steps [start, stop) of an episode; begins it at step 0."""
    if start == 0:
        writer.begin(observation(number, 0), metadata={"number": number})
    for t in range(start, stop):
        writer.append(t, float(number % 100 + t), observation(number, t + 1), terminated=end and t == stop - 1)


def pick(chance: random.Random, items: Iterable[Any], count: int) -> list[Any]:
    """Returns up to `count` of the items, in order."""
    items = sorted(items)
    return sorted(chance.sample(items, min(count, len(items))))
