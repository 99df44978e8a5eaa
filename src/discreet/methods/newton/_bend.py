"""How the curvature of a logistic regression changes from point to point, as if rows were normal.

Where log odds vary much over the records, most chances are near 0 or 1: with a standard deviation s
of the log odds, the curvature falls as 1 / s, and as s^-3 along the coefficients themselves. So one
that was measured on the way is far too large at the end, and what is left along the coefficients may
be less than its noise. For rows z with mean m and covariance S, normal,

    E slope(z @ theta) z z^T = a (S + m m^T) + b (v m^T + m v^T) + (c - a) v v^T,   v = S theta / s,

where a, b and c are the means of the slope times 1, Z and Z^2, and m @ theta + s Z the log odds. Real
rows are not normal, but ratios of two curvatures hardly depend on that: along the coefficients they
are within some 15 % (`ERROR`), for evenly spread, 0/1, skew and correlated columns. So the measured
curvature is kept, and only its change is computed (`Bend`). Gradients, which a curvature that changes
makes curved, become straight (`Near`). Where the curvature is far less in one direction, it is taken
from there with its own error (`Along`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import expit

from discreet.methods.newton._algebra import Gradients, Matrix, Vector

ERROR = 0.15
"""Of the computed curvature along the coefficients, relative."""
STRONG = 0.25  # a direction is apart if its curvature is at most so much of the others'
LEAST_LEFT = 0.5  # of what is expected to be left of the curvature there, given the others
_LARGEST = 16.0  # standard deviation of log odds beyond which nothing changes
_DEVIATES = np.linspace(-6, 6, 161)
_DENSITY = np.exp(-np.square(_DEVIATES) / 2)
_DENSITY /= _DENSITY.sum()
_POWERS = _DENSITY * _DEVIATES ** np.arange(3)[:, None]
_NODES, _SHARES = np.polynomial.legendre.leggauss(8)
_NODES = (1 + _NODES) / 2
_SHARES = _SHARES / 2

Vectors = Float[np.ndarray, "point latent"]


class Along(NamedTuple):
    """The direction in which a curvature is far less than in the others: the first of an orthonormal basis."""

    basis: Matrix

    def denoised(
        self, raw: Matrix, sigma: float, expected: Matrix, of_others: Callable[[Matrix], Matrix]
    ) -> Matrix:
        """A noisy curvature: near the expected one in this direction, as far as that is more exact; by a rule in the others."""
        raw = self.basis.T @ raw @ self.basis
        expected = self.basis.T @ expected @ self.basis
        total = np.trace(raw[1:, 1:])
        expected = expected * (max(total, sigma) / np.trace(expected[1:, 1:]))
        found = np.empty_like(raw)
        found[1:, 1:] = of_others(raw[1:, 1:])
        own = self._own(expected)
        noise = sigma**2 * np.append(1.0, np.full(len(raw) - 1, 0.5))
        row = raw[0] + noise / (noise + own) * (expected[0] - raw[0])
        found[0] = found[:, 0] = row

        def taken(matrix: Matrix) -> float:
            return float(matrix[0, 1:] @ np.linalg.solve(matrix[1:, 1:], matrix[0, 1:]))

        left = max(expected[0, 0] - taken(expected), 0.1 * expected[0, 0])
        found[0, 0] = max(row[0], taken(found) + LEAST_LEFT * left)
        return self.basis @ found @ self.basis.T

    @staticmethod
    def _own(turned: Matrix) -> Vector:
        """Variance of the computed curvature in the direction: of it, and of what it shares with each other one."""
        sizes = np.full(len(turned), np.trace(turned[1:, 1:]) / (len(turned) - 1))
        sizes[0] = turned[0, 0]
        return ERROR**2 * sizes[0] * sizes

    def errors(self, variance: float, curvature: Matrix) -> Matrix:
        """Variance of each entry of the curvature in the basis, from that of an entry of the others."""
        found = np.full_like(curvature, variance)
        own = self._own(self.basis.T @ curvature @ self.basis)
        found[0] = found[:, 0] = 1 / (1 / variance + 1 / own)
        return found


@dataclasses.dataclass(frozen=True)
class NormalRows:
    """A normal distribution of rows, in the coordinates of a fit.

    Attributes:
        mean: Of the rows.
        covariance: As above.
        known: Mean of the part of the log odds that is known.
        known_way: Its covariance with the rows.
        known_variance: Its variance.
    """

    mean: Vector
    covariance: Matrix
    known: float
    known_way: Vector
    known_variance: float

    def _slopes(self, thetas: Vectors) -> tuple[Vectors, Float[np.ndarray, "power point"]]:
        """Of points, S theta / s, s being the log odds' standard deviation, and means of slope Z^k, Z the log odds over s."""
        ways = thetas @ self.covariance + self.known_way
        squares = np.sum((ways + self.known_way) * thetas, axis=1) + self.known_variance
        spread = np.sqrt(np.maximum(squares, 1e-12))[:, None]
        middle = np.clip(self.known + thetas @ self.mean, -20, 20)[:, None]
        p = expit(middle + np.minimum(spread, _LARGEST) * _DEVIATES)
        return ways / spread, _POWERS @ (p * (1 - p)).T

    def curvature(self, theta: Vector) -> Matrix:
        """The curvature at a point."""
        (way,), ((a,), (b,), (c,)) = self._slopes(theta[None])
        crossed = np.outer(way, self.mean)
        moments = self.covariance + np.outer(self.mean, self.mean)
        return a * moments + b * (crossed + crossed.T) + (c - a) * np.outer(way, way)

    def pulls(self, thetas: Vectors, steps: Vectors) -> Vectors:
        """The curvature at each point, times a vector of its own."""
        ways, powers = self._slopes(thetas)
        a, b, c = powers[..., None]
        by_mean = (steps @ self.mean)[:, None]
        by_way = np.sum(ways * steps, axis=1, keepdims=True)
        found = a * (steps @ self.covariance) + (a * by_mean + b * by_way) * self.mean
        return found + (b * by_mean + (c - a) * by_way) * ways

    @functools.cached_property
    def _inverse(self) -> Matrix:
        return np.linalg.inv(self.covariance + np.outer(self.mean, self.mean))

    def along(self, theta: Vector) -> Along | None:
        """The direction in which the curvature is least for the rows' moments, if far less than in others."""
        (way,), powers = self._slopes(theta[None])
        a = float(powers[0, 0])
        if len(theta) < 2 or way @ self._inverse @ way < 1e-6:
            return None
        # In all directions orthogonal to these two it is a times the moments.
        both = self._inverse @ np.stack([way, self.mean], axis=1)
        curvature = both.T @ self.curvature(theta) @ both
        root = np.linalg.cholesky(both.T @ np.stack([way, self.mean], axis=1))
        values, vectors = np.linalg.eigh(np.linalg.solve(root, np.linalg.solve(root, curvature).T))
        if values[0] > STRONG * a:
            return None
        first = both @ np.linalg.solve(root.T, vectors[:, 0])
        first *= np.sign(first @ theta) / np.linalg.norm(first)
        # A reflection of the first coordinate to this direction.
        mirror = first.copy()
        mirror[0] += np.copysign(1.0, first[0])
        basis = np.eye(len(first)) - 2 * np.outer(mirror, mirror) / (mirror @ mirror)
        basis[:, 0] = first
        return Along(basis)


def between(old: Matrix, new: Matrix) -> Matrix:
    """The positive matrix t with t old t = new, both positive."""
    values, vectors = np.linalg.eigh(old)
    values = np.sqrt(np.maximum(values, 1e-12 * values[-1]))
    root = (vectors * values) @ vectors.T
    inverse = (vectors / values) @ vectors.T
    values, vectors = np.linalg.eigh(root @ new @ root)
    return inverse @ (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T @ inverse


class Near(NamedTuple):
    """The curvature and the sampling variance at a point, and gradients as they were if that curvature were everywhere."""

    curvature: Matrix
    sampling: Matrix
    gradients: Gradients


@dataclasses.dataclass(frozen=True)
class Bend:
    """A curvature at a point, and what follows at others.

    Attributes:
        rows: The rows; None: the curvature is the same everywhere.
        at: The point.
        curvature: The curvature there.
        sampling: The sampling variance there.
    """

    rows: NormalRows | None
    at: Vector
    curvature: Matrix
    sampling: Matrix

    @functools.cached_property
    def _computed(self) -> tuple[Matrix, Matrix]:
        """What makes the measured curvature of the computed one, and the inverse of a root of the measured one."""
        assert self.rows is not None
        computed = self.rows.curvature(self.at)
        change = between(computed, self.curvature)
        return change, np.linalg.inv(change @ np.linalg.cholesky(computed))

    def curvature_at(self, point: Vector) -> Matrix:
        """The curvature at another point."""
        if self.rows is None:
            return self.curvature
        change, _ = self._computed
        return change @ self.rows.curvature(point) @ change

    def near(self, around: Vector, gradients: Gradients, inward: bool = False) -> Near:
        """What holds near another point.

        Args:
            around: The point.
            gradients: The gradients.
            inward: True for the mean curvature from half of the way along the coefficients: a prior
                that draws them to 0 meets that one.
        """
        rows = self.rows
        if rows is None:
            return Near(self.curvature, self.sampling, gradients)
        change, unrooted = self._computed
        after = rows.curvature(around)
        curvature = change @ after @ change
        turn = change @ np.linalg.cholesky(after) @ unrooted
        sampling = turn @ self.sampling @ turn.T
        steps = around - gradients.points
        places = gradients.points[:, None] + _NODES[:, None] * steps[:, None]
        pulls = rows.pulls(
            places.reshape(-1, len(around)), np.repeat(steps @ change, len(_NODES), axis=0)
        )
        pulls = np.einsum("q,tqj->tj", _SHARES, pulls.reshape(places.shape)) @ change
        along = rows.along(around) if inward else None
        if along is not None:
            way = along.basis[:, 0]
            places = around - _NODES[:, None] * (way @ around / 2) * way
            mean = _SHARES @ rows.pulls(places, np.tile(way @ change, (len(places), 1)))
            more = max(float((mean @ change - curvature @ way) @ way), 0.0)
            curvature = curvature + more * np.outer(way, way)
        points = around - np.linalg.solve(curvature, pulls.T).T
        return Near(curvature, sampling, gradients._replace(points=points))

    def outward(self, theta: Vector, noise: Matrix, sampling: Matrix, prior: Matrix) -> Vector:
        """By how much more points there are beyond a point than before it, along the coefficients: a pull.

        Gradients are normal, about the coefficients' image under a function that levels off. Points
        with the same gradients, to the noise, are the more the farther away they are. The mode of
        theta neglects this, and lies too near 0 where the noise is large.
        """
        along = None if self.rows is None else self.rows.along(theta)
        if along is None:
            return np.zeros_like(theta)
        way = along.basis[:, 0]
        weights = np.linalg.inv(noise + sampling)
        step = 0.05 * float(np.linalg.norm(theta))
        before, beyond = (
            np.linalg.slogdet(there @ weights @ there + prior)[1]
            for there in (self.curvature_at(theta + x * way) for x in (-step, step))
        )
        share = float(np.clip(way @ noise @ weights @ way, 0, 1))
        return share * (before - beyond) / (4 * step) * way
