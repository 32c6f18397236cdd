"""Pictures of an episode's images: one, or many side by side."""

from collections.abc import Iterator

import numpy as np

from replaysvc.admin.context import Admin
from replaysvc.admin.episodes import column_of, record_of
from replaysvc.admin.images import Layout, layout_of, resized, side_by_side
from replaysvc.admin.png import png
from replaysvc.codec import ChunkDecoder, DecodedChunk, widen
from replaysvc.errors import InvalidRequestError, NotFoundError
from replaysvc.spec import Signature
from replaysvc.table import Table
from replaysvc.types import Array

MOST_FRAMES, MOST_WIDTH = 32, 256


class _Film:
    """The images of one column of an episode. Remembers the chunk that it decoded last: its neighbours lie in it, too."""

    def __init__(self, table: Table, episode_id: int, column: str, length: int) -> None:
        self._table, self._episode_id, self._length = table, episode_id, length
        found = column_of(table.signature, column)
        layout = layout_of(found.spec)
        if layout is None:
            raise InvalidRequestError(f"column {found.spec.name}: expected one that holds images, found {found.kind}")
        self.layout: Layout = layout
        self.rows = length + found.offset
        self._spec = found.spec
        self._column = _number_of(table.signature, found.spec.name)
        self._decoder = ChunkDecoder(table.signature)
        self._chunk: DecodedChunk | None = None

    def row(self, t: int) -> Array:
        """Returns the value at step `t`; of an observation, there is one more after the last step."""
        step = min(t, self._length - 1)
        if self._chunk is None or not 0 <= step - self._chunk.header.info.first_step < self._chunk.header.info.n_steps:
            self._chunk = next(self._chunks(step))
        value: Array = widen(self._chunk.columns[self._column], self._spec)[t - self._chunk.header.info.first_step]
        return value

    def _chunks(self, step: int) -> Iterator[DecodedChunk]:
        for piece in self._table.episode_chunks(self._episode_id, step, step + 1):
            yield from self._decoder.decode(piece)
        raise NotFoundError(f"episode {self._episode_id}: step {step} was removed while it was read")


def _number_of(signature: Signature, name: str) -> int:
    return [spec.name for spec in signature.columns].index(name)


def image_of(admin: Admin, name: str, episode_id: int, column: str, t: int, plane: int) -> tuple[bytes, int]:
    """Returns the image at step `t` as PNG, and how many planes there are to choose from.

    Raises:
      NotFoundError: no such table, episode or column. InvalidRequestError: no image, no such step or plane.
    """
    film, first = _film(admin, name, episode_id, column)
    if not first <= t < film.rows:
        raise InvalidRequestError(f"t: expected a step from {first} to {film.rows - 1}, found {t}")
    _check_plane(film, plane)
    return png(film.layout.plane(film.row(t), plane)), film.layout.planes


def strip_of(
    admin: Admin, name: str, episode_id: int, column: str, start: int | None, count: int, width: int, plane: int
) -> tuple[bytes, int]:
    """Returns `count` images from step `start` to the episode's end, evenly spaced, `width` pixels wide each, as one PNG; and
    how many planes there are. Raises as `image_of`."""
    film, first = _film(admin, name, episode_id, column)
    start = first if start is None else start
    if not first <= start < film.rows:
        raise InvalidRequestError(f"start: expected a step from {first} to {film.rows - 1}, found {start}")
    _check_plane(film, plane)
    steps = np.unique(np.linspace(start, film.rows - 1, count).round().astype(np.int64)).tolist()
    return png(side_by_side([resized(film.layout.plane(film.row(t), plane), width) for t in steps])), film.layout.planes


def _film(admin: Admin, name: str, episode_id: int, column: str) -> tuple[_Film, int]:
    table = admin.replay.table(name)
    record = record_of(table, episode_id)
    return _Film(admin.replay.engine(name), episode_id, column, record.length), record.first_step


def _check_plane(film: _Film, plane: int) -> None:
    if not 0 <= plane < film.layout.planes:
        raise InvalidRequestError(f"plane: expected a number from 0 to {film.layout.planes - 1}, found {plane}")
