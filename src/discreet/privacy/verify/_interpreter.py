"""The walk through a jaxpr: one abstract value for each variable.

The checker gives every variable an abstract value, by the rule of the equation's primitive from the
values of its operands. The invariant: if the claims about the operands are true of two runs on
neighbouring tables, so are those about the results. A primitive without a rule returns a value
without claims and uses up its keys, so a missing rule costs precision, not soundness.
`Checker.step` handles low precision, overflow and underflow after every rule (`_precision`), so no
rule has to.

A value without claims may not be returned. It carries the reason of the equation where the last
bound was lost.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from discreet._jax import (
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    aval,
    inside,
    is_key,
    primitives as p,
    source_line,
)
from discreet.privacy.accounting import Relation, neighbours
from discreet.privacy.mechanisms import Mechanism
from discreet.privacy.verify._bounds import RecordSet, Table
from discreet.privacy.verify._domain import Key, Private, Public, Value, constant, private_in
from discreet.privacy.verify._errors import NoBoundError, Origin, Reason, Why
from discreet.privacy.verify._keyring import KNOWN, PRIVATE, KeyRing
from discreet.privacy.verify._precision import (
    MARKED,
    in_order,
    in_precision,
    rounding_of,
    where_lost,
    with_absent,
)
from discreet.privacy.verify._public import public_result
from discreet.privacy.verify._registry import INLINED, KEY_RULES, RULES, STRUCTURED
from discreet.privacy.verify._symbols import Symbols
from discreet.privacy.verify.recognize._facts import Cuts
from discreet.privacy.verify.recognize._schedules import Schedules

MEETS_ALL = Why.ROWS("a record's values meet values computed from all records")
"""A reason for `Checker.unbounded`."""


Known = dict[Var, Value]


def value_of(atom: Any, known: Known) -> Value:
    """The abstract value of a variable or a literal."""
    return constant(atom.val) if isinstance(atom, Literal) else known[atom]


def _copied(state: Any) -> Any:
    """An object with lists and dictionaries of its own, of the same values."""
    other = copy.copy(state)
    for name, value in vars(state).items():
        if isinstance(value, list | dict):
            setattr(other, name, value.copy())
    return other


class Checker:
    """The state of one proof."""

    def __init__(self, relation: Relation, table: RecordSet | None = None) -> None:
        self.relation = relation  # the neighbouring relation
        self.neighbours = neighbours(relation)  # what it means
        self.table = table or Table()  # the records
        self.keys = KeyRing()
        self.items: list[Any] = []  # releases and draws in the innermost loop or branch, in order
        self.notes: list[str] = []  # reasons why a sensitivity is larger than it could be
        # the lines that release sums whose rounding is not accounted for
        self.unrounded: list[str] = []
        # The mechanisms used, and the assumed upper limit of open noise multipliers.
        self.mechanisms: dict[Mechanism, None] = {}
        self.most_multiplier, self.beyond = math.inf, False  # whether a known one exceeds its limit
        # Rows of the table, and the names of row numbers and mask.
        self.samples: dict[RecordSet, tuple[int, ...]] = {}
        self.symbols = Symbols()  # the public numbers that are open parameters
        # Whether records carry state from sample to sample; and whether one record's membership of
        # a sample affects others'. The two must not occur together.
        self.remembers = self.draws_dependently = False
        # the public numbers that are known in each iteration of a loop
        self.schedules = Schedules()
        self.cuts = Cuts()  # the rows taken by number

    def walk(self, jaxpr: Jaxpr, consts: Sequence[Value], inputs: Sequence[Value]) -> list[Value]:
        """The abstract outputs of a jaxpr."""
        known: Known = dict(zip(jaxpr.constvars, consts, strict=True))
        known.update(zip(jaxpr.invars, inputs, strict=True))
        self.go_on(jaxpr.eqns, known)
        return [value_of(x, known) for x in jaxpr.outvars]

    def go_on(self, equations: Sequence[JaxprEqn], known: Known) -> None:
        """Enter the results of equations in turn into what is `known` so far."""
        for equation in equations:
            outputs = self.step(equation, [value_of(x, known) for x in equation.invars])
            known.update(zip(equation.outvars, outputs, strict=True))

    def forked(self) -> Checker:
        """A checker that goes on from here, between two equations of the program, and leaves this one as it is."""
        other = _copied(self)
        for name in ("keys", "symbols", "schedules", "cuts"):
            setattr(other, name, _copied(getattr(self, name)))
        other.keys.restore(self.keys.snapshot())
        return other

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
            try:
                found = rule(self, equation, operands)
            except NoBoundError as lost:
                cause = operands if lost.at_fault is None else [lost.at_fault]
                found = [self.unbounded(equation, cause, lost.why) for _ in equation.outvars]
        outputs = found if isinstance(found, list) else [found] * len(equation.outvars)
        pairs = zip(outputs, equation.outvars, strict=True)
        outputs = [self._held(x, v, equation, operands) for x, v in pairs]
        if primitive is p.dynamic_slice_p:
            self.cuts.look(
                equation, *(getattr(x, "batch", None) for x in (operands[0], outputs[0]))
            )
        return outputs

    def _held(
        self, value: Value, variable: Any, equation: JaxprEqn, operands: Sequence[Value]
    ) -> Value:
        """A result as the machine holds it: but for `absent`, claims of its rule are only weakened."""
        if isinstance(value, Public) and is_key(aval(variable)):
            return self.keys.new(tuple(aval(variable).shape), KNOWN, "it was made in the program")
        if not isinstance(value, Private):
            return value
        value = in_order(in_precision(value, variable, equation), equation, operands)
        value = with_absent(where_lost(value, operands, equation), variable, equation, operands)
        if equation.primitive in (*MARKED, *INLINED):
            return value
        rounding = (
            None if equation.primitive in STRUCTURED else rounding_of(equation, variable, operands)
        )
        return (
            value if value.rounding == rounding else dataclasses.replace(value, rounding=rounding)
        )

    def origin(self, equation: JaxprEqn, operands: Sequence[Value], what: str = "") -> Origin:
        """The place of an equation, with the operand furthest from a proof as parent."""
        private = private_in(operands)
        private.sort(
            key=lambda x: (
                x.axes is not None,
                x.terms is not None or x.linf is not None,
                x.origin.mask,
                x.finite,
            )
        )
        parent = private[0].origin if private else None
        mask = parent is not None and parent.mask
        return Origin(source_line(equation), what or equation.primitive.name, parent, mask)

    def unbounded(self, equation: JaxprEqn, operands: Sequence[Value], why: Reason) -> Private:
        """A value without claims; the reason is the earliest on its path."""
        private = private_in(operands)
        earlier = next(
            (x.why for x in private if x.axes is None and x.terms is None and x.why), None
        )
        batch = common_batch(private)
        if batch is None and earlier is None:
            earlier = Why.TURNS(
                "values of different samples, or of different iterations of a loop, are mixed"
            )
        if (
            earlier is not None
            and earlier.kind in (Why.CLIP, Why.NAN)
            and any(x.axes is not None for x in private)
        ):
            # Clipping would bound a sum; rows that meet it are wrong in any case.
            earlier = None
            why = MEETS_ALL
        return Private(
            batch,
            None,
            self.origin(equation, operands),
            why=earlier or why.at(source_line(equation)),
        )


def common_batch(values: Sequence[Private]) -> RecordSet | None:
    """The common batch of all values, which parts of one batch share; None if there are several."""
    batches = {x.batch for x in values}
    if len(batches) == 1:
        return batches.pop()
    wholes = {x.batch.whole if x.batch is not None else None for x in values}
    return wholes.pop() if len(wholes) == 1 else None


def unknown(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Value:
    """The result of a primitive without a rule: no claims."""
    return checker.unbounded(
        equation, operands, Why.UNKNOWN(f"there is no rule for {equation.primitive.name}")
    )


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
            why = (
                f"it depends on records, by {equation.primitive.name} at {line}" if private else why
            )
            outputs.append(checker.keys.new(kind.shape, PRIVATE if private else KNOWN, why))
        elif private:
            outputs.append(unknown(checker, equation, operands))
        else:
            outputs.append(Public())
    return outputs
