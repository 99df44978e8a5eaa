"""Encode a table's cells as numbers for models, by the public schema alone, and decode them.

`Levels` maps each column to finitely many public levels: categories unchanged, numbers by slices of
their bounds. Decoding any draw of a model gives a cell within its bounds. A record's code depends
on that record's cells and the schema only, and errors name columns and rules, never a cell.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from discreet._validate import choice, integer, require
from discreet.tabular.tables import (
    EPOCH,
    Column,
    DataError,
    Kind,
    OutOfBounds,
    Report,
    Schema,
    coded,
)

if TYPE_CHECKING:
    import pyarrow
from discreet.tabular.models._slices import edges_for_display, label_of_period, labels_of_numbers


def coded_columns(
    table: Any, schema: Schema, out_of_bounds: str
) -> list[tuple[Column, np.ndarray, np.ndarray]]:
    """Each column's numbers (or positions among its categories) and the mask of its missing cells.

    Raises a DataError if a column is absent, a person has several rows, or a cell violates the
    schema.
    """
    require("pyarrow", extra="tables", what="A model of a table")
    from discreet.tabular.tables import typed

    report = Report(OutOfBounds(choice("out_of_bounds", out_of_bounds, ("refuse", "clip"))))
    table = typed(table, schema, report)
    if schema.person is not None:
        refuse_second_rows(table[schema.person], schema.person)
    found = [(column, *coded(column, table[column.name], report)) for column in schema.columns]
    report.refuse()
    return found


def refuse_second_rows(people: pyarrow.ChunkedArray, name: str) -> None:
    """Refuse a column of persons in which one occurs twice, or is missing."""
    if people.null_count or len(people.unique()) < len(people):
        raise DataError(
            f"column '{name}' identifies persons, and a plan protects one row per person: keep one each, "
            f"table.filter(discreet.tables.keep_one_row_a_person(table['{name}']))"
        )


_ROWS_AT_ONCE = 65_536


def refuse_several_rows(schema: Schema) -> None:
    """Refuse a schema whose records have several rows: these models and counts need one row per record."""
    if schema.max_rows > 1:
        raise DataError(
            f"the schema's person may have {schema.max_rows} rows, and this model or count uses one row per person: give a copy "
            f'of the schema with person = "{schema.person}"; twins with several rows are those of MixtureOfProducts (--by svi)'
        )


@dataclasses.dataclass(frozen=True)
class Levels:
    """The levels of a schema's columns. Public: derived from the schema alone.

    A column of categories has one level for each. Real columns and dates have `slices` equal slices
    of their bounds. A count has a level for each value if there are at most `slices`; otherwise the
    lowest values have one each, and the slices grow with the distance from the lower bound, as
    counts scatter more where they are larger. A column whose missing cells are allowed has one more
    level, the last, for those.

    Attributes:
        schema: The public description of the table.
        slices: Largest number of slices of a column of numbers, at least 2.
        round_edges: For display: slices begin at round numbers, months and years, so they are fewer
            and of several widths.

    >>> from discreet.tabular.tables import schema_from_bounds
    >>> levels = Levels(schema_from_bounds("visits=0:9,smoker=no|yes"), slices=4)
    >>> levels.sizes, levels.encode({"visits": [0, 9], "smoker": ["yes", "no"]}).tolist()
    ((4, 2), [[0, 1], [3, 0]])
    """

    schema: Schema
    slices: int = 32
    round_edges: bool = False

    def __post_init__(self) -> None:
        integer("slices", self.slices, least=2, hint="32 is a common choice.")
        refuse_several_rows(self.schema)

    @functools.cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of levels of each column, with the one for missing cells."""
        return tuple(
            (len(column.categories) or len(self.edges(column)) - 1) + (column.may_be_missing)
            for column in self.schema.columns
        )

    @functools.cached_property
    def _edges(self) -> list[Any]:
        return [
            None if column.bounds is None else self.edges(column) for column in self.schema.columns
        ]

    def edges(self, column: Column) -> Float[np.ndarray, " slice+1"]:
        """Edges of the slices of a column with bounds; the last is one past the upper bound for counts and days."""
        low, high = column.limits
        if self.round_edges:
            return edges_for_display(column, self.slices)
        if column.kind is Kind.REAL:
            return np.linspace(low, high, self.slices + 1)
        values = int(high - low) + 1
        if column.kind is Kind.DATE:
            return low + np.rint(np.linspace(0, values, min(values, self.slices) + 1))
        return low + _growing(values, self.slices)

    def labels(self, column: Column) -> list[str]:
        """Names of a column's levels: categories, slices of numbers, and "missing".

        >>> from discreet.tabular.tables import schema_from_bounds
        >>> levels = Levels(schema_from_bounds("visits=0:9,smoker=no|yes"), slices=4)
        >>> [levels.labels(column) for column in levels.schema.columns]
        [['0 to 2.25', '2.25 to 4.5', '4.5 to 6.75', '6.75 to 9'], ['no', 'yes']]
        """
        missing = ["missing"] if column.may_be_missing else []
        if column.bounds is None:
            return [*column.categories, *missing]
        edges = self.edges(column)
        if column.kind is Kind.REAL:
            return [
                *(f"{low} to {high}" for low, high in itertools.pairwise(labels_of_numbers(edges))),
                *missing,
            ]
        # Integers: exclude the first integer of the next slice.
        pairs = [(int(low), int(high) - 1) for low, high in itertools.pairwise(edges)]
        if column.kind is Kind.DATE:
            return [
                *(
                    label_of_period(EPOCH + datetime.timedelta(a), EPOCH + datetime.timedelta(b))
                    for a, b in pairs
                ),
                *missing,
            ]
        return [
            *(f"{low:,}" if low == high else f"{low:,} to {high:,}" for low, high in pairs),
            *missing,
        ]

    def encode(
        self, table: Any, *, out_of_bounds: str = "refuse"
    ) -> Int[np.ndarray, "record column"]:
        """The level of each cell, int32, columns as in the schema.

        Guarantee: a record's levels depend on that record's cells and the schema only.

        Args:
            table: Columns by name: a pyarrow or pandas table, or a dict of arrays. Columns that the
                schema does not name are ignored, except its person column, in which each person
                must occur once.
            out_of_bounds: "refuse", or "clip": a number outside its bounds moves to the nearer one.

        Raises:
            DataError: A column is absent, a person has several rows, a cell is missing or outside
                its bounds or categories. Names the column and the rule, never a value, a row or a
                count.
        """
        return self.encode_columns(table, out_of_bounds=out_of_bounds).T.astype(np.int32)

    def encode_columns(
        self, table: Any, *, out_of_bounds: str = "refuse"
    ) -> Int[np.ndarray, "column record"]:
        """Encode a table as `encode` does, but as rows of columns, in the smallest type that holds all levels."""
        return self.of_cells(coded_columns(table, self.schema, out_of_bounds))

    def of_cells(
        self, cells: list[tuple[Column, np.ndarray, np.ndarray]]
    ) -> Int[np.ndarray, "column record"]:
        """The levels of what `coded_columns` gives."""
        found = np.empty(
            (len(self.sizes), len(cells[0][1])), np.min_scalar_type(max(self.sizes) - 1)
        )
        for place, ((column, numbers, missing), size) in enumerate(
            zip(cells, self.sizes, strict=True)
        ):
            if column.bounds is None:
                found[place] = numbers
            elif self.round_edges and column.kind is Kind.REAL:
                edges = self._edges[place]
                found[place] = np.clip(
                    np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2
                )
            else:
                found[place] = _slice_of(column, numbers, self._edges[place])
            if column.may_be_missing:
                found[place][missing] = size - 1
        return found

    def part_edges(self, column: Column, parts: int) -> Float[np.ndarray, " part+1"]:
        """Edges of so many parts of each slice of a column with bounds; a part may be empty, its edges equal.

        >>> from discreet.tabular.tables import schema_from_bounds
        >>> levels = Levels(schema_from_bounds("height=150:200"), slices=2)
        >>> levels.part_edges(levels.schema.columns[0], 2).tolist()
        [150.0, 162.5, 175.0, 187.5, 200.0]
        """
        edges = self.edges(column).astype(np.float64)
        found = np.linspace(edges[:-1], edges[1:], parts, endpoint=False, axis=1).ravel()
        # Whole numbers, of which a part begins at the next one.
        found = found if column.kind is Kind.REAL else np.ceil(found)
        return np.append(found, edges[-1])

    def parts_of(
        self,
        cell: tuple[Column, np.ndarray, np.ndarray],
        found: Int[np.ndarray, " record"],
        parts: int,
    ) -> Int[np.ndarray, " record"]:
        """The part of its slice that each of a column's numbers is in; 0 where missing.

        Args:
            cell: A column of what `coded_columns` gives.
            found: Its levels.
            parts: Parts of each slice, at most 256.
        """
        column, numbers, missing = cell
        within = _slice_of(column, numbers, self.part_edges(column, parts)) - found * np.int64(
            parts
        )
        within[missing] = 0
        return np.clip(within, 0, parts - 1).astype(np.uint8)

    @functools.cached_property
    def impossible(
        self,
    ) -> tuple[tuple[Bool[np.ndarray, " level"], Bool[np.ndarray, " level"]], ...]:
        """Pairs of masks over all levels, in the order of `places`: no record has a level of both (the schema's `impossible`).

        A slice is included if all of it is impossible.

        >>> from discreet.tabular.tables import Column, Kind
        >>> age = Column(name="age", kind=Kind.COUNT, bounds=(0, 3))
        >>> at = Column(name="at", kind=Kind.BINARY, categories=("a", "b"))
        >>> never = Levels(Schema(columns=(age, at), impossible=((("age", (0, 1)), ("at", ("b",))),))).impossible
        >>> [[int(x) for x in side] for side in never[0]]
        [[1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]]
        """
        described = {column.name: column for column in self.schema.columns}

        def of(name: str, values: tuple[Any, ...]) -> Bool[np.ndarray, " level"]:
            column = described[name]
            found = np.zeros(sum(self.sizes), bool)
            own = found[self.places[name]]
            if column.bounds is None:
                own[: len(column.categories)] = [
                    category in values for category in column.categories
                ]
                return found
            least, most = ((x - EPOCH).days if column.kind is Kind.DATE else x for x in values)
            edges = self.edges(column)
            last = edges[1:] - (column.kind is not Kind.REAL)
            own[: len(last)] = (edges[:-1] >= least) & (last <= most)
            return found

        return tuple((of(*one), of(*other)) for one, other in self.schema.impossible)

    # Frequencies of levels.

    @functools.cached_property
    def places(self) -> dict[str, slice]:
        """Position of each column's levels among all levels, for `pair_shares`."""
        ends = np.cumsum(self.sizes)
        columns = zip(self.schema.columns, ends, self.sizes, strict=True)
        return {column.name: slice(int(end) - size, int(end)) for column, end, size in columns}

    def pair_shares(
        self, levels: Int[np.ndarray, "record column"]
    ) -> Float[np.ndarray, "level level"]:
        """Share of the records that have both of two levels, for all pairs; the diagonal has single levels.

        These are exact figures of the records, as private as the records.

        Args:
            levels: As `encode` gives them.
        """
        firsts = np.cumsum((0, *self.sizes[:-1]))
        total = sum(self.sizes)
        counts = np.zeros((total, total))
        for start in range(0, len(levels), _ROWS_AT_ONCE):
            rows = levels[start : start + _ROWS_AT_ONCE] + firsts
            ones = np.zeros((len(rows), total), np.float32)
            np.put_along_axis(ones, rows, 1.0, axis=1)
            counts += ones.T @ ones
        return counts / len(levels)

    # From levels to cells.

    def decode(
        self, levels: Int[np.ndarray, "record column"], rng: np.random.Generator
    ) -> pyarrow.Table:
        """A table with these levels: 64-bit floats, 64-bit integers for counts, days, and texts; missing cells are null.

        Numbers of a column without a step are rounded to a power of ten of which each slice holds
        20 values at least.

        Args:
            levels: As `encode` gives them.
            rng: Draws a number's place within its slice, uniformly.

        Returns:
            A pyarrow table of the schema's columns, each cell within its bounds or categories.
        """
        require("pyarrow", extra="tables", what="A model of a table")
        import pyarrow

        from discreet.tabular.tables import cells_of

        columns: dict[str, Any] = {}
        for column, size, found in zip(
            self.schema.columns, self.sizes, np.transpose(levels), strict=True
        ):
            missing = found == size - 1 if column.may_be_missing else None
            numbers = found if column.bounds is None else self._within(column, found, rng)
            columns[column.name] = cells_of(column, numbers, missing)
        return pyarrow.table(columns)

    def _within(self, column: Column, found: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        edges = self.edges(column)
        # A missing cell's level has no slice; it gets the last one's value and is masked.
        found = np.minimum(found, len(edges) - 2)
        values = edges[found] + np.diff(edges)[found] * rng.random(len(found))
        if column.kind is Kind.REAL and column.step is None:
            return _few_decimals(
                values, edges[found], edges[found + 1], np.diff(edges).min() / _VALUES_IN_SLICE
            )
        return values if column.kind is Kind.REAL else np.floor(values)


_VALUES_IN_SLICE = 20
"""Least number of values of a column without a step in each slice."""


def _few_decimals(values: np.ndarray, low: Any, high: Any, most: float) -> np.ndarray:
    """Round drawn numbers to the largest power of ten that is at most `most`, within [low, high).

    >>> _few_decimals(np.array([29.009103564978947, 17.01]), np.array([28.4, 17.02]), np.array([30.7, 19.3]), 0.114)
    array([29. , 17.1])
    """
    decimals = -math.floor(math.log10(most))
    found = np.round(values, decimals)
    found = np.where(found < low, np.round(found + 10.0**-decimals, decimals), found)
    return np.where(found >= high, np.round(found - 10.0**-decimals, decimals), found)


def _slice_of(column: Column, numbers: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The slice of each number within the bounds: a faster `np.searchsorted(edges, number, side="right") - 1`."""
    last = len(edges) - 2
    low = edges[0]
    if column.kind is not Kind.REAL:
        if edges[-1] - low > 1 << 16:
            return np.minimum(np.searchsorted(edges, numbers, side="right") - 1, last)
        of_value = np.repeat(np.arange(last + 1, dtype=np.int32), np.diff(edges).astype(np.int64))
        return of_value.take((numbers - low).astype(np.intp))
    # Equal slices: a product finds the slice, but for numbers so near an edge that its rounding,
    # less than a slice, may matter.
    scale = (last + 1) / (edges[-1] - low)
    offsets = numbers - low
    offsets *= scale
    found = offsets.astype(np.int32)
    offsets -= np.rint(offsets)
    near = np.flatnonzero(
        np.abs(offsets, out=offsets) <= 2.0**-45 * (last + 1 + scale * np.abs(edges).max())
    )
    if near.size:
        numbers = numbers[near]
        slices = np.clip(found[near], 0, last)
        slices -= numbers < edges[slices]
        slices += (numbers >= edges[slices + 1]) & (slices < last)
        found[near] = slices
    return found


def _growing(values: int, slices: int) -> Int[np.ndarray, " slice+1"]:
    """Edges of slices of 0, ..., values - 1: one per value, or the first of width one and the others growing."""
    if values <= slices:
        return np.arange(values + 1)
    edges = [0, 1]
    for left in range(slices - 1, 0, -1):
        # Geometric from here to the end, as soon as that is wider than one.
        edges.append(max(edges[-1] + 1, round(edges[-1] * (values / edges[-1]) ** (1 / left))))
    return np.array(edges)
