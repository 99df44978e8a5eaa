"""NumPyro's mixture and neural-network examples, written as there, fit under DPSVI as under SVI."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import nnx
from jax.example_libraries import stax
from jax.flatten_util import ravel_pytree
from numpyro.contrib.module import nnx_module
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO, init_to_value
from numpyro.infer.autoguide import AutoNormal

from discreet import random
from discreet.methods.inference import DPSVI

pytestmark = pytest.mark.usefixtures("quick_compilation")

rng = np.random.default_rng(2023)
ROWS = 160
POINTS = np.concatenate([rng.normal(-2.0, 0.5, ROWS // 2), rng.normal(1.5, 1.0, ROWS // 2)]).astype(
    np.float32
)
INPUTS = np.linspace(-1, 1, ROWS, dtype=np.float32)[:, None] ** np.arange(3, dtype=np.float32)
OUTPUTS = (np.sin(3 * INPUTS[:, 1:2]) + 0.3 * rng.normal(size=(ROWS, 1))).astype(np.float32)
PIXELS = 12
IMAGES = (rng.random((ROWS, PIXELS)) < 0.1 + 0.8 * (np.arange(ROWS) % 2 == 0)[:, None]).astype(
    np.float32
)


def gaussian_mixture(data, num_components=2):
    weights = numpyro.sample("weights", dist.Dirichlet(0.5 * jnp.ones(num_components)))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 2.0))
    with numpyro.plate("components", num_components):
        locs = numpyro.sample("locs", dist.Normal(0.0, 10.0))
    with numpyro.plate("data", len(data)):
        mixture = dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(locs, scale))
        numpyro.sample("obs", mixture, obs=data)


def bayesian_network(X, Y, D_H, D_Y=1):
    N, D_X = X.shape
    w1 = numpyro.sample("w1", dist.Normal(jnp.zeros((D_X, D_H)), jnp.ones((D_X, D_H))))
    z1 = jnp.tanh(jnp.matmul(X, w1))
    w2 = numpyro.sample("w2", dist.Normal(jnp.zeros((D_H, D_H)), jnp.ones((D_H, D_H))))
    z2 = jnp.tanh(jnp.matmul(z1, w2))
    w3 = numpyro.sample("w3", dist.Normal(jnp.zeros((D_H, D_Y)), jnp.ones((D_H, D_Y))))
    z3 = jnp.matmul(z2, w3)
    assert z3.shape == (N, D_Y)
    if Y is not None:
        assert z3.shape == Y.shape
    prec_obs = numpyro.sample("prec_obs", dist.Gamma(3.0, 1.0))
    sigma_obs = 1.0 / jnp.sqrt(prec_obs)
    with numpyro.plate("data", N):
        numpyro.sample("Y", dist.Normal(z3, sigma_obs).to_event(1), obs=Y)


def encoder(hidden_dim, z_dim):
    return stax.serial(
        stax.Dense(hidden_dim, W_init=stax.randn()),
        stax.Softplus,
        stax.FanOut(2),
        stax.parallel(
            stax.Dense(z_dim, W_init=stax.randn()),
            stax.serial(stax.Dense(z_dim, W_init=stax.randn()), stax.Exp),
        ),
    )


def decoder(hidden_dim, out_dim):
    return stax.serial(
        stax.Dense(hidden_dim, W_init=stax.randn()),
        stax.Softplus,
        stax.Dense(out_dim, W_init=stax.randn()),
        stax.Sigmoid,
    )


def vae(batch, hidden_dim=8, z_dim=2):
    batch = jnp.reshape(batch, (batch.shape[0], -1))
    batch_dim, out_dim = jnp.shape(batch)
    decode = numpyro.module("decoder", decoder(hidden_dim, out_dim), (batch_dim, z_dim))
    with numpyro.plate("batch", batch_dim):
        z = numpyro.sample("z", dist.Normal(0, 1).expand([z_dim]).to_event(1))
        img_loc = decode(z)
        return numpyro.sample("obs", dist.Bernoulli(img_loc).to_event(1), obs=batch)


def vae_guide(batch, hidden_dim=8, z_dim=2):
    batch = jnp.reshape(batch, (batch.shape[0], -1))
    batch_dim, out_dim = jnp.shape(batch)
    encode = numpyro.module("encoder", encoder(hidden_dim, z_dim), (batch_dim, out_dim))
    z_loc, z_std = encode(batch)
    with numpyro.plate("batch", batch_dim):
        return numpyro.sample("z", dist.Normal(z_loc, z_std).to_event(1))


class Decoder(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(2, PIXELS, rngs=rngs)

    def __call__(self, z):
        return self.linear(z)


class Encoder(nnx.Module):
    def __init__(self, rngs):
        self.loc = nnx.Linear(PIXELS, 2, rngs=rngs)
        self.log_scale = nnx.Linear(PIXELS, 2, rngs=rngs)

    def __call__(self, x):
        return self.loc(x), jnp.exp(self.log_scale(x))


def flax_vae():
    decoder_module, encoder_module = Decoder(nnx.Rngs(0)), Encoder(nnx.Rngs(1))

    def model(batch):
        decode = nnx_module("decoder", decoder_module)
        with numpyro.plate("batch", batch.shape[0]):
            z = numpyro.sample("z", dist.Normal(0, 1).expand([2]).to_event(1))
            numpyro.sample("obs", dist.Bernoulli(logits=decode(z)).to_event(1), obs=batch)

    def guide(batch):
        loc, scale = nnx_module("encoder", encoder_module)(batch)
        with numpyro.plate("batch", batch.shape[0]):
            numpyro.sample("z", dist.Normal(loc, scale).to_event(1))

    return model, guide


@pytest.fixture(name="mixture", scope="module")
def _mixture(twins):
    start = {"locs": jnp.array([-1.0, 1.0]), "weights": jnp.array([0.5, 0.5]), "scale": 1.0}
    guide = AutoNormal(gaussian_mixture, init_loc_fn=init_to_value(values=start))
    return twins(lambda: (gaussian_mixture, guide), POINTS)


@pytest.fixture(name="network", scope="module")
def _network(twins):
    guide = AutoNormal(bayesian_network, init_scale=0.02)
    return twins(
        lambda: (bayesian_network, guide), INPUTS, OUTPUTS, 4, num_steps=6000, step_size=0.01
    )


@pytest.mark.exhaustive
def test_a_mixtures_step_is_numpyros(mixture):
    mixture.first_step().check()


@pytest.mark.exhaustive
def test_a_mixture_ends_where_numpyros_does(mixture):
    fits = mixture.fit()
    fits.check_elbo(nats=0.3)
    fits.check_normal(locations=0.3, scales=0.2)


@pytest.mark.exhaustive
def test_a_bayesian_networks_step_is_numpyros(network):
    network.first_step().check()


@pytest.mark.exhaustive
def test_a_bayesian_network_ends_where_numpyros_does(network):
    # Its weights have symmetries and flat directions; what must agree is how well they fit.
    fits = network.fit()
    fits.check_elbo(nats=1.0)


@pytest.mark.parametrize(
    ("program", "loss"),
    [
        pytest.param(lambda: (vae, vae_guide), Trace_ELBO, marks=pytest.mark.exhaustive),
        (flax_vae, TraceMeanField_ELBO),
    ],
    ids=["stax", "nnx, mean field"],
)
def test_an_amortised_step_is_numpyros_on_average(exact_plan, program, loss):
    """Each record's latent has its own draw, so averages are compared: some 300 z-scores, false alarms below 2e-4."""
    model, guide = program()
    dpsvi = DPSVI(model, guide, numpyro.optim.SGD(1.0), loss(), plan=exact_plan(ROWS))
    state = dpsvi.init(random.key(0), IMAGES)
    psi = dpsvi.optim.get_params(state.optim_state)
    objective = dpsvi._current.objective

    def ours(psi, key):
        u, free = objective.link(psi, key)
        keys = jax.random.split(key, ROWS)
        return free + jnp.sum(jax.vmap(objective.record_loss, (None, 0, 0))(u, [IMAGES], keys))

    def numpyros(psi, key):
        return loss().loss(key, psi, model, guide, IMAGES)

    def moments(function, key):
        def one(draw):
            return ravel_pytree(jax.value_and_grad(function)(psi, draw))[0]

        values = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(key, 400)), np.float64)
        return values.mean(axis=0), values.var(axis=0) / len(values)

    (mean, variance), (expected, its_variance) = (
        moments(ours, jax.random.key(1)),
        moments(numpyros, jax.random.key(2)),
    )
    scores = np.abs(mean - expected) / np.sqrt(variance + its_variance + 1e-8)
    assert scores.max() < 5.0


@pytest.mark.exhaustive
def test_a_variational_autoencoder_ends_where_numpyros_does(twins):
    fits = twins(lambda: (vae, vae_guide), IMAGES, num_steps=2000).fit(particles=30)
    fits.check_elbo(nats=10.0)
