"""Released figures: an estimate and its interval, of a column, a pair of columns, or a group of records."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from discreet.tabular.tables import EPOCH, Column, Kind


class Figure(NamedTuple):
    """An estimate and its interval: numbers, or arrays with a figure for each level or cell."""

    value: Any
    low: Any
    high: Any

    def to_dict(self) -> dict[str, Any]:
        """Convert to values for JSON."""
        return {name: np.asarray(x).tolist() for name, x in self._asdict().items()}


@dataclasses.dataclass(frozen=True)
class ColumnFigures:
    """The released figures of one column.

    Attributes:
        column: Its public description.
        labels: Names of its levels: categories, or slices of numbers; the last may be the missing
            cells.
        counts: Records at each level.
        shares: The same, divided by the number of records.
        edges: Edges of the slices of a column of numbers; the last is one past the upper bound for
            counts and dates.
        mean: Mean of the values that are not missing; dates are days since 1970-01-01. None for
            categories, as is `sd`.
        sd: Their standard deviation.
        quantiles: By their share of the values.
    """

    column: Column
    labels: tuple[str, ...]
    counts: Figure
    shares: Figure
    edges: Float[np.ndarray, " slice+1"] | None = None
    mean: Figure | None = None
    sd: Figure | None = None
    quantiles: Mapping[float, Figure] = dataclasses.field(default_factory=dict)

    @property
    def hidden(self) -> bool:
        """True if the noise hides whether there are any values: an interval is then all that the bounds allow."""
        if self.mean is None:
            return bool(np.all(self.shares.low <= 0) and np.all(self.shares.high >= 1))
        low, high = self.column.limits
        return self.mean.low <= low and self.mean.high >= high

    def to_dict(self) -> dict[str, Any]:
        """Convert to values for JSON; `edges` are those of the slices."""

        def day(value: float) -> Any:
            if self.column.kind is not Kind.DATE:
                return float(value)
            return str(EPOCH + datetime.timedelta(days=round(value)))

        def days(figure: Figure) -> dict[str, Any]:
            return {part: day(value) for part, value in figure._asdict().items()}

        return {
            "kind": str(self.column.kind),
            "rule": self.column.rule(),
            "unit": self.column.unit,
            "hidden": self.hidden,
            "labels": list(self.labels),
            "edges": [] if self.edges is None else [day(edge) for edge in self.edges],
            "counts": self.counts.to_dict(),
            "shares": self.shares.to_dict(),
            "mean": None if self.mean is None else days(self.mean),
            "sd": None if self.sd is None else self.sd.to_dict(),
            "quantiles": {f"{share:g}": days(figure) for share, figure in self.quantiles.items()},
        }


@dataclasses.dataclass(frozen=True)
class PairFigures:
    """A two-way table: an axis of levels for each of two columns.

    Attributes:
        counts: Records in each cell.
        shares: The same, divided by the number of records.
    """

    counts: Figure
    shares: Figure


@dataclasses.dataclass(frozen=True)
class GroupFigures:
    """The released figures of the records in one category of a column.

    Attributes:
        by: Name of that column.
        label: The category.
        num_records: The number of records in it; of rows, where a person may have several.
        columns: Figures of the other columns, by name; shares are of the records in the category.
        num_persons: Then the number of persons with a row in it; they may have rows in others, too.
    """

    by: str
    label: str
    num_records: Figure
    columns: Mapping[str, ColumnFigures]
    num_persons: Figure | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert to values for JSON."""
        return {
            "by": self.by,
            "label": self.label,
            "num_records": self.num_records.to_dict(),
            "num_persons": None if self.num_persons is None else self.num_persons.to_dict(),
            "columns": {name: x.to_dict() for name, x in self.columns.items()},
        }
