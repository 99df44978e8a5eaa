"""One small dry run serves most of these tests: tracing and compiling is nearly all that it costs."""

import dataclasses
import json
import math
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pyarrow
import pytest

import discreet as dp
from discreet.models import MixtureOfProducts, linear_regression, logistic_regression, poisson_regression
from discreet.planning import Grid, Row, Setting, TableScores
from discreet.planning._dry_run import _ranked, _Stage
from discreet.planning._invent import Inventor, plan_for, template_of
from discreet.tables import Schema, encode, schema_from_bounds

SCHEMA = schema_from_bounds("age=17:90,dose=0:5,sick=no|yes", target="sick")
SMALL = Grid(steps=(40,), rates=(0.5,), clipping_norms=(0.5, 1.0), learning_rates=(0.2,))


@pytest.fixture(scope="module")
def small(quick_compilation):
    """A dry run with few settings."""
    return dp.planning.dry_run(
        logistic_regression,
        SCHEMA,
        num_records=400,
        epsilon=8.0,
        grid=SMALL,
        strengths=(2.0,),
        epsilons=(0.01, 30.0),
        progress_bar=False,
    )


def test_the_proposal_is_a_calibrated_plan_of_the_grid(small) -> None:
    setting = small.proposed.setting
    assert setting in SMALL.settings(400, 1.0)
    assert small.plan.num_steps == setting.num_steps
    assert small.plan.rate == setting.rate
    assert small.plan.clipping_norm == setting.clipping_norm
    assert 7.99 <= small.plan.epsilon(small.plan.target_delta) <= 8.0
    assert small.rows[0].setting == setting
    assert small.complete


def row_of(lost: float, distance: float = 1.0, *, rested: tuple[bool | None, ...] = (None,), **setting: float) -> Row:
    """A setting that loses so much of the 0.2 nats that there are to learn."""
    scores = [{"log density": x} for x in (-0.4 - lost, -0.4, -0.6)]
    tables = [TableScores(0.5, *scores, distance=distance, rested=x) for x in rested]
    chosen: dict[str, Any] = {"num_steps": 100, "rate": 0.1, "clipping_norm": 1.0, "learning_rate": 0.1} | setting
    return Row(Setting(**chosen), 1.0, 1.0, tuple(tables))


def test_of_settings_that_are_about_as_good_the_one_nearest_to_the_fits_without_noise_is_first() -> None:
    # A tenth of the 0.2 nats that there are to learn is 0.02.
    best, nearer, worse = row_of(0.0, 3.0), row_of(0.019, 2.0), row_of(0.021, 1.0)
    assert _ranked([worse, best, nearer]) == [nearer, best, worse]
    broken = row_of(math.inf, math.nan)
    assert _ranked([broken, best]) == [best, broken]
    assert _ranked([broken]) == [broken]


def test_of_two_settings_that_are_as_near_the_cheaper_one_is_proposed_and_the_trade_is_named(small) -> None:
    dear, cheap = row_of(0.0192, 1.0, rate=1.0), row_of(0.0192, 1.05, rate=0.294)
    best = row_of(0.019, 2.0, rate=1.0, learning_rate=0.05)
    assert _ranked([dear, cheap, best])[0] == cheap
    traded = str(dataclasses.replace(small, rows=(cheap, best, dear)))
    assert "0.0002 nats a record less" in traded
    assert "computes 0.29 times as many gradients. Its steps times its learning rate" in traded
    assert "are 2 times as large" in traded
    assert "trades" not in str(dataclasses.replace(small, rows=(best, cheap)))
    # What lost less on fewer tables may have had luck.
    lucky = row_of(0.0, rate=1.0)
    twice = dataclasses.replace(cheap, tables=2 * cheap.tables)
    assert "trades" not in str(dataclasses.replace(small, rows=(twice, lucky)))


def test_a_setting_that_converges_is_proposed_unless_it_learns_far_less() -> None:
    best = row_of(0.0, 1.0, rested=(True, True, True, False, False))
    rests = row_of(0.015, 2.0, rested=(True, True, True, True, False))
    poor = row_of(0.1, 0.5, rested=(True, True, True))
    assert (best.rests, rests.rests, row_of(0.0).rests) == (False, True, True)
    assert _ranked([best, poor, rests]) == [rests, best, poor]
    # A tenth of the 0.2 nats is the most that convergence may cost.
    assert _ranked([best, poor])[0] is best
    assert _ranked([best, poor, rests], to_converge=False)[0] is best


def test_before_it_is_spent_a_plan_says_that_it_will_not_converge_and_what_would() -> None:
    from discreet.planning import _dry_run

    moving, still = row_of(0.0, rested=(False, True, False)), row_of(0.125, rested=(True, True, True))
    point = _dry_run.CurvePoint

    def said(row: Row, *rows: Row, curve=()) -> str:
        return _dry_run.in_words(_dry_run.PREDICTION, row, curve, 1.0, 3, rows)

    words = said(
        moving, moving, still, curve=[point(0.1, still.tables), point(3.0, moving.tables), point(10.0, still.tables)]
    )
    assert "1 of 3 fits of invented tables converged" in words
    assert "Settings that converged lost 0.12 nats a record more" in words
    assert "ε = 10 let all fits converge" in words
    assert "no larger ε that was tried" in said(moving, moving, curve=[point(10.0, moving.tables)])
    assert "nats a record more" not in said(moving, moving)
    assert "converge" not in said(still, moving, still)


def test_larger_batches_are_tried_where_they_leave_less_noise() -> None:
    """In a small table both batches leave what one release of all records would, and the larger takes four times as long."""

    def rates(num_records: int, grid: Grid) -> set[float]:
        def plan(setting: Setting) -> dp.PrivacyPlan:
            return plan_for(setting, 1.0, 1e-5, num_records)

        stage: Any = SimpleNamespace(num_records=num_records, plan=plan)
        return {setting.rate for setting in _Stage.settings(stage, grid, 1.0)}

    assert rates(1_675, Grid(steps=(1_000,))) == {0.299}
    assert rates(200_000, Grid(steps=(300,))) == {0.0025, 0.01}
    assert rates(1_675, Grid(steps=(1_000,), rates=(0.3, 1.0))) == {0.3, 1.0}


def test_of_twins_settings_that_are_about_as_good_the_one_with_the_best_marginals_is_first() -> None:
    def row(lost: float, pairs: float) -> Row:
        tables = TableScores(
            0.5, {"log density": -0.4 - lost, "distance of pairs": pairs}, *({"log density": x} for x in (-0.4, -0.6))
        )
        return Row(Setting(10, 0.1, 1.0, 0.1), 1.0, 1.0, (tables,))

    first, close, far = row(0.0, 0.05), row(0.003, 0.04), row(0.005, 0.03)
    assert _ranked([far, first, close]) == [close, first, far]


def test_ctrl_c_leaves_what_is_done() -> None:
    settings = Grid(steps=(10, 20, 30), clipping_norms=(1.0,), learning_rates=(0.1,)).settings(100_000, 1.0)
    left = 2

    def tried(tables, setting):
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        scores = TableScores(0.5, *({"log density": x} for x in (-0.5, -0.4, -0.6)))
        return Row(setting, 1.0, 1.0, (scores,))

    stage: Any = SimpleNamespace(tried=tried)
    rows, complete = _Stage.search(stage, (), (), settings)
    assert not complete
    # The quickest settings come first.
    assert {row.setting.num_steps * row.setting.rate for row in rows} == {10 * 0.005, 20 * 0.005}
    with pytest.raises(KeyboardInterrupt):
        _Stage.search(stage, (), (), settings)


def test_noise_costs_accuracy_and_epsilon_buys_it_back(small) -> None:
    (drowned,), _, (free,) = (point.tables for point in small.curve)
    assert [point.epsilon for point in small.curve] == [0.01, 8.0, 30.0]
    # Without noise there is much to learn, at ε = 30 most of it is learnt, at ε = 0.01 nothing. Fixed seeds.
    assert free.non_private_gain > 0.02
    assert free.private_gain > 0.5 * free.non_private_gain
    assert drowned.private_gain < 0
    assert free.non_private["AUC"] > 0.6


def test_what_is_found_can_be_said_kept_and_drawn(small) -> None:
    said = str(small)
    for part in ("ε = 8", "40 steps at rate 0.5", "AUC", "log density", small.why):
        assert part in said
    content = json.loads(json.dumps(small.to_dict(), allow_nan=False))
    assert content["verdict"] == small.verdict
    assert {(x["num_steps"], x["clipping_norm"]) for x in content["settings"]} == {(40, 1.0), (40, 0.5)}
    axes = small.plot()
    assert axes.get_ylabel().startswith("AUC")
    assert len(axes.lines) == 4


def test_there_is_no_place_for_a_table(small) -> None:
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
        with pytest.raises(TypeError, match="no place for a table"):
            dp.planning.dry_run(logistic_regression, about, num_records=400, epsilon=1.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="data"):
        dp.planning.dry_run(logistic_regression, SCHEMA, num_records=400, epsilon=1.0, data=table)  # pyright: ignore[reportCallIssue]


def test_a_table_that_the_model_holds_is_refused() -> None:
    hidden = jnp.arange(1.0, 401.0)  # an array of one number holds no data

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=w * x[:, 0] * hidden.sum() * hidden[0]), obs=y)

    with pytest.raises(ValueError, match="400"):
        dp.planning.dry_run(model, SCHEMA, num_records=400, epsilon=1.0, grid=SMALL)


def test_a_schema_that_was_taken_from_the_data_is_refused() -> None:
    inferred = Schema(columns=SCHEMA.columns, target="sick", inferred=("age",))
    for model, about in ((logistic_regression, inferred), (MixtureOfProducts(inferred), None)):
        with pytest.raises(ValueError, match="age were taken from the data"):
            dp.planning.dry_run(model, about, num_records=400, epsilon=1.0)


SEVERAL = Schema(columns=SCHEMA.columns, target="sick", person="id", max_rows=4)


def test_persons_of_several_rows_are_invented_with_their_padding() -> None:
    template = template_of(SEVERAL)
    x, y, mask = template.draw(np.random.default_rng(0), 500)
    assert (x.shape, y.shape, mask.shape) == ((500, 4, 2), (500, 4), (500, 4))
    assert not x[~mask].any()
    counts = mask.sum(axis=1)
    assert set(counts) == {1, 2, 3, 4}
    assert (mask == (np.arange(4) < counts[:, None])).all()
    # The model sets padding to zero, so that what it observes is no longer the argument itself.
    inventor = Inventor(logistic_regression, template, ("intercept", "weights"), jax.random.key(0))
    assert inventor.observed == {"y": 1}
    _, y, mask = inventor.table(1.0, 300, 100, seed=1).rows
    assert not y[~mask].any()
    assert 0.1 < y[mask].mean() < 0.9


def test_of_persons_an_argument_that_is_observed_otherwise_is_refused() -> None:
    def model(x: Any, y: Any, mask: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("persons", x.shape[0], dim=-2), numpyro.plate("rows", x.shape[1], dim=-1):
            numpyro.sample("y", dist.Normal(w * x[..., 0], 1.0).mask(mask), obs=jnp.where(mask, 2 * y, 0.0))

    with pytest.raises(ValueError, match="none of its arguments as they are"):
        Inventor(model, template_of(SEVERAL), ("w",), jax.random.key(0))


@pytest.mark.exhaustive
def test_a_dry_run_of_persons_with_several_rows() -> None:
    options = {"num_records": 400, "epsilon": 8.0, "grid": SMALL, "epsilons": (30.0,), "progress_bar": False}
    several = dp.planning.dry_run(logistic_regression, SEVERAL, strengths=(2.0,), **options)
    assert "400 persons with up to 4 rows each" in str(several)
    assert several.proposed.mean("AUC", "non_private") > several.proposed.mean("AUC", "blind") + 0.05
    twin = dp.planning.dry_run(MixtureOfProducts(SEVERAL, components=2, slices=4), strengths=(1.0,), **options)
    assert math.isfinite(twin.proposed.lost)


def test_a_dry_run_loads_no_reader_of_tables() -> None:
    code = "import sys, discreet.planning; print({'pyarrow', 'pandas', 'discreet.tables._read'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"num_records": 5}, "num_records is 5"),
        ({"num_records": 1e3}, "num_records is 1000.0"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": float("inf")}, "epsilon"),
        ({"strengths": (0.0,)}, "strengths"),
        ({"epsilons": (-1.0,)}, "epsilons"),
    ],
)
def test_wrong_numbers_are_refused(wrong: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        dp.planning.dry_run(logistic_regression, SCHEMA, **{"num_records": 400, "epsilon": 1.0, **wrong})


def test_invented_features_look_as_encoded_ones() -> None:
    schema = schema_from_bounds(
        "age=17:90,visits=0:9,region=n|s|e,born=1900-01-01:2000-01-01,smoker=no|yes,w=0:2", target="w"
    )
    x, y = template_of(schema).draw(np.random.default_rng(0), 500)
    cells = {
        "age": [17.0, 90.0],
        "visits": [0.0, 9.0],
        "region": ["n", "s"],
        "born": pyarrow.array(["1900-01-01", "2000-01-01"]).cast(pyarrow.date32()),
        "smoker": ["no", "yes"],
        "w": [0.0, 2.0],
    }
    encoded = encode(pyarrow.table(cells), schema)
    assert x.shape[1:] == encoded.x.shape[1:]
    assert x.dtype == encoded.x.dtype == np.float32
    assert encoded.y is not None
    assert y.shape[1:] == encoded.y.shape[1:]
    for column, name in enumerate(encoded.feature_names):
        numbers = np.unique(x[:, column])
        if "=" in name:
            assert set(numbers) <= {0.0, 1.0}
        else:
            assert -1 <= numbers.min() < numbers.max() <= 1
    assert (x[:, 2:5].sum(axis=1) == 1).all()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("model", "target", "low", "high"),
    [(linear_regression, "t=-5:5", -1.0, 1.0), (poisson_regression, "t=0:20", 0.0, 20.0)],
)
def test_invented_targets_keep_to_their_bounds_without_piling_up_there(
    quick_compilation, model, target: str, low: float, high: float
) -> None:
    from discreet.tables import Kind

    kind = Kind.COUNT if low == 0 else Kind.REAL
    schema = schema_from_bounds(f"a=0:1,b=0:1,{target}", target="t", target_kind=kind)
    latents = ("intercept", "weights", "sigma")[: 3 if low < 0 else 2]
    inventor = Inventor(model, template_of(schema), latents, jax.random.key(0))
    assert inventor.observed == {"y": 1}
    table = inventor.table(0.25, 800, 200, seed=3)
    y = np.concatenate([table.rows[1], table.held_out[1]])
    assert y.shape == (1_000,)
    assert low <= y.min() < y.max() <= high
    # Of the prior's truths many would have most targets at a bound; 2 % are tolerated, and cut.
    assert np.mean(y == high) < 0.05
    assert table.truth["weights"].shape == (2,)


def test_invented_columns_are_correlated_and_some_are_narrow() -> None:
    """As measurements of one body are, within public bounds that allow for outliers: such tables are hard to fit."""
    template = template_of(schema_from_bounds("a=0:1,b=0:1"))
    tables = [template.draw(np.random.default_rng(seed), 500)[0] for seed in range(100)]
    # Independent columns have correlations of 0.04 on average; of columns without narrow ones a twenty-fifth is below 0.18.
    assert np.mean([abs(np.corrcoef(x.T)[0, 1]) for x in tables]) > 0.15
    assert np.mean([x.std(axis=0) < 0.18 for x in tables]) > 0.1


def test_what_cannot_be_invented_is_refused() -> None:
    def computed(x, y):
        w = numpyro.sample("w", dist.Normal(0, 1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(w * x[:, 0], 1), obs=2 * y)

    def improper(x, y):
        w = numpyro.sample("w", dist.ImproperUniform(dist.constraints.real, (), ()))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(w * x[:, 0], 1), obs=y)

    shapes = jax.ShapeDtypeStruct((9, 2), jnp.float32), jax.ShapeDtypeStruct((9,), jnp.float32)
    for model, match in ((computed, "none of its arguments as they are"), (improper, "improper")):
        with pytest.raises(ValueError, match=match):
            Inventor(model, template_of(shapes), ("w",), jax.random.key(0))


@pytest.mark.exhaustive
def test_a_fit_is_what_dpsvi_does() -> None:
    """The same invented table, fitted by `DPSVI` and by the dry run: log densities agree, and with other noise they do not."""
    from numpyro.infer.autoguide import AutoNormal
    from numpyro.infer.initialization import init_to_feasible

    schema = schema_from_bounds("a=0:1,b=0:1,c=0:1,d=x|y|z,sick=no|yes", target="sick")
    stage = _Stage.set(logistic_regression, schema, None, 3_000, 1.0, 1e-5, 0)
    table = stage.inventor.table(0.5, 3_000, 3_000, seed=5)
    setting = Setting(200, 0.1, 0.5, 0.05)
    plan = dp.PrivacyPlan.calibrate(
        epsilon=0.05,
        delta=1e-5,
        num_records=3_000,
        num_steps=setting.num_steps,
        sampling=dp.PoissonSampling(rate=setting.rate),
        clipping_norm=setting.clipping_norm,
    )
    guide = AutoNormal(logistic_regression, init_loc_fn=init_to_feasible)
    dpsvi = dp.DPSVI(logistic_regression, guide, numpyro.optim.Adam(setting.learning_rate), plan=plan)

    def by_dpsvi(seed: int) -> float:
        result = dpsvi.run(dp.random.key(seed), *table.rows, progress_bar=False)
        assert result._objective is not None
        psi = result._objective.unconstrain({name: jnp.asarray(x) for name, x in result.params.items()})
        return stage.judge(psi, table)["log density"]

    def dry(seed: int, noise: float) -> float:
        psi = stage.fitter.fit(table.rows, setting, noise, jax.random.key(seed))
        return stage.judge(psi, table)["log density"]

    real = np.array([by_dpsvi(seed) for seed in range(150)])
    made = np.array([dry(seed, plan.noise_multiplier) for seed in range(200)])
    error = np.sqrt(real.var(ddof=1) / 150 + made.var(ddof=1) / 200)
    # Four standard errors: false alarm once in 10^4. The wrong versions are told by the same rule.
    assert abs(real.mean() - made.mean()) < 4 * error, (real.mean(), made.mean(), error)
    for factor in (1 / 3, 3.0):
        wrong = np.array([dry(seed, factor * plan.noise_multiplier) for seed in range(200)])
        assert abs(real.mean() - wrong.mean()) > 4 * error, (factor, real.mean(), wrong.mean(), error)


@pytest.mark.exhaustive
def test_a_twin_is_judged_by_the_distance_of_its_marginals() -> None:
    twin = MixtureOfProducts(schema_from_bounds("age=17:90,sex=f|m,region=n|s|e"), components=4, slices=8)
    grid = Grid(steps=(100,), rates=(0.1,), clipping_norms=(1.0,), learning_rates=(0.05,))
    found = dp.planning.dry_run(
        twin, num_records=5_000, epsilon=1.0, grid=grid, epsilons=(0.01, 1.0, 30.0), progress_bar=False
    )
    assert found.measures[:2] == ("distance of columns", "distance of pairs")
    first, *_, last = found.curve
    for measure in found.measures[:2]:
        drowned, free = (np.mean([t.private[measure] for t in point.tables]) for point in (first, last))
        assert free < 0.5 * drowned


@pytest.mark.exhaustive
def test_few_records_and_many_parameters_are_said_to_be_hopeless() -> None:
    schema = schema_from_bounds(",".join(f"f{i}=0:1" for i in range(40)) + ",sick=no|yes", target="sick")
    grid = Grid(steps=(100,), clipping_norms=(0.5,), learning_rates=(0.05,))
    found = dp.planning.dry_run(
        logistic_regression, schema, num_records=150, epsilon=0.1, grid=grid, progress_bar=False
    )
    assert found.verdict == "not usable"
    assert "even of a strong signal the noise hides more than half" in found.why
