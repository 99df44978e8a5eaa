"""Bounds and categories taken from the data: not private, as every name says."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pyarrow.types

from discreet.tabular.tables._files import (
    DAMAGED,
    column_names,
    file_names,
    files_of,
    open_text,
    options_of,
    other_encoding,
    sniff_csv,
    unreadable,
)
from discreet.tabular.tables._read import check_present
from discreet.tabular.tables._schema import (
    DEFAULT_MISSING_VALUES,
    Column,
    CsvFormat,
    DataError,
    Kind,
    Schema,
)
from discreet.tabular.tables._typed import as_table, days_of, number_of, plain_text

MANY_CATEGORIES = 100


def infer_columns_non_private(
    source: Any, *, target: str | None = None, columns: Sequence[str] | None = None
) -> Schema:
    """Describe the columns of a table by looking at the data.

    NOT PRIVATE: a smallest or largest value is one person's value, and a rare category may be one
    person's. No (ε, δ) holds for anything that depends on the result. The returned schema names
    these columns in `inferred`.

    Args:
        source: As in `read_table`. The format of a CSV file is guessed: from its header, and
            decimal commas from its cells.
        target: Name of the column to explain.
        columns: Names of the columns to use; None for all in the file that have a name.

    Raises:
        DataError: A file that cannot be read, a column with one value only, or texts of too many
            kinds to be categories.
    """
    csv = sniff_csv(source)
    names = (
        list(columns)
        if columns is not None
        else [name for name in column_names(source, csv) if name]
    )
    files = files_of(source)
    for path in files:
        check_present(path, file_names(path, csv), names)
    try:
        tables = [_whole(path, names, csv) for path in files] or [as_table(source)]
        if files and (other := _decimal_commas(tables, csv)) is not None:
            csv = other
            tables = [_whole(path, names, csv) for path in files]
        table = pyarrow.concat_tables(
            [each.select(names) for each in tables], promote_options="permissive"
        )
    except DAMAGED as error:
        raise unreadable(files[0], error) from None
    except UnicodeError:
        raise other_encoding(files[0], csv.encoding) from None
    if table.num_rows == 0:
        raise DataError(f"{files[0] if files else 'the table'} has a header but no rows")
    described = tuple(_look(name, table.column(name), csv) for name in names)
    return Schema(
        columns=described,
        target=target,
        csv=csv,
        inferred=tuple(names),
    )


def _whole(
    path: Path,
    names: Sequence[str],
    csv: CsvFormat,
) -> pyarrow.Table:
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path)
    if path.suffix in (".arrow", ".feather"):
        return pyarrow.feather.read_table(path)
    options = {
        "null_values": list(DEFAULT_MISSING_VALUES),
        "strings_can_be_null": True,
        "decimal_point": csv.decimal,
    }
    options["include_columns"] = list(names)
    with open_text(path, csv.encoding) as file:
        return pyarrow.csv.read_csv(
            file,
            parse_options=options_of(path, csv, newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(**options),
        )


def _decimal_commas(
    tables: list[pyarrow.Table],
    csv: CsvFormat,
) -> CsvFormat | None:
    """The format with decimal commas, if all texts of a column are numbers in it, and not by commas of thousands; else None."""
    texts = [
        [
            text
            for text in column.unique().to_pylist()
            if text is not None and text not in DEFAULT_MISSING_VALUES
        ]
        for table in tables
        for column in table.columns
        if pyarrow.types.is_string(column.type)
    ]

    def are_numbers(csv: CsvFormat) -> list[bool]:
        return [
            bool(column) and all(number_of(text, csv) is not None for text in column)
            for column in texts
        ]

    american = are_numbers(dataclasses.replace(csv, thousands=","))
    formats = [
        dataclasses.replace(csv, decimal=",", thousands=thousands) for thousands in ("", ".")
    ]
    found = [
        [here and not there for here, there in zip(are_numbers(x), american, strict=True)]
        for x in formats
    ]
    best = max(range(len(formats)), key=lambda place: sum(found[place]))
    return formats[best] if any(found[best]) else None


def _look(
    name: str,
    values: pyarrow.ChunkedArray,
    csv: CsvFormat,
) -> Column:
    values = plain_text(values)
    if pyarrow.types.is_string(values.type):
        # Numbers with marks between thousands, and days in another form.
        texts = [
            text
            for text in values.unique().to_pylist()
            if text is not None and text not in DEFAULT_MISSING_VALUES
        ]
        for read, wanted in ((number_of, pyarrow.float64()), (days_of, pyarrow.date32())):
            if texts and all(read(text, csv) is not None for text in texts):
                found = [read(text, csv) for text in texts]
                days = wanted == pyarrow.date32()
                values = pyarrow.chunked_array(
                    [pyarrow.array(found, pyarrow.int32() if days else None).cast(wanted)]
                )
                break
    number = pyarrow.types.is_integer(values.type) or pyarrow.types.is_floating(values.type)
    date = pyarrow.types.is_date(values.type)
    if number:
        numbers = values.drop_null().to_numpy().astype(np.float64)
        found = np.unique(numbers[np.isfinite(numbers)]).tolist()
    else:
        found = (
            values.cast(pyarrow.date32() if date else pyarrow.string())
            .drop_null()
            .unique()
            .to_pylist()
        )
        found = [each for each in found if each not in DEFAULT_MISSING_VALUES]
    if len(found) < 2:
        raise DataError(f"column '{name}' has fewer than two different values: leave it out")
    if number:
        return Column(name=name, kind=Kind.REAL, bounds=(min(found), max(found)))
    if date:
        return Column(name=name, kind=Kind.DATE, bounds=(min(found), max(found)))
    if len(found) > MANY_CATEGORIES:
        raise DataError(
            f"column '{name}' holds texts of more than {MANY_CATEGORIES} kinds: describe it, or leave it out"
        )
    return Column(
        name=name,
        kind=Kind.BINARY if len(found) == 2 else Kind.CATEGORICAL,
        categories=tuple(sorted(found)),
    )
