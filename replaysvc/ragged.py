"""Ragged arrays: items of different lengths as one array of values and the offsets between them, without padding.

What a batch holds of a ragged field (`FieldSpec(..., ragged=True)`): token lists, or the actions that are allowed. Below
`unflatten` such a field is two plain columns, its values padded with zeros and its lengths; here the padding goes.
"""

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from replaysvc.checks import check_number
from replaysvc.errors import SpecMismatchError

Array = np.ndarray[Any, Any]
_MAX_LENGTH = (1 << 32) - 1  # what a column of lengths can say


@dataclass(frozen=True, slots=True, eq=False)
class RaggedArray:
    """N items, each an array [n, *rest] with an n of its own, arranged as `lead` says.

    values: [sum of all n, *rest], the items one after the other, row-major over `lead`. offsets: int64 [N+1]; item i is
    `values[offsets[i]:offsets[i+1]]`. lead: (B,), or (B, T) for sequences, with one more axis where frames are stacked.

    Raises:
      SpecMismatchError: offsets that do not rise from 0 to the number of values, or are no N+1 for the `lead` given.
    """

    values: Array
    offsets: Array
    lead: tuple[int, ...]

    def __post_init__(self) -> None:
        values, offsets, lead = np.asarray(self.values), np.asarray(self.offsets), tuple(map(operator.index, self.lead))
        if not lead or min(lead) < 0 or not values.ndim:
            raise SpecMismatchError(
                "ragged array", "values [sum n, ...] and a lead of one size or more", f"{values.shape}, {lead}"
            )
        if offsets.dtype.kind not in "iu" or offsets.shape != (math.prod(lead) + 1,):
            found = f"{offsets.dtype}{list(offsets.shape)}"
            raise SpecMismatchError("offsets", f"{math.prod(lead) + 1} integers for items {list(lead)}", found)
        offsets = offsets.astype(np.int64, copy=False)
        if offsets[0] or offsets[-1] != len(values) or (offsets[1:] < offsets[:-1]).any():
            raise SpecMismatchError("offsets", f"numbers that rise from 0 to {len(values)}", str(offsets))
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "lead", lead)

    def __len__(self) -> int:
        return self.lead[0]

    def __getitem__(self, index: int | tuple[int, ...]) -> Any:
        """Returns an item, a view [n, *rest]; with fewer ints than `lead` has axes, the RaggedArray of what is there.

        Raises:
          IndexError: no such item; so a for loop over the first axis works.
        """
        at = tuple(map(operator.index, index if isinstance(index, tuple) else (index,)))
        if len(at) > len(self.lead) or any(not -size <= i < size for i, size in zip(at, self.lead, strict=False)):
            raise IndexError(f"item {index}: expected one of {list(self.lead)}")
        start, count = 0, math.prod(self.lead)
        for i, size in zip(at, self.lead, strict=False):
            count //= size
            start += i % size * count
        offsets = self.offsets[start : start + count + 1]
        values = self.values[offsets[0] : offsets[-1]]
        if len(at) == len(self.lead):
            return values
        return RaggedArray(values, offsets - offsets[0], self.lead[len(at) :])

    def part(self, start: int, stop: int) -> "RaggedArray":
        """Returns items [start, stop) of the first axis, 0 <= start <= stop <= len(self): a view of their values."""
        each = math.prod(self.lead[1:])
        offsets = self.offsets[start * each : stop * each + 1]
        return RaggedArray(self.values[offsets[0] : offsets[-1]], offsets - offsets[0], (stop - start, *self.lead[1:]))

    @property
    def lengths(self) -> Array:
        """Returns the length of each item, int64 [*lead]."""
        return np.diff(self.offsets).reshape(self.lead)

    def padded(self, fill: Any = 0, length: int | None = None) -> tuple[Array, Array]:
        """Returns (array [*lead, length, *rest], mask bool [*lead, length]): `fill` stands where the mask is False.

        `length` is that of the longest item unless given.

        Raises:
          SpecMismatchError: `length` is too short for an item, or `fill` does not fit the dtype.
        """
        from replaysvc.spec import FieldSpec

        lengths = self.lengths
        longest = int(lengths.max(initial=0))
        length = longest if length is None else check_number("length", length, longest, _MAX_LENGTH)
        mask = _mask(lengths, length)
        fill = FieldSpec("fill", (), self.values.dtype).check(fill)
        array = np.full((*self.lead, length, *self.values.shape[1:]), fill)
        array[mask] = self.values
        return array, mask

    @staticmethod
    def from_padded(padded: Any, lengths: Any) -> "RaggedArray":
        """Returns the first `lengths` [*lead] values of each item of `padded` [*lead, longest, *rest], copied.

        Raises:
          SpecMismatchError: shapes that do not fit each other, or a length below 0 or above what `padded` holds.
        """
        padded, lengths = np.asarray(padded), np.asarray(lengths)
        lead = lengths.shape
        if not lead or lengths.dtype.kind not in "iu" or padded.ndim <= len(lead) or padded.shape[: len(lead)] != lead:
            found = f"{lengths.dtype}{list(lead)} for values {list(padded.shape)}"
            raise SpecMismatchError("lengths", "an integer for each item of [*lead, longest, ...]", found)
        longest = padded.shape[len(lead)]
        wrong = lengths[(lengths < 0) | (lengths > longest)]
        if wrong.size:
            raise SpecMismatchError("lengths", f"0 to {longest}", str(wrong[0]))
        offsets = np.zeros(lengths.size + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return RaggedArray(padded[_mask(lengths, longest)], offsets, lead)

    @staticmethod
    def from_lists(lists: Iterable[Any], dtype: Any, rest: tuple[int, ...] = ()) -> "RaggedArray":
        """Returns the arrays or lists in `lists`, each [n, *rest], as one; `lead` is their number. Converted as at `append`.

        Raises:
          SpecMismatchError: an item has another shape, or its values do not survive as `dtype`.
        """
        from replaysvc.spec import FieldSpec

        items = list(lists)
        longest = max((len(item) for item in items), default=0)
        spec = FieldSpec("lists", (max(longest, 1), *rest), np.dtype(dtype), ragged=True)
        arrays = [spec.check(item) for item in items]
        offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
        return RaggedArray(np.concatenate([np.empty((0, *rest), spec.dtype), *arrays]), offsets, (len(arrays),))


def _mask(lengths: Array, longest: int) -> Array:
    return np.asarray(np.arange(longest) < lengths[..., None])
