"""Scores of a fit on held-out records.

`private_metrics` makes one Gaussian release of sums over the held-out records. For classes: the
number of rows in each public bin of predicted probability, by class, and the sum of losses, each
clipped to a public bound. For numbers: sums of errors, squared errors, and the target's first two
moments, within public bounds. Accuracy, calibration, the area under the ROC curve and the
log-likelihood, or RMSE and R2, follow from them and cost nothing more. All summands are integers
(multiples of 2^-20 of a bound), so that sums depend neither on the order of the records nor on
their number. The program of the `Query` is given the last records, and the sums of all others.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import textwrap
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, cast

import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray
from numpy.typing import ArrayLike

from discreet._jax import one_release
from discreet._validate import LEVEL, finite_or_none, notebook_html, probability, unmasked
from discreet.privacy import random
from discreet.privacy.act import Act
from discreet.privacy.ledger import Ledger
from discreet.privacy.released import Released
from discreet.privacy.report import RECORD, Statement, Unit
from discreet.tabular.marginals import fieller
from discreet.tabular.scores._plan import ScorePlan
from discreet.tabular.scores._terms import (
    class_terms,
    noisy_sums,
    number_terms,
    places_of,
    predictions,
    rows_of_persons,
)

_DRAWS = 4000
EXCESS = 1.004
"""The noise on the grid of integers is up to so many times as large as planned."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A figure with two intervals, which hold with probability `level` each.

    Attributes:
        value: The estimate; NaN where the noise hides it.
        noise: Half the width of the interval for the exact figure of these rows, over the noise.
        sampling: The same for what chance in drawing the rows adds; NaN where the release does not
            tell.
        limits: Possible range of the figure.
        level: Level of the intervals.
    """

    value: float
    noise: float
    sampling: float
    limits: tuple[float, float]
    level: float

    @property
    def interval(self) -> tuple[float, float]:
        """The interval for the exact figure of the scored rows."""
        return self._around(self.noise)

    @property
    def population_interval(self) -> tuple[float, float]:
        """The interval for the figure of the population, if the rows are a random sample of it."""
        return self._around(math.hypot(self.noise, self.sampling))

    def _around(self, half: float) -> tuple[float, float]:
        low = self.value - half
        high = self.value + half
        if not math.isfinite(low + high):
            return self.limits
        return max(low, self.limits[0]), min(high, self.limits[1])

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        found: dict[str, Any] = {
            "value": self.value,
            "interval": self.interval,
            "level": self.level,
        }
        if not math.isnan(self.sampling):
            found["population_interval"] = self.population_interval
        return finite_or_none(found)


def _within_bins(bins: int) -> Float[np.ndarray, " bin"]:
    """Chance that of two rows of both classes in a bin, that of class 1 has the higher score, if predictions are calibrated.

    In the angle of the edges, rows lie evenly within a bin, so those of class 1 and 0 have the
    densities sin^2 and cos^2.
    """
    angle = np.pi / (2 * bins) * (np.arange(bins)[:, None] + np.linspace(0, 1, 201))
    ones = np.sin(angle[:, 1:] - np.pi / (800 * bins)) ** 2
    zeros = np.cos(angle[:, 1:] - np.pi / (800 * bins)) ** 2
    below = np.cumsum(zeros, axis=1) - zeros / 2
    return (ones * below).sum(axis=1) / ones.sum(axis=1) / zeros.sum(axis=1)


def _spread(rows: Float[np.ndarray, "*draw bin"]) -> Float[np.ndarray, "*draw bin"]:
    """How far the rows of each bin may be taken to lie evenly in it, from 0 to 1.

    It is 0 where its neighbours are empty, as ties leave them, and 1 where they have at least a
    quarter of its rows on average.
    """
    beside = np.concatenate([rows[..., 1:2], rows, rows[..., -2:-1]], axis=-1)
    return np.clip(np.nan_to_num(2 * (beside[..., :-2] + beside[..., 2:]) / rows), 0.0, 1.0)


def _figures(plan: ScorePlan, sums: Float[np.ndarray, "*draw sum"]) -> dict[str, np.ndarray]:
    """Every figure, of each vector of sums."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if not plan.classes:
            rows, error, square, target, target_square = np.moveaxis(sums, -1, 0)
            low, high = cast(tuple[float, float], plan.bounds)
            mse = np.maximum(square / rows, 0.0) * plan.largest_error**2
            variance = (
                np.maximum(target_square / rows - (target / rows) ** 2, 0.0) * (high - low) ** 2 / 4
            )
            return {
                "rows": rows,
                "mean_absolute_error": error / rows * plan.largest_error,
                "root_mean_squared_error": np.sqrt(mse),
                "r2": 1 - mse / variance,
            }
        cells = sums[..., :-1].reshape(*sums.shape[:-1], plan.bins, 2)
        rows = cells.sum(axis=(-1, -2))
        if plan.classes > 2:
            found = {"accuracy": cells[..., 1].sum(axis=-1) / rows}
        else:
            half = plan.bins // 2
            zeros = cells[..., 0]
            ones = cells[..., 1]
            within = 0.5 + _spread(zeros + ones) * (_within_bins(plan.bins) - 0.5)
            below = np.cumsum(zeros, axis=-1) - zeros * (1 - within)
            area = (ones * below).sum(axis=-1) / zeros.sum(axis=-1) / ones.sum(axis=-1)
            found = {
                "accuracy": (zeros[..., :half].sum(axis=-1) + ones[..., half:].sum(axis=-1)) / rows,
                "auc": area,
            }
        return {"rows": rows, **found, "log_likelihood": -sums[..., -1] / rows * plan.max_loss}


def _limits(plan: ScorePlan, name: str) -> tuple[float, float]:
    if name == "rows":
        return 0.0, math.inf
    if name == "log_likelihood":
        return -plan.max_loss, 0.0
    if name == "r2":
        return -math.inf, 1.0
    return 0.0, 1.0 if plan.classes else plan.largest_error


NO_AUC = (
    "No AUC with more than two classes: it would take bins of every class, and a row would change cells in all of them, so that "
    "all figures lost precision. For one class against the rest, score that column of the probabilities with y == class."
)


@dataclasses.dataclass(frozen=True)
class PrivateMetrics(Released, what="private scores"):
    """Private scores of a fit: a release. Whatever is computed from it costs nothing more. Made by `private_metrics`.

    Attributes:
        plan: The plan of the scores.
        sums: The noisy sums, in units of their bounds: for classes the counts of bins by class,
            then the losses.
        statement: The privacy statement.
        level: Level of the intervals.
    """

    plan: ScorePlan
    sums: Float[np.ndarray, " sum"]
    statement: Statement
    level: float = LEVEL

    @functools.cached_property
    def figures(self) -> Mapping[str, Estimate]:
        """All figures by name.

        For classes: rows, accuracy, auc (two classes), log_likelihood (mean over the rows, in nats,
        of the probability of their class, clipped at the plan's bound). For numbers: rows,
        mean_absolute_error, root_mean_squared_error, r2.
        """
        plan = self.plan
        rng = np.random.default_rng(0)
        noise = EXCESS * self.plan.noise
        at, around = (
            _figures(plan, x)
            for x in (self.sums, self.sums + noise * rng.normal(size=(_DRAWS, plan.width)))
        )
        chance = self._sampled(rng)
        hidden = bool(at["rows"] < 3 * noise * math.sqrt(2 * plan.bins if plan.classes else 1))
        # An area between two classes takes rows of both.
        one_class = plan.classes == 2 and min(self._cells().sum(axis=0)) < 3 * noise * math.sqrt(
            plan.bins
        )
        found = {}
        for name, value in at.items():
            limits = _limits(plan, name)
            hides = (hidden and name != "rows") or (one_class and name == "auc")
            value = math.nan if hides or not np.isfinite(value) else float(np.clip(value, *limits))
            half = self._half(around[name])
            found[name] = Estimate(value, half, chance.get(name, math.nan), limits, self.level)
        return found

    def _half(self, draws: np.ndarray) -> float:
        draws = draws[np.isfinite(draws)]
        return (
            float(np.quantile(np.abs(draws - np.median(draws)), self.level))
            if len(draws)
            else math.inf
        )

    def _sampled(self, rng: np.random.Generator) -> dict[str, float]:
        """Half widths over the drawing of the rows: their numbers in the cells are Poisson.

        A person's rows may all be alike, so persons with several rows count as if they were.
        """
        plan = self.plan
        alike = math.sqrt(self.plan.max_rows)
        if not plan.classes:
            rows, error, square = np.maximum(self.sums[:3], 1e-9)
            spread = (
                math.sqrt(max(square / rows - (error / rows) ** 2, 0.0) / rows) * plan.largest_error
            )
            return {
                "mean_absolute_error": alike * NormalDist().inv_cdf((1 + self.level) / 2) * spread
            }
        cells = np.maximum(self.sums[:-1], 0.0)
        middle = np.clip((plan.edges[:-1] + plan.edges[1:]) / 2, 1e-9, 1)
        off = np.stack([1 - middle, middle], axis=1)
        if plan.classes > 2:
            off[:, 0] /= plan.classes - 1
        # The loss in each cell, scaled so that all of them have the measured sum.
        losses = np.minimum(-np.log(off.reshape(-1)), plan.max_loss) / plan.max_loss
        losses *= max(self.sums[-1], 0.0) / max(cells @ losses, 1e-9)
        drawn = rng.poisson(cells, size=(_DRAWS, len(cells))).astype(float)
        found = _figures(plan, np.concatenate([drawn, (drawn @ losses)[:, None]], axis=1))
        return {name: alike * self._half(draws) for name, draws in found.items() if name != "rows"}

    def __getattr__(self, name: str) -> Estimate:
        """A figure by its name: `metrics.accuracy`."""
        if not name.startswith("_") and name != "figures" and name in self.figures:
            return self.figures[name]
        if name == "auc" and self.plan.classes > 2:
            raise AttributeError(NO_AUC)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def _cells(self) -> Float[np.ndarray, "bin side"]:
        if not self.plan.classes:
            raise ValueError("A target of numbers has no classes, so no calibration table.")
        return self.sums[:-1].reshape(-1, 2)

    def calibration(self) -> list[dict[str, Any]]:
        """The calibration table: of each bin of predicted probability, how many rows it has, and which share is of class 1.

        With more than two classes: of the probability of the likeliest class, and the share of rows
        where that is right. The interval holds the exact share with probability `level`; where the
        noise hides it, it is 0 to 1.
        """
        z = NormalDist().inv_cdf((1 + self.level) / 2)
        noise = EXCESS * self.plan.noise
        edges = self.plan.edges
        table = []
        for place, (zeros, ones) in enumerate(self._cells()):
            # The rows of a bin are the sum of two counts with independent noise of one variance.
            ends = fieller(ones, zeros + ones, noise**2, noise**2, 2 * noise**2, z)
            low, high = np.clip(ends, 0.0, 1.0).tolist()
            share = ones / (zeros + ones) if zeros + ones > 0 else math.nan
            table.append(
                {
                    "predicted": (float(edges[place]), float(edges[place + 1])),
                    "rows": float(zeros + ones),
                    "share": min(max(float(share), low), high),
                    "interval": (low, high),
                }
            )
        return table

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it, with the statement."""
        found: dict[str, Any] = {name: figure.to_dict() for name, figure in self.figures.items()}
        if self.plan.classes:
            found["calibration"] = finite_or_none(self.calibration())
        return {**found, "statement": self.statement.to_dict()}

    def _repr_html_(self) -> str:
        broken = not self.statement.is_private
        return notebook_html(f"Scores: {self.statement.brief}", str(self), wrong=broken)

    def __str__(self) -> str:
        lines = [
            f"{'':<26}{'estimate':>10}   {f'{100 * self.level:g} % interval, these rows':<32}population"
        ]
        for name, figure in self.figures.items():
            if name == "rows":
                low, high = figure.interval
                lines.append(f"{name:<26}{figure.value:>10,.0f}   {low:,.0f} to {high:,.0f}")
                continue
            ends = [
                "{:.4g} to {:.4g}".format(*x) for x in (figure.interval, figure.population_interval)
            ]
            value = "hidden" if math.isnan(figure.value) else f"{figure.value:.4g}"
            wide = "" if math.isnan(figure.sampling) else ends[1]
            lines.append(f"{name.replace('_', ' '):<26}{value:>10}   {ends[0]:<32}{wide}".rstrip())
        if self.plan.classes > 2:
            lines.append(textwrap.fill(NO_AUC, 88))
        return "\n".join(lines)


@one_release
def private_metrics(
    rng_key: PRNGKeyArray,
    result: Any,
    X: Any,
    y: ArrayLike,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    plan: ScorePlan | None = None,
    target_bounds: tuple[float, float] | None = None,
    groups: Any = None,
    person: str = "groups",
    level: float = LEVEL,
    ledger: Ledger | None = None,
    non_private_seed: bool = False,
    **options: Any,
) -> PrivateMetrics:
    """Score a fit on held-out records, with noise.

    Guarantee: what is returned is one `plan.event()` under the plan's relation, for one record, or
    with `groups` for one person, if each row's prediction depends on that row and the fit alone.
    The program is proved to be that before it runs. If the records are those that were fitted, the
    costs add up, and the scores are too good.

    A prediction that is NaN counts as the worst: the wrong class, or the largest error. An empty
    table is scored like any other.

    Args:
        rng_key: `discreet.random.key()`, for this release alone.
        result: The predictor: a fitted estimator (`predict_proba`, or `predict` for numbers), or a
            function from rows to probabilities, (row,) of class 1 or (row, class), or to numbers.
        X: Held-out rows.
        y: Their targets: labels of the estimator's classes; integers from 0 for a function; numbers
            for a regression.
        epsilon: The epsilon of the release.
        delta: Likewise, well below one over the number of records.
        plan: Instead of both.
        target_bounds: Public bounds of a target of numbers; they make the scores those of a
            regression.
        groups: The person of each row. A record is then a person, of whom at most `max_rows` rows
            are scored.
        person: Name of the column that `groups` comes from, for the statement.
        level: Level of the intervals.
        ledger: The table's budget, debited before the release.
        non_private_seed: Allow a key made from a seed, with which nothing is private.
        options: Options of `ScorePlan.calibrate`: relation, max_rows, bins, max_loss, max_error;
            and `classes` for a function.

    Returns:
        Figures with intervals, tables and the statement.

    Raises:
        ValueError, TypeError: Wrong input; nothing was spent. Whether an error occurs is not
            covered by epsilon.
        SpentError: The ledger does not hold it.
        PrivacyError: The program could not be proved.

    >>> import numpy as np, discreet as dp
    >>> x = np.linspace(0, 1, 4_000)
    >>> def probability(rows): return np.where(rows > 0.5, 0.9, 0.1)
    >>> found = dp.scores.private_metrics(dp.random.key(), probability, x, x > 0.5, epsilon=1.0, delta=1e-6)
    >>> bool(found.accuracy.value > 0.95)
    True

    Reference:
        Boyd, Lantz and Page, Differential privacy for classifier evaluation, AISec 2015, add noise
        to ROC curves.
    """
    key = random.secret_key(rng_key, "private_metrics", non_private_seed)
    probability("level", level, hint="0.9 is the default.")
    labels = getattr(result, "classes_", None)
    plan = _plan(plan, epsilon, delta, target_bounds, labels, options)
    terms, persons = _terms(plan, result, X, y, labels, groups)
    unit = RECORD if groups is None else Unit(person, plan.max_rows)
    act = Act.on(plan, key, random.Purpose.SCORES, ledger=ledger, unit=unit)
    sums = noisy_sums(plan, act, terms, persons)
    return PrivateMetrics(plan, sums, act.statement, level)


def _plan(
    plan: ScorePlan | None,
    epsilon: float | None,
    delta: float | None,
    bounds: Any,
    labels: Any,
    options: dict[str, Any],
) -> ScorePlan:
    if plan is not None:
        if options or any(x is not None for x in (epsilon, delta, bounds)):
            raise ValueError(
                "private_metrics got plan= and what a plan says, too: give one of them."
            )
        return plan
    if epsilon is None or delta is None:
        raise ValueError("private_metrics spends a budget: give epsilon= and delta=, or plan=.")
    if bounds is not None:
        return ScorePlan.calibrate(
            epsilon=epsilon, delta=delta, classes=0, bounds=tuple(bounds), **options
        )
    if labels is not None:
        options = {"classes": len(labels), **options}
    return ScorePlan.calibrate(epsilon=epsilon, delta=delta, **options)


def _terms(
    plan: ScorePlan, result: Any, X: Any, y: Any, labels: Any, groups: Any
) -> tuple[Int[np.ndarray, "row sum"], Int[np.ndarray, "record row"] | None]:
    """The contribution of each row, and the rows of each person (-1: none)."""
    rows = unmasked("y", y)
    if rows.ndim != 1 or len(rows) != len(X):
        raise ValueError(
            f"y has the shape {rows.shape}, and X has {len(X)} rows: pass one target for each. Of persons with "
            "several rows pass the rows, and groups= with the person of each."
        )
    if plan.classes:
        labels = np.arange(plan.classes) if labels is None else labels
        if len(labels) != plan.classes:
            raise ValueError(
                f"The plan is for {plan.classes} classes, and the fit has {len(labels)}."
            )
        places = places_of(rows, labels)
        terms = class_terms(plan, predictions(result, X, False, (len(rows), plan.classes)), places)
    else:
        try:
            target = rows.astype(np.float64)
        except (TypeError, ValueError):
            target = np.full(1, np.nan)
        if not np.isfinite(target).all():
            raise ValueError(
                "y holds a missing, infinite or other cell that is no number: choose the rows by a public rule."
            )
        terms = number_terms(plan, predictions(result, X, True, (len(rows),)), target)
    return terms, rows_of_persons(plan.max_rows, groups, len(rows))
