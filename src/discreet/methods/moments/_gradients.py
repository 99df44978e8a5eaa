"""The last stage: gradients of the squared error.

The line that sums of weighted products show is not least squares where residuals or features have
long tails. So the last stage measures v = z (y - line), whose sum is 0 at least squares alone:
first how long v is, in bins, then its sum, six times, each at the best line so far. The noise grows
with the bound at which v is clipped, and what clipping may move, by the noisy bins, falls: the
bound has the least of both together. So with growing epsilon nothing is clipped. What clipping may
have moved counts as residual variance. Sampling is that of the mean square of v, one number for all
directions. The line before the gradients keeps its share of the precision as far as they agree with
it (`_trust`). Tails that the noise hides altogether are not in the intervals.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from discreet.methods.moments._plan import PRODUCTS, SHARES
from discreet.methods.moments._posterior import Measurement, NormalPosterior, coefficients
from discreet.methods.newton import EDGES, Gradients, Lengths, secant

_EARLIER = sum(SHARES[:PRODUCTS]) / (1 - SHARES[PRODUCTS])
_BIAS = 0.8  # share of what clipping takes away that may be bias: the rest cancels
_TAIL = 12  # bins in which gradients may be hidden by the noise
_UNSURE = 0.1  # standard deviation of an entry of the curvature, over its mean eigenvalue, beside the noise
_LEAST = 0.02  # eigenvalue of the curvature, of their mean
_DOUBTS = np.append(0, 4.0 ** np.arange(8))  # times the covariance of the line before the gradients
# times the noise of sampling: while that of the release is less, nothing more is clipped
_SLACK = 0.3


@dataclasses.dataclass
class LastStage:
    """The gradients of the last stage, in the coordinates z = (1, x) @ to, and what the releases before say about them.

    Attributes:
        release: The release of products before.
        to: The map.
        curvature: Sum of the outer products of z, as far as it is seen.
        variance: Mean square of residuals, and of what clipping may have moved, by the lengths of z
            times the residual.
        points: Where the gradients were taken.
        values: The noisy sums.
        noise: Standard deviation of their noise.
    """

    release: Measurement
    to: np.ndarray
    curvature: np.ndarray
    variance: float
    points: list[np.ndarray] = dataclasses.field(default_factory=list)
    values: list[np.ndarray] = dataclasses.field(default_factory=list)
    noise: float = 0.0

    def posterior(self, start: NormalPosterior, scales: Sequence[float]) -> NormalPosterior:
        """Add the gradients to the posterior before them, as far as they agree with it.

        A gradient at a point is the curvature times the distance to least squares, plus noise. The
        curvature's own noise acts through that distance, so it is found by iterating.
        """
        size = len(self.to)
        back = np.linalg.inv(self.to)
        into = np.linalg.inv(self.release.to) @ self.to
        of_seen = self.release.noise * self.release.total / self.release.weight
        seen = self.curvature
        points = np.array(self.points)
        values = np.array(self.values)
        least = np.trace(seen) / size
        if len(points) > 1:
            seen = secant(seen, Gradients(points, values, self.noise), _LEAST * least)
        mean = start.mean
        covariance = start.covariance
        trust = 1.0
        for _ in range(100):
            before = mean
            sampling = len(points) * self.variance / (1 - _EARLIER * trust) * seen
            sharp, likelihood = np.zeros((2, size, size + 1))
            for point, value in zip(points, values, strict=True):
                own = back @ mean - point
                second = np.outer(own, own) + back @ covariance @ back.T
                mapped = into @ second @ into.T
                error = (self.noise**2 + (_UNSURE * least) ** 2 * np.trace(second)) * np.eye(size)
                error += of_seen**2 / 2 * into.T @ (np.trace(mapped) * np.eye(size) + mapped) @ into
                told = np.column_stack([seen @ back, value + seen @ point])
                sharp += back.T @ seen @ np.linalg.solve(error, told)
                likelihood += back.T @ seen @ np.linalg.solve(error + sampling, told)
            # Both see the same rows, so where they differ it is by noise, or by what weights and
            # clipping moved before.
            trust = _trust(start, sharp[:, :-1], sharp[:, -1]) * min(
                1.0, self.release.typical * start.variance / self.variance
            )
            precision = trust * start.precision + likelihood[:, :-1]
            pull = trust * start.pull + likelihood[:, -1]
            mean, covariance = coefficients(precision, pull, scales)
            if np.abs(mean - before).max() < 1e-7:
                break
        return dataclasses.replace(
            start, precision=precision, pull=pull, mean=mean, covariance=covariance
        )


def _trust(start: NormalPosterior, precision: np.ndarray, pull: np.ndarray) -> float:
    """The mean share of its precision that the line before the gradients keeps, given how far they lie beside it."""
    off = pull - precision @ start.mean
    logs = []
    for doubt in _DOUBTS:
        around = (1 + doubt) * start.covariance
        both = np.eye(len(pull)) + around @ precision
        logs.append((off @ np.linalg.solve(both, around @ off) - np.linalg.slogdet(both)[1]) / 2)
    chances = np.exp(np.array(logs) - max(logs))
    return float(chances @ (1 / (1 + _DOUBTS)) / chances.sum())


def reach_of(
    lengths: np.ndarray, sigma: float, noise: float, size: int, least: float, records: int
) -> tuple[float, float]:
    """Where gradients are clipped, and the sum of their squares with that of what clipping may have moved.

    The noise grows with the bound, and what clipping may move falls: the sum of their squares is
    the least. A bound whose noise is far below that of sampling is not too large.

    Args:
        lengths: Noisy numbers of gradients in the bins of `EDGES`.
        sigma: Standard deviation of their noise.
        noise: That of the gradients together, over the bound.
        size: Number of coordinates.
        least: What the squares sum up to at least.
        records: Public number of records.
    """
    counts = Lengths(lengths, sigma, _TAIL).counts
    middle = np.sqrt(EDGES[1:] * EDGES[:-1])
    squares = max(float(counts @ np.square(middle)), least)
    edges = EDGES[1:]
    moved = np.square(_BIAS * np.maximum(middle - edges[:, None], 0) @ counts)
    little = _SLACK**2 * squares
    loss = np.maximum(size * np.square(noise * edges), little) + moved
    half = np.cumsum(counts) >= counts.sum() / 2
    allowed = half & (edges >= math.sqrt(least / max(counts.sum(), records)))
    best = int(np.argmin(np.where(allowed, loss, np.inf)))
    return float(edges[best]), squares + float(moved[best])
