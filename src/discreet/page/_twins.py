"""What is in synthetic twins, column by column: shares of levels, averaged over the twins. No table of people is in reach."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from discreet.models import Levels
from discreet.tables import EPOCH, Column, Kind, Missing, Schema

SLICES, MOST_COLUMNS, MOST_LEVELS = 12, 40, 40


@dataclasses.dataclass(frozen=True)
class Bar:
    """One level.

    Attributes:
        label: the category, or the slice of numbers.
        share: of the rows, mean over the twins, in percent.
        least: of the twins, in percent.
        most: likewise.
    """

    label: str
    share: float
    least: float
    most: float


@dataclasses.dataclass(frozen=True)
class Marginal:
    """One column of the twins.

    Attributes:
        name: of the column.
        rule: bounds or categories, with the unit.
        bars: of its levels, in order.
    """

    name: str
    rule: str
    bars: tuple[Bar, ...]

    @property
    def top(self) -> float:
        """The largest share of any twin."""
        return max((bar.most for bar in self.bars), default=0.0) or 1.0


@dataclasses.dataclass(frozen=True)
class Marginals:
    """The columns of twins.

    Attributes:
        twins: how many.
        rows: of each.
        columns: those that are shown.
        of: how many there are.
    """

    twins: int
    rows: tuple[int, ...]
    columns: tuple[Marginal, ...]
    of: int


def marginals_of(twins: Sequence[Any], schema: Schema) -> Marginals:
    """Shares of the levels of each column. Post-processing if the tables are what they are said to be: released twins.

    Args:
        twins: Tables that `synthesize` made of a private fit: pyarrow or pandas tables, or dicts of arrays.
        schema: Their public description.

    Raises:
        ValueError: No twins, or one without rows.
        DataError: A table does not fit the schema.
    """
    schema = dataclasses.replace(schema, person=None)
    levels = Levels(schema, SLICES)
    found = [levels.encode(twin, out_of_bounds="clip") for twin in twins]
    if not found or min(map(len, found)) == 0:
        raise ValueError("There are no twins to show: pass the tables that synthesize made, of one row at least")
    columns = []
    for place, column in enumerate(schema.columns[:MOST_COLUMNS]):
        counts = [np.bincount(x[:, place], minlength=levels.sizes[place]) / len(x) for x in found]
        columns.append(_marginal(column, _labels(levels, column), 100 * np.array(counts)))
    return Marginals(len(found), tuple(map(len, found)), tuple(columns), len(schema.columns))


def _marginal(column: Column, labels: list[str], shares: np.ndarray) -> Marginal:
    mean, least, most = shares.mean(axis=0), shares.min(axis=0), shares.max(axis=0)
    bars = [Bar(*bar) for bar in zip(labels, mean.tolist(), least.tolist(), most.tolist(), strict=True)]
    if len(bars) > MOST_LEVELS:
        # The rarest categories as one; their extremes are not those of one twin, so the mean stands for them.
        order = np.argsort(-mean, kind="stable")
        rest = float(mean[order[MOST_LEVELS - 1 :]].sum())
        bars = [bars[i] for i in np.sort(order[: MOST_LEVELS - 1])]
        bars.append(Bar(f"{len(order) - len(bars)} others", rest, rest, rest))
    return Marginal(column.name, column.rule() if column.bounds else str(column.kind), tuple(bars))


def _labels(levels: Levels, column: Column) -> list[str]:
    missing = ["missing"] if column.missing is Missing.INDICATOR else []
    if column.bounds is None:
        return [*column.categories, *missing]
    edges = levels.edges(column)
    if column.kind is Kind.REAL:
        return [*(f"{low:.4g} to {high:.4g}" for low, high in itertools.pairwise(edges)), *missing]
    # Whole numbers: the next slice's first one is not in this one.
    show = _date if column.kind is Kind.DATE else "{:.0f}".format
    pairs = [(show(low), show(high - 1)) for low, high in itertools.pairwise(edges)]
    return [*(low if low == high else f"{low} to {high}" for low, high in pairs), *missing]


def _date(days: float) -> str:
    return (EPOCH + datetime.timedelta(days=int(days))).isoformat()
