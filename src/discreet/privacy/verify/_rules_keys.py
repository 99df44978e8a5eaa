"""Keys: splits, folds, random bits, and moves of arrays of keys.

Noise protects only if it is fresh. So keys have names, which move with the keys, and every use
spends the name (`KeyRing`): a split or a fold gives new names, bits use them up, and a reshape or a
slice carries them along. A key that is made from numbers is known, and one that is made from
records is private; draws from either do not count as noise (`spend_secret`).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from discreet._jax import JaxprEqn, aval, primitive_of, primitives as p, source_line, unstack_p
from discreet.privacy.verify._arithmetic import IDENTITY
from discreet.privacy.verify._domain import Key, Private, Public, Value
from discreet.privacy.verify._errors import NoBoundError, PrivacyError, Why
from discreet.privacy.verify._interpreter import Checker, unknown
from discreet.privacy.verify._keyring import KNOWN, PRIVATE, SECRET
from discreet.privacy.verify._public import public_result
from discreet.privacy.verify._registry import KEY_RULES, RULES, rule
from discreet.privacy.verify._rows import shape_out

_WORDS = 2**32
"""`fold_in` reduces numbers modulo this."""
_KEY = jax.eval_shape(lambda: jax.random.key(0))
_UNWRAP = primitive_of(jax.random.key_data, _KEY)
_WRAP = primitive_of(jax.random.wrap_key_data, jax.ShapeDtypeStruct((2,), np.uint32))
_STACK = primitive_of(lambda x: jnp.stack([x, x]), 1.0)


@rule(p.random_split_p, table=KEY_RULES)
def _split(checker: Checker, equation: JaxprEqn, operands: list[Key]) -> Key:
    (key,) = operands
    checker.keys.spend(key, "jax.random.split", source_line(equation))
    return checker.keys.new(shape_out(equation), *checker.keys.kind(key))


@rule(p.random_fold_in_p, table=KEY_RULES)
def _fold_in(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Key:
    key, data = operands
    line = source_line(equation)
    shape = shape_out(equation)
    assert isinstance(key, Key)
    if isinstance(data, Private):
        checker.keys.spend(key, "jax.random.fold_in", line)
        return checker.keys.new(
            shape, PRIVATE, f"it depends on records, by jax.random.fold_in at {line}"
        )
    if isinstance(data, Public) and shape == key.names.shape:
        number = (
            int(data.const.reshape(-1)[0]) % _WORDS
            if data.const is not None and data.const.size == 1
            else None
        )
        apart = data.counter is not None and 0 <= data.counter[1] <= data.counter[2] < _WORDS
        return checker.keys.fold(key, number, data.counter if apart else None, line)
    kind, why = checker.keys.kind(key)
    checker.keys.spend(key, "jax.random.fold_in", line)
    numbers = data.const if isinstance(data, Public) else None
    if kind == SECRET and (
        numbers is None or len(np.unique(numbers.astype(np.uint32))) < numbers.size
    ):
        kind = KNOWN
        why = f"the numbers folded in at {line} may be equal"
    return checker.keys.new(shape, kind, why)


@rule(p.random_bits_p, _UNWRAP, table=KEY_RULES)
def _bits(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Value:
    (key,) = operands
    assert isinstance(key, Key)
    checker.keys.spend(key, equation.primitive.name, source_line(equation))
    if checker.keys.kind(key)[0] == PRIVATE:
        raise NoBoundError(Why.KEY("random numbers from a key that depends on records"))
    return Public()


@rule(p.random_gamma_p, table=KEY_RULES)
def _gamma(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Value:
    """The rule of draws from gamma distributions, each with its own shape parameter and part of the key."""
    key, shape = operands
    found = _bits(checker, equation, [key])
    if not isinstance(shape, Private):
        return found
    if shape.axes is None:
        raise NoBoundError(Why.ROWS("random numbers whose distribution depends on all records"))
    return Private(shape.batch, shape.axes, checker.origin(equation, operands), positional=True)


@rule(_WRAP, p.random_seed_p, table=KEY_RULES)
def _wrap(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Key:
    line = source_line(equation)
    kind = KNOWN
    why = f"it is made from numbers at {line}"
    if any(isinstance(x, Private) for x in operands):
        kind = PRIVATE
        why = f"it depends on records, by {equation.primitive.name} at {line}"
    return checker.keys.new(aval(equation.outvars[0]).shape, kind, why)


@rule(
    p.slice_p, p.squeeze_p, p.reshape_p, p.transpose_p, p.broadcast_in_dim_p, p.concatenate_p, p.dynamic_slice_p, *IDENTITY,
    _STACK, unstack_p, table=KEY_RULES,
)  # fmt: skip
def _moved(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Value | list[Value]:
    """Move the names with the keys."""
    key = operands[0]
    keys = [x for x in operands if isinstance(x, Key)]
    if not keys:
        private = any(isinstance(x, Private) for x in operands)
        found = RULES.get(equation.primitive, unknown) if private else public_result
        return found(checker, equation, operands)
    params = equation.params
    shape = aval(equation.outvars[0]).shape
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
            slice(a, b, c)
            for a, b, c in zip(
                params["start_indices"], params["limit_indices"], strides, strict=True
            )
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
    """The rule of `keys[i]`, for a known place or one that differs in each iteration of the enclosing loop."""
    key, *starts = operands
    assert isinstance(key, Key)
    sizes = equation.params["slice_sizes"]
    line = source_line(equation)
    known = [
        int(s.const) if isinstance(s, Public) and s.const is not None else None for s in starts
    ]
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
        # Every iteration takes another key: all are used up, once, outside of the loop.
        checker.keys.spend_outside(key, "keys[i]", line, counter[0])
        return checker.keys.new(aval(equation.outvars[0]).shape, kind, why)
    checker.keys.spend(key, "keys[i] with an unknown index", line)
    if any(isinstance(s, Private) for s in starts):
        kind = PRIVATE
        why = f"it depends on records, by keys[i] at {line}"
    return checker.keys.new(aval(equation.outvars[0]).shape, kind, why)


def spend_secret(checker: Checker, equation: JaxprEqn, key: Value) -> None:
    """Use up the key of a mechanism or a draw; refuse one that is not secret, or was used before."""
    line = source_line(equation)
    name: str = equation.params.get("name", equation.primitive.name)
    if not isinstance(key, Key):
        raise Why.KEY.refusal(f"the key of {name} at {line} depends on records.", line)
    kind, why = checker.keys.kind(key)
    if kind != SECRET:
        raise PrivacyError(
            f"the key of {name} at {line} is not secret: {why}. Anyone who knows the program can subtract the noise.",
            "pass the key as an argument of the step, made by dp.random.key(), and derive others with jax.random.split.",
            chain=(line,),
        )
    checker.keys.spend(key, name, line)
