"""Chunks from columns. Which stages help a column depends on its data, so the encoder tries, and tries again now and then."""

from collections.abc import Sequence

import numpy as np

from replaysvc.codec.cast import StoredColumn, cast_to_float16
from replaysvc.codec.delta import delta_encode
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

_RETRY_CHUNKS = 64  # chosen by hand: stages are decided again after this many chunks
_LEVEL, _FRAME_LEVEL = 3, 6  # of zstd. At 6, frames are 8 % smaller for 10 microseconds a step instead of 3; states 1 %
_FRAME_BYTES = 1 << 10  # of a row that counts as a frame
_CHEAPER = 1.02  # a stage must gain this much to be kept, since it costs time at every decode
_CANDIDATES = (Stage.ZSTD, Stage.SHUFFLE | Stage.ZSTD, Stage.DELTA | Stage.ZSTD, Stage.DELTA | Stage.SHUFFLE | Stage.ZSTD)


class ChunkEncoder:
    """Encodes the chunks of one signature. Not thread-safe; columns are neither kept nor changed."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._observation_columns = signature.observation_columns
        levels = [_FRAME_LEVEL if spec.row_bytes >= _FRAME_BYTES else _LEVEL for spec in signature.columns]
        made = {level: Compressor(level) for level in set(levels)}
        self._compressors = [made[level] for level in levels]
        self._choice: list[Stage] = [Stage.ZSTD] * len(signature.columns)
        self._encoded = 0

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
        decide = self._encoded % _RETRY_CHUNKS == 0
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
        cast = cast_to_float16(values, spec) if spec.cast else None
        column = cast or StoredColumn(np.ascontiguousarray(values))
        stages = Stage(0) if cast is None else Stage.CAST | (Stage.OFFSETS if cast.offsets is not None else Stage(0))
        if decide:
            self._choice[i], payload, raw = self._decide(column, spec, self._compressors[i])
        else:
            raw = _raw_bytes(column, spec, self._choice[i])
            payload = self._compressors[i].compress(raw)
        if len(payload) >= len(raw):
            stages |= self._choice[i] & ~Stage.ZSTD
            return stages, len(raw), bytes(raw)
        return stages | self._choice[i], len(raw), payload

    @staticmethod
    def _decide(column: StoredColumn, spec: FieldSpec, compressor: Compressor) -> tuple[Stage, bytes, bytes]:
        """Returns the stages that make the column smallest, cheaper ones preferred, and what they make of it."""
        best: tuple[Stage, bytes, bytes] | None = None
        for stages in _CANDIDATES:
            if stages & Stage.SHUFFLE and column.values.dtype.itemsize == 1:
                continue
            raw = _raw_bytes(column, spec, stages)
            payload = compressor.compress(raw)
            if best is None or len(payload) * _CHEAPER < len(best[1]):
                best = stages, payload, raw
        assert best is not None
        return best


def _raw_bytes(column: StoredColumn, spec: FieldSpec, stages: Stage) -> bytes:
    values = column.values
    if values.size:
        bits = values.view(bits_dtype(values.dtype))
        if stages & Stage.DELTA:
            bits = delta_encode(bits)
        raw = bits.reshape(-1).view(np.uint8)
        if stages & Stage.SHUFFLE:
            raw = shuffle(raw, values.dtype.itemsize)
        body = raw.tobytes()
    else:
        body = b""
    return body if column.offsets is None else np.ascontiguousarray(column.offsets).tobytes() + body
