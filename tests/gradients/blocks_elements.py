"""Blocks that look a leaf up, or use it element by element."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from .blocks import VOCABULARY, block, normal

# Lookups.


@block
def embedding(rng, length, width):
    p = {"table": normal(rng, VOCABULARY, 3, scale=1.0)}
    return p, lambda p, x, record: jnp.concatenate(
        [x, p["table"][record["token"]][:length]], axis=1
    )[:, -4:]


@block
def embedding_tied_to_the_output(rng, length, width):
    p = {"table": normal(rng, VOCABULARY, width)}

    def apply(p, x, record):
        mean = jnp.take(p["table"], record["token"], axis=0, mode="clip").mean(axis=0)
        return jnp.tanh((x + mean) @ p["table"].T)

    return p, apply


@block
def embedding_out_of_range(rng, length, width):
    """Indices below and beyond the table, clamped, dropped or wrapped as JAX says."""
    p = {"table": normal(rng, VOCABULARY - 2, width)}

    def apply(p, x, record):
        dropped = p["table"].at[record["token"] + 1].get(mode="fill", fill_value=0.5)
        return (
            x
            + dropped.sum(axis=0)
            + p["table"].at[-1 - record["token"]].get(mode="clip").sum(axis=0)
        )

    return p, apply


@block
def embedding_in_a_loop(rng, length, width):
    p = {"table": normal(rng, VOCABULARY, width)}
    return (
        p,
        lambda p, x, record: (
            x + lax.scan(lambda h, i: (jnp.sin(h + p["table"][i]), None), x[0], record["token"])[0]
        ),
    )


@block
def lookup_of_one_number(rng, length, width):
    p = {"table": normal(rng, VOCABULARY, 4), "offset": normal(rng, 7)}
    return (
        p,
        lambda p, x, record: (
            x * p["table"][record["token"][0], record["flag"]] + p["offset"][record["flag"]]
        ),
    )


@block
def window_of_a_leaf(rng, length, width):
    p = {"table": normal(rng, VOCABULARY + 1, width)}

    def apply(p, x, record):
        return jnp.tanh(x @ lax.dynamic_slice_in_dim(p["table"], record["token"][1], 2).T)

    return p, apply


@block
def one_hot_lookup(rng, length, width):
    p = {"table": normal(rng, VOCABULARY, width)}
    return (
        p,
        lambda p, x, record: (
            x + (jax.nn.one_hot(record["token"], VOCABULARY) @ p["table"]).mean(axis=0)
        ),
    )


# Elementwise parameters.


@block
def layer_norm(rng, length, width):
    p = {"scale": normal(rng, width), "b": normal(rng, width)}

    def apply(p, x, record):
        centred = x - x.mean(axis=-1, keepdims=True)
        return (
            centred * lax.rsqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 0.1) * p["scale"]
            + p["b"]
        )

    return p, apply


@block
def biases_of_every_shape(rng, length, width):
    p = {
        "full": normal(rng, length, width),
        "row": normal(rng, 1, width),
        "column": normal(rng, length, 1),
        "one": normal(rng),
    }
    return p, lambda p, x, record: jnp.sin(p["full"] - x - p["row"]) + (p["column"] + x) - p["one"]


@block
def softplus_scale(rng, length, width):
    p = {"raw": normal(rng, width), "temperature": normal(rng)}
    return p, lambda p, x, record: jnp.tanh(
        x * jax.nn.softplus(p["raw"]) / jnp.exp(p["temperature"])
    )


@block
def weight_norm(rng, length, width):
    p = {"v": normal(rng, width, 3), "g": normal(rng, 3)}
    return p, lambda p, x, record: jnp.tanh(x @ (p["v"] * p["g"] / jnp.linalg.norm(p["v"], axis=0)))


@block
def product_of_weights(rng, length, width):
    p = {"left": normal(rng, width, 2), "right": normal(rng, 2, 3)}
    return p, lambda p, x, record: jnp.tanh(x @ (p["left"] @ p["right"]))


@block
def gram_matrix(rng, length, width):
    p = {"w": normal(rng, 2, width)}
    return p, lambda p, x, record: jnp.tanh(x @ (p["w"].T @ p["w"]))


@block
def sorted_and_summed(rng, length, width):
    p = {"cuts": normal(rng, width, scale=1.0), "steps": normal(rng, width)}
    return p, lambda p, x, record: jnp.tanh(
        x - jnp.sort(p["cuts"]) + jnp.cumsum(jnp.exp(p["steps"]))
    )


@block
def triangular_solve(rng, length, width):
    p = {"raw": normal(rng, width, width)}

    def apply(p, x, record):
        factor = jnp.tril(p["raw"], -1) + 2.0 * jnp.eye(width)
        return jnp.tanh(jax.scipy.linalg.solve_triangular(factor, x.T, lower=True).T)

    return p, apply


@block
def fourier(rng, length, width):
    p = {"filter": normal(rng, length)}
    return p, lambda p, x, record: jnp.fft.irfft(
        jnp.fft.rfft(x, axis=0) * jnp.fft.rfft(p["filter"])[:, None], n=length, axis=0
    )
