import jax
import numpy as np
import numpyro
import pytest

import discreet as dp
from discreet.tabular.models import (
    defaults_for,
    hierarchical,
    linear_regression,
    logistic_regression,
    multinomial_regression,
    negative_binomial_regression,
    poisson_regression,
)

pytestmark = pytest.mark.usefixtures("quick_compilation")

GROUPS = 4
COEFFICIENTS = np.array([[1.0, 0.8, -0.5], [0.2, 0.4, 0.5], [-0.6, 1.0, 0.0], [0.4, -0.2, -1.0]])
SINGLE = [
    negative_binomial_regression,
    *(
        pytest.param(model, marks=pytest.mark.exhaustive)
        for model in (linear_regression, logistic_regression, poisson_regression)
    ),
]


def table(seed: int = 0, size: int = 4_000):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(size, 2)).astype(np.float32)
    group = rng.integers(0, GROUPS, size).astype(np.int32)
    own = COEFFICIENTS[group]
    return x, group, own[:, 0] + np.sum(x * own[:, 1:], axis=1), rng


@pytest.mark.parametrize("regression", SINGLE)
def test_each_regression_has_a_version_with_groups(regression) -> None:
    model = hierarchical(regression, GROUPS)
    x, group, *_ = table(size=5)
    seeded = numpyro.handlers.seed(model, jax.random.key(0))
    trace = numpyro.handlers.trace(seeded).get_trace(x, group)
    assert trace["data"]["args"][0] == 5
    assert trace["group_intercept"]["value"].shape == (GROUPS,)
    assert trace["group_weights"]["value"].shape == (GROUPS, 2)
    assert trace["y"]["value"].shape == (5,)
    assert np.isfinite(trace["y"]["value"]).all()


def test_a_record_meets_its_own_group_only() -> None:
    model = hierarchical(logistic_regression, GROUPS)
    x, group, _, _ = table(size=6)
    group[4], group[5] = -1, GROUPS  # no such groups
    values = {
        "group_intercept": np.arange(GROUPS, dtype=np.float32),
        "group_weights": np.eye(GROUPS, 2, dtype=np.float32),
    }
    fixed = numpyro.handlers.substitute(numpyro.handlers.seed(model, jax.random.key(0)), values)
    logits = np.asarray(numpyro.handlers.trace(fixed).get_trace(x, group)["y"]["fn"].logits)
    known = group[:4]
    by_hand = known + np.sum(x[:4] * np.eye(GROUPS, 2)[known], axis=1)
    np.testing.assert_allclose(logits[:4], by_hand, rtol=1e-5)
    np.testing.assert_array_equal(logits[4:], 0)


def test_classes_in_groups() -> None:
    model = hierarchical(multinomial_regression(3), GROUPS)
    x, group, *_ = table(size=6)
    group[5] = GROUPS  # no such group
    trace = numpyro.handlers.trace(numpyro.handlers.seed(model, jax.random.key(0))).get_trace(
        x, group
    )
    values = {
        name: np.asarray(trace[name]["value"])
        for name in ("group_intercept", "group_weights", "weights")
    }
    assert values["group_intercept"].shape == (GROUPS, 3)
    assert values["group_weights"].shape == (GROUPS, 2, 3)
    for value in values.values():
        np.testing.assert_allclose(value.sum(axis=-1), 0, atol=1e-5)
    known = group[:5]
    by_hand = values["group_intercept"][known] + np.einsum(
        "rf,rfk->rk", x[:5], values["group_weights"][known]
    )
    logits = np.asarray(trace["y"]["fn"].logits)
    np.testing.assert_allclose(logits[:5], by_hand, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(logits[5], 0)
    # The law of a group's weights: normal around the population's with the spread of each, on the
    # plane of the classes.
    fn, spread = trace["group_weights"]["fn"], np.asarray(trace["weights_spread"]["value"])
    apart = values["group_weights"] - values["weights"]
    density = np.sum(-0.5 * np.square(apart / spread[:, None]), axis=-1) - 2 * np.log(
        spread * np.sqrt(2 * np.pi)
    )
    np.testing.assert_allclose(
        fn.log_prob(trace["group_weights"]["value"]), density.sum(), rtol=1e-4
    )


def test_what_has_no_groups_is_refused() -> None:
    for model in (hierarchical(linear_regression, 2), print):
        with pytest.raises(
            ValueError,
            match="has no version with groups: pass logistic_regression, linear_regression",
        ):
            hierarchical(model, 3)
    for wrong in (1, 2.0, True):
        with pytest.raises(ValueError, match="num_groups"):
            hierarchical(linear_regression, wrong)


def fit(regression, y):
    x, group, *_ = table()
    model = hierarchical(regression, GROUPS)
    defaults = defaults_for(model)
    plan = defaults.plan(epsilon=2.0, delta=1e-5, num_records=4_000)
    result = dp.DPSVI(model, defaults.guide(), defaults.optimizer(), plan=plan).run(
        dp.random.key(1), x, group, y, progress_bar=False
    )
    assert result.statement.epsilon <= 2.0
    draws = result.posterior(jax.random.key(0), 200)
    intercept = np.asarray(draws["group_intercept"]).mean(axis=0)
    return np.column_stack(
        [intercept, np.asarray(draws["group_weights"]).mean(axis=0).reshape(GROUPS, -1)]
    )


@pytest.mark.exhaustive
def test_a_private_fit_tells_the_groups_apart() -> None:
    *_, predictor, rng = table()
    found = fit(
        linear_regression,
        (0.5 * predictor + 0.1 * rng.normal(size=len(predictor))).astype(np.float32),
    )
    # 1,000 records a group.
    np.testing.assert_allclose(found, 0.5 * COEFFICIENTS, atol=0.15)


@pytest.mark.exhaustive
def test_a_private_fit_of_classes_tells_the_groups_apart() -> None:
    *_, predictor, rng = table()
    # Of three classes the third is as likely as the second everywhere: weights are the coefficients
    # times (2, -1, -1) / 3.
    scores = np.stack([predictor, 0 * predictor, 0 * predictor], axis=1) + rng.gumbel(
        size=(len(predictor), 3)
    )
    found = fit(multinomial_regression(3), np.argmax(scores, axis=1).astype(np.float32))
    intercepts, weights = found[:, :3], found[:, 3:].reshape(GROUPS, 2, 3)
    np.testing.assert_allclose(intercepts[:, 0], 2 / 3 * COEFFICIENTS[:, 0], atol=0.4)
    np.testing.assert_allclose(weights[:, :, 0], 2 / 3 * COEFFICIENTS[:, 1:], atol=0.4)


@pytest.mark.exhaustive
def test_a_private_fit_of_counts_tells_the_groups_apart() -> None:
    *_, predictor, rng = table()
    found = fit(poisson_regression, rng.poisson(np.exp(predictor)).astype(np.float32))
    np.testing.assert_allclose(found, COEFFICIENTS, atol=0.4)
