"""Framed batches to arrays. Trusts nothing that a frame says."""

import math
import struct
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from replaysvc.batch import BatchColumn
from replaysvc.errors import ChunkCorruptError
from replaysvc.spec import DTYPES
from replaysvc.v1 import replay_pb2 as pb

_ALIGN = 64
_LENGTH = struct.Struct("<I")
_DTYPES = {dtype.name: dtype.newbyteorder("<") for dtype in DTYPES}


def decode_frame(frame: bytes, offset_dtypes: dict[str, np.dtype[Any]]) -> dict[str, BatchColumn]:
    """Returns the columns of a frame by name: views into one copy of it, which belongs to the caller.

    `offset_dtypes` gives, by column name, the declared dtype, in which offsets travel.

    Raises:
      ChunkCorruptError: the frame is damaged.
    """
    if len(frame) < _LENGTH.size:
        raise ChunkCorruptError(f"frame: expected at least {_LENGTH.size} bytes, found {len(frame)}")
    (size,) = _LENGTH.unpack_from(frame)
    if size > len(frame) - _LENGTH.size:
        raise ChunkCorruptError(f"frame: expected a header of {size} bytes, found {len(frame)} in all")
    try:
        header = pb.BatchHeader.FromString(frame[_LENGTH.size : _LENGTH.size + size])
    except DecodeError as error:
        raise ChunkCorruptError(f"frame: its header cannot be read: {error}") from error
    base = -(-(_LENGTH.size + size) // _ALIGN) * _ALIGN
    data = bytearray(frame)
    columns = {}
    for column in header.columns:
        shape = tuple(column.shape)
        if not shape:
            raise ChunkCorruptError(f"frame: expected column {column.name} to have a row for each item, found one value")
        values = _view(data, base + column.offset, column.dtype, shape)
        rows = offsets = None
        if column.offset_count:
            declared = offset_dtypes.get(column.name)
            if declared is None:
                raise ChunkCorruptError(f"frame: column {column.name} has offsets and should not")
            rows = _view(data, base + column.offset_rows_at, "uint32", (column.offset_count,))
            offsets = _view(data, base + column.offset_values_at, declared.name, (column.offset_count, *shape[1:]))
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
