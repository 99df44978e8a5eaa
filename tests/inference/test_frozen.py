"""What no record's gradient reaches stays as NumPyro leaves it: it is no part of the release, and gets no noise."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax.lax import stop_gradient
from numpyro.infer.autoguide import AutoNormal

import discreet as dp
from discreet.methods.inference._langevin import Langevin
from discreet.methods.inference._optimizers import start_optimizer
from discreet.methods.inference._point_guide import PointGuide
from discreet.privacy.mechanisms import levels_for

pytestmark = pytest.mark.usefixtures("quick_compilation")

ROWS = 40
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
Y = (X @ np.array([1.0, -1.0, 0.5]) + 2.0).astype(np.float32)
PRETRAINED = np.array([1.0, -1.0, 0.5], np.float32)
PLAN = dp.PrivacyPlan(
    sampling=dp.PoissonSampling(0.5),
    clipping_norm=1.0,
    noise_multiplier=3.0,
    num_steps=6,
    num_records=ROWS,
)


def model(x, y):
    """Frozen: one parameter; a part of another; a latent in the likelihood; a parameter but for its part in a prior."""
    weights = stop_gradient(numpyro.param("pretrained", jnp.asarray(PRETRAINED)))
    net = numpyro.param("net", {"free": jnp.zeros(2), "frozen": jnp.full((3, 2), 0.3)})
    level = numpyro.sample("level", dist.Normal(0.0, 1.0))
    cut = numpyro.sample("cut", dist.Normal(numpyro.param("center", 0.7), 1.0))
    mean = (
        x @ weights
        + jnp.tanh(x @ stop_gradient(net["frozen"])) @ net["free"]
        + level
        + stop_gradient(cut)
    )
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def fit(perturb="latents", optim=None, **options):
    guide = AutoNormal(model)
    dpsvi = dp.DPSVI(model, guide, optim or numpyro.optim.Adam(0.1), plan=PLAN, perturb=perturb)
    return dpsvi, dpsvi.run(dp.random.key(1), X, Y, progress_bar=False, **options)


@pytest.mark.parametrize("perturb", ["latents", "parameters"])
def test_frozen_parameters_stay_bit_for_bit(perturb) -> None:
    dpsvi, result = fit(perturb)
    for params in (result.params, result.last_params):
        assert np.array_equal(params["pretrained"], PRETRAINED)
        assert np.all(params["net"]["frozen"] == np.float32(0.3))
        assert np.all(params["net"]["free"] != 0)  # the noise of a fit
    (note,) = (x for x in result.statement.notes if "stop_gradient" in x)
    assert "'net', 'pretrained'" in note
    assert ("'cut'" in note) == (perturb == "latents")
    # level and net's free part; or those, and center, loc and scale of both latents; with loss and
    # counts.
    step = dpsvi._current
    assert step.released == (6 if perturb == "latents" else 10)
    assert step.levels == levels_for(PLAN.noise_multiplier, step.released)


def test_what_moves_without_records_moves_without_noise() -> None:
    """The prior of `cut` alone has center in it, so that two keys give one path as far as that is concerned."""
    optim = optax.sgd(0.1)
    dpsvi = dp.DPSVI(model, PointGuide(model), optim, plan=PLAN)
    centers = [
        dpsvi.run(dp.random.key(seed), X, Y, progress_bar=False).last_params for seed in (1, 2)
    ]
    assert centers[0]["center"] == centers[1]["center"] != np.float32(0.7)
    assert centers[0]["cut_unconstrained"] == centers[1]["cut_unconstrained"] != 0
    assert centers[0]["level_unconstrained"] != centers[1]["level_unconstrained"]


def test_the_values_are_those_of_the_step_where_the_optimizer_moves_them(exact_plan) -> None:
    """A loss is computed with what weight decay made of a frozen parameter, and not with its initial value."""

    def decaying(y):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample(
                "y", dist.Normal(level + stop_gradient(numpyro.param("offset", 1.0)), 1.0), obs=y
            )

    optim = optax.chain(optax.add_decayed_weights(1.0), optax.sgd(0.1))
    dpsvi = dp.DPSVI(decaying, PointGuide(decaying), optim, plan=exact_plan(4, 2))
    y = np.full(4, 2.0, np.float32)
    params = dpsvi.run(dp.random.key(1), y, progress_bar=False).last_params
    # 0.4 after a step; then the gradient is -4 (2 - 0.4 - 0.9) + 0.4, and the decay 0.4.
    assert np.allclose(params["offset"], 0.81)
    assert np.allclose(params["level_unconstrained"], 0.6, atol=1e-4)


TIMES_ZERO = {
    "a number": lambda x, weights: 0 * (x @ weights),
    "compiled": jax.jit(
        lambda x, weights: x @ jnp.where(True, weights * np.zeros(3, np.float32), 0)
    ),
}


@pytest.mark.parametrize("way", TIMES_ZERO)
def test_a_parameter_times_zero_is_frozen(way) -> None:
    def times_zero(x, y):
        weights = numpyro.param("pretrained", jnp.asarray(PRETRAINED))
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(TIMES_ZERO[way](x, weights) + level, 1.0), obs=y)

    dpsvi = dp.DPSVI(times_zero, PointGuide(times_zero), numpyro.optim.Adam(0.1), plan=PLAN)
    params = dpsvi.run(dp.random.key(1), X, Y, progress_bar=False).last_params
    assert np.array_equal(params["pretrained"], PRETRAINED)
    assert params["level_unconstrained"] != 0


def test_langevin_dynamics_add_all_noise_where_the_release_has_none() -> None:
    def cut_model(x, y):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        cut = numpyro.sample("cut", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(level + stop_gradient(cut), 1.0), obs=y)

    dpsvi = dp.DPSVI(cut_model, PointGuide(cut_model), numpyro.optim.Adam(0.1), plan=PLAN)
    state = dpsvi.init(dp.random.key(1), X, Y)
    psi = dpsvi.optim.get_params(state.optim_state)
    _, chain = start_optimizer(
        Langevin(lambda t: 0.1, lambda: 1.0), psi, dp.random.key(1), dpsvi._current.objective
    )
    assert chain.reached == {"level_unconstrained": 1.0, "cut_unconstrained": 0.0}


def test_nothing_to_learn_is_refused(refused) -> None:
    def all_frozen(x, y):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.sample("y", dist.Normal(stop_gradient(level), 1.0), obs=y)

    dpsvi = dp.DPSVI(all_frozen, AutoNormal(all_frozen), numpyro.optim.Adam(0.1), plan=PLAN)
    with refused(ValueError, "has a gradient in a latent or a parameter", "stop_gradient"):
        dpsvi.init(dp.random.key(1), X, Y)
