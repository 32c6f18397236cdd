"""What goes on in a store, as two looks at it tell: rates, and whether all is well. Any door will do."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from replaysvc.errors import NotFoundError, ReplayError, UnavailableError, WaitTimeoutError
from replaysvc.interface import Replay
from replaysvc.types import TableStats
from replaysvc.views import ActivityView, ActorView, LearnerView


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
class Reason:
    """Why all is not well. level: "warning" or "failing". table: None if it is none's."""

    level: str
    table: str | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What is shown at once. at_s: seconds since 1970. actors, the busiest first, and learners: None where nobody tells of
    them."""

    target: str
    at_s: float
    reasons: tuple[Reason, ...]
    tables: tuple[Row, ...]
    actors: tuple[Actor, ...] | None
    learners: tuple[LearnerView, ...] | None
    newest_policy_version: int | None

    @property
    def status(self) -> str:
        """Returns "ok", or the worst level of the reasons."""
        levels = {reason.level for reason in self.reasons}
        return next((level for level in ("failing", "warning") if level in levels), "ok")

    def asdict(self) -> dict[str, Any]:
        """Returns it as JSON has it."""
        actors = None if self.actors is None else [
            {"table": each.table, **asdict(each.seen), "steps_per_s": each.steps_per_s, "staleness": each.staleness}
            for each in self.actors
        ]  # fmt: skip
        return {
            "target": self.target, "at_s": self.at_s,
            "verdict": {"status": self.status, "reasons": [asdict(reason) for reason in self.reasons]},
            "tables": [asdict(row) for row in self.tables], "actors": actors,
            "learners": None if self.learners is None else [asdict(each) for each in self.learners],
            "newest_policy_version": self.newest_policy_version,
        }  # fmt: skip


def look(replay: Replay, table: str | None = None) -> Look:
    """Returns what is to be seen now, of all tables or one. Raises ReplayError: NotFoundError only of the one asked for."""
    tables = {}
    for name in [table] if table is not None else replay.tables():
        with contextlib.suppress(*([] if table is not None else [NotFoundError])):  # one of many was deleted meanwhile
            tables[name] = Seen(replay.table(name).stats(), time.monotonic())
    return Look(tables, _activity(replay), time.monotonic(), time.time())


def _activity(replay: Replay) -> ActivityView | None:
    try:
        return replay.activity()
    except (UnavailableError, WaitTimeoutError):
        raise
    except ReplayError:  # an older service does not know this question; it knows all others
        return None


def framed(target: str, before: Look | None, now: Look) -> Frame:
    """Returns what two looks make together; without a first one there are no rates."""
    earlier = {} if before is None else before.tables
    newest, actors, learners = None, None, None
    if now.activity is not None:
        newest = now.activity.newest_policy_version
        actors = tuple(sorted(_actors(before, now, now.activity), key=_busiest))
        learners = tuple(each for each in now.activity.learners if each.table in now.tables)
    return Frame(
        target=target, at_s=now.at_s,
        reasons=tuple(reason for _, seen in sorted(now.tables.items()) for reason in _reasons(seen.stats)),
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


def _reasons(stats: TableStats) -> Iterator[Reason]:
    if stats.fault:
        yield Reason(level="failing", table=stats.name, sentence=f"takes no appends: {stats.fault}")
    for count, what in (
        (stats.quarantined_chunks, "damaged chunks are set aside"),
        (stats.quarantined_segments, "damaged segments are set aside"),
        (stats.lost_segments, "places in its chain of segments where some are gone"),
    ):
        if count:
            yield Reason(level="warning", table=stats.name, sentence=f"{count:,} {what}")


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
