"""Rows and sums: how the operands of one equation meet.

A private value with `axes` has a row for each record; without, it may depend on all records. Rows
stay rows if all operands have their records along the same axes (`aligned`). A sum over records
is what noise is added to: `summed` bounds what one record adds, from the bound on rows, and
`as_sum` does so for any value.

Sound, since the runs differ in one row only: the sum moves by that row, which is within the bound
on rows, or by two such rows where absent records are not exactly zero (`contribution_factor`). In
a random sample a record that is not drawn moves the rows behind it, so there only what does not
depend on a row's place has a bound.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from discreet._jax import JaxprEqn, dtype_of
from discreet.privacy.verify._bounds import (
    Cut,
    Part,
    RecordSet,
    Term,
    Terms,
    group_of,
    outside,
    scaled,
)
from discreet.privacy.verify._domain import (
    Axes,
    Private,
    Public,
    Value,
    contribution_factor,
    range_factor,
    row_terms,
)
from discreet.privacy.verify._errors import Reason, Why
from discreet.privacy.verify._interpreter import Checker

shape_of: Callable[[Any], Axes] = operator.attrgetter("aval.shape")
"""The shape of a variable or literal."""


def shape_in(equation: JaxprEqn) -> Axes:
    """The shape of the first operand."""
    return shape_of(equation.invars[0])


def shape_out(equation: JaxprEqn) -> Axes:
    """The shape of the first result."""
    return shape_of(equation.outvars[0])


def shapes_in(equation: JaxprEqn) -> list[Axes]:
    """The shapes of all operands."""
    return [shape_of(x) for x in equation.invars]


def size_per_record(shape: Axes, axes: Axes | None) -> int:
    """The number of elements of one record's slice; of the whole array without record axes."""
    return math.prod(n for i, n in enumerate(shape) if i not in (axes or ()))


def aligned(checker: Checker, equation: JaxprEqn, operands: Sequence[Value]) -> Private | None:
    """The rows of an elementwise result, without other claims; None if records meet other records."""
    shape = shape_out(equation)
    private = [
        (x, shape_of(v))
        for x, v in zip(operands, equation.invars, strict=True)
        if isinstance(x, Private)
    ]
    first = private[0][0]
    axes = private[0][0].axes
    if axes is None or first.batch is None:
        return None
    for value, own in private:
        if value.axes != axes or value.batch is not first.batch:
            return None
        if any(i >= len(own) or own[i] != shape[i] for i in axes):
            return None
    positional = is_positional(equation, operands, axes)
    return Private(first.batch, axes, checker.origin(equation, operands), positional=positional)


def is_positional(equation: JaxprEqn, operands: Sequence[Value], axes: Axes) -> bool:
    """True if result rows depend on their place: an operand's rows did, or a public operand varies between rows."""
    pairs = zip(operands, equation.invars, strict=True)
    return any(
        x.positional
        if isinstance(x, Private)
        else isinstance(x, Public) and varies_along(x, shape_of(v), axes)
        for x, v in pairs
    )


def varies_along(value: Public, shape: Axes, axes: Axes) -> bool:
    """True if a public value may differ between records."""
    return any(i < len(shape) and shape[i] > 1 and i not in value.uniform for i in axes)


def expansion(own: Axes, out: Axes) -> float:
    """The factor on the L2 norm if each element is repeated."""
    return math.sqrt(np.prod(out, dtype=np.float64) / max(1.0, np.prod(own, dtype=np.float64)))


def bound_of(value: Private, equation: JaxprEqn, position: int) -> Terms | None:
    """The bound of an operand in the shape of the result."""
    own = shape_of(equation.invars[position])
    out = shape_out(equation)
    # NaN is checked separately, before any sum.
    rows = value.axes is not None
    terms = (
        row_terms(value.but(finite=True), size_per_record(own, value.axes)) if rows else value.terms
    )
    return None if terms is None else scaled(terms, expansion(own, out))


def is_whole(variable: Any) -> bool:
    """True if a variable holds Booleans or integers: none is NaN, and sums may wrap around."""
    return dtype_of(variable).kind in "biu"


def is_integer(equation: JaxprEqn) -> bool:
    """True if the result wraps around instead of rounding."""
    return dtype_of(equation.outvars[0]).kind in "iu"


def all_finite(operands: Sequence[Value]) -> bool:
    """True if no operand holds NaN or infinity."""

    def finite(value: Value) -> bool:
        if isinstance(value, Private):
            return value.finite
        return (
            isinstance(value, Public)
            and value.magnitude is not None
            and math.isfinite(value.magnitude)
        )

    return all(map(finite, operands))


def lowest(value: Value | None) -> float | None:
    """The least element of a public value that is known."""
    if not isinstance(value, Public) or value.const is None or value.const.dtype.kind not in "biuf":
        return None
    return float(value.const.min()) if value.const.size else None


def is_positive(value: Value, variable: Any) -> bool:
    """True if no element that is a number is negative."""
    if isinstance(value, Public) and value.is_zero:
        return True
    least = value.low if isinstance(value, Private) else lowest(value)
    return dtype_of(variable).kind in "bu" or (least is not None and least >= 0)


def zero_under(value: Value) -> frozenset[RecordSet] | None:
    """The masks under which a value is zero; None if it is zero under all."""
    if isinstance(value, Private):
        return value.zero
    return None if isinstance(value, Public) and value.is_zero else frozenset()


def both_zero(values: Sequence[Value]) -> frozenset[RecordSet]:
    """Masks under which all are zero."""
    known = [z for z in map(zero_under, values) if z is not None]
    return frozenset.intersection(*known) if known else frozenset()


_LARGEST = 1e38


def as_sum(checker: Checker, value: Private, shape: Axes) -> Private:
    """Convert a value to a sum, whose terms bound one record's contribution; no terms but a reason if there is no bound.

    An array of rows changes in one row only. That holds for the table; in a random sample the rows
    after a record that is not drawn move up, so there only a single record's term of a sum has a
    bound.
    """
    if value.axes is None:
        return (
            value
            if value.terms is not None or value.batch is None
            else _limited(checker, value, shape)
        )
    assert value.batch is not None
    # In a Poisson sample a record that is not drawn leaves no gap: all later rows differ between
    # the two runs.
    if value.batch.sampled and not (value.axes == () and isinstance(value.batch, Part)):
        why = Why.POSITION(
            "a random sample is used row by row: the row of a record depends on the others"
        )
        return _without(value, why)
    return summed(checker, value, shape, additive=value.axes == ())


def summed(checker: Checker, value: Private, shape: Axes, *, additive: bool) -> Private:
    """The bound on one record's contribution to a sum of rows."""
    batch = value.batch
    assert batch is not None
    # The record that differs changes the sum by its own row, which is within the bound on rows.
    terms = row_terms(value, size_per_record(shape, value.axes))
    if terms is None:
        why = Why.CLIP("a record's contribution has no bound: rows are summed without clipping")
        if value.terms is not None or value.linf is not None:
            why = Why.NAN(
                "rows are summed that may hold NaN or infinity, which makes the record visible in the sum"
            )
        return _without(value, why)
    factor, why = contribution_factor(value, checker.relation)
    if factor == 0.0:
        return _without(value, why or Why.CLIP("a record's contribution has no bound"))
    # Each partial sum must be finite, even if all rows have the norm of the bound.
    count = math.prod(shape[i] for i in value.axes or ())
    if any(t.bound.factor * factor * count > _LARGEST for t in terms):
        return _without(value, Why.PRECISION("rows are so long that their sum may not be finite"))
    moves = None if value.linf is None else value.linf * max(1.0, factor)
    absolute = value.absolute
    if absolute is not None:
        absolute *= contribution_factor(value, checker.relation, norm=1)[0]
    if factor > 1.0:
        padded = batch.table.masked or batch.whole is not batch.table
        reason = "rows without a record are not exactly zero" if padded else "there is no mask"
        where = value.origin.line or value.origin.what
        checker.notes.append(f"the sum's sensitivity is {factor:.3g}C, since {reason} ({where})")
    # Leaves that jointly move by 2C share no bound with leaves that move by C, nor what is there
    # without the record with what is there with it.
    turned = batch.whole not in value.zero and outside(batch.whole) in value.zero
    kind = "twice" if factor > 1.0 else "outside" if turned else ""
    terms = tuple(
        Term(group_of(kind, t.group) if kind else t.group, t.leaves, t.bound * factor, t.source)
        for t in terms
    )
    return value.but(
        axes=None,
        terms=terms,
        moves=moves,
        absolute=absolute,
        additive=additive,
        zero=frozenset(),
        linf=None,
        finite=True,
    )


def _limited(checker: Checker, value: Private, shape: Axes) -> Private:
    """The bound of a value that depends on all records but has limited size: it stays in a ball."""
    batch = value.batch
    assert isinstance(batch, RecordSet)
    terms = row_terms(value, size_per_record(shape, None))
    factor = range_factor(batch, checker.relation)
    if terms is None or factor == 0.0 or isinstance(batch, Cut):
        return value
    return value.but(terms=scaled(terms, factor), linf=None, additive=False, finite=True)


def _without(value: Private, why: Reason) -> Private:
    return value.but(axes=None, terms=None, linf=None, finite=False, why=value.why or why)


def limits_of(values: Sequence[Value]) -> list[float] | None:
    """The largest absolute element of each value; None if one is unknown."""
    found = [
        x.linf if isinstance(x, Private) else x.magnitude if isinstance(x, Public) else None
        for x in values
    ]
    known = [x for x in found if x is not None]
    return known if len(known) == len(found) else None
