"""What goes and what is remembered: capacity, deletion, the disk space of both, and the state of samplers and limiter."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from replaysvc.checks import check_number
from replaysvc.chunk_steps import choose_chunk_steps
from replaysvc.errors import InvalidRequestError, ReplayError
from replaysvc.index.episode_records import forget_lost
from replaysvc.index.table_index import DELETED
from replaysvc.limiter import check_chunk
from replaysvc.options import Limiter, Remover
from replaysvc.sampling.drawing import BLOCK
from replaysvc.table import sampler_state
from replaysvc.table.committer import Committer
from replaysvc.table.core import Core
from replaysvc.table.removal import remove_episodes, remove_excess
from replaysvc.types import Array

log = logging.getLogger(__name__)

_IDLE_EPISODE_S = 3600.0  # an open episode whose steps are all removed is given up when its writer was silent for so long
_RECLAIM_SHARE = 4  # the disk is looked through for space when a segment's share of bytes was removed
_BLOCKS = 32  # of priorities, half a MB each, that are copied under the lock at a time


class Upkeep:
    """Removes, deletes and saves for one table. What touches files runs on the committer's thread, but for state files."""

    def __init__(self, core: Core, committer: Committer) -> None:
        self._core, self._committer = core, committer
        self._holes = 0  # bytes that were removed since the disk was looked through for space
        self._saved: dict[str, Any] | None = None  # what was saved last, but for priorities

    def remove_excess(self) -> None:
        """Removes what is over capacity; segments that hold nothing else leave the disk."""
        core = self._core
        with core.changed:
            before, steps = core.index.stored_bytes, core.index.live_steps
            if not remove_excess(core.index, core.samplers, core.config):
                return
            core.counting.removed["capacity"] += steps - core.index.live_steps
            self._holes += before - core.index.stored_bytes
            kept = core.index.first_chunk_id
            self._forget_removed_episodes()
            core.changed.notify_all()
        self._give_back(kept)
        self._reclaim()

    def _reclaim(self, *, at_once: bool = False) -> None:
        """Gives back the disk space of what was taken out of the middle, when there may be enough of it. The committer's."""
        core = self._core
        with core.changed:
            chunks = core.index.chunks
            if not at_once and self._holes * _RECLAIM_SHARE < core.config.full_segment_bytes:
                return
            live = chunks["chunk_id"][(chunks["flags"] & DELETED) == 0]
        if self._note_removed():
            self._holes = 0
            core.store.reclaim(live)

    def _give_back(self, kept: int | None) -> None:
        """Removes the segments that hold only chunks before `kept`."""
        store = self._core.store
        if kept is not None and store.count_before(kept) and self._note_removed():
            store.remove_before(kept)

    def _note_removed(self) -> bool:
        """Saves what was removed, before any of it leaves the disk: else, of an episode that was removed whole, a restart
        would find those chunks again that still lie in other segments. Returns whether that is so."""
        core = self._core
        if core.config.remover is Remover.OLDEST_STEPS and core.config.capacity_episodes is None and not core.has_holes:
            return True  # steps go one by one, and a restart removes those anew that come back
        try:
            self._save_removed()
        except ReplayError as error:
            log.error("table %s: no space is given back, since what was removed cannot be noted: %s", core.name, error)
            return False
        return True

    def _save_removed(self, more: sampler_state.State | None = None) -> None:
        """Saves what was removed, all else but the priorities, and `more`. Raises CapacityError, StorageError."""
        core = self._core
        with core.state_lock:
            with core.changed:
                state = sampler_state.take(core)
            core.store.write_states(state.pack() | (more.pack() if more is not None else {}))
            self._saved = state.main

    def delete_episodes(self, episode_ids: Any, *, open_episodes: bool = False) -> int:
        """Deletes episodes, durably, and returns how many of them were there. All or none.

        Raises:
          InvalidRequestError: one is open, and `open_episodes` is not set; or no id at all.
        """
        ids = np.unique([check_number("episode_ids", number, 0, (1 << 63) - 1) for number in episode_ids]).astype(np.int64)
        return int(self._committer.run(lambda: self._delete(ids, open_episodes)))

    def _delete(self, ids: Array, open_episodes: bool) -> int:
        core = self._core
        with core.changed:
            core.check_open()
            ids = ids[(ids >= core.index.episodes.base) & (ids < core.index.episodes.end)]
            first_row, _, closed = core.index.episode_state(ids)
            ids, closed = ids[first_row >= 0], closed[first_row >= 0]
            if not closed.all() and not open_episodes:
                raise InvalidRequestError(
                    f"episode_ids: expected closed episodes, found {int(ids[~closed][0])}, which is open; "
                    "open_episodes=True deletes such, too, and a writer that goes on with one is refused"
                )
        if not ids.size:
            return 0
        if core.config.bounded:  # there will be room for steps that capacity removed: a restart must not let them in again
            self._save_removed()
        core.store.delete_episodes(ids)
        gone = set(ids.tolist())
        with core.changed:
            core.check_open()
            before, steps = core.index.stored_bytes, core.index.live_steps
            remove_episodes(core.index, core.samplers, ids)
            self._holes += before - core.index.stored_bytes
            core.counts["deleted_episodes"] += len(ids)
            core.counting.removed["deleted"] += steps - core.index.live_steps
            for name in [name for name, episode in core.open_episodes.items() if episode.episode_id in gone]:
                del core.open_episodes[name]
                core.leases.end(name)
            kept = core.index.first_chunk_id
            self._forget_removed_episodes()
            core.changed.notify_all()
        self._give_back(kept)
        self._reclaim(at_once=True)
        return len(ids)

    def compact(self) -> int:
        """Gives back the disk space of removed and deleted steps, one segment at a time; returns the bytes that came back."""
        freed = 0
        while more := int(self._committer.run(self._reclaim_all)):
            freed += more
        return freed

    def _reclaim_all(self) -> int:
        core = self._core
        with core.changed:
            core.check_open()
            chunks = core.index.chunks
            live = chunks["chunk_id"][(chunks["flags"] & DELETED) == 0]
        return core.store.reclaim(live) if self._note_removed() else 0

    def note_damage(self, chunk_id: int, reason: str) -> None:
        """Leaves a chunk out from now on that somebody found to be damaged."""
        core = self._core
        with core.changed:
            core.check_open()
            chunks = core.index.chunks
            at = int(np.searchsorted(chunks["chunk_id"], chunk_id))
            if at == len(chunks) or chunks["chunk_id"][at] != chunk_id or not core.mark_dead(at + chunks.base):
                return  # removed meanwhile, or known already
            core.counts["corrupt"] += 1
            core.changed.notify_all()
        core.store.quarantine_chunk(chunk_id, reason)

    def _forget_removed_episodes(self) -> None:
        """Drops what is known of episodes of which no step is left, unless a writer may still go on with them."""
        core = self._core
        idle = [
            name
            for name in core.leases.silent(_IDLE_EPISODE_S)
            if name in core.open_episodes and core.index.is_removed(core.open_episodes[name].episode_id)
        ]
        for name in idle:
            del core.open_episodes[name]
            core.leases.end(name)
        core.index.forget_episodes_before(
            min((e.episode_id for e in core.open_episodes.values()), default=core.next_episode_id)
        )
        forget_lost(core.index)
        base = core.index.episodes.base
        for name in [name for name, number in core.lost.items() if number < base]:
            del core.lost[name]

    def set_limiter(self, limiter: Limiter) -> None:
        """Puts another limiter in the place of the table's, durably; who waits is asked anew.

        Raises:
          InvalidRequestError: a chunk could never be let in, or it asks for more steps than the table keeps.
        """
        core = self._core
        check_chunk(limiter, choose_chunk_steps(core.signature, core.config))
        with core.changed:
            core.check_open()
            core.config = core.config.limited(limiter)
            core.limiter.set_options(limiter)
            core.changed.notify_all()
        self.save_state()

    def set_capacity(
        self, *, capacity_steps: int | None, capacity_bytes: int | None, capacity_episodes: int | None
    ) -> None:
        """Puts other bounds in the place of the table's, durably, and removes what is over them at once.

        Raises:
          InvalidRequestError: a bound out of range, or of fewer steps than the limiter asks for; nothing is changed.
          CapacityError, StorageError: that cannot be noted now; nothing is changed.
        """
        bounds = {
            "capacity_steps": capacity_steps, "capacity_bytes": capacity_bytes, "capacity_episodes": capacity_episodes,
        }  # fmt: skip
        self._committer.run(lambda: self._set_capacity(bounds))  # where nothing else is removed meanwhile

    def _set_capacity(self, bounds: Mapping[str, Any]) -> None:
        core = self._core
        with core.changed:
            core.check_open()
            before = core.config
            core.config = replace(before, **bounds)
        try:  # with what the old bounds removed, which must not come back under larger ones
            self._save_removed(sampler_state.take_capacity(core.config))
        except BaseException:
            with core.changed:
                core.config = replace(core.config, **{name: getattr(before, name) for name in bounds})
            raise
        self.remove_excess()

    def save_state(self) -> None:
        """Saves what changed of priorities, queues, counts and generator: all of it, some blocks of priorities at a time."""
        core = self._core
        with self._core.state_lock:
            with core.changed:
                core.check_open()
                state, tail = sampler_state.take(core), core.index.tail
                changed = core.samplers.take_changed_blocks()
            try:
                if state.main != self._saved or changed:
                    core.store.write_states(state.pack())
                    self._saved = state.main
                while changed:
                    with core.changed:  # not for long: batches are drawn meanwhile
                        blocks = sampler_state.take_blocks(core, changed[:_BLOCKS])
                    core.store.write_states(blocks.pack())
                    changed = changed[_BLOCKS:]
                for name in sampler_state.stale(core.store, tail, BLOCK):
                    core.store.drop_state(name)
            except ReplayError:
                with core.changed:
                    core.samplers.put_back_blocks(changed)
                raise

    def whole_state(self) -> dict[str, bytes]:
        """Returns all state files as of now, for a snapshot."""
        core = self._core
        with core.changed:
            core.check_open()
            state = sampler_state.take(core)
            blocks = sampler_state.take_blocks(core, core.samplers.all_blocks())
            capacity = sampler_state.take_capacity(core.config)
        return state.pack() | blocks.pack() | capacity.pack()
