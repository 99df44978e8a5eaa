"""Fits of invented tables: for each kind of model the method that would fit it, and what its result is worth beside the truth.

A `Trial` is one kind. It invents its tables once, and `fit` fits one of them at an epsilon. Private
Newton's fits are the same algorithm without what protects records (`newton.fit_invented`), so
another epsilon compiles nothing; others run as they are.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro.handlers as handlers
from jaxtyping import Bool, Float
from scipy.optimize import brentq
from scipy.special import expit, softmax

from discreet._numpyro import trace_of
from discreet._validate import real, require
from discreet.methods.choose import MOMENTS, STEPS, choose
from discreet.methods.inference import DPSVI, NoPointError, starting_objective
from discreet.methods.moments import fit_moments
from discreet.methods.newton import (
    ModelPlan,
    fit_invented,
    fit_invented_model,
    names_of_latents,
)
from discreet.privacy import random
from discreet.privacy.sampling import PoissonSampling
from discreet.tabular.models import (
    REGRESSIONS,
    Defaults,
    defaults_for,
    linear_regression,
    negative_binomial_regression,
)
from discreet.tabular.planning._invent import (
    InventedTable,
    Inventor,
    Model,
    Template,
    template_of,
    weights_of,
)
from discreet.tabular.tables import Schema

WITHOUT_GAPS = "No invented record is dropped for a missing cell: if many of yours are, give the share that is kept."
AUC = "AUC"
ACCURACY = "accuracy"
R_SQUARED = "R²"
_SPREADS = {"binary": (2.0, 1.0, 0.5), "classes": (2.0, 1.0, 0.5), "counts": (1.0, 0.5, 0.25)}
"""Standard deviations of the predictor: strong, medium and weak signals."""
_STRENGTHS = (1.0, 0.5, 0.25)
"""Factors by which a truth is moved towards the middle of the prior."""
_EXPLAINED = (0.9, 0.5, 0.1)
"""The part of a target's variance that a line explains."""
# of each strength; one of 20 features and more, since each has its share in what is counted
_MOST_TABLES = 4
_NEW_ROWS = 2_000
_MOST_CELLS = 2**22
_LEAST_ROWS = 1_000
_MOST_DRAWS = 200
_WIDTH = 1.645  # of a 90 % interval, in standard deviations
_NOTHING = np.zeros(0)


class Worth(NamedTuple):
    """What one fit is worth; what a method does not say is NaN or empty."""

    use: str  # The verdict of the fit, as `Statement.use`
    ratio: float = math.nan  # Standard deviation of the privacy noise over that of sampling
    # For each coefficient, the share of the prior's variance that is gone
    learned: np.ndarray = _NOTHING
    held: np.ndarray = _NOTHING  # For each, whether its 90 % interval holds the truth
    score: float = math.nan  # The trial's measure, on new rows or against the truth
    best: float = math.nan  # The same of the truth


class Terms(NamedTuple):
    """The public numbers of a dry run, but for epsilon."""

    num_records: int
    delta: float
    seed: int
    share: float | None = None  # Of the records, those with the second category of a binary target
    kept: float | None = None  # Of the records, those that the schema does not drop


class Trial(ABC):
    """One kind of fit, and invented tables for it.

    Attributes:
        method: The method in words.
        measure: The name of the score; empty if there is none.
        note: Why this method is the one, or what the tables lack; may be empty.
        num_tables: Number of invented tables.
    """

    method: str
    measure: str = ""
    note: str = ""
    num_tables: int

    def __init__(self, terms: Terms, num_cells: int) -> None:
        """`num_cells` is the number of cells of a record."""
        self.terms = terms
        self.num_rows = min(terms.num_records, max(_LEAST_ROWS, _MOST_CELLS // (num_cells + 1)))

    @abstractmethod
    def plan(self, epsilon: float) -> Any:
        """The plan of the fit."""

    @abstractmethod
    def fit(self, epsilon: float, number: int) -> Worth:
        """Fit the table of this number at an epsilon."""

    def _scaled(self, epsilon: float) -> Any:
        """The plan for as many rows as are invented, with noise that is as large beside that of sampling."""
        plan = self.plan(epsilon)
        noise = plan.noise_multiplier * math.sqrt(self.num_rows / self.terms.num_records)
        return dataclasses.replace(plan, num_records=self.num_rows, noise_multiplier=noise)

    def _gaps(self, rng: np.random.Generator) -> np.ndarray | None:
        """Which records of a table the schema does not drop; None: all."""
        return None if self.terms.kept is None else rng.random(self.num_rows) < self.terms.kept

    def _rng(self, number: int) -> np.random.Generator:
        """The stream of a table."""
        return np.random.default_rng((self.terms.seed, number, 1))

    def _noise_seed(self, number: int) -> int:
        """The seed of a fit's noise, whose stream is none of a table's."""
        return int(np.random.default_rng((self.terms.seed, number, 2)).integers(2**31))


def _plan_of_regression(trial: RegressionTrial | LineTrial, epsilon: float) -> Any:
    """The plan of a regression's fit to noisy sums."""
    terms = trial.terms
    return trial.regression.plan(
        trial.schema,
        epsilon=epsilon,
        delta=terms.delta,
        num_features=trial.num_features,
        num_records=terms.num_records,
    )


class RegressionTrial(Trial):
    """A regression of a schema's target, by private Newton."""

    method = "Private Newton"

    def __init__(self, name: str, schema: Schema, terms: Terms) -> None:
        self.template = template_of(schema)
        self.regression = REGRESSIONS[name]
        self.family = family = self.regression.family
        # Counts vary more than Poisson's.
        self.scattered = self.regression.model is negative_binomial_regression
        self.schema = schema
        self.num_classes = self.regression.num_classes(schema)
        self.num_features = self.template.draw(np.random.default_rng(terms.seed), 1)[0].shape[-1]
        super().__init__(terms, schema.max_rows * self.num_features)
        self.measure = {"binary": AUC, "classes": ACCURACY, "counts": R_SQUARED}[family]
        times = min(_MOST_TABLES, max(1, 20 // self.num_features))
        spreads = [spread for spread in _SPREADS[family] for _ in range(times)]
        self.num_tables = len(spreads)
        self.tables = [
            self._table(spread, self._rng(number)) for number, spread in enumerate(spreads)
        ]
        self.note = self._assumed()

    def _assumed(self) -> str:
        """How usual what is to be predicted is in the invented tables, in words: the rarer, the more the noise hides."""
        rows = [table.y if table.mask is None else table.y[table.mask] for table in self.tables]
        means = [float(y.mean()) for y in rows]
        if self.family == "counts":
            between = f"{min(means):.3g} to {max(means):.3g}"
            return f"The mean of the invented counts is {between}: if yours is lower, expect more noise."
        if self.terms.share is not None:
            return f"The second category of the target has {100 * self.terms.share:.3g} % of the invented records, as given."
        which = "second"
        shares = means
        if self.family == "classes":
            which = "rarest"
            shares = [
                np.bincount(y.astype(int), minlength=self.num_classes).min() / len(y) for y in rows
            ]
        given = " (give its share)" * (self.family == "binary")
        return (
            f"The {which} category of the target has {100 * min(shares):.3g} to {100 * max(shares):.3g} % of the invented "
            f"records: if yours is rarer{given}, expect more noise."
        )

    def plan(self, epsilon: float) -> Any:
        return _plan_of_regression(self, epsilon)

    def fit(self, epsilon: float, number: int) -> Worth:
        table = self.tables[number]
        found = fit_invented(
            table.x,
            table.y,
            self._scaled(epsilon),
            seed=self._noise_seed(number),
            mask=table.mask,
            weights=table.survey,
            levels=table.levels,
        )
        away = np.abs(found.mean - table.truth) / np.sqrt(np.diag(found.covariance))
        size = self.num_features + 1
        truth = (
            table.truth
            if self.family != "classes"
            else table.truth.reshape(self.num_classes, size).T
        )
        return Worth(
            use=found.statement.use,
            ratio=found.ratio,
            learned=found.learned,
            held=away < _WIDTH,
            score=table.score(**found.to_predict),
            best=table.score(truth[None, 0], truth[None, 1:]),
        )

    def _table(self, spread: float, rng: np.random.Generator) -> RegressionTable:
        """A table whose predictor has the standard deviation `spread`."""
        x, _, *mask = self.template.draw(rng, self.num_rows + _NEW_ROWS)
        there = mask[0] if mask else np.ones(x.shape[:-1], bool)
        rows = np.asarray(x[there], np.float64)
        # As the prior: a level's weight has one scale, another's is over the column's standard
        # deviation.
        is_level = np.asarray(np.isin(rows, (0, 1)).all(axis=0))
        sds = np.where(is_level, 1.0, np.maximum(rows.std(axis=0), 1e-3))
        outputs = self.num_classes if self.family == "classes" else 1
        weights = rng.standard_normal((self.num_features, outputs)) / sds[:, None]
        if outputs > 1:
            weights -= weights.mean(axis=1, keepdims=True)
        weights *= spread / max((rows @ weights).std(axis=0).mean(), 1e-9)
        limits = self.template.limits[1] or (0.0, 1.0)
        if self.family == "counts":
            # Few counts lie beyond the bound.
            most = math.log(max(limits[1], 1.0))
            middle = np.array([min(most * rng.uniform(0.1, 0.5), most - 2.5 * spread)])
        else:
            # A share of one from a fifth to four fifths, mostly.
            middle = rng.normal(size=outputs)
            middle -= middle.mean() if outputs > 1 else 0.0
        if self.terms.share is not None:
            centred = (rows - rows.mean(axis=0)) @ weights[:, 0]
            share = self.terms.share
            middle = np.array(
                [brentq(lambda middle: expit(middle + centred).mean() - share, -100, 100)]
            )
        intercept = middle - rows.mean(axis=0) @ weights
        predictor = intercept + np.asarray(x, np.float64) @ weights
        if self.family == "classes":
            y = np.argmax(predictor + rng.gumbel(size=predictor.shape), axis=-1)
        elif self.family == "binary":
            y = rng.random(x.shape[:-1]) < expit(predictor[..., 0])
        else:
            mean = np.exp(np.minimum(predictor[..., 0], 20.0))
            y = np.clip(
                rng.poisson(mean * rng.exponential(size=mean.shape) if self.scattered else mean),
                *limits,
            )
        y = np.where(there, y, 0).astype(np.float64)
        old = np.s_[: self.num_rows]
        new = np.s_[self.num_rows :]
        gaps = self._gaps(rng)
        survey = weights_of(self.schema, rng, y[old].shape)
        return RegressionTable(
            family=self.family,
            x=x[old].astype(np.float32),
            y=y[old],
            mask=there[old] if mask else gaps,
            survey=survey,
            new_x=x[new][there[new]].astype(np.float32),
            new_y=y[new][there[new]],
            limits=limits,
            truth=np.concatenate([intercept[None], weights]).T.reshape(-1),
            levels=is_level,
        )


@dataclasses.dataclass(frozen=True)
class RegressionTable:
    """An invented table, with the truth that it comes from and rows to predict."""

    family: str
    x: Float[np.ndarray, "record *row feature"]
    y: Float[np.ndarray, "record *row"]
    mask: Bool[np.ndarray, "record *row"] | None
    survey: Float[np.ndarray, "record *row"] | None
    new_x: Float[np.ndarray, "row feature"]
    new_y: Float[np.ndarray, " row"]
    limits: tuple[float, float]  # of a count, which is cut there
    truth: np.ndarray  # intercept and weights, of classes those of one after another
    levels: Bool[np.ndarray, " feature"]

    def score(self, intercept: np.ndarray, weights: np.ndarray) -> float:
        """AUC, accuracy or R² of the mean over draws; NaN where it is undefined."""
        weights = weights[:_MOST_DRAWS]
        intercept = intercept[:_MOST_DRAWS]
        if self.family == "classes":
            predictor = intercept[None] + np.einsum("nf,dfk->ndk", self.new_x, weights)
            return float(
                np.mean(softmax(predictor, axis=-1).mean(axis=1).argmax(axis=-1) == self.new_y)
            )
        predictor = intercept + self.new_x @ weights.T
        if self.family == "binary":
            return prediction_score(self.new_y, expit(predictor).mean(axis=1))[1]
        mean = np.exp(np.clip(predictor, -20, 20)).mean(axis=1)
        return prediction_score(self.new_y, np.clip(mean, *self.limits))[1]


class LineTable(NamedTuple):
    """An invented table of rows to fit and, behind them, rows to predict, with the line that it comes from."""

    x: Float[np.ndarray, "row feature"]
    y: Float[np.ndarray, " row"]
    mask: Bool[np.ndarray, " record"] | None
    survey: Float[np.ndarray, " record"] | None
    truth: Float[np.ndarray, " feature+1"]


class LineTrial(Trial):
    """A linear regression, by noisy moments."""

    method = "Noisy moments"
    measure = R_SQUARED
    num_tables = len(_EXPLAINED)
    regression = REGRESSIONS["linear"]

    def __init__(self, schema: Schema, terms: Terms) -> None:
        self.schema = schema
        self.template = template_of(schema)
        self.num_features = self.template.draw(np.random.default_rng(terms.seed), 1)[0].shape[-1]
        super().__init__(terms, self.num_features)
        self.tables = [
            self._table(explained, self._rng(number)) for number, explained in enumerate(_EXPLAINED)
        ]

    def plan(self, epsilon: float) -> Any:
        return _plan_of_regression(self, epsilon)

    def fit(self, epsilon: float, number: int) -> Worth:
        table = self.tables[number]
        x = table.x
        y = table.y
        truth = table.truth
        old = np.s_[: self.num_rows]
        new = np.s_[self.num_rows :]
        key = random.key(self._noise_seed(number))
        plan = self._scaled(epsilon)
        found = fit_moments(key, x[old], y[old], plan, mask=table.mask, weights=table.survey)

        def score(line: np.ndarray) -> float:
            return prediction_score(y[new], line[0] + x[new] @ line[1:])[1]

        variances = np.diag(found.covariance)
        return Worth(
            use=found.statement.use,
            learned=1 - variances,  # the prior's variance is 1
            held=np.abs(found.mean - truth) < _WIDTH * np.sqrt(variances),
            score=score(found.estimate),
            best=score(truth),
        )

    def _table(self, explained: float, rng: np.random.Generator) -> LineTable:
        """A table whose line explains a part of the target's variance."""
        x = np.asarray(self.template.draw(rng, self.num_rows + _NEW_ROWS)[0], np.float64)
        middle = x.mean(axis=0)
        weights = rng.standard_normal(self.num_features)
        # A target of a standard deviation of a third, so that few are cut at the bounds.
        weights *= math.sqrt(explained) / 3 / max(((x - middle) @ weights).std(), 1e-9)
        y = (x - middle) @ weights + math.sqrt(1 - explained) / 3 * rng.standard_normal(len(x))
        return LineTable(
            x=x,
            y=np.clip(y, -1, 1),
            mask=self._gaps(rng),
            survey=weights_of(self.schema, rng, (self.num_rows,)),
            truth=np.append(-middle @ weights, weights),
        )


class ModelTrial(Trial):
    """A model whose tables are drawn from its prior."""

    most_times = 1  # tables of each strength

    def __init__(
        self,
        model: Model,
        template: Template,
        latents: Sequence[str],
        terms: Terms,
        strengths: Sequence[float],
    ) -> None:
        example = template.draw(np.random.default_rng(terms.seed), 1)
        super().__init__(terms, sum(math.prod(x.shape[1:]) for x in example))
        self.model = model
        self.template = template
        self.inventor = Inventor(model, template, latents, jax.random.key(terms.seed))
        # Of few latents more tables: each has its share in what is counted.
        strengths = list(strengths) * min(self.most_times, max(1, 12 // self.inventor.size))
        self.num_tables = len(strengths)
        self.tables = [
            self._with_gaps(
                self.inventor.table(strength, self.num_rows, _NEW_ROWS, terms.seed + number), number
            )
            for number, strength in enumerate(strengths)
        ]
        self.site, self.measure = self._measure()

    def _with_gaps(self, table: InventedTable, number: int) -> InventedTable:
        """The table with records that are dropped: NaN throughout, as `encode` makes them."""
        kept = self._gaps(self._rng(number))
        if kept is None:
            return table
        rows = [
            np.where(kept.reshape(-1, *[1] * (x.ndim - 1)), x, np.nan).astype(np.float32)
            for x in table.rows
        ]
        return dataclasses.replace(table, rows=rows)

    def _measure(self) -> tuple[str, str]:
        """The site whose mean is predicted, and the score's name; empty where no site has a number for each row."""
        table = self.tables[0]
        axes = 1 if self.template.mask is None else 2
        sites = [
            name
            for name, place in self.inventor.observed.items()
            if table.held_out[place].ndim == axes
        ]
        measure, _ = (
            self._scored(sites[0], table.truth, table) if len(sites) == 1 else ("", math.nan)
        )
        return (sites[0], measure) if measure else ("", "")

    def _scored(
        self, site: str, values: Mapping[str, Any], table: InventedTable
    ) -> tuple[str, float]:
        """The name of a site's score, and the score; empty and NaN where it has none."""
        target = table.held_out[self.inventor.observed[site]]
        predicted = self._means(site, values, table)
        if predicted is None or predicted.shape != target.shape or np.isnan(predicted).all():
            return "", math.nan  # classes have no mean
        there = ... if self.template.mask is None else table.held_out[self.template.mask]
        return prediction_score(target[there], predicted[there])

    def _means(
        self, site: str, values: Mapping[str, Any], table: InventedTable
    ) -> np.ndarray | None:
        """The expected value of each new row; None where the model has none given the latents alone."""
        seeded = handlers.seed(self.model, jax.random.key(0))
        trace = trace_of(handlers.substitute(seeded, data=dict(values)), *table.held_out)
        latents = {
            name for name, at in trace.items() if at["type"] == "sample" and not at["is_observed"]
        }
        try:
            return (
                np.asarray(trace[site]["fn"].mean, np.float64) if latents <= values.keys() else None
            )
        except (NotImplementedError, AttributeError):
            return None

    def _score(self, values: Mapping[str, Any], table: InventedTable) -> float:
        if not self.site:
            return math.nan
        measure, score = self._scored(self.site, values, table)
        return score if measure == self.measure else math.nan


class OwnModelTrial(ModelTrial):
    """A NumPyro model, by private Newton."""

    method = "Private Newton of a model"
    most_times = _MOST_TABLES

    @classmethod
    def of(cls, model: Model, template: Template, terms: Terms, note: str = "") -> OwnModelTrial:
        """The trial; NoPointError where `DPNewton` refuses the model."""
        example = template.draw(np.random.default_rng(terms.seed), 8)
        latents = names_of_latents(model, example, num_records=terms.num_records)
        trial = cls(model, template, latents, terms, _STRENGTHS)
        trial.note = note
        return trial

    def plan(self, epsilon: float) -> ModelPlan:
        return ModelPlan.calibrate(
            epsilon=epsilon, delta=self.terms.delta, num_records=self.terms.num_records
        )

    def fit(self, epsilon: float, number: int) -> Worth:
        table = self.tables[number]
        seed = self._noise_seed(number)
        plan = self._scaled(epsilon)
        found = fit_invented_model(self.model, table.rows, plan, seed=seed)
        held = []
        for name, (low, high) in found.interval.items():
            truth = np.asarray(table.truth[name])
            held.append(np.ravel((low <= truth) & (truth <= high)))
        return Worth(
            use=found.statement.use,
            ratio=found.ratio,
            learned=np.concatenate([np.ravel(share) for share in found.learned.values()]),
            held=np.concatenate(held),
            score=self._score(found.estimate, table),
            best=self._score(table.truth, table),
        )


class StepsTrial(ModelTrial):
    """A model that private Newton refuses, or that has a guide of its own, by `DPSVI` with the default settings."""

    method = "A fit in steps"

    def __init__(
        self,
        model: Any,
        template: Template,
        terms: Terms,
        guide: Callable[..., Any] | None = None,
        note: str = "",
    ) -> None:
        self.note = note
        self.settings: Defaults = defaults_for(model)
        self.guide = guide
        self.terms = terms
        example = template.draw(np.random.default_rng(terms.seed), 8)
        start = starting_objective(
            self._dpsvi(self.plan(1.0)), jax.random.key(terms.seed), *example
        )
        latents = start.structure.global_latents
        super().__init__(model, template, latents, terms, _STRENGTHS[1:2])

    def plan(self, epsilon: float) -> Any:
        terms = self.terms
        return self.settings.plan(epsilon=epsilon, delta=terms.delta, num_records=terms.num_records)

    def _dpsvi(self, plan: Any) -> DPSVI:
        if self.guide is None:
            return self.settings.dpsvi(plan)
        return DPSVI(self.settings.model, self.guide, self.settings.optimizer(), plan=plan)

    def fit(self, epsilon: float, number: int) -> Worth:
        table = self.tables[number]
        plan = self.plan(epsilon)
        # Batches as large as in a table of all records, with as much noise.
        rate = min(1.0, plan.rate * plan.num_records / self.num_rows)
        plan = dataclasses.replace(
            plan, num_records=self.num_rows, sampling=PoissonSampling(rate=rate)
        )
        key = random.key(self._noise_seed(number))
        found = self._dpsvi(plan).run(key, *table.rows, progress_bar=False)
        values = {
            name: np.asarray(draws).mean(axis=0)
            for name, draws in found.posterior(key, _MOST_DRAWS).items()
        }
        best = self._score(table.truth, table)
        return Worth(found.statement.use, score=self._score(values, table), best=best)


def trial_for(
    model: Any, about: Any, terms: Terms, guide: Callable[..., Any] | None = None
) -> Trial:
    """The trial of a model, by the method that fits it."""
    drops = isinstance(about, Schema) and about.drops_records
    if terms.share is not None:
        if model != "logistic":
            raise ValueError(
                "share is that of the second category of a target of logistic: leave it out"
            )
        least = 1 / terms.num_records
        real(
            "share",
            terms.share,
            least,
            1 - least,
            hint="It is a public guess of how usual the second category is.",
        )
    if terms.kept is not None:
        if not drops:
            raise ValueError(
                f"kept is the share of records that a schema does not drop: {_none_dropped(about)}"
            )
        real(
            "kept",
            terms.kept,
            1 / terms.num_records,
            1,
            hint="It is a public guess of the share with a target.",
        )
    trial = _trial_for(model, about, terms, guide)
    if drops:
        given = (
            ""
            if terms.kept is None
            else f"Of the invented records {100 * terms.kept:.3g} % are kept, as given."
        )
        trial.note = " ".join(filter(None, [trial.note, given or WITHOUT_GAPS]))
    return trial


def _none_dropped(about: Any) -> str:
    """Why a fit drops no record, and what to do instead of giving `kept`."""
    if isinstance(about, Schema) and about.max_rows > 1:
        return "of a person with several rows only rows are dropped: leave kept out"
    return 'here none are: leave kept out, or write missing = "drop" for the column whose missing cells drop a record'


def _trial_for(model: Any, about: Any, terms: Terms, guide: Callable[..., Any] | None) -> Trial:
    if isinstance(model, str):
        return _regression(model, about, terms)
    if isinstance(about, Schema) and about.weight is not None:
        raise ValueError(
            f"A model of your own counts each record once: take the weight {about.weight!r} out of the schema, by which the "
            "column is one like others"
        )
    template = template_of(() if about is None else about)
    note = "The model has a guide."
    if guide is None:
        try:
            return OwnModelTrial.of(model, template, terms)
        except NoPointError as error:
            note = str(error)
    return StepsTrial(model, template, terms, guide, note)


def _regression(name: str, schema: Any, terms: Terms) -> Trial:
    """The trial of a regression of a schema's target."""
    regression = REGRESSIONS.get(name)
    if regression is None:
        named = ", ".join(REGRESSIONS)
        raise ValueError(f"model is {name!r}: pass a NumPyro model, or one of {named}")
    template = template_of(schema)  # refuses what is no schema
    target = schema.target_column
    if target is None:
        raise ValueError(
            f"{name} explains a target, and the schema has none: name it in the schema"
        )
    if target.kind is not regression.kind:
        raise ValueError(
            f"{name} explains a {regression.kind.value} target, and {target.name!r} is {target.kind.value}"
        )
    chosen = choose(regression.family, max_rows=schema.max_rows)
    if chosen.method == STEPS:
        chosen.refuse(["weights"] * (schema.weight is not None))
        return StepsTrial(linear_regression, template, terms, note=f"{chosen.why.capitalize()}.")
    return (
        LineTrial(schema, terms)
        if chosen.method == MOMENTS
        else RegressionTrial(name, schema, terms)
    )


def prediction_score(
    target: np.ndarray, predicted: Float[np.ndarray, " record"]
) -> tuple[str, float]:
    """AUC of a target of 0 and 1, R² of another; NaN where it is undefined.

    >>> prediction_score(np.array([0.0, 1.0, 1.0]), np.array([0.1, 0.7, 0.4]))
    ('AUC', 1.0)
    """
    target = np.asarray(target, np.float64)
    values = np.unique(target)
    name = AUC if set(values) <= {0.0, 1.0} else R_SQUARED
    if len(values) < 2 or not np.isfinite(predicted).all():
        return name, math.nan
    if name == AUC:
        require("sklearn", extra="tables", what="The AUC of a dry run")
        from sklearn.metrics import roc_auc_score

        return name, float(roc_auc_score(target, predicted))
    residual = np.sum(np.square(target - predicted))
    return name, float(1 - residual / np.sum(np.square(target - target.mean())))
