"""A table as models take it: features of all columns at once, of which any may become the target."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from discreet.tables import Column, DataError, Kind, Missing, Schema

if TYPE_CHECKING:
    import pyarrow

_SEED = 20_260_101
"""Public: which rows of a long table are taken is no secret."""


@dataclasses.dataclass(frozen=True)
class Encoded:
    """A table and its features.

    Attributes:
        schema: The description of its columns, without target and person.
        table: The rows, numbers within their bounds or not.
        x: Features of some of the rows: at most as many as were asked for.
    """

    schema: Schema
    table: pyarrow.Table
    x: Float[np.ndarray, "row feature"] = dataclasses.field(repr=False)

    @functools.cached_property
    def _places(self) -> dict[str, slice]:
        """Where each column's features lie in x."""
        places, first = {}, 0
        for column in self.schema.columns:
            width = len(column.categories) if column.kind is Kind.CATEGORICAL else 1
            width += column.missing is Missing.INDICATOR
            places[column.name] = slice(first, first + width)
            first += width
        return places

    def explain(self, target: Column) -> tuple[Float[np.ndarray, "row feature"], Float[np.ndarray, " row"]]:
        """Features without the target's, and the target's values, of the rows where it is not missing.

        The value is a position among the categories, or a number in the column's own unit (days for a date).
        """
        place = self._places[target.name]
        others = np.delete(self.x, place, axis=1)
        values, present = _values(target, self.x[:, place].astype(np.float64))
        return others[present], values[present]


def read(source: Any, schema: Schema, what: str, most_rows: int) -> Encoded:
    """Read and encode a table; numbers outside their bounds are moved to the nearer one.

    Args:
        source: A file, or a pyarrow or pandas table.
        schema: Its description.
        what: What to call it in errors.
        most_rows: Rows to encode at most, a fair sample of them if there are more.

    Raises:
        DataError: The table does not fit the schema.
    """
    from discreet.tables import encode, read_table

    public = dataclasses.replace(schema, target=None, person=None)
    try:
        table = read_table(source, public)
        rows = table
        if len(table) > most_rows:
            rows = table.take(np.sort(np.random.default_rng(_SEED).choice(len(table), most_rows, replace=False)))
        return Encoded(public, table, encode(rows, public, out_of_bounds="clip").x)
    except DataError as error:
        raise DataError(f"{what}: {error}") from None


def _values(column: Column, block: np.ndarray) -> tuple[Float[np.ndarray, " row"], Bool[np.ndarray, " row"]]:
    """A column's values by its features, and where they are there at all."""
    present = np.ones(len(block), bool)
    if column.missing is Missing.INDICATOR:
        block, present = block[:, :-1], block[:, -1] == 0
    if column.kind is Kind.CATEGORICAL:
        return block.argmax(axis=1).astype(np.float64), present
    values = block[:, 0]
    if column.kind is Kind.BINARY:
        return values, present
    low, high = (0.0, len(column.categories) - 1.0) if column.kind is Kind.ORDERED else column.limits
    values = (low + high) / 2 + values * (high - low) / 2
    return values if column.kind is Kind.REAL else np.rint(values), present
