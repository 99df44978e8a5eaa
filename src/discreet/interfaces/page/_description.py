"""A table's private description on the page: what `description.json` holds, made ready for the template."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from discreet.interfaces.page._charts import Chart, number
from discreet.interfaces.page._page import MOST_COLUMNS, Bar, Marginal, few

MOST_CELLS = 400
"""Cells of a two-way table that are shown."""
_HIDDEN = "–", "too few records"
"""In the place of a figure that may be anything, and of its interval."""


@dataclasses.dataclass(frozen=True)
class DescribedColumn:
    """One column: figures by their names, and its levels as bars, or a histogram."""

    name: str
    rule: str
    figures: tuple[tuple[str, str, str], ...]
    bars: Marginal | None
    histogram: Chart | None


@dataclasses.dataclass(frozen=True)
class DescribedPair:
    """A table with figures and intervals, such as a two-way table of shares in percent. Without rows: too large."""

    names: str
    across: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    of_all: bool = True


@dataclasses.dataclass(frozen=True)
class Described:
    """A description: the columns shown are the first `of` so many."""

    counted: str
    records: tuple[str, str]
    persons: tuple[tuple[str, str], ...]
    intervals: str
    columns: tuple[DescribedColumn, ...]
    of: int
    pairs: tuple[DescribedPair, ...]


def description_of(facts: Mapping[str, Any]) -> Described:
    """The part of the page on `marginals.Description.to_dict`; other facts raise Python's own errors."""
    columns = facts["columns"]
    chosen = itertools.islice(columns.items(), MOST_COLUMNS)
    return Described(
        str(facts["counted"]),
        _words(facts["num_records"], "{:,.0f}".format),
        tuple(
            _words(facts[name], "{:,.0f}".format)
            for name in ("num_persons", "persons_cut")
            if facts[name]
        ),
        str(facts["intervals"]),
        tuple(_column(place, str(name), x) for place, (name, x) in enumerate(chosen)),
        len(columns),
        (*(_pair(x, columns) for x in facts["pairs"]), *_groups(facts["groups"])),
    )


def _words(
    figure: Mapping[str, Any], show: Callable[[Any], str], unit: str = ""
) -> tuple[str, str]:
    """The figure, and its interval."""
    value, low, high = (show(figure[part]) for part in ("value", "low", "high"))
    return f"{value}{unit}", f"{low} to {high}{unit}"


def _plain(value: Any) -> str:
    """A number, or a date, which is a text already."""
    return (
        value
        if isinstance(value, str)
        else number(float(f"{value:.4g}") if abs(value) < 1000 else round(value))
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _share(value: float, low: float, high: float) -> tuple[str, str]:
    return (
        _HIDDEN
        if low <= 0 and high >= 1
        else (f"{_percent(value)} %", f"{_percent(low)} to {_percent(high)}")
    )


def _column(place: int, name: str, x: Mapping[str, Any]) -> DescribedColumn:
    figures = _figures(x)
    labels = x["labels"]
    shares = x["shares"]
    levels = list(zip(labels, shares["value"], shares["low"], shares["high"], strict=True))
    bars = tuple(
        Bar(str(name), 100 * float(x), 100 * float(low), 100 * float(high))
        for name, x, low, high in levels
    )
    if not x["edges"]:
        return DescribedColumn(
            name, str(x["kind"]), tuple(figures), Marginal(name, "", few(bars)), None
        )
    slices = len(x["edges"]) - 1
    for bar in bars[slices:]:
        figures.append((bar.label, f"{bar.share:.1f} %", f"{bar.least:.1f} to {bar.most:.1f} %"))
    return DescribedColumn(
        name, str(x["rule"]), tuple(figures), None, _histogram(place, name, x, bars[:slices])
    )


def _figures(x: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Mean, standard deviation and quantiles, each with its name and interval."""
    figures = []
    for heading, key in (("mean", "mean"), ("standard deviation", "sd")):
        if x[key] is not None:
            figures.append(
                (
                    heading,
                    *_words(x[key], _plain, " days" if key == "sd" and x["kind"] == "date" else ""),
                )
            )
    figures += [
        (f"{100 * float(share):g} % quantile", *_words(q, _plain))
        for share, q in x["quantiles"].items()
    ]
    return [(name, *_HIDDEN) if x.get("hidden") else (name, *words) for name, *words in figures]


def _groups(groups: Sequence[Mapping[str, Any]]) -> list[DescribedPair]:
    """For each column that groups, a table of the numbers of records, and one for each other column."""
    tables = []
    for by, found in itertools.groupby(groups, lambda group: group["by"]):
        own = list(found)
        across = tuple(str(group["label"]) for group in own)
        several = own[0]["num_persons"] is not None
        names = (
            {"rows": "num_records", "persons": "num_persons"}
            if several
            else {"number": "num_records"}
        )
        numbers = tuple(
            (name, tuple(_words(group[key], "{:,.0f}".format) for group in own))
            for name, key in names.items()
        )
        tables.append(DescribedPair(f"By {by}", across, numbers, of_all=False))
        for name in itertools.islice(own[0]["columns"], MOST_COLUMNS):
            lines = [_group_lines(group["columns"][name]) for group in own]
            rows = tuple(
                (line[0][0], tuple((value, ends) for _, value, ends in line))
                for line in zip(*lines, strict=True)
            )
            rows = rows if len(rows) * len(across) <= MOST_CELLS else ()
            tables.append(DescribedPair(f"{name} by {by}", across, rows, of_all=False))
    return tables


def _group_lines(x: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The figures of numbers, and the shares of categories and of missing cells."""
    labels = x["labels"]
    shares = x["shares"]
    levels = list(zip(labels, shares["value"], shares["low"], shares["high"], strict=True))[
        max(0, len(x["edges"]) - 1) :
    ]
    return _figures(x) + [(str(label), *_share(*figure)) for label, *figure in levels]


def _histogram(place: int, name: str, x: Mapping[str, Any], bars: tuple[Bar, ...]) -> Chart:
    """Shares divided by the slices' widths, as a line of steps within the band of their intervals."""
    edges = [_position(edge) for edge in x["edges"]]
    label = name
    if x["kind"] == "date":
        label = f"{name} (year)"
    widths = [end - start for start, end in itertools.pairwise(edges)]
    xs = [edge for pair in itertools.pairwise(edges) for edge in pair]

    def steps(part: str) -> list[float]:
        return [
            height
            for bar, width in zip(bars, widths, strict=True)
            for height in [getattr(bar, part) / width] * 2
        ]

    low = steps("least")
    high = steps("most")
    most = max(bars, key=lambda bar: bar.share)
    chart = Chart(
        f"histogram{place}",
        f"{name}: histogram",
        f"Shares of {len(bars)} slices, divided by their widths. The largest share is that of {most.label}: {most.share:.1f} %.",
        label,
        "share per unit (%)",
        (edges[0], edges[-1]),
        (0.0, max(*high, 1e-9) * 1.05),
        legend=(("strong", "share, in the band of its interval"),),
        years=x["kind"] == "date",
    )
    return chart.line("area", [*xs, *reversed(xs)], [*low, *reversed(high)], closed=True).line(
        "strong", xs, steps("share")
    )


def _position(edge: Any) -> float:
    """A number; of a date the year, with its part that is over."""
    if not isinstance(edge, str):
        return float(edge)
    day = datetime.date.fromisoformat(edge)
    return day.year + (day.timetuple().tm_yday - 1) / 365.25


def _pair(x: Mapping[str, Any], columns: Mapping[str, Any]) -> DescribedPair:
    one, other = x["columns"]
    names = f"{one} × {other}"
    across = tuple(map(str, columns[other]["labels"]))
    labels = columns[one]["labels"]
    shares = x["shares"]
    if len(labels) * len(across) > MOST_CELLS:
        return DescribedPair(names, across, ())
    lines = zip(labels, shares["value"], shares["low"], shares["high"], strict=True)
    rows = tuple(
        (
            str(label),
            tuple(_share(*figure) for figure in zip(*parts, strict=True)),
        )
        for label, *parts in lines
    )
    return DescribedPair(names, across, rows)
