"""Primitives that move, select or look up elements: reshape, slice, concatenate, select, gather, sort, windows.

Elements do not change here, so a bound depends only on how often each is used: k copies of a vector have sqrt(k) times its
norm, and parts of one jointly at most its norm. Rows stay rows as long as the axes of the records stay whole. If records are
picked by place, each may occur at most once (`Rows`); otherwise the result has no rows. An index or a selection that
depends on records is covered only if it is the record's own.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discreet._jax import JaxprEqn, aval, primitive_of, primitives as p, unstack_p
from discreet.privacy.verify._domain import (
    Axes,
    Batch,
    Group,
    Norm,
    Part,
    Private,
    Public,
    Rows,
    Scale,
    Table,
    Term,
    Value,
    bounding,
    row_terms,
    scaled,
    source_of,
    stacked,
    through_reshape,
    total_of,
    without,
)
from discreet.privacy.verify._errors import Why
from discreet.privacy.verify._interpreter import (
    Checker,
    aligned,
    all_finite,
    as_sum,
    both_zero,
    common_batch,
    expansion,
    is_positional,
    is_whole,
    rule,
    shape_of,
    size_per_record,
    summed,
    varies_along,
    zero_under,
)
from discreet.privacy.verify._rules_elementwise import FLOOR, limits_of, margin, reshaped_norm

MOST_EXACT = 2**24
_LINE = jax.ShapeDtypeStruct((2,), np.float32)


def moved(checker: Checker, equation: JaxprEqn, value: Private, axes: Axes | None, *, exact: bool = True) -> Private:
    """A value of the operand's elements, each at most once. `exact`: all of them, so it has the same content."""
    if value.axes is None or axes is None:
        return moved_sum(checker, equation, value)
    shape = shape_of(equation.invars[0])
    found = value.but(axes=axes, origin=checker.origin(equation, [value]), low=value.low, high=value.high)
    if not exact:
        return found
    where = over_the_record(value) if size_per_record(shape, value.axes) == 1 else frozenset[tuple[str, int]]()
    norm = reshaped_norm(value, shape)
    kept = {"holds": value.content, "finite_where": where, "lacks": value.lacks}
    return dataclasses.replace(found, norm_of=norm, **kept)


def over_the_record(value: Private) -> frozenset[tuple[str, int]]:
    """Conditions on a record as a whole, which survive moving its one Boolean."""
    return frozenset(x for x in value.finite_where if x[0] == "all")


def moved_sum(checker: Checker, equation: JaxprEqn, value: Private) -> Private:
    """The same for a value without record axes: one record's influence does not grow."""
    found = as_sum(checker, value, shape_of(equation.invars[0]))
    if found.terms is None:
        lost = Why.ROWS(f"{equation.primitive.name} mixes the axis of the records with others")
        return checker.unbounded(equation, [found], found.why or lost)
    return found.but(origin=checker.origin(equation, [value]))


@rule(p.reshape_p)
def _reshape(checker: Checker, equation: JaxprEqn, operands: list[Private]) -> Private:
    (value,) = operands
    if value.axes is None:
        return moved_sum(checker, equation, value)
    old = shape_of(equation.invars[0])
    own = value.axes
    order = equation.params["dimensions"]
    if order is not None:  # transposed beforehand
        old = tuple(old[int(i)] for i in order)
        own = tuple([int(i) for i in order].index(a) for a in own)
    return moved(checker, equation, value, through_reshape(old, shape_of(equation.outvars[0]), own))


def axis_after(equation: JaxprEqn, axis: int) -> int | None:
    """The position in the result of an axis of the operand, if its elements keep their places; otherwise None."""
    primitive = equation.primitive
    params = equation.params
    if primitive is p.transpose_p:
        return [int(i) for i in params["permutation"]].index(axis)
    if primitive is p.broadcast_in_dim_p:
        place = int(params["broadcast_dimensions"][axis])
        return place if shape_of(equation.outvars[0])[place] == shape_of(equation.invars[0])[axis] else None
    if primitive in (p.squeeze_p, p.rev_p):
        gone = [int(i) for i in params["dimensions"]]
        return None if axis in gone else axis - sum(i < axis for i in gone if primitive is p.squeeze_p)
    return axis


def axes_after(equation: JaxprEqn, axes: Axes | None) -> Axes | None:
    """`axis_after` of all record axes; None if one of them is gone."""
    found = [axis_after(equation, a) for a in axes or ()]
    return None if axes is None or None in found else tuple(a for a in found if a is not None)


@rule(p.squeeze_p, p.transpose_p, p.rev_p)
def _move(checker: Checker, equation: JaxprEqn, operands: list[Private]) -> Private:
    (value,) = operands
    return moved(checker, equation, value, axes_after(equation, value.axes), exact=equation.primitive is not p.rev_p)


@rule(p.broadcast_in_dim_p)
def _broadcast(checker: Checker, equation: JaxprEqn, operands: list[Private]) -> Private:
    value = operands[0]
    own = shape_of(equation.invars[0])
    out = shape_of(equation.outvars[0])
    factor = expansion(own, out)
    if (axes := axes_after(equation, value.axes)) is not None:
        found = moved(checker, equation, value, axes, exact=factor == 1.0)
        norm = reshaped_norm(value, own)
        complete = size_per_record(own, value.axes) == 1
        where = over_the_record(value) if complete else frozenset[tuple[str, int]]()
        terms = None if value.terms is None else scaled(value.terms, factor)
        return dataclasses.replace(found, terms=terms, norm_of=norm, finite_where=where)
    found = moved_sum(checker, equation, value)
    return found if found.terms is None else found.but(terms=scaled(found.terms, factor))


@rule(p.slice_p, p.dynamic_slice_p)
def _slice(checker: Checker, equation: JaxprEqn, operands: Sequence[Value]) -> Private:
    value = operands[0]
    if not isinstance(value, Private) or any(isinstance(x, Private) for x in operands[1:]):
        why = Why.ROWS("elements are selected by an index that depends on records")
        return checker.unbounded(equation, operands, why)
    own = shape_of(equation.invars[0])
    out = shape_of(equation.outvars[0])
    kept = value.axes is not None and all(own[a] == out[a] for a in value.axes)
    if not kept and equation.primitive is p.slice_p and value.axes is not None and len(value.axes) == 1:
        part = _slice_of(checker, equation, value)
        if part is not None:
            found = moved(checker, equation, value, value.axes, exact=False)
            return found.but(batch=part, terms=bounding(value.terms, part), low=found.low, high=found.high)
    if not kept and equation.primitive is p.dynamic_slice_p and value.axes is not None:
        found = _window_of(checker, equation, value, operands[1:])
        if found is not None:
            return found
    return moved(checker, equation, value, value.axes if kept else None, exact=own == out)


def _window_of(checker: Checker, equation: JaxprEqn, value: Private, starts: Sequence[Value]) -> Private | None:
    """The `Part` of an iteration's `lax.dynamic_slice(x, i * size)`, if no other iteration takes any of its rows.

    It is then like a slice of a scanned array. So all starts must be known and within the array, since JAX moves others. In a
    random sample a record left out moves others to another iteration: all rows must be taken, and treated alike (`placed`).
    """
    own = shape_of(equation.invars[0])
    out = shape_of(equation.outvars[0])
    cut = [i for i in range(len(own)) if own[i] != out[i]]
    if value.axes is None or value.batch is None or len(cut) != 1 or cut[0] not in value.axes:
        return None
    (axis,) = cut
    start = starts[axis]
    size = out[axis]
    place = value.axes.index(axis)
    turns = start.turns if isinstance(start, Public) else None
    if turns is None or turns.loop not in checker.keys.loops or not turns.values:
        return None
    # Parts of parts go from the outer loop to the inner one, each loop once.
    around = checker.keys.loops[: checker.keys.loops.index(turns.loop)]
    batch: Batch | None = value.batch
    while batch is not None:
        if isinstance(batch, Part) and batch.loop not in around:
            return None
        batch = batch.parent
    firsts = sorted(turns.values)
    apart = all(a + size <= b for a, b in itertools.pairwise(firsts))
    if not apart or firsts[0] < 0 or firsts[-1] + size > own[axis]:
        return None
    if value.batch.sampled and size * len(firsts) < own[axis]:
        return None
    beside = tuple(math.prod(own[a] for a in axes) for axes in (value.axes[:place], value.axes[place + 1 :]))
    name = (value.batch, *turns.values, turns.loop, size, own[axis], beside)
    if name not in checker.windows:
        depth = checker.keys.loops.index(turns.loop)
        checker.windows[name] = Part(value.batch, value.batch.masked, depth, loop=turns.loop, before=0)
    part = checker.windows[name]
    # A single row of an axis numbers nothing, as after a scan along it.
    axes = tuple(a for a in value.axes if a != axis or size > 1)
    found = moved(checker, equation, value, axes, exact=False)
    placed = value.positional or turns.loop in checker.placed
    return dataclasses.replace(found, batch=part, terms=bounding(value.terms, part), positional=placed)


def _slice_of(checker: Checker, equation: JaxprEqn, value: Private) -> Batch | None:
    """The consecutive rows of a slice of the table."""
    if not isinstance(value.batch, Table) or value.axes is None:
        return None
    (axis,) = value.axes
    params = equation.params
    if params["strides"] is not None and params["strides"][axis] != 1:
        return None
    return _numbered_rows(checker, value.batch, range(params["start_indices"][axis], params["limit_indices"][axis]))


def _numbered_rows(checker: Checker, batch: Table, numbers: range | tuple[int, ...]) -> Batch:
    """Some rows of the table; the same object for all arrays."""
    return checker.rows.setdefault((batch, numbers), Rows(batch, batch.masked, numbers=numbers))


@rule(p.pad_p)
def _pad(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    value, filler = operands
    if not isinstance(value, Private) or not isinstance(filler, Public):
        return checker.unbounded(equation, operands, Why.ROWS("padding depends on records"))
    config = equation.params["padding_config"]
    kept = value.axes is not None and all(tuple(config[a]) == (0, 0, 0) for a in value.axes)
    found = moved(checker, equation, value, value.axes if kept else None, exact=False)
    if found.axes is None or filler.is_zero:
        return found
    known = filler.magnitude
    limit = max(known, found.linf) if known is not None and found.linf is not None else None
    return found.but(
        terms=None, linf=limit, zero=frozenset(), finite=found.finite and limit is not None and math.isfinite(limit)
    )


@rule(p.concatenate_p)
def concatenate(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    axis = int(equation.params["dimension"])
    private = [x for x in operands if isinstance(x, Private)]
    first = private[0]
    same = all(x.axes == first.axes and x.batch is first.batch for x in private)
    if same and first.axes is not None and axis not in first.axes:
        return concatenated_rows(checker, equation, operands, first)
    pairs = zip(operands, equation.invars, strict=True)
    sums = [as_sum(checker, x, shape_of(v)) for x, v in pairs if isinstance(x, Private)]
    batch = common_batch(private)
    bad = next((x for x in sums if x.terms is None), None)
    parts = [x.terms for x in sums if x.terms is not None]
    terms = stacked(parts, batch) if bad is None and batch is not None else None
    if terms is None:
        lost = Why.ROWS("values without a bound are concatenated along the axis of the records")
        return checker.unbounded(equation, [bad] if bad is not None else operands, lost)
    origin = checker.origin(equation, operands)
    return Private(batch, None, origin, terms=terms, finite=True, additive=all(x.additive for x in sums))


def concatenated_rows(checker: Checker, equation: JaxprEqn, operands: list[Value], first: Private) -> Private:
    assert first.axes is not None
    assert first.batch is not None
    # Public zeros add nothing to the norm.
    parts = [x.terms if isinstance(x, Private) else None for x in operands if zero_under(x) is not None]
    known = [x for x in parts if x is not None]
    terms = stacked([x for x in known if x], first.batch) if len(known) == len(parts) else None
    limits = limits_of(operands)
    return Private(
        first.batch,
        first.axes,
        checker.origin(equation, operands),
        terms=terms,
        linf=None if limits is None else max(limits),
        finite=all_finite(operands),
        zero=both_zero(operands),
        positional=is_positional(equation, operands, first.axes),
    )


@rule(primitive_of(lambda x: jax.lax.split(x, (1, 1)), _LINE))
def _split(checker: Checker, equation: JaxprEqn, operands: list[Private]) -> Sequence[Value]:
    (value,) = operands
    axis = int(equation.params["axis"])
    if value.axes is None or axis not in value.axes:
        return parts(checker, equation, value, value.axes)
    # Records split into blocks: each is a slice.
    whole = shape_of(equation.invars[0])
    found = []
    end = 0
    for variable, size in zip(equation.outvars, equation.params["sizes"], strict=True):
        start = end
        end = end + int(size)
        first = tuple(start if a == axis else 0 for a in range(len(whole)))
        last = tuple(end if a == axis else n for a, n in enumerate(whole))
        cut = {"start_indices": first, "limit_indices": last, "strides": None}
        found.append(_slice(checker, equation.replace(primitive=p.slice_p, params=cut, outvars=[variable]), operands))
    return found


def parts(checker: Checker, equation: JaxprEqn, value: Private, axes: Axes | None) -> list[Value]:
    """Disjoint parts of one value, whose joint norm is at most its norm."""
    whole = moved(checker, equation, value, axes, exact=False)
    # The parts share the bound of the whole: they are the leaves of a new group.
    total = None if whole.terms is None else total_of(whole.terms)
    if total is None or whole.terms is None or not whole.terms:
        return [whole.but(terms=None if whole.axes is not None else whole.terms) for _ in equation.outvars]
    group = Group()
    source = source_of(whole.terms)
    return [whole.but(terms=(Term(group, frozenset([i]), total, source),)) for i in range(len(equation.outvars))]


@rule(p.select_n_p)
def _select(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    which = operands[0]
    cases = operands[1:]
    chosen = _only_case(which, cases)
    if chosen is not None:
        return chosen
    # The selection belongs to the record whose row it selects: it moves no other.
    rows = aligned(checker, equation, operands)
    if rows is not None:
        return rows.but(**_selected(equation, which, cases))
    if isinstance(which, Private):
        return checker.unbounded(equation, operands, Why.CHOICE("a selection depends on records other than its row's"))
    # A public selection: each element of the result is one of the cases, so their concatenation bounds it.
    pairs = zip(cases, equation.invars[1:], strict=True)
    sums = [as_sum(checker, x, shape_of(v)) for x, v in pairs if isinstance(x, Private)]
    bad = next((x for x in sums if x.terms is None), None)
    batch = common_batch(sums)
    if bad is not None or batch is None:
        lost = Why.ROWS("a selection between values without a bound")
        return checker.unbounded(equation, [bad] if bad is not None else operands, lost)
    parts = [x.terms for x in sums if x.terms is not None]
    terms = stacked(parts, batch)
    if terms is None:
        return checker.unbounded(equation, operands, Why.CLIP("bounds of the two cases cannot be compared"))
    return Private(batch, None, checker.origin(equation, operands), terms=terms, finite=True)


def _only_case(which: Value, cases: Sequence[Value]) -> Private | None:
    """The case selected everywhere, if known."""
    number = None
    if isinstance(which, Public) and which.const is not None and which.const.ndim == 0:
        number = int(which.const)
    elif isinstance(which, Private) and which.tells[0] == "never":
        number = 0
    chosen = None if number is None else cases[number]
    return chosen if isinstance(chosen, Private) else None


def _selected(equation: JaxprEqn, which: Value, cases: Sequence[Value]) -> dict:
    finite_where = which.finite_where if isinstance(which, Private) else frozenset()
    # The mask is False where there is no record, which selects case 0.
    zero = both_zero(cases)
    first = cases[0]
    if isinstance(which, Private):
        if isinstance(first, Public) and first.is_zero:
            zero |= which.zero
        elif isinstance(first, Private):
            zero |= which.zero & first.zero
        second = zero_under(cases[-1]) if len(cases) == 2 else frozenset()
        true = frozenset(mask for mask, number in which.absent if number == 1)
        zero |= true if second is None else true & second
    finite = [all_finite([x]) for x in cases]
    if len(cases) == 2 and isinstance(cases[1], Private) and cases[1].guarded_by(finite_where):
        # Each of its elements is finite now; a bound on a row that held NaN does not bound the others.
        cases = [cases[0], cases[1].but(terms=None)] if not finite[1] else cases
        finite[1] = True
    _finite_by_choice(which, cases, finite)
    limits = limits_of(cases)
    terms = _bound_of_choice(equation, which, cases)
    changes = {"zero": zero, "finite": all(finite), "linf": None if limits is None else max(limits), "terms": terms}
    if len(cases) == 2 and isinstance(which, Private) and isinstance(first, Private) and which.tells[1] == first.spot:
        lacks = first.lacks | {which.tells[0]} if all_finite(cases[1:]) else frozenset()
        changes |= {"lacks": lacks, "finite": all(finite) or len(lacks) == 3, "place": -1}
        changes["terms"] = None if not finite[0] else terms
    holders = [x for x in cases if isinstance(x, Private)]
    if len(holders) == 1 and holders[0].norm_of is not None and holders[0].norm_of.kind == "factor":
        changes["norm_of"] = _factor_of_choice(which, cases, holders[0])
    return changes


def _finite_by_choice(which: Value, cases: Sequence[Value], finite: list[bool]) -> None:
    """Handle `where(norm < C, g, g / norm * C)`: where the quotient is selected, the norm is not 0."""
    norm = which.norm_of if isinstance(which, Private) else None
    known = norm is not None and norm.kind in ("above", "below") and not norm.bound.powers and norm.finite
    if norm is None or not known or norm.bound.factor < FLOOR:
        return
    near = 0 if norm.kind == "above" else 1
    by_itself = cases[near]
    shortened = cases[1 - near]
    if isinstance(by_itself, Private) and by_itself.content in norm.contents and isinstance(shortened, Private):
        terms = shortened.terms or ()
        if len(terms) == 1 and terms[0].group is norm.group and terms[0].leaves == frozenset([by_itself.content]):
            finite[1 - near] = finite[near]


def _bound_of_choice(equation: JaxprEqn, which: Value, cases: Sequence[Value]) -> tuple[Term, ...] | None:
    parts: list[tuple[Term, ...]] = []
    for number, (value, variable) in enumerate(zip(cases, equation.invars[1:], strict=True)):
        if isinstance(value, Public) and value.is_zero:
            continue
        own = shape_of(variable)
        out = shape_of(equation.outvars[0])
        if not isinstance(value, Private):
            return None
        terms = value.terms
        if terms is None and value.linf is not None and value.axes is not None:
            terms = row_terms(value.but(finite=True), size_per_record(own, value.axes))
        if terms is None:
            terms = _within_by_choice(which, number, value)
        if terms is None:
            return None
        parts.append(scaled(terms, expansion(own, out)))
    if len(parts) <= 1:
        return parts[0] if parts else None
    # One selection per record: the longer of the two multiples of one row bounds it, not a mixture.
    by_norm = isinstance(which, Private) and which.norm_of is not None and which.norm_of.kind in ("above", "below")
    singles = [x[0] for x in parts if len(x) == 1] if by_norm else []
    if len(singles) == len(parts) and len({(id(t.group), t.leaves, t.bound.powers, t.source) for t in singles}) == 1:
        return (max(singles, key=lambda t: t.bound.factor),)
    return stacked(parts, parts[0][0].source)


def _within_by_choice(which: Value, number: int, value: Private) -> tuple[Term, ...] | None:
    """Handle `where(norm < C, g, ...)`: in that case the norm of g is at most C."""
    norm = which.norm_of if isinstance(which, Private) else None
    if norm is None or value.batch is None or value.content not in norm.contents:
        return None
    if (norm.kind, number) not in (("above", 0), ("below", 1)) or not norm.finite or norm.bound.factor < FLOOR:
        return None
    bound = norm.bound * (1.0 + margin(norm.size))
    return (Term(norm.group, frozenset([value.content]), bound, value.batch),)


def _factor_of_choice(which: Value, cases: Sequence[Value], factor: Private) -> Norm | None:
    """Handle `where(norm > C, C / norm, 1)`, which is a factor, too."""
    norm = which.norm_of if isinstance(which, Private) else None
    own = factor.norm_of
    if own is None or all(x is factor or (isinstance(x, Public) and x.is_zero) for x in cases):
        return own
    if norm is None or norm.contents != own.contents or norm.bound.powers or own.bound.powers:
        return None
    number = 1 if cases[1] is factor else 0
    other = cases[1 - number]
    largest = other.magnitude if isinstance(other, Public) else None
    if (norm.kind, number) not in (("above", 1), ("below", 0)) or largest is None:
        return None
    bound = Scale(max(own.bound.factor, norm.bound.factor * largest))
    return dataclasses.replace(own, bound=bound, safe=norm.bound.factor >= FLOOR)


def masked_rows(
    checker: Checker, equation: JaxprEqn, mask: Value, value: Value, shape: Axes, mask_shape: Axes
) -> Value:
    """The rule of `where(mask, value, 0)`, for a mask over the leading axis."""
    if isinstance(mask, Public):
        if isinstance(value, Private) and value.axes is not None and 0 in value.axes:
            return value.but(positional=value.positional or varies_along(mask, mask_shape, (0,)))
        return value
    if not isinstance(mask, Private) or mask.axes != (0,):
        return checker.unbounded(equation, [mask, value], Why.ROWS("the mask does not have one element per record"))
    if isinstance(value, Public):
        positional = mask.positional or varies_along(value, shape, (0,))
        origin = checker.origin(equation, [mask])
        return mask.but(linf=value.magnitude, finite=all_finite([value]), positional=positional, origin=origin)
    assert isinstance(value, Private)
    if value.axes != (0,) or value.batch is not mask.batch:
        return checker.unbounded(equation, [mask, value], Why.ROWS("mask and rows do not belong to the same records"))
    guarded = not value.finite and value.guarded_by(over_the_record(mask))
    found = value.but(zero=value.zero | mask.zero, positional=value.positional or mask.positional)
    return found.but(finite=True, terms=None) if guarded else found


@rule(p.gather_p)
def gather(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    """The rule of lookups by index. An index out of range may give NaN, so there is no bound."""
    source, index = operands
    numbers = equation.params["dimension_numbers"]
    rank = len(shape_of(equation.outvars[0]))
    offset = [int(i) for i in numbers.offset_dims]
    batched = [i for i in range(rank) if i not in offset]
    source_batch = [int(i) for i in numbers.operand_batching_dims]
    index_batch = [int(i) for i in numbers.start_indices_batching_dims]
    origin = checker.origin(equation, operands)
    if isinstance(source, Public) and isinstance(index, Private) and index.axes is not None:
        if len(shape_of(equation.invars[1])) - 1 in index.axes:
            return checker.unbounded(equation, operands, Why.ROWS("several records make up one index"))
        axes = tuple(batched[a] for a in index.axes)
        shared = tuple(source_batch[index_batch.index(a)] for a in index.axes if a in index_batch)
        positional = index.positional or varies_along(source, shape_of(equation.invars[0]), shared)
        return Private(index.batch, axes, origin, positional=positional)
    if not isinstance(source, Private) or source.axes is None:
        return checker.unbounded(equation, operands, Why.ROWS("elements of a value of all records are looked up"))
    axes_found: list[int] = []
    gone = (*numbers.collapsed_slice_dims, *source_batch)
    kept = [i for i in range(len(shape_of(equation.invars[0]))) if i not in gone]
    for axis in source.axes:
        if axis in source_batch:
            axes_found.append(batched[index_batch[source_batch.index(axis)]])
        elif axis in kept and equation.params["slice_sizes"][axis] == shape_of(equation.invars[0])[axis]:
            axes_found.append(offset[kept.index(axis)])
        else:
            return _picked(checker, equation, source, axis, index)
    positional = source.positional
    if isinstance(index, Private):
        by_row = index.batch is source.batch and index.axes is not None and len(index.axes) == len(source.axes)
        paired = by_row and all(
            a in source_batch and b == index_batch[source_batch.index(a)]
            for a, b in zip(source.axes, index.axes or (), strict=True)
        )
        if not paired:
            why = Why.ROWS("elements are looked up by an index that depends on records")
            return checker.unbounded(equation, operands, why)
        positional |= index.positional
    elif isinstance(index, Public):
        rows = tuple(index_batch[source_batch.index(a)] for a in source.axes if a in source_batch)
        positional |= varies_along(index, shape_of(equation.invars[1]), rows)
    return Private(source.batch, tuple(axes_found), origin, positional=positional)


def _picked(checker: Checker, equation: JaxprEqn, source: Private, axis: int, index: Value) -> Private:
    """The rule of `rows[numbers]`, for distinct numbers known at trace time: each record is in one row at most."""
    numbers = equation.params["dimension_numbers"]
    count = shape_of(equation.invars[0])[axis]
    simple = source.axes == (axis,) == tuple(numbers.start_index_map) and axis in numbers.collapsed_slice_dims
    known = index.const if isinstance(index, Public) else None
    if not simple or not isinstance(source.batch, Table) or known is None or known.ndim != 2:
        why = Why.ROWS("records are picked by number, and their numbers are not known to be distinct")
        return checker.unbounded(equation, [source, index], why)
    picks = tuple(int(i) for i in known.reshape(-1))
    if len(set(picks)) < len(picks) or any(not 0 <= i < count for i in picks):
        why = Why.ROWS("a record is picked several times, so it counts as often")
        return checker.unbounded(equation, [source, index], why)
    batch = _numbered_rows(checker, source.batch, picks)
    terms = bounding(source.terms, batch)
    offset = {int(i) for i in numbers.offset_dims}
    (place,) = (i for i in range(len(shape_of(equation.outvars[0]))) if i not in offset)
    return source.but(batch=batch, axes=(place,), terms=terms, origin=checker.origin(equation, [source]))


@rule(p.scatter_p, p.scatter_add_p, p.scatter_mul_p, p.scatter_min_p, p.scatter_max_p)
def scatter(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    """The rule of scatter: each record may write to its own place only."""
    private = [x for x in operands if isinstance(x, Private)]
    lost = Why.ROWS("records' values are written to places that other records can reach")
    if (histogram := _added_up(checker, equation, operands)) is not None:
        return histogram
    own = _own_places(equation)
    # All operands must have the records along the same axes of the array.
    found: set[tuple[int, ...]] = set()
    for value, places in zip(operands, own, strict=True):
        if isinstance(value, Private):
            if value.axes is None or value.batch is not private[0].batch or not set(value.axes) <= set(places):
                return checker.unbounded(equation, operands, lost)
            found.add(tuple(places[a] for a in value.axes))
    if len(found) != 1:
        return checker.unbounded(equation, operands, lost)
    axes = found.pop()
    positional = any(x.positional for x in private)
    for value, variable, places in zip(operands, equation.invars, own, strict=True):
        if isinstance(value, Public):
            theirs = tuple(a for a, place in places.items() if place in axes)
            positional |= varies_along(value, shape_of(variable), theirs)
    return Private(private[0].batch, axes, checker.origin(equation, operands), positional=positional)


def _added_up(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private | None:
    """The rule of rows added to an array of zeros at their indices, as in histograms; None otherwise, or without a bound.

    At any index, one record moves the result by its own updates: those of one window go to distinct places, or are dropped,
    and k windows move it by at most sqrt(k) times their joint norm.
    """
    array, index, update = operands
    numbers = equation.params["dimension_numbers"]
    shapes = [shape_of(x) for x in equation.invars]
    # If indices break their promises, other records' updates may go anywhere.
    promised = [equation.params[x] for x in ("unique_indices", "indices_are_sorted")]
    undefined = any(promised) or equation.params["mode"] is jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS
    dtype = np.dtype(aval(equation.outvars[0]).dtype)
    if equation.primitive is not p.scatter_add_p or undefined or numbers.operand_batching_dims or dtype.itemsize < 4:
        return None
    if not isinstance(array, Public) or not array.is_zero:
        return None
    # The other axes of the updates are those of the indices except the last.
    scattered = [i for i in range(len(shapes[2])) if i not in numbers.update_window_dims]
    if isinstance(index, Private):
        if not index.axes or len(shapes[1]) - 1 in index.axes:
            return None
        axes = tuple(scattered[a] for a in index.axes)
        if isinstance(update, Public):
            varies = varies_along(update, shapes[2], axes)
            size = update.magnitude
            update = index.but(axes=axes, terms=None, linf=size, zero=frozenset(), finite=True, positional=varies)
        if not isinstance(update, Private) or update.axes != axes or update.batch is not index.batch:
            return None
        placed = index.positional
        drops = equation.params["mode"] is jax.lax.GatherScatterMode.FILL_OR_DROP
        if drops and np.dtype(aval(equation.invars[1]).dtype).itemsize >= 4:  # narrower integers may not hold the end
            # `where(mask, y, len(bins))` sends absent records beyond the end, where they add nothing.
            end = min(shapes[0][i] for i in numbers.scatter_dims_to_operand_dims)
            update = update.but(zero=update.zero | {mask for mask, place in index.absent if not 0 <= place < end})
    elif (
        isinstance(index, Public) and isinstance(update, Private) and update.axes and set(update.axes) <= set(scattered)
    ):
        axes = update.axes
        placed = varies_along(index, shapes[1], tuple(scattered.index(a) for a in axes))
    else:
        return None
    update = update.but(positional=update.positional or placed)
    windows = math.prod(shapes[2][i] for i in scattered if i not in axes)
    if dtype.kind != "f":
        most = math.inf if update.linf is None else update.linf * math.prod(shapes[2][i] for i in scattered)
        if dtype.kind not in "iu" or most >= MOST_EXACT or windows > 1:
            return None
    found = summed(checker, update, shapes[2], additive=True)
    if found.terms is None:
        return None
    return found.but(terms=scaled(found.terms, math.sqrt(windows)), origin=checker.origin(equation, operands))


def _own_places(equation: JaxprEqn) -> list[dict[int, int]]:
    """For array, indices and updates: the map from their axes to those of the array with the same places.

    Those are the axes over which the operation is batched, and those that every window covers from end to end.
    """
    numbers = equation.params["dimension_numbers"]
    target, _, updates = (shape_of(x) for x in equation.invars)
    batched = [int(i) for i in numbers.operand_batching_dims]
    windows = [int(i) for i in numbers.update_window_dims]
    scattered = [i for i in range(len(updates)) if i not in windows]
    moving = {int(i) for i in numbers.scatter_dims_to_operand_dims}
    gone = {int(i) for i in numbers.inserted_window_dims} | set(batched)
    kept = [i for i in range(len(target)) if i not in gone]
    whole = {w: a for w, a in zip(windows, kept, strict=True) if a not in moving and updates[w] == target[a]}
    indices = {int(i): a for i, a in zip(numbers.scatter_indices_batching_dims, batched, strict=True)}
    rows = {scattered[i]: a for i, a in indices.items()}
    return [{a: a for a in (*batched, *whole.values())}, indices, {**rows, **whole}]


def common_rows(operands: Sequence[Value]) -> Axes | None:
    """The axes of the records, where all private operands have them in one place; else None."""
    private = [x for x in operands if isinstance(x, Private)]
    first = private[0]
    alike = all(x.axes == first.axes and x.batch is first.batch for x in private)
    return first.axes if alike and first.batch is not None else None


def rows_of_all(checker: Checker, equation: JaxprEqn, operands: list[Value], axes: Axes) -> list[Value]:
    """Result rows computed from the operands' rows along the same axes, without bounds."""
    batch = next(x.batch for x in operands if isinstance(x, Private))
    positional = is_positional(equation, operands, axes)
    origin = checker.origin(equation, operands)
    return [Private(batch, axes, origin, finite=is_whole(v), positional=positional) for v in equation.outvars]


def rows_apart(
    checker: Checker, equation: JaxprEqn, operands: list[Value], mixed: Collection[int], why: str
) -> list[Value]:
    """The results of a function that combines elements along the `mixed` axes only: records must lie along others."""
    axes = common_rows(operands)
    if axes is None or set(axes) & set(mixed):
        lost = Why.ROWS(f"{equation.primitive.name}{why}")
        return [checker.unbounded(equation, operands, lost) for _ in equation.outvars]
    return rows_of_all(checker, equation, operands, axes)


@rule(
    p.reduce_window_sum_p, p.reduce_window_max_p, p.reduce_window_min_p, p.select_and_scatter_add_p,
    p.select_and_gather_add_p,
)  # fmt: skip
def _windows(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of sums, maxima, ... over windows, and of their derivatives."""
    params: Any = equation.params
    names = ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    sizes = [params[n] for n in names if n in params]
    padding = enumerate(params["padding"])
    mixed = {a for a, around in padding if tuple(around) != (0, 0) or any(x[a] != 1 for x in sizes)}
    return rows_apart(checker, equation, operands, mixed, ": windows reach over several records")


@rule(p.sort_p)
def _sort(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of sorting several arrays by the first; public ones move with the records."""
    mixed = {int(equation.params["dimension"])}
    return rows_apart(checker, equation, operands, mixed, ": sorting moves records, or values along with other records")


@rule(p.top_k_p)
def _top_k(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    rank = len(shape_of(equation.invars[0]))
    mixed = {int(equation.params.get("axis", rank - 1)) % rank}
    return rows_apart(checker, equation, operands, mixed, ": the largest are selected among records")


@rule(p.dynamic_update_slice_p)
def _update_slice(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of replacing a part of each record by a part of each record."""
    target, update, *starts = operands
    axes = None if any(isinstance(x, Private) for x in starts) else common_rows([target, update])
    shapes = [shape_of(x) for x in equation.invars[:2]]
    if axes is None or any(shapes[0][a] != shapes[1][a] for a in axes):
        lost = Why.ROWS(f"{equation.primitive.name}: values are written to places that other records can reach")
        return [checker.unbounded(equation, operands, lost)]
    return rows_of_all(checker, equation.replace(invars=equation.invars[:2]), [target, update], axes)


@rule(primitive_of(lambda x: jnp.stack([x, x]), _LINE))
def _stack(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    axis = int(equation.params["axis"])
    axes = common_rows(operands)
    if axes:
        first = next(x for x in operands if isinstance(x, Private))
        found = concatenated_rows(checker, equation, operands, first)
        return found.but(axes=tuple(a + (a >= axis) for a in axes))
    return concatenate(checker, equation.replace(params={"dimension": 0}), operands)


@rule(unstack_p)
def _unstack(checker: Checker, equation: JaxprEqn, operands: list[Private]) -> list[Value]:
    (value,) = operands
    axis = int(equation.params["axis"])
    kept = value.axes is not None and axis not in value.axes
    return parts(checker, equation, value, without(value.axes, [axis]) if kept and value.axes is not None else None)


@rule(primitive_of(lambda x: jnp.tile(x, 2), _LINE))
def _tile(checker: Checker, equation: JaxprEqn, operands: list[Private]) -> Private:
    (value,) = operands
    own = shape_of(equation.invars[0])
    out = shape_of(equation.outvars[0])
    kept = value.axes is not None and all(own[a] == out[a] for a in value.axes)
    found = moved(checker, equation, value, value.axes if kept else None, exact=own == out)
    return found if found.terms is None else found.but(terms=scaled(found.terms, expansion(own, out)))
