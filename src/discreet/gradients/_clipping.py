"""Clipping rows to an L2 norm, and summing the rows that a mask keeps."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, Float


def check_positive(what: str, value: Any, why: str) -> None:
    """Refuse a scale that is no scalar or, where it is known while tracing, not positive and finite.

    Raises:
        ValueError: saying what, why and the remedy.
    """
    if jnp.ndim(value) > 0:
        raise ValueError(f"{what} has shape {jnp.shape(value)}; it must be one number. {why}")
    if not isinstance(value, Tracer) and not (float(value) > 0 and math.isfinite(float(value))):
        raise ValueError(f"{what} is {float(value)}; it must be positive and finite. {why}")


def check_tree(who: str, tree: Any) -> None:
    """Refuse a tree whose rows have no norm.

    Raises:
        ValueError: it is empty.
        TypeError: a leaf is complex.
    """
    if not jax.tree.leaves(tree):
        raise ValueError(f"{who}: the tree holds no array, so there is nothing to clip.")
    if any(jnp.issubdtype(x.dtype, jnp.complexfloating) for x in jax.tree.leaves(tree)):
        raise TypeError(f"{who}: a leaf is complex. Clip its real and imaginary parts, as two leaves.")


def rounding_margin(size: int) -> float:
    """The relative margin by which clipping aims below C, so that rounding cannot exceed it.

    A norm of `size` float32 numbers is off by about sqrt(size) units in the last place
    (Higham and Mary, SIAM J. Sci. Comput. 41(5), 2019, probabilistic bound with lambda = 4;
    the worst case, linear in `size`, needs every rounding to go the same way), and the
    division and product that follow by a few more.

    Args:
        size: number of coordinates of one record.
    """
    return float(jnp.finfo(jnp.float32).eps) * (8.0 + math.sqrt(size))


def row_scale(
    squared_norm: Float[Array, "record"],
    size: int,
) -> Float[Array, "record"]:
    """The factor in [0, 1] that brings a row of the given squared norm, in units of C, to C.

    Zero where the squared norm is not finite.
    """
    target = 1.0 - rounding_margin(size)
    # An exact zero keeps the factor 1 without dividing by it.
    factor = jnp.minimum(1.0, target * jax.lax.rsqrt(jnp.maximum(squared_norm, 1e-30)))
    return jnp.where(jnp.isfinite(squared_norm), factor, 0.0)


def squared_norms(tree: Any, norm: float | Float[Array, ""]) -> Float[Array, "record"]:
    """Squared L2 norms of the rows of a tree, jointly over its leaves, in units of `norm`.

    Computed in at least float32, and relative to `norm`, so that no scale of the data
    overflows or vanishes where it matters.
    """

    def leaf(x: Array) -> Float[Array, "record"]:
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32)) / norm
        return jnp.sum(jnp.square(x.reshape(x.shape[0], -1)), axis=1)

    leaves = jax.tree.leaves(tree)
    total = leaf(leaves[0])
    for x in leaves[1:]:
        total = total + leaf(x)
    return total


def record_size(tree: Any) -> int:
    """Number of coordinates of one record of a tree whose leading axis is the records."""
    return sum(math.prod(x.shape[1:]) for x in jax.tree.leaves(tree))


def _rows(x: Array, per_record: Float[Array, "record"]) -> Array:
    return per_record.reshape(per_record.shape + (1,) * (x.ndim - 1))


def clip_records(tree: Any, norm: float | Float[Array, ""]) -> Any:
    """Scale each record's slice of a tree so that its joint L2 norm is at most `norm`: `mechanisms.clip_records`, unmarked.

    Holds after rounding to float32 (see `rounding_margin`). Low-precision leaves come back as float32: rounding a clipped
    bfloat16 up would break the bound by half a per cent.
    """
    check_positive(
        "clip_records: the clipping norm", norm, "It bounds one record's contribution; 1.0 is a common choice."
    )
    check_tree("clip_records", tree)
    squared = squared_norms(tree, norm)
    factor = row_scale(squared, record_size(tree))
    return scale_rows(tree, factor, jnp.isfinite(squared))


def scale_rows(tree: Any, factor: Float[Array, "record"], keep: Bool[Array, "record"]) -> Any:
    """Each row times its factor, in at least float32; exactly zero where not `keep`, whatever the row holds."""

    def leaf(x: Array) -> Array:
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        return jnp.where(_rows(x, keep), x * _rows(x, factor), 0.0)

    return jax.tree.map(leaf, tree)


def sum_records(tree: Any, mask: Bool[Array, "record"]) -> Any:
    """Sum over the leading axis the rows that `mask` keeps: `mechanisms.sum_records`, unmarked."""
    return jax.tree.map(lambda x: jnp.sum(jnp.where(_rows(x, mask), x, 0), axis=0), tree)
