"""Columns from chunks, many chunks at a time. Trusts nothing: every size comes from the signature and the step count."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from replaysvc.codec.cast import StoredColumn
from replaysvc.codec.delta import delta_decode
from replaysvc.codec.header import ChunkHeader, Payload, Stage, bits_dtype, read_header, rows_of, stored_shape
from replaysvc.codec.shuffle import unshuffle
from replaysvc.codec.zstd import decompress
from replaysvc.errors import ChunkCorruptError
from replaysvc.spec import FieldSpec, Signature

_CAST, _DELTA, _SHUFFLE, _ZSTD, _OFFSETS = map(int, (Stage.CAST, Stage.DELTA, Stage.SHUFFLE, Stage.ZSTD, Stage.OFFSETS))


@dataclass(frozen=True, slots=True)
class DecodedChunk:
    """A chunk in stored precision. Arrays may be read-only, and may share memory with other chunks of the same call."""

    header: ChunkHeader
    columns: tuple[StoredColumn, ...]


class ChunkDecoder:
    """Decodes the chunks of one signature. Thread-safe."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._observation_columns = signature.observation_columns

    def headers(self, chunks: Sequence[bytes | memoryview]) -> list[ChunkHeader]:
        """Returns the checked headers of chunks. Raises as `read_header`."""
        return [read_header(chunk, self._signature) for chunk in chunks]

    def decode(self, chunks: Sequence[bytes | memoryview], headers: Sequence[ChunkHeader] | None = None) -> list[DecodedChunk]:
        """Returns the chunks decoded, in order; `headers` saves reading them again.

        Raises:
          ChunkCorruptError, FormatVersionError, SpecMismatchError: as `read_header`, or a payload that is not what the
            header says; then nothing is returned.
        """
        headers = self.headers(chunks) if headers is None else headers
        frames, sizes = [], []
        for chunk, header in zip(chunks, headers, strict=True):
            data = memoryview(chunk)
            for payload in header.payloads:
                if int(payload.stages) & _ZSTD:
                    frames.append(data[payload.start : payload.start + payload.stored])
                    sizes.append(payload.raw)
        contents = iter(decompress(frames, sizes))
        decoded = []
        for chunk, header in zip(chunks, headers, strict=True):
            data = memoryview(chunk)
            columns = []
            for i, (spec, payload) in enumerate(zip(self._signature.columns, header.payloads, strict=True)):
                zipped = int(payload.stages) & _ZSTD
                raw: Any = next(contents) if zipped else data[payload.start : payload.start + payload.stored]
                rows = rows_of(i, header.info.n_steps, self._observation_columns)
                columns.append(_decode_column(spec, rows, payload, raw))
                if i and (ragged := self._signature.columns[i - 1]).ragged and columns[i].values.max() > ragged.shape[0]:
                    raise ChunkCorruptError(f"chunk: column {spec.name} has a length above {ragged.shape[0]}")
            decoded.append(DecodedChunk(header, tuple(columns)))
        return decoded


def _decode_column(spec: FieldSpec, rows: int, payload: Payload, raw: Any) -> StoredColumn:
    bits = int(payload.stages)
    dtype = np.dtype(np.float16) if bits & _CAST else spec.dtype
    shape = stored_shape(spec, rows)
    offsets = None
    start = 0
    if bits & _OFFSETS:
        start = spec.row_bytes
        offsets = np.frombuffer(raw, spec.dtype, math.prod(spec.shape)).reshape(spec.shape)
        if not np.isfinite(offsets).all():
            raise ChunkCorruptError(f"chunk: the offsets of column {spec.name} are not finite")
    if not math.prod(shape):
        return StoredColumn(np.empty(shape, dtype), offsets)
    body = np.frombuffer(raw, np.uint8, offset=start)
    if bits & _SHUFFLE:
        body = unshuffle(body, dtype.itemsize)
    if bits & _DELTA:
        body = delta_decode(body.view(bits_dtype(dtype)).reshape(shape)).reshape(-1).view(np.uint8)
    if dtype.kind == "b" and body.max() > 1:
        raise ChunkCorruptError(f"chunk: column {spec.name} holds bytes that are no bools")
    values = body.view(dtype).reshape(shape)
    return StoredColumn(values, offsets)
