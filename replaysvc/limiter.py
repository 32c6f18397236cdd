"""Whether a table's limiter lets a sample or an insert go on now, by counts alone; who waits, and how, is the table's business.

The formula is in `options.Limiter`. Its numbers are taken as the decimals that were written (0.1 is one tenth) and put over
one denominator, so that every comparison is one of whole numbers: exactly at a bound nothing waits, however long a table lives.
"""

import math
from fractions import Fraction

from replaysvc.errors import SpecMismatchError
from replaysvc.options import Limiter


class LimiterState:
    """A limiter and what it has counted. Not thread-safe: its table holds it under its lock.

    `inserted` counts steps ever inserted, `sampled` items ever sampled. `admitted` counts steps that were let in and are not
    inserted yet: others that ask to insert see them as if they were, and samplers do not.
    """

    def __init__(self, options: Limiter) -> None:
        self.inserted = self.sampled = self.admitted = 0
        self.set_options(options)

    def set_options(self, options: Limiter) -> None:
        """Puts another limiter in the place of this one; the counts go on."""
        self.options = options
        self._limits = options.samples_per_insert is not None
        ratio, low, high = _exact(options)
        self._scale = math.lcm(ratio.denominator, low.denominator, high.denominator)
        self._ratio, self._low, self._high = (int(number * self._scale) for number in (ratio, low, high))

    def restore(self, inserted: int, sampled: int) -> None:
        """Sets the counts, of a table that was opened again."""
        self.inserted, self.sampled, self.admitted = inserted, sampled, 0

    def sample_waits(self, n: int, stored: int) -> str:
        """Returns what must happen before `n` items can be sampled from a table of `stored` steps; nothing: ""."""
        if stored < self.options.min_steps:
            return f"{stored:,} of {self.options.min_steps:,} steps"
        lacking = self._low + n * self._scale - self._diff(self.inserted)
        if not self._limits or lacking <= 0:
            return ""
        steps = -(-lacking // self._ratio)
        return (
            f"limiter: {_done(self.sampled, 'item')} sampled for {_many(self.inserted, 'step')} inserted; "
            f"{_many(steps, 'more step')} must be inserted before {_many(n, 'item')} can be sampled"
        )

    def insert_waits(self, m: int, stored: int) -> str:
        """Returns what must happen before `m` steps can be inserted into a table of `stored` steps; nothing: ""."""
        taken = self.inserted + self.admitted
        excess = self._diff(taken + m) - self._high
        if not self._limits or excess <= 0 or stored + self.admitted + m <= self.options.min_steps:
            return ""
        items = -(-excess // self._scale)
        return (
            f"limiter: {_done(taken, 'step')} inserted for {_many(self.sampled, 'item')} sampled; "
            f"{_many(items, 'more item')} must be sampled before {_many(m, 'step')} can be inserted"
        )

    def starves(self, n: int, stored: int) -> bool:
        """Returns whether `n` items would still wait when all that is admitted has been inserted."""
        lacking = self._low + n * self._scale - self._diff(self.inserted + self.admitted)
        return stored + self.admitted < self.options.min_steps or (self._limits and lacking > 0)

    def never_samples(self, n: int) -> str:
        """Returns why `n` items can never be sampled at once, however much is inserted; if they can: ""."""
        if not self._limits or n * self._scale <= self._high - self._low:
            return ""
        return (
            f"the limiter lets at most max_diff - min_diff = {(self._high - self._low) // self._scale:,} items be "
            f"sampled at once, not {n:,}"
        )

    def admit(self, m: int) -> None:
        """Counts steps that are let in and not inserted yet."""
        self.admitted += m

    def withdraw(self, m: int) -> None:
        """Takes back `admit`, when the steps are inserted, which `count_insert` counts, or never will be."""
        self.admitted -= m

    def count_insert(self, m: int) -> None:
        """Counts steps that were inserted."""
        self.inserted += m

    def count_sample(self, n: int) -> None:
        """Counts items that were sampled."""
        self.sampled += n

    def _diff(self, inserted: int) -> int:
        return inserted * self._ratio - self.sampled * self._scale


def check_chunk(options: Limiter, chunk_steps: int) -> None:
    """Checks that a chunk of `chunk_steps`, whose steps are inserted together, can be let in whatever came before it.

    Raises:
      SpecMismatchError: it could wait for ever: for more samples than can be taken, or in a table of too few steps to sample.
    """
    if options.samples_per_insert is None:
        return
    ratio, low, high = _exact(options)
    for what, found, needed in (
        ("max_diff - min_diff", high - low, ratio * chunk_steps),
        ("max_diff", high, ratio * (options.min_steps - 1 + chunk_steps)),  # one step short of `min_steps`, and then a chunk
    ):
        if found < needed:
            raise SpecMismatchError(
                "limiter.error_buffer", f"{what} of at least {float(needed):.15g}, since a chunk of "
                f"{_many(chunk_steps, 'step')} is inserted at once (a lower chunk_steps needs less)", f"{float(found):.15g}",
            )  # fmt: skip


def _exact(options: Limiter) -> tuple[Fraction, Fraction, Fraction]:
    """Returns samples_per_insert, min_diff and max_diff; zeros without samples_per_insert."""
    ratio, buffer = options.samples_per_insert, options.error_buffer
    if ratio is None or buffer is None:
        return Fraction(0), Fraction(0), Fraction(0)
    exact = Fraction(repr(ratio))
    if isinstance(buffer, tuple):
        return exact, Fraction(repr(buffer[0])), Fraction(repr(buffer[1]))
    middle, error = exact * options.min_steps, Fraction(repr(buffer))
    return exact, middle - error, middle + error


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _done(count: int, noun: str) -> str:
    return f"{_many(count, noun)} {'was' if count == 1 else 'were'}"
