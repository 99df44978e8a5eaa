"""One answer to which method and which plan, whoever asks: the command line, an estimator, a formula, a dry run, `dp.fit`."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import discreet as dp
from discreet._validate import RefusedError
from discreet.interfaces.cli._fit import Asked, method_for
from discreet.methods import choose
from discreet.tabular.estimators import (
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    _private,
)
from discreet.tabular.formulas import Design, plan_of
from discreet.tabular.planning import _trials

ROWS = 400
TARGETS = {
    "linear": "y=-1:1",
    "logistic": "y=no|yes",
    "multinomial": "y=a|b|c",
    "poisson": "y=0..9",
    "negative-binomial": "y=0..9",
}
FAMILIES = {
    "linear": "gaussian",
    "logistic": "bernoulli",
    "multinomial": "categorical",
    "poisson": "poisson",
    "negative-binomial": "negbinomial",
}
ESTIMATORS = {
    "linear": (LinearRegression, {"target_bounds": (-1, 1)}),
    "logistic": (LogisticRegression, {"classes": ("no", "yes")}),
    "multinomial": (LogisticRegression, {"classes": ("a", "b", "c")}),
    "poisson": (PoissonRegression, {}),
}
OWN = """
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist


def model(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ slope, 1.0), obs=y)
"""


class PlannedError(Exception):
    """The plan of a fit that does not run."""


def table_of(model: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    y = {
        "linear": rng.uniform(-1, 1, ROWS),
        "logistic": rng.choice(["no", "yes"], ROWS),
        "multinomial": rng.choice(["a", "b", "c"], ROWS),
    }.get(model, rng.integers(0, 10, ROWS))
    return {"a": rng.uniform(-1, 1, ROWS), "b": rng.uniform(-1, 1, ROWS), "y": y}


def by_shell(model: str, folder: Path, **changes: Any) -> Any:
    table = table_of("linear" if ":" in model else model)
    lines = [
        ",".join(table),
        *(",".join(map(str, row)) for row in zip(*table.values(), strict=True)),
    ]
    file = folder / "table.csv"
    file.write_text("\n".join(lines))
    bounds = f"a=-1:1,b=-1:1,{TARGETS.get(model, 'y=-1:1')}"
    asked = Asked(data=file, model=model, target="y", bounds=bounds, epsilon=1.0, **changes)
    method: Any = method_for(asked, dp.inference.Processes())
    method.share()
    return method.prepare().plan


def by_estimator(model: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Any:
    def stop(*arguments: Any, **how: Any) -> Any:
        raise PlannedError(next(x for x in arguments if hasattr(x, "noise_multiplier")))

    monkeypatch.setattr(_private, "fit_sums", stop)
    monkeypatch.setattr(_private, "fit_in_steps", stop)
    kind, own = ESTIMATORS[model]
    table = table_of(model)
    x = np.stack([table["a"], table["b"]], axis=1)
    with pytest.raises(PlannedError) as stopped:
        kind(bounds=(-1, 1), **own, **changes).fit(x, table["y"])
    return stopped.value.args[0]


def schema_of(model: str) -> dp.tables.Schema:
    return dp.tables.schema_from_bounds(f"a=-1:1,b=-1:1,{TARGETS[model]}", target="y")


@pytest.mark.parametrize("model", TARGETS)
def test_a_regression_has_one_plan(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = by_shell(model, tmp_path)
    assert isinstance(plan, dp.moments.MomentsPlan if model == "linear" else dp.newton.NewtonPlan)
    terms = {"epsilon": 1.0, "num_records": ROWS}
    assert plan_of(Design("y ~ a + b", schema_of(model), FAMILIES[model]), **terms) == plan
    trial = _trials.trial_for(model, schema_of(model), _trials.Terms(ROWS, plan.delta, 0))
    assert trial.plan(1.0) == plan
    if model in ESTIMATORS:
        assert by_estimator(model, monkeypatch) == plan


@pytest.mark.parametrize("model", ["linear", "logistic"])
def test_settings_of_steps_have_one_plan(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An estimator of a line did not look at them."""
    plan = by_shell(model, tmp_path, steps=70)
    assert isinstance(plan, dp.PrivacyPlan)
    assert plan.num_steps == 70
    assert by_estimator(model, monkeypatch, num_steps=70) == plan


def test_a_model_has_one_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    plan = by_shell(f"{file}:model", tmp_path)
    found = {}
    exec(OWN, found)

    def stop(newton: dp.DPNewton, *arguments: Any, **how: Any) -> Any:
        raise PlannedError(newton.plan)

    monkeypatch.setattr(dp.DPNewton, "run", stop)
    x = np.zeros((ROWS, 2), np.float32)
    with pytest.raises(PlannedError) as stopped:
        dp.fit(found["model"], x, x[:, 0], epsilon=1.0)
    assert stopped.value.args[0] == plan


def test_a_line_of_persons_with_several_rows_has_one_method() -> None:
    schema = dataclasses.replace(schema_of("linear"), person="id", max_rows=3)
    terms = _trials.Terms(ROWS, 1e-6, 0)
    assert choose.choose(choose.LINE, max_rows=3).method == choose.STEPS
    assert LinearRegression(max_rows=3)._choice().method == choose.STEPS
    assert isinstance(_trials.trial_for("linear", schema, terms).plan(1.0), dp.PrivacyPlan)
    with pytest.raises(RefusedError, match="may have 3 rows"):
        plan_of(Design("y ~ a", schema, "gaussian"), epsilon=1.0, num_records=ROWS)


@pytest.mark.parametrize(
    ("choice", "option", "words"),
    [
        (choose.choose("line"), "checkpoint", "noisy moments take seconds"),
        (choose.choose("counts"), "require_proof", "always proves"),
        (
            choose.choose("line", max_rows=2),
            "weights",
            "counts each record once; a line of persons",
        ),
        (choose.choose("binary", settings=["num_steps"]), "weights", "num_steps ask for steps"),
        (choose.choose("line", shared=True), "weights", "several processes"),
    ],
)
def test_what_a_method_lacks_is_refused(choice: choose.Chosen, option: str, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        choice.refuse([option])
    choice.refuse(["ledger"])
