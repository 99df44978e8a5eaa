"""Programs of our own that make the calls of the d3p paper's Listings 1 to 6."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.nn import sigmoid
from numpyro import param, plate, sample
from numpyro.distributions import Bernoulli, Normal


class Logistic:
    """Listings 1 and 2: logistic regression, with a guide by hand."""

    @staticmethod
    def model(xs, ys, N):
        batch_size, d = xs.shape
        w = sample("w", Normal(0, 4), sample_shape=(d,))
        with plate("batch", N, batch_size):
            sample("ys", Bernoulli(sigmoid(xs.dot(w))), obs=ys)

    @staticmethod
    def guide(xs, ys, N):
        d = jnp.shape(xs)[1]
        loc = param("w_loc", jnp.zeros((d,)))
        scale = jnp.exp(param("w_scale_log", jnp.full((d,), -2.0)))
        sample("w", Normal(loc, scale))


@pytest.fixture(scope="session")
def logistic():
    return Logistic


@pytest.fixture(scope="session")
def table():
    """800 artificial records with three columns and a label, and the weights behind them."""
    rng = np.random.default_rng(0)
    w = np.array([1.5, -2.0, 0.0])
    xs = rng.normal(size=(800, 3)).astype(np.float32)
    ys = (rng.random(800) < 1 / (1 + np.exp(-xs @ w))).astype(np.int32)
    return xs, ys, w


@pytest.fixture(autouse=True, scope="package")
def quick_compilation():
    """Programs here are many and small: compiling them costs more than running them."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
    jax.clear_caches()
