"""Functions of cells that give each cell the same bits, whatever cells are beside it.

Sums over records are exact, so neighbouring tables have sums that differ by one record's part
alone, if each record's part is computed alike in both. Products of matrices, and vectorised
logarithms and powers, may round a number by its place in an array. Here each cell goes through the
C library by itself, and products of matrices are sums of columns in one order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

_EXACT = ("abs", "ceil", "floor", "maximum", "minimum", "round", "sign", "sqrt", "square")
_EACH = ("cbrt", "cos", "exp", "expm1", "log", "log10", "log1p", "log2", "sin", "tan", "tanh")
CELLWISE = (*_EXACT, *_EACH)


def of_each(function: Callable[..., float]) -> Callable[..., Any]:
    """A function of arrays that computes each number by itself; NaN where it has no value."""

    def one(*numbers: float) -> float:
        try:
            found = function(*numbers)
        except (OverflowError, ValueError, ZeroDivisionError):
            return math.nan
        return math.nan if isinstance(found, complex) else found

    def of_all(*arrays: Any) -> Any:
        import pandas

        cells = [np.asarray(array, np.float64) for array in arrays]
        found = np.asarray(np.frompyfunc(one, len(arrays), 1)(*cells), np.float64)
        # Of a column; otherwise of a number, or of the columns of a spline.
        return pandas.Series(found) if found.ndim == 1 else found[()]

    return of_all


power = of_each(pow)


def functions() -> dict[str, Callable[..., Any]]:
    """The functions that a formula may have, by name."""
    found: dict[str, Callable[..., Any]] = {name: getattr(np, name) for name in _EXACT}
    return found | {name: of_each(getattr(math, name)) for name in _EACH}


class Columns:
    """A matrix; `array @ Columns(matrix)` is the same for a row wherever it stands."""

    __array_ufunc__ = None  # the array leaves the product to this class

    def __init__(self, matrix: Float[np.ndarray, "column other"]) -> None:
        self.matrix = matrix

    def __rmatmul__(self, rows: Float[np.ndarray, "row column"]) -> Float[np.ndarray, "row other"]:
        found = np.zeros((len(rows), self.matrix.shape[1]))
        for column, weights in zip(rows.T, self.matrix, strict=True):
            for place in np.flatnonzero(weights):
                found[:, place] += column * weights[place]
        return found
