"""What a table remembers besides its steps, as bytes and back: priorities, queues, limiter counts, the state of its generator.

Priorities are saved in blocks of positions, so that what is written follows what has changed. Values are kept exactly, which
is what makes a seeded batch the same after a restart. The table's lock is held while state is taken and put back, not while it
is packed.
"""

import json
import logging
import struct
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from replaysvc.codec.zstd import Compressor, decompress
from replaysvc.config import TableConfig
from replaysvc.errors import InvalidRequestError, ReplayError
from replaysvc.index.table_index import DELETED, TableIndex
from replaysvc.limiter import LimiterState
from replaysvc.options import Limiter
from replaysvc.sampling.drawing import Samplers
from replaysvc.sampling.items import Kind, Rest
from replaysvc.storage import TableStore
from replaysvc.table.core import Core
from replaysvc.types import Array

log = logging.getLogger(__name__)

_MAIN, _HOLES, _LOST = "sampling", "holes", "lost"
_CAPACITY = ("capacity", "capacity.copy")  # two, for if bounds were lost, the old ones would remove what the new ones keep
_ARRAY = struct.Struct("<qQ")  # first position, bytes before zstd
_LEVEL = 1  # priorities hardly compress; this is for speed


@dataclass(frozen=True, slots=True)
class State:
    """A copy of what is to be saved: the JSON part, if any, and arrays, each with its first position, by file name."""

    main: dict[str, Any]
    arrays: dict[str, tuple[int, Array]]

    def pack(self) -> dict[str, bytes]:
        """Returns the files, by name."""
        compressor = Compressor(_LEVEL)
        files = {_MAIN: json.dumps(self.main).encode()} if self.main else {}
        for name, (start, values) in self.arrays.items():
            raw = values.astype(values.dtype.newbyteorder("<")).tobytes()
            files[name] = _ARRAY.pack(start, len(raw)) + (compressor.compress(raw) if raw else b"")
        return files


def take(core: Core) -> State:
    """Returns all but the priorities."""
    queues: dict[str, Any] = {}
    arrays: dict[str, tuple[int, Array]] = {}
    for name, (kind, queue) in core.samplers.queues.items():
        queues[name] = asdict(kind) | {"rest": kind.rest.value}
        arrays[f"queue.{name}"] = 0, np.stack(queue.pending).astype(np.int64)
    arrays[_HOLES] = 0, _holes(core.index, core.holes).reshape(-1)
    if core.index.lost:
        arrays |= take_lost(core.index.lost).arrays
    limiter = core.limiter
    main = {
        "head": core.index.head, "tail": core.index.tail, "ends": core.next_end,
        "rng": core.rng.bit_generator.state, "queues": queues,
        "inserted": limiter.inserted, "sampled": limiter.sampled, "limiter": limiter.options.to_json(),
    }  # fmt: skip
    return State(main, arrays)


def take_capacity(config: TableConfig) -> State:
    """Returns the bounds of a configuration: steps, bytes and episodes, -1 for none."""
    bounds = np.array([-1 if bound is None else bound for bound in _bounds(config).values()], np.int64)
    return State({}, {name: (0, bounds) for name in _CAPACITY})


def settled(store: TableStore, config: TableConfig, limiter: Limiter) -> TableConfig:
    """Returns the configuration that a table was made with as it was changed since, by `limiter` and the bounds that are saved.

    Where these do not go together, since one of them is lost, the limiter gives way: no step is removed for it.
    """
    names = set(store.state_names())
    found = [_read(store, name, np.int64) for name in _CAPACITY if name in names]
    saved = [bounds for _, bounds in filter(None, found) if len(bounds) == len(_bounds(config))]
    numbers = [None if bound < 0 else bound for bound in saved[0].tolist()] if saved else list(_bounds(config).values())
    bounded: dict[str, Any] = dict(zip(_bounds(config), numbers, strict=True))
    for each in (limiter, config.limiter):
        try:
            return replace(config, limiter=each, **bounded)
        except InvalidRequestError as error:
            log.error("table %s: its saved limiter and capacity do not go together: %s", store.name, error)
    return replace(config, limiter=Limiter(), **bounded)


def _bounds(config: TableConfig) -> dict[str, int | None]:
    return {name: getattr(config, name) for name in ("capacity_steps", "capacity_bytes", "capacity_episodes")}


def take_lost(lost: Mapping[int, int]) -> State:
    """Returns the episodes that the service ended, each with the number of its end."""
    return State({}, {_LOST: (0, np.array(sorted(lost.items()), np.int64).reshape(-1))})


def saved_lost(store: TableStore) -> dict[int, int]:
    """Returns the episodes that the service has ended, each with the number of its end.

    Should that be unreadable, they are open again, until leases end them anew.
    """
    found = _read(store, _LOST, np.int64) if _LOST in store.state_names() else None
    if found is None or found[1].size % 2:
        return {}
    return {int(number): int(end) for number, end in found[1].reshape(-1, 2)}


def _holes(index: TableIndex, earlier: Array) -> Array:
    """Returns int64 [n, 2], the ranges of positions of chunks that were taken out and are not yet behind the tail.

    earlier: those that were taken out before the table was opened, of which the index knows nothing.
    """
    chunks = index.chunks
    out = np.flatnonzero((chunks["flags"] & DELETED) != 0)
    start = chunks["position"][out]
    stop = start + chunks["n_steps"][out]
    first = np.concatenate(([True], start[1:] != stop[:-1]))[: len(out)]
    last = np.concatenate((first[1:], [True]))[: len(out)]
    holes = np.concatenate((earlier[earlier[:, 1] > index.tail], np.stack((start[first], stop[last]), axis=1)))
    return holes[np.argsort(holes[:, 0])]


def take_blocks(core: Core, blocks: Iterable[tuple[str, int]]) -> State:
    """Returns blocks of priorities, (sampler, number) each."""
    return State({}, {f"priorities.{name}.{number}": core.samplers.block(name, number) for name, number in blocks})


def saved_number(store: TableStore, name: str) -> int:
    """Returns a number as of when state was saved last, 0 if it is not known.

    tail: the position before which steps were removed. ends: the number of the next end of a lost episode.
    """
    data = store.read_state(_MAIN) if _MAIN in store.state_names() else None
    try:
        return int(json.loads(data or b"{}").get(name, 0))
    except (ValueError, TypeError, AttributeError):
        return 0


def saved_holes(store: TableStore, head: int) -> Array:
    """Returns int64 [n, 2], the ranges of positions that capacity had taken out of the middle when state was saved last.

    Below `head`, which is the next position. What is no such list hides nothing.
    """
    found = _read(store, _HOLES, np.int64) if _HOLES in store.state_names() else None
    bounds = np.empty(0, np.int64) if found is None else found[1]
    if bounds.size % 2 or (bounds.size and (bounds[0] < 0 or bounds[-1] > head or (np.diff(bounds) < 0).any())):
        log.error("table %s: saved state %s is no list of ranges, and is left out", store.name, _HOLES)
        bounds = bounds[:0]
    return bounds.reshape(-1, 2)


def without_holes(index: Array, holes: Array) -> Array:
    """Returns the index records but for those of chunks within `holes`, [n, 2] and in order."""
    if not len(holes):
        return index
    at = np.searchsorted(holes[:, 0], index["position"], side="right") - 1
    kept: Array = index[(at < 0) | (index["position"] >= holes[np.maximum(at, 0), 1])]
    return kept


def restore(store: TableStore, samplers: Samplers, limiter: LimiterState, rng: np.random.Generator, head: int) -> None:
    """Puts back what was saved; what is missing or damaged starts anew, and a line in the log says so."""
    names = set(store.state_names())
    for sampler in samplers.options:
        mine = f"priorities.{sampler}"
        read = [_read(store, name, np.float64) for name in sorted(names) if name.rpartition(".")[0] == mine]
        if blocks := [block for block in read if block is not None]:
            samplers.restore_priorities(sampler, blocks)
    data = store.read_state(_MAIN) if _MAIN in names else None
    if data is None:
        limiter.restore(head, 0)
        return
    try:
        main = json.loads(data)
        rng.bit_generator.state = main["rng"]
        limiter.set_options(Limiter.from_json(_tupled(main["limiter"])))
        limiter.restore(int(main["inserted"]) + max(0, head - int(main["head"])), int(main["sampled"]))
        for name, kind in main["queues"].items():
            pending = _read(store, f"queue.{name}", np.int64)
            if name in samplers.options and pending is not None:
                positions, remaining = pending[1].reshape(2, -1)
                known = Kind(**(kind | {"rest": Rest(kind["rest"])}))
                ends = int(main.get("ends", 0))
                samplers.restore_queue(name, known, positions.copy(), remaining.copy(), int(main["head"]), ends)
    except (ValueError, KeyError, TypeError, ReplayError) as error:
        log.error("table %s: its saved sampler state cannot be used and starts anew: %r", store.name, error)


def stale(store: TableStore, tail: int, block: int) -> list[str]:
    """Returns the names of saved blocks that hold only removed steps."""
    found = []
    for name in store.state_names():
        kind, _, rest = name.partition(".")
        number = rest.rpartition(".")[2]
        if kind == "priorities" and number.isdigit() and (int(number) + 1) * block <= tail:
            found.append(name)
    return found


def _tupled(limiter: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the limiter's JSON form with its buffer as it was given."""
    buffer = limiter.get("error_buffer")
    return {**limiter, "error_buffer": tuple(buffer) if isinstance(buffer, list) else buffer}


def _read(store: TableStore, name: str, dtype: Any) -> tuple[int, Array] | None:
    data = store.read_state(name)
    if data is None or len(data) < _ARRAY.size:
        return None
    start, size = _ARRAY.unpack_from(data)
    if not size:
        return start, np.empty(0, dtype)
    try:
        (raw,) = decompress([memoryview(data)[_ARRAY.size :]], [size])
        return start, np.frombuffer(raw, np.dtype(dtype).newbyteorder("<")).astype(dtype)
    except (ReplayError, ValueError) as error:
        log.error("table %s: saved state %s cannot be used: %s", store.name, name, error)
        return None
