"""What a table's segments hold, for whoever watches it."""

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from replaysvc.errors import StorageError
from replaysvc.storage.chain import Chain, allocated
from replaysvc.storage.segment import Segment
from replaysvc.types import Array
from replaysvc.views import SegmentView

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Content:
    used_bytes: int
    chunks: int


class SegmentViews:
    """Looks at the segments of a chain; remembers what it saw of sealed ones, of which nothing changes. Thread-safe."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._sealed: dict[Path, _Content] = {}

    def views(self, live: Array) -> tuple[SegmentView, ...]:
        """Returns a view of each segment, oldest first, by the sorted ids of live chunks.

        One that is removed meanwhile is left out; of one that cannot be read now, used_bytes and chunks are 0.
        """
        segments, known = self._chain.segments, self._sealed
        bounds = np.searchsorted(live, np.array([segment.meta["first_chunk_id"] for segment in segments], np.int64))
        live_chunks = np.diff(bounds, append=len(live)).tolist()
        views, sealed = [], {}
        for segment, count in zip(segments, live_chunks, strict=True):
            is_sealed = segment.sealed  # asked before its content, which is final if it is
            content = known.get(segment.path) or self._content(segment)
            if content is None:
                continue
            if is_sealed and content.used_bytes:
                sealed[segment.path] = content
            views.append(
                SegmentView(
                    name=segment.path.name, sealed=is_sealed, used_bytes=content.used_bytes,
                    allocated_bytes=allocated(segment.path), map_bytes=segment.map_bytes, chunks=content.chunks,
                    live_chunks=min(count, content.chunks),  # some may have gone since, with a segment before it
                )
            )  # fmt: skip
        self._sealed = sealed
        return tuple(views)

    def _content(self, segment: Segment) -> _Content | None:
        try:
            return _Content(segment.used_bytes, segment.count())
        except StorageError as error:
            if segment not in self._chain.segments:
                return None
            log.debug("segment %s: nothing can be told of it: %s", segment.path, error)
            return _Content(0, 0)

    def readers(self) -> int:
        """Returns how many readers the newest segment had at once, at most; 0 if it is sealed, which counts none."""
        segments = self._chain.segments
        try:
            return segments[-1].readers if segments else 0
        except StorageError:  # removed meanwhile, or it cannot be read now
            return 0
