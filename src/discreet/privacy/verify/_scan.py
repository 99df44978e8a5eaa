"""`lax.scan`: a loop over the leading axis of arrays, with sums that grow.

An iteration reads a slice of each scanned array. Where the axis numbers records, that slice is a
`Part`: the records of this iteration, and of no other. The invariant is found as for any loop
(`settled` in `_control`), with two cases that would lose too much. A public number that changes
becomes a number of unknown value. A sum that grows becomes an unknown, the atom, that must leave an
iteration once and unchanged; the increment of one iteration is multiplied by the number of
iterations, or counted once where each record is in the part of one iteration only (`_Scan._grown`).

If iterations differ by more than their records, a record's place matters, and the walk is repeated
with that (`placed`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from discreet._jax import Jaxpr, JaxprEqn, Literal, primitives as p, scan_of, source_line
from discreet.privacy.verify._bounds import (
    Group,
    Part,
    RecordSet,
    Term,
    Terms,
    added,
    bounding,
    fresh,
    group_of,
    named_since,
    new_symbol,
    scaled,
    total_of,
    unnamed,
)
from discreet.privacy.verify._control import (
    CHANGES,
    GROWS,
    after_loop,
    given_up,
    inner,
    settled,
    widened,
)
from discreet.privacy.verify._domain import Axes, Key, Private, Public, Value, constant, without
from discreet.privacy.verify._errors import Why
from discreet.privacy.verify._interpreter import Checker
from discreet.privacy.verify._record import Loop, Repeat
from discreet.privacy.verify._registry import STRUCTURED, rule
from discreet.privacy.verify._rows import as_sum, shape_of
from discreet.privacy.verify.recognize._counters import MOST_TURNS, counted, derived_from
from discreet.privacy.verify.recognize._facts import Turns

_FADES = 1.0
"""The largest factor by which an iteration may multiply the carry."""
_NOTHING = 1e-9
"""What a sum of zeros counts as."""


@dataclasses.dataclass
class _Scan:
    """The analysis of one loop, repeated until the carry converges."""

    checker: Checker
    equation: JaxprEqn
    loop: Loop
    before: int
    reverse: bool
    consts: list[Value]
    start: list[Value]
    turns: list[Value] = dataclasses.field(default_factory=list)
    # By parent and `before`: with the number of the iteration, these determine its records.
    parts: dict[tuple[RecordSet, int], RecordSet] = dataclasses.field(default_factory=dict)
    carry: list[Value] = dataclasses.field(default_factory=list)
    outputs: list[Value] = dataclasses.field(default_factory=list)
    atoms: dict[int, Term] = dataclasses.field(default_factory=dict)
    # Of atoms, in each iteration
    sizes: dict[int, Turns | None] = dataclasses.field(default_factory=dict)
    placed: bool = False

    def turn_of(self, value: Value, shape: Axes) -> Value:
        """The slice of a scanned array in one iteration."""
        if isinstance(value, Key):
            line = source_line(self.equation)
            return self.checker.keys.shared(
                value, value.names.shape[1:], self.loop, "the iterations of the loop", line
            )
        if isinstance(value, Public):
            return self._public_turn(value, shape)
        assert isinstance(value, Private)
        # A sum over records, entry by entry: each iteration reads a part, and any part is within
        # the bound of all.
        if value.axes is None:
            return as_sum(self.checker, value, shape).but(additive=False)
        if 0 not in value.axes:
            return value.but(axes=without(value.axes, (0,)))
        # Records read by one iteration only: so each iteration's contribution to a sum comes from
        # other records.
        before = math.prod(shape[a] for a in value.axes[: value.axes.index(0)])
        assert value.batch is not None
        name = (value.batch, before)
        if name not in self.parts:
            depth = len(self.checker.keys.loops)
            self.parts[name] = Part(
                value.batch, value.batch.masked, depth, loop=self.loop, before=before
            )
        part = self.parts[name]
        kept = tuple(a for a in value.axes if a != 0)
        return value.but(batch=part, axes=without(kept, (0,)), terms=bounding(value.terms, part))

    def _public_turn(self, value: Public, shape: Axes) -> Public:
        if value.const is not None and 0 in value.uniform and shape[0]:
            return constant(value.const[0], exact=value.exact, error=value.error)
        uniform = frozenset(i - 1 for i in value.uniform if i > 0)
        turns = None
        const = value.const
        if (
            const is not None
            and len(shape) == 1
            and const.dtype.kind in "biuf"
            and shape[0] <= MOST_TURNS
        ):
            turns = Turns(
                self.loop, tuple((const[::-1] if self.reverse else const).tolist()), value.error
            )
        if (
            const is not None
            and const.dtype.kind in "iu"
            and len(shape) == 1
            and len(np.unique(const)) == const.size
        ):
            return Public(counter=(self.loop, int(const.min()), int(const.max())), turns=turns)
        scale = unnamed() if len(uniform) == len(shape) - 1 else None
        self.checker.schedules.keep(scale, turns)
        return Public(uniform=uniform, scale=scale, turns=turns, released=value.released)

    def settle(self, *, placed: bool) -> None:
        """Find the invariant. `placed`: iterations differ by more than their records."""
        checker = self.checker
        equation = self.equation
        self.placed = placed
        self.atoms = {}
        self.sizes = {}
        if placed:
            checker.cuts.placed.add(self.loop)
        parts = set(self.parts.values())
        turns = [
            x.but(positional=True) if placed and isinstance(x, Private) and x.batch in parts else x
            for x in self.turns
        ]
        jaxpr, own = inner(checker, equation.params["jaxpr"])
        begins = jaxpr.invars[len(self.consts) :]
        start = self.start
        counters = map(functools.partial(counted, self.loop, jaxpr), begins, jaxpr.outvars, start)
        unknown = [x.but(additive=False) if isinstance(x, Private) else x for x in start]
        first = [x if found is None else found for x, found in zip(unknown, counters, strict=True)]

        self.carry, self.outputs = settled(
            checker,
            equation,
            self.loop,
            first,
            lambda begin: checker.walk(jaxpr, own, [*self.consts, *begin, *turns]),
            self._joined,
        )

    def changes(self) -> bool:
        """True if anything but growing sums changes between iterations: public numbers, or carried rows."""
        jaxpr = self.equation.params["jaxpr"].jaxpr
        pairs = zip(self.carry, jaxpr.outvars, jaxpr.invars[len(self.consts) :], strict=False)
        for i, (x, end, begin) in enumerate(pairs):
            settled = end is begin or (isinstance(x, Private) and i in self.atoms)
            counts = isinstance(x, Public) and x.counter is not None
            if not settled and not (counts and self._only_cuts(jaxpr, begin, end)):
                return True
        return False

    def _only_cuts(self, jaxpr: Jaxpr, begin: Any, end: Any) -> bool:
        """True if the counter only selects rows: all iterations do the same to different rows."""
        told = derived_from(self.checker, jaxpr, {begin})
        return told is not None and not told & {
            x for x in jaxpr.outvars if x is not end and not isinstance(x, Literal)
        }

    def _joined(self, i: int, a: Value, b: Value, attempt: int) -> Value:
        """The value at the start of the next iteration."""
        checker = self.checker
        equation = self.equation
        before = self.before
        shape = shape_of(equation.outvars[i])
        if (
            isinstance(a, Public)
            and a.counter is not None
            and a.counter[0] is self.loop
            and isinstance(b, Public)
        ):
            return a
        # It started as an atom: it only has to end as a sum with a bound, which `_grown` checks.
        if i in self.atoms:
            if not isinstance(b, Private) or b.terms is None or b.axes is not None:
                return given_up(checker, equation, a, b)
            sizes = self._sizes(i, b.terms, shape)
            if sizes == self.sizes.get(i) or not isinstance(a, Private):
                return a
            self.sizes[i] = sizes
            self.atoms[i] = dataclasses.replace(self.atoms[i], bound=unnamed())
            checker.schedules.keep(self.atoms[i].bound, sizes)
            return a.but(terms=(self.atoms[i],))
        if attempt > 10:
            return given_up(checker, equation, a, b)
        loose = not isinstance(a, Private) or a.axes in (None, ())
        if isinstance(b, Private) and b.axes in (None, ()) and loose:
            atom = self._atom(i, b, shape)
            if atom is not None:
                return atom
        # The records of this iteration are not those of the next: a carried row would be taken for
        # one of theirs.
        b = self.escaped(b) if isinstance(b, Private) else b
        return widened(checker, equation, a, b, shape, attempt, before)

    def _atom(self, i: int, b: Private, shape: Axes) -> Private | None:
        """A growing sum: it starts an iteration as an unknown that must leave it once and unchanged."""
        checker = self.checker
        start = self.start[i]
        first = as_sum(checker, start, shape) if isinstance(start, Private) else None
        grown = as_sum(checker, b, shape)
        if (
            grown.terms is None
            or grown.batch is None
            or (first is not None and first.terms is None)
        ):
            return None
        # The batch of the sum's records: a part made by this loop is one iteration's, and the sum
        # is over all.
        whole = grown.batch
        while isinstance(whole, Part) and whole.loop is self.loop and whole.parent is not None:
            whole = whole.parent
        if whole.depth > len(checker.keys.loops) or (
            first is not None and first.batch is not whole
        ):
            return None
        # Its size is unknown, so no noise is a known multiple of it.
        self.atoms[i] = Term(Group(carried=True), frozenset([0]), unnamed(), whole)
        return Private(whole, None, b.origin, terms=(self.atoms[i],), finite=True, additive=True)

    def _sizes(self, i: int, end: Terms, shape: Axes) -> Turns | None:
        """A bound on a growing sum at the start of each iteration, where all iterations add as much."""
        atom = self.atoms[i]
        start = self.start[i]
        first = as_sum(self.checker, start, shape).terms or () if isinstance(start, Private) else ()
        fade = self._fade(atom, end)
        least = total_of(first)
        step = total_of(tuple(t for t in end if t.group is not atom.group))
        parts = any(isinstance(t.source, Part) and t.source.loop is self.loop for t in end)
        if (
            fade is None
            or step is None
            or least is None
            or step.powers
            or least.powers
            or parts
            or atom.source.sampled
        ):
            return None
        sizes: list[float] = []
        size = max(least.factor, _NOTHING)
        for _ in range(min(self.loop.length, MOST_TURNS)):
            sizes.append(size)
            size = fade * size + step.factor
        return Turns(self.loop, tuple(sizes)) if len(sizes) == self.loop.length else None

    def _fade(self, atom: Term, end: Terms) -> float | None:
        """The factor by which an iteration multiplies the carry, at most; None if unknown, or above `_FADES`."""
        factors = [t.bound.over(atom.bound) for t in end if t.group is atom.group]
        known = [x for x in factors if x is not None]
        return sum(known) if len(known) == len(factors) and sum(known) <= _FADES else None

    def final(self, i: int, shape: Axes) -> Value:
        """The carry after the last iteration."""
        checker = self.checker
        carry = self.carry[i]
        start = self.start[i]
        if i not in self.atoms or not isinstance(carry, Private) or carry.terms is None:
            return after_loop(checker, self.escaped(carry) if isinstance(carry, Private) else carry)
        end = self.outputs[i]
        assert isinstance(end, Private)
        end = as_sum(checker, end, shape)
        initial = as_sum(checker, start, shape).terms or () if isinstance(start, Private) else ()
        total = self._grown(self.atoms[i], end, initial)
        if total is None:
            return checker.unbounded(self.equation, [end], GROWS)
        return Private(
            carry.batch, None, end.origin, terms=total, finite=True, additive=end.additive
        )

    def _grown(self, atom: Term, end: Private, total: Terms) -> Terms | None:
        """The bound after all iterations, from that after one."""
        sampled = atom.source.sampled
        terms = end.terms or ()
        kept = any(term.group is atom.group for term in terms)
        fade = self._fade(atom, terms)
        if fade is None or (sampled and kept and (fade != 1.0 or not end.additive)):
            return None
        # What an iteration adds is multiplied by the factor in each later one.
        times = self.loop.length if fade == 1.0 else (1.0 - fade**self.loop.length) / (1.0 - fade)
        for term in terms:
            if term.group is atom.group:
                continue
            if term.bound.powers or not math.isfinite(self.loop.length):
                return None
            part = isinstance(term.source, Part) and term.source.loop is self.loop
            if part and sampled and not kept:
                return None  # The records of the last iteration depend on the others.
            if not part and (
                term.source.depth > len(self.checker.keys.loops) or (sampled and not end.additive)
            ):
                return None
            # A record is in one part, so it contributes in one iteration; to values outside of
            # parts, in every iteration.
            bound = term.bound if part else term.bound * times
            source = term.source.parent if part and term.source.parent is not None else term.source
            # Sums of the same vectors with other weights share no bound.
            group = (
                term.group if fade == 1.0 else group_of("faded", term.group, fade, self.loop.length)
            )
            total = added(total, (Term(group, term.leaves, bound, source),))
        return total

    def escaped(self, value: Private) -> Value:
        """Drop bounds of a sample drawn within an iteration, which has no event outside of it."""
        batch = value.batch
        own = isinstance(batch, Part) and batch.loop is self.loop
        if own or (batch is not None and batch.depth > len(self.checker.keys.loops)):
            why = Why.TURNS(
                "values of a sample leave the iteration that drew it, before their release"
            )
            return self.checker.unbounded(self.equation, [value.but(batch=None)], why)
        return value

    def stacked(self, value: Value, shape: Axes) -> Value:
        """The stacked results of all iterations."""
        if isinstance(value, Key):
            self.checker.keys.spend_in(
                self.loop, value, "the results of the loop", source_line(self.equation)
            )
            return self.checker.keys.new(shape, *self.checker.keys.kind(value))
        if isinstance(value, Public):
            return Public(uniform=frozenset(i + 1 for i in value.uniform), released=value.released)
        assert isinstance(value, Private)
        if named_since(value.terms, self.before):
            value = value.but(terms=None, finite=False, why=value.why or CHANGES)
        batch = value.batch
        part = isinstance(batch, Part) and batch.loop is self.loop
        if part and isinstance(batch, Part) and value.axes is not None and batch.parent is not None:
            axes = [a + 1 for a in value.axes]
            places = (
                k
                for k in range(len(axes) + 1)
                if math.prod(shape[a] for a in axes[:k]) == batch.before
            )
            if (place := next(places, None)) is None:
                why = Why.ROWS(
                    "the rows of an iteration were merged, and iterations are no longer one axis of the records"
                )
                return self.checker.unbounded(self.equation, [value], why)
            axes.insert(place, 0)
            return value.but(
                batch=batch.parent, axes=tuple(axes), terms=bounding(value.terms, batch.parent)
            )
        if not part and value.axes is not None:
            # Each iteration gives other rows of the same records: as many stacked slices with the
            # bound of one.
            one = (
                value.terms
                if value.terms and len(value.terms) == 1 and not value.terms[0].bound.powers
                else None
            )
            terms = (
                fresh(one[0].bound * math.sqrt(self.loop.length), one[0].source) if one else None
            )
            return self.escaped(value.but(axes=tuple(a + 1 for a in value.axes), terms=terms))
        found = as_sum(self.checker, value, shape[1:])
        grows = found.terms is None or any(t.bound.powers for t in found.terms)
        if grows or batch is None or batch.sampled:
            return self.checker.unbounded(self.equation, [found], found.why or GROWS)
        assert found.terms is not None
        factor = 1.0 if part else math.sqrt(self.loop.length)
        parent = batch.parent if part and batch.parent is not None else batch
        return self.escaped(
            found.but(batch=parent, terms=bounding(scaled(found.terms, factor), parent))
        )


@rule(p.scan_p, table=STRUCTURED)
def _scan(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    parts = scan_of(equation)
    consts, start, xs = parts.apart(operands)
    consts = [x.but(additive=False) if isinstance(x, Private) else x for x in consts]
    scan = _Scan(checker, equation, Loop(parts.length), new_symbol(), parts.reverse, consts, start)
    pairs = zip(xs, parts.apart(equation.invars)[2], strict=True)
    scan.turns = [scan.turn_of(x, shape_of(v)) for x, v in pairs]
    saved = checker.keys.snapshot(), checker.items
    # Or by the rows that an iteration takes of an array without one axis of records, such as
    # variants of the whole.
    own = [
        isinstance(x, Private) and isinstance(x.batch, Part) and x.batch.loop is scan.loop
        for x in scan.turns
    ]
    scan.settle(placed=not all(own))
    by_number = any(part.loop is scan.loop for part in checker.cuts.windows.values())
    if (scan.parts or by_number) and not scan.placed and scan.changes():
        checker.keys.restore(saved[0])
        checker.items = saved[1]
        scan.settle(placed=True)
    recorded = checker.items
    checker.items = saved[1]
    if recorded:
        checker.items.append(Repeat(scan.loop, recorded, scan.before))
    shapes = [shape_of(v) for v in equation.outvars]
    count = parts.num_carry
    finals = [scan.final(i, shapes[i]) for i in range(count)]
    return finals + [
        scan.stacked(x, s) for x, s in zip(scan.outputs[count:], shapes[count:], strict=True)
    ]
