"""zstd frames, many at a time. The only module that imports zstandard.

A frame states its own content size, and a decompressor allocates what it states: 13 bytes can ask for a terabyte. So a
frame is looked at before it is decompressed, and refused unless it states exactly the size that the signature gives.

Frames of chunks are decompressed many in one call, since each call gives up the interpreter lock and then waits for it if
another thread is busy in Python. What follows a frame, zstd takes without a word, so the end of each frame is found here.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import zstandard

from replaysvc.errors import ChunkCorruptError
from replaysvc.types import Array

_MAX_WINDOW = 8 << 20  # bytes; levels up to 6 need at most 2 MiB
_CALL_BYTES = 4 << 20  # chosen by hand: contents of one call share one buffer, which lives as long as any column in it
_FAST_LEVEL = -1  # chosen by hand: level 1 takes a quarter longer for what is hardly smaller
_TRIAL_BYTES, _TRIAL_SHARE = 64 << 10, 64  # what may not be worth compressing is tried first: so much, or a 64th of it
_BLOCK_BYTES = 256  # no encoder makes more than 196 blocks of 128 KiB; bounds the walk through a hostile frame


class Compressor:
    """Makes frames that state their content size. Not thread-safe."""

    def __init__(self, level: int) -> None:
        self._compressor = zstandard.ZstdCompressor(level=level, write_content_size=True, write_checksum=False)

    def compress(self, data: Any) -> bytes:
        """Returns one frame."""
        return self._compressor.compress(data)


_local = threading.local()  # compressors and decompressors must not be shared between threads


def squeeze(data: Array, ratio: float) -> bytes | None:
    """Returns one frame of `data` (uint8 [n]), made fast; None if it, or its beginning, shrinks to more than 1 / `ratio`."""
    compressor = getattr(_local, "compressor", None)
    if compressor is None:
        compressor = _local.compressor = Compressor(_FAST_LEVEL)
    for part in (data[: max(_TRIAL_BYTES, len(data) // _TRIAL_SHARE)], data):
        frame: bytes = compressor.compress(part)
        if ratio * len(frame) > len(part):
            return None
    return frame


def fill(data: Array, frame: memoryview) -> None:
    """Puts the content of a frame into `data` (uint8 [n]), which it must fill.

    Raises:
      ChunkCorruptError: as `decompress`.
    """
    _check_frame(frame, len(data))
    decompress_into(frame, data)


def decompress(frames: Sequence[memoryview], sizes: Sequence[int]) -> list[Any]:
    """Returns the contents of `frames`, buffers of exactly `sizes` bytes.

    Raises:
      ChunkCorruptError: a frame that states another size, is damaged, or is followed by something.
    """
    for frame, size in zip(frames, sizes, strict=True):
        _check_frame(frame, size)
    decompressor = _decompressor()
    contents: list[Any] = [b""] * len(frames)
    try:
        for group in _groups(sizes):
            lengths = np.array([sizes[i] for i in group], "<u8").tobytes()
            found = decompressor.multi_decompress_to_buffer([frames[i] for i in group], decompressed_sizes=lengths, threads=1)
            for place, i in enumerate(group):
                contents[i] = found[place]
    except zstandard.ZstdError as error:
        raise ChunkCorruptError(f"chunk: a column does not decompress: {error}") from error
    return contents


def decompress_parts(frames: list[Any], sizes: Array) -> list[Any]:
    """Returns the contents of `frames`, buffers that share their memory; the frames are trusted to be such, none of size 0.

    Raises:
      ChunkCorruptError: a frame has another size than `sizes` (int64 [frames]), or is damaged.
    """
    try:
        lengths = sizes.astype("<u8").tobytes()
        found = _decompressor().multi_decompress_to_buffer(frames, decompressed_sizes=lengths, threads=1)
    except zstandard.ZstdError as error:
        raise ChunkCorruptError(f"chunk: a column does not decompress: {error}") from error
    return [found[i] for i in range(len(found))]


def decompress_into(frame: bytes | memoryview, target: Array) -> None:
    """Decompresses a frame, trusted as in `decompress_parts`, into `target`, contiguous uint8 of its size.

    Raises:
      ChunkCorruptError: the frame has another size, or is damaged.
    """
    try:
        with _decompressor().stream_reader(frame, read_size=len(frame)) as reader:
            whole = reader.readinto(target) == len(target) and not reader.read(1)
    except zstandard.ZstdError as error:
        raise ChunkCorruptError(f"chunk: a column does not decompress: {error}") from error
    if not whole:
        raise ChunkCorruptError(f"chunk: a column does not decompress to {len(target)} bytes")


def _decompressor() -> zstandard.ZstdDecompressor:
    """Returns this thread's own."""
    found = getattr(_local, "decompressor", None)
    if found is None:
        found = _local.decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    return found


def _groups(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yields the places of the frames to decompress in one call; none of size 0, which that call takes for not known."""
    group: list[int] = []
    total = 0
    for i, size in enumerate(sizes):
        if group and total + size > _CALL_BYTES:
            yield group
            group, total = [], 0
        if size:
            group.append(i)
            total += size
    if group:
        yield group


def _check_frame(frame: memoryview, size: int) -> None:
    try:
        parameters = zstandard.get_frame_parameters(frame)
        at = zstandard.frame_header_size(frame)
    except zstandard.ZstdError as error:
        raise ChunkCorruptError(f"chunk: a column is no zstd frame: {error}") from error
    if parameters.content_size != size or parameters.window_size > max(_MAX_WINDOW, size) or parameters.dict_id:
        raise ChunkCorruptError(
            f"chunk: expected a zstd frame of {size} bytes, found one that states {parameters.content_size}"
        )
    end = len(frame) - (4 if parameters.has_checksum else 0)
    for _ in range(size // _BLOCK_BYTES + 16):
        block = int.from_bytes(frame[at : at + 3], "little")  # 1 bit: the last, 2 bits: kind, 21 bits: size
        at += 3 + (1 if block & 6 == 2 else block >> 3)  # kind 1 is one byte, to be repeated `size` times
        if block & 1 or at >= end:
            break
    if at != end or not block & 1:
        raise ChunkCorruptError("chunk: a column's zstd frame does not end where the column does")
