"""`shard_map`: the same program on every device, each with its part of the records.

The devices are the iterations of a loop that run at once and meet in `psum` (`_Devices`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from discreet._jax import (
    Jaxpr,
    JaxprEqn,
    Literal,
    aval,
    devices_named,
    inner_programs,
    is_over_devices,
    primitives as p,
    psum_invariant_p,
    sharding_of,
    source_line,
)
from discreet.privacy.verify._bounds import Part, RecordSet, bounding, named_since, new_symbol
from discreet.privacy.verify._control import inner
from discreet.privacy.verify._domain import Axes, Key, Private, Public, Value, constant
from discreet.privacy.verify._errors import Why
from discreet.privacy.verify._interpreter import Checker
from discreet.privacy.verify._keyring import KNOWN
from discreet.privacy.verify._record import Loop
from discreet.privacy.verify._rows import shape_of

_PSUMS = (p.psum_p, psum_invariant_p)
_TWICE = Why.DEVICES("a sum over all devices' records is added up again, once per device")
_APART = Why.DEVICES(
    "values of several devices meet other than in jax.lax.psum of each device's own sum over its records"
)
_MIXED = Why.DEVICES(
    "rows of several devices are added to one another. (jax.grad by what is the same on all devices does so under check_vma: "
    "give it jax.lax.pcast(parameters, axis, to='varying'))"
)


@dataclasses.dataclass(frozen=True)
class _On:
    """A value within `shard_map`, and whether it may differ between devices."""

    value: Value
    varies: bool


@dataclasses.dataclass
class _Devices:
    """The analysis of one `shard_map`: every device runs the body on its part of the sharded operands.

    It is a loop over the devices, whose iterations run at once and meet in `psum`. Operands sharded
    along the records enter as rows of the device's `Part`: a record is on one device, and the
    values of the others are the same in both runs, as long as they depend on their own part and on
    public numbers only. So a sum over devices moves as one device's term does. Values that depend
    on all records already differ on each device, and their changes add up.

    An equation whose operands are the same on all devices has the same result on all: it is treated
    as if it were outside of the loop, so its key may come from there, and its release counts once.
    Other equations belong to an iteration: a key from outside is refused there, since each device
    would draw the same numbers, and so is a release.
    """

    checker: Checker
    equation: JaxprEqn
    before: int = dataclasses.field(default_factory=new_symbol)
    parts: dict[RecordSet, Part] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.body, self.axes, devices, self.ins, self.outs = sharding_of(self.equation)
        self.loop = Loop(devices)
        self.line = source_line(self.equation)
        if -1 in (*self.ins, *self.outs):
            text = f"shard_map at {self.line} cuts an array over some of its devices only, or along two axes."
            raise Why.DEVICES.refusal(text, self.line)

    def run(self, operands: list[Value]) -> list[Value]:
        """The results of the whole equation."""
        ins = self.ins
        outs = self.outs
        body = self.body
        # If devices differ by more than their records, a row of a random sample depends on its
        # place in the sample.
        apart = any(
            cut is not None and not isinstance(x, Private)
            for x, cut in zip(operands, ins, strict=True)
        )
        met = [y for x in body.jaxpr.eqns for y in _over_devices(x)]
        apart |= any(x.primitive not in _PSUMS for x in met)
        pairs = zip(operands, self.equation.invars, ins, strict=True)
        begin = [
            _On(self._of_device(x, shape_of(v), cut, apart), cut is not None) for x, v, cut in pairs
        ]
        jaxpr, own = inner(self.checker, body)
        found = self._walk(jaxpr, [_On(x, False) for x in own], begin)
        rows = zip(found, self.equation.outvars, outs, strict=True)
        return [self._together(x, shape_of(v), cut) for x, v, cut in rows]

    def _of_device(self, value: Value, shape: Axes, cut: int | None, apart: bool) -> Value:
        """One device's part of an operand."""
        if cut is None:
            return value.but(additive=False) if isinstance(value, Private) else value
        if isinstance(value, Key):
            there = [
                n // self.loop.length if i == cut else n for i, n in enumerate(value.names.shape)
            ]
            return self.checker.keys.shared(
                value, tuple(there), self.loop, "the devices", self.line
            )
        if isinstance(value, Public):
            return Public(released=value.released)
        if value.axes != (cut,) or value.batch is None:
            return self.checker.unbounded(self.equation, [value], _APART)
        if value.batch not in self.parts:
            depth = len(self.checker.keys.loops)
            self.parts[value.batch] = Part(value.batch, value.batch.masked, depth, loop=self.loop)
        part = self.parts[value.batch]
        positional = value.positional or apart
        return value.but(batch=part, terms=bounding(value.terms, part), positional=positional)

    def _walk(self, jaxpr: Jaxpr, own: Sequence[_On], inputs: Sequence[_On]) -> list[_On]:
        known: dict[Any, _On] = dict(zip(jaxpr.constvars, own, strict=True))
        known.update(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Any) -> _On:
            return _On(constant(atom.val), False) if isinstance(atom, Literal) else known[atom]

        for equation in jaxpr.eqns:
            operands = [read(x) for x in equation.invars]
            known.update(zip(equation.outvars, self._step(equation, operands), strict=True))
        return [read(x) for x in jaxpr.outvars]

    def _step(self, equation: JaxprEqn, operands: list[_On]) -> list[_On]:
        values = [x.value for x in operands]
        checker = self.checker
        within = inner_programs(equation)
        line = source_line(equation)
        named = not within and (is_over_devices(equation) or equation.primitive in _PSUMS)
        if named and devices_named(equation) != self.axes:
            text = f"{equation.primitive.name} at {line} covers only some of the devices."
            raise Why.DEVICES.refusal(text, self.line, line)
        if equation.primitive is p.axis_index_p:
            return [_On(Public(counter=(self.loop, 0, self.loop.length - 1)), True)]
        if equation.primitive in _PSUMS:
            pairs = zip(values, equation.outvars, strict=True)
            return [_On(self._sum(equation, x, aval(v)), False) for x, v in pairs]
        met = _over_devices(equation)
        if equation.primitive is p.jit_p and met:
            jaxpr, own = inner(checker, within[0])
            return self._walk(jaxpr, [_On(x, False) for x in own], operands)
        if met and within:
            text = f"devices communicate within {equation.primitive.name} at {line}: move shard_map inside it instead."
            raise Why.DEVICES.refusal(text, self.line, line)
        varies = bool(met) or any(x.varies for x in operands)
        if not varies:
            return [_On(x, False) for x in checker.step(equation, values)]
        items = checker.items
        checker.items = []
        checker.keys.loops.append(self.loop)
        found = checker.step(equation, values)
        checker.keys.loops.pop()
        if checker.items:
            raise Why.DEVICES.refusal(
                f"{equation.primitive.name} at {line} draws or releases on each device by itself.",
                self.line,
                line,
            )
        checker.items = items
        return [_On(x, True) for x in found]

    def _sum(self, equation: JaxprEqn, value: Value, kind: Any) -> Value:
        """The sum over devices of public numbers, or of each device's own sum over its records."""
        if isinstance(value, Public):
            return Public(released=value.released)
        if isinstance(value, Key):
            self.checker.keys.spend(value, equation.primitive.name, source_line(equation))
            return self.checker.keys.new(kind.shape, KNOWN, "it is a sum over devices")
        part = self._part_of(value)
        terms = value.terms
        if (
            part is None
            or value.axes is not None
            or terms is None
            or any(t.source is not part for t in terms)
        ):
            why = (
                _MIXED
                if value.axes is not None
                else value.why or (_TWICE if part is None else _APART)
            )
            return self.checker.unbounded(equation, [value], why)
        # Leaving a record out of a random sample moves others to another device: only sums of rows
        # are unaffected.
        lost = part.sampled and not value.additive
        # A number named on one device has another value on the next.
        lost |= named_since(terms, self.before)
        lost |= np.dtype(kind.dtype).kind != "f" or any(
            t.bound.factor > _MOST_OF_ALL for t in terms
        )
        if lost:
            return self.checker.unbounded(equation, [value], _APART)
        origin = self.checker.origin(equation, [value])
        whole = _parent(part)
        return value.but(batch=whole, terms=bounding(terms, whole), origin=origin, zero=frozenset())

    def _part_of(self, value: Private) -> Part | None:
        """The part of the records that a value depends on, if it belongs to a device."""
        batch = value.batch
        return batch if isinstance(batch, Part) and batch.loop is self.loop else None

    def _together(self, found: _On, shape: Axes, cut: int | None) -> Value:
        """A result: the value common to all devices, or their values concatenated."""
        value = found.value
        checker = self.checker
        if cut is None:
            if found.varies:
                text = f"a result of shard_map at {self.line} is declared the same on all devices, but may differ."
                raise Why.DEVICES.refusal(text, self.line)
            return value.but() if isinstance(value, Private) else value
        if isinstance(value, Key):
            checker.keys.spend_in(self.loop, value, "the results of the devices", self.line)
            return checker.keys.new(shape, KNOWN, "it came out of shard_map")
        if isinstance(value, Public):
            return Public(released=value.released)
        part = self._part_of(value)
        named = named_since(value.terms, self.before)
        sums = (
            value.axes is None
            and value.terms is not None
            and all(t.source is part for t in value.terms)
        )
        if part is None or named or not (value.axes == (cut,) or (sums and not part.sampled)):
            return checker.unbounded(self.equation, [value.but(batch=None)], _APART)
        # The devices' rows together are those of the table; among stacked sums only that of the
        # record's device moves.
        return value.but(
            batch=_parent(part), terms=bounding(value.terms, _parent(part)), additive=False
        )


def _parent(part: Part) -> RecordSet:
    assert part.parent is not None
    return part.parent


_MOST_OF_ALL = 1e28
"""Bounds of sums whose total over devices may not be finite."""


def _over_devices(equation: JaxprEqn) -> list[JaxprEqn]:
    """The equations, nested ones included, that communicate between devices or depend on the device's number."""
    within = [
        y
        for program in inner_programs(equation)
        for x in program.jaxpr.eqns
        for y in _over_devices(x)
    ]
    return [equation, *within] if is_over_devices(equation) else within


def shard_map(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of `shard_map`."""
    return _Devices(checker, equation).run(operands)
