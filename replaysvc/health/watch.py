"""Looks at the store every two seconds, whoever asks: what the history is made of, and how fast actors write."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from replaysvc.activity import Activity
from replaysvc.errors import NotFoundError, UnavailableError
from replaysvc.health.history import FINE_S, Counters, History
from replaysvc.replay import Replay
from replaysvc.table.actors import newest_policy

log = logging.getLogger(__name__)

_RATE_LOOKS = 6  # that a rate of steps is told of: ten seconds
_PACE_LOOKS = 31  # a minute


class Watch:
    """A thread that notes counters. What is in `also` is done at each look.

    `wall` and `monotonic` are clocks.
    """

    def __init__(
        self, replay: Replay, activity: Activity, wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._replay, self._activity, self._wall, self._monotonic = replay, activity, wall, monotonic
        self.also: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._history = History()
        self._steps: deque[tuple[float, dict[tuple[str, str], int]]] = deque(maxlen=_RATE_LOOKS)
        self._versions: deque[tuple[float, int]] = deque(maxlen=_PACE_LOOKS)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replaysvc-health", daemon=True)

    def start(self) -> None:
        """Begins, with a first look."""
        self.look()
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Ends the thread, if it began; does not wait longer than `timeout_s` for a look under way."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closing.wait(FINE_S):
            try:
                self.look()
            except Exception:  # nobody else does this work: it must be tried again
                log.exception("health: a look failed, and the next one comes")

    def look(self) -> None:
        """Notes how all is now."""
        replay = self._replay
        counters: dict[str, Counters] = {}
        steps: dict[tuple[str, str], int] = {}
        versions: list[int] = []
        try:
            for name in replay.tables():
                try:
                    table = replay.engine(name)
                    stats, actors = table.stats(), table.actors.seen()
                except NotFoundError:  # deleted meanwhile
                    continue
                counters[name] = Counters(
                    uuid=table.uuid, steps=stats.appended_steps_total, items=stats.sampled_items_total,
                    hits=stats.cache_hits_total, disk_bytes=stats.disk_bytes,
                )  # fmt: skip
                steps |= {(name, actor.name): actor.steps for actor in actors}
                versions += [actor.policy_version for actor in actors]
            newest = newest_policy(replay.params_versions(), versions)
        except UnavailableError:  # the store is closing
            return
        calls, now = self._activity.calls(), self._monotonic()
        with self._lock:
            self._history.note(self._wall(), now, counters, calls.received_bytes, calls.sent_bytes)
            self._steps.append((now, steps))
            if newest is not None:
                self._versions.append((now, newest))
        for each in self.also:
            each()

    def points(self, table: str | None, window_s: float) -> dict[str, Any]:
        """Returns the points of a plot, see `History.points`."""
        with self._lock:
            return self._history.points(table, window_s)

    def rates(self, table: str | None) -> dict[str, float]:
        """Returns what goes in and out a second, in the last ten."""
        with self._lock:
            return self._history.rates(table)

    def growth(self) -> float | None:
        """Returns by how many bytes a day the disk fills."""
        with self._lock:
            return self._history.growth()

    def actor_rates(self) -> dict[tuple[str, str], float]:
        """Returns how many steps a second actors wrote in the last ten, by table and actor; those of whom two looks know."""
        with self._lock:
            looks = list(self._steps)  # what each found is not changed any more
        first: dict[tuple[str, str], tuple[float, int]] = {}
        for at, steps in reversed(looks):
            first |= {actor: (at, count) for actor, count in steps.items()}
        if not looks:
            return {}
        now, last = looks[-1]
        return {
            actor: max(0.0, (count - first[actor][1]) / (now - first[actor][0]))
            for actor, count in last.items()
            if now > first[actor][0]
        }

    def policy_of_a_minute_ago(self) -> int | None:
        """Returns what was the newest policy version when an actor should have loaded it by now; None: not known yet."""
        with self._lock:
            full = len(self._versions) == _PACE_LOOKS
            return self._versions[0][1] if full else None
