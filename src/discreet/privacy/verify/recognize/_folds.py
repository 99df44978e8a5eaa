"""Folded axes: records that `vmap` merged with another axis.

XLA's convolution has one axis of images and one of channels, so `vmap` of a convolution merges the
records with one of them, and reshapes afterwards. A `Fold` says where the records are along such an
axis: place k is record k // inner, modulo the number of records. Only moves and products know it;
to any other rule a folded value is one without rows.

Sound, since a fold makes no claim but that of the places: when a reshape takes the axes apart
again, the records have an axis of their own, and the value has rows without a bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from discreet._jax import JaxprEqn, primitives as p
from discreet.privacy.verify._domain import Private, Value
from discreet.privacy.verify._errors import NoBoundError, Why
from discreet.privacy.verify._interpreter import Checker
from discreet.privacy.verify._moved import axis_after
from discreet.privacy.verify._registry import Rule
from discreet.privacy.verify._rows import shape_in, shape_out
from discreet.privacy.verify.recognize._facts import Fold


def fold_of(value: Value) -> Fold | None:
    """The one axis that numbers the records."""
    if not isinstance(value, Private):
        return None
    if value.axes is not None and len(value.axes) == 1:
        return value.axes[0], 1, 1
    return value.folded


def folded_rows(
    checker: Checker, equation: JaxprEqn, operands: list[Value], fold: Fold, positional: bool
) -> Private:
    """Rows without other claims, along an axis that may be folded."""
    axis, outer, inner = fold
    batch = next(x.batch for x in operands if isinstance(x, Private))
    origin = checker.origin(equation, operands)
    if outer == inner == 1:
        return Private(batch, (axis,), origin, positional=positional)
    why = Why.ROWS("the axis of the records is merged with another axis")
    return Private(batch, None, origin, positional=positional, folded=fold, why=why)


def _reshaped(equation: JaxprEqn, fold: Fold) -> Fold | None:
    """The fold of a reshaped array: an axis that covers all records, with elements at most as far apart as records."""
    (axis, outer, inner) = fold
    old = shape_in(equation)
    new = shape_out(equation)
    order = equation.params["dimensions"]
    if order is not None:
        old = tuple(old[int(i)] for i in order)
        axis = [int(i) for i in order].index(axis)
    if 0 in old:
        return None
    count = old[axis] // (outer * inner)
    apart = inner * math.prod(old[axis + 1 :])
    for place, size in enumerate(new):
        step = math.prod(new[place + 1 :])
        if count > 1 and apart % step == 0 and step * size % (apart * count) == 0:
            return place, step * size // (apart * count), apart // step
    return None


def folding(rule: Callable[[Any, JaxprEqn, Any], Any]) -> Rule:
    """Extend a rule to folded axes, for results that it finds no bound for."""

    def with_folds(
        checker: Checker, equation: JaxprEqn, operands: list[Value]
    ) -> Value | list[Value]:
        try:
            return rule(checker, equation, operands)
        except NoBoundError:
            (first, *others) = operands
            fold = fold_of(first)
            if fold is None or others:
                raise
            if equation.primitive is p.reshape_p:
                moved = _reshaped(equation, fold)
            else:
                axis = axis_after(equation, fold[0])
                moved = None if axis is None else (axis, *fold[1:])
            if moved is None:
                raise
            assert isinstance(first, Private)
            return folded_rows(checker, equation, operands, moved, first.positional)

    return with_folds
