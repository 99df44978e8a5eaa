"""The nearest tables of counts without negative ones that have given totals and margins."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

_ROUNDS = 500
_PRECISION = 1e-7


def on_simplex(
    values: Float[np.ndarray, "*row level"], total: Any
) -> Float[np.ndarray, "*row level"]:
    """The nearest values, in L2, that are not negative and add up to `total` along the last axis.

    >>> on_simplex(np.array([3.0, 1.0, -1.0]), 2.0).tolist()
    [2.0, 0.0, 0.0]
    """
    ordered = -np.sort(-values, axis=-1)
    excess = (np.cumsum(ordered, axis=-1) - np.asarray(total)[..., None]) / np.arange(
        1, values.shape[-1] + 1
    )
    kept = np.maximum((ordered > excess).sum(axis=-1), 1)
    return np.maximum(values - np.take_along_axis(excess, kept[..., None] - 1, axis=-1), 0)


def with_margins(
    counts: Float[np.ndarray, "a b"],
    rows: Float[np.ndarray, " a"],
    columns: Float[np.ndarray, " b"],
) -> Float[np.ndarray, "a b"]:
    """The nearest counts that are not negative and have these margins.

    Dykstra's projections onto the tables with the rows' sums and onto those with the columns',
    until both nearly hold; what is left is moved so that they do, exactly but for rounding
    (Altschuler, Weed and Rigollet 2017, Algorithm 2).
    """
    table = counts
    by_rows = np.zeros_like(counts)
    by_columns = np.zeros_like(counts)
    for _ in range(_ROUNDS):
        first = on_simplex(table + by_rows, rows)
        by_rows = table + by_rows - first
        table = on_simplex((first + by_columns).T, columns).T
        by_columns = first + by_columns - table
        if np.abs(table.sum(axis=1) - rows).max() <= _PRECISION * max(1.0, rows.sum()):
            break
    table = table * np.minimum(1, rows / np.maximum(table.sum(axis=1), 1e-300))[:, None]
    table = table * np.minimum(1, columns / np.maximum(table.sum(axis=0), 1e-300))
    left = rows - table.sum(axis=1)
    missing = columns - table.sum(axis=0)
    return table + np.outer(left, missing) / left.sum() if left.sum() > 0 else table
