"""Claims: whether a declared event covers the proved one, and formulas for delta.

Two events are compared by their parts: the Gaussian precision, and the number of other events of
each kind. A claim covers a proof if each part does. With no open parameters it may also cover it
by its privacy profile: at no epsilon may the proved delta exceed the claimed one.

The invariant: what cannot be compared is refused. With open parameters the claim has to cover the
proof for all their values, by sympy; without a decision there, the answer is no. The formulas are
exact for Gaussian and Laplace noise, and others are not written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import attr

from discreet._dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from discreet.privacy.accounting import Relation, neighbours, profile
from discreet.privacy.verify._errors import PrivacyError
from discreet.privacy.verify._symbols import is_symbolic, load_sympy, numbers_of, open_in

_TOLERANCE = 1e-5
_EPSILONS = (*(2.0**k for k in range(-10, 0)), 1.0, 2.0, 4.0, 8.0, *(4.0**k for k in range(2, 8)))
_TELLING = (1e-9, 1.0 - 1e-6)
"""Range in which deltas decide which of two events is worse."""


def check_expected(
    event: DpEvent, slack: float, claimed: Any, relation: Relation, notes: tuple[str, ...]
) -> None:
    """Refuse a claim weaker than the proof: `claimed` is an event, or a plan with an event and a slack."""
    expected = (
        claimed.event()
        if not isinstance(claimed, DpEvent) and callable(getattr(claimed, "event", None))
        else claimed
    )
    if not isinstance(expected, DpEvent):
        raise TypeError(
            f"expect is a {type(claimed).__name__}; pass a dp_accounting DpEvent, or a PrivacyPlan."
        )
    stated = getattr(claimed, "relation", relation)
    if stated is not relation:
        raise PrivacyError(
            f"the plan speaks of {neighbours(stated).name('record')}, the proof of {neighbours(relation).name('record')}.",
            f"certify with relation=dp.Relation.{stated.name}, or make the plan for the other relation.",
        )
    if covers(expected, event, slack, relation):
        paid = getattr(claimed, "slack", None)
        # A bare event has no slack, and the slack of an open event is unknown.
        if paid is None or slack <= paid * (1 + 1e-9):
            return
        raise PrivacyError(
            f"samplers and noise differ from the event by a total variation of {slack:.3g}, and the claim covers {paid:.3g}.",
            "declare the plan that runs: it includes the slack of its sampler and its mechanism.",
        )
    because = f", because {'; '.join(notes)}" if notes else ""
    names = open_in([*numbers_of(event), *numbers_of(expected)])
    if names:
        because += f". They are compared for all values of {', '.join(names)}"
    raise PrivacyError(
        f"the program does more than was declared: you declared {_short(expected)}, the program has {_short(event)}{because}.",
        "scale the noise to the sensitivity of the program (noise multiplier times clipping norm, after all scaling of the "
        "sum), or declare its event.",
    )


def covers(expected: DpEvent, event: DpEvent, slack: float, relation: Relation) -> bool:
    """True if a claim is at least as large as the proof, for all values of symbols open in either."""
    ours = _parts(event)
    theirs = _parts(expected)
    if not open_in([*numbers_of(event), *numbers_of(expected)]):
        alike = ours.keys() == theirs.keys() and all(
            math.isclose(ours[k], theirs[k], rel_tol=_TOLERANCE) for k in ours
        )
        return alike or not _worse(event, slack, expected, relation)
    return ours.keys() <= theirs.keys() and all(_at_most(ours[k], theirs[k]) for k in ours)


def _at_most(ours: Any, theirs: Any) -> bool:
    """True if one number is at most another for all values of the symbols; unknown counts as False."""
    quotient = _plain(ours / theirs)
    return not is_symbolic(quotient) and quotient <= 1 + _TOLERANCE


def _plain(number: Any, digits: int = 17) -> Any:
    """A number rounded to `digits`, or an expression in its simplest form."""
    if not is_symbolic(number):
        return float(f"{number:.{digits}g}")
    sympy = load_sympy()
    simple = sympy.simplify(sympy.nsimplify(number, rational=True))
    return simple if simple.free_symbols else float(f"{float(simple):.{digits}g}")


_GAUSSIAN = ("gaussian",)


def _parts(event: DpEvent, count: Any = 1) -> dict[tuple, Any]:
    """The parts of a composition: Gaussian precision, and counts of other events by kind and numbers."""
    if isinstance(event, NoOpDpEvent):
        return {}
    if isinstance(event, GaussianDpEvent):
        return {
            _GAUSSIAN: count / event.noise_multiplier**2 if event.noise_multiplier else math.inf
        }
    if isinstance(event, SelfComposedDpEvent):
        return _parts(event.event, count * event.count)
    if not isinstance(event, ComposedDpEvent):
        return {
            (
                type(event).__name__,
                *map(_rounded, attr.asdict(event, recurse=False).values()),
            ): count
        }
    found: dict[tuple, Any] = {}
    for part in event.events:
        for name, amount in _parts(part, count).items():
            found[name] = found.get(name, 0) + amount
    return found


def _rounded(value: Any) -> Any:
    """A number in an event, or an event, so that those that differ by rounding are equal."""
    if isinstance(value, DpEvent):
        return frozenset((name, _plain(amount, 6)) for name, amount in _parts(value).items())
    if isinstance(value, Sequence):
        return tuple(map(_rounded, value))
    return value if isinstance(value, int) else _plain(value, 6)


def _worse(event: DpEvent, slack: float, expected: DpEvent, relation: Relation) -> bool:
    ours = _parts(event)
    theirs = _parts(expected)
    if not theirs:
        return bool(ours)
    # Gaussian against Gaussian needs no numbers: the larger precision reveals more.
    if ours.keys() <= theirs.keys() == {_GAUSSIAN}:
        return sum(ours.values()) > sum(theirs.values()) * (1 + _TOLERANCE)
    proved, claimed = (profile(x, relation, slack=min(1.0, slack)) for x in (event, expected))
    pairs = [(float(proved.delta(x)), float(claimed.delta(x))) for x in _EPSILONS]
    # Where no delta separates the two, equal deltas do not order the events, and the claim is
    # refused.
    telling = any(_TELLING[0] < claim < _TELLING[1] for _, claim in pairs)
    return not telling or any(
        found > claim * (1 + 100 * _TOLERANCE) + 1e-13 for found, claim in pairs
    )


def _short(event: DpEvent) -> str:
    if isinstance(event, GaussianDpEvent):
        return f"Gaussian noise of {_plain(event.noise_multiplier, 6)} times the clipping norm"
    return repr(event)


def delta_formula(event: DpEvent, relation: Relation, epsilon: Any = None) -> Any:
    """Delta as an exact function of epsilon and the event's symbols; None where no closed form is known.

    Epsilon is a number or an expression; by default a symbol of that name.
    """
    sympy = load_sympy()
    epsilon = sympy.Symbol("epsilon", nonnegative=True) if epsilon is None else epsilon
    sensitivity = int(neighbours(relation).distance)
    if isinstance(event, LaplaceDpEvent):
        return sympy.Max(0, 1 - sympy.exp((epsilon - sensitivity / event.noise_multiplier) / 2))
    precision = _total_precision(event)
    if precision is None:
        return None
    mu = sensitivity * sympy.sqrt(precision)
    if mu == 0:
        return sympy.Integer(0)
    near = (epsilon / mu - mu / 2) / sympy.sqrt(2)
    far = (epsilon / mu + mu / 2) / sympy.sqrt(2)
    return sympy.erfc(near) / 2 - sympy.exp(epsilon) * sympy.erfc(far) / 2


def formula_lines(event: DpEvent, relation: Relation) -> list[str]:
    """Exact formulas for the cost of an event, as lines of text; empty if no formula is known."""
    sympy = load_sympy()
    precision = _total_precision(event)
    if precision is not None and precision != 0:
        mu = int(neighbours(relation).distance) * sympy.sqrt(precision)
        return [
            f"delta(epsilon) = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu) with mu = {mu}, exactly"
        ]
    if isinstance(event, LaplaceDpEvent):
        pure = int(neighbours(relation).distance) / event.noise_multiplier
        return [
            f"delta(epsilon) = {delta_formula(event, relation)}, exactly; at delta = 0, epsilon = {pure}"
        ]
    count, step = (
        (event.count, event.event) if isinstance(event, SelfComposedDpEvent) else (1, event)
    )
    if not isinstance(step, PoissonSampledDpEvent) or not neighbours(relation).hides_membership:
        return []
    inner = _total_precision(step.event)
    if inner is None:
        return []
    q = step.sampling_probability
    z = 1 / sympy.sqrt(inner)
    T = count
    x = sympy.Symbol("x", real=True)
    loss = sympy.log(1 - q + q * sympy.exp((2 * x - 1) / (2 * z**2)))
    return [
        "delta(epsilon) = the larger of E max(0, 1 - exp(epsilon - L)) and E max(0, 1 - exp(epsilon + M)), exactly, where",
        f"L is the sum of {T} independent {loss} with x from N(1, s) at probability {q}, else from N(0, s),",
        f"M is the sum of {T} independent ones with x from N(0, s); s = {z**2}",
    ]


def _total_precision(event: DpEvent) -> Any:
    """The inverse square of the joint noise multiplier of Gaussian releases; None if there are others."""
    parts = _parts(event)
    return parts.get(_GAUSSIAN, 0) if parts.keys() <= {_GAUSSIAN} else None
