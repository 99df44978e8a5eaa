"""Tables in memory to arrays of records, by the public schema alone.

The guarantee that privacy rests on: each record's numbers depend on that record's cells, the schema
and (for tables with several rows a person) a secret key, and on no other person's rows. Hence
neighbouring tables become neighbouring arrays. `_typed` brings a table of any library into the
types that the schema asks for, `_persons` makes a record a person, `Layout` says which columns of
the arrays a schema's columns become, `encode` fills them, and `_decode` goes back.
"""

import dataclasses
import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.types

from discreet.tabular.tables._cells import Report, coded
from discreet.tabular.tables._persons import rows_of_persons
from discreet.tabular.tables._schema import (
    EPOCH,
    Column,
    DataError,
    Kind,
    Missing,
    OutOfBounds,
    Schema,
)
from discreet.tabular.tables._typed import as_table, typed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
    """Arrays whose leading axis is the records. Private: everything but names, shapes and scales.

    Where a person may have several rows, x, y and mask have an axis more, of the schema's
    `max_rows`, after the leading one.

    Attributes:
        x: float32, records by features, each entry in [-1, 1] unless the columns were left raw; NaN
            for a dropped row.
        y: float32, one entry a record, or None without a target. Binary: 0 or 1. Real and date:
            scaled to [-1, 1] by the public bounds. Count: the count itself. Categorical and
            ordered: the position among the categories.
        feature_names: Names of the columns of `x`, for example "age" or "region=north".
        target_centre: What to add to, after multiplying by `target_scale`, to have a real target in
            its own unit, or a date in days since 1970-01-01.
        target_scale: See `target_centre`.
        mask: True for the rows of a person, records by `max_rows`; the cells of the others are
            zeros. None: a record is one row.
        weights: float32, one entry a record: the survey weights over the largest that one may have.
            None: there are none.
    """

    x: np.ndarray
    y: np.ndarray | None
    feature_names: tuple[str, ...]
    target_centre: float = 0.0
    target_scale: float = 1.0
    mask: np.ndarray | None = None
    weights: np.ndarray | None = None

    @property
    def num_records(self) -> int:
        """Number of records: of rows, or of persons."""
        return len(self.x)

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """The arguments of a model: x, then y and the mask, if present."""
        return tuple(array for array in (self.x, self.y, self.mask) if array is not None)

    def __repr__(self) -> str:
        # The generated one would print cells.
        return f"Records({self.num_records} records, {len(self.feature_names)} features)"


@dataclasses.dataclass(frozen=True)
class Layout:
    """The columns of the arrays that a schema's columns become. Public."""

    schema: Schema  # The public description
    # One column of x for each feature, in its own unit, with NaN where a cell is missing
    raw: bool = False

    def __post_init__(self) -> None:
        target = self.schema.target_column
        if target is not None and target.missing is Missing.INDICATOR:
            raise DataError(
                f"column '{target.name}' is the target: its missing cells cannot be encoded, set missing = \"drop\", with which "
                "such rows contribute nothing"
            )

    @functools.cached_property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the columns of x."""
        return tuple(name for column in self.schema.features for name in self.names(column))

    def names(self, column: Column) -> list[str]:
        """Names of the columns of x that a column becomes."""
        return [column.name] if self.raw else feature_names(column)

    @property
    def target_scaling(self) -> tuple[float, float]:
        """Centre and scale of the target."""
        target = self.schema.target_column
        if target is None or target.kind not in (Kind.REAL, Kind.DATE) or self.raw:
            return 0.0, 1.0
        low, high = target.limits
        return (low + high) / 2, (high - low) / 2

    @property
    def parts(self) -> dict[str, int | slice]:
        """The arrays of the records, by name, and their columns of the matrix that `fill` fills."""
        width = len(self.feature_names)
        found: dict[str, int | slice] = {"x": slice(width)}
        for name, column in (("y", self.schema.target), ("weights", self.schema.weight)):
            if column is not None:
                found[name] = width
                width += 1
        return found

    @property
    def width(self) -> int:
        """Number of features, one for a target, and one for a weight."""
        return len(self.feature_names) + len(self.parts) - 1

    def fill(self, table: pyarrow.Table, matrix: np.ndarray, report: Report) -> None:
        """Encode a table into a float32 matrix of rows by `width`, in `parts`. Reported cells become zeros.

        A row that the schema drops becomes NaN throughout. Records that are not finite contribute
        exactly zero, and the number of records stays that of the table: without such rows it would
        follow the cells, and neighbouring tables of one size would have two.
        """
        first = 0
        dropped = np.zeros(table.num_rows, bool)
        for column in self.schema.features:
            width = len(self.names(column))
            missing = _fill(
                column,
                table.column(column.name),
                matrix[:, first : first + width],
                report,
                self.raw,
            )
            if column.missing is Missing.DROP:
                dropped |= missing
            first += width
        target = self.schema.target_column
        if target is not None:
            centre, scale = self.target_scaling
            numbers, missing = coded(target, table.column(target.name), report)
            matrix[:, first] = (numbers - centre) / scale
            if target.missing is Missing.DROP:
                dropped |= missing
        weight = self.schema.weight_column
        if weight is not None:
            numbers, missing = coded(weight, table.column(weight.name), report)
            matrix[:, -1] = numbers / weight.limits[1]
            dropped |= missing
        matrix[dropped] = np.nan

    def records(self, matrix: np.ndarray, mask: np.ndarray | None = None) -> Records:
        """The records that a filled matrix holds, without a copy."""
        centre, scale = self.target_scaling
        arrays: dict[str, Any] = {"y": None} | {
            name: matrix[..., place] for name, place in self.parts.items()
        }
        return Records(
            **arrays,
            feature_names=self.feature_names,
            target_centre=centre,
            target_scale=scale,
            mask=mask,
        )


def feature_names(column: Column) -> list[str]:
    """Names of the columns of x that a column becomes."""
    if column.kind is Kind.CATEGORICAL:
        names = [f"{column.name}={category}" for category in column.categories]
    else:
        names = [
            f"{column.name}={column.categories[1]}" if column.kind is Kind.BINARY else column.name
        ]
    return [*names, f"{column.name} is missing"] if column.missing is Missing.INDICATOR else names


def are_levels(schema: Schema) -> npt.NDArray[np.bool_]:
    """Tell which columns of x are 0/1 levels, in order, as `encode` makes them.

    >>> from discreet.tabular.tables import schema_from_bounds
    >>> are_levels(schema_from_bounds("age=20:60,smoker=no|yes")).tolist()
    [False, True]
    """
    pairs = [(column, name) for column in schema.features for name in feature_names(column)]
    return np.array(
        [not column.kind.has_bounds or name != column.name for column, name in pairs], bool
    )


def describe_features(schema: Schema, *, raw: bool = False) -> tuple[tuple[str, str], ...]:
    """Name and meaning of each column of x, in order, as `encode` makes it.

    >>> from discreet.tabular.tables import schema_from_bounds
    >>> describe_features(schema_from_bounds("age=20:60,smoker=no|yes"))
    (('age', '20 to 60, scaled to -1 to 1'), ('smoker=yes', '1 if yes, else 0'))
    >>> describe_features(schema_from_bounds("age=20:60,smoker=no|yes"), raw=True)
    (('age', '20 to 60'), ('smoker', '0 no, 1 yes'))
    """
    return tuple(
        line for column in schema.features for line in (_raw_meaning if raw else _meanings)(column)
    )


def _meanings(column: Column) -> list[tuple[str, str]]:
    names = feature_names(column)
    if column.kind.has_bounds:
        meanings = [f"{column.rule()}, scaled to -1 to 1"]
    elif column.kind is Kind.ORDERED:
        meanings = [f"{column.rule()}, evenly from -1 to 1"]
    else:
        categories = column.categories if column.kind is Kind.CATEGORICAL else column.categories[1:]
        meanings = [f"1 if {category}, else 0" for category in categories]
    if column.missing is Missing.INDICATOR:
        meanings = [f"{meaning}; 0 if missing" for meaning in meanings]
        meanings.append("1 if the cell is missing, else 0")
    return list(zip(names, meanings, strict=True))


def _raw_meaning(column: Column) -> list[tuple[str, str]]:
    if column.kind is Kind.DATE:
        meaning = f"{column.rule()}, in days since {EPOCH}"
    elif column.kind.has_bounds:
        meaning = column.rule()
    else:
        meaning = ", ".join(
            f"{place} {category}" for place, category in enumerate(column.categories)
        )
    return [
        (column.name, meaning + ("; NaN if missing" if column.missing is Missing.INDICATOR else ""))
    ]


def encode(
    table: pyarrow.Table,
    schema: Schema,
    *,
    out_of_bounds: OutOfBounds | str = OutOfBounds.REFUSE,
    key: bytes | None = None,
    raw: bool = False,
) -> Records:
    """Encode a table as float32 arrays.

    Guarantee: each record's numbers depend on that record's cells and the schema only, so that one
    person's row never moves another's. With a person column, each person is one record, which
    depends on that person's rows, the schema and the key only.

    Real, count and date columns are mapped from their bounds to [-1, 1]; a binary column becomes 0
    or 1; an ordered column's categories lie evenly from -1 to 1; a categorical column becomes one
    0/1 column a category. With `missing = "indicator"` a missing cell becomes zeros, and one more
    0/1 column says which cells were missing. With `missing = "drop"` a row with a missing cell
    becomes NaN throughout, so that it contributes nothing to a fit; of persons with several rows
    the mask leaves it out.

    Args:
        table: A pyarrow table, as `read_table` gives it or with other types that its columns can be
            read as.
        schema: The public description.
        out_of_bounds: "refuse" raises; "clip" moves a number or date to the nearer bound; "missing"
            makes any cell that the schema does not allow a missing one.
        key: Secret, for `rows_of_persons`; None for one from the operating system.
        raw: Leave numbers in their own units: x then has one column for each feature, in the order
            of the schema. Dates are days since 1970-01-01, categories their positions, and a
            missing cell is NaN (where `missing = "indicator"` allows one). A real target or a date
            keeps its unit, too.

    Raises:
        DataError: A missing cell, a number outside its bounds, a count that is not whole, a
            category that the schema does not list. Names each column and the rule, never a value, a
            row or a count.
    """
    layout = Layout(schema, raw)
    report = Report(OutOfBounds(out_of_bounds))
    table = typed(table, schema, report)
    matrix = np.zeros((table.num_rows, layout.width), np.float32)
    layout.fill(table, matrix, report)
    report.refuse()
    if schema.person is None:
        return layout.records(matrix)
    rows = rows_of_persons(table.column(schema.person), schema.max_rows, key=key)
    if schema.max_rows == 1:
        return layout.records(matrix[rows[:, 0]])
    return layout.records(*_gather(rows, matrix, bool(schema.drops)))


def encode_features(
    table: Any, schema: Schema, *, out_of_bounds: OutOfBounds | str = OutOfBounds.REFUSE
) -> Records:
    """Encode new rows, of which the features alone are known, as `encode` does; for `predict` of a fit.

    Args:
        table: As for `encode`, or a data frame or a dict of arrays, with the schema's features.
        schema: The schema of the fit; of its target the records have the unit.
        out_of_bounds: As in `encode`.

    Raises:
        DataError: As there.
    """
    centre, scale = Layout(schema).target_scaling
    found = encode(as_table(table), schema.only_features(), out_of_bounds=out_of_bounds)
    return dataclasses.replace(found, target_centre=centre, target_scale=scale)


def is_dropped(matrix: np.ndarray) -> np.ndarray:
    """Which rows of a matrix that `Layout.fill` filled are dropped."""
    return np.all(np.isnan(matrix), axis=-1)


def _gather(rows: np.ndarray, array: np.ndarray, drops: bool) -> tuple[np.ndarray, np.ndarray]:
    """The rows of each person, as `rows_of_persons` numbers them, zeros where there is none or it is dropped; and their mask."""
    mask = rows >= 0
    gathered = array[np.where(mask, rows, 0)]
    if drops:
        mask &= ~is_dropped(gathered)
    gathered[~mask] = 0
    return gathered, mask


def _fill(
    column: Column, values: pyarrow.ChunkedArray, block: np.ndarray, report: Report, raw: bool
) -> np.ndarray:
    """Encode the cells of a feature; returns which are missing."""
    numbers, missing = coded(column, values, report)
    if raw:
        block[:, 0] = np.where(missing, np.nan, numbers)
        return missing
    if column.kind.has_bounds:
        low, high = column.limits
        scaled = 2 * numbers
        scaled -= low
        scaled -= high
        scaled /= high - low
        block[:, 0] = np.clip(scaled, -1, 1, out=scaled)
    else:
        codes = _codes(column)[numbers]
        block[:, : codes.shape[1]] = codes
    if column.missing is Missing.INDICATOR:
        block[missing, :-1] = 0
        block[:, -1] = missing
    return missing


@functools.cache
def _codes(column: Column) -> np.ndarray:
    """The numbers of each category, a row each; the last rows, where negative positions point, are zeros."""
    size = len(column.categories)
    if column.kind is Kind.CATEGORICAL:
        codes = np.eye(size, dtype=np.float32)
    elif column.kind is Kind.ORDERED:
        codes = np.linspace(-1, 1, size, dtype=np.float32)[:, None]
    else:
        codes = np.array([[0], [1]], np.float32)
    return np.concatenate([codes, np.zeros((2, codes.shape[1]), np.float32)])
