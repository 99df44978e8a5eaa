"""`discreet check`: from a fit by a formula and a description in the shell to the printed check and its picture."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet.interfaces.cli._app import app

from .world import checkable

RUN = CliRunner()
SCHEMA = """\
target = "smoker"
[columns.age]
kind = "real"
bounds = [0, 120]
[columns.smoker]
kind = "binary"
categories = ["no", "yes"]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    checkable(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*words: str):
    return RUN.invoke(app, [str(word) for word in words])


def test_a_fit_is_checked_against_the_description_of_its_table(folder) -> None:
    """A fit that has no effect of age, where older people smoke far more often, is found; a right one passes once in 20 not."""
    rng = np.random.default_rng(0)
    age = rng.integers(20, 80, 4_000)
    smoker = np.where(rng.random(4_000) < 1 / (1 + np.exp(4 - 0.08 * age)), "yes", "no")
    lines = "\n".join(f"{a},{s}" for a, s in zip(age, smoker, strict=True))
    (folder / "survey.csv").write_text(f"age,smoker\n{lines}\n")
    how = "--schema", "schema.toml", "--epsilon", "3", "--delta", "1e-5"
    made = call("describe", "survey.csv", *how, "--all-pairs", "--slices", "12", "--out", "counted")
    assert made.exit_code == 0, made.stderr
    done = call("check", "formula", "counted", "--plot", "check.png", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["p"] < 0.05
    assert "The model does not fit" in found["verdict"]
    assert "age" in found["verdict"]
    assert found["files"] == ["check.png"]
    assert (folder / "check.png").stat().st_size > 5_000
    assert 0.9 < found["epsilon"] < 4.1
    again = call("check", "formula", "counted", "--plot", "check.png")
    assert again.exit_code == 2
    assert "already exists" in " ".join(again.stderr.split())
    shown = call("check", "formula/fit.discreet", "counted/twin.counts", "--replicates", "100")
    assert shown.exit_code == 0, shown.stderr
    assert "share of yes" in shown.stdout
    assert "The check costs nothing more." in " ".join(shown.stdout.split())


WRONG = {
    "described formula": "described has no fit.discreet: give the folder of a discreet fit with --formula",
    "formula formula": "formula has no twin.counts: give the folder that discreet describe --all-pairs",
    "described/twin.counts described": "holds a noisy counts, not a regression by a formula",
    "formula absent": "cannot be read",
    "formula described --replicates 5": "--replicates",
    "formula described --level 2": "--level",
    "formula described --plot check.txt": "give it the ending .png or .pdf or .svg",
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_words_are_answered(folder, words: str) -> None:
    outcome = call("check", *words.split())
    assert outcome.exit_code == 2
    assert WRONG[words] in " ".join(outcome.stderr.split())


def test_counts_without_the_pairs_are_refused_with_what_to_count(folder) -> None:
    (folder / "more.toml").write_text(
        SCHEMA + '[columns.region]\nkind = "binary"\ncategories = ["north", "south"]\n'
    )
    plan = dp.marginals.description_plan(
        dp.tables.schema_from_toml(folder / "more.toml"),
        epsilon=1.0,
        delta=1e-5,
        slices=4,
        quantiles=(),
    )
    counts = np.full(sum(plan.cells), 30.0)
    sums = np.zeros(2 * sum(plan.sum_cells))
    dp.marginals.Marginals(plan, counts, plan.state(reproducible=False), sums).save(
        folder / "few.counts"
    )
    outcome = call("check", "formula", "few.counts")
    assert outcome.exit_code == 2
    assert "all" in outcome.stderr
    assert "pairs" in outcome.stderr
