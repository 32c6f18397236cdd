"""Who writes to a table, and when it was last heard of. The table's lock is held around every call but `seen`."""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from threading import Condition
from typing import NamedTuple

import numpy as np

from replaysvc.index.table_index import TableIndex
from replaysvc.table.staging import EpisodeName, OpenEpisode, Written
from replaysvc.views import ActorView

_MOST_ACTORS = 4096  # names are the callers': the one that was not heard of for longest is forgotten first
_MOST_SESSIONS = 65_536
_MOST_TOLD = 1000  # of all tables
_POLICY = "policy"  # the parameter set that actors load
_DAMAGED = (1 << 63) - 1  # stands for the version of a set that cannot be read


class _Seen(NamedTuple):
    """What is known of an actor. Never changed but replaced, so that many are copied at once."""

    steps: int = 0
    episodes: int = 0
    sessions: int = 0
    policy_version: int = -1
    heard_at: float = 0.0


class Actors:
    """The actors of one table since its process started, on a clock that nobody sets."""

    def __init__(
        self, changed: Condition, monotonic: Callable[[], float], index: TableIndex,
        open_episodes: Mapping[EpisodeName, OpenEpisode],
    ) -> None:  # fmt: skip
        self._changed, self._monotonic, self._index, self._open = changed, monotonic, index, open_episodes
        self._actors: OrderedDict[str, _Seen] = OrderedDict()  # in the order in which they were heard of
        self._actor_of: OrderedDict[bytes, str] = OrderedDict()  # of sessions

    def meet(self, session_id: bytes, actor: str) -> None:
        """Notes that a session writes as `actor`."""
        self._hear(session_id, actor)

    def hear(self, session_id: bytes) -> None:
        """Notes a sign of life of a session; one that is not known is passed over."""
        actor = self._actor_of.get(session_id)
        if actor is not None:
            self._hear(session_id, actor)

    def count(self, written: Iterable[Written]) -> None:
        """Counts what was committed."""
        for part in written:
            known = self._hear(part.session_id, part.actor)
            self._actors[part.actor] = known._replace(
                steps=known.steps + part.steps, episodes=known.episodes + part.terminated + part.truncated,
                policy_version=max(known.policy_version, part.policy_version),
            )  # fmt: skip

    def _hear(self, session_id: bytes, actor: str) -> _Seen:
        new = session_id not in self._actor_of
        self._actor_of[session_id] = actor
        self._actor_of.move_to_end(session_id)
        if len(self._actor_of) > _MOST_SESSIONS:
            self._actor_of.popitem(last=False)
        known = self._actors.get(actor) or _Seen()
        steps, episodes, sessions, version, _ = known
        known = self._actors[actor] = _Seen(steps, episodes, sessions + new, version, self._monotonic())
        self._actors.move_to_end(actor)
        if len(self._actors) > _MOST_ACTORS:
            self._actors.popitem(last=False)
        return known

    def seen(self) -> list[ActorView]:
        """Returns those that were heard of, the last one first; takes the lock."""
        with self._changed:
            known, episodes = list(self._actors.items()), list(self._open.values())
        ids = np.array([episode.episode_id for episode in episodes], np.int64)
        with self._changed:
            at = ids - self._index.episodes.base
            at = at[(at >= 0) & (at < len(self._index.episodes))]  # others were removed between the two
            numbers, counts = np.unique(self._index.episodes["actor"][at], return_counts=True)
            names = [self._index.actor(number) for number in numbers.tolist()]
        now, open_now = self._monotonic(), dict(zip(names, counts.tolist(), strict=True))
        return [
            ActorView(
                name=name, steps=seen.steps, episodes=seen.episodes, open_episodes=open_now.get(name, 0),
                sessions=seen.sessions, policy_version=seen.policy_version, last_seen_s=max(0.0, now - seen.heard_at),
            )
            for name, seen in reversed(known)
        ]  # fmt: skip


def newest_policy(params: Mapping[str, int], written: Iterable[int]) -> int | None:
    """Returns the newest version of the policy: that of the parameter set "policy", else the largest that anybody wrote with;
    None if there is neither."""
    version = params.get(_POLICY, -1)
    newest = version if 0 <= version < _DAMAGED else max(written, default=-1)
    return newest if newest >= 0 else None


def heard_last(tables: Mapping[str, Actors]) -> tuple[dict[str, tuple[ActorView, ...]], int]:
    """Returns the actors of tables, by table and the newest first: of all together the 1,000 that were heard of last. And the
    newest policy version that any actor wrote with, -1 if none gave one."""
    newest, last = -1, list[tuple[str, ActorView]]()
    for name, actors in tables.items():
        seen = actors.seen()
        newest = max([newest, *(actor.policy_version for actor in seen)])
        last = heapq.nsmallest(_MOST_TOLD, [*last, *((name, actor) for actor in seen)], lambda told: told[1].last_seen_s)
    told: dict[str, list[ActorView]] = {}
    for name, actor in last:
        told.setdefault(name, []).append(actor)
    return {name: tuple(seen) for name, seen in told.items()}, newest
