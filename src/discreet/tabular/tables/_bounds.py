"""A schema in one line of text, for the command line."""

import datetime
import re
from typing import Any

from discreet.tabular.tables._schema import ZERO_OR_ONE, Column, DataError, Kind, Schema

RULE_FORM = (
    "NAME=LOW:HIGH for numbers and dates, NAME=LOW..HIGH for counts, NAME=A|B|C for categories or NAME=A<B<C for ordered "
    "ones, separated by commas"
)


def schema_from_bounds(
    text: str,
    *,
    target: str | None = None,
    target_kind: Kind | str | None = None,
) -> Schema:
    """Read bounds and categories from one line.

    Two categories make a binary column (the second is 1), more a categorical one. With "<" between
    them they are ordered, the lowest first; with ".." between bounds the column is a count. A
    target of kind binary that is not mentioned gets the categories 0 and 1.

    Args:
        text: For example
            "age=17:90,visits=0..50,region=north|south|east,smoker=no|yes,pain=low<some<high".
        target: Name of the column to explain.
        target_kind: The kind that the model needs of it, or its text; a count's bounds must be whole.

    Raises:
        DataError: The text is not of that form, or describes no valid schema.

    >>> schema_from_bounds("age=17:90,smoker=no|yes", target="smoker").describe()
    ('age (real): 17 to 90', 'smoker (binary, the target): no | yes')
    """
    target_kind = None if target_kind is None else Kind(target_kind)
    columns = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, rule = (
            part.rpartition("=") if ":" in part.rpartition("=")[2] else part.partition("=")
        )
        if not equals or not name.strip():
            raise DataError(f"bounds: '{part}' is not understood: write {RULE_FORM}")
        kind = target_kind if name.strip() == target else None
        columns.append(_column_from_rule(name.strip(), rule.strip(), kind))
    described = target in [column.name for column in columns]
    if target is not None and target_kind is Kind.BINARY and not described:
        columns.append(Column(name=target, kind=Kind.BINARY, categories=ZERO_OR_ONE))
    return Schema(columns=tuple(columns), target=target)


def _column_from_rule(name: str, rule: str, kind: Kind | None) -> Column:
    if "|" in rule:
        categories = tuple(category.strip() for category in rule.split("|"))
        return Column(
            name=name,
            kind=Kind.BINARY if len(categories) == 2 else Kind.CATEGORICAL,
            categories=categories,
        )
    if "<" in rule:
        ordered = tuple(category.strip() for category in rule.split("<"))
        return Column(name=name, kind=Kind.ORDERED, categories=ordered)
    counts = ".." in rule
    low, mark, high = rule.partition(".." if counts else ":")
    if not mark:
        raise DataError(f"bounds: '{name}={rule}' is not understood: write {RULE_FORM}")
    bounds: Any
    dates = all(re.fullmatch(r"\d{4}-\d\d-\d\d", bound.strip()) for bound in (low, high))
    read = datetime.date.fromisoformat if dates else float
    try:
        bounds = (read(low.strip()), read(high.strip()))
    except ValueError:
        raise DataError(
            f"bounds: '{low}' and '{high}' of column '{name}' must be two numbers or two dates (2024-12-31): write {RULE_FORM}"
        ) from None
    number = Kind.COUNT if counts or kind is Kind.COUNT else Kind.REAL
    return Column(name=name, kind=Kind.DATE if dates else number, bounds=bounds)
