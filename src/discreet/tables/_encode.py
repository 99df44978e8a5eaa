"""Tables in memory to arrays of records and back, by the public schema alone.

The guarantee that privacy rests on: each record's numbers depend on that record's cells, the schema and (for tables with
several rows a person) a secret key, and on no other person's rows. Hence neighbouring tables become neighbouring arrays.
`typed` brings a table of any library into the types that the schema asks for, `rows_of_persons` makes a record a person,
`Layout` says which columns of the arrays a schema's columns become, `encode` fills them, and `decode` goes back, from draws
of a model, too.
"""

import dataclasses
import datetime
import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.types

from discreet.tables._cells import AS_MISSING, SCHEMA_FILE, Report, coded, rows_of_persons, to_steps, words_of_truth
from discreet.tables._schema import EPOCH, Column, CsvFormat, DataError, Kind, Missing, OutOfBounds, Schema

# --- a table in memory, in the types of the schema ----------------------------------------


PLAIN = CsvFormat()
TEXTS = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
DATE = re.compile(r"\s*\d{4}-\d\d-\d\d\s*", re.ASCII)
# What a number or a date looks like in another country's hand.
OTHER_NUMBER = re.compile(r"\s*[+-]?\d[\d.,' \u00a0\u202f]*\s*", re.ASCII)
OTHER_DATE = re.compile(r"\s*\d{1,4}[-./]\s?\d{1,2}[-./]\s?\d{1,4}\s*", re.ASCII)


def as_table(source: Any) -> pyarrow.Table:
    """A table in memory as one of pyarrow.

    Raises:
        DataError: It is none.
    """
    if isinstance(source, pyarrow.Table):
        return source
    if isinstance(source, Mapping):
        columns = {name: _of_cells(name, cells) for name, cells in source.items()}
        if len(set(map(len, columns.values()))) > 1:
            raise DataError("the columns have different lengths: each must have one cell per record")
        return pyarrow.table(columns)
    pandas = type(source).__module__.partition(".")[0] == "pandas"
    if not pandas and not hasattr(source, "__arrow_c_stream__"):
        raise DataError(
            f"a {type(source).__name__} is no table: give the path of a file, a table of pyarrow, pandas, polars or duckdb, or a "
            "dict of columns"
        )
    try:
        return pyarrow.Table.from_pandas(source, preserve_index=False) if pandas else pyarrow.table(source)
    except pyarrow.ArrowException:
        raise DataError(
            "the data frame has a column of mixed types: bring each column to one type, for example with astype(str)"
        ) from None


def _of_cells(name: str, cells: Any) -> pyarrow.ChunkedArray:
    try:
        return pyarrow.chunked_array([pyarrow.array(cells, from_pandas=True)])
    except pyarrow.ArrowException:
        raise DataError(f"column '{name}' has cells of different types: make them all texts, or all numbers") from None


def check_names(names: list[str], what: str) -> None:
    """Refuse a name that occurs twice; the names are not shown, since without a header they are a person's record.

    Spreadsheets write several columns without a name, which no schema describes.
    """
    twice = sorted(name for name, count in Counter(names).items() if count > 1 and name)
    if twice:
        raise DataError(
            f"{what} has {len(twice)} column name(s) twice. Its first line must hold the names of the columns, each once: "
            "add it if the file has none, or give each column its own name"
        )


def chosen(table: pyarrow.Table, names: Iterable[str]) -> pyarrow.Table:
    """These columns of a table in memory; refused where one is absent, or any name is there twice."""
    check_names(table.column_names, "the table")
    if absent := ", ".join(name for name in names if name not in table.column_names):
        raise DataError(f"the table has no column {absent}: correct the name, or leave the column out of the schema")
    return table.select(list(names))


def typed(source: Any, schema: Schema, report: Report, *, only_person: bool = False) -> pyarrow.Table:
    """A table in memory, of at least one row, with the schema's columns (or the person's alone) in their types.

    Numbers become 64-bit floats, dates days, categories texts. The source is as in `as_table`.
    """
    types = types_of(schema, only_person=only_person)
    table = chosen(as_table(source), types)
    if table.num_rows == 0:
        raise DataError("the table has no rows: give the one with its records")
    return in_types(table, types, schema, report)


def types_of(schema: Schema, *, only_person: bool = False) -> dict[str, pyarrow.DataType]:
    """The type of each column of the schema, and of the person's."""
    types = {}
    for column in () if only_person else schema.columns:
        date = column.kind is Kind.DATE
        types[column.name] = pyarrow.date32() if date else pyarrow.float64() if column.kind.has_bounds else TEXTS
    return types if schema.person is None else types | {schema.person: pyarrow.string()}


def in_types(table: pyarrow.Table, types: dict[str, pyarrow.DataType], schema: Schema, report: Report) -> pyarrow.Table:
    """The columns of a table, or of a piece of one, in these types."""
    described = {column.name: column for column in schema.columns}
    columns = [
        _typed(table.column(name), kind, described.get(name), schema.csv, report) for name, kind in types.items()
    ]
    return pyarrow.table(columns, names=list(types))


def _typed(
    values: pyarrow.ChunkedArray, wanted: pyarrow.DataType, column: Column | None, csv: CsvFormat, report: Report
) -> pyarrow.ChunkedArray:
    """Convert a column to a type; cells that do not convert become null, and are reported unless the rule makes them missing."""
    values = plain_text(values)
    if values.type == wanted:
        return values
    if pyarrow.types.is_dictionary(values.type):
        if wanted == TEXTS and values.type.value_type == pyarrow.string():
            return values
        values = values.cast(values.type.value_type)
    if pyarrow.types.is_null(values.type):
        return pyarrow.chunked_array([pyarrow.nulls(len(values), wanted)])
    if column is None and pyarrow.types.is_floating(values.type):
        raise DataError(
            "the person column has floating-point numbers, of which NaN would be one person: write each person as a text or an "
            "integer, in every row"
        )
    text = pyarrow.types.is_string(values.type) or pyarrow.types.is_large_string(values.type)
    if text and column is not None and column.kind.has_bounds:
        return _lenient(values, wanted, column, csv, report)
    if pyarrow.types.is_boolean(values.type) and wanted == TEXTS and column is not None:
        values = words_of_truth(column, values)
    try:
        return values.cast(pyarrow.string()).dictionary_encode() if wanted == TEXTS else values.cast(wanted)
    except pyarrow.ArrowException:
        name = "the person column" if column is None else f"column '{column.name}'"
        if pyarrow.types.is_integer(values.type) and wanted == pyarrow.float64():
            raise DataError(
                f"{name} has integers beyond 2^53, which a record cannot hold exactly: take it in a larger unit, or leave it out"
            ) from None
        raise DataError(
            f"{name} has the type {values.type}, which does not become {wanted}: convert it, or describe it by another kind"
        ) from None


def plain_text(values: pyarrow.ChunkedArray) -> pyarrow.ChunkedArray:
    """Texts as pyarrow's strings where they are views of them, as polars has them."""
    kind = values.type
    if pyarrow.types.is_dictionary(kind) and kind.value_type == pyarrow.string_view():
        chunks = [
            pyarrow.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(pyarrow.string()))
            for chunk in values.chunks
        ]
        return pyarrow.chunked_array(chunks, pyarrow.dictionary(kind.index_type, pyarrow.string()))
    return values.cast(pyarrow.string()) if kind == pyarrow.string_view() else values


def _lenient(
    values: pyarrow.ChunkedArray, wanted: pyarrow.DataType, column: Column, csv: CsvFormat, report: Report
) -> pyarrow.ChunkedArray:
    """Parse texts as numbers or days; null where they are neither."""
    date = column.kind is Kind.DATE
    read = functools.partial(days_of if date else number_of, csv=csv)
    chunks = []
    for chunk in values.chunks:
        coded = chunk.dictionary_encode()
        known = [None if text is None else read(text) for text in coded.dictionary.to_pylist()]
        chunks.append(
            pyarrow.array(known, pyarrow.int32() if date else pyarrow.float64()).take(coded.indices).cast(wanted)
        )
        if report.rule_of(column) is OutOfBounds.MISSING or chunks[-1].null_count == chunk.null_count:
            continue
        # To count cells as missing is no remedy where the table is merely written in another way.
        foreign, texts = OTHER_DATE if date else OTHER_NUMBER, zip(known, coded.dictionary.to_pylist(), strict=True)
        if any(found is None and text is not None and foreign.fullmatch(text) for found, text in texts):
            form = (
                f"a date such as {datetime.date(2024, 12, 31).strftime(csv.date_format)}"
                if date
                else f"a number such as 1234{csv.decimal}5"
            )
            report.faults.add(
                f"column '{column.name}' holds something that is not {form}, but looks like one that is written otherwise: "
                f"{_dialect(csv, date)}, or fix the cell"
            )
        else:
            report.faults.add(
                f"column '{column.name}' holds something that is not a {'date such as 2024-12-31' if date else 'number'}: fix "
                "the file, list the text among the schema's missing_values, describe the column by categories, or (except for "
                "twins and descriptions) let such cells of all columns count as missing (out_of_bounds='missing', "
                f"--out-of-bounds missing), or {AS_MISSING}"
            )
    return pyarrow.chunked_array(chunks, wanted)


def _dialect(csv: CsvFormat, date: bool) -> str:
    """The line of a schema by which such cells are read, and where to write it."""
    place = "below [csv] in the schema" if csv != PLAIN else f"with a line [csv] above it at the end, {SCHEMA_FILE}"
    if date:
        return f'if the table has 31.12.2024, write date_format = "%d.%m.%Y" (likewise for other forms) {place}'
    if csv.decimal == ",":
        return f'if the table has 1.234,5, write thousands = "." {place}; if it has 1234.5, remove decimal = "," there'
    return f'if the table has 1234,5, write decimal = "," (if it has 1,234.5, thousands = ",") {place}'


@functools.cache
def _forms(csv: CsvFormat) -> re.Pattern[str]:
    """A number as the table writes it. Groups of thousands must be whole, so that 1.5 is never read as 15."""
    point, digits = re.escape(csv.decimal), r"\d+"
    if csv.thousands:
        digits = rf"(\d+|\d{{1,3}}({re.escape(csv.thousands)}\d{{3}})+)"
    decimals = rf"({digits}({point}\d*)?|{point}\d+)"
    return re.compile(rf"\s*[+-]?({decimals}(e[+-]?\d+)?|nan|inf(inity)?)\s*", re.ASCII | re.IGNORECASE)


def number_of(text: str, csv: CsvFormat = PLAIN) -> float | None:
    """The number that a text stands for in such a table, if it does."""
    if not _forms(csv).fullmatch(text):
        return None
    return float((text.replace(csv.thousands, "") if csv.thousands else text).replace(csv.decimal, "."))


def days_of(text: str, csv: CsvFormat = PLAIN) -> int | None:
    """Likewise the days since 1970-01-01 to a date."""
    try:
        if csv.date_format != PLAIN.date_format:
            return (datetime.datetime.strptime(text.strip(), csv.date_format).date() - EPOCH).days
        return (datetime.date.fromisoformat(text.strip()) - EPOCH).days if DATE.fullmatch(text) else None
    except ValueError:
        return None


# --- a table to arrays --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
    """Arrays whose leading axis is the records. Private: everything but names, shapes and scales.

    Where a person may have several rows, x, y and mask have an axis more, of the schema's `max_rows`, after the leading one.

    Attributes:
        x: float32, records by features, each entry in [-1, 1] unless the columns were left raw; NaN for a dropped row.
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
    def width(self) -> int:
        """Number of features, and one for a target."""
        return len(self.feature_names) + (self.schema.target is not None)

    def fill(self, table: pyarrow.Table, matrix: np.ndarray, report: Report) -> None:
        """Encode a table into a float32 matrix of rows by `width`, the target last. Reported cells become zeros.

        A row that the schema drops becomes NaN throughout. Records that are not finite contribute exactly zero, and the number
        of records stays that of the table: without such rows it would follow the cells, and neighbouring tables of one size
        would have two.
        """
        first, dropped = 0, np.zeros(table.num_rows, bool)
        for column in self.schema.features:
            width = len(self.names(column))
            missing = _fill(column, table.column(column.name), matrix[:, first : first + width], report, self.raw)
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
        matrix[dropped] = np.nan

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


def are_levels(schema: Schema) -> npt.NDArray[np.bool_]:
    """Tell which columns of x are 0/1 levels, in order, as `encode` makes them.

    >>> from discreet.tables import schema_from_bounds
    >>> are_levels(schema_from_bounds("age=20:60,smoker=no|yes")).tolist()
    [False, True]
    """
    pairs = [(column, name) for column in schema.features for name in feature_names(column)]
    return np.array([not column.kind.has_bounds or name != column.name for column, name in pairs], bool)


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
    missing cell becomes zeros, and one more 0/1 column says which cells were missing. With `missing = "drop"` a row with a
    missing cell becomes NaN throughout, so that it contributes nothing to a fit; of persons with several rows the mask leaves it
    out.

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


def _fill(column: Column, values: pyarrow.ChunkedArray, block: np.ndarray, report: Report, raw: bool) -> np.ndarray:
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
        columns[target.name] = cells_of(target, values * scale + centre)
    return pyarrow.table({column.name: columns[column.name] for column in schema.columns})


def _column(column: Column, block: np.ndarray, raw: bool) -> pyarrow.Array:
    missing = None
    if raw:
        missing = np.isnan(block[:, 0]) if column.missing is Missing.INDICATOR else None
        return cells_of(column, block[:, 0] if missing is None else np.where(missing, 0.0, block[:, 0]), missing)
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
    return cells_of(column, numbers, missing)


def cells_of(column: Column, numbers: np.ndarray, missing: np.ndarray | None = None) -> pyarrow.Array:
    """The cells of counts, days, positions among the categories, or numbers in the column's own unit; null where missing."""
    _finite(column, numbers)
    low, high = column.limits if column.kind.has_bounds else (0, len(column.categories) - 1)
    numbers = np.clip(numbers if column.kind is Kind.REAL or numbers.dtype.kind == "i" else np.rint(numbers), low, high)
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
