"""Whether seeded draws fit a distribution."""

import numpy as np


def chi_square_bound(degrees):
    """Returns what a chi-square of so many degrees of freedom exceeds once in 30,000 times (Wilson and Hilferty 1931)."""
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + 4 * spread**0.5) ** 3


def check_counts(counts, probabilities):
    """Asserts that `counts` are draws from `probabilities` (any positive scale; 0: never drawn)."""
    counts, shares = np.asarray(counts, float), np.asarray(probabilities, float)
    assert counts.shape == shares.shape, (counts.shape, shares.shape)
    assert not counts[shares == 0].any(), "drawn, though its probability is 0"
    counts, shares = counts[shares > 0], shares[shares > 0]
    expected = counts.sum() * shares / shares.sum()
    assert expected.min() >= 5, "too few draws for the test to say anything"
    if len(counts) == 1:
        return
    found = ((counts - expected) ** 2 / expected).sum()
    assert found < chi_square_bound(len(counts) - 1), f"counts {counts.tolist()}, expected about {expected.round(1).tolist()}"


def check_draws(values, expected):
    """Asserts that `values` are draws from {value: probability}; any other value is a fault."""
    found, counts = np.unique(values, return_counts=True)
    drawn = dict(zip(found.tolist(), counts.tolist(), strict=True))
    assert set(drawn) <= set(expected), f"never to be drawn: {sorted(set(drawn) - set(expected))}"
    check_counts([drawn.get(value, 0) for value in expected], list(expected.values()))
