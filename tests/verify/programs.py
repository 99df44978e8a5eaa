"""Helpers of the suite's programs: a regression with two leaves, its table, its key."""

import jax
import jax.numpy as jnp

import discreet as dp

N, D = 24, 3
C = 2.0
X = jnp.linspace(-1.0, 1.0, N * D).reshape(N, D)
Y = jnp.sin(jnp.arange(N) * 1.0)
M = jnp.arange(N) < 20
W = {"a": jnp.full(D, 0.3), "b": jnp.zeros(())}
KEY = dp.random.key(0)
RATE = 0.25


def loss(w, x, y):
    return jnp.square(jax.nn.relu(x @ w["a"]) + w["b"] - y)


def gradients(w, xs, ys):
    return jax.vmap(jax.grad(loss), (None, 0, 0))(w, xs, ys)


def clipped_sum(w, xs, ys, mask, norm=C):
    return dp.sum_records(dp.clip_records(gradients(w, xs, ys), norm), mask)


def noisy(key, tree, stddev):
    return dp.gaussian_mechanism(key, tree, stddev)


def certify(step, relation=dp.Relation.ADD_OR_REMOVE_ONE, **options):
    """For steps of (w, xs, ys, mask, key)."""
    return dp.certify(step, W, X, Y, M, KEY, records=(1, 2), mask=3, relation=relation, **options)
