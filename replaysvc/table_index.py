"""The index of a table in RAM: which chunks and episodes there are, in arrays that whole batches are resolved in.

About 90 bytes a chunk and 60 an episode. Chunk rows stand in commit order, so positions rise with rows and a position is
found by binary search. Episode row = episode id. Not thread-safe: the table's lock is held around every call.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from replaysvc.columns import Columns
from replaysvc.errors import InvalidRequestError, NotFoundError
from replaysvc.storage import EpisodeEntry, LoadedTable
from replaysvc.types import Array, EpisodeRecord

TERMINATED, TRUNCATED = 1, 2  # flags of a chunk, about its last step, and of an episode
DEAD = 4  # flag of a chunk that can no longer be read: never drawn, and windows end before it
NONE = -1  # no row, no location

_CHUNK_FIELDS = {
    "chunk_id": "i8",
    "position": "i8",
    "episode_id": "i8",
    "first_step": "i8",
    "n_steps": "i8",
    "next_row": "i8",
    "policy_version": "i8",
    "committed_at_s": "f8",
    "checksum": "u8",
    "stored_bytes": "u4",
    "fallbacks": "u4",
    "flags": "u1",
    "location": "i8",
    "slot": "i4",
}
_STORED_FIELDS = (
    "chunk_id",
    "position",
    "episode_id",
    "first_step",
    "n_steps",
    "policy_version",
    "committed_at_s",
    "checksum",
    "stored_bytes",
    "fallbacks",
    "flags",
)
_EPISODE_FIELDS = {
    "first_row": "i8",
    "last_row": "i8",
    "length": "i8",
    "return_": "f8",
    "policy_version": "i8",
    "started_at_s": "f8",
    "actor": "i4",
    "flags": "u1",
}


class TableIndex:
    """Chunks and episodes of one table, and the range of positions [tail, head) that is offered for sampling."""

    def __init__(self, loaded: LoadedTable) -> None:
        self.chunks = Columns(_CHUNK_FIELDS)
        self._actors: list[str] = []
        self._actor_numbers: dict[str, int] = {}
        self.head = self.tail = self.live_steps = self.stored_bytes = self.fallbacks = self.episode_count = 0
        ids = [int(loaded.index["episode_id"].min())] if len(loaded.index) else []
        ids += [min(entry.episode_id for entry in loaded.episodes)] if loaded.episodes else []
        self._episodes = Columns(_EPISODE_FIELDS, base=min(ids, default=loaded.next_episode_id))
        self._make_episodes(loaded.next_episode_id)
        entries = {entry.episode_id: entry for entry in loaded.episodes}
        if len(loaded.index):
            self.tail = self.head = int(loaded.index["position"][0])
            self.add(loaded.index, list(entries.values()))
        self.head = loaded.next_position
        if not self.live_steps:
            self.tail = self.head

    # -- adding -------------------------------------------------------------------------------------------------------

    def add(self, index: Array, entries: Sequence[EpisodeEntry]) -> range:
        """Adds chunks in commit order and the entries of the episodes that begin with them; returns the chunks' rows."""
        first, count = self.chunks.end, len(index)
        next_id = int(index["episode_id"].max()) + 1
        self._make_episodes(next_id)
        episodes, base = self._episodes, self._episodes.base
        for entry in entries:
            if entry.episode_id >= base:
                episodes["actor"][entry.episode_id - base] = self._actor_number(entry.actor)
                episodes["started_at_s"][entry.episode_id - base] = entry.started_at_s
        values: dict[str, Array] = {name: index[name] for name in _STORED_FIELDS}
        values |= {"next_row": np.full(count, NONE), "location": np.full(count, NONE), "slot": np.zeros(count, np.int32)}
        self.chunks.append(values)
        self._link(index, first)
        self.stored_bytes += int(index["stored_bytes"].sum(dtype=np.int64))
        self.fallbacks += int(index["fallbacks"].sum(dtype=np.int64))
        self.live_steps += int(index["n_steps"].sum(dtype=np.int64))
        if self.live_steps and self.tail == self.head:
            self.tail = int(index["position"][0])
        self.head = int(index["position"][-1] + index["n_steps"][-1])
        return range(first, first + count)

    def _link(self, index: Array, first: int) -> None:
        """Links new chunks to their predecessors, old and new, and brings the episodes up to date."""
        order = np.lexsort((index["first_step"], index["episode_id"]))
        ids, steps, n_steps = index["episode_id"][order], index["first_step"][order], index["n_steps"][order]
        rows = first + order
        starts = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
        stops = np.concatenate((starts[1:], [len(ids)])) - 1
        follows = (ids[1:] == ids[:-1]) & (steps[1:] == steps[:-1] + n_steps[:-1])
        next_row, base = self.chunks["next_row"], self.chunks.base
        next_row[rows[:-1][follows] - base] = rows[1:][follows]

        episodes, at = self._episodes, ids[starts] - self._episodes.base
        last_row, length = episodes["last_row"][at], episodes["length"][at]
        known = (last_row >= base) & (length == steps[starts])
        next_row[last_row[known] - base] = rows[starts][known]
        fresh = episodes["first_row"][at] == NONE
        self.episode_count += int(fresh.sum())
        episodes["first_row"][at[fresh]] = rows[starts][fresh]
        new = length == 0
        episodes["policy_version"][at[new]] = index["policy_version"][order][starts][new]
        episodes["last_row"][at] = rows[stops]
        episodes["length"][at] = steps[stops] + n_steps[stops]
        episodes["return_"][at] = index["return_after"][order][stops]
        episodes["flags"][at] |= index["flags"][order][stops].astype(np.uint8)

    def _make_episodes(self, end: int) -> None:
        count = end - self._episodes.end
        if count > 0:
            empty = {name: np.zeros(count, code) for name, code in _EPISODE_FIELDS.items()}
            self._episodes.append(empty | {"first_row": np.full(count, NONE), "last_row": np.full(count, NONE)})

    def _actor_number(self, actor: str) -> int:
        number = self._actor_numbers.setdefault(actor, len(self._actors))
        if number == len(self._actors):
            self._actors.append(actor)
        return number

    # -- removing -----------------------------------------------------------------------------------------------------

    def remove_excess(self, capacity_steps: int | None, capacity_bytes: int | None) -> int:
        """Moves the tail so that the bounds hold, whatever the newest chunk alone; returns how many steps were removed."""
        rows = 0
        if capacity_bytes is not None and self.stored_bytes > capacity_bytes:
            rows = self._rows_holding(self.chunks["stored_bytes"], self.stored_bytes - capacity_bytes)
        tail = self.tail
        if (rows := min(rows, len(self.chunks) - 1)) > 0:
            tail = max(tail, int(self.chunks["position"][rows]))
        if capacity_steps is not None and self.live_steps > capacity_steps:
            tail = max(tail, self._tail_without(self.live_steps - capacity_steps))
        if tail == self.tail:
            return 0
        removed = self._live_between(self.tail, tail)
        self.live_steps -= removed
        self.tail = tail
        self._drop_rows()
        return removed

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
        gone = min(
            int(np.searchsorted(self.chunks["position"] + self.chunks["n_steps"], self.tail, side="right")),
            len(self.chunks) - 1,
        )
        if gone <= 0:
            return
        self.stored_bytes -= int(self.chunks["stored_bytes"][:gone].sum(dtype=np.int64))
        self.fallbacks -= int(self.chunks["fallbacks"][:gone].sum(dtype=np.int64))
        base = self._episodes.base
        at, successor = self.chunks["episode_id"][:gone] - base, self.chunks["next_row"][:gone].copy()
        self.chunks.remove_to(self.chunks.base + gone)
        first_row, last_row = self._episodes["first_row"], self._episodes["last_row"]
        first_row[at] = successor  # of repeated episodes the last assignment holds
        touched = np.unique(at)
        cut = touched[first_row[touched] < self.chunks.base]  # nothing linked is left: gone, or cut by a chunk that was lost
        alive = last_row[cut] >= self.chunks.base
        first_row[cut] = np.where(alive, last_row[cut], NONE)
        self.episode_count -= int((~alive).sum())

    def is_removed(self, episode_id: int) -> bool:
        """Returns whether no step of the episode is left."""
        at = episode_id - self._episodes.base
        return at < 0 or bool(self._episodes["first_row"][at] == NONE)

    def forget_episodes_before(self, episode_id: int) -> None:
        """Gives back the memory of removed episodes at the old end, up to `episode_id`, which may still be written."""
        present = np.flatnonzero(self._episodes["first_row"] != NONE)
        first = self._episodes.base + int(present[0]) if present.size else self._episodes.end
        self._episodes.remove_to(min(first, episode_id))

    def runs(self) -> list[tuple[int, int]]:
        """Returns the ranges of positions that are stored, in order: one, unless chunks were lost."""
        start, stop = self.chunks["position"], self.chunks["position"] + self.chunks["n_steps"]
        if not len(start):
            return []
        first = np.concatenate(([True], start[1:] != stop[:-1]))
        last = np.concatenate((first[1:], [True]))
        return list(zip(start[first].tolist(), stop[last].tolist(), strict=True))

    # -- finding ------------------------------------------------------------------------------------------------------

    def row_of(self, positions: Array) -> Array:
        """Returns the chunk rows that hold `positions`, or would if they were not lost; see `drawable`."""
        found = np.searchsorted(self.chunks["position"], positions, side="right") - 1
        return np.maximum(found, 0) + self.chunks.base

    def drawable(self, positions: Array, rows: Array) -> Array:
        """Returns bool: which positions can be read, as far as is known."""
        at = rows - self.chunks.base
        offset = positions - self.chunks["position"][at]
        return np.asarray((offset >= 0) & (offset < self.chunks["n_steps"][at]) & ((self.chunks["flags"][at] & DEAD) == 0))

    def field(self, name: str, rows: Array | Sequence[int]) -> Array:
        """Returns one field of chunk rows, a copy."""
        return self.chunks[name][np.asarray(rows, np.int64) - self.chunks.base]

    def uncached(self, rows: Array) -> list[int]:
        """Returns those of `rows` that are not in the cache."""
        missing: list[int] = rows[self.field("location", rows) == NONE].tolist()
        return missing

    def locate(self, row: int, location: int, slot: int, overwritten: Sequence[tuple[int, int]]) -> None:
        """Notes where a chunk now stands in the cache, after the chunks that it overwrote."""
        locations, base = self.chunks["location"], self.chunks.base
        for old_row, old_location in overwritten:
            if old_row >= base and locations[old_row - base] == old_location:
                locations[old_row - base] = NONE
        locations[row - base] = location
        self.chunks["slot"][row - base] = slot

    def forget_locations(self) -> None:
        """Notes that the cache is empty."""
        self.chunks["location"][:] = NONE

    def mark_dead(self, row: int) -> bool:
        """Notes that a chunk cannot be read; returns whether that is news. Windows end before it from now on."""
        at = row - self.chunks.base
        if at < 0 or self.chunks["flags"][at] & DEAD:
            return False
        position, n_steps = int(self.chunks["position"][at]), int(self.chunks["n_steps"][at])
        self.live_steps -= max(0, position + n_steps - max(position, self.tail))
        self.chunks["flags"][at] |= DEAD
        next_row = self.chunks["next_row"]
        next_row[next_row == row] = NONE
        return True

    @property
    def first_chunk_id(self) -> int | None:
        """Returns the id of the oldest chunk that is kept."""
        return int(self.chunks["chunk_id"][0]) if len(self.chunks) else None

    # -- episodes -----------------------------------------------------------------------------------------------------

    def episodes(self, limit: int, before_id: int | None, actor: str | None, closed_only: bool) -> list[EpisodeRecord]:
        """Returns records without metadata, the newest episode first."""
        columns, base = self._episodes, self._episodes.base
        wanted = columns["first_row"] != NONE
        if before_id is not None:
            wanted[max(0, before_id - base) :] = False
        if actor is not None:
            wanted &= columns["actor"] == self._actor_numbers.get(actor, NONE)
        if closed_only:
            wanted &= (columns["flags"] & (TERMINATED | TRUNCATED)) != 0
        return [self._record(base + int(i)) for i in np.flatnonzero(wanted)[::-1][:limit]]

    def _record(self, episode_id: int) -> EpisodeRecord:
        row: Mapping[str, Any] = {name: self._episodes[name][episode_id - self._episodes.base] for name in _EPISODE_FIELDS}
        flags = int(row["flags"])
        return EpisodeRecord(
            episode_id=episode_id,
            actor=self._actors[row["actor"]] if self._actors else "",
            length=int(row["length"]),
            first_step=int(self.field("first_step", [row["first_row"]])[0]),
            return_=float(row["return_"]),
            terminated=bool(flags & TERMINATED),
            truncated=bool(flags & TRUNCATED),
            closed=bool(flags & (TERMINATED | TRUNCATED)),
            policy_version=int(row["policy_version"]),
            started_at_s=float(row["started_at_s"]),
            metadata={},
        )

    def episode_chunk_ids(self, table: str, episode_id: int, start: int, stop: int | None) -> tuple[Array, Array]:
        """Returns (chunk ids, stored bytes) of the chunks that hold steps [start, stop) of an episode, in order."""
        at = episode_id - self._episodes.base
        if not 0 <= at < len(self._episodes) or self._episodes["first_row"][at] == NONE:
            raise NotFoundError(f"episode {episode_id} is not in table {table}")
        row, length = int(self._episodes["first_row"][at]), int(self._episodes["length"][at])
        first = int(self.field("first_step", [row])[0])
        stop = length if stop is None else stop
        if not first <= start < stop <= length:
            raise InvalidRequestError(
                f"episode {episode_id}: expected a range within its stored steps [{first}, {length}), found [{start}, {stop})"
            )
        rows = self._walk(row, start, stop)
        steps, n_steps = self.field("first_step", rows), self.field("n_steps", rows)
        whole = (
            len(rows) and steps[0] <= start and steps[-1] + n_steps[-1] >= stop and (steps[1:] == (steps + n_steps)[:-1]).all()
        )
        if not whole:
            raise NotFoundError(f"episode {episode_id}: steps of [{start}, {stop}) are lost; a chunk of it could not be read")
        return self.field("chunk_id", rows), self.field("stored_bytes", rows).astype(np.int64)

    def _walk(self, row: int, start: int, stop: int) -> list[int]:
        """Returns the readable chunk rows with steps of [start, stop), of the episode whose first row is `row`."""
        next_row, step, n_steps = self.chunks["next_row"], self.chunks["first_step"], self.chunks["n_steps"]
        base, rows, number = self.chunks.base, [], int(self.field("episode_id", [row])[0])
        while row != NONE and step[row - base] < stop:
            if step[row - base] + n_steps[row - base] > start:
                rows.append(row)
            row = int(next_row[row - base])
        if (
            rows
            and step[rows[-1] - base] + n_steps[rows[-1] - base] >= stop
            and not (self.chunks["flags"][rows[0] - base] & DEAD)
        ):
            return rows
        # the chain is cut by a lost chunk: look at all
        readable = (self.chunks["episode_id"] == number) & ((self.chunks["flags"] & DEAD) == 0)
        within = readable & (step < stop) & (step + n_steps > start)
        found: list[int] = (np.flatnonzero(within) + base).tolist()
        return found


def parse_metadata(encoded: bytes) -> dict[str, Any]:
    """Returns the metadata of an episode as its writer gave them; what is no JSON object reads as empty."""
    if not encoded:
        return {}
    try:
        value = json.loads(encoded)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
