"""Gather and scatter: rows stay rows where each record's indices look into that record, or into what is public."""

from __future__ import annotations

from discreet._jax import JaxprEqn
from discreet._jax import primitives as p
from discreet.verify._alignment import varies_along
from discreet.verify._domain import Pick, Private, Public, Table, Term, Value
from discreet.verify._interpreter import RULES, Checker, shape_of


def gather(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    """Elements of an array by their indices. An index out of range may give NaN, so nothing is said of sizes."""
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
            return checker.unbounded(equation, operands, "[rows] several records make up one index")
        axes = tuple(batched[a] for a in index.axes)
        shared = tuple(source_batch[index_batch.index(a)] for a in index.axes if a in index_batch)
        positional = index.positional or varies_along(source, shape_of(equation.invars[0]), shared)
        return Private(index.batch, axes, origin, positional=positional)
    if not isinstance(source, Private) or source.axes is None:
        return checker.unbounded(equation, operands, "[rows] elements of what depends on all records are looked up")
    axes_found: list[int] = []
    kept = [
        i
        for i in range(len(shape_of(equation.invars[0])))
        if i not in numbers.collapsed_slice_dims and i not in source_batch
    ]
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
            return checker.unbounded(
                equation, operands, "[rows] elements are looked up by an index that depends on records"
            )
        positional |= index.positional
    elif isinstance(index, Public):
        rows = tuple(index_batch[source_batch.index(a)] for a in source.axes if a in source_batch)
        positional |= varies_along(index, shape_of(equation.invars[1]), rows)
    return Private(source.batch, tuple(axes_found), origin, positional=positional)


def _picked(checker: Checker, equation: JaxprEqn, source: Private, axis: int, index: Value) -> Private:
    """`rows[numbers]`, for numbers that are known while tracing and differ: each record is in one row at most."""
    numbers, count = equation.params["dimension_numbers"], shape_of(equation.invars[0])[axis]
    simple = source.axes == (axis,) and isinstance(source.batch, Table)
    simple = simple and tuple(numbers.start_index_map) == (axis,) and axis in numbers.collapsed_slice_dims
    known = index.const if isinstance(index, Public) else None
    if not simple or known is None or known.ndim != 2:
        why = "[rows] records are picked by their number, and no proof covers that they differ"
        return checker.unbounded(equation, [source, index], why)
    picks = tuple(int(i) for i in known.reshape(-1))
    if len(set(picks)) < len(picks) or any(not 0 <= i < count for i in picks):
        why = "[rows] a record is picked several times, so that it counts as often"
        return checker.unbounded(equation, [source, index], why)
    name = (source.batch, "pick", picks)
    assert source.batch is not None
    if name not in checker.slices:
        checker.slices[name] = Pick(source.batch, source.batch.masked, numbers=picks)
    batch = checker.slices[name]
    terms = None if source.terms is None else tuple(Term(t.group, t.leaves, t.bound, batch) for t in source.terms)
    offset = {int(i) for i in numbers.offset_dims}
    (place,) = (i for i in range(len(shape_of(equation.outvars[0]))) if i not in offset)
    return source.but(batch=batch, axes=(place,), terms=terms, origin=checker.origin(equation, [source]))


def scatter(checker: Checker, equation: JaxprEqn, operands: list[Value]) -> Private:
    """Updates at indices, where whatever a record writes goes to its own place, and nobody else's."""
    private = [x for x in operands if isinstance(x, Private)]
    lost = "[rows] records' values are put at places that other records can reach"
    own = _own_places(equation)
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


def _own_places(equation: JaxprEqn) -> list[dict[int, int]]:
    """For array, indices and updates: which of their axes go, place by place, to which axis of the array.

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


RULES[p.gather_p] = gather
for _primitive in (p.scatter_p, p.scatter_add_p, p.scatter_mul_p, p.scatter_min_p, p.scatter_max_p):
    RULES[_primitive] = scatter
