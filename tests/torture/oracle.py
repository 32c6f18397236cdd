"""What was written and what was acknowledged, kept outside the server's process, and whether a table agrees.

Every step says in its own data whose it is: actor, episode, step, and the actor's serial number of the episode's first step in
the table; the rest of the row is noise made from these, so a row that was changed, or mixed of two, is seen. An actor writes
down, synced, what it is about to append (an intent) and what the service said is durable (an acknowledgement).
"""

import itertools
import json
import os
import re
from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from replaysvc import FieldSpec, Signature
from replaysvc.errors import InvalidRequestError, NotFoundError
from tests.torture.report import Report

_NAMES, _NOISE = 4, 60  # int64s of a row: 512 bytes
SIGNATURE = Signature(FieldSpec("observation", (_NAMES + _NOISE,), np.int64), FieldSpec("action", (), np.int64))
_ALL = 100_000


def _mix(values: np.ndarray) -> np.ndarray:
    """Returns the splitmix64 hash of uint64 values."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def rows_of(actor: Any, episode: Any, t: Any, first: Any) -> np.ndarray:
    """Returns observations t of an episode, int64 [n, 64]."""
    names = np.stack(np.broadcast_arrays(*(np.atleast_1d(np.asarray(v, np.int64)) for v in (actor, episode, t, first))), axis=1)
    key = np.zeros(len(names), np.uint64)
    for column in names.T:
        key = _mix(key ^ column.astype(np.uint64))
    noise = _mix(key[:, None] ^ np.arange(_NOISE, dtype=np.uint64)).astype(np.int64)
    return np.concatenate((names, noise), axis=1)


def actions_of(rows: np.ndarray) -> np.ndarray:
    """Returns the actions after observations, int64 [n]."""
    return rows[:, _NAMES] ^ 1


def rewards_of(rows: np.ndarray) -> np.ndarray:
    """Returns the rewards after observations, float32 [n]: whole numbers, so that sums are exact."""
    return (rows[:, _NAMES + 1] & 0xFF).astype(np.float32)


class Findings(Report):
    """A report that many places add to."""

    def add(self, what: str, count: int = 1) -> None:
        """Counts what was done or seen."""
        self.counts[what] += count

    def expect(self, condition: bool, sentence: str) -> bool:
        """Notes the violation that `sentence` tells unless `condition` holds; returns `condition`."""
        if not condition:
            self.violations.append(sentence)
        return bool(condition)

    def merge(self, path: Path) -> None:
        """Adds what a process of this run found, and wrote to a file."""
        data = json.loads(path.read_text())
        for name, count in data["counts"].items():
            self.add(name, count)
        self.violations += data["violations"]


class Log:
    """One actor's part of the oracle: lines of JSON, each synced before `write` returns."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, **line: Any) -> None:
        os.write(self._handle, json.dumps(line).encode() + b"\n")
        os.fsync(self._handle)


class Keeps(Enum):
    """What a table's capacity may take away."""

    ALL = "all"  # nothing
    NEWEST = "newest"  # of each actor, steps before some point
    EPISODES = "episodes"  # whole closed episodes


@dataclass
class Written:
    """What one actor wrote to one table: serial numbers count its steps there."""

    intended: int = 0
    acked: int = 0
    episodes: dict[int, tuple[int, int]] = field(default_factory=dict)  # number -> (serial of its first step, length)


class Oracle:
    """Reads the logs of a directory as they grow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, int] = {}
        self.written: dict[str, dict[int, Written]] = defaultdict(lambda: defaultdict(Written))
        self.deleting_names: dict[str, set[tuple[int, int]]] = defaultdict(set)  # (actor, episode) by table
        self.deleted: dict[str, set[int]] = defaultdict(set)  # episode ids by table, acknowledged
        self.params: dict[str, list[int]] = defaultdict(lambda: [-1, -1])  # versions asked for, and acknowledged
        self.gone: dict[str, bool | None] = {}  # whether a table was deleted; None: being made or deleted
        self.snapshots: list[dict[str, Any]] = []  # name, table, and what of it was acknowledged before
        self.counts: dict[str, int] = defaultdict(int)

    def refresh(self) -> "Oracle":
        """Takes in what was written down since."""
        for path in sorted(self._directory.glob("*.log"), key=_as_written):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                self._take(json.loads(line))
        return self

    def _take(self, line: dict[str, Any]) -> None:
        kind, table = line["kind"], line.get("table", "")
        self.counts[kind] += 1
        if kind == "intent":
            written = self.written[table][line["actor"]]
            written.episodes[line["episode"]] = (line["first"], line["length"])
            written.intended = line["first"] + line["length"]
        elif kind == "ack":
            self.written[table][line["actor"]].acked = line["upto"]
        elif kind == "deleting":
            self.deleting_names[table].update((actor, episode) for actor, episode in line["names"])
        elif kind == "deleted":
            self.deleted[table].update(line["ids"])
        elif kind == "params":
            known = self.params[line["name"]]
            known[line["durable"]] = max(known[line["durable"]], line["version"])
        elif kind == "table":
            self.gone[table] = line["gone"]
        elif kind == "snapshot":
            self.snapshots.append(line)

    def acked_of(self, table: str) -> dict[int, int]:
        """Returns {actor: steps acknowledged} as read last."""
        return {actor: written.acked for actor, written in self.written[table].items()}


def _as_written(log: Path) -> list[int]:
    """Returns what brings logs into the order of the lives that wrote them: the 9th comes before the 10th."""
    return [int(number) for number in re.findall(r"\d+", log.name)]


def check_table(
    table: Any, oracle: Oracle, report: Findings, keeps: Keeps, *, where: str, rng: np.random.Generator, quiet: bool = False,
    read: float = 1.0, capacity: int | None = None, acked: dict[int, int] | None = None, earlier: bool = False,
) -> None:  # fmt: skip
    """Compares a table with the oracle.

    quiet: nobody writes now, so counts must agree exactly. read: share of the episodes of which every value is compared; at
    most 40 of them while somebody writes. acked: what must be there, {actor: steps}; what was acknowledged by now if left out.
    earlier: the table is an earlier state, in which episodes that are deleted now may be.
    """
    oracle.refresh()
    acked = oracle.acked_of(table.name) if acked is None else acked
    deleted = set() if earlier else set(oracle.deleted[table.name])
    records = table.episodes(limit=_ALL)
    oracle.refresh()
    back = deleted & {record.episode_id for record in records}
    report.expect(not back, f"{where}: deleted episodes are back: {sorted(back)[:5]}")
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    seen: set[tuple[int, int]] = set()
    for record in records:
        actor, episode, first = (record.metadata[name] for name in ("actor", "episode", "first"))
        report.expect((actor, episode) not in seen, f"{where}: episode {episode} of actor {actor} is stored twice")
        seen.add((actor, episode))
        intent = oracle.written[table.name][actor].episodes.get(episode)
        whole = intent is not None and intent[0] == first and record.length <= intent[1]
        report.expect(whole, f"{where}: {record} is not what was begun, {intent}")
        report.expect(record.first_step == 0 or keeps is Keeps.NEWEST, f"{where}: {record} lost its beginning")
        spans[actor].append((first + record.first_step, first + record.length))
    for actor, written in oracle.written[table.name].items():
        excused = {written.episodes[e] for a, e in oracle.deleting_names[table.name] if a == actor and (a, e) not in seen}
        have = sorted([*spans[actor], *((first, first + length) for first, length in excused)])
        if earlier:  # what was deleted since may have been written since, too
            have = _without_later(have, {(first, first + length) for first, length in excused})
        _check_spans(report, f"{where}: actor {actor}", have, acked.get(actor, 0), written, keeps)
    chosen = [record for record in records if rng.random() < read]
    for record in chosen if quiet else chosen[:40]:
        _check_episode(table, record, report, where, strict=quiet)
    if quiet:
        stored = sum(stop - start for found in spans.values() for start, stop in found)
        _check_counts(table, oracle.written[table.name], stored, report, where, keeps, capacity)


def _without_later(have: list[tuple[int, int]], excused: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Leaves out what comes after a gap and is excused, as all that follows it."""
    for at in range(len(have)):
        if have[at][0] > (have[at - 1][1] if at else 0) and all(span in excused for span in have[at:]):
            return have[:at]
    return have


def _check_counts(
    table: Any, written: dict[int, Written], stored: int, report: Findings, where: str, keeps: Keeps, capacity: int | None
) -> None:
    """Compares the steps that a table counts with its episodes and its capacity."""
    steps = table.stats().steps
    report.expect(steps == stored, f"{where}: the table counts {steps} steps, its episodes {stored}")
    if capacity is not None:
        total = sum(one.intended for one in written.values())
        longest = max((length for one in written.values() for _, length in one.episodes.values()), default=0)
        slack = longest if keeps is Keeps.EPISODES else 0
        in_bounds = min(total, capacity) - slack <= steps <= capacity
        report.expect(in_bounds, f"{where}: {steps} steps of a capacity of {capacity}, {total} were written")


def _check_spans(
    report: Findings, where: str, spans: list[tuple[int, int]], acked: int, written: Written, keeps: Keeps
) -> None:
    """Compares the serial numbers that are there with those that may be and must be."""
    if not spans:
        report.expect(keeps is not Keeps.ALL or not acked, f"{where}: nothing is stored of {acked} acknowledged steps")
        return
    if keeps is Keeps.ALL:
        report.expect(spans[0][0] == 0, f"{where}: acknowledged steps before {spans[0][0]} are missing")
    for (_, stop), (start, _) in itertools.pairwise(spans):
        report.expect(start >= stop, f"{where}: steps [{start}, {stop}) are stored twice")
        hole = start > stop and keeps is not Keeps.EPISODES
        report.expect(not hole, f"{where}: steps [{stop}, {start}) are missing, {acked} are acknowledged")
    last = spans[-1][1]
    if keeps is not Keeps.EPISODES:  # of which the newest may be gone, too
        report.expect(last >= acked, f"{where}: {acked} steps are acknowledged, the last one stored is {last - 1}")
    report.expect(last <= written.intended, f"{where}: step {last - 1} is stored, though only {written.intended} were appended")


def _check_episode(table: Any, record: Any, report: Findings, where: str, *, strict: bool) -> None:
    """Compares every value of a stored episode."""
    actor, episode, first = (record.metadata[name] for name in ("actor", "episode", "first"))
    name = f"{where}: episode {record.episode_id} ({episode} of actor {actor})"
    try:
        found = table.read_episode(record.episode_id, record.first_step, record.length)
    except (NotFoundError, InvalidRequestError) as error:  # removed or deleted meanwhile
        report.expect(not strict, f"{name}: cannot be read: {error}")
        report.add("episodes that went before they were read")
        return
    rows = rows_of(actor, episode, np.arange(record.length + 1), first)
    steps = slice(record.first_step, record.length)
    report.expect(np.array_equal(found["observation"], rows[record.first_step :]), f"{name}: observations differ")
    report.expect(np.array_equal(found["action"], actions_of(rows)[steps]), f"{name}: actions differ")
    report.expect(np.array_equal(found["reward"], rewards_of(rows)[steps]), f"{name}: rewards differ")
    ends = np.zeros(record.length - record.first_step, bool)
    ends[-1] = record.closed
    report.expect(np.array_equal(found["terminated"] | found["truncated"], ends), f"{name}: ends differ")
    report.expect(record.return_ == rewards_of(rows)[: record.length].sum(), f"{name}: the return differs")
    report.add("episodes compared")
    report.add("steps compared", len(ends))


class BatchCheck:
    """Whether sampled batches are made of whole steps, each of one episode, and names of items never change their meaning."""

    def __init__(self, report: Findings) -> None:
        self._report = report
        self._steps: dict[int, tuple[int, int, int]] = {}  # position -> (actor, episode, t)
        self._episodes: dict[int, tuple[int, int]] = {}

    def transitions(self, batch: Any, n_step: int, gamma: float) -> None:
        """Checks a batch of n-step transitions."""
        before, after = batch.observation, batch.next_observation
        k = after[:, 2] - before[:, 2]
        self._expect(_whole(before) & _whole(after), batch, "a row that nobody wrote")
        self._expect((before[:, [0, 1, 3]] == after[:, [0, 1, 3]]).all(axis=1), batch, "rows of two episodes")
        self._expect((k >= 1) & (k <= n_step) & (before[:, 2] == batch.t), batch, "steps that do not belong together")
        self._expect(batch.action == actions_of(before), batch, "an action of another step")
        rewards = np.zeros(len(k))
        for i in range(n_step):
            later = rows_of(before[:, 0], before[:, 1], before[:, 2] + i, before[:, 3])
            rewards += np.where(i < k, gamma**i * rewards_of(later), 0.0)
        self._expect(np.isclose(batch.reward, rewards, rtol=1e-4), batch, "a reward of other steps")
        self._names(batch, before)

    def sequences(self, batch: Any) -> None:
        """Checks a batch of sequences."""
        rows = batch.observation  # [B, T, 64]
        good = _whole(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape[:2])
        self._expect((good | ~batch.mask).all(axis=1), batch, "a row that nobody wrote")
        same = (rows[:, :, [0, 1, 3]] == rows[:, :1, [0, 1, 3]]).all(axis=2)
        steps = rows[:, :, 2] == batch.t[:, None] + np.arange(rows.shape[1])
        self._expect(((same & steps) | ~batch.mask).all(axis=1), batch, "steps of two episodes, or in another order")
        self._names(batch, rows[:, 0])

    def _names(self, batch: Any, rows: np.ndarray) -> None:
        for position, number, (actor, episode, t, _) in zip(
            batch.positions.tolist(), batch.episode_id.tolist(), rows[:, :_NAMES].tolist(), strict=True
        ):
            step = self._steps.setdefault(position, (actor, episode, t))
            self._report.expect(step == (actor, episode, t), f"position {position} names {step} and {(actor, episode, t)}")
            name = self._episodes.setdefault(number, (actor, episode))
            self._report.expect(name == (actor, episode), f"episode id {number} names {name} and {(actor, episode)}")
        self._report.add("sampled items checked", len(rows))

    def _expect(self, good: np.ndarray, batch: Any, what: str) -> None:
        for at in np.flatnonzero(~np.asarray(good))[:3].tolist():
            self._report.violations.append(
                f"a batch holds {what}: item {at}, episode {batch.episode_id[at]}, step {batch.t[at]}"
            )


def _whole(rows: np.ndarray) -> np.ndarray:
    """Returns which rows are just as somebody made them, bool [n]."""
    return (rows == rows_of(*rows[:, :_NAMES].T)).all(axis=1)
