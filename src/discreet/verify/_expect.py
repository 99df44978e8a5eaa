"""Comparing the event that was proved with the one that was claimed."""

from __future__ import annotations

import math
from typing import Any

from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from discreet.accounting import Relation, profile
from discreet.verify._errors import PrivacyError
from discreet.verify._symbols import is_symbolic, load_sympy, numbers_of, open_in

_TOLERANCE = 1e-5
_EPSILONS = (*(2.0**k for k in range(-10, 0)), 1.0, 2.0, 4.0, 8.0, *(4.0**k for k in range(2, 8)))
_TELLING = (1e-9, 1.0 - 1e-6)
"""Between these, deltas say which of two events is worse."""


def check_expected(event: DpEvent, slack: float, claimed: Any, relation: Relation, notes: tuple[str, ...]) -> None:
    """Refuse a claim that says less than the program does.

    Args:
        event: what was proved.
        slack: of the samplers.
        claimed: an event, or a plan that has one.
        relation: which tables are neighbours.
        notes: what made the event worse than it could be.

    Raises:
        PrivacyError: the claim is not covered.
    """
    expected = (
        claimed.event() if not isinstance(claimed, DpEvent) and callable(getattr(claimed, "event", None)) else claimed
    )
    if not isinstance(expected, DpEvent):
        raise TypeError(f"expect is a {type(claimed).__name__}; pass a dp_accounting DpEvent, or a PrivacyPlan.")
    stated = getattr(claimed, "relation", relation)
    if stated is not relation:
        raise PrivacyError(
            f"the plan speaks of neighbours under {stated.name}, the proof of those under {relation.name}.",
            f"certify with relation=dp.Relation.{stated.name}, or make the plan for the other relation.",
        )
    if covers(expected, event, slack, relation):
        return
    because = f", because {'; '.join(notes)}" if notes else ""
    names = open_in([*numbers_of(event), *numbers_of(expected)])
    if names:
        because += f". They are compared for all values of {', '.join(names)}"
    raise PrivacyError(
        f"the program does more than was declared: you declared {_short(expected)}, the program has {_short(event)}{because}.",
        "scale the noise to the sensitivity that the program has (noise multiplier times clipping norm, after all scaling of "
        "the sum), or declare what it does.",
    )


def covers(expected: DpEvent, event: DpEvent, slack: float, relation: Relation) -> bool:
    """Whether a claim says as much as the program does, or more: for all values of what is open in either."""
    if not open_in([*numbers_of(event), *numbers_of(expected)]):
        return _alike(_parts(event), _parts(expected)) or not _worse(event, slack, expected, relation)
    ours, theirs = _parts(event), _parts(expected)
    return ours.keys() <= theirs.keys() and all(_at_most(ours[k], theirs[k]) for k in ours)


def _at_most(ours: Any, theirs: Any) -> bool:
    """Whether one number is at most another whatever the symbols are; unknown counts as no."""
    quotient = _plain(ours / theirs)
    return not is_symbolic(quotient) and quotient <= 1 + _TOLERANCE


def _plain(number: Any, digits: int = 17) -> Any:
    """A number with so many digits, or an expression in its simplest form."""
    if not is_symbolic(number):
        return float(f"{number:.{digits}g}")
    sympy = load_sympy()
    simple = sympy.simplify(sympy.nsimplify(number, rational=True))
    return simple if simple.free_symbols else float(f"{float(simple):.{digits}g}")


def _parts(event: DpEvent, count: Any = 1) -> dict[tuple, Any]:
    """What is composed: Gaussian precision, and counts of the rest by kind and numbers."""
    found: dict[tuple, Any] = {}

    def add(name: tuple, amount: Any) -> None:
        found[name] = found.get(name, 0) + amount

    if isinstance(event, NoOpDpEvent):
        return {}
    if isinstance(event, GaussianDpEvent):
        add(("gaussian",), count / event.noise_multiplier**2 if event.noise_multiplier else math.inf)
    elif isinstance(event, SelfComposedDpEvent):
        for name, amount in _parts(event.event, count * event.count).items():
            add(name, amount)
    elif isinstance(event, ComposedDpEvent):
        for part in event.events:
            for name, amount in _parts(part, count).items():
                add(name, amount)
    else:
        add((_rounded(event),), count)
    return found


def _rounded(event: DpEvent) -> Any:
    if isinstance(event, GaussianDpEvent | LaplaceDpEvent):
        return type(event).__name__, _plain(event.noise_multiplier, 6)
    if isinstance(event, PoissonSampledDpEvent):
        return "poisson", _plain(event.sampling_probability, 6), _inner(event.event)
    if isinstance(event, SampledWithoutReplacementDpEvent):
        return "fixed", event.source_dataset_size, event.sample_size, _inner(event.event)
    return repr(event)


def _inner(event: DpEvent) -> frozenset[tuple[tuple, Any]]:
    return frozenset((k, _plain(v, 6)) for k, v in _parts(event).items())


def _alike(a: dict[tuple, float], b: dict[tuple, float]) -> bool:
    return a.keys() == b.keys() and all(math.isclose(a[k], b[k], rel_tol=_TOLERANCE) for k in a)


def _worse(event: DpEvent, slack: float, expected: DpEvent, relation: Relation) -> bool:
    ours, theirs = _parts(event), _parts(expected)
    if not theirs:
        return bool(ours)
    if ours.keys() <= theirs.keys() == {("gaussian",)}:
        return sum(ours.values()) > sum(theirs.values()) * (1 + _TOLERANCE)
    proved, claimed = (
        profile(event, relation, slack=min(1.0, slack)),
        profile(expected, relation, slack=min(1.0, slack)),
    )
    pairs = [(float(proved.delta(x)), float(claimed.delta(x))) for x in _EPSILONS]
    telling = any(_TELLING[0] < claim < _TELLING[1] for _, claim in pairs)
    return not telling or any(found > claim * (1 + 100 * _TOLERANCE) + 1e-13 for found, claim in pairs)


def _short(event: DpEvent) -> str:
    if isinstance(event, GaussianDpEvent):
        return f"Gaussian noise of {_plain(event.noise_multiplier, 6)} times the clipping norm"
    return repr(event)
