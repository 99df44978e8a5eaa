"""Keys: splitting and folding make new ones, drawing uses one up, moving them about leaves them what they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from discreet._jax import JaxprEqn, aval, primitive_of, source_line, unstack_p
from discreet._jax import primitives as p
from discreet.verify._constants import IDENTITY, public_result
from discreet.verify._domain import Key, Private, Public, Value
from discreet.verify._interpreter import KEY_RULES, RULES, Checker, unknown
from discreet.verify._keys import KNOWN, PRIVATE, SECRET

_WORDS = 2**32
"""Numbers are folded in modulo this."""


def _split(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Key:
    (key,) = operands
    assert isinstance(key, Key)
    kind, why = checker.keys.kind(key)
    checker.keys.spend(key, "jax.random.split", source_line(equation))
    return checker.keys.new(aval(equation.outvars[0]).shape, kind, why)


def _fold_in(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Key:
    key, data = operands
    line = source_line(equation)
    assert isinstance(key, Key)
    if isinstance(data, Private):
        checker.keys.spend(key, "jax.random.fold_in", line)
        shape = aval(equation.outvars[0]).shape
        return checker.keys.new(shape, PRIVATE, f"it depends on records, by jax.random.fold_in at {line}")
    shape = tuple(aval(equation.outvars[0]).shape)
    if isinstance(data, Public) and shape == key.names.shape:
        number = int(data.const.reshape(-1)[0]) % _WORDS if data.const is not None and data.const.size == 1 else None
        apart = data.counter is not None and 0 <= data.counter[1] <= data.counter[2] < _WORDS
        return checker.keys.fold(key, number, data.counter if apart else None, line)
    kind, why = checker.keys.kind(key)
    checker.keys.spend(key, "jax.random.fold_in", line)
    numbers = data.const if isinstance(data, Public) else None
    if kind == SECRET and (numbers is None or len(np.unique(numbers.astype(np.uint32))) < numbers.size):
        kind, why = KNOWN, f"the numbers folded in at {line} may be equal"
    return checker.keys.new(shape, kind, why)


def _bits(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Value:
    (key,) = operands
    assert isinstance(key, Key)
    checker.keys.spend(key, equation.primitive.name, source_line(equation))
    if checker.keys.kind(key)[0] == PRIVATE:
        return checker.unbounded(equation, operands, "[key] random numbers from a key that depends on records")
    return Public()


def _gamma(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Value:
    """Draws from gamma distributions, each with a shape of its own and its own part of the key."""
    key, shape = operands
    found = _bits(checker, equation, [key])
    if isinstance(found, Private) or not isinstance(shape, Private):
        return found
    if shape.axes is None:
        return checker.unbounded(equation, operands, "[rows] random numbers whose law depends on all records")
    return Private(shape.batch, shape.axes, checker.origin(equation, operands), positional=True)


def _wrap(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Key:
    line = source_line(equation)
    kind, why = KNOWN, f"it is made from numbers at {line}"
    if any(isinstance(x, Private) for x in operands):
        kind, why = PRIVATE, f"it depends on records, by {equation.primitive.name} at {line}"
    return checker.keys.new(aval(equation.outvars[0]).shape, kind, why)


def _moved(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Value | list[Value]:
    """The names move as the keys do."""
    key = operands[0]
    keys = [x for x in operands if isinstance(x, Key)]
    if not keys:
        private = any(isinstance(x, Private) for x in operands)
        return (
            RULES.get(equation.primitive, unknown)(checker, equation, operands)
            if private
            else public_result(checker, equation, operands)
        )
    params, shape = equation.params, aval(equation.outvars[0]).shape
    primitive = equation.primitive
    if primitive is p.concatenate_p:
        return Key(np.concatenate([k.names for k in keys], axis=params["dimension"]))
    if primitive is _STACK:
        return Key(np.stack([k.names for k in keys], axis=params["axis"]))
    assert isinstance(key, Key)
    names = key.names
    if primitive is unstack_p:
        return [Key(x) for x in np.moveaxis(names, params["axis"], 0)]
    if primitive is p.slice_p:
        strides = params["strides"] or [1] * names.ndim
        window = tuple(
            slice(a, b, c) for a, b, c in zip(params["start_indices"], params["limit_indices"], strides, strict=True)
        )
        return Key(names[window])
    if primitive is p.transpose_p:
        return Key(np.transpose(names, params["permutation"]))
    if primitive is p.broadcast_in_dim_p:
        middle = [1] * len(shape)
        for axis, n in zip(params["broadcast_dimensions"], names.shape, strict=True):
            middle[int(axis)] = n
        return Key(np.broadcast_to(names.reshape(middle), shape))
    if primitive is p.dynamic_slice_p:
        return _picked(checker, equation, operands)
    order = params.get("dimensions") if primitive is p.reshape_p else None
    return Key((names if order is None else np.transpose(names, order)).reshape(shape))


def _picked(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Key:
    """`keys[i]`: a known place, or another one in each turn of the loop around."""
    key, *starts = operands
    assert isinstance(key, Key)
    sizes, line = equation.params["slice_sizes"], source_line(equation)
    known = [int(s.const) if isinstance(s, Public) and s.const is not None else None for s in starts]
    free = [n - w for n, w in zip(key.names.shape, sizes, strict=True)]
    if all(k is not None for k in known):
        places = [min(max(k or 0, 0), most) for k, most in zip(known, free, strict=True)]
        return Key(key.names[tuple(slice(k, k + w) for k, w in zip(places, sizes, strict=True))])
    around = checker.keys.loops
    first = starts[0]
    counter = first.counter if isinstance(first, Public) else None
    distinct = counter is not None and sizes[0] == 1 and counter[1] >= 0 and counter[2] <= free[0]
    rest = all(k is not None for k in known[1:])
    kind, why = checker.keys.kind(key)
    own = checker.keys.depth_of(key)
    if distinct and rest and counter is not None and around[own:] == [counter[0]]:
        # Every turn takes another key: all are used up, once, outside of the loop.
        checker.keys.spend_outside(key, "keys[i]", line, counter[0])
        return checker.keys.new(aval(equation.outvars[0]).shape, kind, why)
    checker.keys.spend(key, "keys[i] with an index that is not known", line)
    if any(isinstance(s, Private) for s in starts):
        kind, why = PRIVATE, f"it depends on records, by keys[i] at {line}"
    return checker.keys.new(aval(equation.outvars[0]).shape, kind, why)


_KEY = jax.eval_shape(lambda: jax.random.key(0))
_UNWRAP = primitive_of(jax.random.key_data, _KEY)
_STACK = primitive_of(lambda x: jnp.stack([x, x]), 1.0)
_WRAP = primitive_of(jax.random.wrap_key_data, jax.ShapeDtypeStruct((2,), np.uint32))

KEY_RULES.update(
    {
        p.random_split_p: _split,
        p.random_fold_in_p: _fold_in,
        p.random_bits_p: _bits,
        p.random_gamma_p: _gamma,
        _UNWRAP: _bits,
        _WRAP: _wrap,
        p.random_seed_p: _wrap,
    }
)
for _primitive in (
    p.slice_p, p.squeeze_p, p.reshape_p, p.transpose_p, p.broadcast_in_dim_p, p.concatenate_p, p.dynamic_slice_p, *IDENTITY,
    _STACK, unstack_p,
):  # fmt: skip
    KEY_RULES[_primitive] = _moved
