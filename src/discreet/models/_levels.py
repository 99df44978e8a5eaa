"""Cells as levels: each column of a table as one of finitely many public levels, and back."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from discreet.models._cells import cells_of, check_table, numbers_of, positions_of, stacked
from discreet.tables import Column, Kind, Missing, Schema

if TYPE_CHECKING:
    import pyarrow

_ROWS_AT_ONCE = 65_536


@dataclasses.dataclass(frozen=True)
class Levels:
    """Which levels the columns of a schema have. Public: made from the schema alone.

    A column of categories has one level for each. Real columns and dates have `slices` equal slices of their bounds. A count
    has a level for each value if there are at most `slices`; otherwise the lowest values have one each, and the slices grow
    with the distance from the lower bound, as counts scatter more where they are larger. A column whose missing cells
    are allowed has one more level, the last, for those.

    Attributes:
        schema: The public description of the table.
        slices: Most slices of a column of numbers, 2 at least.

    >>> from discreet.tables import schema_from_bounds
    >>> levels = Levels(schema_from_bounds("visits=0:9,smoker=no|yes"), slices=4)
    >>> levels.sizes, levels.encode({"visits": [0, 9], "smoker": ["yes", "no"]}).tolist()
    ((4, 2), [[0, 1], [3, 0]])
    """

    schema: Schema
    slices: int = 32

    def __post_init__(self) -> None:
        if isinstance(self.slices, bool) or not isinstance(self.slices, int) or self.slices < 2:
            raise ValueError(f"slices is {self.slices!r}; a column of numbers is cut into 2 slices at least, 32 say.")

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of levels of each column, with the one for missing cells."""
        return tuple(
            (len(column.categories) or len(self.edges(column)) - 1) + (column.missing is Missing.INDICATOR)
            for column in self.schema.columns
        )

    def edges(self, column: Column) -> Float[np.ndarray, " slice+1"]:
        """Where the slices of a column with bounds begin, and where the last one ends: one past it for counts and days."""
        low, high = column.limits
        if column.kind is Kind.REAL:
            return np.linspace(low, high, self.slices + 1)
        values = int(high - low) + 1
        if column.kind is Kind.DATE:
            return low + np.rint(np.linspace(0, values, min(values, self.slices) + 1))
        return low + _growing(values, self.slices)

    # --- from cells to levels -------------------------------------------------------------

    def encode(self, table: Any, *, out_of_bounds: str = "refuse") -> Int[np.ndarray, "record column"]:
        """The level of each cell, int32, columns as in the schema.

        Guarantee: a record's levels depend on that record's cells and the schema only.

        Args:
            table: Columns by name: a pyarrow or pandas table, or a dict of arrays. Columns that the schema does not name
                are left alone, but for its person column, in which each person must be there once.
            out_of_bounds: "refuse", or "clip": a number outside its bounds moves to the nearer one.

        Raises:
            DataError: A column is not there, a person has several rows, a cell is missing or outside its bounds or categories.
                Names the column and the rule, never a value, a row or a count.
        """
        check_table(table, self.schema, out_of_bounds)
        columns = []
        for column, size in zip(self.schema.columns, self.sizes, strict=True):
            cells, missing = cells_of(table, column)
            found = (
                self._slices(column, cells, missing, out_of_bounds) if column.bounds else positions_of(column, cells)
            )
            columns.append(np.where(missing, size - 1, found))
        return stacked(columns).astype(np.int32)

    def _slices(self, column: Column, cells: Any, missing: np.ndarray, out_of_bounds: str) -> np.ndarray:
        values = numbers_of(column, cells, missing, out_of_bounds)
        edges = self.edges(column)
        return np.minimum(np.searchsorted(edges, values, side="right") - 1, len(edges) - 2)

    # --- how often levels occur -----------------------------------------------------------

    @functools.cached_property
    def places(self) -> dict[str, slice]:
        """Where each column's levels lie among all levels, for `pair_shares`."""
        ends = np.cumsum(self.sizes)
        columns = zip(self.schema.columns, ends, self.sizes, strict=True)
        return {column.name: slice(int(end) - size, int(end)) for column, end, size in columns}

    def pair_shares(self, levels: Int[np.ndarray, "record column"]) -> Float[np.ndarray, "level level"]:
        """Share of the records that have both of two levels, for all pairs; on the diagonal that of single levels.

        Exact figures of these records, so private ones like them.

        Args:
            levels: As `encode` gives them.
        """
        firsts, total = np.cumsum((0, *self.sizes[:-1])), sum(self.sizes)
        counts = np.zeros((total, total))
        for start in range(0, len(levels), _ROWS_AT_ONCE):
            rows = levels[start : start + _ROWS_AT_ONCE] + firsts
            ones = np.zeros((len(rows), total), np.float32)
            np.put_along_axis(ones, rows, 1.0, axis=1)
            counts += ones.T @ ones
        return counts / len(levels)

    # --- and back -------------------------------------------------------------------------

    def decode(self, levels: Int[np.ndarray, "record column"], rng: np.random.Generator) -> pyarrow.Table:
        """A table with these levels: 64-bit floats, 64-bit integers for counts, days, and texts; missing cells are null.

        Args:
            levels: As `encode` gives them.
            rng: Draws where in its slice a number lies: each place, or each count, alike.

        Returns:
            A pyarrow table of the schema's columns, each cell within its bounds or categories.
        """
        import pyarrow

        columns: dict[str, Any] = {}
        for column, size, found in zip(self.schema.columns, self.sizes, np.transpose(levels), strict=True):
            missing = found == size - 1 if column.missing is Missing.INDICATOR else None
            if column.bounds is None:
                places = pyarrow.array(found, pyarrow.int32(), mask=missing)
                cells = pyarrow.DictionaryArray.from_arrays(places, list(column.categories)).dictionary_decode()
            else:
                cells = pyarrow.array(self._within(column, found, rng), mask=missing)
                cells = cells.cast(pyarrow.date32()) if column.kind is Kind.DATE else cells
            columns[column.name] = cells
        return pyarrow.table(columns)

    def _within(self, column: Column, found: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        edges = self.edges(column)
        # A missing cell's level has no slice; it gets the last one's value and is masked.
        found = np.minimum(found, len(edges) - 2)
        values = edges[found] + np.diff(edges)[found] * rng.random(len(found))
        if column.kind is Kind.REAL:
            return np.minimum(values, edges[-1])
        return np.floor(values).astype(np.int32 if column.kind is Kind.DATE else np.int64)


def _growing(values: int, slices: int) -> Int[np.ndarray, " slice+1"]:
    """Edges of slices of 0, ..., values - 1: one a value, or the first of width one and the others growing."""
    if values <= slices:
        return np.arange(values + 1)
    edges = [0, 1]
    for left in range(slices - 1, 0, -1):
        # Geometric from here to the end, as soon as that is wider than one.
        edges.append(max(edges[-1] + 1, round(edges[-1] * (values / edges[-1]) ** (1 / left))))
    return np.array(edges)
