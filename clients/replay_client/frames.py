"""Framed batches to arrays, whole or from pieces. Trusts nothing that a frame says."""

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from replaysvc.batch import BatchColumn
from replaysvc.codec.zstd import fill
from replaysvc.config import MAX_LARGE_BYTES, MAX_MESSAGE_BYTES, SHARED_COLUMN_BYTES
from replaysvc.errors import ChunkCorruptError
from replaysvc.spec import DTYPES, FieldSpec
from replaysvc.types import Array
from replaysvc.v1 import replay_pb2 as pb

_ALIGN = 64
_LENGTH = struct.Struct("<I")
_REMEMBERED_BYTES = 16 << 10  # of a header; larger ones are read anew
_TOTAL = struct.Struct("<Q")
_DTYPES = {dtype.name: dtype.newbyteorder("<") for dtype in DTYPES}


def join_pieces(pieces: Iterable[bytes]) -> bytearray:
    """Returns the frame that streamed pieces hold: its length as u64, then its bytes.

    Raises:
      ChunkCorruptError: the pieces are fewer or more than that length.
    """
    joined, total = bytearray(), -1
    for piece in pieces:
        joined += piece
        if total < 0 and len(joined) >= _TOTAL.size:
            (total,) = _TOTAL.unpack_from(joined)
            if total > MAX_LARGE_BYTES:
                raise ChunkCorruptError(f"frame: expected at most {MAX_LARGE_BYTES} bytes, found a length of {total}")
            del joined[: _TOTAL.size]
        if 0 <= total < len(joined):
            break  # and keep no more of it
    if total != len(joined):
        raise ChunkCorruptError(f"frame: expected {total if total >= 0 else 'a length and as many'} bytes, found {len(joined)}")
    return joined


@dataclass(frozen=True, slots=True)
class _Part:
    """Where an array of a frame is: in its payload, or in shared memory. compressed: its bytes there if it is, else 0."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    count: int
    start: int
    compressed: int = 0

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize

    @property
    def end(self) -> int:
        return self.start + (self.compressed or self.nbytes)

    def of(self, data: Any, base: int) -> Array:
        """Returns the array in `data`, whose payload begins at `base` and is large enough."""
        start = base + self.start
        try:
            if not self.count:
                return np.empty(self.shape, self.dtype)
            if self.compressed:
                values = np.empty(self.shape, self.dtype)
                fill(values.reshape(-1).view(np.uint8), memoryview(data)[start : start + self.compressed])
            else:
                values = np.frombuffer(data, self.dtype, self.count, start).reshape(self.shape)
        except ValueError as error:  # too many dimensions, or too large ones beside one that is 0
            raise ChunkCorruptError(f"frame: expected the shape of an array, found {self.shape}") from error
        if self.dtype.kind == "b" and values.view(np.uint8).max() > 1:
            raise ChunkCorruptError("frame: a column of bools holds other bytes")
        return values


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a frame, and where its offsets are; `offset_count` of 0: it has none."""

    name: str
    values: _Part
    shared: bool
    offset_count: int
    offset_rows_at: int
    offset_values_at: int


@dataclass(frozen=True, slots=True)
class _Header:
    """What a header says. end, shared_end: where the values of columns end, in the payload and in shared memory. unpacked: what
    those take that are compressed, once they are not."""

    columns: tuple[_Column, ...]
    end: int
    shared_end: int
    unpacked: int
    room: int


@dataclass(frozen=True, slots=True)
class Frame:
    """What a frame holds: columns by name. room: bytes of shared memory that would have been enough for the large ones, 0 if
    those that the request named were."""

    columns: dict[str, BatchColumn]
    room: int


def read_frame(
    frame: bytes | bytearray, specs: Mapping[str, FieldSpec], slot: Any = None, *, most: int = MAX_MESSAGE_BYTES
) -> Frame:
    """Returns what a frame holds. Its columns are views into one copy of it, or into the frame itself if it is a bytearray; or
    into `slot`, the shared memory that the request named, where they are there. Compressed ones stand for themselves.

    `specs` gives, by column name, the declared fields of those that may have offsets: these have its dtype and shape. `most`:
    bytes that compressed columns may have once they are not.

    Raises:
      ChunkCorruptError: the frame is damaged.
    """
    if len(frame) < _LENGTH.size:
        raise ChunkCorruptError(f"frame: expected at least {_LENGTH.size} bytes, found {len(frame)}")
    (size,) = _LENGTH.unpack_from(frame)
    if size > len(frame) - _LENGTH.size:
        raise ChunkCorruptError(f"frame: expected a header of {size} bytes, found {len(frame)} in all")
    head = bytes(frame[_LENGTH.size : _LENGTH.size + size])
    header = _remembered(head) if size <= _REMEMBERED_BYTES else _header_of(head)
    base = -(-(_LENGTH.size + size) // _ALIGN) * _ALIGN
    if header.end > len(frame) - base or header.shared_end > (0 if slot is None else len(slot)):
        raise ChunkCorruptError("frame: a column reaches past its end")
    if header.unpacked > most:
        raise ChunkCorruptError(f"frame: expected at most {most} bytes that are compressed, found {header.unpacked}")
    # numpy takes large pages, where it can: many fewer than a bytearray that must be found and cleared
    data: Any = frame if isinstance(frame, bytearray) else np.frombuffer(frame, np.uint8).copy()
    columns = {}
    for column in header.columns:
        values = column.values.of(slot, 0) if column.shared else column.values.of(data, base)
        rows = offsets = None
        if column.offset_count:
            rows, offsets = _offsets(column, specs.get(column.name), data, base)
        columns[column.name] = BatchColumn(column.name, values, rows, offsets)
    return Frame(columns, header.room)


def shared_bytes(columns: Mapping[str, BatchColumn]) -> int:
    """Returns the bytes of shared memory that a batch of such columns can use."""
    large = (size for column in columns.values() if (size := column.values.nbytes) >= SHARED_COLUMN_BYTES)
    return sum(-(-size // _ALIGN) * _ALIGN for size in large)


def _offsets(column: _Column, spec: FieldSpec | None, data: Any, base: int) -> tuple[Array, Array]:
    if spec is None:
        raise ChunkCorruptError(f"frame: column {column.name} has offsets and should not")
    rows = _part("uint32", (column.offset_count,), column.offset_rows_at)
    values = _part(spec.dtype.name, (column.offset_count, *spec.shape), column.offset_values_at)
    if max(rows.end, values.end) > len(data) - base:
        raise ChunkCorruptError("frame: a column reaches past its end")
    return rows.of(data, base), values.of(data, base)


def _header_of(data: bytes) -> _Header:
    """Returns what the bytes of a header say. Raises ChunkCorruptError."""
    try:
        header = pb.BatchHeader.FromString(data)
    except DecodeError as error:
        raise ChunkCorruptError(f"frame: its header cannot be read: {error}") from error
    columns = []
    for column in header.columns:
        shape = tuple(column.shape)
        if not shape:
            raise ChunkCorruptError(f"frame: expected column {column.name} to have a row for each item, found one value")
        if column.shared and column.compressed_bytes:  # the server could change it while it is read
            raise ChunkCorruptError(f"frame: column {column.name} is compressed in shared memory")
        part = _part(column.dtype, shape, column.offset, column.compressed_bytes)
        offsets = column.offset_count, column.offset_rows_at, column.offset_values_at
        columns.append(_Column(column.name, part, column.shared, *offsets))
    ends = [[column.values.end for column in columns if column.shared is shared] for shared in (False, True)]
    unpacked = sum(column.values.nbytes for column in columns if column.values.compressed)
    return _Header(tuple(columns), max(ends[0], default=0), max(ends[1], default=0), unpacked, header.room)


_remembered = lru_cache(maxsize=64)(_header_of)  # a learner's batches have one layout, but for what is compressed, and offsets


def _part(dtype_name: str, shape: tuple[int, ...], start: int, compressed: int = 0) -> _Part:
    dtype = _DTYPES.get(dtype_name)
    if dtype is None:
        raise ChunkCorruptError(f"frame: expected a dtype of this service, found {dtype_name!r}")
    count = math.prod(shape)
    return _Part(dtype, shape, count, start, compressed)
