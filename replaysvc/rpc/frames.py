"""A batch as one framed buffer, and as protobuf messages. replay.proto describes the frame."""

import math
import struct
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from replaysvc.batch import BatchColumn
from replaysvc.codec.zstd import squeeze
from replaysvc.rpc.regions import Slot
from replaysvc.types import Array
from replaysvc.v1 import replay_pb2 as pb

ALIGN = 64
LENGTH = struct.Struct("<I")
TOTAL = struct.Struct("<Q")
COMPRESSED_COLUMN_BYTES = 512 << 10
"""Columns that are as large may be compressed; what smaller ones take to send is little."""

_LEAST_RATIO = 4.0  # chosen by hand: what shrinks less takes longer to compress and decompress than to send through a socket
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


def encode_frame(columns: Sequence[BatchColumn], slot: Slot | None = None, *, compressed: bool = False) -> bytes:
    """Returns the frame of a batch: values that are in `slot` stay there, or large ones are compressed if that makes them
    small."""
    return b"".join(_parts(columns, slot, compressed))


def frame_pieces(columns: Sequence[BatchColumn], piece_bytes: int, *, compressed: bool = False) -> Iterator[bytes]:
    """Yields the frame's length and the frame in pieces of at most `piece_bytes`, without making the whole of it."""
    parts = [part if isinstance(part, bytes) else _raw(part).data for part in _parts(columns, None, compressed)]
    del columns  # what is compressed takes no more memory while it leaves
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


def _raw(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _parts(columns: Sequence[BatchColumn], slot: Slot | None, compressed: bool) -> list[Any]:
    """Returns what a frame consists of, as bytes and arrays."""
    places = [None if slot is None else slot.offset(column.values) for column in columns]
    squeezed = [_squeezed(column.values) if compressed and slot is None else b"" for column in columns]
    layouts = tuple(map(_layout, columns, places, map(len, squeezed)))
    parts: list[Any] = [_header_of(layouts, 0 if slot is None else slot.room)]
    for column, place, small in zip(columns, places, squeezed, strict=True):
        for data in (None if place is not None else small or column.values, column.offset_rows, column.offset_values):
            if data is not None:
                parts.append(data if isinstance(data, bytes) else _little(data))
                size = len(data) if isinstance(data, bytes) else data.nbytes
                if rest := -size % ALIGN:
                    parts.append(_PADDING[:rest])
    return parts


def _squeezed(values: Array) -> bytes:
    """Returns the values of a column compressed; nothing if it is small, or stays large."""
    if values.nbytes < COMPRESSED_COLUMN_BYTES:
        return b""
    return squeeze(_raw(_little(values)), _LEAST_RATIO) or b""


_Layout = tuple[str, np.dtype[Any], tuple[int, ...], int | None, int, int, int]


def _layout(column: BatchColumn, place: int | None, squeezed: int) -> _Layout:
    """Returns what a column's header says: name, dtype, shape, where it is in shared memory, bytes of its values if they are
    compressed, offset count, bytes of the values of offsets."""
    rows, offsets = column.offset_rows, column.offset_values
    counts = (0, 0) if rows is None or offsets is None else (len(rows), offsets.nbytes)
    return column.name, column.values.dtype, column.values.shape, place, squeezed, *counts  # its name is made at each look


@lru_cache(maxsize=1024)  # a learner's batches have one layout, but for what is compressed, and offsets
def _header_of(layouts: tuple[_Layout, ...], room: int) -> bytes:
    """Returns the frame up to its payload."""
    at = 0

    def place(size: int) -> int:
        nonlocal at
        start, at = at, at + -(-size // ALIGN) * ALIGN
        return start

    headers = []
    for name, dtype, shape, shared, squeezed, offsets, offset_bytes in layouts:
        header = pb.ColumnHeader(name=name, dtype=dtype.name, shape=shape, shared=shared is not None, compressed_bytes=squeezed)
        header.offset = place(squeezed or math.prod(shape) * dtype.itemsize) if shared is None else shared
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
