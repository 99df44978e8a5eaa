"""The cost of one use of a mechanism: dominating pairs, and privacy profiles as curves.

A pair (P, Q) bounds a mechanism when its hockey-stick divergences H_alpha(P || Q) are at least those of the mechanism
on any two neighbouring data sets, for every alpha > 0. All that accounting needs of a pair is the law of its privacy loss
L = log dP/dQ under P and under Q, so a pair here *is* those two laws, given by their distribution functions. Both tails are
given, because privacy is decided where 1 - cdf has lost all its digits.

A curve is delta as a function of epsilon, and back. Every value of it is an upper bound.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_ndtr, ndtr

Array = NDArray[np.floating[Any]]


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

    @property
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

    @property
    def knots(self) -> Array:
        losses = np.arange(self.count % 2, self.count + 1, 2) * self.epsilon
        return np.unique(np.concatenate([losses, np.linspace(0.0, self.count * self.epsilon, 257)]))


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
                np.exp(np.minimum(epsilon - stop, 0.0)) * np.expm1(start - epsilon) / np.expm1(start - stop), 0, 1
            )
        value = self.deltas[left] + weight * (self.deltas[right] - self.deltas[left])
        return np.where(epsilon >= self.knots[-1], self.deltas[-1], value)


NO_RELEASE = GridCurve(np.array([0.0, 1.0]), np.zeros(2))
NO_NOISE = GridCurve(np.array([0.0, 1.0]), np.ones(2))


@dataclass(frozen=True)
class RenyiCurve:
    """The profile implied by Rényi divergences of some orders, except for a probability `lost`.

    Reference: Canonne, Kamath and Steinke, NeurIPS 2020, Proposition 12.
    """

    orders: Array
    divergences: Array
    lost: float

    def delta(self, epsilon: Array) -> Array:
        orders = self.orders[:, None]
        flat = np.reshape(epsilon, (1, -1))
        exponents = (orders - 1) * (self.divergences[:, None] - flat + np.log1p(-1 / orders)) - np.log(orders)
        best = np.min(exponents + 1e-12 * (1 + np.abs(exponents)), axis=0)
        # The divergences hold given that nothing was lost, which it is on either table.
        lost = self.lost * (1 + np.exp(np.minimum(flat[0], 700.0)))
        return np.minimum(1.0, np.exp(np.minimum(best, 0.0)) + lost).reshape(np.shape(epsilon))

    @property
    def knots(self) -> Array:
        last = np.min(self.divergences + np.log1p(-1 / self.orders) + (40 - np.log(self.orders)) / (self.orders - 1))
        return np.linspace(0.0, max(float(last), 1e-3), 2049) if np.isfinite(last) else np.array([0.0, 1.0])


Curve = GaussianCurve | PureCurve | GridCurve | RenyiCurve
"""delta(epsilon) for epsilon >= 0: convex in e^epsilon and non-increasing. `delta` gives upper bounds at each epsilon >= 0;
`knots` are epsilons, ascending from 0, between which the curve is smooth; the last has a negligible delta."""


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
        z = _gaussian_nodes(self.shift, self.shift / 2)
        return LossNodes(z * self.shift, _gaussian_weights(z - self.shift / 2), _gaussian_weights(z + self.shift / 2))


@dataclass(frozen=True)
class LaplacePair:
    """Laplace noise of scale 1 against the same, `shift` away (L1 sensitivity / scale)."""

    shift: float

    def law(self, loss: Array) -> LossLaw:
        # Under P the loss is +shift with probability 1/2, -shift with probability exp(-shift)/2, and has density
        # exp((l - shift)/2)/4 in between; under Q the same with the sign of l turned.
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
class PurePair:
    """Randomised response between two answers, the odds of the right one e^epsilon: the worst of all that are epsilon-private.

    Every mechanism that is (epsilon, 0)-private between two data sets can be computed from it (Kairouz, Oh, Viswanath, ICML
    2015, Theorem 3.1), so it dominates them all. The loss is epsilon or -epsilon.
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

    Between two neighbours the losses of one such choice lie in [t - width, t] for some t in [0, width]. For given t the worst has
    just these two losses, with p = (e^width - e^t) / (e^width - 1) at t. So the profile F_k of k choices is at most, with
    alpha = e^epsilon,

        F_k(alpha) = max over t of  p F_(k-1)(alpha e^-t) + (1 - p) F_(k-1)(alpha e^(width-t)),   F_0 = max(1 - alpha, 0),

    and no less, since an adversary may choose t, and do so again after each choice. F_k is a maximum of convex functions, so it
    is the profile of a pair again. Beside releases with pairs of their own this pair takes their place in any order:
    whoever chooses t after seeing more gains, so that the choices come last in the worst case.

    References:
        Dong, Durfee, Rogers, "Optimal differential privacy composition for exponential mechanisms", ICML 2020;
        Zhu, Dong, Wang, AISTATS 2022, for profiles as pairs.
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

    Between grid points a profile is below its chord in alpha. With chords the maximum over t within one step is that of
    const + A x + B / x over x = e^t, so the result is a bound at all t, and exact for one choice.
    """
    rho = count * width**2 / 8
    reach = min(count * width, rho + 13.6 * math.sqrt(rho))  # beyond it delta is below 1e-20: Bun, Steinke, TCC 2016
    steps = max(
        math.ceil(_LEAST_STEPS * max(1.0, width)), min(256, math.isqrt(int(_MOST_WORK * width / (count * reach))))
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
    """The loss whose profile is the chords of `selection_curve`: its atoms, at grid points, where the slope changes.

    Then the cumulative probabilities below and from each of the atoms on.
    """
    curve = selection_curve(width, count)
    alpha = np.exp(curve.knots)
    deltas = curve.deltas
    slopes = np.append(np.diff(deltas) / np.diff(alpha), 0.0)
    lower = np.maximum(np.diff(slopes), 0.0)  # under Q, at the losses above 0
    upper = lower * alpha[1:]
    losses = np.concatenate([-curve.knots[:0:-1], [0.0], curve.knots[1:]])
    middle = max(0.0, 1.0 - float(lower.sum() + upper.sum() + deltas[-1]))
    above, below = (np.concatenate([a[::-1], [middle], b]) for a, b in ((lower, upper), (upper, lower)))
    # What rounding took from the profile, and what lies beyond the last loss, is an infinite loss.
    tails = (np.append(np.cumsum(part[::-1])[::-1], 0.0) for part in (upper, lower))
    infinite = max(float(deltas[-1]), float(np.max(deltas - (next(tails) - alpha * next(tails)))))

    def cumulative(probs: Array, more: float) -> tuple[Array, Array]:
        return np.append(0.0, np.cumsum(probs)), np.append(np.cumsum(probs[::-1])[::-1], 0.0) + more

    return LossNodes(losses, above, below), LossLaw(*cumulative(above, infinite), *cumulative(below, 0.0))


@dataclass(frozen=True)
class PoissonPair:
    """A Poisson sample with the record in the data, against one without: (1-q) Q + q P against Q.

    If `added`, the other way round: P against (1-q) P + q Q.
    """

    base: Pair
    rate: float
    added: bool

    def law(self, loss: Array) -> LossLaw:
        sign = -1 if self.added else 1
        sampled = sign * loss
        # The loss before sampling, as the inverse of that in `nodes`; -inf below log(1 - q), which no loss after it reaches.
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.expm1(np.minimum(sampled, 1.0)) / self.rate
            small = np.where(ratio > -1, np.log1p(np.maximum(ratio, -1.0)), -np.inf)
            large = sampled - math.log(self.rate) + np.log1p((self.rate - 1) * np.exp(-np.maximum(sampled, 1.0)))
        base = self.base.law(sign * np.where(sampled < 1.0, small, large))
        upper = base[:2]
        lower = base[2:]
        if self.added:
            lower = _mixed(upper, lower, self.rate)
        else:
            upper = _mixed(lower, upper, self.rate)
        return LossLaw._make((*upper, *lower))

    def nodes(self) -> LossNodes:
        sign = -1 if self.added else 1
        loss, upper, lower = self.base.nodes()
        loss = sign * loss
        # log(1 - q + q e^l), with all its digits for small q and for small or large l.
        small = np.log1p(self.rate * np.expm1(np.minimum(loss, 1.0)))
        large = np.logaddexp(math.log1p(-self.rate) if self.rate < 1 else -math.inf, math.log(self.rate) + loss)
        if self.added:
            lower = (1 - self.rate) * upper + self.rate * lower
        else:
            upper = (1 - self.rate) * lower + self.rate * upper
        return LossNodes(sign * np.where(loss < 1.0, small, large), upper, lower)


@dataclass(frozen=True)
class PoissonReplacePair:
    """(1-q) N(0,1) + q N(shift,1) against (1-q) N(0,1) + q N(-shift,1): a Poisson sample with one record replaced.

    `shift` is C/stddev: the two versions of the record contribute +C and -C. The pair is dp_accounting's for REPLACE_ONE.
    """

    shift: float
    rate: float

    def law(self, loss: Array) -> LossLaw:
        threshold = self._point_of(loss)
        here, upper, lower = (_gaussian_tails(threshold + move) for move in (0.0, -self.shift, self.shift))
        return LossLaw(*_mixed(here, upper, self.rate), *_mixed(here, lower, self.rate))

    def nodes(self) -> LossNodes:
        z = _gaussian_nodes(self.shift, self.shift)
        q = self.rate
        drift = math.log(q) - self.shift**2 / 2
        stay = math.log1p(-q) if q < 1 else -math.inf
        loss = np.logaddexp(stay, drift + self.shift * z) - np.logaddexp(stay, drift - self.shift * z)
        here, upper, lower = (_gaussian_weights(z + move) for move in (0.0, -self.shift, self.shift))
        return LossNodes(loss, *_mixed([here, here], [upper, lower], q))

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
        above = PoissonPair(self.base, self.rate, added=False).law(np.maximum(loss, 0.0))
        below = PoissonPair(self.base, self.rate, added=True).law(np.minimum(loss, 0.0))
        return LossLaw(*(np.where(loss >= 0, a, b) for a, b in zip(above, below, strict=True)))

    def nodes(self) -> LossNodes:
        above = PoissonPair(self.base, self.rate, added=False).nodes()
        below = PoissonPair(self.base, self.rate, added=True).nodes()
        up = above.loss > 0
        down = below.loss < 0
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
        return LossLaw(*_mixed(self.second.law(loss), self.first.law(loss), self.weight))

    def nodes(self) -> LossNodes:
        first = self.first.nodes()
        second = self.second.nodes()
        w = self.weight
        weighted = (np.concatenate([w * a, (1 - w) * b]) for a, b in zip(first[1:], second[1:], strict=True))
        return LossNodes(np.concatenate([first.loss, second.loss]), *weighted)


def _mixed(one: Sequence[Array], other: Sequence[Array], weight: float) -> list[Array]:
    """The same figures of two laws, put together: those of `other` with the weight."""
    return [(1 - weight) * a + weight * b for a, b in zip(one, other, strict=True)]


def _gaussian_tails(z: Array) -> tuple[Array, Array]:
    """N(0,1) at or below z, and above it."""
    smaller = ndtr(-np.abs(z))
    larger = 1 - smaller
    below = z < 0
    return np.where(below, smaller, larger), np.where(below, larger, smaller)


def _gaussian_nodes(shift: float, beyond: float) -> Array:
    """Points for Gaussians whose means are at most `beyond` from zero."""
    reach = _NODE_REACH + beyond
    return np.linspace(-reach, reach, 2 * math.ceil(min(reach / min(0.05, 0.2 / shift), 20_000)) + 1)


def _gaussian_weights(z: Array) -> Array:
    weights = np.exp(-0.5 * z**2)
    return weights / weights.sum()
