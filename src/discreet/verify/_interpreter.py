"""Walks a jaxpr and finds for every value what it may know of one record. What no rule explains has no bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
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
    is_over_devices,
    jax_primitives,
    source_line,
)
from discreet._jax import primitives as p
from discreet.accounting import Relation
from discreet.verify._bounds import scaled
from discreet.verify._constants import IDENTITY, public_result
from discreet.verify._domain import (
    LARGEST,
    SMALLEST,
    Batch,
    Key,
    Origin,
    Private,
    Public,
    Scale,
    Table,
    Value,
    constant,
)
from discreet.verify._errors import REMEDIES, PrivacyError
from discreet.verify._keys import KNOWN, PRIVATE, KeyRing
from discreet.verify._symbols import Symbols

Rule = Callable[["Checker", JaxprEqn, list[Value]], "Value | list[Value]"]
Observer = Callable[[JaxprEqn, list[Value]], None]

RULES: dict[Primitive, Rule] = {}
"""By the primitive as an object: a name can be given to anything."""

KEY_RULES: dict[Primitive, Rule] = {}
"""Primitives that take keys."""

STRUCTURED: dict[Primitive, Rule] = {}
"""Primitives that hold programs. Always walked into when a private value or a key enters."""

INLINED: dict[Primitive, Rule] = {}
"""Those that are walked into even if all is public, since constants may come out."""


MEETS_ALL = "[rows] a record's values meet what was computed from all records"
"""Why there is no bound, as `Checker.unbounded` takes it."""

HELD_AS = "[precision] a sum over records is held as {}, whose rounding no bound covers"
"""The same, of a sum in coarse numbers."""

_ORDINARY = frozenset({"bool", "float32", "float64", *(f"{u}int{n}" for u in ("", "u") for n in (8, 16, 32, 64))})
"""The types whose arithmetic the rules know: all others keep no bound."""

_COARSE = Scale(1.0 + 2.0**-7)
"""What each operation in bfloat16 may add to the size of its result."""


_AS_IT_IS = (
    *IDENTITY, p.add_p, p.add_jaxvals_p, p.convert_element_type_p, p.reshape_p, p.squeeze_p,
    p.broadcast_in_dim_p,
)  # fmt: skip
"""What adds to a sum, or gives it another shape with its elements in their order."""


class Checker:
    """The state of one proof.

    Attributes:
        relation: which tables are neighbours.
        keys: which keys were used.
        items: what was released and drawn in the innermost loop or branch, in order.
        notes: what made a sensitivity larger than it could be.
        table: the records.
        slices: the parts of the table that were cut out, by where they begin and end.
        samples: what was drawn: rows of the table, and the names of row numbers and mask.
        symbols: which public numbers are parameters that the caller left open.
        remembers: whether records keep something from sample to sample.
        draws_dependently: whether samples are drawn in which one record has an influence on others, with which that must not go
            together.
        observer: is told the results of every equation, those of a loop's turn as often as it is looked at.
    """

    def __init__(self, relation: Relation, table: Batch | None = None, observer: Observer | None = None) -> None:
        self.relation = relation
        self.table = table or Table()
        self.observer = observer
        self.keys = KeyRing()
        self.items: list[Any] = []
        self.notes: list[str] = []
        self.slices: dict[tuple[Any, ...], Batch] = {}
        self.samples: dict[Batch, tuple[int, ...]] = {}
        self.symbols = Symbols()
        self.remembers = False
        self.draws_dependently = False

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
            rule = RULES.get(primitive, unknown)
        with inside(equation):
            found = rule(self, equation, operands)
        outputs = found if isinstance(found, list) else [found]
        if len(outputs) == 1 and len(equation.outvars) > 1:
            outputs = outputs * len(equation.outvars)
        pairs = zip(outputs, equation.outvars, strict=True)
        outputs = [self._in_precision(_in_range(self._keyed(x, v)), v, equation) for x, v in pairs]
        outputs = [_where_lost(_in_order(x, equation, operands), operands, equation) for x in outputs]
        if self.observer is not None:
            self.observer(equation, outputs)
        return outputs

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
        if dtype in _ORDINARY or dtype.startswith("key<"):
            return value
        if value.axes is None and value.terms is not None:
            why = HELD_AS.format(dtype)
            return value.but(terms=None, linf=None, finite=False, why=why)
        summed = equation.primitive in (p.reduce_sum_p, p.dot_general_p)  # each addition rounds, of what came before
        if value.axes is not None and dtype == "bfloat16" and not summed:
            terms = None if value.terms is None else scaled(value.terms, _COARSE)
            linf = None if value.linf is None else value.linf * _COARSE.factor
            return dataclasses.replace(value, terms=terms, linf=linf)
        # The others may overflow, wrap around, round more coarsely or be complex.
        return value.but(terms=None, linf=None, finite=False)

    def origin(self, equation: JaxprEqn, operands: Sequence[Value], what: str = "") -> Origin:
        """The place of an equation, with the operand that stands furthest from a proof as parent."""
        private = [x for x in operands if isinstance(x, Private)]
        private.sort(
            key=lambda x: (x.axes is not None, x.terms is not None or x.linf is not None, x.origin.mask, x.finite)
        )
        parent = private[0].origin if private else None
        mask = parent is not None and parent.mask
        return Origin(source_line(equation), what or equation.primitive.name, parent, mask)

    def unbounded(self, equation: JaxprEqn, operands: Sequence[Value], why: str) -> Private:
        """A value of which nothing is known; the reason is the first on the way."""
        private = [x for x in operands if isinstance(x, Private)]
        earlier = [x.why for x in private if x.axes is None and x.terms is None and x.why]
        batch = common_batch(private)
        if batch is None:
            earlier = earlier or ["[turns] values of different samples, or of different turns of a loop, are mixed"]
        if earlier and earlier[0].startswith(("[clip]", "[nan]")) and any(x.axes is not None for x in private):
            earlier, why = [], MEETS_ALL
        if not earlier:
            place = source_line(equation)
            why = f"{why} (at {place})" if place else why
        origin = self.origin(equation, operands)
        return Private(batch=batch, axes=None, origin=origin, why=(earlier or [why])[0])


def _where_lost(value: Value, operands: Sequence[Value], equation: JaxprEqn) -> Value:
    """Rows without a bound, with the reason if they had one before."""
    if (
        not isinstance(value, Private)
        or value.axes is None
        or value.terms is not None
        or value.linf is not None
        or value.why
    ):
        return value
    rows = [x for x in operands if isinstance(x, Private) and x.axes is not None]
    why = next((x.why for x in rows if x.why), "")
    if any(x.terms is not None for x in rows):
        place = source_line(equation)
        why = "[clip] what one record adds has no bound: its values were clipped, but after that went into "
        why += f"{equation.primitive.name}{f' (at {place})' if place else ''}"
    return dataclasses.replace(value, why=why) if why else value


def _in_order(value: Value, equation: JaxprEqn, operands: Sequence[Value]) -> Value:
    """No sum of a sample, if what a turn of a loop started with went through more than additions.

    Where it is turned over in every turn (`row - total`, `total[::-1] + row`) each turn weighs in another way; in a random
    sample one record decides in which turns the others are.
    """
    if (
        not isinstance(value, Private)
        or not value.additive
        or equation.primitive in (*INLINED, *STRUCTURED, *_AS_IT_IS)
    ):
        return value
    looked_at = operands[1:] if equation.primitive is p.sub_p else operands
    turned = any(t.group.carried for x in looked_at if isinstance(x, Private) for t in x.terms or ())
    return value.but(additive=False) if turned else value


def _in_range(value: Value) -> Value:
    """Numbers may be so large, or so small, on the way that scaling them back does not bring them back."""
    if not isinstance(value, Private):
        return value
    far = any(_is_far(t.bound) for t in value.terms or ())
    if far or (value.linf is not None and value.linf > LARGEST):
        why = "[precision] numbers are too large or too small, at one time, for float32"
        return dataclasses.replace(value, terms=None, linf=None, finite=False, norm_of=None, why=value.why or why)
    return value


def _is_far(bound: Scale) -> bool:
    """A mechanism's noise is NaN where its traced size is below 1e-20 or above 1e20: the rest is room for these factors."""
    least, most = (1e-9, 1e4) if bound.powers else (SMALLEST, LARGEST)
    return bound.factor != 0 and not least <= bound.factor <= most


def common_batch(values: Sequence[Private]) -> Batch | None:
    """The batch that all values come from; parts of one batch come from it; None if there are several."""
    batches = {x.batch for x in values}
    if len(batches) == 1:
        return batches.pop()
    wholes = {x.batch.whole if x.batch is not None else None for x in values}
    return wholes.pop() if len(wholes) == 1 else None


def unknown(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Value:
    """What holds of a primitive without a rule: nothing."""
    return checker.unbounded(equation, operands, f"[unknown] nothing is known of {equation.primitive.name}")


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
                checker.unbounded(equation, operands, f"[unknown] nothing is known of {equation.primitive.name}")
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
        if is_over_devices(equation):
            raise PrivacyError(
                f"{name} at {source_line(equation)} lets values of several devices meet, within shard_map or pmap, and no rule "
                "says what they hold of one record.",
                REMEDIES["devices"],
                chain=(source_line(equation),),
            )
        if equation.effects or any(
            word in name for word in ("callback", "debug_print", "ffi_call", "infeed", "outfeed")
        ):
            raise PrivacyError(
                f"the operation {name} at {source_line(equation)} hands values to the world, or takes them "
                "from it, while the program runs: no proof covers what happens there.",
                REMEDIES["callback"],
                chain=(source_line(equation),),
            )
        with inside(equation):
            for inner in inner_programs(equation):
                refuse_outside_effects(inner.jaxpr)


def refuse_closed_books(jaxpr: Jaxpr) -> None:
    """Refuse a program that calls something whose content nobody can read: it may hold records.

    Raises:
        PrivacyError: naming the line.
    """
    known = jax_primitives() | RULES.keys() | KEY_RULES.keys()
    pending = [jaxpr]
    while pending:
        for equation in pending.pop().eqns:
            exported = any(isinstance(x, jax.export.Exported) for x in equation.params.values())
            if equation.primitive not in known or exported or is_closed_book(equation):
                what = "an exported program" if exported else "no primitive of JAX"
                raise PrivacyError(
                    f"{equation.primitive.name} at {source_line(equation)} is {what}: what it computes, and which constants it "
                    "holds, does not show.",
                    REMEDIES["book"],
                    chain=(source_line(equation),),
                )
            pending += [inner.jaxpr for inner in inner_programs(equation)]


def shape_of(atom: Any) -> tuple[int, ...]:
    """The shape of a variable or literal."""
    return tuple(aval(atom).shape)


def size_per_record(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> int:
    """Elements of one record's slice; of the whole array where no axes number records."""
    return int(np.prod([n for i, n in enumerate(shape) if i not in (axes or ())], dtype=np.int64))
