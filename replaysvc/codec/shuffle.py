"""Byte shuffle: first the lowest bytes of all values, then the next, as in Blosc and HDF5. Exact.

Values of one column share their high bytes; side by side these are runs that zstd sees.
"""

import numpy as np

from replaysvc.types import Array


def shuffle(raw: Array, width: int) -> Array:
    """Returns the bytes (uint8 [n * width]) regrouped by their place within each value."""
    return np.ascontiguousarray(raw.reshape(-1, width).T).reshape(-1)


def unshuffle(raw: Array, width: int) -> Array:
    """Returns what `shuffle` was given; of several columns [n, bytes], those."""
    planes = raw.reshape(*raw.shape[:-1], width, -1)
    if width != 2:
        return np.ascontiguousarray(planes.swapaxes(-1, -2)).reshape(raw.shape)
    values = np.empty((*raw.shape[:-1], planes.shape[-1], 2), np.uint8)  # numpy turns such narrow arrays three times slower
    values[..., 0], values[..., 1] = planes[..., 0, :], planes[..., 1, :]
    return values.reshape(raw.shape)
