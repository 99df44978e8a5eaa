"""A proved envelope of a tempered posterior whose records meet the latents through one linear predictor each.

The log density of the latents in units of their prior, v ~ N(0, I), is

    T(v) = -|v|^2 / 2 + power * sum_i f(t_i, floor_i),    t_i = a_i . v + b_i,    f(t, floor) = max(phi(t), floor),

where phi is concave and at most 0: -log(1 + e^-t) for a sign, -t^2 / 2 for a real number. Clipping
below by the floor is what keeps T from being concave. Three facts make up for it; all numbers that
are searched for below only decide how good the bound is, and not whether it holds.

1. *Majorant.* Within |v| <= rho, t_i is at least lo_i = b_i - rho |a_i|. A tangent of phi lies
   above phi, and above the floor where it does so at lo_i. With the tangent to the left of its
   point and phi to the right of it, f has a concave majorant h_i on the ball (and with a second
   tangent where phi falls on the right). So T <= H = -|v|^2 / 2 + power * sum_i h_i, concave.
2. *Outer shells.* -H - |v|^2 / 2 is convex, so H(v) <= H(m) + g . (v - m) - |v - m|^2 / 2 for any m
   and the gradient g of H at m, which bounds T on rho' < |v| <= rho.
3. *Inner shells.* Let H be the majorant on the ball of some radius, m near its maximum, C C' the
   inverse of minus its Hessian there, v = m + C w. Within |w| <= r, t_i stays within X_i = r |C'
   a_i| of its value tau_i at m. If h_i is phi there, it lies below its tangent by at least k_i (t -
   tau_i)^2 / 2 with k_i = `bend`; else k_i = 0. So H <= H(m) + s |w| - c |w|^2 / 2, where s is the
   length of C' g and c the least eigenvalue of C' (I + power * sum_i k_i a_i a_i') C. Beyond r, by
   concavity along each ray, H <= H(m) - (c r / 2 - s) |w|.

The shells cover the ball: each has the bound of T over it, and a Gaussian to propose from.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import expit

Numbers = Float[np.ndarray, "..."]
_OUTER = 40
_INNER_RATIO = 1.12
_STARTS = 10
# Radii and eigenvalues are in float64, better than this.
_ROUNDING = 1e-8
_RIDGE = 1e-12
# 90 units of float64's rounding: of a product of two vectors, times the product of their lengths.
_PRODUCT = 1e-14


class Curve(Protocol):
    """A concave function, at most 0, of a record's linear predictor."""

    def value(self, t: Numbers) -> Numbers:
        """The function."""
        ...

    def slope(self, t: Numbers) -> Numbers:
        """Its derivative."""
        ...

    def curvature(self, t: Numbers) -> Numbers:
        """Minus its second derivative."""
        ...

    def bend(self, tau: Numbers, reach: Numbers) -> Numbers:
        """The largest known k with value(t) <= tangent at tau - k (t - tau)^2 / 2 for all |t - tau| <= reach."""
        ...

    def touching(self, low: Numbers, floor: Numbers) -> Numbers:
        """A point whose tangent is not below the floor at `low`; minus infinity where the function is above it there."""
        ...

    falls: bool
    """Whether it falls to minus infinity on the right as well: it is then even."""


class LogSigmoid:
    """-log(1 + e^-t)."""

    falls = False

    def value(self, t: Numbers) -> Numbers:
        """The function."""
        return -np.logaddexp(0.0, -t)

    def slope(self, t: Numbers) -> Numbers:
        """Its derivative."""
        return expit(-t)

    def curvature(self, t: Numbers) -> Numbers:
        """Minus its second derivative."""
        return expit(t) * expit(-t)

    def bend(self, tau: Numbers, reach: Numbers) -> Numbers:
        """The curvature falls with |t|, so a step outward from |tau| bends least, and a longer one less."""
        start = np.abs(tau)
        step = np.maximum(reach, 1e-3)
        drop = self.slope(start) * step - (self.value(start + step) - self.value(start))
        return np.maximum(2 * drop / step**2 - _ROUNDING, 0.0)

    def touching(self, low: Numbers, floor: Numbers) -> Numbers:
        """By bisection; the end that is returned passed the test."""
        left = np.array(low, np.float64)
        right = np.maximum(left, 0.0) + 60.0 + np.log1p(np.abs(left))
        for _ in range(50):
            middle = (left + right) / 2
            passes = self.value(middle) + self.slope(middle) * (low - middle) >= floor
            right = np.where(passes, middle, right)
            left = np.where(passes, left, middle)
        return np.where(self.value(low) < floor, right, -np.inf)


class Parabola:
    """-t^2 / 2."""

    falls = True

    def value(self, t: Numbers) -> Numbers:
        """The function."""
        return -(t**2) / 2

    def slope(self, t: Numbers) -> Numbers:
        """Its derivative."""
        return -t

    def curvature(self, t: Numbers) -> Numbers:
        """Minus its second derivative."""
        return np.ones_like(t)

    def bend(self, tau: Numbers, reach: Numbers) -> Numbers:
        """It bends everywhere alike."""
        del reach
        return np.full_like(tau, 1.0 - _ROUNDING)

    def touching(self, low: Numbers, floor: Numbers) -> Numbers:
        """The tangent at t is at `low` t^2 / 2 - t low: a quadratic equation, solved on the safe side."""
        below = (low < 0) & (self.value(low) < floor)
        root = np.sqrt(np.maximum(low**2 + 2 * floor, 0.0))
        # -2 floor / (root - low) is root + low without its cancellation.
        return np.where(below, 2 * floor / (root - low + (low == 0)) * (1 - _ROUNDING), -np.inf)


@dataclasses.dataclass(frozen=True)
class Bounded:
    """The part of a log density that the envelope is of, in units of the prior. Arrays: one entry a record.

    Attributes:
        curve: phi.
        weights: a.
        offsets: b.
        floor: The clipping bound, below 0.
        power: The power of the likelihood.
    """

    curve: Curve
    weights: Float[np.ndarray, "record latent"]
    offsets: Float[np.ndarray, " record"]
    floor: Float[np.ndarray, " record"]
    power: float

    @property
    def dim(self) -> int:
        """Number of latents."""
        return self.weights.shape[1]


class Shell(NamedTuple):
    """A part of the ball, the bound of T over it less the log density of its Gaussian, and that Gaussian.

    Inner shells have |v| <= ball and least < |factor^-1 (v - center)| <= most; outer ones least <
    |v| <= most = ball.
    """

    inner: bool
    ball: float
    least: float
    most: float
    log_bound: float
    center: Float[np.ndarray, " latent"]
    # lower triangular: the Gaussian is that of center + spread * factor * xi
    factor: Float[np.ndarray, "latent latent"]
    spread: float


class Majorant:
    """The concave majorant H of T on a ball (fact 1), and where it is largest."""

    def __init__(
        self, bounded: Bounded, radius: float, start: Float[np.ndarray, " latent"]
    ) -> None:
        self.bounded = bounded
        self.radius = radius
        curve = bounded.curve
        reach = radius * np.linalg.norm(bounded.weights, axis=1) * (1 + _ROUNDING)
        self._left = curve.touching(bounded.offsets - reach, bounded.floor)
        nowhere = np.full_like(reach, np.inf)
        self._right = (
            -curve.touching(-bounded.offsets - reach, bounded.floor) if curve.falls else nowhere
        )
        self.at = self._climb(start)
        self.value, self.gradient, self.hessian = self.around(self.at)

    def around(self, v: Numbers) -> tuple[float, Numbers, Numbers]:
        """H, its gradient and minus its Hessian."""
        bounded = self.bounded
        t = bounded.weights @ v + bounded.offsets
        point = np.clip(t, self._left, self._right)
        slope = bounded.curve.slope(point)
        total = bounded.curve.value(point) + slope * (t - point)
        curvature = np.where(point == t, bounded.curve.curvature(point), 0.0)
        value = -v @ v / 2 + bounded.power * np.sum(total)
        gradient = -v + bounded.power * (slope @ bounded.weights)
        hessian = np.eye(len(v)) + bounded.power * (bounded.weights.T * curvature) @ bounded.weights
        # Records can be so extreme that float64 does not invert it. Any other matrix will do, at a
        # worse bound.
        hessian += _RIDGE * np.trace(hessian) * np.eye(len(v))
        return float(value), gradient, hessian

    def is_curve(self, tau: Numbers, reach: Numbers) -> Bool[np.ndarray, " record"]:
        """For which records h is phi within `reach` of tau."""
        return (self._left < tau - reach) & (tau + reach < self._right)

    def _climb(self, v: Numbers) -> Numbers:
        """Newton's method with backtracking; wherever it ends, the bounds hold."""
        value, gradient, hessian = self.around(v)
        for _ in range(50):
            step = np.linalg.solve(hessian, gradient)
            gain = float(gradient @ step)
            if gain < 1e-12:
                break
            length = 1.0
            while (
                length > 1e-6 and self.around(v + length * step)[0] < value + 1e-4 * length * gain
            ):
                length /= 2
            v = v + length * step
            value, gradient, hessian = self.around(v)
        return v


def envelope(bounded: Bounded, farthest: float) -> list[Shell]:
    """Shells that cover the ball |v| <= farthest, with the least total bound among those tried.

    Args:
        bounded: The log density.
        farthest: Radius of the ball.
    """
    radii = np.geomspace(1.0, farthest, _OUTER)
    majorants = []
    start = np.zeros(bounded.dim)
    for radius in radii:
        majorants.append(Majorant(bounded, float(radius), start))
        start = majorants[-1].at
    outer = [
        _outer(majorant, least)
        for majorant, least in zip(majorants, [0.0, *radii[:-1]], strict=True)
    ]
    best: list[Shell] = []
    for number in sorted({int(x) for x in np.linspace(0, _OUTER - 1, _STARTS)}):
        shells = _inner(majorants[number]) + outer[number + 1 :]
        if not best or total_bound(shells) < total_bound(best):
            best = shells
    return best


def total_bound(shells: list[Shell]) -> float:
    """Logarithm of the bounds' sum: of what rejection has to throw away, less that of the density's integral."""
    return _log_sum([shell.log_bound for shell in shells])


def _log_sum(logs: Sequence[float]) -> float:
    return float(np.logaddexp.reduce(np.asarray(logs, np.float64)))


def expected_trials(bounded: Bounded, farthest: float) -> float:
    """About how many trials a draw takes, by the integral of a normal density at the maximum without clipping."""
    plain = Majorant(bounded, 0.0, np.zeros(bounded.dim))
    integral = (
        plain.value + bounded.dim / 2 * np.log(2 * np.pi) - np.linalg.slogdet(plain.hessian)[1] / 2
    )
    return float(np.exp(min(total_bound(envelope(bounded, farthest)) - integral, 700.0)))


def _outer(majorant: Majorant, least: float) -> Shell:
    """Fact 2. The proposal is as wide as the ball, so its density is nowhere in it below its value at the border."""
    dim = majorant.bounded.dim
    most = majorant.radius
    top = float(np.linalg.norm(majorant.at + majorant.gradient))
    bound = (
        majorant.value + majorant.gradient @ majorant.gradient / 2 - max(0.0, least - top) ** 2 / 2
    )
    log_density = _at_border(dim, most)
    center = np.zeros(dim)
    return Shell(
        False, most, least, most, float(bound - log_density), center, np.eye(dim), most / dim**0.5
    )


def _at_border(dim: int, radius: float) -> float:
    """Log density at distance `radius` of N(0, radius^2 / dim), in that many dimensions."""
    return -dim / 2 * np.log(2 * np.pi * radius**2 / dim) - dim / 2


def _inner(majorant: Majorant) -> list[Shell]:
    """Fact 3: a ball in which c is large with a Gaussian of its own, and shells around it."""
    bounded = majorant.bounded
    dim = bounded.dim
    lower = np.linalg.cholesky(np.linalg.inv(majorant.hessian))
    log_volume = float(np.sum(np.log(np.diag(lower))))
    turned = bounded.weights @ lower
    size = np.linalg.norm(bounded.weights, axis=1)
    # Of large weights little may be left in `turned`, and in tau.
    lost = _PRODUCT * size * np.linalg.norm(lower)
    lengths = (np.linalg.norm(turned, axis=1) + lost) * (1 + _ROUNDING)
    tau = bounded.weights @ majorant.at + bounded.offsets
    unsure = _PRODUCT * (size * np.linalg.norm(majorant.at) + np.abs(bounded.offsets))
    prior = lower.T @ lower
    slope = float(np.linalg.norm(lower.T @ majorant.gradient)) * (1 + _ROUNDING)
    # The ball lies within the last radius.
    far = (majorant.radius + np.linalg.norm(majorant.at)) * np.linalg.norm(np.linalg.inv(lower), 2)
    radii = (
        0.5
        * dim**0.5
        * _INNER_RATIO ** np.arange(2 + max(0, np.log(2 * far / dim**0.5) / np.log(_INNER_RATIO)))
    )
    bend = []
    for radius in radii:
        reach = radius * lengths + unsure
        k = np.where(majorant.is_curve(tau, reach), bounded.curve.bend(tau, reach), 0.0)
        found = np.linalg.eigvalsh(prior + bounded.power * (turned.T * k) @ turned)[0]
        bend.append(found - 2 * bounded.power * np.sum(k * lengths * lost))
    # Not below the least eigenvalue of C' C.
    least = np.linalg.norm(np.linalg.inv(lower), 2) ** -2
    c = np.maximum(np.array(bend) * (1 - _ROUNDING) - 1e-12, least * (1 - 1e-6))
    falls = np.maximum.accumulate(c * radii / 2 - slope)
    around = [
        majorant.value
        - falls[i] * radii[i + (falls[i] < 0)]
        - _at_border(dim, radii[i + 1])
        + log_volume
        for i in range(len(radii) - 1)
    ]
    inside = majorant.value + slope * radii + dim / 2 * np.log(2 * np.pi / c) + log_volume
    totals = [_log_sum([inside[i], *around[i:]]) for i in range(len(radii))]
    first = int(np.argmin(totals))
    center = majorant.at
    ball = majorant.radius
    most = float(radii[first])
    shells = [
        Shell(True, ball, -1.0, most, float(inside[first]), center, lower, float(c[first] ** -0.5))
    ]
    for i in range(first, len(around)):
        least = float(radii[i])
        most = float(radii[i + 1])
        shells.append(
            Shell(True, ball, least, most, float(around[i]), center, lower, most / dim**0.5)
        )
    return shells
