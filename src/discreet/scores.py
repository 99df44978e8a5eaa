"""Scores of a fit on held-out records, and selection of the best of several fits, both under differential privacy.

*Scores.* `private_metrics` makes one Gaussian release of sums over the held-out records. For classes: the number of rows in each
public bin of predicted probability, by class, and the sum of losses, each clipped to a public bound. For numbers: sums of
errors, squared errors, and the target's first two moments, within public bounds. Accuracy, calibration, the ROC curve, its area
and the log-likelihood, or RMSE and R2, follow from them and cost nothing more. All summands are integers (multiples of 2^-20 of
a bound), so that sums depend neither on the order of the records nor on their number. The program of the `Query` is given the
last records, and the sums of all others.

*Selection.* `select` runs a private program K times, K random and secret, and gives the best result alone. Papernot and Steinke
(ICLR 2022) bound what this reveals by the Rényi divergences of one run, whatever K turns out to be; a fixed number of runs has
no such bound. `accounting` has their Theorems 2 and 6, and `SelectionPlan` the laws of K.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, localcontext
from statistics import NormalDist
from typing import Any, NamedTuple, Self, cast

import jax
import numpy as np
from dp_accounting.dp_event import ComposedDpEvent, DpEvent, RepeatAndSelectDpEvent
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from numpy.typing import ArrayLike

from discreet import random
from discreet._jax import in_own_settings, one_process, refuse_traced
from discreet._validate import LEVEL, finite_or_none, integer, notebook_html, positive, probability, real
from discreet.accounting import (
    FINE_ORDERS,
    Planned,
    Relation,
    composed,
    profile,
    renyi_bound,
    repetitions,
    upper,
)
from discreet.act import Act
from discreet.ledger import Ledger, SpentError, check_terms
from discreet.marginals import fieller
from discreet.mechanisms import clip_records, sum_records
from discreet.query import LAST, Gaussian, GaussianPlan, Query, padded
from discreet.released import Released
from discreet.report import RECORD, Receipt, Statement, Unit, make_release_statement
from discreet.storage import Kinds

__all__ = ["Estimate", "PrivateMetrics", "ScorePlan", "Selection", "SelectionPlan", "private_metrics", "select"]

_ONE = 2**20
"""The integer that represents a bound in the sums."""
_BATCH = 1024
"""Rows per prediction call; constant, since last bits of a prediction may depend on it."""
_DRAWS = 4000
_EXCESS = 1.004
"""The noise on the grid of integers is up to so many times as large as planned."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScorePlan(GaussianPlan):
    """The privacy plan for scores on held-out records. Public; made by `calibrate`.

    Attributes:
        classes: Number of classes; 0 for a target of numbers.
        noise_multiplier: Standard deviation of the noise on the sums, divided by `sensitivity`.
        delta: The delta at which epsilon is stated.
        relation: The neighbouring relation.
        max_rows: Rows of a record: 1, or those that are used of each person at most.
        bins: Bins of predicted probability, an even number. Their edges are sin^2(pi k / (2 bins)): narrow near 0 and 1.
        max_loss: Bound on the loss of a row, -log of the probability of its class, in nats; larger losses count as that.
        bounds: Bounds of a numeric target and its predictions; values outside are clipped.
        max_error: Bound on the error of a row; larger errors count as that. None: the width of the bounds.

    Raises:
        ValueError: A number out of range.
    """

    classes: int
    max_rows: int = 1
    bins: int = 20
    max_loss: float = 5.0
    bounds: tuple[float, float] | None = None
    max_error: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        integer("max_rows", self.max_rows, most=2**20)
        if self.classes:
            integer("classes", self.classes, 2, hint="0 is for a target of numbers.")
            if integer("bins", self.bins, 2, 2**16) % 2:
                raise ValueError(f"bins is {self.bins}: give an even number, so that 1/2 is the edge of a bin.")
            positive("max_loss", self.max_loss, hint="5 nats is a probability of 0.007.")
            return
        if self.bounds is None:
            raise ValueError(
                "target_bounds are missing: give target_bounds=(low, high), what the target may be as known without the data."
            )
        low, high = self.bounds
        if not -math.inf < low < high < math.inf:
            raise ValueError(f"target_bounds are ({low}, {high}); they must be finite, low below high.")
        largest = max(abs(low), abs(high))
        if largest > 1e150 or high - low < 2.0**-40 * largest:
            raise ValueError(
                f"target_bounds are ({low}, {high}), too large, or too near each other, for 64-bit arithmetic. Give numbers of "
                "at most 1e150, whose distance is at least 2^-40 of the larger: subtract a public number, or divide by one."
            )
        if self.max_error is not None:
            real("max_error", self.max_error, 0.0, high - low, hint="It is a bound on the error of a row.")
            positive("max_error", self.max_error)

    @classmethod
    def calibrate(
        cls,
        *,
        epsilon: float,
        delta: float,
        classes: int = 2,
        relation: Relation = Relation.ADD_OR_REMOVE_ONE,
        **options: Any,
    ) -> ScorePlan:
        """Find the least noise with which the scores cost (epsilon, delta).

        Args:
            epsilon: Target, above 0.
            delta: Target, well below one over the number of records.
            classes: As above, as are the next and `options`.
            relation: The neighbouring relation.
            options: Further attributes.

        Raises:
            ValueError: An argument is out of range.
        """
        return cls._calibrated(epsilon, delta, classes=classes, relation=relation, **options)

    @property
    def width(self) -> int:
        """Number of sums."""
        return 2 * self.bins + 1 if self.classes else 5

    @property
    def sensitivity(self) -> float:
        """C: the sums of one record are at most so long, each in units of its bound."""
        # One in a bin and a loss; five numbers of at most 1. The last factor keeps clipping from touching a record.
        return self.max_rows * math.sqrt(2 if self.classes else 5) * (1 + 2.0**-16)

    @property
    def noise(self) -> float:
        """Standard deviation of the noise on each sum, in units of its bound: for counts, in rows."""
        # A little more, so that no rounding makes it less than the event says.
        return self.noise_multiplier * self.sensitivity * (1 + 1e-12)

    @property
    def edges(self) -> Float[np.ndarray, " bin+1"]:
        """Edges of the bins of predicted probability."""
        edges = np.sin(np.pi * np.arange(self.bins + 1) / (2 * self.bins)) ** 2
        edges[self.bins // 2] = 0.5
        return edges

    @property
    def query(self) -> Query:
        """The release: of the sums of all other records, the last records' contributions and the mask, in units of 1 / _ONE."""
        noise = Gaussian(self.noise * _ONE, self.noise_multiplier)
        return Query(_Sums(self.sensitivity * _ONE), noise, self.relation)

    def state(self, *, reproducible: bool, unit: Unit = RECORD) -> Statement:
        """Make the statement of one release by this plan, for a unit of privacy."""
        if self.classes:
            rows = (
                f"The rows in each of {self.bins} bins of predicted probability were counted by class, and their losses added, "
                f"each at most {self.max_loss:g} nats"
            )
        else:
            low, high = cast(tuple[float, float], self.bounds)
            rows = (
                f"Targets and predictions were moved into [{low:g}, {high:g}]. Errors, their squares, targets and their squares "
                f"were added, errors of at most {self._largest_error:g}"
            )
        return make_release_statement(
            self.event(),
            self.relation,
            unit=unit,
            delta=self.delta,
            slack=self.slack,
            method="private scores",
            mechanism=(
                f"{rows}. In units of these bounds, one {unit.noun}'s sums have a Euclidean norm of at most "
                f"{self.sensitivity:.6g}. Gaussian noise of standard deviation {self.noise:.6g} was added to each of the "
                f"{self.width} sums."
            ),
            plan={
                "classes": self.classes,
                "sums": self.width,
                "contribution_bound": self.sensitivity,
                "noise_multiplier": self.noise_multiplier,
                "noise_standard_deviation": self.noise,
                "max_rows": self.max_rows,
                **({"max_loss": self.max_loss} if self.classes else {"max_error": self._largest_error}),
            },
            num_releases=self.num_releases,
            reproducible=reproducible,
            released=[f"{self.width} noisy sums over the held-out {unit.noun}s, and what is computed from them"],
            public=["The plan: the bins, the bounds and the noise", "The fit that was scored"],
            not_covered=[
                "Predictions that depend in their last bits on the other rows of a batch, or on their place in it: each such row "
                "near a border of a bin adds a move of its own.",
                "People who are also in the table that was fitted: what fit and scores cost adds up for them, and the scores are "
                "too good.",
            ],
        ).with_notes(
            "Each row's prediction is taken to depend on that row and the released fit alone. Two rows were predicted again by "
            "themselves, but this is not proved."
        )

    @property
    def _largest_error(self) -> float:
        low, high = cast(tuple[float, float], self.bounds)
        return high - low if self.max_error is None else self.max_error


class _Sums(NamedTuple):
    """The sums over all records, of whom each adds at most `bound` in L2."""

    bound: float

    def __call__(
        self, others: Float[Array, " sum"], records: Float[Array, "record sum"], mask: Bool[Array, " record"]
    ) -> Float[Array, " sum"]:
        return others + sum_records(clip_records(records, self.bound), mask)


# --- from rows to integers ----------------------------------------------------------------


def _class_terms(
    plan: ScorePlan, predicted: Float[np.ndarray, "row class"], y: Int[np.ndarray, " row"]
) -> Int[np.ndarray, "row sum"]:
    """The contribution of each row, in units of 1 / _ONE. A NaN prediction counts as the worst."""
    rows = np.arange(len(y))
    bad = np.asarray(np.isnan(predicted).any(axis=1))
    table = np.where(bad[:, None], 0.0, np.clip(predicted, 0.0, 1.0))
    table[bad] = np.eye(plan.classes)[(y[bad] + 1) % plan.classes]
    table = np.rint(table * _ONE) / _ONE
    if plan.classes == 2:
        score, side = table[:, 1], y
    else:
        score, side = table.max(axis=1), (table.argmax(axis=1) == y).astype(np.int64)
    place = np.clip(np.searchsorted(plan.edges, score, side="right") - 1, 0, plan.bins - 1)
    with np.errstate(divide="ignore"):
        loss = np.minimum(-np.log(table[rows, y]), plan.max_loss) / plan.max_loss
    terms = np.zeros((len(y), plan.width), np.int64)
    terms[rows, 2 * place + side] = _ONE
    terms[:, -1] = np.rint(loss * _ONE)
    return np.clip(terms, 0, _ONE)


def _number_terms(
    plan: ScorePlan, predicted: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"]
) -> Int[np.ndarray, "row sum"]:
    """As `_class_terms`: a one, |error|, its square, the target in [-1, 1], and its square."""
    low, high = cast(tuple[float, float], plan.bounds)
    scaled = (2 * ((np.clip(x, low, high) - low) / (high - low)) - 1 for x in (y, predicted))
    target, guess = (np.clip(x, -1.0, 1.0) for x in scaled)
    error = np.abs(np.rint(target * _ONE) - np.rint(guess * _ONE)) / _ONE * (high - low) / 2
    error = np.minimum(np.where(np.isnan(error), math.inf, error) / plan._largest_error, 1.0)
    terms = np.stack([np.ones(len(y)), error, error**2, target, target**2], axis=1)
    return np.clip(np.rint(terms * _ONE), -_ONE, _ONE).astype(np.int64)


def _places(y: Any, labels: Any) -> Int[np.ndarray, " row"]:
    """Labels as numbers from 0, without a word about which label is wrong."""
    given, labels = np.asarray(y), np.asarray(labels)
    places = {label: place for place, label in enumerate(labels.tolist())}
    try:
        return np.array([places[label] for label in given.tolist()], np.int64)
    except (KeyError, TypeError):
        raise ValueError(
            f"y holds a label, or a missing cell, that is not among the classes {tuple(labels.tolist())}. They are public input: "
            "name them all in the fit, or choose the rows by a public rule."
        ) from None


def _ask(result: Any, regression: bool) -> Callable[[Any], np.ndarray]:
    """The function from rows to predictions."""
    name = "predict" if regression else "predict_proba"
    found = getattr(result, name, result)
    if not callable(found):
        raise TypeError(
            f"private_metrics got {type(result).__name__}, which predicts nothing: pass a fitted estimator with {name}, or a "
            "function from rows to predictions, such as lambda x: dp.predict.class_probabilities(model, draws, x, None)."
        )
    ask = cast(Callable[[Any], Any], found)

    def predict(rows: Any) -> np.ndarray:
        predicted = np.asarray(ask(rows), np.float64)
        if not regression and predicted.ndim == 1:
            predicted = np.stack([1 - predicted, predicted], axis=1)
        return predicted

    return predict


def _predictions(result: Any, X: Any, regression: bool, shape: tuple[int, ...]) -> np.ndarray:
    """Predict all rows in batches of one size, and the first and the last again by themselves."""
    if shape[0] == 0:
        return np.zeros(shape)
    predict, rows = _ask(result, regression), getattr(X, "iloc", np.asarray(X) if isinstance(X, list | tuple) else X)

    def batch(first: int, last: int) -> np.ndarray:
        # The last row fills up what is missing.
        predicted = predict(rows[np.minimum(np.arange(first, first + _BATCH), last - 1)])
        if predicted.shape != (_BATCH, *shape[1:]):
            raise ValueError(
                f"predictions of a batch of {_BATCH:,} rows have the shape {predicted.shape}, and {(_BATCH, *shape[1:])} was "
                "expected: one for each row" + ("." if regression else ", or one for each row and class.")
            )
        return predicted[: last - first]

    predicted = np.concatenate([batch(at, min(at + _BATCH, shape[0])) for at in range(0, shape[0], _BATCH)])
    for place in {0, shape[0] - 1}:
        if not np.allclose(batch(place, place + 1)[0], predicted[place], rtol=1e-5, atol=1e-5, equal_nan=True):
            raise ValueError(
                "The prediction of one row changes with the rows beside it, as where columns are centred by their mean in X. "
                "Prepare the columns by public numbers, so that each row stands for itself."
            )
    return predicted


# --- figures ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A figure with two intervals, which hold with probability `level` each.

    Attributes:
        value: The estimate; NaN where the noise hides it.
        noise: Half the width of the interval for the exact figure of these rows, over the noise.
        sampling: The same for what chance in drawing the rows adds; NaN where the release does not tell.
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
        low, high = self.value - half, self.value + half
        if not math.isfinite(low + high):
            return self.limits
        return max(low, self.limits[0]), min(high, self.limits[1])

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        found: dict[str, Any] = {"value": self.value, "interval": self.interval, "level": self.level}
        if not math.isnan(self.sampling):
            found["population_interval"] = self.population_interval
        return finite_or_none(found)


def _within_bins(bins: int) -> Float[np.ndarray, " bin"]:
    """Chance that of two rows of both classes in a bin, that of class 1 has the higher score, if predictions are calibrated.

    In the angle of the edges, rows lie evenly within a bin, so those of class 1 and 0 have the densities sin^2 and cos^2.
    """
    angle = np.pi / (2 * bins) * (np.arange(bins)[:, None] + np.linspace(0, 1, 201))
    ones, zeros = np.sin(angle[:, 1:] - np.pi / (800 * bins)) ** 2, np.cos(angle[:, 1:] - np.pi / (800 * bins)) ** 2
    below = np.cumsum(zeros, axis=1) - zeros / 2
    return (ones * below).sum(axis=1) / ones.sum(axis=1) / zeros.sum(axis=1)


def _spread(rows: Float[np.ndarray, "*draw bin"]) -> Float[np.ndarray, "*draw bin"]:
    """How far the rows of each bin may be taken to lie evenly in it, from 0 to 1.

    It is 0 where its neighbours are empty, as ties leave them, and 1 where they have at least a quarter of its rows on average.
    """
    beside = np.concatenate([rows[..., 1:2], rows, rows[..., -2:-1]], axis=-1)
    return np.clip(np.nan_to_num(2 * (beside[..., :-2] + beside[..., 2:]) / rows), 0.0, 1.0)


def _figures(plan: ScorePlan, sums: Float[np.ndarray, "*draw sum"]) -> dict[str, np.ndarray]:
    """Every figure, of each vector of sums."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if not plan.classes:
            rows, error, square, target, target_square = np.moveaxis(sums, -1, 0)
            low, high = cast(tuple[float, float], plan.bounds)
            mse = np.maximum(square / rows, 0.0) * plan._largest_error**2
            variance = np.maximum(target_square / rows - (target / rows) ** 2, 0.0) * (high - low) ** 2 / 4
            return {
                "rows": rows,
                "mean_absolute_error": error / rows * plan._largest_error,
                "root_mean_squared_error": np.sqrt(mse),
                "r2": 1 - mse / variance,
            }
        cells = sums[..., :-1].reshape(*sums.shape[:-1], plan.bins, 2)
        rows = cells.sum(axis=(-1, -2))
        if plan.classes > 2:
            found = {"accuracy": cells[..., 1].sum(axis=-1) / rows}
        else:
            half, zeros, ones = plan.bins // 2, cells[..., 0], cells[..., 1]
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
    return 0.0, 1.0 if plan.classes else plan._largest_error


NO_AUC = (
    "No AUC with more than two classes: it would take bins of every class, and a row would change cells in all of them, so that "
    "all figures lost precision. For one class against the rest, score that column of the probabilities with y == class."
)


@dataclasses.dataclass(frozen=True)
class PrivateMetrics(Released, what="private scores", parts=(ScorePlan, Relation)):
    """Private scores of a fit: a release. Whatever is computed from it costs nothing more. Made by `private_metrics`.

    Attributes:
        plan: The plan of the scores.
        sums: The noisy sums, in units of their bounds: for classes the counts of bins by class, then the losses.
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

        For classes: rows, accuracy, auc (two classes), log_likelihood (mean over the rows, in nats, of the probability of their
        class, clipped at the plan's bound). For numbers: rows, mean_absolute_error, root_mean_squared_error, r2.
        """
        plan, rng, noise = self.plan, np.random.default_rng(0), _EXCESS * self.plan.noise
        at, around = (_figures(plan, x) for x in (self.sums, self.sums + noise * rng.normal(size=(_DRAWS, plan.width))))
        chance = self._sampled(rng)
        hidden = bool(at["rows"] < 3 * noise * math.sqrt(2 * plan.bins if plan.classes else 1))
        # An area between two classes takes rows of both.
        one_class = plan.classes == 2 and min(self._cells().sum(axis=0)) < 3 * noise * math.sqrt(plan.bins)
        found = {}
        for name, value in at.items():
            limits, hides = _limits(plan, name), (hidden and name != "rows") or (one_class and name == "auc")
            value = math.nan if hides or not np.isfinite(value) else float(np.clip(value, *limits))
            half = self._half(around[name])
            found[name] = Estimate(value, half, chance.get(name, math.nan), limits, self.level)
        return found

    def _half(self, draws: np.ndarray) -> float:
        draws = draws[np.isfinite(draws)]
        return float(np.quantile(np.abs(draws - np.median(draws)), self.level)) if len(draws) else math.inf

    def _sampled(self, rng: np.random.Generator) -> dict[str, float]:
        """Half widths over the drawing of the rows: their numbers in the cells are Poisson.

        A person's rows may all be alike, so persons with several rows count as if they were.
        """
        plan, alike = self.plan, math.sqrt(self.plan.max_rows)
        if not plan.classes:
            rows, error, square = np.maximum(self.sums[:3], 1e-9)
            spread = math.sqrt(max(square / rows - (error / rows) ** 2, 0.0) / rows) * plan._largest_error
            return {"mean_absolute_error": alike * NormalDist().inv_cdf((1 + self.level) / 2) * spread}
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
            raise ValueError("A target of numbers has no classes, so no calibration table and no ROC curve.")
        return self.sums[:-1].reshape(-1, 2)

    def calibration(self) -> list[dict[str, Any]]:
        """The calibration table: of each bin of predicted probability, how many rows it has, and which share is of class 1.

        With more than two classes: of the probability of the likeliest class, and the share of rows where that is right. The
        interval holds the exact share with probability `level`; where the noise hides it, it is 0 to 1.
        """
        z, noise, edges = NormalDist().inv_cdf((1 + self.level) / 2), _EXCESS * self.plan.noise, self.plan.edges
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

    def roc(self) -> tuple[Float[np.ndarray, " edge"], Float[np.ndarray, " edge"]]:
        """The ROC curve at the edges of the bins, from (0, 0) to (1, 1): false and true positive rates, made to rise.

        Raises:
            ValueError: There are not two classes.
        """
        if self.plan.classes != 2:
            raise ValueError("The ROC curve is that of two classes.")
        # The noise may make a curve fall: the nearest that rises is taken.
        rates = []
        for counts in np.maximum(self._cells()[::-1].cumsum(axis=0), 0.0).T:
            risen = (np.maximum.accumulate(counts) + np.minimum.accumulate(counts[::-1])[::-1]) / 2
            rates.append(np.concatenate([[0.0], np.maximum.accumulate(risen) / max(float(risen.max()), 1e-9)]))
            rates[-1][-1] = 1.0  # Also where the noise leaves no rows of a class
        return rates[0], rates[1]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it, with the statement."""
        found: dict[str, Any] = {name: figure.to_dict() for name, figure in self.figures.items()}
        if self.plan.classes:
            found["calibration"] = finite_or_none(self.calibration())
        if self.plan.classes == 2:
            false, true = self.roc()
            found["roc"] = {"false_positive_rate": false.tolist(), "true_positive_rate": true.tolist()}
        return {**found, "statement": self.statement.to_dict()}

    def _repr_html_(self) -> str:
        broken = not self.statement.is_private
        return notebook_html(f"Scores: {self.statement.brief}", str(self), wrong=broken)

    def __str__(self) -> str:
        lines = [f"{'':<26}{'estimate':>10}   {f'{100 * self.level:g} % interval, these rows':<32}population"]
        for name, figure in self.figures.items():
            if name == "rows":
                low, high = figure.interval
                lines.append(f"{name:<26}{figure.value:>10,.0f}   {low:,.0f} to {high:,.0f}")
                continue
            ends = ["{:.4g} to {:.4g}".format(*x) for x in (figure.interval, figure.population_interval)]
            value = "hidden" if math.isnan(figure.value) else f"{figure.value:.4g}"
            wide = "" if math.isnan(figure.sampling) else ends[1]
            lines.append(f"{name.replace('_', ' '):<26}{value:>10}   {ends[0]:<32}{wide}".rstrip())
        if self.plan.classes > 2:
            lines.append(textwrap.fill(NO_AUC, 88))
        return "\n".join(lines)


@in_own_settings
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

    Guarantee: what is returned is one `plan.event()` under the plan's relation, for one record, or with `groups` for one person,
    if each row's prediction depends on that row and the fit alone. The program is proved to be that before it runs. If the
    records are those that were fitted, the costs add up, and the scores are too good.

    A prediction that is NaN counts as the worst: the wrong class, or the largest error. An empty table is scored like any other.

    Args:
        rng_key: `discreet.random.key()`, for this release alone.
        result: The predictor: a fitted estimator (`predict_proba`, or `predict` for numbers), or a function from rows to
            probabilities, (row,) of class 1 or (row, class), or to numbers.
        X: Held-out rows.
        y: Their targets: labels of the estimator's classes; integers from 0 for a function; numbers for a regression.
        epsilon: The epsilon of the release.
        delta: Likewise, well below one over the number of records.
        plan: Instead of both.
        target_bounds: Public bounds of a target of numbers; they make the scores those of a regression.
        groups: The person of each row. A record is then a person, of whom at most `max_rows` rows are scored.
        person: Name of the column that `groups` comes from, for the statement.
        level: Level of the intervals.
        ledger: The table's budget, debited before the release.
        non_private_seed: Allow a key made from a seed, with which nothing is private.
        options: Options of `ScorePlan.calibrate`: relation, max_rows, bins, max_loss, max_error; and `classes` for a function.

    Returns:
        Figures with intervals, tables and the statement.

    Raises:
        ValueError, TypeError: Wrong input; nothing was spent. Whether an error occurs is not covered by epsilon.
        SpentError: The ledger does not hold it.
        PrivacyError: The program could not be proved.

    >>> import numpy as np, discreet as dp
    >>> x = np.linspace(0, 1, 4_000)
    >>> def probability(rows): return np.where(rows > 0.5, 0.9, 0.1)
    >>> found = dp.scores.private_metrics(dp.random.key(), probability, x, x > 0.5, epsilon=1.0, delta=1e-6)
    >>> bool(found.accuracy.value > 0.95)
    True

    Reference:
        Boyd, Lantz and Page, Differential privacy for classifier evaluation, AISec 2015, add noise to ROC curves.
    """
    refuse_traced("private_metrics")
    one_process("private_metrics", [])
    key = random.secret_key(rng_key, "private_metrics", non_private_seed)
    probability("level", level, hint="0.9 is the default.")
    labels = getattr(result, "classes_", None)
    plan = _plan(plan, epsilon, delta, target_bounds, labels, options)
    terms, persons = _terms(plan, result, X, y, labels, groups)
    unit = RECORD if groups is None else Unit(person, plan.max_rows)
    act = Act.on(plan, key, random.Purpose.SCORES, ledger=ledger, unit=unit)
    last, others = _last_and_others(terms, persons)
    # In 64 bits a sum of integers below 2^53 is exact.
    sums = plan.query.answer(act, others.astype(np.float64), *padded(last.astype(np.float64)))
    return PrivateMetrics(plan, sums / _ONE, act.statement, level)


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
            raise ValueError("private_metrics got plan= and what a plan says, too: give one of them.")
        return plan
    if epsilon is None or delta is None:
        raise ValueError("private_metrics spends a budget: give epsilon= and delta=, or plan=.")
    if bounds is not None:
        return ScorePlan.calibrate(epsilon=epsilon, delta=delta, classes=0, bounds=tuple(bounds), **options)
    if labels is not None:
        options = {"classes": len(labels), **options}
    return ScorePlan.calibrate(epsilon=epsilon, delta=delta, **options)


def _terms(
    plan: ScorePlan, result: Any, X: Any, y: Any, labels: Any, groups: Any
) -> tuple[Int[np.ndarray, "row sum"], Int[np.ndarray, "record row"] | None]:
    """The contribution of each row, and the rows of each person (-1: none)."""
    rows = np.asarray(y)
    if rows.ndim != 1 or len(rows) != len(X):
        raise ValueError(
            f"y has the shape {rows.shape}, and X has {len(X)} rows: pass one target for each. Of persons with "
            "several rows pass the rows, and groups= with the person of each."
        )
    if plan.classes:
        labels = np.arange(plan.classes) if labels is None else labels
        if len(labels) != plan.classes:
            raise ValueError(f"The plan is for {plan.classes} classes, and the fit has {len(labels)}.")
        places = _places(rows, labels)
        terms = _class_terms(plan, _predictions(result, X, False, (len(rows), plan.classes)), places)
    else:
        try:
            target = rows.astype(np.float64)
        except (TypeError, ValueError):
            target = np.full(1, np.nan)
        if not np.isfinite(target).all():
            raise ValueError(
                "y holds a missing, infinite or other cell that is no number: choose the rows by a public rule."
            )
        terms = _number_terms(plan, _predictions(result, X, True, (len(rows),)), target)
    if groups is None:
        if plan.max_rows > 1:
            raise ValueError("max_rows is for persons: pass groups, the person of each row.")
        return terms, None
    from discreet.estimators import rows_of_groups

    return terms, rows_of_groups(groups, len(rows), plan.max_rows)


def _last_and_others(
    terms: Int[np.ndarray, "row sum"], persons: Int[np.ndarray, "record row"] | None
) -> tuple[Int[np.ndarray, "record sum"], Int[np.ndarray, " sum"]]:
    """The contributions of the last records, and the sum of all others. Not private."""
    if persons is None:
        return terms[-LAST:], terms[:-LAST].sum(axis=0)
    # -1 is a row of zeros.
    terms = np.concatenate([terms, np.zeros((1, terms.shape[1]), np.int64)])
    last, others = persons[-LAST:], persons[:-LAST]
    return terms[last].sum(axis=1), terms[others[others >= 0]].sum(axis=0)


# --- selection ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionPlan:
    """The privacy plan for the best of a secret, random number of runs of a program. Public.

    Attributes:
        costs: The plans of all releases in one run, such as its fit and its score.
        delta: The delta at which epsilon is stated.
        mean_runs: Expected number of runs, above 1.
        shape: Shape of the runs' law: 0: logarithmic, the cheapest, whose numbers vary most; 1: geometric; others from
            1e-6 to 100: negative binomial; infinity: Poisson, the dearest, which may be 0 runs. None but the last is ever 0.

    Raises:
        ValueError: No costs, costs under different relations, or a number out of range.

    >>> plan = ScorePlan.calibrate(epsilon=0.5, delta=1e-6)
    >>> round(SelectionPlan(costs=(plan,), delta=1e-5, mean_runs=20).epsilon(), 2)
    0.92
    """

    costs: tuple[Planned, ...]
    delta: float
    mean_runs: float = 20.0
    shape: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "costs", tuple(self.costs))
        if not self.costs or len({cost.relation for cost in self.costs}) > 1:
            raise ValueError(
                "costs must be the plans of all that one run does to the records, under one relation: for example (plan, "
                "ScorePlan.calibrate(...))."
            )
        probability("delta", self.delta, hint="It should be well below one over the number of records.")
        repetitions(self.mean_runs, self.shape)

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return self.costs[0].relation

    def one_run(self) -> DpEvent:
        """The event of one run."""
        return ComposedDpEvent([cost.event() for cost in self.costs])

    def event(self) -> DpEvent:
        """The event of the selection."""
        return RepeatAndSelectDpEvent(self.one_run(), float(self.mean_runs), float(self.shape))

    @property
    def slack(self) -> float:
        """Total variation between what runs and the event: at most that of each run, times the expected number of them."""
        return self.mean_runs * sum(cost.slack for cost in self.costs)

    def epsilon(self, delta: float | None = None) -> float:
        """Price of the whole selection at `delta`; None: the plan's."""
        spent = profile(self.event(), self.relation, slack=self.slack)
        return spent.epsilon(self.delta if delta is None else delta)

    def draw(self, key: PRNGKeyArray) -> int:
        """Draw the number of runs, exact to 2^-250. Secret: epsilon does not cover its disclosure."""
        words = np.asarray(jax.random.bits(key, (8,), np.uint32)).tolist()
        uniform = sum(word << (32 * place) for place, word in enumerate(words))
        with localcontext(prec=110):
            left = Decimal(2 * uniform + 1) / 2**257
            for number, chance in self._law():
                left -= chance
                if left < 0:
                    return number
        raise AssertionError("the probabilities of all numbers add up to 1")

    def _law(self) -> Iterator[tuple[int, Decimal]]:
        """Numbers of runs with their probabilities."""
        if self.shape == math.inf:
            mean, number = Decimal(self.mean_runs), 0
            chance = (-mean).exp()
            while chance > Decimal(2) ** -300 or number < mean:
                yield number, chance
                number += 1
                chance *= mean / number
            return
        gamma, shape = Decimal(repetitions(self.mean_runs, self.shape)), Decimal(self.shape)
        whole = -gamma.ln() if not shape else ((-shape * gamma.ln()).exp() - 1) / shape
        chance, number = (1 - gamma) / whole, 1
        while chance > Decimal(2) ** -300 or number < self.mean_runs:
            yield number, chance
            chance *= (1 - gamma) * (number + shape) / (number + 1)
            number += 1

    def state(self, *, reproducible: bool, unit: Unit = RECORD) -> Statement:
        """Make the statement of a selection by this plan, for a unit of privacy."""
        names = {0: "logarithmic", 1: "geometric", math.inf: "Poisson"}
        law = names.get(self.shape, f"truncated negative binomial (shape {self.shape:g})")
        one = composed(*self.costs).epsilon(self.delta)
        return make_release_statement(
            self.event(),
            self.relation,
            unit=unit,
            delta=self.delta,
            slack=self.slack,
            method="selection",
            mechanism=(
                f"A private program (one run alone: ε = {one:.4g} at this δ) was run a random number of times, each time with a "
                f"candidate drawn at random. The number has a {law} law with mean {self.mean_runs:g}, and is secret. Only the "
                "result with the best score left the data. ε is by Papernot and Steinke, ICLR 2022."
            ),
            accountant=(
                "ε is an upper bound, from discreet's own accountant: from the Rényi divergences of one run and the law of "
                "the number of runs, rounded upward."
            ),
            sums=False,
            plan={"mean_runs": self.mean_runs, "shape": "infinity" if self.shape == math.inf else self.shape},
            num_releases=1,
            reproducible=reproducible,
            released=["The result of the best run, its score and its candidate"],
            public=["The candidates, the plan of a run, and the law of the number of runs"],
            not_covered=[
                "How many runs there were: whoever saw the time that the selection took, its memory, or messages of its runs, "
                "learns more than ε says."
            ],
        )


@dataclasses.dataclass(frozen=True)
class _PaidBySelection:
    """The receipt of a run of a selection, with the statement of the `whole`, whose figures are those of the run."""

    method: str
    whole: Statement

    def on(self, statement: Statement) -> Statement:
        """The statement of the run, with the figures of the selection."""
        return statement.as_part_of(self.whole).with_notes(str(self))

    def __str__(self) -> str:
        cost = f"ε = {upper(self.whole.epsilon)} at δ = {upper(self.whole.delta)}"
        return (
            f"This release ({self.method}) was paid for by the selection that it was a run of, the best of a secret number of "
            f"runs. The figures of this statement are those of the selection, {cost}, which whoever sees this release learns "
            "of a person at most. One run alone would cost less."
        )


class _Run(Ledger):
    """The budget of one run: its plan. Nothing is debited, since the selection was debited for all runs.

    There is one of it: it is not copied, reaches no other process, and takes nothing after its run.
    """

    def __init__(self, plan: SelectionPlan, statement: Statement) -> None:
        self._plan, self._statement = plan, statement
        about = {"dataset": "one run of a selection", "relation": plan.relation.name, "unit": statement.unit.brief}
        self._entries: list[Mapping[str, Any]] = [{"number": 0, "kind": "open", **about}]
        self._paid = list[DpEvent]()
        self._slack = sum(cost.slack for cost in plan.costs) * (1 + 1e-9)
        self._lock, self._process, self._open = threading.RLock(), os.getpid(), True

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            "The ledger of a run cannot go to another process or into a file, as a copy would be a second budget. Make the fit "
            "and the score in the process that calls select."
        )

    def _read(self) -> list[Mapping[str, Any]]:
        return list(self._entries)

    def refuse_unless_private(self, statement: Statement) -> None:
        """Refuse as a table's ledger does; but all of a selection by a seed can be repeated."""
        rehearsed = self._statement.reproducible
        super().refuse_unless_private(dataclasses.replace(statement, reproducible=False) if rehearsed else statement)

    def check(self, plan: Planned, *, delta: float, run_id: str = "", unit: str = "one record") -> float:
        """Refuse what the plan of a run does not hold."""
        del delta
        self._refuse_more(plan, unit, run_id)
        return 0.0

    def debit(self, plan: Planned, *, delta: float, method: str, run_id: str = "", unit: str = "one record") -> Receipt:
        """Note what the run has spent."""
        del delta
        with self._lock:
            self._refuse_more(plan, unit, run_id)
            self._entries.append({"number": len(self._entries), "kind": "debit", "method": method})
            self._paid.append(plan.event())
            self._slack -= plan.slack
        return cast(Receipt, _PaidBySelection(method, self._statement))

    def close(self) -> None:
        """The run is over."""
        with self._lock:
            self._open = False

    def _refuse_more(self, plan: Planned, unit: str, run_id: str) -> None:
        """Refuse what the plan of a run does not hold."""
        if run_id:
            # Runs that repeat earlier ones are fewer than were drawn, and a number that is fixed has no such bound.
            raise ValueError(
                "A run of a selection takes no checkpoint: a later run would continue it, and the price holds for runs that are "
                "independent. Leave checkpoint= out."
            )
        if not self._open or os.getpid() != self._process:
            raise SpentError(
                "This ledger belonged to a run of a selection that is over, or to another process: a release now is not covered. "
                "Make all releases of a run within it, with its own ledger."
            )
        check_terms(self._entries, plan, unit)
        if unit != self._statement.unit.brief:
            raise ValueError(
                f"A run protects {unit}, and the selection is stated for {self._statement.unit.brief}: give select the person= "
                "and max_rows= of its runs."
            )
        asked = renyi_bound(ComposedDpEvent([*self._paid, plan.event()]), plan.relation, orders=FINE_ORDERS)
        held = renyi_bound(self._plan.one_run(), plan.relation, orders=FINE_ORDERS)
        more = np.any(asked.divergences > held.divergences * (1 + 1e-9)) or asked.slack > held.slack * (1 + 1e-9)
        if more or plan.slack > self._slack:
            raise SpentError(
                "A run spends more than the costs of the SelectionPlan, which the selection has paid for: name the plans of all "
                "releases of a run in costs, also that of its score."
            )

    def run(
        self, candidate: Callable[[PRNGKeyArray, Ledger], tuple[float, Any]], key: PRNGKeyArray
    ) -> tuple[float, Any]:
        """Score and result of a candidate, without its messages; refuse one that debited nothing."""
        with (
            open(os.devnull, "w", encoding="utf-8") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
            warnings.catch_warnings(action="ignore"),
        ):
            try:
                score, result = candidate(key, self)
            finally:
                self.close()
        if not self._paid:
            raise ValueError(
                "it debited nothing from the ledger that it was given: pass it to the fit and to the score, as ledger=ledger."
            )
        return float(score), result


def _parts() -> Kinds:
    """The plans that a selection may have paid for: those of all methods."""
    from discreet import inference, moments, newton, standardise  # noqa: F401  # a file may come before they are used

    made = (result for result in Released.__subclasses__() if result is not Selection)
    return SelectionPlan, *(kind for result in made for kind in result._kinds())


@dataclasses.dataclass(frozen=True)
class Selection(Released, what="selection of a private run", parts=_parts):
    """The best of a secret number of runs. Made by `select`.

    Attributes:
        result: The result of the best run; None if there was none (Poisson numbers of runs, or no score that is a number). A
            file holds plain values and arrays: save another result by itself.
        score: Its score; NaN without a result.
        candidate: Place of its candidate.
        plan: The plan of the selection.
        statement: The statement of the whole selection. The result's own statement, if it has one, has the same figures.
    """

    result: Any
    score: float
    candidate: int | None
    plan: SelectionPlan
    statement: Statement


@in_own_settings
def select(
    rng_key: PRNGKeyArray,
    candidates: Sequence[Callable[[PRNGKeyArray, Ledger], tuple[float, Any]]],
    plan: SelectionPlan,
    *,
    person: str | None = None,
    max_rows: int = 1,
    ledger: Ledger | None = None,
    non_private_seed: bool = False,
) -> Selection:
    """Run candidates a random number of times, and release the result with the best score alone.

    Each run draws one of the candidates, with replacement, and calls it with a key and a ledger of its own. The candidate makes
    a private fit and a private score, both with this ledger, and returns (score, result). What the runs release together with
    the score of the best costs `plan.epsilon()`, which is far less than all runs; fits that did not win are never shown.

    Guarantee: the selection is one `plan.event()`, but for its slack, if candidates reach the records through releases that are
    given the run's ledger alone: it refuses what exceeds `plan.costs`. Scores must be releases, too. How many runs there were is
    secret, so a candidate must write nothing. What it prints, and its warnings, are not shown.

    Args:
        rng_key: `discreet.random.key()`, for this selection alone.
        candidates: Functions of (key, ledger) that return (score, result); larger scores are better, NaN is the worst.
        plan: The plan of the selection.
        person: Name of the column that identifies persons, where the runs protect persons.
        max_rows: Rows of a person, as in the fits.
        ledger: The table's budget, debited for all runs together before the first.
        non_private_seed: Allow a key made from a seed, with which nothing is private; the keys of its runs are then
            seeded too, so what they call must allow such keys.

    Returns:
        The best run.

    Raises:
        ValueError: Wrong input; nothing was spent.
        SpentError: The ledger does not hold the selection.
        RuntimeError: A candidate failed, exceeded the plan of a run, or did not debit its ledger alone; the budget is spent.

    >>> import numpy as np, discreet as dp
    >>> from discreet.scores import ScorePlan, SelectionPlan, private_metrics, select
    >>> x, score = np.linspace(0, 1, 4_000), ScorePlan.calibrate(epsilon=0.5, delta=1e-7)
    >>> def at(threshold):
    ...     def run(key, ledger):
    ...         rule = lambda rows: (rows > threshold) * 0.8 + 0.1
    ...         found = private_metrics(key, rule, x, x > 0.5, plan=score, ledger=ledger)
    ...         return found.accuracy.value, threshold
    ...     return run
    >>> plan = SelectionPlan(costs=(score,), delta=1e-6, mean_runs=4)
    >>> best = select(dp.random.key(), [at(0.3), at(0.5)], plan)
    >>> best.result in (0.3, 0.5), best.statement.epsilon < 1
    (True, True)

    Reference:
        Papernot and Steinke, Hyperparameter tuning with Rényi differential privacy, ICLR 2022.
    """
    one_process("select", [])
    key = random.secret_key(rng_key, "select", non_private_seed)
    candidates = list(candidates)
    if not candidates or not all(callable(candidate) for candidate in candidates):
        raise ValueError("candidates must be functions of (key, ledger), at least one.")
    act = Act.on(plan, key, random.Purpose.SELECTION, ledger=ledger, unit=Unit(person, max_rows))
    many, which, runs = jax.random.split(act.key, 3)
    times = plan.draw(many)
    act.begin()
    entries = None if ledger is None else len(ledger.entries)
    best: tuple[float, Any, int | None] = (-math.inf, None, None)
    for number in range(times):
        place = int(jax.random.randint(jax.random.fold_in(which, number), (), 0, len(candidates)))
        try:
            score, result = _Run(plan, act.statement).run(candidates[place], jax.random.fold_in(runs, number))
            if ledger is not None and len(ledger.entries) != entries:
                raise ValueError(
                    "the selection's own ledger was debited meanwhile: give the fit and the score the ledger of the run, and let "
                    "no other process use the selection's."
                )
        except BaseException as error:
            # A debugger, or a notebook, keeps this frame.
            best, number, times, score, result = (-math.inf, None, None), 0, 0, 0.0, None
            if not isinstance(error, Exception):
                raise
            raise RuntimeError(
                f"Candidate {place} failed ({type(error).__name__}: {error}). The budget of the selection is spent."
            ) from error
        if score > best[0]:
            best = score, result, place
    score = best[0] if best[2] is not None else math.nan
    return Selection(best[1], score, best[2], plan, act.statement)
