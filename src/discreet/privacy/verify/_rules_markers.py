"""The markers of `discreet.mechanisms`: clipping, sums, counts, draws, the gradient engine, and private memory.

Here bounds begin (`clip`, `clipped_sum`, `count`), and samples begin (`draw`); they end in
`_rules_noise`. Each rule is sound by the contract of the function that its primitive runs, which
tests check. Samplers declare their law: this file names none of them, and trusts only those in the
list `SAMPLERS`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from discreet._jax import JaxprEqn, aval, source_line
from discreet.privacy.mechanisms import (
    CLIP,
    CLIPPED_SUM,
    COUNT,
    DRAW,
    SUM,
    UPDATE_ROWS,
    WEIGHTED_SUM,
    rounding_of_records,
)
from discreet.privacy.sampling import SAMPLERS, Drawing, OpenPoisson, Sampling, ThinnedPoisson
from discreet.privacy.verify._bounds import (
    Cut,
    Group,
    Sample,
    Scale,
    Table,
    Term,
    bounding,
    fresh,
    outside,
)
from discreet.privacy.verify._domain import Private, Public, Value, private_in, range_factor
from discreet.privacy.verify._errors import NoBoundError, PrivacyError, Reason, Why
from discreet.privacy.verify._interpreter import Checker
from discreet.privacy.verify._record import Drawn, Scheduled
from discreet.privacy.verify._registry import KEY_RULES, rule
from discreet.privacy.verify._rows import shape_in, shape_of, shapes_in, summed, varies_along
from discreet.privacy.verify._rules_keys import spend_secret
from discreet.privacy.verify._rules_linear import sum_over
from discreet.privacy.verify._rules_noise import number_of
from discreet.privacy.verify._rules_shape import masked_rows


@rule(CLIP, table=KEY_RULES)
def clip(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of clipping: rows of joint norm at most C, without NaN; a row of zeros stays zero.

    The L2 norm is at most the L1 norm, so terms hold for both orders.
    """
    leaves, bound = number_of(equation, operands, "norm")
    private = private_in(leaves)
    if not private and len(leaves) == len(operands):
        # A row common to all records, such as the ones of a count, has the largest norm.
        return [
            Public(limit=bound.factor if bound is not None and not bound.powers else None)
            for _ in leaves
        ]
    if not private or bound is None:
        raise NoBoundError(Why.NOISE_SCALE("the clipping norm depends on records"))
    # All leaves are scaled by one factor, so together they are one vector of norm C per record.
    group = Group()
    first = private[0]
    by_record = all(x.axes == first.axes for x in private)
    if any(x.batch is not first.batch for x in private):
        raise NoBoundError(Why.ROWS("values of different samples are clipped by one norm"))
    shapes = [shape_of(v) for v in equation.outvars]
    single = all(s[0] == 1 for s in shapes)
    rows = by_record and (first.axes == (0,) or (first.axes == () and single))
    # Each leaf is scaled by the joint norm.
    positional = any(x.positional for x in private) or len(private) < len(leaves)
    outputs: list[Value] = []
    for number, value in enumerate(leaves):
        if not isinstance(value, Private):
            if not rows:
                why = Why.ROWS("a public leaf is clipped with private ones")
                outputs.append(checker.unbounded(equation, operands, why))
                continue
            # A public leaf beside private ones is scaled by their norm.
            value = first.but(zero=frozenset())
        if rows and first.batch is not None:
            term = Term(group, frozenset([number]), bound, first.batch)
            origin = checker.origin(equation, [value])
            linf = bound.factor if not bound.powers else None
            changes: dict[str, Any] = {
                "linf": linf,
                "absolute": linf if equation.params["order"] == 1 else None,
                "finite": True,
                "origin": origin,
                "positional": positional,
                "rounding": (1.0, 0.0),
            }
            outputs.append(value.but(terms=(term,), **changes))
            continue
        outputs.append(
            _clip_of_sum(
                checker, equation, value, Term(group, frozenset([number]), bound, Table()), single
            )
        )
    return outputs


def _clip_of_sum(
    checker: Checker, equation: JaxprEqn, value: Private, term: Term, single: bool
) -> Private:
    batch = value.batch
    factor = (
        range_factor(batch, checker.relation)
        if batch is not None and not isinstance(batch, Cut)
        else 0.0
    )
    if batch is None or not single or value.axes is not None or factor == 0.0:
        why = Why.ROWS("clip_records bounds one row, but here a record influences other rows too")
        return checker.unbounded(equation, [value], why)
    # The result is a vector of norm C; one record may reverse it.
    if factor > 1.0:
        checker.notes.append(
            f"the sensitivity is 2C, since a sum was clipped and not the records ({source_line(equation)})"
        )
    terms = (Term(term.group, term.leaves, term.bound * factor, batch),)
    return Private(batch, None, checker.origin(equation, [value]), terms=terms, finite=True)


@rule(SUM)
def total(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of `sum_records`: the sum of the rows that a mask keeps."""
    *leaves, mask = operands
    outputs: list[Value] = []
    for value, variable, result in zip(leaves, equation.invars, equation.outvars, strict=False):
        own = equation.replace(outvars=[result])
        if isinstance(value, Private) and value.axes is None and value.terms is None:
            outputs.append(
                checker.unbounded(
                    equation, [value], Why.ROWS("the summed array does not have one row per record")
                )
            )
            continue
        # As the function computes it: a select, then a sum.
        rows = masked_rows(
            checker, equation, mask, value, shape_of(variable), shape_of(equation.invars[-1])
        )
        summed = (
            sum_over(checker, own, rows, shape_of(variable), (0,))
            if isinstance(rows, Private)
            else Public()
        )
        if isinstance(summed, Private) and summed.axes is None:
            summed = dataclasses.replace(
                summed, rounding=_of_rows(value, shape_of(variable)[0], aval(result).dtype)
            )
        outputs.append(summed)
    return outputs


def _of_rows(value: Value, count: int, dtype: Any) -> tuple[float, float] | None:
    """`Private.rounding` of a sum of clipped rows, or of public ones of limited size."""
    share = 0.0
    if isinstance(value, Private):
        if value.rounding is None or value.axes != (0,):
            return None
        share = value.rounding[1]
    elif not isinstance(value, Public) or value.magnitude is None:
        return None
    if np.dtype(dtype) not in (np.float32, np.float64):
        return None
    return float(count), share + rounding_of_records(count, dtype)


@rule(WEIGHTED_SUM)
def weighted_sum(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of `sum_weighted`: a record adds a vector of norm at most 1, made of its own rows and weights.

    Where the mask drops it, it adds exactly zero. Public rows, or public weights, bound the norm no
    less.
    """
    rows, weights, mask = operands
    private = [x for x in (rows, weights) if isinstance(x, Private)]
    if any(x.axes != (0,) or x.batch is not private[0].batch for x in private):
        why = Why.ROWS(
            "what is weighted and summed does not have one row per record of the same table"
        )
        raise NoBoundError(why)
    shapes = shapes_in(equation)
    # A record's product is zero where one of its factors is: what is not finite is dropped.
    found = private[0].but(zero=frozenset().union(*(x.zero for x in private))) if private else rows
    kept = masked_rows(checker, equation, mask, found, shapes[0], shapes[2])
    if not isinstance(kept, Private):
        return [Public()]
    if kept.axes != (0,) or kept.batch is None:
        return [kept]
    public = [
        (x, shape)
        for x, shape in zip((rows, weights), shapes, strict=False)
        if isinstance(x, Public)
    ]
    placed = any(varies_along(x, shape, (0,)) for x, shape in public) or any(
        x.positional for x in private
    )
    origin = checker.origin(equation, operands)
    terms = fresh(Scale(1.0), kept.batch)
    bounded = kept.but(
        terms=terms, linf=None, finite=True, positional=kept.positional or placed, origin=origin
    )
    total = summed(checker, bounded, shapes[0], additive=True)
    return [dataclasses.replace(total, rounding=(float(shapes[0][0]), 0.0))]


@rule(COUNT)
def count(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    """The rule of cross tables: each record adds a vector with one entry, the weight, in each table, or zero.

    So its norm is the root of the sum of squared weights, in L1 their sum, and no entry is negative.
    A record of m rows adds m such vectors, whose sum is at most m times as long.
    """
    weights = equation.params["weights"]
    rows = _rows_of(equation)
    norm = rows * math.sqrt(sum(weight**2 for weight in weights))
    absolute = float(rows * sum(weights))
    return _of_cells(checker, equation, operands, norm, absolute, low=0.0)


def _rows_of(equation: JaxprEqn) -> int:
    """The number of rows of a record: levels have an axis for them, where it may be above 1."""
    return max(1, math.prod(shape_in(equation)[1:-1]))


def _of_cells(
    checker: Checker,
    equation: JaxprEqn,
    operands: list[Value],
    norm: float,
    absolute: float | None = None,
    low: float | None = None,
) -> Private:
    """The influence of a record that is in one cell of each cross table, in L2 and, if given, in L1."""
    levels, mask, *counted = operands
    if any(isinstance(x, Private) for x in counted):
        raise NoBoundError(
            Why.ROWS("counts are compared with, or added to, values that depend on records")
        )
    if isinstance(levels, Private):
        # A row of zeros is in a cell, too.
        levels = levels.but(zero=frozenset(), terms=None, linf=None)
    rows = masked_rows(
        checker, equation, mask, levels, shape_in(equation), shape_of(equation.invars[1])
    )
    if not isinstance(rows, Private) or rows.axes != (0,) or rows.batch is None:
        raise NoBoundError(Why.ROWS("what is counted does not have one row per record"))
    terms = fresh(Scale(norm), rows.batch)
    origin = checker.origin(equation, operands)
    claims = {"terms": terms, "absolute": absolute, "linf": None, "low": low}
    counts = rows.but(**claims, finite=True, origin=origin)
    total = summed(checker, counts, shape_in(equation), additive=True)
    # exact; further counts may be large
    return dataclasses.replace(total, rounding=(math.inf, 0.0))


@rule(DRAW, table=KEY_RULES)
def draw(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of sampling: row numbers, mask, and sampled rows, which are zero where the mask is False.

    The sampler's law follows from the drawing and the tables' values (`Drawing.law`).
    """
    spend_secret(checker, equation, operands[0])
    params: Any = equation.params
    count = params["structure"].num_leaves
    tables = operands[1 : 1 + count]
    records = operands[1 + count :]
    if records and not any(isinstance(x, Private) for x in records):
        return [Public() for _ in equation.outvars]

    drawing = params["drawing"]
    sampling = _law(checker, drawing, params["structure"], tables)
    table = next((x.batch for x in records if isinstance(x, Private)), checker.table)
    private = [x for x in records if isinstance(x, Private) and x.axes == (0,) and x.batch is table]
    numbered = checker.neighbours.hides_membership and any(x.positional for x in private)
    # Where no draw is recorded, the results are not a sample.
    if isinstance(sampling, Reason):
        return _refused(checker, equation, operands, sampling)
    if (
        not isinstance(table, Table)
        or len(private) < len(records)
        or (not records and table.masked)
    ):
        why = Why.ROWS(
            "a sample is drawn from something that is not one row per record of the table"
        )
        return _refused(checker, equation, operands, why)
    if numbered and not table.masked:
        why = Why.POSITION(
            "rows depend on their number in the table, which changes when a record is removed"
        )
        return _refused(checker, equation, operands, why)
    _check_sampler(checker, equation, sampling)
    # From here on the records are those of the sample; a draw without a release is free.
    batch = Sample(
        table, depth=len(checker.keys.loops), sampling=sampling, num_records=drawing.num_records
    )
    checker.items += [*_each_turn(checker, batch, drawing, params["structure"], tables), batch]
    origin = checker.origin(equation, records, "" if records else "a secret sample of the records")
    # Row numbers reveal who was drawn: nothing may be computed from them, but `clipped_sum`
    # recognizes them by name.
    numbers = Private(
        batch, None, origin, why=Why.ROWS("it reveals which records are in the sample")
    )
    kept = frozenset([(outside(batch), 1)])
    mask = Private(batch, (0,), origin, linf=1.0, finite=True, zero=frozenset([batch]), absent=kept)
    checker.samples[batch] = (drawing.num_records + drawing.padding, numbers.serial, mask.serial)
    outputs: list[Value] = [numbers, mask]
    for value in private:
        changes = {
            "terms": bounding(value.terms, batch),
            "zero": value.zero | {batch},
            "positional": False,
        }
        outputs.append(value.but(batch=batch, origin=checker.origin(equation, [value]), **changes))
    return outputs


def _law(checker: Checker, drawing: Any, structure: Any, tables: list[Value]) -> Sampling | Reason:
    """The sampler that a drawing implements with these tables, or why there is none that the proof trusts."""
    public = [x for x in tables if isinstance(x, Public)]
    if type(drawing) is OpenPoisson:
        known = [checker.symbols.expression(x.scale) for x in public]
    else:
        known = [x.const if x.exact else None for x in public]
    sampling = (
        drawing.law(jax.tree.unflatten(structure, known)) if len(public) == len(tables) else None
    )
    if sampling is None:
        return Why.RATE("the sampling rate is not known before the program runs")
    if type(drawing) is OpenPoisson:
        return sampling
    # A sampler on the list has to use its own drawing: a subclass may draw differently.
    if type(sampling) in (*SAMPLERS, ThinnedPoisson) and type(
        sampling.drawing(drawing.num_records)
    ) is type(drawing):
        return sampling
    return Why.SAMPLER(f"the sampler {type(sampling).__name__} is not on the list")


def _each_turn(
    checker: Checker, batch: Sample, drawing: Drawing, structure: Any, tables: list[Value]
) -> list[Scheduled | Drawn]:
    """The sampler of each iteration, if it follows the number of the step, and that is known; else that of all steps holds."""
    step = drawing.step_of(jax.tree.unflatten(structure, tables))
    if not isinstance(step, Public):
        return []
    if step.const is not None and step.exact:
        return [Drawn(batch, batch.sampling.at(int(step.const)))]
    if step.turns is None or step.turns.error or step.turns.loop not in checker.keys.loops:
        return []
    steps = [int(x) for x in step.turns.values]
    kinds: dict[Sampling, int] = {}
    each = [kinds.setdefault(batch.sampling.at(x), len(kinds)) for x in steps]
    return [Scheduled(step.turns.loop, [[Drawn(batch, x)] for x in kinds], tuple(each))]


def _check_sampler(checker: Checker, equation: JaxprEqn, sampling: Sampling) -> None:
    """Refuse a sampler without an event for this relation, or with per-record state unless records are independent."""
    line = source_line(equation)
    name: str = equation.params.get("name", equation.primitive.name)
    if checker.relation not in sampling.relations:
        others = " or ".join(
            f"dp.Relation.{x.name}" for x in sorted(sampling.relations, key=lambda x: x.name)
        )
        why = f", which has no sound accounting for {checker.neighbours.name('record')}"
        if sampling.constant_size:
            why = f" of fixed size{why}: one additional record changes every other record's probability of being drawn"
        raise PrivacyError(
            f"{name} at {line} draws a batch{why}.",
            f"certify with relation={others}, or draw with dp.poisson_subsample.",
            chain=(line,),
        )
    if sampling.independent:
        return
    checker.draws_dependently = True
    if checker.remembers:
        raise PrivacyError(
            f"{name} at {line} draws a batch in which one record's place depends on others', and records keep state of "
            "earlier batches: drawing one record changes the state of others, which no accounting here covers.",
            "draw with Poisson sampling, or let every record be in every batch.",
            chain=(line,),
        )


@rule(CLIPPED_SUM, table=KEY_RULES)
def clipped_sum(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The contract of gradient engines: each record of the batch adds at most the joint bound to all outputs together.

    The loss is a program of one record, so it cannot combine two. Its other inputs must be public,
    and the row numbers those of a draw, in which each record occurs once.
    """
    *keys, indices, mask = operands[:4]
    params: Any = equation.params
    norms, *public, table = params["layout"].parts(operands[4:])
    for key in keys:
        spend_secret(checker, equation, key)
    why = None
    _, bound = number_of(equation, norms, "norm")
    if not params["trusted"]:
        why = Why.ROWS("the gradient engine is not on the list")
    elif any(not isinstance(x, Public) for part in public for x in part):
        why = Why.ROWS("the loss of one record depends on others")
    elif bound is None:
        why = Why.NOISE_SCALE("the clipping norm is not known to be public")
    elif not _is_draw(checker, equation, indices, mask, table):
        why = _no_draw(checker, indices)
    if why is not None or bound is None:
        assert why is not None
        return _refused(checker, equation, [*operands[4:], indices], why)
    assert isinstance(indices, Private)
    assert indices.batch is not None
    # The engine divides the joint bound between the gradient on one side and loss and count on the
    # other; `norm` is the gradient's.
    joint = bound * ((1.0 + params["rounding"]) / math.sqrt(1.0 - sum(params["shares"])))
    group = Group()
    origin = checker.origin(equation, table)
    outputs: list[Value] = []
    for number, _ in enumerate(equation.outvars[:-1]):
        term = Term(group, frozenset([number]), joint, indices.batch)
        exact = {
            "finite": True,
            "additive": True,
            "rounding": (math.inf, 0.0),
        }  # included in the bound
        outputs.append(Private(indices.batch, None, origin, terms=(term,), **exact))
    # The last output is True if the random bits could be generated.
    return [*outputs, Public()]


def _no_draw(checker: Checker, indices: Value) -> Reason:
    """The reason why row numbers are not those of a draw: that of a refused draw, if they come from one."""
    unknown = isinstance(indices, Private) and (
        indices.batch is None or indices.batch not in checker.samples
    )
    own = indices.why if unknown and isinstance(indices, Private) else None
    return own or Why.ROWS("the rows are not those of a sample of the table")


def _refused(
    checker: Checker, equation: JaxprEqn, operands: list[Value], why: Reason
) -> list[Value]:
    found = checker.unbounded(equation, operands, why)
    # The fault is in this use of the sample, not in the sample.
    return [found.but(why=why.at(source_line(equation))) for _ in equation.outvars]


def _is_draw(
    checker: Checker, equation: JaxprEqn, indices: Value, mask: Value, table: list[Value]
) -> bool:
    """True if row numbers and mask come from one draw from these arrays."""
    if not isinstance(indices, Private) or not isinstance(mask, Private) or indices.batch is None:
        return False
    shapes = [shape_of(x) for x in equation.invars[len(equation.invars) - len(table) :]]
    rows = {shape[0] for shape in shapes}
    by_place = checker.neighbours.hides_membership
    for value, shape in zip(table, shapes, strict=True):
        if isinstance(value, Public):
            # The state of records starts as public values, which, like rows, must not depend on the
            # place.
            if by_place and varies_along(value, shape, (0,)):
                return False
            continue
        if not isinstance(value, Private) or value.axes != (0,) or value.batch is not checker.table:
            return False
        if value.positional and by_place:
            return False
    return checker.samples.get(indices.batch) == (*rows, indices.serial, mask.serial)


@rule(UPDATE_ROWS, table=KEY_RULES)
def update_rows(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of `update_rows`: each record of a sample updates its state from itself and public values.

    A record's state reveals whether it was in earlier samples. So a later sample counts as fresh
    only if a record's probability of being drawn depends on no other record, as in Poisson samples:
    see `mechanisms.update_rows`.
    """
    key, indices, mask = operands[:3]
    params: Any = equation.params
    *public, table, memory = params["layout"].parts(operands[3:])
    spend_secret(checker, equation, key)
    why = None
    if any(not isinstance(x, Public) for part in public for x in part):
        why = Why.ROWS("the state of one record depends on others")
    elif not _is_draw(checker, equation, indices, mask, [*table, *memory]):
        why = _no_draw(checker, indices)
    elif checker.draws_dependently:
        why = Why.ROWS(
            "records keep state of samples of a fixed size, in which one record affects the state of others"
        )
    if why:
        return _refused(checker, equation, [*operands[3:], indices], why)
    checker.remembers = True
    origin = checker.origin(equation, [*table, *memory])
    return [Private(checker.table, (0,), origin) for _ in equation.outvars]
