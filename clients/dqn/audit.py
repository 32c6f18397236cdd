"""The audit of a run: is what its actors wrote stored, all of it, once, and unchanged?

Actors note every episode in the run directory: those that ended, and at their own end those that had not, together with the
steps that the service has acknowledged to them. Each episode has a name of its own, which is stored with it. So the table can
be compared with the notes, episode by episode; and since an environment's seed and the stored actions make the same episode
again, so can every step. A step that was lost, doubled or moved would lead elsewhere.

An actor that was killed has noted no end: of what it wrote, anything may be missing, but nothing may be there twice.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from dqn.config import Config
from dqn.rundir import Acknowledged, Metrics, OpenEpisode, TrainEpisode
from dqn.task import POLICY, fetch, make_env
from replay_client import ChunkCorruptError, EpisodeRecord, NotFoundError, Replay, Table, TableStats

_PAGE = 10_000
_ALL = 1 << 40
_SHOWN = 10  # sentences of a kind
_FLOAT16_ERROR = 2.0**-10  # of a field's range: how far a stored observation may be from the true one


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found. `lost`, `doubled` and `changed` have a sentence for each thing that is.

    finished, unfinished: acknowledged episodes that are stored. steps: acknowledged ones, of these and of what capacity has
    removed since. again: steps that came out of seeds and stored actions once more. removed: steps, for capacity. unsure: noted
    episodes that nobody acknowledged, since their actor was killed.
    """

    finished: int
    unfinished: int
    steps: int
    again: int
    removed: int
    unsure: int
    lost: tuple[str, ...]
    doubled: tuple[str, ...]
    changed: tuple[str, ...]

    def summary(self) -> Iterator[str]:
        """Yields sentences, the good news first."""
        faults = f"{len(self.lost)} lost, {len(self.doubled)} doubled, {len(self.changed)} changed"
        yield f"{self.steps:,} steps were acknowledged to the actors: {faults}"
        rest = f"; {self.removed:,} steps were removed for capacity" if self.removed else ""
        rest += f"; {self.unsure:,} episodes are of actors that were killed" if self.unsure else ""
        yield (
            f"{self.finished:,} finished and {self.unfinished:,} unfinished episodes compared with the actors' notes, "
            f"{self.again:,} steps with what their seeds and actions make{rest}"
        )
        for kind, sentences in (("LOST", self.lost), ("DOUBLED", self.doubled), ("CHANGED", self.changed)):
            yield from (f"{kind}: {sentence}" for sentence in sentences[:_SHOWN])
            if len(sentences) > _SHOWN:
                yield f"{kind}: and {len(sentences) - _SHOWN} more"

    @property
    def clean(self) -> bool:
        """Returns whether nothing is lost, doubled or changed."""
        return not (self.lost or self.doubled or self.changed)


def audit(replay: Replay, metrics: Metrics, config: Config) -> Audit:
    """Compares the table of a run, whose actors have ended, with their notes."""
    notes = _Notes(metrics)
    try:
        table = replay.table(config.table)
    except NotFoundError:
        gone = (f"there is no table {config.table}",) if notes.certain else ()  # else the run ended before its first step
        return Audit(0, 0, sum(notes.acknowledged.values()), 0, 0, len(notes.all) - len(notes.certain), gone, (), ())
    published = fetch(replay, POLICY)
    records = _all_records(table)
    there = Counter(map(_name, records))
    missing = [note for name, note in notes.certain.items() if name not in there]
    doubled = [f"episode {name} is stored {count} times" for name, count in there.items() if count > 1]
    doubled += [
        f"episode {name} is stored, but its actor wrote none of this name"
        for name in there
        if name not in notes.all and notes.knows(name)
    ]
    changed = [*_ill_described(records, notes), *_wrong_versions(records, published.version if published else -1)]
    stats = table.stats()
    stored = sum(record.length - record.first_step for record in records)
    if stats.steps != stored:
        changed.append(f"expected {stored:,} steps in the table, as its episodes have, found {stats.steps:,}")
    env = make_env(config)
    for record in records:
        changed += _made_otherwise(table, record, env)
    env.close()
    lost = [*_lost(stats, records, missing, notes)]
    appended = sum(notes.acknowledged.values()) + sum(record.length for record in records if not notes.knows(_name(record)))
    if stats.next_position > appended and notes.all_known(stats):
        doubled.append(f"expected {appended:,} steps ever appended, as the actors count, found {stats.next_position:,}")
    elif stats.next_position < appended:
        lost.append(f"expected {appended:,} steps ever appended, as the actors count, found {stats.next_position:,}")
    certain = [_name(record) for record in records if _name(record) in notes.certain]
    finished = sum(name in notes.finished for name in certain)
    return Audit(
        finished=finished, unfinished=len(certain) - finished,
        steps=sum(notes.acknowledged.values()), again=sum(record.length for record in records if record.first_step == 0),
        removed=stats.removed_steps_total, unsure=len(notes.all) - len(notes.certain),
        lost=tuple(lost), doubled=tuple(doubled), changed=tuple(changed),
    )  # fmt: skip


class _Notes:
    """The actors' notes. `finished` and `all` by episode name; `certain` are those of actors that noted their end."""

    def __init__(self, metrics: Metrics) -> None:
        self.acknowledged: dict[str, int] = {row["life"]: row["steps"] for row in metrics.last(Acknowledged, _ALL)}
        ended = [row for row in metrics.last(TrainEpisode, _ALL) if row["episode"] is not None]  # None: of an earlier version
        self.finished: dict[str, Mapping[str, Any]] = {row["episode"]: row for row in ended}
        self.all = self.finished | {row["episode"]: row for row in metrics.last(OpenEpisode, _ALL)}
        self.certain = {name: row for name, row in self.all.items() if self.knows(name)}

    def knows(self, episode: str) -> bool:
        """Returns whether all that the writer of an episode wrote is known."""
        return _life(episode) in self.acknowledged

    def all_known(self, stats: TableStats) -> bool:
        """Returns whether it is known what has been in the table: of an actor that was killed, only what still is."""
        return stats.first_position == 0 or len(self.certain) == len(self.all)


def _all_records(table: Table) -> list[EpisodeRecord]:
    """Returns the records of all episodes that have a name, the oldest first."""
    records: list[EpisodeRecord] = []
    page = table.episodes(limit=_PAGE)
    while page:
        records += page
        page = table.episodes(limit=_PAGE, before_id=page[-1].episode_id)
    return [record for record in reversed(records) if "episode" in record.metadata]


def _name(record: EpisodeRecord) -> str:
    return str(record.metadata["episode"])


def _life(episode: str) -> str:
    return episode.rpartition("-")[0]


def _ill_described(records: list[EpisodeRecord], notes: _Notes) -> Iterator[str]:
    """Yields what records say that the notes do not."""
    for record in records:
        name = _name(record)
        note = notes.all.get(name)
        if note is None or (not notes.knows(name) and not record.closed and record.length <= note["length"]):
            continue  # not noted, or not all of it was sent before its actor was killed
        told: tuple[Any, ...] = (note["actor"], note["env"], note["length"], note["policy_version"])
        found: tuple[Any, ...] = (record.actor, record.metadata["env"], record.length, record.policy_version)
        if name in notes.finished:
            told += (bool(note["terminated"]), bool(note["truncated"]))
            found += (record.terminated, record.truncated)
        if told != found:
            yield f"episode {name}: expected (actor, env, length, version, ends) {told}, found {found}"
        elif not math.isclose(record.return_, note["return_"], rel_tol=1e-5, abs_tol=1e-5):
            yield f"episode {name}: expected a return of {note['return_']:g}, found {record.return_:g}"


def _wrong_versions(records: list[EpisodeRecord], newest: int) -> Iterator[str]:
    """Yields versions that nobody can have acted with: an actor never goes back to an older one, nor ahead of the learner."""
    before: dict[tuple[int, str], int] = defaultdict(int)
    for record in records:
        writer = int(record.metadata["env"]), _life(_name(record))
        if not before[writer] <= record.policy_version <= newest:
            versions = f"a version from {before[writer]} to {newest}"
            yield f"episode {_name(record)}: expected {versions}, found {record.policy_version}"
        before[writer] = max(before[writer], record.policy_version)


def _lost(stats: TableStats, records: list[EpisodeRecord], missing: list[Mapping[str, Any]], notes: _Notes) -> Iterator[str]:
    """Yields acknowledged episodes that are gone and were not removed for capacity."""
    removed = sum(record.first_step for record in records) + sum(note["length"] for note in missing)
    if stats.first_position == 0:
        for note in missing:
            yield f"episode {note['episode']} of {note['actor']}, {note['length']} steps, was acknowledged and is not stored"
    elif removed != stats.first_position and notes.all_known(stats):
        yield f"expected {stats.first_position:,} steps removed for capacity, found {removed:,} missing"


def _made_otherwise(table: Table, record: EpisodeRecord, env: gym.Env[Any, Any]) -> Iterator[str]:
    """Yields how an episode differs from what its seed and its stored actions make, if all of it is stored."""
    if record.first_step:
        return
    name = f"episode {_name(record)} of {record.actor}"
    try:
        columns = table.read_episode(record.episode_id)
    except ChunkCorruptError as error:
        yield f"{name} cannot be read: {error}"
        return
    observations, rewards, ends = [env.reset(seed=int(record.metadata["seed"]))[0]], [], []
    for action in columns["action"]:
        observation, reward, terminated, truncated, _ = env.step(action)
        observations.append(observation)
        rewards.append(float(reward))
        ends.append((terminated, truncated))
        if terminated or truncated:
            break
    if len(rewards) != record.length:
        yield f"{name}: expected {len(rewards)} steps, as its seed and actions make, found {record.length}"
    elif not np.allclose(columns["reward"], rewards, rtol=1e-6, atol=1e-6):
        yield f"{name}: its rewards are not those that its seed and actions make"
    elif record.end_reason == "" and ends != list(zip(columns["terminated"], columns["truncated"], strict=True)):
        yield f"{name}: it does not end as its seed and actions make it end"
    elif not all(_alike(columns["observation"], observations)):
        yield f"{name}: its observations are not those that its seed and actions make"


def _alike(stored: Any, made: list[Any]) -> Iterator[bool]:
    """Yields for each field of the observation whether it is what it should be, up to the precision in which it is kept."""
    if isinstance(stored, Mapping):
        for key, child in stored.items():
            yield from _alike(child, [observation[key] for observation in made])
    elif isinstance(stored, tuple):
        for i, child in enumerate(stored):
            yield from _alike(child, [observation[i] for observation in made])
    else:
        wanted = np.stack(made).astype(np.float64)
        ranges = np.ptp(wanted.reshape(len(wanted), -1), axis=0)
        yield bool(np.abs(stored - wanted).max() <= 2 * _FLOAT16_ERROR * max(float(ranges.max()), 1e-6))
