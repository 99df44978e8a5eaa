"""Private Newton: a regression's posterior from a few noisy gradients in coordinates that were measured first.

1. The features are mapped so that their second moments are near a multiple of the identity: two
   releases.
2. Fifteen gradients at fifteen points, each the best guess so far. Splitting them is free: T
   gradients with noise sigma sqrt(T) tell as much of the optimum as one with sigma, if the
   curvature between them is known.
3. The curvature is measured at two of these points.
4. The posterior follows in closed form (`_algebra`), with both noises in it.

There is no learning rate, no clipping norm and no question of convergence; whether the gradients
agree is tested (`Diagnosis`). docs/newton.md has the derivation and the figures.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float, PRNGKeyArray
from scipy.linalg import null_space
from scipy.special import ndtri
from tqdm.auto import tqdm

from discreet._jax import one_release
from discreet._validate import ENDS, choice, floats, unmasked
from discreet.methods.inference import IN_SHARDS, Share, warn_of_use
from discreet.methods.newton._algebra import (
    DOUBTED_NOISE,
    LEAST_CURVATURE,
    SCALES,
    Diagnosis,
    Gradients,
    Matrix,
    Prior,
    Vector,
    diagnose,
    gathered,
    hides,
    is_settled,
    rebuilt,
    secant,
    settle,
    soft,
    spectrum,
    sure_part,
)
from discreet.methods.newton._bend import Along, Bend, Near, NormalRows, between
from discreet.methods.newton._counts import SHARE_LOST, Counts
from discreet.methods.newton._plan import (
    BINARY,
    CLASSES,
    COINS,
    COUNTS,
    CURVATURES,
    DIRECTIONS,
    HISTOGRAM,
    NUM_GRADIENTS,
    PILOT,
    PRIOR,
    RESIDUALS,
    SIZES,
    SQUARES,
    NewtonPlan,
)
from discreet.methods.newton._posterior import OfCoefficients
from discreet.methods.newton._releases import Public, RegressionSums, layout_for, plane, program_of
from discreet.methods.newton._saved import SavedReleases, joined
from discreet.methods.newton._sums import Parts, rounded_up
from discreet.methods.newton._weights import (
    STANDS_OUT,
    WEIGHTS_HIDDEN,
    SurveyWeights,
    survey_weights,
)
from discreet.privacy import random
from discreet.privacy.act import Act
from discreet.privacy.ledger import Ledger
from discreet.privacy.mechanisms import InFiles
from discreet.privacy.released import Released
from discreet.privacy.report import (
    COEFFICIENTS,
    LEARNED,
    NOT_USABLE,
    PREDICTION,
    Statement,
    Unit,
    listed,
)

AT = tuple(int(share * NUM_GRADIENTS) for share in (0.2, 0.7))
"""The points, by number, at which the curvature is measured."""
LARGEST_STEP = 2.0  # standard deviations of the predictor
STEP_ROUNDS = 8
STEP_TRUST = 0.6
"""Of steps of a logistic fit, whose curvature is known to change: rounds, and how much less a gradient far away counts."""
OUTWARD = 0.5  # of the coefficients' length: how far its change counts for intervals
_REACH = {"binary": (0.8, 2.0, 4.0), "counts": (1.0, 1.25, 1.25), "classes": (0.8, 2.0, 4.0)}
"""Rows longer than so many times a typical one count less: at least, where the noise is little, and where it is none."""
HIDDEN_SPREAD = 0.02
"""Of a column's mean square: where the noise hides its spread, the square of the one that intervals allow for."""
_FAMILIES = {
    BINARY: ("bernoulli",),
    CLASSES: ("categorical",),
    COUNTS: ("poisson", "negative_binomial"),
}
"""The likelihoods that predictions may have."""
_MANY = 32  # features
WARY = 2.5  # of gradients far away, for intervals
NOISY = 3.0  # a fit for its coefficients has at most so much more noise than sampling
SEPARATED = 3.0  # standard deviations of the log odds, likewise
LARGEST_CUT = 4.0  # of a level's mean count over the most that products take
SCATTERED = 2.0  # variance of counts over a Poisson distribution's, where the verdict says so


@dataclasses.dataclass(frozen=True, repr=False)
class NewtonResult(OfCoefficients, Released, what="private Newton fit"):
    """The posterior of a regression: privacy noise and sampling noise are both in it. Everything in it is covered by `statement`.

    Attributes:
        mean: Posterior mean of intercept and weights, (feature + 1,), in the units of the fitted
            features. Of classes those of each class, one after another, here and in the next three;
            they sum to zero over the classes.
        covariance: Their posterior covariance. Intervals come from these two.
        predictive: Draws of intercept and weights to predict with, (draw, feature + 1): where the
            noise hides a coefficient they are drawn to 0.
        learned: For each, the share of the prior's variance that is gone; where it is small, the
            prior decides.
        kept: `Diagnosis` of the fit, as are the next three.
        ratio: As above.
        moved: As above.
        lack: As above.
        unseen: True for features whose spread the noise hides, (feature,). Their priors allow for a
            small one: a seventh of the root of their mean square. For a smaller one their
            intervals, and that of the intercept, may be too narrow.
        mean_squares: Released mean square of each feature, (feature,): of a 0/1 column about its
            share. Rows count by the inverse of their squared length.
        counted: Share of the records that count, by a noisy sum; 1 where the plan leaves none out.
        dispersion: For counts, k of a negative binomial, by a noisy histogram: variance m + m^2 /
            k. NaN otherwise.
        dispersion_range: Its 90 % interval, low and high, between 2^-4.25 and 2^5.75; NaN as above.
        plan: The plan of the fit.
        statement: The privacy statement.
    """

    mean: Float[np.ndarray, " feature+1"]
    covariance: Float[np.ndarray, "feature+1 feature+1"]
    predictive: Float[np.ndarray, "draw feature+1"]
    learned: Float[np.ndarray, " feature+1"]
    kept: float
    ratio: float
    moved: float
    lack: float
    unseen: Bool[np.ndarray, " feature"]
    mean_squares: Float[np.ndarray, " feature"]
    counted: float
    dispersion: float
    dispersion_range: Float[np.ndarray, " 2"]
    plan: NewtonPlan
    statement: Statement

    @property
    def dropped(self) -> Share:
        """Share of the records that do not count, with the standard error of its noise."""
        # The release has two numbers, and with survey weights four.
        noise = self.plan.noise(SIZES) * np.sqrt(4 if self.plan.weighted else 2)
        return Share(1 - self.counted, float(noise) / self.plan.num_records)

    @property
    def estimate(self) -> Float[np.ndarray, "feature+1 *class"]:
        """Intercept and weights to predict with: the mean of `predictive`."""
        intercept, weights = self._named(self.predictive.mean(axis=0, keepdims=True)).values()
        return np.concatenate([intercept[:, None], weights], axis=1)[0]

    @property
    def to_predict(self) -> dict[str, np.ndarray]:
        """Draws of `intercept` and `weights` to predict with; of counts the estimate alone, as exp of a wide draw explodes."""
        draws = self.predictive
        if self.plan.family == COUNTS:
            draws = draws.mean(axis=0, keepdims=True)
        return self._named(draws)

    def family_of(self, family: str | None) -> str:
        """As there."""
        own = _FAMILIES[self.plan.family]
        return choice(
            "family", own[0] if family is None else family, own, hint="The fit is of such a target."
        )

    def _second(
        self, family: str | None, rng: np.random.Generator | None = None, drawn: Any = None
    ) -> np.ndarray | None:
        """The dispersion; its draws are log-normal on each side of the estimate, with its interval."""
        if family != "negative_binomial":
            return None
        if rng is None:
            return np.asarray(self.dispersion)
        middle = math.log(self.dispersion)
        z = rng.standard_normal(len(drawn["intercept"])) / ndtri(ENDS[1])
        low, high = np.log(self.dispersion_range)
        return np.exp(middle + z * np.where(z < 0, middle - low, high - middle))

    @property
    def _num_classes(self) -> int:
        return self.plan.num_classes if self.plan.family == CLASSES else 1

    @property
    def converged(self) -> bool:
        """True if more gradients would hardly move the estimate, and agree with the curvature."""
        return is_settled(self.moved, self.lack)


class _Releases:
    """The records and their certified programs; each call is one release, with a key of its own."""

    def __init__(
        self, table: Sequence[np.ndarray], plan: NewtonPlan, act: Act, saved: SavedReleases
    ) -> None:
        outputs = (plan.outputs,) if plan.family == CLASSES else ()
        sums = tuple(dict.fromkeys((kind, rows) for kind, rows, _, _ in plan.releases))
        wide = plan.num_features
        # Of many columns few are filled up, and with the constant they are whole vectors of a
        # processor.
        layout = layout_for(
            table, rounded_up(wide) if wide < _MANY else rounded_up(wide + 1, 4) - 1
        )
        made_for = RegressionSums(layout, plan.relation, act.reproducible, outputs, sums)
        apart = plan.pilot < 1 or not made_for.are_little(plan.num_records)
        self._parts = parts = Parts(
            table, layout, apart=apart, again=True, processes=saved.processes
        )
        self._pilot = parts
        if plan.pilot < 1 and not saved.is_done:
            drawn = saved.coins(len(table[0])) < plan.pilot * COINS
            sample = [array[drawn] for array in table]
            self._pilot = Parts(
                sample, layout, apart=apart, again=True, processes=saved.processes, like=parts
            )
        size = plan.num_features + 1
        nowhere = Public(np.eye(size), np.zeros(size * plan.outputs))
        proved = (
            program_of((x.kind, x.rows), x.noise, parts.last_turns, made_for) for x in plan.releases
        )
        times = [release.count for release in plan.releases]
        programs = saved.programs(act, proved, nowhere, parts, times=times)
        self._saved = saved
        names = [(kind, rows, noise) for kind, rows, noise, _ in plan.releases]
        self._programs = dict(zip(names, programs, strict=True))

    def __call__(
        self, kind: str, rows: str, noise: float, public: Public, *, pilot: bool
    ) -> np.ndarray:
        """One release, of the pilot sample or of all records."""
        parts = self._pilot if pilot else self._parts
        return self._saved.release(self._programs[kind, rows, noise], public, parts)


@one_release
def fit_newton(
    rng_key: PRNGKeyArray,
    x: Float[np.ndarray, "record *row feature"],
    y: Float[np.ndarray, "record *row"],
    plan: NewtonPlan,
    *,
    mask: Bool[np.ndarray, "record row"] | None = None,
    weights: Float[np.ndarray, "record *row"] | None = None,
    levels: Bool[np.ndarray, " feature"] | None = None,
    names: Sequence[str] | None = None,
    known: Float[np.ndarray, " feature"] | None = None,
    person: str | None = None,
    ledger: Ledger | None = None,
    checkpoint: Path | str | None = None,
    progress_bar: bool = False,
    mesh: Mesh | None = None,
) -> NewtonResult:
    """Fit a logistic, a multinomial or a Poisson regression to noisy sums: a posterior with honest intervals, without settings.

    Guarantee: all that is returned is `plan.event()`, under the plan's relation, but for its
    `slack`. Each release is proved to be its part of that before it runs. Sums are exact, since
    rows are rounded to a grid.

    The prior of a weight is Normal(0, (2.5 / s)^2) for a column with standard deviation s (1 / s
    for counts), Normal(0, 2.5^2) for a 0/1 level, and that of the intercept, at the features' mean,
    Normal(0, 5^2) (3^2).

    Args:
        rng_key: `discreet.random.key()`, for this fit alone.
        x: Features in [-1, 1]; a memory map is read a few times, for each release before the
            gradients. With the plan's `max_rows` above 1, a record is a person with an axis of so
            many rows; then the intervals hold whether or not a person's rows are independent.
        y: 0 or 1; or counts; or classes, 0 to the plan's num_classes - 1.
        plan: The plan of the fit.
        mask: With `max_rows` above 1, True for the rows that a person has; if the plan `drops`, for
            the records that are used. What other rows hold has no effect. None: all.
        weights: If the plan is `weighted`, survey weights over the largest that one may have, a
            public number: in [0, 1]. The coefficients are then those of the population. The noise
            grows as that number over the mean weight.
        levels: True for columns that are 0/1 levels by the schema, whose priors are not widened.
            None: those that may be, by the released moments.
        names: Names of the features, for the verdict's words; public. None: x[:, 0] and so on.
        known: Weights that are not fitted, as 1 of an offset; NaN of those that are. Public, and
            not for classes. None: all are fitted.
        person: Name of the column that identifies persons, if each record is all that one person
            has; needed with `max_rows` above 1.
        ledger: The table's budget, debited before the first release.
        checkpoint: Folder from which the same call continues, to the same bits, if the process
            dies. Keep it secret.
        progress_bar: Show progress after two seconds.
        mesh: Devices along one axis, of all processes, which share the work. Each is given the
            whole table, in arrays or a memory map, reads its own parts, and sums on its first
            device; see docs/scale.md.

    Returns:
        The posterior.

    Raises:
        ValueError, TypeError: Wrong input, before anything is spent.
        SpentError: The ledger does not hold it.
        PrivacyError: A release could not be proved.
        UseWarning: A warning, where the noise hides the model; as an error it has the fit as
            `partial_result`.

    >>> import numpy as np, discreet as dp
    >>> from discreet.methods.newton import NewtonPlan, fit_newton
    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(-1, 1, (20_000, 2))
    >>> y = rng.random(20_000) < 1 / (1 + np.exp(-x @ [2.0, -1.0]))
    >>> plan = NewtonPlan.calibrate(epsilon=1.0, delta=1e-6, family="binary", num_features=2, num_records=20_000)
    >>> found = fit_newton(dp.random.key(), x, y, plan)
    >>> bool(np.abs(found.mean - [0, 2, -1]).max() < 0.4)
    True

    References:
        Avella-Medina, Bradshaw and Loh, Differentially private inference via noisy optimization,
        Ann. Stat. 2023, for noisy Newton steps with weights of the features; Bernstein and Sheldon,
        NeurIPS 2019, for both noises in one likelihood.
    """
    with joined(mesh, checkpoint) as processes:
        with processes.together():
            key = random.check_key(rng_key)
            table = _checked(x, y, mask, weights, levels, plan)
            names = names_of(names, plan)
            given = _known(known, plan)
        saved = SavedReleases(checkpoint, key, plan, processes)
        levels_told = None if levels is None else np.asarray(levels).tolist()
        options = str((person, levels_told, *([] if known is None else given.tolist())))
        saved.describe(plan=repr(plan), options=options, records=saved.digest(table))
        act = saved.act(ledger, unit=Unit(person, plan.max_rows))
        with jax.enable_x64(True):
            records = _Releases(table, plan, act, saved)
            shown = progress_bar and processes.first
            bar = tqdm(total=NUM_GRADIENTS, desc="Newton", delay=2.0, disable=not shown)
            with saved.begun(act), bar:
                found = _Newton(records, plan, levels, given).run(bar)
                stated = saved.stated(act)
                result = found.result(np.random.default_rng(saved.words), stated, names)
    warn_of_use(result, stated)
    return result


def names_of(names: Sequence[str] | None, plan: NewtonPlan) -> list[str]:
    """The features' names, or the columns of x; refused if they are not one for each feature."""
    if names is None:
        return [f"x[:, {place}]" for place in range(plan.num_features)]
    if isinstance(names, str) or len(names) != plan.num_features:
        raise ValueError(f"names must be {plan.num_features} texts, one for each feature; or None.")
    return [str(name) for name in names]


def _known(known: Any, plan: NewtonPlan) -> Float[np.ndarray, " feature"]:
    """The weights that are known, and NaN of the others."""
    if known is None:
        return np.full(plan.num_features, np.nan)
    found = np.asarray(known, np.float64)
    if found.shape != (plan.num_features,) or np.isinf(found).any() or plan.family == CLASSES:
        raise ValueError(
            f"known must be {plan.num_features} finite numbers, one for each feature and NaN of those that are fitted, and the "
            "family not classes; or None."
        )
    return found


def _checked(
    x: Any, y: Any, mask: Any, weights: Any, levels: Any, plan: NewtonPlan
) -> list[np.ndarray]:
    """Features, targets, which rows there are and, if they have any, survey weights; each with an axis of rows."""
    if any(isinstance(array, InFiles) for array in (x, y, mask, weights)):
        raise ValueError(IN_SHARDS)
    features = unmasked("x", x)
    target = floats("y", y)
    rows = (plan.max_rows,) * (plan.max_rows > 1)
    wanted = ", ".join(["record", *(f"{size} rows" for size in rows)])
    if levels is not None and (
        np.shape(levels) != (plan.num_features,) or np.asarray(levels).dtype != bool
    ):
        raise ValueError(
            f"levels must be {plan.num_features} Booleans, one for each feature; or None."
        )
    shaped = features.ndim == 2 + len(rows) and features.shape[1:] == (*rows, plan.num_features)
    if not shaped or features.dtype.kind not in "iufb":
        raise ValueError(
            f"x has the shape {features.shape} and dtype {features.dtype}: pass numbers, ({wanted}, {plan.num_features}), as in "
            "the plan."
        )
    if target.shape != features.shape[:-1] or not len(features):
        each = "each row" if rows else f"each of the {len(features)} records"
        raise ValueError(f"y has the shape {target.shape}: pass one target for {each}, ({wanted}).")
    present = np.ones(target.shape, bool) if mask is None else np.asarray(mask)
    if (
        (mask is not None and not rows and not plan.drops)
        or present.shape != target.shape
        or present.dtype != bool
    ):
        raise ValueError(
            "mask must be a Boolean for each row of each person, or for each record if the plan drops some; else None."
        )
    plan.check_size(len(features))
    allowed = (target >= 0) & (target == np.round(target))
    allowed &= (plan.family == COUNTS) | (target < plan.num_classes)
    if not allowed[present].all():
        most = "1" if plan.num_classes == 2 else f"a whole number up to {plan.num_classes - 1}"
        what = "whole numbers of at least 0" if plan.family == COUNTS else f"0 or {most}"
        raise ValueError(f"y has values that are not allowed: each must be {what}.")
    shape = len(target), plan.max_rows
    table = [features.reshape(*shape, -1), target.reshape(shape), present.reshape(shape)]
    survey = survey_weights(weights, plan.weighted, target.shape, present)
    return table if survey is None else [*table, survey.reshape(shape)]


class _Newton:
    """The state of a fit: all of it follows from releases and public numbers."""

    def __init__(
        self,
        records: _Releases,
        plan: NewtonPlan,
        levels: np.ndarray | None,
        known: Float[np.ndarray, " feature"],
    ) -> None:
        self.plan = plan
        self.records = records
        self.levels = levels
        self.fitted = np.isnan(known)
        self.known = np.append(0.0, np.where(self.fitted, 0.0, known))
        self.counts: Counts | None = None
        self.points: list[Vector] = []
        self.values: list[Vector] = []
        self.since = 0  # gradients of the present curvature
        self.drawn = 0.0  # variance of its entries from which records it is of
        size = plan.num_features + 1
        self.nowhere = Public(np.eye(size), np.zeros(size * plan.outputs))
        self._count_rows()
        self._map()
        self._weigh()

    def _of_pilot(
        self, kind: str, rows: str, share: float, public: Public
    ) -> tuple[np.ndarray, float]:
        """A sum over the pilot sample, over its share of the records, and the standard deviation of its noise."""
        plan = self.plan
        noise = plan.noise(share)
        found = self.records(kind, rows, noise, public, pilot=plan.pilot < 1)
        return found / plan.pilot, noise / plan.pilot

    # The map of the features.

    def _map(self) -> None:
        plan = self.plan
        size = self.plan.num_features + 1
        whole = plan.num_records * self.mean_weight * min(self.mean_rows, 1.0)
        nowhere = self.nowhere
        squares, sigma = self._of_pilot("total", "squares", SQUARES, nowhere)
        self.mean_squares = squares[1:] / max(squares[0], 2 * sigma)
        scale = np.sqrt(whole / np.maximum(squares, 2 * sigma))
        seen, sigma = self._of_pilot(
            "products", "directions", DIRECTIONS, nowhere._replace(to=np.diag(scale))
        )
        values, vectors = spectrum(seen, sigma, max(2 * sigma, 1e-3 * np.trace(seen) / size))
        self.fill = np.clip(np.einsum("ij,ik,kj->j", vectors, seen, vectors) / values, 0.02, 1)
        # x_0 = 1, so seen_00 / scale_0^2 is the sum of 1 / |z|^2; features lie in [-1, 1], so |z|^2
        # is at most sum(scale^2).
        longest = np.square(scale).sum()
        length = whole / max(seen[0, 0] / scale[0] ** 2, whole / longest)
        self.to = scale[:, None] * vectors / np.sqrt(values / whole) * 2 / np.sqrt(length)
        self.back = np.linalg.inv(self.to)
        # All that follows is of the coordinates in which the known weights do not change.
        fixed = self.to[1:][~self.fitted]
        self.free = np.kron(np.eye(plan.outputs), null_space(fixed) if len(fixed) else np.eye(size))
        moments = (self.back.T * self.fill) @ self.back
        self.prior, self.stated_prior = self._priors_of(moments / moments[0, 0], sigma / whole)

    def _priors_of(self, moments: Matrix, sigma: float) -> tuple[Prior, Prior]:
        """The prior of steps and predictions, and the one of intervals. Scales follow the columns' standard deviations.

        Where the noise hides one, the first stays narrow, and the second is as wide as for a small
        one.
        """
        plan = self.plan
        weight, intercept = PRIOR[plan.family]
        centre = np.clip(moments[0], -1, 1)
        squares = np.diag(moments)[1:]
        hidden = np.clip(sigma * len(moments), 0.003, 1)
        left = 1 - np.square(centre[1:]) / squares
        spread = np.sqrt(np.clip(squares * np.clip(left, hidden, 1), 1e-4, 1))
        self.unseen = left <= STANDS_OUT * hidden
        levels = self.levels
        if levels is None:
            # A column of 0 and 1 has the same mean and mean square. One that may be such keeps the
            # narrow prior.
            noise = STANDS_OUT * sigma * len(moments) * np.sqrt(squares)
            levels = np.abs(moments[0, 1:] - squares) <= noise
            self.unseen |= levels & (moments[0, 1:] <= noise)
        else:
            self.unseen &= ~np.asarray(levels, bool)
        self.unseen &= self.fitted
        spread = np.where(levels, 1.0, spread)
        self.centre, self.lowest = centre, np.where(levels, 0.0, -1.0)
        self.sure_levels = levels & ~self.unseen & self.fitted
        small = np.sqrt(np.maximum(HIDDEN_SPREAD * squares, 1e-4))
        least = np.where(self.unseen & ~np.asarray(levels, bool), np.minimum(spread, small), spread)
        own = np.append(True, self.fitted)
        to = self.to[own] @ self.free if len(own) > own.sum() else self.to
        steps, stated = (
            Prior.of(intercept, weight / x[self.fitted], centre[own], to, plan.outputs)
            for x in (spread, least)
        )
        return steps, stated

    # How far long rows count, and where residuals are cut.

    def _count_rows(self) -> None:
        """The rows of a record on average, and of the record that a row is of: those with many have many of all rows.

        The same of weights.
        """
        plan = self.plan
        self.mean_rows = self.typical_rows = 1.0
        weights = SurveyWeights()
        if plan.sizes:
            sigma = plan.noise(SIZES)
            seen = self.records("total", plan.sizes, sigma, self.nowhere, pilot=False)
            means = np.maximum(seen * np.sqrt(len(seen)), sigma) / plan.num_records
            share, square = means[:2]
            if plan.max_rows > 1:
                self.mean_rows = float(np.clip(plan.max_rows * share, 1, plan.max_rows))
                self.typical_rows = float(
                    np.clip(plan.max_rows * square / share, self.mean_rows, plan.max_rows)
                )
            else:
                self.mean_rows = float(min(share, 1.0))
            if plan.weighted:
                weights = SurveyWeights.of(means[2], means[3], 2 * sigma / plan.num_records, share)
        self.mean_weight, self.typical_weight, self.weights_hidden = weights
        # Of weight 1.
        self.num_rows = plan.num_records * self.mean_rows * self.mean_weight

    def _weigh(self) -> None:
        plan = self.plan
        size = len(self.to)
        most_rows = plan.max_rows
        self.length = 2 * np.sqrt(self.fill.sum() * self.typical_rows)
        self.cut = 1.0
        self.bias = 0.0
        variance = 0.15
        start = 0.25
        self.theta = np.zeros(self.free.shape[1])
        if plan.family == CLASSES:
            # The length of e_y - p, and the largest eigenvalue of its covariance.
            self.cut = np.sqrt(2)
            variance = 0.6 / plan.num_classes
            start = 0.5
        if plan.family == COUNTS:
            sigma = plan.noise(HISTOGRAM)
            bins = self.records(*plan.histogram, sigma, self.nowhere, pilot=False)
            times = most_rows / self.mean_weight
            # A row counts by its weight, and a person's rows may all have the same count.
            scatter = self.typical_rows * self.typical_weight / self.mean_weight
            self.counts = counts = Counts(bins * times, sigma * times, scatter)
            self.first_mean = counts.mean
            # The cut bias of a row against the noise, which is that of a record.
            more = np.sqrt(most_rows * self.typical_rows) / self.mean_weight
            self.cut = counts.reach(
                np.sqrt(size / plan.gradient_share) * plan.noise_multiplier * more
            )
            variance = counts.mean * (1 + counts.mean / counts.dispersion)
            start = 2 * counts.mean
            start_at = np.log(counts.mean) - self.centre @ self.known
            self.theta = self.free.T @ self.back[:, 0] * start_at
        noise = plan.noise_multiplier / np.sqrt(plan.gradient_share / most_rows)
        # Where the model does not hold, the fit moves by what long rows do not count. So the reach
        # is as long as the noise, which grows with it, allows: half of the sampling's at 1, at most
        # 0.7, and an eighth beyond `far`.
        room = np.sqrt(self.num_rows * self.typical_weight * variance) / (
            self.length * self.cut * noise
        )
        least, far, farthest = _REACH[plan.family]
        self.times = float(np.clip(room * max(room, 1.0), least, np.clip(room / 4, far, farthest)))
        if plan.family == BINARY:
            # Of the noise over sampling's. Estimates have at most 1.05 times the least variance that
            # any bound gives, whatever the spread of log odds, and down to a quarter of that of 1.
            self.cut = max(1 / (1 + max(self.times, 1.0) / (2 * room)), 0.5)
        self.weight = min(self.times, 1.0)  # of a typical row
        self.reach = self.times * self.length
        self.bound = self.cut * self.reach * np.sqrt(most_rows)
        self.most = 4 * self.num_rows * self.weight * start
        self.curvature = self._freed(self.most * np.diag(np.tile(self.fill, plan.outputs)))
        self.sampling = self.weight * self.typical_weight * self.curvature
        self.measured_at = self.theta
        self.rows = self._normal_rows() if plan.family == BINARY else None
        if self.counts is not None:
            lost = SHARE_LOST * self.mean_weight * self.counts.excess(self.cut)
            self.bias = lost * self.reach / np.sqrt(self.typical_rows)
            self.shift = self.counts.shift(self.cut)

    def _normal_rows(self) -> NormalRows:
        """A normal distribution with the rows' moments."""
        constant = self.back[:, 0]
        moments = 4 * self.fill
        mean = moments * constant / (moments @ constant**2)
        covariance = np.diag(moments) - np.outer(moments * constant, mean)
        known = self.back @ self.known
        way = covariance @ known
        return NormalRows(
            self.free.T @ mean,
            self._freed(covariance),
            float(mean @ known),
            self.free.T @ way,
            float(known @ way),
        )

    def _along(self, theta: Vector) -> Along | None:
        return None if self.rows is None else self.rows.along(theta)

    def _held_back(self) -> Bool[np.ndarray, " feature"]:
        """Features with bounds so far from their mean that a row there counts less than half, were all others at their mean."""
        middle = self.centre @ self.to
        way = np.maximum(1 - self.centre[1:], self.centre[1:] - self.lowest)
        lengths = np.linalg.norm(middle + way[:, None] * self.to[1:], axis=1)
        return 2 * self.reach < lengths

    def _whole(self, theta: Vector) -> Vector:
        """A point in the coordinates of the releases, with the known weights."""
        return self.free @ theta + np.tile(self.back @ self.known, self.plan.outputs)

    def _freed(self, matrix: Matrix) -> Matrix:
        """A matrix of the releases, in the free coordinates: these are orthonormal, so its noise is of the same law."""
        return self.free.T @ matrix @ self.free

    def _public(self, reach: float, most_curvature: float = 1.0) -> Public:
        public = Public(self.to, self._whole(self.theta), reach, most_curvature, self.cut)
        return (
            public
            if self.counts is None
            else public._replace(shift=self.shift.shift, factor=self.shift.factor)
        )

    # Steps.

    def run(self, bar: Any) -> _Newton:
        """All gradients; the curvature on the way."""
        plan = self.plan
        kind = "total", f"residual of {plan.family}"
        for step in range(NUM_GRADIENTS):
            if step in AT:
                self._measure(AT.index(step))
            public = self._public(self.reach)
            sampling = self.sampling
            if step < plan.num_pilot:
                found, noise = self._of_pilot(*kind, PILOT / plan.num_pilot, public)
                sampling = sampling / plan.pilot
            else:
                noise = plan.noise(plan.gradient_share / (NUM_GRADIENTS - plan.num_pilot))
                found = self.records(*kind, noise, public, pilot=False)
            if step == plan.num_pilot:
                # The sampling noise of those before is another one.
                self.points = []
                self.values = []
                self.since = 0
            self.points.append(self.theta)
            self.values.append(self.free.T @ found * self.bound)
            self.sigma = noise * self.bound
            gradients = self.gradients
            bend = self.bend(self.curvature, sampling) if step < 3 else self.improved(sampling)
            guess, self.spread, _ = settle(
                gradients,
                bend.curvature,
                sampling,
                self.prior,
                self.theta,
                num_scales=len(SCALES),
                **self._of_step(bend, gradients),
            )
            way = guess - self.theta
            # A length of 1 in theta is two standard deviations of the predictor.
            self.last, self.theta = (
                guess,
                self.theta + way * min(1.0, LARGEST_STEP / max(2 * np.linalg.norm(way), 1e-9)),
            )
            bar.update(1)
        return self

    @property
    def gradients(self) -> Gradients:
        """Those released so far."""
        return Gradients(np.array(self.points), np.array(self.values), self.sigma)

    def _of_step(self, bend: Bend, gradients: Gradients) -> dict[str, Any]:
        """Rounds, trust and what changes on the way, of `settle`."""
        if self.rows is None:
            return {"rounds": 4}
        near = functools.partial(bend.near, gradients=gradients, inward=True)
        return {"rounds": STEP_ROUNDS, "trust": STEP_TRUST, "near": near}

    def bend(self, curvature: Matrix, sampling: Matrix) -> Bend:
        """A curvature at the point where it was measured, and elsewhere."""
        return Bend(self.rows, self.measured_at, curvature, sampling)

    def improved(self, sampling: Matrix) -> Bend:
        """The curvature with what the gradients since it was measured say about it: earlier ones saw another one."""
        points = np.array(self.points[self.since :])
        later = Gradients(points, np.array(self.values[self.since :]), self.sigma)
        near = self.bend(self.curvature, sampling).near(points[-1], later)
        values = np.linalg.eigvalsh(near.curvature)
        most = max(self.most, float(values[-1]))
        least = LEAST_CURVATURE * self.most
        along = self._along(points[-1])
        if along is not None:
            least = min(least, 0.3 * float(values[0]))
        curvature = secant(near.curvature, near.gradients, least, most, along)
        return Bend(self.rows, points[-1], curvature, near.sampling)

    def _surely(self) -> Matrix:
        """The curvature of intervals; where the noise hides columns' spreads, less in directions in which it may be noise.

        There intervals would be as narrow as if records said so much.
        """
        if not self.unseen.any():
            return self.uncertain
        return sure_part(self.uncertain, DOUBTED_NOISE * self.measured[1])

    def _measure(self, which: int) -> None:
        """The curvature at the present point; of counts the spread of the gradients, too, at the last one."""
        plan = self.plan
        self.since = len(self.points)
        before_at, self.measured_at = self.measured_at, self.theta
        most = 0.25 if plan.family != CLASSES else 1 - 1 / plan.num_classes
        if self.counts is not None:
            spread = min(1.5, self._spread_of_predictor(self.theta))
            most = self.first_mean * np.exp(2 * spread)
            self.counts.fit(spread)
            self.shift = self.counts.shift(self.cut)
        # The noise of products grows with the reach's square, so theirs is shorter. A typical row
        # has its weight squared there.
        times = min(self.times, max(1.25, self.times / 1.6))
        reach = times * self.length
        unit = most * reach**2 * self.weight / min(times, 1.0) ** 2
        found, noise = self._of_pilot(
            "products",
            f"curvature of {plan.family}",
            CURVATURES[which],
            self._public(reach, most),
        )
        raw = unit * self._freed(found)
        sigma = noise * unit
        # A record's products have a norm of at most `unit`, and those of all this trace.
        self.drawn = (1 / plan.pilot - 1) * unit * abs(np.trace(raw)) / len(raw) ** 2
        expected = Bend(self.rows, before_at, self.curvature, self.sampling).curvature_at(
            self.theta
        )
        along = self._along(self.theta)
        if which == 0:
            share = np.clip(np.trace(raw) / (self.most * self.fill.sum() * plan.outputs), 0.02, 4)
            self.least = 0.05 * share * self.most
            if self.counts is not None:
                self.most *= 20 * share
        else:
            # The first one, scaled, counts as far as it is near: what changed by so much on average
            # may have changed by so much in shape.
            turned = np.eye(len(raw)) if self.rows is None else between(self.curvature, expected)
            before = turned @ self.measured[0] @ turned
            again = np.clip(np.trace(raw) / np.trace(turned @ self.products @ turned), 0.1, 3)
            in_all = np.clip(np.trace(raw) / np.trace(self.products), 0.1, 3)
            self.least *= min(in_all, 1.0)
            before, its_sigma = again * before, in_all * self.measured[1]
            changed = in_all * (1 - in_all) * np.trace(self.products) / len(raw)
            part = sigma**2 / (sigma**2 + its_sigma**2 + changed**2)
            raw = raw + part * (before - raw)
            sigma *= np.sqrt(1 - part)
        self.measured = raw, sigma

        # Where the noise hides directions, steps are best by one mean curvature. Intervals must not
        # believe it.
        def by_mean(raw: Matrix) -> Matrix:
            return rebuilt(
                raw, lambda values: np.clip(gathered(values, sigma), self.least, self.most)
            )

        def seen(raw: Matrix) -> Matrix:
            values, vectors = spectrum(raw, sigma, self.least, farthest=0.0)
            return (vectors * np.minimum(values, self.most)) @ vectors.T

        self.products, uncertain = (
            rule(raw) if along is None else along.denoised(raw, sigma, expected, rule)
            for rule in (by_mean, seen)
        )
        self.sampling = self.weight * self.typical_weight * self.products
        self.curvature = self._of_levels(self.products, reach, most)
        self.uncertain = self._of_levels(uncertain, reach, most)
        if plan.measures_spread and which == len(CURVATURES) - 1:
            self._measure_sampling()

    def _of_levels(self, products: Matrix, reach: float, most: float) -> Matrix:
        """The curvature of gradients, in which rows have their weight, from products, in which they have its square.

        What matters are the rows of a rare level, which are all long, and, of counts, whose means
        are cut at `most` where its effect is strong: of these both are undone. Their products are,
        but for how other features vary among them, those of the level's own row. What of these may be
        noise is left as it is.
        """
        noise = np.sqrt(len(products)) * self.measured[1]  # of the row that is undone
        point = self._whole(self.theta)
        middle = self.centre @ self.to
        found = products.copy()
        for place in 1 + np.flatnonzero(self.sure_levels):
            way = (1 - self.centre[place]) * self.to[place]
            length = np.hypot(np.linalg.norm(middle + way), self.length)
            more = max(length / reach, 1.0)
            if self.counts is not None:
                more *= np.clip(np.exp((middle + way) @ point) / most, 1.0, LARGEST_CUT)
            own = self.free.T @ np.kron(np.eye(self.plan.outputs), self.back[:, [place]])
            rows = products @ own
            more *= max(1 - noise * np.sum(own * own) / np.sum(own * rows), 0.0)
            found += max(more - 1, 0.0) * rows @ np.linalg.solve(own.T @ rows, rows.T)
        return found

    def _spread_of_predictor(self, theta: Vector) -> float:
        """Standard deviation of the predictor over the records, at a point."""
        theta = self._whole(theta)
        constant = self.back[:, 0]
        along = (self.fill * theta * constant).sum() ** 2 / (self.fill * constant**2).sum()
        return float(2 * np.sqrt(max((self.fill * theta**2).sum() - along, 0.0)))

    def _measure_sampling(self) -> None:
        """Real counts vary more than Poisson's, and rows of a person less than others': the second moment of the gradients."""
        plan = self.plan
        size = len(self.theta)
        noise = plan.noise(RESIDUALS)
        unit = self.bound**2
        raw = unit * self._freed(
            self.records(
                "products",
                f"residual of {plan.family}",
                noise,
                self._public(self.reach),
                pilot=False,
            )
        )
        times = max(np.trace(raw) / np.trace(self.sampling), 1.0)
        least = 0.1 * times * np.trace(self.sampling) / size
        rest = rebuilt(raw - times * self.sampling, lambda values: soft(values, noise * unit))
        self.sampling = rebuilt(
            times * self.sampling + rest, lambda values: np.maximum(values, least)
        )

    # The posterior.

    def result(
        self, rng: np.random.Generator, statement: Statement, names: Sequence[str]
    ) -> NewtonResult:
        """Two priors on one likelihood: the stated one for intervals, one of unknown scales for predictions."""
        plan = self.plan
        size = len(self.theta)
        bend = self.improved(self.sampling)
        curvature = bend.curvature
        gradients = self.gradients
        error = 1 / (self.measured[1] ** -2.0 + 1 / (0.1 * np.trace(curvature) / size) ** 2)
        error += self.drawn

        along = self._along(self.last)

        def extra(distance: Vector, spread: Vector) -> Matrix:
            if along is not None:
                errors = along.errors(error, curvature)
                there = np.square(along.basis).T @ (distance + spread)
                return (along.basis * (errors @ there)) @ along.basis.T
            return (self.bias**2 / size + error * float((distance + spread).sum())) * np.eye(size)

        likely, _, found = settle(
            gradients,
            curvature,
            self.sampling,
            self.prior,
            self.last,
            num_scales=4,
            rounds=20,
            extra=extra,
            spread=np.diag(self.spread),
            near=None
            if self.rows is None
            else functools.partial(bend.near, gradients=gradients, inward=True),
        )
        draws = self.prior.draws(found.likelihood, rng)
        mean, covariance = self._stated(likely, found.more)
        ones = self.free.T @ np.kron(np.eye(plan.outputs), self.back[:, :1])
        middle = draws.mean(axis=0)
        last = bend.near(middle, gradients)
        noise = found.noise + found.extra
        halfway = bend.curvature_at(middle / 2)
        said = diagnose(last.gradients, last.curvature, last.sampling, noise, draws, ones, halfway)
        to = self.to if plan.family != CLASSES else np.kron(plane(plan.num_classes), self.to)
        to = to @ self.free
        covariance = to @ covariance @ to.T
        before = np.diag(to @ np.linalg.inv(self.stated_prior.matrix(1.0)) @ to.T)
        is_known = np.tile(np.append(False, ~self.fitted), len(to) // (plan.num_features + 1))
        learned = np.where(is_known, 1.0, 1 - np.diag(covariance) / np.where(is_known, 1.0, before))
        known = np.tile(self.known, len(to) // (plan.num_features + 1))
        # Of a feature with classes, that class of which most is learned.
        most_learned = learned.reshape(-1, plan.num_features + 1)[:, 1:].max(axis=0)
        unseen = [name for name, hidden in zip(names, self.unseen, strict=True) if hidden]
        order = sorted(range(len(names)), key=most_learned.__getitem__)
        unlearned = [names[place] for place in order if most_learned[place] < LEARNED]
        # By the end of the interval that is nearest to a Poisson distribution. Noise in the spread
        # of means may still move it.
        scatter = 1.0 if self.counts is None else 1 + self.counts.mean / self.counts.plausible[1]
        held_back = [name for name, far in zip(names, self._held_back(), strict=True) if far]
        apart = self._spread_of_predictor(draws.mean(axis=0)) if plan.family == BINARY else 0.0
        use = _use(said, unseen, unlearned, self.weights_hidden, scatter, held_back, apart)
        if is_known.any():
            told = zip(names, self.known[1:], self.fitted, strict=True)
            listed_ones = ", ".join(f"{name} {value:g}" for name, value, own in told if not own)
            statement = statement.with_public(f"Weights that are known: {listed_ones}")
        return NewtonResult(
            mean=known + to @ mean,
            covariance=covariance,
            predictive=known + draws @ to.T,
            learned=learned,
            unseen=self.unseen,
            mean_squares=self.mean_squares,
            counted=self.mean_rows if plan.drops and plan.max_rows == 1 else 1.0,
            dispersion=math.nan if self.counts is None else self.counts.dispersion,
            dispersion_range=np.full(2, math.nan) if self.counts is None else self.counts.plausible,
            **said._asdict(),
            plan=self.plan,
            statement=statement.with_use(*use),
        )

    def _stated(self, likely: Vector, more: Matrix) -> tuple[Vector, Matrix]:
        """Mean and covariance under the stated prior, from the likely point and the other noise there: of intervals."""
        gradients = self.gradients
        # Intervals rest on the curvature as measured: gradients on the way saw a larger one, which
        # would make them too narrow.
        surely = self.bend(self._surely(), self.sampling)
        prior = self.stated_prior.matrix(1.0)
        there = self._along(likely)

        def moved(around: Vector) -> Vector:
            """As far as the curvature may change: what the noise hides makes coefficients large, and so the curvature small."""
            if there is None:
                return likely
            way = there.basis[:, 0]
            most = OUTWARD * abs(way @ likely)
            return likely + np.clip(way @ (around - likely), -most, most) * way

        def near(around: Vector) -> Near:
            return surely.near(moved(around), gradients)

        def outward(around: Vector, noise: Matrix, sampling: Matrix) -> Vector:
            return surely.outward(moved(around), noise, sampling, prior)

        mean, covariance, _ = settle(
            gradients,
            surely.curvature,
            self.sampling,
            self.stated_prior,
            likely,
            rounds=20,
            trust=WARY,
            near=None if self.rows is None else near,
            outward=None if there is None else outward,
            extra=lambda distance, spread: more,
        )
        return mean, covariance


def _use(
    said: Diagnosis,
    unseen: Sequence[str] = (),
    unlearned: Sequence[str] = (),
    weights_hidden: bool = False,
    scatter: float = 1.0,
    held_back: Sequence[str] = (),
    apart: float = 0.0,
) -> tuple[str, str]:
    """The verdict on the use of the result, and the reason, from the releases.

    Args:
        said: How well the fit went.
        unseen: Names of the features whose spread the noise hides.
        unlearned: Names of those whose weights the prior decides, the least learned first.
        weights_hidden: True if the noise hides the mean of survey weights.
        scatter: Of counts, the variance over that of a Poisson distribution, as far as the
            histogram shows it.
        held_back: Names of the features by which a row may lie so far out that it counts less than
            half.
        apart: Of two classes, the standard deviation of the log odds over the records, as fitted.
    """
    if weights_hidden:
        return NOT_USABLE, WEIGHTS_HIDDEN
    if hides(said.kept, said.ratio):
        weights = f", which decides the weights of {listed(unlearned)}" if unlearned else ""
        return NOT_USABLE, (
            f"of what the features add to a constant, in log likelihood, the noise leaves about {100 * max(said.kept, 0):.0f} %. "
            f"Intervals rest on the prior (the statement has it){weights}. A larger epsilon, more records or fewer columns help"
        )
    if unseen:
        return (
            PREDICTION,
            f"the values of {listed(unseen)} differ so little, for their bounds, that the noise hides by how much. Intervals "
            "allow for little, so they are wide. A larger epsilon helps, as do narrower bounds, if known without the data; a "
            "rare category can be merged with another one",
        )
    if not is_settled(said.moved, said.lack):
        return (
            PREDICTION,
            "the gradients do not agree with the curvature that was measured, so intervals may be too narrow. Fewer columns, or "
            "narrower bounds for those that crowd at one end of them, may help",
        )
    if said.ratio > NOISY:
        return (
            PREDICTION,
            f"the noise makes intervals about {said.ratio:.2g} times as wide as without it",
        )
    by = ""
    most = ""
    if held_back:
        by = f", which the bounds of {listed(held_back)} allow,"
        most = ", most of all those of such columns"
    reason = (
        f"the intervals include the noise and that of sampling. Rows far from the others{by} count less; where the model does "
        f"not hold, that moves the coefficients{most}"
    )
    if apart > SEPARATED:
        reason += (
            f". The classes are nearly separated (log odds vary by about {apart:.2g} over the records): coefficients are then "
            "known badly, and the intervals of the largest ones may miss"
        )
    if scatter > SCATTERED:
        reason += (
            f". Counts may vary {scatter:.2g} times as much as a Poisson distribution's, which the intervals allow for. An exact "
            "negative binomial weighs rows otherwise: where the model does not hold, it has other coefficients"
        )
    return COEFFICIENTS, reason
