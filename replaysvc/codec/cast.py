"""Float fields as float16, within a stated error, or not at all.

A value is kept as float16(x - offset), with one offset a dimension and chunk. The offset is 0 unless a dimension's values
lie far from 0 compared with how much they move: float16 keeps 11 bits, which at 20 km are 16 m, and around an offset they
are 11 bits of the movement. -0.0, NaN and infinities survive.
"""

from dataclasses import dataclass

import numpy as np

from replaysvc.codec.halves import from_float16
from replaysvc.spec import FieldSpec
from replaysvc.types import Array

RELATIVE_ERROR = 2.0**-10  # of the largest range of a dimension within the chunk: the default bound
DIMENSION_ERROR = 2.0**-8  # of a dimension's own range: beyond it, the dimension gets an offset. Float16 without one stays
# within this where values are up to 8 times their movement; a smaller number would give most chunks of a walking robot offsets,
# which cost bytes on the disk and on the wire. No grid is coarser than this either, whatever the other dimensions cover.


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """One column of a decoded chunk in stored precision.

    values: [rows, *shape], float16 where cast, else of the declared dtype. offsets: [*shape] of the declared dtype, to be
    added after widening, or None.
    """

    values: Array
    offsets: Array | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What a cast must know of a column's values (declared dtype, [rows, *shape]).

    exact: the values in float64. finite: which are neither NaN nor infinite; one True if all are. low, high, spread: of the
    finite values of each dimension.
    bound: the largest error that any value may have, `spec.max_error`, or else 2^-10 of the largest spread.
    """

    spec: FieldSpec
    values: Array
    exact: Array
    finite: Array
    all_finite: bool
    low: Array
    high: Array
    spread: Array
    bound: float


def measure(values: Array, spec: FieldSpec) -> Measured:
    """Returns what there is to know of `values`; keeps them."""
    with np.errstate(over="ignore", invalid="ignore"):
        exact = values.astype(np.float64)
        if values.size:
            low, high = exact.min(axis=0), exact.max(axis=0)
        else:
            low = high = np.zeros(spec.shape)
        all_finite = bool((np.isfinite(low) & np.isfinite(high)).all())  # NaN is the least and the greatest of all
        if all_finite:
            finite = np.ones((), np.bool_)
        else:
            finite = np.isfinite(exact)
            low = np.where(finite, exact, np.inf).min(axis=0)
            high = np.where(finite, exact, -np.inf).max(axis=0)
            empty = low > high
            low, high = np.where(empty, 0.0, low), np.where(empty, 0.0, high)
        spread = np.asarray(high - low)
    bound = spec.max_error if spec.max_error is not None else RELATIVE_ERROR * float(spread.max(initial=0.0))
    return Measured(spec, values, exact, finite, all_finite, np.asarray(low), np.asarray(high), spread, bound)


def widen(column: StoredColumn, spec: FieldSpec) -> Array:
    """Returns the column in the declared dtype, [rows, *shape]; the same array if it has that dtype already."""
    if column.values.dtype == spec.dtype:
        return column.values
    wide = from_float16(column.values, spec.dtype)
    if column.offsets is not None:
        wide += column.offsets
    return wide


def cast_to_float16(measured: Measured) -> StoredColumn | None:
    """Returns the values as float16 within the field's error bound; None if they cannot be."""
    values, spread, bound = measured.values, measured.spread, measured.bound
    if values.size == 0:
        return StoredColumn(values.astype(np.float16))
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        column = StoredColumn(values.astype(np.float16))
        error = error_of(column, measured)
        needy = ~(error <= np.minimum(bound, DIMENSION_ERROR * spread))
        if needy.any():
            dtype = measured.spec.dtype
            odd = (~measured.finite | ((values == 0) & np.signbit(values))).any(axis=0)
            middle = np.where(needy & ~odd, measured.low + spread / 2, 0.0).astype(dtype)
            middle = np.where(np.isfinite(middle), middle, 0).astype(dtype)
            if middle.any():
                moved = StoredColumn((values - middle).astype(np.float16), middle)
                moved_error = error_of(moved, measured)
                better = moved_error < error
                if better.any():
                    # adding -0.0 changes no value at all, adding 0.0 would turn -0.0 into 0.0
                    offsets = np.where(better, middle, -0.0).astype(dtype)
                    column = StoredColumn(np.where(better, moved.values, column.values), offsets)
                    error = np.where(better, moved_error, error)
    # the bound itself is infinite where a range overflows
    return column if bool((np.isfinite(error) & (error <= bound)).all()) else None


def error_of(column: StoredColumn, measured: Measured) -> Array:
    """Returns the largest absolute error of each dimension by what the decoder does; inf where a value does not survive."""
    exact, finite = measured.exact, measured.finite
    back = widen(column, measured.spec).astype(np.float64)
    if measured.all_finite:
        error = np.abs(back - exact)
    else:
        same = (np.isnan(back) & np.isnan(exact)) | (back == exact)
        error = np.where(finite, np.abs(back - exact), np.where(same, 0.0, np.inf))
    if (zero := exact == 0).any():
        error = np.where(zero & (np.signbit(back) != np.signbit(exact)), np.inf, error)
    return np.asarray(np.where(np.isnan(error), np.inf, error).max(axis=0))
