"""Compare twins with real rows. **Not private** for these rows, which the user must declare non-private.

Separate from drawing twins: this is the only file of the package that reads tables. Four questions are asked of each
twin, and of real training rows for comparison: how well a standard model trained on it predicts real rows, how far its
one-way and two-way marginals are from the real ones, whether columns are associated as closely, and whether a classifier
can tell its rows from real ones.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from discreet._validate import finite_or_none, require
from discreet.models import Levels
from discreet.plots import Shares, plot_shares
from discreet.predict import classification_metrics
from discreet.tables import Column, DataError, Kind, Schema

if TYPE_CHECKING:
    import pyarrow
    from matplotlib.figure import Figure

# --- marginals of columns and pairs of columns --------------------------------------------


@dataclasses.dataclass(frozen=True)
class MarginalDistances:
    """Total variation distances between a twin and a table; **not private** for the table. Made by `marginal_distances`.

    Attributes:
        one_way: For each column, half the sum of the differences between the shares of its levels, in [0, 1].
        two_way: Likewise for each pair of columns and the shares of pairs of levels.
    """

    one_way: dict[str, float]
    two_way: dict[tuple[str, str], float]

    @property
    def mean_one_way(self) -> float:
        """Mean over the columns."""
        return float(np.mean(list(self.one_way.values())))

    @property
    def mean_two_way(self) -> float:
        """Mean over the pairs of columns; NaN where there is one column only."""
        return float(np.mean(list(self.two_way.values()))) if self.two_way else float("nan")

    def __str__(self) -> str:
        worst = max(self.one_way, key=self.one_way.__getitem__)
        return (
            f"mean total variation distance: one column {self.mean_one_way:.4f} (worst {worst}, {self.one_way[worst]:.4f}), two "
            f"columns {self.mean_two_way:.4f} (not private)"
        )


def marginal_distances(
    twin: Any, table: Any, schema: Schema, *, slices: int = 32, non_private: bool = False
) -> MarginalDistances:
    """Compare the marginals of single columns and of pairs between a twin and a table: **not private** for the table.

    Numbers are compared by the slices of `Levels`; what differs within a slice is not seen. Two tables of n records from one
    population have distances above zero, too: about as large as the square root of the number of levels over n.

    Args:
        twin: A twin, or any table with the schema's columns.
        table: Records to compare it with, which are public, or whose figures will not be published.
        schema: The public description of both.
        slices: Most slices of a column of numbers.
        non_private: Must be True, to confirm that.

    Raises:
        ValueError: `non_private` was not set.
        DataError: A table does not fit the schema.
    """
    if non_private is not True:
        raise ValueError(
            "The distances depend on every record of the table, and no epsilon covers them. Pass non_private=True if its records "
            "are public, or if you will not publish the figures."
        )
    levels = Levels(schema, slices)
    difference = np.abs(
        levels.pair_shares(levels.encode(twin, out_of_bounds="clip"))
        - levels.pair_shares(levels.encode(table, out_of_bounds="clip"))
    )
    where = levels.places
    one_way = {name: float(np.trace(difference[at, at])) / 2 for name, at in where.items()}
    two_way = {(a, b): float(difference[where[a], where[b]].sum()) / 2 for a, b in itertools.combinations(where, 2)}
    return MarginalDistances(one_way, two_way)


# --- how closely columns are associated, and whether a classifier can tell two tables apart


MOST_ROWS = 20_000
_FEWEST_TO_TELL_APART = 10


def associations(levels: Levels, rows: Int[np.ndarray, "row column"]) -> dict[tuple[str, str], float]:
    """Cramér's V of each pair of columns, in [0, 1], corrected for the bias of few rows.

    0 for independent columns, 1 where one column determines the other. It has no sign, and applies to any two kinds of
    columns; numbers are compared by their slices.

    Args:
        levels: Levels of the columns; few slices a column, so that many rows share one.
        rows: As `levels.encode` gives them.

    Reference:
        W. Bergsma, "A bias-correction for Cramér's V and Tschuprow's T", J. Korean Statistical Society 42, 2013.
    """
    shares, places, count = levels.pair_shares(rows), levels.places, len(rows)
    return {(a, b): _cramer(shares[places[a], places[b]], count) for a, b in itertools.combinations(places, 2)}


def _cramer(joint: np.ndarray, count: int) -> float:
    joint = joint[joint.sum(axis=1) > 0][:, joint.sum(axis=0) > 0]
    down, across = joint.shape
    if min(down, across, count) < 2:
        return 0.0
    expected = np.outer(joint.sum(axis=1), joint.sum(axis=0))
    square = max(0.0, float(np.sum((joint - expected) ** 2 / expected)) - (down - 1) * (across - 1) / (count - 1))
    most = min(down - (down - 1) ** 2 / (count - 1), across - (across - 1) ** 2 / (count - 1)) - 1
    return math.sqrt(min(1.0, square / most)) if most > 0 else 0.0


def told_apart(first: Int[np.ndarray, "row column"], second: Int[np.ndarray, "row column"]) -> float:
    """AUC of boosted trees that guess a row's table, on rows that they were not trained on; NaN for few rows.

    The same number of rows is taken from each table, at most 20,000. The trees get levels, so differences within a slice of
    numbers are not detected.

    Reference:
        J. Snoke et al., "General and specific utility measures for synthetic data", JRSS A 181(3), 2018, for scores of
        propensity.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from threadpoolctl import threadpool_limits

    number = min(len(first), len(second), MOST_ROWS)
    if number < _FEWEST_TO_TELL_APART:
        return math.nan
    rng = np.random.default_rng(0)
    rows = np.concatenate([table[rng.choice(len(table), number, replace=False)] for table in (first, second)])
    whose = np.repeat([0, 1], number)
    model = HistGradientBoostingClassifier(max_iter=60, random_state=0)
    halves = StratifiedKFold(2, shuffle=True, random_state=0)
    # Threads do not help small trees, and on a busy machine they wait for each other at every split.
    with threadpool_limits(1, user_api="openmp"):
        guesses = cross_val_predict(model, rows, whose, cv=halves, method="predict_proba")
    return float(roc_auc_score(whose, np.asarray(guesses)[:, 1]))


# --- a table as models take it: features of all columns at once, of which any may become the target


_SEED = 20_260_101
"""Public: which rows of a long table are taken is no secret."""


@dataclasses.dataclass(frozen=True)
class Encoded:
    """A table and the features of some of its rows.

    Attributes:
        schema: The description of its columns, without target and person.
        table: All rows, numbers within their bounds or not.
        rows: Some of them: at most as many as were asked for.
        x: Their features.
    """

    schema: Schema
    table: pyarrow.Table
    rows: pyarrow.Table
    x: Float[np.ndarray, "row feature"] = dataclasses.field(repr=False)

    def explain(self, target: Column) -> tuple[Float[np.ndarray, "row feature"], Float[np.ndarray, " row"]]:
        """Features without the target's, and the target's values, for rows in which it is not missing.

        The value is a position among the categories, or a number in the column's own unit (days for a date).
        """
        from discreet.tables import describe_features, encode

        alone = [
            dataclasses.replace(self.schema, columns=(column,), inferred=(), impossible=())
            for column in self.schema.columns
        ]
        place = self.schema.columns.index(target)
        first, width = sum(len(describe_features(each)) for each in alone[:place]), len(describe_features(alone[place]))
        others = np.delete(self.x, slice(first, first + width), axis=1)
        values = encode(self.rows, alone[place], out_of_bounds="clip", raw=True).x[:, 0].astype(np.float64)
        return others[~np.isnan(values)], values[~np.isnan(values)]


def read(source: Any, schema: Schema, what: str, most_rows: int, *, twin: bool = False) -> Encoded:
    """Read and encode a table; numbers outside their bounds are clipped.

    Args:
        source: A file, or a pyarrow or pandas table.
        schema: Its description.
        what: Its name in errors.
        most_rows: Rows to encode at most, a fair sample of them if there are more.
        twin: True if the file may be a twin's.
    """
    from discreet.tables import column_names, encode, read_table

    public = dataclasses.replace(schema.without_person(), target=None)
    try:
        # Twins are written plainly, however the table itself is written.
        plain, names = public.of_twins(), {column.name for column in public.columns}
        table = read_table(source, plain if twin and names <= {*column_names(source)} else public)
        rows = table
        if len(table) > most_rows:
            rows = table.take(np.sort(np.random.default_rng(_SEED).choice(len(table), most_rows, replace=False)))
        return Encoded(public, table, rows, encode(rows, public, out_of_bounds="clip").x)
    except DataError as error:
        raise DataError(f"{what}: {error}") from None


# --- a standard model of a column, trained on one table and tested on another -------------


Scores = dict[str, float]
ACCURACY, AUC, LOG_LOSS = "accuracy", "AUC", "log loss (nats)"
R2, DEVIANCE, ERROR = "R²", "deviance explained", "mean absolute error"
_FEWEST_TO_FIT = 2


def model_of(column: Column) -> str:
    """Name of the model for such a column."""
    if not column.kind.has_bounds:
        return "logistic regression"
    return "Poisson regression" if column.kind is Kind.COUNT else "ridge regression"


def score(column: Column, train: Encoded, test: Encoded) -> Scores:
    """Train on one table, test on the other; NaN where there are no rows for it."""
    (x, y), (x_test, y_test) = train.explain(column), test.explain(column)
    if min(len(y), len(y_test)) < _FEWEST_TO_FIT:
        return dict.fromkeys(guess(column, test), math.nan)
    if not column.kind.has_bounds:
        return _of_classes(column, y_test, _probabilities(x, y, x_test, len(column.categories)))
    return _of_numbers(column, y_test, _predicted(column, x, y, x_test))


def guess(column: Column, test: Encoded) -> Scores:
    """Scores of the best prediction that uses no feature."""
    _, y = test.explain(column)
    if not len(y):
        names = (R2, ERROR) if column.kind.has_bounds else (ACCURACY, LOG_LOSS)
        return dict.fromkeys(names, math.nan)
    if column.kind.has_bounds:
        return _of_numbers(column, y, np.full(len(y), max(y.mean(), 1e-9)))
    shares = np.bincount(y.astype(int), minlength=len(column.categories)) / len(y)
    return _of_classes(column, y, np.tile(shares, (len(y), 1)))


def _probabilities(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, classes: int) -> Float[np.ndarray, "row class"]:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    seen = np.unique(y).astype(int)
    table = np.zeros((len(x_test), classes))
    if len(seen) == 1:
        # A twin that lacks the other classes gives no other prediction.
        table[:, seen] = 1.0
        return table
    with warnings.catch_warnings():
        # A fit that stopped early is scored as it is.
        warnings.simplefilter("ignore", ConvergenceWarning)
        table[:, seen] = LogisticRegression(max_iter=2_000).fit(x, y).predict_proba(x_test)
    return table


def _predicted(column: Column, x: np.ndarray, y: np.ndarray, x_test: np.ndarray) -> Float[np.ndarray, " row"]:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import PoissonRegressor, Ridge

    low, high = column.limits
    if column.kind is not Kind.COUNT:
        return np.clip(Ridge(alpha=1.0).fit(x, y).predict(x_test), low, high)
    if y.max() == 0:
        return np.full(len(x_test), 1e-9)
    # Fitted to the counts over their mean, which changes nothing but the scale, so that long tails leave numbers in range.
    scale = y.mean()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = PoissonRegressor(alpha=1e-3, max_iter=1_000).fit(x, y / scale)
    return np.clip(fitted.predict(x_test) * scale, max(low, 1e-9), high)


def _of_classes(column: Column, y: np.ndarray, table: Float[np.ndarray, "row class"]) -> Scores:
    binary = len(column.categories) == 2
    found = classification_metrics(y, table[:, 1] if binary else table, non_private=True)
    return {ACCURACY: found.accuracy, **({AUC: found.auc} if binary else {}), LOG_LOSS: found.log_loss}


def _of_numbers(column: Column, y: np.ndarray, predicted: np.ndarray) -> Scores:
    from sklearn.metrics import d2_tweedie_score, mean_absolute_error, r2_score

    varies = len(y) > 1 and np.ptp(y) > 0
    error = float(mean_absolute_error(y, predicted))
    if column.kind is Kind.COUNT:
        return {DEVIANCE: float(d2_tweedie_score(y, predicted, power=1)) if varies else math.nan, ERROR: error}
    return {R2: float(r2_score(y, predicted)) if varies else math.nan, ERROR: error}


# --- the result: a page of text, JSON and a picture ---------------------------------------


FORMAT = "discreet utility report, version 1"
WIDTH = 88
ONE_COLUMN = "shares of one column"
TWO_COLUMNS = "shares of two columns"
ASSOCIATION = "association of two columns"
APART = "twin and real told apart (AUC)"
MEANING = {
    "prediction": "A model was trained on each table and tested on the evaluation rows. Close to the training rows: the twin is "
    "a good substitute for such models. Close to guessing: it is not.",
    ONE_COLUMN: "Half the sum of differences between the shares of a column's levels (total variation), mean over columns: 0 "
    "if the column has the same shares in both tables, 1 if no value is in both.",
    TWO_COLUMNS: "The same for the cells of two-way tables, mean over pairs. Two samples of real rows are not at 0 either: "
    "fewer rows and more cells give larger distances.",
    ASSOCIATION: "Mean absolute difference of Cramér's V (0: independent, 1: one determines the other), over pairs. Large if a "
    "twin has lost an association or invented one.",
    APART: "Trees guess whether a row is real. 0.5: they cannot distinguish the rows; 1: they always can. High "
    "values are common; they matter if the twin must pass for the table, less if single analyses of it must be right.",
}


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One table against the evaluation rows; **not private** for them.

    Attributes:
        prediction: For each target the scores of a model that was trained on the table, tested on the evaluation rows.
        marginals: Distances of one and of two columns' shares.
        association: For each pair of columns, Cramér's V of the table less that of the evaluation rows.
        told_apart: AUC of a classifier between the table's rows and the evaluation rows; NaN for fewer than ten rows.
    """

    prediction: dict[str, dict[str, float]]
    marginals: MarginalDistances
    association: dict[tuple[str, str], float]
    told_apart: float

    @property
    def mean_association_difference(self) -> float:
        """Mean absolute difference over the pairs; NaN if there is only one column."""
        return float(np.mean(np.abs(list(self.association.values())))) if self.association else math.nan

    def figures(self) -> dict[str, float]:
        """The four figures of the whole table, by their names."""
        return {
            ONE_COLUMN: self.marginals.mean_one_way,
            TWO_COLUMNS: self.marginals.mean_two_way,
            ASSOCIATION: self.mean_association_difference,
            APART: self.told_apart,
        }


@dataclasses.dataclass(frozen=True)
class UtilityReport:
    """The utility of twins as a substitute for a table; made by `utility_report`. **Not private** for the real rows.

    Attributes:
        twins: Each twin against the evaluation rows.
        training: Real training rows against the evaluation rows; None if there were none.
        guessing: For each target the scores of the best prediction that uses no other column.
        models: For each target the kind of model.
        evaluation_rows: Number of real rows compared with the twins.
        training_rows: Number of real training rows.
        twin_rows: Number of rows of each twin.
        shares: For each column the shares of its levels, of the evaluation rows and the mean over the twins.
    """

    twins: tuple[Comparison, ...]
    training: Comparison | None
    guessing: dict[str, dict[str, float]]
    models: dict[str, str]
    evaluation_rows: int
    training_rows: int
    twin_rows: tuple[int, ...]
    shares: dict[str, Shares] = dataclasses.field(repr=False)

    @property
    def statement_line(self) -> str:
        """The line that a statement should contain about this report: `statement.with_notes(report.statement_line)`.

        If the rows are among those that the statement protects, it is a violation: use `with_violations`.
        """
        rows = f"{self.evaluation_rows:,} evaluation rows"
        if self.training_rows:
            rows += f" and {self.training_rows:,} training rows"
        return (
            f"Not private: a report on the twins' utility has exact figures of {rows}, which its user named as non-private. No ε "
            "covers these figures; if people whom this statement protects are among the rows, its guarantee does not hold "
            "towards readers of the report."
        )

    def prediction(self, target: str, score: str) -> tuple[float, float]:
        """Mean over the twins and standard deviation between them (NaN for one twin) of one score.

        Raises:
            KeyError: No such target or score.
        """
        return _mean_and_spread([twin.prediction[target][score] for twin in self.twins])

    def figure(self, name: str) -> tuple[float, float]:
        """Likewise of one of the figures of `Comparison.figures`."""
        return _mean_and_spread([twin.figures()[name] for twin in self.twins])

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw the shares of each column's levels, twins beside evaluation rows; the title says that it is not private.

        Args:
            path: File for the picture, whose ending determines its format; by default it is not saved.

        Raises:
            ImportError: Matplotlib is not installed.
        """
        twins = "the twin" if len(self.twins) == 1 else f"mean of {len(self.twins)} twins"
        title = f"NOT PRIVATE for the {self.evaluation_rows:,} evaluation rows: shares of real rows and of twins"
        return plot_shares(self.shares, ("evaluation rows (real)", twins), title=title, path=path)

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries, lists, strings and finite numbers; undefined figures are None."""
        tables = {"twins": self.twins, "training": () if self.training is None else (self.training,)}
        mean, spread = (
            {
                "prediction": {t: {s: self.prediction(t, s)[part] for s in x} for t, x in self.guessing.items()},
                **{name: self.figure(name)[part] for name in self.twins[0].figures()},
            }
            for part in (0, 1)
        )
        content = {
            "format": FORMAT,
            "is_private": False,
            "not_private": self.statement_line,
            "evaluation_rows": self.evaluation_rows,
            "training_rows": self.training_rows,
            "twin_rows": list(self.twin_rows),
            "models": self.models,
            "meaning": MEANING,
            "guessing": self.guessing,
            "mean": mean,
            "spread": spread,
            **{name: [_plain(comparison) for comparison in found] for name, found in tables.items()},
        }
        return finite_or_none(content)

    def to_json(self) -> str:
        """`to_dict` as indented JSON that any strict reader accepts."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def __str__(self) -> str:
        return _page(self)


def _page(report: UtilityReport) -> str:
    number = len(report.twins)
    title = f"Utility of {number} twin{'s' * (number > 1)}, NOT PRIVATE for the rows they are compared with"
    wide = max([len("mean absolute error"), *(len(name) for name in report.twins[0].figures())]) + 2
    training = report.training
    heads, plain = (
        f"{'':{wide}}{'twins':>20}{guessing:>12}{'training rows' if training else '':>16}".rstrip()
        for guessing in ("guessing", "")
    )
    parts = [f"{title}\n{'=' * len(title)}", _wrap(report.statement_line)]
    if report.guessing:
        lines = [_wrap(MEANING["prediction"]), "", heads]
        for target, guessed in report.guessing.items():
            lines.append(f"{target} ({report.models[target]})")
            for score, value in guessed.items():
                real = None if training is None else training.prediction[target][score]
                lines.append(_line(f"  {score}", wide, *report.prediction(target, score), value, real))
        parts.append("\n".join(["Prediction", "----------", *lines]))
    lines = [plain]
    for name in report.twins[0].figures():
        real = None if training is None else training.figures()[name]
        lines.append(_line(f"  {name}", wide, *report.figure(name), None, real))
        lines += [_wrap(MEANING[name], "    ")]
    parts.append("\n".join(["The whole table", "---------------", *lines, *_worst(report)]))
    return "\n\n".join(parts) + "\n"


def _worst(report: UtilityReport) -> list[str]:
    """The column and the pair that differ most."""
    columns = {name: np.mean([twin.marginals.one_way[name] for twin in report.twins]) for name in report.shares}
    worst = max(columns, key=lambda name: columns[name])
    said = f"Farthest column: {worst} ({columns[worst]:.3f})."
    pairs = {pair: np.mean([twin.association[pair] for twin in report.twins]) for pair in report.twins[0].association}
    if pairs:
        lost = max(pairs, key=lambda pair: abs(pairs[pair]))
        said += f" Pair whose association differs most: {lost[0]} and {lost[1]} (Cramér's V {pairs[lost]:+.3f})."
    return [_wrap(said)]


def _line(name: str, wide: int, mean: float, spread: float, guessed: float | None, real: float | None) -> str:
    twins = _show(mean) + (f" ± {_show(spread)}" if math.isfinite(spread) else "")
    return f"{name:{wide}}{twins:>20}{_show(guessed):>12}{_show(real):>16}".rstrip()


def _show(value: float | None) -> str:
    """A figure for the page.

    >>> _show(0.83412), _show(1234.5), _show(None), _show(float("nan"))
    ('0.834', '1,234', '', 'none')
    """
    if value is None:
        return ""
    if not math.isfinite(value):
        return "none"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.0f}"


def _mean_and_spread(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent)


def _plain(comparison: Comparison) -> dict[str, Any]:
    def pairs(of: Mapping[tuple[str, str], float]) -> list[Any]:
        return [{"columns": list(pair), "value": value} for pair, value in of.items()]

    return {
        "prediction": comparison.prediction,
        **comparison.figures(),
        "one_way": comparison.marginals.one_way,
        "two_way": pairs(comparison.marginals.two_way),
        "association_difference": pairs(comparison.association),
    }


# --- the comparison -----------------------------------------------------------------------


_FEW_SLICES, _SHOWN_SLICES = 8, 20
Tables = tuple[Levels, Levels]


def utility_report(
    twins: Sequence[Any],
    evaluation_table: Any,
    schema: Schema,
    *,
    training_table: Any = None,
    non_private: bool = False,
    most_rows: int = 100_000,
) -> UtilityReport:
    """Measure how useful twins are as a substitute for a table: **not private** for the real rows that are passed.

    Four questions are answered, each by the mean over the twins and their spread: how well does a standard model that is trained
    on a twin predict real rows; how far are the one-way and two-way marginals from the real ones; are columns associated as
    closely; and can a classifier distinguish a twin's rows from real ones. With `training_table` the same is computed for real
    rows, which no twin can be expected to surpass.

    The target of the schema is what is predicted (logistic regression for categories, ridge for numbers and dates,
    Poisson for counts), by all other columns; without a target, each column in turn.

    Args:
        twins: Tables, or paths of their files.
        evaluation_table: Real rows that are public, or whose figures will not be shown; preferably rows that no fit has used.
        schema: The public description of all these tables.
        training_table: Real rows to compare the twins with, under the same condition; those that were fitted, say.
        non_private: Must be True, to say so.
        most_rows: Rows of a table that models are trained and tested on: of more, a random sample. Shares are of all rows.

    Raises:
        ValueError: `non_private` was not set, or no twins.
        DataError: A table does not fit the schema; says which.
    """
    for package in ("pyarrow", "sklearn"):
        require(package, extra="tables", what="utility_report")
    if non_private is not True:
        raise ValueError(
            "The report has exact figures of the evaluation rows, and no epsilon covers them. Pass non_private=True if these "
            "rows are public, or if you will not publish the figures."
        )
    if len(twins) == 0:
        raise ValueError("There is no twin to report on: pass at least one, and better five, for their spread.")
    if most_rows < 2:
        raise ValueError(f"most_rows is {most_rows}: models are trained on two rows at least, 100,000 say.")
    names = [str(twin) if isinstance(twin, str | Path) else f"twin {i}" for i, twin in enumerate(twins, start=1)]
    evaluation = read(evaluation_table, schema, "the evaluation rows", most_rows)
    encoded = [read(twin, schema, name, most_rows, twin=True) for name, twin in zip(names, twins, strict=True)]
    training = None if training_table is None else read(training_table, schema, "the training rows", most_rows)
    public = evaluation.schema
    levels = Levels(public), Levels(public, _FEW_SLICES)
    targets = list(schema.columns) if len(schema.columns) > 1 else []
    if schema.target_column is not None:
        targets = [schema.target_column]
    return UtilityReport(
        twins=tuple(_compare(twin, evaluation, targets, levels) for twin in encoded),
        training=None if training is None else _compare(training, evaluation, targets, levels),
        guessing={column.name: guess(column, evaluation) for column in targets},
        models={column.name: model_of(column) for column in targets},
        evaluation_rows=len(evaluation.table),
        training_rows=0 if training is None else len(training.table),
        twin_rows=tuple(len(twin.table) for twin in encoded),
        shares=_shares(Levels(public, _SHOWN_SLICES, round_edges=True), evaluation, encoded),
    )


def _compare(table: Encoded, evaluation: Encoded, targets: list[Column], levels: Tables) -> Comparison:
    fine, coarse = levels
    ours, theirs = (associations(coarse, _rows(coarse, each)) for each in (table, evaluation))
    return Comparison(
        prediction={column.name: score(column, table, evaluation) for column in targets},
        marginals=marginal_distances(table.table, evaluation.table, table.schema, non_private=True),
        association={pair: ours[pair] - theirs[pair] for pair in ours},
        told_apart=told_apart(_rows(fine, evaluation), _rows(fine, table)),
    )


def _rows(levels: Levels, table: Encoded) -> np.ndarray:
    return levels.encode(table.table, out_of_bounds="clip")


def _shares(levels: Levels, evaluation: Encoded, twins: list[Encoded]) -> dict[str, Shares]:
    real = _single(levels, evaluation)
    twin = np.mean([_single(levels, each) for each in twins], axis=0)
    shares = {}
    for column in levels.schema.columns:
        place, names = levels.places[column.name], levels.labels(column)
        sliced, missing = column.kind.has_bounds, column.may_be_missing
        labels = [*levels.starts(column), *(["missing"] if missing else [])] if sliced else names
        axis = f"lower edge{f' ({column.unit})' if column.unit else ''}" if sliced else ""
        shares[column.name] = Shares(labels, real[place], twin[place], axis, sliced, missing, names)
    return shares


def _single(levels: Levels, table: Encoded) -> Float[np.ndarray, " level"]:
    """The share of each level."""
    rows = _rows(levels, table)
    counts = [np.bincount(rows[:, i], minlength=size) for i, size in enumerate(levels.sizes)]
    return np.concatenate(counts) / len(rows)
