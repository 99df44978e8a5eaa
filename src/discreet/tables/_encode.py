"""Tables to arrays of records and back, by the public schema alone.

The guarantee that privacy rests on: each record's numbers depend on that record's cells, the schema and (for tables with
several rows a person) a secret key, and on no other person's rows. Hence neighbouring tables become neighbouring arrays.
`rows_of_persons` makes a record a person, `Layout` says which columns of the arrays a schema's columns become, `encode`
fills them, and `decode` goes back, from draws of a model, too.
"""

import dataclasses
import functools

import numpy as np
import numpy.typing as npt
import pyarrow

from discreet.tables._cells import OutOfBounds, Report, numbers_of, positions_of, rows_of_persons, to_steps
from discreet.tables._read import typed
from discreet.tables._schema import EPOCH, Column, DataError, Kind, Missing, Schema

# --- a table to arrays --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
    """Arrays whose leading axis is the records. Private: everything but names, shapes and scales.

    Where a person may have several rows, x, y and mask have an axis more, of the schema's `max_rows`, after the leading one.

    Attributes:
        x: float32, records by features, each entry in [-1, 1] unless the columns were left raw.
        y: float32, one entry a record, or None without a target. Binary: 0 or 1. Real and date: scaled to [-1, 1] by the
            public bounds. Count: the count itself. Categorical and ordered: the position among the categories.
        feature_names: Names of the columns of `x`, for example "age" or "region=north".
        target_centre: What to add to, after multiplying by `target_scale`, to have a real target in its own unit, or a date
            in days since 1970-01-01.
        target_scale: See `target_centre`.
        mask: True for the rows of a person, records by `max_rows`; the cells of the others are zeros. None: a record is one row.
    """

    x: np.ndarray
    y: np.ndarray | None
    feature_names: tuple[str, ...]
    target_centre: float = 0.0
    target_scale: float = 1.0
    mask: np.ndarray | None = None

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
    raw: bool = False  # One column of x for each feature, in its own unit, with NaN where a cell is missing

    def __post_init__(self) -> None:
        target = self.schema.target_column
        if target is not None and target.missing is Missing.INDICATOR:
            raise DataError(
                f"column '{target.name}' is the target: its missing cells cannot be encoded, set missing = \"refuse\""
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
    def width(self) -> int:
        """Number of features, and one for a target."""
        return len(self.feature_names) + (self.schema.target is not None)

    def fill(self, table: pyarrow.Table, matrix: np.ndarray, report: Report) -> None:
        """Encode a table into a float32 matrix of rows by `width`, the target last. Reported cells become zeros."""
        first = 0
        for column in self.schema.features:
            width = len(self.names(column))
            _fill(column, table.column(column.name), matrix[:, first : first + width], report, self.raw)
            first += width
        target = self.schema.target_column
        if target is not None:
            values = table.column(target.name)
            if target.kind.has_bounds:
                centre, scale = self.target_scaling
                matrix[:, first] = (numbers_of(target, values, report)[0] - centre) / scale
            else:
                matrix[:, first] = positions_of(target, values, report)

    def records(self, matrix: np.ndarray, mask: np.ndarray | None = None) -> Records:
        """The records that a filled matrix holds, without a copy."""
        split = len(self.feature_names)
        y = None if self.schema.target is None else matrix[..., split]
        centre, scale = self.target_scaling
        return Records(
            x=matrix[..., :split],
            y=y,
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
        names = [f"{column.name}={column.categories[1]}" if column.kind is Kind.BINARY else column.name]
    return [*names, f"{column.name} is missing"] if column.missing is Missing.INDICATOR else names


def describe_features(schema: Schema, *, raw: bool = False) -> tuple[tuple[str, str], ...]:
    """Name and meaning of each column of x, in order, as `encode` makes it.

    >>> from discreet.tables import schema_from_bounds
    >>> describe_features(schema_from_bounds("age=20:60,smoker=no|yes"))
    (('age', '20 to 60, scaled to -1 to 1'), ('smoker=yes', '1 if yes, else 0'))
    >>> describe_features(schema_from_bounds("age=20:60,smoker=no|yes"), raw=True)
    (('age', '20 to 60'), ('smoker', '0 no, 1 yes'))
    """
    return tuple(line for column in schema.features for line in (_raw_meaning if raw else _meanings)(column))


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
        meaning = ", ".join(f"{place} {category}" for place, category in enumerate(column.categories))
    return [(column.name, meaning + ("; NaN if missing" if column.missing is Missing.INDICATOR else ""))]


def encode(
    table: pyarrow.Table,
    schema: Schema,
    *,
    out_of_bounds: OutOfBounds | str = OutOfBounds.REFUSE,
    key: bytes | None = None,
    raw: bool = False,
) -> Records:
    """Encode a table as float32 arrays.

    Guarantee: each record's numbers depend on that record's cells and the schema only, so that one person's row never
    moves another's. With a person column, each person is one record, which depends on that person's rows, the schema and the
    key only.

    Real, count and date columns are mapped from their bounds to [-1, 1]; a binary column becomes 0 or 1; an ordered column's
    categories lie evenly from -1 to 1; a categorical column becomes one 0/1 column a category. With `missing = "indicator"` a
    missing cell becomes zeros, and one more 0/1 column says which cells were missing.

    Args:
        table: A pyarrow table, as `read_table` gives it or with other types that its columns can be read as.
        schema: The public description.
        out_of_bounds: "refuse" raises; "clip" moves a number or date to the nearer bound; "missing" makes any cell that the
            schema does not allow a missing one.
        key: Secret, for `rows_of_persons`; None for one from the operating system.
        raw: Leave numbers in their own units: x then has one column for each feature, in the order of the schema. Dates are
            days since 1970-01-01, categories their positions, and a missing cell is NaN (where `missing = "indicator"`
            allows one). A real target or a date keeps its unit, too.

    Raises:
        DataError: A missing cell, a number outside its bounds, a count that is not whole, a category that the schema
            does not list. Names each column and the rule, never a value, a row or a count.
    """
    layout, report = Layout(schema, raw), Report(OutOfBounds(out_of_bounds))
    if table.num_rows == 0:
        raise DataError("the table has no rows: there is nothing to fit")
    table = typed(table, schema, report)
    matrix = np.zeros((table.num_rows, layout.width), np.float32)
    layout.fill(table, matrix, report)
    report.refuse()
    if schema.person is None:
        return layout.records(matrix)
    rows = rows_of_persons(table.column(schema.person), schema.max_rows, key=key)
    return layout.records(*_gather(rows, matrix)) if schema.max_rows > 1 else layout.records(matrix[rows[:, 0]])


def _gather(rows: np.ndarray, array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows of each person, as `rows_of_persons` numbers them, with zeros where there is none; and which there are."""
    mask = rows >= 0
    gathered = array[np.where(mask, rows, 0)]
    gathered[~mask] = 0
    return gathered, mask


def _fill(column: Column, values: pyarrow.ChunkedArray, block: np.ndarray, report: Report, raw: bool) -> None:
    if column.kind.has_bounds:
        numbers, missing = numbers_of(column, values, report)
    else:
        numbers = positions_of(column, values, report)
        missing = numbers < 0
    if raw:
        block[:, 0] = np.where(missing, np.nan, numbers)
        return
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


# --- arrays to a table --------------------------------------------------------------------


def decode(x: npt.ArrayLike, schema: Schema, y: npt.ArrayLike | None = None, *, raw: bool = False) -> pyarrow.Table:
    """A table with the schema's columns, types, bounds and categories, from arrays as `encode` gives them.

    Arrays that are not an encoding, say the draws of a model, become the nearest table: numbers are clipped to their
    bounds, counts and dates are rounded, and a categorical cell is the category with the largest number.

    Args:
        x: Records by features, in the order of the names that `encode` gives.
        schema: The public description.
        y: One entry a record; needed if and only if the schema has a target.
        raw: True if the arrays are in the columns' own units, as `encode(raw=True)` gives them, with NaN for a missing cell.

    Returns:
        Real columns as 64-bit floats, counts as 64-bit integers, dates as days, categories as texts; a missing cell is null.

    Raises:
        ValueError: Arrays of other shapes, or a number that is not finite.

    >>> from discreet.tables import schema_from_bounds
    >>> decode([[0.0, 1.0], [1.0, 0.0]], schema_from_bounds("age=20:60,smoker=no|yes")).to_pylist()
    [{'age': 40.0, 'smoker': 'yes'}, {'age': 60.0, 'smoker': 'no'}]
    """
    layout = Layout(schema, raw)
    x = np.asarray(x, np.float64)
    if x.ndim != 2 or x.shape[1] != len(layout.feature_names):
        raise ValueError(f"x has the shape {x.shape}: the schema's records have {len(layout.feature_names)} features")
    if (y is None) != (schema.target is None):
        raise ValueError(f"the schema has {'no' if y is not None else 'a'} target: give y if and only if it has one")
    columns, first = {}, 0
    for column in schema.features:
        last = first + len(layout.names(column))
        columns[column.name] = _column(column, x[:, first:last], raw)
        first = last
    target = schema.target_column
    if target is not None:
        values = np.asarray(y, np.float64)
        if values.shape != x.shape[:1]:
            raise ValueError(f"y has the shape {values.shape}: give one entry for each of the {len(x)} records")
        centre, scale = layout.target_scaling
        columns[target.name] = _values(target, values * scale + centre, None)
    return pyarrow.table({column.name: columns[column.name] for column in schema.columns})


def _column(column: Column, block: np.ndarray, raw: bool) -> pyarrow.Array:
    missing = None
    if raw:
        missing = np.isnan(block[:, 0]) if column.missing is Missing.INDICATOR else None
        return _values(column, block[:, 0] if missing is None else np.where(missing, 0.0, block[:, 0]), missing)
    if column.missing is Missing.INDICATOR:
        block, missing = block[:, :-1], block[:, -1] > 0.5
    if column.kind is Kind.CATEGORICAL:
        _finite(column, block)
        numbers = block.argmax(axis=1).astype(np.float64)
    elif column.kind is Kind.BINARY:
        numbers = block[:, 0]
    else:
        low, high = column.limits if column.kind.has_bounds else (0, len(column.categories) - 1)
        numbers = low + (block[:, 0] + 1) / 2 * (high - low)
    return _values(column, numbers, missing)


def _values(column: Column, numbers: np.ndarray, missing: np.ndarray | None) -> pyarrow.Array:
    """From counts, days, positions among the categories, or numbers in the column's own unit."""
    _finite(column, numbers)
    low, high = column.limits if column.kind.has_bounds else (0, len(column.categories) - 1)
    numbers = np.clip(numbers if column.kind is Kind.REAL else np.rint(numbers), low, high)
    if column.kind is Kind.REAL:
        return pyarrow.array(to_steps(column, numbers), mask=missing)
    if column.kind is Kind.COUNT:
        return pyarrow.array(numbers.astype(np.int64), mask=missing)
    whole = pyarrow.array(numbers.astype(np.int32), mask=missing)
    if column.kind is Kind.DATE:
        return whole.cast(pyarrow.date32())
    return pyarrow.array(column.categories).take(whole)


def _finite(column: Column, numbers: np.ndarray) -> None:
    if not np.isfinite(numbers).all():
        raise ValueError(
            f"column '{column.name}' has numbers that are not finite: they are no cells (a missing one is NaN in raw columns, "
            'and needs missing = "indicator" in the schema)'
        )
