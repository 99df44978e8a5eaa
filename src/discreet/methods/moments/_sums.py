"""The exact sums that a linear regression releases: rows on a grid, and the bound on what one record adds to each."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from discreet._jax import exact_product
from discreet.methods.newton import EDGES, NUM_BINS
from discreet.privacy.query import (
    GRID_OF_PRODUCTS,
    GRID_OF_SUMS,
    on_grid,
    rounded,
    summed,
    turns_of,
)

SHARE_OF_TARGET = 0.5
NUM_MEANS = 3  # of weights
TURN = 64  # of `query.in_turns`: of other ones, rows might be rounded otherwise


class Sum(NamedTuple):
    """The exact sum over records that a release is of.

    z is (1, x) @ to. Of "products" a record adds weighted products of z and of its clipped
    residual, over `width`. What it adds in the last stage is of v = z (y - (1, x) @ line): one
    count in the bins of `EDGES`, by the length of v ("lengths"), or v itself, clipped at the length
    `width` and divided by it ("gradient").

    With survey weights s, products and v count s times. The kind "weights" adds whether s is above
    0, s, and s^2, over sqrt 3.
    """

    kind: str

    def __call__(self, *arguments: Array) -> Float[Array, "..."]:
        """The sum.

        Args:
            arguments: In turns of `TURN` the features, (record, feature), of about unit size; the
                targets; the survey weights in [0, 1], if there are any; and the mask, True for real
                rows, all (record,). Then what is public: the map of the features, (feature + 1,
                feature + 1); the coefficients that the target is measured from, (feature + 1,); and
                where residuals are clipped, over the square root of `SHARE_OF_TARGET`, or the
                length at which v is.
        """
        *table, to, line, width = arguments

        def add(x: Array, y: Array, *others: Array) -> Array:
            *survey, mask = others
            rows = self._rows(
                x, y, [jnp.clip(each, 0, 1) for each in survey], mask, to, line, width
            )
            return exact_product(rows.T, rows) if self.kind == "products" else jnp.sum(rows, axis=0)

        return summed(add, turns_of(table, TURN))

    def _rows(
        self,
        x: Array,
        y: Array,
        survey: list[Array],
        mask: Array,
        to: Array,
        line: Array,
        width: Array,
    ) -> Array:
        """What records add, or whose products they add, on the grid."""
        if self.kind == "weights":
            counts = (survey[0] > 0).astype(x.dtype)
            powers = jnp.stack([counts, survey[0], jnp.square(survey[0])], axis=1)
            return on_grid(powers / math.sqrt(NUM_MEANS), mask, GRID_OF_SUMS)
        ones = jnp.concatenate([jnp.ones_like(x[:, :1]), x], axis=1)
        z = exact_product(ones, to)
        left = y - exact_product(ones, line)
        if self.kind == "products":
            left = jnp.clip(left / width, -math.sqrt(SHARE_OF_TARGET), math.sqrt(SHARE_OF_TARGET))
            weight = whole(x.shape[1]) / (jnp.sum(jnp.square(z), axis=1) + SHARE_OF_TARGET)
            for each in survey:
                weight = weight * each
            rows = jnp.concatenate([z, left[:, None]], axis=1) * jnp.sqrt(weight)[:, None]
            return rounded(rows, mask, GRID_OF_PRODUCTS)
        rows = z * left[:, None]
        for each in survey:
            rows = rows * each[:, None]
        length = jnp.sqrt(jnp.sum(jnp.square(rows), axis=1))
        if self.kind == "lengths":
            level = jnp.sum(length[:, None] > EDGES[1:-1], axis=1)
            rows = (level[:, None] == np.arange(NUM_BINS)) * jnp.isfinite(length)[:, None].astype(
                x.dtype
            )
        else:
            rows = rows / jnp.maximum(length, width)[:, None]
        return on_grid(rows, mask, GRID_OF_SUMS)


def whole(num_features: int) -> float:
    """A little less than 1: rounding to the grid then leaves a row's norm below 1, and clipping leaves it on the grid."""
    return (1 - math.sqrt(num_features + 2) / GRID_OF_PRODUCTS) ** 2
