"""Files to Arrow tables. pyarrow's own messages quote cells, so none of them gets through."""

import re
from collections import Counter
from pathlib import Path

import pyarrow
import pyarrow.csv
import pyarrow.parquet

from discreet.schema import DataError, Kind, Schema

READABLE = "a .csv, .csv.gz or .parquet file"


def column_names(path: Path | str) -> list[str]:
    """The names in a file's header, in order.

    Raises:
        DataError: The file is missing, empty, unreadable or of an unknown type, or has a name twice.
    """
    path = existing_file(path)
    try:
        if path.suffix == ".parquet":
            names = list(pyarrow.parquet.read_schema(path).names)
        else:
            # As text, so that the names do not depend on what the cells look like.
            with pyarrow.csv.open_csv(path) as reader:
                names = list(reader.schema.names)
    except (pyarrow.ArrowException, OSError) as error:
        raise unreadable(path, error) from None
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise DataError(
            f"{path} has {len(twice)} column name(s) twice. Its first line must hold the names of the columns, each once: "
            "add it if the file has none, or give each column its own name"
        )
    return names


def read_table(path: Path | str, schema: Schema) -> pyarrow.Table:
    """Read the schema's columns, numbers as 64-bit floats and categories as texts.

    Args:
        path: A .csv, .csv.gz or .parquet file with a header.
        schema: Which columns to read, and as what.

    Returns:
        A table with the schema's columns in its order and at least one row.

    Raises:
        DataError: The file cannot be read, lacks a column, has no rows, or a column of numbers holds something else.
    """
    path = existing_file(path)
    names = column_names(path)
    absent = [column.name for column in schema.columns if column.name not in names]
    if absent:
        # What stands in the first line is not shown: in a file without a header it is a person's record.
        raise DataError(
            f"{path} has no column {', '.join(absent)}. Its first line must hold the names of the columns, spelt as in the "
            "schema: add it if the file has none, correct the name, or leave the column out of the schema"
        )
    types = {
        column.name: pyarrow.float64() if column.kind in (Kind.REAL, Kind.COUNT) else pyarrow.string()
        for column in schema.columns
    }
    table = _parquet(path, types) if path.suffix == ".parquet" else _csv(path, types, schema.missing_values)
    if table.num_rows == 0:
        raise DataError(f"{path} has a header but no rows: there is nothing to fit")
    return table


def existing_file(path: Path | str) -> Path:
    """The path, if a readable kind of file with something in it is there."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} does not exist: check the path")
    if not path.is_file():
        raise DataError(f"{path} is not a file: name {READABLE}")
    if not path.name.endswith((".csv", ".csv.gz", ".parquet")):
        raise DataError(f"{path} is of a type that is not read here: give {READABLE}")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: give {READABLE} with a header and rows")
    return path


def _csv(path: Path, types: dict[str, pyarrow.DataType], missing_values: tuple[str, ...]) -> pyarrow.Table:
    options = pyarrow.csv.ConvertOptions(
        column_types=types,
        include_columns=list(types),
        null_values=list(missing_values),
        strings_can_be_null=True,
        quoted_strings_can_be_null=True,
    )
    try:
        return pyarrow.csv.read_csv(path, convert_options=options)
    except (pyarrow.ArrowException, OSError) as error:
        raise unreadable(path, error, list(column_names(path))) from None


def _parquet(path: Path, types: dict[str, pyarrow.DataType]) -> pyarrow.Table:
    try:
        table = pyarrow.parquet.read_table(path, columns=list(types)).select(list(types))
    except (pyarrow.ArrowException, OSError) as error:
        raise unreadable(path, error) from None
    for index, (name, wanted) in enumerate(types.items()):
        try:
            cast = table.column(name).cast(wanted)
        except pyarrow.ArrowException:
            raise _not_numbers(name) from None
        table = table.set_column(index, name, cast)
    return table


def _not_numbers(name: str) -> DataError:
    return DataError(
        f"column '{name}' holds something that is not a number: mend the file, list the text among the schema's "
        "missing_values, or describe the column by categories"
    )


def unreadable(path: Path, error: Exception, names: list[str] | None = None) -> DataError:
    """Our own words for what pyarrow says, since its message may quote a cell or a row."""
    message = str(error)
    column = re.search(r"In CSV column #(\d+): CSV conversion error to double", message)
    if column and names:
        return _not_numbers(names[int(column.group(1))])
    if "UTF8" in message or "UTF-8" in message:
        return DataError(f"{path} is not UTF-8 text: save it as UTF-8")
    if "columns, got" in message:
        return DataError(f"{path} has rows with more or fewer cells than its header: mend the file")
    if "Empty CSV" in message:
        return DataError(f"{path} is empty: give {READABLE} with a header and rows")
    kind = "Parquet" if path.suffix == ".parquet" else "CSV"
    return DataError(f"{path} cannot be read as {kind}: it is damaged, or its name ends wrongly")
