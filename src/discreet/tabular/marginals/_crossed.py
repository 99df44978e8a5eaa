"""Groups by two columns at once, as groups by a single column whose categories are pairs.

A table with both columns has the same cells as one with that column in their place, and so do sums.
So a release of tables with both is one of tables with that column, and groups have the same
estimates and intervals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from discreet.tabular.marginals._plan import Table
from discreet.tabular.marginals._result import Marginals
from discreet.tabular.models import Levels
from discreet.tabular.tables import Column, DataError, Kind, Schema

MOST_GROUPS = 200
"""Pairs of categories: of more, each would have few records."""


def keys_of(by: Sequence[str | Sequence[str]] | str, schema: Schema) -> list[Table]:
    """The columns of each key by which figures are asked for.

    Raises:
        ValueError: A key that is not one or two columns of categories, or there twice; or with too
            many groups.
    """
    described = [column.name for column in schema.columns if column.bounds is None]
    keys = [
        (key,) if isinstance(key, str) else tuple(key)
        for key in ([by] if isinstance(by, str) else by)
    ]
    seen = set()
    for key in keys:
        if (
            not 1 <= len({*key}) == len(key) <= 2
            or not {*key} <= {*described}
            or frozenset(key) in seen
        ):
            raise ValueError(
                f"by has {', '.join(key)}: give columns of categories, or pairs of them, each once; the schema has "
                f"{', '.join(described) or 'none'}"
            )
        seen.add(frozenset(key))
        if len(key) == 2:
            try:
                groups = len(_crossed(schema, key).columns[-1].categories)
            except DataError as error:
                raise ValueError(
                    f"by has {' and '.join(key)}, whose groups have no names of their own ({error}): give the column or the "
                    "categories other names"
                ) from None
            if groups > MOST_GROUPS:
                raise ValueError(
                    f"by has {' and '.join(key)}, which make {groups:,} groups, and at most {MOST_GROUPS} are counted: in more "
                    f"the noise would hide most. Give each alone, by={list(key)!r}, or columns of fewer categories"
                )
    return [tuple(sorted(key, key=described.index)) for key in keys]


def name_of(key: Table) -> str:
    """The name of a key's column."""
    return " × ".join(key)


def crossed(released: Marginals, key: Table) -> Marginals:
    """A release in which one column, called `name_of(key)`, stands for two; it is as it was where the key is one column.

    Tables without both are those of the release.
    """
    plan = released.plan
    if len(key) == 1:
        return released
    both = {*key}
    name = name_of(key)

    def moved(table: Table) -> Table:
        return (
            (*(column for column in table if column not in both), name)
            if both <= {*table}
            else table
        )

    def counts(table: Table) -> np.ndarray:
        return (
            released.table(*moved(table)[:-1], *key) if both <= {*table} else released.table(*table)
        )

    def in_order(table: Table) -> Table:
        return (*table[:-2], name) if table[-2:] == key else table

    own = dataclasses.replace(
        plan,
        schema=_crossed(plan.schema, key),
        tables=tuple(map(moved, plan.tables)),
        sums=tuple(map(in_order, plan.sums)),
        persons=tuple(map(in_order, plan.persons)),
        fine=tuple(map(in_order, plan.fine)),
    )
    return dataclasses.replace(
        released, plan=own, counts=np.concatenate([counts(table).ravel() for table in plan.tables])
    )


def _crossed(schema: Schema, key: Table) -> Schema:
    """The schema with the column that stands for both, the last one.

    Raises:
        DataError: Its name is another column's, or two of its categories have one name.
    """
    described = {column.name: column for column in schema.columns}
    one, other = (Levels(schema.without_person()).labels(described[name]) for name in key)
    categories = tuple(f"{first}, {second}" for first in one for second in other)
    column = Column(name=name_of(key), kind=Kind.CATEGORICAL, categories=categories)
    return dataclasses.replace(schema, columns=(*schema.columns, column))
