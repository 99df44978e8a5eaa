"""A standard model of a column, trained on one table and tested on another."""

from __future__ import annotations

import math
import warnings

import numpy as np
from jaxtyping import Float

from discreet.predict import classification_metrics
from discreet.tables import Column, Kind
from discreet.utility._tables import Encoded

Scores = dict[str, float]
ACCURACY, AUC, LOG_LOSS = "accuracy", "AUC", "log loss (nats)"
R2, DEVIANCE, ERROR = "R²", "deviance explained", "mean absolute error"
_FEWEST = 2


def model_of(column: Column) -> str:
    """What explains such a column."""
    if not column.kind.has_bounds:
        return "logistic regression"
    return "Poisson regression" if column.kind is Kind.COUNT else "ridge regression"


def score(column: Column, train: Encoded, test: Encoded) -> Scores:
    """Train on one table, test on the other; NaN where there are no rows for it."""
    (x, y), (x_test, y_test) = train.explain(column), test.explain(column)
    if min(len(y), len(y_test)) < _FEWEST:
        return dict.fromkeys(guess(column, test), math.nan)
    if not column.kind.has_bounds:
        return _of_classes(column, y_test, _probabilities(x, y, x_test, len(column.categories)))
    return _of_numbers(column, y_test, _predicted(column, x, y, x_test))


def guess(column: Column, test: Encoded) -> Scores:
    """The scores of the best answer that looks at no feature."""
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
        # A twin without the other classes teaches nothing else.
        table[:, seen] = 1.0
        return table
    with warnings.catch_warnings():
        # A fit that stopped a little short is judged as it is.
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
