"""Windows and sorting along the axes within a record: pooling, order statistics, updates of a part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from discreet._jax import JaxprEqn, aval
from discreet._jax import primitives as p
from discreet.verify._alignment import varies_along
from discreet.verify._axes import Axes
from discreet.verify._domain import Private, Public, Value
from discreet.verify._interpreter import RULES, Checker, shape_of


def common_rows(operands: Sequence[Value]) -> Axes | None:
    """The axes of the records, where all private operands have them in one place; else None."""
    private = [x for x in operands if isinstance(x, Private)]
    first = private[0]
    alike = all(x.axes == first.axes and x.batch is first.batch for x in private)
    return first.axes if alike and first.batch is not None else None


def rows_of_all(checker: Checker, equation: JaxprEqn, operands: list[Value], axes: Axes) -> list[Value]:
    """Rows that are made of the operands' rows, which have the same axes as the results; nothing is said of their sizes."""
    private = [x for x in operands if isinstance(x, Private)]
    positional = any(x.positional for x in private)
    for value, variable in zip(operands, equation.invars, strict=True):
        if isinstance(value, Public):
            positional |= varies_along(value, shape_of(variable), axes)
    origin = checker.origin(equation, operands)
    return [
        Private(private[0].batch, axes, origin, finite=np.dtype(aval(v).dtype).kind in "biu", positional=positional)
        for v in equation.outvars
    ]


def _windows(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """Sums, maxima, ... over windows; and what their derivatives put back where the maximum was."""
    axes, params = common_rows(operands), equation.params
    sizes: Any = [
        params[n] for n in ("window_dimensions", "window_strides", "base_dilation", "window_dilation") if n in params
    ]
    if (
        axes is None
        or any(x[a] != 1 for x in sizes for a in axes)
        or any(tuple(params["padding"][a]) != (0, 0) for a in axes)
    ):
        return _refused(checker, equation, operands, "windows reach over several records")
    return rows_of_all(checker, equation, operands, axes)


def _sort(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """Sorting, of several arrays by the first of them; public ones move as records tell them to."""
    axes = common_rows(operands)
    if axes is None or int(equation.params["dimension"]) in axes:
        return _refused(checker, equation, operands, "sorting moves records, or along with other records")
    return rows_of_all(checker, equation, operands, axes)


def _top_k(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    axes, rank = common_rows(operands), len(shape_of(equation.invars[0]))
    if axes is None or int(equation.params.get("axis", rank - 1)) % rank in axes:
        return _refused(checker, equation, operands, "the largest are chosen among records")
    return rows_of_all(checker, equation, operands, axes)


def _update_slice(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """A part of each record, replaced by a part of each record."""
    target, update, *starts = operands
    axes = None if any(isinstance(x, Private) for x in starts) else common_rows([target, update])
    shapes = [shape_of(x) for x in equation.invars[:2]]
    if axes is None or any(shapes[0][a] != shapes[1][a] for a in axes):
        return _refused(checker, equation, operands, "values are put at places that other records can reach")
    return rows_of_all(checker, equation.replace(invars=equation.invars[:2]), [target, update], axes)


def _refused(checker: Checker, equation: JaxprEqn, operands: list[Value], why: str) -> list[Value]:
    return [checker.unbounded(equation, operands, f"[rows] {equation.primitive.name}: {why}") for _ in equation.outvars]


for _primitive in (
    p.reduce_window_sum_p, p.reduce_window_max_p, p.reduce_window_min_p, p.select_and_scatter_add_p,
    p.select_and_gather_add_p,
):  # fmt: skip
    RULES[_primitive] = _windows
RULES.update({p.sort_p: _sort, p.top_k_p: _top_k, p.dynamic_update_slice_p: _update_slice})
