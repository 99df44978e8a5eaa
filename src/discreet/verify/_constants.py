"""Public values: what is known of them while tracing."""

from __future__ import annotations

from typing import Any

import numpy as np

from discreet._jax import JaxprEqn, aval, sharding_constraint_p
from discreet._jax import primitives as p
from discreet.verify._domain import LARGEST, SMALLEST, Public, Scale, Value, constant, new_symbol

_SMALL = 4096

IDENTITY = (p.copy_p, p.stop_gradient_p, p.name_p, sharding_constraint_p)
"""Primitives whose output is their operand: each rule that keeps something of a value keeps it through all of these."""


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
    """The outputs of an equation on public values: public, and known as far as a rule here says."""
    del checker
    values = [x for x in operands if isinstance(x, Public)]
    assert len(values) == len(operands)
    if len(equation.outvars) != 1:
        released = any(x.released for x in values)
        return [Public(scale=_anew(aval(x).shape), released=released) for x in equation.outvars]
    kind = aval(equation.outvars[0])
    const = _evaluate(equation, values, kind)
    if const is not None:
        return [constant(const, exact=_exact(equation, values, kind))]
    uniform = _uniform(equation, values, kind)
    scale = _scale(equation, values) if len(uniform) == len(kind.shape) else None
    if scale is not None and scale.factor != 0 and not SMALLEST <= scale.factor <= LARGEST:
        scale = None
    scale = scale or _anew(kind.shape, uniform)
    released = any(x.released for x in values)
    return [Public(uniform=uniform, scale=scale, counter=_counter(equation, values), released=released)]


def _anew(shape: tuple[int, ...], uniform: frozenset[int] = frozenset()) -> Scale | None:
    """The size of one number that has no name yet."""
    return Scale(1.0, ((new_symbol(), 1.0),)) if len(uniform) == len(shape) else None


def _evaluate(equation: JaxprEqn, values: list[Public], kind: Any) -> np.ndarray | None:
    primitive, params = equation.primitive, equation.params
    if np.prod(kind.shape, dtype=np.int64) > _SMALL or np.dtype(kind.dtype).kind not in "biuf":
        return None
    if primitive is p.iota_p:
        shape, axis = params["shape"], params["dimension"]
        line = np.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
        return np.broadcast_to(line, shape).astype(kind.dtype)
    folded = _from_counter(equation, values)
    if folded is not None:
        return folded
    consts = [x.const for x in values]
    if primitive is p.select_n_p and consts[0] is not None and consts[0].ndim == 0:
        return consts[1 + int(consts[0])]
    known = [x for x in consts if x is not None]
    if len(known) < len(consts) or not known or not _decided(primitive, known, kind):
        return None
    with np.errstate(all="ignore"):
        found = _calculate(primitive, params, known, kind)
        lost = found is not None and _lost(equation, known, found, exact=all(x.exact for x in values))
    return None if found is None or lost or _too_small(found) else found


_EXACT = (*_MOVES, *_LOGICAL, p.select_n_p, p.neg_p, p.abs_p, p.max_p, p.min_p, *IDENTITY, p.convert_element_type_p)


def _exact(equation: JaxprEqn, values: list[Public], kind: Any) -> bool:
    """Whether nothing was rounded, in NumPy or in XLA."""
    if np.dtype(kind.dtype).kind in "biu" or equation.primitive is p.iota_p:
        return True
    sizes = [np.dtype(aval(x).dtype).itemsize for x in equation.invars]
    return equation.primitive in _EXACT and all(x.exact for x in values) and np.dtype(kind.dtype).itemsize >= max(sizes)


def _lost(equation: JaxprEqn, consts: list[np.ndarray], found: np.ndarray, *, exact: bool) -> bool:
    """Whether what XLA finds may be another number altogether, since it rounds, or takes its products, in another order."""
    primitive = equation.primitive
    if found.dtype.kind != "f" or primitive in _MOVES:
        return False
    sizes = [np.abs(x.astype(np.float64)) for x in consts]
    if found.dtype.itemsize < 4 or (not np.all(np.isfinite(found)) and all(np.all(np.isfinite(x)) for x in sizes)):
        return True
    if primitive in (p.add_p, p.add_jaxvals_p, p.sub_p):
        return not exact and bool(np.any(np.abs(found.astype(np.float64)) < np.maximum(*sizes)))
    if primitive is p.log_p:
        return not exact and bool(np.any(np.abs(found) < _LOGARITHM))
    if primitive is p.integer_pow_p and abs(equation.params["y"]) > _MOST_FACTORS:
        return True
    # What becomes zero without having been: in another order of the products it need not.
    vanishes = np.asarray(found == 0)
    for size in sizes if primitive in _PRODUCTS else ():
        vanishes = vanishes & (size > 0)
    return primitive in (*_PRODUCTS, p.exp_p) and bool(np.any(vanishes))


_PRODUCTS = (p.mul_p, p.div_p, p.square_p, p.sqrt_p, p.rsqrt_p, p.integer_pow_p, p.convert_element_type_p)
_LOGARITHM, _MOST_FACTORS = 0.5, 64
"""Closer to zero a logarithm says nothing of a number that was rounded; of more factors the roundings add up."""


_COMPARISONS = (p.lt_p, p.le_p, p.gt_p, p.ge_p, p.eq_p, p.ne_p)
_CLOSE = 1e-4


def _decided(primitive: Any, consts: list[np.ndarray], kind: Any) -> bool:
    """Whether XLA, which rounds otherwise than NumPy and divides whole numbers otherwise, must come to the same result."""
    if any(map(_too_small, consts)):
        return False
    first = consts[0].astype(np.float64)
    if primitive is p.div_p:
        return consts[0].dtype.kind == "f"
    if primitive in _COMPARISONS and any(x.dtype.kind == "f" for x in consts):
        second = consts[1].astype(np.float64)
        larger = np.maximum(np.abs(first), np.abs(second))
        apart = np.abs(first - second) > _CLOSE * larger
        return bool(np.all(np.isfinite(larger) & (apart | (larger == 0))))
    if primitive is p.convert_element_type_p and consts[0].dtype.kind == "f" and np.dtype(kind.dtype).kind in "biu":
        # A float that was computed may lie on the other side of a whole number; one too large is cut off.
        return bool(np.all(first == 0))
    return True


def _too_small(value: np.ndarray) -> bool:
    """Numbers that XLA may take for zero."""
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
    if (primitive in (p.reshape_p, p.squeeze_p) and params.get("dimensions", None) is None) or primitive is p.squeeze_p:
        return np.asarray(consts[0]).reshape(kind.shape)
    return None


def _from_counter(equation: JaxprEqn, values: list[Public]) -> np.ndarray | None:
    """Comparisons that a counter's range decides: JAX asks whether an index is negative."""
    if equation.primitive is p.lt_p and values[0].counter is not None and values[1].const is not None:
        _, low, high = values[0].counter
        bound = values[1].const
        if bound.ndim == 0 and (high < bound or low >= bound):
            return np.asarray(bool(high < bound))
    return None


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
                (loop, low, high), step = one.counter, int(other.const)
                limits = np.iinfo(aval(equation.outvars[0]).dtype)
                inside = limits.min <= low + step and high + step <= limits.max
                return (loop, low + step, high + step) if inside else None
    if primitive is p.select_n_p and values[0].const is not None and values[0].const.ndim == 0:
        return values[1 + int(values[0].const)].counter
    return None


def _uniform(equation: JaxprEqn, values: list[Public], kind: Any) -> frozenset[int]:
    """Axes along which the output does not change."""
    primitive, params, rank = equation.primitive, equation.params, len(kind.shape)
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


def _scale(equation: JaxprEqn, values: list[Public]) -> Scale | None:
    """A single number as a product of other numbers; whole numbers may wrap around and coarse ones round."""
    dtype = np.dtype(aval(equation.outvars[0]).dtype)
    if dtype.kind != "f" or dtype.itemsize < 4:
        return None
    scales = [x.scale for x in values]
    known = [s for s in scales if s is not None]
    if len(known) < len(scales) or not known:
        return None
    primitive = equation.primitive
    if primitive is p.mul_p:
        return known[0] * known[1]
    if primitive is p.div_p:
        return known[0] * known[1].to(-1.0)
    if primitive is p.sqrt_p:
        return known[0].to(0.5)
    if primitive is p.square_p:
        return known[0] * known[0]
    if primitive is p.convert_element_type_p:
        floats = all(np.dtype(aval(x).dtype).kind == "f" for x in (*equation.invars, *equation.outvars))
        return known[0] if floats else None
    if primitive in (*IDENTITY, p.neg_p, p.broadcast_in_dim_p, p.reshape_p, p.squeeze_p, p.transpose_p, p.abs_p):
        return known[0]
    return None
