"""Events whose price is a formula: exact ones only, never a bound that looks like one."""

from __future__ import annotations

from typing import Any

from dp_accounting.dp_event import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from discreet.accounting import Relation
from discreet.verify._symbols import load_sympy


def delta_formula(event: DpEvent, relation: Relation, epsilon: Any = None) -> Any:
    """Delta as a function of epsilon and of what the event leaves open, exactly; None where no closed form is known.

    Args:
        event: what is done to the data.
        relation: which tables are neighbours.
        epsilon: a number or an expression; left out, a symbol of that name.
    """
    sympy = load_sympy()
    epsilon = sympy.Symbol("epsilon", nonnegative=True) if epsilon is None else epsilon
    sensitivity = _sensitivity(relation)
    if isinstance(event, LaplaceDpEvent):
        return sympy.Max(0, 1 - sympy.exp((epsilon - sensitivity / event.noise_multiplier) / 2))
    precision = _precision(event)
    if precision is None:
        return None
    mu = sensitivity * sympy.sqrt(precision)
    if mu == 0:
        return sympy.Integer(0)
    near, far = (epsilon / mu - mu / 2) / sympy.sqrt(2), (epsilon / mu + mu / 2) / sympy.sqrt(2)
    return sympy.erfc(near) / 2 - sympy.exp(epsilon) * sympy.erfc(far) / 2


def formula_lines(event: DpEvent, relation: Relation) -> list[str]:
    """What the price of an event is a function of, in lines of text: exact, or nothing."""
    sympy = load_sympy()
    precision = _precision(event)
    if precision is not None and precision != 0:
        mu = _sensitivity(relation) * sympy.sqrt(precision)
        return [
            f"delta(epsilon) = Phi(mu/2 - epsilon/mu) - exp(epsilon) Phi(-mu/2 - epsilon/mu) with mu = {mu}, exactly",
        ]
    if isinstance(event, LaplaceDpEvent):
        return [f"delta(epsilon) = {delta_formula(event, relation)}, exactly; at delta = 0, {_pure(event, relation)}"]
    count, step = (event.count, event.event) if isinstance(event, SelfComposedDpEvent) else (1, event)
    if not isinstance(step, PoissonSampledDpEvent) or relation is not Relation.ADD_OR_REMOVE_ONE:
        return []
    inner = _precision(step.event)
    if inner is None:
        return []
    q, z, T = step.sampling_probability, 1 / sympy.sqrt(inner), count
    x = sympy.Symbol("x", real=True)
    loss = sympy.log(1 - q + q * sympy.exp((2 * x - 1) / (2 * z**2)))
    return [
        "delta(epsilon) = the larger of E max(0, 1 - exp(epsilon - L)) and E max(0, 1 - exp(epsilon + M)), exactly, where",
        f"L is the sum of {T} independent {loss} with x from N(1, s) at probability {q}, else from N(0, s),",
        f"M is the sum of {T} independent ones with x from N(0, s); s = {z**2}",
    ]


def _pure(event: LaplaceDpEvent, relation: Relation) -> str:
    return f"epsilon = {_sensitivity(relation) / event.noise_multiplier}"


def _sensitivity(relation: Relation) -> int:
    """What one record changes, in units of C."""
    return 2 if relation is Relation.REPLACE_ONE else 1


def _precision(event: DpEvent) -> Any:
    """One over the square of the noise multiplier of Gaussian releases together; None if there is anything else."""
    if isinstance(event, NoOpDpEvent):
        return 0
    if isinstance(event, GaussianDpEvent):
        return 1 / event.noise_multiplier**2
    if isinstance(event, SelfComposedDpEvent):
        inner = _precision(event.event)
        return None if inner is None else event.count * inner
    if isinstance(event, ComposedDpEvent):
        parts = [_precision(x) for x in event.events]
        return None if any(x is None for x in parts) else sum(parts)
    return None
