"""Loops of known length: what is carried settles, what is released is released in every turn."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from discreet._jax import JaxprEqn, scan_of, source_line
from discreet._jax import primitives as p
from discreet.verify._axes import without
from discreet.verify._bounds import added, fresh, scaled
from discreet.verify._control import (
    Loop,
    after_loop,
    check_carried_keys,
    fresh_key,
    given_up,
    inner,
    not_settled,
    unshared,
)
from discreet.verify._domain import Batch, Group, Key, Part, Private, Public, Scale, Term, Value, constant, new_symbol
from discreet.verify._interpreter import STRUCTURED, Checker, shape_of
from discreet.verify._join import join, of_a_turn, same
from discreet.verify._ledger import Repeat
from discreet.verify._sums import as_sum

_FADES = 1.0
"""The largest factor by which what is carried may be multiplied in a turn."""


@dataclasses.dataclass
class _Scan:
    """One loop while it is looked at."""

    checker: Checker
    equation: JaxprEqn
    loop: Loop
    before: int
    parts: dict[tuple[Batch, int], Batch] = dataclasses.field(default_factory=dict)
    """By what they are cut from, and `before`: with the number of turns, this says which records a turn sees."""

    def turn_of(self, value: Value, shape: tuple[int, ...]) -> Value:
        """What one turn sees of an array that the loop goes through."""
        if isinstance(value, Key):
            self.checker.keys.spend(value, "the turns of the loop", source_line(self.equation))
            kind, why = self.checker.keys.kind(value)
            self.checker.keys.loops.append(self.loop)
            key = self.checker.keys.new(value.names.shape[1:], kind, why)
            self.checker.keys.loops.pop()
            return key
        if isinstance(value, Public):
            return self._public_turn(value, shape)
        assert isinstance(value, Private)
        if value.axes is None:
            found = as_sum(self.checker, value, shape)
            return found.but(additive=False)
        if 0 not in value.axes:
            return value.but(axes=without(value.axes, (0,)))
        before = math.prod(shape[a] for a in value.axes[: value.axes.index(0)])
        assert value.batch is not None
        name = (value.batch, before)
        if name not in self.parts:
            parent = value.batch
            depth = len(self.checker.keys.loops)
            self.parts[name] = Part(parent, parent.masked, depth, loop=self.loop, before=before)
        part = self.parts[name]
        kept = tuple(a for a in value.axes if a != 0)
        terms = None
        if value.terms is not None:
            terms = tuple(Term(t.group, t.leaves, t.bound, part) for t in value.terms)
        return value.but(batch=part, axes=without(kept, (0,)), terms=terms)

    def _public_turn(self, value: Public, shape: tuple[int, ...]) -> Public:
        if value.const is not None and 0 in value.uniform and shape[0]:
            return constant(value.const[0], exact=value.exact)
        uniform = frozenset(i - 1 for i in value.uniform if i > 0)
        numbers = value.const if value.const is not None and value.const.dtype.kind in "iu" else None
        if numbers is not None and len(shape) == 1 and len(np.unique(numbers)) == numbers.size:
            return Public(counter=(self.loop, int(numbers.min()), int(numbers.max())))
        scale = Scale(1.0, ((new_symbol(), 1.0),)) if len(uniform) == len(shape) - 1 else None
        return Public(uniform=uniform, scale=scale, released=value.released)


def _scan(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    parts = scan_of(equation)
    consts, start, xs = parts.apart(operands)
    scan = _Scan(checker, equation, Loop(parts.length), new_symbol())
    for value in start:
        if isinstance(value, Key):
            checker.keys.spend(value, "the first turn of the loop", source_line(equation))
    turns = [scan.turn_of(x, shape_of(v)) for x, v in zip(xs, parts.apart(equation.invars)[2], strict=True)]
    consts = [x.but(additive=False) if isinstance(x, Private) else x for x in consts]
    run = _Run(scan, consts, start, turns)
    saved = checker.keys.snapshot(), checker.items
    run.settle(placed=any(not isinstance(x, Private) for x in xs))
    if scan.parts and not run.placed and run.changes():
        checker.keys.restore(saved[0])
        checker.items = saved[1]
        run.settle(placed=True)
    recorded, checker.items = checker.items, saved[1]
    if recorded:
        checker.items.append(Repeat(scan.loop, recorded))
    shapes = [shape_of(v) for v in equation.outvars]
    count = parts.num_carry
    finals = [run.final(i, shapes[i]) for i in range(count)]
    return finals + [_stacked(scan, x, s) for x, s in zip(run.outputs[count:], shapes[count:], strict=True)]


@dataclasses.dataclass
class _Run:
    """Turn after turn, until what is carried settles."""

    scan: _Scan
    consts: list[Value]
    start: list[Value]
    turns: list[Value]
    carry: list[Value] = dataclasses.field(default_factory=list)
    outputs: list[Value] = dataclasses.field(default_factory=list)
    atoms: dict[int, Term] = dataclasses.field(default_factory=dict)
    placed: bool = False

    def settle(self, *, placed: bool) -> None:
        """Find out what every turn may start with. `placed`: turns differ by more than the records they see."""
        checker, equation = self.scan.checker, self.scan.equation
        self.placed, self.atoms = placed, {}
        parts = set(self.scan.parts.values())
        turns = [
            x.but(positional=True) if placed and isinstance(x, Private) and x.batch in parts else x for x in self.turns
        ]
        jaxpr, own = inner(checker, equation.params["jaxpr"])
        count = len(self.start)
        shapes = [shape_of(v) for v in equation.outvars[:count]]
        self.carry = _first_carry(self.scan, jaxpr, len(self.consts), self.start)
        keys, before = checker.keys.snapshot(), self.scan.before
        for attempt in range(16):
            checker.keys.restore(keys)
            checker.keys.loops.append(self.scan.loop)
            checker.items = []
            begin = [fresh_key(checker, x) if isinstance(x, Key) else x for x in self.carry]
            self.outputs = checker.walk(jaxpr, own, [*self.consts, *begin, *turns])
            check_carried_keys(checker, equation, begin, self.outputs[:count])
            checker.keys.loops.pop()
            joined = []
            for i, (a, b) in enumerate(zip(self.carry, self.outputs[:count], strict=True)):
                joined.append(self._joined(i, a, b, shapes[i], before, attempt))
            settled = all(same(a, b) for a, b in zip(self.carry, joined, strict=True))
            self.carry = joined
            if settled:
                return
        raise not_settled(equation)

    def changes(self) -> bool:
        """Whether something public changes from turn to turn."""
        jaxpr = self.scan.equation.params["jaxpr"].jaxpr
        pairs = zip(self.carry, jaxpr.outvars, jaxpr.invars[len(self.consts) :], strict=False)
        return any(not isinstance(x, Private) and end is not begin for x, end, begin in pairs)

    def _joined(self, i: int, a: Value, b: Value, shape: tuple[int, ...], before: int, attempt: int) -> Value:
        """What the next turn may start with."""
        checker, equation = self.scan.checker, self.scan.equation
        if isinstance(a, Public) and a.counter is not None and a.counter[0] is self.scan.loop and isinstance(b, Public):
            return a
        if i in self.atoms:
            bounded = isinstance(b, Private) and b.terms is not None and b.axes is None
            return a if bounded else given_up(checker, equation, a, b)
        if attempt > 8:
            return given_up(checker, equation, a, b)
        loose = not isinstance(a, Private) or a.axes in (None, ())
        if isinstance(b, Private) and b.axes in (None, ()) and loose:
            atom = self._atom(i, b, shape)
            if atom is not None:
                return atom
        # The records of this turn are not those of the next: a row handed on would be taken for one of theirs.
        b = _escaped(self.scan, b) if isinstance(b, Private) else b
        return of_a_turn(a, join(checker, equation, a, unshared(b, before), shape), before)

    def _atom(self, i: int, b: Private, shape: tuple[int, ...]) -> Private | None:
        """A sum that grows: in a turn it starts with an unknown that must come out once and unchanged."""
        checker, start = self.scan.checker, self.start[i]
        first = as_sum(checker, start, shape) if isinstance(start, Private) else None
        grown = as_sum(checker, b, shape)
        if grown.terms is None or grown.batch is None or (first is not None and first.terms is None):
            return None
        whole = grown.batch
        while isinstance(whole, Part) and whole.loop is self.scan.loop and whole.parent is not None:
            whole = whole.parent
        if whole.depth > len(checker.keys.loops) or (first is not None and first.batch is not whole):
            return None
        # Of unknown size, so that no noise is a known multiple of it.
        self.atoms[i] = Term(
            Group(f"carry {i}", carried=True), frozenset([0]), Scale(1.0, ((new_symbol(), 1.0),)), whole
        )
        return Private(whole, None, b.origin, terms=(self.atoms[i],), finite=True, additive=True)

    def final(self, i: int, shape: tuple[int, ...]) -> Value:
        """What is carried out of the last turn."""
        checker, carry, start = self.scan.checker, self.carry[i], self.start[i]
        if i not in self.atoms or not isinstance(carry, Private) or carry.terms is None:
            return after_loop(checker, _escaped(self.scan, carry) if isinstance(carry, Private) else _plain(carry))
        end = self.outputs[i]
        assert isinstance(end, Private)
        end = as_sum(checker, end, shape)
        initial = as_sum(checker, start, shape).terms or () if isinstance(start, Private) else ()
        total = self._grown(self.atoms[i], end, initial)
        if total is None:
            lost = "[turns] what one record can change grows from turn to turn"
            return checker.unbounded(self.scan.equation, [end], lost)
        return Private(carry.batch, None, end.origin, terms=total, finite=True, additive=end.additive)

    def _grown(self, atom: Term, end: Private, total: tuple[Term, ...]) -> tuple[Term, ...] | None:
        """The bound after all turns, from that after one."""
        sampled = atom.source.sampled
        kept = any(term.group is atom.group for term in end.terms or ())
        for term in end.terms or ():
            if term.group is atom.group:
                factor = term.bound.over(atom.bound)
                if factor is None or factor > _FADES or (sampled and (factor != 1.0 or not end.additive)):
                    return None
                continue
            if term.bound.powers or not math.isfinite(self.scan.loop.length):
                return None
            part = isinstance(term.source, Part) and term.source.loop is self.scan.loop
            if part and sampled and not kept:
                return None  # Which records the last turn sees depends on the others.
            if not part and (term.source.depth > len(self.scan.checker.keys.loops) or (sampled and not end.additive)):
                return None
            # A record is in one part only, so it adds in one turn only; to all other things in every turn.
            bound = term.bound if part else term.bound.times(self.scan.loop.length)
            source = term.source.parent if part and term.source.parent is not None else term.source
            total = added(total, (Term(term.group, term.leaves, bound, source),))
        return total


def _first_carry(scan: _Scan, jaxpr: Any, num_consts: int, start: Sequence[Value]) -> list[Value]:
    """What the first turn starts with; a counter is known as one."""
    carry: list[Value] = []
    for i, value in enumerate(start):
        counter = _counter(scan.loop, jaxpr, jaxpr.invars[num_consts + i], jaxpr.outvars[i], value)
        if counter is not None:
            carry.append(Public(counter=counter))
        else:
            carry.append(value.but(additive=False) if isinstance(value, Private) else value)
    return carry


def _counter(loop: Loop, jaxpr: Any, begin: Any, end: Any, value: Value) -> tuple[Loop, int, int] | None:
    """An integer that grows by a known step in every turn."""
    if not isinstance(value, Public) or value.const is None or value.const.ndim or value.const.dtype.kind not in "iu":
        return None
    step = _increment(jaxpr, begin, end)
    first, last = int(value.const), int(value.const) + step * (int(loop.length) - 1)
    limits = np.iinfo(value.const.dtype)
    if step == 0 or min(first, last) < limits.min or max(first, last) > limits.max:
        return None
    return (loop, min(first, last), max(first, last))


def _increment(jaxpr: Any, begin: Any, end: Any) -> int:
    """The known number that a program adds to one of its inputs to get one of its results; zero if it does something else.

    A function under `jit` is a program of its own, and stays one in JAX 0.12 even if it was said to be inlined.
    """
    for equation in jaxpr.eqns:
        if not any(x is end for x in equation.outvars):
            continue
        if equation.primitive is p.add_p and begin in equation.invars:
            other = equation.invars[1] if equation.invars[0] is begin else equation.invars[0]
            return int(getattr(other, "val", 0))
        if equation.primitive is p.jit_p and begin in equation.invars:
            inside = equation.params["jaxpr"].jaxpr
            return _increment(
                inside, inside.invars[equation.invars.index(begin)], inside.outvars[equation.outvars.index(end)]
            )
    return 0


def _plain(value: Value) -> Value:
    """A counter, after its loop."""
    return Public() if isinstance(value, Public) and value.counter is not None else value


def _escaped(scan: _Scan, value: Private) -> Value:
    """A sample that was drawn within a turn has no event outside of it."""
    batch = value.batch
    own = isinstance(batch, Part) and batch.loop is scan.loop
    inside = own or (batch is not None and batch.depth > len(scan.checker.keys.loops))
    if inside:
        why = "[turns] values of a sample leave the turn of the loop that drew it, before their release"
        return scan.checker.unbounded(scan.equation, [value.but(batch=None)], why)
    return value


def _stacked(scan: _Scan, value: Value, shape: tuple[int, ...]) -> Value:
    """The results of all turns, one upon the other."""
    if isinstance(value, Key):
        scan.checker.keys.loops.append(scan.loop)
        scan.checker.keys.spend(value, "the results of the loop", source_line(scan.equation))
        scan.checker.keys.loops.pop()
        return scan.checker.keys.new(shape, *scan.checker.keys.kind(value))
    if isinstance(value, Public):
        return Public(uniform=frozenset(i + 1 for i in value.uniform), released=value.released)
    assert isinstance(value, Private)
    if any(symbol >= scan.before for t in value.terms or () for symbol, _ in t.bound.powers):
        value = value.but(terms=None, finite=False, why=value.why or "[turns] a bound changes from turn to turn")
    batch = value.batch
    part = isinstance(batch, Part) and batch.loop is scan.loop
    if part and isinstance(batch, Part) and value.axes is not None and batch.parent is not None:
        axes = [a + 1 for a in value.axes]
        places = (k for k in range(len(axes) + 1) if math.prod(shape[a] for a in axes[:k]) == batch.before)
        if (place := next(places, None)) is None:
            why = "[rows] the rows of a turn were put together, and turns are no longer one axis of the records"
            return scan.checker.unbounded(scan.equation, [value], why)
        axes.insert(place, 0)
        terms = value.terms
        if terms is not None:
            terms = tuple(Term(t.group, t.leaves, t.bound, batch.parent) for t in terms)
        return value.but(batch=batch.parent, axes=tuple(axes), terms=terms)
    if not part and value.axes is not None:
        # Every turn gives other rows of the same records.
        terms = None if value.terms is None else fresh_multiple(value, scan.loop.length)
        return _escaped(scan, value.but(axes=tuple(a + 1 for a in value.axes), terms=terms))
    found = as_sum(scan.checker, value, shape[1:])
    grows = found.terms is None or any(t.bound.powers for t in found.terms)
    if grows or batch is None or batch.sampled:
        why = found.why or "[turns] what one record can change grows from turn to turn"
        return scan.checker.unbounded(scan.equation, [found], why)
    assert found.terms is not None
    factor = Scale(1.0 if part else math.sqrt(scan.loop.length))
    parent = batch.parent if part and batch.parent is not None else batch
    terms = tuple(Term(t.group, t.leaves, t.bound, parent) for t in scaled(found.terms, factor))
    return _escaped(scan, found.but(batch=parent, terms=terms))


def fresh_multiple(value: Private, count: float) -> tuple[Term, ...] | None:
    """The bound of as many slices with the bound of a value, one upon the other."""
    terms = value.terms or ()
    if len(terms) != 1 or terms[0].bound.powers:
        return None
    return fresh(terms[0].bound.times(math.sqrt(count)), terms[0].source)


STRUCTURED[p.scan_p] = _scan
