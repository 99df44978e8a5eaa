"""Norms of rows that a program computes by itself, and factors that clip by them.

A `Norm` says what a value is in relation to the joint L2 norm n of some values' slices of a record:

- "squares": sums of their squares; over all their elements where nothing but the axes of the records is left;
- "norm": n <= value * bound;
- "factor": |value| * n <= bound;
- "above": truth values; where False, n <= bound. "below": where True.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from discreet._jax import JaxprEqn, aval
from discreet._jax import primitives as p
from discreet.verify._constants import IDENTITY
from discreet.verify._domain import Group, Private, Public, Scale, Term, Value

ONE = Scale(1.0)
FLOOR = 1e-11
"""Elements below 1e-19 are lost when they are squared: of a computed norm below this nothing is known."""
_CAP = 1e10
"""How far above its bound a factor may be cut off, for the same reason."""


@dataclasses.dataclass(frozen=True, eq=False)
class Norm:
    """See above.

    Attributes:
        kind: one of the five.
        contents: the values that the norm is of.
        bound: see above.
        size: elements of a record in all of them.
        finite: none of the values holds NaN or infinity; otherwise what is said here may fail where one does.
        safe: of a norm: value * bound is at least FLOOR. Of a factor: finite whenever the norm is no NaN, and what is lost
            in squares does not count. Without it the bound does not hold either, and the product is not called finite.
    """

    kind: str
    contents: frozenset[int]
    bound: Scale = ONE
    size: int = 0
    safe: bool = False
    finite: bool = False

    @property
    def group(self) -> Group:
        """The values, in units of their joint norm: whatever factors they are clipped by."""
        return _group(self.contents)


@functools.lru_cache(maxsize=4096)
def _group(contents: frozenset[int]) -> Group:
    return Group(f"norm of {len(contents)}")


def _size(value: Private, shape: tuple[int, ...]) -> int:
    return int(np.prod([n for i, n in enumerate(shape) if i not in (value.axes or ())], dtype=np.int64))


def _complete(value: Private, shape: tuple[int, ...]) -> bool:
    return value.axes is not None and _size(value, shape) == 1


def norm_after(equation: JaxprEqn, operands: Sequence[Value]) -> Norm | None:
    """What an elementwise result is, if it is something of the kind."""
    primitive = equation.primitive
    shapes = [tuple(aval(x).shape) for x in equation.invars]
    if primitive in (p.square_p, p.integer_pow_p, p.mul_p):
        found = _square(equation, operands, shapes)
        if found is not None:
            return found
    normed = [(i, x.norm_of) for i, x in enumerate(operands) if isinstance(x, Private) and x.norm_of is not None]
    if not normed:
        return None
    position, norm = normed[0]
    value, other = operands[position], operands[1 - position] if len(operands) == 2 else None
    if primitive in (p.add_p, p.add_jaxvals_p) and len(normed) == 2:
        second = normed[1][1]
        if norm.kind == second.kind == "squares" and not norm.contents & second.contents and shapes[0] == shapes[1]:
            contents, finite = norm.contents | second.contents, norm.finite and second.finite
            return Norm("squares", contents, size=norm.size + second.size, finite=finite)
        return None
    if len(normed) == 2:
        return None
    if primitive in (*IDENTITY, p.convert_element_type_p):
        kind = np.dtype(aval(equation.outvars[0]).dtype)
        decides = norm.kind in ("above", "below")
        return norm if (kind.kind == "b" if decides else kind.kind == "f" and kind.itemsize >= 4) else None
    handler = {"squares": _of_squares, "norm": _of_norm, "factor": _of_factor}.get(norm.kind)
    return handler(primitive, position, value, norm, other, shapes) if handler else None


def _square(equation: JaxprEqn, operands: Sequence[Value], shapes: list[tuple[int, ...]]) -> Norm | None:
    value = operands[0]
    if not isinstance(value, Private) or value.axes is None or value.norm_of is not None:
        return None
    if equation.primitive is p.integer_pow_p and equation.params["y"] != 2:
        return None
    if equation.primitive is p.mul_p and equation.invars[0] is not equation.invars[1]:
        return None
    if np.dtype(aval(equation.outvars[0]).dtype).kind != "f" or np.dtype(aval(equation.outvars[0]).dtype).itemsize < 4:
        return None  # a norm in coarse numbers is no norm
    return Norm("squares", frozenset([value.content]), size=_size(value, shapes[0]), finite=value.finite)


def _lowest(other: Value | None) -> float | None:
    """The least element of a known public operand."""
    if not isinstance(other, Public) or other.const is None or not other.const.size:
        return None
    return float(other.const.min())


def _of_squares(primitive: Any, position: int, value: Any, norm: Norm, other: Any, shapes: Any) -> Norm | None:
    del position
    least = _lowest(other)
    if primitive in (p.max_p, p.add_p) and least is not None and least >= 0:
        return dataclasses.replace(norm, safe=norm.safe or least >= FLOOR**2)
    if not _complete(value, shapes[0]):
        return None
    if primitive is p.sqrt_p:
        return dataclasses.replace(norm, kind="norm")
    if primitive is p.rsqrt_p:
        return dataclasses.replace(norm, kind="factor")
    return None


def _of_norm(primitive: Any, position: int, value: Any, norm: Norm, other: Any, shapes: Any) -> Norm | None:
    del value, shapes
    least = _lowest(other)
    scale = other.scale if isinstance(other, Public) else None
    if scale is None:
        return None  # It would no longer be one number for all of a record.
    if primitive is p.div_p and position == 1 and scale.powers:
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
        return dataclasses.replace(norm, bound=norm.bound * scale.to(-1.0), safe=norm.safe)
    if primitive is p.div_p and position == 0:
        return dataclasses.replace(norm, bound=norm.bound * scale, safe=norm.safe)
    if primitive is p.div_p:
        return dataclasses.replace(norm, kind="factor", bound=norm.bound * scale)
    if primitive in (p.gt_p, p.ge_p, p.lt_p, p.le_p):
        above = (primitive in (p.gt_p, p.ge_p)) == (position == 0)
        return dataclasses.replace(norm, kind="above" if above else "below", bound=norm.bound * scale)
    return None


def _moderate(*numbers: Scale) -> bool:
    """Whether numbers, and products of them, are far from where floats end."""
    factors = [x.factor for x in numbers]
    return all(1e-12 <= x <= 1e12 for x in (*factors, math.prod(factors), factors[0] / (factors[-1] or math.inf)))


def _of_factor(primitive: Any, position: int, value: Any, norm: Norm, other: Any, shapes: Any) -> Norm | None:
    del position, value, shapes
    least = _lowest(other)
    if primitive is p.min_p and least is not None and least >= 0:
        low = not norm.bound.powers and float(other.const.max()) <= _CAP * norm.bound.factor
        return dataclasses.replace(norm, safe=norm.safe or low)
    if (
        primitive is p.mul_p
        and isinstance(other, Public)
        and other.scale is not None
        and least is not None
        and least >= 0
    ):
        return dataclasses.replace(norm, bound=norm.bound * other.scale) if _moderate(norm.bound, other.scale) else None
    limit = other.linf if isinstance(other, Private) and other.finite else None
    if primitive is p.mul_p and limit is not None and norm.safe and _moderate(norm.bound, Scale(limit)):
        return dataclasses.replace(norm, bound=norm.bound.times(limit))
    return None


def reduced_norm(primitive: Any, value: Private) -> Norm | None:
    """After a sum over axes that do not number records."""
    norm = value.norm_of
    return norm if norm is not None and norm.kind == "squares" and primitive is p.reduce_sum_p else None


def reshaped_norm(value: Private, shape: tuple[int, ...]) -> Norm | None:
    """After a change of shape or a broadcast: one number per record stays that number."""
    norm = value.norm_of
    if norm is None or not (norm.kind != "squares" or _complete(value, shape)):
        return None
    return norm


def margin(size: int) -> float:
    """What rounding may add to a clipped norm in float32, relative."""
    return float(np.finfo(np.float32).eps) * (8.0 + math.sqrt(size))


def clipped_term(row: Private, by: Private) -> Term | None:
    """The bound of a row times the factor that clips it."""
    norm = by.norm_of
    if norm is None or norm.kind != "factor" or row.content not in norm.contents or row.batch is None:
        return None
    bound = norm.bound.times(1.0 + margin(norm.size))
    return Term(norm.group, frozenset([row.content]), bound, row.batch)


def clipped_product(equation: JaxprEqn, operands: Sequence[Value]) -> dict[str, Any] | None:
    """The product of a row and the factor that clips it, or the row divided by a norm; None if it is something else."""
    private = [x for x in operands if isinstance(x, Private)]
    if len(private) != 2:
        return None
    for row, by in (private, private[::-1]):
        norm = by.norm_of
        if norm is None or row.content not in norm.contents:
            continue
        if tuple(aval(equation.invars[operands.index(row)]).shape) != tuple(aval(equation.outvars[0]).shape):
            continue
        product = equation.primitive is p.mul_p and norm.kind == "factor"
        quotient = equation.primitive is p.div_p and norm.kind == "norm" and row is operands[0]
        if product or quotient:
            bound = norm.bound.times(1.0 + margin(norm.size))
            assert row.batch is not None
            term = Term(norm.group, frozenset([row.content]), bound, row.batch)
            safe = norm.safe and row.finite and norm.finite
            return {"terms": (term,), "finite": safe, "zero": row.zero if norm.safe else frozenset()}
    return None
