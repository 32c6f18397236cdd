"""Ends episodes whose writers are gone, so that a dead actor leaves no episode open for ever.

An episode ends with its last stored step, as truncated: whatever followed is unknown, and a learner bootstraps. That is noted
durably before anybody sees it, so it stays ended, and its writer, should it come back, is refused.
"""

import logging
from collections.abc import Sequence

from replaysvc.index.episode_records import end_lost, end_number
from replaysvc.table import sampler_state
from replaysvc.table.committer import Committer
from replaysvc.table.core import Core
from replaysvc.table.staging import EpisodeName

log = logging.getLogger(__name__)


class Endings:
    """Ends lost episodes of one table. Thread-safe; what it does happens on the committer's thread."""

    def __init__(self, core: Core, committer: Committer) -> None:
        self._core, self._committer = core, committer

    def others_open(self, actor: str, session_id: bytes) -> list[EpisodeName]:
        """Returns the open episodes of an actor that other sessions began. The lock is held."""
        index = self._core.index
        number, base = index.actor_number(actor), index.episodes.base
        mine = [
            (name, episode.episode_id - base)
            for name, episode in self._core.open_episodes.items()
            if name[0] != session_id and episode.episode_id >= base
        ]
        return [name for name, at in mine if index.episodes["actor"][at] == number]

    def end_lost(self) -> None:
        """Ends the episodes whose leases have run out. Raises CapacityError, StorageError; then the next call tries again."""
        with self._core.changed:
            self._core.check_open()
            if not self._core.leases.expired():
                return
        self._committer.run(lambda: self._end(None))  # after what waits for its commit, which renews leases

    def end_episodes(self, names: Sequence[EpisodeName]) -> None:
        """Ends open episodes. Raises CapacityError, StorageError."""
        self._committer.run(lambda: self._end(names))

    def _end(self, names: Sequence[EpisodeName] | None) -> None:
        """Ends episodes; None: those whose leases have run out."""
        core = self._core
        with core.state_lock:  # from the look at what is noted until the new note is seen by whoever saves
            with core.changed:
                core.check_open()
                names = core.leases.expired() if names is None else names
                known = {name: core.open_episodes[name].episode_id for name in names if name in core.open_episodes}
                for name in set(names) - set(known):
                    core.leases.end(name)
                first = max(core.next_end, end_number(core.index.head))
                ends = {number: first + i for i, number in enumerate(sorted(known.values()))}
                state = sampler_state.take_lost(core.index.lost | ends)
            if not known:
                return
            core.store.write_states(state.pack())
            with core.changed:
                core.next_end = first + len(ends)
                core.samplers.update_items(end_lost(core.index, ends))
                core.lost |= known
                for name in known:
                    del core.open_episodes[name]
                    core.leases.end(name)
                core.counts["lost"] += len(known)
                core.changed.notify_all()
        core.store.end_episodes(ends)
        log.warning("table %s: %d episodes are ended as truncated: their writers are gone", core.name, len(known))

    def excuse(self, seconds: float) -> None:
        """Prolongs all leases by a time in which this process itself stood still, and could hear of nobody."""
        with self._core.changed:
            self._core.leases.excuse(seconds)
