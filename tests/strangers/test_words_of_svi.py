"""Arguments of `SVI.run`, and layers with state."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from flax import linen, nnx
from numpyro.contrib.module import flax_module, nnx_module

import discreet as dp

pytestmark = pytest.mark.usefixtures("quick_compilation")

N = 40
rng = np.random.default_rng(2)
X = jnp.asarray(rng.normal(size=(N, 2)), jnp.float32)
Y = jnp.asarray(rng.normal(size=N), jnp.float32)


def model(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)


def test_words_of_svi(stranger):
    fit = stranger(model, X, Y).dpsvi
    with pytest.raises(ValueError, match=r"init_state.*init_params"):
        fit.run(dp.random.key(1), X, Y, init_state=object(), progress_bar=False)
    with pytest.raises(ValueError, match="reverse mode"):
        fit.run(dp.random.key(1), X, Y, forward_mode_differentiation=True, progress_bar=False)
    words = {"stable_update": True, "forward_mode_differentiation": False, "init_state": None}
    assert fit.run(dp.random.key(1), X, Y, progress_bar=False, **words).params


def with_a_layer(make):
    class Network(nnx.Module):
        def __init__(self):
            self.linear = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
            self.layer = make()
            self.out = nnx.Linear(2, 1, rngs=nnx.Rngs(1))

        def __call__(self, x):
            return self.out(self.layer(self.linear(x)))[..., 0]

    network = Network()

    def program(x, y):
        """`prodlda`: a network with batch normalisation or dropout."""
        net = nnx_module("net", network)
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(net(x), 1), obs=y)

    return program


def no_latents(x, y):
    """The guide of a model without latents."""


def test_fixed_statistics_are_constants(stranger):
    fixed = with_a_layer(lambda: nnx.BatchNorm(2, use_running_average=True, rngs=nnx.Rngs(0)))
    program = stranger(fixed, X, Y, guide=no_latents)
    losses, _ = program.losses()
    assert np.all(np.isfinite(losses))
    assert program.certify()
    off = with_a_layer(lambda: nnx.Dropout(0.5, deterministic=True, rngs=nnx.Rngs(0)))
    stranger(off, X, Y, guide=no_latents).start()


@pytest.mark.essential
def test_moving_statistics_are_refused(stranger):
    moving = with_a_layer(lambda: nnx.BatchNorm(2, use_running_average=False, rngs=nnx.Rngs(0)))
    assert (
        "carries state from record to record" in stranger(moving, X, Y, guide=no_latents).refusal()
    )
    on = with_a_layer(lambda: nnx.Dropout(0.5, rngs=nnx.Rngs(0)))
    assert "counter of random numbers" in stranger(on, X, Y, guide=no_latents).refusal()


def topics(counts, fixed):
    """`prodlda`: the networks of model and guide have batch normalisation, of Flax."""
    net = flax_module(
        "decoder", Normalised(3), input_shape=(1, 2), mutable=["batch_stats"], fixed=False
    )
    with numpyro.plate("documents", len(counts)):
        weights = numpyro.sample("weights", dist.Normal(0, 1).expand([2]).to_event(1))
        numpyro.sample("counts", dist.Poisson(jnp.exp(net(weights, fixed))).to_event(1), obs=counts)


def encoder(counts, fixed):
    """Its guide."""
    net = flax_module(
        "encoder", Normalised(2), input_shape=(1, 3), mutable=["batch_stats"], fixed=False
    )
    with numpyro.plate("documents", len(counts)):
        numpyro.sample("weights", dist.Normal(net(counts, fixed), 1.0).to_event(1))


class Normalised(linen.Module):
    """A layer with batch normalisation."""

    size: int

    @linen.compact
    def __call__(self, x, fixed):
        """Batch statistics, or those of the start."""
        return linen.BatchNorm(use_running_average=fixed)(linen.Dense(self.size)(x))


def test_fixed_statistics_of_flax_in_model_and_guide(stranger):
    counts = jnp.asarray(np.random.default_rng(0).poisson(2.0, (40, 3)), jnp.float32)
    program = stranger(topics, counts, guide=encoder, fixed=True)
    losses, _ = program.losses()
    assert np.all(np.isfinite(losses))
    assert program.certify()
    moving = stranger(topics, counts, guide=encoder, fixed=False).refusal()
    for words in ("batch normalisation", "use_running_average=True"):
        assert words in moving
    mixed = stranger(lambda x: topics(x, True), counts, guide=lambda x: encoder(x, False)).refusal()
    assert "The guide's mutable site 'encoder$state' carries state from record to record" in mixed
