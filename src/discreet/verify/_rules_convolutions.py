"""Convolutions: of each record's images, by kernels that are public or each record's own.

`vmap` puts the axis of the records before another and makes one axis of both, since XLA knows of one axis of images and one
of channels. Such an axis is folded: place k is record k // inner, counted on from the first after the last. All rules but
those here, and those of matrices, take a folded value for one without rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from discreet._jax import JaxprEqn
from discreet._jax import primitives as p
from discreet.verify import _rules_elementwise, _rules_shape  # noqa: F401  whose rules are added to
from discreet.verify._alignment import all_finite, varies_along
from discreet.verify._domain import Private, Public, Value
from discreet.verify._interpreter import RULES, Checker, Rule, shape_of

Fold = tuple[int, int, int]
"""An axis, how often the records come along it, and the places for each record in a row."""


def fold_of(value: Value) -> Fold | None:
    """The one axis that numbers the records."""
    if not isinstance(value, Private):
        return None
    if value.axes is not None and len(value.axes) == 1:
        return value.axes[0], 1, 1
    return value.folded


def folded_rows(checker: Checker, equation: JaxprEqn, operands: list[Value], fold: Fold, positional: bool) -> Private:
    """Rows of which nothing else is known, along an axis that may be folded."""
    axis, outer, inner = fold
    batch = next(x.batch for x in operands if isinstance(x, Private))
    origin = checker.origin(equation, operands)
    if outer == inner == 1:
        return Private(batch, (axis,), origin, positional=positional)
    why = "[rows] the axis of the records is one with another axis"
    return Private(batch, None, origin, positional=positional, folded=fold, why=why)


def _reshaped(equation: JaxprEqn, fold: Fold) -> Fold | None:
    """A fold in another shape: an axis along which elements are as far apart as records, or less, and all records come."""
    (axis, outer, inner), old, new = fold, shape_of(equation.invars[0]), shape_of(equation.outvars[0])
    order = equation.params["dimensions"]
    if order is not None:
        old, axis = tuple(old[int(i)] for i in order), [int(i) for i in order].index(axis)
    if 0 in old:
        return None
    count, apart = old[axis] // (outer * inner), inner * math.prod(old[axis + 1 :])
    for place, size in enumerate(new):
        step = math.prod(new[place + 1 :])
        if count > 1 and apart % step == 0 and step * size % (apart * count) == 0:
            return place, step * size // (apart * count), apart // step
    return None


def _transposed(equation: JaxprEqn, fold: Fold) -> Fold:
    return [int(i) for i in equation.params["permutation"]].index(fold[0]), *fold[1:]


def _broadcast(equation: JaxprEqn, fold: Fold) -> Fold | None:
    place = int(equation.params["broadcast_dimensions"][fold[0]])
    same = shape_of(equation.outvars[0])[place] == shape_of(equation.invars[0])[fold[0]]
    return (place, *fold[1:]) if same else None


def _squeezed(equation: JaxprEqn, fold: Fold) -> Fold | None:
    gone = [int(i) for i in equation.params["dimensions"]]
    return None if fold[0] in gone else (fold[0] - sum(i < fold[0] for i in gone), *fold[1:])


def _turned(equation: JaxprEqn, fold: Fold) -> Fold | None:
    return None if fold[0] in equation.params["dimensions"] else fold


def _same(equation: JaxprEqn, fold: Fold) -> Fold:
    del equation
    return fold


_Move = Callable[[JaxprEqn, Fold], Fold | None]


def _folding(rule: Rule, move: _Move) -> Rule:
    """A rule that also moves folded axes; where it finds rows by itself, it knows more of them."""

    def with_folds(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Value | list[Value]:
        found = rule(checker, equation, operands)
        fold = fold_of(operands[0])
        if fold is None or len(operands) > 1 or not isinstance(found, Private):
            return found
        if found.axes is not None or found.terms is not None:
            return found
        first = operands[0]
        moved = move(equation, fold)
        assert isinstance(first, Private)
        return found if moved is None else folded_rows(checker, equation, operands, moved, first.positional)

    return with_folds


def convolution(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    """Images and kernels, of which each record has its own, or which all share."""
    params: Any = equation.params
    spec, features, batches = params["dimension_numbers"], params["feature_group_count"], params["batch_group_count"]
    images, kernels = operands
    left, right = fold_of(images), fold_of(kernels)
    shapes = [shape_of(x) for x in equation.invars]
    lost = "[rows] a convolution puts records together with other records"
    if any(isinstance(x, Private) and f is None for x, f in ((images, left), (kernels, right))):
        return checker.unbounded(equation, operands, lost)
    outputs = shapes[1][spec.rhs_spec[0]]
    if left is None and isinstance(images, Public) and right is not None and right[0] == spec.rhs_spec[0]:
        # Every kernel makes its own channel; in groups, of channels or images that need not be alike.
        placed = _placed(kernels) or features * batches > 1
        return folded_rows(checker, equation, operands, (spec.out_spec[1], *right[1:]), placed)
    if left is None or not isinstance(images, Private):
        return checker.unbounded(equation, operands, lost)
    axis, outer, inner = left
    if axis == spec.lhs_spec[0] and batches == 1 and isinstance(kernels, Public):
        return folded_rows(checker, equation, operands, (spec.out_spec[0], outer, inner), _placed(images))
    groups = {spec.lhs_spec[0]: batches, spec.lhs_spec[1]: features}.get(axis, 1)
    count = shapes[0][axis] // (outer * inner)
    # Each record has as many whole groups as the others, and their channels come out side by side.
    if outer > 1 or count < 2 or groups % count or outputs % groups:
        return checker.unbounded(equation, operands, lost)
    if axis == spec.lhs_spec[0] and not all_finite(operands):
        # XLA makes one convolution of groups of images and hides the others' by zeros: what is infinite comes through.
        return checker.unbounded(
            equation, operands, "[nan] images in groups, of which one that is not finite shows in others"
        )
    own = (spec.rhs_spec[0], 1, outputs // count)
    if isinstance(kernels, Private) and (right != own or kernels.batch is not images.batch):
        return checker.unbounded(equation, operands, lost)
    positional = _placed(images) or _placed(kernels)
    if isinstance(kernels, Public):
        positional |= varies_along(kernels, shapes[1], (spec.rhs_spec[0],))
    return folded_rows(checker, equation, operands, (spec.out_spec[1], 1, outputs // count), positional)


def _placed(value: Value) -> bool:
    return isinstance(value, Private) and value.positional


RULES[p.conv_general_dilated_p] = convolution
for _primitive, _move in (
    (p.reshape_p, _reshaped),
    (p.transpose_p, _transposed),
    (p.broadcast_in_dim_p, _broadcast),
    (p.squeeze_p, _squeezed),
    (p.rev_p, _turned),
    (p.neg_p, _same),
    (p.convert_element_type_p, _same),
):
    RULES[_primitive] = _folding(RULES[_primitive], _move)
