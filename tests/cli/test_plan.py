"""`discreet plan`: its options reach the dry run, and what it finds is printed, kept and drawn."""

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import discreet.tabular.planning
from discreet.interfaces.cli._app import app
from discreet.methods.newton import NewtonPlan
from discreet.tabular.marginals import description_plan, epsilon_for_widths, half_widths
from discreet.tabular.planning import DryRun, DryRunRow, _dry_run
from discreet.tabular.tables import schema_from_bounds

RUN = CliRunner()
BOUNDS = "age=0:100,smoker=no|yes"
GIVEN = {
    "model": "logistic",
    "target": "smoker",
    "bounds": BOUNDS,
    "num_records": "3000",
    "epsilon": "1",
}
PLAN = NewtonPlan.calibrate(
    epsilon=1.0, delta=1e-5, family="binary", num_features=1, num_records=3_000
)
FOUND = DryRun(
    "Made up",
    "AUC",
    PLAN,
    1.0,
    1e-5,
    3_000,
    (
        DryRunRow(0.1, 3.0, 0.5, 0.9, 0.6, 0.8, "not usable"),
        DryRunRow(1.0, 1.0, 1.0, 0.9, 0.79, 0.8, "for its coefficients"),
    ),
)


def arguments(*more: str, **changes: str | None) -> list[str]:
    pairs = [
        [f"--{name.replace('_', '-')}", x]
        for name, x in {**GIVEN, **changes}.items()
        if x is not None
    ]
    return ["plan", *(word for pair in pairs for word in pair), *more]


@pytest.fixture
def no_dry_run(monkeypatch: pytest.MonkeyPatch):
    """The dry run itself replaced. Returns the calls."""
    calls = []

    def dry_run(model, about, **options):
        calls.append((model, about, options))
        return FOUND

    monkeypatch.setattr(discreet.planning, "dry_run", dry_run)
    return calls


def test_the_options_reach_the_dry_run(no_dry_run) -> None:
    outcome = RUN.invoke(app, arguments(delta="1e-6", seed="3", share="0.02", kept="0.5"))
    assert outcome.exit_code == 0, outcome.stderr
    ((model, about, options),) = no_dry_run
    assert model == "logistic"
    assert about.target == "smoker"
    assert (options["num_records"], options["epsilon"], options["delta"], options["seed"]) == (
        3_000,
        1.0,
        1e-6,
        3,
    )
    assert (options["share"], options["kept"]) == (0.02, 0.5)
    assert "Use at ε = 1: For its coefficients. For prediction, ε = 1 is enough." in " ".join(
        outcome.stdout.split()
    )


def test_a_model_of_ones_own(no_dry_run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def model(x, y=None): ...\n\n\ndef guide(x, y=None): ...\n")
    assert RUN.invoke(app, arguments(model=f"{tmp_path}/mine.py:model")).exit_code == 0
    (own,) = no_dry_run
    assert (own[0].__name__, own[2]["guide"].__name__) == ("model", "guide")


def test_json_and_the_picture(no_dry_run, tmp_path: Path) -> None:
    file = tmp_path / "plan.png"
    outcome = RUN.invoke(app, arguments("--json", plot=str(file)))
    assert outcome.exit_code == 0, outcome.stderr
    content = json.loads(outcome.stdout)
    assert content["files"] == [str(file)]
    assert file.stat().st_size > 1_000
    assert content["verdict"] == "for its coefficients"
    assert [row["score"] for row in content["curve"]] == [0.6, 0.79]
    again = RUN.invoke(app, arguments(plot=str(file)))
    assert again.exit_code == 2
    assert "already exists" in " ".join(again.stderr.split())
    assert len(no_dry_run) == 1
    assert RUN.invoke(app, arguments("--overwrite", plot=str(file))).exit_code == 0


def test_a_dry_run_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dry_run, "FACTORS", (0.1, 1.0))
    outcome = RUN.invoke(app, arguments())
    assert outcome.exit_code == 0, outcome.stderr
    for part in (
        "3,000 records",
        "ε noise learned held AUC best use",
        "Use at ε = 1: For its coefficients.",
    ):
        assert part in " ".join(outcome.stdout.split())


def test_ctrl_c_gives_the_rows_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = dataclasses.replace(FOUND, rows=FOUND.rows[:1], complete=False)
    monkeypatch.setattr(discreet.planning, "dry_run", lambda *_, **__: stopped)
    outcome = RUN.invoke(app, arguments())
    assert outcome.exit_code == 130
    assert "Nothing was spent" in " ".join(outcome.stderr.split())
    assert "Stopped early" in outcome.stdout


def test_there_is_no_option_for_data(no_dry_run, tmp_path: Path) -> None:
    (tmp_path / "survey.csv").write_text("age,smoker\n1,no\n")
    outcome = RUN.invoke(app, arguments(data=str(tmp_path / "survey.csv")))
    assert outcome.exit_code == 2
    assert "No such option" in outcome.stderr
    assert not no_dry_run


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"bounds": None}, "not described"),
        ({"target": None}, "name it with --target"),
        ({"model": "forest"}, "'forest' is not known"),
        ({"model": "linear"}, "needs a real target"),
        ({"model": "twin"}, "there is no dry run of a twin"),
        ({"plot": "/nowhere/plan.png"}, "/nowhere does not exist"),
        ({"plot": "/tmp"}, "is a folder"),
        ({"schema": "absent.toml"}, "give only one"),
        ({"schema": "absent.toml", "bounds": None}, "absent.toml cannot be read"),
    ],
)
def test_wrong_input_is_one_paragraph_and_exit_code_2(no_dry_run, changes: dict, said: str) -> None:
    outcome = RUN.invoke(app, arguments(**changes))
    assert outcome.exit_code == 2, outcome.output
    assert said in " ".join(outcome.stderr.split())
    assert not no_dry_run


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_records": "3"}, "num_records is 3"),
        ({"epsilon": "-1"}, "epsilon is -1.0"),
        ({"delta": "2"}, "delta is 2.0"),
    ],
)
def test_wrong_numbers_are_refused_by_the_dry_run_itself(changes: dict, said: str) -> None:
    outcome = RUN.invoke(app, arguments(**changes))
    assert outcome.exit_code == 2, outcome.output
    assert said in " ".join(outcome.stderr.split())


WIDTH = ["plan", "--width", "age=0.5", "--bounds", BOUNDS, "--num-records", "3000"]


def test_the_epsilon_for_a_width_is_that_of_the_library(no_dry_run) -> None:
    schema = schema_from_bounds(BOUNDS)
    epsilon = epsilon_for_widths(schema, {"age": 0.5}, num_records=3_000, delta=1e-5)
    said = " ".join(RUN.invoke(app, WIDTH).stdout.split())
    assert (
        f"ε = {epsilon:g} at δ = 1e-05 is enough for discreet describe (--epsilon {epsilon:g} --delta 1e-05)."
        in said
    )
    found = half_widths(description_plan(schema, epsilon=epsilon, delta=1e-5), 3_000)
    share = f"shares of smoker ± {100 * found['smoker']:.2g} %"
    assert (
        f"For a table of 3,000 records, intervals of 90 % will be at most: mean of age ± 0.499, {share}."
        in said
    )
    more = [
        "--width",
        "smoker=0.01",
        "--mean",
        "age=40",
        "--pair",
        "age,smoker",
        "--level",
        "0.95",
        "--json",
    ]
    content = json.loads(RUN.invoke(app, [*WIDTH, *more]).stdout)
    wanted = {"age": 0.5, "smoker": 0.01}
    how = {
        "num_records": 3_000,
        "delta": 1e-5,
        "level": 0.95,
        "means": {"age": 40},
        "pairs": [("age", "smoker")],
    }
    assert content["epsilon"] == epsilon_for_widths(schema, wanted, **how)
    assert all(content["half_widths"][name] <= wanted[name] for name in wanted)
    by = RUN.invoke(app, [*WIDTH, "--by", "smoker"])
    assert "For each group of 3,000 records" in " ".join(by.stdout.split())
    # The table has more records than a group: no δ follows from those of one.
    assert "--delta 1e-06" in " ".join(by.stdout.split())
    assert "no number of records was given" in " ".join(by.stderr.split())
    replaced = RUN.invoke(app, [*WIDTH, "--relation", "replace-one"])
    how = {"num_records": 3_000, "delta": 1e-5, "relation": discreet.Relation.REPLACE_ONE}
    more = epsilon_for_widths(schema, {"age": 0.5}, **how)
    assert more > 1.3 * epsilon
    said = f"(--epsilon {more:g} --delta 1e-05 --relation replace-one)"
    assert said in " ".join(replaced.stdout.split())
    assert not no_dry_run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*WIDTH, "--epsilon", "1", "--model", "twin"], "leave --model, --epsilon out"),
        ([*WIDTH, "--width", "age"], "--width is 'age': give a column and a number"),
        ([*WIDTH, "--width", "smoker=x"], "--width is 'smoker=x'"),
        ([*WIDTH, "--width", "height=1"], "widths names height"),
        ([*WIDTH, "--by", "smoker,height"], "--by is 'smoker,height': give two columns"),
        (arguments("--mean", "age=3"), "--mean: for a description, give --width, too"),
        (arguments("--relation", "replace-one"), "--relation: for a description, give --width"),
        (arguments(model=None), "give --model and --epsilon for a fit, or --width"),
        (arguments(epsilon=None), "give --model and --epsilon for a fit, or --width"),
    ],
)
def test_widths_and_dry_runs_are_told_apart(no_dry_run, words: list[str], said: str) -> None:
    outcome = RUN.invoke(app, words)
    assert outcome.exit_code == 2, outcome.output
    assert said in " ".join(outcome.stderr.split())
    assert not no_dry_run


def test_fit_needs_an_epsilon_from_somewhere(tmp_path: Path) -> None:
    words = [
        "fit",
        "--data",
        "x.csv",
        "--model",
        "logistic",
        "--target",
        "smoker",
        "--bounds",
        BOUNDS,
    ]
    outcome = RUN.invoke(app, words)
    assert outcome.exit_code == 2
    assert "--epsilon is missing" in outcome.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("fit", ("--data", "--model", "--epsilon", "--schema or --bounds")),
        ("fit --epsilon 1 --schema s.toml", ("--data", "--model")),
        ("fit --data x.csv --model logistic", ("--epsilon", "--target", "--bounds or --schema")),
        ("fit --data x.csv --model poisson --epsilon 1", ("--target", "--bounds or --schema")),
    ],
)
def test_all_that_is_missing_is_named_at_once(words: str, named: tuple[str, ...]) -> None:
    outcome = RUN.invoke(app, words.split())
    assert outcome.exit_code == 2
    for option in named:
        assert option in outcome.output, option
    if "--epsilon 1" in words:
        assert "--epsilon" not in outcome.output
