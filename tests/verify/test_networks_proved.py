"""Losses of one record that people write: networks, sequences, matrices, densities. Each must get the event of its noise."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import GaussianDpEvent
from jax import lax

import discreet as dp

from .programs import KEY

N = 6
Z = 1.5
r = np.random.default_rng(0)
ROW = jnp.asarray(r.normal(size=(N, 5)), jnp.float32)
SEQUENCE = jnp.asarray(r.normal(size=(N, 4, 5)), jnp.float32)
IMAGE = jnp.asarray(r.normal(size=(N, 8, 8, 2)), jnp.float32)
CLASS = jnp.arange(N) % 3
WORDS = jnp.asarray(r.integers(0, 7, size=(N, 4)))
IMAGES = ("NHWC", "HWIO", "NHWC")
KERNEL = jnp.ones((3, 3, 2, 4))


def conv(w, x, **options):
    options = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": IMAGES, **options}
    return lax.conv_general_dilated(x[None], w, **options)


def pool(kind):
    def apply(w, x):
        start, function, window = {
            "max": (-jnp.inf, lax.max, (1, 2, 2, 1)),
            "overlapping": (-jnp.inf, lax.max, (1, 3, 3, 1)),
            "mean": (0.0, lax.add, (1, 2, 2, 1)),
        }[kind]
        return lax.reduce_window(
            jnp.tanh(conv(w, x)), start, function, window, (1, 2, 2, 1), "SAME"
        )

    return apply


def attention(w, x):
    q, k, v = (x @ w[i] for i in range(3))
    return jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((4, 4), bool)), q @ k.T, -1e9)) @ v


def layer_norm(w, x):
    return w[0] * (x - x.mean()) * lax.rsqrt(x.var() + 1e-5) + w[1]


def recurrent(w, x):
    return lax.scan(lambda h, row: (jnp.tanh(row @ w[0] + h @ w[1]), None), jnp.zeros(5), x)[0]


def covariance(w, x):
    return jnp.outer(w * x, w * x) + jnp.eye(5)


LINE = jnp.ones(5)
SQUARE = jnp.ones((5, 5))
# The values of a record, of which the squares are summed: function of (w, x), w, x.
NETWORKS = {
    "convolution": (conv, KERNEL, IMAGE),
    "two convolutions": (
        lambda w, x: conv(w[1], jax.nn.relu(conv(w[0], x))[0]),
        (KERNEL, jnp.ones((3, 3, 4, 2))),
        IMAGE,
    ),
    "strided": (lambda w, x: conv(w, x, window_strides=(2, 2), padding="VALID"), KERNEL, IMAGE),
    "transposed": (lambda w, x: lax.conv_transpose(x[None], w, (2, 2), "SAME"), KERNEL, IMAGE),
    "along a line": (lambda w, x: jnp.convolve(x, w[:3]), LINE, ROW),
    "maxima": (pool("max"), KERNEL, IMAGE),
    "overlapping maxima": (pool("overlapping"), KERNEL, IMAGE),
    "means": (pool("mean"), KERNEL, IMAGE),
    "embedding": (lambda w, x: jnp.tanh(w[x]), jnp.ones((7, 3)), WORDS),
    "a row of a table": (lambda w, x: w[x], jnp.ones((3, 2)), CLASS),
    "segments": (lambda w, x: jax.ops.segment_sum(w[x], x, 7), jnp.ones(7), WORDS),
    "layer norm": (layer_norm, jnp.ones((2, 5)), ROW),
    "attention": (attention, jnp.ones((3, 5, 5)), SEQUENCE),
    "jax.nn attention": (
        lambda w, x: jax.nn.dot_product_attention(*((x @ w[i])[None, :, None] for i in range(3))),
        jnp.ones((3, 5, 5)),
        SEQUENCE,
    ),
    "recurrent": (recurrent, jnp.ones((2, 5, 5)), SEQUENCE),
    "checkpoint": (lambda w, x: jax.checkpoint(lambda w: jnp.tanh(w * x))(w), LINE, ROW),
    "cumulative": (lambda w, x: jnp.cumsum(w * x), LINE, ROW),
    "sorted": (lambda w, x: jnp.sort(w * x) * jnp.arange(5.0), LINE, ROW),
    "quantile": (lambda w, x: jnp.quantile(w * x, 0.3), LINE, ROW),
    "the largest": (lambda w, x: lax.top_k(w * x, 2)[0], LINE, ROW),
    "the place of the largest": (lambda w, x: (w * x)[jnp.argmax(x)], LINE, ROW),
    "a part": (lambda w, x: lax.dynamic_update_slice(w, x[:2], (1,)), LINE, ROW),
    "one place": (lambda w, x: w.at[2].set(x[0]), LINE, ROW),
    "interpolation": (lambda w, x: jnp.interp(x, jnp.arange(5.0), w), LINE, ROW),
    "branches": (lambda w, x: lax.cond(x[0] > 0, lambda: w * x, lambda: w * w), LINE, ROW),
    "a loop": (lambda w, x: lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c * w), x), LINE, ROW),
    "Cholesky": (lambda w, x: jnp.linalg.cholesky(covariance(w, x)), LINE, ROW),
    "solve": (lambda w, x: jnp.linalg.solve(covariance(w, x), x), LINE, ROW),
    "inverse": (lambda w, x: jnp.linalg.inv(w + 5.0 * jnp.eye(5)) @ x, SQUARE, ROW),
    "eigenvalues": (lambda w, x: jnp.linalg.eigh(covariance(w, x))[0], LINE, ROW),
    "Fourier": (lambda w, x: jnp.abs(jnp.fft.fft(w * x)), LINE, ROW),
    "stacked": (lambda w, x: jnp.stack([w[0], x[1] * w[2]]), LINE, ROW),
    "cross-entropy": (
        lambda w, x: optax.softmax_cross_entropy_with_integer_labels(x @ w, jnp.argmax(x) % 3),
        jnp.ones((5, 3)),
        ROW,
    ),
    **{
        name: (lambda w, x, name=name: getattr(jax.nn, name)(w * x), LINE, ROW)
        for name in (
            "relu",
            "gelu",
            "silu",
            "softplus",
            "elu",
            "selu",
            "mish",
            "log_sigmoid",
            "softmax",
            "logsumexp",
        )
    },
}


def prove(loss, w, x):
    def step(w, xs, mask, key):
        g = jax.vmap(jax.grad(loss), (None, 0))(w, xs)
        return dp.gaussian_mechanism(key, dp.sum_records(dp.clip_records(g, 1.0), mask), Z)

    event = dp.certify(step, w, x, jnp.ones(N, bool), KEY, records=1, mask=2).event
    assert event == GaussianDpEvent(Z)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name):
    function, w, x = NETWORKS[name]
    prove(lambda w, x: jnp.sum(jnp.square(function(w, x))), w, x)


DENSITIES = {
    "Gamma": lambda d, w: d.Gamma(w, 1.0),
    "Beta": lambda d, w: d.Beta(w, 2.0),
    "StudentT": lambda d, w: d.StudentT(3.0, w, 1.0),
    "MixtureGeneral": lambda d, w: d.MixtureGeneral(
        d.Categorical(jnp.array([0.4, 0.6])), [d.Normal(w), d.Cauchy(w)]
    ),
    "TruncatedNormal": lambda d, w: d.TruncatedNormal(w, 1.0, low=-5.0),
    "MultivariateNormal": lambda d, w: d.MultivariateNormal(w * jnp.ones(5), jnp.eye(5) * w),
    "Dirichlet": lambda d, w: d.Dirichlet(w * jnp.ones(5)),
}


@pytest.mark.parametrize("name", DENSITIES)
def test_densities(name):
    distributions = pytest.importorskip("numpyro.distributions")
    prove(
        lambda w, x: -jnp.sum(DENSITIES[name](distributions, w).log_prob(x)),
        jnp.float32(1.5),
        jax.nn.softmax(ROW),
    )


@pytest.mark.parametrize(
    "name", ["adam", "adamw", "sgd", "rmsprop", "lion", "adagrad", "adafactor", "lamb", "nadam"]
)
def test_optimisers_are_public(name):
    """Post-processing of a release costs nothing."""
    optimiser = getattr(optax, name)(0.01)

    def step(w, state, xs, mask, key):
        g = dp.gaussian_mechanism(key, dp.sum_records(dp.clip_records(xs, 1.0), mask), Z)
        updates, state = optimiser.update(g, state, w)
        return optax.apply_updates(w, updates), state

    state = optimiser.init(LINE)
    event = dp.certify(step, LINE, state, ROW, jnp.ones(N, bool), KEY, records=2, mask=3).event
    assert event == GaussianDpEvent(Z)


def test_records_picked_by_known_numbers():
    picked = np.array([4, 0, -1])

    def step(xs, mask, key):
        rows = dp.clip_records(xs[picked], 1.0)
        return dp.gaussian_mechanism(key, dp.sum_records(rows, mask[picked]), Z)

    assert dp.certify(
        step, ROW, jnp.ones(N, bool), KEY, records=0, mask=1
    ).event == GaussianDpEvent(Z)
