"""Float fields as float16, within a stated error, or not at all.

A value is kept as float16(x - offset), with one offset a dimension and chunk. The offset is 0 unless a dimension's values
lie far from 0 compared with how much they move: float16 keeps 11 bits, which at 20 km are 16 m, and around an offset they
are 11 bits of the movement. -0.0, NaN and infinities survive.
"""

from dataclasses import dataclass

import numpy as np

from replaysvc.spec import FieldSpec
from replaysvc.types import Array

RELATIVE_ERROR = 2.0**-10  # of the largest range of a dimension within the chunk: the default bound
OFFSET_ERROR = 2.0**-8  # of a dimension's own range: beyond it, the dimension gets an offset. Float16 without one stays within
# this where values are up to 8 times their movement; a smaller number would give most chunks of a walking robot offsets, which
# cost bytes on the disk and on the wire.


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """One column of a decoded chunk in stored precision.

    values: [rows, *shape], float16 where cast, else of the declared dtype. offsets: [*shape] of the declared dtype, to be
    added after widening, or None.
    """

    values: Array
    offsets: Array | None = None


def widen(column: StoredColumn, spec: FieldSpec) -> Array:
    """Returns the column in the declared dtype, [rows, *shape]; the same array if it has that dtype already."""
    if column.values.dtype == spec.dtype:
        return column.values
    wide = column.values.astype(spec.dtype)
    if column.offsets is not None:
        wide += column.offsets
    return wide


def cast_to_float16(values: Array, spec: FieldSpec) -> StoredColumn | None:
    """Returns `values` (declared dtype, [rows, *shape]) as float16 within the field's error bound; None if it cannot be.

    The bound is `spec.max_error`, or else 2^-10 of the largest range that a dimension covers.
    """
    if values.size == 0:
        return StoredColumn(values.astype(np.float16))
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        finite = np.isfinite(values)
        all_finite = bool(finite.all())
        exact = values.astype(np.float64)
        if all_finite:
            low, high = exact.min(axis=0), exact.max(axis=0)
        else:
            low = np.where(finite, exact, np.inf).min(axis=0)
            high = np.where(finite, exact, -np.inf).max(axis=0)
            empty = low > high
            low, high = np.where(empty, 0.0, low), np.where(empty, 0.0, high)
        spread = high - low
        bound = spec.max_error if spec.max_error is not None else RELATIVE_ERROR * float(spread.max())
        column = StoredColumn(values.astype(np.float16))
        error = _error(column, spec, exact, finite, all_finite)
        needy = ~(error <= np.minimum(bound, OFFSET_ERROR * spread))
        if needy.any():
            odd = (~finite).any(axis=0) | ((values == 0) & np.signbit(values)).any(axis=0)
            middle = np.where(needy & ~odd, low + spread / 2, 0.0).astype(spec.dtype)
            middle = np.where(np.isfinite(middle), middle, 0).astype(spec.dtype)
            if middle.any():
                moved = StoredColumn((values - middle).astype(np.float16), middle)
                moved_error = _error(moved, spec, exact, finite, all_finite)
                better = moved_error < error
                if better.any():
                    # adding -0.0 changes no value at all, adding 0.0 would turn -0.0 into 0.0
                    offsets = np.where(better, middle, -0.0).astype(spec.dtype)
                    column = StoredColumn(np.where(better, moved.values, column.values), offsets)
                    error = np.where(better, moved_error, error)
    # the bound itself is infinite where a range overflows
    return column if bool((np.isfinite(error) & (error <= bound)).all()) else None


def _error(column: StoredColumn, spec: FieldSpec, exact: Array, finite: Array, all_finite: bool) -> Array:
    """Returns the largest absolute error of each dimension by what the decoder does; inf where a value does not survive."""
    back = widen(column, spec).astype(np.float64)
    if all_finite:
        error = np.abs(back - exact)
    else:
        same = (np.isnan(back) & np.isnan(exact)) | (back == exact)
        error = np.where(finite, np.abs(back - exact), np.where(same, 0.0, np.inf))
    if (zero := exact == 0).any():
        error = np.where(zero & (np.signbit(back) != np.signbit(exact)), np.inf, error)
    return np.asarray(np.where(np.isnan(error), np.inf, error).max(axis=0))
