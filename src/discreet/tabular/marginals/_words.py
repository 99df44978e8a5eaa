"""A description as text: figures with their intervals in words, and aligned tables."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

from discreet.tabular.marginals._figures import (
    ColumnFigures,
    Figure,
    GroupFigures,
    PairFigures,
    shown,
)
from discreet.tabular.tables import Kind

_SHOWN = 400
"""Cells of a two-way table that are shown as text."""
HIDDEN = "– (too few records)"
"""In the place of figures whose intervals are all that is possible: nobody is told less than by these."""


def in_words(figure: Figure, show: Any, unit: str = "") -> str:
    """The figure with its interval."""
    value, low, high = map(show, figure)
    return f"{value}{unit and f' {unit}'} ({low} to {high})"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _share(figure: Any) -> str:
    return HIDDEN if figure[1] <= 0 and figure[2] >= 1 else in_words(Figure(*figure), _percent, "%")


def figures_of_numbers(found: ColumnFigures) -> list[tuple[str, str]]:
    """Names of a column's mean, standard deviation and quantiles, and each with its interval in words."""
    show = functools.partial(shown, found.column)
    unit = found.column.unit
    rows = []
    if found.mean is not None and found.sd is not None:
        days = found.column.kind is Kind.DATE
        spread = (
            in_words(found.sd, "{:.4g}".format, "days") if days else in_words(found.sd, show, unit)
        )
        rows += [("mean", in_words(found.mean, show, unit)), ("standard deviation", spread)]
    rows += [
        (f"{100 * share:g} % quantile", in_words(x, show, unit))
        for share, x in found.quantiles.items()
    ]
    return [(name, HIDDEN if found.hidden else words) for name, words in rows]


def pair_text(
    heading: str, found: PairFigures, labels: Sequence[str], across: Sequence[str]
) -> str:
    """The shares of a two-way table, if it is not too large."""
    if found.shares.value.size > _SHOWN:
        return f"{heading}\n  {found.shares.value.size:,} cells: see the JSON file."
    rows = [["", *across]]
    for label, row in zip(labels, zip(*found.shares, strict=True), strict=True):
        cells = zip(*(line.tolist() for line in row), strict=True)
        rows.append([label, *(_share(cell) for cell in cells)])
    return f"{heading}\n{_aligned(rows)}"


def groups_text(groups: Sequence[GroupFigures]) -> list[str]:
    """A table for each column, with a column for each category."""
    by = groups[0].by
    across = [group.label for group in groups]
    numbers = {"number": [group.num_records for group in groups]}
    persons = [group.num_persons for group in groups if group.num_persons is not None]
    if persons:
        numbers = {"rows": numbers["number"], "persons": persons}
    rows = [["", *across]]
    rows += [
        [name, *(in_words(figure, "{:,.0f}".format) for figure in found)]
        for name, found in numbers.items()
    ]
    parts = [f"By {by}\n{_aligned(rows)}"]
    for name in groups[0].columns:
        figures = []
        for group in groups:
            found = group.columns[name]
            lines = figures_of_numbers(found)
            shares = zip(found.labels, zip(*found.shares, strict=True), strict=True)
            kept = (
                list(shares)[len(found.labels) - found.column.may_be_missing :] if lines else shares
            )
            figures.append([*lines, *((label, _share(x)) for label, x in kept)])
        rows = [
            ["", *across],
            *(
                [lines[0][0], *(words for _, words in lines)]
                for lines in zip(*figures, strict=True)
            ),
        ]
        parts.append(f"{name} by {by}\n{_aligned(rows)}")
    return parts


def column_text(name: str, found: ColumnFigures) -> str:
    """All figures of a column but the slices of numbers."""
    column = found.column
    missing = found.column.may_be_missing
    heading = (
        f"{name} ({column.kind}, {column.rule()})"
        if column.kind.has_bounds
        else f"{name} ({column.kind})"
    )
    levels = list(
        zip(
            found.labels,
            zip(*found.counts, strict=True),
            zip(*found.shares, strict=True),
            strict=True,
        )
    )
    rows = []
    if column.kind.has_bounds:
        rows += [[name, words] for name, words in figures_of_numbers(found)]
        levels = levels[-1:] if missing else []
    for label, counts, shares in levels:
        count = in_words(Figure(*counts), "{:,.0f}".format)
        rows.append([label, count, _share(shares)])
    return f"{heading}\n{_aligned(rows)}"


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    lines = (
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
