"""Options of `fit` mean what they mean in `dp.fit`, or are refused with the reason before anything is spent."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import discreet as dp
from discreet.tabular.estimators import LinearRegression, LogisticRegression

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (2_000, 2))
Y = (RNG.random(2_000) < 0.5 + 0.4 * X[:, 0]).astype(int)
SETTINGS: dict[str, Any] = {"bounds": (-1, 1), "epsilon": 3.0}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_checkpoint_continues_to_the_same_bits_and_draws(tmp_path: Path) -> None:
    """Of persons with more rows than are used, the same rows are chosen again: other records would be refused."""
    groups = np.arange(2_000) // 3
    terms = {"max_rows": 2, "num_records": 667}
    fits = [
        LogisticRegression(**SETTINGS, **terms).fit(
            X, Y, groups, checkpoint=tmp_path / "kept", person="id"
        )
        for _ in range(2)
    ]
    np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)
    np.testing.assert_array_equal(fits[0].coef_draws_, fits[1].coef_draws_)
    assert fits[0].statement_.is_private
    assert "all rows with the same 'id', of which 2 at most" in fits[0].statement_.to_dict()["unit"]


def test_a_row_that_is_all_of_a_person_is_one_person() -> None:
    line = LinearRegression(target_bounds=(-1, 2), **SETTINGS).fit(X, Y, person="patient")
    assert "patient" in line.statement_.to_dict()["unit"]


def test_the_relation_is_that_of_the_plan() -> None:
    line = LinearRegression(
        target_bounds=(-1, 2), relation=dp.Relation.REPLACE_ONE, **SETTINGS
    ).fit(X, Y)
    assert line.result_.plan.relation is dp.Relation.REPLACE_ONE


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (
            LinearRegression,
            {"checkpoint": "kept"},
            "checkpoint is not for this fit: noisy moments take seconds",
        ),
        (LinearRegression, {"progress_bar": True}, "progress_bar is not for this fit"),
        (LinearRegression, {"require_proof": False}, "noisy moments are always proved"),
        (LogisticRegression, {"require_proof": False}, "private Newton always proves"),
        (LogisticRegression, {"person": 3}, "name of the column"),
    ],
)
def test_what_a_method_lacks_is_refused(
    kind: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    bounds = {"target_bounds": (-1, 2)} if kind is LinearRegression else {}
    options = {name: tmp_path / x if name == "checkpoint" else x for name, x in options.items()}
    book = dp.Ledger.create(tmp_path / "book.ledger", dataset="a table", epsilon=9.0, delta=1e-5)
    with pytest.raises((ValueError, TypeError), match=message):
        kind(**SETTINGS, **bounds).fit(X, Y, ledger=book, **options)
    assert dp.Ledger(tmp_path / "book.ledger").spent == 0
