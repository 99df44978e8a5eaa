"""Public numbers as XLA computes them: their values at trace time, and how far off they may be.

Proofs need numbers: the ratio of noise to a bound, the rows a slice takes, the sign of a
comparison. `computed` evaluates one primitive with NumPy on known operands. It returns nothing
where XLA might return something else: after cancellation, near overflow and underflow, for a
comparison of two rounded numbers that are close, for integer division.

The invariant: a known value differs from the one that the machine computes by at most `error`
roundings of 2^-23, relative to its size, and by nothing where it is `exact`. `error_of` adds up
the errors of the operands; beyond `MOST_ERROR` a value counts as unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from discreet._jax import (
    JaxprEqn,
    dtype_of,
    primitives as p,
    pvary_p,
    reshard_p,
    sharding_constraint_p,
)
from discreet.privacy.verify._domain import Public

SMALL = 4096
MOST_EXACT = 2**24
"""Below, float32 holds all integers."""

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
ELEMENTWISE_SHAPES = (
    *_NUMPY,
    p.select_n_p,
    p.convert_element_type_p,
    p.integer_pow_p,
    p.pow_p,
    p.tanh_p,
    p.clamp_p,
)
MOVES = (p.broadcast_in_dim_p, p.reshape_p, p.squeeze_p, p.transpose_p)


MOST_ERROR = 84.0
"""In roundings of 2^-23: a relative error of 1e-5. Less accurate values count as unknown."""


def error_of(
    equation: JaxprEqn, operands: Sequence[np.ndarray | None], errors: Sequence[float], dtype: Any
) -> float:
    """The relative error of a result's known value, in roundings of 2^-23, from the errors of its operands.

    Powers and exponentials magnify them, and so do products of a number with itself; `_lost` sees
    to cancellation.
    """
    primitive = equation.primitive
    most = max(errors, default=0.0)
    if np.dtype(dtype).kind != "f" or not errors:
        return 0.0
    if primitive in _EXACT or primitive is p.dynamic_slice_p:
        narrower = dtype_of(equation.invars[0]).itemsize > np.dtype(dtype).itemsize
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


_COMPARISONS = (p.lt_p, p.le_p, p.gt_p, p.ge_p, p.eq_p, p.ne_p)
_CLOSE = 1e-4


def computed(
    equation: JaxprEqn, known: list[np.ndarray], kind: Any, *, exact: bool
) -> np.ndarray | None:
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
    elif (
        primitive is p.convert_element_type_p
        and known[0].dtype.kind == "f"
        and np.dtype(kind.dtype).kind in "biu"
    ):
        # A computed float may lie on the other side of an integer; one too large saturates.
        decided = decided and bool(np.all(first == 0))
    if not decided:
        return None
    with np.errstate(all="ignore"):
        found = _calculate(primitive, equation.params, known, kind)
        lost = found is None or _lost(equation, known, found, exact=exact)
    return None if found is None or lost or _too_small(found) else found


_EXACT = (
    *MOVES,
    *_LOGICAL,
    p.select_n_p,
    p.neg_p,
    p.abs_p,
    p.max_p,
    p.min_p,
    *IDENTITY,
    p.convert_element_type_p,
)


def is_exact(equation: JaxprEqn, values: list[Public], kind: Any) -> bool:
    """True if nothing was rounded, in NumPy or in XLA."""
    if np.dtype(kind.dtype).kind in "biu" or equation.primitive is p.iota_p:
        return True
    sizes = [dtype_of(x).itemsize for x in equation.invars]
    return (
        equation.primitive in _EXACT
        and all(x.exact for x in values)
        and np.dtype(kind.dtype).itemsize >= max(sizes)
    )


def _lost(equation: JaxprEqn, consts: list[np.ndarray], found: np.ndarray, *, exact: bool) -> bool:
    """True if XLA's result may be entirely different, since it rounds, or orders products, differently."""
    primitive = equation.primitive
    if found.dtype.kind != "f" or primitive in MOVES:
        return False
    sizes = [np.abs(x.astype(np.float64)) for x in consts]
    if found.dtype.itemsize < 4 or (
        not np.all(np.isfinite(found)) and all(np.all(np.isfinite(x)) for x in sizes)
    ):
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


_PRODUCTS = (
    p.mul_p,
    p.div_p,
    p.square_p,
    p.sqrt_p,
    p.rsqrt_p,
    p.integer_pow_p,
    p.convert_element_type_p,
)
_LOGARITHM = 0.5
_MOST_FACTORS = 64
"""Logarithms closer to zero are meaningless for rounded numbers; the roundings of more factors add up."""


def _too_small(value: np.ndarray) -> bool:
    """True if XLA may flush one of the numbers to zero."""
    if value.dtype.kind != "f":
        return False
    sizes = np.abs(value.astype(np.float64))
    return bool(np.any((sizes > 0) & (sizes < np.finfo(value.dtype).tiny)))


def _calculate(
    primitive: Any, params: Any, consts: list[np.ndarray], kind: Any
) -> np.ndarray | None:
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
    return (
        np.asarray(consts[0]).reshape(kind.shape)
        if primitive in (p.reshape_p, p.squeeze_p)
        else None
    )
