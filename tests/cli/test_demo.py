import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._demo import (
    BOUNDS,
    STEPS,
    TARGET,
    in_units,
    least_squares,
    load,
    may_overwrite,
    simulated,
)
from discreet.interfaces.cli._sums import BySums
from discreet.privacy.report import COEFFICIENTS, NOT_USABLE

RUN = CliRunner()
SCHEMA = dp.tables.schema_from_bounds(BOUNDS, target=TARGET)
# What the table was simulated with, per the steps in which the demo shows coefficients.
TRUTH = {
    "age": 5.0,
    "sex=male": 4.0,
    "body_mass_index": 4.5,
    "smoker=yes": 1.5,
    "salt": 4.0,
    "exercise": -3.0,
}


def test_bounds_hold_and_are_round() -> None:
    """The table lies within the bounds (encoding refuses otherwise), and few cells are at them."""
    records = load(SCHEMA)
    assert records.num_records == 20_000
    assert records.feature_names == tuple(STEPS)
    assert np.abs(records.x).max() <= 1
    columns = simulated()
    for column in SCHEMA.columns:
        if column.bounds and column.name != "exercise":  # many take none
            assert np.isin(columns[column.name], column.limits).mean() < 0.01


def test_coefficients_are_shown_in_the_units_of_the_table() -> None:
    found = in_units(SCHEMA, least_squares(load(SCHEMA)))[0]
    # Standard errors are at most 0.26, that of smokers.
    assert found == pytest.approx([TRUTH[name] for name in STEPS], abs=1.0)


@pytest.fixture
def no_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fit itself replaced: what stands around it is under test."""

    def release(method):
        plan = method.plan
        size = plan.num_features + 1
        statement = plan.state(reproducible=False).with_use(
            COEFFICIENTS, "the intervals include the noise"
        )
        mean = np.arange(size) / 100
        result = dp.moments.MomentsResult(
            mean=mean,
            covariance=np.eye(size) * 1e-6,
            estimate=mean,
            variance=0.04,
            variance_spread=1e-3,
            mean_squares=np.ones(size - 1),
            counted=1.0,
            plan=plan,
            statement=statement,
        )
        return result, dp.random.key(0)

    monkeypatch.setattr(BySums, "release", release)


def test_demo_in_words(tmp_path: Path, no_fit) -> None:
    outcome = RUN.invoke(app, ["demo", "--epsilon", "0.5", "--out", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.stderr
    assert len(outcome.stdout.splitlines()) <= 25
    for needle in (
        "20,000 simulated adults",
        "without privacy",
        "ε = 0.49",
        "Use: For its coefficients",
        "report.html",
    ):
        assert needle in outcome.stdout
    assert "smokers, against others" in outcome.stdout
    assert (tmp_path / "fit.png").stat().st_size > 1_000
    assert (
        "A linear regression of <em>blood_pressure</em> on 6 columns"
        in (tmp_path / "report.html").read_text()
    )


def test_demo_overwrites_its_own_results_only(tmp_path: Path, no_fit) -> None:
    statement = tmp_path / "statement.json"
    assert may_overwrite(statement)
    for _ in range(2):
        assert RUN.invoke(app, ["demo", "--out", str(tmp_path)]).exit_code == 0
    for other in ("{}", "[]", "no JSON", '{"public": []}'):
        statement.write_text(other)
        outcome = RUN.invoke(app, ["demo", "--out", str(tmp_path)])
        assert outcome.exit_code == 2
        assert "contains the statement of a fit" in " ".join(outcome.stderr.split())
        assert statement.read_text() == other


def test_demo_refuses_bad_numbers(tmp_path: Path) -> None:
    outcome = RUN.invoke(app, ["demo", "--epsilon", "0", "--out", str(tmp_path / "out")])
    assert outcome.exit_code == 2
    assert "epsilon" in outcome.stderr
    assert not (tmp_path / "out").exists()


def test_demo_fits_and_compares(tmp_path: Path) -> None:
    outcome = RUN.invoke(app, ["demo", "--out", str(tmp_path), "--json"])
    assert outcome.exit_code == 0, outcome.stderr
    content = json.loads(outcome.stdout)
    assert 0.999 <= content["statement"]["epsilon"] <= 1
    assert content["statement"]["is_private"] is True
    assert content["statement"]["use"] == COEFFICIENTS != NOT_USABLE
    for name, row in zip(STEPS, content["coefficients"].values(), strict=True):
        # The noise is real: six standard deviations of the posterior, a false alarm in more than a
        # million runs.
        width = row["high"] - row["low"]
        assert 0 < width < 1.5
        assert abs(row["private"] - TRUTH[name]) < 6 / 3.29 * width
    with np.load(tmp_path / "posterior.npz") as draws:
        assert draws["weights"].shape == (1_000, 6)
    for name in ("statement.json", "statement.txt", "summary.json", "fit.png", "report.html"):
        assert str(tmp_path / name) in content["files"]
        assert (tmp_path / name).stat().st_size > 100
