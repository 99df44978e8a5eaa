"""Nested programs: the checker enters calls; branches and loops need public decisions.

Control flow is observable, at least by timing, so a private decision is refused. Under a public one
both runs take the same branch, and claims true of all branches are true of the result (`join`). For
a loop the checker searches for an invariant: it walks through the body with the values at the start
of an iteration, joins them with the values at its end, and repeats until nothing changes. Claims
true at the start of one iteration are then true at its end, so by induction in every iteration.

Each join drops claims, and values that do not converge lose their bound (`given_up`), so this
terminates. `scan` is in `_scan`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from discreet._jax import (
    Jaxpr,
    JaxprEqn,
    aval,
    hi_primitives,
    inner_programs,
    is_key,
    primitives as p,
    source_line,
)
from discreet.privacy.verify._bounds import (
    Sample,
    fresh,
    named_since,
    new_symbol,
    source_of,
    total_of,
    unnamed,
)
from discreet.privacy.verify._domain import Axes, Key, Private, Public, Value, constant, same
from discreet.privacy.verify._errors import PrivacyError, Why, chain_of
from discreet.privacy.verify._interpreter import Checker
from discreet.privacy.verify._keyring import KNOWN, PRIVATE, SECRET
from discreet.privacy.verify._record import Branches, Loop, Repeat
from discreet.privacy.verify._registry import INLINED, STRUCTURED, rule
from discreet.privacy.verify._rows import shape_of, varies_along
from discreet.privacy.verify.recognize._counters import open_count

GROWS = Why.TURNS("one record's influence grows with each iteration")
CHANGES = Why.TURNS("a bound changes between iterations")


def join(checker: Checker, equation: JaxprEqn, a: Value, b: Value, shape: Axes) -> Value:
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
    linf = (
        None
        if private.linf is None or public.magnitude is None
        else max(private.linf, public.magnitude)
    )
    if private.axes is None:
        # The public case is equal in both runs, so the distance between the runs is that of the
        # private case.
        return private.but(additive=False, linf=linf)
    zero = public.is_zero
    return private.but(
        terms=private.terms if zero else None,
        linf=linf,
        zero=private.zero if zero else frozenset(),
        finite=private.finite
        and math.isfinite(math.inf if public.magnitude is None else public.magnitude),
        positional=private.positional or varies_along(public, shape, private.axes),
    )


def widened(
    checker: Checker,
    equation: JaxprEqn,
    a: Value,
    b: Value,
    shape: Axes,
    attempt: int,
    before: int,
) -> Value:
    """The value at the start of the next iteration, from those at the start and the end of this one.

    It is their join. Bounds of rows that still grow after some attempts are dropped, so that the
    other claims converge.
    """
    joined = join(checker, equation, a, unshared(b, before), shape)
    if (
        attempt >= 6
        and isinstance(a, Private)
        and isinstance(joined, Private)
        and joined.axes is not None
    ):
        grown = {
            name: None for name in ("terms", "linf") if getattr(joined, name) != getattr(a, name)
        }
        return dataclasses.replace(joined, **grown)
    if (
        not (isinstance(a, Public) and isinstance(joined, Public))
        or a.scale is None
        or joined.scale is None
    ):
        return joined
    # A number that is already unknown, named within the loop (from `before` on), needs no new name.
    free = a.scale.factor == 1.0 and [
        (name >= before, power) for name, power in a.scale.powers
    ] == [(True, 1.0)]
    return dataclasses.replace(joined, scale=a.scale) if free else joined


def inner(checker: Checker, program: Any) -> tuple[Jaxpr, list[Value]]:
    """The jaxpr of an open or closed program, and its constants."""
    return getattr(program, "jaxpr", program), [
        captured(checker, x) for x in getattr(program, "consts", ())
    ]


def captured(checker: Checker, value: Any) -> Value:
    """The abstract value of a captured constant. A captured key is the same in every run."""
    if is_key(value):
        return checker.keys.new(
            value.shape, KNOWN, "it is a constant of the program, the same in every run"
        )
    if value.size <= _SMALL and not jnp.issubdtype(value.dtype, jnp.complexfloating):
        return constant(np.asarray(value))
    return Public()


_SMALL = 2**18  # includes the thresholds of a sampler, whose values determine its law


@rule(
    p.jit_p,
    p.remat_p,
    p.closed_call_p,
    p.custom_jvp_call_p,
    p.custom_vjp_call_p,
    *hi_primitives(),
    table=INLINED,
)
def _call(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """Walk through the called program; custom derivative rules were applied at trace time."""
    params: Any = equation.params
    program = params["jaxpr"] if "jaxpr" in params else params.get("call_jaxpr")
    jaxpr, consts = inner(
        checker, inner_programs(equation)[0] if equation.primitive in hi_primitives() else program
    )
    return checker.walk(jaxpr, consts, operands)


def refuse_private(checker: Checker, equation: JaxprEqn, value: Value, what: str) -> None:
    """Refuse control flow that depends on a private value, since it is observable, at least by timing."""
    if isinstance(value, Private):
        chain = chain_of(checker.origin(equation, [value], what))
        raise Why.CONTROL.refusal(
            f"the {what} at {source_line(equation)} depends on records.", *chain
        )


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
        checker.items.append(Branches(branches, before))
    # The event of a sample drawn in a branch ends with it, so no value of that sample may leave it.
    drawn = [x for branch in branches for x in branch if isinstance(x, Sample)]
    results: list[Value] = []
    for values, variable in zip(zip(*outcomes, strict=True), equation.outvars, strict=True):
        results.append(_after_branches(checker, equation, list(values), shape_of(variable), drawn))
    return results


def _after_branches(
    checker: Checker,
    equation: JaxprEqn,
    values: list[Value],
    shape: Axes,
    drawn: list[Sample],
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


def unshared(value: Value, before: int) -> Value:
    """A value for the next iteration: joint bounds made in this iteration do not apply to values of the next."""
    if not isinstance(value, Private) or value.terms is None:
        return value
    # A number named in this iteration has another value in the next.
    if named_since(value.terms, before):
        return value.but(terms=None, finite=False, why=value.why or CHANGES)
    if all(t.group.serial < before for t in value.terms):
        return value
    # A group made in this iteration belongs to it: the next makes another, and the two share no
    # bound.
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

    `turn` maps the values at the start of an iteration to those at its end, the carry first.
    `joined` maps a position in the carry, its start and end, and the number of the attempt to the
    value at the start of the next iteration.
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
                    raise Why.KEY.refusal(
                        f"the loop at {line} carries over a key that is not secret: {why}.", line
                    )
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
    # A loop of unknown length may release nothing; one that counts to an open parameter has a
    # length, as an expression.
    counter, turns = open_count(checker, equation, start) or (None, None)
    loop = Loop(float("inf") if turns is None else turns)
    (test, test_own) = inner(checker, params["cond_jaxpr"])
    (body, body_own) = inner(checker, params["body_jaxpr"])
    shapes = [shape_of(v) for v in equation.outvars]
    carry = [x.but(additive=False) if isinstance(x, Private) else x for x in start]
    items = checker.items
    before = new_symbol()
    if counter is not None:
        carry[counter] = Public(
            counter=(loop, 0, np.iinfo(aval(equation.outvars[counter]).dtype).max - 1)
        )

    def turn(begin: list[Value]) -> list[Value]:
        (decision,) = checker.walk(test, test_own, [*test_consts, *begin])
        refuse_private(checker, equation, decision, "condition of a while loop")
        if any(isinstance(x, Key) and checker.keys.use_of(x) for x in begin):
            # The condition depends on the key that leaves the loop: it could wait for one that
            # makes little noise.
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
        return checker.unbounded(equation, private, GROWS)
    return Public() if isinstance(a, Public) else a
