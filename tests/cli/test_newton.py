"""`discreet fit` of a logistic or a count regression: by private Newton, with intervals, without settings."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._report import NO_INTERVAL, summarise
from discreet.interfaces.cli._sums import BySums
from discreet.methods.newton import NewtonPlan

RUN = CliRunner()
SCHEMA = """\
target = "{target}"
person = "{person}"
[columns.age]
kind = "real"
bounds = [17, 90]
[columns.smoker]
kind = "binary"
categories = ["no", "yes"]
[columns.visits]
kind = "count"
bounds = [0, 10]
"""


@pytest.fixture
def survey(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """4,000 people: the odds of smoking fall with age, visits rise with it."""
    rng = np.random.default_rng(0)
    age = rng.uniform(17, 90, 4_000)
    smoker = rng.random(4_000) < 1 / (1 + np.exp((age - 45) / 20))
    visits = np.minimum(rng.poisson(np.exp((age - 50) / 40)), 10)
    rows = [
        f"{a:.1f},{'yes' if s else 'no'},{v}" for a, s, v in zip(age, smoker, visits, strict=True)
    ]
    (tmp_path / "survey.csv").write_text("age,smoker,visits\n" + "\n".join(rows) + "\n")
    for target in ("smoker", "visits"):
        (tmp_path / f"{target}.toml").write_text(SCHEMA.format(target=target, person="each row"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fit(words: str, *, code: int = 0) -> Any:
    outcome = RUN.invoke(app, f"fit {words}".split())
    assert outcome.exit_code == code, outcome.output
    return outcome


@pytest.mark.parametrize(
    ("model", "target", "slope"), [("logistic", "smoker", -73 / 40), ("poisson", "visits", 73 / 80)]
)
def test_a_fit_has_intervals_and_is_scored(
    survey: Path, model: str, target: str, slope: float
) -> None:
    words = f"--data survey.csv --schema {target}.toml --model {model} --epsilon 2 --out out"
    outcome = fit(words)
    said = " ".join(outcome.stdout.split())
    assert "Use: For" in said
    assert re.search(r"age: -?[\d.]+ \(-?[\d.]+ to -?[\d.]+\)", said)
    statement = json.loads((survey / "out" / "statement.json").read_text())
    assert statement["method"] == "private Newton"
    assert statement["is_private"] is True
    row = json.loads((survey / "out" / "summary.json").read_text())["posterior"]["age"]
    # Within four standard deviations, which are a small part of the prior's.
    assert abs(row["mean"] - slope) < 4 * row["sd"]
    assert row["sd"] < 0.3
    page = (survey / "out" / "report.html").read_text(encoding="utf-8")
    assert "private Newton" in page
    # One verdict, the same everywhere.
    use = statement["use"]
    assert f"Use: {use[0].upper()}{use[1:]}: " in said
    assert (
        f"{use}: "
        in " ".join((survey / "out" / "statement.txt").read_text(encoding="utf-8").split()).lower()
    )
    assert f"Use:</span> {use}<" in page.partition('id="machine"')[0]
    if model == "logistic":
        scored = "score out --data survey.csv --epsilon 1 --delta 1e-6 --out scored --json"
        found = RUN.invoke(app, scored.split())
        assert found.exit_code == 0, found.output
        assert json.loads(found.stdout)["accuracy"]["value"] > 0.6


def test_converted_records_are_fitted(survey: Path) -> None:
    assert (
        RUN.invoke(
            app, ["convert", "survey.csv", "--schema", "smoker.toml", "--out", "records"]
        ).exit_code
        == 0
    )
    fit("--data records --model logistic --epsilon 2 --out out")
    assert json.loads((survey / "out" / "statement.json").read_text())["method"] == "private Newton"


def test_persons_with_several_rows_are_fitted_and_their_missing_rows_left_out(survey: Path) -> None:
    header, *rows = (survey / "survey.csv").read_text().splitlines()
    numbered = [f"p{place // 3},{row}" for place, row in enumerate(rows)]
    numbered[::9] = [f"p{place // 3},,yes,1" for place in range(0, len(rows), 9)]
    (survey / "persons.csv").write_text("\n".join([f"id,{header}", *numbered]))
    schema = SCHEMA.replace(
        'person = "{person}"', 'person = {{column = "id", max_rows = 3}}'
    ).format(target="smoker")
    (survey / "persons.toml").write_text(
        schema.replace("bounds = [17", 'missing = "drop"\nbounds = [17')
    )
    fit("--data persons.csv --schema persons.toml --model logistic --epsilon 4 --out out")
    statement = json.loads((survey / "out" / "statement.json").read_text())
    assert statement["method"] == "private Newton"
    assert "one person with up to 3 rows" in statement["unit"]
    row = json.loads((survey / "out" / "summary.json").read_text())["posterior"]["age"]
    assert abs(row["mean"] + 73 / 40) < 4 * row["sd"]
    assert row["sd"] < 0.5


@pytest.mark.parametrize(("model", "target"), [("logistic", "smoker"), ("linear", "age")])
def test_where_targets_are_missing_intervals_hold_the_fit_of_the_others(
    survey: Path, model: str, target: str
) -> None:
    """Such a table was fitted in steps, without intervals."""
    header, *rows = (survey / "survey.csv").read_text().splitlines()
    cells = [row.split(",") for row in rows]
    known = [place % 3 > 0 or float(age) < 40 for place, (age, _, _) in enumerate(cells)]
    x = np.array([[1, 2 * (float(a) - 53.5) / 73, s == "yes", int(v) / 5 - 1] for a, s, v in cells])
    y = x[:, 2 if target == "smoker" else 1]
    x = np.delete(x, 2 if target == "smoker" else 1, axis=1)[known]
    exact = np.zeros(3)
    for _ in range(9):
        mean = 1 / (1 + np.exp(-x @ exact)) if target == "smoker" else x @ exact
        curvature = x * (mean * (1 - mean) if target == "smoker" else np.ones(len(x)))[:, None]
        exact += np.linalg.solve(curvature.T @ x, x.T @ (y[known] - mean))
    for row, told in zip(cells, known, strict=True):
        row[header.split(",").index(target)] *= told
    (survey / "gaps.csv").write_text("\n".join([header, *map(",".join, cells)]))
    schema = SCHEMA.format(target=target, person="each row")
    (survey / "gaps.toml").write_text(
        re.sub(rf"(columns.{target}]\n)", r'\1missing = "drop"\n', schema)
    )
    said = fit(f"--data gaps.csv --schema gaps.toml --model {model} --epsilon 2 --out out").stdout
    assert f"Records with a missing cell in “{target}” are left out" in " ".join(said.split())
    assert "weights[" not in said
    summary = json.loads((survey / "out" / "summary.json").read_text())
    found = [
        row for name, row in summary["posterior"].items() if name not in ("intercept", "sigma")
    ]
    for row, value in zip(found, exact[1:], strict=True):
        assert row["low"] < value < row["high"]
        assert row["high"] - row["low"] < 1.5


def test_the_concentration_of_overdispersed_counts_is_in_the_files(survey: Path) -> None:
    """It was estimated and used, and written nowhere."""
    words = "--data survey.csv --schema visits.toml --model negative-binomial --epsilon 2 --out out"
    said = " ".join(fit(words).stdout.split())
    summary = json.loads((survey / "out" / "summary.json").read_text())
    row = summary["posterior"]["concentration"]
    # Visits are Poisson's: a factor of 1.4 is the grid's step.
    assert row["mean"] > 5
    assert [row[part] for part in ("sd", "low", "high")] == [None] * 3
    assert "m + m² / concentration" in summary["note"]
    assert f"Concentration: {row['mean']:.2g}. A count of mean m" in said
    assert re.search(r"and [1-5]\d \(90 %, by a noisy histogram\)", said)
    assert "concentration" in (survey / "out" / "report.html").read_text(encoding="utf-8")
    with np.load(survey / "out" / "posterior.npz") as drawn:
        assert "concentration" not in drawn


def test_coefficients_that_stand_out_are_shown_if_not_all_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The largest were shown: on doctor visits of 4,406 people -1.4 (-4.1 to 1.7)."""
    method: Any = object.__new__(BySums)
    vars(method).update(
        own=None, samples={"intercept": 0, "weights": 0}, asked=SimpleNamespace(model="poisson")
    )
    method.chosen = SimpleNamespace(name="poisson")
    figures = {
        "intercept": (9, 0.1),
        "a": (-0.2, 0.1),
        "b": (9.0, 9.0),
        "c": (0.5, 0.1),
        "d": (0.3, 0.1),
    }
    rows = [(x, {"mean": m, "sd": s, "low": m - s, "high": m + s}) for x, (m, s) in figures.items()]
    for count, head, shown in (
        (5, "The 3 of 4 coefficients that stand out", "acd"),
        (4, "Coefficients (", "abc"),
    ):
        method.rows = rows[:count]
        method.say_coefficients()
        first, *lines = (
            capsys.readouterr()
            .out.replace("\neach", " each")
            .replace("\nwith", " with")
            .splitlines()
        )
        assert first.startswith(head)
        assert [line[2] for line in lines if line.startswith("  ")] == [*shown]


def test_the_verdict_says_that_no_sign_is_known_and_what_the_prior_decides(tmp_path: Path) -> None:
    """A fit "for its coefficients" had a green tick where all intervals held 0."""
    plan = NewtonPlan.calibrate(
        epsilon=1.0, delta=1e-6, family="counts", num_features=2, num_records=5_000
    )
    statement = plan.state(reproducible=False).with_use("for its coefficients", "the noise is in")
    for low, learned, use in ((-0.5, 0.9, 0), (-0.5, 0.1, 1), (0.2, 0.9, 2)):
        method: Any = object.__new__(BySums)
        rows = [
            ("intercept", {"low": 1, "high": 2}),
            ("age", {"low": low, "high": 0.5}),
            ("pay", {"low": -1, "high": 1}),
        ]
        vars(method).update(
            own=None, samples={"intercept": 0, "weights": 0}, rows=rows, statement=statement
        )
        method.asked = SimpleNamespace(model="poisson", out=tmp_path, checkpoint=None)
        method.chosen = SimpleNamespace(name="poisson", needs_target=True)
        method.records = SimpleNamespace(feature_names=("age", "pay"))
        method.result = SimpleNamespace(learned=np.array([0.0, learned, 0.8]))
        method.say_unknown()
        no_sign = "all 90 % intervals of coefficients contain 0, so no sign is known"
        reason = (
            f"{no_sign}. The noise is in",
            f"{no_sign}. The prior decides the weight of age. The noise is in",
            "the noise is in",
        )[use]
        assert method.statement.use_reason == reason
        assert method.learned() == {"age": learned, "pay": 0.8}
    assert "The prior decides the weight of age" in (tmp_path / "statement.txt").read_text(
        encoding="utf-8"
    ).replace("\n", " ")


def test_a_latent_of_ones_own_named_sigma_has_an_interval() -> None:
    records: Any = SimpleNamespace(feature_names=())
    drawn = {"sigma": np.arange(101.0)}
    assert dict(summarise(drawn, records, np.ones(1)))["sigma"]["low"] == 5
    assert np.isnan(dict(summarise(drawn, records, np.ones(1), (), NO_INTERVAL))["sigma"]["low"])


def test_classes_are_fitted_and_scored(survey: Path) -> None:
    rng = np.random.default_rng(0)
    age = rng.uniform(17, 90, 6_000)
    chances = np.exp(np.column_stack([0 * age, (age - 50) / 20, (50 - age) / 40]))
    chosen = (
        np.cumsum(chances, axis=1) < rng.random(6_000)[:, None] * chances.sum(axis=1)[:, None]
    ).sum(axis=1)
    rows = [f"{a:.1f},{'abc'[c]}" for a, c in zip(age, chosen, strict=True)]
    (survey / "classes.csv").write_text("age,group\n" + "\n".join(rows) + "\n")
    words = "--data classes.csv --bounds age=17:90,group=a|b|c --target group --model multinomial --epsilon 2 --out out"
    found = RUN.invoke(app, ["fit", *words.split(), "--person", "each row"])
    assert found.exit_code == 0, found.output
    summary = json.loads((survey / "out" / "summary.json").read_text())
    assert json.loads((survey / "out" / "statement.json").read_text())["method"] == "private Newton"
    assert np.shape(summary["to_predict"]) == (2, 3)
    # The features are scaled to [-1, 1], and the weights sum to zero.
    exact = np.array([0, 1 / 20, -1 / 40]) * 73 / 2
    for label, weight in zip("abc", exact - exact.mean(), strict=True):
        row = summary["posterior"][f"age[{label}]"]
        assert abs(row["mean"] - weight) < 4 * row["sd"] < 0.8
        assert abs(row["to_predict"] - weight) < 0.4
    words = "score out --data classes.csv --epsilon 1 --delta 1e-6 --out scored --json"
    scored = RUN.invoke(app, words.split())
    assert scored.exit_code == 0, scored.output
    assert json.loads(scored.stdout)["accuracy"]["value"] > 0.5


def test_weights_of_categories_are_relative_to_their_mean_over_the_records(survey: Path) -> None:
    """Relative to the plain mean, one region of 20 people made the intervals of all of them wide."""
    regions = np.random.default_rng(0).choice(
        ["north", "south", "east"], 4_000, p=[0.6, 0.395, 0.005]
    )
    header, *rows = (survey / "survey.csv").read_text().splitlines()
    lines = [
        f"{header},region",
        *(f"{row},{region}" for row, region in zip(rows, regions, strict=True)),
    ]
    (survey / "regions.csv").write_text("\n".join(lines) + "\n")
    words = "--data regions.csv --bounds age=17:90,region=north|south|east,smoker=no|yes --target smoker"
    outcome = RUN.invoke(
        app,
        ["fit", *f"{words} --model logistic --epsilon 2 --out out".split(), "--person", "each row"],
    )
    assert outcome.exit_code == 0, outcome.output
    summary = json.loads((survey / "out" / "summary.json").read_text())
    shares = summary["category_shares"]
    assert shares == pytest.approx(
        {"region=north": 0.6, "region=south": 0.395, "region=east": 0.005}, abs=0.06
    )
    assert sum(shares.values()) == pytest.approx(1)
    assert sum(
        share * summary["posterior"][name]["mean"] for name, share in shares.items()
    ) == pytest.approx(0, abs=1e-9)
    places = [summary["feature_names"].index(name) for name in shares]
    with np.load(survey / "out" / "posterior.npz") as file:
        drawn = file["weights"][:, places]
    assert abs(drawn.mean(axis=0) @ [*shares.values()]) > 1e-3
    plain = np.median((drawn - drawn.mean(axis=1, keepdims=True)).std(axis=0))
    assert np.median([summary["posterior"][name]["sd"] for name in shares]) < 0.5 * plain
    assert "relative to their mean over the records, by approximate shares" in summary["note"]


def test_a_dry_run_says_what_is_measured(survey: Path) -> None:
    outcome = fit("--data survey.csv --schema smoker.toml --model logistic --epsilon 1 --dry-run")
    assert "19 noisy sums, to which a record adds at most 1" in " ".join(outcome.stdout.split())


def test_what_it_cannot_fit_is_refused_before_anything_is_spent(survey: Path) -> None:
    ledger = "open book.ledger --dataset survey --epsilon 3 --delta 1e-5"
    assert RUN.invoke(app, ["ledger", *ledger.split()]).exit_code == 0
    few = fit(
        "--data survey.csv --schema smoker.toml --model logistic --epsilon 0.01 --ledger book.ledger",
        code=2,
    ).stderr
    assert "Likely not usable: the model has 3 parameters" in " ".join(few.split())
    assert len((survey / "book.ledger").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "found", "ways"),
    [
        ("--delta 0.01", "δ = 0.01 is more than 1 / 4,000", "give --delta 1e-05"),
        (
            "--delta 1e-4 --ledger book.ledger",
            "would charge ε = 1.578 for this fit of ε = 0.9998",
            "give --delta 1e-06",
        ),
    ],
)
def test_a_large_delta_is_refused_before_anything_is_spent(
    survey: Path, words: str, found: str, ways: str
) -> None:
    """It was told afterwards."""
    ledger = "open book.ledger --dataset survey --epsilon 2 --delta 1e-5"
    assert RUN.invoke(app, ["ledger", *ledger.split()]).exit_code == 0
    said = " ".join(
        fit(
            f"--data survey.csv --schema smoker.toml --model logistic --epsilon 1 {words}", code=2
        ).stderr.split()
    )
    assert found in said
    assert ways in said
    assert len((survey / "book.ledger").read_text().splitlines()) == 1


OWN = """
import numpyro, numpyro.distributions as dist

def model(x, y):
    start = numpyro.sample("start", dist.Normal(0, 3))
    weights = numpyro.sample("weights", dist.Normal(0, 3).expand([x.shape[-1]]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Poisson(numpyro.deterministic("mean", jnp.exp(start + x @ weights))), obs=y)
"""


def test_a_model_of_ones_own_has_intervals(survey: Path) -> None:
    (survey / "mine.py").write_text("import jax.numpy as jnp" + OWN)
    words = "--data survey.csv --schema visits.toml --model mine.py:model --epsilon 5"
    assert "noisy sums, to which a record adds" in fit(f"{words} --dry-run").stdout
    assert not (survey / "out").exists()
    said = " ".join(fit(f"{words} --out out").stdout.split())
    assert "Use: For its coefficients" in said
    row = json.loads((survey / "out" / "summary.json").read_text())["posterior"]["age"]
    assert row["low"] < 73 / 80 + 0.15
    assert row["high"] > 73 / 80 - 0.15
    with np.load(survey / "out" / "posterior.npz") as drawn:
        assert {"start", "weights"} <= set(drawn)
    (survey / "mine.py").write_text(
        "import jax.numpy as jnp"
        + OWN
        + "\n\ndef guide(x, y):\n    numpyro.sample('start', dist.Normal(0, 1))\n"
    )
    assert "1,000 steps" in fit(f"{words} --dry-run").stdout
    assert "takes no guide" in " ".join(
        fit(f"{words} --by newton --out other", code=2).output.split()
    )
    assert "takes no steps" in " ".join(
        fit(f"{words} --by newton --steps 10 --out other", code=2).output.split()
    )
    (survey / "mine.py").write_text(
        "import jax.numpy as jnp" + OWN.replace("start + x", "start + numpyro.param('w', 0.0) + x")
    )
    refused = fit(f"{words} --dry-run")
    assert "1,000 steps" in refused.stdout
    assert "Fitted in steps: The model has a param site" in " ".join(refused.stderr.split())
