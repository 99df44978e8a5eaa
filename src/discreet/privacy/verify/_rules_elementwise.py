"""Elementwise primitives.

Element j of the result depends on the elements j of the operands, so rows stay rows as long as all
operands have their records along the same axes (`aligned`). It remains to find which bounds, zero
rows and finite numbers survive: `_BOUNDS` has a function for each primitive that keeps more than
`_no_bound` does. A sum over records keeps a bound only through functions that are linear or have
slope at most 1 (`_on_sums`).

Clipping written out is in `recognize/_clipping`, tests for NaN and infinity in
`recognize/_comparisons`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from discreet._jax import JaxprEqn, aval, dtype_of, newer_primitives, primitives as p
from discreet.privacy.verify._arithmetic import IDENTITY
from discreet.privacy.verify._bounds import (
    SMALLEST,
    RecordSet,
    Scale,
    Terms,
    added,
    fresh,
    is_open,
    scaled,
    total_of,
)
from discreet.privacy.verify._domain import Axes, Private, Public, Value, private_in, row_terms
from discreet.privacy.verify._errors import NoBoundError, Why
from discreet.privacy.verify._interpreter import MEETS_ALL, Checker, common_batch
from discreet.privacy.verify._precision import held_as
from discreet.privacy.verify._registry import rule
from discreet.privacy.verify._rows import (
    aligned,
    all_finite,
    as_sum,
    both_zero,
    bound_of,
    is_integer,
    is_positive,
    limits_of,
    lowest,
    shape_in,
    shape_of,
    shape_out,
    shapes_in,
    size_per_record,
)
from discreet.privacy.verify.recognize._clipping import clipped_product, norm_after
from discreet.privacy.verify.recognize._comparisons import (
    conditions_on,
    most_equal,
    number_if,
    tells,
)
from discreet.privacy.verify.recognize._folds import folding

_KEEPS_ZERO = (
    p.abs_p, p.neg_p, p.tanh_p, p.sin_p, p.atan_p, p.asinh_p, p.sqrt_p, p.square_p, p.expm1_p, p.log1p_p, p.sign_p,
    p.floor_p, p.ceil_p, p.round_p, p.cbrt_p, p.sinh_p, p.tan_p, p.asin_p, p.atanh_p, p.erf_p, p.erf_inv_p,
    p.convert_element_type_p, p.real_p, p.reduce_precision_p, *IDENTITY,
)  # fmt: skip
_SLOPE_ONE = (p.abs_p, p.neg_p, p.tanh_p, p.sin_p, p.atan_p, p.asinh_p, *IDENTITY)
_WITHIN_ONE = (p.tanh_p, p.sin_p, p.cos_p, p.logistic_p, p.erf_p, p.sign_p)
_SAFE_AT_FINITE = (*_WITHIN_ONE, *_SLOPE_ONE, p.floor_p, p.ceil_p, p.round_p)
_OTHERS = (
    p.exp_p, p.exp2_p, p.log_p, p.rsqrt_p, p.logistic_p, p.cos_p, p.cosh_p, p.acos_p, p.acosh_p, p.lgamma_p, p.digamma_p,
    p.erfc_p, p.is_finite_p, p.not_p, p.integer_pow_p, p.pow_p, p.rem_p, p.atan2_p, p.nextafter_p, p.igamma_p, p.igammac_p,
    p.igamma_grad_a_p, p.bessel_i0e_p, p.bessel_i1e_p, p.polygamma_p, p.zeta_p, p.population_count_p, p.clz_p,
    p.bitcast_convert_type_p, p.xor_p, p.shift_left_p, p.shift_right_logical_p, p.shift_right_arithmetic_p, p.eq_p, p.ne_p,
    p.lt_p, p.le_p, p.gt_p, p.ge_p, p.eq_to_p, p.lt_to_p, p.le_to_p, p.complex_p, p.imag_p,
    p.conj_p, *newer_primitives("log2_p"),
)  # fmt: skip
"""Excluded: the regularized incomplete beta function, which iterates on all records until the last has converged."""


_POSITIVE = (p.abs_p, p.square_p, p.exp_p, p.exp2_p, p.logistic_p)
_KEEPS_SIGN = (
    p.add_p,
    p.add_jaxvals_p,
    p.mul_p,
    p.max_p,
    p.sqrt_p,
    p.convert_element_type_p,
    *IDENTITY,
)
_BOUNDS: dict[Any, Any] = {}
"""By primitive: the bounds that survive, as a function of (equation, operands) to fields of the result."""


def elementwise(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    """The rule of every primitive here: find the rows, then the bounds that survive."""
    result = aligned(checker, equation, operands)
    if result is None:
        if any(x.axes is None for x in operands if isinstance(x, Private)):
            return _on_sums(checker, equation, operands)
        raise NoBoundError(Why.ROWS("a record's values meet those of other records"))
    primitive = equation.primitive
    changes = _BOUNDS.get(primitive, _no_bound)(equation, operands)
    dtype = dtype_of(equation.outvars[0])
    limit = changes.get("linf")
    if dtype.kind == "u" and primitive in (p.sub_p, p.neg_p):
        changes["linf"] = limit = None
    if limit is not None and is_integer(equation) and limit > np.iinfo(dtype).max:
        changes["linf"] = None
    # Integers and Booleans are never NaN, but they wrap around, so they keep no norm.
    if dtype.kind in "biu":
        changes |= {"finite": True, "terms": None}
        if dtype.kind == "b":
            changes["linf"] = 1.0
    signs = primitive in _KEEPS_SIGN and all(map(is_positive, operands, equation.invars))
    if dtype.kind == "f" and (signs or primitive in _POSITIVE):
        changes["low"] = max(0.0, changes.get("low") or 0.0)
    norm = norm_after(equation, operands)
    # A factor that clips is C over a norm that is neither NaN nor zero: it is finite.
    if (
        norm is not None
        and norm.finite
        and (norm.kind == "shares" or (norm.kind == "factor" and norm.safe))
    ):
        changes["finite"] = True
    return result.but(**changes, **({} if norm is None else {"norm_of": norm}))


def _on_sums(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    """The rule for sums over records: functions that are linear or of slope one keep the bound."""
    primitive = equation.primitive
    private = private_in(operands)
    batch = common_batch(private)
    dtype = aval(equation.outvars[0]).dtype
    lost = Why.LINEAR(
        f"{primitive.name} is applied to values of all records: one record's influence has no bound"
    )
    if str(dtype) in ("bfloat16", "float16"):
        lost = held_as(dtype)
    if is_integer(equation):
        lost = f"{primitive.name} is applied to integers that depend on all records and may wrap around: no bound"
        raise NoBoundError(Why.WHOLE_NUMBERS(lost))
    if batch is None:
        raise NoBoundError(lost)
    sums = [
        as_sum(checker, x, shape_of(v)) if isinstance(x, Private) else x
        for x, v in zip(operands, equation.invars, strict=True)
    ]
    bad = next((x for x in sums if isinstance(x, Private) and x.terms is None), None)
    if bad is not None:
        if any(x.axes is not None for x in private):
            raise NoBoundError(MEETS_ALL)
        raise NoBoundError(lost, bad)
    terms: Terms | None = None
    moves: float | None = None
    absolute: float | None = None
    additive = all(x.additive for x in sums if isinstance(x, Private))
    # The changes of two sums add up; a public number cancels in the difference between the runs.
    if primitive in (p.add_p, p.sub_p, p.add_jaxvals_p):
        if any(isinstance(x, Public) and _drowns(x, sums) for x in sums):
            raise NoBoundError(_DROWNED)
        parts = [bound_of(x, equation, i) for i, x in enumerate(sums) if isinstance(x, Private)]
        terms = parts[0] or ()
        for part in parts[1:]:
            terms = added(terms, part or ())
        known = [x.moves for x in sums if isinstance(x, Private) and x.moves is not None]
        moves = sum(known) if len(known) == len(parts) else None
        # Of operands that are not repeated.
        sizes = [
            x.absolute
            for x, v in zip(sums, equation.invars, strict=True)
            if isinstance(x, Private) and shape_of(v) == shape_out(equation)
        ]
        known = [x for x in sizes if x is not None]
        absolute = sum(known) if len(known) == len(parts) else None
    elif primitive in (p.mul_p, p.div_p) and len(private) == 1:
        terms = _multiple(equation, sums)
        value, factor = _with_factor(equation, sums)
        if value.moves is not None and factor is not None and not factor.powers:
            moves = value.moves * factor.factor
    elif primitive is p.convert_element_type_p and np.dtype(dtype).kind == "f":
        terms = sums[0].terms if isinstance(sums[0], Private) else None
    # Elementwise functions of slope at most 1: the results are no further apart than the operands.
    elif primitive in _SLOPE_ONE or (
        primitive in (p.max_p, p.min_p, p.clamp_p) and len(private) == 1
    ):
        position, value = next((i, x) for i, x in enumerate(sums) if isinstance(x, Private))
        terms = bound_of(value, equation, position)
        additive &= primitive in (p.neg_p, *IDENTITY)
        # The same is true of each element by itself. These functions do not round.
        if primitive in (p.abs_p, p.neg_p, p.max_p, p.min_p, p.clamp_p, *IDENTITY):
            moves = value.moves
        if primitive is p.clamp_p and position != 1:
            terms = None
    if terms is None:
        raise NoBoundError(lost)
    origin = checker.origin(equation, operands)
    claims = {"terms": terms, "moves": moves, "absolute": absolute}
    return Private(batch, None, origin, **claims, finite=True, additive=additive)


_DROWNED = Why.PRECISION(
    "a number is added whose rounding moves the sum by more than a record does"
)
_ROUNDING = 2.0**-24


def _drowns(offset: Public, values: Sequence[Value]) -> bool:
    """True if rounding after the addition of a known public number is not negligible beside the bound."""
    bounds = [total_of(x.terms) for x in values if isinstance(x, Private) and x.terms is not None]
    known = [b.factor for b in bounds if b is not None and not b.powers]
    if offset.magnitude is None or len(known) < len(bounds):
        return False
    return offset.magnitude * _ROUNDING > 1e-3 * max(known, default=0.0)


def _with_factor(equation: JaxprEqn, operands: Sequence[Value]) -> tuple[Private, Scale | None]:
    """The private one of two operands, and the largest size of the public number that it is multiplied or divided by."""
    position = 0 if isinstance(operands[0], Private) else 1
    value = operands[position]
    other = operands[1 - position]
    assert isinstance(value, Private)
    if not isinstance(other, Public) or (equation.primitive is p.div_p and position == 1):
        return value, None
    inverse = equation.primitive is p.div_p
    factor = other.scale.to(-1.0) if inverse and other.scale is not None else other.scale
    if (
        factor is None
        and other.const is not None
        and other.const.size
        and other.const.dtype.kind in "biuf"
    ):
        sizes = np.abs(other.const.astype(np.float64))
        known = not inverse or bool(sizes.min() > SMALLEST)
        factor = Scale(float(1 / sizes.min() if inverse else sizes.max())) if known else None
    known = factor is not None and math.isfinite(factor.factor)
    return value, factor * other.rounded if known and factor is not None else None


def _multiple(equation: JaxprEqn, operands: Sequence[Value]) -> Terms | None:
    """The bound of a bounded value multiplied or divided by a public number."""
    value, factor = _with_factor(equation, operands)
    terms = bound_of(value, equation, 0 if value is operands[0] else 1)
    if terms is None or factor is None or any(_comes_back(t.bound, factor) for t in terms):
        return None
    return scaled(terms, factor)


def _comes_back(bound: Scale, factor: Scale) -> bool:
    """True if a value scaled by a traced number is scaled back, or by another: it may have been infinite, or zero.

    Only scaling in the same direction keeps the final size, which the noise shares, informative
    about intermediate ones.
    """
    if (
        not bound.powers
        or not factor.powers
        or all(is_open(name) for name, _ in (*bound.powers, *factor.powers))
    ):
        return False
    after = dict((bound * factor).powers)
    ratios = {after.get(symbol, 0.0) / power for symbol, power in bound.powers}
    return len(after) > len(bound.powers) or len(ratios) > 1 or ratios.pop() < 1.0


def _no_bound(equation: JaxprEqn, operands: Sequence[Value]) -> dict[str, Any]:
    private = private_in(operands)
    first = private[0]
    primitive = equation.primitive
    changes: dict[str, Any] = {"finite": all_finite(operands) and primitive in _SAFE_AT_FINITE}
    if primitive in _WITHIN_ONE:
        changes["linf"] = 1.0
    if primitive in _KEEPS_ZERO or (primitive is p.integer_pow_p and equation.params["y"] > 0):
        changes["zero"] = first.zero
    if primitive in _SLOPE_ONE and primitive not in _WITHIN_ONE:
        changes |= {"terms": first.terms, "linf": first.linf}
    if primitive in IDENTITY:
        changes |= {"holds": first.content, "place": first.spot}
    # They map finite numbers to finite numbers.
    if primitive in _SAFE_AT_FINITE:
        changes["number_if"] = number_if(first)
    if primitive is p.is_finite_p:
        changes["finite_where"] = frozenset({("each", first.spot), *conditions_on(equation, first)})
        whole = size_per_record(shape_in(equation), first.axes) == 1
        if first.norm_of is not None and first.norm_of.kind in ("squares", "norm") and whole:
            changes["finite_where"] |= {("all", c) for c in first.norm_of.contents}
    if primitive in (p.eq_p, p.ne_p):
        changes["tells"] = tells(equation, operands)
    if primitive is p.eq_p:
        changes["most"] = most_equal(equation, operands)
    if primitive is p.eq_p and equation.invars[0] is equation.invars[1]:
        # A number equal to itself is not NaN; with a limited size it is finite.
        limited = first.linf is not None
        changes["finite_where"] = frozenset(
            {("each", first.spot), *conditions_on(equation, first)} if limited else ()
        )
    return changes


@rule(p.add_p, p.add_jaxvals_p, p.sub_p, table=_BOUNDS)
def _add(equation: JaxprEqn, operands: Sequence[Value]) -> dict[str, Any]:
    terms: Terms | None = ()
    for i, x in enumerate(operands):
        if isinstance(x, Private):
            part = bound_of(x, equation, i)
            terms = None if part is None or terms is None else added(terms, part)
        elif isinstance(x, Public) and not x.is_zero:
            terms = None
    limits = limits_of(operands)
    linf = None if limits is None else sum(limits)
    low = None
    least = lowest(operands[0])
    if (
        equation.primitive is p.sub_p
        and least is not None
        and limits
        and is_positive(operands[1], equation.invars[1])
    ):
        # `1 - mask` lies between 0 and 1, too.
        low = least - limits[1]
        linf = max(limits[0], abs(low))
    changes = {"terms": terms, "linf": linf, "low": low, "zero": both_zero(operands)}
    return {**changes, "finite": (terms is not None or linf is not None) and all_finite(operands)}


@rule(p.mul_p, table=_BOUNDS)
def _mul(equation: JaxprEqn, operands: Sequence[Value]) -> dict[str, Any]:
    clipped = clipped_product(equation, operands)
    if clipped is not None:
        return clipped
    private = private_in(operands)
    limits = limits_of(operands)
    linf = (
        None
        if limits is None
        else math.prod([*limits, *(x.rounded for x in operands if isinstance(x, Public))])
    )
    terms = None
    zero = frozenset[RecordSet]()
    if len(private) == 1:
        terms = _multiple(equation, operands)
    else:
        terms = product_of_norms(private[0], private[1], shapes_in(equation))
        for i in (0, 1):
            part = bound_of(private[i], equation, i)
            limit = private[1 - i].linf
            if part is not None and limit is not None and private[1 - i].finite:
                terms = smaller(terms, scaled(part, limit))
    for i in (0, 1):
        # Zero times NaN is NaN: multiplying by a mask hides finite numbers only.
        if isinstance(x := operands[i], Private) and all_finite([operands[1 - i]]):
            zero |= x.zero
    bounded = terms is not None or linf is not None
    return {"terms": terms, "linf": linf, "finite": bounded and all_finite(operands), "zero": zero}


def product_of_norms(first: Private, second: Private, shapes: Sequence[Axes]) -> Terms | None:
    """The bound of products of one record's elements, each pair at most once, summed or not."""
    if first.terms is None:
        # The first gives the group, which others may share: prefer one that was clipped.
        first, second, shapes = second, first, shapes[::-1]
    one = row_terms(first.but(finite=True), size_per_record(shapes[0], first.axes))
    other = row_terms(second.but(finite=True), size_per_record(shapes[1], second.axes))
    total = None if other is None else total_of(other)
    # The first may become finite by a later selection; the other has to be finite already.
    return None if one is None or total is None or not second.finite else scaled(one, total)


def smaller(a: Terms | None, b: Terms) -> Terms:
    """The smaller of two bounds, if they are comparable; else the second."""
    sizes = None if a is None else total_of(a), total_of(b)
    if a is None or sizes[0] is None or sizes[1] is None or sizes[0].powers != sizes[1].powers:
        return b
    return a if sizes[0].factor < sizes[1].factor else b


@rule(*newer_primitives("one_minus_square_p"), table=_BOUNDS)
def _one_minus_square(equation: JaxprEqn, operands: Sequence[Value]) -> dict[str, Any]:
    """The rule of (1 + x)(1 - x), part of the derivative of tanh since JAX 0.12."""
    limits = limits_of(operands)
    # 1 - x wraps around
    if limits is None or dtype_of(equation.outvars[0]).kind == "u":
        return {}
    return {"linf": max(1.0, limits[0] ** 2) * (1.0 + 2.0**-22), "finite": all_finite(operands)}


@rule(p.div_p, table=_BOUNDS)
def _div(equation: JaxprEqn, operands: Sequence[Value]) -> dict[str, Any]:
    clipped = clipped_product(equation, operands)
    if clipped is not None:
        return clipped
    top, bottom = operands
    if not isinstance(top, Private) or not isinstance(bottom, Public):
        return {}
    sizes = (
        None
        if bottom.const is None or bottom.const.size == 0
        else np.abs(bottom.const.astype(np.float64))
    )
    nonzero = (
        sizes is not None and bool(np.all(sizes > SMALLEST)) and bool(np.all(np.isfinite(sizes)))
    )
    terms = _multiple(equation, operands)
    linf = None
    if top.linf is not None and nonzero and sizes is not None:
        linf = top.linf * bottom.rounded / float(sizes.min())
    finite = top.finite and nonzero and (terms is not None or linf is not None)
    return {
        "terms": terms,
        "linf": linf,
        "finite": finite,
        "zero": top.zero if nonzero else frozenset(),
    }


@rule(p.max_p, p.min_p, table=_BOUNDS)
def _max_min(equation: JaxprEqn, operands: Sequence[Value]) -> dict[str, Any]:
    limits = limits_of(operands)
    changes: dict[str, Any] = {
        "linf": None if limits is None or math.inf in limits else max(limits)
    }
    changes |= {"finite": all_finite(operands), "zero": both_zero(operands)}
    private = private_in(operands)
    # A bound that is NaN somewhere has no largest element.
    public = [
        x.const
        for x in operands
        if isinstance(x, Public) and x.const is not None and x.magnitude is not None
    ]
    if len(private) == 1 and public and public[0].size:
        # jnp.clip is a maximum and then a minimum.
        (value,) = private
        (bound,) = public
        least = float(bound.min())
        most = float(bound.max())
        if equation.primitive is p.max_p:
            changes |= {"low": least, "high": None}
            # Numbers below an upper bound lie below the larger of the two.
            ends = (least, None if value.high is None else max(value.high, most))
        else:
            changes |= {"high": most, "low": None}
            ends = (None if value.low is None else min(value.low, least), most)
        if all_finite([x for x in operands if isinstance(x, Public)]):
            changes["number_if"] = number_if(value)
        if ends[0] is not None and ends[1] is not None:
            changes["linf"] = max(abs(ends[0]), abs(ends[1]))
    return changes


@rule(p.clamp_p, table=_BOUNDS)
def _clamp(equation: JaxprEqn, operands: Sequence[Value]) -> dict[str, Any]:
    low, value, high = operands
    if not isinstance(value, Private) or isinstance(low, Private) or isinstance(high, Private):
        return {}
    changes: dict[str, Any] = {"finite": all_finite(operands)}
    if limits := limits_of([low, high]):
        changes |= {"linf": max(limits), "number_if": number_if(value)}
    return changes


@rule(p.and_p, table=_BOUNDS)
def _and(equation: JaxprEqn, operands: Sequence[Value]) -> dict[str, Any]:
    del equation
    private = private_in(operands)
    zero = frozenset().union(*(x.zero for x in private))
    return {"zero": zero, "finite_where": frozenset().union(*(x.finite_where for x in private))}


@rule(p.or_p, table=_BOUNDS)
def _or(equation: JaxprEqn, operands: Sequence[Value]) -> dict[str, Any]:
    del equation
    return {"zero": both_zero(operands)}


def _holds_all(before: Any, after: Any) -> bool:
    """True if all floats of one type are floats of the other; of two types of one size, neither may contain the other."""
    own = jnp.finfo(before)
    other = jnp.finfo(after)
    return own.nmant <= other.nmant and own.maxexp <= other.maxexp and own.minexp >= other.minexp


@rule(p.convert_element_type_p, table=_BOUNDS)
def _convert(equation: JaxprEqn, operands: Sequence[Private]) -> dict[str, Any]:
    (value,) = operands
    before = dtype_of(equation.invars[0])
    after = dtype_of(equation.outvars[0])
    grows = all(jnp.issubdtype(x, jnp.floating) for x in (before, after))
    # Rounding to fewer bits changes each element by at most a 128th.
    exact = grows and _holds_all(before, after)
    factor = 1.0 if exact or (not grows and after.itemsize >= before.itemsize) else 1.0 + 2.0**-7
    if after.kind in "iu" and before.kind in "fV" and not value.finite:
        return {"zero": value.zero}  # NaN becomes any integer
    terms = scaled(value.terms, factor) if value.terms is not None and grows else None
    if (
        before.kind == "b"
        and after.kind == "f"
        and value.most is not None
        and value.batch is not None
    ):
        terms = fresh(Scale(math.sqrt(value.most)), value.batch)
    wraps = after.kind == "u" and before.kind not in "bu"  # negative numbers become huge
    linf = value.linf * factor if value.linf is not None and not wraps else None
    changes: dict[str, Any] = {"terms": terms, "linf": linf, "zero": value.zero}
    changes["finite"] = value.finite and (factor == 1.0 or terms is not None or linf is not None)
    if exact:
        changes |= {"holds": value.content, "place": value.spot}
    return changes


_FOLDED = (p.neg_p, p.convert_element_type_p)
"""Those that JAX applies between a convolution and the reshape that takes the records apart again."""
rule(*_FOLDED)(folding(elementwise))
rule(*(x for x in (*_KEEPS_ZERO, *_OTHERS, *_BOUNDS) if x not in _FOLDED))(elementwise)
