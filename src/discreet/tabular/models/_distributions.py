"""Mixtures of coded rows: densities in which the component of a row is marginalized.

So a record depends on global latents only, and its gradient can be clipped by itself. A record is
one row of levels, or all the rows of a person together with their number.
"""

from __future__ import annotations

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, Int, PRNGKeyArray
from numpyro.distributions import constraints


def _ones(
    value: Int[Array, "*batch column"], sizes: tuple[int, ...]
) -> Float[Array, "*batch level"]:
    return jnp.concatenate(
        [jax.nn.one_hot(value[..., i], size) for i, size in enumerate(sizes)], axis=-1
    )


def firsts_of(sizes: tuple[int, ...]) -> list[int]:
    """The offset of each column's levels among the concatenated levels of all columns."""
    return [0, *np.cumsum(sizes)[:-1].tolist()]


# Compiled as a whole even where a model is only traced: op by op, that takes longer than the whole
# fit.
@functools.partial(jax.jit, static_argnums=3)
def _mixture_log_density(
    value: Int[Array, "*batch column"],
    component: Float[Array, " component"],
    logits: Float[Array, "component level"],
    sizes: tuple[int, ...],
) -> Float[Array, "*batch"]:
    blocks = jnp.split(logits, np.cumsum(sizes)[:-1], axis=1)
    ones = _ones(value, sizes)
    # One product for all columns. The normaliser is the same for every row, so that a row's
    # gradient is cheap.
    normaliser = sum(jax.nn.logsumexp(block, axis=1) for block in blocks)
    in_each = ones @ logits.T - normaliser
    return jax.nn.logsumexp(in_each + jax.nn.log_softmax(component), axis=-1)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _draw_rows(
    key: PRNGKeyArray,
    component: Float[Array, " component"],
    logits: Float[Array, "component level"],
    sizes: tuple[int, ...],
    shape: tuple[int, ...],
) -> Int[Array, "*batch column"]:
    component_key, *keys = jax.random.split(key, 1 + len(sizes))
    drawn = jax.random.categorical(component_key, component, shape=shape)
    blocks = jnp.split(logits, np.cumsum(sizes)[:-1], axis=1)
    cells = [jax.random.categorical(k, block[drawn]) for k, block in zip(keys, blocks, strict=True)]
    return jnp.stack(cells, axis=-1)


class LevelsMixture(dist.Distribution):
    """Distribution of a row of levels, marginalized over the component.

    Args:
        component: Logits of the components.
        logits: Logits of the levels in each component, concatenated over columns.
        sizes: Number of levels of each column.
    """

    arg_constraints: ClassVar = {}
    support = constraints.independent(constraints.nonnegative_integer, 1)  # pyright: ignore[reportAssignmentType]
    pytree_data_fields = ("component", "logits")
    pytree_aux_fields = ("sizes",)

    def __init__(
        self,
        component: Float[Array, " component"],
        logits: Float[Array, "component level"],
        sizes: tuple[int, ...],
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.component = component
        self.logits = logits
        self.sizes = sizes
        super().__init__(
            batch_shape=(), event_shape=self._event_shape(), validate_args=validate_args
        )

    def _event_shape(self) -> tuple[int, ...]:
        return (len(self.sizes),)

    def log_prob(self, value: Int[Array, "*batch column"]) -> Float[Array, "*batch"]:
        """Log probability of rows, in nats."""
        return _mixture_log_density(value, self.component, self.logits, self.sizes)

    def sample(
        self, key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()
    ) -> Int[Array, "*batch column"]:
        """Rows of levels."""
        return _draw_rows(key, self.component, self.logits, self.sizes, tuple(sample_shape))


# Compiled as a whole also where a model is only traced.
@functools.partial(jax.jit, static_argnums=3)
def _persons_log_density(
    value: Int[Array, "*batch row column"],
    component: Float[Array, " component"],
    logits: Float[Array, "component level"],
    sizes: tuple[int, ...],
) -> Float[Array, "*batch"]:
    *cells, counts = jnp.split(logits, np.cumsum(sizes)[:-1], axis=1)
    number = jnp.sum(value[..., 0] >= 0, axis=-1)
    there = jnp.where(value[..., :1] >= 0, value, -1)
    ones = jnp.sum(_ones(there, sizes[:-1]), axis=-2)
    ones = jnp.concatenate([ones, jax.nn.one_hot(number - 1, sizes[-1])], axis=-1)
    each_row = sum(jax.nn.logsumexp(block, axis=1) for block in cells)
    in_each = ones @ logits.T - number[..., None] * each_row - jax.nn.logsumexp(counts, axis=1)
    return jax.nn.logsumexp(in_each + jax.nn.log_softmax(component), axis=-1)


class PersonsMixture(LevelsMixture):
    """Distribution of a person's rows of levels and of their number, marginalized over the rows' common component.

    Args:
        component: Logits of the components.
        logits: Logits of the levels in each component, concatenated over columns, then of 1, 2, ...
            rows.
        sizes: Number of levels of each column, then the largest number of rows.
    """

    support = constraints.independent(constraints.integer_greater_than(-2), 2)  # pyright: ignore[reportAssignmentType]

    def _event_shape(self) -> tuple[int, ...]:
        return self.sizes[-1], len(self.sizes) - 1

    def log_prob(self, value: Int[Array, "*batch row column"]) -> Float[Array, "*batch"]:
        """Log probability of persons, in nats; a row that begins with a negative level is padding."""
        return _persons_log_density(value, self.component, self.logits, self.sizes)

    def sample(
        self, key: PRNGKeyArray, sample_shape: tuple[int, ...] = ()
    ) -> Int[Array, "*batch row column"]:
        """Rows of levels, with -1 in padding rows."""
        parts = jnp.split(self.logits, np.cumsum(self.sizes)[:-1], axis=1)
        component_key, *keys = jax.random.split(key, 1 + len(parts))
        drawn = jax.random.categorical(component_key, self.component, shape=tuple(sample_shape))
        number = 1 + jax.random.categorical(keys[-1], parts[-1][drawn])
        rows = (*sample_shape, self.sizes[-1])
        cells = [
            jax.random.categorical(k, block[drawn][..., None, :], shape=rows)
            for k, block in zip(keys[:-1], parts[:-1], strict=True)
        ]
        there = jnp.arange(self.sizes[-1]) < number[..., None]
        return jnp.where(there[..., None], jnp.stack(cells, axis=-1), -1)
