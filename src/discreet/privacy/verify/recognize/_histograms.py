"""Histograms: rows added to an array of zeros, each at an index that may depend on its record.

`zeros.at[index].add(rows)` is how `bincount`, `segment_sum` and two-way tables are written. The
index is private, so a record may add anywhere. But it adds nothing but its own updates: those of
one window go to distinct places, or are dropped, so one record moves the result by the norm of its
row, and k windows by at most sqrt(k) times their joint norm.

Sound if the promises of the scatter are none that the index could break (`unique_indices`, sorted,
in bounds), if all updates start from zero, and if integers cannot reach `MOST_EXACT`.
"""

from __future__ import annotations

import math

import jax

from discreet._jax import JaxprEqn, dtype_of, primitives as p
from discreet.privacy.verify._arithmetic import MOST_EXACT
from discreet.privacy.verify._bounds import RecordSet, scaled
from discreet.privacy.verify._domain import Private, Public, Value
from discreet.privacy.verify._interpreter import Checker
from discreet.privacy.verify._rows import lowest, shapes_in, summed, varies_along


def added_up(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private | None:
    """The rule of rows added to an array of zeros at their indices, as in histograms; None otherwise, or without a bound.

    At any index, one record moves the result by its own updates: those of one window go to distinct
    places, or are dropped, and k windows move it by at most sqrt(k) times their joint norm.
    """
    array, index, update = operands
    numbers = equation.params["dimension_numbers"]
    shapes = shapes_in(equation)
    # If indices break their promises, other records' updates may go anywhere.
    promised = [equation.params[x] for x in ("unique_indices", "indices_are_sorted")]
    undefined = (
        any(promised) or equation.params["mode"] is jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS
    )
    dtype = dtype_of(equation.outvars[0])
    if (
        equation.primitive is not p.scatter_add_p
        or undefined
        or numbers.operand_batching_dims
        or dtype.itemsize < 4
    ):
        return None
    if not isinstance(array, Public) or not array.is_zero:
        return None
    # The other axes of the updates are those of the indices except the last.
    scattered = [i for i in range(len(shapes[2])) if i not in numbers.update_window_dims]
    if isinstance(index, Private):
        if not index.axes or len(shapes[1]) - 1 in index.axes:
            return None
        axes = tuple(scattered[a] for a in index.axes)
        if isinstance(update, Public):
            varies = varies_along(update, shapes[2], axes)
            size = update.magnitude
            zero = frozenset[RecordSet]()
            low = lowest(update)
            update = index.but(
                axes=axes, terms=None, linf=size, low=low, zero=zero, finite=True, positional=varies
            )
        if (
            not isinstance(update, Private)
            or update.axes != axes
            or update.batch is not index.batch
        ):
            return None
        placed = index.positional
        drops = equation.params["mode"] is jax.lax.GatherScatterMode.FILL_OR_DROP
        # narrower integers may not hold the end
        if drops and dtype_of(equation.invars[1]).itemsize >= 4:
            # `where(mask, y, len(bins))` sends absent records beyond the end, where they add
            # nothing.
            end = min(shapes[0][i] for i in numbers.scatter_dims_to_operand_dims)
            zero = update.zero | {mask for mask, place in index.absent if not 0 <= place < end}
            update = update.but(zero=zero, low=update.low)
    elif (
        isinstance(index, Public)
        and isinstance(update, Private)
        and update.axes
        and set(update.axes) <= set(scattered)
    ):
        axes = update.axes
        placed = varies_along(index, shapes[1], tuple(scattered.index(a) for a in axes))
    else:
        return None
    update = update.but(positional=update.positional or placed, low=update.low)
    windows = math.prod(shapes[2][i] for i in scattered if i not in axes)
    if dtype.kind != "f":
        most = (
            math.inf
            if update.linf is None
            else update.linf * math.prod(shapes[2][i] for i in scattered)
        )
        if dtype.kind not in "iu" or most >= MOST_EXACT or windows > 1:
            return None
    found = summed(checker, update, shapes[2], additive=True)
    if found.terms is None:
        return None
    return found.but(
        terms=scaled(found.terms, math.sqrt(windows)), origin=checker.origin(equation, operands)
    )
