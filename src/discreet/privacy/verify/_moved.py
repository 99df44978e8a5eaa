"""Elements that change their places: what moving keeps.

A reshape, a transpose or a broadcast computes nothing. So rows stay rows as long as the axes of the
records stay whole (`through_reshape`, `axis_after`), and a bound stays a bound as long as each
element is used at most once. Values without record axes keep the bound on one record's influence
(`moved_sum`). Names of contents survive only where all elements are there (`exact`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from discreet._jax import JaxprEqn, primitives as p
from discreet.privacy.verify._bounds import scaled
from discreet.privacy.verify._domain import Axes, Private, Value, private_in
from discreet.privacy.verify._errors import NoBoundError, Why
from discreet.privacy.verify._interpreter import Checker
from discreet.privacy.verify._rows import (
    as_sum,
    is_positional,
    is_whole,
    shape_in,
    shape_out,
    size_per_record,
)
from discreet.privacy.verify.recognize._clipping import reshaped_norm


def moved(
    checker: Checker,
    equation: JaxprEqn,
    value: Private,
    axes: Axes | None,
    *,
    exact: bool = True,
    factor: float = 1.0,
) -> Private:
    """A value of the operand's elements, whose norm grows by at most `factor`: 1 if each is used at most once.

    `exact`: all of them are there, so it has the same content.
    """
    if value.axes is None or axes is None:
        return moved_sum(checker, equation, value, factor)
    shape = shape_in(equation)
    found = value.but(
        axes=axes,
        origin=checker.origin(equation, [value]),
        terms=None if value.terms is None else scaled(value.terms, factor),
        low=value.low,
        high=value.high,
    )
    if not exact:
        return found
    kept = {
        "holds": value.content,
        "finite_where": over_the_record(value, shape),
        "lacks": value.lacks,
    }
    return dataclasses.replace(found, norm_of=reshaped_norm(value, shape), **kept)


def over_the_record(value: Private, shape: Axes) -> frozenset[tuple[str, int]]:
    """Conditions on a record as a whole, which survive moving its one Boolean; none if it has several."""
    single = size_per_record(shape, value.axes) == 1
    return frozenset(x for x in value.finite_where if single and x[0] == "all")


def moved_sum(checker: Checker, equation: JaxprEqn, value: Private, factor: float = 1.0) -> Private:
    """The same for a value without record axes, by one record's influence."""
    found = as_sum(checker, value, shape_in(equation))
    if found.terms is None:
        lost = Why.ROWS(f"{equation.primitive.name} mixes the axis of the records with others")
        raise NoBoundError(found.why or lost, found)
    terms = scaled(found.terms, factor)
    return found.but(terms=terms, origin=checker.origin(equation, [value]))


def axis_after(equation: JaxprEqn, axis: int) -> int | None:
    """The position in the result of an axis of the operand, if its elements keep their places; otherwise None."""
    primitive = equation.primitive
    params = equation.params
    if primitive is p.transpose_p:
        return [int(i) for i in params["permutation"]].index(axis)
    if primitive is p.broadcast_in_dim_p:
        place = int(params["broadcast_dimensions"][axis])
        return place if shape_out(equation)[place] == shape_in(equation)[axis] else None
    if primitive in (p.squeeze_p, p.rev_p):
        gone = [int(i) for i in params["dimensions"]]
        return (
            None if axis in gone else axis - sum(i < axis for i in gone if primitive is p.squeeze_p)
        )
    return axis


def axes_after(equation: JaxprEqn, axes: Axes | None) -> Axes | None:
    """`axis_after` of all record axes; None if one of them is gone."""
    found = [axis_after(equation, a) for a in axes or ()]
    return None if axes is None or None in found else tuple(a for a in found if a is not None)


def common_rows(operands: Sequence[Value]) -> Axes | None:
    """The axes of the records, where all private operands have them in one place; else None."""
    private = private_in(operands)
    first = private[0]
    alike = all(x.axes == first.axes and x.batch is first.batch for x in private)
    return first.axes if alike and first.batch is not None else None


def rows_of_all(
    checker: Checker, equation: JaxprEqn, operands: list[Value], axes: Axes
) -> list[Value]:
    """Result rows computed from the operands' rows along the same axes, without bounds."""
    batch = next(x.batch for x in operands if isinstance(x, Private))
    positional = is_positional(equation, operands, axes)
    origin = checker.origin(equation, operands)
    return [
        Private(batch, axes, origin, finite=is_whole(v), positional=positional)
        for v in equation.outvars
    ]


def rows_apart(
    checker: Checker, equation: JaxprEqn, operands: list[Value], mixed: Collection[int], why: str
) -> list[Value]:
    """The results of a function that combines elements along the `mixed` axes only: records must lie along others."""
    axes = common_rows(operands)
    if axes is None or set(axes) & set(mixed):
        raise NoBoundError(Why.ROWS(f"{equation.primitive.name}{why}"))
    return rows_of_all(checker, equation, operands, axes)
