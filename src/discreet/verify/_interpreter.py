"""Walks a jaxpr and finds for every value what it may know of one record. What no rule explains has no bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from discreet._jax import Jaxpr, JaxprEqn, Literal, Primitive, Var, aval, source_line
from discreet.accounting import Relation
from discreet.verify._bounds import LOW_PRECISION, scaled
from discreet.verify._constants import public_result
from discreet.verify._domain import LARGEST, SMALLEST, Batch, Key, Origin, Private, Public, Scale, Value, constant
from discreet.verify._errors import REMEDIES, PrivacyError
from discreet.verify._keys import KNOWN, PRIVATE, KeyRing

Rule = Callable[["Checker", JaxprEqn, list[Value]], "Value | list[Value]"]

RULES: dict[Primitive, Rule] = {}
"""By the primitive as an object: a name can be given to anything."""

KEY_RULES: dict[Primitive, Rule] = {}
"""Primitives that take keys."""

STRUCTURED: dict[Primitive, Rule] = {}
"""Primitives that hold programs. Always walked into when a private value or a key enters."""

INLINED: dict[Primitive, Rule] = {}
"""Those that are walked into even if all is public, since constants may come out."""


_COARSE = Scale(1.0 + 2.0**-7)
"""What each operation in bfloat16 may add to the size of its result."""


class Checker:
    """The state of one proof.

    Attributes:
        relation: which tables are neighbours.
        keys: which keys were used.
        items: what was released and drawn in the innermost loop or branch, in order.
        notes: what made a sensitivity larger than it could be.
        slices: the parts of the table that were cut out, by where they begin and end.
    """

    def __init__(self, relation: Relation) -> None:
        self.relation = relation
        self.keys = KeyRing()
        self.items: list[Any] = []
        self.notes: list[str] = []
        self.slices: dict[tuple[Any, ...], Batch] = {}

    def walk(self, jaxpr: Jaxpr, consts: Sequence[Value], inputs: Sequence[Value]) -> list[Value]:
        """The abstract outputs of a jaxpr."""
        known: dict[Var, Value] = dict(zip(jaxpr.constvars, consts, strict=True))
        known.update(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> Value:
            return constant(atom.val) if isinstance(atom, Literal) else known[atom]

        for equation in jaxpr.eqns:
            outputs = self._equation(equation, [read(x) for x in equation.invars])
            known.update(zip(equation.outvars, outputs, strict=True))
        return [read(x) for x in jaxpr.outvars]

    def _equation(self, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
        primitive = equation.primitive
        private = any(isinstance(x, Private) for x in operands)
        keyed = any(isinstance(x, Key) for x in operands)
        if primitive in INLINED or (primitive in STRUCTURED and (private or keyed)):
            rule = INLINED.get(primitive) or STRUCTURED[primitive]
        elif primitive in KEY_RULES:
            rule = KEY_RULES[primitive]
        elif keyed:
            rule = _unknown_key_use
        elif not private:
            rule = public_result
        else:
            rule = RULES.get(primitive, _unknown)
        found = rule(self, equation, operands)
        outputs = found if isinstance(found, list) else [found]
        if len(outputs) == 1 and len(equation.outvars) > 1:
            outputs = outputs * len(equation.outvars)
        pairs = zip(outputs, equation.outvars, strict=True)
        return [self._in_precision(_in_range(self._keyed(x, v)), v, equation) for x, v in pairs]

    def _keyed(self, value: Value, variable: Any) -> Value:
        """Keys that a program made of public values alone."""
        if isinstance(value, Public) and is_key(aval(variable)):
            return self.keys.new(tuple(aval(variable).shape), KNOWN, "it was made in the program")
        return value

    def _in_precision(self, value: Value, variable: Any, equation: JaxprEqn) -> Value:
        """A sum in coarse numbers has no bound: rounding is relative to the sum, not to one record."""
        if not isinstance(value, Private):
            return value
        dtype = str(aval(variable).dtype)
        if dtype.startswith("complex"):
            # Bounds are said of real numbers: the sine of a complex one may be of any size.
            return dataclasses.replace(value, terms=None, linf=None, finite=False, norm_of=None)
        if dtype not in LOW_PRECISION and "float8" not in dtype:
            return value
        if value.axes is None and value.terms is not None:
            why = f"[precision] a sum over records is held as {dtype}, whose rounding no bound covers"
            return value.but(terms=None, linf=None, finite=False, why=why)
        if value.axes is not None and dtype == "bfloat16":
            terms = None if value.terms is None else scaled(value.terms, _COARSE)
            linf = None if value.linf is None else value.linf * _COARSE.factor
            return dataclasses.replace(value, terms=terms, linf=linf)
        # The others may overflow.
        return dataclasses.replace(value, terms=None, linf=None, finite=False, norm_of=None)

    def origin(self, equation: JaxprEqn, operands: Sequence[Value], what: str = "") -> Origin:
        """The place of an equation, with the operand that stands furthest from a proof as parent."""
        private = [x for x in operands if isinstance(x, Private)]
        private.sort(key=lambda x: (x.axes is not None, x.terms is not None or x.linf is not None))
        parent = private[0].origin if private else None
        return Origin(source_line(equation), what or equation.primitive.name, parent)

    def unbounded(self, equation: JaxprEqn, operands: Sequence[Value], why: str) -> Private:
        """A value of which nothing is known; the reason is the first on the way."""
        private = [x for x in operands if isinstance(x, Private)]
        earlier = [x.why for x in private if x.axes is None and x.terms is None and x.why]
        batch = common_batch(private)
        if batch is None:
            earlier = earlier or ["[clip] values of different samples, or of different turns of a loop, are mixed"]
        if not earlier:
            place = source_line(equation)
            why = f"{why} (at {place})" if place else why
        origin = self.origin(equation, operands)
        return Private(batch=batch, axes=None, origin=origin, why=(earlier or [why])[0])


def _in_range(value: Value) -> Value:
    """Numbers may be so large, or so small, on the way that scaling them back does not bring them back."""
    if not isinstance(value, Private):
        return value
    far = any(t.bound.factor != 0 and not SMALLEST <= t.bound.factor <= LARGEST for t in value.terms or ())
    if far or (value.linf is not None and value.linf > LARGEST):
        why = "[precision] numbers are too large or too small, at one time, for float32"
        return dataclasses.replace(value, terms=None, linf=None, finite=False, norm_of=None, why=value.why or why)
    return value


def common_batch(values: Sequence[Private]) -> Batch | None:
    """The batch that all values come from; parts of one batch come from it; None if there are several."""
    batches = {x.batch for x in values}
    if len(batches) == 1:
        return batches.pop()
    wholes = {x.batch.whole if x.batch is not None else None for x in values}
    return wholes.pop() if len(wholes) == 1 else None


def _unknown(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Value:
    return checker.unbounded(equation, operands, f"[rows] nothing is known of {equation.primitive.name}")


def _unknown_key_use(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """Keys that went through something else are used up, and what comes out is no secret key."""
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
            outputs.append(
                checker.unbounded(equation, operands, f"[rows] nothing is known of {equation.primitive.name}")
            )
        else:
            outputs.append(Public())
    return outputs


def is_key(kind: Any) -> bool:
    """Whether an array holds PRNG keys, by its type."""
    return str(kind.dtype).startswith("key<")


def refuse_outside_effects(jaxpr: Jaxpr) -> None:
    """Refuse a program that talks to the world, or writes to memory, on its way.

    Raises:
        PrivacyError: naming the line.
    """
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if equation.effects or any(
            word in name for word in ("callback", "debug_print", "ffi_call", "infeed", "outfeed")
        ):
            raise PrivacyError(
                f"{name} at {source_line(equation)} hands values to the world, or takes them from it, while the program runs: "
                "no proof covers what happens there.",
                REMEDIES["callback"],
                chain=(source_line(equation),),
            )
        for inner in inner_jaxprs(equation):
            refuse_outside_effects(inner)


def inner_jaxprs(equation: JaxprEqn) -> list[Jaxpr]:
    """The programs within an equation."""
    found: list[Jaxpr] = []
    for parameter in equation.params.values():
        for item in parameter if isinstance(parameter, tuple | list) else (parameter,):
            inner = getattr(item, "jaxpr", item)
            if isinstance(inner, Jaxpr):
                found.append(inner)
    return found


def shape_of(atom: Any) -> tuple[int, ...]:
    """The shape of a variable or literal."""
    return tuple(aval(atom).shape)


def size_per_record(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> int:
    """Elements of one record's slice; of the whole array where no axes number records."""
    return int(np.prod([n for i, n in enumerate(shape) if i not in (axes or ())], dtype=np.int64))
