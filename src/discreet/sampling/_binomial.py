"""The binomial law in exact integer arithmetic: a table from which the size of a Poisson batch is drawn.

SciPy's double precision stops at 2^-53, and a privacy statement adds up the errors of every step. So the table is made
with Python integers (the rate, a double, is an exact fraction) and holds 96-bit thresholds.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, UInt32

SIZE_WORDS = 3
SIZE_BITS = 32 * SIZE_WORDS
TAIL_BITS = 81
_GUARD_BITS = 256


@dataclass(frozen=True)
class SizeTable:
    """A law on ``smallest .. largest`` that is Binomial(num_records, rate) but for a total variation of ``slack``.

    Attributes:
        smallest: The smallest size; the binomial mass below it is at most 2^-81.
        largest: The largest size; the binomial mass above it is at most 2^-81.
        thresholds: For each size ``k`` from ``smallest`` to ``largest - 1``, P(size <= k) in units of 2^-96.
        slack: Upper bound on the total-variation distance.
    """

    smallest: int
    largest: int
    thresholds: tuple[int, ...]
    slack: float

    def masses(self) -> np.ndarray:
        """The probabilities of the sizes ``smallest .. largest``, as doubles."""
        edges = (0, *self.thresholds, 2**SIZE_BITS)
        return np.array([math.ldexp(b - a, -SIZE_BITS) for a, b in itertools.pairwise(edges)])

    def quantile(self, upper_tail: float) -> int:
        """The smallest size that is exceeded with probability at most ``upper_tail``."""
        level = 2**SIZE_BITS - math.floor(Fraction(upper_tail) * 2**SIZE_BITS)
        return self.smallest + bisect.bisect_left(self.thresholds, level)

    def words(self) -> np.ndarray:
        """The thresholds as ``uint32[3, sizes - 1]``, most significant word first."""
        shifts = range(SIZE_BITS - 32, -1, -32)
        return np.array([[(t >> s) & 0xFFFFFFFF for t in self.thresholds] for s in shifts], np.uint32)


def _relative_masses(num_records: int, rate: Fraction) -> tuple[int, list[int]]:
    """Binomial masses in fixed point relative to the mode's, out to where they vanish; and the first one's size."""
    chance, against = rate.numerator, rate.denominator - rate.numerator
    mode = min(num_records, math.floor((num_records + 1) * rate))
    # Ratios of neighbours are below 1 on either side of the mode, so rounding errors do not grow: after s steps the
    # error is below s units of 2^-256, which is far beyond what the thresholds can show.
    above = [1 << _GUARD_BITS]
    k = mode
    while above[-1] and k < num_records:
        above.append(above[-1] * (num_records - k) * chance // ((k + 1) * against))
        k += 1
    below = [1 << _GUARD_BITS]
    k = mode
    while below[-1] and k > 0:
        below.append(below[-1] * k * against // ((num_records - k + 1) * chance))
        k -= 1
    return k, below[:0:-1] + above


@functools.lru_cache(maxsize=64)
def size_table(num_records: int, rate: float) -> SizeTable:
    """Makes the table for Binomial(num_records, rate), rate in (0, 1). A few milliseconds for 10^4 expected records."""
    first, masses = _relative_masses(num_records, Fraction(rate))
    total = sum(masses)
    cut = total >> TAIL_BITS
    start, below = 0, 0
    while below + masses[start] <= cut:
        below += masses[start]
        start += 1
    stop, above = len(masses) - 1, 0
    while first + stop > 1 and above + masses[stop] <= cut:
        above += masses[stop]
        stop -= 1
    thresholds, cumulative = [], below
    for mass in masses[start:stop]:
        cumulative += mass
        nearest = ((cumulative << (SIZE_BITS + 1)) + total) // (2 * total)
        thresholds.append(min(nearest, 2**SIZE_BITS - 1))
    # Tails move to the ends; each threshold is off by at most one unit, where the largest word takes the place of 1.
    slack = (below + above) / total + math.ldexp(len(thresholds), -SIZE_BITS)
    return SizeTable(first + start, first + stop, tuple(thresholds), slack * (1 + 1e-9))


def size_from_words(words: UInt32[Array, "3"], thresholds: UInt32[Array, "3 sizes"], smallest: int) -> Int32[Array, ""]:
    """Turns 96 random bits into a size: ``smallest`` plus the number of thresholds at or below them."""
    high, middle, low = thresholds
    reached = (high < words[0]) | (
        (high == words[0]) & ((middle < words[1]) | ((middle == words[1]) & (low <= words[2])))
    )
    return smallest + jnp.sum(reached, dtype=jnp.int32)
