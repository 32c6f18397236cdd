"""Numbers as JSON can hold them, and browsers read them without loss.

JSON has no NaN and no infinities, and JavaScript no whole numbers beyond 2^53. In plots the former are gaps (null); where
stored values are shown, they are the strings "nan", "inf" and "-inf". The latter are strings.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from replaysvc.ragged import RaggedArray
from replaysvc.types import Array

SAFE = (1 << 53) - 1  # JavaScript's Number.MAX_SAFE_INTEGER


@dataclass(frozen=True, slots=True)
class Stored:
    """Stored values, which come nested as the array is; what is no finite number is the string that numpy writes."""

    values: Array


def plain(value: Any) -> Any:
    """Returns `value`, of dataclasses, mappings, sequences, arrays and numbers, as JSON can hold it; gaps are None."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if -SAFE <= value <= SAFE else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, Stored):
        return _stored(value.values)
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, Path | complex):
        return str(value)
    return [plain(part) for part in value]


def _array(array: Array) -> Any:
    if array.dtype.kind in "iu":
        return _whole(array)
    if array.dtype.kind == "f":
        if np.isfinite(array).all():
            return array.tolist()
        return np.where(np.isfinite(array), array.astype(object), None).tolist()  # type: ignore[call-overload]
    return array.astype(str).tolist() if array.dtype.kind == "c" else array.tolist()


def _whole(array: Array) -> Any:
    if not array.size or (int(array.max()) <= SAFE and int(array.min()) >= -SAFE):
        return array.tolist()
    return np.array([plain(number) for number in array.ravel().tolist()], object).reshape(array.shape).tolist()


def _stored(array: Array) -> Any:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        shown = np.where(np.isfinite(array), array.astype(object), array.astype(str).astype(object))
        return shown.tolist()
    return _array(array)


def first_values(rows: Array | RaggedArray, most: int) -> tuple[Any, bool]:
    """Returns the values of each row, for `plain`, and whether any had more than `most`: then its first ones, flat."""
    if isinstance(rows, RaggedArray):
        parts = [np.asarray(rows[i]) for i in range(len(rows))]
        cut = any(part.size > most for part in parts)
        return [Stored(part.reshape(-1)[:most] if part.size > most else part) for part in parts], cut
    if math.prod(rows.shape[1:]) > most:
        return Stored(rows.reshape(len(rows), -1)[:, :most]), True
    return Stored(rows), False
