"""Arrays put side by side along a new axis, taken apart again, or repeated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from discreet._jax import JaxprEqn, primitive_of, unstack_p
from discreet.verify._alignment import expansion
from discreet.verify._axes import without
from discreet.verify._bounds import scaled
from discreet.verify._domain import Private, Scale, Value
from discreet.verify._interpreter import RULES, Checker, shape_of
from discreet.verify._rules_shape import concatenate, concatenated_rows, moved, parts
from discreet.verify._rules_windows import common_rows


def _stack(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    axis, axes = int(equation.params["axis"]), common_rows(operands)
    if axes:
        first = next(x for x in operands if isinstance(x, Private))
        found = concatenated_rows(checker, equation, operands, first)
        return found.but(axes=tuple(a + (a >= axis) for a in axes))
    return concatenate(checker, equation.replace(params={"dimension": 0}), operands)


def _unstack(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    (value,) = operands
    assert isinstance(value, Private)
    axis = int(equation.params["axis"])
    kept = value.axes is not None and axis not in value.axes
    return parts(checker, equation, value, without(value.axes, [axis]) if kept and value.axes is not None else None)


def _tile(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    (value,) = operands
    assert isinstance(value, Private)
    own, out = shape_of(equation.invars[0]), shape_of(equation.outvars[0])
    kept = value.axes is not None and all(own[a] == out[a] for a in value.axes)
    found = moved(checker, equation, value, value.axes if kept else None, exact=own == out)
    return found if found.terms is None else found.but(terms=scaled(found.terms, Scale(expansion(own, out))))


_LINE = jax.ShapeDtypeStruct((2,), np.float32)
RULES[primitive_of(lambda x: jnp.stack([x, x]), _LINE)] = _stack
RULES[unstack_p] = _unstack
RULES[primitive_of(lambda x: jnp.tile(x, 2), _LINE)] = _tile
