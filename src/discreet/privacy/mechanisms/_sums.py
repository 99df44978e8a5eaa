"""Sums in which one record's contribution is bounded, each a primitive whose bound the verifier reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from discreet._jax import (
    exact_product,
    known_number,
    marker,
)
from discreet.privacy import gradients


def _clip(*operands: Array, norm: float | None, order: int) -> list[Array]:
    *rows, bound = (*operands, norm) if norm is not None else operands
    return gradients.clip_records(rows, bound, order)


def _sum(*operands: Array) -> list[Array]:
    *rows, mask = operands
    return gradients.sum_records(rows, mask)


def _weighted(rows: Array, weights: Array, mask: Array) -> list[Array]:
    return [gradients.sum_weighted(rows, weights, mask)]


def _counted(
    levels: Array,
    mask: Array,
    *counted: Array,
    sizes: tuple[int, ...],
    tables: tuple[tuple[int, ...], ...],
    weights: tuple[int, ...],
) -> list[Array]:
    """Implement `count_cells`: one scatter per table, in integers, then converted to floats where they are exact."""
    cells = [math.prod(sizes[column] for column in table) for table in tables]
    strides = np.zeros((len(tables), len(sizes)), np.int32)
    for number, table in enumerate(tables):
        for place, column in enumerate(table):
            strides[number, column] = math.prod(sizes[c] for c in table[place + 1 :])
    levels = levels.astype(jnp.int32)
    limits = np.asarray(sizes, np.int32)
    mask = mask.reshape(-1, *[1] * (levels.ndim - 2))
    real = mask & jnp.all((levels >= 0) & (levels < limits), axis=-1)

    def add(total: Array, table: tuple[Array, Array]) -> tuple[Array, None]:
        code = table[1] + exact_product(levels, table[0])
        return total.at[jnp.where(real, code, sum(cells))].add(1, mode="drop"), None

    start = jnp.zeros(sum(cells), jnp.result_type(int))
    total, _ = jax.lax.scan(
        add, start, (jnp.asarray(strides), jnp.cumsum(jnp.asarray([0, *cells[:-1]], jnp.int32)))
    )
    dtype = jnp.result_type(float)
    weight = np.repeat(np.asarray(weights), cells)
    # A count saturates where floats become inexact: it never moves by more than one.
    most = np.asarray(2 ** (jnp.finfo(dtype).nmant + 1) // weight, total.dtype)
    before = jnp.clip(counted[0], 0, most) if counted else 0
    return [jnp.asarray(weight, dtype) * jnp.minimum(before + total, most).astype(dtype)]


CLIP = marker("clip_records", _clip, refuse=None)
SUM = marker("sum_records", _sum, refuse=None)
WEIGHTED_SUM = marker("sum_weighted", _weighted, refuse=None)
COUNT = marker("count_cells", _counted, refuse=None)


def clip_records(tree: Any, norm: float | Float[Array, ""], order: int = 2) -> Any:
    """Scale each record's slice of a tree so that its joint L2 norm, or with order 1 its L1 norm, is at most `norm`.

    Guarantee: for every record, finite or not, sqrt(sum over leaves of |slice|^2), or the sum of
    sizes, is <= `norm` after rounding to float32. A record with a NaN or an infinity, or whose squared norm overflows,
    becomes exactly zero. A record already within the norm keeps its value. Low-precision leaves
    come back as float32.

    Args:
        tree: Arrays whose leading axis is the records.
        norm: The bound; positive and finite, a Python number or a scalar array.
        order: 2, or 1, which `laplace_mechanism` needs.

    Returns:
        A tree of the same structure and shapes.

    Raises:
        ValueError: A norm known while tracing is not positive and finite, the tree is empty, or
            another order.
        TypeError: A leaf is complex.

    Reference:
        Abadi et al., Deep learning with differential privacy, CCS 2016, Algorithm 1.

    >>> import jax.numpy as jnp, discreet as dp
    >>> rows = jnp.array([[3.0, 4.0], [0.3, 0.4], [jnp.nan, 0.0]])
    >>> [round(float(x), 4) for x in jnp.linalg.norm(dp.clip_records(rows, 1.0), axis=1)]
    [1.0, 0.5, 0.0]
    """
    # Check all arguments here, from shapes alone.
    if order not in (1, 2):
        raise ValueError(f"clip_records: order is {order!r}; norms of order 1 and 2 are bounded.")
    jax.eval_shape(lambda x: gradients.clip_records(x, norm), tree)
    known, operands = known_number(norm)
    leaves, structure = jax.tree.flatten(tree)
    clipped = CLIP.bind(*leaves, *operands, norm=known, order=int(order))
    return jax.tree.unflatten(structure, clipped)


def sum_records(tree: Any, mask: Bool[Array, "record"]) -> Any:
    """Sum over the leading axis the rows that `mask` keeps; the others count as exactly zero.

    Guarantee: a dropped row has no influence, whatever its content (NaN included): it is replaced
    by zeros, not multiplied by zero. Rows are added in float64, and the sum is rounded to their
    type once: for n rows of norm C in float32, one record moves it by at most C (1 + n 2**-23),
    which `gaussian_mechanism` and `certify` account for. With `jax.enable_x64` and float64 rows the
    rounding is negligible.

    Args:
        tree: Arrays whose leading axis is the records.
        mask: True for real rows.

    Returns:
        A tree of the same structure without the leading axis.

    >>> import jax.numpy as jnp, discreet as dp
    >>> float(dp.sum_records(jnp.array([1.0, 2.0, jnp.nan]), jnp.array([True, True, False])))
    3.0
    """
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, SUM.bind(*leaves, mask)) if leaves else tree


def sum_weighted(
    rows: Int[Array, "record row latent"],
    weights: Float[Array, "record row output"],
    mask: Bool[Array, "record"],
) -> Float[Array, "output latent"]:
    """Sum integer rows times weights over the records and their rows, exactly.

    Guarantee: one record adds at most 1 in L2, whatever its rows and weights hold: for up to 2**26
    records that is what the sum as computed moves by, in any order of additions. Where the sum over
    its rows of |weights| |row| exceeds 1, weights are divided by it. Where that is not finite, or
    the mask drops the record, it counts as exactly zero. Products are shortened by one part in 1e6,
    and rounded to 2**-24.

    Args:
        rows: Integers, in any unit: weights are relative to it. A row of zeros counts as one of
            length 1 in that sum.
        weights: For each row one number for each output.
        mask: True for real records.

    Returns:
        The sum over records and rows of the outer products of weights and row.

    Raises:
        TypeError: Rows are not integers.
        ValueError: Shapes do not fit, or there are more records.

    >>> import jax.numpy as jnp
    >>> rows = jnp.array([[[3, 4]], [[0, 1]], [[0, 8]]])
    >>> sum_weighted(rows, jnp.array([[[0.1]], [[jnp.nan]], [[0.2]]]), jnp.ones(3, bool)).round(3)
    Array([[0.3, 1.4]], dtype=float64)
    """
    rows = jnp.asarray(rows)
    weights = jnp.asarray(weights)
    mask = jnp.asarray(mask)
    if not jnp.issubdtype(rows.dtype, jnp.integer) or mask.dtype != bool:
        raise TypeError(
            f"sum_weighted: rows are {rows.dtype} and the mask is {mask.dtype}; pass integers and Booleans."
        )
    fits = rows.ndim == weights.ndim == 3 and weights.shape[:2] == rows.shape[:2]
    if not (fits and mask.shape == rows.shape[:1] and min(weights.shape[1:]) > 0):
        raise ValueError(
            f"sum_weighted: rows have the shape {rows.shape}, weights {weights.shape} and the mask {mask.shape}; pass (record, "
            "row, latent), (record, row, output) and (record,)."
        )
    if len(mask) > gradients.MOST_WEIGHTED:
        raise ValueError(
            f"sum_weighted: of {len(mask):,} records; sums are exact for {gradients.MOST_WEIGHTED:,} at most."
        )
    return WEIGHTED_SUM.bind(rows, weights, mask)[0]


def count_cells(
    levels: Int[Array, "record *row column"],
    mask: Bool[Array, "record"],
    sizes: Sequence[int],
    tables: Sequence[Sequence[int]],
    weights: Sequence[int],
    counted: Int[Array, "cell"] | None = None,
) -> Float[Array, "cell"]:
    """Count the records, or their rows, in each cell of cross tables, each table times its weight.

    Guarantee: a record that is added or removed changes the result by at most sqrt(sum of squared
    weights) in L2, and one that is replaced by sqrt(2) times that, whatever its levels: it is in at
    most one cell of each table. A record of m rows changes it by m times that, as where all its
    rows are alike. Nothing is rounded. A row that the mask drops, or with a level that its column
    does not have, is in none.

    Args:
        levels: The level of each cell, from 0; where records have several rows, with an axis of
            rows.
        mask: True for real records.
        sizes: Number of levels of each column.
        tables: The columns of each table, by position; of no columns: one cell, with all records.
        weights: Weights of the tables, integers of at least 1.
        counted: Public counts of further records, the tables' cells concatenated, in C order.

    Returns:
        Weighted counts in the order of `counted`: float32, which end at 2^24, or float64, at 2^53,
            where JAX has 64 bits.

    Raises:
        ValueError, TypeError: Arguments of other shapes or types.

    >>> import jax.numpy as jnp
    >>> count_cells(jnp.array([[0, 1], [1, 1], [0, 1]]), jnp.ones(3, bool), (2, 2), [(0,), (0, 1)], [1, 3]).tolist()
    [2.0, 1.0, 0.0, 6.0, 0.0, 3.0]
    """
    levels = jnp.asarray(levels)
    mask = jnp.asarray(mask)
    if not jnp.issubdtype(levels.dtype, jnp.integer) or mask.dtype != bool:
        raise TypeError(
            f"count_cells: levels are {levels.dtype} and the mask is {mask.dtype}; pass integers and Booleans."
        )
    sizes = tuple(map(int, sizes))
    weights = tuple(map(int, weights))
    tables = tuple(tuple(map(int, x)) for x in tables)
    columns = [column for table in tables for column in table]
    fits = (
        levels.ndim in (2, 3) and levels.shape[-1] == len(sizes) and mask.shape == levels.shape[:1]
    )
    if not (
        fits and tables and len(weights) == len(tables) and set(columns) <= set(range(len(sizes)))
    ):
        raise ValueError(
            f"count_cells: levels have the shape {levels.shape} and the mask {mask.shape}, for {len(sizes)} columns, tables "
            f"{tables} and {len(weights)} weights. Pass a level for each column, and tables of these columns with a weight each."
        )
    cells = sum(math.prod(sizes[column] for column in table) for table in tables)
    if (
        min(weights) < 1
        or max(weights) > 2**20
        or min(sizes) < 1
        or max(cells, math.prod(levels.shape[:-1])) >= 2**30
    ):
        raise ValueError(
            f"count_cells: weights are {weights} and there are {cells} cells; pass weights from 1 to 2^20, columns with levels, "
            "and fewer than 2^30 records and cells."
        )
    further = [] if counted is None else [jnp.asarray(counted)]
    if any(x.shape != (cells,) or not jnp.issubdtype(x.dtype, jnp.integer) for x in further):
        raise ValueError(
            f"count_cells: counted has the shape {further[0].shape}; pass {cells} integers, one for each cell."
        )
    return COUNT.bind(levels, mask, *further, sizes=sizes, tables=tables, weights=weights)[0]
