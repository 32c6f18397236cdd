"""What a table's index tells of single episodes: their ends, and the chunks that hold them.

Not thread-safe: the table's lock is held around every call.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from replaysvc.errors import ChunkCorruptError, InvalidRequestError, NotFoundError
from replaysvc.index.chunk_links import NONE
from replaysvc.index.table_index import DEAD, LOST, TRUNCATED, Added, TableIndex
from replaysvc.types import Array

_TOLD_RUNS = 4  # of steps that are damaged, and of those that can be read: an error is a sentence


def end_number(head: Any) -> Any:
    """Returns the least number for the end of a lost episode that comes after all steps before position `head`.

    Numbers of ends rise, and leave room for 4,095 between one step and the next; so it is known which steps came before an end.
    """
    return (head << 12) + 1


def end_lost(index: TableIndex, ends: Mapping[int, int]) -> Added:
    """Ends open episodes with their last stored step, as truncated since their writers are gone; `ends`: number of end by id.

    Returns them as what was added, without chunks. Those that are not known, or have an end already, are passed over.
    """
    episodes, chunks, base = index.episodes, index.chunks, index.chunks.base
    ids = np.array(sorted(number for number in ends if episodes.base <= number < episodes.end), np.int64)
    first_row, lengths, closed = index.episode_state(ids)
    here = (first_row >= 0) & ~closed
    ids, lengths, at = ids[here], lengths[here], ids[here] - episodes.base
    episodes["flags"][at] |= TRUNCATED | LOST
    rows = episodes["last_row"][at]
    chunks["flags"][rows[rows >= base] - base] |= TRUNCATED
    index.lost.update((number, ends[number]) for number in ids.tolist())
    return Added(range(chunks.end, chunks.end), ids, lengths)


def forget_lost(index: TableIndex) -> None:
    """Forgets the ends of episodes of which no step is left."""
    for number in [number for number in index.lost if index.is_removed(number)]:
        del index.lost[number]


def first_stored_step(index: TableIndex, table: str, episode_id: int) -> int:
    """Returns the first step of an episode that capacity has not removed. Raises NotFoundError."""
    at = episode_id - index.episodes.base
    if not 0 <= at < len(index.episodes) or index.episodes["first_row"][at] == NONE:
        raise NotFoundError(f"episode {episode_id} is not in table {table}")
    return int(index.first_live_step(index.episodes["first_row"][at : at + 1])[0])


def episode_chunk_rows(index: TableIndex, table: str, episode_id: int, start: int, stop: int | None) -> list[int]:
    """Returns the rows of the chunks that hold steps [start, stop) of an episode, in order.

    Raises:
      NotFoundError: no such episode. InvalidRequestError: a range outside its stored steps.
      ChunkCorruptError: a chunk of the range is damaged; names the steps that can be read.
    """
    first = first_stored_step(index, table, episode_id)
    length = int(index.episodes["length"][episode_id - index.episodes.base])
    stop = length if stop is None else stop
    if not first <= start < stop <= length:
        raise InvalidRequestError(
            f"episode {episode_id}: expected a range within its stored steps [{first}, {length}), found [{start}, {stop})"
        )
    rows = _walk(index, episode_id, start, stop)
    steps, n_steps = index.field("first_step", rows), index.field("n_steps", rows)
    whole = len(rows) and steps[0] <= start and steps[-1] + n_steps[-1] >= stop and (steps[1:] == (steps + n_steps)[:-1]).all()
    if not whole:
        raise ChunkCorruptError(f"episode {episode_id}: {_damage(index, episode_id, first, length)}")
    return rows


def _damage(index: TableIndex, episode_id: int, first: int, length: int) -> str:
    """Returns which of an episode's steps [first, length) are damaged and which can be read, in words."""
    rows = _readable(index, episode_id, first, length)
    steps = index.chunks["first_step"][rows].astype(np.int64)
    is_there = np.zeros(length - first, np.bool_)
    for step, n_steps in zip(steps.tolist(), index.chunks["n_steps"][rows].tolist(), strict=True):
        is_there[max(0, step - first) : step + n_steps - first] = True
    damaged = [f"{begin} to {end - 1}" for begin, end in _runs(~is_there, first)]
    if not damaged:  # each step is there, but a stale record stands between them
        return "its chunks do not follow each other"
    whole = [f"[{begin}, {end})" for begin, end in _runs(is_there, first)]
    return f"steps {_listed(damaged)} are damaged; {_listed(whole) if whole else 'none'} can be read"


def _runs(flags: Array, first: int) -> list[tuple[int, int]]:
    """Returns where runs of True begin and end, counted from `first`."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])))) + first
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _listed(runs: list[str]) -> str:
    more = [f"{len(runs) - _TOLD_RUNS} runs more"] if len(runs) > _TOLD_RUNS else []
    *others, last = runs[:_TOLD_RUNS] + more
    return f"{', '.join(others)} and {last}" if others else last


def stored_positions(index: TableIndex, table: str, episode_id: int, start: int, stop: int) -> tuple[Array, Array]:
    """Returns int64 [stop - start], the positions of an episode's steps [start, stop), and bool: which are stored and can be
    read.

    Raises:
      NotFoundError: no such episode. InvalidRequestError: a range outside its steps.
    """
    first = first_stored_step(index, table, episode_id)
    length = int(index.episodes["length"][episode_id - index.episodes.base])
    if not 0 <= start < stop <= length:
        raise InvalidRequestError(
            f"episode {episode_id}: expected a range within its steps [0, {length}), found [{start}, {stop})"
        )
    positions, there = np.zeros(stop - start, np.int64), np.zeros(stop - start, np.bool_)
    begin = max(start, first)
    rows = _walk(index, episode_id, begin, stop) if begin < stop else []
    fields = (index.field(name, rows).tolist() for name in ("first_step", "n_steps", "position"))
    for step, n_steps, position in zip(*fields, strict=True):
        low, high = max(step, begin), min(step + n_steps, stop)
        positions[low - start : high - start] = np.arange(low, high) + (position - step)
        there[low - start : high - start] = True
    return positions, there


def _walk(index: TableIndex, episode_id: int, start: int, stop: int) -> list[int]:
    """Returns the readable chunk rows with steps of [start, stop) of an episode."""
    next_row, step, n_steps = index.chunks["next_row"], index.chunks["first_step"], index.chunks["n_steps"]
    base, rows = index.chunks.base, []
    row = int(index.locate(np.array([episode_id]), np.array([start]))[0])
    while row != NONE and step[row - base] < stop:
        rows.append(row)
        row = int(next_row[row - base])
    if rows and step[rows[-1] - base] + n_steps[rows[-1] - base] >= stop:
        return rows
    # the chain is cut by a lost chunk: look at all
    found: list[int] = (_readable(index, episode_id, start, stop) + base).tolist()
    return found


def _readable(index: TableIndex, episode_id: int, start: int, stop: int) -> Array:
    """Returns the places of the readable chunks with steps of [start, stop) of an episode."""
    step, n_steps = index.chunks["first_step"], index.chunks["n_steps"]
    readable = (index.chunks["episode_id"] == episode_id) & ((index.chunks["flags"] & DEAD) == 0)
    return np.flatnonzero(readable & (step < stop) & (step + n_steps > start))


def parse_metadata(encoded: bytes) -> dict[str, Any]:
    """Returns the metadata of an episode as its writer gave them; what is no JSON object reads as empty."""
    if not encoded:
        return {}
    try:
        value = json.loads(encoded)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
