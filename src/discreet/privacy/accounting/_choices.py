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
    """`count` choices of privacy loss range `width`, each made after the earlier ones, of whatever kind, were seen.

    Between two neighbours the losses of one such choice lie in [t - width, t] for some t in [0,
    width]. For given t the worst has just these two losses, with p = (e^width - e^t) / (e^width -
    1) at t. So the profile F_k of k choices is at most, with alpha = e^epsilon,

        F_k(alpha) = max over t of  p F_(k-1)(alpha e^-t) + (1 - p) F_(k-1)(alpha e^(width-t)),   F_0 = max(1 - alpha, 0),

    and no less, since an adversary may choose t, and do so again after each choice. F_k is a
    maximum of convex functions, so it is the profile of a pair again. Beside releases with pairs of
    their own this pair takes their place in any order: whoever chooses t after seeing more gains,
    so that the choices come last in the worst case.

    References:
        Dong, Durfee, Rogers, "Optimal differential privacy composition for exponential mechanisms",
        ICML 2020; Zhu, Dong, Wang, AISTATS 2022, for profiles as pairs.
    """

    width: float
    count: int

    def law(self, loss: Array) -> LossLaw:
        atoms, law = _selection_law(self.width, self.count)
        place = np.searchsorted(atoms.loss, loss, side="right")
        return LossLaw(*(part[place] for part in law))

    def nodes(self) -> LossNodes:
        return _selection_law(self.width, self.count)[0]


@functools.lru_cache(maxsize=32)
def selection_curve(width: float, count: int) -> GridCurve:
    """The profile of `SelectionPair` at multiples of width / steps, rounded up.

    Between grid points a profile is below its chord in alpha. With chords the maximum over t within
    one step is that of const + A x + B / x over x = e^t, so the result is a bound at all t, and
    exact for one choice.
    """
    rho = count * width**2 / 8
    # beyond it delta is below 1e-20: Bun, Steinke, TCC 2016
    reach = min(count * width, rho + 13.6 * math.sqrt(rho))
    steps = max(
        math.ceil(_LEAST_STEPS * max(1.0, width)),
        min(256, math.isqrt(int(_MOST_WORK * width / (count * reach)))),
    )
    last = max(math.ceil(reach / width * steps - 1e-9), steps)
    grid = np.arange(last + 1) * (width / steps)
    x = np.exp(grid[: steps + 1])
    top = x[-1]
    scale = math.expm1(width)
    chance = np.expm1(grid[: steps + 1] - width) / math.expm1(-width)
    deltas = np.zeros(last + 1)
    for _ in range(count):
        # Left of 0 a profile that is the same in both directions is 1 - alpha + alpha F(1 / alpha).
        left = -np.expm1(-grid[steps:0:-1]) + np.exp(-grid[steps:0:-1]) * deltas[steps:0:-1]
        known = np.concatenate([left, deltas, np.full(steps, deltas[-1])])

        def at(step: int, known: Array = known) -> tuple[Array, Array, Array]:
            low = known[steps - step :][: last + 1]
            high = known[2 * steps - step :][: last + 1]
            return low, high, chance[step] * low + (1 - chance[step]) * high

        before = at(0)
        best = before[2]
        for step in range(1, steps + 1):
            now = at(step)
            ends = (x[step - 1], x[step])
            width_of_chord = 1 / ends[0] - 1 / ends[1]
            slopes = [(a - b) / width_of_chord for a, b in zip(before[:2], now[:2], strict=True)]
            starts = [b - slope / ends[1] for b, slope in zip(now[:2], slopes, strict=True)]
            linear = starts[1] - starts[0]
            inverse = top * slopes[0] - slopes[1]
            with np.errstate(divide="ignore", invalid="ignore"):
                inside = np.sqrt(inverse / linear)
            held = (linear < 0) & (inverse < 0) & (inside > ends[0]) & (inside < ends[1])
            inside = np.where(held, inside, ends[0])
            gain = (linear - inverse / (inside * ends[0])) * (inside - ends[0]) / scale
            best = np.maximum(best, np.maximum(now[2], before[2] + gain))
            before = now
        deltas = best * (1 + 1e-12)
    return GridCurve(grid, np.minimum(np.minimum.accumulate(deltas), 1.0))


_LEAST_STEPS = 24
_MOST_WORK = 2 * 10**7


@functools.lru_cache(maxsize=32)
def _selection_law(width: float, count: int) -> tuple[LossNodes, LossLaw]:
    """The loss whose profile is the chords of the curve: its atoms, where the slope changes.

    Then the cumulative probabilities below and from each of the atoms on.
    """
    curve = selection_curve(width, count)
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
