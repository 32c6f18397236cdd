"""Columns from chunks, many chunks at a time. Trusts nothing: every size comes from the signature and the step count."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from replaysvc.codec.cast import StoredColumn
from replaysvc.codec.delta import delta_decode
from replaysvc.codec.grid import STEPS, from_grid, unzigzag
from replaysvc.codec.header import ChunkHeader, Stage, bits_dtype, read_header, rows_of, stored_shape
from replaysvc.codec.shuffle import unshuffle
from replaysvc.codec.zstd import decompress
from replaysvc.errors import ChunkCorruptError
from replaysvc.spec import FieldSpec, Signature

_CAST, _DELTA, _SHUFFLE, _ZSTD = map(int, (Stage.CAST, Stage.DELTA, Stage.SHUFFLE, Stage.ZSTD))
_OFFSETS, _GRID, _TRANSPOSE = map(int, (Stage.OFFSETS, Stage.GRID, Stage.TRANSPOSE))
_UNDONE = _DELTA | _SHUFFLE | _GRID | _TRANSPOSE  # stages that change each byte
_GROUP_BYTES = 128 << 10  # chosen by hand: of a column's chunks that are decoded at once; more would not stay in the cache


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
        found: list[list[Any]] = [[None] * len(self._signature.columns) for _ in headers]
        alike: dict[tuple[int, int, int], list[tuple[int, Any]]] = {}
        for k, (chunk, header) in enumerate(zip(chunks, headers, strict=True)):
            data = memoryview(chunk)
            for i, payload in enumerate(header.payloads):
                bits = int(payload.stages)
                raw: Any = next(contents) if bits & _ZSTD else data[payload.start : payload.start + payload.stored]
                rows = rows_of(i, header.info.n_steps, self._observation_columns)
                alike.setdefault((i, bits & ~_ZSTD, rows), []).append((k, raw))
        for (i, bits, rows), members in alike.items():
            # what is not changed need not be copied either
            group = max(1, _GROUP_BYTES // max(1, len(members[0][1]))) if bits & _UNDONE else 1
            for at in range(0, len(members), group):
                ks, raws = zip(*members[at : at + group], strict=True)
                for k, column in zip(ks, _decode_columns(self._signature.columns[i], rows, bits, raws), strict=True):
                    found[k][i] = column
        for i, spec in enumerate(self._signature.columns[1:], 1):
            if (ragged := self._signature.columns[i - 1]).ragged and any(c[i].values.max() > ragged.shape[0] for c in found):
                raise ChunkCorruptError(f"chunk: column {spec.name} has a length above {ragged.shape[0]}")
        return [DecodedChunk(header, tuple(columns)) for header, columns in zip(headers, found, strict=True)]


def _decode_columns(spec: FieldSpec, rows: int, bits: int, raws: Sequence[Any]) -> list[StoredColumn]:
    """Returns a column of several chunks, of which rows and stages are the same; `raws` are its bytes before zstd."""
    dtype = np.dtype(np.float16) if bits & _CAST else spec.dtype
    shape = (len(raws), *stored_shape(spec, rows))
    data = np.frombuffer(raws[0] if len(raws) == 1 else b"".join(raws), np.uint8).reshape(len(raws), -1)
    offsets, start, elements = None, 0, math.prod(spec.shape)
    if bits & _OFFSETS:
        start = spec.row_bytes
        offsets = np.ascontiguousarray(data[:, :start]).view(spec.dtype).reshape(len(raws), *spec.shape)
        if not np.isfinite(offsets).all():
            raise ChunkCorruptError(f"chunk: the offsets of column {spec.name} are not finite")
    if bits & _GRID:
        scales = data[:, start : start + elements]
        start += elements
        if scales.max(initial=0) >= len(STEPS):
            raise ChunkCorruptError(f"chunk: a scale of column {spec.name} is above {len(STEPS) - 1}")
    if not math.prod(shape):
        values = np.empty(shape, dtype)
    else:
        body = data[:, start:]
        if bits & _SHUFFLE:
            body = unshuffle(body, dtype.itemsize)
        if bits & (_DELTA | _GRID | _TRANSPOSE):
            time = 2 if bits & _TRANSPOSE else 1
            values = np.ascontiguousarray(body).view(bits_dtype(dtype))
            values = values.reshape((len(raws), elements, rows) if bits & _TRANSPOSE else (len(raws), rows, elements))
            if bits & _GRID:
                values = unzigzag(values)
            if bits & _DELTA:
                values = delta_decode(values, axis=time)
            if bits & _TRANSPOSE:
                values = values.swapaxes(1, 2)
            if bits & _GRID:
                values = from_grid(values.view(np.int16), scales[:, None])
            body = np.ascontiguousarray(values).view(np.uint8)
        if dtype.kind == "b" and body.max() > 1:
            raise ChunkCorruptError(f"chunk: column {spec.name} holds bytes that are no bools")
        values = body.reshape(-1).view(dtype).reshape(shape)
    return [StoredColumn(values[k], None if offsets is None else offsets[k]) for k in range(len(raws))]
