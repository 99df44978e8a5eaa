"""Slices of numbers and dates, for display.

Edges are round numbers, firsts of months or of years. They follow from public bounds alone.
"""

from __future__ import annotations

import datetime
import math

import numpy as np
from jaxtyping import Float

from discreet.tabular.tables import EPOCH, Column, Kind

_MONTHS = (1, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 6000)


def edges_for_display(column: Column, slices: int) -> Float[np.ndarray, " slice+1"]:
    """The bounds, and between them multiples of 1, 2 or 5 times a power of ten; for dates, firsts of months or years."""
    low, high = column.limits
    end = high if column.kind is Kind.REAL else high + 1
    if column.kind is Kind.DATE and (end - low) / slices > _DAYS:
        inner = _firsts(int(low), int(end), slices)
    elif column.kind is Kind.COUNT and low == 0 and end > 10 * slices:
        # Counts scatter more where they are larger.
        inner = [
            float(factor * 10**power)
            for power in range(int(math.log10(end)) + 1)
            for factor in (1, 2, 5)
        ]
    else:
        least = column.step or 0.0 if column.kind is Kind.REAL else 1.0
        raw = max((end - low) / slices, least)
        unit = 10.0 ** math.floor(math.log10(raw))
        sizes = (unit * factor for factor in (1, 2, 5, 10, 20))
        step = next(
            x
            for x in sizes
            if x >= least and math.ceil(end / x) - math.floor(low / x) <= slices + 1
        )
        inner = [
            float(f"{i * step:.12g}")
            for i in range(math.floor(low / step), math.ceil(end / step) + 1)
        ]
    return np.array([low, *(x for x in inner if low < x < end), end], np.float64)


_DAYS = 3
"""Shorter slices of dates do not begin at firsts of months."""


def _firsts(low: int, end: int, slices: int) -> list[float]:
    """First days of periods of months, as few months as give at most `slices` slices."""
    first, last = (EPOCH + datetime.timedelta(day) for day in (low, end - 1))
    begin = first.year * 12 + first.month - 1
    until = last.year * 12 + last.month - 1
    step = next((x for x in _MONTHS if until // x - begin // x < slices), _MONTHS[-1])
    months = range((begin // step + 1) * step, until + 1, step)
    return [float((datetime.date(month // 12, month % 12 + 1, 1) - EPOCH).days) for month in months]


def labels_of_numbers(edges: Float[np.ndarray, " edge"]) -> list[str]:
    """Format edges with a precision of a hundredth of their distance, without exponents.

    >>> labels_of_numbers(np.array([0, 16666.67, 33333.33])), labels_of_numbers(np.array([1, 1.1, 1.2]))
    (['0', '16,667', '33,333'], ['1', '1.1', '1.2'])
    """
    places = max(0, 2 - math.floor(math.log10(np.diff(edges).min())))
    texts = [f"{x:,.{places}f}" for x in edges.tolist()]
    texts = [x.rstrip("0").rstrip(".") if "." in x else x for x in texts]
    return ["0" if x == "-0" else x for x in texts]


def label_of_period(first: datetime.date, last: datetime.date) -> str:
    """Name a period of days.

    >>> day = datetime.date
    >>> ends = day(2018, 1, 31), day(2018, 6, 30), day(2018, 12, 31), day(2019, 12, 31)
    >>> [label_of_period(day(2018, 1, 1), end) for end in ends]
    ['2018-01', '2018 H1', '2018', '2018 to 2019']
    """
    after = last + datetime.timedelta(1) if last < datetime.date.max else last
    months = (after.year - first.year) * 12 + after.month - first.month
    if first.day == after.day == 1 and first != after:
        if first.month == 1 and months % 12 == 0:
            return str(first.year) if months == 12 else f"{first.year} to {last.year}"
        if months in (3, 6) and (first.month - 1) % months == 0:
            return f"{first.year} {'Q' if months == 3 else 'H'}{(first.month - 1) // months + 1}"
        if months == 1:
            return f"{first:%Y-%m}"
    return str(first) if first == last else f"{first} to {last}"
