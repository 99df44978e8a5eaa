"""Every continuous AutoGuide fits, its parameters work with NumPyro afterwards, and it forgets data it saw before."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro.handlers as handlers
import optax
import pytest
from numpyro.infer import SVI, Predictive, Trace_ELBO, init_to_sample
from numpyro.infer.autoguide import (
    AutoBatchedLowRankMultivariateNormal,
    AutoBatchedMultivariateNormal,
    AutoBNAFNormal,
    AutoDAIS,
    AutoDelta,
    AutoDiagonalNormal,
    AutoGuideList,
    AutoIAFNormal,
    AutoLaplaceApproximation,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    AutoSemiDAIS,
    AutoSurrogateLikelihoodDAIS,
)

from discreet import random
from discreet.methods.inference import DPSVI
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.sampling import PoissonSampling

pytestmark = pytest.mark.usefixtures("quick_compilation")

rng = np.random.default_rng(11)
ROWS = 100
GROUPS = 3
X = jnp.asarray(rng.normal(size=(ROWS, 2)), jnp.float32)
GROUP = jnp.asarray(rng.integers(0, GROUPS, ROWS))
Y = jnp.asarray(rng.normal(size=ROWS), jnp.float32) + GROUP
PLAN = PrivacyPlan(
    sampling=PoissonSampling(0.3),
    clipping_norm=2.0,
    noise_multiplier=1.0,
    num_steps=30,
    num_records=ROWS,
)
SHAPES = {"effect": (GROUPS,), "noise": (), "slope": (2,)}


def model(x, group, y=None):
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([2]).to_event(1))
    noise = numpyro.sample("noise", dist.LogNormal(0, 1))
    with numpyro.plate("groups", GROUPS):
        effect = numpyro.sample("effect", dist.Normal(0, 2))
    with numpyro.plate("people", x.shape[0]):
        numpyro.sample("y", dist.Normal(effect[group] + x @ slope, noise), obs=y)


def batched(x, group, y=None):
    """All latents have a batch dimension of the groups, as AutoBatched guides want it."""
    with numpyro.plate("groups", GROUPS):
        effect = numpyro.sample("effect", dist.Normal(0, 2))
        noise = numpyro.sample("noise", dist.LogNormal(0, 1))
        slope = numpyro.sample("slope", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("people", x.shape[0]):
        mean = effect[group] + jnp.sum(x * slope[group], axis=-1)
        numpyro.sample("y", dist.Normal(mean, noise[group]), obs=y)


BATCHED_SHAPES = {"effect": (GROUPS,), "noise": (GROUPS,), "slope": (GROUPS, 2)}


def guide_list(program):
    guide = AutoGuideList(program)
    guide.append(AutoDelta(handlers.block(program, hide=["slope", "effect"])))
    guide.append(AutoMultivariateNormal(handlers.block(program, hide=["noise"])))
    return guide


GUIDES = {
    "delta": (model, AutoDelta, SHAPES),
    "normal": (model, AutoNormal, SHAPES),
    "diagonal": (model, AutoDiagonalNormal, SHAPES),
    "low rank": (model, AutoLowRankMultivariateNormal, SHAPES),
    "multivariate": (model, AutoMultivariateNormal, SHAPES),
    "batched": (batched, lambda m: AutoBatchedMultivariateNormal(m, batch_ndim=1), BATCHED_SHAPES),
    "batched low rank": (
        batched,
        lambda m: AutoBatchedLowRankMultivariateNormal(m, batch_ndim=1),
        BATCHED_SHAPES,
    ),
    "inverse autoregressive flow": (model, lambda m: AutoIAFNormal(m, hidden_dims=[8]), SHAPES),
    "neural autoregressive flow": (model, lambda m: AutoBNAFNormal(m, hidden_factors=[4]), SHAPES),
    "list": (model, guide_list, SHAPES),
}


_MORE = {
    "delta",
    "batched",
    "multivariate",
    "list",
    "diagonal",
    "low rank",
    "batched low rank",
    "inverse autoregressive flow",
    "neural autoregressive flow",
}


@pytest.fixture(
    name="fit",
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.exhaustive] * (name in _MORE)) for name in GUIDES
    ],
)
def _fit(request):
    program, make_guide, shapes = GUIDES[request.param]
    guide = make_guide(program)
    dpsvi = DPSVI(program, guide, optax.adam(0.01), plan=PLAN)
    return (
        request.param,
        program,
        guide,
        shapes,
        dpsvi.run(random.key(5), X, GROUP, Y, progress_bar=False),
    )


def test_a_fit_stays_finite_and_moves(fit):
    _, _, _, _, result = fit
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(result.params))
    assert np.all(np.isfinite(result.losses))
    assert np.any(result.trace.iterates[0] != result.trace.iterates[-1])


def test_the_posterior_has_the_models_names_and_shapes(fit):
    _, program, _, shapes, result = fit
    draws = result.posterior(jax.random.key(1), 7)
    assert {name: x.shape[1:] for name, x in draws.items()} == shapes
    assert all(np.all(np.isfinite(x)) for x in draws.values())
    assert np.all(draws["noise"] > 0)
    predicted = Predictive(program, draws)(jax.random.key(2), X[:5], GROUP[:5])
    assert predicted["y"].shape == (7, 5)


def test_the_parameters_work_with_numpyros_guide(fit):
    name, program, guide, shapes, result = fit
    draws = guide.sample_posterior(jax.random.key(1), result.params, sample_shape=(7,))
    assert {name: draws[name].shape[1:] for name in shapes} == shapes
    predictive = Predictive(program, guide=guide, params=result.params, num_samples=4)
    assert predictive(jax.random.key(3), X[:5], GROUP[:5])["y"].shape == (4, 5)
    if name.endswith("flow"):
        return
    median = guide.median(result.params)
    assert {name: jnp.shape(median[name]) for name in shapes} == shapes
    if name not in ("delta", "list", "batched", "batched low rank"):
        low, high = 0.1, 0.9
        quantiles = guide.quantiles(result.params, [low, high])
        assert all(np.all(quantiles[name][0] < quantiles[name][1]) for name in shapes)


def test_numpyros_svi_can_take_over_the_parameters(fit):
    """On public data, say: a private fit's guide and parameters are an ordinary start for SVI."""
    _, program, guide, _, result = fit
    svi = SVI(program, guide, numpyro.optim.Adam(0.01), Trace_ELBO())
    state = svi.init(jax.random.key(0), X, GROUP, Y, init_params=result.params)
    kept = svi.get_params(state)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), kept, result.params
    )


@pytest.mark.parametrize(
    "guide",
    [AutoLaplaceApproximation, AutoDAIS, AutoSurrogateLikelihoodDAIS, AutoSemiDAIS],
    ids=lambda g: g.__name__,
)
def test_guides_that_read_the_data_are_refused(guide):
    if guide is AutoSurrogateLikelihoodDAIS:
        made = guide(model, model)
    elif guide is AutoSemiDAIS:
        made = guide(model, local_model=lambda theta: None)
    else:
        made = guide(model)
    with pytest.raises(ValueError, match=rf"{guide.__name__} reads the data.*Use AutoNormal"):
        DPSVI(model, made, optax.adam(0.01), plan=PLAN).init(random.key(0), X, GROUP, Y)


def test_a_list_with_a_part_that_reads_the_data_is_refused():
    guide = AutoGuideList(model)
    guide.append(AutoNormal(handlers.block(model, hide=["slope"])))
    guide.append(AutoLaplaceApproximation(handlers.block(model, expose=["slope"])))
    with pytest.raises(ValueError, match="AutoLaplaceApproximation reads the data"):
        DPSVI(model, guide, optax.adam(0.01), plan=PLAN).init(random.key(0), X, GROUP, Y)


@pytest.mark.parametrize(
    "make_guide",
    [
        AutoNormal,
        pytest.param(guide_list, marks=pytest.mark.exhaustive),
        pytest.param(
            lambda m: AutoNormal(m, init_loc_fn=init_to_sample), marks=pytest.mark.exhaustive
        ),
    ],
)
def test_initial_values_know_nothing_of_any_data(make_guide):
    """Neither of the data of this fit, nor of data that the guide saw in an earlier one."""

    def start(guide, y):
        dpsvi = DPSVI(model, guide, optax.adam(0.01), plan=PLAN)
        return dpsvi.get_params(dpsvi.init(random.key(5), X, GROUP, y))

    fresh = start(make_guide(model), Y)
    other = start(make_guide(model), jnp.full_like(Y, 1e6))
    used = make_guide(model)
    SVI(model, used, numpyro.optim.Adam(0.1), Trace_ELBO()).init(jax.random.key(99), X, GROUP, Y)
    again = start(used, Y)
    for values in (other, again):
        assert set(values) == set(fresh)
        for name, value in fresh.items():
            np.testing.assert_array_equal(value, values[name], err_msg=name)


def test_initial_values_follow_the_fits_key():
    dpsvi = DPSVI(model, AutoNormal(model), optax.adam(0.01), plan=PLAN)
    one, two = (dpsvi.get_params(dpsvi.init(random.key(seed), X, GROUP, Y)) for seed in (1, 2))
    assert np.any(one["slope_auto_loc"] != two["slope_auto_loc"])


def test_an_exposure_of_zero_has_a_finite_density_and_no_finite_gradient():
    """Where NumPyro's search refuses a placeholder of zeros, one of ones is tried."""

    def model(x, exposure, y=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Poisson(exposure * jnp.exp(x @ w)), obs=y)

    plan = PrivacyPlan(
        sampling=PoissonSampling(0.1),
        clipping_norm=1.0,
        noise_multiplier=1.0,
        num_steps=3,
        num_records=ROWS,
    )
    records = X, jnp.full(ROWS, 2.5), jnp.ones(ROWS, jnp.int32)
    dpsvi = DPSVI(model, AutoNormal(model), numpyro.optim.Adam(1e-2), plan=plan)
    params = dpsvi.get_params(dpsvi.init(random.key(1), *records))
    assert np.isfinite(params["w_auto_loc"]).all()
    nothing = DPSVI(
        model,
        AutoNormal(model),
        numpyro.optim.Adam(1e-2),
        plan=plan,
        placeholder=(X[:1], jnp.zeros(1), jnp.zeros(1)),
    )
    with pytest.raises(ValueError, match="finite density and gradient"):
        nothing.init(random.key(2), *records)
