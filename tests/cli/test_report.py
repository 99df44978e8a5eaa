"""`discreet report`: the page of what a fit wrote, and of nothing else."""

import base64
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._report import write_picture
from discreet.interfaces.cli._steps import InSteps
from discreet.methods.inference import Trace
from discreet.privacy.report import make_statement
from discreet.tabular.tables import schema_from_bounds

from .fits import PLAN, fitted

RUN = CliRunner()
SCHEMA = schema_from_bounds("age=17:90,smoker=no|yes")


def report(*words: object):
    return RUN.invoke(app, ["report", *map(str, words)])


def refused(outcome, *words: str) -> None:
    text = " ".join(outcome.stderr.split())
    assert outcome.exit_code == 2, text
    assert text.startswith("Refused: ")
    for word in words:
        assert word in text


def saved(page: Path) -> dict:
    """The statement within a page."""
    found = re.search(r"data:application/json;base64,([\w+/=]+)", page.read_text(encoding="utf-8"))
    assert found is not None
    return json.loads(base64.b64decode(found[1]))


@pytest.fixture
def fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a regression whose fit was made up."""

    def release(method):
        plan = method.plan
        records = method.records
        rng, steps = np.random.default_rng(0), plan.num_steps
        result = SimpleNamespace(
            statement=make_statement(plan, steps_completed=steps, reproducible=False),
            plan=plan,
            losses=rng.normal(100, 10, steps),
            params={"weights_auto_loc": np.zeros(2)},
            trace=Trace(np.arange(steps), rng.normal(size=(steps, 2)).astype(np.float32)),
            steps_completed=steps,
        )
        result.posterior = lambda key, number: {
            "weights": rng.normal(size=(number, records.x.shape[1]))
        }
        return result, None

    monkeypatch.setattr(InSteps, "release", release)
    (tmp_path / "survey.csv").write_text("age,smoker\n20,no\n60,yes\n")
    words = "--model logistic --target smoker --bounds age=17:90,smoker=no|yes --epsilon 1 --steps 60 --num-records 500 --yes"
    words += " --contact dpo@example.org"
    outcome = RUN.invoke(
        app,
        ["fit", "--data", f"{tmp_path}/survey.csv", "--out", f"{tmp_path}/fit", *words.split(" ")],
    )
    assert outcome.exit_code == 0, outcome.stderr
    assert "report.html" in outcome.stdout
    return tmp_path / "fit"


@pytest.fixture
def twin_fit(tmp_path: Path) -> Path:
    """The folder of a fit of a whole table, made up too."""
    folder = fitted(tmp_path / "fit", SCHEMA)
    statement = make_statement(PLAN, steps_completed=PLAN.num_steps, reproducible=False)
    (folder / "statement.json").write_text(statement.to_json())
    return folder


def test_a_fit_writes_its_page_and_the_command_writes_the_same(fit: Path, tmp_path: Path) -> None:
    outcome = report(fit, "--out", tmp_path / "again.html", "--json")
    assert outcome.exit_code == 0, outcome.stderr
    statement = json.loads((fit / "statement.json").read_text())
    assert json.loads(outcome.stdout) == {
        "format": "discreet report, version 1",
        "files": [str(tmp_path / "again.html")],
        "is_private": True,
        "epsilon": statement["epsilon"],
        "delta": statement["delta"],
        "shows": ["course of the fit", "posterior"],
    }
    page = (fit / "report.html").read_text(encoding="utf-8")
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == page
    assert saved(fit / "report.html") == statement
    assert "weights_auto_loc" not in page
    what = "A logistic regression of <em>smoker</em> (yes against no) on 1 column of <em>survey.csv</em>, 500 records"
    assert f'<p class="about">{what}; its coefficients were released.</p>' in page
    assert "<dt>Contact</dt><dd>dpo@example.org</dd>" in page
    assert "how much the log odds of <em>smoker</em> = <em>yes</em> changes" in page
    assert ">age</th>" in page


def test_the_curve_of_a_regression_is_that_of_its_plan(fit: Path) -> None:
    """The figures in the page are those of the statement beside it, digit for digit."""
    statement = json.loads((fit / "statement.json").read_text())
    rows = re.findall(
        r'<tr><th scope="row">([\d.]+)\s%</th><td class="right">([\d.]+)\s%</td></tr>',
        (fit / "report.html").read_text(),
    )
    found = {float(rate): float(rightly) for rate, rightly in rows[:6]}
    for pair in statement["attack_power"]:
        rate, most = 100 * pair["false_positive_rate"], 100 * pair["largest_true_positive_rate"]
        assert most <= found[rate] <= most * 1.011


def test_a_ledger_that_was_not_charged(twin_fit: Path, tmp_path: Path) -> None:
    ledger = dp.Ledger.create(tmp_path / "a.ledger", dataset="a survey", epsilon=3.0, delta=1e-3)
    outcome = report(twin_fit, "--ledger", ledger.path)
    assert outcome.exit_code == 0, outcome.stderr
    page = (twin_fit / "report.html").read_text(encoding="utf-8")
    assert "a survey" in page
    assert "was not charged to this ledger" in page


def test_files_of_two_fits_are_not_mixed(fit: Path, twin_fit: Path, tmp_path: Path) -> None:
    statement = make_statement(PLAN, steps_completed=2, reproducible=False)
    folder = fitted(tmp_path / "mixed", SCHEMA)
    (folder / "statement.json").write_text(statement.to_json())
    refused(report(folder), "not of the statement beside it")


def test_a_summary_of_another_statement_or_a_damaged_one(fit: Path) -> None:
    summary = json.loads((fit / "summary.json").read_text())
    for change, words in (
        ({"statement_sha256": "0" * 64}, "not of the statement beside it"),
        ({"profile": [[0.1]]}, "damaged"),
        ({"profile": [[-1.0, 0.5]]}, "damaged"),
        # More than the statement promises: at its deltas, and beyond them.
        ({"profile": [[0.0, 0.0]]}, "damaged"),
        ({"profile": [[0.0, 0.002]]}, "damaged"),
        ({"posterior": {"a": {}}}, "damaged"),
        ({"course": {"losses": {"mean": 3}}}, "damaged"),
        ({"posterior": None}, "damaged"),
    ):
        (fit / "summary.json").write_text(json.dumps({**summary, **change}))
        refused(report(fit), "summary.json", words)
    (fit / "summary.json").unlink()
    assert report(fit).exit_code == 0


def test_a_page_without_a_guarantee_says_so_twice(twin_fit: Path) -> None:
    broken = make_statement(PLAN, steps_completed=4, reproducible=True)
    for name in ("twin.model", "twin.result"):
        (twin_fit / name).unlink()
    (twin_fit / "statement.json").write_text(broken.to_json())
    outcome = report(twin_fit)
    assert outcome.exit_code == 0
    assert "NOT PRIVATE" in outcome.stderr
    assert "No ε holds" in (twin_fit / "report.html").read_text(encoding="utf-8")


@pytest.mark.essential
def test_wrong_input_is_refused(fit: Path, tmp_path: Path) -> None:
    refused(report(tmp_path), "statement.json", "discreet fit")
    refused(report(fit, "--out", fit / "statement.json"), ".html")
    (tmp_path / "folder.html").mkdir()
    refused(report(fit, "--out", tmp_path / "folder.html"), "folder")
    refused(report(fit, "--ledger", tmp_path / "no.ledger"), "no.ledger")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "statement.json").write_text("{")
    refused(report(tmp_path / "empty"), "not JSON")
    (tmp_path / "empty" / "statement.json").write_text("{}")
    refused(report(tmp_path / "empty"), "not a discreet privacy statement")


def test_a_picture_without_some_letters_says_so(tmp_path, capsys) -> None:
    figure = dp.plots.new_figure(2, 2)
    for text, lacks in (("Þórshöfn", False), ("\ue000", True)):
        figure.suptitle(text)
        write_picture(tmp_path / "a.png", figure)
        assert ("a.png shows boxes" in " ".join(capsys.readouterr().err.split())) == lacks
