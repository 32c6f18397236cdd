"""A batch as one framed buffer, and as protobuf messages. replay.proto describes the frame."""

import math
import struct
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from replaysvc.batch import BatchColumn
from replaysvc.rpc.regions import Slot
from replaysvc.types import Array
from replaysvc.v1 import replay_pb2 as pb

ALIGN = 64
LENGTH = struct.Struct("<I")
TOTAL = struct.Struct("<Q")
_PADDING = bytes(ALIGN)
_NATIVE = sys.byteorder == "little"


def _little(array: Array) -> Array:
    if array.flags.c_contiguous and (array.dtype.isnative == _NATIVE or array.dtype.itemsize == 1):
        return array
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))


def batch_bytes(columns: Sequence[BatchColumn]) -> int:
    """Returns the bytes that the columns take on the wire, near enough (headers and padding are left out)."""
    size = 0
    for column in columns:
        size += column.values.nbytes
        if column.offset_rows is not None and column.offset_values is not None:
            size += column.offset_rows.nbytes + column.offset_values.nbytes
    return size


def encode_frame(columns: Sequence[BatchColumn], slot: Slot | None = None) -> bytes:
    """Returns the frame of a batch; values that are in `slot` stay there."""
    return b"".join(_parts(columns, slot))


def frame_pieces(columns: Sequence[BatchColumn], piece_bytes: int) -> Iterator[bytes]:
    """Yields the frame's length and the frame in pieces of at most `piece_bytes`, without making the whole of it."""
    parts = [part if isinstance(part, bytes) else part.reshape(-1).view(np.uint8).data for part in _parts(columns)]
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


def _parts(columns: Sequence[BatchColumn], slot: Slot | None = None) -> list[Any]:
    """Returns what a frame consists of, as bytes and arrays."""
    places = [None if slot is None else slot.offset(column.values) for column in columns]
    parts: list[Any] = [_header_of(tuple(map(_layout, columns, places)), 0 if slot is None else slot.room)]
    for column, place in zip(columns, places, strict=True):
        for array in (column.values if place is None else None, column.offset_rows, column.offset_values):
            if array is not None:
                parts.append(_little(array))
                if rest := -array.nbytes % ALIGN:
                    parts.append(_PADDING[:rest])
    return parts


_Layout = tuple[str, np.dtype[Any], tuple[int, ...], int | None, int, int]


def _layout(column: BatchColumn, place: int | None) -> _Layout:
    """Returns what a column's header says: name, dtype, shape, where it is in shared memory, offset count, bytes of the values
    of offsets."""
    rows, offsets = column.offset_rows, column.offset_values
    counts = (0, 0) if rows is None or offsets is None else (len(rows), offsets.nbytes)
    return column.name, column.values.dtype, column.values.shape, place, *counts  # a dtype's name is made anew at each look


@lru_cache(maxsize=1024)  # a learner asks for batches of one layout; all but columns with offsets repeat it
def _header_of(layouts: tuple[_Layout, ...], room: int) -> bytes:
    """Returns the frame up to its payload."""
    at = 0

    def place(size: int) -> int:
        nonlocal at
        start, at = at, at + -(-size // ALIGN) * ALIGN
        return start

    headers = []
    for name, dtype, shape, shared, offsets, offset_bytes in layouts:
        header = pb.ColumnHeader(name=name, dtype=dtype.name, shape=shape, shared=shared is not None)
        header.offset = place(math.prod(shape) * dtype.itemsize) if shared is None else shared
        if offsets:
            header.offset_count = offsets
            header.offset_rows_at = place(4 * offsets)
            header.offset_values_at = place(offset_bytes)
        headers.append(header)
    head = pb.BatchHeader(columns=headers, room=room).SerializeToString()
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
