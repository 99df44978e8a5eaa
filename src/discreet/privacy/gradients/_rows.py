"""Rows that are clipped: their lengths, scales and weights.

A row is one record's slice of a tree of arrays. It is scaled by min(1, C / its joint L2 norm) or
dropped, and both decisions use that row alone. The norm is computed in float64 and in units of C,
so that no scale of the data overflows or vanishes where it matters. Clipping aims below C by
`rounding_margin`, so that the row is within C after the float32 operations that follow. A row that
is not finite has the scale zero and counts as exactly zero, although 0 * NaN is NaN.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float

from discreet._jax import double
from discreet.privacy.gradients._contract import Channels, Norm


def check_positive(what: str, value: Any, why: str) -> None:
    """Refuse a scale that is not a scalar or, if known at trace time, not positive and finite.

    Raises:
        ValueError: With the value, the reason and the remedy.
    """
    if jnp.ndim(value) > 0:
        raise ValueError(f"{what} has shape {jnp.shape(value)}; it must be one number. {why}")
    if not isinstance(value, Tracer) and not (float(value) > 0 and math.isfinite(float(value))):
        raise ValueError(f"{what} is {float(value)}; it must be positive and finite. {why}")


def check_clipping(who: str, tree: Any, norm: Any) -> None:
    """Refuse a tree whose rows have no norm, and a clipping norm that bounds nothing."""
    check_positive(
        f"{who}: the clipping norm",
        norm,
        "It bounds one record's contribution; 1.0 is a common choice.",
    )
    if not isinstance(norm, Tracer) and not 1e-20 <= float(norm) <= 1e30:
        raise ValueError(
            f"{who}: the clipping norm is {float(norm):g}; 32-bit arithmetic supports norms from 1e-20 to 1e30. Scale the "
            "loss."
        )
    if not jax.tree.leaves(tree):
        raise ValueError(f"{who}: the tree contains no array. Pass at least one.")
    if any(jnp.issubdtype(x.dtype, jnp.complexfloating) for x in jax.tree.leaves(tree)):
        raise TypeError(
            f"{who}: a leaf is complex. Clip its real and imaginary parts, as two leaves."
        )


def rounding_margin(size: int) -> float:
    """The relative margin by which clipping aims below C, so that rounding cannot exceed it, for any record.

    Squares of `size` coordinates are summed in float64, which is off by at most `size` units in the
    last place of that. The conversion of the norm to float32, the root, the division and the
    product that follow take fewer than 16 of float32.
    """
    return 16.0 * 2.0**-24 + size * 2.0**-53


def row_scale(squared_norm: Float[Array, "record"], size: int) -> Float[Array, "record"]:
    """The factor in [0, 1] that brings a row of the given squared norm, in units of C, to C.

    Zero where the squared norm is not finite.
    """
    target = 1.0 - rounding_margin(size)
    # An exact zero keeps the factor 1 without dividing by it.
    factor = jnp.minimum(1.0, target * jax.lax.rsqrt(jnp.maximum(squared_norm, 1e-30)))
    return jnp.where(jnp.isfinite(squared_norm), factor, 0.0)


def squared_norms(tree: Any, norm: Norm, order: int = 2) -> Float[Array, "record"]:
    """Squared L2 norms, or with order 1 L1 norms, of the rows of a tree, jointly over its leaves, in units of `norm`.

    Computed in float64, and relative to `norm`, so that no scale of the data overflows or vanishes
    where it matters.
    """
    with double():
        size = jnp.abs if order == 1 else jnp.square
        sizes = [size(x.astype(jnp.float64) / norm) for x in jax.tree.leaves(tree)]
        leaves = [jnp.sum(x.reshape(len(x), -1), axis=1) for x in sizes]
        total = functools.reduce(jnp.add, leaves)
        return (jnp.square(total) if order == 1 else total).astype(jnp.float32)


def record_size(tree: Any) -> int:
    """Number of coordinates of one record of a tree whose leading axis is the records."""
    return sum(math.prod(x.shape[1:]) for x in jax.tree.leaves(tree))


def _rows(x: Array, per_record: Float[Array, "record"]) -> Array:
    return per_record.reshape(per_record.shape + (1,) * (x.ndim - 1))


def clip_records(tree: Any, norm: Norm, order: int = 2) -> Any:
    """Scale each record's slice of a tree so that its joint norm is at most `norm`: `mechanisms.clip_records`, unmarked.

    Holds after rounding to float32 (see `rounding_margin`). Low-precision leaves come back as
    float32: rounding a clipped bfloat16 up would break the bound by half a per cent.
    """
    check_clipping("clip_records", tree, norm)
    squared = squared_norms(tree, norm, order)
    factor = row_scale(squared, record_size(tree))
    return scale_rows(tree, factor, jnp.isfinite(squared))


def scale_rows(tree: Any, factor: Float[Array, "record"], keep: Bool[Array, "record"]) -> Any:
    """Each row times its factor, in at least float32; exactly zero where not `keep`, whatever the row holds."""

    def leaf(x: Array) -> Array:
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        return jnp.where(_rows(x, keep), x * _rows(x, factor), 0.0)

    return jax.tree.map(leaf, tree)


_BLOCK = 2**13  # rows that are added up before the sums of such blocks are


def sum_records(tree: Any, mask: Bool[Array, "record"]) -> Any:
    """Sum over the leading axis the rows that `mask` keeps: `mechanisms.sum_records`, unmarked.

    In float64, in two stages for many rows; the result is rounded to the leaf's type
    (`rounding_of_records`).
    """

    def leaf(x: Array) -> Array:
        kept = jnp.where(_rows(x, mask), x, 0)
        if x.dtype not in (jnp.float32, jnp.float64):
            return jnp.sum(kept, axis=0)
        with double():
            kept = kept.astype(jnp.float64)
            blocks = _blocks(len(x))
            if blocks:
                whole = blocks * _BLOCK
                parts = jnp.sum(kept[:whole].reshape(blocks, _BLOCK, *x.shape[1:]), axis=1)
                # XLA would make one sum of both.
                parts = jax.lax.optimization_barrier(parts)
                kept = jnp.concatenate([parts, jnp.sum(kept[whole:], axis=0, keepdims=True)])
            return jnp.sum(kept, axis=0).astype(x.dtype)

    return jax.tree.map(leaf, tree)


def _blocks(rows: int) -> int:
    """The number of full blocks; 0 for few rows, whose sum is precise enough."""
    return rows // _BLOCK if rows > 2**16 else 0


def rounding_of_records(rows: int, dtype: Any) -> float:
    """The share of C by which rounding lets one record move `sum_records` beyond its own row, if all rows are within C.

    A partial sum of k additions is off by at most k 2^-53 times the sum of the rows' norms, which
    is n C, and rounding the result to float32 by 2^-24 n C: twice, for two tables. 2^-20 is for few
    roundings of the rows themselves. `rows` counts those that the mask drops, too; `dtype` is that
    of the result.
    """
    blocks = _blocks(rows)
    additions = _BLOCK + 1 + blocks if blocks else rows
    last = 2.0**-23 if dtype == np.float32 else 0.0
    return rows * (additions * 2.0**-52 + last) + 2.0**-20


def sum_doubles(rows: Any) -> Any:
    """Sum over the leading axis, in float64."""
    with double():
        return jax.tree.map(lambda x: jnp.sum(x.astype(jnp.float64), axis=0), rows)


class RowWeights(NamedTuple):
    """The weights of records' rows."""

    # rows that count: kept by the mask, with a finite loss and a finite squared norm
    keep: Bool[Array, "record"]
    # what to multiply each record's gradient with; exactly 0 where not `keep`. A gradient that is
    # not finite must still be selected away (`where`), or its sum be dropped: 0 * NaN is NaN.
    factor: Float[Array, "record"]
    # the weighted, clipped losses of the rows that count; 0 for the others
    loss: Float[Array, "record"]
    # the weight of the counts, in the first column within C, in the second beyond
    count: Float[Array, "record two"]


def row_weights(
    losses: Float[Array, "record"],
    squared_norms: Float[Array, "record"],
    size: int,
    mask: Bool[Array, "record"],
    norm: Norm,
    channels: Channels,
) -> RowWeights:
    """The factor of each record's gradient, and its contributions to loss and count.

    Guarantee: if `squared_norms` is right up to the rounding that `rounding_margin(size)` allows
    for, each row adds at most `channels.joint_bound(norm)` to (factor * gradient, loss, count) in
    the joint L2 norm.

    Args:
        losses: Each record's loss, in nats; any number.
        squared_norms: Each record's |gradient|^2 / C^2, joint over the leaves; any number.
        size: Number of coordinates of one gradient.
        mask: True for real rows.
        norm: C.
        channels: The weights of loss and count. Without a share they are exactly 0.
    """
    keep = mask & jnp.isfinite(losses) & jnp.isfinite(squared_norms)
    factor = jnp.where(keep, row_scale(squared_norms, size), 0.0)
    loss = jnp.zeros(keep.shape)
    count = jnp.zeros((*keep.shape, 2))
    if channels.loss_share > 0.0:
        clipped = jnp.clip(losses - channels.center, -channels.bound, channels.bound)
        # As parts of the bound: a loss may be near infinity, and its weight zero.
        loss = channels.loss_limit(norm) * jnp.where(keep, clipped / channels.bound, 0.0)
    if channels.count_share > 0.0:
        within = squared_norms <= 1.0
        count = channels.count_weight(norm) * jnp.stack([keep & within, keep & ~within], axis=-1)
    return RowWeights(keep, factor, loss, count)
