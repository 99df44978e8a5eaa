"""Counters: integers that count the iterations of a loop.

`fori_loop` and hand-written loops carry an integer and add a constant to it. Such a carry differs
between any two iterations, so a key folded with it is a new key each time, and rows taken by it are
others each time. `counted` finds it: a known start and a known increment that cannot wrap around.
`open_count` finds a while loop that counts to an open parameter, whose length is an expression.
`derived_from` tells whether the counter does nothing but select rows, which leaves all iterations
alike.

Sound, since the increment is read from the body's own equations: `end` is `begin` plus a literal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from discreet._jax import Jaxpr, JaxprEqn, Literal, dtype_of, primitives as p
from discreet.privacy.verify._arithmetic import ELEMENTWISE_SHAPES
from discreet.privacy.verify._domain import Public, Value
from discreet.privacy.verify._interpreter import Checker
from discreet.privacy.verify._record import Loop
from discreet.privacy.verify.recognize._facts import Turns


def open_count(checker: Checker, equation: JaxprEqn, start: list[Value]) -> tuple[int, Any] | None:
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
    if (
        ends[end] is not begins[end]
        or not isinstance(first, Public)
        or not isinstance(last, Public)
    ):
        return None
    turns = checker.symbols.expression(last.scale)
    if (
        first.const is None
        or first.const.ndim
        or first.const.dtype.kind != "i"
        or first.const != 0
        or turns is None
    ):
        return None
    return (counter, turns) if _increment(body, begins[counter], ends[counter]) == 1 else None


MOST_TURNS = 2**16
"""For longer loops, the values of numbers in each iteration are not kept."""


def counted(loop: Loop, jaxpr: Any, begin: Any, end: Any, value: Value) -> Public | None:
    """An integer that grows by a known step in every iteration."""
    if (
        not isinstance(value, Public)
        or value.const is None
        or value.const.ndim
        or value.const.dtype.kind not in "iu"
    ):
        return None
    step = _increment(jaxpr, begin, end)
    first = int(value.const)
    last = int(value.const) + step * (int(loop.length) - 1)
    limits = np.iinfo(value.const.dtype)
    if step == 0 or min(first, last) < limits.min or max(first, last) > limits.max:
        return None
    few = loop.length <= MOST_TURNS
    turns = Turns(loop, tuple(first + step * t for t in range(int(loop.length)))) if few else None
    return Public(counter=(loop, min(first, last), max(first, last)), turns=turns)


def derived_from(checker: Checker, jaxpr: Jaxpr, given: set[Any]) -> set[Any] | None:
    """The integers computed from `given`, if they only select rows; otherwise None."""
    known = set(given)
    for equation in jaxpr.eqns:
        used = [
            i for i, x in enumerate(equation.invars) if not isinstance(x, Literal) and x in known
        ]
        if not used or (
            equation.primitive is p.dynamic_slice_p
            and 0 not in used
            and checker.cuts.only_cut(equation)
        ):
            continue
        if equation.primitive is p.jit_p:
            inside = equation.params["jaxpr"].jaxpr
            told = derived_from(checker, inside, {inside.invars[i] for i in used})
            if told is None:
                return None
            pairs = zip(equation.outvars, inside.outvars, strict=True)
            known |= {x for x, y in pairs if not isinstance(y, Literal) and y in told}
        elif equation.primitive in ELEMENTWISE_SHAPES and all(
            dtype_of(x).kind in "biu" for x in equation.outvars
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
