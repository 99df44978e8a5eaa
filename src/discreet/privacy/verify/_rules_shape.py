"""Primitives that move, select or look up elements: reshape, slice, concatenate, select, gather, sort, windows.

Elements do not change here, so a bound depends only on how often each is used: k copies of a vector
have sqrt(k) times its norm, and parts of one jointly at most its norm. Rows stay rows as long as
the axes of the records stay whole. If records are picked by place, each may occur at most once
(`recognize/_slices`); otherwise the result has no rows. An index or a selection that depends on
records is covered only if it is the record's own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discreet._jax import JaxprEqn, primitive_of, primitives as p, unstack_p
from discreet.privacy.verify._bounds import (
    Group,
    Term,
    Terms,
    bounding,
    scaled,
    source_of,
    stacked,
    total_of,
)
from discreet.privacy.verify._domain import (
    Axes,
    Private,
    Public,
    Value,
    private_in,
    row_terms,
    through_reshape,
    without,
)
from discreet.privacy.verify._errors import NoBoundError, Why
from discreet.privacy.verify._interpreter import Checker, common_batch
from discreet.privacy.verify._moved import (
    axes_after,
    common_rows,
    moved,
    moved_sum,
    over_the_record,
    rows_apart,
    rows_of_all,
)
from discreet.privacy.verify._registry import rule
from discreet.privacy.verify._rows import (
    aligned,
    all_finite,
    as_sum,
    both_zero,
    expansion,
    is_positional,
    is_positive,
    limits_of,
    shape_in,
    shape_of,
    shape_out,
    size_per_record,
    varies_along,
    zero_under,
)
from discreet.privacy.verify.recognize._clipping import (
    factor_of_choice,
    finite_by_choice,
    reshaped_norm,
    within_by_choice,
)
from discreet.privacy.verify.recognize._folds import folding
from discreet.privacy.verify.recognize._histograms import added_up
from discreet.privacy.verify.recognize._slices import joined_rows, picked, slice_of, window_of

_LINE = jax.ShapeDtypeStruct((2,), np.float32)


@rule(p.reshape_p)
@folding
def _reshape(checker: Checker, equation: JaxprEqn, operands: list[Private]) -> Private:
    (value,) = operands
    if value.axes is None:
        return moved_sum(checker, equation, value)
    old = shape_in(equation)
    own = value.axes
    order = equation.params["dimensions"]
    if order is not None:  # transposed beforehand
        old = tuple(old[int(i)] for i in order)
        own = tuple([int(i) for i in order].index(a) for a in own)
    return moved(checker, equation, value, through_reshape(old, shape_out(equation), own))


@rule(p.squeeze_p, p.transpose_p, p.rev_p)
@folding
def _move(checker: Checker, equation: JaxprEqn, operands: list[Private]) -> Private:
    (value,) = operands
    return moved(
        checker,
        equation,
        value,
        axes_after(equation, value.axes),
        exact=equation.primitive is not p.rev_p,
    )


@rule(p.broadcast_in_dim_p)
@folding
def _broadcast(checker: Checker, equation: JaxprEqn, operands: list[Private]) -> Private:
    value = operands[0]
    own = shape_in(equation)
    factor = expansion(own, shape_out(equation))
    axes = axes_after(equation, value.axes)
    found = moved(checker, equation, value, axes, exact=factor == 1.0, factor=factor)
    if axes is None:
        return found
    norm = reshaped_norm(value, own)
    return dataclasses.replace(found, norm_of=norm, finite_where=over_the_record(value, own))


@rule(p.slice_p, p.dynamic_slice_p)
def _slice(checker: Checker, equation: JaxprEqn, operands: Sequence[Value]) -> Private:
    value = operands[0]
    if not isinstance(value, Private) or any(isinstance(x, Private) for x in operands[1:]):
        raise NoBoundError(Why.ROWS("elements are selected by an index that depends on records"))
    own = shape_in(equation)
    out = shape_out(equation)
    kept = value.axes is not None and all(own[a] == out[a] for a in value.axes)
    if (
        not kept
        and equation.primitive is p.slice_p
        and value.axes is not None
        and len(value.axes) == 1
    ):
        part = slice_of(checker, equation, value)
        if part is not None:
            found = moved(checker, equation, value, value.axes, exact=False)
            return found.but(
                batch=part, terms=bounding(value.terms, part), low=found.low, high=found.high
            )
    if not kept and equation.primitive is p.dynamic_slice_p and value.axes is not None:
        found = window_of(checker, equation, value, operands[1:])
        if found is not None:
            return found
    return moved(checker, equation, value, value.axes if kept else None, exact=own == out)


@rule(p.pad_p)
def _pad(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    value, filler = operands
    if not isinstance(value, Private) or not isinstance(filler, Public):
        raise NoBoundError(Why.ROWS("padding depends on records"))
    config = equation.params["padding_config"]
    kept = value.axes is not None and all(tuple(config[a]) == (0, 0, 0) for a in value.axes)
    found = moved(checker, equation, value, value.axes if kept else None, exact=False)
    ends = {
        name: None if x is None else f(0.0, x)
        for name, x, f in (("low", found.low, min), ("high", found.high, max))
    }
    if found.axes is None or filler.is_zero:
        return dataclasses.replace(found, **ends)
    known = filler.magnitude
    limit = max(known, found.linf) if known is not None and found.linf is not None else None
    return found.but(
        terms=None,
        linf=limit,
        zero=frozenset(),
        finite=found.finite and limit is not None and math.isfinite(limit),
    )


@rule(p.concatenate_p)
def concatenate(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    axis = int(equation.params["dimension"])
    private = private_in(operands)
    first = private[0]
    axes = common_rows(operands)
    if axes is not None and axis not in axes:
        return concatenated_rows(checker, equation, operands, first)
    if (rows := joined_rows(checker, equation, operands, axis)) is not None:
        return rows
    pairs = zip(operands, equation.invars, strict=True)
    sums = [as_sum(checker, x, shape_of(v)) for x, v in pairs if isinstance(x, Private)]
    batch = common_batch(private)
    bad = next((x for x in sums if x.terms is None), None)
    parts = [x.terms for x in sums if x.terms is not None]
    terms = stacked(parts, batch) if bad is None and batch is not None else None
    if terms is None:
        lost = Why.ROWS("values without a bound are concatenated along the axis of the records")
        raise NoBoundError(lost, bad)
    origin = checker.origin(equation, operands)
    return Private(
        batch, None, origin, terms=terms, finite=True, additive=all(x.additive for x in sums)
    )


def concatenated_rows(
    checker: Checker, equation: JaxprEqn, operands: list[Value], first: Private
) -> Private:
    assert first.axes is not None
    assert first.batch is not None
    # Public zeros add nothing to the norm.
    parts = [
        x.terms if isinstance(x, Private) else None for x in operands if zero_under(x) is not None
    ]
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
    whole = shape_in(equation)
    found = []
    end = 0
    for variable, size in zip(equation.outvars, equation.params["sizes"], strict=True):
        start = end
        end = end + int(size)
        first = tuple(start if a == axis else 0 for a in range(len(whole)))
        last = tuple(end if a == axis else n for a, n in enumerate(whole))
        cut = {"start_indices": first, "limit_indices": last, "strides": None}
        found.append(
            _slice(
                checker,
                equation.replace(primitive=p.slice_p, params=cut, outvars=[variable]),
                operands,
            )
        )
    return found


def parts(checker: Checker, equation: JaxprEqn, value: Private, axes: Axes | None) -> list[Value]:
    """Disjoint parts of one value, whose joint norm is at most its norm."""
    whole = moved(checker, equation, value, axes, exact=False)
    # The parts share the bound of the whole: they are the leaves of a new group.
    total = None if whole.terms is None else total_of(whole.terms)
    if total is None or whole.terms is None or not whole.terms:
        return [
            whole.but(terms=None if whole.axes is not None else whole.terms)
            for _ in equation.outvars
        ]
    group = Group()
    source = source_of(whole.terms)
    return [
        whole.but(terms=(Term(group, frozenset([i]), total, source),))
        for i in range(len(equation.outvars))
    ]


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
        raise NoBoundError(Why.CHOICE("a selection depends on records other than its row's"))
    # A public selection: each element of the result is one of the cases, so their concatenation
    # bounds it.
    pairs = zip(cases, equation.invars[1:], strict=True)
    sums = [as_sum(checker, x, shape_of(v)) for x, v in pairs if isinstance(x, Private)]
    bad = next((x for x in sums if x.terms is None), None)
    batch = common_batch(sums)
    if bad is not None or batch is None:
        lost = Why.ROWS("a selection between values without a bound")
        raise NoBoundError(lost, bad)
    parts = [x.terms for x in sums if x.terms is not None]
    terms = stacked(parts, batch)
    if terms is None:
        raise NoBoundError(Why.CLIP("bounds of the two cases cannot be compared"))
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
        # Each of its elements is finite now; a bound on a row that held NaN does not bound the
        # others.
        cases = [cases[0], cases[1].but(terms=None)] if not finite[1] else cases
        finite[1] = True
    finite_by_choice(which, cases, finite)
    limits = limits_of(cases)
    terms = _bound_of_choice(equation, which, cases)
    low = 0.0 if all(map(is_positive, cases, equation.invars[1:])) else None
    linf = None if limits is None else max(limits)
    changes = {"zero": zero, "finite": all(finite), "linf": linf, "low": low, "terms": terms}
    if (
        len(cases) == 2
        and isinstance(which, Private)
        and isinstance(first, Private)
        and which.tells[1] == first.spot
    ):
        lacks = first.lacks | {which.tells[0]} if all_finite(cases[1:]) else frozenset()
        changes |= {"lacks": lacks, "finite": all(finite) or len(lacks) == 3, "place": -1}
        changes["terms"] = None if not finite[0] else terms
    holders = private_in(cases)
    if len(holders) == 1 and holders[0].norm_of is not None and holders[0].norm_of.kind == "factor":
        changes["norm_of"] = factor_of_choice(which, cases, holders[0])
    return changes


def _bound_of_choice(equation: JaxprEqn, which: Value, cases: Sequence[Value]) -> Terms | None:
    parts: list[Terms] = []
    for number, (value, variable) in enumerate(zip(cases, equation.invars[1:], strict=True)):
        if isinstance(value, Public) and value.is_zero:
            continue
        own = shape_of(variable)
        out = shape_out(equation)
        if not isinstance(value, Private):
            return None
        terms = value.terms
        if terms is None and value.linf is not None and value.axes is not None:
            terms = row_terms(value.but(finite=True), size_per_record(own, value.axes))
        if terms is None:
            terms = within_by_choice(which, number, value)
        if terms is None:
            return None
        parts.append(scaled(terms, expansion(own, out)))
    if len(parts) <= 1:
        return parts[0] if parts else None
    # One selection per record: the longer of the two multiples of one row bounds it, not a mixture.
    by_norm = (
        isinstance(which, Private)
        and which.norm_of is not None
        and which.norm_of.kind in ("above", "below")
    )
    singles = [x[0] for x in parts if len(x) == 1] if by_norm else []
    if (
        len(singles) == len(parts)
        and len({(id(t.group), t.leaves, t.bound.powers, t.source) for t in singles}) == 1
    ):
        return (max(singles, key=lambda t: t.bound.factor),)
    return stacked(parts, parts[0][0].source)


def masked_rows(
    checker: Checker, equation: JaxprEqn, mask: Value, value: Value, shape: Axes, mask_shape: Axes
) -> Value:
    """The rule of `where(mask, value, 0)`, for a mask over the leading axis."""
    if isinstance(mask, Public):
        if isinstance(value, Private) and value.axes is not None and 0 in value.axes:
            return value.but(positional=value.positional or varies_along(mask, mask_shape, (0,)))
        return value
    if not isinstance(mask, Private) or mask.axes != (0,):
        return checker.unbounded(
            equation, [mask, value], Why.ROWS("the mask does not have one element per record")
        )
    if isinstance(value, Public):
        positional = mask.positional or varies_along(value, shape, (0,))
        origin = checker.origin(equation, [mask])
        return mask.but(
            linf=value.magnitude, finite=all_finite([value]), positional=positional, origin=origin
        )
    assert isinstance(value, Private)
    if value.axes != (0,) or value.batch is not mask.batch:
        return checker.unbounded(
            equation, [mask, value], Why.ROWS("mask and rows do not belong to the same records")
        )
    guarded = not value.finite and value.guarded_by(over_the_record(mask, mask_shape))
    low = None if value.low is None else min(0.0, value.low)
    found = value.but(
        zero=value.zero | mask.zero,
        positional=value.positional or mask.positional,
        low=low,
        absolute=value.absolute,
    )
    return found.but(finite=True, terms=None) if guarded else found


@rule(p.gather_p)
def gather(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    """The rule of lookups by index. An index out of range may give NaN, so there is no bound."""
    source, index = operands
    numbers = equation.params["dimension_numbers"]
    rank = len(shape_out(equation))
    offset = [int(i) for i in numbers.offset_dims]
    batched = [i for i in range(rank) if i not in offset]
    source_batch = [int(i) for i in numbers.operand_batching_dims]
    index_batch = [int(i) for i in numbers.start_indices_batching_dims]
    origin = checker.origin(equation, operands)
    if isinstance(source, Public) and isinstance(index, Private) and index.axes is not None:
        if len(shape_of(equation.invars[1])) - 1 in index.axes:
            raise NoBoundError(Why.ROWS("several records make up one index"))
        axes = tuple(batched[a] for a in index.axes)
        shared = tuple(source_batch[index_batch.index(a)] for a in index.axes if a in index_batch)
        positional = index.positional or varies_along(source, shape_in(equation), shared)
        return Private(index.batch, axes, origin, positional=positional)
    times = _most_often(equation, index)
    if not isinstance(source, Private) or (source.axes is None and times is None):
        raise NoBoundError(Why.ROWS("elements of a value of all records are looked up"))
    if source.axes is None and times is not None:
        return moved_sum(checker, equation, source, math.sqrt(times))
    assert source.axes is not None
    axes_found: list[int] = []
    gone = (*numbers.collapsed_slice_dims, *source_batch)
    kept = [i for i in range(len(shape_in(equation))) if i not in gone]
    for axis in source.axes:
        if axis in source_batch:
            axes_found.append(batched[index_batch[source_batch.index(axis)]])
        elif axis in kept and equation.params["slice_sizes"][axis] == shape_in(equation)[axis]:
            axes_found.append(offset[kept.index(axis)])
        else:
            return picked(checker, equation, source, axis, index)
    positional = source.positional
    if isinstance(index, Private):
        by_row = (
            index.batch is source.batch
            and index.axes is not None
            and len(index.axes) == len(source.axes)
        )
        paired = by_row and all(
            a in source_batch and b == index_batch[source_batch.index(a)]
            for a, b in zip(source.axes, index.axes or (), strict=True)
        )
        if not paired:
            raise NoBoundError(
                Why.ROWS("elements are looked up by an index that depends on records")
            )
        positional |= index.positional
    elif isinstance(index, Public):
        rows = tuple(index_batch[source_batch.index(a)] for a in source.axes if a in source_batch)
        positional |= varies_along(index, shape_of(equation.invars[1]), rows)
    rows = Private(source.batch, tuple(axes_found), origin, positional=positional)
    if times is None:
        return rows
    terms = None if source.terms is None else scaled(source.terms, math.sqrt(times))
    return rows.but(
        terms=terms, linf=source.linf, low=source.low, finite=source.finite, zero=source.zero
    )


def _most_often(equation: JaxprEqn, index: Value) -> int | None:
    """How often an element is looked up at most, by known indices within the array; None for others."""
    numbers = equation.params["dimension_numbers"]
    known = index.const if isinstance(index, Public) and index.exact else None
    looked = [int(i) for i in numbers.start_index_map]
    shape = shape_in(equation)
    if (
        known is None
        or not known.size
        or any(equation.params["slice_sizes"][i] != 1 for i in looked)
    ):
        return None
    places = known.reshape(-1, len(looked))
    inside = (places >= 0) & (places < np.array([shape[i] for i in looked]))
    return int(np.unique(places, axis=0, return_counts=True)[1].max()) if inside.all() else None


@rule(p.scatter_p, p.scatter_add_p, p.scatter_mul_p, p.scatter_min_p, p.scatter_max_p)
def scatter(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    """The rule of scatter: each record may write to its own place only."""
    private = private_in(operands)
    lost = Why.ROWS("records' values are written to places that other records can reach")
    if (histogram := added_up(checker, equation, operands)) is not None:
        return histogram
    own = _own_places(equation)
    # All operands must have the records along the same axes of the array.
    found: set[Axes] = set()
    for value, places in zip(operands, own, strict=True):
        if isinstance(value, Private):
            if (
                value.axes is None
                or value.batch is not private[0].batch
                or not set(value.axes) <= set(places)
            ):
                raise NoBoundError(lost)
            found.add(tuple(places[a] for a in value.axes))
    if len(found) != 1:
        raise NoBoundError(lost)
    axes = found.pop()
    positional = any(x.positional for x in private)
    for value, variable, places in zip(operands, equation.invars, own, strict=True):
        if isinstance(value, Public):
            theirs = tuple(a for a, place in places.items() if place in axes)
            positional |= varies_along(value, shape_of(variable), theirs)
    return Private(
        private[0].batch, axes, checker.origin(equation, operands), positional=positional
    )


def _own_places(equation: JaxprEqn) -> list[dict[int, int]]:
    """For array, indices and updates: the map from their axes to those of the array with the same places.

    Those are the axes over which the operation is batched, and those that every window covers from
    end to end.
    """
    numbers = equation.params["dimension_numbers"]
    target, _, updates = (shape_of(x) for x in equation.invars)
    batched = [int(i) for i in numbers.operand_batching_dims]
    windows = [int(i) for i in numbers.update_window_dims]
    scattered = [i for i in range(len(updates)) if i not in windows]
    moving = {int(i) for i in numbers.scatter_dims_to_operand_dims}
    gone = {int(i) for i in numbers.inserted_window_dims} | set(batched)
    kept = [i for i in range(len(target)) if i not in gone]
    whole = {
        w: a
        for w, a in zip(windows, kept, strict=True)
        if a not in moving and updates[w] == target[a]
    }
    indices = {
        int(i): a for i, a in zip(numbers.scatter_indices_batching_dims, batched, strict=True)
    }
    rows = {scattered[i]: a for i, a in indices.items()}
    return [{a: a for a in (*batched, *whole.values())}, indices, {**rows, **whole}]


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
    return rows_apart(
        checker,
        equation,
        operands,
        mixed,
        ": sorting moves records, or values along with other records",
    )


@rule(p.top_k_p)
def _top_k(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    rank = len(shape_in(equation))
    mixed = {int(equation.params.get("axis", rank - 1)) % rank}
    return rows_apart(
        checker, equation, operands, mixed, ": the largest are selected among records"
    )


@rule(p.dynamic_update_slice_p)
def _update_slice(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of replacing a part of each record by a part of each record."""
    target, update, *starts = operands
    axes = None if any(isinstance(x, Private) for x in starts) else common_rows([target, update])
    shapes = [shape_of(x) for x in equation.invars[:2]]
    if axes is None or any(shapes[0][a] != shapes[1][a] for a in axes):
        lost = Why.ROWS(
            f"{equation.primitive.name}: values are written to places that other records can reach"
        )
        raise NoBoundError(lost)
    return rows_of_all(
        checker, equation.replace(invars=equation.invars[:2]), [target, update], axes
    )


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
    return parts(
        checker,
        equation,
        value,
        without(value.axes, [axis]) if kept and value.axes is not None else None,
    )


@rule(primitive_of(jax.lax.optimization_barrier, _LINE))
def _barrier(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> list[Value]:
    """The rule of a fence for the compiler: result i is operand i, to the bit, and no other one.

    So each claim about an operand, public or private, is one about its result. Where a key is among
    them the checker asks no rule of this table: they all depend on records then.
    """
    del checker, equation
    return operands


@rule(primitive_of(lambda x: jnp.tile(x, 2), _LINE))
def _tile(checker: Checker, equation: JaxprEqn, operands: list[Private]) -> Private:
    (value,) = operands
    own = shape_in(equation)
    out = shape_out(equation)
    kept = value.axes is not None and all(own[a] == out[a] for a in value.axes)
    axes = value.axes if kept else None
    return moved(checker, equation, value, axes, exact=own == out, factor=expansion(own, out))
