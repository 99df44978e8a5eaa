"""Intervals of a private logistic or multinomial regression that include the noise of the fit, or the reason why there are none.

Where no gradient is clipped, the noisy gradient g_t of a step at the coefficients x_t is, near the optimum,

    g_t | x_t ~ Normal(H (x_t - m), tau^2 I),        unknown H, m, tau.

m is where a fit without noise would have ended. The next iterate follows from x_t and g_t, so the likelihood of the trace is the
product of these terms: a linear regression of all gradients on all iterates, jointly, since features are correlated. Its
posterior with flat priors gives draws of H and of H m, and so of m.

Two things would make such draws wrong, and are looked for first. Clipped gradients move m by an unknown amount. And where the
noise hides the curvature along some direction, nothing is known of m along it: the slope along each principal direction of the
trace must stand out of its own error.

The weights of one column's categories and the intercept can be shifted against each other without any effect on the
predictions. So these weights are taken relative to their mean, which the intercept gets. The weights of a feature for several
classes sum to zero; the trace has their coordinates in that plane, by an isometry.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

import discreet as dp
from discreet.models import contrasts
from discreet.moments import MomentsResult

INTERCEPT, WEIGHTS = "intercept", "weights"
# The least slope along a direction of the trace, in its own standard errors. Above what most fits of a table have, noise would
# choose among them: at 4, 8 of 50 fits of a survey passed and 85 % of their 90 % intervals held; at 3, 43 passed and 90 % held.
RESOLVED = 3.0
_START = 0.3
UNBOUNDED = (
    "gradients of this model have no public bound, so clipping may have moved the estimates by an unknown amount. Intervals are "
    "for logistic and multinomial regressions, and for linear ones by moments"
)
NO_GRADIENTS = "the fit kept no gradients, of which there were too many"
DRIFTED = "the fit had not converged"
HIDDEN = (
    "the noise hides some combination of the coefficients. Fewer columns or categories, more records or a larger --epsilon help, "
    "and sometimes more --steps"
)


@dataclasses.dataclass(frozen=True)
class Draws:
    """Draws of the coefficients."""

    # By latent, for summaries: with the noise of the fit if `why_not` is empty, else the guide's
    samples: dict[str, np.ndarray]
    # Draws of where a fit without noise would have ended, the intercept first. None: unknown.
    without_noise: Float[np.ndarray, "draw coefficient"] | None
    why_not: str  # Why the noise is not in the samples
    # What to predict with, if that is not the mean of the samples, the intercept first
    estimate: Float[np.ndarray, " coefficient"] | None = None


@dataclasses.dataclass(frozen=True)
class NoiseAdded:
    """The method that includes the noise in a fit's draws."""

    longest: float | None  # Public bound on the gradient of a record; None: there is none
    groups: tuple[
        tuple[int, ...], ...
    ] = ()  # Of a regression: for each column of several categories, its features' places
    num_classes: int | None = None  # Of a multinomial regression, whose coefficients have an axis of so many

    @property
    def plane(self) -> Float[np.ndarray, "coordinate class"]:
        """From the trace's coordinates of a coefficient to its values for the classes, as NumPyro's `ZeroSumTransform`."""
        if self.num_classes is None:
            return np.ones((1, 1))
        plane = np.eye(self.num_classes - 1, self.num_classes)
        plane[:, -1] = -1 / math.sqrt(self.num_classes)
        plane[:, :-1] -= 1 / (math.sqrt(self.num_classes) + self.num_classes)
        return plane

    def keeps_gradients(self, num_features: int, num_steps: int) -> bool:
        """True if a fit should keep its gradients: for possible intervals, and within 64 MiB."""
        return self.longest is not None and 2 * (1 + num_features) * len(self.plane) * num_steps * 4 <= 64 * 2**20

    def __call__(self, result: dp.DPSVIResult | MomentsResult, samples: Mapping[str, np.ndarray]) -> Draws:
        """The draws with the noise, or without and why."""
        if isinstance(result, MomentsResult):
            estimate = self.contrasts(samples[WEIGHTS].shape[1]) @ result.estimate
            return Draws(self._relative(samples), None, "", estimate)
        if self.longest is None or set(samples) != {INTERCEPT, WEIGHTS}:
            return Draws(self._relative(samples), None, UNBOUNDED)
        matrix = self.contrasts(samples[WEIGHTS].shape[1])
        intercept, weights = (np.asarray(samples[name], np.float64) for name in (INTERCEPT, WEIGHTS))
        with np.errstate(all="ignore"):  # of a fit that diverged
            drawn = np.concatenate([intercept[:, None], weights], axis=1)
            drawn = np.tensordot(drawn, matrix, (1, 1))  # The axis of coefficients is the last now
            drawn = np.moveaxis(drawn, -1, 1).reshape(len(drawn), -1)
        why_not, moved = self.why_not(result), None
        if not why_not:
            found = self._with_noise(result, matrix, len(drawn))
            if found is None:
                why_not = HIDDEN
            else:
                moved, drawn = found
        drawn = drawn.reshape(len(drawn), len(matrix), *weights.shape[2:])
        return Draws({INTERCEPT: drawn[:, 0], WEIGHTS: drawn[:, 1:]}, moved, why_not)

    def _relative(self, samples: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The draws with the weights of one column's categories relative to their mean, which the intercept gets."""
        if not self.groups:
            return dict(samples)
        with np.errstate(all="ignore"):  # of a fit that diverged
            drawn = np.column_stack([samples[INTERCEPT], samples[WEIGHTS]])
            drawn = drawn @ self.contrasts(samples[WEIGHTS].shape[1]).T
        return {**samples, INTERCEPT: drawn[:, 0], WEIGHTS: drawn[:, 1:]}

    def contrasts(self, num_weights: int) -> Float[np.ndarray, "coefficient coefficient"]:
        """The matrix that takes from each group of weights their mean, and adds it to the intercept."""
        return contrasts(num_weights, self.groups)

    def why_not(self, result: dp.DPSVIResult) -> str:
        """The reason against intervals that is known without the trace."""
        plan, trace = result.plan, getattr(result, "trace", None)
        if self.longest is None:
            return UNBOUNDED
        if plan.clipping.adapts or plan.clipping.start < self.longest:
            return (
                "gradients were clipped, which moves the estimates by an unknown amount. "
                f"--clip {self.longest:g} rules that out"
            )
        if trace is None or trace.gradients is None:
            return NO_GRADIENTS
        return "" if self.converged(result) else DRIFTED

    def converged(self, result: dp.DPSVIResult | MomentsResult) -> bool | None:
        """True if the parameters converged, for a logistic regression those behind predictions; None: too few steps."""
        trace = getattr(result, "trace", None)
        if isinstance(result, MomentsResult) or trace is None or len(trace.iterates) * 0.9 < 20:
            return None
        if not np.isfinite(trace.iterates).all():
            return False
        if self.longest is not None and (places := _places(result)):
            trace = _part(trace, trace.iterates[:, places] @ self._over_classes(len(places) // len(self.plane)).T)
        return trace.converged_from is not None

    def _over_classes(self, count: int) -> Float[np.ndarray, "coordinate coordinate"]:
        """The contrasts of so many coefficients, for each coordinate of them."""
        return np.kron(self.contrasts(count - 1), np.eye(len(self.plane)))

    def _with_noise(
        self, result: dp.DPSVIResult, matrix: Float[np.ndarray, "coefficient coefficient"], count: int
    ) -> tuple[Float[np.ndarray, "draw coefficient"], Float[np.ndarray, "draw coefficient"]] | None:
        """Draws of m, and of the coefficients, whose posterior about m has the precision H."""
        trace, places, count_ = result.trace, _places(result), len(matrix)
        assert trace.gradients is not None
        matrix = self._over_classes(count_)
        points, gradients = (np.asarray(x, np.float64)[:, places] for x in (trace.iterates, trace.gradients))
        start = _part(trace, points @ matrix.T).converged_from or 0.0
        # Directions that the predictions notice: the others are in no contrast.
        _, sizes, directions = np.linalg.svd(matrix)
        basis = directions[sizes > 1e-9].T
        first = max(1, int(max(start, _START) * len(points)))
        rng = np.random.default_rng(0)
        found = optimum(points[first - 1 : -1] @ basis, gradients[first:] @ basis, rng, count)
        if found is None:
            return None
        optima, slopes = found
        precisions, axes = np.linalg.eigh((slopes + slopes.T) / 2)
        if not precisions[0] > 0:
            return None
        own = rng.standard_normal(optima.shape) / np.sqrt(precisions) @ axes.T
        back = basis.T @ matrix.T @ np.kron(np.eye(count_), self.plane)
        return optima @ back, (optima + own) @ back


def optimum(
    points: Float[np.ndarray, "step dim"],
    gradients: Float[np.ndarray, "step dim"],
    rng: np.random.Generator,
    count: int,
) -> tuple[Float[np.ndarray, "draw dim"], Float[np.ndarray, "dim dim"]] | None:
    """Draws of where the expected gradient is zero, and the slopes; None where the noise hides a slope along some direction.

    `points` are the iterates before the steps, `gradients` the noisy gradients of these.
    """
    steps, dim = points.shape
    if steps < 10 * (dim + 1):
        return None
    point, gradient = points.mean(axis=0), gradients.mean(axis=0)
    x, g = points - point, gradients - gradient
    sizes, directions = np.linalg.eigh(x.T @ x)
    if not sizes[0] > 1e-12 * sizes[-1]:
        return None
    inverse = directions / np.sqrt(sizes)
    slopes = inverse @ inverse.T @ (x.T @ g)
    noise = np.sqrt(np.square(g - x @ slopes).sum() / (dim * (steps - dim - 1)))
    along = np.einsum("ik,ij,jk->k", directions, slopes, directions)
    if np.min(along * np.sqrt(sizes)) < RESOLVED * noise:
        return None
    draws = np.empty((count, dim))
    for row in draws:
        slope = slopes + noise * inverse @ rng.standard_normal((dim, dim))
        row[:] = point - np.linalg.solve(slope.T, gradient + noise / np.sqrt(steps) * rng.standard_normal(dim))
    return draws, slopes


def _places(result: dp.DPSVIResult) -> list[int]:
    """The positions of the locations of intercept and weights in the trace, in this order."""
    names = dp.plots.coordinate_names(result, result.trace.iterates.shape[1])
    sites = f"{INTERCEPT}_auto_loc", f"{WEIGHTS}_auto_loc"
    # "intercept_auto_loc", or "intercept_auto_loc[0]", of classes.
    return [place for site in sites for place, name in enumerate(names) if name.partition("[")[0] == site]


def _part(trace: dp.inference.Trace, iterates: np.ndarray) -> dp.inference.Trace:
    return dataclasses.replace(trace, iterates=iterates, gradients=None)
