import json
import tomllib
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import discreet.planning
from discreet.cli import _plan
from discreet.cli._app import app
from discreet.cli._methods import InSteps
from discreet.plan import PrivacyPlan
from discreet.planning import DryRun, Row, Setting, TableScores, _newton
from discreet.planning._dry_run import CurvePoint
from discreet.report import PREDICTION, make_statement
from discreet.sampling import PoissonSampling

RUN = CliRunner()
BOUNDS = "age=0:100,smoker=no|yes"
GIVEN = {
    "model": "logistic",
    "target": "smoker",
    "bounds": BOUNDS,
    "num_records": "3000",
    "epsilon": "1",
    "steps": "300",
}
NO_STEPS = {"steps": None}


def arguments(*more: str, **changes: str | None) -> list[str]:
    pairs = [[f"--{name.replace('_', '-')}", x] for name, x in {**GIVEN, **changes}.items() if x is not None]
    return ["plan", *(word for pair in pairs for word in pair), *more]


def found(*, complete: bool = True) -> DryRun:
    scores = ({"log density": -0.5, "AUC": 0.8}, {"log density": -0.4, "AUC": 0.9}, {"log density": -0.7, "AUC": 0.5})
    row = Row(Setting(300, 0.2, 0.7, 0.05), 2.0, 3.0, (TableScores(0.5, *scores, width=2.0),))
    plan = PrivacyPlan(
        sampling=PoissonSampling(rate=0.2),
        clipping_norm=0.7,
        noise_multiplier=2.0,
        num_steps=300,
        num_records=3_000,
        target_delta=1e-5,
    )
    curve = tuple(CurvePoint(x, row.tables) for x in (0.1, 1.0, 10.0)) if complete else ()
    return DryRun(plan, 0.05, 1.0, row, (row,) * 12, curve, PREDICTION, "A price.", complete)


@pytest.fixture
def no_dry_run(monkeypatch: pytest.MonkeyPatch):
    """The dry run itself replaced. Returns the calls."""
    calls = []

    def dry_run(model, about, **options):
        calls.append((model, about, options))
        return found()

    monkeypatch.setattr(discreet.planning, "dry_run", dry_run)
    return calls


def test_the_options_reach_the_dry_run(no_dry_run) -> None:
    more = {"steps": "100,200", "rates": "0.1", "clips": "0.5,1", "learning_rates": "0.02", "delta": "1e-6"}
    outcome = RUN.invoke(app, arguments(**more))
    assert outcome.exit_code == 0, outcome.stderr
    ((model, about, options),) = no_dry_run
    assert model.__name__ == "logistic_regression"
    assert about.target == "smoker"
    assert (options["num_records"], options["epsilon"], options["delta"]) == (3_000, 1.0, 1e-6)
    grid = options["grid"]
    assert (grid.steps, grid.rates, grid.clipping_norms, grid.learning_rates) == (
        (100, 200),
        (0.1,),
        (0.5, 1.0),
        (0.02,),
    )
    for part in ("300 steps at rate 0.2", "AUC: 0.800 / 0.900", "Use: For prediction: A price.", "and 2 more"):
        assert part in outcome.stdout


def test_a_twin_and_a_model_of_ones_own(no_dry_run, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def model(x, y=None): ...\n")
    assert RUN.invoke(app, arguments(model=f"{tmp_path}/mine.py:model")).exit_code == 0
    assert RUN.invoke(app, arguments(model="twin", target=None, components="3")).exit_code == 0
    own, twin = no_dry_run
    assert own[0].__name__ == "model"
    assert twin[0].schema.columns == own[1].columns
    assert twin[0].components == 3
    assert twin[1] is None


def test_json_and_files(no_dry_run, tmp_path: Path) -> None:
    out = tmp_path / "plan.toml"
    outcome = RUN.invoke(app, arguments("--json", out=str(out)))
    assert outcome.exit_code == 0, outcome.stderr
    content = json.loads(outcome.stdout)
    assert content["files"] == [str(out), str(tmp_path / "plan.png")]
    assert (tmp_path / "plan.png").stat().st_size > 1_000
    assert content["verdict"] == "for prediction"
    written = tomllib.loads(out.read_text())
    assert {name: written[name] for name in _plan.OPTIONS} == {
        "epsilon": 1.0,
        "delta": 1e-5,
        "steps": 300,
        "rate": 0.2,
        "clip": 0.7,
        "learning_rate": 0.05,
    }
    assert written["rehearsed"]["private"]["AUC"] == 0.8
    again = RUN.invoke(app, arguments(out=str(out)))
    assert again.exit_code == 2
    assert "already exists" in " ".join(again.stderr.split())
    assert len(no_dry_run) == 1
    assert RUN.invoke(app, arguments("--overwrite", out=str(out))).exit_code == 0


def test_a_line_has_no_settings_but_what_its_noise_leaves(no_dry_run, tmp_path: Path) -> None:
    given = NO_STEPS | {"model": "linear", "target": "height", "bounds": "age=0:100,smoker=no|yes,height=0:200"}
    outcome = RUN.invoke(app, arguments(**given))
    assert outcome.exit_code == 0, outcome.stderr
    assert "has no settings: 3 releases, to which each of 3,000 records adds at most 1" in " ".join(
        outcome.stdout.split()
    )
    much, little = (
        json.loads(RUN.invoke(app, arguments("--json", **given, epsilon=epsilon)).stdout) for epsilon in ("3", "0.01")
    )
    assert much["without_noise"] == pytest.approx([0.9, 0.5, 0.1], abs=0.05)
    assert much["with_noise"] == pytest.approx(much["without_noise"], abs=0.03)
    assert max(much["widths"]) < 0.2
    assert max(little["with_noise"]) < 0.3
    assert min(little["with_noise"]) > -0.2
    assert min(little["widths"]) > 1.5
    refused = RUN.invoke(app, arguments(**given, out=str(tmp_path / "plan.toml")))
    assert refused.exit_code == 2
    assert "there is no plan to write" in " ".join(refused.stderr.split())
    assert not no_dry_run
    assert RUN.invoke(app, arguments(**{**given, "steps": "100"})).exit_code == 0
    assert len(no_dry_run) == 1


def test_a_regression_is_fitted_as_fit_would(no_dry_run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_newton, "FACTORS", (0.1, 1.0))
    outcome = RUN.invoke(app, arguments(**NO_STEPS))
    assert outcome.exit_code == 0, outcome.stderr
    for part in (
        "3,000 records, 1 features",
        "ε noise learned held AUC best use",
        "Use at ε = 1: For its coefficients.",
    ):
        assert part in " ".join(outcome.stdout.split())
    content = json.loads(RUN.invoke(app, arguments("--json", **NO_STEPS)).stdout)
    assert content["verdict"] == "for its coefficients"
    little, much = content["curve"]
    assert (little["epsilon"], much["epsilon"]) == (0.1, 1.0)
    assert little["ratio"] > 3 * much["ratio"]
    assert content["least_epsilon"]["for its coefficients"] == 1.0
    refused = RUN.invoke(app, arguments(**NO_STEPS, out=str(tmp_path / "plan.toml")))
    assert refused.exit_code == 2
    assert "there is no plan to write" in " ".join(refused.stderr.split())
    assert not no_dry_run


def test_ctrl_c_gives_the_best_so_far(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(discreet.planning, "dry_run", lambda *_, **__: found(complete=False))
    outcome = RUN.invoke(app, arguments(out=str(tmp_path / "plan.toml")))
    assert outcome.exit_code == 130
    assert "best setting so far" in " ".join(outcome.stderr.split())
    assert "Stopped early" in outcome.stdout
    assert (tmp_path / "plan.toml").exists()
    assert not (tmp_path / "plan.png").exists()


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
        ({"model": "multinomial"}, "no dry run of the model multinomial yet"),
        ({"components": "3"}, "--components is for --model twin"),
        ({"steps": "many"}, "--steps is 'many'"),
        ({"steps": "0"}, "a value of steps is 0"),
        ({"rates": "2"}, "a value of rates is 2.0"),
        ({"clips": ""}, "--clips is ''"),
        ({"learning_rates": "-1"}, "a value of learning_rates is -1.0"),
        ({"out": "/nowhere/plan.toml"}, "/nowhere does not exist"),
        ({"out": "/tmp"}, "is a folder"),
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
    for steps in ({}, NO_STEPS):
        outcome = RUN.invoke(app, arguments(**changes, **steps))
        assert outcome.exit_code == 2, outcome.output
        assert said in " ".join(outcome.stderr.split())


# --- what fit makes of a plan ---------------------------------------------------------------


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """`discreet fit --plan`, the fit itself replaced: a function from more options to the outcome and the plans."""
    plans = []

    def release(method):
        plan = method.plan
        plans.append((plan, method.learning_rate))
        statement = make_statement(plan, steps_completed=plan.num_steps, reproducible=False)
        result = type("Result", (), {"statement": statement, "plan": plan, "losses": np.zeros(3)})()
        result.steps_completed = plan.num_steps
        result.posterior = lambda key, number: {"weights": np.zeros((4, method.records.x.shape[1]))}
        return result, None

    monkeypatch.setattr(InSteps, "release", release)
    rows = "\n".join(f"{i % 100},{'yes' if i % 3 else 'no'}" for i in range(600))
    (tmp_path / "survey.csv").write_text(f"age,smoker\n{rows}\n")
    described = ("--target", "smoker", "--bounds", BOUNDS)
    file = tmp_path / "plan.toml"
    file.write_text(_plan.plan_text(found(), "logistic"))

    def invoke(*more: str, model: str = "logistic", described: tuple[str, ...] = described):
        words = ["fit", "--data", str(tmp_path / "survey.csv"), "--model", model, *described]
        return RUN.invoke(app, [*words, "--plan", str(file), "--out", str(tmp_path / "out"), *more]), plans

    invoke.file = file  # pyright: ignore[reportFunctionMemberAccess]
    return invoke


def test_fit_takes_everything_from_the_plan(fit) -> None:
    outcome, plans = fit()
    assert outcome.exit_code == 0, outcome.output
    ((plan, learning_rate),) = plans
    assert (plan.num_steps, plan.rate, plan.clipping_norm, plan.target_delta) == (300, 0.2, 0.7, 1e-5)
    assert 0.999 <= plan.epsilon(1e-5) <= 1.0
    assert learning_rate == 0.05
    # Its own number of records, not the one that was rehearsed.
    assert plan.num_records == 600
    assert "made for 3,000 records, and there are 600" in " ".join(outcome.stderr.split())


def test_options_beside_a_plan_go_first_and_it_is_said(fit) -> None:
    outcome, plans = fit(
        "--steps", "50", "--epsilon", "2", "--batch-size", "60", "--num-records", "3000", "--clip", "adaptive"
    )
    assert outcome.exit_code == 0, outcome.output
    ((plan, learning_rate),) = plans
    assert (plan.num_steps, plan.rate, plan.num_records) == (50, 0.02, 3_000)
    assert plan.clipping.adapts
    assert 1.99 <= plan.epsilon(1e-5) <= 2.0
    assert learning_rate == 0.05
    said = " ".join(outcome.stderr.split())
    assert "clip, epsilon, rate, steps are overridden by options" in said
    assert "there are" not in said


@pytest.fixture
def no_fit(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Fits end where they would begin. Returns the plans and models of whole tables."""
    begun = []

    def release(method):
        begun.append((method.plan, method.whole))
        raise typer.Exit

    monkeypatch.setattr(InSteps, "release", release)
    return begun


PUBLIC = """
[columns.age]
kind = "count"
bounds = [0, 100]
[columns.smoker]
kind = "binary"
categories = ["no", "yes"]
"""


def test_a_plan_says_what_the_model_and_its_columns_are(fit, no_dry_run, no_fit) -> None:
    """From `plan` to `fit`, with no option said twice."""
    schema = fit.file.parent / "public.toml"
    schema.write_text(PUBLIC)
    twin = {"model": "twin", "target": None, "bounds": None, "schema": str(schema), "components": "3"}
    for model, changes in (("logistic", {}), ("twin", twin)):
        made = RUN.invoke(app, arguments("--overwrite", out=str(fit.file), **changes))
        assert made.exit_code == 0, made.output
        outcome, _ = fit(model=model, described=())
        assert outcome.exit_code == 0, outcome.output
        assert "replaced" not in outcome.stderr
    (plan, none), (_, whole) = no_fit
    assert plan.num_steps == 300
    assert none is None
    assert whole.components == 3
    assert [column.name for column in whole.schema.columns] == ["age", "smoker"]
    written = tomllib.loads(fit.file.read_text())
    assert (written["components"], written["schema"]) == (3, "public.toml")
    # The same said twice replaces nothing; bounds go before the schema.
    outcome, _ = fit("--components", "3", "--schema", str(schema), model="twin", described=())
    assert "replaced" not in outcome.stderr
    outcome, _ = fit("--components", "2", "--bounds", "age=0:99", model="twin", described=())
    assert "components is overridden by options" in " ".join(outcome.stderr.split())
    assert no_fit[-1][1].components == 2
    assert [column.name for column in no_fit[-1][1].schema.columns] == ["age"]
    # The components of a twin are none of a regression's.
    assert fit("--target", "smoker", described=())[0].exit_code == 0


def test_a_plan_for_another_model_is_said(fit) -> None:
    fit.file.write_text(_plan.plan_text(found(), "twin"))
    outcome, _ = fit()
    assert outcome.exit_code == 0, outcome.output
    assert "made for the model twin, not logistic" in " ".join(outcome.stderr.split())


COMPLETE = "epsilon = 1.0\ndelta = 1e-5\nsteps = 1\nrate = 0.1\nclip = 1\nlearning_rate = 1\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        ("epsilon = ", "is no TOML file"),
        ("epsilon = 1.0\n", "lacks clip, delta, learning_rate, rate, steps"),
        ("surprise = 1\n", "has unknown keys surprise"),
        ("epsilon = 1.0\ndelta = 1e-5\nsteps = 1.5\nrate = 0.1\nclip = 1\nlearning_rate = 1\n", "steps in"),
        (COMPLETE + "components = 2.5\n", "components in"),
        (COMPLETE + "target = 1\n", "target in"),
        (COMPLETE + 'schema = "absent.toml"\n', "absent.toml cannot be read"),
        ("epsilon = true\ndelta = 1e-5\nsteps = 1\nrate = 0.1\nclip = 1\nlearning_rate = 1\n", "epsilon in"),
        ("epsilon = 1.0\ndelta = 1e-5\nsteps = 1\nrate = 7\nclip = 1\nlearning_rate = 1\n", "rate"),
    ],
)
def test_a_broken_plan_is_refused(fit, content: str | None, said: str) -> None:
    fit.file.unlink() if content is None else fit.file.write_text(content)
    outcome, plans = fit() if content is None or "absent" not in content else fit(described=())
    assert outcome.exit_code == 2, outcome.output
    assert said in " ".join(outcome.stderr.split())
    assert not plans


def test_fit_needs_an_epsilon_from_somewhere(tmp_path: Path) -> None:
    words = ["fit", "--data", "x.csv", "--model", "logistic", "--target", "smoker", "--bounds", BOUNDS]
    outcome = RUN.invoke(app, words)
    assert outcome.exit_code == 2
    assert "--epsilon is missing" in outcome.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("fit", ("--data", "--model", "--epsilon or --plan", "--schema or --bounds")),
        ("fit --epsilon 1 --schema s.toml", ("--data", "--model")),
        ("fit --data x.csv --model logistic", ("--epsilon", "--target", "--bounds or --schema")),
        ("fit --data x.csv --model poisson --epsilon 1", ("--target", "--bounds or --schema")),
        ("utility", ("TWINS", "--evaluation-non-private", "--schema")),
    ],
)
def test_all_that_is_missing_is_named_at_once(words: str, named: tuple[str, ...]) -> None:
    outcome = RUN.invoke(app, words.split())
    assert outcome.exit_code == 2
    for option in named:
        assert option in outcome.output, option
    if "--epsilon 1" in words:
        assert "--epsilon" not in outcome.output
