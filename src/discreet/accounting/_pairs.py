"""Dominating pairs: the two worst-case output laws of one use of a mechanism.

A pair (P, Q) bounds a mechanism when its hockey-stick divergences H_alpha(P || Q) are at least those of the mechanism
on any two neighbouring data sets, for every alpha > 0. All that accounting needs of a pair is the law of its privacy loss
L = log dP/dQ under P and under Q, so a pair here *is* those two laws, given by their distribution functions. Both tails are
given, because privacy is decided where 1 - cdf has lost all its digits.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr

Array = NDArray[np.floating[Any]]

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
        return LossLaw(*_gaussian_tails(upper), *_gaussian_tails(lower))

    def nodes(self) -> LossNodes:
        spacing = min(0.05, 0.2 / self.shift)
        reach = _NODE_REACH + self.shift / 2
        z = np.linspace(-reach, reach, 2 * math.ceil(min(reach / spacing, 20_000)) + 1)
        return LossNodes(z * self.shift, _gaussian_weights(z - self.shift / 2), _gaussian_weights(z + self.shift / 2))


@dataclass(frozen=True)
class LaplacePair:
    """Laplace noise of scale 1 against the same, `shift` away (L1 sensitivity / scale)."""

    shift: float

    def law(self, loss: Array) -> LossLaw:
        # Under P the loss is +shift with probability 1/2, -shift with probability exp(-shift)/2, and has density
        # exp((l - shift)/2)/4 in between; under Q the same with the sign of l turned.
        inside = np.clip(loss, -self.shift, self.shift)
        upper_cdf = np.where(
            loss < -self.shift, 0.0, np.where(loss >= self.shift, 1.0, np.exp((inside - self.shift) / 2) / 2)
        )
        lower_sf = np.where(
            loss < -self.shift, 1.0, np.where(loss >= self.shift, 0.0, np.exp(-(inside + self.shift) / 2) / 2)
        )
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
class PurePair:
    """Randomised response between two answers, the odds of the right one e^epsilon: the worst of all that are epsilon-private.

    Every mechanism that is (epsilon, 0)-private between two data sets can be computed from it (Kairouz, Oh, Viswanath, ICML
    2015, Theorem 3.1), so it dominates them all. The loss is epsilon or -epsilon.
    """

    epsilon: float

    def law(self, loss: Array) -> LossLaw:
        rare, common = float(expit(-self.epsilon)), float(expit(self.epsilon))
        below, above = loss < -self.epsilon, loss >= self.epsilon

        def law_of(at_bottom: float, at_top: float) -> tuple[Array, Array]:
            return (
                np.where(below, 0.0, np.where(above, 1.0, at_bottom)),
                np.where(below, 1.0, np.where(above, 0.0, at_top)),
            )

        return LossLaw(*law_of(rare, common), *law_of(common, rare))

    def nodes(self) -> LossNodes:
        rare, common = float(expit(-self.epsilon)), float(expit(self.epsilon))
        ends = np.array([-self.epsilon, self.epsilon])
        return LossNodes(ends, np.array([rare, common]), np.array([common, rare]))


@dataclass(frozen=True)
class PoissonRemovePair:
    """(1-q) Q + q P against Q: a Poisson sample with the record in the data, against one without."""

    base: Pair
    rate: float

    def law(self, loss: Array) -> LossLaw:
        base = self.base.law(_loss_before_sampling(loss, self.rate))
        return LossLaw(
            (1 - self.rate) * base.lower_cdf + self.rate * base.upper_cdf,
            (1 - self.rate) * base.lower_sf + self.rate * base.upper_sf,
            base.lower_cdf,
            base.lower_sf,
        )

    def nodes(self) -> LossNodes:
        base = self.base.nodes()
        return LossNodes(
            _loss_after_sampling(base.loss, self.rate),
            (1 - self.rate) * base.lower + self.rate * base.upper,
            base.lower,
        )


@dataclass(frozen=True)
class PoissonAddPair:
    """P against (1-q) P + q Q: a Poisson sample without the record in the data, against one with it."""

    base: Pair
    rate: float

    def law(self, loss: Array) -> LossLaw:
        base = self.base.law(-_loss_before_sampling(-loss, self.rate))
        return LossLaw(
            base.upper_cdf,
            base.upper_sf,
            (1 - self.rate) * base.upper_cdf + self.rate * base.lower_cdf,
            (1 - self.rate) * base.upper_sf + self.rate * base.lower_sf,
        )

    def nodes(self) -> LossNodes:
        base = self.base.nodes()
        return LossNodes(
            -_loss_after_sampling(-base.loss, self.rate),
            base.upper,
            (1 - self.rate) * base.upper + self.rate * base.lower,
        )


@dataclass(frozen=True)
class PoissonReplacePair:
    """(1-q) N(0,1) + q N(shift,1) against (1-q) N(0,1) + q N(-shift,1): a Poisson sample with one record replaced.

    `shift` is C/stddev: the two versions of the record contribute +C and -C. The pair is dp_accounting's for REPLACE_ONE.
    """

    shift: float
    rate: float

    def law(self, loss: Array) -> LossLaw:
        threshold = self._point_of(loss)
        here, here_sf = _gaussian_tails(threshold)
        upper, upper_sf = _gaussian_tails(threshold - self.shift)
        lower, lower_sf = _gaussian_tails(threshold + self.shift)
        q = self.rate
        return LossLaw(
            (1 - q) * here + q * upper,
            (1 - q) * here_sf + q * upper_sf,
            (1 - q) * here + q * lower,
            (1 - q) * here_sf + q * lower_sf,
        )

    def nodes(self) -> LossNodes:
        spacing = min(0.05, 0.2 / self.shift)
        reach = _NODE_REACH + self.shift
        z = np.linspace(-reach, reach, 2 * math.ceil(min(reach / spacing, 20_000)) + 1)
        q = self.rate
        drift = math.log(q) - self.shift**2 / 2
        stay = math.log1p(-q) if q < 1 else -math.inf
        loss = np.logaddexp(stay, drift + self.shift * z) - np.logaddexp(stay, drift - self.shift * z)
        here = _gaussian_weights(z)
        return LossNodes(
            loss,
            (1 - q) * here + q * _gaussian_weights(z - self.shift),
            (1 - q) * here + q * _gaussian_weights(z + self.shift),
        )

    def _point_of(self, loss: Array) -> Array:
        # The loss at z equals l where sinh(shift z - l/2) = (1-q)/q exp(shift^2/2) sinh(l/2); solved through logarithms,
        # since exp(shift^2/2) overflows for little noise.
        half = np.abs(loss) / 2
        with np.errstate(divide="ignore"):
            log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
            odds = math.log1p(-self.rate) - math.log(self.rate) if self.rate < 1 else -math.inf
            log_right = log_sinh + odds + self.shift**2 / 2
            # asinh(y) for small y directly: the logarithmic form would lose its digits there.
            small = np.arcsinh(np.exp(np.minimum(log_right, 0.0)))
            large = np.logaddexp(0.5 * np.logaddexp(0.0, 2 * log_right), log_right)
        asinh = np.where(log_right < 0, small, large)
        return (loss / 2 + np.sign(loss) * asinh) / self.shift


@dataclass(frozen=True)
class WithoutReplacementPair:
    """The piecewise pair of a fixed-size batch drawn without replacement, one record replaced.

    With P and Q a shift of 2C apart, its profile is H_alpha((1-q) Q + q P || Q) for alpha >= 1 and H_alpha(P || (1-q) P + q Q)
    for alpha < 1. That is convex in alpha and so belongs to a pair again; where the branches meet, at alpha = 1, the slope jumps
    and the loss 0 has an atom of probability (1-q) TV(P, Q).

    Reference: Zhu, Dong, Wang, "Optimal accounting of differential privacy via characteristic function", AISTATS 2022.
    """

    base: Pair
    rate: float

    def law(self, loss: Array) -> LossLaw:
        above = PoissonRemovePair(self.base, self.rate).law(np.maximum(loss, 0.0))
        below = PoissonAddPair(self.base, self.rate).law(np.minimum(loss, 0.0))
        return LossLaw(*(np.where(loss >= 0, a, b) for a, b in zip(above, below, strict=True)))

    def nodes(self) -> LossNodes:
        above = PoissonRemovePair(self.base, self.rate).nodes()
        below = PoissonAddPair(self.base, self.rate).nodes()
        up, down = above.loss > 0, below.loss < 0
        parts = [np.concatenate([a[up], b[down]]) for a, b in zip(above, below, strict=True)]
        atom = [0.0, max(0.0, 1 - parts[1].sum()), max(0.0, 1 - parts[2].sum())]
        return LossNodes(*(np.append(part, extra) for part, extra in zip(parts, atom, strict=True)))


@dataclass(frozen=True)
class MixturePair:
    """One of two pairs, chosen by a coin that the attacker sees: `first` with probability `weight`."""

    first: Pair
    second: Pair
    weight: float

    def law(self, loss: Array) -> LossLaw:
        first, second = self.first.law(loss), self.second.law(loss)
        return LossLaw(*(self.weight * a + (1 - self.weight) * b for a, b in zip(first, second, strict=True)))

    def nodes(self) -> LossNodes:
        first, second = self.first.nodes(), self.second.nodes()
        w = self.weight
        return LossNodes(
            np.concatenate([first.loss, second.loss]),
            np.concatenate([w * first.upper, (1 - w) * second.upper]),
            np.concatenate([w * first.lower, (1 - w) * second.lower]),
        )


def _gaussian_tails(z: Array) -> tuple[Array, Array]:
    """N(0,1) at or below z, and above it."""
    smaller = ndtr(-np.abs(z))
    larger = 1 - smaller
    below = z < 0
    return np.where(below, smaller, larger), np.where(below, larger, smaller)


def _gaussian_weights(z: Array) -> Array:
    weights = np.exp(-0.5 * z**2)
    return weights / weights.sum()


def _loss_after_sampling(loss: Array, rate: float) -> Array:
    """log(1 - q + q e^l), with all its digits for small q and for small or large l."""
    small = np.log1p(rate * np.expm1(np.minimum(loss, 1.0)))
    large = np.logaddexp(math.log1p(-rate) if rate < 1 else -math.inf, math.log(rate) + loss)
    return np.where(loss < 1.0, small, large)


def _loss_before_sampling(loss: Array, rate: float) -> Array:
    """Inverse of `_loss_after_sampling`; -inf below log(1 - q), which no loss after sampling reaches."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.expm1(np.minimum(loss, 1.0)) / rate
        small = np.where(ratio > -1, np.log1p(np.maximum(ratio, -1.0)), -np.inf)
        large = loss - math.log(rate) + np.log1p((rate - 1) * np.exp(-np.maximum(loss, 1.0)))
    return np.where(loss < 1.0, small, large)
