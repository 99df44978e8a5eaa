"""What is known of a value that is one of several: after branches, and from turn to turn of a loop."""

from __future__ import annotations

import dataclasses

import numpy as np

from discreet._jax import JaxprEqn
from discreet.verify._alignment import varies_along
from discreet.verify._bounds import fresh, source_of, total_of
from discreet.verify._domain import Key, Private, Public, Scale, Value, new_symbol
from discreet.verify._interpreter import Checker


def same(a: Value, b: Value) -> bool:
    """Whether two values say the same."""
    if isinstance(a, Public) and isinstance(b, Public):
        if (a.const is None) != (b.const is None) or (a.exact, a.uniform, a.scale, a.counter, a.released) != (
            b.exact,
            b.uniform,
            b.scale,
            b.counter,
            b.released,
        ):
            return False
        return (
            a.const is None or b.const is None or np.array_equal(a.const, b.const, equal_nan=a.const.dtype.kind == "f")
        )
    if isinstance(a, Private) and isinstance(b, Private):
        fields = ("batch", "axes", "terms", "linf", "finite", "zero", "positional", "additive")
        return all(getattr(a, f) == getattr(b, f) for f in fields)
    return isinstance(a, Key) and isinstance(b, Key)


def join(checker: Checker, equation: JaxprEqn, a: Value, b: Value, shape: tuple[int, ...]) -> Value:
    """What holds of both."""
    if isinstance(a, Key) or isinstance(b, Key):
        return a
    if isinstance(a, Public) and isinstance(b, Public):
        return _both_public(a, b, len(shape))
    if isinstance(a, Private) and isinstance(b, Private):
        return _both_private(checker, equation, a, b)
    private, public = (a, b) if isinstance(a, Private) else (b, a)
    assert isinstance(private, Private)
    assert isinstance(public, Public)
    if private.axes is None:
        return private.but(additive=False)
    zero = public.is_zero
    known = private.linf is not None and public.magnitude is not None
    return private.but(
        terms=private.terms if zero else None,
        linf=max(private.linf or 0.0, public.magnitude or 0.0) if known else None,
        zero=private.zero if zero else frozenset(),
        finite=private.finite and public.magnitude is not None,
        positional=private.positional or varies_along(public, shape, private.axes),
    )


def of_a_turn(a: Value, joined: Value, before: int) -> Value:
    """What a turn starts with: where its number is already one that may be any, it needs no new name.

    Args:
        a: what this turn started with.
        joined: what holds of that and of what the turn ends with.
        before: names from here on were given within the loop.
    """
    if not (isinstance(a, Public) and isinstance(joined, Public)) or a.scale is None or joined.scale is None:
        return joined
    free = a.scale.factor == 1.0 and len(a.scale.powers) == 1 and a.scale.powers[0][0] >= before
    return dataclasses.replace(joined, scale=a.scale) if free and a.scale.powers[0][1] == 1.0 else joined


def renamed(value: Value) -> Value:
    """A public number after a loop: not the one that it was in a turn."""
    if isinstance(value, Public) and value.scale is not None and value.scale.powers:
        return dataclasses.replace(value, scale=Scale(1.0, ((new_symbol(), 1.0),)))
    return value


def _both_public(a: Public, b: Public, rank: int) -> Public:
    if a.const is not None and b.const is not None and np.array_equal(a.const, b.const):
        return dataclasses.replace(a, exact=a.exact and b.exact)
    if (
        a.const is None
        and b.const is None
        and a.scale == b.scale
        and a.uniform == b.uniform
        and a.counter == b.counter
        and a.released == b.released
    ):
        return a
    uniform = a.uniform & b.uniform
    scale = Scale(1.0, ((new_symbol(), 1.0),)) if len(uniform) == rank else None
    return Public(uniform=uniform, scale=scale, released=a.released or b.released)


def _both_private(checker: Checker, equation: JaxprEqn, a: Private, b: Private) -> Private:
    if same(a, b):
        return a.but()  # of which elements is forgotten
    if a.batch is not b.batch or a.axes != b.axes:
        return checker.unbounded(equation, [a, b], "[rows] a value is at one time of one kind, at another of another")
    terms = None
    if a.terms is not None and b.terms is not None:
        terms = a.terms if a.terms == b.terms else _larger(a, b)
    linf = max(a.linf, b.linf) if a.linf is not None and b.linf is not None else None
    return a.but(
        terms=terms,
        linf=linf,
        zero=a.zero & b.zero,
        finite=a.finite and b.finite,
        positional=a.positional or b.positional,
        additive=False,
        why=a.why or b.why,
    )


def _larger(a: Private, b: Private):
    assert a.terms is not None
    assert b.terms is not None
    if len(a.terms) == len(b.terms) == 1:
        (x,), (y,) = a.terms, b.terms
        if x.group is y.group and x.leaves == y.leaves and x.source is y.source and x.bound.powers == y.bound.powers:
            return a.terms if x.bound.factor >= y.bound.factor else b.terms
    sizes = total_of(a.terms), total_of(b.terms)
    if sizes[0] is None or sizes[1] is None or sizes[0].powers != sizes[1].powers or sizes[0].powers:
        return None
    # No share of a group: the larger number, for a value of its own.
    larger = sizes[0] if sizes[0].factor >= sizes[1].factor else sizes[1]
    return fresh(larger, source_of((*a.terms, *b.terms)))
