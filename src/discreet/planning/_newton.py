"""`dry_run_of_newton`: private Newton fits of invented tables, at several epsilons.

Such a fit has no settings, so there is only epsilon to choose. The tables have features as `dry_run` invents them. A truth is
drawn from the model's prior and scaled so that the predictor has a given standard deviation over the records, since a draw of a
wide prior makes tables that nobody has; the target is drawn from the model. The fits are `newton.fit_invented`: the same sums,
noise and posterior as a private fit, whose intervals are compared with the truth.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import expit
from tqdm.auto import tqdm

from discreet._validate import finite_or_none, integer, positive, require
from discreet.accounting import suggest
from discreet.inference import UseWarning
from discreet.newton import NewtonPlan, NewtonResult, fit_invented
from discreet.planning._invent import prediction_scores, template_of
from discreet.report import COEFFICIENTS, NOT_USABLE, PREDICTION
from discreet.tables import Schema

FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""The epsilons that are tried, over the one asked for."""
SPREADS = {"binary": (2.0, 1.0, 0.5), "counts": (1.0, 0.5, 0.25)}
"""Standard deviations of the predictor: strong, medium and weak signals."""
USES = (NOT_USABLE, PREDICTION, COEFFICIENTS)
_MOST_TABLES = 2  # of each strength; one of 20 features and more, since each has its share in what is counted
_NEW_ROWS = 2_000
_MOST_CELLS = 2**20
_HALF = 0.5
_WIDTH = 1.645  # of a 90 % interval, in standard deviations


@dataclasses.dataclass(frozen=True)
class NewtonRow:
    """What fits at one epsilon are good for, over all invented tables.

    Attributes:
        epsilon: At the dry run's delta.
        ratio: Standard deviation of the privacy noise over that of sampling: median.
        learned: Share of coefficients for which more than half of the prior's variance is gone.
        held: Share of true coefficients inside the 90 % intervals.
        score: AUC, for counts R², on new rows: median. NaN if it is undefined.
        best: The same of the truth.
        use: Verdict on the use of the fit that half of the tables reach, as `Statement.use`.
    """

    epsilon: float
    ratio: float
    learned: float
    held: float
    score: float
    best: float
    use: str


@dataclasses.dataclass(frozen=True)
class NewtonDryRun:
    """The result of `dry_run_of_newton`. No data was read, so publishing it costs nothing.

    Attributes:
        plan: The plan of the fit at the epsilon asked for.
        epsilon: As asked for.
        rows: What to expect at several epsilons, smallest first.
    """

    plan: NewtonPlan
    epsilon: float
    rows: tuple[NewtonRow, ...]

    @property
    def asked(self) -> NewtonRow:
        """What to expect at the epsilon asked for."""
        return next(row for row in self.rows if row.epsilon == self.epsilon)

    def least(self, use: str) -> float | None:
        """The least epsilon of those tried whose fits reach a use; None if there is none."""
        return next((row.epsilon for row in self.rows if USES.index(row.use) >= USES.index(use)), None)

    def __str__(self) -> str:
        """The table, and the verdict."""
        plan = self.plan
        measure = "R²" if plan.family == "counts" else "AUC"
        lines = [
            f"Private Newton at δ = {plan.delta:.3g}, {plan.num_records:,} records, {plan.num_features} features. It has no "
            "settings but ε. Expected, on invented tables:",
            "",
            f"     ε  noise  learned  held  {measure:>5}   best  use",
        ]
        for row in self.rows:
            mark = "*" if row.epsilon == self.epsilon else " "
            lines.append(
                f"{mark}{row.epsilon:5.3g}  {row.ratio:5.3g}  {100 * row.learned:5.0f} %  {row.held:4.2f}  {row.score:5.3f}  "
                f"{row.best:5.3f}  {row.use}"
            )
        lines += [
            "",
            "Noise: its standard deviation over that of sampling. Learned: coefficients for which the prior counts less than "
            f"the data. Held: true coefficients inside the 90 % intervals. {measure}: on new rows; best: of the truth.",
            "",
            f"Use at ε = {self.epsilon:g}: {self.asked.use.capitalize()}. {self._enough(PREDICTION)} "
            f"{self._enough(COEFFICIENTS)}",
        ]
        return "\n".join(lines)

    def _enough(self, use: str) -> str:
        least = self.least(use)
        if least is None:
            return f"No ε up to {self.rows[-1].epsilon:g} makes a fit usable {use}: more records or fewer columns help."
        return f"{use.capitalize()}, ε = {least:g} {'is' if least > self.rows[0].epsilon else 'or less is'} enough."

    def to_dict(self) -> dict[str, Any]:
        """Everything for programs; numbers that are not finite are None."""
        content = {
            "epsilon": self.epsilon,
            "delta": self.plan.delta,
            "num_records": self.plan.num_records,
            "noise_multiplier": self.plan.noise_multiplier,
            "verdict": self.asked.use,
            "least_epsilon": {use: self.least(use) for use in USES[1:]},
            "curve": [dataclasses.asdict(row) for row in self.rows],
        }
        return finite_or_none(content)


def dry_run_of_newton(
    schema: Schema,
    *,
    family: str,
    num_records: int,
    epsilon: float,
    delta: float | None = None,
    seed: int = 0,
    progress_bar: bool = True,
) -> NewtonDryRun:
    """Fit invented tables by private Newton, at the epsilon asked for and at smaller and larger ones.

    Guarantee: nothing is computed from records. The bounds of the schema and the model's prior are public.

    Tables with more than a million cells are stood for by fewer rows with so much noise that it stays as large beside
    sampling; the share of learned coefficients is then the least to expect.

    Args:
        schema: The public description, with a target.
        family: "binary" or "counts", as in `NewtonPlan`.
        num_records: Public number of records, at least 20.
        epsilon: The budget.
        delta: As in `NewtonPlan.calibrate`.
        seed: Seed of the tables and the noise, neither of which is secret here.
        progress_bar: Show progress after two seconds.

    Raises:
        ValueError: An argument is out of range, or the schema's bounds were taken from data.

    >>> from discreet.tables import schema_from_bounds
    >>> schema = schema_from_bounds("age=17:90,smoker=no|yes", target="smoker")
    >>> found = dry_run_of_newton(schema, family="binary", num_records=5_000, epsilon=1.0, progress_bar=False)
    >>> found.asked.use, found.rows[0].ratio > found.rows[-1].ratio
    ('for its coefficients', True)
    """
    require("threadpoolctl", extra="tables", what="A dry run")
    from threadpoolctl import threadpool_limits

    template = template_of(schema)
    integer("num_records", num_records, least=20, hint="Nothing can be learnt from fewer records under privacy.")
    positive("epsilon", epsilon)
    delta = suggest(num_records=num_records).delta if delta is None else delta
    width = template.draw(np.random.default_rng(seed), 1)[0].shape[1]
    terms = {"delta": delta, "family": family, "num_features": width, "num_records": num_records}
    plans = [NewtonPlan.calibrate(epsilon=epsilon * factor, **terms) for factor in FACTORS]
    num_rows = min(num_records, max(1_000, _MOST_CELLS // (width + 1)))
    num_tables = min(_MOST_TABLES, max(1, 20 // width))
    tables = [
        # The last number keeps these streams apart from those of the noise.
        _Table.invented(schema, family, spread, num_rows, np.random.default_rng((seed, place, which, 1)))
        for place, spread in enumerate(SPREADS[family])
        for which in range(num_tables)
    ]
    rows = []
    shown = {"desc": "dry run", "unit": "fit", "delay": 2.0, "disable": None if progress_bar else True}
    # Its matrices are small: threads that wait for each other take five times as long.
    with threadpool_limits(1, user_api="blas"), tqdm(total=len(plans) * len(tables), **shown) as bar:
        for factor, plan in zip(FACTORS, plans, strict=True):
            # Noise over sampling goes with noise_multiplier / sqrt(num_records).
            noise = plan.noise_multiplier * math.sqrt(num_rows / num_records)
            tried = dataclasses.replace(plan, num_records=num_rows, noise_multiplier=noise)
            fits = []
            for place, table in enumerate(tables):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UseWarning)
                    fits.append(fit_invented(table.x, table.y, tried, seed=seed + place, levels=table.levels))
                bar.update()
            rows.append(_row(epsilon * factor, tables, fits))
    return NewtonDryRun(plans[FACTORS.index(1.0)], epsilon, tuple(rows))


def _row(epsilon: float, tables: list[_Table], fits: list[NewtonResult]) -> NewtonRow:
    away = [
        np.abs(fit.mean - table.truth) / np.sqrt(np.diag(fit.covariance))
        for table, fit in zip(tables, fits, strict=True)
    ]
    uses = sorted(USES.index(fit.statement.use) for fit in fits)
    scores = [table.score(**fit.to_predict) for table, fit in zip(tables, fits, strict=True)]
    best = [table.score(table.truth[:1], table.truth[None, 1:]) for table in tables]
    return NewtonRow(
        epsilon=epsilon,
        ratio=float(np.median([fit.ratio for fit in fits])),
        learned=float(np.mean([fit.learned > _HALF for fit in fits])),
        held=float(np.mean(np.array(away) < _WIDTH)),
        score=float(np.median(scores)),
        best=float(np.median(best)),
        use=USES[uses[len(uses) // 2]],
    )


@dataclasses.dataclass(frozen=True)
class _Table:
    """An invented table, with the truth that it comes from and rows to predict."""

    family: str
    x: Float[np.ndarray, "record feature"]
    y: Float[np.ndarray, " record"]
    new_x: Float[np.ndarray, "row feature"]
    new_y: Float[np.ndarray, " row"]
    truth: Float[np.ndarray, " feature+1"]

    @property
    def levels(self) -> np.ndarray:
        """True for columns of 0 and 1."""
        return np.all(np.isin(self.x, (0, 1)), axis=0)

    @classmethod
    def invented(cls, schema: Schema, family: str, spread: float, num_rows: int, rng: np.random.Generator) -> _Table:
        """A table whose predictor has the standard deviation `spread`."""
        template = template_of(schema)
        x = np.asarray(template.draw(rng, num_rows + _NEW_ROWS)[0], np.float64)
        # As the prior: a level's weight has one scale, another's is over the column's standard deviation.
        sds = np.where(np.isin(x, (0, 1)).all(axis=0), 1.0, np.maximum(x.std(axis=0), 1e-3))
        weights = rng.standard_normal(x.shape[1]) / sds
        weights *= spread / max((x @ weights).std(), 1e-9)
        limits = template.limits[1] or (0.0, 1.0)
        if family == "binary":
            middle = rng.normal()  # a share of one from a fifth to four fifths, mostly
        else:
            # Few counts lie beyond the bound.
            most = math.log(max(limits[1], 1.0))
            middle = min(most * rng.uniform(0.1, 0.5), most - 2.5 * spread)
        intercept = middle - x.mean(axis=0) @ weights
        predictor = intercept + x @ weights
        if family == "binary":
            y = (rng.random(len(x)) < expit(predictor)).astype(np.float64)
        else:
            y = np.clip(rng.poisson(np.exp(np.minimum(predictor, 20.0))), *limits).astype(np.float64)
        x = x.astype(np.float32)
        return cls(family, x[:num_rows], y[:num_rows], x[num_rows:], y[num_rows:], np.append(intercept, weights))

    def score(self, intercept: np.ndarray, weights: np.ndarray) -> float:
        """AUC of the mean of draws, for counts R²; NaN where it is undefined."""
        predictor = intercept + self.new_x @ weights.T
        mean = (expit(predictor) if self.family == "binary" else np.exp(np.clip(predictor, -20, 20))).mean(axis=1)
        return next(iter(prediction_scores(self.new_y, mean).values()), math.nan)
