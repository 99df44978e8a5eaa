"""Dominating pairs and curves without Gaussian noise: pure mechanisms, and choices by the exponential mechanism.

Few profiles need them, so `_events` loads this file where an event asks for one of them.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from discreet.privacy.accounting._pairs import Array, GridCurve, LossLaw, LossNodes


@dataclass(frozen=True)
class PureCurve:
    """The profile of `count` mechanisms that are each (epsilon, 0)-private, and of nothing else.

    Exact for the worst of them, randomised response, but for rounding upward; 0 from count *
    epsilon on.

    Reference: Kairouz, Oh, Viswanath, "The composition theorem for differential privacy", ICML
    2015, Theorem 3.3.
    """

    epsilon: float
    count: int

    def delta(self, epsilon: Array) -> Array:
        from scipy.stats import binom

        right = np.arange(self.count // 2 + 1, self.count + 1)
        losses = (2 * right - self.count) * self.epsilon
        gain = -np.expm1(np.minimum(epsilon[..., None] - losses, 0.0))
        # A binomial probability is some ten thousand roundings at worst.
        return np.minimum(
            gain @ binom.pmf(right, self.count, expit(self.epsilon)) * (1 + 1e-11), 1.0
        )

    @property
    def knots(self) -> Array:
        losses = np.arange(self.count % 2, self.count + 1, 2) * self.epsilon
        return np.unique(np.concatenate([losses, np.linspace(0.0, self.count * self.epsilon, 257)]))


@dataclass(frozen=True)
class PurePair:
    """Randomised response between two answers, the odds of the right one e^epsilon: the worst of all that are epsilon-private.

    Every mechanism that is (epsilon, 0)-private between two data sets can be computed from it
    (Kairouz, Oh, Viswanath, ICML 2015, Theorem 3.1), so it dominates them all. The loss is epsilon
    or -epsilon.
    """

    epsilon: float

    def law(self, loss: Array) -> LossLaw:
        rare = float(expit(-self.epsilon))
        common = float(expit(self.epsilon))
        ends = [loss < -self.epsilon, loss >= self.epsilon]

        cdf = [np.select(ends, [0.0, 1.0], below) for below in (rare, common)]
        sf = [np.select(ends, [1.0, 0.0], above) for above in (common, rare)]
        return LossLaw(cdf[0], sf[0], cdf[1], sf[1])

    def nodes(self) -> LossNodes:
        rare = float(expit(-self.epsilon))
        common = float(expit(self.epsilon))
        ends = np.array([-self.epsilon, self.epsilon])
        return LossNodes(ends, np.array([rare, common]), np.array([common, rare]))


@dataclass(frozen=True)
class SelectionPair:
    """A choice by the exponential mechanism, of privacy loss range `width`.

    Between two neighbours its losses lie in [t - width, t] for some t in [0, width]. For given t
    the worst has just these two losses, with p = (e^width - e^t) / (e^width - 1) at t. The largest
    of their profiles over all t is a maximum of convex functions of e^epsilon, so it is the profile
    of a pair again. Several choices cost up to 15 % of epsilon less than as many such pairs, whose
    t may be another for each epsilon.

    References:
        Dong, Durfee, Rogers, "Optimal differential privacy composition for exponential mechanisms",
        ICML 2020; Zhu, Dong, Wang, AISTATS 2022, for profiles as pairs.
    """

    width: float

    def law(self, loss: Array) -> LossLaw:
        atoms, law = _selection_law(self.width)
        place = np.searchsorted(atoms.loss, loss, side="right")
        return LossLaw(*(part[place] for part in law))

    def nodes(self) -> LossNodes:
        return _selection_law(self.width)[0]


def selection_curve(width: float) -> GridCurve:
    """The profile of `SelectionPair`, exact at multiples of width / steps, and below its chord in e^epsilon between them.

    The best t is (width + epsilon) / 2.
    """
    steps = max(256, math.ceil(24 * width))
    epsilon = np.arange(steps + 1) * (width / steps)
    deltas = np.exp(epsilon - width) * np.expm1((width - epsilon) / 2) ** 2 / -math.expm1(-width)
    return GridCurve(epsilon, np.minimum(deltas * (1 + 1e-12), 1.0))


@functools.lru_cache(maxsize=32)
def _selection_law(width: float) -> tuple[LossNodes, LossLaw]:
    """The loss whose profile is the chords of the curve: its atoms, where the slope changes.

    Then the cumulative probabilities below and from each of the atoms on.
    """
    curve = selection_curve(width)
    lower, upper, infinite = _atoms_above(curve)
    # The profile of the other direction is the same.
    losses = np.concatenate([-curve.knots[:0:-1], [0.0], curve.knots[1:]])
    middle = max(0.0, 1.0 - float(lower.sum() + upper.sum() + curve.deltas[-1]))
    above = np.concatenate([lower[::-1], [middle], upper])
    below = np.concatenate([upper[::-1], [middle], lower])

    def cumulative(probs: Array, more: float) -> tuple[Array, Array]:
        return np.append(0.0, np.cumsum(probs)), np.append(np.cumsum(probs[::-1])[::-1], 0.0) + more

    return LossNodes(losses, above, below), LossLaw(
        *cumulative(above, infinite), *cumulative(below, 0.0)
    )


def _atoms_above(curve: GridCurve) -> tuple[Array, Array, float]:
    """The masses of the losses above 0 under Q and P, and of an infinite one: what rounding took, or lies beyond the last."""
    alpha = np.exp(curve.knots)
    slopes = np.append(np.diff(curve.deltas) / np.diff(alpha), 0.0)
    lower = np.maximum(np.diff(slopes), 0.0)
    upper = lower * alpha[1:]
    above, below = (np.append(np.cumsum(part[::-1])[::-1], 0.0) for part in (upper, lower))
    return lower, upper, float(np.max(curve.deltas - (above - alpha * below)))
