"""What all engines share once each record's loss and gradient norm are known: who counts, and how much."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from discreet.gradients._clipping import rounding_margin, row_scale
from discreet.gradients._contract import Channels, Clipping


class RowWeights(NamedTuple):
    """What each record's row is worth.

    Attributes:
        keep: rows that count: kept by the mask, with a finite loss and a finite squared norm.
        factor: what to multiply each record's gradient with; exactly 0 where not `keep`. A gradient that is not finite
            must still be selected away (`where`): 0 * NaN is NaN.
        loss: the sum of the weighted, clipped losses of the rows that count.
        count: the weighted number of rows that count and lie within C, less half of those that count.
    """

    keep: Bool[Array, "record"]
    factor: Float[Array, "record"]
    loss: Float[Array, ""]
    count: Float[Array, ""]


def row_weights(
    losses: Float[Array, "record"],
    squared_norms: Float[Array, "record"],
    size: int,
    mask: Bool[Array, "record"],
    clipping: Clipping,
    channels: Channels,
) -> RowWeights:
    """The factor of each record's gradient, and the two scalars that travel beside the sum.

    Guarantee: if `squared_norms` is right up to the rounding that `rounding_margin(size)` allows for, each row adds at
    most `channels.joint_bound(clipping.norm)` to (factor * gradient, loss, count) in the joint L2 norm.

    Args:
        losses: each record's loss, in nats; any number.
        squared_norms: each record's |gradient|^2 / C^2, joint over the leaves; any number.
        size: number of coordinates of one gradient.
        mask: which rows are real.
        clipping: the rule and C.
        channels: how loss and count are weighted. What has no share is exactly 0.
    """
    keep = mask & jnp.isfinite(losses) & jnp.isfinite(squared_norms)
    factor = jnp.where(keep, _scale(squared_norms, size, clipping), 0.0)
    loss = count = jnp.zeros(())
    if channels.loss.share > 0.0:
        clipped = jnp.clip(losses - channels.loss.center, -channels.loss.bound, channels.loss.bound)
        # Summed as parts of the bound: a sum of losses may be infinite, and its weight zero.
        loss = channels.loss_limit(clipping.norm) * jnp.sum(jnp.where(keep, clipped / channels.loss.bound, 0.0))
    if channels.count.share > 0.0:
        within = jnp.where(squared_norms <= 1.0, 0.5, -0.5)
        count = channels.count_weight(clipping.norm) * jnp.sum(jnp.where(keep, within, 0.0))
    return RowWeights(keep, factor, loss, count)


def _scale(squared_norms: Float[Array, "record"], size: int, clipping: Clipping) -> Float[Array, "record"]:
    if clipping.rule == "clip":
        return row_scale(squared_norms, size)
    # Rows shorter than 1e-15 C are taken for as long as that: 0 / 0 has no value, and they add next to nothing.
    length = jnp.sqrt(jnp.maximum(squared_norms, 1e-30)) + clipping.stabiliser / clipping.norm
    return (1.0 - rounding_margin(size)) / length
