"""A dry run predicts what fits do, of each kind of model. The smallest one serves most of these tests."""

import dataclasses
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pyarrow
import pytest

import discreet as dp
from discreet.methods.newton import (
    ModelPlan,
    NewtonPlan,
    fit_invented,
    fit_invented_model,
    fit_newton,
)
from discreet.tabular.models import logistic_regression
from discreet.tabular.planning import DryRunRow, _dry_run, _trials, dry_run
from discreet.tabular.planning._trials import (
    RegressionTrial,
    Terms,
    Worth,
    prediction_score,
)
from discreet.tabular.tables import Missing, Schema, schema_from_bounds, schema_from_dict

SCHEMA = schema_from_bounds("age=17:90,dose=0:5,sick=no|yes", target="sick")
SEVERAL = Schema(columns=SCHEMA.columns, target="sick", person="id", max_rows=4)
REGION = {"kind": "categorical", "categories": ["north", "south", "east"]}
COUNTS = schema_from_dict(
    {
        "target": "visits",
        "columns": {
            "age": {"kind": "real", "bounds": [17, 90]},
            "region": REGION,
            "visits": {"kind": "count", "bounds": [0, 30]},
        },
    }
)
CLASSES = schema_from_dict(
    {"target": "region", "columns": {"age": {"kind": "real", "bounds": [17, 90]}, "region": REGION}}
)
LINE = schema_from_bounds("age=17:90,dose=0:5", target="dose")
SHAPES = jax.ShapeDtypeStruct((9, 2), jnp.float32), jax.ShapeDtypeStruct((9,), jnp.float32)


def robust(x, y):
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.LogNormal(0, 0.5))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.StudentT(4.0, x @ weights, scale), obs=y)


@pytest.fixture(scope="module")
def found(quick_compilation):
    return dry_run("logistic", SCHEMA, num_records=600, epsilon=1.0, delta=1e-6, progress_bar=False)


def test_epsilon_buys_less_noise_and_more_coefficients(found) -> None:
    assert [row.epsilon for row in found.rows] == pytest.approx([0.1, 0.3, 1, 3, 10])
    first, *_, last = found.rows
    assert first.ratio > 10 * last.ratio
    assert last.learned == 1 > first.learned
    assert last.best - 0.01 < last.score <= last.best + 0.01
    assert (first.use, last.use) == ("not usable", "for its coefficients")
    assert np.mean([row.held for row in found.rows]) > 0.8


def test_the_plan_is_the_fits(found) -> None:
    terms = {
        "epsilon": 1.0,
        "delta": 1e-6,
        "family": "binary",
        "num_features": 2,
        "num_records": 600,
    }
    assert found.plan == NewtonPlan.calibrate(**terms)


@pytest.fixture
def two_epsilons(monkeypatch: pytest.MonkeyPatch, quick_compilation) -> None:
    monkeypatch.setattr(_dry_run, "FACTORS", (0.1, 1.0))


@pytest.mark.parametrize(
    ("model", "about"),
    [
        pytest.param("multinomial", CLASSES, id="classes"),
        pytest.param("poisson", COUNTS, id="counts"),
        pytest.param("linear", LINE, id="line", marks=pytest.mark.exhaustive),
        pytest.param("logistic", SEVERAL, id="persons"),
        pytest.param(robust, SHAPES, id="own"),
    ],
)
def test_intervals_hold_the_truth_and_epsilon_buys_predictions(two_epsilons, model, about) -> None:
    poor, rich = dry_run(model, about, num_records=3_000, epsilon=3.0, progress_bar=False).rows
    # 9 to 24 intervals, with the same seeds each time.
    assert rich.held >= 0.75
    assert poor.learned <= rich.learned
    assert rich.learned > 0.8
    assert poor.score - 0.01 < rich.score
    assert rich.best - 0.06 < rich.score < rich.best + 0.03
    assert rich.use in ("for its coefficients", "for prediction")


def test_epsilons_that_no_noise_meets_are_left_out_before_any_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_dry_run, "FACTORS", (1.0, 10.0))
    found = dry_run("logistic", SCHEMA, num_records=600, epsilon=10.0, progress_bar=False)
    assert [row.epsilon for row in found.rows] == [10.0]


def test_the_method_is_that_of_the_fit() -> None:
    """Lines of persons with several rows are fitted in steps, by `discreet fit`, too; where rows are dropped, none are."""
    terms = Terms(2_000, 1e-6, 0)
    trial = _trials.trial_for("linear", dataclasses.replace(LINE, person="id", max_rows=3), terms)
    assert trial.method == "A fit in steps"
    assert "is fitted in steps" in trial.note
    for model, schema, method in (
        ("linear", LINE, "Noisy moments"),
        ("logistic", SCHEMA, "Private Newton"),
        ("multinomial", CLASSES, "Private Newton"),
    ):
        columns = tuple(
            dataclasses.replace(column, missing=Missing.DROP) for column in schema.columns
        )
        trial = _trials.trial_for(model, dataclasses.replace(schema, columns=columns), terms)
        assert trial.method == method
        assert "No invented record is dropped for a missing cell" in trial.note


@pytest.mark.parametrize(("model", "schema"), [("linear", LINE), ("logistic", SCHEMA)])
def test_as_many_records_are_dropped_as_is_said(model: str, schema: Schema) -> None:
    """None were, so that of a target that half of the people have too much was promised."""
    columns = tuple(dataclasses.replace(column, missing=Missing.DROP) for column in schema.columns)
    public = dataclasses.replace(schema, columns=columns)
    some = _trials.trial_for(model, public, Terms(2_000, 1e-6, 0, kept=0.4))
    assert "Of the invented records 40 % are kept, as given." in some.note
    table: Any = some.tables[0]  # pyright: ignore[reportAttributeAccessIssue]
    assert table.mask.mean() == pytest.approx(0.4, abs=0.05)
    every = _trials.trial_for(model, public, Terms(2_000, 1e-6, 0))
    assert every.tables[0].mask is None  # pyright: ignore[reportAttributeAccessIssue]
    assert some.fit(1.0, 0).use == "for its coefficients"


def test_a_rare_target_is_invented_as_rare_as_said() -> None:
    """All tables had a balanced target, so that of one person in fifty too much was promised."""
    terms = Terms(5_000, 1e-6, 0)
    usual, rare = (
        _trials.trial_for("logistic", SCHEMA, terms._replace(share=share)) for share in (None, 0.02)
    )
    shares = [[float(table.y.mean()) for table in trial.tables] for trial in (usual, rare)]  # pyright: ignore
    assert min(shares[0]) > 0.1
    assert shares[1] == pytest.approx([0.02] * len(shares[1]), abs=0.01)
    assert usual.note.startswith(
        f"The second category of the target has {100 * min(shares[0]):.3g} to "
    )
    assert "if yours is rarer (give its share), expect more noise" in usual.note
    assert (
        rare.note == "The second category of the target has 2 % of the invented records, as given."
    )
    assert np.mean([rare.fit(1.0, number).learned.mean() for number in range(3)]) < np.mean(
        [usual.fit(1.0, number).learned.mean() for number in range(3)]
    )
    for model, schema, said in (
        ("multinomial", CLASSES, "The rarest category"),
        ("poisson", COUNTS, "The mean of the"),
    ):
        assert _trials.trial_for(model, schema, terms).note.startswith(said)
    for changes, needle in (
        ({"share": 1.5}, "share is 1.5; it must be a number from 0.0002 to 0.9998"),
        ({"kept": 0.5}, 'here none are: leave kept out, or write missing = "drop" for the column'),
    ):
        with pytest.raises(ValueError, match=needle):
            _trials.trial_for("logistic", SCHEMA, terms._replace(**changes))
    with pytest.raises(ValueError, match="only rows are dropped"):
        _trials.trial_for("logistic", SEVERAL, terms._replace(kept=0.5))
    with pytest.raises(ValueError, match="share is that of the second category"):
        _trials.trial_for("linear", LINE, terms._replace(share=0.5))


def test_what_newton_refuses_is_fitted_in_steps(two_epsilons) -> None:
    def model(x, y):
        weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        shift = numpyro.param("shift", 0.0)
        with numpyro.plate("people", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=shift + x @ weights), obs=y)

    found = dry_run(model, SCHEMA, num_records=2_000, epsilon=3.0, progress_bar=False)
    poor, rich = found.rows
    assert found.method == "A fit in steps"
    assert math.isnan(rich.held)
    assert "intervals" not in str(found)
    assert rich.score > poor.score
    assert rich.score > 0.55


@pytest.mark.parametrize("name", ["logistic", "negative-binomial"])
def test_the_invented_fit_is_the_private_fit(name: str, quick_compilation) -> None:
    """Of one table: alike in the estimate, its spread, and the noise."""
    trial = RegressionTrial(name, SCHEMA if name == "logistic" else COUNTS, Terms(4_000, 1e-6, 5))
    table = trial.tables[1]
    plan = trial.plan(3.0)
    private = fit_newton(dp.random.key(1), table.x, table.y, plan, levels=table.levels)
    invented = fit_invented(table.x, table.y, plan, seed=1, levels=table.levels)
    # Chance moves both: over eight fits of counts from 0.9 to 1.8.
    assert 0.4 < invented.ratio / private.ratio < 2.5
    spreads = np.sqrt(np.diag(invented.covariance) / np.diag(private.covariance))
    assert 0.5 < spreads.min() < spreads.max() < 2
    apart = (invented.mean - private.mean) / np.sqrt(np.diag(private.covariance))
    assert np.abs(apart).max() < 3
    # Without noise worth speaking of, the two are one.
    plan = dataclasses.replace(plan, noise_multiplier=1e-2)
    private = fit_newton(dp.random.key(1), table.x, table.y, plan, levels=table.levels)
    invented = fit_invented(table.x, table.y, plan, seed=1, levels=table.levels)
    np.testing.assert_allclose(invented.mean, private.mean, atol=2e-3 * np.abs(private.mean).max())


def test_the_invented_fit_of_a_model_is_the_private_fit(quick_compilation) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2_000, 2)).astype(np.float32)
    y = (x @ [0.5, -1.0] + 0.7 * rng.standard_t(4.0, 2_000)).astype(np.float32)
    plan = ModelPlan.calibrate(epsilon=3.0, num_records=2_000)
    plan = dataclasses.replace(plan, noise_multiplier=1e-2)
    private = dp.DPNewton(robust, plan=plan).run(dp.random.key(1), x, y, progress_bar=False)
    invented = fit_invented_model(robust, (x, y), plan, seed=1)
    assert invented.statement.reproducible
    for name, value in private.draws.items():
        spread = value.std(axis=0)
        assert (np.abs(private.estimate[name] - invented.estimate[name]) < 0.1 * spread).all()
        np.testing.assert_allclose(invented.draws[name].std(axis=0), spread, rtol=0.1)


def test_invented_counts_keep_to_their_bounds_and_have_the_spread_that_was_asked_for() -> None:
    trial = RegressionTrial("poisson", COUNTS, Terms(5_000, 1e-6, 0))
    for table, spread in zip(trial.tables, np.repeat([1.0, 0.5, 0.25], 4), strict=True):
        assert table.levels.tolist() == [False, True, True, True]
        assert np.std(table.x @ table.truth[1:]) == pytest.approx(spread, rel=0.05)
        assert 0 <= table.y.min() < table.y.max() <= 30
        assert np.mean(table.y == 30) < 0.02


def test_wide_tables_are_stood_for_by_fewer_rows_with_as_much_noise_beside_sampling(
    monkeypatch: pytest.MonkeyPatch, quick_compilation
) -> None:
    monkeypatch.setattr(_dry_run, "FACTORS", (1.0,))
    terms = {"num_records": 20_000, "epsilon": 1.0, "progress_bar": False}
    (whole,) = dry_run("logistic", SCHEMA, **terms).rows
    monkeypatch.setattr(_trials, "_MOST_CELLS", 9_000)
    (part,) = dry_run("logistic", SCHEMA, **terms).rows
    assert part.ratio == pytest.approx(whole.ratio, rel=0.3)
    assert part.learned <= whole.learned


def row(epsilon: float, use: str) -> DryRunRow:
    return DryRunRow(epsilon, 1.0, 0.5, 0.9, math.nan, 0.8, use)


def test_the_least_epsilon_is_named(found) -> None:
    rows = (row(0.1, "not usable"), row(1.0, "for prediction"), row(10.0, "for prediction"))
    made = dataclasses.replace(found, rows=rows)
    assert made.least("for prediction") == 1.0
    assert made.least("for its coefficients") is None
    said = str(made)
    assert (
        "Use at ε = 1: For prediction. For prediction, ε = 1 is enough. No ε up to 10 makes" in said
    )
    assert "A real column that crowds at one end" in said
    assert json.loads(json.dumps(made.to_dict(), allow_nan=False))["curve"][0]["score"] is None
    assert len(made.plot().axes[0].lines) == 4


def test_half_of_the_tables_decide_on_the_use() -> None:
    uses = ["for its coefficients", "not usable", "for prediction"]
    assert DryRunRow.of(1.0, [Worth(use) for use in uses]).use == "for prediction"
    assert DryRunRow.of(1.0, [Worth(use) for use in uses[1:2] * 2 + uses[:1]]).use == "not usable"


def test_ctrl_c_leaves_what_is_done(found, monkeypatch: pytest.MonkeyPatch) -> None:
    fits = 3

    class Trial:
        method, measure, note, num_tables = "Made up", "", "", 2

        def plan(self, epsilon):
            return found.plan

        def fit(self, epsilon, number):
            nonlocal fits
            if not fits:
                raise KeyboardInterrupt
            fits -= 1
            return Worth("for prediction")

    monkeypatch.setattr(_dry_run, "trial_for", lambda *_: Trial())
    stopped = dry_run("logistic", SCHEMA, num_records=600, epsilon=1.0, progress_bar=False)
    assert [row.epsilon for row in stopped.rows] == [0.1]
    assert not stopped.complete
    assert "Stopped early" in str(stopped)
    with pytest.raises(ValueError, match="stopped before ε = 1"):
        _ = stopped.asked
    assert stopped.to_dict()["verdict"] == ""
    with pytest.raises(KeyboardInterrupt):
        dry_run("logistic", SCHEMA, num_records=600, epsilon=1.0, progress_bar=False)


def test_there_is_no_place_for_a_table() -> None:
    table = np.zeros((400, 1), np.float32)
    for about in (
        table,
        (table, table[:, 0]),
        jnp.asarray(table),
        pyarrow.table({"age": [1.0], "sick": ["no"]}),
        {"age": [1.0]},
        "table.csv",
        None,
    ):
        for model in ("logistic", logistic_regression):
            with pytest.raises(TypeError, match="no place for a table"):
                dry_run(model, about, num_records=400, epsilon=1.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="data"):
        dry_run("logistic", SCHEMA, num_records=400, epsilon=1.0, data=table)  # pyright: ignore[reportCallIssue]


def test_a_table_that_the_model_holds_is_refused() -> None:
    hidden = jnp.arange(1.0, 401.0)  # an array of one number holds no data

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample(
                "y", dist.Bernoulli(logits=w * x[:, 0] * hidden.sum() * hidden[0]), obs=y
            )

    with pytest.raises(ValueError, match="400"):
        dry_run(model, SCHEMA, num_records=400, epsilon=1.0)


@pytest.mark.parametrize(
    ("model", "about", "wrong", "match"),
    [
        ("logistic", SCHEMA, {"num_records": 5}, "num_records is 5"),
        ("logistic", SCHEMA, {"num_records": 1e3}, "num_records is 1000.0"),
        ("logistic", SCHEMA, {"delta": 1.0}, "delta is 1.0"),
        ("logistic", SCHEMA, {"epsilon": math.inf}, "epsilon"),
        ("logit", SCHEMA, {}, "model is 'logit'"),
        ("logistic", dataclasses.replace(SCHEMA, target=None), {}, "has none"),
        ("poisson", SCHEMA, {}, "explains a count target"),
    ],
)
def test_wrong_arguments_are_refused(model, about, wrong: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        dry_run(model, about, **{"num_records": 400, "epsilon": 1.0, **wrong})


def test_regressions_are_scored_by_what_suits_the_target() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(size=1_000)
    # R² is 1/2; it scatters by 0.025, so that one seed in 10^4 is outside.
    assert prediction_score(truth + rng.normal(size=1_000), truth) == (
        "R²",
        pytest.approx(0.5, abs=0.1),
    )
    assert math.isnan(prediction_score(np.ones(4), np.full(4, 0.5))[1])
    assert math.isnan(prediction_score(np.arange(3.0), np.full(3, np.nan))[1])
