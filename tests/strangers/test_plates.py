"""Plates as people write them: minibatches that the program declares, observations that stand in no plate."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro.handlers as handlers
import pytest

pytestmark = pytest.mark.usefixtures("quick_compilation")

N, B = 300, 50
rng = np.random.default_rng(3)
X = jnp.asarray(rng.normal(size=(N, 2)), jnp.float32)
Y = jnp.asarray(rng.normal(size=N), jnp.float32)


def weights():
    return numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))


def plain(x, y):
    w = weights()
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)


def numbers_over_a_batch(x, y):
    w = weights()
    with numpyro.plate("data", N, subsample_size=B):
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)


def numbers_indexed(x, y):
    w = weights()
    with numpyro.plate("data", N, subsample_size=B) as i:
        numpyro.sample("y", dist.Normal(x[i] @ w, 1), obs=y[i])


def shape_indexed(x, y):
    w = weights()
    with numpyro.plate("data", x.shape[0], subsample_size=B) as i:
        numpyro.sample("y", dist.Normal(x[i] @ w, 1), obs=y[i])


def number_over_a_shape(x, y):
    w = weights()
    with numpyro.plate("data", N, subsample_size=x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)


def numbers_subsampled(x, y):
    w = weights()
    with numpyro.plate("data", N, subsample_size=B):
        x, y = numpyro.subsample(x, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)


@pytest.mark.parametrize(
    "model",
    [numbers_over_a_batch, numbers_indexed, shape_indexed, number_over_a_shape, numbers_subsampled],
)
def test_minibatches_scale_nothing(stranger, model):
    """Each record's loss is that of the model without minibatches: no factor N / B, and no other record."""
    expected, free = stranger(plain, X, Y).losses()
    program = stranger(model, X, Y)
    losses, its_free = program.losses()
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(its_free, free, rtol=1e-5)
    assert program.certify()


def without_a_plate(x, y):
    numpyro.sample("y", dist.Normal(x @ weights(), 1), obs=y)


def test_observations_without_a_plate_are_a_plate(stranger):
    expected, free = stranger(plain, X, Y).losses()
    program = stranger(without_a_plate, X, Y)
    losses, its_free = program.losses()
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(its_free, free, rtol=1e-5)
    assert program.objective.structure.record_plates == frozenset()
    assert program.certify()


def scaled_by(scale):
    def model(x, y):
        w = weights()
        with numpyro.plate("data", len(y)), handlers.scale(scale=scale(y)):
            numpyro.sample("y", dist.Normal(x @ w, 1), obs=y)

    return model


@pytest.mark.parametrize(
    "scale", [lambda y: N / B, lambda y: N / y.shape[0]], ids=["numbers", "shape"]
)
def test_the_scale_of_a_minibatch_is_refused(stranger, scale):
    message = stranger(scaled_by(scale), X, Y).refusal()
    assert "handlers.scale" in message
    assert "omit the scale" in message


def test_a_tempered_likelihood_is_taken(stranger):
    assert stranger(scaled_by(lambda y: 0.25), X, Y).start()
    assert stranger(scaled_by(lambda y: 1.7), X, Y).start()
