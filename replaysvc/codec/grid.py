"""Float16 values as whole numbers of a step: digits that the error bound does not ask for are not stored.

A float16 keeps 11 bits of each value however small; an error bound asks for the same digits of all. So each dimension has a
step, at most twice the error that it may make, and its values are stored as int16 numbers of steps. These are small, and so
are their differences from row to row.

Steps are powers of two, which one byte tells, and offsets are multiples of any step that moves values. So 0, 1, -1, 0.5 and
whatever else is a multiple of the step comes back as it was, no value passes it, and nothing is rounded twice: all machines
decode alike.

Signs go to the lowest bit (zigzag), so that the higher bytes of small numbers are all 0.
"""

from dataclasses import dataclass

import numpy as np

from replaysvc.codec.cast import DIMENSION_ERROR, Measured, StoredColumn, error_of
from replaysvc.types import Array

_LEAST = -24  # exponent of the least float16
STEPS = 2.0 ** np.arange(_LEAST, 16, dtype=np.float32)  # up to the largest power of two that is a float16
_FIRST_ROWS = 4  # tell of nearly every dimension that its values are multiples of nothing
_LARGEST = 65_504  # float16
_EXACT = 2048  # float16 has every whole number up to this one
_PLACES = 64  # chosen by hand, up to 1 / (2 * DIMENSION_ERROR): offsets lie this part of the range apart, more than any step


@dataclass(frozen=True, slots=True)
class Grid:
    """numbers: int16 [rows, *shape]. scales: uint8 [*shape], places in STEPS. offsets: as of a StoredColumn.

    A value is its number times its step, plus its offset.
    """

    numbers: Array
    scales: Array
    offsets: Array | None


def fit_grid(measured: Measured) -> Grid | None:
    """Returns the coarsest grid that fits; None if none does, as where there are NaNs, infinities or -0.0.

    No value moves by more than the field's bound, nor by more than 2^-8 of its dimension's range if float16 can do that. None
    moves at all that is a multiple of its step, nor in a dimension of which all are multiples of one power of two, and float16.

    None leaves its dimension's range in the chunk, as long as the bound lets those next to an end of it become the last number
    inside, which may be 2^-7 of the range away. Where it does not, they are rounded as all others are.
    """
    if not measured.all_finite or not measured.exact.size or _has_negative_zero(measured.values):
        return None
    low, high, moved, offsets = measured.low, measured.high, measured.exact, None
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = 2 * np.minimum(measured.bound, DIMENSION_ERROR * measured.spread)
        reach = np.maximum(high, -low)
        finest = _spacing(reach)
        if bool((far := (wanted < finest) & (reach > 0)).any()):
            far &= 2 * np.abs(np.rint(moved / finest) * finest - moved).max(axis=0) > wanted  # the finest step may do, even so
            if bool(far.any()):
                # adding -0.0 changes no value at all, adding 0.0 would turn -0.0 into 0.0
                offsets = np.where(far, _middle(measured), -0.0).astype(measured.spec.dtype)
                low, high, moved = low - offsets, high - offsets, moved - offsets
                reach = np.maximum(high, -low)
                finest = _spacing(reach)
    if not bool((reach <= _LARGEST).all()):
        return None
    common = _common(moved, finest)
    step = np.where(common > 0, common, _power(np.maximum(wanted, finest)))
    least, most = low / step, high / step
    inner, outer = np.ceil(least), np.floor(most)  # numbers of values that are inside the range
    inside = (np.maximum(inner - least, most - outer) * step <= measured.bound) & (inner <= outer)
    numbers = np.rint(moved / step)
    numbers = np.maximum(numbers, np.where(inside, inner, -_EXACT), out=numbers)
    numbers = np.minimum(numbers, np.where(inside, outer, _EXACT), out=numbers).astype(np.int16)
    grid = Grid(numbers, np.asarray(np.frexp(step)[1] - 1 - _LEAST).astype(np.uint8), offsets)
    if offsets is not None or bool(((step > wanted) & (common == 0)).any()):  # else half a step is within the bound
        error = error_of(StoredColumn(from_grid(numbers, grid.scales), offsets), measured)
        return grid if bool((error <= measured.bound).all()) else None
    return grid


def _has_negative_zero(values: Array) -> bool:
    bits = np.dtype(f"i{values.dtype.itemsize}")
    return bool((values.view(bits) == np.iinfo(bits).min).any())


def _middle(measured: Measured) -> Array:
    """Returns about the middle of each dimension, a multiple of any step that the dimension may get."""
    middle = measured.low + measured.spread / 2
    place = _power(np.maximum(measured.spread, np.finfo(np.float64).tiny) / _PLACES)
    return np.where(measured.spread > 0, np.rint(middle / place) * place, middle)


def _power(values: Array) -> Array:
    """Returns the largest powers of two up to `values`."""
    return np.asarray(np.ldexp(1.0, np.frexp(values)[1] - 1))


def _common(moved: Array, finest: Array) -> Array:
    """Returns for each dimension the largest power of two, from `finest` on, of which all values are multiples, 0 if none is.

    Counts, flags and one-hot vectors among floats stay what they are by it, and have the smallest numbers.
    """
    values, each = moved.reshape(len(moved), -1), 1 / finest.reshape(-1)  # a power of two: exact
    common = np.zeros(values.shape[1])
    first = values[:_FIRST_ROWS] * each
    if len(plain := np.flatnonzero((np.rint(first) == first).all(axis=0))):
        whole = values[:, plain] * each[plain]
        alike = (np.rint(whole) == whole).all(axis=0)
        bits = np.bitwise_or.reduce(np.abs(whole[:, alike]).astype(np.int64), axis=0)
        common[plain[alike]] = np.maximum(bits & -bits, 1) / each[plain[alike]]
    return common.reshape(finest.shape)


def _spacing(reach: Array) -> Array:
    """Returns the least step of which all multiples up to `reach` are float16, by the 2048 whole numbers that float16 has."""
    fraction, exponent = np.frexp(reach)
    return np.asarray(np.ldexp(1.0, np.maximum(exponent - (fraction == 0.5), -13) - 11))


def from_grid(numbers: Array, scales: Array) -> Array:
    """Returns the float16 values, in C order, of int16 `numbers` [rows, ...] and their scales [...]."""
    with np.errstate(over="ignore"):  # what no encoder writes: infinity
        values: Array = np.multiply(numbers, STEPS[scales], order="C").astype(np.float16)
    return values


def zigzag(bits: Array) -> Array:
    """Returns 0, -1, 1, -2, ... (int16, as their bits in uint16) as 0, 1, 2, 3, ..."""
    coded: Array = (bits << 1) ^ -(bits >> 15)
    return coded


def unzigzag(bits: Array) -> Array:
    """Returns what `zigzag` was given."""
    plain: Array = (bits >> 1) ^ -(bits & 1)
    return plain
