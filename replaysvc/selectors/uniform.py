"""Every step is as likely as any other."""

import numpy as np

from replaysvc.types import Array


class Uniform:
    """Draws uniformly from runs of positions: one as a rule, more where chunks were lost. O(runs) memory, O(count) a draw."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def insert(self, start: int, stop: int) -> None:
        if self._stops and self._stops[-1] == start:
            self._stops[-1] = stop
        else:
            self._starts.append(start)
            self._stops.append(stop)

    def remove(self, start: int, stop: int) -> None:
        while self._stops and self._stops[0] <= stop:
            del self._starts[0], self._stops[0]
        if self._starts:
            self._starts[0] = max(self._starts[0], stop)

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Array, Array]:
        starts = np.array(self._starts, np.int64)
        ends = np.cumsum(np.array(self._stops, np.int64) - starts)  # of the runs, laid end to end
        drawn = rng.integers(0, ends[-1], size=count, dtype=np.int64)
        run = np.searchsorted(ends, drawn, side="right")
        begun = np.concatenate(([0], ends[:-1]))
        return starts[run] + drawn - begun[run], np.full(count, 1.0 / int(ends[-1]))
