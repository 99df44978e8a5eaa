"""Rows with survey weights."""

from typing import Any

import numpy as np
import pytest

from discreet.tabular.estimators import LinearRegression, LogisticRegression, PoissonRegression

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (4_000, 2))
Y = (RNG.random(4_000) < 1 / (1 + np.exp(-2 * X[:, 0]))).astype(int)
WEIGHTS = np.where(Y == 1, 2.0, 1.0)
SETTINGS: dict[str, Any] = {"bounds": (-1, 1), "epsilon": 50.0, "random_state": 0}
LINE: dict[str, Any] = {**SETTINGS, "target_bounds": (-1, 2)}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("groups", [None, np.arange(4_000) // 2])
def test_a_row_of_weight_two_counts_as_two(groups: Any) -> None:
    persons = {} if groups is None else {"max_rows": 2}
    weighted = LogisticRegression(max_weight=2.0, **SETTINGS, **persons).fit(
        X, Y, groups, sample_weight=WEIGHTS
    )
    twice = np.repeat(np.arange(4_000), WEIGHTS.astype(int))
    plain = LogisticRegression(**SETTINGS).fit(X[twice], Y[twice])
    assert weighted.intercept_ == pytest.approx(plain.intercept_, abs=0.1)
    assert weighted.coef_ == pytest.approx(plain.coef_, abs=0.2)
    assert plain.intercept_[0] > 0.5
    assert "as which larger ones count: 2." in str(weighted.statement_)


def test_a_line_counts_a_row_of_weight_two_as_two() -> None:
    weighted = LinearRegression(max_weight=2.0, **LINE).fit(X, Y, sample_weight=WEIGHTS)
    twice = np.repeat(np.arange(4_000), WEIGHTS.astype(int))
    exact = np.linalg.lstsq(np.column_stack([np.ones(len(twice)), X[twice]]), Y[twice], rcond=None)[
        0
    ]
    unweighted = np.linalg.lstsq(np.column_stack([np.ones(4_000), X]), Y, rcond=None)[0]
    found = np.append(weighted.intercept_, weighted.coef_)
    assert found == pytest.approx(exact, abs=0.02)
    assert abs(unweighted[0] - exact[0]) > 0.1
    assert "as which larger ones count: 2." in str(weighted.statement_)
    assert "sums of their weights" in " ".join(str(weighted.statement_).split())


def test_weights_beyond_the_largest_count_as_that() -> None:
    fits = [
        LogisticRegression(max_weight=2.0, **SETTINGS).fit(X, Y, sample_weight=weights)
        for weights in (WEIGHTS, np.where(Y == 1, 9.0, 1.0))
    ]
    np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)


@pytest.mark.parametrize(
    ("weights", "settings", "message"),
    [
        (-WEIGHTS, {}, "at least 0"),
        (WEIGHTS * np.nan, {}, "at least 0"),
        (WEIGHTS[:9], {}, "for each of the 4000 rows"),
        (WEIGHTS[:, None], {}, "at least 0"),
        (WEIGHTS, {"max_weight": 0.0}, "max_weight"),
        (WEIGHTS, {"num_steps": 10}, "num_steps ask for steps"),
    ],
)
def test_wrong_weights_are_refused(weights: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PoissonRegression(**SETTINGS | settings).fit(X, Y, sample_weight=weights)
