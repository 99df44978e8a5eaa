"""`discreet score`: the schema and the draws of a fit's folder, a held-out table, and what they give."""

import json
from pathlib import Path

import numpy as np
import pytest

import discreet as dp
from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._options import REGRESSIONS
from discreet.interfaces.cli._predict import _predict

from .world import RUN

X = 'target = "y"\n[columns.x]\nkind = "real"\nbounds = [-2, 2]\n[columns.y]\n'
SCHEMAS = {
    "logistic": f'{X}kind = "binary"\ncategories = ["no", "yes"]\n',
    "linear": f'{X}kind = "real"\nbounds = [0, 10]\n',
}


def fit(folder: Path, model: str, weight: float, intercept: float) -> None:
    folder.mkdir()
    np.savez(
        folder / "posterior.npz", weights=np.full((3, 1), weight), intercept=np.full(3, intercept)
    )
    schema = SCHEMAS[model]
    (folder / "summary.json").write_text(json.dumps({"model": model, "schema": schema}))


def test_the_figures_are_those_of_the_fit_and_the_ledger_is_debited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """x in [-2, 2] is x / 2 to the model: a weight of 6 is 3 to a unit of x."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, 3000)
    y = rng.random(3000) < 1 / (1 + np.exp(-3 * x))
    Path("table.csv").write_text(
        "x,y\n" + "".join(f"{a},{'yes' if b else 'no'}\n" for a, b in zip(x, y, strict=True))
    )
    fit(Path("fit"), "logistic", 6.0, 0.0)
    dp.Ledger.create("a.ledger", dataset="held out", epsilon=3.0, delta=1e-4)
    words = "score fit --data table.csv --epsilon 2 --delta 1e-5 --ledger a.ledger --json"
    outcome = RUN.invoke(app, words.split())
    assert outcome.exit_code == 0, outcome.stderr
    facts = json.loads(outcome.stdout)
    assert facts["accuracy"]["value"] == pytest.approx(np.mean((x > 0) == y), abs=0.03)
    low, high = facts["accuracy"]["interval"]
    assert low < facts["accuracy"]["value"] < high
    assert len(dp.Ledger("a.ledger").debits) == 1
    assert json.loads(Path("discreet-scores/scores.json").read_text())["auc"] == facts["auc"]
    again = RUN.invoke(app, words.split())
    assert again.exit_code == 2
    assert "earlier release" in " ".join(again.stderr.split())


def test_a_target_of_numbers_is_scored_in_its_own_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.linspace(-2, 2, 4000)
    y = 5 + 2 * x + np.random.default_rng(0).normal(0, 0.5, 4000)
    Path("table.csv").write_text(
        "x,y\n" + "".join(f"{a},{b}\n" for a, b in zip(x, np.clip(y, 0, 10), strict=True))
    )
    # From [-1, 1] to [0, 10]: a slope of 2 is 0.8.
    fit(Path("fit"), "linear", 0.8, 0.0)
    outcome = RUN.invoke(
        app, ["score", "fit", "--data", "table.csv", "--epsilon", "20", "--delta", "1e-5", "--json"]
    )
    assert outcome.exit_code == 0, outcome.stderr
    facts = json.loads(outcome.stdout)
    assert facts["root_mean_squared_error"]["value"] == pytest.approx(0.5, abs=0.12)
    assert facts["r2"]["value"] == pytest.approx(0.95, abs=0.05)


def test_a_folder_without_such_a_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("x,y\n1,yes\n")
    outcome = RUN.invoke(app, ["score", ".", "--data", "table.csv", "--epsilon", "1"])
    assert outcome.exit_code == 2
    assert "built-in model" in " ".join(outcome.stderr.split())


def test_a_model_of_ones_own_is_not_scored_as_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its latents may have the names of ours; what it predicts is not known."""
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text("x,y\n1,2\n2,3\n")
    fit(Path("fit"), "linear", 0.8, 0.0)
    summary = json.loads(Path("fit/summary.json").read_text())
    Path("fit/summary.json").write_text(json.dumps({**summary, "model": "mine.py:probit"}))
    outcome = RUN.invoke(
        app, ["score", "fit", "--data", "table.csv", "--epsilon", "20", "--delta", "1e-5"]
    )
    assert outcome.exit_code == 2
    assert "built-in model" in " ".join(outcome.stderr.split())


@pytest.mark.parametrize("model", list(REGRESSIONS))
def test_a_row_is_predicted_alike_beside_any_others(model: str) -> None:
    """To the last bit: a matrix product rounds a row otherwise in another place, or beside one row more."""
    rng = np.random.default_rng(0)
    classes = (3,) if model == "multinomial" else ()
    draws = {
        "weights": rng.normal(size=(5, 104, *classes)),
        "intercept": rng.normal(size=(5, *classes)),
    }
    x = rng.normal(size=(33, 104)).astype(np.float32)
    alone = np.concatenate([_predict(model, draws, 2.0, 1.0, x[i : i + 1]) for i in range(len(x))])
    for count in range(2, len(x) + 1):
        np.testing.assert_array_equal(_predict(model, draws, 2.0, 1.0, x[:count]), alone[:count])


@pytest.mark.parametrize(("model", "names"), [("logistic", ["y=yes"]), ("linear", ["y"])])
def test_new_records_are_predicted_without_their_targets(
    tmp_path: Path, monkeypatch, model: str, names: list[str]
) -> None:
    """No command applied a saved fit to a table. A dropped row is an empty line's place; nothing is spent."""
    monkeypatch.chdir(tmp_path)
    fit(Path("fit"), model, 6.0 if model == "logistic" else 0.8, 0.0)
    summary = json.loads(Path("fit/summary.json").read_text())
    schema = (
        summary["schema"]
        .replace("[-2, 2]\n", '[-2, 2]\nmissing = "drop"\n')
        .replace('"y"\n', '"y"\nperson = "id"\n', 1)
    )
    Path("fit/summary.json").write_text(json.dumps({**summary, "schema": schema}))
    Path("new.csv").write_text('x\n1\n""\n-2\n')
    outcome = RUN.invoke(app, ["predict", "fit", "--data", "new.csv", "--out", "new.out.csv"])
    assert outcome.exit_code == 0, outcome.stderr
    assert "does not protect these records" in " ".join(outcome.stdout.split())
    head, one, dropped, two = Path("new.out.csv").read_text().splitlines()
    assert head.split(",") == names
    assert dropped.strip('"') == ""
    exact = [1 / (1 + np.exp(-3)), 1 / (1 + np.exp(6))] if model == "logistic" else [7.0, 1.0]
    assert [float(one), float(two)] == pytest.approx(exact, rel=1e-6)
    for words, needle in (
        ("--out new.out.csv", "already exists"),
        ("--out new.parquet", "give it the ending .csv"),
        ("--out other.csv --data fit/summary.json", "Refused"),
    ):
        wrong = RUN.invoke(app, ["predict", "fit", "--data", "new.csv", *words.split()])
        assert wrong.exit_code == 2
        assert needle in " ".join(wrong.stderr.split())
    assert not Path("other.csv").exists()
    Path("empty.csv").write_text(Path("new.csv").read_text().splitlines()[0])
    wrong = RUN.invoke(app, ["predict", "fit", "--data", "empty.csv", "--out", "other.csv"])
    assert "empty.csv has a header but no rows: give the table with its records" in " ".join(
        wrong.stderr.split()
    )
    wrong = RUN.invoke(app, ["predict", ".", "--data", "new.csv"])
    assert "built-in model" in " ".join(wrong.stderr.split())


def person_table(rows_a_person: int) -> None:
    schema = SCHEMAS["logistic"].replace(
        '"y"\n', f'"y"\nperson = {{column = "patient", max_rows = {rows_a_person}}}\n', 1
    )
    summary = json.loads(Path("fit/summary.json").read_text())
    Path("fit/summary.json").write_text(json.dumps({**summary, "schema": schema}))
    rows = [f"p{i // 3},{i % 4 - 2},{'yes' if i % 2 else 'no'}\n" for i in range(1200)]
    Path("table.csv").write_text("patient,x,y\n" + "".join(rows))


@pytest.mark.parametrize("rows_a_person", [1, 2])
def test_the_statement_names_the_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_a_person: int
) -> None:
    monkeypatch.chdir(tmp_path)
    fit(Path("fit"), "logistic", 6.0, 0.0)
    person_table(rows_a_person)
    outcome = RUN.invoke(
        app, ["score", "fit", "--data", "table.csv", "--epsilon", "2", "--delta", "1e-5", "--json"]
    )
    assert outcome.exit_code == 0, outcome.stderr
    statement = json.loads(Path("discreet-scores/statement.json").read_text())
    assert "all rows with the same 'patient'" in statement["unit"]
    assert "groups" not in Path("discreet-scores/statement.txt").read_text()
    assert json.loads(outcome.stdout)["rows"]["value"] == pytest.approx(
        400 * rows_a_person, abs=150
    )


def test_figures_are_printed_where_a_full_disk_takes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are paid for."""
    monkeypatch.chdir(tmp_path)
    fit(Path("fit"), "logistic", 6.0, 0.0)
    Path("table.csv").write_text("x,y\n" + "1,yes\n-1,no\n" * 500)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("discreet.interfaces.cli._run.write_statement", full)
    outcome = RUN.invoke(
        app, ["score", "fit", "--data", "table.csv", "--epsilon", "2", "--delta", "1e-5"]
    )
    assert outcome.exit_code == 1
    assert "budget is spent" in " ".join(outcome.stderr.split())
    assert "accuracy" in outcome.stdout
    assert "private scores" in outcome.stdout  # the statement


def test_a_posterior_of_another_schema_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns more would be left out in silence."""
    monkeypatch.chdir(tmp_path)
    fit(Path("fit"), "logistic", 6.0, 0.0)
    np.savez("fit/posterior.npz", weights=np.full((3, 2), 6.0), intercept=np.zeros(3))
    Path("table.csv").write_text("x,y\n1,yes\n")
    dp.Ledger.create("a.ledger", dataset="held out", epsilon=3.0, delta=1e-4)
    words = "score fit --data table.csv --epsilon 2 --delta 1e-5 --ledger a.ledger"
    outcome = RUN.invoke(app, words.split())
    assert outcome.exit_code == 2
    assert "not that of the schema" in " ".join(outcome.stderr.split())
    assert not dp.Ledger("a.ledger").debits
