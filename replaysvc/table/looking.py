"""Looks at a table for whoever watches it: ages, priorities, what samplers would draw, bytes by column.

A look changes nothing: it builds no tree and no set, takes no number from the table's generator and nothing out of a queue. It
holds the lock for a millisecond at most, however much is stored, since it looks at evenly spaced steps instead of all of them.
"""

import contextlib
from dataclasses import asdict
from typing import Any

import numpy as np

from replaysvc.checks import check_number
from replaysvc.codec import read_header
from replaysvc.errors import InvalidRequestError, NotFoundError, ReplayError
from replaysvc.index.episode_list import newest_columns
from replaysvc.index.episode_records import stored_positions
from replaysvc.index.table_index import DEAD
from replaysvc.options import Prioritized, Sampler, sampler_to_json
from replaysvc.selectors import Priorities
from replaysvc.table.core import Core
from replaysvc.table.counting import ColumnBytes
from replaysvc.types import Array
from replaysvc.views import AgeView, ColumnView, DrawView, EpisodeColumns, PriorityView, SamplerView, TopStep

_MOST = 1 << 14  # steps that one look is at
_DRAWS = 256  # in one go, with the lock held
_MOST_EPISODES = 1 << 14
_MOST_EPISODE_STEPS = 1 << 14
_HEADERS_BYTES = 16 << 20  # of chunks that are read for their headers
_HEADERS_AT_ONCE = 16


class Looking:
    """Looks at one table. Thread-safe. All raise what the table was closed for."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def ages(self, n: int = 1024) -> AgeView:
        """Returns the ages of `n` evenly spaced steps, of all if there are fewer."""
        core, n = self._core, check_number("n", n, 1, _MOST)
        with core.changed:
            core.check_open()
            committed, steps = self._committed_at(self._spaced(n)), core.index.live_steps
        return AgeView(ages_s=np.sort(self._ages(committed)), steps=steps)

    def samplers(self) -> list[SamplerView]:
        """Returns the table's samplers, by name."""
        core = self._core
        with core.changed:
            core.check_open()
            built = {name: core.samplers.is_built(name) for name in core.samplers.options}
            available = {name: queue.available for name, (_, queue) in core.samplers.queues.items()}
        return [
            SamplerView(
                name=name, kind=type(sampler).__name__, options=_options(sampler), built=built[name],
                available=available.get(name),
            )
            for name, sampler in sorted(core.samplers.options.items())
        ]  # fmt: skip

    def priorities(self, sampler: str, n: int = 4096) -> PriorityView | None:
        """Returns the priorities of `n` evenly spaced steps; None: all are alike, since the sampler is not in use, or not a
        prioritized one.

        Raises:
          NotFoundError: no such sampler.
        """
        core, n = self._core, check_number("n", n, 1, _MOST)
        options = self._options(sampler)
        with core.changed:
            core.check_open()
            known = self._known(sampler)
            if known is None or not isinstance(options, Prioritized):
                return None
            leaves = known.leaves(self._spaced(n))
            total, largest = known.tree.total, known.tree.largest()
        values = known.unpowered(leaves)
        return PriorityView(
            values=values, alpha=options.alpha, zero_share=float(np.mean(values == 0)) if len(values) else 0.0,
            powered_total=total, powered_largest=largest,
        )  # fmt: skip

    def draws(self, sampler: str, n: int = 4096) -> DrawView | None:
        """Returns what `n` draws of steps give now; None if drawing would build a structure or use something up.

        Raises:
          NotFoundError: no such sampler.
        """
        core, n, rng = self._core, check_number("n", n, 1, _MOST), np.random.default_rng()
        self._options(sampler)
        committed, probability = [], []
        for count in [_DRAWS] * (n // _DRAWS) + [n % _DRAWS] * (n % _DRAWS > 0):
            with core.changed:
                core.check_open()
                drawn = core.samplers.try_draw(sampler, rng, count)
                if drawn is None:
                    return None
                kept = drawn.positions >= core.index.tail  # of an episode with a lost chunk, some are nowhere
                committed.append(self._committed_at(drawn.positions[kept]))
                probability.append(drawn.probability[kept])
                size = core.samplers.steps.size
        return DrawView(
            ages_s=self._ages(np.concatenate(committed)), probability=np.concatenate(probability),
            uniform_probability=1.0 / size,
        )  # fmt: skip

    def top(self, sampler: str, n: int = 20) -> list[TopStep]:
        """Returns the `n` steps with the largest priorities, the largest first and of equal ones the oldest.

        None of those with a priority of 0, nor any of a sampler that is not in use or not prioritized.

        Raises:
          NotFoundError: no such sampler.
        """
        core, n = self._core, check_number("n", n, 1, 1000)
        self._options(sampler)
        with core.changed:
            core.check_open()
            known = self._known(sampler)
            if known is None:
                return []
            positions, leaves = known.tree.top(n)
            rows = core.index.row_of(positions) if positions.size else positions
            offsets = core.index.offsets_of(positions, rows)[0] if positions.size else positions
            steps = core.index.field("first_step", rows) + offsets
            ids, total = core.index.field("episode_id", rows), known.tree.total
        found = zip(
            positions.tolist(), ids.tolist(), steps.tolist(), known.unpowered(leaves).tolist(), (leaves / total).tolist(),
            strict=True,
        )  # fmt: skip
        return [
            TopStep(position=position, episode_id=number, t=t, priority=priority, probability=probability)
            for position, number, t, priority, probability in found
        ]

    def episode_priorities(self, episode_id: int, start: int, stop: int) -> dict[str, Array]:
        """Returns the priorities of steps [start, stop) of an episode, float64 [stop - start], by prioritized sampler in use.

        NaN of a step that is not stored or cannot be read.

        Raises:
          NotFoundError: no such episode. InvalidRequestError: a range outside its steps.
        """
        core, episode_id = self._core, check_number("episode_id", episode_id, 0, (1 << 63) - 1)
        start, stop = check_number("start", start, 0, 1 << 62), check_number("stop", stop, 0, 1 << 62)
        if stop - start > _MOST_EPISODE_STEPS:
            raise InvalidRequestError(f"stop: expected at most {_MOST_EPISODE_STEPS:,} steps, found {stop - start:,}")
        with core.changed:
            core.check_open()
            positions, there = stored_positions(core.index, core.name, episode_id, start, stop)
            found = {name: (known, known.leaves(positions[there])) for name, known in core.samplers.priorities.items()}
        priorities = {}
        for name, (known, leaves) in found.items():
            priorities[name] = np.full(len(positions), np.nan)
            priorities[name][there] = known.unpowered(leaves)
        return priorities

    def columns(self, n: int = 256) -> list[ColumnView]:
        """Returns the bytes of each column in `n` evenly spaced chunks, fewer of large ones; reads them from the disk."""
        core, n = self._core, check_number("n", n, 1, _MOST)
        with core.changed:
            core.check_open()
            chunks = core.index.chunks
            mean = core.index.stored_bytes // max(1, len(chunks))
            at = _evenly(len(chunks), min(n, max(_HEADERS_AT_ONCE, _HEADERS_BYTES // max(1, mean))))
            ids = chunks["chunk_id"][at[(chunks["flags"][at] & DEAD) == 0]]
        total = ColumnBytes(core.signature)
        for first in range(0, len(ids), _HEADERS_AT_ONCE):
            headers = []
            for data in core.store.read(ids[first : first + _HEADERS_AT_ONCE]):
                if data is not None:  # else removed meanwhile
                    with contextlib.suppress(ReplayError):  # whoever needs the steps finds out that it is damaged
                        headers.append(read_header(data, core.signature))
            total.add(headers)
        return list(total.views())

    def episode_columns(self, limit: int = 2000) -> EpisodeColumns:
        """Returns the columns of the `limit` newest episodes."""
        core, limit = self._core, check_number("limit", limit, 1, _MOST_EPISODES)
        with core.changed:
            core.check_open()
            return newest_columns(core.index, limit)

    def episodes_there(self, ids: Array) -> tuple[Array, Array]:
        """Returns those of the episodes `ids` of which steps are stored, and whether each has an end."""
        core = self._core
        with core.changed:
            core.check_open()
            ids = ids[(ids >= core.index.episodes.base) & (ids < core.index.episodes.end)]
            first_row, _, closed = core.index.episode_state(ids)
            return ids[first_row >= 0], closed[first_row >= 0]

    # -- with the lock held -------------------------------------------------------------------------------------------

    def _spaced(self, n: int) -> Array:
        """Returns the positions of `n` steps, evenly spaced among all, the oldest and the newest too; of all if fewer."""
        steps = self._core.samplers.steps
        return steps.select(_evenly(steps.size, n)) if steps.size else np.empty(0, np.int64)

    def _committed_at(self, positions: Array) -> Array:
        index = self._core.index
        return index.field("committed_at_s", index.row_of(positions)) if positions.size else np.empty(0)

    def _known(self, sampler: str) -> Priorities | None:
        return self._core.samplers.priorities.get(sampler)

    # -- without it ---------------------------------------------------------------------------------------------------

    def _ages(self, committed: Array) -> Array:
        return np.maximum(self._core.clock() - committed, 0.0)  # clocks are set back

    def _options(self, sampler: str) -> Sampler:
        found = self._core.samplers.options.get(sampler)
        if found is None:
            raise NotFoundError(f"sampler {sampler!r} is not in table {self._core.name}")
        return found


def _evenly(size: int, n: int) -> Array:
    """Returns `n` of the numbers below `size`, int64, ascending and evenly spaced, the first and the last too; all if fewer."""
    n = min(n, size)
    return np.arange(n) * (size - 1) // max(1, n - 1)


def _options(sampler: Sampler) -> dict[str, Any]:
    return {name: value for name, value in sampler_to_json(sampler).items() if name in asdict(sampler)}
