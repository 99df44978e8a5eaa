"""Comparisons: tests for NaN and infinity, and one-hot encodings.

`where(isfinite(x), x, 0)`, `where(x == x, x, 0)` and `jnp.nan_to_num` remove NaN and infinity by
comparing and selecting. A truth value therefore carries what it tells: `tells` (x is NaN, or
infinite, exactly where it is True), and `finite_where` with the conditions of `conditions_on`. The
rule of `select` draws the conclusion. `most_equal` counts the True elements of `labels == levels`,
which bounds a one-hot row's norm by 1.

Sound, since a conclusion needs the condition and the selected value to have the same name, for one
element (`spot`) or a whole record (`content`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from discreet._jax import JaxprEqn, primitives as p
from discreet.privacy.verify._domain import Private, Public, Value
from discreet.privacy.verify._rows import shape_in, shape_out, shapes_in, size_per_record


def tells(equation: JaxprEqn, operands: Sequence[Value]) -> tuple[str, int]:
    """Recognize `x != x` and `x == inf`, as in `jnp.nan_to_num`."""
    value, other = operands
    if not isinstance(value, Private):
        return "", -1
    kind = ""
    if equation.primitive is p.ne_p and equation.invars[0] is equation.invars[1]:
        kind = "nan"
    elif (
        equation.primitive is p.eq_p
        and isinstance(other, Public)
        and other.const is not None
        and other.const.size
    ):
        numbers = other.const.astype(np.float64) if other.const.dtype.kind == "f" else np.zeros(1)
        kind = "inf" if np.all(numbers == np.inf) else "-inf" if np.all(numbers == -np.inf) else ""
    never = kind and (value.finite or kind in value.lacks)
    return ("never", -1) if never else (kind, value.spot if kind else -1)


def conditions_on(equation: JaxprEqn, value: Private) -> set[tuple[str, int]]:
    """Conditions on a record as a whole from conditions on each of its elements."""
    single = size_per_record(shape_in(equation), value.axes) == 1
    return {("all" if single else "of", value.content)}


def number_if(value: Private) -> tuple[int, int]:
    """Spot and content of the value whose finiteness makes this one finite."""
    return value.number_if if value.number_if[0] >= 0 else (value.spot, value.content)


def most_equal(equation: JaxprEqn, operands: Sequence[Value]) -> int | None:
    """Upper bound on a record's True elements of `==`: one along an axis of distinct numbers, as in `one_hot`."""
    shapes = shapes_in(equation)
    out = shape_out(equation)
    for (value, other), (own, _) in ((operands, shapes), (operands[::-1], shapes[::-1])):
        if (
            not isinstance(value, Private)
            or value.axes is None
            or not isinstance(other, Public)
            or len(own) < len(out)
        ):
            continue
        if (
            other.const is None
            or not other.exact
            or other.const.ndim < len(out)
            or other.const.dtype.kind not in "iu"
        ):
            continue
        # Along these axes the record's value is constant, and the numbers compared with it are
        # distinct.
        same = [
            a
            for a, n in enumerate(out)
            if own[a] == 1 < other.const.shape[a] == n and a not in value.axes
        ]
        if axes := [a for a in same if np.diff(np.sort(other.const, a), axis=a).all()]:
            return size_per_record(out, value.axes) // max(out[a] for a in axes)
    return None
