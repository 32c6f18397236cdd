"""Batches as they travel, and their last step to what the user sees: widen to the declared dtypes, nest as declared.

Both doors end here: the embedded object and the client hand the same stored columns to the same functions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from replaysvc.codec import DecodedChunk, widen
from replaysvc.errors import ChunkCorruptError
from replaysvc.spec import FieldSpec, Signature, unflatten
from replaysvc.types import Array, Batch

PLAIN_COLUMNS: Mapping[str, np.dtype[Any]] = {
    "reward": np.dtype(np.float32), "discount": np.dtype(np.float32), "terminated": np.dtype(np.bool_),
    "truncated": np.dtype(np.bool_), "positions": np.dtype(np.int64), "episode_id": np.dtype(np.int64), "t": np.dtype(np.int64),
    "probability": np.dtype(np.float64), "importance_weight": np.dtype(np.float32), "age_s": np.dtype(np.float32),
    "policy_version": np.dtype(np.int64),
}  # fmt: skip
"""The columns of a batch that do not come from the signature, each of shape [B]."""


@dataclass(frozen=True, slots=True)
class BatchColumn:
    """One column of a batch in stored precision, [B, ...].

    Where `offset_rows` (uint32 [m]) is given, the float16 values of those rows stand around `offset_values` ([m, ...], in
    the declared dtype), which is added after widening.
    """

    name: str
    values: Array
    offset_rows: Array | None = None
    offset_values: Array | None = None

    def widen(self, spec: FieldSpec) -> Array:
        """Returns the values in the declared dtype.

        Raises:
          ChunkCorruptError: the column does not fit `spec`.
        """
        if (
            not self.values.ndim
            or self.values.shape[1:] != spec.shape
            or self.values.dtype not in (spec.dtype, spec.stored_dtype)
        ):
            found = f"{self.values.dtype}{list(self.values.shape[1:])}"
            raise ChunkCorruptError(f"batch column {self.name}: expected {spec.dtype}{list(spec.shape)}, found {found}")
        if self.values.dtype == spec.dtype:
            return self.values
        wide = self.values.astype(spec.dtype)
        if self.offset_rows is not None and self.offset_values is not None:
            if self.offset_values.shape != (len(self.offset_rows), *spec.shape) or self.offset_values.dtype != spec.dtype:
                raise ChunkCorruptError(f"batch column {self.name}: its offsets do not fit the field")
            if len(self.offset_rows) and int(self.offset_rows.max()) >= len(wide):
                raise ChunkCorruptError(f"batch column {self.name}: an offset points past the batch")
            wide[self.offset_rows] += self.offset_values
        return wide


def assemble(signature: Signature, columns: Mapping[str, BatchColumn]) -> Batch:
    """Returns the batch of transitions that `columns` (by name, in stored precision) hold.

    Raises:
      ChunkCorruptError: a column is missing or does not fit the signature.
    """
    first = signature.observation_columns
    plain = {}
    for name, dtype in PLAIN_COLUMNS.items():
        values = _column(columns, name).values
        if values.dtype != dtype or values.ndim != 1:
            raise ChunkCorruptError(f"batch column {name}: expected {dtype}[], found {values.dtype}{list(values.shape[1:])}")
        plain[name] = values
    size = len(plain["positions"])
    wide, wide_next = {}, {}
    for i, spec in enumerate(signature.columns):
        if spec.name == "reward":
            continue
        wide[spec.name] = _column(columns, spec.name).widen(spec)
        if i < first:
            wide_next[spec.name] = _column(columns, f"next_{spec.name}").widen(spec)
    if any(len(values) != size for values in (*plain.values(), *wide.values(), *wide_next.values())):
        raise ChunkCorruptError("batch: its columns differ in length")
    return Batch(
        observation=unflatten(signature.observation, wide),
        next_observation=unflatten(signature.observation, wide_next),
        action=unflatten(signature.action, wide),
        extras={name: unflatten(tree, wide) for name, tree in signature.extras.items()},
        **plain,
    )


def _column(columns: Mapping[str, BatchColumn], name: str) -> BatchColumn:
    if name not in columns:
        raise ChunkCorruptError(f"batch: the column {name} is missing")
    return columns[name]


def episode_columns(signature: Signature, decoded: Sequence[DecodedChunk], start: int, stop: int) -> dict[str, Any]:
    """Returns steps [start, stop) of one episode from its consecutive chunks, the first of which holds step `start`.

    Observations have one row more than the other columns. `terminated` and `truncated` are bool [T].

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
