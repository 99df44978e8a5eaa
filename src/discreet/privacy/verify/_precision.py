"""What the machine's number types keep of a result's claims, after every rule.

Rules reason about real numbers. The machine rounds, overflows and wraps around, so after each rule
the checker weakens the result: a bound beyond float32's range is dropped, as are those of types
of low precision, of complex numbers, and of integers, which wrap. Sums over records in low
precision lose their bound, since their rounding is relative to the sum and not to one record.

The invariant: claims are only weakened here, with one exception. `_with_absent` adds the integer
that rows hold where the mask excludes the record, which needs no rule since integers are exact.
`rounding_of` follows by how much float32 and float64 sums may be off; a release charges it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.export
import numpy as np

from discreet._jax import JaxprEqn, aval, dtype_of, primitives as p, source_line
from discreet.privacy.mechanisms import CLIP, CLIPPED_SUM, COUNT, SUM, WEIGHTED_SUM
from discreet.privacy.verify._arithmetic import (
    ELEMENTWISE_SHAPES,
    IDENTITY,
    MOST_EXACT,
    MOVES,
    computed,
)
from discreet.privacy.verify._bounds import LARGEST, RecordSet, is_far, scaled
from discreet.privacy.verify._domain import Private, Public, Value, private_in
from discreet.privacy.verify._errors import Reason, Why
from discreet.privacy.verify._registry import INLINED, STRUCTURED


def held_as(dtype: Any) -> Reason:
    """The reason for a sum in low precision."""
    return Why.PRECISION(f"a sum over records is held as {dtype}, whose rounding no bound covers")


_ORDINARY = frozenset(
    {"bool", "float32", "float64", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))}
)
"""The types whose arithmetic the rules cover: all others keep no bound."""
_WHOLE = frozenset(x for x in _ORDINARY if not x.startswith("float"))

_COARSE = 1.0 + 2.0**-7
"""The relative error of one operation in bfloat16."""

_name_of = functools.lru_cache(maxsize=64)(str)
"""The name of a dtype: NumPy makes it anew each time, and a proof asks for each operand's."""


def _type_name(atom: Any) -> str:
    """The name of the dtype of a variable or literal."""
    return _name_of(aval(atom).dtype)


_AS_IT_IS = (
    *IDENTITY, p.add_p, p.add_jaxvals_p, p.convert_element_type_p, p.reshape_p, p.squeeze_p,
    p.broadcast_in_dim_p,
)  # fmt: skip
"""Primitives that add to a sum, or reshape it with its elements in order."""


MARKED = (CLIP, SUM, WEIGHTED_SUM, COUNT, CLIPPED_SUM)
"""Their rules say how their results round."""
_TAKEN = (
    *IDENTITY, *MOVES, p.slice_p, p.concatenate_p, p.neg_p, p.abs_p, p.rev_p, p.pad_p, p.dynamic_slice_p, p.select_n_p,
)  # fmt: skip
"""Primitives that do not round."""
_SCALED = (p.mul_p, p.div_p, p.convert_element_type_p)
_OF_INTEGERS = (
    p.add_p,
    p.sub_p,
    p.mul_p,
    p.neg_p,
    p.select_n_p,
    p.convert_element_type_p,
    *IDENTITY,
    *MOVES,
)
"""Primitives that compute integers exactly, also as floats."""


def rounding_of(
    equation: JaxprEqn, variable: Any, operands: Sequence[Value]
) -> tuple[float, float] | None:
    """`Private.rounding` of a result: (n, r). None where the proof assumes exact arithmetic.

    Moving elements keeps both, since norms and errors of parts are orthogonal. A product with a
    public number, and a sum of two such values, are rounded by 2^-24 of n bounds, in both tables.
    Each row is within the bound: n is 1.
    """
    private = private_in(operands)
    kinds = {
        _type_name(v)
        for x, v in zip(operands, equation.invars, strict=True)
        if isinstance(x, Private)
    }
    dtype = _type_name(variable)
    primitive = equation.primitive
    if primitive is p.select_n_p:
        private = private_in(operands[1:])
        kinds -= {"bool"}
    known = [x.rounding for x in private if x.rounding is not None]
    if len(known) < len(private) or not known or not {dtype, *kinds} <= {"float32", "float64"}:
        return None
    rows, share = (math.hypot(*parts) for parts in zip(*known, strict=True))
    rows = 1.0 if private[0].axes is not None else rows
    if primitive in _TAKEN or (primitive is p.convert_element_type_p and dtype == "float64"):
        return rows, share
    if primitive in (p.add_p, p.add_jaxvals_p, p.sub_p) and len(private) == len(operands):
        rows, share = (sum(parts) for parts in zip(*known, strict=True))
    elif (
        len(private) > 1
        or primitive not in _SCALED
        or (primitive is p.div_p and operands[0] is not private[0])
    ):
        return None
    return rows, share + rows * (2.0**-23 if dtype == "float32" else 2.0**-52)


def in_precision(value: Private, variable: Any, equation: JaxprEqn) -> Private:
    """Drop bounds that the type does not keep."""
    far = any(is_far(t.bound) for t in value.terms or ())
    if far or (value.linf is not None and value.linf > LARGEST):
        # Scaling numbers so large or small back does not restore them.
        why = Why.PRECISION("intermediate numbers are too large or too small for float32")
        value = dataclasses.replace(
            value,
            terms=None,
            absolute=None,
            linf=None,
            finite=False,
            norm_of=None,
            why=value.why or why,
        )
    dtype = _type_name(variable)
    if dtype in _ORDINARY or dtype.startswith("key<"):
        return value
    # Rounding is relative to the sum, not to one record: sums that differ by the bound may round to
    # others further apart.
    if value.axes is None and value.terms is not None:
        return value.but(terms=None, linf=None, finite=False, why=held_as(dtype))
    summed = equation.primitive in (
        p.reduce_sum_p,
        p.dot_general_p,
    )  # each addition rounds the partial sum
    if value.axes is not None and dtype == "bfloat16" and not summed:
        terms = None if value.terms is None else scaled(value.terms, _COARSE)
        linf = None if value.linf is None else value.linf * _COARSE
        return dataclasses.replace(value, terms=terms, absolute=None, linf=linf)
    # The others may overflow, wrap around, round more coarsely or be complex.
    return value.but(terms=None, linf=None, finite=False)


def in_order(value: Private, equation: JaxprEqn, operands: Sequence[Value]) -> Private:
    """Clear `additive` if the carried sum went through more than additions.

    If the carry is negated or reversed each iteration (`row - total`, `total[::-1] + row`), terms
    get different weights; in a random sample one record decides in which iterations the others are.
    """
    if not value.additive or equation.primitive in (*INLINED, *STRUCTURED, *_AS_IT_IS):
        return value
    looked_at = operands[1:] if equation.primitive is p.sub_p else operands
    turned = any(
        t.group.carried for x in looked_at if isinstance(x, Private) for t in x.terms or ()
    )
    return value.but(additive=False) if turned else value


def with_absent(
    value: Private, variable: Any, equation: JaxprEqn, operands: Sequence[Value]
) -> Private:
    """Add to rows the integer that they hold where the mask excludes the record."""
    primitive = equation.primitive
    if value.axes is None or primitive not in (*ELEMENTWISE_SHAPES, *MOVES):
        return value
    kinds = {_type_name(x) for x in (variable, *equation.invars)} - _WHOLE
    if not kinds <= {"float32", "float64"} or (kinds and primitive not in _OF_INTEGERS):
        return value
    kind = jax.ShapeDtypeStruct((1,), aval(variable).dtype)
    masks = {
        mask
        for x in operands
        if isinstance(x, Private)
        for mask in (*x.zero, *(m for m, _ in x.absent))
    }
    found: dict[RecordSet, int] = {}
    for mask in masks:
        numbers = [
            _where_absent(x, v, mask) for x, v in zip(operands, equation.invars, strict=True)
        ]
        if primitive is p.select_n_p:
            which = numbers[0]
            number = None if which is None else numbers[1 + int(which[0])]
        elif primitive in MOVES:
            number = numbers[0]
        else:
            known = [x for x in numbers if x is not None]
            number = (
                computed(equation, known, kind, exact=True) if len(known) == len(numbers) else None
            )
        if number is not None and (
            not kinds or (abs(number[0]) < MOST_EXACT and number[0] % 1 == 0)
        ):
            found[mask] = int(number[0])
    zero = value.zero | {mask for mask, number in found.items() if number == 0}
    return dataclasses.replace(
        value, zero=zero, absent=frozenset(x for x in found.items() if x[1] != 0)
    )


def _where_absent(value: Value, variable: Any, mask: RecordSet) -> np.ndarray | None:
    """The one number that a value holds where the mask excludes the record; None if unknown."""
    kind = dtype_of(variable)
    if isinstance(value, Private):
        number = 0 if mask in value.zero else next((x for m, x in value.absent if m is mask), None)
        return None if number is None or value.axes is None else np.full(1, number, kind)
    if (
        not isinstance(value, Public)
        or value.const is None
        or not value.exact
        or not value.const.size
    ):
        return None
    if kind.kind == "f" and not (
        np.all(np.abs(value.const) < MOST_EXACT) and np.all(value.const % 1 == 0)
    ):
        return None
    return (
        value.const.astype(kind).reshape(-1)[:1] if len(value.uniform) == value.const.ndim else None
    )


def where_lost(value: Private, operands: Sequence[Value], equation: JaxprEqn) -> Private:
    """Add the reason to rows that have just lost their bound."""
    if value.axes is None or value.why or value.terms is not None or value.linf is not None:
        return value
    rows = [x for x in operands if isinstance(x, Private) and x.axes is not None]
    why = next((x.why for x in rows if x.why), None)
    if any(x.terms is not None for x in rows):
        lost = "a record's contribution has no bound: its values were clipped, but then passed to"
        why = Why.CLIP(f"{lost} {equation.primitive.name}").at(source_line(equation))
    return dataclasses.replace(value, why=why) if why else value
