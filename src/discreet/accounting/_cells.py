"""A pair's privacy loss on a grid, by connect-the-dots.

The mass of every cell is split between the cell's two ends so that both P's and Q's mass are kept, which can only raise the
profile (Doroshenko et al., "Connect the dots", PoPETs 2022). What lies above the last cell goes to an infinite loss.

dp_accounting computes the same object from second differences of hockey-stick divergences, which on a grid of 1e-6 lose ten of
sixteen digits; masses lose none.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discreet.accounting._pairs import Pair

Array = NDArray[np.floating[Any]]

_ULP = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Cells:
    """One pair's loss on the grid: probs[i] is the mass at (first + i) * spacing; the rest of the mass is at infinity."""

    first: int
    probs: Array
    infinity: float

    def losses(self, spacing: float) -> Array:
        return (self.first + np.arange(len(self.probs))) * spacing


def discretise(pair: Pair, spacing: float, tail_mass: float) -> Cells:
    """Connect-the-dots on the cells between multiples of `spacing`, out to where `tail_mass` is left on either side."""
    first, last = _support(pair, spacing, tail_mass)
    edges = np.arange(first, last + 1) * spacing
    law = pair.law(edges)
    upper, upper_error = _masses(law.upper_cdf, law.upper_sf)
    lower, lower_error = _masses(law.lower_cdf, law.lower_sf)
    # The share of the upper end of the cell [a, b] is (P - e^a Q) / (1 - e^(a-b)), from P = p_a + p_b, Q = p_a e^-a + p_b e^-b;
    # rounded up, for what moves to the upper end only adds loss. Where e^a overflows the whole cell moves up.
    with np.errstate(over="ignore", invalid="ignore"):
        odds = np.exp(edges[:-1])
        share = (upper - odds * lower + upper_error + odds * lower_error) / -math.expm1(-spacing)
    share = np.clip(np.where(edges[:-1] < 600, share, upper), 0.0, upper)
    probs = np.zeros(len(edges))
    probs[1:] += share
    probs[:-1] += upper - share
    probs[0] += law.upper_cdf[0]
    # Above the last edge: what can be explained by the last loss stays there, the rest is infinite.
    finite = min(math.exp(min(edges[-1], 700.0)) * float(law.lower_sf[-1]), float(law.upper_sf[-1]))
    probs[-1] += finite
    return Cells(first=first, probs=probs, infinity=min(float(law.upper_sf[-1]) - finite, 1.0))


def _support(pair: Pair, spacing: float, tail_mass: float) -> tuple[int, int]:
    """Grid indices between which all but `tail_mass` on either side lies."""
    losses = np.unique(pair.nodes().loss)
    law = pair.law(losses)
    above = np.flatnonzero(law.upper_sf <= tail_mass)
    below = np.flatnonzero(law.upper_cdf <= tail_mass)
    high = losses[above[0]] if above.size else losses[-1]
    low = losses[below[-1]] if below.size else losses[0]
    first, last = math.floor(low / spacing), math.ceil(high / spacing)
    return first, max(last, first + 1)


def _masses(cdf: Array, sf: Array) -> tuple[Array, Array]:
    """Mass of each cell, from the tail that has the digits, and a bound on its rounding error.

    The normal distribution function is off by a few units in the last place near 0, and in the tails by about as many as the
    exponent -log(cdf) is large.
    """
    left = cdf[1:] < sf[:-1]
    mass = np.where(left, np.diff(cdf), -np.diff(sf))
    tail = np.minimum(cdf[1:], sf[:-1])
    return np.maximum(mass, 0.0), _ULP * tail * (8 - 4 * np.log(np.maximum(tail, 1e-300)))
