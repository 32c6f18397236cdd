"""A batch as one framed buffer, and as protobuf messages. replay.proto describes the frame."""

import math
import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from replaysvc.batch import BatchColumn
from replaysvc.types import Array
from replaysvc.v1 import replay_pb2 as pb

ALIGN = 64
LENGTH = struct.Struct("<I")
TOTAL = struct.Struct("<Q")
_PADDING = bytes(ALIGN)


def _little(array: Array) -> Array:
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))


def batch_bytes(columns: Sequence[BatchColumn]) -> int:
    """Returns the bytes that the columns take on the wire, near enough (headers and padding are left out)."""
    parts = (part for c in columns for part in (c.values, c.offset_rows, c.offset_values) if part is not None)
    return sum(part.nbytes for part in parts)


def encode_frame(columns: Sequence[BatchColumn]) -> bytes:
    """Returns the frame of a batch."""
    return b"".join(_parts(columns))


def frame_pieces(columns: Sequence[BatchColumn], piece_bytes: int) -> Iterator[bytes]:
    """Yields the frame's length and the frame in pieces of at most `piece_bytes`, without making the whole of it."""
    parts = _parts(columns)
    piece = bytearray()
    for part in (TOTAL.pack(sum(map(len, parts))), *parts):
        at = 0
        while at < len(part):
            taken = part[at : at + piece_bytes - len(piece)]
            piece += taken
            at += len(taken)
            if len(piece) == piece_bytes:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)


def _parts(columns: Sequence[BatchColumn]) -> list[Any]:
    """Returns what a frame consists of, as bytes and views of bytes."""
    parts: list[Any] = [_header_of(tuple(map(_layout, columns)))]
    for column in columns:
        for array in (column.values, column.offset_rows, column.offset_values):
            if array is not None:
                data = _little(array).reshape(-1).view(np.uint8)
                parts += (data.data, _PADDING[: -len(data) % ALIGN])
    return parts


_Layout = tuple[str, np.dtype[Any], tuple[int, ...], int, int]


def _layout(column: BatchColumn) -> _Layout:
    """Returns what a column's header says: name, dtype, shape, offset count, bytes of the offsets' values."""
    rows, offsets = column.offset_rows, column.offset_values
    counts = (0, 0) if rows is None or offsets is None else (len(rows), offsets.nbytes)
    return column.name, column.values.dtype, column.values.shape, *counts  # a dtype's name is made anew at each look


@lru_cache(maxsize=1024)  # a learner asks for batches of one layout; all but columns with offsets repeat it
def _header_of(layouts: tuple[_Layout, ...]) -> bytes:
    """Returns the frame up to its payload."""
    at = 0

    def place(size: int) -> int:
        nonlocal at
        start, at = at, at + -(-size // ALIGN) * ALIGN
        return start

    headers = []
    for name, dtype, shape, offsets, offset_bytes in layouts:
        header = pb.ColumnHeader(name=name, dtype=dtype.name, shape=shape, offset=place(math.prod(shape) * dtype.itemsize))
        if offsets:
            header.offset_count = offsets
            header.offset_rows_at = place(4 * offsets)
            header.offset_values_at = place(offset_bytes)
        headers.append(header)
    head = pb.BatchHeader(columns=headers).SerializeToString()
    return b"".join((LENGTH.pack(len(head)), head, _PADDING[: -(LENGTH.size + len(head)) % ALIGN]))


def encode_message(columns: Sequence[BatchColumn]) -> pb.SampleResponse:
    """Returns the batch as messages, for languages that would rather not read frames."""
    response = pb.SampleResponse()
    for column in columns:
        message = response.columns.add(header=_header(column), values=_little(column.values).tobytes())
        if column.offset_rows is not None and column.offset_values is not None:
            message.header.offset_count = len(column.offset_rows)
            message.offset_rows = _little(column.offset_rows).tobytes()
            message.offset_values = _little(column.offset_values).tobytes()
    return response


def _header(column: BatchColumn) -> pb.ColumnHeader:
    return pb.ColumnHeader(name=column.name, dtype=column.values.dtype.name, shape=column.values.shape)
