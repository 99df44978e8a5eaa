"""From rows to sums: when one record's slice is what one record adds."""

from __future__ import annotations

import functools
import math

from discreet.verify._bounds import contribution_factor, range_factor, row_terms, scaled
from discreet.verify._domain import Batch, Cut, Group, Part, Private, Scale, Term
from discreet.verify._interpreter import Checker, size_per_record

_LARGEST = 1e38


def as_sum(checker: Checker, value: Private, shape: tuple[int, ...]) -> Private:
    """A value whose terms bound what one record adds, whatever it was; without terms and with a reason if there is no bound.

    Rows, as a whole, change in one row only. That is so for the table; in a random sample the rows behind a record that
    is not drawn move up, so there only a single record, on its way into a sum, may be looked at by itself.
    """
    if value.axes is None:
        return value if value.terms is not None or value.batch is None else _limited(checker, value, shape)
    assert value.batch is not None
    if value.batch.sampled and not (value.axes == () and isinstance(value.batch, Part)):
        return _without(
            value, "[position] a random sample is used row by row: which row a record gets depends on the others"
        )
    return summed(checker, value, shape, additive=value.axes == ())


def summed(checker: Checker, value: Private, shape: tuple[int, ...], *, additive: bool) -> Private:
    """What one record adds to a sum of rows."""
    batch = value.batch
    assert batch is not None
    terms = row_terms(value, size_per_record(shape, value.axes))
    if terms is None:
        if value.terms is None and value.linf is None:
            return _without(value, "[clip] what one record adds has no bound: rows are summed that were not clipped")
        return _without(
            value, "[nan] rows are summed that may hold NaN or infinity, which spoils the sum and shows the record"
        )
    factor, why = contribution_factor(value, checker.relation)
    if factor == 0.0:
        return _without(value, why)
    count = math.prod(shape[i] for i in value.axes or ())
    if any(t.bound.factor * factor * count > _LARGEST for t in terms):
        return _without(value, "[precision] rows are so long that their sum may not be finite")
    if factor > 1.0:
        reason = (
            "rows without a record are not exactly zero"
            if batch.table.masked or batch.whole is not batch.table
            else "there is no mask"
        )
        checker.notes.append(f"the sum's sensitivity is 2C, since {reason} ({value.origin.line or value.origin.what})")
        terms = tuple(Term(_doubled(t.group), t.leaves, t.bound.times(factor), t.source) for t in terms)
    return value.but(axes=None, terms=terms, additive=additive, zero=frozenset(), linf=None, finite=True)


@functools.lru_cache(maxsize=4096)
def _doubled(group: Group) -> Group:
    """A group whose leaves move by 2C together: what comes and what leaves. Beside leaves that move by C it has no share."""
    return Group(f"{group.name}, twice")


def _limited(checker: Checker, value: Private, shape: tuple[int, ...]) -> Private:
    """A value that depends on all records, of limited size: it stays in a ball."""
    batch = value.batch
    assert isinstance(batch, Batch)
    terms = row_terms(value, size_per_record(shape, None))
    factor = range_factor(batch, checker.relation)
    if terms is None or factor == 0.0 or isinstance(batch, Cut):
        return value
    return value.but(terms=scaled(terms, Scale(factor)), linf=None, additive=False, finite=True)


def _without(value: Private, why: str) -> Private:
    return value.but(axes=None, terms=None, linf=None, finite=False, why=value.why or why)
