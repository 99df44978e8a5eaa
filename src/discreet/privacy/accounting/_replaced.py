"""Dominating pairs of samples in which one record is replaced, or is drawn in another's place.

They are what a step costs under REPLACE_ONE, and a batch that was truncated. `_events` loads this
file where an event needs it.
"""

import math
from dataclasses import dataclass

import numpy as np

from discreet.privacy.accounting._pairs import (
    Array,
    LinearInRate,
    LossLaw,
    LossNodes,
    Pair,
    PoissonPair,
    gaussian_nodes,
    gaussian_tails,
    gaussian_weights,
    mixed,
)


@dataclass(frozen=True)
class PoissonReplacePair(LinearInRate):
    """(1-q) N(0,1) + q N(shift,1) against (1-q) N(0,1) + q N(-shift,1): a Poisson sample with one record replaced.

    `shift` is C/stddev: the two versions of the record contribute +C and -C. The pair is
    dp_accounting's for REPLACE_ONE.
    """

    shift: float
    rate: float

    def law(self, loss: Array) -> LossLaw:
        threshold = self._point_of(loss)
        here, upper, lower = (
            gaussian_tails(threshold + move) for move in (0.0, -self.shift, self.shift)
        )
        return LossLaw(*mixed(here, upper, self.rate), *mixed(here, lower, self.rate))

    def nodes(self) -> LossNodes:
        z = gaussian_nodes(self.shift, self.shift)
        q = self.rate
        drift = math.log(q) - self.shift**2 / 2
        stay = math.log1p(-q) if q < 1 else -math.inf
        loss = np.logaddexp(stay, drift + self.shift * z) - np.logaddexp(
            stay, drift - self.shift * z
        )
        here, upper, lower = (gaussian_weights(z + move) for move in (0.0, -self.shift, self.shift))
        return LossNodes(loss, *mixed([here, here], [upper, lower], q))

    def _point_of(self, loss: Array) -> Array:
        # The loss at z equals l where sinh(shift z - l/2) = (1-q)/q exp(shift^2/2) sinh(l/2);
        # solved through logarithms, since exp(shift^2/2) overflows for little noise.
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

    With P and Q a shift of 2C apart, its profile is H_alpha((1-q) Q + q P || Q) for alpha >= 1 and
    H_alpha(P || (1-q) P + q Q) for alpha < 1. That is convex in alpha and so belongs to a pair
    again; where the branches meet, at alpha = 1, the slope jumps and the loss 0 has an atom of
    probability (1-q) TV(P, Q).

    Reference: Zhu, Dong, Wang, "Optimal accounting of differential privacy via characteristic
    function", AISTATS 2022.
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
        return LossLaw(*mixed(self.second.law(loss), self.first.law(loss), self.weight))

    def nodes(self) -> LossNodes:
        first = self.first.nodes()
        second = self.second.nodes()
        w = self.weight
        weighted = (
            np.concatenate([w * a, (1 - w) * b]) for a, b in zip(first[1:], second[1:], strict=True)
        )
        return LossNodes(np.concatenate([first.loss, second.loss]), *weighted)
