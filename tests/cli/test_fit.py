import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet import random
from discreet.interfaces.cli import _fit, _predict, _terminal
from discreet.interfaces.cli._app import app
from discreet.interfaces.cli._options import LINEAR, REGRESSIONS, MethodName, choose_model
from discreet.interfaces.cli._report import npz, summarise
from discreet.interfaces.cli._steps import InSteps
from discreet.interfaces.cli._twin import fit_again
from discreet.methods import choose
from discreet.methods.inference._result import Share
from discreet.privacy.clipping import AdaptiveClipping
from discreet.privacy.random import claim
from discreet.privacy.report import Unit, make_statement
from discreet.tabular.models import logistic_regression, negative_binomial_regression

RUN = CliRunner()
BOUNDS = "age=0:100,region=north|south|east,smoker=no|yes"


@pytest.fixture
def survey(tmp_path):
    """An invented table: the older smoke more, the region does not matter."""
    rng = np.random.default_rng(0)
    age = rng.uniform(0, 100, 3_000)
    smokes = rng.random(3_000) < 1 / (1 + np.exp(-(age - 50) / 20))
    regions = rng.choice(["north", "south", "east"], 3_000)
    lines = [
        f"{a:.1f},{r},{'yes' if s else 'no'}" for a, r, s in zip(age, regions, smokes, strict=True)
    ]
    path = tmp_path / "survey.csv"
    path.write_text("\n".join(["age,region,smoker", *lines]) + "\n")
    return path


def arguments(path, *more: str, **changes: str | None) -> list[str]:
    options: dict = {
        "data": str(path),
        "model": "logistic",
        "target": "smoker",
        "bounds": BOUNDS,
        "epsilon": "1",
    }
    options |= {"out": str(path.parent / "out"), **changes}
    if options["model"] in REGRESSIONS and options["model"] != LINEAR and "by" not in options:
        options["by"] = "svi"  # what is stubbed here; tests/cli/test_newton.py fits
    given = [
        [f"--{name.replace('_', '-')}", value]
        for name, value in options.items()
        if value is not None
    ]
    return ["fit", *(word for pair in given for word in pair), *more]


@pytest.fixture
def no_fit(monkeypatch: pytest.MonkeyPatch):
    """The fit itself replaced: what stands around it is under test. Returns the calls."""
    calls = []

    def release(method):
        plan = method.plan
        records = method.records
        calls.append((method.function, plan, records, method))
        statement = make_statement(
            plan, steps_completed=plan.num_steps, reproducible=method.asked.seed is not None
        )
        samples = {"intercept": np.zeros(4), "weights": np.zeros((4, records.x.shape[1]))}
        result = SimpleNamespace(
            statement=statement,
            plan=plan,
            counted=Share(0.65, 0.02),
            losses=np.array([1.0, np.nan]),
            steps_completed=plan.num_steps,
        )
        result.posterior = lambda key, number: samples
        return result, None

    monkeypatch.setattr(InSteps, "release", release)
    return calls


def test_a_real_fit_finds_the_truth_and_tells_all(survey) -> None:
    outcome = RUN.invoke(
        app, arguments(survey, epsilon="4", steps="300", learning_rate="0.05", delta="1e-5")
    )
    assert outcome.exit_code == 0, outcome.stderr
    out = survey.parent / "out"
    statement = json.loads((out / "statement.json").read_text())
    assert statement["is_private"] is True
    assert 3.99 < statement["epsilon"] <= 4
    assert statement["plan"]["num_records"] == 3_000
    assert any("age (real): 0 to 100" in fact for fact in statement["public"])
    with np.load(out / "posterior.npz") as draws:
        age = draws["weights"][:, 0]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["feature_names"] == ["age", "region=north", "region=south", "region=east"]
    # Relative to their mean, which the intercept has; in posterior.npz they are as they were drawn.
    assert sum(
        summary["posterior"][name]["mean"] for name in summary["feature_names"][1:]
    ) == pytest.approx(0, abs=1e-6)
    assert "In posterior.npz they are not relative" in summary["note"]
    # Truth: 50 / 20 per unit of scaled age. The noise is real; at epsilon 4 the estimate scatters
    # by about 0.1.
    assert 1.7 < age.mean() < 3.3
    assert "age" in outcome.stdout
    assert "Fitted logistic to 3,000 records. Protected: one record" in outcome.stdout
    assert (out / "fit.png").stat().st_size > 1_000


def test_a_model_of_ones_own_without_target(survey) -> None:
    module = survey.parent / "mine.py"
    module.write_text(
        "import numpyro\nimport numpyro.distributions as dist\n"
        "def model(x):\n"
        "    mean = numpyro.sample('mean', dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))\n"
        "    with numpyro.plate('people', x.shape[0]):\n"
        "        numpyro.sample('x', dist.Normal(mean, 0.5).to_event(1), obs=x)\n"
    )
    changes = {
        "model": f"{module}:model",
        "target": None,
        "bounds": "age=0:100",
        "steps": "50",
        "seed": "1",
        "num_records": "2500",
    }
    outcome = RUN.invoke(app, arguments(survey, "--json", **changes))
    assert outcome.exit_code == 0, outcome.stderr
    assert "NOT PRIVATE" in outcome.stderr
    assert json.loads(outcome.stdout)["statement"]["reproducible"] is True
    with np.load(survey.parent / "out" / "posterior.npz") as draws:
        assert draws["mean"].shape == (1_000, 1)


def test_defaults(survey, no_fit) -> None:
    assert RUN.invoke(app, arguments(survey)).exit_code == 0
    ((_, plan, records, method),) = no_fit
    assert plan.num_steps == 1_000
    assert plan.rate == 1_000 / 3_000
    assert plan.target_delta == 1e-5
    assert plan.clipping_norm == AdaptiveClipping()
    assert choose_model("logistic").defaults(method.schema) == dp.models.defaults_for(
        logistic_regression
    )
    assert method.asked.seed is None
    assert set(np.unique(records.y)) == {0, 1}
    assert json.loads((survey.parent / "out" / "summary.json").read_text())["losses"] == [1.0, None]


def test_the_name_of_the_data_and_the_contact_stand_where_people_read(survey, no_fit) -> None:
    outcome = RUN.invoke(app, arguments(survey, "--dataset", "Panel", "--contact", "a@b.org"))
    assert outcome.exit_code == 0, outcome.stderr
    for name in ("statement.txt", "report.html"):
        text = " ".join((survey.parent / "out" / name).read_text(encoding="utf-8").split())
        text = text.partition('id="machine"')[0]  # The whole statement follows there
        assert "Panel" in text
        assert "a@b.org" in text
        assert "survey.csv" not in text


def test_a_schema_file(survey, no_fit) -> None:
    schema = survey.parent / "schema.toml"
    schema.write_text(
        'target = "smoker"\n[columns.age]\nkind = "real"\nbounds = [0, 100]\n'
        '[columns.smoker]\nkind = "binary"\ncategories = ["no", "yes"]\n'
    )
    outcome = RUN.invoke(app, arguments(survey, bounds=None, target=None, schema=str(schema)))
    assert outcome.exit_code == 0, outcome.stderr
    assert no_fit[0][2].feature_names == ("age",)


def test_fixed_size_batches(survey, no_fit) -> None:
    outcome = RUN.invoke(app, arguments(survey, sampling="fixed", batch_size="100", steps="10"))
    assert outcome.exit_code == 0, outcome.stderr
    assert no_fit[0][1].relation.name == "REPLACE_ONE"


def test_an_earlier_statement_is_not_overwritten_by_accident(survey, no_fit) -> None:
    assert RUN.invoke(app, arguments(survey)).exit_code == 0
    again = RUN.invoke(app, arguments(survey))
    assert again.exit_code == 2
    assert "statement of an earlier release" in " ".join(again.stderr.split())
    # It would hide what is wrong with the fit itself.
    wrong = RUN.invoke(app, arguments(survey, bounds="age=0:50,smoker=no|yes"))
    assert "'age' has values outside its public bounds" in " ".join(wrong.stderr.split())
    assert len(no_fit) == 1
    assert RUN.invoke(app, arguments(survey, "--overwrite")).exit_code == 0


@pytest.mark.parametrize(
    ("changes", "needle"),
    [
        ({"data": "absent.csv"}, "does not exist"),
        ({"model": "probit"}, "choose logistic, multinomial, linear, poisson"),
        ({"model": "absent.py:model"}, "does not exist"),
        ({"model": "{folder}/broken.py:model"}, "with ZeroDivisionError: division by zero"),
        ({"model": "{folder}/empty.py:model"}, "has no function model"),
        ({"target": None}, "name it with --target"),
        ({"target": "smokes"}, "no column smokes"),
        ({"target": "age"}, "needs a binary target, but 'age' is described as real"),
        ({"bounds": None}, "the columns are not described"),
        ({"bounds": "age"}, "is not understood"),
        ({"bounds": "age=0:100,height=0:3,smoker=no|yes"}, "no column height"),
        (
            {"bounds": "age=0:50,smoker=no|yes"},
            "'age' has values outside its public bounds 0 to 50",
        ),
        (
            {"bounds": "age=0:100,region=north|south,smoker=no|yes"},
            "'region' has values outside its public categories",
        ),
        ({"bounds": "age=0:100"}, "'smoker' has values outside its public categories 0, 1"),
        ({"schema": "schema.toml"}, "give only one"),
        ({"bounds": None, "schema": "absent.toml"}, "cannot be read"),
        ({"epsilon": "0"}, "epsilon"),
        ({"epsilon": "nan"}, "epsilon"),
        ({"delta": "1"}, "delta is 1.0"),
        ({"steps": "0"}, "num_steps is 0"),
        ({"clip": "0"}, "clipping_norm is 0"),
        ({"clip": "inf"}, "clipping_norm is inf"),
        ({"clip": "median"}, "--clip is 'median': give a number"),
        ({"rate": "1.5"}, "rate"),
        ({"rate": "0.1", "batch_size": "10"}, "need one of --rate"),
        ({"learning_rate": "0"}, "--learning-rate"),
        ({"learning_rate": "nan"}, "--learning-rate"),
        ({"learning_rate": "inf"}, "--learning-rate"),
        ({"num_records": "0"}, "num_records is 0"),
        ({"draws": "0"}, "--draws"),
        ({"draws": "1000000000000"}, "--draws"),
        ({"model": "{folder}/leaves.py:model"}, "with SystemExit: no"),
        ({"out_of_bounds": "drop"}, "'drop' is not one of 'refuse', 'clip', 'missing'"),
        ({"target": "Smoker"}, "has no column Smoker. Did you mean smoker?"),
        ({"bounds": f"agge{BOUNDS[3:]}"}, "has no column agge. Did you mean age?"),
        (
            {"bounds": BOUNDS.replace("east", "East")},
            "check their spelling and capitals, and list all that can occur",
        ),
        (
            {"person": "id"},
            "has no column id, which is to identify persons. Without it one row is protected",
        ),
        (
            {"model": "poisson", "target": "age"},
            "not whole, and it is described as a count: round them, or describe it",
        ),
        (
            {"model": "poisson", "target": "region"},
            "choose --model multinomial, or describe it as kind count, if its values are such, in a schema",
        ),
        (
            {"target": "region"},
            "choose --model multinomial, or list the two categories to tell apart",
        ),
        ({"epsilon": "1,0"}, "give a number, with a point before its decimals, as in 1.0"),
        ({"epsilon": None, "eps": "1"}, "No such option: --eps. Did you mean --epsilon?"),
        ({"epsilom": "1"}, "No such option: --epsilom. Did you mean --epsilon?"),
    ],
)
def test_bad_input_is_refused_before_anything_is_spent(survey, no_fit, changes, needle) -> None:
    (survey.parent / "broken.py").write_text("1 / 0\n")
    (survey.parent / "empty.py").write_text("")
    (survey.parent / "leaves.py").write_text("import sys\nsys.exit('no')\n")
    if "model" in changes:
        changes = {**changes, "model": changes["model"].format(folder=survey.parent)}
    outcome = RUN.invoke(app, arguments(survey, **changes))
    assert outcome.exit_code == 2, outcome.stderr
    # A long path stands on a line of its own.
    assert outcome.stderr.split()[0] == "Refused:"
    assert needle in " ".join(outcome.stderr.split())
    assert "Traceback" not in outcome.stderr
    assert "\n\n" not in outcome.stderr.strip()
    assert no_fit == []
    assert not (survey.parent / "out").exists()


def test_a_folder_that_cannot_be_written_is_refused_before_the_fit(survey, no_fit) -> None:
    (survey.parent / "file").write_text("")
    for out in (survey.parent / "file", survey.parent / "file" / "below"):
        outcome = RUN.invoke(app, arguments(survey, out=str(out)))
        assert outcome.exit_code == 2
        assert "cannot be written to" in " ".join(outcome.stderr.split())
    assert no_fit == []


def test_a_public_count_in_the_place_of_the_exact_one(survey, no_fit) -> None:
    outcome = RUN.invoke(app, arguments(survey, num_records="2500"))
    assert outcome.exit_code == 0, outcome.stderr
    ((_, plan, records, _),) = no_fit
    assert (plan.num_records, plan.rate, records.num_records) == (2_500, 0.4, 3_000)
    text = (survey.parent / "out" / "statement.txt").read_text()
    assert "N = 2500" in text
    assert "3000" not in text


def test_the_default_clipping_norm_adapts_whatever_the_rows_of_a_person(survey, no_fit) -> None:
    survey.write_text("id,age,smoker\n1,20,no\n1,40,yes\n2,60,yes\n3,30,no\n")
    columns = '[columns.age]\nkind = "real"\nbounds = [0, 100]\n[columns.smoker]\ncategories = ["no", "yes"]\nkind = "binary"\n'
    schema = survey.with_suffix(".toml")
    schema.write_text(f'target = "smoker"\nperson = {{column = "id", max_rows = 3}}\n{columns}')
    outcome = RUN.invoke(
        app, arguments(survey, "--yes", "--by", "svi", schema=str(schema), bounds=None, target=None)
    )
    assert outcome.exit_code == 0, outcome.stderr
    ((_, plan, _, _),) = no_fit
    assert plan.clipping_norm == dp.AdaptiveClipping()


@pytest.mark.parametrize("model", ["logistic", "linear"])
def test_rows_without_a_target_are_records_that_contribute_nothing(survey, no_fit, model) -> None:
    """Their exact number is published nowhere; the plan's is that of the table. Moments take every row."""
    survey.write_text("age,smoker\n20,no\n40,\n60,yes\n30,no\n")
    cells = '[columns.age]\nkind = "real"\nbounds = [0, 100]\n[columns.smoker]\nkind = "binary"\ncategories = ["no", "yes"]\n'
    schema = survey.with_suffix(".toml")
    target = "age" if model == "linear" else "smoker"
    if model == "linear":
        survey.write_text("smoker,age\n0,20\n1,\n1,60\n0,30\n")
        cells = (
            '[columns.smoker]\nkind = "binary"\n[columns.age]\nkind = "real"\nbounds = [0, 100]\n'
        )
    schema.write_text(f'target = "{target}"\n{cells}missing = "drop"\n')
    words = {"schema": str(schema), "bounds": None, "target": None, "model": model}
    outcome = RUN.invoke(app, arguments(survey, "--yes", "--by", "svi", **words))
    assert outcome.exit_code == 0, outcome.stderr
    ((_, plan, records, _),) = no_fit
    assert plan.num_records == records.num_records == 4
    assert np.isnan(records.y).tolist() == [False, True, False, False]
    text = " ".join((survey.parent / "out" / "statement.txt").read_text().split())
    assert (
        "contributed nothing, as the schema asks. They count as records, and their exact number was not"
        in text
    )
    left_out = "35 % (± 4) of the 4 records had such a cell, or no finite loss."
    assert left_out in text
    said = " ".join(outcome.stdout.split())
    assert left_out in said
    assert f"Records with a missing cell in “{target}” are left out, as the schema asks." in said


def fitted(model: str, samples, rows) -> InSteps:
    """A fit in steps with this result."""
    asked = _fit.Asked(data=Path("survey.csv"), model=model)
    schema = dp.tables.schema_from_bounds(BOUNDS)
    return InSteps(
        asked,
        dp.inference.Processes(),
        choose_model(model),
        schema,
        None,
        samples=samples,
        rows=rows,
    )


@pytest.mark.parametrize("model", ["linear", "logistic"])
def test_coefficients_of_a_fit_in_steps_stand_in_the_order_of_the_table(capsys, model) -> None:
    """The largest of them may be the noisiest."""
    means = {"age": 0.1, "a": -0.2, "b": 0.3, "c": -2.4}
    unknown = dict.fromkeys(("sd", "low", "high"), np.nan)
    rows = [(f"weights[{name}]", {"mean": mean, **unknown}) for name, mean in means.items()]
    fitted(model, {"weights": np.zeros(1)}, rows).say_coefficients()
    lines = capsys.readouterr().out.splitlines()
    features = "features and target" if model == "linear" else "features"
    assert lines[0].startswith(f"First 3 of 4 coefficients ({features} scaled")
    assert "all: summary.json" in " ".join(lines)
    assert [line.strip() for line in lines[-3:]] == [
        "weights[age]: 0.1",
        "weights[a]: -0.2",
        "weights[b]: 0.3",
    ]


def test_coefficients_have_the_digits_that_their_error_allows(capsys) -> None:
    """As on the page: a third digit of 0.289 would be noise."""
    rows = [
        ("age", {"mean": 0.46038, "sd": 0.1027, "low": 0.28884, "high": 0.62152}),
        ("smoker=yes", {"mean": -0.30012, "sd": 0.0021, "low": -0.30351, "high": -0.2966}),
    ]
    fit = fitted("logistic", {"weights": np.zeros(1)}, rows)
    fit.intervals = True
    fit.say_coefficients()
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()[-2:]]
    assert lines == ["age: 0.46 (0.29 to 0.62)", "smoker=yes: -0.3001 (-0.3035 to -0.2966)"]


def test_bounds_without_a_person_are_answered_by_a_line(survey, no_fit) -> None:
    line = "Each row is protected, not a person with several rows. Add --person COLUMN"
    runs = [RUN.invoke(app, arguments(survey, "--yes", "--by=svi"))]
    for person in ("each row", "age"):
        bounds = BOUNDS if person == "each row" else "region=north|south|east,smoker=no|yes"
        runs.append(
            RUN.invoke(
                app,
                arguments(survey, "--yes", "--by=svi", "--overwrite", bounds=bounds, person=person),
            )
        )
    assert [outcome.exit_code for outcome in runs] == [0, 0, 0]
    said = [" ".join(outcome.stderr.split()) for outcome in runs]
    assert [line in words for words in said] == [True, False, False]
    assert "COLUMN:5" in said[0]
    assert no_fit[-1][3].schema.person == "age"
    assert no_fit[-1][2].num_records < 3_000
    schema = survey.with_suffix(".toml")
    schema.write_text('target = "smoker"\n')
    wrong = RUN.invoke(
        app, arguments(survey, "--overwrite", bounds=None, schema=str(schema), person="age")
    )
    assert "--person is for --bounds: write person in the schema file" in " ".join(
        wrong.stderr.split()
    )


def test_records_that_the_schema_drops_are_no_reason_for_a_warning() -> None:
    plan = dp.PrivacyPlan(
        sampling=dp.FullBatch(),
        clipping_norm=1.0,
        noise_multiplier=30.0,
        num_steps=4,
        num_records=2_700,
    )
    statement = make_statement(plan, unit=Unit("id"), steps_completed=4, reproducible=False)
    result = SimpleNamespace(statement=statement, plan=plan, counted=Share(0.65, 0.02))
    left_out: Any = InSteps.left_out
    method = SimpleNamespace(result=result, plan=plan, drops=("vote",), _persons="persons")
    assert (
        left_out.fget(method)
        == "35 % (± 4) of the 2,700 persons had such a cell, or no finite loss."
    )


def test_kept_counts_are_fitted_again_with_no_option_that_was_paid_for(tmp_path) -> None:
    """With any other option the result would not be what was asked for: that takes a new release."""
    asked = _fit.Asked(data=tmp_path / "twin.counts", model="twin", out=tmp_path / "out")
    free = {"components": 4, "draws": 3, "out": tmp_path, "overwrite": True, "as_json": True}
    paid = {
        x.name: not x.default if isinstance(x.default, bool) else "other"
        for x in dataclasses.fields(asked)[2:]
    }
    for name, value in (
        {"model": "logistic"} | {k: x for k, x in paid.items() if k not in free}
    ).items():
        with pytest.raises(ValueError, match=r"were paid for|--distributed is for"):
            fit_again(dataclasses.replace(asked, **{name: value}))
    for changes in (
        free,
        {"by": MethodName.MARGINALS},
    ):  # goes on to the counts, which are not there
        with pytest.raises(ValueError, match="No such file"):
            fit_again(dataclasses.replace(asked, **changes))


def test_any_latent_name_can_be_written(tmp_path) -> None:
    path = tmp_path / "draws.npz"
    path.write_bytes(
        npz({"file": np.arange(3), "layer/weights": np.eye(2), "allow_pickle": np.ones(1)})
    )
    with np.load(path) as loaded:
        assert set(loaded.files) == {"file", "layer/weights", "allow_pickle"}
        np.testing.assert_array_equal(loaded["file"], [0, 1, 2])


def test_a_fit_in_steps_has_no_intervals(survey, no_fit) -> None:
    outcome = RUN.invoke(app, arguments(survey, "--by=svi"))
    assert "by their bounds; all: summary.json), no intervals:" in " ".join(outcome.stdout.split())
    summary = json.loads((survey.parent / "out" / "summary.json").read_text())
    assert "a fit in steps does not measure how far its noise moved" in summary["note"]
    assert summary["posterior"]["age"] == {"mean": 0.0, "sd": None, "low": None, "high": None}


def test_the_clipping_norm_may_be_adaptive(survey, no_fit) -> None:
    outcome = RUN.invoke(app, arguments(survey, clip="adaptive"))
    assert outcome.exit_code == 0, outcome.stderr
    _, plan, _, _ = no_fit[0]
    assert plan.clipping_norm == AdaptiveClipping()
    statement = json.loads((survey.parent / "out" / "statement.json").read_text())
    assert statement["plan"]["clipping"]["kind"] == "AdaptiveClipping"
    assert "followed the 0.995 quantile" in statement["mechanism"]
    assert RUN.invoke(app, arguments(survey, "--overwrite", clip="0.5")).exit_code == 0
    assert no_fit[1][1].clipping_norm == 0.5


def test_counts_that_scatter_and_several_categories(survey, no_fit) -> None:
    for changes in (
        {"model": "negative-binomial", "target": "age"},
        {"model": "multinomial", "target": "region"},
    ):
        bounds = BOUNDS if changes["target"] == "region" else "age=0:100,smoker=no|yes"
        survey.write_text("age,region,smoker\n20,south,no\n40,east,yes\n60,north,yes\n")
        outcome = RUN.invoke(
            app, arguments(survey, "--overwrite", "--yes", **changes, bounds=bounds)
        )
        assert outcome.exit_code == 0, outcome.stderr
    (count, _, counts, _), (categorical, _, classes, _) = no_fit
    assert count is negative_binomial_regression
    assert counts.y.tolist() == [20, 40, 60]
    # By their places among the schema's categories.
    assert categorical.args == (3,)
    assert classes.y.tolist() == [1, 2, 0]
    wrong = RUN.invoke(app, arguments(survey, "--overwrite", model="multinomial", target="age"))
    assert wrong.exit_code == 2
    assert "needs a categorical target" in " ".join(wrong.stderr.split())


def test_the_weights_of_classes_have_names(survey) -> None:
    records = SimpleNamespace(feature_names=("age", "smoker"))
    weights = np.arange(6.0).reshape(1, 2, 3)
    rows = dict(summarise({"intercept": np.zeros((1, 3)), "weights": weights}, records))
    assert [*rows] == [f"{name}[{k}]" for name in ("intercept", "age", "smoker") for k in range(3)]
    assert rows["smoker[0]"]["mean"] == 3.0
    named = dict(
        summarise(
            {"intercept": np.zeros((1, 3)), "weights": weights},
            records,
            classes=("no", "yes", "once"),
        )
    )
    assert [*named] == [
        f"{name}[{k}]" for name in ("intercept", "age", "smoker") for k in ("no", "yes", "once")
    ]
    assert named["smoker[once]"]["mean"] == 5.0


def test_only_weights_are_called_coefficients(capsys) -> None:
    """Not what scatters, nor intercepts of classes; but a column of that name is one."""
    parts = {"mean": 1.0, "sd": 0.1, "low": 0.9, "high": 1.1}
    names = ("intercept", "concentration", "age", "concentration (column)")
    samples = dict.fromkeys(("intercept", "concentration", "weights"), np.zeros(1))
    fitted("logistic", samples, [(name, parts) for name in names]).say_coefficients()
    assert [line.split(":")[0].strip() for line in capsys.readouterr().out.splitlines()[1:3]] == [
        names[2],
        names[3],
    ]
    samples = dict.fromkeys(("intercept", "weights"), np.zeros(1))
    rows = [(f"{name}[{k}]", parts) for name in ("intercept", "age") for k in ("no", "yes")]
    fitted("logistic", samples, rows).say_coefficients()
    printed = capsys.readouterr().out
    assert "age[yes]" in printed
    assert "intercept" not in printed


@pytest.fixture
def heights(tmp_path, monkeypatch):
    """Children grow; those of one region are taller. The noise is uniform, of standard deviation 6."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    age, regions = rng.uniform(0, 10, 2_000), rng.choice(["north", "south", "east"], 2_000)
    height = 60 + 8 * age + 5 * (regions == "north") + rng.uniform(-10, 10, 2_000)
    lines = [f"{a:.2f},{r},{h:.1f}" for a, r, h in zip(age, regions, height, strict=True)]
    path = tmp_path / "heights.csv"
    path.write_text("\n".join(["age,region,height", *lines]) + "\n")
    return path


def line(path, *more: str, **changes: str | None) -> list[str]:
    given = {
        "model": "linear",
        "target": "height",
        "bounds": "age=0:10,region=north|south|east,height=0:200",
        "out": "out",
    }
    return arguments(path, *more, **{**given, "delta": "1e-5", **changes})


def test_a_line_is_fitted_to_noisy_moments_with_intervals(heights) -> None:
    """In units of half the bounds. One region is 5 taller, which is 0.033 above the mean of three."""
    ledger = Path("a.ledger")
    dp.Ledger.create(ledger, dataset="heights", epsilon=5.0, delta=1e-4)
    outcome = RUN.invoke(app, line(heights, epsilon="4", ledger=str(ledger)))
    assert outcome.exit_code == 0, outcome.stderr
    assert len(outcome.stdout.splitlines()) <= 16
    assert "converge" not in outcome.stdout
    assert dp.Ledger(ledger).spent == pytest.approx(4, rel=1e-3)
    out = Path("out")
    statement = json.loads((out / "statement.json").read_text())
    assert statement["method"] == "noisy moments"
    assert statement["plan"]["num_records"] == 2_000
    assert "include the noise" in (out / "statement.txt").read_text()
    summary = json.loads((out / "summary.json").read_text())
    truth = {"age": 0.4, "region=north": 0.0333, "region=south": -0.0167}
    for name, value in truth.items():
        row = summary["posterior"][name]
        assert row["low"] - 0.01 < value < row["high"] + 0.01
        assert row["high"] - row["low"] < 0.05
    assert "to_predict" in summary["posterior"]["age"]
    # Its interval would hold for normal residuals alone: in 0 of 30 fits of Abalone's shell weight
    # it did.
    sigma = summary["posterior"]["sigma"]
    assert sigma["mean"] == pytest.approx(0.0577, abs=0.01)
    assert [sigma[part] for part in ("sd", "low", "high")] == [None] * 3
    assert "sigma has no interval" in summary["note"]
    assert summary["losses"] == []
    # What `discreet score` predicts by.
    *_, draws = _predict._fit_of(out)
    assert draws["weights"].shape == (1, 4)
    assert draws["weights"][0, 0] == summary["posterior"]["age"]["to_predict"]
    with np.load(out / "posterior.npz") as draws:
        assert draws["weights"].shape == (1_000, 4)
    page = (out / "report.html").read_text()
    assert "region=north" in page
    again = RUN.invoke(
        app, line(heights, "--json", epsilon="4", ledger=str(ledger), overwrite=None)
    )
    assert again.exit_code == 2


def test_columns_that_are_named_as_latents_have_rows_of_their_own(heights) -> None:
    heights.write_text(heights.read_text().replace("age,region,height", "sigma,intercept,height"))
    bounds = "sigma=0:10,intercept=north|south|east,height=0:200"
    outcome = RUN.invoke(app, line(heights, epsilon="4", bounds=bounds))
    assert outcome.exit_code == 0, outcome.stderr
    rows = json.loads(Path("out/summary.json").read_text())["posterior"]
    assert rows["sigma"]["mean"] == pytest.approx(0.0577, abs=0.01)
    assert rows["sigma (column)"]["mean"] == pytest.approx(0.4, abs=0.02)
    assert len(rows) == 6
    assert "sigma (column): 0." in outcome.stdout


def test_where_the_noise_swamps_a_line_its_intervals_say_so(heights) -> None:
    hopeless = line(heights, epsilon="0.004")
    outcome = RUN.invoke(app, hopeless)
    assert outcome.exit_code == 2
    assert (
        "Likely not usable: the model has 6 parameters. The sums of 2,000 records can show 3.3e+02"
        in said(outcome)
    )
    outcome = RUN.invoke(app, [*hopeless, "--yes", "--json"])
    assert outcome.exit_code == 0, outcome.stderr
    facts = json.loads(outcome.stdout)
    assert facts["converged"] is None
    assert facts["warnings"] == []
    row = facts["coefficients"]["age"]
    assert row["high"] - row["low"] > 1
    assert facts["coefficients"]["sigma"]["high"] is None


def test_a_dry_run_of_a_line_names_its_noise(heights) -> None:
    outcome = RUN.invoke(app, line(heights, "--dry-run"))
    assert outcome.exit_code == 0, outcome.stderr
    assert "9 noisy sums, to which a record adds at most 1" in said(outcome)
    facts = json.loads(RUN.invoke(app, line(heights, "--dry-run", "--json")).stdout)
    assert 0.99 < facts["epsilon"] <= 1
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("changes", "needle"),
    [
        (
            {"by": "moments", "steps": "10"},
            "--by moments is for --model linear, and takes no steps",
        ),
        (
            {"by": "moments", "model": "poisson"},
            "--by moments is for --model linear, and takes no steps",
        ),
        ({"by": "moments", "schema": "persons"}, "--by moments takes one row a person"),
        ({"checkpoint": "saved"}, "noisy moments take seconds"),
        ({"relation": "replace-one", "num_records": "1000"}, "the plan says num_records=1000"),
    ],
)
def test_what_moments_are_not_for_is_refused(heights, no_fit, changes, needle) -> None:
    if "schema" in changes:
        schema = heights.with_suffix(".toml")
        real = 'kind = "real"\nbounds = [0, 200]\n'
        schema.write_text(
            f'target = "height"\nperson = {{column = "region", max_rows = 3}}\n[columns.age]\n{real}[columns.height]\n{real}'
        )
        changes = {**changes, "schema": str(schema), "bounds": None, "target": None}
    outcome = RUN.invoke(app, line(heights, **changes))
    assert outcome.exit_code == 2
    assert needle in said(outcome)
    assert no_fit == []


def test_a_line_is_fitted_in_steps_where_asked(heights, no_fit, monkeypatch) -> None:
    # that of the checkpoint goes with the test
    monkeypatch.setattr(_terminal.settings, "continue_with", None)
    saved = {"by": "svi", "checkpoint": str(heights.parent / "saved")}
    for changes in ({"steps": "10"}, {"by": "svi"}, saved):
        assert RUN.invoke(app, line(heights, "--overwrite", **changes)).exit_code == 0
    assert [plan.num_steps for _, plan, _, _ in no_fit] == [10, 1_000, 1_000]


@pytest.mark.parametrize("released", [False, True])
def test_a_line_that_is_interrupted_says_whether_it_spent(heights, monkeypatch, released) -> None:
    def stop(key, *_, **__):
        if released:
            claim(random.subkey(key, random.Purpose.MOMENTS))
        raise KeyboardInterrupt

    monkeypatch.setattr(choose, "fit_moments", stop)
    outcome = RUN.invoke(app, line(heights))
    assert outcome.exit_code == 130
    assert ("count the ε of the whole plan as spent" in said(outcome)) == released


def said(outcome) -> str:
    return " ".join((outcome.stdout + outcome.stderr).split())
