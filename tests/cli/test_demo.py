import json
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from discreet.cli import _run
from discreet.cli._app import app
from discreet.cli._demo import bounds_of, load, may_overwrite
from discreet.report import make_statement

RUN = CliRunner()


def test_bounds_hold_and_are_round() -> None:
    """The bundled table lies within the bounds (encoding refuses otherwise), which are not its own extremes."""
    from sklearn.datasets import load_breast_cancer

    train, test = load()
    assert train.num_records + test.num_records == 569
    assert np.abs(train.x).max() <= 1
    bundle = load_breast_cancer()
    for name, low, high in zip(bundle.feature_names, bundle.data.min(0), bundle.data.max(0), strict=True):
        bounds = bounds_of(name)
        assert bounds[0] <= low < high <= bounds[1]
        assert (low, high) != bounds


def test_demo_fits_and_compares(tmp_path) -> None:
    outcome = RUN.invoke(app, ["demo", "--out", str(tmp_path), "--json"])
    assert outcome.exit_code == 0, outcome.stderr
    content = json.loads(outcome.stdout)
    assert 0.999 <= content["statement"]["epsilon"] <= 1
    assert content["statement"]["is_private"] is True
    scores = content["scores"]
    assert scores["non_private"]["accuracy"] > 0.95
    # The noise is real. Over 20 runs 0.923 on average with a standard deviation of 0.022, area 0.986 with 0.009: five standard
    # deviations are allowed, a false alarm in about a million runs. Saying "benign" always would give 0.63 and 0.5.
    assert scores["private"]["accuracy"] > 0.81
    assert scores["private"]["auc"] > 0.94
    with np.load(tmp_path / "posterior.npz") as draws:
        assert draws["weights"].shape == (1_000, 30)
    for name in ("statement.json", "statement.txt", "summary.json", "fit.png"):
        assert str(tmp_path / name) in content["files"]
        assert (tmp_path / name).stat().st_size > 100


@pytest.fixture
def no_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fit itself replaced: what stands around it is under test."""

    def run(model, plan, records, **options):
        statement = make_statement(plan, steps_completed=plan.num_steps, reproducible=False)
        samples = {"intercept": np.zeros(4), "weights": np.zeros((4, records.x.shape[1]))}
        result = SimpleNamespace(statement=statement, plan=plan, losses=np.zeros(3), steps_completed=plan.num_steps)
        return result, lambda number: samples

    monkeypatch.setattr(_run, "run", run)


def test_demo_in_words(tmp_path, no_fit) -> None:
    outcome = RUN.invoke(app, ["demo", "--epsilon", "0.5", "--out", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.stderr
    for needle in ("456 people fitted", "private, ε = 0.5", "without privacy", "Privacy statement", "statement.json"):
        assert needle in outcome.stdout
    assert "the table is public" in " ".join(outcome.stdout.split())


def test_demo_overwrites_its_own_results_only(tmp_path, no_fit) -> None:
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


def test_demo_refuses_bad_numbers(tmp_path) -> None:
    outcome = RUN.invoke(app, ["demo", "--epsilon", "0", "--out", str(tmp_path / "out")])
    assert outcome.exit_code == 2
    assert "epsilon" in outcome.stderr
    assert not (tmp_path / "out").exists()
