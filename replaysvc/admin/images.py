"""Which columns are images, and how their planes lie: guessed by shape, since a signature does not say it."""


from dataclasses import dataclass

import numpy as np

from replaysvc.spec import FieldSpec
from replaysvc.types import Array

_LEAST, _MOST = 8, 2048  # pixels of a side
_MOST_PLANES = 64
_GREY, _LAST, _FIRST = "grey", "colours last", "colours first"


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the planes of an image lie: [*stack, H, W] or [H, W, stack], each grey or of three colours.

    planes: how many images there are to choose from. colours: "grey", "colours last" or "colours first".
    stacked: "first", "last" or "" (one plane alone).
    """

    planes: int
    colours: str
    stacked: str

    def plane(self, row: Array, number: int) -> Array:
        """Returns a plane of a step's value as uint8 [H, W] or [H, W, 3]."""
        if self.stacked == "first":
            row = row[number]
        elif self.stacked == "last":
            row = row[..., number]
        if self.colours == _FIRST:
            row = np.moveaxis(row, 0, -1)
        return _bytes(row[..., 0] if row.ndim == 3 and row.shape[-1] == 1 else row)


def layout_of(spec: FieldSpec) -> Layout | None:
    """Returns how a column's planes lie, None if it is no image: uint8 or a float, [H, W], [H, W, 1|3] or [1|3, H, W]; and
    stacks of these, [N, ...] or [H, W, N], where four of anything are four frames."""
    if spec.ragged or not (spec.dtype == np.uint8 or spec.dtype.kind == "f"):
        return None
    shape = spec.shape
    if len(shape) == 2 and _is_area(shape):
        return Layout(1, _GREY, "")
    if len(shape) == 3:
        if _is_area(shape[:2]) and shape[2] in (1, 3):
            return Layout(1, _LAST, "")
        if _is_area(shape[1:]) and shape[0] in (1, 3):
            return Layout(1, _FIRST, "")
        if _is_area(shape[:2]) and 1 < shape[2] < _LEAST:
            return Layout(shape[2], _GREY, "last")
        if _is_area(shape[1:]) and 1 < shape[0] <= _MOST_PLANES:
            return Layout(shape[0], _GREY, "first")
        if _is_area(shape[:2]) and 1 < shape[2] <= _MOST_PLANES:
            return Layout(shape[2], _GREY, "last")
    if len(shape) == 4 and 1 <= shape[0] <= _MOST_PLANES:
        if _is_area(shape[1:3]) and shape[3] in (1, 3):
            return Layout(shape[0], _LAST, "first")
        if _is_area(shape[2:]) and shape[1] in (1, 3):
            return Layout(shape[0], _FIRST, "first")
    return None


def _is_area(shape: tuple[int, ...]) -> bool:
    return all(_LEAST <= side <= _MOST for side in shape)


def _bytes(values: Array) -> Array:
    """Returns values as bytes: floats of [0, 1] and [0, 255] as they are meant, others stretched over their own range."""
    if values.dtype == np.uint8:
        return values
    known = values[np.isfinite(values)].astype(np.float64)
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    if low >= 0 and high <= 255:
        low, high = 0.0, 1.0 if high <= 1 else 255.0
    scale = 255 / (high - low) if high > low else 0.0
    scaled = (np.nan_to_num(values.astype(np.float64), nan=low, posinf=high, neginf=low) - low) * scale
    return np.clip(np.rint(scaled), 0, 255).astype(np.uint8)


def resized(pixels: Array, width: int) -> Array:
    """Returns an image [H, W, ...] scaled to `width`, its proportions kept: by the nearest pixel."""
    height = max(1, round(pixels.shape[0] * width / pixels.shape[1]))
    rows = np.minimum((np.arange(height) + 0.5) * pixels.shape[0] / height, pixels.shape[0] - 1).astype(np.int64)
    columns = np.minimum((np.arange(width) + 0.5) * pixels.shape[1] / width, pixels.shape[1] - 1).astype(np.int64)
    scaled: Array = pixels[rows][:, columns]
    return scaled


def side_by_side(images: list[Array]) -> Array:
    """Returns images of one size in a row, with a light line between them."""
    if not images:
        return np.zeros((1, 1), np.uint8)
    line = np.full((images[0].shape[0], 1, *images[0].shape[2:]), 255, np.uint8)
    parts = [part for image in images for part in (image, line)]
    return np.concatenate(parts[:-1], axis=1)
