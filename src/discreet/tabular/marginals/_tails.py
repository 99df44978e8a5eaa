"""How far a linear figure of noise may be from 0: the z of all intervals, for Gaussian and for Laplace noise.

A linear figure of Gaussian noise is Gaussian. One of Laplace noise, X = sum a_i L_i of variance 1,
has a law of its own for each a, between that of one Laplace variable and a Gaussian. A bound for
all of them: L_i is sqrt(2 E_i) times a normal variable, E_i exponential of mean 1. So X is sqrt(W)
times a normal variable, W a mean of the E_i with some weights, and P(|X| > t) = E f(W) with f(w) =
erfc(t / sqrt(2 w)). f is convex up to w = t^2 / 3 and concave from there on. Let h be f up to
there, and its tangent at that point beyond: h is convex and at least f. So, by Jensen's inequality
for the weights of W,

    P(|X| > t) = E f(W) <= E h(W) <= E h(E) = exp(-sqrt(2) t) + E (h(E) - f(E)).

The first term is one Laplace variable's own, which attains it; so the bound is at most the second
term too large: z is 1.724 for 90 % (Gaussian: 1.645, one Laplace variable: 1.628), and 2.161 for
95 % (1.960 and 2.118).
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

from scipy.integrate import quad
from scipy.optimize import brentq

_NORMAL = NormalDist()
_MOST = 500.0
_ROUNDING = 1e-9
"""More than quadrature and the search for a root are off by."""


def tail(score: float, *, laplace: bool) -> float:
    """Upper bound on the probability that a figure is so many of its standard deviations, or more, from its mean."""
    if not laplace:
        return 2 * _NORMAL.cdf(-score)
    if score <= 0:
        return 1.0
    turn = score**2 / 3

    def f(w: float) -> float:
        return math.erfc(score / math.sqrt(2 * w))

    slope = math.sqrt(3) / turn * _NORMAL.pdf(math.sqrt(3))

    def above(w: float) -> float:
        return (f(turn) + slope * (w - turn) - f(w)) * math.exp(turn - w)

    beyond, _ = quad(above, turn, math.inf)
    return min(1.0, math.exp(-math.sqrt(2) * score) + math.exp(-turn) * beyond)


@functools.lru_cache(maxsize=256)
def z_of(level: float, *, laplace: bool) -> float:
    """Standard deviations within which each linear figure of the noise is with at least the probability `level`.

    >>> round(z_of(0.95, laplace=False), 3), round(z_of(0.95, laplace=True), 3)
    (1.96, 2.161)
    """
    if not laplace:
        return _NORMAL.inv_cdf((1 + level) / 2)
    found = brentq(
        lambda score: math.log(tail(score, laplace=True)) - math.log(1 - level), 0.0, _MOST
    )
    return float(found) * (1 + _ROUNDING)  # pyright: ignore[reportArgumentType]
