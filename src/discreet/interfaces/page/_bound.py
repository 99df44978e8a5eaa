"""The bound of a statement on attackers, at every false-positive rate: straight lines above the trade-off curve."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np

from discreet._dp_accounting import GaussianDpEvent
from discreet.privacy.accounting import Relation, profile
from discreet.privacy.plan import PrivacyPlan
from discreet.privacy.report import Statement

_GRID = 129
"""Epsilons at which the statement's Gaussian curve was made to cover the profile (`accounting.risk`)."""
_LARGEST = 700.0
"""Past it e^epsilon is no number."""

Line = tuple[float, float]
Pair = tuple[float, float]


def profile_pairs(plan: PrivacyPlan, statement: Statement) -> list[Pair]:
    """(ε, δ) of the plan's profile that are decisive somewhere on its trade-off curve; all of them hold.

    There are none if the statement is not that of the plan, whose ε then says nothing of it.
    """
    if plan.num_steps < statement.horizon:
        plan = plan.lengthened(statement.horizon)
    spent = plan.profile()
    if spent.epsilon(statement.delta) != statement.epsilon:
        return []
    epsilons, deltas = spent.curve()
    usable = epsilons <= _LARGEST
    epsilons = epsilons[usable]
    deltas = np.asarray(deltas)[usable]
    rates = np.array(
        [*np.geomspace(1e-6, 1.0, 80), *(rate for rate, _ in statement.figures.attack_power)]
    )[:, None]
    grown = (np.exp(epsilons) * rates + deltas).argmin(axis=1)
    shrunk = (1 - (1 - deltas - rates) * np.exp(-epsilons)).argmin(axis=1)
    chosen = np.unique([*grown, *shrunk])
    return list(zip(epsilons[chosen].tolist(), deltas[chosen].tolist(), strict=True))


def may_hold(statement: Statement, pairs: Iterable[Pair]) -> bool:
    """True if pairs could be `profile_pairs` of the statement's plan: none claims more than the statement.

    They come from a file that the statement does not cover. The statement's own figures are of the
    same profile, on a grid, so a true pair may beat them by a little.
    """
    pairs = list(pairs)
    if not all(epsilon >= 0 and 0 <= delta <= 1 for epsilon, delta in pairs):
        return False
    points = [
        (statement.epsilon, statement.delta),
        *((x.epsilon, x.delta) for x in statement.figures.profile),
    ]
    if any(delta <= d and epsilon < e * (1 - 1e-6) for epsilon, delta in pairs for e, d in points):
        return False
    lines = trade_off_lines(statement, pairs)
    return all(
        true_positive_rate(lines, rate) >= 0.99 * found
        for rate, found in statement.figures.attack_power
    )


def trade_off_lines(statement: Statement, pairs: Iterable[Pair] = ()) -> list[Line]:
    """Slope and intercept of lines, none of which any attacker's true-positive rate exceeds at any false-positive rate.

    Guarantee: for each line and each rate x, slope · x + intercept is an upper bound, and so is the
    least of them. They are made of (ε, δ) that hold: an (ε, δ) that holds gives e^ε x + δ and, by
    the attacker who says the opposite, 1 − e^−ε (1 − δ − x). Such are `pairs`, the pairs of the
    statement's profile, and those of its μ-Gaussian curve at the ε at which that was made to cover
    the profile. All is rounded upward. Of each line some part in [0, 1] is the least; slopes fall.
    """
    lines = [(0.0, 1.0)]
    for epsilon, delta in (*_pairs(statement), *pairs):
        grown = math.exp(epsilon)
        shrunk = math.exp(-epsilon)
        lines += [(grown, delta), (shrunk, -math.expm1(-epsilon) + delta * shrunk)]
    return _lowest([(_outward(slope), _outward(intercept)) for slope, intercept in lines])


def true_positive_rate(lines: list[Line], false_positive_rate: float) -> float:
    """The least of the lines, and never below chance."""
    least = min(slope * false_positive_rate + intercept for slope, intercept in lines)
    return min(1.0, max(false_positive_rate, least))


def corners(lines: list[Line]) -> list[tuple[float, float]]:
    """The corners of the minimum of the lines, from 0 to 1: joined, they are the bound."""
    places = [0.0]
    for (slope, intercept), (next_slope, next_intercept) in itertools.pairwise(lines):
        places.append(min(1.0, max(0.0, (next_intercept - intercept) / (slope - next_slope))))
    return [(x, true_positive_rate(lines, x)) for x in (*places, 1.0)]


def odds_factor(statement: Statement) -> float:
    """The largest factor of the releases on the odds of a belief, except with probability `statement.delta`; may be infinite.

    Taken from the statement's beliefs, which are probabilities before and after, rounded upward.
    """
    factors = [math.inf]
    for before, after in statement.figures.posterior_beliefs:
        against = 1 - after - 2**-52
        if against > 0 and before > 0:
            factors.append(after / against * (1 - before) / before * (1 + 1e-12))
    return max(1.0, min(factors))


def belief(prior: float, factor: float) -> float:
    """The largest belief after, of one who held `prior` before."""
    return 1.0 if math.isinf(factor) else prior * factor / (prior * factor + 1 - prior)


def rightly_named(prior: float, false_positive_rate: float, true_positive_rate: float) -> float:
    """The chance that an attacker with these rates who says yes is right."""
    return (
        prior
        * true_positive_rate
        / (prior * true_positive_rate + (1 - prior) * false_positive_rate)
    )


def _pairs(statement: Statement) -> list[Pair]:
    """(ε, δ) that hold."""
    found = [(point.epsilon, point.delta) for point in statement.figures.profile]
    found.append((statement.epsilon, statement.delta))
    mu = statement.figures.gaussian_mu * (1 + 1e-12)
    if math.isfinite(mu) and math.isfinite(statement.epsilon):
        grid = np.linspace(0.0, statement.epsilon, _GRID)
        # A μ of zero covers nothing but a profile that is zero.
        covered = profile(GaussianDpEvent(1 / mu), Relation.ADD_OR_REMOVE_ONE) if mu > 0 else None
        deltas = np.zeros(_GRID) if covered is None else np.atleast_1d(covered.delta(grid))
        found += zip(grid.tolist(), deltas.tolist(), strict=True)
    return [(epsilon, delta) for epsilon, delta in found if epsilon <= _LARGEST]


def _outward(value: float) -> float:
    return value * (1 + 1e-12) + 1e-15


def _lowest(lines: list[Line]) -> list[Line]:
    """The lines that are the minimum somewhere in [0, 1], from 0 to 1."""
    kept = [min(lines, key=lambda line: (line[1], line[0]))]
    place = 0.0
    while True:
        slope, intercept = kept[-1]
        flatter = [line for line in lines if line[0] < slope]
        meets = [((line[1] - intercept) / (slope - line[0]), line) for line in flatter]
        place, line = min(
            meets, default=(1.0, None), key=lambda meet: (meet[0], meet[1][0] if meet[1] else 0.0)
        )
        if line is None or place >= 1:
            return kept
        kept.append(line)
