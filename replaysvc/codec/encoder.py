"""Chunks from columns. Which stages help a column depends on its data, so the encoder tries, and tries again now and then."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from replaysvc.codec.blocks import MAX_ROWS, block_ends
from replaysvc.codec.cast import StoredColumn, cast_to_float16, measure
from replaysvc.codec.delta import delta_encode
from replaysvc.codec.grid import Grid, fit_grid, zigzag
from replaysvc.codec.header import (
    MAX_METADATA_BYTES,
    MAX_RAW_BYTES,
    MAX_STEPS,
    ChunkInfo,
    Stage,
    bits_dtype,
    rows_of,
    stored_shape,
    write_chunk,
)
from replaysvc.codec.shuffle import shuffle
from replaysvc.codec.zstd import Compressor
from replaysvc.errors import InvalidRequestError
from replaysvc.spec import FieldSpec, Signature
from replaysvc.types import Array

_LEVEL = 3  # of zstd: 6 makes states 1 % and images 7 % smaller, for a sixth more time and three times as much
_RETRY_CHUNKS = 64  # chosen by hand: stages are decided again after this many chunks
_CHEAPER = 1.01  # a stage must gain this much to be kept, since it costs time at every decode
_ENDS_GAIN = 16  # bytes that a column must gain by blocks of its own, since they cost time at every decode, too
_LONGER = 4  # stages are decided again for a chunk so many times longer: a short one tells little
_CANDIDATES = (
    Stage.ZSTD,
    Stage.SHUFFLE | Stage.ZSTD,
    Stage.DELTA | Stage.ZSTD,
    Stage.DELTA | Stage.SHUFFLE | Stage.ZSTD,
    Stage.TRANSPOSE | Stage.SHUFFLE | Stage.ZSTD,
    Stage.TRANSPOSE | Stage.DELTA | Stage.SHUFFLE | Stage.ZSTD,
)
_WITHOUT_GRID = Stage.DELTA | Stage.SHUFFLE | Stage.ZSTD  # of a chunk that has no grid, though the one that decided had
_WITH_GRID = Stage.TRANSPOSE | Stage.DELTA | Stage.SHUFFLE | Stage.ZSTD  # the other way round


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is done to a column after cast and grid. ends: after which of `parts` equal parts of its bytes blocks of the frame
    end, by what was found in a chunk of `rows`."""

    stages: Stage
    ends: tuple[int, ...] = ()
    parts: int = 1
    rows: int = 0


@dataclass(frozen=True, slots=True)
class _Raw:
    """A column before zstd: its offsets and scales, then its values."""

    data: bytes
    head: int


class ChunkEncoder:
    """Encodes the chunks of one signature. Not thread-safe; columns are neither kept nor changed."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._observation_columns = signature.observation_columns
        self._compressor = Compressor(_LEVEL)
        self._plans = [_Plan(Stage.ZSTD)] * len(signature.columns)
        self._encoded = self._decided_steps = 0

    def encode(self, info: ChunkInfo, columns: Sequence[Array]) -> bytes:
        """Returns the chunk of `info.n_steps` steps.

        Raises:
          InvalidRequestError: columns or sizes that do not fit the signature.
        """
        if (
            not 1 <= info.n_steps <= MAX_STEPS
            or len(info.metadata) > MAX_METADATA_BYTES
            or len(columns) != len(self._signature.columns)
        ):
            raise InvalidRequestError(f"chunk: expected 1 to {MAX_STEPS} steps and {len(self._signature.columns)} columns")
        if sum(values.nbytes for values in columns) > MAX_RAW_BYTES:
            raise InvalidRequestError(f"chunk: expected at most {MAX_RAW_BYTES} bytes of columns; write fewer steps a chunk")
        decide = self._encoded % _RETRY_CHUNKS == 0 or info.n_steps >= _LONGER * self._decided_steps
        self._decided_steps = info.n_steps if decide else self._decided_steps
        self._encoded += 1
        payloads = []
        for i, (spec, values) in enumerate(zip(self._signature.columns, columns, strict=True)):
            if (
                values.shape != stored_shape(spec, rows_of(i, info.n_steps, self._observation_columns))
                or values.dtype != spec.dtype
            ):
                raise InvalidRequestError(
                    f"chunk column {spec.name}: expected rows of {spec.dtype}{list(spec.shape)}, "
                    f"found {values.dtype}{list(values.shape)}"
                )
            payloads.append(self._encode_column(i, spec, values, decide))
        return write_chunk(info, payloads)

    def _encode_column(self, i: int, spec: FieldSpec, values: Array, decide: bool) -> tuple[Stage, int, bytes]:
        column: StoredColumn | Grid = StoredColumn(np.ascontiguousarray(values))
        plan, cast = self._plans[i], Stage(0)
        if spec.cast:
            measured = measure(values, spec)
            wide = column
            column = fit_grid(measured) or cast_to_float16(measured) or wide
            if column is not wide:
                cast = Stage.CAST if column.offsets is None else Stage.CAST | Stage.OFFSETS
        if decide:
            plan, payload, raw = _decide(self._compressor, column, len(values))
            self._plans[i] = plan
        else:
            if isinstance(column, Grid) != bool(plan.stages & Stage.GRID):
                plan = _Plan(Stage.GRID | _WITH_GRID if isinstance(column, Grid) else _WITHOUT_GRID)
            raw = _raw_bytes(column, plan.stages)
            payload = self._compressor.compress(raw.data, _places(raw, plan, len(values)))
        stages = plan.stages | cast
        if len(payload) >= len(raw.data):
            return stages & ~Stage.ZSTD, len(raw.data), raw.data
        return stages, len(raw.data), payload


def _decide(compressor: Compressor, column: StoredColumn | Grid, rows: int) -> tuple[_Plan, bytes, _Raw]:
    """Returns what makes the column smallest, cheaper stages preferred, and what they make of it."""
    found: list[tuple[_Plan, bytes, _Raw]] = []
    values = column.numbers if isinstance(column, Grid) else column.values
    for stages in _CANDIDATES:
        if stages & Stage.SHUFFLE and values.dtype.itemsize == 1:
            continue
        if isinstance(column, Grid):
            stages |= Stage.GRID
        raw = _raw_bytes(column, stages)
        found.append((_Plan(stages), compressor.compress(raw.data), raw))
    for transposed in (Stage(0), Stage.TRANSPOSE):  # where to divide takes longer to find out than to compress
        alike = [one for one in found if one[0].stages & (Stage.SHUFFLE | Stage.TRANSPOSE) == Stage.SHUFFLE | transposed]
        if alike:
            plan, payload, raw = min(alike, key=lambda one: len(one[1]))
            divided = _divide(raw, values, plan.stages)
            in_blocks = compressor.compress(raw.data, _places(raw, divided, rows))
            if len(in_blocks) + _ENDS_GAIN < len(payload):
                found.append((divided, in_blocks, raw))
    best = found[0]
    for one in found[1:]:
        if len(one[1]) * _CHEAPER < len(best[1]):
            best = one
    return best


def _divide(raw: _Raw, values: Array, stages: Stage) -> _Plan:
    """Returns the stages with the best ends of blocks for a shuffled column."""
    planes = values.dtype.itemsize * (values[0].size if stages & Stage.TRANSPOSE else 1)
    if not planes:
        return _Plan(stages)
    parts = max(n for n in range(1, MAX_ROWS + 1) if planes % n == 0)
    body = np.frombuffer(raw.data, np.uint8, offset=raw.head)
    return _Plan(stages, tuple(block_ends(body.reshape(parts, -1))), parts, len(values))


def _places(raw: _Raw, plan: _Plan, rows: int) -> list[int]:
    """Returns the bytes of a column before zstd after which blocks end; none if it is much shorter than the one planned for."""
    if not plan.rows or 2 * rows < plan.rows:
        return []
    part = (len(raw.data) - raw.head) // plan.parts
    return [raw.head + end * part for end in ((0, *plan.ends) if raw.head else plan.ends)]


def _raw_bytes(column: StoredColumn | Grid, stages: Stage) -> _Raw:
    head = b"" if column.offsets is None else np.ascontiguousarray(column.offsets).tobytes()
    if isinstance(column, Grid):
        values = column.numbers
        head += column.scales.tobytes()
    else:
        values = column.values
    if not values.size:
        return _Raw(head, len(head))
    bits = values.view(bits_dtype(values.dtype))
    if stages & Stage.DELTA:
        bits = delta_encode(bits)
    if stages & Stage.GRID:
        bits = zigzag(bits)
    if stages & Stage.TRANSPOSE:
        bits = np.ascontiguousarray(bits.reshape(len(bits), -1).T)
    body = bits.reshape(-1).view(np.uint8)
    if stages & Stage.SHUFFLE:
        body = shuffle(body, values.dtype.itemsize)
    return _Raw(head + body.tobytes(), len(head))
