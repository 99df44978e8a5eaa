"""Posterior predictive checks of a regression against released counts and sums: p-values, one verdict, a picture."""

from __future__ import annotations

import dataclasses
import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from discreet._jax import in_own_settings
from discreet._validate import LEVEL, finite_or_none, integer, notebook_html, probability
from discreet.methods.newton import OfCoefficients
from discreet.privacy import random
from discreet.privacy.accounting import composed, upper
from discreet.privacy.released import Released
from discreet.privacy.report import Statement
from discreet.tabular.criticism._figures import Counted, Figures, Tables, in_units, mean_of
from discreet.tabular.criticism._replicates import Expected, replicate
from discreet.tabular.formulas import Regression
from discreet.tabular.marginals import Marginals, release_of, tail, z_of
from discreet.tabular.tables import Column, Kind, Schema

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

ALARM = 0.05
"""The level of the verdict: about how often a right model is said not to fit, as far as `check` is exact."""
_REPLICATES = 400
_REFITS = 10
_LINES = 60
_SEEN = 3.0
"""Standard deviations, over replicates, that a part's number of records must be above 0."""


class CheckedFigure(NamedTuple):
    """A figure that was released, beside what the fit expects of it.

    Attributes:
        name: What it is of the target.
        of: "" for all records; or the part of another column.
        released: As released, with its noise.
        expected: The mean over replicates.
        interval: Of replicates with that noise, at the check's level.
        p: Chance of a figure as far from what is expected as this one, by itself, if the fit is
            right.
    """

    name: str
    of: str
    released: float
    expected: float
    interval: tuple[float, float]
    p: float


@dataclasses.dataclass(frozen=True, repr=False)
class Check:
    """A posterior predictive check. It follows from releases, and costs nothing more.

    Attributes:
        target: The target.
        figures: What was compared.
        p: Chance that some figure is as far from what is expected as the farthest one, if the fit
            is right.
        level: Level of the intervals.
        shares: Released shares of the target's levels, and those of some replicates, (1 +
            replicate, level).
        epsilon: What the fit and the counts cost together, at `delta`; infinite if one of them is
            not private, or they protect unlike units.
        delta: That delta.
        statements: The statements of both.
    """

    target: Column
    figures: tuple[CheckedFigure, ...]
    p: float
    level: float
    shares: Float[np.ndarray, "replicate level"]
    labels: tuple[str, ...]
    epsilon: float
    delta: float
    statements: tuple[Statement, Statement]

    @property
    def fits(self) -> bool:
        """False if `p` is below 0.05; docs/criticism.md has how often that was so of right models."""
        return self.p >= ALARM

    @property
    def verdict(self) -> str:
        """What the check says, in a sentence."""
        worst = min(self.figures, key=lambda figure: figure.p)
        p = "p < 0.005" if self.p < 0.005 else f"p = {self.p:.2g}"
        if self.fits:
            return (
                f"Nothing that was released speaks against the model ({p} of all {len(self.figures)} figures together). What the "
                "noise hides, and what was not counted, may."
            )
        low, high = worst.interval
        of = f" where {worst.of}" if worst.of else ""
        return (
            f"The model does not fit ({p} of all {len(self.figures)} figures together): the {worst.name} of "
            f"{self.target.name}{of} is {worst.released:.4g}, and the model expects {worst.expected:.4g} "
            f"({low:.4g} to {high:.4g})."
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it, with both statements."""
        return {
            **finite_or_none(
                {
                    "target": self.target.name,
                    "figures": [figure._asdict() for figure in self.figures],
                    "p": self.p,
                    "level": self.level,
                    "verdict": self.verdict,
                    "epsilon": self.epsilon,
                    "delta": self.delta,
                }
            ),
            "statements": [statement.to_dict() for statement in self.statements],
        }

    def __str__(self) -> str:
        """The table, the verdict, and what fit and counts cost together."""
        names = [
            f"{figure.name}, {figure.of}" if figure.of else figure.name for figure in self.figures
        ]
        width = max(map(len, names))
        lines = [
            f"{self.target.name:{width}}  {'released':>9}  {'expected':>9}  {f'{100 * self.level:g} % interval':>22}  {'p':>6}"
        ]
        for name, figure in zip(names, self.figures, strict=True):
            value, middle, low, high = (
                f"{x:.4g}" for x in (figure.released, figure.expected, *figure.interval)
            )
            p = "<0.001" if figure.p < 0.001 else f"{figure.p:.3f}"
            lines.append(
                f"{name:{width}}  {value:>9}  {middle:>9}  {f'{low} to {high}':>22}  {p:>6}"
            )
        lines.append(self.verdict)
        if math.isfinite(self.epsilon):
            spent = f"Fit and counts together: ε = {upper(self.epsilon)} at δ = {self.delta:g}. The check costs nothing more."
        else:
            spent = (
                "Fit or counts are NOT PRIVATE, or of unlike units or relations: see their statements. The check costs nothing "
                "more."
            )
        return "\n".join([*lines, spent])

    def __repr__(self) -> str:
        """Short, without figures."""
        return f"Check({self.target.name}, {len(self.figures)} figures, p = {self.p:.2g})"

    def _repr_html_(self) -> str:
        return notebook_html(
            f"Check of {self.target.name}: p = {self.p:.2g}", str(self), wrong=not self.fits
        )

    def plot(self, path: str | Path | None = None) -> Picture:
        """Draw the released shares of the target's levels over those of replicates, as ArviZ's `plot_ppc`.

        Args:
            path: File for the picture, whose ending determines its format. None: it is not saved.

        Returns:
            The matplotlib figure.

        Raises:
            ImportError: Matplotlib is not installed.
        """
        from discreet.methods.plots import plot_replicates

        return plot_replicates(
            self.labels,
            self.shares[0],
            self.shares[1:],
            axis=self.target.name,
            title=self.verdict,
            path=path,
        )


@in_own_settings
def check(
    result: Any,
    counts: Any,
    *,
    target: str | None = None,
    model: Any = None,
    features: Any = None,
    family: str | None = None,
    level: float = LEVEL,
    num_replicates: int = _REPLICATES,
    rng_key: PRNGKeyArray | None = None,
) -> Check:
    """Check a fitted regression against what was released of its table already, at no further cost.

    Outcomes are drawn from the posterior for invented records, counted as the release counted, and
    the known noise of the counts is added. Features of these records are drawn from a mixture
    fitted to the same counts, with its uncertainty. Figures of the release are compared with those
    of the replicates: of the target, and of the target within parts of each column that was counted
    with it. The verdict is on the farthest figure, against the farthest one of each replicate.

    It is approximate in three ways: of the features all pairs are fitted, and what three of them
    have together only as far as a mixture has it; the error of the mixture is estimated by
    refitting it; and counts, fit and mixture saw the same records, which makes them agree, so that
    p-values are rather too large. docs/criticism.md has measured false alarms.

    Args:
        result: The result of `dp.regress`; of `fit_newton`, `fit_moments` or, with `model`,
            `dp.fit`, of records as `tables.encode` makes them.
        counts: The description, or other release, of the same table: with all pairs of the
            features, such as `describe(table, schema, pairs="all", ...)`, or `twins`.
        target: Name of the target. None: the schema's.
        model: The model, if the result is of an own one: with features, and None for the target, as
            arguments.
        features: Function from a pyarrow table of the schema's columns to the fit's features. None:
            `tables.encode_features`.
        family: For counts, "poisson" (None) or "negative_binomial".
        level: Level of the intervals.
        num_replicates: Number of replicates, rounded up to a multiple of 10.
        rng_key: Any JAX key, for the replicates; None: a new one.

    Returns:
        The figures with p-values; `print` shows a table and the verdict.

    Raises:
        ValueError, TypeError: The release lacks counts that are needed, or the fit is of other
            features.

    Reference:
        Gelman, Meng and Stern, Posterior predictive assessment of model fitness, Statistica Sinica
        1996.
    """
    from discreet.tabular.tables import encode_features  # needs pyarrow

    probability("level", level, hint="0.9 is the default.")
    of_each = -(-integer("num_replicates", num_replicates, 100) // _REFITS)
    released = release_of(counts)
    if released is None:
        raise TypeError(
            "check takes what was released already: the result of describe, twins or private_marginals."
        )
    schema = _schema(
        released, result.design.target.name if isinstance(result, Regression) else target
    )
    column = schema.target_column
    assert column is not None
    counted = Counted(released.plan, column)
    _refuse(counted, schema)
    if getattr(getattr(result, "plan", None), "weighted", False):
        raise ValueError(
            "The fit is of the population for which its survey weights stand, and the counts are of the table's rows: check has "
            "no replicates of these."
        )
    if isinstance(result, Regression):
        _refuse_target(result, column)
    else:
        _refuse_fit(result, model, family, column)
    key = random.check_key(random.key() if rng_key is None else rng_key)
    of_outcomes, of_rows = jax.random.split(key)
    keys = iter(jax.random.split(of_outcomes, _REFITS + 1))

    def predict(table: Any, number: int) -> tuple[np.ndarray, np.ndarray]:
        options: dict[str, Any] = {"key": next(keys), "num_samples": number}
        if isinstance(result, Regression):
            outcomes = result.predict(table, **options).outcomes
            if column.bounds is not None and column.kind is not Kind.COUNT:
                low, high = column.limits
                outcomes = (2 * outcomes - low - high) / (high - low)
            used = np.asarray(np.isfinite(outcomes).all(axis=0))
            return np.where(used, outcomes, 0), used
        x = np.asarray(encode_features(table, schema).x if features is None else features(table))
        used = np.asarray(np.isfinite(x).reshape(len(x), -1).all(axis=1))
        x = np.where(used.reshape(-1, *[1] * (x.ndim - 1)), x, 0)
        if isinstance(result, OfCoefficients):
            outcomes = result.predict(x, **options, family=family).outcomes
        else:
            outcomes = result.predict(model, x, None, **options).outcomes
        if column.bounds is None and not np.isin(outcomes, np.arange(len(column.categories))).all():
            raise ValueError(
                f"The fit's outcomes are no positions among the {len(column.categories)} categories of {column.name!r}: it is of "
                "another target, or of one that was coded otherwise than by tables.encode."
            )
        return outcomes, used

    rng = np.random.default_rng(np.asarray(jax.random.key_data(random.as_threefry(of_rows))))
    expected = replicate(predict, released, counted, num_refits=_REFITS, of_each=of_each, rng=rng)
    figures = Figures(counted, mean_of(expected.tables))
    observed = counted.released(released)
    laplace = released.plan.laplace
    found, p = _compared(figures, column, observed, expected, level, laplace)
    shares = figures.shares([observed, *expected.tables[:: max(1, len(expected.tables) // _LINES)]])
    labels = tuple(released.plan.levels.labels(column))
    spent = _together(result, released)
    return Check(
        column, found, p, level, shares, labels, *spent, (result.statement, released.statement)
    )


def _schema(released: Marginals, target: str | None) -> Schema:
    """The schema of the counts, with the target."""
    schema = released.plan.schema
    name = schema.target if target is None else target
    if name not in [column.name for column in schema.columns]:
        names = ", ".join(column.name for column in schema.columns)
        raise ValueError(f"target is {name!r}, which the counts do not have: choose among {names}.")
    if schema.max_rows > 1 or schema.weight is not None:
        what = "persons with several rows" if schema.max_rows > 1 else "survey weights"
        raise ValueError(
            f"check has no replicates of {what}: it takes counts of records that are one row of weight 1."
        )
    return dataclasses.replace(schema.without_person(), target=name)


def _refuse_target(result: Regression, column: Column) -> None:
    """Refuse a fit by a formula whose new targets are not the column's cells."""
    if result.design.family.beside:
        raise ValueError(
            f"check has no replicates for the family {result.family}, of numbers of successes and of times: `dp.compare` says "
            "which of several models fits held-out rows better."
        )
    own = result.design.target
    if (own.kind, own.limits if own.bounds else own.categories) != (
        column.kind,
        column.limits if column.bounds else column.categories,
    ):
        raise ValueError(
            f"The formula's target is not {column.name!r} as it was counted: count a column with its bounds or categories."
        )


def _refuse(counted: Counted, schema: Schema) -> None:
    """Refuse counts that lack the target, or a pair of features."""
    if not counted.has_alone and not counted.others:
        raise ValueError(
            f"{counted.target.name!r} is in no table of the counts that a check uses: count it, and its pairs."
        )
    known = {frozenset(table) for table in counted.plan.tables if len(table) == 2}
    known |= {
        frozenset(pair)
        for table in counted.plan.tables
        for pair in itertools.combinations(table, 2)
    }
    pairs = itertools.combinations([column.name for column in schema.features], 2)
    if left := [f"{one} × {other}" for one, other in pairs if frozenset((one, other)) not in known]:
        more = f" and {len(left) - 3} others" if len(left) > 3 else ""
        raise ValueError(
            f"The counts lack pairs of features: {', '.join(left[:3])}{more}. What the fit expects of the target depends on how "
            'features go together, so all their pairs must be counted, as by describe(..., pairs="all") or twins.'
        )


def _refuse_fit(result: Any, model: Any, family: str | None, column: Column) -> None:
    """Refuse what is no fit, and the fit of another kind of target."""
    if not isinstance(result, OfCoefficients):
        if model is None or not isinstance(result, Released) or not hasattr(result, "predict"):
            raise TypeError(
                f"check got {type(result).__name__}: pass the result of a regression or a line, or that of dp.fit together with "
                "its model, as model=."
            )
        return
    found = result.family_of(family)
    wanted = ("poisson", "negative_binomial") if column.kind is Kind.COUNT else ("gaussian",)
    if column.bounds is None:
        wanted = ("bernoulli", "categorical") if len(column.categories) == 2 else ("categorical",)
    if found not in wanted:
        raise ValueError(
            f"The fit is {found}, and the target {column.name!r} is {column.kind.value}, for which check takes "
            f"{' or '.join(wanted)}: give target=, or a fit of the target as tables.encode makes it."
        )


def _compared(
    figures: Figures,
    column: Column,
    observed: Tables,
    expected: Expected,
    level: float,
    laplace: bool,
) -> tuple[tuple[CheckedFigure, ...], float]:
    """All figures, and the p-value of the farthest one.

    Of a figure a / b with the mean t over replicates, a - t b is compared. Its spread over
    replicates has all noise in it: of the counts, of sampling, of the posterior and of the
    features' mixture. How far refits of the mixture are from the fit is how far the fit is from the
    truth, about: it is taken from t twice, and added to the spread.
    """
    half = z_of(level, laplace=laplace)
    found = []
    scores = []
    farthest = []
    kinds = (figures.of(tables) for tables in ([observed], expected.tables, expected.from_fit))
    for own, each, first in zip(*kinds, strict=True):
        a, b = each.over.T
        whole = float(b.mean())
        if whole < _SEEN * b.std(ddof=1):
            continue  # a part with hardly a record, whose share would be noise over noise
        middle, of_fit = (
            float(x[:, 0].sum() / max(x[:, 1].sum(), 1e-9)) for x in (each.over, first.over)
        )
        apart = a - middle * b
        sd = float(apart.std(ddof=1))
        spread = math.hypot(sd, whole * (of_fit - middle))
        middle = 2 * of_fit - middle
        if sd == 0:
            continue
        number, total = own.over[0]
        score = abs(number - middle * total) / spread
        scores.append(score)
        farthest.append(np.abs(apart - apart.mean()) / sd)
        ends = middle - half * spread / whole, middle + half * spread / whole
        shown = number / max(total, 1e-9), middle, *ends
        value, mean, low, high = (in_units(column, own.kind, x) for x in shown)
        p = tail(score, laplace=laplace)
        found.append(CheckedFigure(own.name, own.of, value, mean, (low, high), p))
    if not found:
        raise ValueError(
            "The noise of the counts hides all figures: a check needs counts by a larger ε, or of more records."
        )
    most = np.max(farthest, axis=0)
    return tuple(found), float((1 + np.sum(most >= max(scores))) / (1 + len(most)))


def _together(result: Any, released: Marginals) -> tuple[float, float]:
    """What the fit and the counts cost together, and at which delta; infinite where one has no guarantee."""
    delta = max(result.statement.delta, released.statement.delta)
    one, other = result.statement, released.statement
    # What protects a person's only row does not protect it among several, nor the other way round.
    alike = (one.unit, one.relation) == (other.unit, other.relation)
    if not (alike and one.is_private and other.is_private):
        return math.inf, delta
    return composed(result.plan, released.plan).epsilon(delta), delta
