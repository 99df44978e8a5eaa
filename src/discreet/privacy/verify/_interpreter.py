"""The walk through a jaxpr, public values, and how the operands of one equation combine.

The checker gives every variable an abstract value, by the rule of the equation's primitive from the values of its operands.
The invariant: if the claims about the operands are true of two runs on neighbouring tables, so are those about the results.
A primitive without a rule returns a value without claims and uses up its keys, so a missing rule costs precision, not
soundness. `Checker.step` handles low precision, overflow and underflow after every rule, so no rule has to.

Public values stay public without a rule; `public_result` only adds claims known at trace time. It evaluates with NumPy where
XLA must agree, and drops the value where XLA may round differently.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence, Set
from typing import Any

import jax
import jax.export
import numpy as np

from discreet._jax import (
    Jaxpr,
    JaxprEqn,
    Literal,
    Primitive,
    Var,
    aval,
    inner_programs,
    inside,
    is_closed_book,
    is_key,
    is_over_devices,
    jax_primitives,
    primitives as p,
    pvary_p,
    reshard_p,
    shard_map_p,
    sharding_constraint_p,
    source_line,
)
from discreet.privacy.accounting import Relation
from discreet.privacy.mechanisms import CLIP, CLIPPED_SUM, COUNT, SUM, WEIGHTED_SUM, Mechanism
from discreet.privacy.verify._domain import (
    KNOWN,
    LARGEST,
    PRIVATE,
    SMALLEST,
    Batch,
    Cut,
    Key,
    KeyRing,
    Part,
    Private,
    Public,
    Scale,
    Table,
    Term,
    Turns,
    Value,
    constant,
    contribution_factor,
    group_of,
    is_open,
    range_factor,
    row_terms,
    scaled,
    unnamed,
)
from discreet.privacy.verify._errors import Origin, Reason, Why
from discreet.privacy.verify._events import Symbols

_SMALL = 4096

IDENTITY = (p.copy_p, p.stop_gradient_p, p.name_p, sharding_constraint_p, reshard_p, pvary_p)
"""Primitives whose output equals their operand: every claim survives them."""


_NUMPY: dict[Any, Any] = {
    p.add_p: np.add,
    p.add_jaxvals_p: np.add,
    p.sub_p: np.subtract,
    p.mul_p: np.multiply,
    p.div_p: np.divide,
    p.max_p: np.maximum,
    p.min_p: np.minimum,
    p.neg_p: np.negative,
    p.abs_p: np.abs,
    p.sqrt_p: np.sqrt,
    p.square_p: np.square,
    p.rsqrt_p: lambda x: 1 / np.sqrt(x),
    p.exp_p: np.exp,
    p.log_p: np.log,
    p.lt_p: np.less,
    p.le_p: np.less_equal,
    p.gt_p: np.greater,
    p.ge_p: np.greater_equal,
    p.eq_p: np.equal,
    p.ne_p: np.not_equal,
    p.and_p: np.logical_and,
    p.or_p: np.logical_or,
    p.not_p: np.logical_not,
    **dict.fromkeys(IDENTITY, np.asarray),
}
_LOGICAL = (p.and_p, p.or_p, p.not_p)
ELEMENTWISE_SHAPES = (*_NUMPY, p.select_n_p, p.convert_element_type_p, p.integer_pow_p, p.pow_p, p.tanh_p, p.clamp_p)
_MOVES = (p.broadcast_in_dim_p, p.reshape_p, p.squeeze_p, p.transpose_p)


def public_result(checker: Any, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The outputs of an equation on public values: public, with the claims that the rules here derive."""
    values = [x for x in operands if isinstance(x, Public)]
    assert len(values) == len(operands)
    released = any(x.released for x in values)
    if len(equation.outvars) != 1:
        return [Public(scale=None if aval(x).shape else unnamed(), released=released) for x in equation.outvars]
    kind = aval(equation.outvars[0])
    const = _evaluate(equation, values, kind)
    if const is not None:
        error = _error(equation, [x.const for x in values], [x.error for x in values], const.dtype)
        if error <= _MOST_ERROR:
            return [constant(const, exact=_exact(equation, values, kind), error=error)]
    uniform = _uniform(equation, values, kind)
    scale = _scale(checker, equation, values) if len(uniform) == len(kind.shape) else None
    error = _error(equation, [], [x.error for x in values], kind.dtype) if scale is not None else 0.0
    if scale is not None and (error > _MOST_ERROR or (scale.factor != 0 and not SMALLEST <= scale.factor <= LARGEST)):
        scale = None
    if scale is None:
        scale = unnamed() if len(uniform) == len(kind.shape) else None
        error = 0.0
    turns = _in_each_turn(equation, values, kind)
    checker.schedule(scale, turns)
    # As zeros of a table's size, too large to be held.
    limit = values[0].magnitude if equation.primitive in _MOVES else None
    counter = _counter(equation, values)
    return [
        Public(error=error, uniform=uniform, scale=scale, counter=counter, turns=turns, released=released, limit=limit)
    ]


def _in_each_turn(equation: JaxprEqn, values: list[Public], kind: Any) -> Turns | None:
    """The values of one number in each iteration of a loop, if its operands are known in each; compare `_evaluate`."""
    around = {x.turns.loop for x in values if x.turns is not None}
    single = math.prod(kind.shape) == 1 and np.dtype(kind.dtype).kind in "biuf"
    if len(around) != 1 or not single:
        return None
    (loop,) = around
    primitive = equation.primitive
    count = next(len(x.turns.values) for x in values if x.turns is not None)
    if primitive in _MOVES:
        return values[0].turns
    if primitive is p.dynamic_slice_p:
        table = values[0].const
        starts = values[1].turns
        if table is None or table.ndim != 1 or starts is None:
            return None
        return Turns(
            loop, tuple(table[np.clip(starts.values, 0, table.size - 1).astype(int)].tolist()), values[0].error
        )
    known: list[np.ndarray] = []
    for value, variable in zip(values, equation.invars, strict=True):
        if value.turns is not None:
            known.append(np.asarray(value.turns.values, aval(variable).dtype))
        elif value.const is not None and value.const.size == 1:
            known.append(value.const.reshape(1))
        else:
            return None
    if primitive not in ELEMENTWISE_SHAPES:
        return None
    found = _computed(equation, known, jax.ShapeDtypeStruct((count,), kind.dtype), exact=False)
    if found is None:
        return None
    error = _error(equation, known, [x.error if x.turns is None else x.turns.error for x in values], found.dtype)
    return Turns(loop, tuple(found.tolist()), error) if error <= _MOST_ERROR else None


_MOST_ERROR = 84.0
"""In roundings of 2^-23: a relative error of 1e-5. Less accurate values count as unknown."""


def _error(equation: JaxprEqn, operands: Sequence[np.ndarray | None], errors: Sequence[float], dtype: Any) -> float:
    """The relative error of a result's known value, in roundings of 2^-23, from the errors of its operands.

    Powers and exponentials magnify them, and so do products of a number with itself; `_lost` sees to cancellation.
    """
    primitive = equation.primitive
    most = max(errors, default=0.0)
    if np.dtype(dtype).kind != "f" or not errors:
        return 0.0
    if primitive in _EXACT or primitive is p.dynamic_slice_p:
        narrower = np.dtype(aval(equation.invars[0]).dtype).itemsize > np.dtype(dtype).itemsize
        return most + (1.0 if primitive is p.convert_element_type_p and narrower else 0.0)
    if primitive in (p.add_p, p.add_jaxvals_p, p.sub_p, p.mul_p, p.div_p):
        return sum(errors) + 2
    if primitive in (p.square_p, p.sqrt_p, p.rsqrt_p, p.log_p):
        return 2 * most + 4
    if primitive is p.integer_pow_p:
        return abs(equation.params["y"]) * (most + 1) + 2
    sizes = [np.abs(np.asarray(x, np.float64)) for x in operands if x is not None]
    if len(sizes) < len(errors):
        return math.inf
    with np.errstate(all="ignore"):
        if primitive is p.exp_p:
            found = np.max(sizes[0], initial=0.0) * (most + 1) + 4
        elif primitive is p.pow_p:
            logarithm = np.max(sizes[1] * np.abs(np.log(sizes[0])), initial=0.0)
            found = np.max(sizes[1], initial=0.0) * errors[0] + logarithm * (errors[1] + 4) + 4
        else:
            found = math.inf
    return float(found) if np.isfinite(found) else math.inf


def _evaluate(equation: JaxprEqn, values: list[Public], kind: Any) -> np.ndarray | None:
    primitive = equation.primitive
    params = equation.params
    if math.prod(kind.shape) > _SMALL or np.dtype(kind.dtype).kind not in "biuf":
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
    return _computed(equation, known, kind, exact=all(x.exact for x in values))


_COMPARISONS = (p.lt_p, p.le_p, p.gt_p, p.ge_p, p.eq_p, p.ne_p)
_CLOSE = 1e-4


def _computed(equation: JaxprEqn, known: list[np.ndarray], kind: Any, *, exact: bool) -> np.ndarray | None:
    """The result of known operands; None where XLA may compute another: it rounds and divides integers differently.

    `exact`: the operands are known without rounding.
    """
    primitive = equation.primitive
    first = known[0].astype(np.float64)
    decided = not any(map(_too_small, known))
    if primitive is p.div_p:
        decided = decided and known[0].dtype.kind == "f"
    elif primitive in _COMPARISONS and any(x.dtype.kind == "f" for x in known):
        second = known[1].astype(np.float64)
        larger = np.maximum(np.abs(first), np.abs(second))
        apart = np.abs(first - second) > _CLOSE * larger
        decided = decided and bool(np.all(np.isfinite(larger) & (apart | (larger == 0))))
    elif primitive is p.convert_element_type_p and known[0].dtype.kind == "f" and np.dtype(kind.dtype).kind in "biu":
        # A computed float may lie on the other side of an integer; one too large saturates.
        decided = decided and bool(np.all(first == 0))
    if not decided:
        return None
    with np.errstate(all="ignore"):
        found = _calculate(primitive, equation.params, known, kind)
        lost = found is None or _lost(equation, known, found, exact=exact)
    return None if found is None or lost or _too_small(found) else found


_EXACT = (*_MOVES, *_LOGICAL, p.select_n_p, p.neg_p, p.abs_p, p.max_p, p.min_p, *IDENTITY, p.convert_element_type_p)


def _exact(equation: JaxprEqn, values: list[Public], kind: Any) -> bool:
    """True if nothing was rounded, in NumPy or in XLA."""
    if np.dtype(kind.dtype).kind in "biu" or equation.primitive is p.iota_p:
        return True
    sizes = [np.dtype(aval(x).dtype).itemsize for x in equation.invars]
    return equation.primitive in _EXACT and all(x.exact for x in values) and np.dtype(kind.dtype).itemsize >= max(sizes)


def _lost(equation: JaxprEqn, consts: list[np.ndarray], found: np.ndarray, *, exact: bool) -> bool:
    """True if XLA's result may be entirely different, since it rounds, or orders products, differently."""
    primitive = equation.primitive
    if found.dtype.kind != "f" or primitive in _MOVES:
        return False
    sizes = [np.abs(x.astype(np.float64)) for x in consts]
    if found.dtype.itemsize < 4 or (not np.all(np.isfinite(found)) and all(np.all(np.isfinite(x)) for x in sizes)):
        return True
    # Cancellation: the difference of two rounded numbers may be rounding error alone.
    if primitive in (p.add_p, p.add_jaxvals_p, p.sub_p):
        return not exact and bool(np.any(np.abs(found.astype(np.float64)) < np.maximum(*sizes)))
    if primitive is p.log_p:
        return not exact and bool(np.any(np.abs(found) < _LOGARITHM))
    if primitive is p.integer_pow_p and abs(equation.params["y"]) > _MOST_FACTORS:
        return True
    # Underflow to zero: in another order of the products it may not happen.
    vanishes = np.asarray(found == 0)
    for size in sizes if primitive in _PRODUCTS else ():
        vanishes = vanishes & (size > 0)
    return primitive in (*_PRODUCTS, p.exp_p, p.pow_p) and bool(np.any(vanishes))


_PRODUCTS = (p.mul_p, p.div_p, p.square_p, p.sqrt_p, p.rsqrt_p, p.integer_pow_p, p.convert_element_type_p)
_LOGARITHM = 0.5
_MOST_FACTORS = 64
"""Logarithms closer to zero are meaningless for rounded numbers; the roundings of more factors add up."""


def _too_small(value: np.ndarray) -> bool:
    """True if XLA may flush one of the numbers to zero."""
    if value.dtype.kind != "f":
        return False
    sizes = np.abs(value.astype(np.float64))
    return bool(np.any((sizes > 0) & (sizes < np.finfo(value.dtype).tiny)))


def _calculate(primitive: Any, params: Any, consts: list[np.ndarray], kind: Any) -> np.ndarray | None:
    if primitive in _LOGICAL and any(x is not None and x.dtype != np.bool_ for x in consts):
        return None
    if primitive in _NUMPY:
        return np.asarray(_NUMPY[primitive](*consts)).astype(kind.dtype)
    if primitive is p.integer_pow_p and consts[0] is not None and consts[0].dtype.kind == "f":
        return np.asarray(consts[0] ** params["y"]).astype(kind.dtype)
    if primitive is p.pow_p and consts[0].dtype.kind == "f":
        return np.asarray(consts[0] ** consts[1]).astype(kind.dtype)
    if primitive is p.convert_element_type_p:
        return np.asarray(consts[0]).astype(kind.dtype)
    if primitive is p.select_n_p and len(consts) == 3 and consts[0].dtype == np.bool_:
        return np.where(consts[0], consts[2], consts[1]).astype(kind.dtype)
    if primitive is p.broadcast_in_dim_p:
        first = np.asarray(consts[0])
        shape = [1] * len(kind.shape)
        for axis, n in zip(params["broadcast_dimensions"], first.shape, strict=True):
            shape[axis] = n
        return np.broadcast_to(first.reshape(shape), kind.shape)
    return np.asarray(consts[0]).reshape(kind.shape) if primitive in (p.reshape_p, p.squeeze_p) else None


def _counter(equation: JaxprEqn, values: list[Public]) -> tuple[Any, int, int] | None:
    primitive = equation.primitive
    if primitive in (p.convert_element_type_p, p.squeeze_p, p.reshape_p, p.broadcast_in_dim_p, *IDENTITY):
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
    single = bool(values) and all(len(x.uniform) == len(s) for x, s in zip(values, shapes, strict=True))
    if single and (primitive in ELEMENTWISE_SHAPES or primitive in _MOVES):
        return everywhere
    if primitive in ELEMENTWISE_SHAPES:
        found = everywhere
        for value, shape in zip(values, shapes, strict=True):
            if len(shape) == rank:
                found &= value.uniform | {i for i in range(rank) if shape[i] == 1}
        return frozenset(found)
    if primitive is p.broadcast_in_dim_p:
        dims = [int(i) for i in params["broadcast_dimensions"]]
        varying = {dims[i] for i in range(len(dims)) if i not in values[0].uniform and shapes[0][i] > 1}
        return everywhere - varying
    if primitive is p.transpose_p:
        return frozenset(i for i, j in enumerate(params["permutation"]) if j in values[0].uniform)
    return everywhere if rank == 0 else frozenset()


def _scale(checker: Any, equation: JaxprEqn, values: list[Public]) -> Scale | None:
    """A single number as a product of other numbers; integers may wrap around and low precision rounds.

    Intermediate products of numbers unknown at trace time may overflow, or lose digits below 1e-38, and then differ from
    their formula even if later factors compensate. So a product contains at most one such number.
    """
    dtype = np.dtype(aval(equation.outvars[0]).dtype)
    if dtype.kind != "f" or dtype.itemsize < 4:
        return None
    scales = [x.scale for x in values]
    known = [s for s in scales if s is not None]
    if len(known) < len(scales) or not known:
        return None
    primitive = equation.primitive
    if primitive in (p.mul_p, p.div_p):
        found = known[0] * known[1].to(1.0 if primitive is p.mul_p else -1.0)
        return None if checker.may_be_lost(found, *known) else found
    if primitive is p.sqrt_p:
        return None if any(abs(power) > 1 and not is_open(s) for s, power in known[0].powers) else known[0].to(0.5)
    if primitive is p.square_p:
        return None if checker.may_be_lost(known[0] * known[0]) else known[0] * known[0]
    if primitive is p.convert_element_type_p:
        floats = all(np.dtype(aval(x).dtype).kind == "f" for x in (*equation.invars, *equation.outvars))
        return known[0] if floats else None
    if primitive in (*IDENTITY, p.neg_p, p.broadcast_in_dim_p, p.reshape_p, p.squeeze_p, p.transpose_p, p.abs_p):
        return known[0]
    return None


Rule = Callable[["Checker", JaxprEqn, list[Value]], "Value | list[Value]"]

RULES: dict[Primitive, Rule] = {}
"""Keyed by the primitive object, since names are not unique."""

KEY_RULES: dict[Primitive, Rule] = {}
"""Primitives that take keys."""

STRUCTURED: dict[Primitive, Rule] = {}
"""Primitives that contain programs. The checker enters them if an operand is private or a key."""

INLINED: dict[Primitive, Rule] = {}
"""Primitives that the checker enters even if all operands are public, since the results may be constants."""


def rule(*primitives: Primitive, table: dict[Primitive, Any] = RULES) -> Callable[[Any], Any]:
    """Register a function as the rule of primitives in one of the tables above."""

    def enter(function: Any) -> Any:
        for primitive in primitives:
            if table.setdefault(primitive, function) is not function:
                raise ValueError(f"two rules for {primitive.name}: {table[primitive].__name__}, {function.__name__}")
        return function

    return enter


MEETS_ALL = Why.ROWS("a record's values meet values computed from all records")
"""A reason for `Checker.unbounded`."""


def held_as(dtype: Any) -> Reason:
    """The reason for a sum in low precision."""
    return Why.PRECISION(f"a sum over records is held as {dtype}, whose rounding no bound covers")


_ORDINARY = frozenset({"bool", "float32", "float64", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))})
"""The types whose arithmetic the rules cover: all others keep no bound."""
_WHOLE = frozenset(x for x in _ORDINARY if not x.startswith("float"))

_COARSE = 1.0 + 2.0**-7
"""The relative error of one operation in bfloat16."""


_AS_IT_IS = (
    *IDENTITY, p.add_p, p.add_jaxvals_p, p.convert_element_type_p, p.reshape_p, p.squeeze_p,
    p.broadcast_in_dim_p,
)  # fmt: skip
"""Primitives that add to a sum, or reshape it with its elements in order."""


_MARKED = (CLIP, SUM, WEIGHTED_SUM, COUNT, CLIPPED_SUM)
"""Their rules say how their results round."""
_TAKEN = (
    *IDENTITY, *_MOVES, p.slice_p, p.concatenate_p, p.neg_p, p.abs_p, p.rev_p, p.pad_p, p.dynamic_slice_p, p.select_n_p,
)  # fmt: skip
"""Primitives that do not round."""
_SCALED = (p.mul_p, p.div_p, p.convert_element_type_p)


def rounding_of(equation: JaxprEqn, variable: Any, operands: Sequence[Value]) -> tuple[float, float] | None:
    """`Private.rounding` of a result: (n, r). None where the proof assumes exact arithmetic.

    Moving elements keeps both, since norms and errors of parts are orthogonal. A product with a public number, and a sum of
    two such values, are rounded by 2^-24 of n bounds, in both tables. Each row is within the bound: n is 1.
    """
    private = [x for x in operands if isinstance(x, Private)]
    kinds = {dtype_of(v) for x, v in zip(operands, equation.invars, strict=True) if isinstance(x, Private)}
    dtype = dtype_of(variable)
    primitive = equation.primitive
    if primitive is p.select_n_p:
        private = [x for x in operands[1:] if isinstance(x, Private)]
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
    elif len(private) > 1 or primitive not in _SCALED or (primitive is p.div_p and operands[0] is not private[0]):
        return None
    return rows, share + rows * (2.0**-23 if dtype == "float32" else 2.0**-52)


def _with_absent(value: Private, variable: Any, equation: JaxprEqn, operands: Sequence[Value]) -> Private:
    """Add to integer and Boolean rows the constant that they hold where the mask excludes the record."""
    primitive = equation.primitive
    if value.axes is None or primitive not in (*ELEMENTWISE_SHAPES, *_MOVES):
        return value
    if not {dtype_of(x) for x in (variable, *equation.invars)} <= _WHOLE:
        return value
    kind = jax.ShapeDtypeStruct((1,), aval(variable).dtype)
    masks = {mask for x in operands if isinstance(x, Private) for mask in (*x.zero, *(m for m, _ in x.absent))}
    found: dict[Batch, int] = {}
    for mask in masks:
        numbers = [_where_absent(x, v, mask) for x, v in zip(operands, equation.invars, strict=True)]
        if primitive is p.select_n_p:
            which = numbers[0]
            number = None if which is None else numbers[1 + int(which[0])]
        elif primitive in _MOVES:
            number = numbers[0]
        else:
            known = [x for x in numbers if x is not None]
            number = _computed(equation, known, kind, exact=True) if len(known) == len(numbers) else None
        if number is not None:
            found[mask] = int(number[0])
    zero = value.zero | {mask for mask, number in found.items() if number == 0}
    return dataclasses.replace(value, zero=zero, absent=frozenset(x for x in found.items() if x[1] != 0))


def _where_absent(value: Value, variable: Any, mask: Batch) -> np.ndarray | None:
    """The one number that a value holds where the mask excludes the record; None if unknown."""
    kind = np.dtype(aval(variable).dtype)
    if isinstance(value, Private):
        number = 0 if mask in value.zero else next((x for m, x in value.absent if m is mask), None)
        return None if number is None or value.axes is None else np.full(1, number, kind)
    if not isinstance(value, Public) or value.const is None or not value.exact or not value.const.size:
        return None
    return value.const.astype(kind).reshape(-1)[:1] if len(value.uniform) == value.const.ndim else None


_LEAST = 1e-9
"""Numbers of a schedule lie between this and its inverse."""


class Checker:
    """The state of one proof."""

    def __init__(self, relation: Relation, table: Batch | None = None) -> None:
        self.relation = relation  # the neighbouring relation
        self.table = table or Table()  # the records
        self.keys = KeyRing()
        self.items: list[Any] = []  # releases and draws in the innermost loop or branch, in order
        self.notes: list[str] = []  # reasons why a sensitivity is larger than it could be
        self.unrounded: list[str] = []  # the lines that release sums whose rounding is not accounted for
        # The mechanisms used, and the assumed upper limit of open noise multipliers.
        self.mechanisms: dict[Mechanism, None] = {}
        self.most_multiplier, self.beyond = math.inf, False  # whether a known one exceeds its limit
        self.rows: dict[tuple[Batch, Sequence[int]], Batch] = {}  # parts of the table, by their row numbers
        # Rows of the table, and the names of row numbers and mask.
        self.samples: dict[Batch, tuple[int, ...]] = {}
        self.symbols = Symbols()  # the public numbers that are open parameters
        # Whether records carry state from sample to sample; and whether one record's membership of a sample affects
        # others'. The two must not occur together.
        self.remembers = self.draws_dependently = False
        self._schedules: dict[int, Turns] = {}
        # Rows that a loop takes by number, keyed by their definition, and the equations that only take them; the loops
        # whose iterations differ by more than their records.
        self.windows: dict[tuple[Any, ...], Part] = {}
        self.cuts: dict[
            int, tuple[bool, JaxprEqn]
        ] = {}  # by identity; the equation is kept, so that no other one has it
        self.placed: set[Any] = set()

    def schedule(self, scale: Scale | None, turns: Turns | None) -> None:
        """Keep a number's values in each iteration, if it is a single symbol, never zero, and of a size usual for noise."""
        if scale is None or scale.factor != 1.0 or [power for _, power in scale.powers] != [1.0]:
            return
        if turns is not None and all(_LEAST <= abs(x) <= 1 / _LEAST for x in turns.values):
            self._schedules[scale.powers[0][0]] = turns

    def may_be_lost(self, product: Scale, *factors: Scale) -> bool:
        """True if a product of numbers, some unknown at trace time, may differ from its formula.

        The size of noise lies between 1e-20 and 1e20 (`_is_far`). Numbers of a schedule are never far from 1, so one of them
        may be a factor as well.
        """
        powers = [{s: power for s, power in x.powers if not is_open(s)} for x in (product, *factors)]
        scheduled = {s for x in powers for s in x if s in self._schedules}
        holders = [x.keys() - scheduled for x in powers]
        several = len(set().union(*holders)) > 1 or sum(map(bool, holders[1:])) > 1 or len(scheduled) > 1
        far = any(abs(x[s]) > 2 for x in powers for s in scheduled & x.keys()) or _is_far(product)
        return any(powers) and (several or far)

    def turn_by_turn(self, scales: Sequence[Scale]) -> tuple[Any, list[dict[int, float]]] | None:
        """The enclosing loop whose iterations change these numbers, and their values in each; None if unknown."""
        found = {s: self._schedules[s] for x in scales for s, _ in x.powers if s in self._schedules}
        loops = {x.loop for x in found.values()}
        if len(loops) != 1 or not loops <= set(self.keys.loops):
            return None
        # A power magnifies the number's own rounding error.
        errors = [sum(abs(power) * found[s].error for s, power in x.powers if s in found) for x in scales]
        if max(errors) > _MOST_ERROR:
            return None
        rows = zip(*(x.values for x in found.values()), strict=True)
        return loops.pop(), [dict(zip(found, map(abs, row), strict=True)) for row in rows]

    def walk(self, jaxpr: Jaxpr, consts: Sequence[Value], inputs: Sequence[Value]) -> list[Value]:
        """The abstract outputs of a jaxpr."""
        known: dict[Var, Value] = dict(zip(jaxpr.constvars, consts, strict=True))
        known.update(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> Value:
            return constant(atom.val) if isinstance(atom, Literal) else known[atom]

        for equation in jaxpr.eqns:
            outputs = self.step(equation, [read(x) for x in equation.invars])
            known.update(zip(equation.outvars, outputs, strict=True))
        return [read(x) for x in jaxpr.outvars]

    def step(self, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
        """The abstract results of one equation."""
        primitive = equation.primitive
        private = any(isinstance(x, Private) for x in operands)
        keyed = any(isinstance(x, Key) for x in operands)
        if primitive in INLINED or (primitive in STRUCTURED and (private or keyed)):
            rule = INLINED.get(primitive) or STRUCTURED[primitive]
        elif primitive in KEY_RULES:
            # Even without a key among its operands: folding a record in makes a private key.
            rule = KEY_RULES[primitive]
        elif keyed:
            rule = _unknown_key_use
        elif not private:
            rule = public_result
        else:
            rule = RULES.get(primitive, unknown)
        with inside(equation):
            found = rule(self, equation, operands)
        outputs = found if isinstance(found, list) else [found] * len(equation.outvars)
        pairs = zip(outputs, equation.outvars, strict=True)
        outputs = [self._held(x, v, equation, operands) for x, v in pairs]
        if primitive is p.dynamic_slice_p:
            before = operands[0].batch if isinstance(operands[0], Private) else None
            now = outputs[0].batch if isinstance(outputs[0], Private) else None
            cut = now is not before and now in self.windows.values()
            self.cuts[id(equation)] = (self.only_cuts(equation, default=True) and cut, equation)
        return outputs

    def only_cuts(self, equation: JaxprEqn, *, default: bool = False) -> bool:
        """True if an equation takes rows of the table by number at each visit so far; `default` before the first."""
        return self.cuts.get(id(equation), (default, equation))[0]

    def _held(self, value: Value, variable: Any, equation: JaxprEqn, operands: Sequence[Value]) -> Value:
        """A result as the machine holds it: but for `absent`, claims of its rule are only weakened."""
        if isinstance(value, Public) and is_key(aval(variable)):
            return self.keys.new(tuple(aval(variable).shape), KNOWN, "it was made in the program")
        if not isinstance(value, Private):
            return value
        value = _in_order(_in_precision(value, variable, equation), equation, operands)
        value = _with_absent(_where_lost(value, operands, equation), variable, equation, operands)
        if equation.primitive in (*_MARKED, *INLINED):
            return value
        rounding = None if equation.primitive in STRUCTURED else rounding_of(equation, variable, operands)
        return value if value.rounding == rounding else dataclasses.replace(value, rounding=rounding)

    def origin(self, equation: JaxprEqn, operands: Sequence[Value], what: str = "") -> Origin:
        """The place of an equation, with the operand furthest from a proof as parent."""
        private = [x for x in operands if isinstance(x, Private)]
        private.sort(
            key=lambda x: (x.axes is not None, x.terms is not None or x.linf is not None, x.origin.mask, x.finite)
        )
        parent = private[0].origin if private else None
        mask = parent is not None and parent.mask
        return Origin(source_line(equation), what or equation.primitive.name, parent, mask)

    def unbounded(self, equation: JaxprEqn, operands: Sequence[Value], why: Reason) -> Private:
        """A value without claims; the reason is the earliest on its path."""
        private = [x for x in operands if isinstance(x, Private)]
        earlier = next((x.why for x in private if x.axes is None and x.terms is None and x.why), None)
        batch = common_batch(private)
        if batch is None and earlier is None:
            earlier = Why.TURNS("values of different samples, or of different iterations of a loop, are mixed")
        if earlier is not None and earlier.kind in (Why.CLIP, Why.NAN) and any(x.axes is not None for x in private):
            # Clipping would bound a sum; rows that meet it are wrong in any case.
            earlier = None
            why = MEETS_ALL
        return Private(batch, None, self.origin(equation, operands), why=earlier or why.at(source_line(equation)))


def _where_lost(value: Private, operands: Sequence[Value], equation: JaxprEqn) -> Private:
    """Add the reason to rows that have just lost their bound."""
    if value.axes is None or value.why or value.terms is not None or value.linf is not None:
        return value
    rows = [x for x in operands if isinstance(x, Private) and x.axes is not None]
    why = next((x.why for x in rows if x.why), None)
    if any(x.terms is not None for x in rows):
        lost = "a record's contribution has no bound: its values were clipped, but then passed to"
        why = Why.CLIP(f"{lost} {equation.primitive.name}").at(source_line(equation))
    return dataclasses.replace(value, why=why) if why else value


def _in_order(value: Private, equation: JaxprEqn, operands: Sequence[Value]) -> Private:
    """Clear `additive` if the carried sum went through more than additions.

    If the carry is negated or reversed each iteration (`row - total`, `total[::-1] + row`), terms get different weights; in a
    random sample one record decides in which iterations the others are.
    """
    if not value.additive or equation.primitive in (*INLINED, *STRUCTURED, *_AS_IT_IS):
        return value
    looked_at = operands[1:] if equation.primitive is p.sub_p else operands
    turned = any(t.group.carried for x in looked_at if isinstance(x, Private) for t in x.terms or ())
    return value.but(additive=False) if turned else value


def _in_precision(value: Private, variable: Any, equation: JaxprEqn) -> Private:
    """Drop bounds that the type does not keep."""
    far = any(_is_far(t.bound) for t in value.terms or ())
    if far or (value.linf is not None and value.linf > LARGEST):
        # Scaling numbers so large or small back does not restore them.
        why = Why.PRECISION("intermediate numbers are too large or too small for float32")
        value = dataclasses.replace(value, terms=None, linf=None, finite=False, norm_of=None, why=value.why or why)
    dtype = dtype_of(variable)
    if dtype in _ORDINARY or dtype.startswith("key<"):
        return value
    # Rounding is relative to the sum, not to one record: sums that differ by the bound may round to others further apart.
    if value.axes is None and value.terms is not None:
        return value.but(terms=None, linf=None, finite=False, why=held_as(dtype))
    summed = equation.primitive in (p.reduce_sum_p, p.dot_general_p)  # each addition rounds the partial sum
    if value.axes is not None and dtype == "bfloat16" and not summed:
        terms = None if value.terms is None else scaled(value.terms, _COARSE)
        linf = None if value.linf is None else value.linf * _COARSE
        return dataclasses.replace(value, terms=terms, linf=linf)
    # The others may overflow, wrap around, round more coarsely or be complex.
    return value.but(terms=None, linf=None, finite=False)


def _is_far(bound: Scale) -> bool:
    """True if a factor may leave float32's range.

    Noise f C of a traced size below 1e-20 or above 1e20 is NaN. With f from 1e-9 to 1e7 the number C that is unknown while
    tracing is therefore between 1e-27 and 1e29, and its other multiples by such factors are normal float32 numbers: between
    1e-36 and 1e36.
    """
    least, most = (1e-9, 1e7) if bound.powers else (SMALLEST, LARGEST)
    return bound.factor != 0 and not least <= bound.factor <= most


def common_batch(values: Sequence[Private]) -> Batch | None:
    """The common batch of all values, which parts of one batch share; None if there are several."""
    batches = {x.batch for x in values}
    if len(batches) == 1:
        return batches.pop()
    wholes = {x.batch.whole if x.batch is not None else None for x in values}
    return wholes.pop() if len(wholes) == 1 else None


def unknown(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Value:
    """The result of a primitive without a rule: no claims."""
    return checker.unbounded(equation, operands, Why.UNKNOWN(f"there is no rule for {equation.primitive.name}"))


def _unknown_key_use(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """Keys passed to any other primitive are used up, and its results are not secret keys."""
    line = source_line(equation)
    for operand in operands:
        if isinstance(operand, Key):
            checker.keys.spend(operand, equation.primitive.name, line)
    private = any(isinstance(x, Private) for x in operands)
    private |= any(isinstance(x, Key) and checker.keys.kind(x)[0] == PRIVATE for x in operands)
    outputs: list[Value] = []
    for variable in equation.outvars:
        kind = aval(variable)
        if is_key(kind):
            why = f"it came out of {equation.primitive.name} at {line}, which may return any key"
            why = f"it depends on records, by {equation.primitive.name} at {line}" if private else why
            outputs.append(checker.keys.new(kind.shape, PRIVATE if private else KNOWN, why))
        elif private:
            outputs.append(unknown(checker, equation, operands))
        else:
            outputs.append(Public())
    return outputs


def refuse_opaque(jaxpr: Jaxpr, known: Set[Primitive] | None = None, *, on_devices: bool = False) -> None:
    """Refuse a program that has side effects (callback, print, I/O), or calls whose content cannot be inspected.

    Such a call may contain records. `known`: All primitives that are JAX's or have a rule; None: they are looked up.
    `on_devices`: Within `shard_map`, whose rule covers communication between devices.
    """
    known = jax_primitives() | RULES.keys() | KEY_RULES.keys() if known is None else known
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if is_over_devices(equation) and not on_devices:
            raise Why.DEVICES.refusal(
                f"{name} at {source_line(equation)} combines values of several devices outside of shard_map, and no rule "
                "bounds the influence of one record on them.",
                source_line(equation),
            )
        outside = ("callback", "debug_print", "ffi_call", "infeed", "outfeed")
        if (equation.effects and not is_over_devices(equation)) or any(word in name for word in outside):
            raise Why.CALLBACK.refusal(
                f"the operation {name} at {source_line(equation)} has side effects (callback, print, I/O) while the program "
                "runs: no proof covers them.",
                source_line(equation),
            )
        exported = any(isinstance(x, jax.export.Exported) for x in equation.params.values())
        if equation.primitive not in known or exported or is_closed_book(equation):
            what = "an exported program" if exported else "not a primitive of JAX"
            raise Why.BOOK.refusal(
                f"{name} at {source_line(equation)} is {what}: its computation and constants cannot be inspected.",
                source_line(equation),
            )
        with inside(equation):
            for inner in inner_programs(equation):
                sharded = on_devices or equation.primitive is shard_map_p
                refuse_opaque(inner.jaxpr, known, on_devices=sharded)


_name_of = functools.lru_cache(maxsize=64)(str)
"""The name of a dtype: NumPy makes it anew each time, and a proof asks for each operand's."""


def dtype_of(atom: Any) -> str:
    """The name of the dtype of a variable or literal."""
    return _name_of(aval(atom).dtype)


def shape_of(atom: Any) -> tuple[int, ...]:
    """The shape of a variable or literal."""
    return tuple(aval(atom).shape)


def size_per_record(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> int:
    """The number of elements of one record's slice; of the whole array without record axes."""
    return math.prod(n for i, n in enumerate(shape) if i not in (axes or ()))


def aligned(checker: Checker, equation: JaxprEqn, operands: Sequence[Value]) -> Private | None:
    """The rows of an elementwise result, without other claims; None if records meet other records."""
    shape = shape_of(equation.outvars[0])
    private = [(x, shape_of(v)) for x, v in zip(operands, equation.invars, strict=True) if isinstance(x, Private)]
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


def is_positional(equation: JaxprEqn, operands: Sequence[Value], axes: tuple[int, ...]) -> bool:
    """True if result rows depend on their place: an operand's rows did, or a public operand varies between rows."""
    pairs = zip(operands, equation.invars, strict=True)
    return any(
        x.positional if isinstance(x, Private) else isinstance(x, Public) and varies_along(x, shape_of(v), axes)
        for x, v in pairs
    )


def varies_along(value: Public, shape: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    """True if a public value may differ between records."""
    return any(i < len(shape) and shape[i] > 1 and i not in value.uniform for i in axes)


def expansion(own: tuple[int, ...], out: tuple[int, ...]) -> float:
    """The factor on the L2 norm if each element is repeated."""
    return math.sqrt(np.prod(out, dtype=np.float64) / max(1.0, np.prod(own, dtype=np.float64)))


def bound_of(value: Private, equation: JaxprEqn, position: int) -> tuple[Term, ...] | None:
    """The bound of an operand in the shape of the result."""
    own = shape_of(equation.invars[position])
    out = shape_of(equation.outvars[0])
    # NaN is checked separately, before any sum.
    rows = value.axes is not None
    terms = row_terms(value.but(finite=True), size_per_record(own, value.axes)) if rows else value.terms
    return None if terms is None else scaled(terms, expansion(own, out))


def is_whole(variable: Any) -> bool:
    """True if a variable holds Booleans or integers: none is NaN, and sums may wrap around."""
    return np.dtype(aval(variable).dtype).kind in "biu"


def is_integer(equation: JaxprEqn) -> bool:
    """True if the result wraps around instead of rounding."""
    return np.dtype(aval(equation.outvars[0]).dtype).kind in "iu"


def all_finite(operands: Sequence[Value]) -> bool:
    """True if no operand holds NaN or infinity."""

    def finite(value: Value) -> bool:
        if isinstance(value, Private):
            return value.finite
        return isinstance(value, Public) and value.magnitude is not None and math.isfinite(value.magnitude)

    return all(map(finite, operands))


def zero_under(value: Value) -> frozenset[Batch] | None:
    """The masks under which a value is zero; None if it is zero under all."""
    if isinstance(value, Private):
        return value.zero
    return None if isinstance(value, Public) and value.is_zero else frozenset()


def both_zero(values: Sequence[Value]) -> frozenset[Batch]:
    """Masks under which all are zero."""
    known = [z for z in map(zero_under, values) if z is not None]
    return frozenset.intersection(*known) if known else frozenset()


_LARGEST = 1e38


def as_sum(checker: Checker, value: Private, shape: tuple[int, ...]) -> Private:
    """Convert a value to a sum, whose terms bound one record's contribution; no terms but a reason if there is no bound.

    An array of rows changes in one row only. That holds for the table; in a random sample the rows after a record that is
    not drawn move up, so there only a single record's term of a sum has a bound.
    """
    if value.axes is None:
        return value if value.terms is not None or value.batch is None else _limited(checker, value, shape)
    assert value.batch is not None
    # In a Poisson sample a record that is not drawn leaves no gap: all later rows differ between the two runs.
    if value.batch.sampled and not (value.axes == () and isinstance(value.batch, Part)):
        why = Why.POSITION("a random sample is used row by row: the row of a record depends on the others")
        return _without(value, why)
    return summed(checker, value, shape, additive=value.axes == ())


def summed(checker: Checker, value: Private, shape: tuple[int, ...], *, additive: bool) -> Private:
    """The bound on one record's contribution to a sum of rows."""
    batch = value.batch
    assert batch is not None
    # The record that differs changes the sum by its own row, which is within the bound on rows.
    terms = row_terms(value, size_per_record(shape, value.axes))
    if terms is None:
        why = Why.CLIP("a record's contribution has no bound: rows are summed without clipping")
        if value.terms is not None or value.linf is not None:
            why = Why.NAN("rows are summed that may hold NaN or infinity, which makes the record visible in the sum")
        return _without(value, why)
    factor, why = contribution_factor(value, checker.relation)
    if factor == 0.0:
        return _without(value, why or Why.CLIP("a record's contribution has no bound"))
    # Each partial sum must be finite, even if all rows have the norm of the bound.
    count = math.prod(shape[i] for i in value.axes or ())
    if any(t.bound.factor * factor * count > _LARGEST for t in terms):
        return _without(value, Why.PRECISION("rows are so long that their sum may not be finite"))
    if factor > 1.0:
        padded = batch.table.masked or batch.whole is not batch.table
        reason = "rows without a record are not exactly zero" if padded else "there is no mask"
        checker.notes.append(f"the sum's sensitivity is 2C, since {reason} ({value.origin.line or value.origin.what})")
        # Leaves that jointly move by 2C share no bound with leaves that move by C.
        terms = tuple(Term(group_of("twice", t.group), t.leaves, t.bound * factor, t.source) for t in terms)
    return value.but(axes=None, terms=terms, additive=additive, zero=frozenset(), linf=None, finite=True)


def _limited(checker: Checker, value: Private, shape: tuple[int, ...]) -> Private:
    """The bound of a value that depends on all records but has limited size: it stays in a ball."""
    batch = value.batch
    assert isinstance(batch, Batch)
    terms = row_terms(value, size_per_record(shape, None))
    factor = range_factor(batch, checker.relation)
    if terms is None or factor == 0.0 or isinstance(batch, Cut):
        return value
    return value.but(terms=scaled(terms, factor), linf=None, additive=False, finite=True)


def _without(value: Private, why: Reason) -> Private:
    return value.but(axes=None, terms=None, linf=None, finite=False, why=value.why or why)
