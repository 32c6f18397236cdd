"""Images as PNG (ISO 15948), without a library for them: grey or RGB, eight bits a sample."""

import struct
import zlib

import numpy as np

from replaysvc.types import Array

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _RGB = 0, 2


def png(pixels: Array) -> bytes:
    """Returns an image, uint8 [H, W] (grey) or [H, W, 3] (RGB), as a PNG file."""
    height, width = pixels.shape[:2]
    rows = np.ascontiguousarray(pixels).reshape(height, -1)
    filtered = np.zeros((height, rows.shape[1] + 1), np.uint8)  # each row begins with its filter: 0, none
    filtered[:, 1:] = rows
    header = struct.pack(">IIBBBBB", width, height, 8, _GREY if pixels.ndim == 2 else _RGB, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.tobytes(), 3)), (b"IEND", b""))
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
