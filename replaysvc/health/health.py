"""How all is: what the doors tell of a store, made at one place and shared by all who ask within a second."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from replaysvc.activity import Activity
from replaysvc.errors import NotFoundError, StorageError
from replaysvc.health.cached import Cached
from replaysvc.health.history import days_left
from replaysvc.health.participants import SeenActor, judged_actor, judged_learner
from replaysvc.health.verdict import Seen, SeenTable, of_table, verdict
from replaysvc.health.watch import Watch
from replaysvc.replay import Replay
from replaysvc.table.actors import newest_policy
from replaysvc.views import ActivityView, ActorView, DiskOutlook, LearnerView, Verdict

log = logging.getLogger(__name__)

MOST_TABLES, MOST_SEEN = 1000, 2000  # of each kind, told


class Actors(NamedTuple):
    """The actors of all tables, those in trouble first, then those heard of last; and the newest version of the policy."""

    seen: Sequence[SeenActor]
    newest_policy_version: int | None


class Health:
    """Looks at a store; thread-safe.

    activity: who samples. wall, monotonic: clocks. status: of the gRPC door, "starting", "serving" or "draining"; to be set by
    who opens it.
    """

    def __init__(
        self, replay: Replay, activity: Activity | None = None, *, wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._replay, self._activity = replay, activity or Activity()
        self.status: Callable[[], str] = lambda: "serving"
        self.cached = Cached(monotonic)
        self.watch = Watch(replay, self._activity, wall, monotonic)
        self._disk_fails = False

    def tables(self) -> Sequence[SeenTable]:
        """Returns all tables, in the order of names."""
        return self.cached.get("health tables", self._tables)

    def _tables(self) -> list[SeenTable]:
        found = []
        for name in self._replay.tables()[:MOST_TABLES]:
            try:
                table = self._replay.engine(name)
                stats, counts, rates = table.stats(), table.counted(), self.watch.rates(name)
            except NotFoundError:  # deleted meanwhile
                continue
            found.append(SeenTable(stats, counts, rates["steps_in_per_s"], rates["items_out_per_s"]))
        return found

    def actors(self) -> Actors:
        """Returns who writes."""
        return self.cached.get("health actors", self._actors)

    def _actors(self) -> Actors:
        seen = {table: engine.actors.seen() for table, engine in self._replay.engines().items()}
        written = [actor.policy_version for actors in seen.values() for actor in actors]
        newest = newest_policy(self._replay.params_versions(), written)
        found = [actor for actors in self._judged(seen, newest) for actor in actors]
        found.sort(key=lambda actor: (actor.view.state not in ("lost", "stale"), actor.view.last_seen_s))
        return Actors(found[:MOST_SEEN], newest)

    def _judged(self, tables: Mapping[str, Sequence[ActorView]], newest: int | None) -> Iterator[list[SeenActor]]:
        """Yields the actors of each table, with their states."""
        engines, rates, minute_ago = self._replay.engines(), self.watch.actor_rates(), self.watch.policy_of_a_minute_ago()
        for table, seen in tables.items():  # of one that was deleted meanwhile nobody is lost
            lease_s = engines[table].config.lease_s if table in engines else float("inf")
            yield [
                judged_actor(table, actor, rates.get((table, actor.name), 0.0), lease_s, newest, minute_ago) for actor in seen
            ]

    def learners(self) -> Sequence[LearnerView]:
        """Returns who samples, those seen last first."""
        return [judged_learner(learner) for learner in self._activity.learners()[:MOST_SEEN]]

    def disk(self) -> DiskOutlook | None:
        """Returns how full the disk is; None if its file system cannot be asked, which is logged once."""
        try:
            view = self._replay.disk()
        except StorageError as error:
            if not self._disk_fails:
                log.error("disk: its file system cannot be asked: %s", error)
            self._disk_fails = True
            return None
        self._disk_fails = False
        growth = self.watch.growth()
        left = days_left(view.free_bytes, view.reserve_bytes, growth)
        return DiskOutlook(view=view, growth_bytes_per_day=growth, days_left=left)

    def verdict(self) -> Verdict:
        """Returns whether all is well."""
        return self.cached.get("health verdict", self._verdict)

    def _verdict(self) -> Verdict:
        replay = self._replay
        return verdict(Seen(
            self.status(), self.tables(), self.disk(), replay.backlog(), self.actors().seen, self.learners(),
            replay.quarantined_tables,
        ))  # fmt: skip

    def activity(self, table: str | None = None) -> ActivityView:
        """Returns what `Replay.activity` does, as of now, and beside it who samples, the states, the verdict and the disk.

        Raises:
          NotFoundError: no such table.
        """
        view, whole = self._replay.activity(table), self.verdict()
        actors = zip(view.actors, self._judged(view.actors, view.newest_policy_version), strict=True)
        return replace(
            view, actors={name: tuple(actor.view for actor in seen) for name, seen in actors},
            learners=tuple(each for each in self.learners() if table in (None, each.table)),
            verdict=whole if table is None else of_table(whole, table), disk=self.disk(),
        )  # fmt: skip
