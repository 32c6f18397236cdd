"""The index of a table in RAM: which chunks and episodes there are, in arrays that whole batches are resolved in.

About 110 bytes a chunk and 60 an episode. Chunk rows stand in commit order, so positions rise with rows and a position is
found by binary search. Episode row = episode id. Not thread-safe: the table's lock is held around every call.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from replaysvc.index.chunk_links import NONE, find_depth, find_step, jump_lengths
from replaysvc.index.columns import Columns
from replaysvc.index.fields import ALONE, EPISODE_FIELDS, STORED, TOGETHER
from replaysvc.storage import EpisodeEntry, LoadedTable
from replaysvc.types import Array

_UNKNOWN = -2  # actor of an episode whose entry is lost, or not there yet
TERMINATED, TRUNCATED = 1, 2  # flags of a chunk, about its last step, and of an episode
DEAD = 4  # flag of a chunk that can no longer be read: never drawn, and windows end before it
DELETED = 8  # flag of a chunk that was taken out on purpose; DEAD, too
LOST = 16  # flag of an episode that the service ended, since its writer was gone; TRUNCATED, too


class Added(NamedTuple):
    """What an append added: `rows` of chunks, of episodes `episode_ids` (int64, each once) that had `lengths` steps before."""

    rows: range
    episode_ids: Array
    lengths: Array


class TableIndex:
    """Chunks and episodes of one table, and the range of positions [tail, head) that is offered for sampling."""

    def __init__(self, loaded: LoadedTable) -> None:
        self.chunks = Columns(ALONE, together=TOGETHER)
        self._actors: list[str] = []
        self._actor_numbers: dict[str, int] = {}
        self.lost: dict[int, int] = {}  # of episodes with LOST: the number of their end, as they came to it
        self.head = self.tail = self.live_steps = self.stored_bytes = self.fallbacks = self.episode_count = 0
        ids = [int(loaded.index["episode_id"].min())] if len(loaded.index) else []
        ids += [min(entry.episode_id for entry in loaded.episodes)] if loaded.episodes else []
        self.episodes = Columns(EPISODE_FIELDS, base=min(ids, default=loaded.next_episode_id))
        self._make_episodes(loaded.next_episode_id)
        entries = {entry.episode_id: entry for entry in loaded.episodes}
        if len(loaded.index):
            self.tail = self.head = int(loaded.index["position"][0])
            self.add(loaded.index, list(entries.values()))
        self.head = loaded.next_position
        if not self.live_steps:
            self.tail = self.head

    # -- adding -------------------------------------------------------------------------------------------------------

    def add(self, index: Array, entries: Sequence[EpisodeEntry]) -> "Added":
        """Adds chunks in commit order and the entries of the episodes that begin with them."""
        first, count = self.chunks.end, len(index)
        next_id = int(index["episode_id"].max()) + 1
        self._make_episodes(next_id)
        episodes, base = self.episodes, self.episodes.base
        for entry in entries:
            if entry.episode_id >= base:
                episodes["actor"][entry.episode_id - base] = self._new_actor_number(entry.actor)
                episodes["started_at_s"][entry.episode_id - base] = entry.started_at_s
        values: dict[str, Array] = {name: index[name] for name in STORED}
        unset = np.full(count, NONE)
        values |= dict.fromkeys(("next_row", "prev_row", "location"), unset)
        values |= {"jump_row": first + np.arange(count), "depth": np.zeros(count, np.int32), "slot": np.zeros(count, np.int32)}
        self.chunks.append(values)
        touched, before = self._link(index, first)
        self.stored_bytes += int(index["stored_bytes"].sum(dtype=np.int64))
        self.fallbacks += int(index["fallbacks"].sum(dtype=np.int64))
        self.live_steps += int(index["n_steps"].sum(dtype=np.int64))
        if self.live_steps and self.tail == self.head:
            self.tail = int(index["position"][0])
        self.head = int(index["position"][-1] + index["n_steps"][-1])
        return Added(range(first, first + count), touched, before)

    def _link(self, index: Array, first: int) -> tuple[Array, Array]:
        """Links new chunks to their predecessors, old and new, and brings the episodes up to date.

        Returns the ids of the episodes and their lengths before.
        """
        order = np.lexsort((index["first_step"], index["episode_id"]))
        ids, steps, n_steps = index["episode_id"][order], index["first_step"][order], index["n_steps"][order]
        rows = first + order
        starts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
        stops = np.concatenate((starts[1:], [len(ids)])) - 1
        follows = (ids[1:] == ids[:-1]) & (steps[1:] == steps[:-1] + n_steps[:-1])
        next_row, base = self.chunks["next_row"], self.chunks.base
        next_row[rows[:-1][follows] - base] = rows[1:][follows]

        episodes, at = self.episodes, ids[starts] - self.episodes.base
        last_row, length = episodes["last_row"][at], episodes["length"][at]
        known = (last_row >= base) & (length == steps[starts])
        known &= (self.chunks["flags"][np.where(known, last_row, base) - base] & DEAD) == 0
        next_row[last_row[known] - base] = rows[starts][known]
        self._link_back(rows, follows, starts, np.where(known, last_row, NONE))
        fresh = episodes["first_row"][at] == NONE
        self.episode_count += int(fresh.sum())
        episodes["first_row"][at[fresh]] = rows[starts][fresh]
        new = length == 0
        episodes["policy_version"][at[new]] = index["policy_version"][order][starts][new]
        episodes["last_row"][at] = rows[stops]
        episodes["length"][at] = steps[stops] + n_steps[stops]
        episodes["return_"][at] = index["return_after"][order][stops]
        episodes["flags"][at] |= index["flags"][order][stops].astype(np.uint8)
        return ids[starts], length

    def _link_back(self, rows: Array, follows: Array, starts: Array, parent: Array) -> None:
        """Sets prev_row, jump_row and depth of new chunks `rows`, sorted by episode and step.

        `follows` [n-1]: which follows the one before it; `starts`: where episodes begin; `parent`: their last old row or NONE.
        """
        base, count = self.chunks.base, len(rows)
        prev_row, jump_row, depth = self.chunks["prev_row"], self.chunks["jump_row"], self.chunks["depth"]
        joined = np.concatenate(([False], follows))
        begin = np.maximum.accumulate(np.where(joined, 0, np.arange(count)))  # of each one's unbroken run
        before = np.full(count, NONE)
        before[starts] = parent  # a run that does not begin its episode follows a lost chunk, and so nothing
        root = before[begin]
        known = root >= 0
        first_depth = np.where(known, depth[np.where(known, root, base) - base] + 1, 0)
        here = first_depth + np.arange(count) - begin
        prev_row[rows - base] = np.where(joined, rows[np.arange(count) - 1], root)
        depth[rows - base] = here
        wanted = here - jump_lengths(here)
        new = wanted >= first_depth
        target = rows[np.where(new, begin + wanted - first_depth, 0)]
        if not new.all():
            old = np.flatnonzero(~new)
            target[old] = find_depth(root[old], wanted[old], depth, prev_row, jump_row, base)
        jump_row[rows - base] = target

    def _make_episodes(self, end: int) -> None:
        count = end - self.episodes.end
        if count > 0:
            empty = {name: np.zeros(count, code) for name, code in EPISODE_FIELDS.items()}
            unset = {"first_row": np.full(count, NONE), "last_row": np.full(count, NONE), "actor": np.full(count, _UNKNOWN)}
            self.episodes.append(empty | unset)

    def actor(self, number: int) -> str:
        """Returns the name that an episode's `actor` field stands for."""
        return self._actors[number] if number >= 0 else ""

    def actor_number(self, actor: str) -> int:
        """Returns what stands for an actor in the episodes' field; NONE for one that never wrote."""
        return self._actor_numbers.get(actor, NONE)

    def _new_actor_number(self, actor: str) -> int:
        number = self._actor_numbers.setdefault(actor, len(self._actors))
        if number == len(self._actors):
            self._actors.append(actor)
        return number

    # -- removing -----------------------------------------------------------------------------------------------------

    def remove_excess(self, capacity_steps: int | None, capacity_bytes: int | None) -> Array | None:
        """Moves the tail so that the bounds hold, whatever the newest chunk alone.

        Returns the ids of the episodes that lost steps, None if none did.
        """
        rows = 0
        if capacity_bytes is not None and self.stored_bytes > capacity_bytes:
            rows = self._rows_holding(self.chunks["stored_bytes"], self.stored_bytes - capacity_bytes)
        tail = self.tail
        if (rows := min(rows, len(self.chunks) - 1)) > 0:
            tail = max(tail, int(self.chunks["position"][rows]))
        if capacity_steps is not None and self.live_steps > capacity_steps:
            tail = max(tail, self._tail_without(self.live_steps - capacity_steps))
        return self.remove_before(tail) if tail > self.tail else None

    def remove_before(self, tail: int) -> Array:
        """Moves the tail forward to `tail`; returns the ids of the episodes that lost steps."""
        self.live_steps -= self._live_between(self.tail, tail)
        touched = np.unique(self.chunks["episode_id"][: int(np.searchsorted(self.chunks["position"], tail))])
        self.tail = tail
        self._drop_rows()
        return touched

    @staticmethod
    def _rows_holding(sizes: Array, wanted: int) -> int:
        """Returns how many of the first rows together hold at least `wanted`; looks at no more of them than it must."""
        count = 64
        while True:
            total = np.cumsum(sizes[:count], dtype=np.int64)
            if total[-1] >= wanted or count >= len(sizes):
                return int(np.searchsorted(total, wanted)) + 1
            count *= 8

    def _tail_without(self, steps: int) -> int:
        """Returns the position before which `steps` live steps stand, from the present tail on."""
        at = self.tail
        row = self.row_of(np.array([at]))[0] - self.chunks.base
        position, n_steps, flags = self.chunks["position"], self.chunks["n_steps"], self.chunks["flags"]
        while steps > 0 and row < len(self.chunks):
            at = max(at, int(position[row]))
            if not flags[row] & DEAD:
                taken = min(steps, int(position[row] + n_steps[row]) - at)
                steps, at = steps - taken, at + taken
            if steps > 0:
                row += 1
        return at

    def _live_between(self, start: int, stop: int) -> int:
        last = int(np.searchsorted(self.chunks["position"], stop))
        position, end = self.chunks["position"][:last], self.chunks["position"][:last] + self.chunks["n_steps"][:last]
        live = (self.chunks["flags"][:last] & DEAD) == 0
        return int((np.clip(np.minimum(end, stop) - np.maximum(position, start), 0, None) * live).sum())

    def _drop_rows(self) -> None:
        """Forgets chunks that lie wholly before the tail, but never the newest."""
        gone = int(self.chunks["position"].searchsorted(self.tail))  # begin before it; of the last of them a part may stay
        if gone and int(self.chunks["position"][gone - 1]) + int(self.chunks["n_steps"][gone - 1]) > self.tail:
            gone -= 1
        gone = min(gone, len(self.chunks) - 1)
        if gone <= 0:
            return
        self.stored_bytes -= int(self.chunks["stored_bytes"][:gone].sum(dtype=np.int64))
        self.fallbacks -= int(self.chunks["fallbacks"][:gone].sum(dtype=np.int64))
        base = self.episodes.base
        present = (self.chunks["flags"][:gone] & DELETED) == 0
        at, successor = self.chunks["episode_id"][:gone][present] - base, self.chunks["next_row"][:gone][present]
        self.chunks.remove_to(self.chunks.base + gone)
        first_row, last_row = self.episodes["first_row"], self.episodes["last_row"]
        first_row[at] = successor  # of repeated episodes the last assignment holds
        touched = np.unique(at)
        cut = touched[first_row[touched] < self.chunks.base]  # nothing linked is left: gone, or cut by a chunk that was lost
        alive = last_row[cut] >= self.chunks.base
        first_row[cut] = NONE
        if alive.any():  # the way on is lost: the first that is left is looked for
            left = (self.chunks["flags"] & DELETED) == 0
            rows = np.flatnonzero(left & np.isin(self.chunks["episode_id"], cut[alive] + base))
            ids, first = np.unique(self.chunks["episode_id"][rows], return_index=True)
            first_row[ids - base] = rows[first] + self.chunks.base
            alive = first_row[cut] != NONE
        self.episode_count -= int((~alive).sum())

    def is_removed(self, episode_id: int) -> bool:
        """Returns whether no step of the episode is left."""
        at = episode_id - self.episodes.base
        return at < 0 or bool(self.episodes["first_row"][at] == NONE)

    def forget_episodes_before(self, episode_id: int) -> None:
        """Gives back the memory of removed episodes at the old end, up to `episode_id`, which may still be written."""
        present = np.flatnonzero(self.episodes["first_row"] != NONE)
        first = self.episodes.base + int(present[0]) if present.size else self.episodes.end
        self.episodes.remove_to(min(first, episode_id))

    def runs(self) -> list[tuple[int, int]]:
        """Returns the ranges of positions that are offered for sampling, in order: one, unless chunks were lost or deleted."""
        live = (self.chunks["flags"] & DEAD) == 0
        start = np.maximum(self.chunks["position"], self.tail)[live]
        stop = (self.chunks["position"] + self.chunks["n_steps"])[live]
        start, stop = start[start < stop], stop[start < stop]
        if not len(start):
            return []
        first = np.concatenate(([True], start[1:] != stop[:-1]))
        last = np.concatenate((first[1:], [True]))
        return list(zip(start[first].tolist(), stop[last].tolist(), strict=True))

    # -- finding ------------------------------------------------------------------------------------------------------

    def row_of(self, positions: Array) -> Array:
        """Returns the chunk rows that hold `positions`, or would if they were not lost; see `drawable`."""
        found = self.chunks["position"].searchsorted(positions, side="right")
        found -= 1
        rows: Array = np.maximum(found, 0, out=found)
        rows += self.chunks.base
        return rows

    def drawable(self, positions: Array, rows: Array) -> Array:
        """Returns bool: which positions can be read, as far as is known."""
        return self.offsets_of(positions, rows)[1]

    def offsets_of(self, positions: Array, rows: Array) -> tuple[Array, Array]:
        """Returns where `positions` stand in the chunks that `row_of` found for them, and which can be read (bool)."""
        at = rows - self.chunks.base
        offsets: Array = positions - self.chunks["position"].take(at)
        there = (offsets >= 0) & (offsets < self.chunks["n_steps"][at]) & ((self.chunks["flags"].take(at) & DEAD) == 0)
        return offsets, there

    def locate(self, episode_ids: Array, steps: Array) -> Array:
        """Returns the chunk rows that hold these steps of episodes; NONE where they are not stored or cannot be read."""
        chunks, base = self.chunks, self.chunks.base
        at = episode_ids - self.episodes.base
        last = self.episodes["last_row"][np.maximum(at, 0)]
        last = np.where((at >= 0) & (last >= base), last, NONE)
        rows = find_step(last, steps, chunks["first_step"], chunks["prev_row"], chunks["jump_row"], base)
        found = np.where(rows >= 0, rows - base, 0)
        inside = (chunks["first_step"][found] + chunks["n_steps"][found] > steps) & ((chunks["flags"][found] & DEAD) == 0)
        return np.where((rows >= 0) & inside, rows, NONE)

    def episode_state(self, ids: Array) -> tuple[Array, Array, Array]:
        """Returns of episodes: first stored chunk row (NONE: removed), steps so far, and whether they have an end."""
        at, episodes = ids - self.episodes.base, self.episodes
        known = at >= 0
        at = np.where(known, at, 0)
        closed = (episodes["flags"][at] & (TERMINATED | TRUNCATED)) != 0
        return np.where(known, episodes["first_row"][at], NONE), episodes["length"][at], closed

    def episode_ids(self) -> Array:
        """Returns the ids of the episodes of which steps are stored, oldest first."""
        return np.flatnonzero(self.episodes["first_row"] != NONE) + self.episodes.base

    def first_live_step(self, first_row: Array) -> Array:
        """Returns the first step that is not removed of episodes whose first stored chunks are `first_row`."""
        at = np.maximum(first_row - self.chunks.base, 0)
        step: Array = self.chunks["first_step"][at] + np.maximum(self.tail - self.chunks["position"].take(at), 0)
        return step

    def field(self, name: str, rows: Array | Sequence[int]) -> Array:
        """Returns one field of chunk rows, a copy."""
        return self.chunks[name][np.asarray(rows, np.int64) - self.chunks.base]

    def note_cached(self, rows: Array, locations: Array, slots: Array, old_rows: Array, old_locations: Array) -> None:
        """Notes where chunks now stand in the cache, after those that they overwrote; all arrays int64 [n]."""
        location, base = self.chunks["location"], self.chunks.base
        old, was = old_rows[old_rows >= base] - base, old_locations[old_rows >= base]
        location[old[location[old] == was]] = NONE
        location[rows - base] = locations
        self.chunks["slot"][rows - base] = slots

    def forget_locations(self) -> None:
        """Notes that the cache is empty."""
        self.chunks["location"][:] = NONE

    def mark_dead(self, row: int) -> bool:
        """Notes that a chunk cannot be read; returns whether that is news. Windows end before it from now on."""
        at = row - self.chunks.base
        if at < 0 or self.chunks["flags"][at] & DEAD:
            return False
        self._take_out(np.array([at]), DEAD)
        for link, back in (("next_row", "prev_row"), ("prev_row", "next_row")):
            neighbour = int(self.chunks[link][at]) - self.chunks.base
            if neighbour >= 0:
                self.chunks[back][neighbour] = NONE
        return True

    def _take_out(self, at: Array, flags: int) -> None:
        """Sets flags of chunks that were live until now."""
        begin = np.maximum(self.chunks["position"][at], self.tail)
        self.live_steps -= int(np.maximum(self.chunks["position"][at] + self.chunks["n_steps"][at] - begin, 0).sum())
        self.chunks["flags"][at] |= flags

    def take_out_episodes(self, ids: Array) -> Array:
        """Takes out whole episodes of which steps are stored; returns the rows of their chunks that were live.

        `drop_deleted` gives their rows back, where they stand at the old end.
        """
        chunks, base, episodes = self.chunks, self.chunks.base, self.episodes
        at = ids - episodes.base
        start, stop = int(episodes["first_row"][at].min()) - base, int(episodes["last_row"][at].max()) + 1 - base
        every = np.flatnonzero(np.isin(chunks["episode_id"][start:stop], ids)) + start
        live = every[(chunks["flags"][every] & DEAD) == 0]
        self._take_out(live, DEAD)
        chunks["flags"][every] |= DELETED
        self.stored_bytes -= int(chunks["stored_bytes"][every].sum(dtype=np.int64))
        self.fallbacks -= int(chunks["fallbacks"][every].sum(dtype=np.int64))
        chunks["stored_bytes"][every] = chunks["fallbacks"][every] = 0
        episodes["first_row"][at] = NONE
        self.episode_count -= len(ids)
        rows: Array = live + base
        return rows

    def newest_episode(self) -> int:
        """Returns the id of the episode of the newest chunk."""
        return int(self.chunks["episode_id"][-1])

    def oldest_other_episode(self) -> int:
        """Returns the id of the oldest episode of which steps are stored, besides `newest_episode`; there are two at least."""
        present = self.episodes["first_row"] != NONE
        first = int(np.argmax(present))
        if first + self.episodes.base == self.newest_episode():
            first += 1 + int(np.argmax(present[first + 1 :]))
        return first + self.episodes.base

    def drop_deleted(self) -> None:
        """Moves the tail past what was taken out at the old end."""
        flags, count = self.chunks["flags"], 64
        while count < len(flags) and (flags[:count] & DELETED).all():
            count *= 8
        kept = np.flatnonzero((flags[:count] & DELETED) == 0)
        self.tail = max(self.tail, int(self.chunks["position"][kept[0]]) if kept.size else self.head)
        self._drop_rows()

    @property
    def first_chunk_id(self) -> int | None:
        """Returns the id of the oldest chunk that is kept."""
        return int(self.chunks["chunk_id"][0]) if len(self.chunks) else None
