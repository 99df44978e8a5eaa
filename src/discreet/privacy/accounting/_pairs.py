"""The cost of one use of a mechanism: dominating pairs, and privacy profiles as curves.

A pair (P, Q) bounds a mechanism when its hockey-stick divergences H_alpha(P || Q) are at least
those of the mechanism on any two neighbouring data sets, for every alpha > 0. All that accounting
needs of a pair is the law of its privacy loss L = log dP/dQ under P and under Q, so a pair here
*is* those two laws, given by their distribution functions. Both tails are given, because privacy is
decided where 1 - cdf has lost all its digits.

A curve is delta as a function of epsilon, and back. Every value of it is an upper bound.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class GaussianCurve:
    """The exact profile of the Gaussian mechanism with sensitivity/stddev = `shift`, but for rounding upward.

    Reference: Balle, Wang, "Improving the Gaussian mechanism for differential privacy", ICML 2018,
    Theorem 8.
    """

    shift: float

    def delta(self, epsilon: Array) -> Array:
        above = log_ndtr(self.shift / 2 - epsilon / self.shift)
        below = epsilon + log_ndtr(-self.shift / 2 - epsilon / self.shift)
        # Where shift and epsilon are small, the difference of the two has few digits: round it up.
        rounding = 16 * np.finfo(np.float64).eps * (1 + np.abs(epsilon) + np.abs(above))
        return np.exp(above) * np.minimum(rounding - np.expm1(np.minimum(below - above, 0.0)), 1.0)

    @property
    def knots(self) -> Array:
        return np.linspace(0.0, self.shift**2 / 2 + 38 * self.shift, 1025)


@dataclass(frozen=True, eq=False)
class GridCurve:
    """Upper bounds at the knots; in between, the chord in e^epsilon, which lies above any profile below its ends."""

    knots: Array
    deltas: Array

    def delta(self, epsilon: Array) -> Array:
        if epsilon is self.knots:
            return self.deltas
        right = np.clip(np.searchsorted(self.knots, epsilon), 1, len(self.knots) - 1)
        left = right - 1
        start = self.knots[left]
        stop = self.knots[right]
        # (e^eps - e^start) / (e^stop - e^start), without overflow
        with np.errstate(over="ignore"):
            weight = np.clip(
                np.exp(np.minimum(epsilon - stop, 0.0))
                * np.expm1(start - epsilon)
                / np.expm1(start - stop),
                0,
                1,
            )
        value = self.deltas[left] + weight * (self.deltas[right] - self.deltas[left])
        return np.where(epsilon >= self.knots[-1], self.deltas[-1], value)


NO_RELEASE = GridCurve(np.array([0.0, 1.0]), np.zeros(2))
NO_NOISE = GridCurve(np.array([0.0, 1.0]), np.ones(2))


_NODE_REACH = 12.0
"""Standard deviations that the quadrature nodes span: beyond, a Gaussian has mass 2e-33."""


class LossLaw(NamedTuple):
    """Laws of the privacy loss at thresholds l: P(L <= l), P(L > l), Q(L <= l), Q(L > l)."""

    upper_cdf: Array
    upper_sf: Array
    lower_cdf: Array
    lower_sf: Array


class LossNodes(NamedTuple):
    """Quadrature: losses with their weights under P and under Q. Guides the choice of a grid; no bound rests on it."""

    loss: Array
    upper: Array
    lower: Array


class Pair(Protocol):
    """A dominating pair, as seen through its privacy loss."""

    def law(self, loss: Array) -> LossLaw:
        """Returns the loss's distribution functions under P and Q at the thresholds `loss`."""
        ...

    def nodes(self) -> LossNodes:
        """Returns quadrature nodes of the loss."""
        ...


@dataclass(frozen=True)
class GaussianPair:
    """N(shift, 1) against N(0, 1): the Gaussian mechanism with sensitivity/stddev = `shift`."""

    shift: float

    def law(self, loss: Array) -> LossLaw:
        upper = loss / self.shift - self.shift / 2
        lower = loss / self.shift + self.shift / 2
        return LossLaw(*gaussian_tails(upper), *gaussian_tails(lower))

    def nodes(self) -> LossNodes:
        z = gaussian_nodes(self.shift, self.shift / 2)
        return LossNodes(
            z * self.shift,
            gaussian_weights(z - self.shift / 2),
            gaussian_weights(z + self.shift / 2),
        )


@dataclass(frozen=True)
class LaplacePair:
    """Laplace noise of scale 1 against the same, `shift` away (L1 sensitivity / scale)."""

    shift: float

    def law(self, loss: Array) -> LossLaw:
        # Under P the loss is +shift with probability 1/2, -shift with probability exp(-shift)/2,
        # and has density exp((l - shift)/2)/4 in between; under Q the same with the sign of l
        # turned.
        inside = np.clip(loss, -self.shift, self.shift)
        ends = [loss < -self.shift, loss >= self.shift]
        upper_cdf = np.select(ends, [0.0, 1.0], np.exp((inside - self.shift) / 2) / 2)
        lower_sf = np.select(ends, [1.0, 0.0], np.exp(-(inside + self.shift) / 2) / 2)
        return LossLaw(upper_cdf, 1 - upper_cdf, 1 - lower_sf, lower_sf)

    def nodes(self) -> LossNodes:
        count = 2001
        loss = np.linspace(-self.shift, self.shift, count)
        density = np.exp((loss - self.shift) / 2) * (2 * self.shift / count) / 4
        upper = density.copy()
        upper[-1] += 0.5
        upper[0] += math.exp(-self.shift) / 2
        return LossNodes(loss, upper / upper.sum(), upper[::-1] / upper.sum())


@dataclass(frozen=True)
class LaplaceCurve:
    """The profile of one release with Laplace noise of scale 1 on sums that lie `shift` apart: exact, but for rounding upward."""

    shift: float

    def delta(self, epsilon: Array) -> Array:
        shift = self.shift * (1 + 2.0**-50)
        return -np.expm1(np.minimum((epsilon - shift) / 2, 0.0)) * (1 + 2.0**-50)

    @property
    def knots(self) -> Array:
        return np.linspace(0.0, self.shift * (1 + 2.0**-49), 257)


class LinearInRate:
    """The pair of a Poisson sample: its laws are q times those with the record, and 1 - q times those without."""

    rate: float


@dataclass(frozen=True)
class PoissonPair(LinearInRate):
    """A Poisson sample with the record in the data, against one without: (1-q) Q + q P against Q.

    If `added`, the other way round: P against (1-q) P + q Q.
    """

    base: Pair
    rate: float
    added: bool

    def law(self, loss: Array) -> LossLaw:
        sign = -1 if self.added else 1
        sampled = sign * loss
        # The loss before sampling, as the inverse of that in `nodes`; -inf below log(1 - q), which
        # no loss after it reaches.
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.expm1(np.minimum(sampled, 1.0)) / self.rate
            small = np.where(ratio > -1, np.log1p(np.maximum(ratio, -1.0)), -np.inf)
            large = (
                sampled
                - math.log(self.rate)
                + np.log1p((self.rate - 1) * np.exp(-np.maximum(sampled, 1.0)))
            )
        base = self.base.law(sign * np.where(sampled < 1.0, small, large))
        upper = base[:2]
        lower = base[2:]
        if self.added:
            lower = mixed(upper, lower, self.rate)
        else:
            upper = mixed(lower, upper, self.rate)
        return LossLaw._make((*upper, *lower))

    def nodes(self) -> LossNodes:
        sign = -1 if self.added else 1
        loss, upper, lower = self.base.nodes()
        loss = sign * loss
        # log(1 - q + q e^l), with all its digits for small q and for small or large l.
        small = np.log1p(self.rate * np.expm1(np.minimum(loss, 1.0)))
        large = np.logaddexp(
            math.log1p(-self.rate) if self.rate < 1 else -math.inf, math.log(self.rate) + loss
        )
        if self.added:
            lower = (1 - self.rate) * upper + self.rate * lower
        else:
            upper = (1 - self.rate) * lower + self.rate * upper
        return LossNodes(sign * np.where(loss < 1.0, small, large), upper, lower)


def mixed(one: Sequence[Array], other: Sequence[Array], weight: float) -> list[Array]:
    """The same figures of two laws, put together: those of `other` with the weight."""
    return [(1 - weight) * a + weight * b for a, b in zip(one, other, strict=True)]


def gaussian_tails(z: Array) -> tuple[Array, Array]:
    """N(0,1) at or below z, and above it."""
    smaller = ndtr(-np.abs(z))
    larger = 1 - smaller
    below = z < 0
    return np.where(below, smaller, larger), np.where(below, larger, smaller)


def gaussian_nodes(shift: float, beyond: float) -> Array:
    """Points for Gaussians whose means are at most `beyond` from zero."""
    reach = _NODE_REACH + beyond
    return np.linspace(
        -reach, reach, 2 * math.ceil(min(reach / min(0.05, 0.2 / shift), 20_000)) + 1
    )


def gaussian_weights(z: Array) -> Array:
    weights = np.exp(-0.5 * z**2)
    return weights / weights.sum()
