"""What goes when a table is over its capacity, and what somebody deletes. The table's lock is held around every call."""

import numpy as np

from replaysvc.config import TableConfig
from replaysvc.index.table_index import DEAD, TableIndex
from replaysvc.options import Prioritized, Remover
from replaysvc.sampling.drawing import Samplers
from replaysvc.types import Array


def remove_excess(index: TableIndex, samplers: Samplers, config: TableConfig) -> bool:
    """Removes what is over capacity, by the table's remover; never the newest chunk. Returns whether anything went."""
    went = False
    if config.remover is Remover.LOWEST_PRIORITY and _is_over(index, config):
        chosen = _lowest(index, samplers, config)
        if chosen.size:
            remove_episodes(index, samplers, chosen)
            went = True
    while _is_over(index, config) and (config.remover is not Remover.OLDEST_STEPS or _too_many_episodes(index, config)):
        if index.episode_count < 2:
            break  # a single episode loses its oldest steps
        remove_episodes(index, samplers, np.array([index.oldest_other_episode()]))
        went = True
    touched = index.remove_excess(config.capacity_steps, config.capacity_bytes)
    if touched is not None:
        samplers.remove_before(index.tail, touched)
    return went or touched is not None


def remove_episodes(index: TableIndex, samplers: Samplers, ids: Array) -> None:
    """Takes whole episodes, of which steps are stored, out of the index and the samplers."""
    rows = index.take_out_episodes(ids)
    samplers.take_out(rows, ids)
    tail = index.tail
    index.drop_deleted()
    if index.tail != tail:
        samplers.remove_before(index.tail, ids)


def _too_many_episodes(index: TableIndex, config: TableConfig) -> bool:
    return config.capacity_episodes is not None and index.episode_count > config.capacity_episodes


def _is_over(index: TableIndex, config: TableConfig) -> bool:
    steps, size = config.capacity_steps, config.capacity_bytes
    over = (steps is not None and index.live_steps > steps) or (size is not None and index.stored_bytes > size)
    return over or _too_many_episodes(index, config)


def _lowest(index: TableIndex, samplers: Samplers, config: TableConfig) -> Array:
    """Returns the closed episodes to remove, as few as must be: those whose highest priority is lowest, first the oldest.

    O(steps).
    """
    chunks = index.chunks
    live = np.flatnonzero((chunks["flags"] & DEAD) == 0)
    start = np.maximum(chunks["position"][live], index.tail)
    steps = chunks["position"][live] + chunks["n_steps"][live] - start
    live, start, steps = live[steps > 0], start[steps > 0], steps[steps > 0]
    if not live.size:
        return np.empty(0, np.int64)
    name = next(name for name, sampler in samplers.options.items() if isinstance(sampler, Prioritized))
    tree = samplers.priorities_of(name).tree
    leaves = tree.get(np.arange(index.tail, index.head))
    by_chunk = np.maximum.reduceat(leaves, start - index.tail)  # positions between chunks are lost, and 0
    ids, of = np.unique(chunks["episode_id"][live], return_inverse=True)
    highest = np.zeros(len(ids))
    np.maximum.at(highest, of, by_chunk)
    _, _, closed = index.episode_state(ids)
    allowed = np.flatnonzero(closed & (ids != index.newest_episode()))
    order = allowed[np.lexsort((ids[allowed], highest[allowed]))]
    freed_steps = np.cumsum(np.bincount(of, weights=steps, minlength=len(ids))[order])
    freed_bytes = np.cumsum(np.bincount(of, weights=chunks["stored_bytes"][live], minlength=len(ids))[order])
    needed = 0
    for bound, now, freed in (
        (config.capacity_steps, index.live_steps, freed_steps),
        (config.capacity_bytes, index.stored_bytes, freed_bytes),
        (config.capacity_episodes, index.episode_count, np.arange(1, len(order) + 1)),
    ):
        if bound is not None and now > bound:
            needed = max(needed, int(np.searchsorted(freed, now - bound)) + 1)
    return np.asarray(ids[order[:needed]], np.int64)
