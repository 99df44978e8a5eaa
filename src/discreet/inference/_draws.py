"""The random draws of a batch's records, made at once instead of record by record.

A record's loss is a function of parameters, record and key: NumPyro splits the key and asks for bits. Mapped over a
batch that is a key derivation and a short keystream for each record and each draw. Here the requests for bits are
found in the loss's jaxpr and replaced by an input, which one long keystream fills for all rows of the batch.

The law of the draws is the same: independent uniform bits for each row. They belong to places in the batch, not to
records; that changes no guarantee, since they are independent of the records, secret, and alike in every place, so a
record that is left out leaves the law of what the others add as it was.

Requests whose key takes another way (into a loop, as in rejection samplers, or mixed with values of the record) stay
as they are, with a key for each row.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from discreet import random
from discreet._jax import ClosedJaxpr, JaxprEqn, Literal, Var, aval, bind, primitives, run_jaxpr, unstack_p

KeyedLoss = Callable[[Any, Any, PRNGKeyArray], Float[Array, ""]]
"""`(parameters, record, key) -> scalar`."""

# More than this is not held for a whole batch: each row then makes its own, when it is worked on.
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

# Values that are alike have the same number: the key, what is derived from it and from constants. None: any value.
_Name = int | None


@dataclasses.dataclass(frozen=True)
class Draws:
    """A record's loss, and the bits that it asks for.

    Attributes:
        program: the loss's jaxpr, of the flat parameters, record and key.
        requests: shape and dtype of each request.
    """

    program: ClosedJaxpr
    requests: tuple[jax.ShapeDtypeStruct, ...]

    @classmethod
    def of(cls, loss: KeyedLoss, parameters: Any, record: Any, key: Any, num_rows: int) -> Draws:
        """Trace a loss; `num_rows` decides whether there is room for the draws of all."""
        program = jax.make_jaxpr(loss)(parameters, record, key)
        run = _Run(None)
        run(program, [None] * len(program.jaxpr.invars))
        each = sum(x.size * x.dtype.itemsize for x in run.requests)
        return cls(program, tuple(run.requests) if each * num_rows <= _MOST_BYTES else ())

    def make(self, key: PRNGKeyArray, num_rows: int) -> tuple[list[Array], Bool[Array, ""]]:
        """The bits of all rows, and whether they are right (`random.fast_bits`).

        Args:
            key: for these draws alone.
            num_rows: how many rows.

        Returns:
            For each request an array whose leading axis is the rows.
        """
        words = [num_rows * math.ceil(x.size * x.dtype.itemsize / 4) for x in self.requests]
        if not sum(words):
            return [jnp.zeros((num_rows, *x.shape), x.dtype) for x in self.requests], jnp.array(True)
        stream, right = random.fast_bits(key, sum(words))
        starts = itertools.accumulate(words, initial=0)
        parts = [stream[start : start + n] for start, n in zip(starts, words, strict=False)]
        return [_shaped(part, x, num_rows) for part, x in zip(parts, self.requests, strict=True)], right

    def loss(self, parameters: Any, record: Any, key: PRNGKeyArray, bits: Sequence[Array]) -> Float[Array, ""]:
        """The record's loss with these bits; `key` serves the requests that are not among them."""
        inputs = jax.tree.leaves((parameters, record, key))
        (loss,) = _Run(bits)(self.program, inputs) if self.requests else run_jaxpr(self.program, *inputs)
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


class _Run:
    """Evaluates a jaxpr with the requests answered from `bits`, or, without `bits`, only collects the requests.

    Requests with one key and of one shape are one request: a program that is run twice with a key draws the same.
    """

    def __init__(self, bits: Sequence[Array] | None) -> None:
        self.bits = bits
        self.requests: list[jax.ShapeDtypeStruct] = []
        self._numbers: dict[Any, int] = {}
        self._names: dict[Any, int] = {}
        self._keys: set[_Name] = set()

    def __call__(self, closed: ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
        """The outputs; the key is the last input."""
        names: list[_Name] = [*[None] * (len(inputs) - 1), self._name("key", is_key=True)]
        return self._inside(closed, names, inputs)[1]

    def _name(self, what: Any, *, is_key: bool = False) -> int:
        name = self._names.setdefault(what, len(self._names))
        if is_key:
            self._keys.add(name)
        return name

    def _inside(
        self, closed: ClosedJaxpr, names: Sequence[_Name], inputs: Sequence[Any]
    ) -> tuple[list[_Name], list[Any]]:
        jaxpr, fixed = closed.jaxpr, [self._name(("constant", id(x))) for x in closed.consts]
        known: dict[Var, tuple[_Name, Any]] = {}
        known.update(zip(jaxpr.constvars, zip(fixed, closed.consts, strict=True), strict=True))
        known.update(zip(jaxpr.invars, zip(names, inputs, strict=True), strict=True))

        def read(atoms: Sequence[Any]) -> tuple[list[_Name], list[Any]]:
            pairs = [(self._literal(x), x.val) if isinstance(x, Literal) else known[x] for x in atoms]
            return [name for name, _ in pairs], [value for _, value in pairs]

        for equation in jaxpr.eqns:
            outputs = self._apply(equation, *read(equation.invars))
            known.update(zip(equation.outvars, zip(*outputs, strict=True), strict=True))
        return read(jaxpr.outvars)

    def _literal(self, literal: Literal) -> _Name:
        return self._name(("literal", str(literal.val), str(aval(literal))))

    def _apply(
        self, equation: JaxprEqn, names: list[_Name], operands: list[Any]
    ) -> tuple[Sequence[_Name], Sequence[Any]]:
        unnamed: list[_Name] = [None] * len(equation.outvars)
        derived = not self._keys.isdisjoint(names)
        if derived and equation.primitive is primitives.random_bits_p:
            return unnamed, [self._answer(names[0], aval(equation.outvars[0]))]
        if derived and equation.primitive is primitives.jit_p:
            return self._inside(equation.params["jaxpr"], names, operands)
        if derived and equation.primitive in _DERIVATIONS and None not in names:
            made = equation.primitive, str(equation.params), *names
            unnamed = [self._name((*made, i), is_key=True) for i in range(len(equation.outvars))]
        if self.bits is None:
            return unnamed, [None] * len(equation.outvars)
        return unnamed, bind(equation, operands)

    def _answer(self, key: _Name, like: Any) -> Any:
        request = jax.ShapeDtypeStruct(like.shape, like.dtype)
        number = self._numbers.setdefault((key, request), len(self.requests))
        if number == len(self.requests):
            self.requests.append(request)
        return None if self.bits is None else self.bits[number]
