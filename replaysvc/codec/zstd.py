"""zstd frames, many at a time. The only module that imports zstandard.

A frame states its own content size, and a decompressor allocates what it states: 13 bytes can ask for a terabyte. So a
frame is looked at before it is decompressed, and refused unless it states exactly the size that the signature gives.
"""

import threading
from collections.abc import Sequence
from typing import Any

import zstandard

from replaysvc.errors import ChunkCorruptError

_MAX_WINDOW = 8 << 20  # bytes; level 3 needs at most 2 MiB


class Compressor:
    """Makes frames that state their content size. Not thread-safe."""

    def __init__(self, level: int) -> None:
        self._compressor = zstandard.ZstdCompressor(level=level, write_content_size=True, write_checksum=False)

    def compress(self, data: Any) -> bytes:
        """Returns one frame."""
        return self._compressor.compress(data)


_local = threading.local()  # decompressors must not be shared between threads


def decompress(frames: Sequence[memoryview], sizes: Sequence[int]) -> list[Any]:
    """Returns the contents of `frames`, buffers of exactly `sizes` bytes.

    Raises:
      ChunkCorruptError: a frame that states another size, is damaged, or is followed by something.
    """
    for frame, size in zip(frames, sizes, strict=True):
        _check_frame(frame, size)
    decompressor = getattr(_local, "decompressor", None)
    if decompressor is None:
        decompressor = _local.decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    contents = []
    try:
        for frame, size in zip(frames, sizes, strict=True):
            contents.append(decompressor.decompress(frame, max_output_size=size, allow_extra_data=False))
    except zstandard.ZstdError as error:
        raise ChunkCorruptError(f"chunk: a column does not decompress: {error}") from error
    if any(len(content) != size for content, size in zip(contents, sizes, strict=True)):
        raise ChunkCorruptError("chunk: a column decompresses to another size than the signature gives")
    return contents


def _check_frame(frame: memoryview, size: int) -> None:
    try:
        parameters = zstandard.get_frame_parameters(frame)
    except zstandard.ZstdError as error:
        raise ChunkCorruptError(f"chunk: a column is no zstd frame: {error}") from error
    if parameters.content_size != size or parameters.window_size > max(_MAX_WINDOW, size) or parameters.dict_id:
        raise ChunkCorruptError(
            f"chunk: expected a zstd frame of {size} bytes, found one that states {parameters.content_size}"
        )
