"""Cells as normal scores: each number of a table as a number on the scale of a standard normal, and back."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from scipy import special

from discreet.models._cells import cells_of, check_table, numbers_of, stacked
from discreet.tables import Column, DataError, Kind, Missing, Schema

if TYPE_CHECKING:
    import pyarrow

# Probability beyond either bound: keeps a cell at its bound 3.09 standard deviations from the middle.
_EDGE = 1e-3


@dataclasses.dataclass(frozen=True)
class Scores:
    """Numbers as normal scores. Public: made from the schema alone.

    With u the cell's place between its bounds, from 0 to 1, its score is the standard normal quantile of 0.001 + 0.998 u: the
    middle of the bounds is 0, the bounds are -3.09 and 3.09, and a column that is uniform between its bounds has about
    normal scores. A count or a day takes the middle of the slot that is its own. The way back gives a cell within the bounds
    for every score, however large.

    Attributes:
        schema: The public description of the table: columns with bounds, no missing cells.

    Raises:
        DataError: A column has categories, or its missing cells are allowed.

    >>> from discreet.tables import schema_from_bounds
    >>> scores = Scores(schema_from_bounds("age=20:60"))
    >>> [round(score, 2) for score in scores.encode({"age": [20.0, 40.0, 60.0]})[:, 0].tolist()]
    [-3.09, 0.0, 3.09]
    >>> scores.decode(np.array([[0.0], [-99.0]]))["age"].to_pylist()
    [40.0, 20.0]
    """

    schema: Schema

    def __post_init__(self) -> None:
        for column in self.schema.columns:
            if column.bounds is None or column.missing is Missing.INDICATOR:
                what = "categories" if column.bounds is None else "missing cells"
                raise DataError(
                    f"column '{column.name}' ({column.kind}) has {what}: this model is for numbers only. Leave the column out, "
                    "or take MixtureOfProducts or TableVAE"
                )

    def encode(self, table: Any, *, out_of_bounds: str = "refuse") -> Float[np.ndarray, "record column"]:
        """The score of each cell, float32, columns as in the schema.

        Guarantee: a record's scores depend on that record's cells and the schema only.

        Args:
            table: Columns by name, as for `Levels.encode`.
            out_of_bounds: "refuse", or "clip": a number outside its bounds moves to the nearer one.

        Raises:
            DataError: As `Levels.encode`.
        """
        check_table(table, self.schema, out_of_bounds)
        columns = []
        for column in self.schema.columns:
            low, step, slots = _slots(column)
            values = numbers_of(column, *cells_of(table, column), out_of_bounds)
            places = (values - low + step / 2) / slots
            columns.append(special.ndtri(_EDGE + (1 - 2 * _EDGE) * places))
        return stacked(columns).astype(np.float32)

    def decode(self, scores: Float[np.ndarray, "record column"]) -> pyarrow.Table:
        """The table with the nearest cells: 64-bit floats, 64-bit integers for counts, and days, within their bounds.

        Args:
            scores: Any finite numbers, columns as in the schema.

        Raises:
            ValueError: A number is not finite.
        """
        import pyarrow

        if not np.isfinite(scores).all():
            raise ValueError("A score is not finite: the latents that it was drawn with are no draw of a posterior.")
        columns: dict[str, Any] = {}
        for column, found in zip(self.schema.columns, np.transpose(scores), strict=True):
            low, step, slots = _slots(column)
            places = np.clip((special.ndtr(np.asarray(found, np.float64)) - _EDGE) / (1 - 2 * _EDGE), 0, 1)
            if column.kind is Kind.REAL:
                columns[column.name] = np.clip(low + slots * places, *column.limits)
            else:
                whole = low + np.minimum(np.floor(slots * places), slots - step)
                days = column.kind is Kind.DATE
                cells = pyarrow.array(whole.astype(np.int32 if days else np.int64))
                columns[column.name] = cells.cast(pyarrow.date32()) if days else cells
        return pyarrow.table(columns)


def _slots(column: Column) -> tuple[float, float, float]:
    """Where the column begins, the width of a value of it (0 for a real one), and the width of all."""
    low, high = column.limits
    step = 0.0 if column.kind is Kind.REAL else 1.0
    return low, step, high - low + step
