"""Alias tables of the levels of a discrete Gaussian, exact to more bits than a draw uses.

In an alias table of n columns a draw chooses a column at random, and then the column's own value or
another one, its alias, by comparing random bits with the column's threshold. So a draw from any law
on n values looks at one column. A level has two tables: of the magnitudes up to "`last` or more",
and of what is `last` or more. They are computed from Python integers of 512 bits, and the
probabilities they give are exact multiples of 2**-191 and 2**-159. The first table is 32 KiB: it
stays in a core's first cache.

References: Walker, "An efficient method for generating discrete random variables with general
distributions", TOMS 1977; Vose, "A linear algorithm for generating random numbers with a given
distribution", IEEE TSE 1991.
"""

from fractions import Fraction
from functools import cache
from typing import NamedTuple

import numpy as np

SLACK_PER_VALUE = 2.0**-167
"""Total variation between a value of `discrete_gaussian` and D(s), and between it and a rounding of a continuous Gaussian."""
MOST_FACTOR = 648
"""The largest b: with it the sum over y of step 1 has a deviation of 2.49 at least."""
INNER_VARIANCE = {2: Fraction(4**20, 1 + MOST_FACTOR**2), 3: Fraction(4**20)}
"""The square of the deviation of T, by the number of levels: D(s) has s**2 = INNER_VARIANCE[2] + b**2 INNER_VARIANCE[levels]."""
WORD = 24  # bits of the words in which sums and noise are added
PRECISION = 512  # bits behind the point of the integers that tables are computed from
MORE, _MORE_TAIL = 5, 4  # words of a threshold after the first, in the two tables
# words of an undecided level: its threshold, then a draw from the second table
PER_LEVEL = MORE + 1 + _MORE_TAIL
AT_ONCE = 32  # blocks of all values' further words, up to which they are made for all
# Values are laid over each other in so many parts, until so few flags say which are undecided.
PARTS = 16
FLAGS = 4096


class Alias(NamedTuple):
    """An alias table of 2**m columns: column i gives i if the random bits are below its threshold, else its alias."""

    # uint32[2**m]; the upper 32 - m bits are the first of the threshold, the others the alias. A
    # column that always gives itself has the threshold 2**(31 - m), which no draw of 31 - m bits
    # reaches.
    entries: np.ndarray
    rest: np.ndarray  # uint32[more, 2**m], the other bits of the threshold


class Design(NamedTuple):
    """The composition of values from levels."""

    columns_log2: int  # the logarithm of the number of columns of a level's first table; the second has twice as many
    levels: int  # 2 or 3
    factor: int  # of the third level in T; b is at most that
    variance: Fraction  # the square of a level's deviation

    @property
    def last(self) -> int:
        """The magnitude from which on the second table decides."""
        return 2**self.columns_log2 - 1


DESIGNS = {levels: Design(13, levels, MOST_FACTOR, INNER_VARIANCE[2]) for levels in (2, 3)}


def exp_minus(x: Fraction) -> int:
    """exp(-x) in units of 2**-PRECISION for x from 0 to 1, by its series."""
    term = total = 1 << PRECISION
    number = 0
    while term:
        number += 1
        term = -term * x.numerator // (x.denominator * number)
        total += term
    return total


def _alias(weights: list[int], more: int) -> Alias:
    """The alias table of probabilities proportional to `weights`, rounded to multiples of 2**-(31 + 32 more) that add to 1."""
    m = len(weights).bit_length() - 1
    bits = 31 - m + 32 * more
    full = 1 << bits
    total = sum(weights)
    shares = [((weight << m + bits) + total // 2) // total for weight in weights]
    shares[shares.index(max(shares))] += (full << m) - sum(shares)
    # Vose: a column that is not full gets what it lacks from one that is more than full.
    thresholds = [full] * len(shares)
    aliases = list(range(len(shares)))
    small = [i for i, share in enumerate(shares) if share < full]
    large = [i for i, share in enumerate(shares) if share >= full]
    while small:
        needy = small.pop()
        giver = large[-1]
        thresholds[needy], aliases[needy] = shares[needy], giver
        shares[giver] -= full - shares[needy]
        if shares[giver] < full:
            small.append(large.pop())
    packed = b"".join(threshold.to_bytes(4 * more + 4, "big") for threshold in thresholds)
    words = np.frombuffer(packed, ">u4").reshape(-1, more + 1).T.astype(np.uint32, order="C")
    return Alias(words[0] << m | np.array(aliases, np.uint32), words[1:])


@cache
def tables(design: Design) -> tuple[Alias, Alias]:
    """The tables of a level: of magnitudes to "last or more", and of what is `last` or more."""
    last = design.last
    # exp(-i**2 / (2 variance)) for i from 0, in units of 2**-PRECISION: each is the one before
    # times a ratio that shrinks.
    ratio = exp_minus(1 / (2 * design.variance))
    shrink = exp_minus(1 / design.variance)
    weights = [1 << PRECISION]
    while len(weights) < 3 * last + 2:
        weights.append(weights[-1] * ratio >> PRECISION)
        ratio = ratio * shrink >> PRECISION
    # Both signs give 0, so its magnitude has half the weight of another.
    body = [weights[0], *(2 * weight for weight in weights[1:last]), 2 * sum(weights[last:])]
    return _alias(body, MORE), _alias(weights[last:], _MORE_TAIL)
