"""How closely columns go together, whatever their kinds, and whether a classifier can tell two tables apart."""

from __future__ import annotations

import itertools
import math

import numpy as np
from jaxtyping import Int

from discreet.models import Levels

MOST_ROWS = 20_000
_FEWEST = 10


def associations(levels: Levels, rows: Int[np.ndarray, "row column"]) -> dict[tuple[str, str], float]:
    """Cramér's V of each pair of columns, in [0, 1], corrected for the bias of few rows.

    0 for independent columns, 1 where one column tells the other. It has no sign, and serves for any two kinds of columns;
    numbers are those of their slices.

    Args:
        levels: Which levels the columns have; few slices a column, so that many rows share one.
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
    """AUC of boosted trees that guess of which table a row is, on rows that they were not trained on; NaN for few rows.

    Of each table as many rows, 20,000 at most. The trees see levels, so that what differs within a slice of numbers is not
    seen.

    Reference:
        J. Snoke et al., "General and specific utility measures for synthetic data", JRSS A 181(3), 2018, for scores of
        propensity.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from threadpoolctl import threadpool_limits

    number = min(len(first), len(second), MOST_ROWS)
    if number < _FEWEST:
        return math.nan
    rng = np.random.default_rng(0)
    rows = np.concatenate([table[rng.choice(len(table), number, replace=False)] for table in (first, second)])
    whose = np.repeat([0, 1], number)
    model = HistGradientBoostingClassifier(max_iter=60, random_state=0)
    halves = StratifiedKFold(2, shuffle=True, random_state=0)
    # Small trees gain nothing by threads, and on a busy machine wait for each other at every split.
    with threadpool_limits(1, user_api="openmp"):
        guesses = cross_val_predict(model, rows, whose, cv=halves, method="predict_proba")
    return float(roc_auc_score(whose, np.asarray(guesses)[:, 1]))
