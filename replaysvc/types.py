"""What comes out of a table: batches, and the records that describe what is stored.

Plain frozen data, the same on both doors (embedded and client). Arrays in a batch belong to the caller.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Array = np.ndarray[Any, Any]
Allocate: TypeAlias = Callable[[tuple[int, ...], np.dtype[Any]], Array]
"""Makes the array, of a shape and dtype, that a large column of a batch is written to; `numpy.empty` does."""


def _shape(value: Any) -> str:
    """Returns dtypes and shapes in place of values."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_shape(child)}" for name, child in value.items()) + "}"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_shape, value)) + ")"
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Batch:
    """B sampled windows, stacked. dtypes are the declared ones; nested where the signature is nested.

    Of transitions, columns are [B, ...]; of sequences and episodes they are [B, T, ...] where [B | B, T] is said below.
    Stacked observations have one more axis, the frames, after these.

    observation, next_observation: [B | B, T, ...]; of sequences and stacks they share memory and are read-only.
    action: [B | B, T, ...].
    reward: float32 [B | B, T], sum of gamma^i * reward over the k steps really summed.
    discount: float32 [B | B, T], gamma^k, times 0 if the episode terminated within them. The target is
      `reward + discount * V(next_observation)`, nothing else to multiply.
    terminated, truncated: bool [B | B, T], whether the k steps reach an episode end of that kind.
    positions: int64 [B], names of the items, for `update_priorities`; never reused. episode_id, t: int64 [B], where each
      window's first step stands.
    probability: float64 [B], chance of each item at its draw (of a queue's, 1). importance_weight: float32 [B], (N * P)^-beta
      divided by a maximum for prioritized draws, else 1.
    age_s: float32 [B], seconds since the first step was committed. policy_version: int64 [B], -1 where the writer gave none.
    extras: the signature's extras by name, [B | B, T, ...]; those named in `Sequences.state` at the first step alone, [B, ...].
    mask: bool [B, T], which steps there are; past an episode's end rewards, discounts, flags, actions and extras are 0 and
      observations repeat the final one. is_first: bool [B, T], which step is its episode's first. Both None for transitions.
    relabeled: bool [B], which windows have a hindsight goal; None without `her`.
    """

    observation: Any
    action: Any
    reward: Array
    next_observation: Any
    discount: Array
    terminated: Array
    truncated: Array
    positions: Array
    episode_id: Array
    t: Array
    probability: Array
    importance_weight: Array
    age_s: Array
    policy_version: Array
    extras: Mapping[str, Any]
    mask: Array | None = None
    is_first: Array | None = None
    relabeled: Array | None = None

    def __len__(self) -> int:
        return len(self.positions)

    def __repr__(self) -> str:
        return f"Batch({', '.join(f'{name}: {_shape(value)}' for name, value in self.asdict().items())})"

    def asdict(self) -> dict[str, Any]:
        """Returns the batch as a dict; extras stand beside the other columns, what is None is left out."""
        plain = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "extras"}
        return {name: value for name, value in plain.items() if value is not None} | dict(self.extras)

    def torch(self, device: str = "cpu") -> dict[str, Any]:
        """Returns `asdict()` with every array as a torch tensor on `device`; needs the `torch` extra."""
        from replaysvc.tensors import to_torch

        return {name: to_torch(value, device) for name, value in self.asdict().items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """One stored episode, or as much of it as is committed.

    `length` counts steps from the episode's start; steps before `first_step` were removed for capacity. `return_` is the
    undiscounted sum of rewards over all `length` steps. `closed` is False while more steps may come. `end_reason` is
    "lost_actor" where the service itself truncated the episode, since its writer was gone; else "".
    """

    episode_id: int
    actor: str
    length: int
    first_step: int
    return_: float
    terminated: bool
    truncated: bool
    closed: bool
    policy_version: int
    started_at_s: float
    metadata: Mapping[str, Any]
    end_reason: str = ""

    @property
    def end(self) -> str:
        """Returns "terminated", "truncated", "lost_actor", or "open" of an episode without an end, as EpisodeFilter says it."""
        if self.terminated:
            return "terminated"
        return self.end_reason or ("truncated" if self.truncated else "open")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStats:
    """Counters of one table. `_total` counts since the table was made or the process started; others are as of now.

    disk_bytes is what the table's files take, stored_bytes the chunks in it, raw_bytes the same steps as (s, a, r, s') in
    declared dtypes. cache_hits_total counts sampled items whose anchor was cached, cache_misses_total chunks read from
    disk; one chunk may serve several items of a batch. lossless_fallbacks_total counts chunk columns declared float16 that
    were kept lossless. ignored_updates_total counts priorities of positions that were no longer, or never, in the table,
    or came again later among those that were sent together.
    waiting_for says why the limiter lets nobody sample now, "" if it does, and inserting_waits_for why nobody insert. limiter:
    its options, with the steps inserted and the items sampled so far. queues: how much each queue that is in use can hand
    out now. lost_actor_episodes_total counts episodes that were truncated since their writer was gone. quarantined_chunks and
    quarantined_segments are those that were set aside as damaged, lost_segments places in the table's chain of segments where
    some are gone. fault says why the table takes no appends until the service is started again, "" if it does.
    """

    name: str
    steps: int
    episodes: int
    chunks: int
    segments: int
    first_position: int
    next_position: int
    stored_bytes: int
    disk_bytes: int
    raw_bytes: int
    appended_steps_total: int
    removed_steps_total: int
    sampled_items_total: int
    sample_calls_total: int
    duplicate_chunks_total: int
    corrupt_chunks_total: int
    lossless_fallbacks_total: int
    commits_total: int
    cache_hits_total: int
    cache_misses_total: int
    priority_updates_total: int
    ignored_updates_total: int
    deleted_episodes_total: int
    cache_bytes: int
    open_episodes: int
    ready: bool
    waiting_for: str
    limiter: Mapping[str, Any]
    queues: Mapping[str, int]
    lost_actor_episodes_total: int = 0
    quarantined_chunks: int = 0
    quarantined_segments: int = 0
    lost_segments: int = 0
    fault: str = ""
    inserting_waits_for: str = ""


class BatchStream(Iterator[Batch]):
    """Batches one after another, without end. Belongs to one thread; `close`, or forgetting it, ends what is under way."""

    def __init__(self, batches: Generator[Batch, None, None]) -> None:
        self._batches = batches

    def __next__(self) -> Batch:
        return next(self._batches)

    def close(self) -> None:
        """Ends the stream: there is no next batch."""
        self._batches.close()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a stream cannot be pickled: pickle a client's table, and call table.stream() in the other process")


class UpdateCounts(NamedTuple):
    """What became of an update: `applied` positions have their new priority; `ignored` ones are not in the table (removed,
    deleted, never there), or were given again later in the same call."""

    applied: int
    ignored: int


class Params(NamedTuple):
    """A versioned parameter set: `data` is opaque to the service (the reference learner uses safetensors)."""

    version: int
    data: bytes
