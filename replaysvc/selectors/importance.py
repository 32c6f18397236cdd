"""Importance weights, (size * probability)^-beta divided by a maximum (Schaul et al. 2016, section 3.4).

Never computed as that quotient: with priorities up to 1e30 and alpha up to 4 the parts overflow where the quotient does not.
"""

import math
import sys

import numpy as np

from replaysvc.types import Array


def importance_weights(probability: Array, size: int, beta: float, largest: float | None) -> Array:
    """Returns float32 like `probability`, each at most 1, of draws with that probability, float64 [..., B], among `size`.

    largest: the table's largest weight, see `largest_weight`; None: divides by that of the batch, along the last axis.
    """
    probability = np.maximum(probability, sys.float_info.min)  # a quotient that underflowed is no chance of 0: it was drawn
    if not probability.size:
        return np.ones(probability.shape, np.float32)
    if largest is None:
        weights: Array = (probability.min(axis=-1, keepdims=True) / probability) ** beta  # size cancels
    else:
        weights = np.exp(np.minimum(-beta * (np.log(probability) + math.log(size)) - math.log(largest), 0.0))
    return weights.astype(np.float32)


def largest_weight(smallest: float, total: float, size: int, beta: float) -> float:
    """Returns (size * smallest / total)^-beta, or the largest float where that overflows; `smallest` is the smallest leaf."""
    logarithm = -beta * (math.log(smallest) - math.log(total) + math.log(size))
    return math.exp(min(logarithm, math.log(sys.float_info.max)))
