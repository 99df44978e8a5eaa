"""Linear regression from noisy moments: sums of products, then gradients of the squared error, and the posterior given them.

A row is (z, e): features with a leading 1, and what is left of the target. Its outer product is added up with the weight
1 / (|z|^2 + SHARE_OF_TARGET), so that its Frobenius norm is at most 1 wherever the row lies; the weight depends on the features
alone, so it biases no coefficient. Noise hides features that vary little or together with others. So the first release,
of a fifth of the budget, is read for two public maps, under which the next one measures again: features are whitened, and the
target becomes its distance from the line found so far, clipped to a few standard deviations. Directions that the noise hides,
as those of rare categories, are stretched less: else their few rows are so long that they decide where all are clipped.

That line is not least squares where residuals or features have long tails. So the last stage measures v = z (y - line), whose
sum is 0 at least squares alone: first how long v is, in bins, then its sum, six times, each at the best line so far. The noise
grows with the bound at which v is clipped, and what clipping may move, by the noisy bins, falls: the bound has the least of
both together. So with growing epsilon nothing is clipped. What clipping may have moved counts as residual variance. Sampling is
that of the mean square of v, one number for all directions. The line before the gradients keeps its share of the precision as
far as they agree with it (`_trust`). Tails that the noise hides altogether are not in the intervals.

The posterior allows for both noises. Let A be the features' sums and b those with the target, both seen with noise of standard
deviation tau. Given coefficients t, b - A t has the covariance tau^2 / 2 ((1 + |t|^2) I + t t') from the noise, and from
sampling the residuals' variance times the mean weight times A. It is normal for a fixed t; for t t' its posterior mean is used,
found by iterating. Likelihoods of the releases multiply; since all of them see the same rows, each counts for its share of them
only. After Bernstein and Sheldon, NeurIPS 2019, who sample the exact moments instead.

Where the noise exceeds A, its eigenvectors are the noise's, and so many records seem to lie along them that coefficients look
known. So eigenvalues are shrunk, as random matrices ask for: those of noise alone reach noise * sqrt(2 size).

There are two posteriors. Intervals are of that under Normal(0, 1), which is wide: where the noise hides a coefficient, its
interval is the prior's. Its mean predicts badly there, as noise is all that it follows. So the estimate is the mean under a prior
of unknown scale, one for the intercept and one for the weights: what does not stand out of the known noise is drawn to 0. Even
so one fit in many would predict worse than no line at all. `_cautious` therefore draws the estimate further, first of the weights
to a flat line, then of the line to the middle, to where it gains the most with nine chances in ten.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting.dp_event import ComposedDpEvent, DpEvent
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from discreet import random
from discreet._jax import in_own_settings, one_process, refuse_traced
from discreet._validate import integer
from discreet.accounting import Relation
from discreet.act import Act
from discreet.inference import warn_of_use
from discreet.ledger import Ledger
from discreet.mechanisms import GAUSSIAN
from discreet.newton import EDGES, NUM_BINS, Gradients, Lengths, secant
from discreet.query import (
    GRID_OF_PRODUCTS,
    GRID_OF_SUMS,
    MOST_RECORDS,
    Gaussian,
    GaussianPlan,
    Query,
    in_turns,
    on_grid,
    rounded,
    summed,
    turns_for,
    turns_of,
)
from discreet.released import Released
from discreet.report import (
    COEFFICIENTS,
    NOT_USABLE,
    PREDICTION,
    RECORD,
    Statement,
    Unit,
    counted,
    make_release_statement,
)
from discreet.verify import Certificate

__all__ = ["MomentsPlan", "MomentsResult", "fit_moments"]

METHOD = "noisy moments"
KINDS = "products", "products", "lengths", *["gradient"] * 6
SHARES = 0.2, 0.23, 0.07, *[0.5 / 6] * 6
"""Kinds of the releases, and the share of the squared inverse noise of each."""
_PRODUCTS = KINDS.index("lengths")
_EARLIER = sum(SHARES[:_PRODUCTS]) / (1 - SHARES[_PRODUCTS])
SHARE_OF_TARGET = 0.5
_INTERCEPT = 0.5  # the leading 1 in the first release: it is easily seen, and costs the others less like this
_WIDTH = 3.0  # standard deviations at which residuals are clipped, at least
_BIAS = 0.8  # share of what clipping takes away that may be bias: the rest cancels
_TAIL = 12  # bins in which gradients may be hidden by the noise
_UNSURE = 0.1  # standard deviation of an entry of the curvature, over its mean eigenvalue, beside the noise
_LEAST = 0.02  # eigenvalue of the curvature, of their mean
_DOUBTS = np.append(0, 4.0 ** np.arange(8))  # times the covariance of the line before the gradients
_SLACK = 0.3  # times the noise of sampling: while that of the release is less, nothing more is clipped
_FLATTEST = 10.0  # the least mean length of whitened rows is 1 / _FLATTEST: then weights differ little
_SEEN = 4.0  # times the edge of the noise: what the features' eigenvalues are at least, so that rows may be short
_SURE = 0.5  # the lower limit of what predictions explain, over the mean, for the verdict that they are usable
_FLAT = 0.05  # share of the target's variance that is little
_SHARP = 3.0  # times the interval without noise: what coefficients are read from
_CAUTION = 1.28  # standard deviations: what is gained is that or more with nine chances in ten
_KEPT = 1.15  # of the share that gains the most then: 2 % less, and nothing is taken from an estimate that is sure
_HIDDEN = 3.0  # standard deviations of the noise: a column whose sum and squares are below is a rare category's
_FLOORS = 0.1, 1.0
"""Of the largest eigenvalue of the noise: what whitening takes for the least, after each release of products."""
_LATEST = 3.0  # of `_flatness`: beyond it, shorter rows let no longer residuals pass
TURN = 64  # of `query.in_turns`: of other ones, rows might be rounded otherwise
WIDE = (1.0,)
SCALES = tuple(2.0**-place for place in range(11))
"""Standard deviations of the prior of the coefficients: for intervals, and for the estimate, each with the same probability."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MomentsPlan(GaussianPlan):
    """The privacy plan for the noisy moments of a linear regression. Public.

    Attributes:
        num_features: Number of features.
        num_records: Public number of records.
        noise_multiplier: Noise standard deviation over the bound 1 of one record, of the releases together: release i has
            this divided by the square root of its share.
        delta: The delta at which epsilon is stated.
        relation: The neighbouring relation.
    """

    num_features: int
    num_records: int

    def __post_init__(self) -> None:
        integer("num_features", self.num_features)
        integer("num_records", self.num_records, most=MOST_RECORDS)
        super().__post_init__()

    @classmethod
    def calibrate(
        cls,
        *,
        epsilon: float,
        delta: float | None = None,
        num_features: int,
        num_records: int,
        relation: Relation = Relation.ADD_OR_REMOVE_ONE,
    ) -> MomentsPlan:
        """Find the least noise with which the releases together cost (epsilon, delta).

        Args:
            epsilon: Target, above 0.
            delta: Target. None: `accounting.suggest`'s for so many records.
            num_features: As above.
            num_records: As above.
            relation: As above.

        Raises:
            ValueError: An argument is out of range.
        """
        shape = {"num_features": num_features, "num_records": num_records, "relation": relation}
        return cls._calibrated(epsilon, delta, **shape)

    @property
    def stddevs(self) -> tuple[float, ...]:
        """Standard deviation of the noise on each sum, of each release."""
        return tuple(self.noise_multiplier / math.sqrt(share) for share in SHARES)

    @property
    def num_releases(self) -> int:
        """Number of releases."""
        return len(SHARES)

    def event(self) -> DpEvent:
        """The event of the releases, under either relation."""
        return ComposedDpEvent([GAUSSIAN.event(stddev) for stddev in self.stddevs])

    def state(self, *, reproducible: bool, unit: Unit = RECORD) -> Statement:
        """Make the statement of a fit by this plan, for a unit of privacy."""
        noun = unit.noun
        stddevs = self.stddevs
        noises = ", ".join(f"{stddev:.6g}" for stddev in stddevs)
        values = (self.num_features + 2) ** 2
        return make_release_statement(
            self.event(),
            self.relation,
            unit=unit,
            delta=self.delta,
            slack=self.slack,
            method=METHOD,
            mechanism=(
                f"The products of all pairs of a {noun}'s numbers (features, a constant and the target) were given a weight such "
                f"that their Euclidean norm is at most 1, and summed over the {noun}s, {_PRODUCTS} times. Then the {noun}s were "
                "counted by the length of the gradient of the squared error, and these gradients, clipped to length 1, were "
                f"summed {len(stddevs) - _PRODUCTS - 1} times. Between the releases the numbers were transformed by what the "
                f"earlier ones had shown. Gaussian noise of standard deviation {noises} was added to every sum."
            ),
            plan={
                "num_records": self.num_records,
                "num_features": self.num_features,
                "contribution_bound": 1.0,
                "noise_multiplier": self.noise_multiplier,
                "noise_standard_deviations": list(stddevs),
            },
            num_releases=self.num_releases,
            reproducible=reproducible,
            released=[
                f"{_PRODUCTS} × {values:,} noisy sums of products, {NUM_BINS} counts and {len(stddevs) - _PRODUCTS - 1} × "
                f"{self.num_features + 1:,} sums of gradients, and what is computed from them"
            ],
            public=[f"The number of {noun}s, N = {self.num_records}", "The plan: the noise and the number of sums"],
            about=f"A linear regression on {counted(self.num_features, 'feature')}, {self.num_records:,} {noun}s; its "
            "coefficients were released.",
        )


WHICH_LINE = (
    "the intervals are for the line of least squares, with noise, sampling and clipping, as far as the noise shows how long "
    "residuals are. A few values far from all others may move it unseen"
)


# --- the releases -------------------------------------------------------------------------


class Sum(NamedTuple):
    """The exact sum over records that a release is of.

    z is (1, x) @ to. Of "products" a record adds weighted products of z and of its clipped residual, over `width`. What it adds
    in the last stage is of v = z (y - (1, x) @ line): one count in the bins of `EDGES`, by the length of v ("lengths"), or v
    itself, clipped at the length `width` and divided by it ("gradient").
    """

    kind: str

    def __call__(
        self,
        x: Float[Array, "record feature"],
        y: Float[Array, " record"],
        mask: Bool[Array, " record"],
        to: Float[Array, "feature+1 feature+1"],
        line: Float[Array, " feature+1"],
        width: Float[Array, ""],
    ) -> Float[Array, "..."]:
        """The sum.

        Args:
            x: Features of about unit size, as are the next two in turns of `TURN`.
            y: Targets.
            mask: True for real rows.
            to: The map of the features. Public.
            line: Coefficients that the target is measured from. Public.
            width: Residuals that are clipped, over the square root of `SHARE_OF_TARGET`; or the length at which v is. Public.
        """

        def add(x: Array, y: Array, mask: Array) -> Array:
            rows = self._rows(x, y, mask, to, line, width)
            return rows.T @ rows if self.kind == "products" else jnp.sum(rows, axis=0)

        return summed(add, turns_of([x, y, mask], TURN))

    def _rows(self, x: Array, y: Array, mask: Array, to: Array, line: Array, width: Array) -> Array:
        """What records add, or whose products they add, on the grid."""
        ones = jnp.concatenate([jnp.ones_like(x[:, :1]), x], axis=1)
        z = ones @ to
        left = y - ones @ line
        if self.kind == "products":
            left = jnp.clip(left / width, -math.sqrt(SHARE_OF_TARGET), math.sqrt(SHARE_OF_TARGET))
            weight = _whole(x.shape[1]) / (jnp.sum(jnp.square(z), axis=1) + SHARE_OF_TARGET)
            rows = jnp.concatenate([z, left[:, None]], axis=1) * jnp.sqrt(weight)[:, None]
            return rounded(rows, mask, GRID_OF_PRODUCTS)
        rows = z * left[:, None]
        length = jnp.sqrt(jnp.sum(jnp.square(rows), axis=1))
        if self.kind == "lengths":
            level = jnp.sum(length[:, None] > EDGES[1:-1], axis=1)
            rows = (level[:, None] == np.arange(NUM_BINS)) * jnp.isfinite(length)[:, None].astype(x.dtype)
        else:
            rows = rows / jnp.maximum(length, width)[:, None]
        return on_grid(rows, mask, GRID_OF_SUMS)


def _whole(num_features: int) -> float:
    """A little less than 1: rounding to the grid then leaves a row's norm below 1, and clipping leaves it on the grid."""
    return (1 - math.sqrt(num_features + 2) / GRID_OF_PRODUCTS) ** 2


# --- the posterior ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Release:
    """One release, and the public maps that it was measured under: (1, x) @ to, and the distance to `line` over `width`."""

    features: np.ndarray  # noisy sums, as the nearest matrix that such sums can be, with its eigenvalues shrunk
    target: np.ndarray
    square: float
    eigenvalues: np.ndarray  # of `features`
    eigenvectors: np.ndarray
    weight: float  # sum of the records' weights
    noise: float  # standard deviation
    share: float  # of the records that this release counts for
    total: float  # the exact sum of weight (|z|^2 + SHARE_OF_TARGET) over the records, which is public
    to: np.ndarray
    line: np.ndarray
    width: float
    cut: float  # where residuals are clipped, over the target's bound; infinite where none are that long

    @classmethod
    def of(cls, moments: np.ndarray, total: float, **known: Any) -> _Release:
        """Read noisy sums."""
        moments, size = (moments + moments.T) / 2, len(moments) - 1
        values, vectors = np.linalg.eigh(moments[:size, :size])
        if np.maximum(values, 0).sum() > total:  # the nearest matrix whose eigenvalues are positive and have this sum
            falling = values[::-1]
            above = (np.cumsum(falling) - total) / np.arange(1, size + 1)
            values = values - above[np.flatnonzero(falling > above).max()]
        values = np.maximum(values, 0)
        # Far above the edge of the noise this is Gavish and Donoho's optimal shrinker (IEEE Trans. Inf. Theory 63(4), 2017).
        edge = known["noise"] * math.sqrt(2 * size)
        shrunk = values**3 / (values**2 + edge**2 / 2)
        return cls(
            features=(vectors * shrunk) @ vectors.T,
            target=moments[:size, size],
            square=float(moments[size, size]),
            eigenvalues=shrunk,
            eigenvectors=vectors,
            weight=float(np.clip(total - np.trace(moments[:size, :size]), total / 20, total)) / SHARE_OF_TARGET,
            total=total,
            **known,
        )


@dataclasses.dataclass(frozen=True)
class _Posterior:
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
    def before(cls, size: int, scales: Sequence[float]) -> _Posterior:
        """The prior."""
        precision, pull = np.zeros((size, size)), np.zeros(size)
        return cls(precision, pull, *_coefficients(precision, pull, scales))

    def after(self, release: _Release, scales: Sequence[float]) -> _Posterior:
        """Add a release. The noise of the features' sums acts through the coefficients, so it is found by iterating."""
        size, width, noise = len(self.pull), release.width, release.noise
        seen, back = release.features, np.linalg.inv(release.to) / release.width
        mean, covariance, variance = self.mean, self.covariance, self.variance / width**2
        for _ in range(100):
            own, around, before = back @ (mean - release.line), back @ covariance @ back.T, mean
            second = np.outer(own, own) + around
            error = noise**2 / 2 * ((1 + np.trace(second)) * np.eye(size) + second)
            error += variance * release.weight / release.total / release.share * seen
            gain = back.T @ np.linalg.solve(error, seen).T
            precision = self.precision + gain @ seen @ back
            pull = self.pull + gain @ (release.target + seen @ back @ release.line)
            mean, covariance = _coefficients(precision, pull, scales)
            own, around = back @ (mean - release.line), back @ covariance @ back.T
            unsure = seen @ around
            squares = release.square - 2 * own @ release.target + own @ seen @ own + np.trace(unsure)
            spread = math.hypot(
                noise * (1 + own @ own) / release.weight,
                math.sqrt(2 / release.total) * variance,
                math.sqrt(2 * np.trace(unsure @ unsure)) / release.weight,
            )
            kept = width**2 / _within(release.cut / math.sqrt(variance * width**2))
            middle, spread = squares / release.weight * kept, spread * kept
            ends, chances = _sigma(middle, spread)
            # Residuals are clipped.
            square = (np.square(ends[1:]) + np.square(ends[:-1])) @ chances / 2
            variance = float(np.clip(square / width**2, 1e-8, SHARE_OF_TARGET))
            if np.abs(mean - before).max() < 1e-7:
                break
        return _Posterior(precision, pull, mean, covariance, variance * width**2, middle, spread)


def _within(cut: float) -> float:
    """The mean square of a standard normal that is clipped at -cut and cut; 1/2 at least."""
    if math.isinf(cut):
        return 1.0
    outside = math.erfc(cut / math.sqrt(2))
    return max(0.5, 1 - 2 * cut * math.exp(-(cut**2) / 2) / math.sqrt(2 * math.pi) + (cut**2 - 1) * outside)


def _sigma(seen: float, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Ends of intervals of the residuals' standard deviation, and their probabilities: the prior is flat up to 1, the bound."""
    low, high = np.clip(seen - 8 * spread, 0, 0.98), np.clip(max(seen, 0) + 8 * spread, 1e-8, 1)
    ends = np.linspace(math.sqrt(min(low, high / 2)), math.sqrt(high), 1025)
    logs = -np.square((np.square((ends[1:] + ends[:-1]) / 2) - seen) / spread) / 2
    chances = np.exp(logs - logs.max())
    return ends, chances / chances.sum()


def _coefficients(precision: np.ndarray, pull: np.ndarray, scales: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the coefficients given a Gaussian likelihood.

    The prior is Normal(0, s^2) for all weights and Normal(0, r^2) for the intercept; s and r are unknown, each one of `scales`.
    In the eigenbasis of the weights' precision, all pairs of scales are solved at once.
    """
    r, s = (side.reshape(-1, 1) for side in np.meshgrid(scales, scales))
    values, vectors = np.linalg.eigh(precision[1:, 1:])
    values, cross, pulled = np.maximum(values, 0), vectors.T @ precision[1:, 0], vectors.T @ pull[1:]
    inverse = 1 / (values + 1 / s**2)
    variance = 1 / (np.maximum(precision[0, 0] - inverse @ cross**2, 0)[:, None] + 1 / r**2)
    intercept = variance * (pull[0] - inverse @ (cross * pulled))[:, None]
    weights = inverse * (pulled - cross * intercept)
    evidence = np.log(variance / r**2)[:, 0] - np.log1p(s**2 * values).sum(axis=1) + intercept[:, 0] * pull[0]
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


def _cautious(found: _Posterior, release: _Release) -> np.ndarray:
    """The estimate, drawn towards a flat line and the middle where it may be worse than these.

    With S the features' second moments about their mean, predictions by c w instead of none change the squared error by
    c^2 w'Sw - 2 c w'S t for true weights t. That is normal. Its quantile of the chance asked for is c (c - 2 m) w'Sw, the least
    at c = m. Up to c = 2 m it is below 0; but where the posterior is too narrow, as in one fit of Abalone in 75 at ε = 0.03, that
    gave an R² of -1.9.
    """
    about, centre = _about(_second(release))
    weights, covariance = found.mean[1:], found.covariance

    def share(size: Any, variance: Any) -> float:
        return float(np.clip(_KEPT * (1 - _CAUTION * math.sqrt(max(variance, 0)) / max(size, 1e-300)), 0, 1))

    along, middle = about @ weights, centre @ found.mean
    slope = share(weights @ along, along @ covariance[1:, 1:] @ along) * weights
    level = share(middle**2, middle**2 * (centre @ covariance @ centre)) * middle
    return np.append(level - centre[1:] @ slope, slope)


@dataclasses.dataclass(frozen=True)
class MomentsResult(Released, what="linear regression from noisy moments", parts=(MomentsPlan, Relation)):
    """The posterior of a linear regression given noisy moments: privacy and sampling noise are both in it.

    Attributes:
        mean: Posterior mean of intercept and weights, (feature + 1,), in the units of the fitted arrays.
        covariance: Their posterior covariance.
        estimate: Intercept and weights to predict with, shrunk towards 0 where the noise hides them.
        variance: The residuals' variance, seen with a normal error; the prior of their standard deviation is flat on (0, 1).
        variance_spread: Standard deviation of that error.
        mean_squares: Released mean square of each feature, (feature,): of a 0/1 column about its share. Long rows count less.
        plan: The plan of the fit.
        statement: The privacy statement.
    """

    noise_in_draws = True

    mean: Float[np.ndarray, " feature+1"]
    covariance: Float[np.ndarray, "feature+1 feature+1"]
    estimate: Float[np.ndarray, " feature+1"]
    variance: float
    variance_spread: float
    mean_squares: Float[np.ndarray, " feature"]
    plan: MomentsPlan
    statement: Statement

    @property
    def learned(self) -> Float[np.ndarray, " feature+1"]:
        """For each of `mean` the share of the prior's variance that is gone; where it is small, the prior decides."""
        return 1 - np.diag(self.covariance)

    @property
    def to_predict(self) -> dict[str, np.ndarray]:
        """The estimate, as one draw of `intercept` and `weights`."""
        return {"intercept": self.estimate[:1], "weights": self.estimate[None, 1:]}

    def posterior(self, key: PRNGKeyArray, num_samples: int) -> dict[str, np.ndarray]:
        """Independent draws of `intercept`, (draw,), `weights`, (draw, feature), and `sigma`, (draw,). They cost nothing.

        Those of `sigma` take residuals to be normal, and of one spread: where they have long tails all draws are too small.

        Args:
            key: Any JAX key.
            num_samples: Number of draws.
        """
        secret = random.subkey(random.check_key(key), random.Purpose.POSTERIOR)
        one, other = jax.random.split(secret)
        drawn = np.asarray(jax.random.normal(one, (integer("num_samples", num_samples), len(self.mean))), np.float64)
        values, vectors = np.linalg.eigh(self.covariance)
        drawn = self.mean + (drawn * np.sqrt(np.maximum(values, 0))) @ vectors.T
        ends, chances = _sigma(self.variance, self.variance_spread)
        uniform = np.asarray(jax.random.uniform(other, (num_samples,)), np.float64)
        return {
            "intercept": drawn[:, 0],
            "weights": drawn[:, 1:],
            "sigma": np.interp(uniform, np.append(0, np.cumsum(chances)), ends),
        }

    def to_arviz(self, key: PRNGKeyArray, num_samples: int, **names: Any) -> Any:
        """Draws of `posterior` for ArviZ, with the statement in their attributes; as `discreet.inference_data.to_arviz`."""
        from discreet.inference_data import to_arviz

        return to_arviz(self.posterior(key, num_samples), statement=self.statement, **names)


@in_own_settings
def fit_moments(
    rng_key: PRNGKeyArray,
    x: Float[np.ndarray, "record feature"],
    y: Float[np.ndarray, " record"],
    plan: MomentsPlan,
    *,
    person: str | None = None,
    ledger: Ledger | None = None,
) -> MomentsResult:
    """Fit a linear regression to noisy moments.

    Guarantee: all that is returned is `plan.event()`, under the plan's relation, but for its `slack`. Each release is proved
    to be its part of that before it runs. Sums are exact, since rows are rounded to a grid.

    The prior is that of `models.linear_regression`: intercept and weights Normal(0, 1). Where the noise hides a coefficient, its
    posterior is the prior, and `estimate` is near 0: it predicts no worse than the middle of the target's bounds but for chance.

    Args:
        rng_key: `discreet.random.key()`, for this fit alone.
        x: Features of about unit size.
        y: Targets in [-1, 1].
        plan: The plan of the fit.
        person: Name of the column that identifies persons, if each record is all that one person has.
        ledger: The table's budget, debited before the first release.

    Returns:
        The posterior.

    Raises:
        ValueError, TypeError: Wrong input, before anything is spent.
        SpentError: The ledger does not hold it.
        PrivacyError: A release could not be proved.
        UseWarning: A warning, where the noise hides the line; as an error it has the fit as `partial_result`.

    >>> import numpy as np, discreet as dp
    >>> from discreet.moments import MomentsPlan, fit_moments
    >>> x = np.random.default_rng(0).uniform(-1, 1, (20_000, 2))
    >>> plan = MomentsPlan.calibrate(epsilon=1.0, delta=1e-6, num_features=2, num_records=20_000)
    >>> found = fit_moments(dp.random.key(), x, x @ [0.5, -0.3], plan)
    >>> bool(np.abs(found.mean - [0, 0.5, -0.3]).max() < 0.05)
    True

    Reference:
        Bernstein and Sheldon, Differentially private Bayesian linear regression, NeurIPS 2019.
    """
    refuse_traced("fit_moments")
    one_process("fit_moments", [x, y])
    key = random.check_key(rng_key)
    rows, target = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if rows.ndim != 2 or target.shape != rows.shape[:1] or rows.shape[1] != plan.num_features or not len(rows):
        raise ValueError(
            f"x and y have the shapes {rows.shape} and {target.shape}: pass (record, {plan.num_features}) and (record,), as in "
            "the plan."
        )
    if len(rows) > MOST_RECORDS:
        raise ValueError(
            f"x has {len(rows):,} records; sums are exact for at most {MOST_RECORDS:,}. Draw fewer of them."
        )
    # Under ADD_OR_REMOVE_ONE the exact number of records is what neighbours differ in: no check may show it.
    if plan.relation is Relation.REPLACE_ONE and len(rows) != plan.num_records:
        raise ValueError(
            f"x has {len(rows)} records, but the plan says num_records={plan.num_records}, a public number where one record is "
            f"replaced. Calibrate a plan for {len(rows)} records."
        )
    act = Act.on(plan, key, random.Purpose.MOMENTS, ledger=ledger, unit=Unit(person))
    # XLA compiles a loop of one turn otherwise.
    table = in_turns([rows, target], max(2, turns_for(len(rows), TURN)), TURN)
    releases = zip(KINDS, plan.stddevs, strict=True)
    queries = [Query(Sum(kind), Gaussian(noise, noise), plan.relation, records=(1, 2, 3)) for kind, noise in releases]
    programs = [query.certificate(act.key, *table, *_start(plan)) for query in queries]
    act.prove(*programs, named=False)  # their fingerprints follow the number of records
    act.begin()
    keys = jax.random.split(act.key, len(programs))
    wide, found, last = _measure(programs, keys, table, plan)
    paid = act.statement
    statement = paid.with_use(*_use(wide, found, last))
    back = np.linalg.inv(last.to)
    squares = np.einsum("ji,jk,ki->i", back, last.features, back)
    result = MomentsResult(
        wide.mean,
        wide.covariance,
        _cautious(found, last),
        found.seen,
        found.spread,
        mean_squares=squares[1:] / max(squares[0], last.noise),
        plan=plan,
        statement=statement,
    )
    warn_of_use(result, paid, stacklevel=3)
    return result


def _use(wide: _Posterior, found: _Posterior, last: _Release) -> tuple[str, str]:
    """The verdict on the use of the result, and the reason, from the releases.

    The squared error of predictions is tr(S C) for second moments S of the features and the coefficients' covariance C; that
    of least squares without noise is the residuals' variance times (feature + 1) / N. Directions that the noise hides are in
    neither: there may be no records along them, as where indicators add up to 1. But at least half must be seen.
    """
    size = len(wide.mean)
    second = _second(last)
    seen = int(np.sum(last.eigenvalues > _FLOORS[0] * last.noise * math.sqrt(2 * size)))
    sampling = found.variance * max(seen, 1) / last.total
    wider = math.sqrt(np.trace(second @ wide.covariance) / sampling)
    if wider <= _SHARP and 2 * seen >= size:
        return COEFFICIENTS, WHICH_LINE
    low, middle, high = _explained(found, last)
    if low >= _SURE * middle > 0:
        return PREDICTION, f"the noise makes intervals about {wider:.2g} times as wide as without it"
    quality = (
        "hides the line: predictions are little better than one number for all"
        if high <= _FLAT
        else f"hides how good predictions are: they may explain {100 * max(low, 0):.0f} to {100 * min(high, 1):.0f} % of the "
        "target's variance"
    )
    return NOT_USABLE, (
        f"the noise {quality}. Intervals hold, but the noise makes them many times as wide. A larger epsilon, more records or "
        "fewer features help"
    )


def _second(release: _Release) -> np.ndarray:
    """The released second moments of (1, x)."""
    back = np.linalg.inv(release.to)
    return back.T @ release.features @ back / release.weight


def _about(second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Second moments of x about its mean, and (1, mean)."""
    centre = np.append(1, second[0, 1:] / max(second[0, 0], 1))  # the constant's own is 1 but for the noise
    return second[1:, 1:] - np.outer(centre[1:], second[0, 1:]), centre


def _explained(found: _Posterior, last: _Release) -> tuple[float, float, float]:
    """The share of the target's variance that the estimate explains: lower limit, mean, upper limit.

    Each limit holds with nine chances in ten. With S the features' second moments about their mean, and v for the estimate, it is
    2 v'S t - v'S v for true weights t.
    """
    about, _ = _about(_second(last))
    slopes, weights = _cautious(found, last)[1:], found.mean[1:]
    along = about @ slopes
    mean, spread = 2 * along @ weights - along @ slopes, 2 * math.sqrt(along @ found.covariance[1:, 1:] @ along)
    total = found.variance + max(weights @ about @ weights, 0)
    low, high = ((mean + place * _CAUTION * spread) / total for place in (-1, 1))
    return float(low), float(mean / total), float(high)


def _flatness(plan: MomentsPlan) -> float:
    """How many times shorter than 1 whitened rows are on average: the shorter, the more the weights are alike.

    Where the line is not the mean of the target, other weights fit another line. With rows of length 1 it was up to five
    standard errors from least squares on public tables, with rows of length 1/3 up to two; noise widens intervals by a tenth
    more. Shorter rows are harder to see under the noise, so they are so short only where there are many; residuals are clipped
    later there, too.
    """
    size = plan.num_features + 1
    edge = plan.stddevs[1] * math.sqrt(2 * size)
    # An eigenvalue is N / size / (1 + flatness^2 / 2), about.
    seen = plan.num_records / size / (_SEEN * edge)
    return math.sqrt(np.clip(2 * (seen - 1), 1, _FLATTEST**2))


def _start(plan: MomentsPlan) -> tuple[np.ndarray, np.ndarray, np.float64]:
    """The map, the line and the width of the first release."""
    diagonal = [_INTERCEPT, *np.ones(plan.num_features)]
    return np.diag(diagonal), np.zeros(len(diagonal)), np.float64(1 / math.sqrt(SHARE_OF_TARGET))


def _measure(
    programs: list[Certificate], keys: Any, table: Sequence[np.ndarray], plan: MomentsPlan
) -> tuple[_Posterior, _Posterior, _Release]:
    """The releases, each read before the next.

    Returns:
        The posterior under the wide prior, that under the prior of unknown scale, and the last release of products.
    """
    size, total = plan.num_features + 1, plan.num_records * _whole(plan.num_features)
    to, line, width = _start(plan)
    cut, flatness, rare = math.inf, _flatness(plan), None
    wide, found = (_Posterior.before(size, scales) for scales in (WIDE, SCALES))
    planned = list(zip(programs, keys, plan.stddevs, strict=True))
    for (program, key, noise), share, floor in zip(planned[:_PRODUCTS], SHARES, _FLOORS, strict=False):
        moments = np.asarray(program(key, *table, to, line, np.float64(width)), np.float64)
        known = {"noise": noise, "share": share / (1 - SHARES[_PRODUCTS])}
        release = _Release.of(moments, total, to=to, line=line, width=width, cut=cut, **known)
        wide, found = wide.after(release, WIDE), found.after(release, SCALES)
        # Residuals have this variance around the line found so far, on average over the records.
        back = np.linalg.inv(to)
        unsure = np.trace(release.features @ back @ found.covariance @ back.T)
        around = found.variance + unsure / release.weight
        second = release.features
        if rare is None:  # the squares of such columns may be so large
            hidden, sums = _HIDDEN * noise, np.maximum(np.abs(second[0]), np.diag(second))
            rare = np.where((sums < hidden) & (np.arange(size) > 0), hidden, 0)
        else:
            second = second + to.T @ (rare[:, None] * to)
        eigenvalues, eigenvectors = np.linalg.eigh(second)
        least = floor * noise * math.sqrt(2 * size)
        stretched = eigenvectors * np.sqrt(release.weight / (np.maximum(eigenvalues, 0) + least) / size)
        even = to @ stretched @ eigenvectors.T
        to, line = even / flatness, found.mean
        # No residual is longer than the target's bound and the line's largest value.
        longest = 1 + min(1.0, np.abs(line).sum())
        cut = (_WIDTH + min(flatness, _LATEST) - 1) * math.sqrt(around)
        width = min(longest, cut) / math.sqrt(SHARE_OF_TARGET)
        cut = cut if cut < longest else math.inf
    program, key, noise = planned[_PRODUCTS]
    lengths = np.asarray(program(key, *table, even, line, np.float64(1)), np.float64)
    into = np.linalg.inv(release.to) @ even
    curvature = into.T @ release.features @ into * release.total / release.weight
    least = found.variance * np.trace(curvature)
    of_gradients = plan.noise_multiplier / math.sqrt(sum(SHARES[_PRODUCTS + 1 :]))
    reach, squares = _reach(lengths, noise, of_gradients, size, least, plan.num_records)
    seen = float(np.trace(curvature))  # 0 where noise hides all products: then gradients tell nothing
    variance = squares / seen if seen else found.variance
    last = _Last(release, even, curvature, variance)
    start, start_wide = found, wide
    for program, key, noise in planned[_PRODUCTS + 1 :]:
        value = np.asarray(program(key, *table, even, line, np.float64(reach)), np.float64)
        last.points.append(np.linalg.inv(even) @ line)
        last.values.append(value * reach)
        last.noise = noise * reach
        if not seen:
            continue
        wide, found = last.posterior(start_wide, WIDE), last.posterior(start, SCALES)
        line = found.mean
    return wide, found, release


@dataclasses.dataclass
class _Last:
    """The gradients of the last stage, in the coordinates z = (1, x) @ to, and what the releases before say about them.

    Attributes:
        release: The release of products before.
        to: The map.
        curvature: Sum of the outer products of z, as far as it is seen.
        variance: Mean square of residuals, and of what clipping may have moved, by the lengths of z times the residual.
        points: Where the gradients were taken.
        values: The noisy sums.
        noise: Standard deviation of their noise.
    """

    release: _Release
    to: np.ndarray
    curvature: np.ndarray
    variance: float
    points: list[np.ndarray] = dataclasses.field(default_factory=list)
    values: list[np.ndarray] = dataclasses.field(default_factory=list)
    noise: float = 0.0

    def posterior(self, start: _Posterior, scales: Sequence[float]) -> _Posterior:
        """Add the gradients to the posterior before them, as far as they agree with it.

        A gradient at a point is the curvature times the distance to least squares, plus noise. The curvature's own noise acts
        through that distance, so it is found by iterating.
        """
        size, back = len(self.to), np.linalg.inv(self.to)
        into, of_seen = (
            np.linalg.inv(self.release.to) @ self.to,
            self.release.noise * self.release.total / self.release.weight,
        )
        seen, points, values = self.curvature, np.array(self.points), np.array(self.values)
        least = np.trace(seen) / size
        if len(points) > 1:
            seen = secant(seen, Gradients(points, values, self.noise), _LEAST * least)
        mean, covariance, trust = start.mean, start.covariance, 1.0
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
            # Both see the same rows, so where they differ it is by noise, or by what weights and clipping moved before.
            trust = _trust(start, sharp[:, :-1], sharp[:, -1]) * min(1.0, start.variance / self.variance)
            precision, pull = trust * start.precision + likelihood[:, :-1], trust * start.pull + likelihood[:, -1]
            mean, covariance = _coefficients(precision, pull, scales)
            if np.abs(mean - before).max() < 1e-7:
                break
        return dataclasses.replace(start, precision=precision, pull=pull, mean=mean, covariance=covariance)


def _trust(start: _Posterior, precision: np.ndarray, pull: np.ndarray) -> float:
    """The mean share of its precision that the line before the gradients keeps, given how far they lie beside it."""
    off, logs = pull - precision @ start.mean, []
    for doubt in _DOUBTS:
        around = (1 + doubt) * start.covariance
        both = np.eye(len(pull)) + around @ precision
        logs.append((off @ np.linalg.solve(both, around @ off) - np.linalg.slogdet(both)[1]) / 2)
    chances = np.exp(np.array(logs) - max(logs))
    return float(chances @ (1 / (1 + _DOUBTS)) / chances.sum())


def _reach(
    lengths: np.ndarray, sigma: float, noise: float, size: int, least: float, records: int
) -> tuple[float, float]:
    """Where gradients are clipped, and the sum of their squares with that of what clipping may have moved.

    The noise grows with the bound, and what clipping may move falls: the sum of their squares is the least. A bound whose noise
    is far below that of sampling is not too large.

    Args:
        lengths: Noisy numbers of gradients in the bins of `EDGES`.
        sigma: Standard deviation of their noise.
        noise: That of the gradients together, over the bound.
        size: Number of coordinates.
        least: What the squares sum up to at least.
        records: Public number of records.
    """
    counts, middle = Lengths(lengths, sigma, _TAIL).counts, np.sqrt(EDGES[1:] * EDGES[:-1])
    squares = max(float(counts @ np.square(middle)), least)
    edges = EDGES[1:]
    moved = np.square(_BIAS * np.maximum(middle - edges[:, None], 0) @ counts)
    little = _SLACK**2 * squares
    loss = np.maximum(size * np.square(noise * edges), little) + moved
    half = np.cumsum(counts) >= counts.sum() / 2
    allowed = half & (edges >= math.sqrt(least / max(counts.sum(), records)))
    best = int(np.argmin(np.where(allowed, loss, np.inf)))
    return float(edges[best]), squares + float(moved[best])
