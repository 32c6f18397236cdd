"""Float16 to wider floats, by a table of all 65,536 values: exact, and twice as fast as numpy's own conversion, measured with
numpy 2.3 on x86-64, which does it in software."""

from functools import cache
from typing import Any

import numpy as np

from replaysvc.types import Allocate, Array


def from_float16(values: Array, dtype: np.dtype[Any], allocate: Allocate | None = None) -> Array:
    """Returns float16 `values` as `dtype`, float32 or float64, in a new array, which `allocate` makes if it is given."""
    bits = values.view(np.uint16)
    if allocate is None:
        return _table(dtype).take(bits)
    wide = allocate(values.shape, dtype)
    np.take(_table(dtype), bits, out=wide, mode="clip")  # other modes make a copy first
    return wide


@cache
def _table(dtype: np.dtype[Any]) -> Array:
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(dtype)
