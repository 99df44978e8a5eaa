"""A table's private description on the page: what `description.json` holds, made ready for the template."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from discreet.interfaces.page._charts import Chart
from discreet.interfaces.page._page import MOST_COLUMNS, Bar, Marginal, few
from discreet.tabular.marginals import (
    Cell,
    Shown,
    figures_of,
    levels_of,
    numbers_in_words,
    tables_of,
)


@dataclasses.dataclass(frozen=True)
class DescribedColumn:
    """One column: figures by their names, and its levels as bars, or a histogram."""

    name: str
    rule: str
    figures: Sequence[tuple[str, Cell]]
    bars: Marginal | None
    histogram: Chart | None


@dataclasses.dataclass(frozen=True)
class Described:
    """A description: the columns shown are the first `of` so many."""

    numbers: str
    intervals: str
    columns: tuple[DescribedColumn, ...]
    of: int
    tables: Sequence[Shown]


def description_of(facts: Mapping[str, Any]) -> Described:
    """The part of the page on `marginals.Description.to_dict`; other facts raise Python's own errors."""
    columns = facts["columns"]
    chosen = itertools.islice(columns.items(), MOST_COLUMNS)
    return Described(
        numbers_in_words(facts),
        str(facts["intervals"]),
        tuple(_column(place, str(name), x) for place, (name, x) in enumerate(chosen)),
        len(columns),
        tables_of(facts, MOST_COLUMNS),
    )


def _column(place: int, name: str, x: Mapping[str, Any]) -> DescribedColumn:
    shares = x["shares"]
    levels = zip(x["labels"], shares["value"], shares["low"], shares["high"], strict=True)
    bars = tuple(
        Bar(str(label), 100 * float(value), 100 * float(low), 100 * float(high))
        for label, value, low, high in levels
    )
    if not x["edges"]:
        return DescribedColumn(name, str(x["kind"]), (), Marginal(name, "", few(bars)), None)
    missing = [(label, share) for label, _, share in levels_of(x)]
    histogram = _histogram(place, name, x, bars[: len(x["edges"]) - 1])
    return DescribedColumn(name, str(x["rule"]), [*figures_of(x), *missing], None, histogram)


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
