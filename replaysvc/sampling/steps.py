"""The items that are all steps of a table, which most requests draw from: ranges of positions rather than a tree.

Not thread-safe: the table's lock is held around every call.
"""

from replaysvc.index.table_index import TableIndex
from replaysvc.sampling.items import STEPS
from replaysvc.selectors import Runs
from replaysvc.types import Array


class StepSet:
    """The items that are all steps: what an ItemSet of STEPS would be, without a tree."""

    def __init__(self, index: TableIndex) -> None:
        self.kind = STEPS
        self._runs = Runs()
        for start, stop in index.runs():
            self._runs.insert(start, stop)
        self._runs.remove(0, index.tail)

    @property
    def size(self) -> int:
        """Returns how many steps there are."""
        return self._runs.size

    def select(self, ranks: Array) -> Array:
        """Returns the positions of the steps with these ranks, 0 the oldest."""
        return self._runs.select(ranks)

    def insert(self, start: int, stop: int) -> None:
        """Takes in the steps at positions [start, stop)."""
        self._runs.insert(start, stop)

    def remove(self, start: int, stop: int) -> None:
        """Forgets the steps at positions [start, stop), wherever they stand."""
        self._runs.remove(start, stop)

    def remove_before(self, position: int) -> None:
        """Forgets the steps before a position."""
        self._runs.remove(0, position)
