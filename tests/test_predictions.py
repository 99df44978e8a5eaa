"""Predictions of regressions and of own models, against closed forms; no fit is needed for these."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import expit, softmax

import discreet as dp
from discreet.methods.moments import MomentsPlan, MomentsResult
from discreet.methods.newton import DPNewtonResult, ModelPlan, NewtonPlan, NewtonResult
from discreet.methods.predict import likelihood_of
from discreet.tabular.tables import encode, encode_features, schema_from_bounds

KEY = dp.random.key(0)
X = np.random.default_rng(0).uniform(-1, 1, (7, 2))
TERMS = {"epsilon": 1.0, "delta": 1e-6, "num_records": 1_000}


def regression(family: str, mean: Any, **changes: Any) -> NewtonResult:
    """A result with this posterior mean and a small spread; what predicts best is half of the mean."""
    mean = np.asarray(mean, float)
    shape = {"num_classes": 3} if family == "classes" else {}
    plan = NewtonPlan.calibrate(family=family, num_features=2, **TERMS, **shape)
    told: dict[str, Any] = dict.fromkeys(("kept", "ratio", "moved", "lack", "counted"), 1.0)
    told |= {"learned": np.ones(len(mean)), "unseen": np.zeros(2, bool), "mean_squares": np.ones(2)}
    told |= {"dispersion": math.nan, "dispersion_range": np.full(2, math.nan)} | changes
    spread = np.eye(len(mean)) * 1e-4
    statement = plan.state(reproducible=True)
    return NewtonResult(
        mean, spread, np.tile(mean / 2, (3, 1)), plan=plan, statement=statement, **told
    )


def line(variance: float = 0.04) -> MomentsResult:
    mean = np.array([0.1, 0.3, -0.2])
    plan = MomentsPlan.calibrate(num_features=2, **TERMS)
    told = {
        "mean_squares": np.ones(2),
        "counted": 1.0,
        "plan": plan,
        "statement": plan.state(reproducible=True),
    }
    return MomentsResult(mean, np.eye(3) * 1e-4, mean / 2, variance, 1e-4, **told)


def test_a_regression_predicts_means_and_outcomes() -> None:
    """Means are of the posterior, and the estimate of the coefficients to predict with. 4,000 draws: chance below 1e-3."""
    found = regression("binary", [0.5, 2.0, -1.0]).predict(X, key=KEY, num_samples=4_000)
    mean = expit(0.5 + X @ [2.0, -1.0])
    np.testing.assert_allclose(found.mean.mean(axis=0), mean, atol=2e-3)
    np.testing.assert_allclose(found.estimate, expit(0.25 + X @ [1.0, -0.5]))
    np.testing.assert_allclose(found.outcomes.mean(axis=0), mean, atol=0.035)
    half = stats.norm.ppf(0.95) * 0.01 * np.sqrt(1 + np.square(X).sum(axis=1)) * mean * (1 - mean)
    np.testing.assert_allclose(np.diff(found.interval, axis=0)[0], 2 * half, rtol=0.1)
    again = regression("binary", [0.5, 2.0, -1.0]).predict(X[3:], key=KEY, num_samples=4_000)
    np.testing.assert_allclose(again.mean, found.mean[:, 3:])  # each row stands for itself


def test_classes_have_their_axis_at_the_end() -> None:
    mean = np.array([[0.5, 2.0, -1.0], [-0.5, -1.0, 1.0], [0.0, -1.0, 0.0]])
    found = regression("classes", mean.ravel()).predict(X, key=KEY, num_samples=4_000)
    wanted = softmax(mean[:, 0] + X @ mean[:, 1:].T, axis=1)
    np.testing.assert_allclose(found.mean.mean(axis=0), wanted, atol=3e-3)
    shares = [np.mean(found.outcomes == k, axis=0) for k in range(3)]
    np.testing.assert_allclose(np.transpose(shares), wanted, atol=0.035)


def test_counts_scatter_as_their_family_says() -> None:
    fit = regression(
        "counts", [1.0, 0.5, -0.5], dispersion=2.0, dispersion_range=np.array([1.99, 2.01])
    )
    mean = np.exp(1.0 + X @ [0.5, -0.5])
    for family, variance in (("poisson", mean), ("negative_binomial", mean + mean**2 / 2)):
        found = fit.predict(X, key=KEY, num_samples=20_000, family=family)
        np.testing.assert_allclose(found.outcomes.mean(axis=0), mean, rtol=0.05)
        np.testing.assert_allclose(found.outcomes.var(axis=0), variance, rtol=0.12)
    with pytest.raises(ValueError, match=r"family is 'gaussian'.*such a target"):
        fit.predict(X, family="gaussian")


def test_a_line_is_in_the_unit_of_the_target() -> None:
    schema = schema_from_bounds("age=20:60,bmi=10:50,pay=0:100", target="pay")
    table = {"age": [25.0, 55.0], "bmi": [20.0, 30.0]}
    records = encode_features(table, schema)
    fit = line()
    found = fit.predict(records, key=KEY, num_samples=4_000)
    x = np.array([[-0.75, -0.5], [0.75, 0.0]])
    np.testing.assert_allclose(records.x, x)
    np.testing.assert_allclose(
        found.mean.mean(axis=0), 50 + 50 * (0.1 + x @ [0.3, -0.2]), atol=0.05
    )
    np.testing.assert_allclose(found.estimate, 50 + 25 * (0.1 + x @ [0.3, -0.2]))
    np.testing.assert_allclose(found.outcomes.std(axis=0), 50 * 0.2, rtol=0.06)
    low, high = found.outcome_interval
    np.testing.assert_allclose(high - low, 2 * 1.645 * 10, rtol=0.1)
    # Of an encoded table with its target the densities are those of the scaled one.
    import pyarrow

    whole = encode(pyarrow.table(table | {"pay": [40.0, 70.0]}), schema)
    density = stats.norm.logpdf([-0.2, 0.4], 0.05 + x @ [0.15, -0.1], 0.2)
    np.testing.assert_allclose(fit.log_density(whole), density, atol=1e-6)


@pytest.mark.parametrize(
    ("family", "y", "also", "wanted"),
    [
        ("bernoulli", [0, 1, 1], None, lambda line, y: stats.bernoulli.logpmf(y, expit(line))),
        ("poisson", [0, 1, 9], None, lambda line, y: stats.poisson.logpmf(y, np.exp(line))),
        (
            "negative_binomial",
            [0, 1, 9],
            1.5,
            lambda line, y: stats.nbinom.logpmf(y, 1.5, 1.5 / (1.5 + np.exp(line))),
        ),
        ("gaussian", [0.1, -1.0, 2.0], 0.7, lambda line, y: stats.norm.logpdf(y, line, 0.7)),
    ],
)
def test_log_densities_are_scipys(family: str, y: Any, also: Any, wanted: Any) -> None:
    line = np.array([-1.0, 0.5, 3.0])
    found = likelihood_of(family).log_density(line, np.array(y, float), also)
    np.testing.assert_allclose(found, wanted(line, np.array(y)), rtol=1e-9)


def test_log_density_is_of_the_mean_over_draws() -> None:
    fit = regression("classes", np.arange(9.0) / 4)
    y = np.array([0, 1, 2, 0, 1, 2, 0])
    wanted = np.log(fit.predict(X, num_samples=2).estimate[np.arange(7), y])
    np.testing.assert_allclose(fit.log_density(X, y), wanted)
    with pytest.raises(ValueError, match="one target for each row"):
        fit.log_density(X, y[:3])
    with pytest.raises(ValueError, match="2 features of the fit"):
        fit.predict(X[:, :1])


@pytest.mark.parametrize(
    ("family", "mean"),
    [("binary", [0.5, 2, -1]), ("counts", [0.5, 1, -1]), ("classes", np.arange(9) / 4)],
)
def test_a_missing_cell_is_no_outcome(family: str, mean: Any) -> None:
    """Neither of the features nor of the target: a missing one counted as 0, or as the last class."""
    fit = regression(family, mean)
    x = X.copy()
    x[2, 1] = math.nan
    found = fit.predict(x, key=KEY, num_samples=50)
    whole = fit.predict(X, key=KEY, num_samples=50)
    for part, other in ((found.estimate, whole.estimate), (found.mean[0], whole.mean[0])):
        assert np.isnan(part[2]).all()
        np.testing.assert_allclose(np.delete(part, 2, axis=0), np.delete(other, 2, axis=0))
    assert np.isnan(found.outcomes[:, 2]).all()
    assert np.isfinite(np.delete(found.outcomes, 2, axis=1)).all()
    y = np.array([0, math.nan, 1, 0, 1, 0, 1])
    np.testing.assert_array_equal(
        np.isnan(fit.log_density(x, y)), [False, True, True, *[False] * 4]
    )


def test_what_is_no_class_has_no_density_and_is_not_quoted() -> None:
    fit = regression("classes", np.arange(9.0) / 4)
    found = fit.log_density(X, np.array([0, 1, 2, -1, 3, 0.5, -4e9]))
    np.testing.assert_array_equal(np.isnan(found), [False] * 3 + [True] * 4)


def own(x: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Poisson(np.e ** (w * x)), obs=y)


def test_an_own_model_predicts_by_the_same_words() -> None:
    plan = ModelPlan.calibrate(**TERMS)
    draws = {"w": np.linspace(0.4, 0.6, 500)}
    told: dict[str, Any] = dict.fromkeys(
        ("clipped", "counted", "silent", "audible", "ratio", "moved", "lack"), 1.0
    )
    statement = plan.state(reproducible=True, num_touched=1, num_latents=1, fitted="own")
    fit = DPNewtonResult(draws, {"w": np.ones(())}, **told, plan=plan, statement=statement)
    x = np.array([0.0, 2.0])
    found = fit.predict(own, x, key=KEY, num_samples=4_000)
    np.testing.assert_allclose(found.mean.mean(axis=0), np.exp(0.5 * x), rtol=0.02)
    np.testing.assert_allclose(found.outcomes.mean(axis=0), np.exp(0.5 * x), rtol=0.06)
    y = np.array([1, 4])
    wanted = np.log(stats.poisson.pmf(y, np.exp(draws["w"][:, None] * x)).mean(axis=0))
    np.testing.assert_allclose(fit.log_density(own, x, y), wanted, rtol=1e-4)
    with pytest.raises(ValueError, match="no known outcome"):
        fit.log_density(own, x)
