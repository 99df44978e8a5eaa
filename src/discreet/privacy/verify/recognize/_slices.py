"""Rows taken by number: slices of the table, picks, and the rows of one iteration.

Records may be divided by place: `x[:500]`, `x[permutation]`, or `lax.dynamic_slice(x, i * size)` in
a loop. The result is a cut of the batch, in which each record is at most once: `NumberedRows`, or
the `Part` of one iteration. The numbers must be known at trace time, within the array (JAX moves
others), and distinct. Then parts of different iterations are disjoint, and by parallel composition
all iterations cost as much as one.

Sound on the table, where a record has one place. In a random sample a record that is left out
moves those behind it to other places, and so to other iterations: there all rows have to be taken,
and treated alike (`placed`). `over_slices` merges a sum over disjoint slices: a record is in one of
them. Its group is named by the slices with their borders, since two sums with other borders would
give one record two groups.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

from discreet._jax import JaxprEqn
from discreet.privacy.verify._bounds import (
    NumberedRows,
    Part,
    RecordSet,
    Table,
    Term,
    Terms,
    bounding,
    group_of,
)
from discreet.privacy.verify._domain import Axes, Private, Public, Value
from discreet.privacy.verify._errors import NoBoundError, Why
from discreet.privacy.verify._interpreter import Checker
from discreet.privacy.verify._moved import moved
from discreet.privacy.verify._rows import shape_in, shape_out


def window_of(
    checker: Checker, equation: JaxprEqn, value: Private, starts: Sequence[Value]
) -> Private | None:
    """The `Part` of an iteration's `lax.dynamic_slice(x, i * size)`, if no other iteration takes any of its rows.

    It is then like a slice of a scanned array. So all starts must be known and within the array,
    since JAX moves others. In a random sample a record left out moves others to another iteration:
    all rows must be taken, and treated alike (`placed`).
    """
    own = shape_in(equation)
    out = shape_out(equation)
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
    batch: RecordSet | None = value.batch
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
    beside = tuple(
        math.prod(own[a] for a in axes) for axes in (value.axes[:place], value.axes[place + 1 :])
    )
    name = (value.batch, *turns.values, turns.loop, size, own[axis], beside)
    if name not in checker.cuts.windows:
        depth = checker.keys.loops.index(turns.loop)
        checker.cuts.windows[name] = Part(
            value.batch, value.batch.masked, depth, loop=turns.loop, before=0
        )
    part = checker.cuts.windows[name]
    # A single row of an axis numbers nothing, as after a scan along it.
    axes = tuple(a for a in value.axes if a != axis or size > 1)
    found = moved(checker, equation, value, axes, exact=False)
    placed = value.positional or turns.loop in checker.cuts.placed
    return dataclasses.replace(
        found, batch=part, terms=bounding(value.terms, part), positional=placed
    )


def slice_of(checker: Checker, equation: JaxprEqn, value: Private) -> RecordSet | None:
    """The consecutive rows of a slice of the table."""
    if not isinstance(value.batch, Table) or value.axes is None:
        return None
    (axis,) = value.axes
    params = equation.params
    if params["strides"] is not None and params["strides"][axis] != 1:
        return None
    numbers = range(params["start_indices"][axis], params["limit_indices"][axis])
    return _numbered_rows(checker, value.batch, numbers, shape_in(equation)[axis])


def _numbered_rows(checker: Checker, batch: RecordSet, numbers: range | Axes, of: int) -> RecordSet:
    """Some rows of the table; the same object for all arrays."""
    return checker.cuts.rows.setdefault(
        (batch, numbers), NumberedRows(batch, batch.masked, numbers=numbers, of=of)
    )


def joined_rows(
    checker: Checker, equation: JaxprEqn, operands: Sequence[Value], axis: int
) -> Private | None:
    """The rows of slices one behind the other, as at the end of `lax.map(batch_size=...)`: the table's, or a longer slice."""
    rows = [x for x in operands if isinstance(x, Private) and x.axes == (axis,)]
    cuts = [
        x.batch
        for x in rows
        if isinstance(x.batch, NumberedRows) and isinstance(x.batch.numbers, range)
    ]
    ranges = [x.numbers for x in cuts if isinstance(x.numbers, range)]
    adjoin = all(a.stop == b.start for a, b in itertools.pairwise(ranges))
    tables = {x.parent for x in cuts if x.parent is not None}
    if len(cuts) < len(operands) or not adjoin or len(tables) != 1:
        return None
    (table,) = tables
    numbers = range(ranges[0].start, ranges[-1].stop)
    batch = (
        table if len(numbers) == cuts[0].of else _numbered_rows(checker, table, numbers, cuts[0].of)
    )
    origin = checker.origin(equation, operands)
    found = None
    for x in rows:
        # Slices may be of different functions, so a row depends on its place.
        whole = x.but(batch=batch, terms=bounding(x.terms, batch), positional=True, origin=origin)
        found = whole if found is None else found.joined(whole)
    return found


def picked(
    checker: Checker, equation: JaxprEqn, source: Private, axis: int, index: Value
) -> Private:
    """The rule of `rows[numbers]`, for distinct numbers known at trace time: each record is in one row at most."""
    numbers = equation.params["dimension_numbers"]
    count = shape_in(equation)[axis]
    simple = (
        source.axes == (axis,) == tuple(numbers.start_index_map)
        and axis in numbers.collapsed_slice_dims
    )
    known = index.const if isinstance(index, Public) else None
    if not simple or not isinstance(source.batch, Table) or known is None or known.ndim != 2:
        why = Why.ROWS(
            "records are picked by number, and their numbers are not known to be distinct"
        )
        raise NoBoundError(why)
    picks = tuple(int(i) for i in known.reshape(-1))
    if len(set(picks)) < len(picks) or any(not 0 <= i < count for i in picks):
        why = Why.ROWS("a record is picked several times, so it counts as often")
        raise NoBoundError(why)
    batch = _numbered_rows(checker, source.batch, picks, count)
    terms = bounding(source.terms, batch)
    offset = {int(i) for i in numbers.offset_dims}
    (place,) = (i for i in range(len(shape_out(equation))) if i not in offset)
    return source.but(
        batch=batch, axes=(place,), terms=terms, origin=checker.origin(equation, [source])
    )


def over_slices(terms: Terms) -> Terms:
    """Merge the terms of a sum over disjoint slices of the table: a record is in one of them, so the largest counts.

    A record in a slice moves within that slice's group. Two sums may share the merged group only if
    they assign every record the same group. So it is named by the groups and their slices: with
    other borders, a record between the old border and the new would be in one group in the first
    sum and in another in the second, and its loads would add.
    """
    ranges = [
        t.source.numbers
        for t in terms
        if isinstance(t.source, NumberedRows) and isinstance(t.source.numbers, range)
    ]
    if len(terms) < 2 or len(ranges) < len(terms):
        return terms
    pairs = sorted(zip(ranges, terms, strict=True), key=lambda pair: (pair[0].start, pair[0].stop))
    apart = all(a.stop <= b.start for (a, _), (b, _) in itertools.pairwise(pairs))
    alike = len({(t.leaves, t.bound.powers, t.source.parent) for t in terms}) == 1
    if not (apart and alike) or terms[0].source.parent is None:
        return terms
    bound = max((t.bound for t in terms), key=lambda b: b.factor)
    # Slices of one group give every record that group, wherever the borders are.
    groups = {t.group for t in terms}
    group = (
        groups.pop()
        if len(groups) == 1
        else group_of("slices", *((t.group, t.source) for _, t in pairs))
    )
    return (Term(group, terms[0].leaves, bound, terms[0].source.parent),)
