"""Framed batches to arrays, whole or from pieces. Trusts nothing that a frame says."""

import math
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from replaysvc.batch import BatchColumn
from replaysvc.config import MAX_LARGE_BYTES
from replaysvc.errors import ChunkCorruptError
from replaysvc.spec import DTYPES, FieldSpec
from replaysvc.v1 import replay_pb2 as pb

_ALIGN = 64
_LENGTH = struct.Struct("<I")
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


def decode_frame(frame: bytes | bytearray, specs: Mapping[str, FieldSpec]) -> dict[str, BatchColumn]:
    """Returns the columns of a frame by name: views into one copy of it, or into the frame itself if it is a bytearray.

    `specs` gives, by column name, the declared fields of those that may have offsets: these have its dtype and shape.

    Raises:
      ChunkCorruptError: the frame is damaged.
    """
    if len(frame) < _LENGTH.size:
        raise ChunkCorruptError(f"frame: expected at least {_LENGTH.size} bytes, found {len(frame)}")
    (size,) = _LENGTH.unpack_from(frame)
    if size > len(frame) - _LENGTH.size:
        raise ChunkCorruptError(f"frame: expected a header of {size} bytes, found {len(frame)} in all")
    try:
        header = pb.BatchHeader.FromString(bytes(frame[_LENGTH.size : _LENGTH.size + size]))
    except DecodeError as error:
        raise ChunkCorruptError(f"frame: its header cannot be read: {error}") from error
    base = -(-(_LENGTH.size + size) // _ALIGN) * _ALIGN
    data = frame if isinstance(frame, bytearray) else bytearray(frame)
    columns = {}
    for column in header.columns:
        shape = tuple(column.shape)
        if not shape:
            raise ChunkCorruptError(f"frame: expected column {column.name} to have a row for each item, found one value")
        values = _view(data, base + column.offset, column.dtype, shape)
        rows = offsets = None
        if column.offset_count:
            spec = specs.get(column.name)
            if spec is None:
                raise ChunkCorruptError(f"frame: column {column.name} has offsets and should not")
            rows = _view(data, base + column.offset_rows_at, "uint32", (column.offset_count,))
            offsets = _view(data, base + column.offset_values_at, spec.dtype.name, (column.offset_count, *spec.shape))
        columns[column.name] = BatchColumn(column.name, values, rows, offsets)
    return columns


def _view(data: bytearray, start: int, dtype_name: str, shape: tuple[int, ...]) -> Any:
    dtype = _DTYPES.get(dtype_name)
    if dtype is None:
        raise ChunkCorruptError(f"frame: expected a dtype of this service, found {dtype_name!r}")
    count = math.prod(shape)
    if start > len(data) or count * dtype.itemsize > len(data) - start:
        raise ChunkCorruptError("frame: a column reaches past its end")
    try:
        values = np.frombuffer(data, dtype, count, start).reshape(shape) if count else np.empty(shape, dtype)
    except ValueError as error:  # too many dimensions, or too large ones beside one that is 0
        raise ChunkCorruptError(f"frame: expected the shape of an array, found {shape}") from error
    if count and dtype.kind == "b" and values.view(np.uint8).max() > 1:
        raise ChunkCorruptError("frame: a column of bools holds other bytes")
    return values
