"""What selectors draw from, and what they return."""

from typing import NamedTuple, Protocol

from replaysvc.types import Array


class Drawn(NamedTuple):
    """B draws: `positions` int64 [B], `probability` float64 [B], the chance of each at its draw."""

    positions: Array
    probability: Array


class Population(Protocol):
    """What can be drawn, in order of age."""

    @property
    def size(self) -> int:
        """Returns how many there are."""

    def select(self, ranks: Array) -> Array:
        """Returns the int64 [B] positions at int64 [B] `ranks` in [0, size); rank 0 is the oldest."""
