"""Privacy profiles as curves: delta as a function of epsilon, and back. Every value is an upper bound."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_ndtr

Array = NDArray[np.floating[Any]]


class Curve(Protocol):
    """delta(epsilon) for epsilon >= 0: convex in e^epsilon and non-increasing."""

    def delta(self, epsilon: Array) -> Array:
        """Returns upper bounds on delta at each epsilon >= 0."""
        ...

    def knots(self) -> Array:
        """Returns epsilons, ascending from 0, between which the curve is smooth; the last has a negligible delta."""
        ...


@dataclass(frozen=True)
class ConstantCurve:
    """delta(epsilon) = level everywhere: 1 for a release without noise, 0 for no release."""

    level: float

    def delta(self, epsilon: Array) -> Array:
        return np.full_like(epsilon, self.level)

    def knots(self) -> Array:
        return np.array([0.0, 1.0])


@dataclass(frozen=True)
class GaussianCurve:
    """The exact profile of the Gaussian mechanism with sensitivity/stddev = `shift`, but for rounding upward.

    Reference: Balle, Wang, "Improving the Gaussian mechanism for differential privacy", ICML 2018, Theorem 8.
    """

    shift: float

    def delta(self, epsilon: Array) -> Array:
        above = log_ndtr(self.shift / 2 - epsilon / self.shift)
        below = epsilon + log_ndtr(-self.shift / 2 - epsilon / self.shift)
        # Where shift and epsilon are small, the difference of the two has few digits: round it up.
        rounding = 16 * np.finfo(np.float64).eps * (1 + epsilon + np.abs(above))
        return np.exp(above) * np.minimum(rounding - np.expm1(np.minimum(below - above, 0.0)), 1.0)

    def knots(self) -> Array:
        return np.linspace(0.0, self.shift**2 / 2 + 38 * self.shift, 1025)


@dataclass(frozen=True)
class PureCurve:
    """The profile of `count` mechanisms that are each (epsilon, 0)-private, and of nothing else.

    Exact for the worst of them, randomised response, but for rounding upward; 0 from count * epsilon on.

    Reference: Kairouz, Oh, Viswanath, "The composition theorem for differential privacy", ICML 2015, Theorem 3.3.
    """

    epsilon: float
    count: int

    def delta(self, epsilon: Array) -> Array:
        from scipy.stats import binom

        right = np.arange(self.count // 2 + 1, self.count + 1)
        losses = (2 * right - self.count) * self.epsilon
        gain = -np.expm1(np.minimum(epsilon[..., None] - losses, 0.0))
        # A binomial probability is some ten thousand roundings at worst.
        return np.minimum(gain @ binom.pmf(right, self.count, expit(self.epsilon)) * (1 + 1e-11), 1.0)

    def knots(self) -> Array:
        losses = np.arange(self.count % 2, self.count + 1, 2) * self.epsilon
        return np.unique(np.concatenate([losses, np.linspace(0.0, self.count * self.epsilon, 257)]))


@dataclass(frozen=True, eq=False)
class GridCurve:
    """Upper bounds at grid points; in between, the chord in e^epsilon, which lies above any profile below its ends."""

    epsilons: Array
    deltas: Array

    def delta(self, epsilon: Array) -> Array:
        if epsilon is self.epsilons:
            return self.deltas
        right = np.clip(np.searchsorted(self.epsilons, epsilon), 1, len(self.epsilons) - 1)
        left = right - 1
        start, stop = self.epsilons[left], self.epsilons[right]
        # (e^eps - e^start) / (e^stop - e^start), without overflow
        with np.errstate(over="ignore"):
            weight = np.clip(
                np.exp(np.minimum(epsilon - stop, 0.0)) * np.expm1(start - epsilon) / np.expm1(start - stop), 0, 1
            )
        value = self.deltas[left] + weight * (self.deltas[right] - self.deltas[left])
        return np.where(epsilon >= self.epsilons[-1], self.deltas[-1], value)

    def knots(self) -> Array:
        return self.epsilons


@dataclass(frozen=True)
class SlackCurve:
    """delta(epsilon) + (1 + e^epsilon) slack: what ran is within total variation `slack` of what `curve` describes."""

    curve: Curve
    slack: float

    def delta(self, epsilon: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.minimum(1.0, self.curve.delta(epsilon) + self.slack * (1 + np.exp(np.minimum(epsilon, 700.0))))

    def knots(self) -> Array:
        return self.curve.knots()


def smallest_epsilon(curve: Curve, delta: float) -> float:
    """Smallest epsilon >= 0 with curve.delta(epsilon) <= delta, rounded up; infinity where there is none.

    The curve may rise again (slack): the first crossing is found, on the knots and then by bisection between two of them.
    """
    knots = curve.knots()
    values = curve.delta(knots)
    met = np.flatnonzero(values <= delta)
    if met.size == 0:
        return math.inf
    first = int(met[0])
    if first == 0:
        return 0.0
    low, high = float(knots[first - 1]), float(knots[first])
    for _ in range(12):
        # Sections of 32: a call with 33 points costs little more than a call with one.
        points = np.linspace(low, high, 33)
        inside = np.flatnonzero(curve.delta(points) <= delta)
        index = int(inside[0]) if inside.size else 32
        low, high = float(points[max(index - 1, 0)]), float(points[index])
        if high - low <= 1e-13 * high:
            break
    return high
