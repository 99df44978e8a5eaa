"""The exact sums that a linear regression releases: rows on a grid, and the bound on what one record adds to each."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from discreet.methods.newton import EDGES, NUM_BINS
from discreet.privacy.query import GRID_OF_PRODUCTS, GRID_OF_SUMS, on_grid, rounded, summed, turns_of

SHARE_OF_TARGET = 0.5
TURN = 64  # of `query.in_turns`: of other ones, rows might be rounded otherwise


class Sum(NamedTuple):
    """The exact sum over records that a release is of.

    z is (1, x) @ to. Of "products" a record adds weighted products of z and of its clipped residual, over `width`. What it adds
    in the last stage is of v = z (y - (1, x) @ line): one count in the bins of `EDGES`, by the length of v ("lengths"), or v
    itself, clipped at the length `width` and divided by it ("gradient").
    """

    kind: str

    def __call__(
        self,
        x: Float[Array, "record feature"],
        y: Float[Array, " record"],
        mask: Bool[Array, " record"],
        to: Float[Array, "feature+1 feature+1"],
        line: Float[Array, " feature+1"],
        width: Float[Array, ""],
    ) -> Float[Array, "..."]:
        """The sum.

        Args:
            x: Features of about unit size, as are the next two in turns of `TURN`.
            y: Targets.
            mask: True for real rows.
            to: The map of the features. Public.
            line: Coefficients that the target is measured from. Public.
            width: Residuals that are clipped, over the square root of `SHARE_OF_TARGET`; or the length at which v is. Public.
        """

        def add(x: Array, y: Array, mask: Array) -> Array:
            rows = self._rows(x, y, mask, to, line, width)
            return rows.T @ rows if self.kind == "products" else jnp.sum(rows, axis=0)

        return summed(add, turns_of([x, y, mask], TURN))

    def _rows(self, x: Array, y: Array, mask: Array, to: Array, line: Array, width: Array) -> Array:
        """What records add, or whose products they add, on the grid."""
        ones = jnp.concatenate([jnp.ones_like(x[:, :1]), x], axis=1)
        z = ones @ to
        left = y - ones @ line
        if self.kind == "products":
            left = jnp.clip(left / width, -math.sqrt(SHARE_OF_TARGET), math.sqrt(SHARE_OF_TARGET))
            weight = whole(x.shape[1]) / (jnp.sum(jnp.square(z), axis=1) + SHARE_OF_TARGET)
            rows = jnp.concatenate([z, left[:, None]], axis=1) * jnp.sqrt(weight)[:, None]
            return rounded(rows, mask, GRID_OF_PRODUCTS)
        rows = z * left[:, None]
        length = jnp.sqrt(jnp.sum(jnp.square(rows), axis=1))
        if self.kind == "lengths":
            level = jnp.sum(length[:, None] > EDGES[1:-1], axis=1)
            rows = (level[:, None] == np.arange(NUM_BINS)) * jnp.isfinite(length)[:, None].astype(x.dtype)
        else:
            rows = rows / jnp.maximum(length, width)[:, None]
        return on_grid(rows, mask, GRID_OF_SUMS)


def whole(num_features: int) -> float:
    """A little less than 1: rounding to the grid then leaves a row's norm below 1, and clipping leaves it on the grid."""
    return (1 - math.sqrt(num_features + 2) / GRID_OF_PRODUCTS) ** 2
