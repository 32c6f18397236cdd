"""A batch as one framed buffer, and as protobuf messages. replay.proto describes the frame."""

import struct
from collections.abc import Sequence

import numpy as np

from replaysvc.batch import BatchColumn
from replaysvc.types import Array
from replaysvc.v1 import replay_pb2 as pb

ALIGN = 64
LENGTH = struct.Struct("<I")
_PADDING = bytes(ALIGN)


def _little(array: Array) -> Array:
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))


def batch_bytes(columns: Sequence[BatchColumn]) -> int:
    """Returns the bytes that the columns take on the wire, near enough (headers and padding are left out)."""
    parts = (part for c in columns for part in (c.values, c.offset_rows, c.offset_values) if part is not None)
    return sum(part.nbytes for part in parts)


def encode_frame(columns: Sequence[BatchColumn]) -> bytes:
    """Returns the frame of a batch."""
    parts: list[bytes | memoryview] = []
    at = 0

    def place(array: Array) -> int:
        nonlocal at
        start = at
        data = memoryview(_little(array).reshape(-1).view(np.uint8))
        parts.append(data)
        fill = -len(data) % ALIGN
        if fill:
            parts.append(_PADDING[:fill])
        at += len(data) + fill
        return start

    headers = []
    for column in columns:
        header = _header(column)
        header.offset = place(column.values)
        if column.offset_rows is not None and column.offset_values is not None:
            header.offset_count = len(column.offset_rows)
            header.offset_rows_at = place(column.offset_rows)
            header.offset_values_at = place(column.offset_values)
        headers.append(header)
    head = pb.BatchHeader(columns=headers).SerializeToString()
    return b"".join((LENGTH.pack(len(head)), head, _PADDING[: -(LENGTH.size + len(head)) % ALIGN], *parts))


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
