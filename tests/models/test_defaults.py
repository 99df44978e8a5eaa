import dataclasses

import jax
import numpy as np
import numpyro
import pytest

import discreet as dp
from discreet.tabular.models import (
    Defaults,
    MixtureOfProducts,
    defaults_for,
    hierarchical,
    linear_regression,
    logistic_regression,
    multinomial_regression,
    negative_binomial_regression,
    poisson_regression,
)
from discreet.tabular.tables import schema_from_bounds

pytestmark = pytest.mark.usefixtures("quick_compilation")

NUMBERS = schema_from_bounds("a=0:1,b=0:1")
MODELS = [
    linear_regression,
    logistic_regression,
    poisson_regression,
    negative_binomial_regression,
    multinomial_regression(3),
    hierarchical(linear_regression, 3),
    MixtureOfProducts(NUMBERS),
]


@pytest.mark.parametrize("model", MODELS)
def test_each_model_has_defaults_and_they_have_a_price(model) -> None:
    defaults = defaults_for(model)
    assert defaults.model is model
    # The price follows from the plan, and is known without calibrating each.
    sampling = dp.PoissonSampling(min(1.0, defaults.expected_batch / 30_000))
    plan = dp.PrivacyPlan(
        sampling=sampling,
        clipping_norm=defaults.clipping_norm,
        noise_multiplier=5.0,
        num_steps=defaults.num_steps,
        num_records=30_000,
    )
    assert 0 < plan.epsilon(1e-5) < 2
    assert callable(defaults.guide())
    assert isinstance(defaults.optimizer(), numpyro.optim.Adam)


def test_the_settings_of_a_fit_that_is_given_none() -> None:
    defaults = defaults_for(logistic_regression)
    assert (defaults.num_steps, defaults.expected_batch, defaults.learning_rate) == (
        1000,
        1000,
        0.02,
    )
    plan = defaults.plan(epsilon=1.0, num_records=30_000)
    assert defaults.clipping_norm == plan.clipping_norm == dp.AdaptiveClipping()


def test_the_plan_keeps_to_epsilon_and_batches_to_the_table() -> None:
    plan = defaults_for(logistic_regression).plan(epsilon=1.0, num_records=30_000)
    assert plan.epsilon(plan.target_delta) <= 1.0
    assert plan.target_delta == dp.accounting.suggest(num_records=30_000).delta
    assert plan.rate == pytest.approx(1_000 / 30_000)
    small = defaults_for(logistic_regression).plan(epsilon=1.0, delta=1e-6, num_records=300)
    assert small.rate == 1.0
    assert small.target_delta == 1e-6


def test_settings_can_be_changed_one_by_one() -> None:
    defaults = dataclasses.replace(
        defaults_for(linear_regression), num_steps=7, expected_batch=10, clipping_norm=3.0
    )
    plan = defaults.plan(epsilon=1.0, num_records=100)
    assert (plan.num_steps, plan.rate, plan.clipping_norm) == (7, 0.1, 3.0)


def test_a_model_of_ones_own_has_the_settings_of_all_and_what_is_no_model_is_refused() -> None:
    def own(x):
        return x

    assert defaults_for(own) == Defaults(own)
    assert dataclasses.replace(defaults_for(logistic_regression), model=own) == Defaults(own)
    with pytest.raises(TypeError, match="is no model"):
        defaults_for(object())


@pytest.mark.exhaustive
def test_a_guide_starts_at_a_point_that_is_no_accident() -> None:
    x = np.zeros((1, 2), np.float32)
    starts = []
    for seed in (0, 1):
        guide = defaults_for(poisson_regression).guide()
        with numpyro.handlers.seed(rng_seed=seed):
            guide(x, np.zeros(1, np.float32))
        starts.append(guide._init_locs)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all() and (a == 0).all()), *starts))


# --- fits with the defaults ---------------------------------------------------------------

WEIGHTS = np.array([0.8, -0.5, 0.0])


def counts(size: int, scatter: float):
    rng = np.random.default_rng(7)
    x = rng.uniform(-1, 1, size=(size, 3)).astype(np.float32)
    mean = np.exp(1.0 + x @ WEIGHTS)
    return x, rng.poisson(rng.gamma(scatter, mean / scatter)).astype(np.float32)


def fit(defaults: Defaults, records, epsilon: float = 1.0):
    plan = defaults.plan(epsilon=epsilon, delta=1e-5, num_records=len(records[0]))
    result = defaults.dpsvi(plan).run(dp.random.key(3), *records, progress_bar=False)
    # `run` has proved it, and the price is the plan's.
    assert result.statement.epsilon <= epsilon
    return result


@pytest.mark.exhaustive
def test_negative_binomial_regression_finds_weights_and_scatter() -> None:
    result = fit(defaults_for(negative_binomial_regression), counts(6_000, scatter=2.0))
    draws = {
        name: np.asarray(values).mean(axis=0)
        for name, values in result.posterior(jax.random.key(0), 200).items()
    }
    np.testing.assert_allclose(draws["weights"], WEIGHTS, atol=0.25)
    assert draws["intercept"] == pytest.approx(1.0, abs=0.2)
    assert 1.2 < draws["concentration"] < 3.4


@pytest.mark.exhaustive
def test_multinomial_regression_finds_the_classes() -> None:
    rng = np.random.default_rng(7)
    x = rng.uniform(-1, 1, size=(6_000, 2)).astype(np.float32)
    weights = np.array([[1.0, -1.0, 0.0], [0.0, 0.8, -0.8]])
    y = np.argmax(x @ weights + rng.gumbel(size=(len(x), 3)), axis=1).astype(np.float32)
    draws = fit(defaults_for(multinomial_regression(3)), (x, y)).posterior(jax.random.key(0), 200)
    np.testing.assert_allclose(np.asarray(draws["weights"]).mean(axis=0), weights, atol=0.3)
    np.testing.assert_allclose(np.sum(draws["weights"], axis=-1), 0, atol=1e-5)
