"""How the segments of a table fit together: ids, positions, and the steps of episodes across them."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from replaysvc.maintenance.examine import Examined
from replaysvc.storage.records import INDEX_DTYPE, NEXT_IDS
from replaysvc.types import Array

_ENDED = 3  # flags of a chunk that ends its episode


def misfits(examined: Sequence[tuple[int, Examined]]) -> Iterator[tuple[int, str]]:
    """Yields what contradicts itself: (number of the segment, -1 for the table; sentence).

    `examined`: first chunk id by its name, and what was found, of each segment, in order of the ids.
    """
    for i, ((_, found), (first, following)) in enumerate(pairwise(examined)):
        if len(found.index) and found.index["chunk_id"][-1] >= first:
            yield i, f"chunk {found.index['chunk_id'][-1]}: expected ids below {first} only"
        if found.footer is not None and following.description is not None:
            for name in NEXT_IDS:
                end, begin = found.footer[name], following.description[name]
                if end > begin:
                    yield i + 1, f"its description: expected {name} from {end} on, found {begin}"
    index = _whole_index(examined)
    ends = index["position"] + index["n_steps"]
    for at in np.flatnonzero(index["position"][1:] < ends[:-1]).tolist():
        yield (
            -1,
            f"chunk {index['chunk_id'][at + 1]}: expected a position from {ends[at]} on, found {index['position'][at + 1]}",
        )
    index, same, begins, ends = _by_episode(index)
    for at in np.flatnonzero(same & (begins < ends)).tolist():
        one, other = index[at], index[at + 1]
        yield (
            -1,
            f"episode {one['episode_id']}: chunk {other['chunk_id']} begins at step {begins[at]}, but chunk"
            f" {one['chunk_id']} before it ends at {ends[at]}",
        )
    for at in np.flatnonzero(same & ((index["flags"][:-1] & _ENDED) != 0)).tolist():
        yield -1, f"episode {index['episode_id'][at]}: chunk {index['chunk_id'][at + 1]} comes after its end"


def oddities(examined: Sequence[tuple[int, Examined]]) -> Iterator[tuple[int, str]]:
    """Yields what is worth knowing, as `misfits` does."""
    for i, (_, found) in enumerate(examined[:-1]):
        if not found.sealed and not found.damage:
            yield i, "it is not sealed, though newer ones follow"
    index, same, begins, ends = _by_episode(_whole_index(examined))
    gaps = np.unique(index["episode_id"][1:][same & (begins > ends)]).tolist()
    if gaps:
        yield -1, f"steps are missing within {some('episode', gaps)}: chunks between others were lost or removed"


def some(what: str, numbers: Iterable[int]) -> str:
    """Returns the first of some numbers, and how many there are, for a sentence."""
    listed = list(numbers)
    shown = ", ".join(map(str, listed[:5]))
    return f"{what} {shown}" if len(listed) == 1 else f"{len(listed)} {what}s ({shown}{', ...' if len(listed) > 5 else ''})"


def _whole_index(examined: Sequence[tuple[int, Examined]]) -> Array:
    return np.concatenate([np.empty(0, INDEX_DTYPE), *(found.index for _, found in examined)])


def _by_episode(index: Any) -> tuple[Any, Array, Array, Array]:
    """Returns the records in order of episodes, and of each but the last: whether the next is of the same episode, at which
    step that begins, and where this one ends."""
    index = index[np.lexsort((index["chunk_id"], index["episode_id"]))]
    same = index["episode_id"][1:] == index["episode_id"][:-1]
    return index, same, index["first_step"][1:], (index["first_step"] + index["n_steps"])[:-1]
