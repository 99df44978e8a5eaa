"""Mechanisms: where a bounded sum becomes public, and what that costs.

A release needs noise that is a known multiple of the bound on one record's contribution. The ratio
of the two goes on record, by group and leaf, and `_events` adds it up; the output is public from
then on. Mechanisms declare their law, and this file trusts only those in the list `MECHANISMS`.

What the machine adds to the bound is charged, too: the rounding of the sum (`_for_sums`), and that
to the grid of the integers (`_grid`, `_rounded`). Where the ratio is known in each iteration only,
the release is recorded as a schedule (`_recorded`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from discreet._jax import JaxprEqn, source_line
from discreet.privacy.mechanisms import CHOICE, CHOOSE, FOR_SUMS, MECHANISMS, NOISE, Mechanism
from discreet.privacy.verify._bounds import Group, Part, RecordSet, Scale, total_of
from discreet.privacy.verify._domain import Private, Public, Value
from discreet.privacy.verify._errors import NoBoundError, Reason, Why
from discreet.privacy.verify._events import ratio_of
from discreet.privacy.verify._interpreter import Checker
from discreet.privacy.verify._record import Loads, MechanismUse, Scheduled
from discreet.privacy.verify._registry import KEY_RULES, rule
from discreet.privacy.verify._rows import as_sum, shape_of, size_per_record
from discreet.privacy.verify._rules_keys import spend_secret
from discreet.privacy.verify._symbols import is_symbolic
from discreet.privacy.verify.recognize._slices import over_slices


def number_of(
    equation: JaxprEqn, operands: list[Value], name: str
) -> tuple[list[Value], Scale | None]:
    """Split operands into arrays and the number that is a parameter or the last operand."""
    known = equation.params[name]
    if known is not None:
        return operands, Scale(abs(float(known)))
    last = operands[-1]
    return operands[:-1], last.scale if isinstance(last, Public) else None


@rule(NOISE, table=KEY_RULES)
def noise(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of mechanisms: a release, if the noise is a known multiple of one record's contribution."""
    spend_secret(checker, equation, operands[0])
    params: Any = equation.params
    mechanism: Mechanism = params["mechanism"]
    if mechanism not in MECHANISMS:
        raise NoBoundError(
            Why.MECHANISM(f"the noise of {type(mechanism).__name__} is not on the list")
        )
    arrays, multiplier = number_of(equation, operands[1:], "multiplier")
    arrays, noise = number_of(equation, arrays, "size")
    if any(not isinstance(x, Public) for x in operands[1 + len(arrays) :]):
        raise NoBoundError(Why.NOISE_SCALE("the size of the noise depends on records"))
    if not any(isinstance(x, Private) for x in arrays):
        return [Public() for _ in equation.outvars]
    outputs: list[Value] = []
    released: list[tuple[Private, int]] = []
    for value, variable in zip(arrays, equation.outvars, strict=True):
        shape = shape_of(variable)
        if not isinstance(value, Private):
            outputs.append(Public())
            continue
        found = as_sum(checker, value, shape)
        why = _why_not(found, noise)
        if why:
            outputs.append(checker.unbounded(equation, [found], why))
            continue
        released.append((found, size_per_record(shape, None)))
        outputs.append(Public(released=True))
    if released and noise is not None:
        checker.mechanisms[mechanism] = None
        try:
            paid = FOR_SUMS if mechanism.on_grid and not params["mapped"] else 0.0
            # Rounding, known in L2, moves so many numbers farther in L1.
            own = _absolute(mechanism, released) is not None
            times = math.sqrt(sum(size for _, size in released)) if own else 1.0
            rounding = [value.rounding for value, _ in released]
            larger = _for_sums(checker, equation, rounding, paid, times)
            checker.items += _recorded(
                checker, equation, released, noise * (1 / larger), multiplier
            )
        except NoBoundError as lost:
            return [
                x if isinstance(v, Public) else checker.unbounded(equation, [v], lost.why)
                for x, v in zip(outputs, arrays, strict=True)
            ]
    return outputs


def _absolute(mechanism: Mechanism, released: list[tuple[Private, int]]) -> float | None:
    """The L1 norm of what one record adds to all these values, where a mechanism goes by it and each has one."""
    known = [value.absolute for value, _ in released if value.absolute is not None]
    return sum(known) if mechanism.norm == 1 and len(known) == len(released) else None


def _for_sums(
    checker: Checker,
    equation: JaxprEqn,
    found: list[tuple[float, float] | None],
    paid: float,
    times: float = 1.0,
) -> float:
    """The factor by which the rounding of sums enlarges their sensitivity beyond the mechanism's allowance."""
    share = math.hypot(*(x[1] for x in found if x is not None)) * times
    if None in found or math.isinf(share):
        checker.unrounded.append(source_line(equation))
        return 1.0
    if share <= paid:
        return 1.0
    factor = (1 + share) / (1 + paid)
    note = f"rounding enlarges the sensitivity by {factor - 1:.2g} ({source_line(equation)}): many rows are summed in float32"
    checker.notes.append(f"{note}; use float64 (jax.enable_x64) to avoid it")
    return factor


@rule(CHOOSE, table=KEY_RULES)
def choose(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of selection: each score needs a bound on one record's influence, per element or else by the joint norm.

    Selection from a random sample is refused, since its cost is unknown.
    """
    spend_secret(checker, equation, operands[0])
    scores = operands[1]
    if not isinstance(scores, Private):
        return [Public()]
    found = as_sum(checker, scores, shape_of(equation.invars[1]))
    why = _why_not(found, Scale(1.0))
    if why is not None:
        raise NoBoundError(why, found)
    assert found.batch is not None
    assert found.terms is not None
    norm = total_of(over_slices(found.terms))
    bound = norm if found.moves is None else Scale(found.moves)
    if found.batch.whole.sampled:
        why = Why.MECHANISM(
            "an answer is selected by a random sample of the records, for which no event is known"
        )
    elif norm is None or bound is None or norm.powers:
        why = Why.NOISE_SCALE(
            "the bound on one record's influence on a score is not a known number"
        )
    if why is not None or norm is None or bound is None:
        assert why is not None
        raise NoBoundError(why, found)
    checker.mechanisms[CHOICE] = None
    # The rounding of the sum, known relative to the joint norm, moves one score by no more than all
    # of them.
    times = norm.factor / bound.factor if bound.factor > 0 else 1.0
    factor = _for_sums(checker, equation, [found.rounding], FOR_SUMS, times)
    # No composed release shares its bound.
    epsilon = CHOICE.range(equation.params["epsilon"], bound.factor * factor)
    checker.items.append(MechanismUse(found.batch, CHOICE, {(Group(), 0): epsilon**2}, 1))
    return [Public(released=True)]


def _why_not(value: Private, noise: Scale | None) -> Reason | None:
    if value.terms is None:
        return value.why or Why.CLIP(
            "noise is added to a value without a bound on one record's influence"
        )
    if noise is None or noise.factor == 0:
        return Why.NOISE_SCALE("the noise is not known to be above zero")
    if value.batch is None:
        return Why.CLIP("values of different samples are mixed in one release")
    if isinstance(value.batch, Part) and value.batch.sampled:
        return Why.POSITION(
            "parts of a random sample are released: which part a record is in depends on the others"
        )
    return None


def _grid(equation: JaxprEqn, multiplier: Scale | None) -> tuple[float, float] | None:
    """The grid that sums are rounded to, see `mechanisms._integers`; None where nothing is rounded.

    That is the noise multiplier up to which the noise covers the rounding, which must be known, and
    the cell: the largest distance, in noises, that rounding adds between the sums of neighbours.
    """
    params: Any = equation.params
    mechanism = params["mechanism"]
    dim = sum(math.prod(shape_of(x)) for x in equation.outvars)
    if not mechanism.rounding(dim):
        return None
    if multiplier is None or multiplier.powers:
        raise NoBoundError(Why.NOISE_SCALE("the noise multiplier is unknown"))
    cell = mechanism.cell(dim, multiplier.factor, params["levels"])
    if cell is None:
        unknown = f"{type(mechanism).__name__} rounds sums, and does not state what share of its noise that is (`cell`)"
        raise NoBoundError(Why.MECHANISM(unknown))
    return multiplier.factor, cell


def _recorded(
    checker: Checker,
    equation: JaxprEqn,
    released: list[tuple[Private, int]],
    noise: Scale,
    multiplier: Scale | None,
) -> list[Any]:
    """The cost of a release: one for all iterations, or else one for each iteration of an enclosing loop."""
    params: Any = equation.params
    try:
        return _releases(checker, released, noise, params["mechanism"], _grid(equation, multiplier))
    except NoBoundError:
        bounds = [t.bound for value, _ in released for t in value.terms or ()]
        schedule = checker.schedules.of(
            [noise, *bounds, *([] if multiplier is None else [multiplier])], checker.keys.loops
        )
        if schedule is None:
            raise
    loop, turns = schedule
    kinds: dict[tuple[float, ...], int] = {}
    found: list[list[MechanismUse]] = []
    for numbers in turns:
        kind = tuple(numbers.values())
        if kind not in kinds:
            kinds[kind] = len(kinds)
            known: list[tuple[Private, int]] = []
            for value, size in released:
                terms = tuple(
                    dataclasses.replace(t, bound=t.bound.at(numbers)) for t in value.terms or ()
                )
                known.append((value.but(terms=terms), size))
            grid = _grid(equation, None if multiplier is None else multiplier.at(numbers))
            found.append(_releases(checker, known, noise.at(numbers), params["mechanism"], grid))
    return [Scheduled(loop, found, tuple(kinds[tuple(numbers.values())] for numbers in turns))]


def _releases(
    checker: Checker,
    released: list[tuple[Private, int]],
    noise: Scale,
    mechanism: Mechanism,
    grid: tuple[float, float] | None,
) -> list[MechanismUse]:
    # Values released by one call have independent noise of one size, so their loads add up by
    # group.
    by_batch: dict[RecordSet, list[tuple[Private, int]]] = {}
    for value, size in released:
        assert value.batch is not None
        by_batch.setdefault(value.batch, []).append((value, size))
    found: list[MechanismUse] = []
    for batch, values in by_batch.items():
        if checker.remembers and batch.sampled and not _is_fresh(checker, batch):
            why = "the state of records may depend on this sample and may have been released since"
            raise NoBoundError(Why.ROWS(why))
        loads: Loads = {}
        for value, _ in values:
            assert value.terms is not None
            terms = over_slices(value.terms)
            bound = total_of(terms)
            ratio = None if bound is None else checker.symbols.ratio(bound, noise)
            if ratio is None:
                why = "the noise is not a known multiple of the bound on one record's influence"
                raise NoBoundError(Why.NOISE_SCALE(why))
            # Several terms have no common group: their sum is a new bound, which no other release
            # shares.
            alone = len(terms) == 1
            for name in (
                [(terms[0].group, leaf) for leaf in terms[0].leaves] if alone else [(Group(), 0)]
            ):
                loads[name] = loads.get(name, 0) + ratio**2
        found.append(MechanismUse(batch, mechanism, loads, sum(size for _, size in values)))
        absolute = _absolute(mechanism, values)
        ratio = None if absolute is None else checker.symbols.ratio(Scale(absolute), noise)
        if ratio is not None:
            own = MechanismUse(batch, mechanism, {(Group(), 0): ratio**2}, 1)
            both = ratio_of(own), ratio_of(found[-1])
            # A group of its own: no other release shares this bound.
            if not any(map(is_symbolic, both)) and both[0] < both[1]:
                found[-1] = own
        if grid is not None:
            found[-1] = _rounded(checker, found[-1], *grid)
    return found


def _rounded(checker: Checker, release: MechanismUse, most: float, cell: float) -> MechanismUse:
    """The load that rounding to the grid adds to a release whose values move by x <= r noises for one record.

    r^2 is the sum of its loads, times the number of coordinates if the mechanism uses L1 norms.
    With the noise for a multiplier m enlarged by 1 + m c, where c is the cell, the integers move by
    (x + c) / (1 + m c). If r >= 1 / m, that is at most r for x = r. A record that shares its bound
    among several releases has less of x in each; then (x + c) / (1 + m c) <= x + c (1 - m x)+,
    whose square is at most x^2 + c / (2 m) + c^2 (`MechanismUse.rounding`). If r < 1 / m the loads
    are those of (r + c) / (1 + m c).
    """
    total = ratio_of(release)
    loads = release.loads
    if is_symbolic(total):
        # The certificate assumes r >= 1 / m for open parameters.
        checker.most_multiplier = min(checker.most_multiplier, most)
    elif total * (most * (1 + 1e-5)) ** 2 < 1:
        checker.beyond = True
        root = math.sqrt(total)
        exceeds = f"a noise multiplier of {1 / root if root else math.inf:.4g} exceeds the limit of the grid, {most:.4g}"
        checker.notes.append(f"{exceeds}: rounding takes part of the noise")
        larger = ((root + cell) / (1 + most * cell)) ** 2
        # A square may be too small for a float.
        loads = {name: larger * (load / total if total else 1.0) for name, load in loads.items()}
    return dataclasses.replace(release, loads=loads, rounding=cell / (2 * most) + cell**2)


def _is_fresh(checker: Checker, batch: RecordSet) -> bool:
    """True if nothing else was drawn or released since the draw of a sample."""
    if batch not in checker.items:
        return False
    since = checker.items[checker.items.index(batch) + 1 :]
    kinds = [kind for x in since for kind in (x.items if isinstance(x, Scheduled) else [[x]])]
    return all(isinstance(x, MechanismUse) and x.batch is batch for kind in kinds for x in kind)
