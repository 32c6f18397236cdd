"""Where the blocks of a zstd frame end. A block has one Huffman code for all its bytes, and zstd itself makes it 128 KiB long.

The planes of a shuffled column have bytes of very different kinds: exponents of few values, mantissas that are noise. In one
block the noise spoils the code of all; in blocks of their own, exponents take two bits and noise is left as it is. Decoders
need not know: any frame may have blocks of any size.
"""

import math

import numpy as np

from replaysvc.types import Array

MAX_ROWS = 64  # more are looked at in groups
_HEADER_BYTES = 3.0  # of a block
_TABLE_BYTES = 8.0, 0.5, 136.0  # about what zstd writes of a Huffman code: by itself, for each byte value in use, at most


def block_ends(rows: Array) -> list[int]:
    """Returns after which of `rows` (uint8 [rows, bytes], rows up to MAX_ROWS) blocks should end; never after the last."""
    counts = [np.bincount(row, minlength=256) for row in rows]
    sizes = [_block_bytes(count) for count in counts]
    ends = list(range(1, len(counts)))
    gains = [sizes[i] + sizes[i + 1] - _block_bytes(counts[i] + counts[i + 1]) for i in range(len(counts) - 1)]
    while gains and max(gains) >= 0:  # joins the two neighbours that lose least by it, again and again
        i = int(np.argmax(gains))
        counts[i : i + 2] = [counts[i] + counts[i + 1]]
        sizes[i : i + 2] = [_block_bytes(counts[i])]
        del ends[i], gains[i]
        for j in (i - 1, i):
            if 0 <= j < len(gains):
                gains[j] = sizes[j] + sizes[j + 1] - _block_bytes(counts[j] + counts[j + 1])
    return ends


def _block_bytes(count: Array) -> float:
    """Returns about how many bytes a block takes of which each byte value occurs so often."""
    used = count[count > 0]
    if len(used) < 2:
        return _HEADER_BYTES + 1
    total = float(used.sum())
    bits = max(total * math.log2(total) - float((used * np.log2(used)).sum()), total)  # a Huffman code has no half bits
    start, each, most = _TABLE_BYTES
    return _HEADER_BYTES + min(total, bits / 8 + min(start + each * len(used), most))
