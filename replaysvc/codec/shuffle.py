"""Byte shuffle: first the lowest bytes of all values, then the next, as in Blosc and HDF5. Exact.

Values of one column share their high bytes; side by side these are runs that zstd sees.
"""

import numpy as np

from replaysvc.types import Array


def shuffle(raw: Array, width: int) -> Array:
    """Returns the bytes (uint8 [n * width]) regrouped by their place within each value."""
    return np.ascontiguousarray(raw.reshape(-1, width).T).reshape(-1)


def unshuffle(raw: Array, width: int) -> Array:
    """Returns what `shuffle` was given."""
    return np.ascontiguousarray(raw.reshape(width, -1).T).reshape(-1)
