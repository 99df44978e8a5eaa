"""`discreet fit --formula`: a fit by a formula from the shell, and what does not go with one."""

import dataclasses
import json

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet.interfaces.cli._app import app
from discreet.tabular.formulas import _regress

RUN = CliRunner()
BOUNDS = "age=20:60,region=north|south,ill=no|yes"


@pytest.fixture
def survey(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 60, 3_000).round(1)
    region = rng.choice(["north", "south"], 3_000)
    ill = np.where(rng.random(3_000) < 1 / (1 + np.exp(2 - 0.05 * age)), "yes", "no")
    lines = "\n".join(f"{a},{r},{i}" for a, r, i in zip(age, region, ill, strict=True))
    (tmp_path / "survey.csv").write_text(f"age,region,ill\n{lines}\n")
    return tmp_path


def call(*words: str):
    return RUN.invoke(
        app, ["fit", "--data", "survey.csv", "--bounds", BOUNDS, "--epsilon", "3", *words]
    )


def test_a_formula_is_fitted_written_and_charged(survey) -> None:
    dp.Ledger.create(survey / "survey.ledger", dataset="survey", epsilon=5.0, delta=1e-4)
    words = "--formula", "ill ~ age * region", "--family", "bernoulli", "--ledger", "survey.ledger"
    dry = call(*words, "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "age:region[south]" in dry.output
    assert not (survey / "discreet-fit").exists()
    done = call(*words)
    assert done.exit_code == 0, done.output
    assert "age:region[south]" in done.output
    assert "90 % interval" in done.output
    out = survey / "discreet-fit"
    result = dp.load_result(out / "fit.discreet")
    summary = json.loads((out / "summary.json").read_text())
    assert summary["posterior"]["age"]["mean"] == pytest.approx(result.estimate["age"])
    assert summary["formula"] == "ill ~ age * region"
    draws = pandas.read_csv(out / "posterior.csv")  # as R reads them
    assert list(draws) == list(result.draws)
    np.testing.assert_allclose(draws["age"], result.draws["age"][: len(draws)])
    statement = json.loads((out / "statement.json").read_text())
    assert "survey.csv" in statement["about"]
    assert 2.9 < dp.Ledger(survey / "survey.ledger").spent <= 3
    assert "ill ~ age * region" in (out / "report.html").read_text()
    again = call(*words)
    assert again.exit_code == 2
    assert "contains the statement of an earlier release" in " ".join(again.output.split())


def test_names_that_are_no_columns_have_public_values(survey) -> None:
    formula = "ill ~ bs(age, knots=k, degree=d) + I(region == there)"
    words = "--formula", formula, "--family", "bernoulli"
    done = call(*words, "--constants", "k=30.5 | 50, d=2,there=south", "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["columns"]) == 2 + 2 + 1
    done = call(*words, "--dry-run")
    assert done.exit_code == 2
    assert "give its public value in constants" in " ".join(done.output.split())


@pytest.mark.parametrize("max_rows", [1, 2])
def test_a_record_is_a_person(survey, max_rows) -> None:
    lines = (survey / "survey.csv").read_text().split()
    rows = [f"{place // 2},{line}" for place, line in enumerate(lines[1:])]
    (survey / "survey.csv").write_text("\n".join([f"id,{lines[0]}", *rows]))
    schema = dp.tables.schema_from_bounds(BOUNDS)
    schema = dataclasses.replace(schema, person="id", max_rows=max_rows)
    (survey / "schema.toml").write_text(dp.tables.schema_to_toml(schema))
    words = ["fit", "--data", "survey.csv", "--schema", "schema.toml", "--epsilon", "3", "--json"]
    done = RUN.invoke(app, [*words, "--formula", "ill ~ age", "--family", "bernoulli"])
    assert done.exit_code == 0, done.output
    statement = json.loads((survey / "discreet-fit" / "statement.json").read_text())
    assert statement["plan"]["num_records"] == 1_500
    assert dp.load_result(survey / "discreet-fit" / "fit.discreet").plan.max_rows == max_rows


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--formula", "ill ~ scale(age)", "--family", "bernoulli"], "looks at the cells"),
        (["--formula", "ill ~ age", "--family", "bernoulli", "--constants", "30"], "NAME=NUMBER"),
        (["--model", "logistic", "--target", "ill", "--constants", "k=3"], "is for --formula"),
        (["--formula", "ill ~ age", "--family", "poisson"], "of kind count"),
        (["--formula", "ill ~ age", "--model", "logistic"], "--model does not go with --formula"),
        (
            ["--formula", "ill ~ age", "--steps", "9", "--target", "ill"],
            "--target, --steps does not go",
        ),
        (["--model", "logistic", "--target", "ill", "--family", "bernoulli"], "is for --formula"),
        ([], "--model is missing"),
    ],
)
def test_what_does_not_go_with_a_formula_is_refused(survey, words, why) -> None:
    done = call(*words)
    assert done.exit_code == 2
    assert why in " ".join(done.output.split())
    assert not (survey / "discreet-fit").exists()


@pytest.mark.parametrize(
    ("formula", "family"), [("ill ~ age", "bernoulli"), ("age ~ ill", "gaussian")]
)
def test_a_fit_that_dies_after_its_release_says_that_it_spent(
    survey, monkeypatch, formula, family
) -> None:
    def die(*_) -> None:
        raise MemoryError

    monkeypatch.setattr(_regress, "_named", die)
    died = call("--formula", formula, "--family", family)
    assert died.exit_code == 1
    assert "count the ε of the whole plan as spent" in " ".join(died.output.split())
