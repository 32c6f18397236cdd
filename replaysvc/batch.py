"""Batches as they travel, and their last step to what the user sees: widen to the declared dtypes, nest as declared.

Both doors end here: the embedded object and the client hand the same stored columns to the same functions.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from replaysvc.codec import DecodedChunk, widen
from replaysvc.codec.halves import from_float16
from replaysvc.errors import ChunkCorruptError
from replaysvc.layout import Layout, layout_of
from replaysvc.nstep import sequence_targets, transition_targets
from replaysvc.ragged import RaggedArray
from replaysvc.relabel import Ends, relabel
from replaysvc.requests import Sequences, Transitions, Window
from replaysvc.spec import FieldSpec, Signature, unflatten
from replaysvc.types import Allocate, Array, Batch
from replaysvc.windows import past_ends

ITEM_COLUMNS: Mapping[str, np.dtype[Any]] = {
    "positions": np.dtype(np.int64), "episode_id": np.dtype(np.int64), "t": np.dtype(np.int64),
    "probability": np.dtype(np.float64), "importance_weight": np.dtype(np.float32), "age_s": np.dtype(np.float32),
    "policy_version": np.dtype(np.int64),
}  # fmt: skip
"""The columns that say where each item of a batch comes from, of shape [B]."""

TARGET_COLUMNS: Mapping[str, np.dtype[Any]] = {
    "reward": np.dtype(np.float32), "discount": np.dtype(np.float32), "terminated": np.dtype(np.bool_),
    "truncated": np.dtype(np.bool_),
}  # fmt: skip
"""The columns that targets are made of, [B] or [B, T]."""

COUNTS = "/counts"  # of a batch of sequences: steps in each window, int64 [B]; no column of a signature begins so
HER_COLUMNS = ("/her/achieved", "/her/goal", "/her/reward", "/her/counts")
"""What a learner's own reward function needs: goals achieved after each step [B, W, ...], the new goal [B, ...], stored rewards
[B, W] and steps in each window [B]."""


class BatchColumn(NamedTuple):
    """One column of a batch in stored precision: [B, ...], [B, T, ...] or [B, T, frames, ...].

    Where `offset_rows` (uint32 [m]) is given, the float16 values of those rows, counted over all axes before the field's own,
    stand around `offset_values` ([m, ...], in the declared dtype), which is added after widening.
    """

    name: str
    values: Array
    offset_rows: Array | None = None
    offset_values: Array | None = None

    @staticmethod
    def join(parts: Sequence["BatchColumn"], spec: FieldSpec | None, allocate: Allocate = np.empty) -> "BatchColumn":
        """Returns one column of batches that follow each other; `spec` is that of a column of the signature."""
        if spec is not None and len({part.values.dtype for part in parts}) > 1:
            parts = [BatchColumn(part.name, part.widen(spec)) for part in parts]
        shape = sum(len(part.values) for part in parts), *parts[0].values.shape[1:]
        values = np.concatenate([part.values for part in parts], out=allocate(shape, parts[0].values.dtype))
        if all(part.offset_rows is None for part in parts):
            return BatchColumn(parts[0].name, values)
        assert spec is not None
        lead = values.ndim - len(spec.shape)
        rows: list[Array] = []
        before = 0  # rows, counted over all axes before the field's own
        for part in parts:
            if part.offset_rows is not None:
                rows.append(part.offset_rows + np.uint32(before))
            before += int(np.prod(part.values.shape[:lead]))
        offsets = [part.offset_values for part in parts if part.offset_values is not None]
        return BatchColumn(parts[0].name, values, np.concatenate(rows), np.concatenate(offsets))

    def widen(self, spec: FieldSpec) -> Array:
        """Returns the values in the declared dtype.

        Raises:
          ChunkCorruptError: the column does not fit `spec`.
        """
        lead = self.values.ndim - len(spec.shape)
        if lead < 1 or self.values.shape[lead:] != spec.shape or self.values.dtype not in (spec.dtype, spec.stored_dtype):
            found = f"{self.values.dtype}{list(self.values.shape[1:])}"
            raise ChunkCorruptError(f"batch column {self.name}: expected {spec.dtype}{list(spec.shape)}, found {found}")
        if self.values.dtype == spec.dtype:
            return self.values
        wide = from_float16(self.values, spec.dtype)
        if self.offset_rows is not None and self.offset_values is not None:
            if self.offset_values.shape != (len(self.offset_rows), *spec.shape) or self.offset_values.dtype != spec.dtype:
                raise ChunkCorruptError(f"batch column {self.name}: its offsets do not fit the field")
            rows, at = wide.reshape(-1, *spec.shape), self.offset_rows.astype(np.intp)
            if len(at) and int(at.max()) >= len(rows):
                raise ChunkCorruptError(f"batch column {self.name}: an offset points past the batch")
            rows[at] = rows.take(at, axis=0) + self.offset_values
        return wide


def assemble(signature: Signature, what: Window, columns: Mapping[str, BatchColumn]) -> Batch:
    """Returns the batch of `what` that `columns` (by name, in stored precision) hold.

    Raises:
      ChunkCorruptError: a column is missing or does not fit the signature or the request.
      InvalidRequestError: the request does not fit the signature, or its reward function does not return rewards.
    """
    layout = layout_of(signature, what)
    size = len(_column(columns, "positions").values)
    items = {name: _plain(columns, name, dtype, (size,)) for name, dtype in ITEM_COLUMNS.items()}
    if what.her is not None:
        items["relabeled"] = _plain(columns, "relabeled", np.dtype(np.bool_), (size,))
    finish = _transitions if isinstance(what, Transitions) else _sequences
    now, after, rest = finish(signature, what, layout, columns, size)
    return Batch(
        observation=unflatten(signature.observation, now),
        next_observation=unflatten(signature.observation, after),
        action=unflatten(signature.action, now),
        extras={name: unflatten(tree, now) for name, tree in signature.extras.items()},
        **items,
        **rest,
    )


Parts: TypeAlias = tuple[dict[str, Array], dict[str, Array], dict[str, Array]]
"""Columns of the signature by path, those of the next observation, and the others of a Batch."""


def _transitions(signature: Signature, what: Any, layout: Layout, columns: Mapping[str, BatchColumn], size: int) -> Parts:
    now: dict[str, Array] = {}
    after: dict[str, Array] = {}
    for i, spec in enumerate(signature.columns):
        if i == layout.reward:
            continue
        frames = layout.frames[i]
        if frames and what.n_step == 1:
            wide = _shared(_wide(columns, spec.name, spec, (size, frames + 1)))
            now[spec.name], after[spec.name] = wide[:, :-1], wide[:, 1:]
            continue
        lead = (size, frames) if frames else (size,)
        now[spec.name] = _wide(columns, spec.name, spec, lead)
        if i < signature.observation_columns:
            after[spec.name] = _wide(columns, f"next_{spec.name}", spec, lead)
    targets = {name: _plain(columns, name, dtype, (size,)) for name, dtype in TARGET_COLUMNS.items()}
    if what.her is not None and not what.her.declared:
        ends = _relabel(
            signature,
            what,
            layout,
            columns,
            size,
            Ends(targets["reward"], targets["reward"], targets["terminated"], targets["truncated"]),
            what.n_step,
        )
        targets = transition_targets(*ends, what.gamma)._asdict()
    return now, after, targets


def _sequences(signature: Signature, what: Any, layout: Layout, columns: Mapping[str, BatchColumn], size: int) -> Parts:
    shape = _column(columns, "reward").values.shape
    length = shape[1] if len(shape) == 2 else 0
    n_step = what.n_step if isinstance(what, Sequences) else 1
    targets = {name: _plain(columns, name, dtype, (size, length)) for name, dtype in TARGET_COLUMNS.items()}
    counts = _plain(columns, COUNTS, np.dtype(np.int64), (size,))
    width = length + n_step - 1
    if not length or int(counts.min(initial=1)) < 1 or int(counts.max(initial=1)) > width:
        raise ChunkCorruptError(f"batch: expected windows of 1 to {width} steps")
    if what.her is not None and not what.her.declared:
        last = np.arange(size), np.minimum(counts, length) - 1
        stored = Ends(targets["reward"], counts, targets["terminated"][last], targets["truncated"][last])
        ends = _relabel(signature, what, layout, columns, size, stored, width)
        targets, counts = sequence_targets(*ends, what.gamma, length, n_step)._asdict(), ends.counts
    now: dict[str, Array] = {}
    after: dict[str, Array] = {}
    for i, spec in enumerate(signature.columns):
        if i == layout.reward:
            continue
        if i >= signature.observation_columns:
            now[spec.name] = _wide(columns, spec.name, spec, (size,) if i in layout.state else (size, length))
            continue
        more = max(layout.frames[i], 1) - 1
        wide = _shared(_wide(columns, spec.name, spec, (size, more + width + 1)))
        if layout.frames[i]:  # [B, rows, frames, ...]: a stack ends at each row, and shares its memory
            wide = np.moveaxis(sliding_window_view(wide, more + 1, axis=1), -1, 2)
        now[spec.name] = wide[:, :length]
        if n_step == 1:
            after[spec.name] = wide[:, 1:]
        else:
            ahead = np.minimum(np.arange(length) + n_step, np.maximum(counts[:, None], np.arange(1, length + 1)))
            after[spec.name] = wide[np.arange(size)[:, None], ahead]
    t = _column(columns, "t").values
    mask, is_first = np.ones((size, length), np.bool_), np.zeros((size, length), np.bool_)
    mask.reshape(-1)[past_ends(counts, length)] = False
    is_first[:, 0] = t == 0
    return now, after, {**targets, "mask": mask, "is_first": is_first}


def _relabel(
    signature: Signature, what: Any, layout: Layout, columns: Mapping[str, BatchColumn], size: int, flags: Ends, width: int
) -> Ends:
    """Returns the ends of windows by the learner's own reward function."""
    spec = signature.columns[layout.achieved]
    achieved, goal, rewards, counts = HER_COLUMNS
    stored = Ends(
        _plain(columns, rewards, np.dtype(np.float32), (size, width)), _plain(columns, counts, np.dtype(np.int64), (size,)),
        flags.terminated, flags.truncated,
    )  # fmt: skip
    relabeled = _column(columns, "relabeled").values
    return relabel(
        what.her, stored, relabeled, _wide(columns, achieved, spec, (size, width)), _wide(columns, goal, spec, (size,))
    )


def _column(columns: Mapping[str, BatchColumn], name: str) -> BatchColumn:
    if name not in columns:
        raise ChunkCorruptError(f"batch: the column {name} is missing")
    return columns[name]


def _plain(columns: Mapping[str, BatchColumn], name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    values = _column(columns, name).values
    if values.dtype != dtype or values.shape != shape:
        raise ChunkCorruptError(f"batch column {name}: expected {dtype}{list(shape)}, found {values.dtype}{list(values.shape)}")
    return values


def _shared(wide: Array) -> Array:
    """Returns an array that observations and next observations are views of, so that nothing is changed in both by mistake."""
    wide = wide.view()
    wide.setflags(write=False)
    return wide


def _wide(columns: Mapping[str, BatchColumn], name: str, spec: FieldSpec, lead: tuple[int, ...]) -> Array:
    wide = _column(columns, name).widen(spec)
    if wide.shape != (*lead, *spec.shape):
        raise ChunkCorruptError(f"batch column {name}: expected {list(lead)} items, found {list(wide.shape)}")
    return wide


def split(batch: Batch, count: int) -> list[Batch]:
    """Returns a batch of `count` equal batches, one after the other, as those: views of its arrays."""
    size = len(batch) // count
    columns = {name: getattr(batch, name) for name in Batch.__dataclass_fields__}
    return [
        Batch(**{name: _part(column, start, start + size) for name, column in columns.items()})
        for start in range(0, count * size, size)
    ]


def _part(value: Any, start: int, stop: int) -> Any:
    """Returns items [start, stop) of a column of a batch."""
    if type(value) is np.ndarray:  # as a rule
        return value[start:stop]
    if value is None or not value:
        return value
    if isinstance(value, RaggedArray):
        return value.part(start, stop)
    if isinstance(value, Mapping):
        return {key: _part(child, start, stop) for key, child in value.items()}
    return tuple(_part(child, start, stop) for child in value)


def episode_columns(
    signature: Signature, decoded: Sequence[DecodedChunk], start: int, stop: int, *, cut: bool = False
) -> dict[str, Any]:
    """Returns steps [start, stop) of one episode from its consecutive chunks, the first of which holds step `start`.

    Observations have one row more than the other columns. `terminated` and `truncated` are bool [T]. cut: the last step was
    truncated by the service, of which the chunks know nothing.

    Raises:
      ChunkCorruptError: the chunks do not follow each other, or do not cover the range.
    """
    first = signature.observation_columns
    at = decoded[0].header.info.first_step if decoded else -1
    if not decoded or at > start:
        raise ChunkCorruptError(f"episode: expected chunks from step {start}, found {at}")
    begin, length = at, stop - start
    terminated, truncated = np.zeros(length, np.bool_), np.zeros(length, np.bool_)
    for chunk in decoded:
        info = chunk.header.info
        if info.first_step != at or info.episode_key != decoded[0].header.info.episode_key:
            raise ChunkCorruptError(f"episode: expected a chunk at step {at}, found one at step {info.first_step}")
        at += info.n_steps
        if at <= stop:
            terminated[at - 1 - start] = info.terminated
            truncated[at - 1 - start] = info.truncated
    if at < stop:
        raise ChunkCorruptError(f"episode: expected chunks up to step {stop}, found {at}")
    truncated[-1] |= cut
    wide = {}
    for i, spec in enumerate(signature.columns):
        parts = [widen(chunk.columns[i], spec) for chunk in decoded]
        if i < first:  # a chunk's last observation is its successor's first
            parts = [part[:-1] for part in parts[:-1]] + parts[-1:]
        wide[spec.name] = np.concatenate(parts)[start - begin : stop - begin + (i < first)]
    return {
        "observation": unflatten(signature.observation, wide),
        "action": unflatten(signature.action, wide),
        "reward": wide["reward"],
        "terminated": terminated,
        "truncated": truncated,
        **{name: unflatten(tree, wide) for name, tree in signature.extras.items()},
    }
