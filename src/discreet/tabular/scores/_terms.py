"""From predictions of held-out rows to the integers that are summed, each in units of 1 / ONE of a public bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from jaxtyping import Float, Int

from discreet.privacy.act import Act
from discreet.privacy.query import LAST, padded
from discreet.tabular.scores._plan import ONE, ScorePlan, SumsPlan

_BATCH = 1024
"""Rows per prediction call; constant, since last bits of a prediction may depend on it."""


def class_terms(
    plan: ScorePlan, predicted: Float[np.ndarray, "row class"], y: Int[np.ndarray, " row"]
) -> Int[np.ndarray, "row sum"]:
    """The contribution of each row, in units of 1 / ONE. A NaN prediction counts as the worst."""
    rows = np.arange(len(y))
    bad = np.asarray(np.isnan(predicted).any(axis=1))
    table = np.where(bad[:, None], 0.0, np.clip(predicted, 0.0, 1.0))
    table[bad] = np.eye(plan.classes)[(y[bad] + 1) % plan.classes]
    table = np.rint(table * ONE) / ONE
    if plan.classes == 2:
        score = table[:, 1]
        side = y
    else:
        score = table.max(axis=1)
        side = (table.argmax(axis=1) == y).astype(np.int64)
    place = np.clip(np.searchsorted(plan.edges, score, side="right") - 1, 0, plan.bins - 1)
    with np.errstate(divide="ignore"):
        loss = np.minimum(-np.log(table[rows, y]), plan.max_loss) / plan.max_loss
    terms = np.zeros((len(y), plan.width), np.int64)
    terms[rows, 2 * place + side] = ONE
    terms[:, -1] = np.rint(loss * ONE)
    return np.clip(terms, 0, ONE)


def number_terms(
    plan: ScorePlan, predicted: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"]
) -> Int[np.ndarray, "row sum"]:
    """As `class_terms`: a one, |error|, its square, the target in [-1, 1], and its square."""
    low, high = cast(tuple[float, float], plan.bounds)
    scaled = (2 * ((np.clip(x, low, high) - low) / (high - low)) - 1 for x in (y, predicted))
    target, guess = (np.clip(x, -1.0, 1.0) for x in scaled)
    error = np.abs(np.rint(target * ONE) - np.rint(guess * ONE)) / ONE * (high - low) / 2
    error = np.minimum(np.where(np.isnan(error), math.inf, error) / plan.largest_error, 1.0)
    terms = np.stack([np.ones(len(y)), error, error**2, target, target**2], axis=1)
    return np.clip(np.rint(terms * ONE), -ONE, ONE).astype(np.int64)


def places_of(y: Any, labels: Any) -> Int[np.ndarray, " row"]:
    """Labels as numbers from 0, without a word about which label is wrong."""
    given = np.asarray(y)
    labels = np.asarray(labels)
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


def predictions(result: Any, X: Any, regression: bool, shape: tuple[int, ...]) -> np.ndarray:
    """Predict all rows, in batches."""
    predict = _ask(result, regression)
    rows = getattr(X, "iloc", np.asarray(X) if isinstance(X, list | tuple) else X)
    each = "." if regression else ", or one for each row and class."
    return in_batches(lambda places: predict(rows[places]), shape, "prediction", each)


def in_batches(
    ask: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], what: str, each: str = "."
) -> np.ndarray:
    """Ask for all rows, by their places, in batches of one size, and for the first and the last again by themselves."""
    if shape[0] == 0:
        return np.zeros(shape)

    def batch(first: int, last: int) -> np.ndarray:
        # The last row fills up what is missing.
        found = ask(np.minimum(np.arange(first, first + _BATCH), last - 1))
        if found.shape != (_BATCH, *shape[1:]):
            raise ValueError(
                f"For a batch of {_BATCH:,} rows the {what} has the shape {found.shape}, and {(_BATCH, *shape[1:])} was "
                f"expected: one for each row{each}"
            )
        return found[: last - first]

    found = np.concatenate(
        [batch(at, min(at + _BATCH, shape[0])) for at in range(0, shape[0], _BATCH)]
    )
    for place in {0, shape[0] - 1}:
        if not np.allclose(
            batch(place, place + 1)[0], found[place], rtol=1e-5, atol=1e-5, equal_nan=True
        ):
            raise ValueError(
                f"The {what} of one row changes with the rows beside it, as where columns are centred by their mean in X. "
                "Prepare the columns by public numbers, so that each row stands for itself."
            )
    return found


def rows_of_persons(
    max_rows: int, groups: Any, num_rows: int
) -> Int[np.ndarray, "record row"] | None:
    """The rows of each person (-1: none); None where a record is a row."""
    if groups is None:
        if max_rows > 1:
            raise ValueError("max_rows is for persons: pass groups, the person of each row.")
        return None
    from discreet.tabular.estimators import rows_of_groups

    return rows_of_groups(groups, num_rows, max_rows)


def noisy_sums(
    plan: SumsPlan,
    act: Act,
    terms: Int[np.ndarray, "row sum"],
    persons: Int[np.ndarray, "record row"] | None,
) -> Float[np.ndarray, " sum"]:
    """Release the sums of the rows' contributions, in units of their bounds."""
    last, others = _last_and_others(terms, persons)
    # In 64 bits a sum of integers below 2^53 is exact.
    sums = plan.query.answer(act, others.astype(np.float64), *padded(last.astype(np.float64)))
    return sums / ONE


def _last_and_others(
    terms: Int[np.ndarray, "row sum"], persons: Int[np.ndarray, "record row"] | None
) -> tuple[Int[np.ndarray, "record sum"], Int[np.ndarray, " sum"]]:
    """The contributions of the last records, and the sum of all others. Not private."""
    if persons is None:
        return terms[-LAST:], terms[:-LAST].sum(axis=0)
    # -1 is a row of zeros.
    terms = np.concatenate([terms, np.zeros((1, terms.shape[1]), np.int64)])
    last = persons[-LAST:]
    others = persons[:-LAST]
    return terms[last].sum(axis=1), terms[others[others >= 0]].sum(axis=0)
