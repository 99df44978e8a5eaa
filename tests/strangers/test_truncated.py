"""NumPyro's truncated, folded and censored distributions: records whose support has a bound, and records with two values."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoDelta

pytestmark = pytest.mark.usefixtures("quick_compilation")

N = 60
rng = np.random.default_rng(5)
X = jnp.asarray(rng.normal(size=N), jnp.float32)
TIME = jnp.asarray(rng.weibull(1.5, N), jnp.float32)
CENSORED = jnp.asarray(rng.random((2, N)) < 0.3)


def location_and_scale():
    return numpyro.sample("loc", dist.Normal()), numpyro.sample("scale", dist.LogNormal())


def truncated_normal(num_observations, high, x=None):
    """`truncated_regression`: its numbers are arguments before the records."""
    loc, scale = location_and_scale()
    with numpyro.plate("observations", num_observations):
        numpyro.sample("x", dist.TruncatedNormal(loc, scale, high=high), obs=x)


def truncated_soft_laplace(num_observations, high, x=None):
    loc, scale = location_and_scale()
    with numpyro.plate("obs", num_observations):
        numpyro.sample(
            "x", dist.TruncatedDistribution(dist.SoftLaplace(loc, scale), high=high), obs=x
        )


def folded_student(num_observations, x=None):
    df = numpyro.sample("df", dist.Gamma(6, 2))
    loc, scale = location_and_scale()
    with numpyro.plate("obs", num_observations):
        numpyro.sample("x", dist.FoldedDistribution(dist.StudentT(df, loc, scale)), obs=x)


def right_censored(time, censored):
    """`survival`: times that were observed, or a bound of them."""
    loc, scale = location_and_scale()
    base = dist.Weibull(jnp.exp(loc), scale)
    with numpyro.plate("data", len(time)):
        numpyro.sample("time", dist.RightCensoredDistribution(base, censored=censored), obs=time)


def interval_censored(bounds, left, right, base=dist.Normal):
    loc, scale = location_and_scale()
    with numpyro.plate("data", len(bounds)):
        fn = dist.IntervalCensoredDistribution(
            base(jnp.exp(loc), scale), left_censored=left, right_censored=right
        )
        numpyro.sample("bounds", fn, obs=bounds)


def gamma_censored(bounds, left, right):
    interval_censored(bounds, left, right, dist.Gamma)


BOUNDS = jnp.stack([TIME, TIME + 0.5], axis=-1)
ONE = np.array([[1.0, 1.5]], np.float32), np.zeros(1, bool), np.zeros(1, bool)
MODELS = [
    (truncated_normal, (N, 1.2, jnp.minimum(X, 1.1)), {}),
    (truncated_soft_laplace, (N, 2.3, jnp.minimum(X, 2.2)), {}),
    (folded_student, (N, jnp.abs(X)), {}),
    (right_censored, (TIME, CENSORED[0]), {}),
    (interval_censored, (BOUNDS, *CENSORED), {}),
    (gamma_censored, (BOUNDS, *CENSORED), {"placeholder": ONE}),
]


MORE = truncated_soft_laplace, folded_student, right_censored, gamma_censored


@pytest.mark.parametrize(
    ("model", "args", "options"),
    [
        pytest.param(*x, id=x[0].__name__, marks=[pytest.mark.exhaustive] * (x[0] in MORE))
        for x in MODELS
    ],
)
def test_taken_as_it_is(stranger, model, args, options):
    """Accepted and proved; and at one point of its latents, the records' losses and the data-free term are NumPyro's ELBO."""
    program = stranger(model, *args, guide=AutoDelta(model), **options)
    losses, free = program.losses()
    params = program.dpsvi.get_params(program.start())
    theirs = Trace_ELBO().loss(jax.random.key(0), params, model, AutoDelta(model), *args)
    np.testing.assert_allclose(losses.sum() + free, theirs, rtol=1e-4)
    assert program.certify()
