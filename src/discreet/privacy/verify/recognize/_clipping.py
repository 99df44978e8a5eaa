"""Clipping written out: `g * min(1, C / norm(g))`, and its variants.

A `Norm` follows the joint norm n of a record's slices through the program: "squares" (sums of
squares), then "norm" (n <= value * bound), then "factor" (|value| * n <= bound), or a comparison
with a number ("above", "below"). `norm_after` has a transition for each primitive on this way; any
other ends it. A row times a factor of its own norm has L2 norm at most the factor's bound
(`clipped_product`), and so have a row where its norm is known to be below C, and a choice between
C / n and 1.

Sound by |f| * n <= bound for the very values whose squares were added: `contents` names them, and
a broadcast, a part or another record's row has another name. `margin` covers float32's rounding
of n. Squares of elements below 1e-19 underflow, so norms below `FLOOR` bound nothing; `safe` and
`finite` follow where 0 / 0 or NaN might come out, and then the row is not called finite.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from discreet._jax import JaxprEqn, aval, dtype_of, primitives as p
from discreet.privacy.verify._arithmetic import IDENTITY
from discreet.privacy.verify._bounds import Scale, Term, Terms, total_of
from discreet.privacy.verify._domain import Axes, Private, Public, Value, private_in
from discreet.privacy.verify._rows import is_positive, lowest, shape_of, shape_out, size_per_record
from discreet.privacy.verify.recognize._facts import Norm

FLOOR = 1e-11
"""Squares of elements below 1e-19 underflow: a computed norm below this is meaningless."""
_CAP = 1e10
"""The largest ratio of a factor's upper limit to its bound, for the same reason."""


_MOST_IN_EXPONENT = 2.0**16
"""Numbers up to this are rounded by 2^-8 at most."""
_OF_SHARES = ("largest", "below its largest", "shares")


def _complete(value: Private, shape: Axes) -> bool:
    return value.axes is not None and size_per_record(shape, value.axes) == 1


def norm_after(equation: JaxprEqn, operands: Sequence[Value]) -> Norm | None:
    """The `Norm` of an elementwise result, if it has one."""
    primitive = equation.primitive
    shapes = [tuple(aval(x).shape) for x in equation.invars]
    if primitive in (p.square_p, p.integer_pow_p, p.mul_p):
        found = _square(equation, operands, shapes)
        if found is not None:
            return found
    normed = [
        (i, x, x.norm_of)
        for i, x in enumerate(operands)
        if isinstance(x, Private) and x.norm_of is not None
    ]
    if not normed:
        return None
    position, value, norm = normed[0]
    other = operands[1 - position] if len(operands) == 2 else None
    if primitive in (p.add_p, p.add_jaxvals_p) and len(normed) == 2:
        second = normed[1][2]
        if (
            norm.kind == second.kind == "squares"
            and not norm.contents & second.contents
            and shapes[0] == shapes[1]
        ):
            contents = norm.contents | second.contents
            finite = norm.finite and second.finite
            return Norm("squares", contents, size=norm.size + second.size, finite=finite)
        return None
    if len(normed) == 2:
        return None
    if primitive in (*IDENTITY, p.convert_element_type_p):
        kind = dtype_of(equation.outvars[0])
        decides = norm.kind in ("above", "below")
        rounded = primitive is p.convert_element_type_p and norm.kind in _OF_SHARES
        kept = kind.kind == "b" if decides else kind.kind == "f" and kind.itemsize >= 4
        return norm if kept and not rounded else None
    if norm.kind == "largest":
        if primitive is p.max_p and isinstance(other, Public) and other.const is not None:
            return norm if np.all(other.const == -np.inf) else None
        own = (
            primitive is p.sub_p
            and position == 1
            and isinstance(other, Private)
            and other.content in norm.contents
        )
        return dataclasses.replace(norm, kind="below its largest") if own else None
    if norm.kind == "below its largest":
        return dataclasses.replace(norm, kind="shares") if primitive is p.exp_p else None
    if norm.kind == "squares":
        return _of_squares(primitive, norm, other, complete=_complete(value, shapes[0]))
    if norm.kind == "norm":
        return _of_norm(primitive, norm, other, divides=position == 1)
    return _of_factor(primitive, norm, other) if norm.kind == "factor" else None


def _square(equation: JaxprEqn, operands: Sequence[Value], shapes: list[Axes]) -> Norm | None:
    value = operands[0]
    if not isinstance(value, Private) or value.axes is None or value.norm_of is not None:
        return None
    if equation.primitive is p.integer_pow_p and equation.params["y"] != 2:
        return None
    if equation.primitive is p.mul_p and equation.invars[0] is not equation.invars[1]:
        return None
    kind = dtype_of(equation.outvars[0])
    if kind.kind != "f" or kind.itemsize < 4:
        return None  # a norm in low precision bounds nothing
    return Norm(
        "squares",
        frozenset([value.content]),
        size=size_per_record(shapes[0], value.axes),
        finite=value.finite,
    )


def largest_of(equation: JaxprEqn, row: Private, kept: Axes) -> Norm | None:
    """The `Norm` of the largest element of a row of numbers.

    Less that, the largest is 0 up to rounding: XLA may compute `a * b - largest` with one rounding,
    and so without that of a * b, which `largest` has. An exponential is off by a factor within the
    margin, and none where numbers are too large for one.
    """
    most = (
        total_of(row.terms)
        if row.linf is None and row.terms is not None
        else Scale(row.linf or 0.0)
    )
    known = row.finite and (row.linf is not None or row.terms is not None)
    if not known or most is None or most.powers or not most.factor <= _MOST_IN_EXPONENT:
        return None
    whole = size_per_record(shape_out(equation), kept) == 1
    bound = Scale(math.exp(most.factor * 2.0**-22))
    return Norm("largest", frozenset([row.content]), bound=bound, finite=True) if whole else None


def sum_of(equation: JaxprEqn, row: Private, kept: Axes, count: int) -> Norm | None:
    """The `Norm` of a sum over a row: of squares, or of a row that is not negative, which is at least as long as its norm."""
    if row.norm_of is not None and row.norm_of.kind == "squares":
        return row.norm_of
    kind = dtype_of(equation.outvars[0])
    whole = (
        size_per_record(shape_out(equation), kept) == 1 and kind.kind == "f" and kind.itemsize >= 4
    )
    if not whole or not is_positive(row, equation.invars[0]):
        return None
    shares = row.norm_of if row.norm_of is not None and row.norm_of.kind == "shares" else None
    bound = Scale(1.0) if shares is None else shares.bound
    return Norm(
        "norm",
        frozenset([row.content]),
        bound=bound,
        size=count,
        safe=shares is not None,
        finite=row.finite,
    )


def _of_squares(primitive: Any, norm: Norm, other: Value | None, *, complete: bool) -> Norm | None:
    least = lowest(other)
    if primitive in (p.max_p, p.add_p) and least is not None and least >= 0:
        return dataclasses.replace(norm, safe=norm.safe or least >= FLOOR**2)
    if not complete or primitive not in (p.sqrt_p, p.rsqrt_p):
        return None
    return dataclasses.replace(norm, kind="norm" if primitive is p.sqrt_p else "factor")


def _of_norm(primitive: Any, norm: Norm, other: Value | None, *, divides: bool) -> Norm | None:
    least = lowest(other)
    scale = other.scale if isinstance(other, Public) else None
    if scale is None:
        return None  # It would no longer be one number per record.
    if primitive is p.div_p and divides and scale.powers:
        # A traced norm may be anything: |factor| n <= |C| all the same, but 0 / 0 is possible.
        return dataclasses.replace(norm, kind="factor", bound=norm.bound * scale, safe=False)
    if primitive in (p.max_p, p.add_p) and least is not None and least >= 0:
        floor = not norm.bound.powers and least * norm.bound.factor >= FLOOR
        return dataclasses.replace(norm, safe=norm.safe or floor)
    if primitive is p.max_p:
        return dataclasses.replace(norm, safe=False)  # it may be NaN
    if scale.powers or least is None or least <= 0 or not _moderate(norm.bound, scale):
        return None
    if primitive is p.mul_p:
        return dataclasses.replace(norm, bound=norm.bound * scale.to(-1.0))
    if primitive is p.div_p:
        return dataclasses.replace(
            norm, kind="factor" if divides else "norm", bound=norm.bound * scale
        )
    if primitive in (p.gt_p, p.ge_p, p.lt_p, p.le_p):
        above = (primitive in (p.gt_p, p.ge_p)) != divides
        return dataclasses.replace(
            norm, kind="above" if above else "below", bound=norm.bound * scale
        )
    return None


def _moderate(*numbers: Scale) -> bool:
    """True if numbers, and their products, are far from overflow and underflow."""
    factors = [x.factor for x in numbers]
    return all(
        1e-12 <= x <= 1e12
        for x in (*factors, math.prod(factors), factors[0] / (factors[-1] or math.inf))
    )


def _of_factor(primitive: Any, norm: Norm, other: Value | None) -> Norm | None:
    least = lowest(other)
    if primitive is p.min_p and least is not None and least >= 0:
        # A public operand that is not negative: its magnitude is its largest element.
        largest = other.magnitude if isinstance(other, Public) else None
        low = not norm.bound.powers and largest is not None and largest <= _CAP * norm.bound.factor
        return dataclasses.replace(norm, safe=norm.safe or low)
    weight = other.scale if isinstance(other, Public) else None
    if primitive is p.mul_p and weight is not None and least is not None and least >= 0:
        return (
            dataclasses.replace(norm, bound=norm.bound * weight)
            if _moderate(norm.bound, weight)
            else None
        )
    limit = other.linf if isinstance(other, Private) and other.finite else None
    if (
        primitive is p.mul_p
        and limit is not None
        and norm.safe
        and _moderate(norm.bound, Scale(limit))
    ):
        return dataclasses.replace(norm, bound=norm.bound * limit)
    return None


def reshaped_norm(value: Private, shape: Axes) -> Norm | None:
    """The `Norm` after a reshape or broadcast: one number per record stays that number."""
    norm = value.norm_of
    return (
        norm if norm is not None and (norm.kind != "squares" or _complete(value, shape)) else None
    )


def margin(size: int) -> float:
    """The relative error that rounding may add to a clipped norm in float32."""
    return float(np.finfo(np.float32).eps) * (8.0 + math.sqrt(size))


def clipped_by(row: Private, by: Private, kind: str = "factor") -> Terms | None:
    """The bound of a row times the factor that clips it, or divided by its norm; None for another row's factor."""
    norm = by.norm_of
    if norm is None or norm.kind != kind or row.content not in norm.contents or row.batch is None:
        return None
    bound = norm.bound * (1.0 + margin(norm.size))
    return (Term(norm.group, frozenset([row.content]), bound, row.batch),)


def clipped_product(equation: JaxprEqn, operands: Sequence[Value]) -> dict[str, Any] | None:
    """The bounds of a row times the factor that clips it, or divided by its norm; None for anything else."""
    private = private_in(operands)
    if len(private) != 2:
        return None
    for row, by in (private, private[::-1]):
        norm = by.norm_of
        quotient = equation.primitive is p.div_p
        # A broadcast row has several times the norm, and a norm divided by a row has no bound.
        copied = shape_of(equation.invars[operands.index(row)]) != shape_out(equation)
        terms = clipped_by(row, by, "norm" if quotient else "factor")
        if (
            norm is not None
            and terms is not None
            and not copied
            and (row is operands[0] or not quotient)
        ):
            safe = norm.safe and row.finite and norm.finite
            low = 0.0 if quotient and is_positive(row, equation.invars[0]) else None
            return {
                "terms": terms,
                "low": low,
                "finite": safe,
                "zero": row.zero if norm.safe else frozenset(),
            }
    return None


def finite_by_choice(which: Value, cases: Sequence[Value], finite: list[bool]) -> None:
    """Handle `where(norm < C, g, g / norm * C)`: where the quotient is selected, the norm is not 0."""
    norm = which.norm_of if isinstance(which, Private) else None
    known = (
        norm is not None
        and norm.kind in ("above", "below")
        and not norm.bound.powers
        and norm.finite
    )
    if norm is None or not known or norm.bound.factor < FLOOR:
        return
    near = 0 if norm.kind == "above" else 1
    by_itself = cases[near]
    shortened = cases[1 - near]
    if (
        isinstance(by_itself, Private)
        and by_itself.content in norm.contents
        and isinstance(shortened, Private)
    ):
        terms = shortened.terms or ()
        if (
            len(terms) == 1
            and terms[0].group is norm.group
            and terms[0].leaves == frozenset([by_itself.content])
        ):
            finite[1 - near] = finite[near]


def within_by_choice(which: Value, number: int, value: Private) -> Terms | None:
    """Handle `where(norm < C, g, ...)`: in that case the norm of g is at most C."""
    norm = which.norm_of if isinstance(which, Private) else None
    if norm is None or value.batch is None or value.content not in norm.contents:
        return None
    if (
        (norm.kind, number) not in (("above", 0), ("below", 1))
        or not norm.finite
        or norm.bound.factor < FLOOR
    ):
        return None
    bound = norm.bound * (1.0 + margin(norm.size))
    return (Term(norm.group, frozenset([value.content]), bound, value.batch),)


def factor_of_choice(which: Value, cases: Sequence[Value], factor: Private) -> Norm | None:
    """Handle `where(norm > C, C / norm, 1)`, which is a factor, too."""
    norm = which.norm_of if isinstance(which, Private) else None
    own = factor.norm_of
    if own is None or all(x is factor or (isinstance(x, Public) and x.is_zero) for x in cases):
        return own
    if norm is None or norm.contents != own.contents or norm.bound.powers or own.bound.powers:
        return None
    number = 1 if cases[1] is factor else 0
    other = cases[1 - number]
    largest = other.magnitude if isinstance(other, Public) else None
    if (norm.kind, number) not in (("above", 1), ("below", 0)) or largest is None:
        return None
    bound = Scale(max(own.bound.factor, norm.bound.factor * largest))
    return dataclasses.replace(own, bound=bound, safe=norm.bound.factor >= FLOOR)
