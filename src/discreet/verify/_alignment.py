"""How operands meet: row by row, or records with other records; and what is true of all of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from discreet._jax import JaxprEqn, aval
from discreet.verify._bounds import row_terms, scaled
from discreet.verify._domain import Batch, Private, Public, Scale, Term, Value
from discreet.verify._interpreter import shape_of, size_per_record


@dataclasses.dataclass(frozen=True)
class Rows:
    """Where the rows of an elementwise result come from."""

    batch: Batch
    axes: tuple[int, ...]
    positional: bool


def aligned(equation: JaxprEqn, operands: Sequence[Value]) -> Rows | None:
    """The common rows of operands that meet element by element; None if records meet other records."""
    shape = shape_of(equation.outvars[0])
    private = [(x, shape_of(v)) for x, v in zip(operands, equation.invars, strict=True) if isinstance(x, Private)]
    first, _ = private[0]
    axes = first.axes
    if axes is None or first.batch is None:
        return None
    for value, own in private:
        if value.axes != axes or value.batch is not first.batch:
            return None
        if any(i >= len(own) or own[i] != shape[i] for i in axes):
            return None
    positional = any(x.positional for x, _ in private)
    for value, variable in zip(operands, equation.invars, strict=True):
        if isinstance(value, Public):
            positional |= varies_along(value, shape_of(variable), axes)
    return Rows(first.batch, axes, positional)


def varies_along(value: Public, shape: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    """Whether a public value may differ from record to record."""
    return any(i < len(shape) and shape[i] > 1 and i not in value.uniform for i in axes)


def expansion(own: tuple[int, ...], out: tuple[int, ...]) -> float:
    """How often each element is used, as a factor on the L2 norm."""
    return math.sqrt(np.prod(out, dtype=np.float64) / max(1.0, np.prod(own, dtype=np.float64)))


def bound_of(value: Private, equation: JaxprEqn, position: int) -> tuple[Term, ...] | None:
    """The bound of an operand in the shape of the result."""
    own, out = shape_of(equation.invars[position]), shape_of(equation.outvars[0])
    if value.axes is None:
        terms = value.terms
    else:
        # Whether it is a number is looked at apart, before anything is summed.
        terms = row_terms(value.but(finite=True), size_per_record(own, value.axes))
    return None if terms is None else scaled(terms, Scale(expansion(own, out)))


def is_integer(equation: JaxprEqn) -> bool:
    """Whether the result wraps around instead of rounding."""
    return np.dtype(aval(equation.outvars[0]).dtype).kind in "iu"


def all_finite(operands: Sequence[Value]) -> bool:
    """Whether no operand holds NaN or infinity."""
    for value in operands:
        if isinstance(value, Private):
            if not value.finite:
                return False
        elif not isinstance(value, Public) or value.magnitude is None or not math.isfinite(value.magnitude):
            return False
    return True


def zero_under(value: Value) -> frozenset[Batch] | None:
    """The masks under which a value is zero; None: all of them, it is zero."""
    if isinstance(value, Private):
        return value.zero
    return None if isinstance(value, Public) and value.is_zero else frozenset()


def both_zero(values: Sequence[Value]) -> frozenset[Batch]:
    """Masks under which all are zero."""
    known = [z for z in map(zero_under, values) if z is not None]
    return frozenset.intersection(*known) if known else frozenset()
