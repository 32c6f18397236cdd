"""A chunk to bytes and back: cast (lossy, declared), then delta, shuffle and zstd (exact). See `header` for the bytes."""

from replaysvc.codec.cast import StoredColumn, widen
from replaysvc.codec.checksum import checksum
from replaysvc.codec.decoder import ChunkDecoder, DecodedChunk
from replaysvc.codec.encoder import ChunkEncoder
from replaysvc.codec.header import ChunkHeader, ChunkInfo, checksum_of, read_header, steps_of
from replaysvc.codec.together import DecodedGroup, GroupColumn, GroupDecoder, take_rows

__all__ = [
    "ChunkDecoder",
    "ChunkEncoder",
    "ChunkHeader",
    "ChunkInfo",
    "DecodedChunk",
    "DecodedGroup",
    "GroupColumn",
    "GroupDecoder",
    "StoredColumn",
    "checksum",
    "checksum_of",
    "read_header",
    "steps_of",
    "take_rows",
    "widen",
]
