"""A model that uses a table from outside its arguments is refused: the refusal names the variable and says what to write."""

import functools

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro.handlers as handlers
import optax
import pytest
from flax import nnx
from numpyro.contrib.module import nnx_module, random_nnx_module
from numpyro.infer.autoguide import AutoNormal

import discreet as dp
from discreet.methods.inference._records import refuse_reshaped, refuse_tables
from discreet.methods.inference._tables_outside import make_arguments, reached

N = 300
rng = np.random.default_rng(3)
X = rng.normal(size=(N, 2)).astype(np.float32)
Y = jnp.asarray(rng.normal(size=N), jnp.float32)
LABEL = jnp.asarray(rng.integers(0, 2, N))[jnp.newaxis]
FEATURES = X.shape[1]


def observe(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(w * x[:, 0] + np.sum(x, axis=1), 1), obs=y)


def unobserved(x):
    w = numpyro.sample("w", dist.Normal(0, 1))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(w * x[:, 0], 1))


# --- where a table may be ---


def global_features(y):
    observe(X, y)


def global_labels(x):
    observe(x, Y)


def in_a_closure():
    features = X

    def model(y):
        observe(features, y)

    return model


def from_a_function():
    return X


def in_a_helper(y):
    observe(from_a_function(), y)


class Holder:
    def __init__(self):
        self.features = X

    def model(self, y):
        observe(self.features, y)


def transposed(x, y):
    observe(x + jnp.mean(ROWS.T), y)


ROWS = X.T.copy()


@pytest.mark.parametrize(
    ("model", "records", "name"),
    [
        (global_features, Y, "X"),
        (global_labels, X, "Y"),
        (in_a_closure(), Y, "features"),
        (in_a_helper, Y, "X"),
        (Holder().model, Y, "features"),
        (handlers.scale(global_features, scale=1.0), Y, "X"),
        (functools.partial(global_features), Y, "X"),
    ],
    ids=["global", "labels", "closure", "helper", "attribute", "handler", "partial"],
)
def test_the_refusal_says_what_to_write(stranger, model, records, name):
    message = stranger(model, records).refusal()
    assert "not passed as records" in message
    assert f"{name} is defined outside" in message
    assert (
        f"make it an argument of the model, def model(..., {name}), and pass it to run." in message
    )


def test_a_table_in_another_shape_is_named():
    with pytest.raises(ValueError, match=r"the shape of all 300 records.* ROWS is defined outside"):
        refuse_reshaped([ROWS], [], [X, Y], N, [transposed])
    with pytest.raises(ValueError, match=r"as long as the table.* ROWS is defined outside"):
        refuse_tables([ROWS], [N], [transposed])


def german_credit():
    """`german_credit` (two): no argument, no plate, and records along the second axis of an array."""
    beta = numpyro.sample("beta", dist.Normal(jnp.zeros(FEATURES), 1))
    numpyro.sample(
        "obs", dist.Bernoulli(logits=jnp.einsum("nd,md->mn", X, beta[jnp.newaxis, :])), obs=LABEL
    )


@pytest.mark.essential
@pytest.mark.parametrize("model", [german_credit, handlers.mask(german_credit, mask=True)])
def test_a_model_without_arguments(model):
    plan = dp.PrivacyPlan(
        sampling=dp.FullBatch(), clipping_norm=1.0, noise_multiplier=9.0, num_steps=2, num_records=N
    )
    variational = dp.DPSVI(model, AutoNormal(model), optax.adam(1e-2), plan=plan)
    sampled = dp.OnePosteriorSample(model, epsilon=1.0, radius=1.0, lipschitz=1.0)
    for method in (variational, sampled):
        with pytest.raises(
            ValueError,
            match=r"No argument is an array.* def model\(\.\.\., X, LABEL\), and pass them",
        ):
            method.run(dp.random.key(1))


def test_observations_in_condition(stranger):
    """`nnx_example`, whose observations are in `handlers.condition`."""

    class Mean(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(1, 1, rngs=rngs)

        def __call__(self, x, rngs=None):
            return self.linear(x)

    mean = Mean(nnx.Rngs(0))

    def networks(x):
        prior = {"linear.kernel": dist.HalfNormal(1.0), "linear.bias": dist.Normal(0.0, 1.0)}
        mu, sigma = nnx_module("mu_nn", mean), random_nnx_module("sigma_nn", mean, prior=prior)
        with numpyro.plate("data", len(x)):
            numpyro.sample(
                "likelihood", dist.Normal(loc=mu(x).squeeze(), scale=jnp.exp(sigma(x).squeeze()))
            )

    conditioned = handlers.condition(networks, data={"likelihood": Y})
    message = stranger(conditioned, X[:, :1]).refusal()
    assert (
        "'likelihood' observes an array of shape (300,) that was not passed as records" in message
    )
    assert "obs=y with y an argument of the model" in message


def test_only_arrays_that_belong_are_named():
    assert make_arguments([global_features], lambda shape: 7 in shape) == ""
    assert not [name for name, x in reached(observe) if isinstance(x, np.ndarray)]
