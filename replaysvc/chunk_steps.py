"""How many steps make a full chunk: large enough to compress well, small enough to decode fast when only one is wanted."""

import math

from replaysvc.config import TableConfig
from replaysvc.spec import Signature

_STATE_CHUNK_BYTES = 4 << 10  # decoded, of a state column's chunk. A chunk then takes about a page of the store: larger ones
# take no less of the disk for a step, and are slower to decode when one step of them is wanted
_IMAGE_ROW_BYTES = 1 << 10
_IMAGE_CHUNK_STEPS = 16, 176  # at least, at most. The first frame of a chunk takes as much of the disk as 30 to 60 more do:
# MsPacman takes 215 bytes a step in chunks of 32, 117 in chunks of 176, and one of these decodes in 0.1 ms
_IMAGE_CHUNK_BYTES = 5 << 18  # of frames: what each writer keeps twice, and a learner reads who wants one step of them
_CHUNK_RAW_BYTES = 48 << 20  # of a chunk as (s, a, r, s'), which bounds its encoded bytes even where nothing compresses


def choose_chunk_steps(signature: Signature, config: TableConfig) -> int:
    """Returns the steps of a full chunk: as configured, or chosen from the largest column's row; no more than fit a message."""
    most = max(1, _CHUNK_RAW_BYTES // max(1, signature.raw_step_bytes))
    if config.chunk_steps is not None:
        return min(config.chunk_steps, most)
    row = max(spec.stored_dtype.itemsize * math.prod(spec.shape) for spec in signature.columns)
    if row >= _IMAGE_ROW_BYTES:
        fewest, longest = _IMAGE_CHUNK_STEPS
        return min(max(fewest, min(longest, _IMAGE_CHUNK_BYTES // row)), most)
    return min(max(32, min(256, 1 << ((_STATE_CHUNK_BYTES // max(row, 1)).bit_length() - 1))), most)
