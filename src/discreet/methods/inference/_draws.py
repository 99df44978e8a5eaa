"""The random bits of a batch, made at once instead of record by record.

The requests for bits are found in the loss's jaxpr and replaced by an input, which one long
keystream fills. The law of the draws is the same, independent uniform bits for each row. They
belong to places in the batch, not to records; that changes no guarantee, since they are independent
of the records, secret, and alike in every place. Requests whose key takes another way (into a loop,
as in rejection samplers) stay as they are, with a key a row.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from discreet._jax import (
    ClosedJaxpr,
    JaxprEqn,
    Literal,
    Var,
    aval,
    bind,
    jaxpr_as_fun,
    primitives,
    types_of,
    unstack_p,
)
from discreet.privacy import random

KeyedLoss = Callable[[Any, Any, PRNGKeyArray], Float[Array, ""]]
"""`(parameters, record, key) -> scalar`."""
# Larger draws are not held for a whole batch: each row then makes its own when it is processed.
_MOST_BYTES = 2**26
# How keys are made of keys. What a request's key went through must be among these.
_DERIVATIONS = frozenset(
    {
        primitives.broadcast_in_dim_p,
        primitives.concatenate_p,
        primitives.dynamic_slice_p,
        primitives.random_fold_in_p,
        primitives.random_split_p,
        primitives.reshape_p,
        primitives.slice_p,
        primitives.squeeze_p,
        unstack_p,
    }
)
# Values that are alike have the same number: the key, what is derived from it and from constants.
# None: any value.
_Name = int | None
_Named = tuple[_Name, Any]


@dataclasses.dataclass(frozen=True)
class Draws:
    """A record's loss, and the bits that it requests."""

    program: ClosedJaxpr  # the loss's jaxpr, of the flat parameters, record and key
    requests: tuple[jax.ShapeDtypeStruct, ...]  # shape and dtype of each request

    @classmethod
    def of(cls, loss: KeyedLoss, parameters: Any, record: Any, key: Any, num_rows: int) -> Draws:
        """Trace a loss; `num_rows` determines whether the draws of all rows fit in memory."""
        program = jax.make_jaxpr(loss)(types_of(parameters), types_of(record), types_of(key))
        run = _Run(None)
        run(program, [None] * len(program.jaxpr.invars))
        each = sum(x.size * x.dtype.itemsize for x in run.requests)
        return cls(program, tuple(run.requests) if each * num_rows <= _MOST_BYTES else ())

    def make(self, key: PRNGKeyArray, num_rows: int) -> tuple[list[Array], Bool[Array, ""]]:
        """The bits of all rows, and True if they are valid (`random.fast_bits`)."""
        words = [num_rows * math.ceil(x.size * x.dtype.itemsize / 4) for x in self.requests]
        if not sum(words):
            return [jnp.zeros((num_rows, *x.shape), x.dtype) for x in self.requests], jnp.array(
                True
            )
        stream, right = random.fast_bits(key, sum(words))
        starts = itertools.accumulate(words, initial=0)
        parts = [stream[start : start + n] for start, n in zip(starts, words, strict=False)]
        return [
            _shaped(part, x, num_rows) for part, x in zip(parts, self.requests, strict=True)
        ], right

    def loss(
        self, parameters: Any, record: Any, key: PRNGKeyArray, bits: Sequence[Array]
    ) -> Float[Array, ""]:
        """The record's loss with these bits; `key` serves the requests that are not among them."""
        inputs = jax.tree.leaves((parameters, record, key))
        (loss,) = (
            _Run(bits)(self.program, inputs)
            if self.requests
            else jaxpr_as_fun(self.program)(*inputs)
        )
        return loss


def _shaped(words: Array, like: jax.ShapeDtypeStruct, num_rows: int) -> Array:
    width = 8 * like.dtype.itemsize
    rows = words.reshape(num_rows, -1)
    if width == 64:
        high, low = jnp.split(rows.astype(jnp.uint64), 2, axis=1)
        rows = (high << np.uint64(32)) | low
    elif width < 32:
        rows = jax.lax.bitcast_convert_type(rows, like.dtype).reshape(num_rows, -1)[:, : like.size]
    return rows.reshape(num_rows, *like.shape)


@dataclasses.dataclass
class _Run:
    """Evaluates a jaxpr with the requests answered from `bits`, or, without `bits`, only collects the requests.

    Requests with one key and of one shape are one request: a program that is run twice with a key
    draws the same.
    """

    bits: Sequence[Array] | None
    requests: list[jax.ShapeDtypeStruct] = dataclasses.field(default_factory=list)
    _numbers: dict[Any, int] = dataclasses.field(default_factory=dict)
    _names: dict[Any, int] = dataclasses.field(default_factory=dict)
    _keys: set[_Name] = dataclasses.field(default_factory=set)

    def __call__(self, closed: ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
        """The outputs; the key is the last input."""
        names: list[_Name] = [*[None] * (len(inputs) - 1), self._name("key", is_key=True)]
        return [value for _, value in self._inside(closed, zip(names, inputs, strict=True))]

    def _name(self, what: Any, *, is_key: bool = False) -> int:
        name = self._names.setdefault(what, len(self._names))
        if is_key:
            self._keys.add(name)
        return name

    def _inside(self, closed: ClosedJaxpr, inputs: Iterable[_Named]) -> list[_Named]:
        jaxpr = closed.jaxpr
        fixed = [(self._name(("constant", id(x))), x) for x in closed.consts]
        known: dict[Var, _Named] = dict(
            zip([*jaxpr.constvars, *jaxpr.invars], [*fixed, *inputs], strict=True)
        )

        def read(atom: Any) -> _Named:
            if isinstance(atom, Literal):
                return self._name(("literal", str(atom.val), str(aval(atom)))), atom.val
            return known[atom]

        for equation in jaxpr.eqns:
            known.update(
                zip(
                    equation.outvars, self._apply(equation, map(read, equation.invars)), strict=True
                )
            )
        return list(map(read, jaxpr.outvars))

    def _apply(self, equation: JaxprEqn, inputs: Iterable[_Named]) -> Iterable[_Named]:
        inputs = list(inputs)
        names = [name for name, _ in inputs]
        made: list[_Name] = [None] * len(equation.outvars)
        derived = not self._keys.isdisjoint(names)
        if derived and equation.primitive is primitives.random_bits_p:
            return [(None, self._answer(names[0], aval(equation.outvars[0])))]
        if derived and equation.primitive is primitives.jit_p:
            return self._inside(equation.params["jaxpr"], inputs)
        if derived and equation.primitive in _DERIVATIONS and None not in names:
            way = equation.primitive, str(equation.params), *names
            made = [self._name((*way, i), is_key=True) for i in range(len(made))]
        values = (
            [None] * len(made)
            if self.bits is None
            else bind(equation, [value for _, value in inputs])
        )
        return zip(made, values, strict=True)

    def _answer(self, key: _Name, like: Any) -> Any:
        request = jax.ShapeDtypeStruct(like.shape, like.dtype)
        number = self._numbers.setdefault((key, request), len(self.requests))
        if number == len(self.requests):
            self.requests.append(request)
        return None if self.bits is None else self.bits[number]
