"""Many chunks in a few calls, as sampling reads them back from the disk: no step is done chunk by chunk that numpy or zstd
can do for all.

What is read here was decoded once before, when it was stored, and has not changed since, by the checksum that the index kept.
So sizes are checked, which memory depends on, and not what a decoder of bytes from elsewhere must ask of each frame.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from replaysvc.codec.delta import delta_decode_many
from replaysvc.codec.halves import from_float16
from replaysvc.codec.header import (
    DESCRIPTOR,
    FIXED,
    MAGIC,
    MAX_RAW_BYTES,
    PREFIX,
    VERSION,
    Stage,
    bits_dtype,
    checksum_of,
)
from replaysvc.codec.zstd import decompress_into, decompress_parts
from replaysvc.errors import ChunkCorruptError
from replaysvc.spec import FieldSpec, Signature
from replaysvc.types import Allocate, Array

_OFFSET_SHARE = 4  # a column with offsets in more than one item of so many is given out in the declared dtype
_LARGE_BYTES = 64 << 10  # of a chunk's column: from here on, to copy it once less is worth a call for each
_CAST, _DELTA, _SHUFFLE, _ZSTD, _OFFSETS = map(int, (Stage.CAST, Stage.DELTA, Stage.SHUFFLE, Stage.ZSTD, Stage.OFFSETS))


def take_rows(
    values: Array, rows: Array, around: Array | None, offsets: Array | None, chunks: Array | None, spec: FieldSpec,
    allocate: Allocate = np.empty,
) -> tuple[Array, Array | None, Array | None]:  # fmt: skip
    """Returns `rows` [n] of float16 or declared `values`, and the (items, offsets) of those that stand around an offset.

    Where many do, it is in the declared dtype, with the offsets added: that is smaller then, and faster. `around` (bool) and
    `offsets` are looked up by `chunks` [n]; None: there are none. Rows must be valid; `allocate` makes the memory.
    """
    moved = None
    if around is not None and offsets is not None and values.dtype != spec.dtype:
        assert chunks is not None
        moved = around.take(chunks)
    count = 0 if moved is None else np.count_nonzero(moved)
    many = count * _OFFSET_SHARE > len(rows)
    # what is widened here goes no further
    taken = (np.empty if many else allocate)((len(rows), *values.shape[1:]), values.dtype)
    values.take(rows, 0, taken, "clip")  # other modes make a copy first
    if not count or moved is None or offsets is None or chunks is None:
        return taken, None, None
    if many:
        wide = from_float16(taken, spec.dtype, allocate)
        wide += offsets.take(chunks, axis=0)
        return wide, None, None
    items = np.flatnonzero(moved)
    return taken, items.astype(np.uint32), offsets.take(chunks[items], axis=0)


@dataclass(frozen=True, slots=True)
class GroupColumn:
    """One column of decoded chunks, [rows, *shape]: float16 if all of them are, else in the declared dtype.

    around: bool [chunks], which chunks' values stand around `offsets` [chunks, *shape]; None: none.
    """

    values: Array
    around: Array | None = None
    offsets: Array | None = None

    def take(
        self, rows: Array, chunks: Array, spec: FieldSpec, allocate: Allocate = np.empty
    ) -> tuple[Array, Array | None, Array | None]:
        """Returns `rows` [n] of the column as `take_rows` does; `chunks` [n] says of which chunk each is."""
        return take_rows(self.values, rows, self.around, self.offsets, chunks, spec, allocate)


@dataclass(frozen=True, slots=True)
class DecodedGroup:
    """Chunks decoded together: each takes n_steps + 1 rows of every column, from `starts`, as it does in the cache's arena.

    The last row of a chunk in columns that are no observations means nothing. Both arrays are int64 [chunks], in the order in
    which the chunks were given; `order` is that in which they lie.
    """

    starts: Array
    n_steps: Array
    order: Array
    columns: tuple[GroupColumn, ...]

    def rows_of(self, chunks: Array) -> slice | Array:
        """Returns the rows that some chunks take, given in the order in which they lie: a slice if nothing is between them."""
        starts, lengths = self.starts[chunks], self.n_steps[chunks] + 1
        total, begin, end = int(lengths.sum()), int(starts[0]), int(starts[-1] + lengths[-1])
        if end - begin == total:
            return slice(begin, end)
        rows: Array = np.arange(total) + (starts - np.cumsum(lengths) + lengths).repeat(lengths)
        return rows


@dataclass(frozen=True, slots=True)
class _Run:
    """Chunks of equal length whose column went through the same stages.

    start, stop: rows of the block in which all chunks of that length lie, `stride` rows each; slots: the places there.
    """

    column: int
    bits: int
    start: int
    stop: int
    stride: int
    rows: int
    row_bytes: int
    chunks: Array
    slots: slice | Array

    @property
    def packed(self) -> bool:
        """Returns whether there is something to decompress; zstd takes a size of 0 for one that is not known."""
        return bool(self.bits & _ZSTD and self.row_bytes)

    @property
    def direct(self) -> bool:
        """Returns whether the bytes before zstd are the values, and so many that they go straight to their place."""
        return not self.bits & (_OFFSETS | _SHUFFLE | _DELTA | _CAST) and self.rows * self.row_bytes >= _LARGE_BYTES


class GroupDecoder:
    """Decodes many chunks of one signature that were stored here. Thread-safe."""

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        self._observations = signature.observation_columns
        descriptor = np.dtype({"names": ["bits", "reserved", "raw", "stored"], "formats": ["u1", ("u1", (3,)), "<u4", "<u4"]})
        fields = [
            ("magic", "S4"), ("version", "<u2"), ("reserved", "<u2"), ("checksum", "<u8"), ("hash", "<u8"), ("key", "<u8"),
            ("first_step", "<u8"), ("n_steps", "<u4"), ("flags", "<u4"), ("policy", "<i8"), ("reward_sum", "<f8"),
            ("metadata", "<u4"), ("count", "<u4"), ("columns", descriptor, (len(signature.columns),)),
        ]  # fmt: skip
        self._header = np.dtype(fields)
        assert self._header.itemsize == PREFIX.size + FIXED.size + DESCRIPTOR.size * len(signature.columns)

    def decode(self, chunks: Sequence[bytes], checksums: Array) -> DecodedGroup:
        """Returns the chunks decoded; `checksums` (uint64 [chunks]) are those that were noted when they were stored.

        Raises:
          ChunkCorruptError: one of them is not what was stored, it is not said which.
        """
        heads = self._heads(chunks, checksums)
        n_steps = heads["n_steps"].astype(np.int64)
        descriptors = heads["columns"]
        bits, sizes = descriptors["bits"], descriptors["stored"].astype(np.int64)
        order = np.argsort(n_steps, kind="stable")
        starts = np.empty(len(chunks), np.int64)
        starts[order] = np.cumsum(n_steps[order] + 1) - (n_steps[order] + 1)
        begins = self._header.itemsize + heads["metadata"].astype(np.int64)[:, None] + np.cumsum(sizes, axis=1) - sizes
        raws = descriptors["raw"].astype(np.int64)
        runs = list(self._runs(n_steps, order, starts, bits))
        contents = self._contents(chunks, runs, begins, sizes, raws)
        total = int(n_steps.sum()) + len(chunks)
        columns = []
        for i, spec in enumerate(self._signature.columns):
            mine = [(run, content) for run, content in zip(runs, contents, strict=True) if run.column == i]
            columns.append(_column(spec, mine, total, len(chunks)))
        return DecodedGroup(starts, n_steps, order, tuple(columns))

    def _heads(self, chunks: Sequence[bytes], checksums: Array) -> Array:
        """Returns the chunks' headers once they are checked as `read_header` does."""
        size, signature = self._header.itemsize, self._signature
        if min(map(len, chunks)) < size:
            raise ChunkCorruptError("chunk: it ends within its header")
        heads = np.frombuffer(b"".join([chunk[:size] for chunk in chunks]), self._header)
        found = np.fromiter(map(checksum_of, chunks), np.uint64, len(chunks))
        lengths = np.fromiter(map(len, chunks), np.int64, len(chunks))
        n_steps, columns = heads["n_steps"].astype(np.int64)[:, None], heads["columns"]
        bits, raw, stored = columns["bits"], columns["raw"].astype(np.int64), columns["stored"].astype(np.int64)
        cast = (bits & _CAST) != 0
        values = np.array([math.prod(spec.shape) for spec in signature.columns])
        widths = np.array([spec.dtype.itemsize for spec in signature.columns])
        may_cast = np.array([spec.cast for spec in signature.columns])
        rows = n_steps + (np.arange(len(signature.columns)) < self._observations)
        expected = values * rows * np.where(cast, 2, widths) + np.where(bits & _OFFSETS, values * widths, 0)
        whole = (
            (heads["magic"] == MAGIC) & (heads["version"] == VERSION) & (heads["checksum"] == found) & (found == checksums)
            & (heads["hash"] == np.uint64(signature.hash)) & (heads["count"] == len(signature.columns))
            & (lengths == size + heads["metadata"].astype(np.int64) + stored.sum(axis=1))
            & (raw == expected).all(axis=1) & (raw.sum(axis=1) <= MAX_RAW_BYTES) & (may_cast | ~cast).all(axis=1)
            & (((bits & _ZSTD) != 0) | (stored == raw)).all(axis=1) & (bits < 32).all(axis=1)
            & ~columns["reserved"].any(axis=(1, 2)) & (heads["reserved"] == 0) & (n_steps[:, 0] >= 1)
            & (cast | ((bits & _OFFSETS) == 0)).all(axis=1)
        )  # fmt: skip
        if not whole.all():
            raise ChunkCorruptError(f"chunk: {len(chunks) - np.count_nonzero(whole)} of {len(chunks)} are not what was stored")
        return heads

    def _runs(self, n_steps: Array, order: Array, starts: Array, bits: Array) -> Iterator[_Run]:
        lengths, firsts = np.unique(n_steps[order], return_index=True)
        for length, block in zip(lengths.tolist(), np.split(order, firsts[1:]), strict=True):
            start, stride = int(starts[block[0]]), length + 1
            stop = start + stride * len(block)
            for i, spec in enumerate(self._signature.columns):
                here = bits[block, i]
                rows = length + (i < self._observations)
                for stages in set(here.tolist()):
                    places = np.flatnonzero(here == stages)
                    slots = slice(None) if len(places) == len(block) else places
                    yield _Run(i, stages, start, stop, stride, rows, spec.row_bytes, block[places], slots)

    @staticmethod
    def _contents(chunks: Sequence[bytes], runs: list[_Run], begins: Array, sizes: Array, raws: Array) -> list[list[Any]]:
        """Returns the bytes before zstd of each run's chunks; of those that are direct, the bytes in the chunk."""
        contents: list[list[Any]] = []
        frames, frame_sizes = [], []
        for run in runs:
            at = begins[run.chunks, run.column]
            ends = (at + sizes[run.chunks, run.column]).tolist()
            parts = [chunks[k][start:end] for k, start, end in zip(run.chunks.tolist(), at.tolist(), ends, strict=True)]
            contents.append(parts)
            if run.packed and not run.direct:
                frames += parts
                frame_sizes.append(raws[run.chunks, run.column])
        unpacked = iter(decompress_parts(frames, np.concatenate(frame_sizes)) if frames else ())
        return [
            list(islice(unpacked, len(parts))) if run.packed and not run.direct else parts
            for run, parts in zip(runs, contents, strict=True)
        ]


def _column(spec: FieldSpec, runs: list[tuple[_Run, list[Any]]], total: int, chunks: int) -> GroupColumn:
    """Returns a column of `total` rows from the bytes of its runs."""
    cast = all(run.bits & _CAST for run, _ in runs)
    values = np.empty((total, *spec.shape), np.float16 if cast else spec.dtype)
    around = offsets = None
    if cast and any(run.bits & _OFFSETS for run, _ in runs):
        around, offsets = np.zeros(chunks, np.bool_), np.full((chunks, *spec.shape), -0.0, spec.dtype)
    for run, parts in runs:
        if not values.size:
            break
        rows = values[run.start : run.stop].reshape(-1, run.stride, *spec.shape)[:, : run.rows]
        if run.direct:
            for slot, part in zip(np.arange(len(rows))[run.slots].tolist(), parts, strict=True):
                raw = rows[slot].reshape(-1).view(np.uint8)
                if run.packed:
                    decompress_into(part, raw)
                else:
                    raw[:] = np.frombuffer(part, np.uint8)
            continue
        body, centre = np.frombuffer(b"".join(parts), np.uint8).reshape(len(parts), -1), None
        if run.bits & _OFFSETS:
            centre = body[:, : spec.row_bytes].copy().view(spec.dtype).reshape(-1, *spec.shape)
            body = body[:, spec.row_bytes :]
        if run.bits & _CAST and not cast:
            wide = _decode(body, run, np.dtype(np.float16), spec.shape).astype(spec.dtype)
            rows[run.slots] = wide if centre is None else wide + centre[:, None]
            continue
        rows[run.slots] = _decode(body, run, values.dtype, spec.shape)
        if centre is not None and around is not None and offsets is not None:
            around[run.chunks], offsets[run.chunks] = True, centre
    return GroupColumn(values, around, offsets)


def _decode(body: Array, run: _Run, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Returns the values [chunks, rows, *shape] of bytes [chunks, bytes]."""
    bits, count = bits_dtype(dtype), len(body)
    if run.bits & _SHUFFLE:
        planes = body.reshape(count, dtype.itemsize, -1)
        values = planes[:, 0].astype(bits)
        for i in range(1, dtype.itemsize):
            values |= planes[:, i].astype(bits) << bits.type(8 * i)
    else:
        values = np.ascontiguousarray(body).view(bits)
    values = values.reshape(count, run.rows, *shape)
    if run.bits & _DELTA:
        values = delta_decode_many(values)
    return values.view(dtype)
