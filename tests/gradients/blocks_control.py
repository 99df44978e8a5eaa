"""Blocks in which a leaf meets loops, branches, inner functions, rules of differentiation and draws."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from .blocks import block, normal, pick

# Loops.


@block
def recurrence(rng, length, width):
    p = {"hidden": normal(rng, 3, 3), "input": normal(rng, width, 3), "b": normal(rng, 3)}

    def apply(p, x, record):
        def cell(h, row):
            h = jnp.tanh(h @ p["hidden"] + row @ p["input"] + p["b"])
            return h, h

        return lax.scan(cell, jnp.zeros(3), x, reverse=bool(length % 2))[1]

    return p, apply


@block
def stacked_layers_scanned_over(rng, length, width):
    p = {"w": normal(rng, 3, width, width), "b": normal(rng, 3, width)}

    def apply(p, x, record):
        return lax.scan(lambda h, layer: (jnp.tanh(h @ layer["w"] + layer["b"]), None), x, p)[0]

    return p, apply


@block
def stacked_layers_indexed_in_a_loop(rng, length, width):
    p = {"w": normal(rng, 3, width, width)}
    return p, lambda p, x, record: lax.fori_loop(0, 4, lambda i, h: jnp.tanh(h @ p["w"][i % 3]), x)


@block
def weights_carried_unchanged(rng, length, width):
    p = {"w": normal(rng, width, width)}

    def apply(p, x, record):
        def cell(carry, _):
            h, w = carry
            return (jnp.tanh(h @ w), w), None

        return lax.scan(cell, (x, p["w"]), length=3)[0][0]

    return p, apply


@block
def weights_carried_and_changed(rng, length, width):
    p = {"w": normal(rng, width, width)}

    def apply(p, x, record):
        def cell(carry, _):
            h, w = carry
            return (jnp.tanh(h @ w), 0.5 * w), w[0]

        (h, w), rows = lax.scan(cell, (x, p["w"]), length=3)
        return h @ w + rows.sum(axis=0)

    return p, apply


@block
def loop_in_a_loop(rng, length, width):
    p = {"w": normal(rng, width, width), "s": normal(rng, width)}

    def apply(p, x, record):
        @jax.jit
        def inner(h):
            return lax.scan(lambda h, _: (jnp.tanh(h @ p["w"]), None), h, length=2)[0]

        return lax.scan(lambda h, _: (inner(h) * p["s"], None), x, length=2, unroll=2)[0]

    return p, apply


@block
def map_over_positions(rng, length, width):
    p = {"w": normal(rng, width, 3), "b": normal(rng, 3)}
    return p, lambda p, x, record: lax.map(lambda row: jnp.tanh(p["w"].T @ row + p["b"]), x)


@block
def stacked_layers_again_and_again(rng, length, width):
    """The inner loop slices the weights and the outer one repeats them, equally often."""
    p = {"w": normal(rng, 3, width, width), "again": normal(rng, 2, width, width)}

    def apply(p, x, record):
        def outer(h, w):
            h = lax.scan(lambda h, _: (jnp.tanh(h @ w), None), h, length=2)[0]
            return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), h, p["again"])[0], None

        def repeated(h, _):
            return lax.scan(lambda h, w: (jnp.sin(h @ w), None), h, p["w"])[0], None

        return lax.scan(outer, lax.scan(repeated, x, length=3)[0], p["again"])[0]

    return p, apply


@block
def stacked_layers_there_and_back(rng, length, width):
    p = {"w": normal(rng, 2, 3, width, width)}

    def apply(p, x, record):
        def layer(h, w):
            return jnp.tanh(h @ w), h

        def layers(h, ws):
            return lax.scan(layer, h, ws)[0], None

        x = lax.scan(layers, x, p["w"])[0]
        x = lax.scan(layers, x, p["w"], reverse=True)[0]
        return (
            x
            + lax.scan(lambda h, w: (jnp.tanh(h @ w.T), None), x, p["w"].reshape(6, width, width))[
                0
            ]
        )

    return p, apply


@block
def state_that_starts_as_a_parameter(rng, length, width):
    p = {"start": normal(rng, 2), "w": normal(rng, 2 + width, 2)}

    def apply(p, x, record):
        def cell(h, row):
            h = jnp.tanh(jnp.concatenate([h, row]) @ p["w"])
            return h, h

        return lax.scan(cell, p["start"], x)[1]

    return p, apply


# Branches.


@block
def branch_on_the_record(rng, length, width):
    p = {"w": normal(rng, width, width), "s": normal(rng, width)}

    def apply(p, x, record):
        return lax.cond(record["flag"] > 1, lambda x: jnp.tanh(x @ p["w"]), lambda x: x * p["s"], x)

    return p, apply


@block
def branch_on_a_parameter(rng, length, width):
    p = {"w": normal(rng, width, width), "t": normal(rng)}

    def apply(p, x, record):
        return lax.cond(
            p["t"] > 0, lambda x: jnp.tanh(x @ p["w"]), lambda x: x @ p["w"] @ p["w"] + p["t"], x
        )

    return p, apply


@block
def switch_in_a_loop(rng, length, width):
    p = {"w": normal(rng, width, width), "v": normal(rng, width, width), "b": normal(rng, width)}

    def apply(p, x, record):
        ways = [lambda h: jnp.tanh(h @ p["w"]), lambda h: jnp.sin(h @ p["v"] + p["b"]), lambda h: h]
        return lax.scan(
            lambda h, i: (lax.switch((record["flag"] + i) % 3, ways, h), None), x, jnp.arange(3)
        )[0]

    return p, apply


# Functions called by name, and rules of differentiation of their own.


@block
def jit_called_twice(rng, length, width):
    """One inner program, two leaves; the second call hands a parameter through."""
    p = {"w": normal(rng, width, width), "v": normal(rng, width, width)}

    @jax.jit
    def layer(x, w):
        return jnp.tanh(x @ w), w

    def apply(p, x, record):
        x, _ = layer(x, p["w"])
        x, v = layer(x, p["v"])
        return x + layer(x, v)[0]

    return p, apply


@block
def checkpoint(rng, length, width):
    p = {"w": normal(rng, width, width), "b": normal(rng, width)}
    policy = pick(
        rng, None, jax.checkpoint_policies.dots_saveable, jax.checkpoint_policies.nothing_saveable
    )

    def apply(p, x, record):
        def layer(x, w):
            return jnp.tanh(jnp.tanh(x @ w + p["b"]) @ w)

        return jax.checkpoint(layer, policy=policy)(x, p["w"])

    return p, apply


@jax.custom_jvp
def leaky(x, slope):
    return jnp.where(x > 0, x, slope * x)


@leaky.defjvp
def _(primals, tangents):
    (x, slope), (dx, dslope) = primals, tangents
    # Not the true derivative: an engine that differentiates the body instead is found out.
    return leaky(x, slope), jnp.where(x > 0, 1.0, 3.0 * slope) * dx + 0.25 * dslope * x


@block
def custom_jvp_with_a_parameter(rng, length, width):
    p = {"w": normal(rng, width, 3), "slope": normal(rng, scale=0.3)}
    return p, lambda p, x, record: leaky(x @ p["w"], p["slope"])


@jax.custom_vjp
def odd_layer(x, w):
    return jnp.tanh(x @ w)


def _odd_backward(kept, g):
    x, w = kept
    return 0.5 * g @ w.T, 2.0 * x.T @ g + 0.1 * w


odd_layer.defvjp(lambda x, w: (odd_layer(x, w), (x, w)), _odd_backward)


@block
def custom_vjp_layer(rng, length, width):
    p = {"w": normal(rng, width, 3)}
    return p, lambda p, x, record: odd_layer(x, p["w"])


@block
def gradient_inside(rng, length, width):
    """A score: the loss itself contains a gradient, in the input and in the weights."""
    p = {"w": normal(rng, width, 2)}

    def apply(p, x, record):
        return x - 0.1 * jax.grad(lambda x: jnp.sum(jnp.tanh(x @ p["w"]) ** 2))(x)

    return p, apply


@block
def step_inside(rng, length, width):
    """An inner step of learning on the record itself."""
    p = {"w": normal(rng, width, 2)}

    def apply(p, x, record):
        return jnp.tanh(
            x @ (p["w"] - 0.1 * jax.grad(lambda w: jnp.mean((x @ w - 1.0) ** 2))(p["w"]))
        )

    return p, apply


# Draws.


@block
def particles(rng, length, width):
    p = {"w": normal(rng, width, 2), "s": normal(rng, 2)}

    def apply(p, x, record):
        noise = jnp.asarray([[0.1], [0.2], [-0.4]])
        return jax.vmap(lambda e: jnp.tanh((x + e) @ p["w"]) * p["s"])(noise).mean(axis=0)

    return p, apply


@block
def a_weight_per_particle(rng, length, width):
    p = {"w": normal(rng, 3, width, 2), "b": normal(rng, 3, 2)}
    return p, lambda p, x, record: jax.vmap(lambda w, b: jnp.tanh(x @ w + b))(p["w"], p["b"]).mean(
        axis=0
    )


@block
def latent_draw(rng, length, width):
    p = {"loc": normal(rng, width, 2), "scale": normal(rng, width, 2)}

    def apply(p, x, record):
        noise = jax.random.normal(record["key"], (length, 2))
        return x @ p["loc"] + noise * jnp.exp(0.3 * jnp.tanh(x @ p["scale"]))

    return p, apply
