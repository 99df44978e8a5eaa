"""A dry run of private Newton predicts what the private fit does."""

import dataclasses
import json
import math

import numpy as np
import pytest

import discreet as dp
from discreet.newton import NewtonPlan, fit_invented, fit_newton
from discreet.planning import NewtonRow, dry_run_of_newton
from discreet.planning._newton import _Table
from discreet.tables import schema_from_bounds, schema_from_dict

SCHEMA = schema_from_bounds("age=17:90,dose=0:5,sick=no|yes", target="sick")
COUNTS = schema_from_dict(
    {
        "target": "visits",
        "columns": {
            "age": {"kind": "real", "bounds": [17, 90]},
            "region": {"kind": "categorical", "categories": ["north", "south", "east"]},
            "visits": {"kind": "count", "bounds": [0, 30]},
        },
    }
)


@pytest.fixture(scope="module")
def found(quick_compilation):
    return dry_run_of_newton(SCHEMA, family="binary", num_records=600, epsilon=1.0, delta=1e-6, progress_bar=False)


def test_epsilon_buys_less_noise_and_more_coefficients(found) -> None:
    assert [row.epsilon for row in found.rows] == pytest.approx([0.1, 0.3, 1, 3, 10])
    first, *_, last = found.rows
    assert first.ratio > 10 * last.ratio
    assert last.learned == 1 > first.learned
    assert last.best - 0.01 < last.score <= last.best + 0.01
    assert (first.use, last.use) == ("not usable", "for its coefficients")
    assert np.mean([row.held for row in found.rows]) > 0.8


def test_the_plan_is_the_fits(found) -> None:
    terms = {"epsilon": 1.0, "delta": 1e-6, "family": "binary", "num_features": 2, "num_records": 600}
    assert found.plan == NewtonPlan.calibrate(**terms)


@pytest.mark.parametrize("family", ["binary", "counts"])
def test_the_invented_fit_is_the_private_fit(family: str, quick_compilation) -> None:
    """Of one table: alike in the estimate, its spread, and the noise."""
    table = _Table.invented(SCHEMA if family == "binary" else COUNTS, family, 1.0, 4_000, np.random.default_rng(5))
    terms = {"family": family, "num_features": table.x.shape[1], "num_records": 4_000}
    plan = NewtonPlan.calibrate(epsilon=3.0, delta=1e-6, **terms)
    private = fit_newton(dp.random.key(1), table.x, table.y, plan, levels=table.levels)
    invented = fit_invented(table.x, table.y, plan, seed=1, levels=table.levels)
    # Chance moves both: over eight fits of counts from 0.9 to 1.8.
    assert 0.4 < invented.ratio / private.ratio < 2.5
    spreads = np.sqrt(np.diag(invented.covariance) / np.diag(private.covariance))
    assert 0.5 < spreads.min() < spreads.max() < 2
    apart = (invented.mean - private.mean) / np.sqrt(np.diag(private.covariance))
    assert np.abs(apart).max() < 3
    # Without noise worth speaking of, the two are one.
    plan = dataclasses.replace(plan, noise_multiplier=1e-2)
    private = fit_newton(dp.random.key(1), table.x, table.y, plan, levels=table.levels)
    invented = fit_invented(table.x, table.y, plan, seed=1, levels=table.levels)
    np.testing.assert_allclose(invented.mean, private.mean, atol=2e-3 * np.abs(private.mean).max())


def test_invented_counts_keep_to_their_bounds_and_have_the_spread_that_was_asked_for() -> None:
    for spread in (1.0, 0.25):
        table = _Table.invented(COUNTS, "counts", spread, 5_000, np.random.default_rng(0))
        assert table.levels.tolist() == [False, True, True, True]
        assert np.std(table.x @ table.truth[1:]) == pytest.approx(spread, rel=0.05)
        assert 0 <= table.y.min() < table.y.max() <= 30
        assert np.mean(table.y == 30) < 0.01


def test_wide_tables_are_stood_for_by_fewer_rows_with_as_much_noise_beside_sampling(
    monkeypatch: pytest.MonkeyPatch, quick_compilation
) -> None:
    from discreet.planning import _newton

    monkeypatch.setattr(_newton, "FACTORS", (1.0,))
    terms = {"family": "binary", "num_records": 20_000, "epsilon": 1.0, "progress_bar": False}
    (whole,) = dry_run_of_newton(SCHEMA, **terms).rows
    monkeypatch.setattr(_newton, "_MOST_CELLS", 9_000)
    (part,) = dry_run_of_newton(SCHEMA, **terms).rows
    assert part.ratio == pytest.approx(whole.ratio, rel=0.3)
    assert part.learned <= whole.learned


def row(epsilon: float, use: str) -> NewtonRow:
    return NewtonRow(epsilon, 1.0, 0.5, 0.9, math.nan, 0.8, use)


def test_the_least_epsilon_is_named(found) -> None:
    rows = (row(0.1, "not usable"), row(1.0, "for prediction"), row(10.0, "for prediction"))
    made = dataclasses.replace(found, rows=rows)
    assert made.least("for prediction") == 1.0
    assert made.least("for its coefficients") is None
    said = str(made)
    assert "Use at ε = 1: For prediction. For prediction, ε = 1 is enough. No ε up to 10 makes" in said
    assert json.loads(json.dumps(made.to_dict()))["curve"][0]["score"] is None


def test_bounds_that_were_taken_from_data_and_tables_are_refused() -> None:
    terms = {"family": "binary", "num_records": 400, "epsilon": 1.0}
    seen = dataclasses.replace(SCHEMA, inferred=("age",))
    with pytest.raises(ValueError, match="were taken from the data"):
        dry_run_of_newton(seen, **terms)
    with pytest.raises(TypeError, match="no place for a table"):
        dry_run_of_newton(np.zeros((3, 2)), **terms)  # pyright: ignore[reportArgumentType]
