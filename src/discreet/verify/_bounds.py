"""Arithmetic with bounds: joint norms over groups, and from rows to sums."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

from discreet.accounting import Relation
from discreet.verify._domain import Batch, Group, Private, Sample, Scale, Slice, Table, Term


def scaled(terms: tuple[Term, ...], factor: Scale) -> tuple[Term, ...]:
    """The bound of a multiple."""
    return tuple(Term(t.group, t.leaves, t.bound * factor, t.source) for t in terms)


def fresh(bound: Scale, source: Batch) -> tuple[Term, ...]:
    """A bound that is shared with no other value."""
    return (Term(Group(), frozenset([0]), bound, source),)


def added(first: tuple[Term, ...], second: tuple[Term, ...]) -> tuple[Term, ...]:
    """The bound of a sum: the triangle inequality, with equal terms taken together."""
    merged: dict[tuple[int, frozenset[int], tuple, int], Term] = {}
    for t in (*first, *second):
        name = (id(t.group), t.leaves, t.bound.powers, id(t.source))
        if name in merged:
            t = Term(t.group, t.leaves, Scale(merged[name].bound.factor + t.bound.factor, t.bound.powers), t.source)
        merged[name] = t
    return tuple(merged.values())


def source_of(terms: Sequence[Term]) -> Batch:
    """The batch whose records several terms bound: where they are of different parts, what those are parts of."""
    sources = {t.source for t in terms}
    return sources.pop() if len(sources) == 1 else terms[0].source.whole


def stacked(parts: Sequence[tuple[Term, ...]], source: Batch) -> tuple[Term, ...] | None:
    """The bound of values side by side, as one vector; None where it has no one number.

    Disjoint leaves of one group have the group's bound jointly; otherwise squares add up.
    """
    if len(parts) <= 1:
        return parts[0] if parts else ()
    single = [p[0] for p in parts if len(p) == 1]
    if (
        len(single) == len(parts)
        and len({id(t.group) for t in single}) == 1
        and len({(t.bound.powers, t.source) for t in single}) == 1
    ):
        count = sum(len(t.leaves) for t in single)
        leaves = frozenset().union(*(t.leaves for t in single))
        if len(leaves) == count:
            bound = max((t.bound for t in single), key=lambda b: b.factor)
            return (Term(single[0].group, leaves, bound, single[0].source),)
    total = [total_of(p) for p in parts]
    known = [t for t in total if t is not None]
    if len(known) < len(total) or len({t.powers for t in known}) != 1:
        return None
    return fresh(Scale(math.sqrt(sum(t.factor**2 for t in known)), known[0].powers), source)


@functools.lru_cache(maxsize=4096)
def _pieced(pieces: tuple[tuple[Group, Batch], ...]) -> Group:
    """The group of a sum over disjoint slices: a record in a slice moves as that slice's group lets it.

    Two sums may share it only if they give every record the same group. So it is named by the groups and the slices they
    stand in: with other borders, a record between the old border and the new would have one group in the first sum and
    another in the second, and its loads would have to be added.
    """
    return Group(f"one of {len(pieces)} slices")


def over_slices(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Merge the terms of a sum over disjoint slices of the table: a record is in one of them, so the largest counts."""
    slices = [t.source for t in terms if isinstance(t.source, Slice)]
    if len(terms) < 2 or len(slices) < len(terms):
        return terms
    ordered = [t for _, t in sorted(zip(slices, terms, strict=True), key=lambda pair: (pair[0].first, pair[0].last))]
    apart = all(a.last < b.first for a, b in itertools.pairwise(sorted(slices, key=lambda s: (s.first, s.last))))
    alike = len({(t.leaves, t.bound.powers, t.source.parent) for t in terms}) == 1
    if not (apart and alike) or terms[0].source.parent is None:
        return terms
    bound = max((t.bound for t in terms), key=lambda b: b.factor)
    # Slices of one group give every record that group, wherever the borders are.
    groups = {t.group for t in terms}
    group = groups.pop() if len(groups) == 1 else _pieced(tuple((t.group, t.source) for t in ordered))
    return (Term(group, terms[0].leaves, bound, terms[0].source.parent),)


def total_of(terms: tuple[Term, ...]) -> Scale | None:
    """A bound as one number, if its terms are multiples of one another."""
    if not terms:
        return Scale(0.0)
    if len({t.bound.powers for t in terms}) > 1:
        return None
    return Scale(sum(t.bound.factor for t in terms), terms[0].bound.powers)


def row_terms(value: Private, size: int) -> tuple[Term, ...] | None:
    """The bound on the L2 norm of each record's slice of `size` elements; from the bound on the elements if need be."""
    if not value.finite or value.batch is None:
        return None
    if value.terms is not None:
        return value.terms
    if value.linf is None or not math.isfinite(value.linf):
        return None
    return fresh(Scale(value.linf * math.sqrt(size)), value.batch)


def contribution_factor(value: Private, relation: Relation) -> tuple[float, str]:
    """What to multiply a bound on rows with to get C in the units of an event, or 0 and the reason there is none.

    An event names C, what a record adds to a sum; under REPLACE_ONE the accountant doubles it. Where absent rows are not
    exactly zero, a record that comes moves the sum by what it adds and by what leaves: 2C.
    """
    batch = value.batch
    assert batch is not None
    whole, table = batch.whole, batch.table
    add_remove = relation is Relation.ADD_OR_REMOVE_ONE
    if whole is table:
        return (2.0, "") if add_remove and not (table.masked and table in value.zero) else (1.0, "")
    if value.positional:
        return 0.0, "[position] a row's place in a random sample has an influence on it"
    if add_remove and table.masked and table not in value.zero:
        return 0.0, "[mask] the sample was drawn from padding rows too, and their contributions are not zero"
    assert isinstance(whole, Sample)
    return (1.0, "") if whole.sampling.constant_size or whole in value.zero else (2.0, "")


def range_factor(batch: Batch, relation: Relation) -> float:
    """The same for a value, of whatever kind, that never leaves a ball of radius C; 0 where there is no bound."""
    whole = batch.whole
    if isinstance(whole, Table):
        return 2.0 if relation is Relation.ADD_OR_REMOVE_ONE else 1.0
    if relation is Relation.ADD_OR_REMOVE_ONE and whole.table.masked:
        return 0.0
    return 1.0 if isinstance(whole, Sample) and whole.sampling.constant_size else 2.0
