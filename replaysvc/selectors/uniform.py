"""Each is as likely as any other."""

import numpy as np

from replaysvc.selectors.drawn import Drawn, Population


def draw_uniform(rng: np.random.Generator, count: int, population: Population) -> Drawn:
    """Returns `count` draws from `population`, which is not empty."""
    size = population.size
    ranks = rng.integers(0, size, size=count, dtype=np.int64)
    return Drawn(population.select(ranks), np.full(count, 1.0 / size))
