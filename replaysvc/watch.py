"""What goes on in a store, as two looks at it tell: rates, who is there, and what the service says of it. Any door will do."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from replaysvc.errors import NotFoundError, ReplayError, UnavailableError, WaitTimeoutError
from replaysvc.health import Health
from replaysvc.interface import Replay
from replaysvc.replay import Replay as OpenStore
from replaysvc.types import TableStats
from replaysvc.views import ActivityView, ActorView, DiskOutlook, LearnerView, Verdict


class Seen(NamedTuple):
    """A table's counters, and when they were read, by a clock that never goes back."""

    stats: TableStats
    read_at_s: float


class Look(NamedTuple):
    """What one look found. activity: None of a service that tells nobody who writes and samples. read_at_s: when that was
    read, as in Seen; at_s: seconds since 1970."""

    tables: dict[str, Seen]
    activity: ActivityView | None
    read_at_s: float
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A table. What is not known is None: rates of a first look, or of counters that began anew meanwhile."""

    name: str
    steps: int
    episodes: int
    open_episodes: int
    disk_bytes: int
    steps_in_per_s: float | None
    items_out_per_s: float | None
    samples_per_insert: float | None
    samples_per_insert_target: float | None
    cache_hit_share: float | None
    ready: bool
    sampling_waits_for: str
    inserting_waits_for: str
    fault: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """An actor of a table. staleness: how many versions its policy is behind the newest one; None if that is not known."""

    table: str
    seen: ActorView
    steps_per_s: float | None
    staleness: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What is shown at once. at_s: seconds since 1970. actors, the busiest first, learners, verdict and disk: None where nobody
    tells of them."""

    target: str
    at_s: float
    verdict: Verdict | None
    disk: DiskOutlook | None
    tables: tuple[Row, ...]
    actors: tuple[Actor, ...] | None
    learners: tuple[LearnerView, ...] | None
    newest_policy_version: int | None

    def asdict(self) -> dict[str, Any]:
        """Returns it as JSON has it."""
        actors = None if self.actors is None else [
            {"table": each.table, **asdict(each.seen), "steps_per_s": each.steps_per_s, "staleness": each.staleness}
            for each in self.actors
        ]  # fmt: skip
        return {
            "target": self.target, "at_s": self.at_s,
            "verdict": None if self.verdict is None else asdict(self.verdict),
            "disk": None if self.disk is None else asdict(self.disk),
            "tables": [asdict(row) for row in self.tables], "actors": actors,
            "learners": None if self.learners is None else [asdict(each) for each in self.learners],
            "newest_policy_version": self.newest_policy_version,
        }  # fmt: skip


Ask = Callable[[str | None], ActivityView]


def asked_of(replay: Replay) -> Ask:
    """Returns what tells who is there, of one table or all. A service has its own verdict; of a store that is open here, where
    nobody else can be, it is made here."""
    return Health(replay).activity if isinstance(replay, OpenStore) else replay.activity


def look(replay: Replay, ask: Ask, table: str | None = None) -> Look:
    """Returns what is to be seen now, of all tables or one. Raises ReplayError: NotFoundError only of the one asked for."""
    tables = {}
    for name in [table] if table is not None else replay.tables():
        with contextlib.suppress(*([] if table is not None else [NotFoundError])):  # one of many was deleted meanwhile
            tables[name] = Seen(replay.table(name).stats(), time.monotonic())
    return Look(tables, _activity(ask, table), time.monotonic(), time.time())


def _activity(ask: Ask, table: str | None) -> ActivityView | None:
    try:
        return ask(table)
    except (UnavailableError, WaitTimeoutError):
        raise
    except ReplayError:  # an older service does not know this question; it knows all others
        return None


def framed(target: str, before: Look | None, now: Look) -> Frame:
    """Returns what two looks make together; without a first one there are no rates."""
    earlier = {} if before is None else before.tables
    newest, actors, learners, verdict, disk = None, None, None, None, None
    if now.activity is not None:
        newest, verdict, disk = now.activity.newest_policy_version, now.activity.verdict, now.activity.disk
        actors = tuple(sorted(_actors(before, now, now.activity), key=_busiest))
        learners = tuple(each for each in now.activity.learners if each.table in now.tables)
    return Frame(
        target=target, at_s=now.at_s, verdict=verdict, disk=disk,
        tables=tuple(_row(earlier.get(name), seen) for name, seen in sorted(now.tables.items())),
        actors=actors, learners=learners, newest_policy_version=newest,
    )  # fmt: skip


def _row(before: Seen | None, now: Seen) -> Row:
    stats, limiter = now.stats, now.stats.limiter
    steps = items = hits = None
    if before is not None:
        steps = stats.appended_steps_total - before.stats.appended_steps_total
        items = stats.sampled_items_total - before.stats.sampled_items_total
        hits = stats.cache_hits_total - before.stats.cache_hits_total
    seconds = 0.0 if before is None else now.read_at_s - before.read_at_s
    return Row(
        name=stats.name, steps=stats.steps, episodes=stats.episodes, open_episodes=stats.open_episodes,
        disk_bytes=stats.disk_bytes, ready=stats.ready, sampling_waits_for=stats.waiting_for,
        inserting_waits_for=stats.inserting_waits_for, fault=stats.fault,
        steps_in_per_s=_rate(steps, seconds), items_out_per_s=_rate(items, seconds),
        samples_per_insert=limiter["sampled"] / limiter["inserted"] if limiter.get("inserted") else None,
        samples_per_insert_target=limiter.get("samples_per_insert"),
        cache_hit_share=hits / items if items and hits is not None and 0 <= hits <= items else None,
    )  # fmt: skip


def _rate(count: int | None, seconds: float) -> float | None:
    return count / seconds if count is not None and count >= 0 and seconds > 0 else None


def _actors(before: Look | None, now: Look, activity: ActivityView) -> Iterator[Actor]:
    """Yields the actors of the tables that were looked at."""
    earlier: dict[tuple[str, str], int] = {}
    if before is not None and before.activity is not None:
        earlier = {(table, seen.name): seen.steps for table, actors in before.activity.actors.items() for seen in actors}
    seconds = 0.0 if before is None else now.read_at_s - before.read_at_s
    newest = activity.newest_policy_version
    for table, actors in activity.actors.items():
        for seen in actors if table in now.tables else ():
            steps = earlier.get((table, seen.name))
            rate = _rate(None if steps is None else seen.steps - steps, seconds)
            behind = None if newest is None or seen.policy_version < 0 else max(0, newest - seen.policy_version)
            yield Actor(table=table, seen=seen, steps_per_s=rate, staleness=behind)


def _busiest(actor: Actor) -> tuple[float, float, str, str]:
    return -(actor.steps_per_s or 0.0), actor.seen.last_seen_s, actor.table, actor.seen.name
