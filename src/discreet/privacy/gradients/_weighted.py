"""Sums of integer rows times weights, exact, to which one record adds at most 1.

The gradient of a generalised linear model is a sum of w_i z_i: a number times a vector, of which
the vector stays the same from one gradient to the next. Clipping would make each product, measure
it and make it again. But |w_i| and |z_i| apart say how long it is, so that the weight is cut before
products exist: to 1 / |z_i|.

- *Rows are integers.* Their squares do not underflow, and are added up without rounding. A row that
  is not zero has a length of at least 1, and one that is zero counts as one of that length: no
  weight is too large.
- *Each product is rounded to a multiple of 2^-24*, so the sum of 2^26 of them is exact in float64,
  in any order and in any blocks: a record moves it by what the record adds, and by nothing else.
- *Rounding is accounted for*, see `room_for`.
- *Nothing jumps.* A last bit in a weight, as compilers may make it otherwise in another place of
  the table, moves a product by a step of the grid at most. What is NaN or infinite adds exactly
  zero.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from discreet._jax import double, exact_product

PRODUCTS = 2.0**24
"""Products are rounded to multiples of its inverse."""
MOST_WEIGHTED = 2**26
"""Records of a sum at most: those of `query`. From 2^29 on it would not be exact."""
_SPARED = (
    2.0**-20
)  # for what rounding in float64 adds to lengths and products: less than (d + 8) 2^-53 for rows of d numbers


def room_for(num_products: int, num_rows: int) -> float:
    """The factor with which what is within 1, but for rounding in float64, is within 1 after rounding to the grid.

    That moves a product by half of 2^-24, and so the `num_products` of a row by the root of their
    number times that.
    """
    return 1.0 - _SPARED - num_rows * math.sqrt(num_products) / (2 * PRODUCTS)


def sum_weighted(
    rows: Int[Array, "record row latent"],
    weights: Float[Array, "record row output"],
    mask: Bool[Array, "record"],
) -> Float[Array, "output latent"]:
    """Sum rows times weights: `mechanisms.sum_weighted`, unmarked."""
    with double():
        records, per_record, latents = rows.shape
        outputs = weights.shape[2]
        whole = rows.reshape(-1, latents).astype(jnp.float64)
        factors = weights.reshape(-1, outputs).astype(jnp.float64)
        lengths = jnp.sqrt(jnp.maximum(exact_product(jnp.square(whole), jnp.ones(latents)), 1.0))
        sizes = (
            jnp.abs(factors[:, 0])
            if outputs == 1
            else jnp.sqrt(jnp.sum(jnp.square(factors), axis=1))
        )
        total = jnp.sum((lengths * sizes).reshape(records, per_record), axis=1)
        cut = jnp.where(mask & jnp.isfinite(total), jnp.minimum(1 / total, 1.0), 0.0)
        cut = jnp.repeat(cut * (room_for(outputs * latents, per_record) * PRODUCTS), per_record)
        factors = jnp.where(cut[:, None] > 0, factors * cut[:, None], 0.0)
        # Products with ones: XLA computes them in a third of the time of sums, to the same bits.
        each = jnp.ones(len(whole))
        found = [
            exact_product(each, jnp.round(whole * factors[:, place, None]))
            for place in range(outputs)
        ]
        return jnp.stack(found) / PRODUCTS
