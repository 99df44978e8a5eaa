"""Survey weights of the schema: `discreet fit` applies them, and what does not says so before anything is spent."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from discreet.interfaces.cli._app import app

RUN = CliRunner()
OWN = """\
import numpyro, numpyro.distributions as dist
def model(x, y, mask=None):
    a = numpyro.sample('a', dist.Normal(0, 1))
    with numpyro.plate('people', len(y)):
        numpyro.factor('y', dist.Bernoulli(logits=a).log_prob(y).reshape(len(y), -1).sum(axis=1))
"""
SCHEMA = """\
target = "{target}"
weight = "w"
person = "each row"
[columns.age]
kind = "real"
bounds = [20, 60]
[columns.w]
kind = "real"
bounds = [0, 4]
[columns.ill]
kind = "binary"
categories = ["no", "yes"]
[columns.pay]
kind = "real"
bounds = [0, 100]
"""


@pytest.fixture
def survey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A third of the population is ill, and was asked four times as often; their pay is lower by 20."""
    rng = np.random.default_rng(0)
    age = rng.uniform(20, 60, 24_000)
    ill = rng.random(24_000) < 1 / 3
    pay = np.clip(50 + 0.5 * (age - 40) - 20 * ill + 10 * rng.normal(size=24_000), 0, 100)
    asked = rng.random(24_000) < np.where(ill, 0.4, 0.1)
    cells = zip(age[asked], np.where(ill, 1, 4)[asked], ill[asked], pay[asked], strict=True)
    rows = [f"{a:.1f},{w},{'yes' if i else 'no'},{p:.1f}" for a, w, i, p in cells]
    (tmp_path / "survey.csv").write_text("\n".join(["age,w,ill,pay", *rows]) + "\n")
    for target in ("ill", "pay"):
        (tmp_path / f"{target}.toml").write_text(SCHEMA.format(target=target))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(words: str, *others: str, code: int = 0) -> Any:
    outcome = RUN.invoke(app, [*words.split(), *others])
    assert outcome.exit_code == code, outcome.output
    return outcome


def test_a_fit_is_of_the_population(survey: Path) -> None:
    """Without pay as a feature the odds of being ill are those of the population, 1/2, and not 2."""
    (survey / "odds.toml").write_text(SCHEMA.format(target="ill").partition("[columns.pay]")[0])
    words = "fit --data survey.csv --schema odds.toml --model logistic --epsilon 3 --out out"
    run(words)
    row = json.loads((survey / "out" / "summary.json").read_text())["posterior"]["intercept"]
    assert row["low"] < np.log(1 / 2) < row["high"]
    assert row["high"] < np.log(2) / 2
    text = " ".join((survey / "out" / "statement.txt").read_text(encoding="utf-8").split())
    assert "A row counts as often as its survey weight in “w” says" in text
    assert "w (real, the survey weight): 0 to 4" in text
    scored = run("score out --data survey.csv --epsilon 1 --delta 1e-6 --out scored")
    assert "are not applied" in " ".join(scored.stderr.split())
    assert "are not applied" in " ".join(
        (survey / "scored" / "statement.txt").read_text(encoding="utf-8").split()
    )
    (survey / "new.csv").write_text("age\n30\n50\n")
    run("predict out --data new.csv")
    assert len((survey / "predictions.csv").read_text().split()) == 3


def test_a_model_of_ones_own_is_of_the_population(survey: Path) -> None:
    """Of a twentieth of the rows the target is missing: they count as nothing, whatever their weight."""
    (survey / "mine.py").write_text(OWN)
    head, *rows = (survey / "survey.csv").read_text().splitlines()
    cut = [row.replace("yes", "").replace("no", "") for row in rows[::20]]
    rows[::20] = cut
    (survey / "survey.csv").write_text("\n".join([head, *rows]) + "\n")
    drops = SCHEMA.format(target="ill").replace('"yes"]\n', '"yes"]\nmissing = "drop"\n')
    (survey / "drops.toml").write_text(drops)
    run("fit --data survey.csv --schema drops.toml --model mine.py:model --epsilon 3 --out out")
    row = json.loads((survey / "out" / "summary.json").read_text())["posterior"]["a"]
    assert row["low"] < np.log(1 / 2) < row["high"]
    assert row["high"] < np.log(2) / 2
    text = " ".join((survey / "out" / "statement.txt").read_text(encoding="utf-8").split())
    assert "A row counts as often as its survey weight in “w” says" in text


@pytest.mark.parametrize("data", ["survey.csv", "records"])
def test_a_line_is_of_the_population(survey: Path, data: str) -> None:
    """Without the illness as a feature the mean pay is 43.3, and not 36.7."""
    (survey / "line.toml").write_text(
        SCHEMA.format(target="pay").replace(
            '[columns.ill]\nkind = "binary"\ncategories = ["no", "yes"]\n', ""
        )
    )
    if data == "records":
        run("convert survey.csv --schema line.toml --out records")
    words = f"fit --data {data} --model linear --epsilon 3 --out out"
    run(words, *(["--schema", "line.toml"] if data != "records" else []))
    row = json.loads((survey / "out" / "summary.json").read_text())["posterior"]["intercept"]
    low, high = (50 + 50 * row[name] for name in ("low", "high"))
    assert low < 43.33 < high
    assert low > 40


def test_beside_bounds_an_option_names_the_weight(survey: Path) -> None:
    bounds = "age=20:60,w=0:4,ill=no|yes"
    words = "fit --data survey.csv --weight w --target ill --model logistic --epsilon 1 --dry-run --json"
    found = run(words, "--bounds", bounds, "--person", "each row")
    assert json.loads(found.stdout)["features"] == ["age"]
    wrong = run(
        "fit --data survey.csv --schema ill.toml --weight w --model logistic --epsilon 1", code=2
    )
    assert "--weight is for --bounds" in " ".join(wrong.stderr.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model logistic --schema ill.toml --steps 10", "a fit in steps counts each record once"),
        (
            "--model mine.py:model --schema several.toml",
            "a model of your own takes one of each record",
        ),
    ],
)
def test_what_cannot_weigh_refuses_before_it_spends(survey: Path, words: str, message: str) -> None:
    (survey / "mine.py").write_text(OWN)
    several = SCHEMA.format(target="ill").replace('"each row"', '{column = "who", max_rows = 2}')
    (survey / "several.toml").write_text(several)
    rows = (survey / "survey.csv").read_text().splitlines()
    named = [f"{row},{place // 2}" for place, row in enumerate(rows[1:])]
    (survey / "survey.csv").write_text("\n".join([rows[0] + ",who", *named]) + "\n")
    wrong = run(f"fit --data survey.csv {words} --epsilon 1 --out out", code=2)
    assert message in " ".join(wrong.stderr.split())
    assert not (survey / "out").exists()


def test_a_description_says_that_it_does_not_weigh(survey: Path) -> None:
    found = run("describe survey.csv --schema ill.toml --epsilon 1 --delta 1e-6 --out said")
    assert "are not applied" in " ".join(found.stderr.split())
    assert "are not applied" in " ".join(
        (survey / "said" / "description.txt").read_text(encoding="utf-8").split()
    )
    text = " ".join((survey / "said" / "statement.txt").read_text(encoding="utf-8").split())
    assert text.count("The survey weights in “w” are not applied") == 1
