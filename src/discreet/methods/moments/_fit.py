"""The fit: each release, read before the next one is measured, and the posterior that follows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from discreet._jax import one_release
from discreet._validate import choice, floats
from discreet.methods.inference import Share, warn_of_use
from discreet.methods.moments._gradients import LastStage, reach_of
from discreet.methods.moments._plan import KINDS, PRODUCTS, SHARES, MomentsPlan
from discreet.methods.moments._posterior import (
    FLOORS,
    SCALES,
    WIDE,
    Measurement,
    NormalPosterior,
    sigma_of,
)
from discreet.methods.moments._sums import NUM_MEANS, SHARE_OF_TARGET, TURN, Sum, whole
from discreet.methods.moments._verdict import cautious, use_of
from discreet.methods.newton import OfCoefficients, SurveyWeights, one_thread, survey_weights
from discreet.privacy import random
from discreet.privacy.act import Act
from discreet.privacy.ledger import Ledger
from discreet.privacy.query import Gaussian, Query, in_turns, turns_for
from discreet.privacy.released import Released
from discreet.privacy.report import Statement, Unit
from discreet.privacy.verify import Certificate

_INTERCEPT = 0.5  # the leading 1 in the first release: it is easily seen, and costs the others less like this
_WIDTH = 3.0  # standard deviations at which residuals are clipped, at least
# the least mean length of whitened rows is 1 / _FLATTEST: then weights differ little
_FLATTEST = 10.0
_SEEN = 4.0  # times the edge of the noise: what the features' eigenvalues are at least, so that rows may be short
_HIDDEN = 3.0  # standard deviations of the noise: a column whose sum and squares are below is a rare category's
_LATEST = 3.0  # of `_flatness`: beyond it, shorter rows let no longer residuals pass


@dataclasses.dataclass(frozen=True, repr=False)
class MomentsResult(
    OfCoefficients,
    Released,
    what="linear regression from noisy moments",
):
    """The posterior of a linear regression given noisy moments: privacy and sampling noise are both in it.

    Attributes:
        mean: Posterior mean of intercept and weights, (feature + 1,), in the units of the fitted
            arrays.
        covariance: Their posterior covariance.
        estimate: Intercept and weights to predict with, shrunk towards 0 where the noise hides
            them.
        variance: The residuals' variance, seen with a normal error; the prior of their standard
            deviation is flat on (0, 1).
        variance_spread: Standard deviation of that error.
        mean_squares: Released mean square of each feature, (feature,): of a 0/1 column about its
            share. Long rows count less.
        counted: Share of the records that count, by a noisy sum; 1 where the plan has neither
            weights nor a mask.
        plan: The plan of the fit.
        statement: The privacy statement.
    """

    mean: Float[np.ndarray, " feature+1"]
    covariance: Float[np.ndarray, "feature+1 feature+1"]
    estimate: Float[np.ndarray, " feature+1"]
    variance: float
    variance_spread: float
    mean_squares: Float[np.ndarray, " feature"]
    counted: float
    plan: MomentsPlan
    statement: Statement

    @property
    def learned(self) -> Float[np.ndarray, " feature+1"]:
        """For each of `mean` the share of the prior's variance that is gone; where it is small, the prior decides."""
        return 1 - np.diag(self.covariance)

    @property
    def dropped(self) -> Share:
        """Share of the records that do not count, with the standard error of its noise."""
        return Share(
            1 - self.counted, self.plan.stddevs[-1] * math.sqrt(NUM_MEANS) / self.plan.num_records
        )

    @property
    def to_predict(self) -> dict[str, np.ndarray]:
        """The estimate, as one draw of `intercept` and `weights`."""
        return {"intercept": self.estimate[:1], "weights": self.estimate[None, 1:]}

    def family_of(self, family: str | None) -> str:
        """As there."""
        return choice(
            "family",
            "gaussian" if family is None else family,
            ("gaussian",),
            hint="The fit is a line.",
        )

    def _second(self, family: str | None, rng: Any = None, drawn: Any = None) -> np.ndarray:
        """The residuals' standard deviation."""
        del family, rng
        return np.sqrt(np.clip(self.variance, 1e-8, 1)) if drawn is None else drawn["sigma"]

    def _drawn(self, rng: np.random.Generator, num_samples: int) -> dict[str, np.ndarray]:
        """With draws of `sigma`, (draw,).

        They take residuals to be normal, and of one spread: where they have long tails all draws
        are too small.
        """
        ends, chances = sigma_of(self.variance, self.variance_spread)
        drawn = super()._drawn(rng, num_samples)
        return drawn | {
            "sigma": np.interp(rng.random(num_samples), np.append(0, np.cumsum(chances)), ends)
        }


@one_release
def fit_moments(
    rng_key: PRNGKeyArray,
    x: Float[np.ndarray, "record feature"],
    y: Float[np.ndarray, " record"],
    plan: MomentsPlan,
    *,
    mask: Bool[np.ndarray, " record"] | None = None,
    weights: Float[np.ndarray, " record"] | None = None,
    person: str | None = None,
    ledger: Ledger | None = None,
) -> MomentsResult:
    """Fit a linear regression to noisy moments.

    Guarantee: all that is returned is `plan.event()`, under the plan's relation, but for its
    `slack`. Each release is proved to be its part of that before it runs. Sums are exact, since
    rows are rounded to a grid.

    The prior is that of `models.linear_regression`: intercept and weights Normal(0, 1). Where the
    noise hides a coefficient, its posterior is the prior, and `estimate` is near 0: it predicts no
    worse than the middle of the target's bounds but for chance.

    Args:
        rng_key: `discreet.random.key()`, for this fit alone.
        x: Features of about unit size.
        y: Targets in [-1, 1].
        plan: The plan of the fit.
        mask: If the plan `drops`, True for the records that are used; what others hold has no
            effect. None: all.
        weights: If the plan is `weighted`, survey weights as in `fit_newton`.
        person: Name of the column that identifies persons, if each record is all that one person
            has.
        ledger: The table's budget, debited before the first release.

    Returns:
        The posterior.

    Raises:
        ValueError, TypeError: Wrong input, before anything is spent.
        SpentError: The ledger does not hold it.
        PrivacyError: A release could not be proved.
        UseWarning: A warning, where the noise hides the line; as an error it has the fit as
            `partial_result`.

    >>> import numpy as np, discreet as dp
    >>> from discreet.methods.moments import MomentsPlan, fit_moments
    >>> x = np.random.default_rng(0).uniform(-1, 1, (20_000, 2))
    >>> plan = MomentsPlan.calibrate(epsilon=1.0, delta=1e-6, num_features=2, num_records=20_000)
    >>> found = fit_moments(dp.random.key(), x, x @ [0.5, -0.3], plan)
    >>> bool(np.abs(found.mean - [0, 0.5, -0.3]).max() < 0.05)
    True

    Reference:
        Bernstein and Sheldon, Differentially private Bayesian linear regression, NeurIPS 2019.
    """
    key = random.check_key(rng_key)
    rows = floats("x", x)
    target = floats("y", y)
    if (
        rows.ndim != 2
        or target.shape != rows.shape[:1]
        or rows.shape[1] != plan.num_features
        or not len(rows)
    ):
        raise ValueError(
            f"x and y have the shapes {rows.shape} and {target.shape}: pass (record, {plan.num_features}) and (record,), as in "
            "the plan."
        )
    plan.check_size(len(rows))
    present = np.ones(target.shape, bool) if mask is None else np.asarray(mask)
    if (
        present.shape != target.shape
        or present.dtype != bool
        or (mask is not None and not plan.drops)
    ):
        raise ValueError(
            "mask must be a Boolean for each record if the plan drops some; else None."
        )
    survey = survey_weights(weights, plan.weighted, target.shape, present)
    counts = np.where(present, 1.0 if survey is None else survey, 0)
    rows = np.where(present[:, None], rows, 0)
    target = np.where(present, target, 0)
    act = Act.on(plan, key, random.Purpose.MOMENTS, ledger=ledger, unit=Unit(person))
    # XLA compiles a loop of one turn otherwise.
    table = in_turns(
        [rows, target] + [counts] * plan.measures_weights, max(2, turns_for(len(rows), TURN)), TURN
    )
    places = tuple(range(1, 1 + len(table)))
    releases = zip(plan.kinds, plan.stddevs, strict=True)
    queries = [
        Query(Sum(kind), Gaussian(noise, noise), plan.relation, records=places)
        for kind, noise in releases
    ]
    programs = [query.certificate(act.key, *table, *_start(plan)) for query in queries]
    act.prove(*programs, named=False)  # their fingerprints follow the number of records
    act.begin()
    keys = jax.random.split(act.key, len(programs))
    with one_thread():
        wide, found, last, known, counted = _measure(programs, keys, table, plan)
    paid = act.statement
    statement = paid.with_use(*use_of(wide, found, last, plan.weighted and known.hidden))
    back = np.linalg.inv(last.to)
    squares = np.einsum("ji,jk,ki->i", back, last.features, back)
    result = MomentsResult(
        wide.mean,
        wide.covariance,
        cautious(found, last),
        found.seen,
        found.spread,
        mean_squares=squares[1:] / max(squares[0], last.noise),
        counted=counted,
        plan=plan,
        statement=statement,
    )
    warn_of_use(result, paid, stacklevel=3)
    return result


def _flatness(plan: MomentsPlan, num_records: float) -> float:
    """How many times shorter than 1 whitened rows are on average: the shorter, the more the weights are alike.

    Where the line is not the mean of the target, other weights fit another line. With rows of
    length 1 it was up to five standard errors from least squares on public tables, with rows of
    length 1/3 up to two; noise widens intervals by a tenth more. Shorter rows are harder to see
    under the noise, so they are so short only where there are many, `num_records` of weight 1;
    residuals are clipped later there, too.
    """
    size = plan.num_features + 1
    edge = plan.stddevs[1] * math.sqrt(2 * size)
    # An eigenvalue is N / size / (1 + flatness^2 / 2), about.
    seen = num_records / size / (_SEEN * edge)
    return math.sqrt(np.clip(2 * (seen - 1), 1, _FLATTEST**2))


def _start(plan: MomentsPlan) -> tuple[np.ndarray, np.ndarray, np.float64]:
    """The map, the line and the width of the first release."""
    diagonal = [_INTERCEPT, *np.ones(plan.num_features)]
    return np.diag(diagonal), np.zeros(len(diagonal)), np.float64(1 / math.sqrt(SHARE_OF_TARGET))


def _measure(
    programs: list[Certificate], keys: Any, table: Sequence[np.ndarray], plan: MomentsPlan
) -> tuple[NormalPosterior, NormalPosterior, Measurement, SurveyWeights, float]:
    """The releases, each read before the next.

    Returns:
        The posterior under the wide prior, that under the prior of unknown scale, the last release
        of products, what is known of survey weights, and the share of the records that count.
    """
    size = plan.num_features + 1
    to, line, width = _start(plan)
    weights = SurveyWeights()
    counted = 1.0
    if plan.measures_weights:
        of_mean = math.sqrt(NUM_MEANS) / plan.num_records
        noise = plan.stddevs[-1] * of_mean
        sums = np.asarray(programs[-1](keys[-1], *table, to, line, np.float64(width)), np.float64)
        share, mean, square = np.maximum(sums * of_mean, noise)
        weights = SurveyWeights.of(mean, square, noise)
        counted = min(float(share), 1.0)
    records = plan.num_records * weights.mean
    total = records * whole(plan.num_features)
    cut = math.inf
    flatness = _flatness(plan, records)
    rare = None
    wide, found = (NormalPosterior.before(size, scales) for scales in (WIDE, SCALES))
    planned = list(zip(programs, keys, plan.stddevs, strict=True))[: len(KINDS)]
    for (program, key, noise), share, floor in zip(
        planned[:PRODUCTS], SHARES, FLOORS, strict=False
    ):
        moments = np.asarray(program(key, *table, to, line, np.float64(width)), np.float64)
        known = {
            "noise": noise,
            "share": share / (1 - SHARES[PRODUCTS]),
            "cut": cut,
            "typical": weights.typical,
        }
        release = Measurement.of(moments, total, to=to, line=line, width=width, **known)
        wide = wide.after(release, WIDE)
        found = found.after(release, SCALES)
        # Residuals have this variance around the line found so far, on average over the records.
        back = np.linalg.inv(to)
        unsure = np.trace(release.features @ back @ found.covariance @ back.T)
        around = found.variance + unsure / release.weight
        second = release.features
        if rare is None:  # the squares of such columns may be so large
            hidden = _HIDDEN * noise
            sums = np.maximum(np.abs(second[0]), np.diag(second))
            rare = np.where((sums < hidden) & (np.arange(size) > 0), hidden, 0)
        else:
            second = second + to.T @ (rare[:, None] * to)
        eigenvalues, eigenvectors = np.linalg.eigh(second)
        least = floor * noise * math.sqrt(2 * size)
        stretched = eigenvectors * np.sqrt(
            release.weight / (np.maximum(eigenvalues, 0) + least) / size
        )
        even = to @ stretched @ eigenvectors.T
        to = even / flatness
        line = found.mean
        # No residual is longer than the target's bound and the line's largest value.
        longest = 1 + min(1.0, np.abs(line).sum())
        cut = (_WIDTH + min(flatness, _LATEST) - 1) * math.sqrt(around)
        width = min(longest, cut) / math.sqrt(SHARE_OF_TARGET)
        cut = cut if cut < longest else math.inf
    program, key, noise = planned[PRODUCTS]
    lengths = np.asarray(program(key, *table, even, line, np.float64(1)), np.float64)
    into = np.linalg.inv(release.to) @ even
    curvature = into.T @ release.features @ into * release.total / release.weight
    least = found.variance * weights.typical * np.trace(curvature)
    reach, squares = reach_of(lengths, noise, plan.of_gradients, size, least, plan.num_records)
    # 0 where noise hides all products: then gradients tell nothing
    seen = float(np.trace(curvature))
    variance = squares / seen if seen else found.variance * weights.typical
    last = LastStage(release, even, curvature, variance)
    start = found
    start_wide = wide
    for program, key, noise in planned[PRODUCTS + 1 :]:
        value = np.asarray(program(key, *table, even, line, np.float64(reach)), np.float64)
        last.points.append(np.linalg.inv(even) @ line)
        last.values.append(value * reach)
        last.noise = noise * reach
        if not seen:
            continue
        wide = last.posterior(start_wide, WIDE)
        found = last.posterior(start, SCALES)
        line = found.mean
    return wide, found, release, weights, counted
