"""A description in words, from its facts (`Description.to_dict`): what text, page and plot show of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

MOST_CELLS = 400
"""Cells of a table that are shown."""

Facts = Mapping[str, Any]


class Cell(NamedTuple):
    """A figure and its interval, in words."""

    value: str
    ends: str

    def __str__(self) -> str:
        return f"{self.value} ({self.ends})"


class Shown(NamedTuple):
    """A table of figures. Without rows it has too many cells."""

    heading: str
    across: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]

    def __str__(self) -> str:
        if not self.rows:
            return f"{self.heading}\n  More than {MOST_CELLS} cells: see the JSON file."
        rows = [[label, *map(str, cells)] for label, cells in self.rows]
        return f"{self.heading}\n{_aligned([['', *self.across], *rows])}"


HIDDEN = Cell("–", "too few records")
"""In the place of figures whose intervals are all that is possible: nobody is told less than by these."""


def numbers_in_words(facts: Facts) -> str:
    """How many records, or rows and persons."""
    found = f"{facts['counted'].capitalize()}: {_whole(facts['num_records'])}."
    if facts["num_persons"] is None:
        return found
    cut = f"of whom {_whole(facts['persons_cut'])} have more rows, which were left out"
    return f"{found} Persons: {_whole(facts['num_persons'])}, {cut}."


def figures_of(column: Facts) -> list[tuple[str, Cell]]:
    """A column's mean, standard deviation and quantiles, with their names."""
    unit = column.get("unit", "")
    figures = []
    if column["mean"] is not None:
        of_spread = "days" if column["kind"] == "date" else unit
        figures.append(("mean", _cell(column["mean"], _plain, unit)))
        figures.append(("standard deviation", _cell(column["sd"], _plain, of_spread)))
    for share, quantile in column["quantiles"].items():
        figures.append((f"{100 * float(share):g} % quantile", _cell(quantile, _plain, unit)))
    return [(name, HIDDEN if column.get("hidden") else cell) for name, cell in figures]


def levels_of(column: Facts) -> list[tuple[str, Cell, Cell]]:
    """Names, counts and shares of categories, and of the missing cells of numbers."""
    counts = map(_whole, _each(column["counts"]))
    shares = map(_share, _each(column["shares"]))
    slices = max(0, len(column["edges"]) - 1)
    return list(zip(map(str, column["labels"]), counts, shares, strict=True))[slices:]


def column_in_words(name: str, column: Facts) -> str:
    """All figures of a column but the slices of numbers."""
    rule = f", {column['rule']}" if column["edges"] else ""
    rows = [[own, str(cell)] for own, cell in figures_of(column)]
    rows += [[label, str(count), str(share)] for label, count, share in levels_of(column)]
    return f"{name} ({column['kind']}{rule})\n{_aligned(rows)}"


def tables_of(facts: Facts, most_columns: int | None = None) -> list[Shown]:
    """The two-way tables, and those of groups: of each key the numbers of records, then the first columns."""
    columns = facts["columns"]
    tables = []
    for pair in facts["pairs"]:
        one, other = pair["columns"]
        labels = columns[one]["labels"]
        across = columns[other]["labels"]
        shares = _each(pair["shares"]) if len(labels) * len(across) <= MOST_CELLS else []
        cells = [list(map(_share, _each(row))) for row in shares]
        rows = list(zip(labels, cells, strict=False))
        tables.append(Shown(f"{one} × {other}, shares of all {facts['counted']}", across, rows))
    for by, found in itertools.groupby(facts["groups"], lambda group: group["by"]):
        groups = list(found)
        across = [str(group["label"]) for group in groups]
        keys = {"number": "num_records"}
        if groups[0]["num_persons"] is not None:
            keys = {"rows": "num_records", "persons": "num_persons"}
        numbers = [(name, [_whole(group[key]) for group in groups]) for name, key in keys.items()]
        tables.append(Shown(f"By {by}", across, numbers))
        for name in itertools.islice(groups[0]["columns"], most_columns):
            each = []
            for group in groups:
                own = group["columns"][name]
                shares = [(label, share) for label, _, share in levels_of(own)]
                each.append([*figures_of(own), *shares])
            lines = [(row[0][0], [cell for _, cell in row]) for row in zip(*each, strict=True)]
            small = len(lines) * len(across) <= MOST_CELLS
            tables.append(Shown(f"{name} by {by}", across, lines if small else ()))
    return tables


def _cell(figure: Facts, show: Callable[[Any], str], unit: str = "") -> Cell:
    value, low, high = (show(figure[part]) for part in ("value", "low", "high"))
    return Cell(f"{value}{unit and f' {unit}'}", f"{low} to {high}")


def _whole(figure: Facts) -> Cell:
    return _cell(figure, "{:,.0f}".format)


def _share(figure: Facts) -> Cell:
    if figure["low"] <= 0 and figure["high"] >= 1:
        return HIDDEN
    return _cell(figure, lambda share: f"{100 * share:.1f}", "%")


def _plain(value: Any) -> str:
    """A number, or a date, which is a text already."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value + 0.0:.4g}"


def _each(figures: Facts) -> list[dict[str, Any]]:
    """The figures of arrays along their first axis."""
    parts = ("value", "low", "high")
    columns = (figures[part] for part in parts)
    return [dict(zip(parts, figure, strict=True)) for figure in zip(*columns, strict=True)]


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in itertools.zip_longest(*rows, fillvalue="")]
    lines = (
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)
