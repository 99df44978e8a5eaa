"""Small programs in one compiled loop: what a step is made of, each part alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro

import discreet as dp
from benchmarks._harness import Program

NOISE, BATCH = "part: integer noise", "part: draw and gather a Poisson batch"


def looped(
    name: str,
    body: Callable[[jax.Array, Any, Any], Any],
    start: Any,
    fixed: Any,
    steps: int,
    note: str = "",
) -> Program:
    """`start = body(i, start, fixed)` for `steps` steps, compiled once.

    What the steps read is handed over as an argument, so that XLA cannot compute anything
    beforehand; what they leave as it is belongs into `fixed`, so that it is not copied.
    """

    @jax.jit
    def loop(start: Any, fixed: Any, count: jax.Array) -> Any:
        return jax.lax.fori_loop(0, count, lambda i, carry: body(i, carry, fixed), start)

    return Program(
        name, lambda: jax.block_until_ready(loop(start, fixed, jnp.int32(steps))), steps, note
    )


def keyed(
    name: str, draw: Callable[[jax.Array], jax.Array], key: jax.Array, steps: int, note: str = ""
) -> Program:
    """Draws with a new key each step, added up so that none can be left out."""
    shape = jax.eval_shape(draw, key)

    def body(i: jax.Array, total: jax.Array, key: jax.Array) -> jax.Array:
        return total + draw(jax.random.fold_in(key, i))

    return looped(name, body, jnp.zeros(shape.shape, shape.dtype), key, steps, note)


def released_noise(dim: int, levels: int, steps: int) -> Program:
    """The noise of a release, before it is added."""

    def draw(key: jax.Array) -> jax.Array:
        values, right = dp.random.discrete_gaussian(key, (dim,), levels=levels)
        return sum(values, start=right.astype(jnp.int32))

    return keyed(NOISE, draw, dp.random.key(), steps)


def drawn_batch(sampling: Any, data: jax.Array, steps: int) -> Program:
    """A batch drawn and gathered from the table."""
    tables = jax.tree.map(jnp.asarray, sampling.prepare(data.shape[0]))

    def body(i: jax.Array, total: jax.Array, fixed: Any) -> jax.Array:
        key, tables, data = fixed
        batch = sampling.draw(jax.random.fold_in(key, i), tables, num_records=data.shape[0])
        rows = data[batch.indices]
        # Every row is looked at, and padding left out by a product that costs one pass.
        kept = jnp.where(batch.mask.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0)
        return total + jnp.sum(kept, axis=0)

    return looped(BATCH, body, jnp.zeros(data.shape[1:]), (dp.random.key(), tables, data), steps)


def adam(name: str, parameters: Any, learning_rate: float, steps: int) -> Program:
    """The optimizer alone, as NumPyro's."""
    optimizer = numpyro.optim.Adam(learning_rate)
    gradient = jax.tree.map(jnp.ones_like, parameters)

    def body(i: jax.Array, state: Any, gradient: Any) -> Any:
        del i
        return optimizer.update(gradient, state)

    return looped(name, body, optimizer.init(parameters), gradient, steps)
