"""The posterior of the coefficients given noisy sums of products.

The posterior allows for both noises. Let A be the features' sums and b those with the target, both
seen with noise of standard deviation tau. Given coefficients t, b - A t has the covariance tau^2 /
2 ((1 + |t|^2) I + t t') from the noise, and from sampling the residuals' variance times the mean
weight times A. It is normal for a fixed t; for t t' its posterior mean is used, found by iterating.
Likelihoods of the releases multiply; since all of them see the same rows, each counts for its share
of them only. After Bernstein and Sheldon, NeurIPS 2019, who sample the exact moments instead.

Where the noise exceeds A, its eigenvectors are the noise's, and so many records seem to lie along
them that coefficients look known. So eigenvalues are shrunk, as random matrices ask for: those of
noise alone reach noise * sqrt(2 size).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from discreet.methods.moments._sums import SHARE_OF_TARGET

FLOORS = 0.1, 1.0
"""Of the largest eigenvalue of the noise: what whitening takes for the least, after each release of products."""
WIDE = (1.0,)
SCALES = tuple(2.0**-place for place in range(11))
"""Standard deviations of the prior of the coefficients: for intervals, and for the estimate, each with the same probability."""


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One release, and the public maps that it was measured under: (1, x) @ to, and the distance to `line` over `width`."""

    # noisy sums, as the nearest matrix that such sums can be, with its eigenvalues shrunk
    features: np.ndarray
    target: np.ndarray
    square: float
    eigenvalues: np.ndarray  # of `features`
    eigenvectors: np.ndarray
    weight: float  # sum of the records' weights
    noise: float  # standard deviation
    share: float  # of the records that this release counts for
    # the exact sum of weight (|z|^2 + SHARE_OF_TARGET) over the records, which is public
    total: float
    to: np.ndarray
    line: np.ndarray
    width: float
    typical: float  # survey weight of the record that a weight is of, over the largest; 1 without weights
    cut: float  # where residuals are clipped, over the target's bound; infinite where none are that long

    @classmethod
    def of(cls, moments: np.ndarray, total: float, **known: Any) -> Measurement:
        """Read noisy sums."""
        moments, size = (moments + moments.T) / 2, len(moments) - 1
        values, vectors = np.linalg.eigh(moments[:size, :size])
        # the nearest matrix whose eigenvalues are positive and have this sum
        if np.maximum(values, 0).sum() > total:
            falling = values[::-1]
            above = (np.cumsum(falling) - total) / np.arange(1, size + 1)
            values = values - above[np.flatnonzero(falling > above).max()]
        values = np.maximum(values, 0)
        # Far above the edge of the noise this is Gavish and Donoho's optimal shrinker (IEEE Trans.
        # Inf. Theory 63(4), 2017).
        edge = known["noise"] * math.sqrt(2 * size)
        shrunk = values**3 / (values**2 + edge**2 / 2)
        return cls(
            features=(vectors * shrunk) @ vectors.T,
            target=moments[:size, size],
            square=float(moments[size, size]),
            eigenvalues=shrunk,
            eigenvectors=vectors,
            weight=float(np.clip(total - np.trace(moments[:size, :size]), total / 20, total))
            / SHARE_OF_TARGET,
            total=total,
            **known,
        )


@dataclasses.dataclass(frozen=True)
class NormalPosterior:
    """The posterior after some releases.

    Attributes:
        precision: Precision of the Gaussian likelihood of the coefficients.
        pull: The precision times the likelihood's maximum.
        mean: Posterior mean of the coefficients.
        covariance: Posterior covariance of the coefficients.
        variance: Posterior mean of the residuals' variance.
        seen: The variance that the sums show, before it is known to lie between 0 and 1.
        spread: Standard deviation of that.
    """

    precision: np.ndarray
    pull: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray
    variance: float = 0.25
    seen: float = 0.25
    spread: float = 1.0

    @classmethod
    def before(cls, size: int, scales: Sequence[float]) -> NormalPosterior:
        """The prior."""
        precision = np.zeros((size, size))
        pull = np.zeros(size)
        return cls(precision, pull, *coefficients(precision, pull, scales))

    def after(self, release: Measurement, scales: Sequence[float]) -> NormalPosterior:
        """Add a release. The noise of the features' sums acts through the coefficients, so it is found by iterating."""
        size = len(self.pull)
        width = release.width
        noise = release.noise
        seen = release.features
        back = np.linalg.inv(release.to) / release.width
        mean = self.mean
        covariance = self.covariance
        variance = self.variance / width**2
        for _ in range(100):
            own = back @ (mean - release.line)
            around = back @ covariance @ back.T
            before = mean
            second = np.outer(own, own) + around
            error = noise**2 / 2 * ((1 + np.trace(second)) * np.eye(size) + second)
            error += (
                variance * release.typical * release.weight / release.total / release.share * seen
            )
            gain = back.T @ np.linalg.solve(error, seen).T
            precision = self.precision + gain @ seen @ back
            pull = self.pull + gain @ (release.target + seen @ back @ release.line)
            mean, covariance = coefficients(precision, pull, scales)
            own = back @ (mean - release.line)
            around = back @ covariance @ back.T
            unsure = seen @ around
            squares = (
                release.square - 2 * own @ release.target + own @ seen @ own + np.trace(unsure)
            )
            spread = math.hypot(
                noise * (1 + own @ own) / release.weight,
                math.sqrt(2 * release.typical / release.total) * variance,
                math.sqrt(2 * np.trace(unsure @ unsure)) / release.weight,
            )
            kept = width**2 / _within(release.cut / math.sqrt(variance * width**2))
            middle = squares / release.weight * kept
            spread = spread * kept
            ends, chances = sigma_of(middle, spread)
            # Residuals are clipped.
            square = (np.square(ends[1:]) + np.square(ends[:-1])) @ chances / 2
            variance = float(np.clip(square / width**2, 1e-8, SHARE_OF_TARGET))
            if np.abs(mean - before).max() < 1e-7:
                break
        return NormalPosterior(
            precision, pull, mean, covariance, variance * width**2, middle, spread
        )


def _within(cut: float) -> float:
    """The mean square of a standard normal that is clipped at -cut and cut; 1/2 at least."""
    if math.isinf(cut):
        return 1.0
    outside = math.erfc(cut / math.sqrt(2))
    return max(
        0.5, 1 - 2 * cut * math.exp(-(cut**2) / 2) / math.sqrt(2 * math.pi) + (cut**2 - 1) * outside
    )


def sigma_of(seen: float, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Ends of intervals of the residuals' standard deviation, and their probabilities: the prior is flat up to 1, the bound."""
    low = np.clip(seen - 8 * spread, 0, 0.98)
    high = np.clip(max(seen, 0) + 8 * spread, 1e-8, 1)
    ends = np.linspace(math.sqrt(min(low, high / 2)), math.sqrt(high), 1025)
    logs = -np.square((np.square((ends[1:] + ends[:-1]) / 2) - seen) / spread) / 2
    chances = np.exp(logs - logs.max())
    return ends, chances / chances.sum()


def coefficients(
    precision: np.ndarray, pull: np.ndarray, scales: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the coefficients given a Gaussian likelihood.

    The prior is Normal(0, s^2) for all weights and Normal(0, r^2) for the intercept; s and r are
    unknown, each one of `scales`. In the eigenbasis of the weights' precision, all pairs of scales
    are solved at once.
    """
    r, s = (side.reshape(-1, 1) for side in np.meshgrid(scales, scales))
    values, vectors = np.linalg.eigh(precision[1:, 1:])
    values = np.maximum(values, 0)
    cross = vectors.T @ precision[1:, 0]
    pulled = vectors.T @ pull[1:]
    inverse = 1 / (values + 1 / s**2)
    variance = 1 / (np.maximum(precision[0, 0] - inverse @ cross**2, 0)[:, None] + 1 / r**2)
    intercept = variance * (pull[0] - inverse @ (cross * pulled))[:, None]
    weights = inverse * (pulled - cross * intercept)
    evidence = (
        np.log(variance / r**2)[:, 0]
        - np.log1p(s**2 * values).sum(axis=1)
        + intercept[:, 0] * pull[0]
    )
    evidence = (evidence + weights @ pulled) / 2
    chances = np.exp(evidence - evidence.max())
    chances /= chances.sum()
    means = np.column_stack([intercept, weights])
    mean = chances @ means
    aside = np.column_stack([np.ones(len(s)), -inverse * cross]) * np.sqrt(variance)
    covariance = np.diag(np.append(0, chances @ inverse))
    for part in (aside, means - mean):
        covariance += (chances[:, None] * part).T @ part
    turn = np.zeros_like(precision)
    turn[0, 0], turn[1:, 1:] = 1, vectors
    return turn @ mean, turn @ covariance @ turn.T
