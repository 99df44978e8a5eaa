"""Targets of a formula's result: new ones have the predicted mean, and densities are SciPy's, in the table's units."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

import discreet as dp
from discreet.tabular.formulas import Design, Regression, _result
from discreet.tabular.tables import Kind

BOUNDS = "x=0:10,time=0:50,event=no|yes,size=0.5:80,share=0.01:0.99,height=100:220,visits=0:200,ill=no|yes"
POSITIVE = {"Intercept": 0.5, "x": 0.2}
X = np.array([0.0, 2.0, 7.0])


def made(formula: str, family: str, **latents: float) -> Regression:
    """A result whose posterior is one point, many times over."""
    draws = {name: np.full(4_000, value) for name, value in latents.items()}
    schema = dp.tables.schema_from_bounds(BOUNDS)
    counts = {"visits": Kind.COUNT}
    columns = (dataclasses.replace(x, kind=counts.get(x.name, x.kind)) for x in schema.columns)
    schema = Design(formula, dataclasses.replace(schema, columns=tuple(columns)), family).schema
    known: dict[str, Any] = {"constants": {}, "learned": {}, "plan": None, "statement": None}
    return Regression(
        formula=formula, family=family, schema=schema, draws=draws, predictive=draws, **known
    )


LINE = 0.5 + 0.2 * X
TARGETS = {
    "gaussian": (
        "height",
        {"Intercept": 150, "x": 2, "sigma": 12},
        lambda y: stats.norm(150 + 2 * X, 12).logpdf(y),
    ),
    "student": (
        "height",
        {"Intercept": 150, "x": 2, "sigma": 3, "nu": 6},
        lambda y: stats.t(7, 150 + 2 * X, 3).logpdf(y),
    ),
    "bernoulli": ("ill", POSITIVE, lambda y: stats.bernoulli(expit(LINE)).logpmf(y)),
    "poisson": ("visits", POSITIVE, lambda y: stats.poisson(np.exp(LINE)).logpmf(y)),
    "negbinomial": (
        "visits",
        POSITIVE | {"concentration": 3},
        lambda y: stats.nbinom(3, 3 / (3 + np.exp(LINE))).logpmf(y),
    ),
    "gamma": (
        "size",
        POSITIVE | {"shape": 4},
        lambda y: stats.gamma(4, scale=np.exp(LINE) / 4).logpdf(y),
    ),
    "beta": (
        "share",
        {"Intercept": -0.5, "x": 0.1, "precision": 9},
        lambda y: stats.beta(9 * expit(0.1 * X - 0.5), 9 - 9 * expit(0.1 * X - 0.5)).logpdf(y),
    ),
}


@pytest.mark.parametrize("family", TARGETS)
def test_targets_have_the_mean_and_the_density_of_the_family(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, latents, density = TARGETS[family]
    result = made(f"{name} ~ x", family, **latents)
    found = result.predict({"x": X}, key=dp.random.key(3), num_samples=4_000)
    error = found.outcomes.std(axis=0) / np.sqrt(4_000)
    np.testing.assert_array_less(np.abs(found.outcomes.mean(axis=0) - found.estimate), 4 * error)
    y = np.array([1.0, 0.0, 1.0]) if name == "ill" else np.array([3.0, 1.0, 9.0])
    y = {"height": 140 + 8 * y, "share": y / 10}.get(name, y)
    cells = np.array(["no", "yes"])[y.astype(int)] if name == "ill" else y
    table = {"x": X, name: cells}
    np.testing.assert_allclose(result.log_density(table), density(y), rtol=2e-4, atol=2e-4)
    monkeypatch.setattr(_result, "_AT_ONCE", 1)  # each row by itself
    np.testing.assert_allclose(result.log_density(table), density(y), rtol=2e-4, atol=2e-4)


def test_times_that_end_before_their_event_count_with_the_chance_of_a_later_one() -> None:
    result = made("Surv(time, event) ~ x", "weibull", **POSITIVE, shape=1.5)
    law = stats.weibull_min(1.5, scale=np.exp(LINE))
    time = np.array([1.0, 2.0, 3.0])
    found = result.log_density({"x": X, "time": time, "event": ["yes", "no", "yes"]})
    np.testing.assert_allclose(found[[0, 2]], law.logpdf(time)[[0, 2]], rtol=2e-4)
    np.testing.assert_allclose(found[1], law.logsf(time)[1], rtol=2e-4)
    assert np.isnan(result.predict({"x": X}, num_samples=5).outcomes).all()


def test_results_are_compared_on_a_table() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, 3_000)
    table = {
        "x": x,
        "share": np.full(3_000, 0.5),
        "ill": np.where(rng.random(3_000) < expit(0.5 * x - 2), "yes", "no"),
    }
    fits = {
        "flat": made("ill ~ share", "bernoulli", Intercept=0.5, share=0),
        "x": made("ill ~ x", "bernoulli", Intercept=-2, x=0.5),
    }
    found = dp.compare(fits, table, epsilon=1.0, delta=1e-6)
    assert found.ranking == ("x", "flat")
    with pytest.raises(ValueError, match="on one table"):
        dp.compare(
            {"x": fits["x"], "half": lambda x: np.full(len(x), -0.7)},
            table,
            epsilon=1.0,
            delta=1e-6,
        )
