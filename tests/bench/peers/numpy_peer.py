"""Plain arrays and fancy indexing: no episodes, no disk, no other process. What copying the rows costs, and nothing else."""

import sys

import numpy as np
from asked import BATCH, FRAMES, LENGTH, REPEAT, SEQUENCES, Answer, answer, load, rate


class Arrays:
    """Rows of transitions; images are kept once, as frames."""

    def __init__(self, folder: str) -> None:
        states, images = load(folder)
        self.rows = states.rows(REPEAT)
        self.frames = np.concatenate([episode.observations for episode in images.episodes])
        self.rng = np.random.default_rng(0)

    def uniform(self, seconds: float) -> Answer:
        def take() -> object:
            at = self.rng.integers(0, len(self.rows.reward), BATCH)
            return [column[at] for column in self.rows[:4]]

        return rate(take, BATCH, seconds)

    def sequences(self, seconds: float) -> Answer:
        def take() -> object:
            at = self.rng.integers(0, len(self.rows.reward) - LENGTH, SEQUENCES)[:, None] + np.arange(LENGTH)
            return [column[at] for column in self.rows[:3]]

        return rate(take, SEQUENCES, seconds)

    def stacks(self, batch: int, seconds: float) -> Answer:
        def take() -> object:
            at = self.rng.integers(0, len(self.frames) - FRAMES, batch)[:, None] + np.arange(FRAMES + 1)
            return self.frames[at]  # the four frames and the next one: observation and next observation are views of them

        return rate(take, batch, seconds)


if __name__ == "__main__":
    arrays = Arrays(sys.argv[1])
    answer({
        "uniform": arrays.uniform, "sequences": arrays.sequences,
        "stack-256": lambda seconds: arrays.stacks(256, seconds), "stack-32": lambda seconds: arrays.stacks(32, seconds),
    })  # fmt: skip
