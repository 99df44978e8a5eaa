"""Compare twins with real rows. **Not private** for these rows, which the user must declare non-private.

Separate from drawing twins: this is the only file of the package that reads tables. Four questions
are asked of each twin, and of real training rows for comparison: how well a standard model trained
on it predicts real rows, how far its one-way and two-way marginals are from the real ones, whether
columns are associated as closely, and whether a classifier can tell its rows from real ones.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from discreet._validate import require
from discreet.methods.plots import Shares
from discreet.tabular.models import Levels
from discreet.tabular.synthetic._marginals import associations, marginal_distances
from discreet.tabular.synthetic._report import Resemblance, UtilityReport
from discreet.tabular.tables import Column, DataError, Kind, Schema

if TYPE_CHECKING:
    import pyarrow

MOST_ROWS = 20_000
_FEWEST_TO_TELL_APART = 10
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

    def explain(
        self, target: Column
    ) -> tuple[Float[np.ndarray, "row feature"], Float[np.ndarray, " row"]]:
        """Features without the target's, and the target's values, for rows in which it is not missing.

        The value is a position among the categories, or a number in the column's own unit (days for
        a date).
        """
        from discreet.tabular.tables import describe_features, encode

        alone = [
            dataclasses.replace(self.schema, columns=(column,), inferred=(), impossible=())
            for column in self.schema.columns
        ]
        place = self.schema.columns.index(target)
        first = sum(len(describe_features(each)) for each in alone[:place])
        width = len(describe_features(alone[place]))
        others = np.delete(self.x, slice(first, first + width), axis=1)
        values = (
            encode(self.rows, alone[place], out_of_bounds="clip", raw=True)
            .x[:, 0]
            .astype(np.float64)
        )
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
    from discreet.tabular.tables import column_names, encode, read_table

    public = dataclasses.replace(schema.without_person(), target=None)
    try:
        # Twins are written plainly, however the table itself is written.
        plain = public.of_twins()
        names = {column.name for column in public.columns}
        table = read_table(source, plain if twin and names <= {*column_names(source)} else public)
        rows = table
        if len(table) > most_rows:
            rows = table.take(
                np.sort(np.random.default_rng(_SEED).choice(len(table), most_rows, replace=False))
            )
        return Encoded(public, table, rows, encode(rows, public, out_of_bounds="clip").x)
    except DataError as error:
        raise DataError(f"{what}: {error}") from None


Scores = dict[str, float]
ACCURACY = "accuracy"
AUC = "AUC"
LOG_LOSS = "log loss (nats)"
R2 = "R²"
DEVIANCE = "deviance explained"
ERROR = "mean absolute error"
_FEWEST_TO_FIT = 2


def model_of(column: Column) -> str:
    """Name of the model for such a column."""
    if not column.kind.has_bounds:
        return "logistic regression"
    return "Poisson regression" if column.kind is Kind.COUNT else "ridge regression"


def score(column: Column, train: Encoded, test: Encoded) -> Scores:
    """Train on one table, test on the other; NaN where there are no rows for it."""
    (x, y) = train.explain(column)
    (x_test, y_test) = test.explain(column)
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


def _probabilities(
    x: np.ndarray, y: np.ndarray, x_test: np.ndarray, classes: int
) -> Float[np.ndarray, "row class"]:
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


def _predicted(
    column: Column, x: np.ndarray, y: np.ndarray, x_test: np.ndarray
) -> Float[np.ndarray, " row"]:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import PoissonRegressor, Ridge

    low, high = column.limits
    if column.kind is not Kind.COUNT:
        return np.clip(Ridge(alpha=1.0).fit(x, y).predict(x_test), low, high)
    if y.max() == 0:
        return np.full(len(x_test), 1e-9)
    # Fitted to the counts over their mean, which changes nothing but the scale, so that long tails
    # leave numbers in range.
    scale = y.mean()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = PoissonRegressor(alpha=1e-3, max_iter=1_000).fit(x, y / scale)
    return np.clip(fitted.predict(x_test) * scale, max(low, 1e-9), high)


def _of_classes(column: Column, y: np.ndarray, table: Float[np.ndarray, "row class"]) -> Scores:
    from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

    table = table / table.sum(axis=1, keepdims=True)
    scores = {ACCURACY: float(accuracy_score(y, table.argmax(axis=1)))}
    if len(column.categories) == 2:
        scores[AUC] = float(roc_auc_score(y, table[:, 1])) if len(np.unique(y)) == 2 else math.nan
    scores[LOG_LOSS] = float(log_loss(y, table, labels=np.arange(table.shape[1])))
    return scores


def _of_numbers(column: Column, y: np.ndarray, predicted: np.ndarray) -> Scores:
    from sklearn.metrics import d2_tweedie_score, mean_absolute_error, r2_score

    varies = len(y) > 1 and np.ptp(y) > 0
    error = float(mean_absolute_error(y, predicted))
    if column.kind is Kind.COUNT:
        return {
            DEVIANCE: float(d2_tweedie_score(y, predicted, power=1)) if varies else math.nan,
            ERROR: error,
        }
    return {R2: float(r2_score(y, predicted)) if varies else math.nan, ERROR: error}


def told_apart(
    first: Int[np.ndarray, "row column"], second: Int[np.ndarray, "row column"]
) -> float:
    """AUC of boosted trees that guess a row's table, on rows that they were not trained on; NaN for few rows.

    The same number of rows is taken from each table, at most 20,000. The trees get levels, so
    differences within a slice of numbers are not detected.

    Reference:
        J. Snoke et al., "General and specific utility measures for synthetic data", JRSS A 181(3),
        2018, for scores of propensity.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from threadpoolctl import threadpool_limits

    number = min(len(first), len(second), MOST_ROWS)
    if number < _FEWEST_TO_TELL_APART:
        return math.nan
    rng = np.random.default_rng(0)
    rows = np.concatenate(
        [table[rng.choice(len(table), number, replace=False)] for table in (first, second)]
    )
    whose = np.repeat([0, 1], number)
    model = HistGradientBoostingClassifier(max_iter=60, random_state=0)
    halves = StratifiedKFold(2, shuffle=True, random_state=0)
    # Threads do not help small trees, and on a busy machine they wait for each other at every
    # split.
    with threadpool_limits(1, user_api="openmp"):
        guesses = cross_val_predict(model, rows, whose, cv=halves, method="predict_proba")
    return float(roc_auc_score(whose, np.asarray(guesses)[:, 1]))


_FEW_SLICES = 8
_SHOWN_SLICES = 20


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

    Four questions are answered, each by the mean over the twins and their spread: how well does a
    standard model that is trained on a twin predict real rows; how far are the one-way and two-way
    marginals from the real ones; are columns associated as closely; and can a classifier
    distinguish a twin's rows from real ones. With `training_table` the same is computed for real
    rows, which no twin can be expected to surpass.

    The target of the schema is what is predicted (logistic regression for categories, ridge for
    numbers and dates, Poisson for counts), by all other columns; without a target, each column in
    turn.

    Args:
        twins: Tables, or paths of their files.
        evaluation_table: Real rows that are public, or whose figures will not be shown; preferably
            rows that no fit has used.
        schema: The public description of all these tables.
        training_table: Real rows to compare the twins with, under the same condition; those that
            were fitted, say.
        non_private: Must be True, to say so.
        most_rows: Rows of a table that models are trained and tested on: of more, a random sample.
            Shares are of all rows.

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
        raise ValueError(
            "There is no twin to report on: pass at least one, and better five, for their spread."
        )
    if most_rows < 2:
        raise ValueError(
            f"most_rows is {most_rows}: models are trained on two rows at least, 100,000 say."
        )
    names = [
        str(twin) if isinstance(twin, str | Path) else f"twin {i}"
        for i, twin in enumerate(twins, start=1)
    ]
    evaluation = read(evaluation_table, schema, "the evaluation rows", most_rows)
    encoded = [
        read(twin, schema, name, most_rows, twin=True)
        for name, twin in zip(names, twins, strict=True)
    ]
    training = (
        None
        if training_table is None
        else read(training_table, schema, "the training rows", most_rows)
    )
    targets = list(schema.columns) if len(schema.columns) > 1 else []
    if schema.target_column is not None:
        targets = [schema.target_column]
    return UtilityReport(
        twins=tuple(_compare(twin, evaluation, targets) for twin in encoded),
        training=None if training is None else _compare(training, evaluation, targets),
        guessing={column.name: guess(column, evaluation) for column in targets},
        models={column.name: model_of(column) for column in targets},
        evaluation_rows=len(evaluation.table),
        training_rows=0 if training is None else len(training.table),
        twin_rows=tuple(len(twin.table) for twin in encoded),
        shares=_shares(evaluation, encoded),
    )


def _compare(table: Encoded, evaluation: Encoded, targets: list[Column]) -> Resemblance:
    fine = Levels(evaluation.schema)
    coarse = Levels(evaluation.schema, _FEW_SLICES)
    ours, theirs = (associations(coarse, _rows(coarse, each)) for each in (table, evaluation))
    return Resemblance(
        prediction={column.name: score(column, table, evaluation) for column in targets},
        marginals=marginal_distances(table.table, evaluation.table, table.schema, non_private=True),
        association={pair: ours[pair] - theirs[pair] for pair in ours},
        told_apart=told_apart(_rows(fine, evaluation), _rows(fine, table)),
    )


def _rows(levels: Levels, table: Encoded) -> np.ndarray:
    return levels.encode(table.table, out_of_bounds="clip")


def _shares(evaluation: Encoded, twins: list[Encoded]) -> dict[str, Shares]:
    levels = Levels(evaluation.schema, _SHOWN_SLICES, round_edges=True)
    real = _single(levels, evaluation)
    twin = np.mean([_single(levels, each) for each in twins], axis=0)
    shares = {}
    for column in levels.schema.columns:
        place = levels.places[column.name]
        sliced = column.kind.has_bounds
        missing = column.may_be_missing
        labels = levels.labels(column)
        axis = ""
        if sliced:
            labels = [*levels.starts(column), *["missing"] * missing]
            axis = f"lower edge{f' ({column.unit})' if column.unit else ''}"
        shares[column.name] = Shares(labels, real[place], twin[place], axis, sliced, missing)
    return shares


def _single(levels: Levels, table: Encoded) -> Float[np.ndarray, " level"]:
    """The share of each level."""
    rows = _rows(levels, table)
    counts = [np.bincount(rows[:, i], minlength=size) for i, size in enumerate(levels.sizes)]
    return np.concatenate(counts) / len(rows)
