"""Nested programs: the checker enters calls; branches and loops need public decisions.

Control flow is observable, at least by timing, so a private decision is refused. Under a public one both runs take the same
branch, and claims true of all branches are true of the result (`join`). For a loop the checker searches for an invariant: it
walks through the body with the values at the start of an iteration, joins them with the values at its end, and repeats until
nothing changes. Claims true at the start of one iteration are then true at its end, so by induction in every iteration.

Each join drops claims, and values that do not converge lose their bound (`given_up`), so this terminates. Two cases would
lose too much and are special: a public number that changes becomes a number of unknown value, and a sum that grows becomes an
unknown, the atom, that must leave an iteration once and unchanged; the increment of one iteration is multiplied by the number
of iterations (`_Scan._grown`).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from discreet._jax import (
    Jaxpr,
    JaxprEqn,
    Literal,
    aval,
    hi_primitives,
    inner_programs,
    is_key,
    primitives as p,
    scan_of,
    shard_map_p,
    source_line,
)
from discreet.privacy.verify._domain import (
    KNOWN,
    PRIVATE,
    SECRET,
    Batch,
    Group,
    Key,
    Part,
    Private,
    Public,
    Sample,
    Term,
    Turns,
    Value,
    added,
    bounding,
    constant,
    fresh,
    new_symbol,
    same,
    scaled,
    source_of,
    total_of,
    unnamed,
    without,
)
from discreet.privacy.verify._errors import PrivacyError, Why, chain_of
from discreet.privacy.verify._events import Choice, Repeat
from discreet.privacy.verify._interpreter import (
    ELEMENTWISE_SHAPES,
    INLINED,
    STRUCTURED,
    Checker,
    as_sum,
    rule,
    shape_of,
    varies_along,
)

_GROWS = Why.TURNS("one record's influence grows with each iteration")
_CHANGES = Why.TURNS("a bound changes between iterations")


def join(checker: Checker, equation: JaxprEqn, a: Value, b: Value, shape: tuple[int, ...]) -> Value:
    """Least upper bound (join) of two abstract values."""
    if isinstance(a, Key) or isinstance(b, Key):
        return a
    if isinstance(a, Public) and isinstance(b, Public):
        return a.joined(b, len(shape))
    if isinstance(a, Private) and isinstance(b, Private):
        lost = Why.ROWS("branches disagree about the records that a value depends on")
        return a.joined(b) or checker.unbounded(equation, [a, b], lost)
    private, public = (a, b) if isinstance(a, Private) else (b, a)
    assert isinstance(private, Private)
    assert isinstance(public, Public)
    linf = None if private.linf is None or public.magnitude is None else max(private.linf, public.magnitude)
    if private.axes is None:
        # The public case is equal in both runs, so the distance between the runs is that of the private case.
        return private.but(additive=False, linf=linf)
    zero = public.is_zero
    return private.but(
        terms=private.terms if zero else None,
        linf=linf,
        zero=private.zero if zero else frozenset(),
        finite=private.finite and math.isfinite(math.inf if public.magnitude is None else public.magnitude),
        positional=private.positional or varies_along(public, shape, private.axes),
    )


def widened(
    checker: Checker, equation: JaxprEqn, a: Value, b: Value, shape: tuple[int, ...], attempt: int, before: int
) -> Value:
    """The value at the start of the next iteration, from those at the start and the end of this one.

    It is their join. Bounds of rows that still grow after some attempts are dropped, so that the other claims converge.
    """
    joined = join(checker, equation, a, unshared(b, before), shape)
    if attempt >= 6 and isinstance(a, Private) and isinstance(joined, Private) and joined.axes is not None:
        grown = {name: None for name in ("terms", "linf") if getattr(joined, name) != getattr(a, name)}
        return dataclasses.replace(joined, **grown)
    if not (isinstance(a, Public) and isinstance(joined, Public)) or a.scale is None or joined.scale is None:
        return joined
    # A number that is already unknown, named within the loop (from `before` on), needs no new name.
    free = a.scale.factor == 1.0 and [(name >= before, power) for name, power in a.scale.powers] == [(True, 1.0)]
    return dataclasses.replace(joined, scale=a.scale) if free else joined


def inner(checker: Checker, program: Any) -> tuple[Jaxpr, list[Value]]:
    """The jaxpr of an open or closed program, and its constants."""
    return getattr(program, "jaxpr", program), [captured(checker, x) for x in getattr(program, "consts", ())]


def captured(checker: Checker, value: Any) -> Value:
    """The abstract value of a captured constant. A captured key is the same in every run."""
    if is_key(value):
        return checker.keys.new(value.shape, KNOWN, "it is a constant of the program, the same in every run")
    if value.size <= _SMALL and not jnp.issubdtype(value.dtype, jnp.complexfloating):
        return constant(np.asarray(value))
    return Public()


_SMALL = 2**18  # includes the thresholds of a sampler, whose values determine its law


@rule(p.jit_p, p.remat_p, p.closed_call_p, p.custom_jvp_call_p, p.custom_vjp_call_p, *hi_primitives(), table=INLINED)
def _call(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """Walk through the called program; custom derivative rules were applied at trace time."""
    params: Any = equation.params
    program = params["jaxpr"] if "jaxpr" in params else params.get("call_jaxpr")
    jaxpr, consts = inner(checker, inner_programs(equation)[0] if equation.primitive in hi_primitives() else program)
    return checker.walk(jaxpr, consts, operands)


def refuse_private(checker: Checker, equation: JaxprEqn, value: Value, what: str) -> None:
    """Refuse control flow that depends on a private value, since it is observable, at least by timing."""
    if isinstance(value, Private):
        chain = chain_of(checker.origin(equation, [value], what))
        raise Why.CONTROL.refusal(f"the {what} at {source_line(equation)} depends on records.", *chain)


@rule(shard_map_p, table=STRUCTURED)
def _shard_map(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    from discreet.privacy.verify._devices import shard_map  # few programs run on several devices

    return shard_map(checker, equation, operands)


@rule(p.cond_p, table=STRUCTURED)
def _cond(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    which, *arguments = operands
    refuse_private(checker, equation, which, "choice of a branch")
    # Every branch starts with the same keys, and a key that one branch uses is used.
    keys = checker.keys.snapshot()
    items = checker.items
    before = new_symbol()
    outcomes: list[list[Value]] = []
    branches: list[list[Any]] = []
    used = []
    for program in equation.params["branches"]:
        checker.keys.restore(keys)
        checker.items = []
        jaxpr, consts = inner(checker, program)
        outcomes.append(checker.walk(jaxpr, consts, arguments))
        branches.append(checker.items)
        used.append(checker.keys.snapshot())
    checker.items = items
    checker.keys.restore(keys)
    checker.keys.merge(used)
    if any(branches):
        checker.items.append(Choice(branches, before))
    # The event of a sample drawn in a branch ends with it, so no value of that sample may leave it.
    drawn = [x for branch in branches for x in branch if isinstance(x, Sample)]
    results: list[Value] = []
    for values, variable in zip(zip(*outcomes, strict=True), equation.outvars, strict=True):
        results.append(_after_branches(checker, equation, list(values), shape_of(variable), drawn))
    return results


def _after_branches(
    checker: Checker, equation: JaxprEqn, values: list[Value], shape: tuple[int, ...], drawn: list[Sample]
) -> Value:
    if isinstance(values[0], Key):
        kinds = [checker.keys.kind(v) for v in values if isinstance(v, Key)]
        for value in values:
            if isinstance(value, Key):
                checker.keys.spend(value, "the result of a branch", source_line(equation))
        worst = min(kinds, key=lambda k: (PRIVATE, KNOWN, SECRET).index(k[0]))
        return checker.keys.new(shape, *worst)
    result = values[0]
    for value in values[1:]:
        result = join(checker, equation, result, value, shape)
    if isinstance(result, Private) and result.batch in drawn:
        why = Why.TURNS("a sample leaves the branch it was drawn in, before its release")
        return checker.unbounded(equation, [result], why)
    return result


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """A loop, compared by identity. The length is infinite if unknown, and an expression if open."""

    length: Any


def unshared(value: Value, before: int) -> Value:
    """A value for the next iteration: joint bounds made in this iteration do not apply to values of the next."""
    if not isinstance(value, Private) or value.terms is None:
        return value
    # A number named in this iteration has another value in the next.
    if any(symbol >= before for t in value.terms for symbol, _ in t.bound.powers):
        return value.but(terms=None, finite=False, why=value.why or _CHANGES)
    if all(t.group.serial < before for t in value.terms):
        return value
    # A group made in this iteration belongs to it: the next makes another, and the two share no bound.
    whole = total_of(value.terms)
    terms = None if whole is None or whole.powers else fresh(whole, source_of(value.terms))
    return value.but(terms=terms, finite=value.finite)


def settled(
    checker: Checker,
    equation: JaxprEqn,
    loop: Loop,
    carry: list[Value],
    turn: Callable[[list[Value]], list[Value]],
    joined: Callable[[int, Value, Value, int], Value],
) -> tuple[list[Value], list[Value]]:
    """Find the invariant of a loop: the values at the start and the end of any iteration; `checker` has its releases.

    `turn` maps the values at the start of an iteration to those at its end, the carry first. `joined` maps a position in the
    carry, its start and end, and the number of the attempt to the value at the start of the next iteration.
    """
    line = source_line(equation)
    for value in carry:
        if isinstance(value, Key):
            checker.keys.spend(value, "the first iteration of the loop", line)
    keys = checker.keys.snapshot()
    for attempt in range(16):
        checker.keys.restore(keys)
        checker.keys.loops.append(loop)
        checker.items = []
        # Keys get new names: the next iteration's key is not the one that this iteration uses.
        begin = [checker.keys.anew(x) if isinstance(x, Key) else x for x in carry]
        end = turn(begin)
        for first, last in zip(begin, end, strict=False):
            if isinstance(first, Key) and isinstance(last, Key):
                # Carrying a key over is its use; it must be as secret as the one before.
                kind, why = checker.keys.kind(last)
                if kind != checker.keys.kind(first)[0]:
                    raise Why.KEY.refusal(f"the loop at {line} carries over a key that is not secret: {why}.", line)
                checker.keys.spend(last, "the next iteration of the loop", line)
        checker.keys.loops.pop()
        start = carry
        carry = [joined(i, a, b, attempt) for i, (a, b) in enumerate(zip(carry, end, strict=False))]
        if all(same(a, b) for a, b in zip(start, carry, strict=True)):
            return carry, end
    raise Why.CONTROL.refusal(f"no loop invariant was found at {line} (16 iterations).", line)


@rule(p.while_p, table=STRUCTURED)
def _while(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    params: Any = equation.params
    num_test = params["cond_nconsts"]
    num_body = params["body_nconsts"]
    test_consts = operands[:num_test]
    body_consts = operands[num_test : num_test + num_body]
    start = operands[num_test + num_body :]
    line = source_line(equation)
    # A loop of unknown length may release nothing; one that counts to an open parameter has a length, as an expression.
    counter, turns = _open_count(checker, equation, start) or (None, None)
    loop = Loop(float("inf") if turns is None else turns)
    (test, test_own) = inner(checker, params["cond_jaxpr"])
    (body, body_own) = inner(checker, params["body_jaxpr"])
    shapes = [shape_of(v) for v in equation.outvars]
    carry = [x.but(additive=False) if isinstance(x, Private) else x for x in start]
    items = checker.items
    before = new_symbol()
    if counter is not None:
        carry[counter] = Public(counter=(loop, 0, np.iinfo(aval(equation.outvars[counter]).dtype).max - 1))

    def turn(begin: list[Value]) -> list[Value]:
        (decision,) = checker.walk(test, test_own, [*test_consts, *begin])
        refuse_private(checker, equation, decision, "condition of a while loop")
        if any(isinstance(x, Key) and checker.keys.use_of(x) for x in begin):
            # The condition depends on the key that leaves the loop: it could wait for one that makes little noise.
            seen = f"the condition of the while loop at {line} draws from a key that the loop carries over."
            raise Why.KEY.refusal(seen, line)
        return checker.walk(body, body_own, [*body_consts, *begin])

    def joined(i: int, a: Value, b: Value, attempt: int) -> Value:
        if i == counter:
            return a
        if attempt >= 10:
            return given_up(checker, equation, a, b)
        return widened(checker, equation, a, b, shapes[i], attempt, before)

    carry, _ = settled(checker, equation, loop, carry, turn, joined)
    if checker.items and turns is None:
        raise PrivacyError(
            f"the while loop at {line} makes a release in every iteration, and their number is unknown.",
            "use jax.lax.scan, or jax.lax.fori_loop between Python numbers or from 0 to a symbol: their number of iterations "
            "is fixed beforehand.",
            chain=(line,),
        )
    if checker.items:
        items.append(Repeat(loop, checker.items))
    checker.items = items
    return [after_loop(checker, x) for x in carry]


def _open_count(checker: Checker, equation: JaxprEqn, start: list[Value]) -> tuple[int, Any] | None:
    """The position of the counter and the number of iterations, for a loop that counts from 0 to an open parameter."""
    params: Any = equation.params
    test = params["cond_jaxpr"].jaxpr
    body = params["body_jaxpr"].jaxpr
    if params["cond_nconsts"] or len(test.eqns) != 1 or test.eqns[0].primitive is not p.lt_p:
        return None
    places = [test.invars.index(x) for x in test.eqns[0].invars if x in test.invars]
    if len(places) != 2 or test.outvars[0] is not test.eqns[0].outvars[0]:
        return None
    counter, end = places
    begins = body.invars[params["body_nconsts"] :]
    ends = body.outvars
    first = start[counter]
    last = start[end]
    if ends[end] is not begins[end] or not isinstance(first, Public) or not isinstance(last, Public):
        return None
    turns = checker.symbols.expression(last.scale)
    if first.const is None or first.const.ndim or first.const.dtype.kind != "i" or first.const != 0 or turns is None:
        return None
    return (counter, turns) if _increment(body, begins[counter], ends[counter]) == 1 else None


def after_loop(checker: Checker, value: Value) -> Value:
    """Rename a carried value after its loop: claims about it within an iteration may no longer hold."""
    if isinstance(value, Key):
        return checker.keys.anew(value)
    if isinstance(value, Private):
        return value.but()
    if value.counter is not None:
        return Public()
    named = value.scale is not None and value.scale.powers
    return dataclasses.replace(value, scale=unnamed()) if named else value


def given_up(checker: Checker, equation: JaxprEqn, a: Value, b: Value) -> Value:
    private = [x for x in (a, b) if isinstance(x, Private)]
    if private:
        return checker.unbounded(equation, private, _GROWS)
    return Public() if isinstance(a, Public) else a


_MOST_TURNS = 2**16
"""For longer loops, the values of numbers in each iteration are not kept."""
_FADES = 1.0
"""The largest factor by which an iteration may multiply the carry."""


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
    parts: dict[tuple[Batch, int], Batch] = dataclasses.field(default_factory=dict)
    carry: list[Value] = dataclasses.field(default_factory=list)
    outputs: list[Value] = dataclasses.field(default_factory=list)
    atoms: dict[int, Term] = dataclasses.field(default_factory=dict)
    placed: bool = False

    def turn_of(self, value: Value, shape: tuple[int, ...]) -> Value:
        """The slice of a scanned array in one iteration."""
        if isinstance(value, Key):
            line = source_line(self.equation)
            return self.checker.keys.shared(value, value.names.shape[1:], self.loop, "the iterations of the loop", line)
        if isinstance(value, Public):
            return self._public_turn(value, shape)
        assert isinstance(value, Private)
        # A sum over records, entry by entry: each iteration reads a part, and any part is within the bound of all.
        if value.axes is None:
            return as_sum(self.checker, value, shape).but(additive=False)
        if 0 not in value.axes:
            return value.but(axes=without(value.axes, (0,)))
        # Records read by one iteration only: so each iteration's contribution to a sum comes from other records.
        before = math.prod(shape[a] for a in value.axes[: value.axes.index(0)])
        assert value.batch is not None
        name = (value.batch, before)
        if name not in self.parts:
            depth = len(self.checker.keys.loops)
            self.parts[name] = Part(value.batch, value.batch.masked, depth, loop=self.loop, before=before)
        part = self.parts[name]
        kept = tuple(a for a in value.axes if a != 0)
        return value.but(batch=part, axes=without(kept, (0,)), terms=bounding(value.terms, part))

    def _public_turn(self, value: Public, shape: tuple[int, ...]) -> Public:
        if value.const is not None and 0 in value.uniform and shape[0]:
            return constant(value.const[0], exact=value.exact, error=value.error)
        uniform = frozenset(i - 1 for i in value.uniform if i > 0)
        turns = None
        const = value.const
        if const is not None and len(shape) == 1 and const.dtype.kind in "biuf" and shape[0] <= _MOST_TURNS:
            turns = Turns(self.loop, tuple((const[::-1] if self.reverse else const).tolist()), value.error)
        if const is not None and const.dtype.kind in "iu" and len(shape) == 1 and len(np.unique(const)) == const.size:
            return Public(counter=(self.loop, int(const.min()), int(const.max())), turns=turns)
        scale = unnamed() if len(uniform) == len(shape) - 1 else None
        self.checker.schedule(scale, turns)
        return Public(uniform=uniform, scale=scale, turns=turns, released=value.released)

    def settle(self, *, placed: bool) -> None:
        """Find the invariant. `placed`: iterations differ by more than their records."""
        checker = self.checker
        equation = self.equation
        self.placed = placed
        self.atoms = {}
        if placed:
            checker.placed.add(self.loop)
        parts = set(self.parts.values())
        turns = [
            x.but(positional=True) if placed and isinstance(x, Private) and x.batch in parts else x for x in self.turns
        ]
        jaxpr, own = inner(checker, equation.params["jaxpr"])
        begins = jaxpr.invars[len(self.consts) :]
        start = self.start
        counters = map(functools.partial(_counter, self.loop, jaxpr), begins, jaxpr.outvars, start)
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
        told = _told(self.checker, jaxpr, {begin})
        return told is not None and not told & {x for x in jaxpr.outvars if x is not end and not isinstance(x, Literal)}

    def _joined(self, i: int, a: Value, b: Value, attempt: int) -> Value:
        """The value at the start of the next iteration."""
        checker = self.checker
        equation = self.equation
        before = self.before
        shape = shape_of(equation.outvars[i])
        if isinstance(a, Public) and a.counter is not None and a.counter[0] is self.loop and isinstance(b, Public):
            return a
        # It started as an atom: it only has to end as a sum with a bound, which `_grown` checks.
        if i in self.atoms:
            bounded = isinstance(b, Private) and b.terms is not None and b.axes is None
            return a if bounded else given_up(checker, equation, a, b)
        if attempt > 10:
            return given_up(checker, equation, a, b)
        loose = not isinstance(a, Private) or a.axes in (None, ())
        if isinstance(b, Private) and b.axes in (None, ()) and loose:
            atom = self._atom(i, b, shape)
            if atom is not None:
                return atom
        # The records of this iteration are not those of the next: a carried row would be taken for one of theirs.
        b = self.escaped(b) if isinstance(b, Private) else b
        return widened(checker, equation, a, b, shape, attempt, before)

    def _atom(self, i: int, b: Private, shape: tuple[int, ...]) -> Private | None:
        """A growing sum: it starts an iteration as an unknown that must leave it once and unchanged."""
        checker = self.checker
        start = self.start[i]
        first = as_sum(checker, start, shape) if isinstance(start, Private) else None
        grown = as_sum(checker, b, shape)
        if grown.terms is None or grown.batch is None or (first is not None and first.terms is None):
            return None
        # The batch of the sum's records: a part made by this loop is one iteration's, and the sum is over all.
        whole = grown.batch
        while isinstance(whole, Part) and whole.loop is self.loop and whole.parent is not None:
            whole = whole.parent
        if whole.depth > len(checker.keys.loops) or (first is not None and first.batch is not whole):
            return None
        # Its size is unknown, so no noise is a known multiple of it.
        self.atoms[i] = Term(Group(carried=True), frozenset([0]), unnamed(), whole)
        return Private(whole, None, b.origin, terms=(self.atoms[i],), finite=True, additive=True)

    def final(self, i: int, shape: tuple[int, ...]) -> Value:
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
            return checker.unbounded(self.equation, [end], _GROWS)
        return Private(carry.batch, None, end.origin, terms=total, finite=True, additive=end.additive)

    def _grown(self, atom: Term, end: Private, total: tuple[Term, ...]) -> tuple[Term, ...] | None:
        """The bound after all iterations, from that after one."""
        sampled = atom.source.sampled
        kept = any(term.group is atom.group for term in end.terms or ())
        for term in end.terms or ():
            if term.group is atom.group:
                factor = term.bound.over(atom.bound)
                if factor is None or factor > _FADES or (sampled and (factor != 1.0 or not end.additive)):
                    return None
                continue
            if term.bound.powers or not math.isfinite(self.loop.length):
                return None
            part = isinstance(term.source, Part) and term.source.loop is self.loop
            if part and sampled and not kept:
                return None  # The records of the last iteration depend on the others.
            if not part and (term.source.depth > len(self.checker.keys.loops) or (sampled and not end.additive)):
                return None
            # A record is in one part, so it contributes in one iteration; to values outside of parts, in every iteration.
            bound = term.bound if part else term.bound * self.loop.length
            source = term.source.parent if part and term.source.parent is not None else term.source
            total = added(total, (Term(term.group, term.leaves, bound, source),))
        return total

    def escaped(self, value: Private) -> Value:
        """Drop bounds of a sample drawn within an iteration, which has no event outside of it."""
        batch = value.batch
        own = isinstance(batch, Part) and batch.loop is self.loop
        if own or (batch is not None and batch.depth > len(self.checker.keys.loops)):
            why = Why.TURNS("values of a sample leave the iteration that drew it, before their release")
            return self.checker.unbounded(self.equation, [value.but(batch=None)], why)
        return value

    def stacked(self, value: Value, shape: tuple[int, ...]) -> Value:
        """The stacked results of all iterations."""
        if isinstance(value, Key):
            self.checker.keys.spend_in(self.loop, value, "the results of the loop", source_line(self.equation))
            return self.checker.keys.new(shape, *self.checker.keys.kind(value))
        if isinstance(value, Public):
            return Public(uniform=frozenset(i + 1 for i in value.uniform), released=value.released)
        assert isinstance(value, Private)
        if any(symbol >= self.before for t in value.terms or () for symbol, _ in t.bound.powers):
            value = value.but(terms=None, finite=False, why=value.why or _CHANGES)
        batch = value.batch
        part = isinstance(batch, Part) and batch.loop is self.loop
        if part and isinstance(batch, Part) and value.axes is not None and batch.parent is not None:
            axes = [a + 1 for a in value.axes]
            places = (k for k in range(len(axes) + 1) if math.prod(shape[a] for a in axes[:k]) == batch.before)
            if (place := next(places, None)) is None:
                why = Why.ROWS(
                    "the rows of an iteration were merged, and iterations are no longer one axis of the records"
                )
                return self.checker.unbounded(self.equation, [value], why)
            axes.insert(place, 0)
            return value.but(batch=batch.parent, axes=tuple(axes), terms=bounding(value.terms, batch.parent))
        if not part and value.axes is not None:
            # Each iteration gives other rows of the same records: as many stacked slices with the bound of one.
            one = value.terms if value.terms and len(value.terms) == 1 and not value.terms[0].bound.powers else None
            terms = fresh(one[0].bound * math.sqrt(self.loop.length), one[0].source) if one else None
            return self.escaped(value.but(axes=tuple(a + 1 for a in value.axes), terms=terms))
        found = as_sum(self.checker, value, shape[1:])
        grows = found.terms is None or any(t.bound.powers for t in found.terms)
        if grows or batch is None or batch.sampled:
            return self.checker.unbounded(self.equation, [found], found.why or _GROWS)
        assert found.terms is not None
        factor = 1.0 if part else math.sqrt(self.loop.length)
        parent = batch.parent if part and batch.parent is not None else batch
        return self.escaped(found.but(batch=parent, terms=bounding(scaled(found.terms, factor), parent)))


@rule(p.scan_p, table=STRUCTURED)
def _scan(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    parts = scan_of(equation)
    consts, start, xs = parts.apart(operands)
    consts = [x.but(additive=False) if isinstance(x, Private) else x for x in consts]
    scan = _Scan(checker, equation, Loop(parts.length), new_symbol(), parts.reverse, consts, start)
    pairs = zip(xs, parts.apart(equation.invars)[2], strict=True)
    scan.turns = [scan.turn_of(x, shape_of(v)) for x, v in pairs]
    saved = checker.keys.snapshot(), checker.items
    # Or by the rows that an iteration takes of an array without one axis of records, such as variants of the whole.
    own = [isinstance(x, Private) and isinstance(x.batch, Part) and x.batch.loop is scan.loop for x in scan.turns]
    scan.settle(placed=not all(own))
    by_number = any(part.loop is scan.loop for part in checker.windows.values())
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
    return finals + [scan.stacked(x, s) for x, s in zip(scan.outputs[count:], shapes[count:], strict=True)]


def _counter(loop: Loop, jaxpr: Any, begin: Any, end: Any, value: Value) -> Public | None:
    """An integer that grows by a known step in every iteration."""
    if not isinstance(value, Public) or value.const is None or value.const.ndim or value.const.dtype.kind not in "iu":
        return None
    step = _increment(jaxpr, begin, end)
    first = int(value.const)
    last = int(value.const) + step * (int(loop.length) - 1)
    limits = np.iinfo(value.const.dtype)
    if step == 0 or min(first, last) < limits.min or max(first, last) > limits.max:
        return None
    few = loop.length <= _MOST_TURNS
    turns = Turns(loop, tuple(first + step * t for t in range(int(loop.length)))) if few else None
    return Public(counter=(loop, min(first, last), max(first, last)), turns=turns)


def _told(checker: Checker, jaxpr: Jaxpr, given: set[Any]) -> set[Any] | None:
    """The integers computed from `given`, if they only select rows; otherwise None."""
    known = set(given)
    for equation in jaxpr.eqns:
        used = [i for i, x in enumerate(equation.invars) if not isinstance(x, Literal) and x in known]
        if not used or (equation.primitive is p.dynamic_slice_p and 0 not in used and checker.only_cuts(equation)):
            continue
        if equation.primitive is p.jit_p:
            inside = equation.params["jaxpr"].jaxpr
            told = _told(checker, inside, {inside.invars[i] for i in used})
            if told is None:
                return None
            pairs = zip(equation.outvars, inside.outvars, strict=True)
            known |= {x for x, y in pairs if not isinstance(y, Literal) and y in told}
        elif equation.primitive in ELEMENTWISE_SHAPES and all(
            np.dtype(aval(x).dtype).kind in "biu" for x in equation.outvars
        ):
            known |= set(equation.outvars)
        else:
            return None
    return known


def _increment(jaxpr: Any, begin: Any, end: Any) -> int:
    """The known number that a program adds to `begin` to get `end`; zero if `end` is anything else.

    A function under `jit` is a nested program, and stays one in JAX 0.12 even with `inline=True`.
    """
    for equation in jaxpr.eqns:
        if not any(x is end for x in equation.outvars):
            continue
        if equation.primitive is p.add_p and begin in equation.invars:
            other = equation.invars[1] if equation.invars[0] is begin else equation.invars[0]
            step = getattr(other, "val", 0)
            return int(step) if np.ndim(step) == 0 else 0
        if equation.primitive is p.jit_p and begin in equation.invars:
            inside = equation.params["jaxpr"].jaxpr
            place = equation.invars.index(begin)
            result = equation.outvars.index(end)
            return _increment(inside, inside.invars[place], inside.outvars[result])
    return 0
