"""Newer ones are likelier: the chance halves with every `half_life` of age, where the newest has age 0.

Ages are drawn by the inverse of their cumulative distribution, (1 - q^(a+1)) / (1 - q^size) with q = 2^(-1/half_life). All
of it is written with expm1 and log1p: at a half-life of 1e15, 1 - q itself has no correct digit left.
"""

import math

import numpy as np

from replaysvc.selectors.drawn import Drawn, Population


def draw_recent(rng: np.random.Generator, count: int, population: Population, half_life: float) -> Drawn:
    """Returns `count` draws from `population`, which is not empty."""
    size = population.size
    rate = math.log(2) / half_life
    within = -math.expm1(-rate * size)  # the share of the endless distribution that falls on ages below `size`
    ages = (np.log1p(-within * rng.random(count)) / -rate).astype(np.int64)
    np.minimum(ages, size - 1, out=ages)  # rounding may reach `size`
    probability = np.exp(-rate * ages) * (-math.expm1(-rate) / within)
    return Drawn(population.select(size - 1 - ages), probability)
