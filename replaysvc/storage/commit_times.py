"""How long the durable commits of a table take."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from replaysvc.histogram import SECONDS, Histogram
from replaysvc.views import HistogramView


class CommitTimes:
    """Times the commits that succeed. One thread measures; others may see a commit in one of the two histograms alone."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._whole, self._sync = Histogram(SECONDS), Histogram(SECONDS)

    @property
    def whole(self) -> HistogramView:
        """Returns how long the transactions were open, with their end, in seconds."""
        return self._whole.view()

    @property
    def sync(self) -> HistogramView:
        """Returns how long their ends took, in seconds: what LMDB writes and has made durable, which cannot be told apart."""
        return self._sync.view()

    @contextmanager
    def measured(self, transaction: Any) -> Iterator[Any]:
        """Enters a write transaction that has just begun; leaving commits it, or aborts it if something is raised within."""
        began = self._monotonic()
        with transaction:
            yield transaction
            written = self._monotonic()
        ended = self._monotonic()
        self._whole.observe(ended - began)
        self._sync.observe(ended - written)
