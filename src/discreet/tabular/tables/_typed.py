"""A table in memory, of any library, in the types that the schema asks for.

Numbers become 64-bit floats, dates days, categories texts. Texts are parsed as the schema's `csv`
says, as they are in a file. Cells that do not convert are reported by column.
"""

import datetime
import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow
import pyarrow.types

from discreet.tabular.tables._cells import AS_MISSING, SCHEMA_FILE, Report, words_of_truth
from discreet.tabular.tables._schema import (
    EPOCH,
    Column,
    CsvFormat,
    DataError,
    Kind,
    OfColumn,
    OutOfBounds,
    Schema,
)

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
            raise DataError(
                "the columns have different lengths: each must have one cell per record"
            )
        return pyarrow.table(columns)
    pandas = type(source).__module__.partition(".")[0] == "pandas"
    if not pandas and not hasattr(source, "__arrow_c_stream__"):
        raise DataError(
            f"a {type(source).__name__} is no table: give the path of a file, a table of pyarrow, pandas, polars or duckdb, or a "
            "dict of columns"
        )
    try:
        return (
            pyarrow.Table.from_pandas(source, preserve_index=False)
            if pandas
            else pyarrow.table(source)
        )
    except pyarrow.ArrowException:
        raise DataError(
            "the data frame has a column of mixed types: bring each column to one type, for example with astype(str)"
        ) from None


def _of_cells(name: str, cells: Any) -> pyarrow.ChunkedArray:
    try:
        return pyarrow.chunked_array([pyarrow.array(cells, from_pandas=True)])
    except pyarrow.ArrowException:
        raise DataError(
            f"column '{name}' has cells of different types: make them all texts, or all numbers"
        ) from None


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
        raise DataError(
            f"the table has no column {absent}: correct the name, or leave the column out of the schema"
        )
    return table.select(list(names))


def typed(
    source: Any, schema: Schema, report: Report, *, only_person: bool = False
) -> pyarrow.Table:
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
        types[column.name] = (
            pyarrow.date32() if date else pyarrow.float64() if column.kind.has_bounds else TEXTS
        )
    return types if schema.person is None else types | {schema.person: pyarrow.string()}


def in_types(
    table: pyarrow.Table, types: dict[str, pyarrow.DataType], schema: Schema, report: Report
) -> pyarrow.Table:
    """The columns of a table, or of a piece of one, in these types."""
    described = {column.name: column for column in schema.columns}
    columns = [
        _typed(table.column(name), kind, described.get(name), schema.csv, report)
        for name, kind in types.items()
    ]
    return pyarrow.table(columns, names=list(types))


def _typed(
    values: pyarrow.ChunkedArray,
    wanted: pyarrow.DataType,
    column: Column | None,
    csv: CsvFormat,
    report: Report,
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
        return (
            values.cast(pyarrow.string()).dictionary_encode()
            if wanted == TEXTS
            else values.cast(wanted)
        )
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
            pyarrow.DictionaryArray.from_arrays(
                chunk.indices, chunk.dictionary.cast(pyarrow.string())
            )
            for chunk in values.chunks
        ]
        return pyarrow.chunked_array(chunks, pyarrow.dictionary(kind.index_type, pyarrow.string()))
    return values.cast(pyarrow.string()) if kind == pyarrow.string_view() else values


def _lenient(
    values: pyarrow.ChunkedArray,
    wanted: pyarrow.DataType,
    column: Column,
    csv: CsvFormat,
    report: Report,
) -> pyarrow.ChunkedArray:
    """Parse texts as numbers or days; null where they are neither."""
    date = column.kind is Kind.DATE
    read = functools.partial(days_of if date else number_of, csv=csv)
    chunks = []
    for chunk in values.chunks:
        coded = chunk.dictionary_encode()
        known = [None if text is None else read(text) for text in coded.dictionary.to_pylist()]
        chunks.append(
            pyarrow.array(known, pyarrow.int32() if date else pyarrow.float64())
            .take(coded.indices)
            .cast(wanted)
        )
        if (
            report.rule_of(column) is OutOfBounds.MISSING
            or chunks[-1].null_count == chunk.null_count
        ):
            continue
        # To count cells as missing is no remedy where the table is merely written in another way.
        foreign = OTHER_DATE if date else OTHER_NUMBER
        texts = zip(known, coded.dictionary.to_pylist(), strict=True)
        if any(
            found is None and text is not None and foreign.fullmatch(text) for found, text in texts
        ):
            form = (
                f"a date such as {datetime.date(2024, 12, 31).strftime(csv.date_format)}"
                if date
                else f"a number such as 1234{csv.decimal}5"
            )
            fault = (
                f" holds something that is not {form}, but looks like one that is written otherwise: "
                f"{_dialect(csv, date)}, or fix the cell"
            )
        else:
            fault = (
                f" holds something that is not a {'date such as 2024-12-31' if date else 'number'}: fix the file, list the "
                "text among the schema's missing_values, describe the column by categories, or (except for twins and "
                "descriptions) let such cells of all columns count as missing (out_of_bounds='missing', --out-of-bounds "
                f"missing), or {AS_MISSING}"
            )
        report.faults.add(OfColumn(column.name, fault, unread=True))
    return pyarrow.chunked_array(chunks, wanted)


def _dialect(csv: CsvFormat, date: bool) -> str:
    """The line of a schema by which such cells are read, and where to write it."""
    place = (
        "below [csv] in the schema"
        if csv != PLAIN
        else f"with a line [csv] above it at the end, {SCHEMA_FILE}"
    )
    if date:
        return f'if the table has 31.12.2024, write date_format = "%d.%m.%Y" (likewise for other forms) {place}'
    if csv.decimal == ",":
        return f'if the table has 1.234,5, write thousands = "." {place}; if it has 1234.5, remove decimal = "," there'
    return (
        f'if the table has 1234,5, write decimal = "," (if it has 1,234.5, thousands = ",") {place}'
    )


@functools.cache
def _forms(csv: CsvFormat) -> re.Pattern[str]:
    """A number as the table writes it. Groups of thousands must be whole, so that 1.5 is never read as 15."""
    point = re.escape(csv.decimal)
    digits = r"\d+"
    if csv.thousands:
        digits = rf"(\d+|\d{{1,3}}({re.escape(csv.thousands)}\d{{3}})+)"
    decimals = rf"({digits}({point}\d*)?|{point}\d+)"
    return re.compile(
        rf"\s*[+-]?({decimals}(e[+-]?\d+)?|nan|inf(inity)?)\s*", re.ASCII | re.IGNORECASE
    )


def number_of(text: str, csv: CsvFormat = PLAIN) -> float | None:
    """The number that a text stands for in such a table, if it does."""
    if not _forms(csv).fullmatch(text):
        return None
    return float(
        (text.replace(csv.thousands, "") if csv.thousands else text).replace(csv.decimal, ".")
    )


def days_of(text: str, csv: CsvFormat = PLAIN) -> int | None:
    """Likewise the days since 1970-01-01 to a date."""
    try:
        if csv.date_format != PLAIN.date_format:
            return (datetime.datetime.strptime(text.strip(), csv.date_format).date() - EPOCH).days
        return (
            (datetime.date.fromisoformat(text.strip()) - EPOCH).days
            if DATE.fullmatch(text)
            else None
        )
    except ValueError:
        return None
