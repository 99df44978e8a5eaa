"""Fits by formulas: each family finds the truth, results predict, are saved and are read again."""

import warnings
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from numpyro.infer import MCMC, NUTS
from tests.methods import same

import discreet as dp
from benchmarks.families import FAMILIES, drawn
from discreet.methods.inference import latents_of, take_apart
from discreet.methods.newton._blocks import Blocks
from discreet.methods.newton._verdict import Signs, verdict
from discreet.tabular.formulas import Regression, _model
from discreet.tabular.formulas._design import Design
from discreet.tabular.formulas._model import (
    counts_zeros,
    flat_of,
    in_units,
    model_of,
    prior_of,
    records_of,
)
from discreet.tabular.formulas._regress import (
    _NEARER,
    _doubts,
    _named,
    _share_of_zeros,
    plan_of,
)
from discreet.tabular.models import FAMILIES as NAMED

N = 6_000


def fit(
    formula: str,
    table: Any,
    schema: Any,
    family: str,
    epsilon: float = 20.0,
    seed: int = 1,
    **terms: Any,
) -> Regression:
    key = dp.random.key(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dp.inference.UseWarning)
        return dp.regress(
            formula,
            table,
            schema,
            family=family,
            epsilon=epsilon,
            delta=1e-6,
            rng_key=key,
            progress_bar=False,
            **terms,
        )


def test_the_benchmark_has_every_family() -> None:
    assert set(FAMILIES) == set(NAMED)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_finds_the_truth(family: str) -> None:
    """The seed is fixed; of a normal error one estimate in 16,000 would be 4 deviations away."""
    formula, table, schema, truth = drawn(family, np.random.default_rng(3), N)
    result = fit(formula, table, schema, family)
    if family == "categorical":
        truth = {
            name: value - np.mean([truth[f"{x}: {name[3:]}"] for x in "abc"])
            for name, value in truth.items()
        }
    assert set(truth) <= set(result.draws)
    for name, value in truth.items():
        assert abs(result.draws[name].mean() - value) < 4 * result.draws[name].std(), name
    assert {name for name, share in result.learned.items() if share > 0.5} >= {"age"} & set(truth)
    assert result.statement.unit.noun == "record"
    assert result.family in result.statement.about
    # Compared with the density at the truth, of which the posterior is near.
    some = {name: cells[:50] for name, cells in table.items()}
    best = Regression.log_density(
        replace(
            result,
            predictive={k: np.full(1, truth.get(k, v.mean())) for k, v in result.draws.items()},
        ),
        some,
    )
    assert result.log_density(some).mean() == pytest.approx(best.mean(), abs=0.1)


def grouped() -> tuple[dict[str, Any], Any, np.ndarray]:
    rng = np.random.default_rng(5)
    levels = np.array(list("abcdef"))
    effects = np.array([-0.8, -0.4, 0.0, 0.3, 0.5, 0.9])
    slopes = np.array([0.02, 0.0, -0.03, 0.04, -0.02, 0.0])
    age = rng.uniform(20, 80, N)
    clinic = rng.integers(6, size=N)
    predictor = 0.3 + 0.03 * (age - 50) + effects[clinic] + slopes[clinic] * (age - 50)
    ill = np.where(rng.random(N) < 1 / (1 + np.exp(-predictor)), "yes", "no")
    region = rng.choice(["north", "south"], N)
    schema = dp.tables.schema_from_bounds(
        "ill=no|yes,age=20:80,clinic=a|b|c|d|e|f,region=north|south|west"
    )
    table = {"age": age, "clinic": levels[clinic], "ill": ill, "region": region}
    return table, schema, predictor


def test_latents_that_few_records_tell_of_are_named() -> None:
    """Bands of time with few events, and shares of zeros near 0, of which clipping may hide most of what there is."""
    formula, table, schema, _ = drawn("piecewise", np.random.default_rng(3), N)
    reason = fit(formula, table, schema, "piecewise").statement.use_reason
    named = reason.partition("few records tell of ")[2].partition(": the noise")[0]
    assert "log hazard[50 to 60]" in named
    assert "log hazard[10 to 20]" not in named
    rng = np.random.default_rng(3)
    schema = dp.tables.schema_from_bounds("y=0..30,x=-1:1")
    x = rng.uniform(-1, 1, N)
    for share in (0.005, 0.3):
        y = rng.poisson(3.0, N) * (rng.random(N) >= share)
        result = fit("y ~ x", {"y": y, "x": x}, schema, "zero_inflated_poisson")
        assert result.statement.use == "for its coefficients"
        assert ("few records tell of zero: " in result.statement.use_reason) == (share == 0.005)


def test_shares_of_further_zeros_near_one_are_doubted() -> None:
    schema = dp.tables.schema_from_bounds("y=0..30,x=-1:1")
    plan = dp.newton.ModelPlan.calibrate(epsilon=3.0, num_records=20_000)
    for share in (0.6, 0.78):
        draws = {"zero": np.full(9, share)}
        design = Design("y ~ x", schema, "zero_inflated_negbinomial", None)
        doubts = _doubts(design, plan, draws)
        assert any("few records tell of zero" in doubt for doubt in doubts) == (share > 0.7)


@pytest.mark.parametrize("family", ["hurdle_poisson", "hurdle_negbinomial"])
def test_a_hurdles_share_of_zeros_is_counted(family: str) -> None:
    """As a latent beside the others it was 0.9984 for 0.99, off by thousands of its standard deviations."""
    rng = np.random.default_rng(3)
    schema = dp.tables.schema_from_bounds("y=0..60,x=-1:1")
    x = rng.uniform(-1, 1, N)
    y = (1 + rng.poisson(np.exp(1 + x / 2))) * (rng.random(N) >= 0.99)
    result = fit("y ~ x", {"y": y, "x": x}, schema, family)
    zero = result.draws["zero"]
    assert abs(zero.mean() - np.mean(y == 0)) < 4 * zero.std()
    assert zero.std() < 0.003
    assert result.learned["zero"] > 0.99
    drawn = result.predict({"x": np.zeros(50)}, key=dp.random.key(0)).outcomes
    assert 0.98 < np.mean(drawn == 0) < 0.998
    # Whose zeros may be rows that the schema drops, is not told by the gradients.
    dropped = replace(
        schema, columns=(schema.columns[0], replace(schema.columns[1], missing="drop"))
    )
    assert counts_zeros(result.design)
    fitted_with_the_rest = Design("y ~ x", dropped, family, None)
    assert not counts_zeros(fitted_with_the_rest)
    with pytest.raises(ValueError, match="too few for the family hurdle"):
        plan_of(fitted_with_the_rest, epsilon=0.5, num_records=1_500)
    # A public number near the table's: zeros over that were 0.79.
    near = fit("y ~ x", {"y": y, "x": x}, schema, family, num_records=5 * N // 4).draws["zero"]
    assert abs(near.mean() - np.mean(y == 0)) < 4 * near.std()
    assert near.std() < 0.02


def test_intervals_of_a_share_hold() -> None:
    """Of 2,000 noisy counts, with noise far above sampling and far below; beyond these bounds the chance is below 1 in 10,000."""
    rng = np.random.default_rng(0)
    for size, epsilon in ((500, 0.3), (50_000, 3.0)):
        plan = dp.newton.ModelPlan.calibrate(epsilon=epsilon, num_records=size)
        shares = rng.random(2_000)
        seen = rng.binomial(size, shares) / size + plan.share_noise * rng.normal(size=2_000)
        others = 1 - seen + plan.rest_noise * rng.normal(size=2_000)
        for rest in ([None] * 2_000, others):
            found = [
                _share_of_zeros(plan, x, other, 500) for x, other in zip(seen, rest, strict=True)
            ]
            low, high = np.quantile(found, (0.05, 0.95), axis=1)
            assert 0.87 < np.mean((low <= shares) & (shares <= high)) < 0.93


def test_a_long_table_shows_its_ends_and_where_the_rest_is() -> None:
    formula, table, schema, _ = drawn("bernoulli", np.random.default_rng(3), N)
    result = fit(formula, table, schema, "bernoulli")
    for count, left_out in ((40, 0), (200, 160)):
        names = [f"e{number}" for number in range(count)]
        draws = dict.fromkeys(names, result.draws["age"])
        many = replace(result, draws=draws, learned=dict.fromkeys(names, 1.0))
        _, *rows, _, _ = str(many).splitlines()
        shown = [row.split()[0] for row in rows]
        if left_out:
            assert rows[32].strip() == f"... {left_out} others: summary() has all"
            assert shown == [*names[:32], "...", *names[-8:]]
        else:
            assert shown == names


def test_crossed_groups_are_doubted() -> None:
    """Of y ~ x + (1 | c) + (1 | d) intercept and effects of d held 0.5 to 0.9: only the prior tells them apart."""
    schema = dp.tables.schema_from_bounds("y=0|1,x=-1:1,c=a|b|c,d=a|b|c")
    plan = dp.newton.ModelPlan.calibrate(epsilon=1.0, num_records=N)
    for formula, doubted in (("y ~ x + (1 | c) + (1 | d)", True), ("y ~ x + (1 + x | c)", False)):
        doubts = _doubts(Design(formula, schema, "bernoulli", None), plan, {})
        assert any("the effects of c and d only the prior" in doubt for doubt in doubts) == doubted


@pytest.mark.parametrize(
    ("formula", "family", "count"),
    [
        ("k ~ x + (1 | c)", "bernoulli", 0),
        # A line is a spline, too.
        ("k ~ bs(x, df=4) + (1 + x | c) + (1 + x | d)", "bernoulli", 3),
        ("k ~ x + (1 | c) + (1 | c:d)", "poisson", 4),
        ("k ~ e + (1 | e:c)", "poisson", 2),
        ("k ~ e + (0 + x | e)", "poisson", 0),
        ("o ~ x + (1 | c) + (1 | d)", "cumulative", 2),
        ("g ~ x + (1 | c) + (1 | d)", "categorical", 2),
    ],
)
def test_along_what_is_called_flat_no_record_says_anything(
    formula: str, family: str, count: int
) -> None:
    target = {"bernoulli": "k=0|1", "poisson": "k=0..9"}.get(family, "o=l<m<h,g=u|v|w")
    schema = dp.tables.schema_from_bounds(f"{target},x=-1:3,c=a|b|c|d,d=a|b|c,e=a|b|c")
    design = Design(formula, schema, family, None)
    flat = flat_of(design)
    assert len(flat) == count
    rng = np.random.default_rng(0)
    table = {
        column.name: rng.uniform(*column.limits, 40).round()
        if column.bounds
        else rng.choice(column.categories, 40)
        for column in schema.columns
    }
    records = take_apart((records_of(design, design.rows(table)),), {})
    made_of = {"model": model_of(design), "placeholder": None, "static": {}, "num_records": 40}
    latents = latents_of(records, jax.random.key(0), **made_of)
    directions = Blocks.of(latents, [], flat).flat
    vector = rng.normal(size=latents.num_touched).astype(np.float32)
    pulls = jax.jit(jax.vmap(lambda *record: latents.gradients(vector, record)))
    gradients = np.asarray(pulls(*map(np.asarray, records.leaves)))
    assert np.abs(gradients).sum() > 1
    np.testing.assert_allclose(gradients @ directions, 0, atol=1e-5)


@pytest.mark.parametrize(
    "varying", ["1 + I(x > 2.8)", "I(x > 2.8)", "1 + I(n == 7)", "x + maximum(x, 2.9)"]
)
def test_what_few_numbers_tell_is_not_called_flat(varying: str) -> None:
    """Of 20 levels some lack x > 2.8 where it is spread evenly: intervals of such effects were the prior's, and missed."""
    levels = "|".join(f"c{place}" for place in range(20))
    schema = dp.tables.schema_from_bounds(f"k=0|1,x=-1:3,n=0..50,c={levels},d=a|b|c")
    assert flat_of(Design(f"k ~ ({varying} | c)", schema, "bernoulli", None)) == []
    crossed = Design(f"k ~ ({varying} | c) + (1 | d)", schema, "bernoulli", None)
    assert len(flat_of(crossed)) == 1


def test_of_more_latents_than_are_fitted_none_is_looked_at(monkeypatch: Any) -> None:
    """Of 2,500 levels it took 3 GB, and then the fit was refused."""
    levels = "|".join(f"c{place}" for place in range(513))
    schema = dp.tables.schema_from_bounds(f"k=0|1,c={levels}")
    design = Design("k ~ (1 | c)", schema, "bernoulli", None)
    monkeypatch.setattr(Design, "even_rows", None)
    assert flat_of(design) == []


def test_without_a_row_of_each_level_nothing_is_called_flat(monkeypatch: Any) -> None:
    schema = dp.tables.schema_from_bounds("k=0|1,c=a|b|c|d,d=a|b|c")
    design = Design("k ~ (1 | c) + (1 | c:d)", schema, "bernoulli", None)
    assert len(flat_of(design)) == 4
    monkeypatch.setattr(_model, "ROWS_PER_LATENT", 0)
    monkeypatch.setattr(_model, "NUM_ROWS", 8)
    assert flat_of(design) == []


def test_effects_of_groups_and_what_results_do(tmp_path) -> None:
    table, schema, predictor = grouped()
    result = fit("ill ~ age + region + (1 + age | clinic)", table, schema, "bernoulli")
    assert "the prior decides region[west]" in result.statement.use_reason  # nobody lives there
    predicted = result.predict(table)
    # The posterior mean of a probability, by the model that drew the table.
    assert np.abs(predicted.estimate - 1 / (1 + np.exp(-predictor))).mean() < 0.02
    low, high = predicted.interval
    assert (low < high).all()
    assert {"sd(1|clinic)", "sd(age|clinic)", "1|clinic[a]", "age|clinic[f]"} <= set(result.draws)
    text = str(result)
    assert "age|clinic[f]" in text
    effect = result.marginal_effect("age", at={"clinic": "b"}, num_values=3)
    assert effect.values == (20.0, 50.0, 80.0)
    assert np.all(np.diff(effect.mean) > 0)
    assert effect.held == {"clinic": "b", "region": "north"}
    rows = {"age": [20.0, 50.0, 80.0], "clinic": ["b"] * 3, "region": ["north"] * 3}
    assert np.allclose(effect.mean, result.predict(rows).estimate)
    population = result.marginal_effect("age", num_values=3)
    assert population.held == {"region": "north"}
    best = result.predictive
    log_odds = best["Intercept"] + 50 * best["age"]
    assert np.allclose(population.mean[1], (1 / (1 + np.exp(-log_odds))).mean())
    by_clinic = result.marginal_effect("clinic")
    assert by_clinic.values == tuple("abcdef")
    # The picture says what the mean is of.
    drawn = effect.plot(tmp_path / "effect.png")
    assert drawn.axes[0].get_title() == "90 % intervals, at clinic = b, region = north"
    assert (tmp_path / "effect.png").stat().st_size > 5_000
    assert effect.plot(axes=drawn.axes[0]) is drawn
    assert by_clinic.plot() is not None
    with pytest.raises(ValueError, match="column is 'ill'"):
        result.marginal_effect("ill")
    with pytest.raises(ValueError, match="did you mean clinic"):
        result.marginal_effect("age", at={"clinc": "a"})
    found = dp.load_result(result.save(tmp_path / "fit.discreet"))
    assert isinstance(found, Regression)
    assert same(found, result)
    assert np.array_equal(found.predict(table).estimate, predicted.estimate)
    drawn = result.posterior(jax.random.key(0), 10)
    assert drawn["age"].shape == (10,)
    assert result.to_arviz(jax.random.key(0), 10).posterior["age"].size == 10
    found = result.summary()
    assert list(found.columns) == ["mean", "sd", "eti_5%", "eti_95%", "learned"]
    assert set(found.index) == set(result.draws)
    ends = result.interval["age"]
    shown = [result.estimate["age"], result.draws["age"].std(), *ends, result.learned["age"]]
    assert np.allclose(found.loc["age"], shown)
    picture = result.plot(tmp_path / "posterior.png", most=3)
    assert f"ε = {result.statement.epsilon:.4g}" in picture.get_suptitle()
    # Effects are compared on one axis.
    panels = [axes.get_xlabel() for axes in picture.axes]
    assert {"1|clinic, 3 of 6 rows", "age|clinic, 3 of 6 rows"} <= set(panels)
    assert (tmp_path / "posterior.png").is_file()


def test_what_was_learned_of_a_spread_that_the_noise_hides() -> None:
    """Not all of it, as was said before."""
    rng = np.random.default_rng(0)
    cells = {
        "age": rng.uniform(20, 60, 400),
        "cost": rng.uniform(0, 9, 400),
        "visits": rng.poisson(2, 400).clip(0, 9),
    }
    schema = dp.tables.schema_from_bounds("age=20:60,cost=0:9,visits=0:9")
    schema = replace(
        schema, columns=(*schema.columns[:2], replace(schema.columns[2], kind="count"))
    )
    for formula, family, name in (
        ("cost ~ age", "gaussian", "sigma"),
        ("visits ~ age", "negbinomial", "concentration"),
    ):
        result = fit(formula, cells, schema, family, epsilon=0.05)
        assert result.learned[name] < 0.7


def test_nothing_was_learned_of_a_level_without_records() -> None:
    """Its effect varies as those of other levels do; that they hardly differ counted as learned: 99 %."""
    design = Design("ill ~ age + (1 | clinic)", grouped()[1], "bernoulli", None)
    rng = np.random.default_rng(0)
    spread = rng.gamma(100, 1e-3, (2_000, 1))
    intercept = rng.normal(0, 0.05, 2_000)
    effects = intercept[:, None, None] + spread[:, None] * rng.normal(size=(2_000, 6, 1))
    effects[:, 1] = intercept[:, None] + 0.1
    draws = {"intercept": intercept, "weights": np.zeros((2_000, 1))}
    draws |= {"spread_0": spread, "effects_0": effects}
    learned = _named(design, draws, draws, prior_of(design, draws))[2]
    assert learned["1|clinic[a]"] < 0.15
    assert learned["1|clinic[b]"] > 0.99


def test_a_verdict_on_a_formula_advises_what_its_user_can_do() -> None:
    one = np.ones(1)
    signs = Signs(1.0, 0.0, 99.0, 1.0, 0.0, 0.0, 0.0, ["a"], one, *[one < 0] * 4)
    assert "give init" in verdict(signs)[1]
    said = [verdict(replace(signs, lack=lack, nearer=_NEARER))[1] for lack in (99.0, 9.0)]
    assert all("narrow bounds" in words and "init" not in words for words in said)


def test_a_key_is_for_one_fit_and_rows_that_are_dropped_have_no_prediction() -> None:
    rng = np.random.default_rng(0)
    cells = {
        "age": rng.uniform(20, 60, 3_000),
        "cost": rng.uniform(0, 9, 3_000),
        "ill": rng.choice(["n", "y"], 3_000),
    }
    schema = dp.tables.schema_from_bounds("age=20:60,cost=0:9,ill=n|y")
    schema = replace(
        schema, columns=(replace(schema.columns[0], missing="drop"), *schema.columns[1:])
    )
    for formula, family in (("ill ~ age", "bernoulli"), ("cost ~ age", "gaussian")):
        key = dp.random.key()
        result = dp.regress(
            formula, cells, schema, family=family, epsilon=5.0, rng_key=key, progress_bar=False
        )
        with pytest.raises(ValueError, match="drawn this noise before"):
            dp.regress(
                formula, cells, schema, family=family, epsilon=5.0, rng_key=key, progress_bar=False
            )
        found = result.predict({"age": [30.0, None]})
        for part in (found.estimate, found.mean[0], found.outcomes[0]):
            assert np.isfinite(part).tolist() == [True, False]


def test_rows_without_a_target_count_nothing() -> None:
    """Whatever such a row holds has no effect, to the bit, by each of the three ways to fit."""
    table, schema, _ = grouped()
    dropping = replace(
        schema, columns=(replace(schema.columns[0], missing="drop"), *schema.columns[1:])
    )
    gone = np.arange(N) < 500
    ill = np.where(gone, None, table["ill"])
    for right in ("age", "age + (1 | clinic)"):
        one = fit(f"ill ~ {right}", table | {"ill": ill}, dropping, "bernoulli")
        other = fit(
            f"ill ~ {right}",
            table | {"ill": ill, "age": np.where(gone, 33.0, table["age"])},
            dropping,
            "bernoulli",
        )
        assert same(one.draws, other.draws)


def test_the_price_of_privacy_vanishes() -> None:
    """At ε = 30 the fit is the posterior without privacy, by the same model with NumPyro's own sampler."""
    formula, table, schema, _ = drawn("weibull", np.random.default_rng(4), 2_000)
    result = fit(formula, table, schema, "weibull", epsilon=30.0)
    design = result.design
    mcmc = MCMC(NUTS(model_of(design)), num_warmup=300, num_samples=500, progress_bar=False)
    mcmc.run(jax.random.key(0), records_of(design, design.rows(table)))
    exact = in_units(design, mcmc.get_samples())
    for name, draws in exact.items():
        assert abs(draws.mean() - result.draws[name].mean()) < draws.std(), name
