"""The rule of public operands: a function of equal inputs is equal in both runs.

So every primitive gives a public value without a rule of its own. Here are the claims beyond that,
as far as they are known at trace time: the value itself (`_arithmetic`), its size as a multiple of
numbers that are unknown (`Scale`), the axes along which it is constant, its values in each
iteration (`recognize/_schedules`), and whether it counts iterations.

The invariant: claims about public values decide what noise is worth, so each must be true of the
number that the machine computes. Where XLA may round differently, a value is dropped.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from discreet._jax import JaxprEqn, aval, dtype_of, primitives as p
from discreet.privacy.verify._arithmetic import (
    ELEMENTWISE_SHAPES,
    IDENTITY,
    MOST_ERROR,
    MOVES,
    SMALL,
    computed,
    error_of,
    is_exact,
)
from discreet.privacy.verify._bounds import LARGEST, SMALLEST, Scale, is_open, unnamed
from discreet.privacy.verify._domain import Public, Value, constant
from discreet.privacy.verify.recognize._schedules import in_each_turn


def public_result(checker: Any, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The outputs of an equation on public values: public, with the claims that the rules here derive."""
    values = [x for x in operands if isinstance(x, Public)]
    assert len(values) == len(operands)
    released = any(x.released for x in values)
    if len(equation.outvars) != 1:
        return [
            Public(scale=None if aval(x).shape else unnamed(), released=released)
            for x in equation.outvars
        ]
    kind = aval(equation.outvars[0])
    const = _evaluate(equation, values, kind)
    if const is not None:
        error = error_of(
            equation, [x.const for x in values], [x.error for x in values], const.dtype
        )
        if error <= MOST_ERROR:
            return [constant(const, exact=is_exact(equation, values, kind), error=error)]
    uniform = _uniform(equation, values, kind)
    scale = _scale(checker, equation, values) if len(uniform) == len(kind.shape) else None
    error = (
        error_of(equation, [], [x.error for x in values], kind.dtype) if scale is not None else 0.0
    )
    if scale is not None and (
        error > MOST_ERROR or (scale.factor != 0 and not SMALLEST <= scale.factor <= LARGEST)
    ):
        scale = None
    if scale is None:
        scale = unnamed() if len(uniform) == len(kind.shape) else None
        error = 0.0
    turns = in_each_turn(equation, values, kind)
    checker.schedules.keep(scale, turns)
    # As zeros of a table's size, too large to be held.
    limit = values[0].magnitude if equation.primitive in MOVES else None
    counter = _counter(equation, values)
    return [
        Public(
            error=error,
            uniform=uniform,
            scale=scale,
            counter=counter,
            turns=turns,
            released=released,
            limit=limit,
        )
    ]


def _evaluate(equation: JaxprEqn, values: list[Public], kind: Any) -> np.ndarray | None:
    primitive = equation.primitive
    params = equation.params
    if math.prod(kind.shape) > SMALL or np.dtype(kind.dtype).kind not in "biuf":
        return None
    if primitive is p.iota_p:
        shape = params["shape"]
        axis = params["dimension"]
        line = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
        return np.broadcast_to(line, shape).astype(kind.dtype)
    consts = [x.const for x in values]
    # A counter's range decides comparisons: JAX asks whether an index is negative.
    counter = values[0].counter if primitive is p.lt_p else None
    if counter is not None and consts[1] is not None and consts[1].ndim == 0:
        _, low, high = counter
        if high < consts[1] or low >= consts[1]:
            return np.asarray(bool(high < consts[1]))
    # A known selection depends on the selected case alone.
    if primitive is p.select_n_p and consts[0] is not None and consts[0].ndim == 0:
        return consts[1 + int(consts[0])]
    known = [x for x in consts if x is not None]
    if len(known) < len(consts) or not known:
        return None
    return computed(equation, known, kind, exact=all(x.exact for x in values))


def _counter(equation: JaxprEqn, values: list[Public]) -> tuple[Any, int, int] | None:
    primitive = equation.primitive
    if primitive in (
        p.convert_element_type_p,
        p.squeeze_p,
        p.reshape_p,
        p.broadcast_in_dim_p,
        *IDENTITY,
    ):
        kind = aval(equation.outvars[0])
        counter = values[0].counter
        if counter is None or np.dtype(kind.dtype).kind not in "iu":
            return None
        limits = np.iinfo(kind.dtype)
        return counter if limits.min <= counter[1] and counter[2] <= limits.max else None
    if primitive is p.add_p:
        for one, other in (values, values[::-1]):
            if one.counter is not None and other.const is not None and other.const.ndim == 0:
                (loop, low, high) = one.counter
                step = int(other.const)
                limits = np.iinfo(aval(equation.outvars[0]).dtype)
                inside = limits.min <= low + step and high + step <= limits.max
                return (loop, low + step, high + step) if inside else None
    if primitive is p.select_n_p and values[0].const is not None and values[0].const.ndim == 0:
        return values[1 + int(values[0].const)].counter
    return None


def _uniform(equation: JaxprEqn, values: list[Public], kind: Any) -> frozenset[int]:
    """Axes along which the output is constant."""
    primitive = equation.primitive
    params = equation.params
    rank = len(kind.shape)
    everywhere = frozenset(range(rank))
    shapes = [tuple(aval(x).shape) for x in equation.invars]
    single = bool(values) and all(
        len(x.uniform) == len(s) for x, s in zip(values, shapes, strict=True)
    )
    if single and (primitive in ELEMENTWISE_SHAPES or primitive in MOVES):
        return everywhere
    if primitive in ELEMENTWISE_SHAPES:
        found = everywhere
        for value, shape in zip(values, shapes, strict=True):
            if len(shape) == rank:
                found &= value.uniform | {i for i in range(rank) if shape[i] == 1}
        return frozenset(found)
    if primitive is p.broadcast_in_dim_p:
        dims = [int(i) for i in params["broadcast_dimensions"]]
        varying = {
            dims[i] for i in range(len(dims)) if i not in values[0].uniform and shapes[0][i] > 1
        }
        return everywhere - varying
    if primitive is p.transpose_p:
        return frozenset(i for i, j in enumerate(params["permutation"]) if j in values[0].uniform)
    return everywhere if rank == 0 else frozenset()


def _scale(checker: Any, equation: JaxprEqn, values: list[Public]) -> Scale | None:
    """A single number as a product of other numbers; integers may wrap around and low precision rounds.

    Intermediate products of numbers unknown at trace time may overflow, or lose digits below 1e-38,
    and then differ from their formula even if later factors compensate. So a product contains at
    most one such number.
    """
    dtype = dtype_of(equation.outvars[0])
    if dtype.kind != "f" or dtype.itemsize < 4:
        return None
    scales = [x.scale for x in values]
    known = [s for s in scales if s is not None]
    if len(known) < len(scales) or not known:
        return None
    primitive = equation.primitive
    if primitive in (p.mul_p, p.div_p):
        found = known[0] * known[1].to(1.0 if primitive is p.mul_p else -1.0)
        return None if checker.schedules.may_be_lost(found, *known) else found
    if primitive is p.sqrt_p:
        return (
            None
            if any(abs(power) > 1 and not is_open(s) for s, power in known[0].powers)
            else known[0].to(0.5)
        )
    if primitive is p.square_p:
        return None if checker.schedules.may_be_lost(known[0] * known[0]) else known[0] * known[0]
    if primitive is p.convert_element_type_p:
        floats = all(dtype_of(x).kind == "f" for x in (*equation.invars, *equation.outvars))
        return known[0] if floats else None
    if primitive in (
        *IDENTITY,
        p.neg_p,
        p.broadcast_in_dim_p,
        p.reshape_p,
        p.squeeze_p,
        p.transpose_p,
        p.abs_p,
    ):
        return known[0]
    return None
