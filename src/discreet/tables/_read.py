"""Read a table file, piece by piece, in the types that a schema asks for.

A CSV file is cut at line ends and its pieces are parsed on several cores, in order; Parquet and Arrow files come in record
batches. So a table of any size is processed in bounded memory. No message quotes the file: pyarrow's messages contain cells, so
every error is translated, and faults of cells are collected in a `Report` with names of columns and rules, and no value, row or
count.
"""

import codecs
import dataclasses
import glob
import gzip
import io
import json
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pyarrow.types
from tqdm.auto import tqdm

from discreet._validate import near
from discreet.tables._cells import SCHEMA_FILE, Report
from discreet.tables._encode import (
    PLAIN,
    TEXTS,
    as_table,
    check_names,
    chosen,
    days_of,
    in_types,
    number_of,
    plain_text,
    types_of,
)
from discreet.tables._schema import DEFAULT_MISSING_VALUES, Column, CsvFormat, DataError, Kind, OutOfBounds, Schema

# --- files: supported types, and errors ---------------------------------------------------


READABLE = "a .csv, .tsv, .csv.gz, .parquet, .arrow or .feather file"
ENDINGS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".arrow", ".feather")
DAMAGED = (pyarrow.ArrowException, OSError, EOFError, zlib.error)
MARKS = (b"\xef\xbb\xbf", "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16")


def column_names(source: Any, csv: CsvFormat = PLAIN) -> list[str]:
    """The names in the header of a file, of the first of several, or of a table in memory, in order. No cell is read.

    Args:
        source: As in `read_table`.
        csv: The format of a CSV file.

    Raises:
        DataError: The file is missing, empty, unreadable or of an unknown type, or has a name twice.
    """
    files = files_of(source)
    return _file_names(files[0], csv) if files else list(as_table(source).column_names)


def _file_names(path: Path, csv: CsvFormat) -> list[str]:
    try:
        if path.suffix == ".parquet":
            names = list(pyarrow.parquet.read_schema(path).names)
        elif path.suffix in (".arrow", ".feather"):
            with pyarrow.memory_map(str(path)) as file:
                names = list(pyarrow.ipc.open_file(file).schema.names)
        else:
            # pyarrow reads a header without its line end as no header.
            line = pyarrow.py_buffer(_first_line(path, csv.encoding).encode() + b"\n")
            # By one thread: a pool that is still ending when a refusal ends the process aborts it.
            alone = pyarrow.csv.ReadOptions(use_threads=False)
            names = list(pyarrow.csv.read_csv(line, alone, _parse_options(path, csv)).column_names)
    except DAMAGED as error:
        raise unreadable(path, error) from None
    check_names(names, str(path))
    return names


def column_kinds(source: Any) -> dict[str, Kind]:
    """The kinds that the types of a Parquet or Arrow file suggest, by name; empty for a text file. No cell is read."""
    files = files_of(source)
    if not files or files[0].suffix not in (".parquet", ".arrow", ".feather"):
        return {}
    _file_names(files[0], PLAIN)  # Refuses what cannot be read
    if files[0].suffix == ".parquet":
        schema = pyarrow.parquet.read_schema(files[0])
    else:
        with pyarrow.memory_map(str(files[0])) as file:
            schema = pyarrow.ipc.open_file(file).schema
    types = pyarrow.types
    tests = (
        (Kind.BINARY, (types.is_boolean,)),
        (Kind.REAL, (types.is_integer, types.is_floating, types.is_decimal)),
        (Kind.DATE, (types.is_date, types.is_timestamp)),
        (Kind.CATEGORICAL, (types.is_string, types.is_large_string, types.is_dictionary)),
    )
    found = {
        field.name: [kind for kind, is_any in tests if any(test(field.type) for test in is_any)] for field in schema
    }
    return {name: kinds[0] for name, kinds in found.items() if kinds}


def sniff_csv(source: Any) -> CsvFormat:
    """Guess the delimiter and encoding of a CSV file from its header alone. No cell is read."""
    files = files_of(source)
    if not files or files[0].suffix in (".parquet", ".arrow", ".feather"):
        return PLAIN
    encodings = ["utf-8", "cp1252", "latin-1"]
    try:
        with _opened(files[0]) as file:
            start = file.read(3)
        marked = [encoding for mark, encoding in MARKS if start.startswith(mark)]
        for encoding in marked or encodings:
            with suppress(DataError):
                line = re.sub('"[^"]*"', "", _first_line(files[0], encoding))
                break
        else:
            return PLAIN
    except DAMAGED as error:
        raise unreadable(files[0], error) from None
    delimiter = max(_usual(files[0]), ",", ";", "\t", "|", key=line.count)  # the first of equals
    return CsvFormat(delimiter=None if delimiter == _usual(files[0]) else delimiter, encoding=encoding)


def _usual(path: Path) -> str:
    return "\t" if ".tsv" in path.suffixes[-2:] else ","


def _parse_options(path: Path, csv: CsvFormat, **more: Any) -> pyarrow.csv.ParseOptions:
    return pyarrow.csv.ParseOptions(delimiter=csv.delimiter or _usual(path), **more)


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.name.endswith(".gz") else path.open("rb")


def open_text(path: Path, encoding: str = "utf-8") -> BinaryIO:
    """Open a CSV file as uncompressed bytes in UTF-8."""
    file = _opened(path)
    if codecs.lookup(encoding).name == "utf-8":
        return file
    recoded = pyarrow.transcoding_input_stream(pyarrow.PythonFile(file, "r"), encoding, "utf-8")
    return cast(BinaryIO, io.BufferedReader(recoded))


def _first_line(path: Path, encoding: str) -> str:
    """The first line that is not blank. Nothing after it is decoded, so cells have no influence."""
    decoder, line = codecs.getincrementaldecoder(encoding)(), ""
    with _opened(path) as file:
        try:
            while byte := file.read(1):
                line += decoder.decode(byte)
                if line.endswith("\n"):
                    line = line.lstrip("\ufeff")
                    if line.strip():
                        break
                    line = ""
        except UnicodeError:
            raise _other_encoding(path, encoding) from None
    line = line.lstrip("\ufeff")
    if "\r" in line.rstrip("\r\n"):
        raise DataError("the file ends its lines with carriage returns alone: save it with line feeds (\\n)")
    return line


def _other_encoding(path: Path, encoding: str) -> DataError:
    named = "UTF-8" if codecs.lookup(encoding).name == "utf-8" else encoding
    return DataError(
        f'{path} is not {named} text: name its encoding in the schema ([csv] with encoding = "latin-1", cp1252 or utf-16), or '
        "save it as UTF-8"
    )


def files_of(source: Any) -> list[Path]:
    """The files that a source names: one, several, or those that match a pattern such as part-*.parquet; none for a table.

    Raises:
        DataError: A file is missing, empty or of an unknown type.
    """
    if isinstance(source, list | tuple):
        if not source:
            raise DataError(f"no files are named: give {READABLE}, or several")
        return [path for each in source for path in files_of(each)]
    if not isinstance(source, str | os.PathLike):
        return []
    path = Path(source)
    if not path.exists() and glob.has_magic(str(path)):
        found = sorted(map(Path, glob.glob(str(path))))
        if not found:
            raise DataError(f"no file matches {path}: check the pattern")
        return [existing_file(each) for each in found]
    return [existing_file(path)]


def existing_file(path: Path | str) -> Path:
    """Check that a path is a non-empty file of a readable kind, and return it."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} does not exist: check the path")
    if not path.is_file():
        raise DataError(f"{path} is not a file: name {READABLE}, or several by a pattern such as {path / '*.parquet'}")
    if not path.name.endswith(ENDINGS):
        raise DataError(f"{path} is of a type that is not read here: give {READABLE}")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: give {READABLE} with a header and rows")
    return path


def unreadable(path: Path, error: Exception) -> DataError:
    """Translate pyarrow's error, whose message may quote a cell or a row."""
    message = str(error)
    if isinstance(error, PermissionError):
        return DataError(f"{path} cannot be read with your permissions: ask its owner, or have them changed")
    if "UTF8" in message or "UTF-8" in message:
        return _other_encoding(path, "utf-8")
    if "columns, got" in message:
        return DataError(
            f"{path} has rows with more or fewer cells than its header, for example because of a delimiter at the end of rows, "
            "a decimal comma, or a line of totals at the end: fix the file, or state the delimiter "
            '([csv] with delimiter = ";" in the schema)'
        )
    if "Empty CSV" in message:
        return DataError(f"{path} is empty, or has a header but no rows: give {READABLE} with a header and rows")
    kind = {".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Feather"}.get(path.suffix, "CSV")
    return DataError(f"{path} cannot be read as {kind}: it is damaged, or its file name extension is wrong")


# --- pieces of a table, and their columns in the types of the schema ----------------------


T = TypeVar("T")
R = TypeVar("R")

# Of a CSV file, cut at line ends; and the rows of other tables. Small enough for a processor's cache to hold a few columns.
PIECE_BYTES = 1 << 23
PIECE_ROWS = 1 << 17
Piece = tuple[Path, list[str], bytes] | pyarrow.RecordBatch


def read_table(source: Any, schema: Schema, *, out_of_bounds: OutOfBounds | str = OutOfBounds.REFUSE) -> pyarrow.Table:
    """Read the schema's columns: numbers as 64-bit floats, dates as days, categories as texts.

    Args:
        source: A .csv, .tsv, .csv.gz, .parquet, .arrow or .feather file with column names; several, as a list or by a pattern
            such as part-*.parquet; or a table in memory: of pyarrow, pandas, polars, duckdb, or whatever else has
            `__arrow_c_stream__`, or a dict of arrays. Texts are written as the schema's `csv` says.
        schema: The columns to read, and their types.
        out_of_bounds: With "missing", a cell that is no number or no date is a missing one. Otherwise it is refused.

    Returns:
        A table with the schema's columns in its order, then its person column, and at least one row.

    Raises:
        DataError: The source cannot be read, lacks a column, has no rows, or a column of numbers holds something else.
    """
    report = Report(OutOfBounds(out_of_bounds))
    tables = list(over_pieces(source, schema, lambda piece: piece, report))
    report.refuse()
    return pyarrow.concat_tables(tables)


def over_pieces(
    source: Any,
    schema: Schema,
    function: Callable[[pyarrow.Table], R],
    report: Report,
    *,
    only_person: bool = False,
    progress_bar: str | None = None,
) -> Iterator[R]:
    """Apply a function to the table piece by piece, on up to eight cores, and yield the results in order.

    Args:
        source: As in `read_table`.
        schema: As in `read_table`.
        function: Function of a table with at least one row.
        report: The report for cells that are no number or no date.
        only_person: Read only the column that identifies persons.
        progress_bar: Name of the bar that shows progress after two seconds; None: no bar.
    """
    types = types_of(schema, only_person=only_person)
    pieces, what = _open(source, types, schema)
    if progress_bar is not None:
        pieces = _watched(pieces, source, progress_bar)

    def work(piece: Piece) -> tuple[R] | None:
        if isinstance(piece, tuple):
            path, names, text = piece
            table = _parse(path, names, text, types, schema)
        else:
            table = pyarrow.Table.from_batches([piece])
        table = in_types(table, types, schema, report)
        return (function(table),) if table.num_rows else None

    empty = True
    try:
        for result in _in_order(work, pieces):
            if result is not None:
                empty = False
                yield result[0]
    except DAMAGED as error:
        raise unreadable(Path(what), error) from None
    except UnicodeError:
        raise _other_encoding(Path(what), schema.csv.encoding) from None
    if empty:
        raise DataError(f"{what} has a header but no rows: give the table with its records")


def _watched(pieces: Iterator[Piece], source: Any, name: str) -> Iterator[Piece]:
    """Yield the pieces, with a progress bar over bytes (text) or rows."""
    files = files_of(source)
    text = bool(files) and all(path.suffix in (".csv", ".tsv") for path in files)
    total = sum(path.stat().st_size for path in files) if text else None
    options = {"unit": "B" if text else " rows", "unit_scale": True, "delay": 2.0, "disable": None}
    with tqdm(desc=name, total=total, **options) as bar:
        for piece in pieces:
            yield piece
            bar.update(len(piece) if not isinstance(piece, tuple) else len(piece[2]) if text else piece[2].count(b"\n"))


def persons_of(source: Any, schema: Schema, report: Report, *, progress_bar: str | None = None) -> pyarrow.ChunkedArray:
    """The person of each row; the other arguments are as in `over_pieces`."""
    columns = over_pieces(
        source,
        schema,
        lambda table: table.column(schema.person),
        report,
        only_person=True,
        progress_bar=progress_bar,
    )
    return pyarrow.chunked_array([chunk for column in columns for chunk in column.chunks])


def _open(source: Any, types: dict[str, pyarrow.DataType], schema: Schema) -> tuple[Iterator[Piece], str]:
    """Pieces, and the source's name in errors."""
    csv = schema.csv
    files = files_of(source)
    if not files:
        table = chosen(as_table(source), types)
        return (batch for batch in table.to_batches(max_chunksize=PIECE_ROWS)), "the table"
    for path in files:
        _check_present(path, _file_names(path, csv), types, schema.person)
    readers = {".parquet": _parquet, ".arrow": _arrow, ".feather": _arrow}
    pieces = (piece for path in files for piece in readers.get(path.suffix, _csv)(path, types, csv))
    return pieces, ", ".join(map(str, files[:3])) + (" and others" if len(files) > 3 else "")


def _check_present(path: Path, names: list[str], wanted: Collection[str], person: str | None = None) -> None:
    missing = [name for name in wanted if name not in names]
    absent = ", ".join(missing)
    # Where most names are there, the first line is a header, which is public, and no person's record.
    meant = near(missing[0], names) if 0 < 2 * len(missing) <= len(wanted) else ""
    meant = f" {meant[0].upper()}{meant[1:]}" if meant else ""
    if person in missing and len(wanted) > len(missing) == 1:
        raise DataError(
            f"{path} has no column {person}, which is to identify persons.{meant} Without it one row is protected, not a person: "
            "correct the name"
        )
    if absent:  # The first line is not quoted: in a file without a header it is a person's record.
        mark = None if len(names) > 1 else sniff_csv(path).delimiter
        alike = {name.strip().casefold() for name in names} & {name.casefold() for name in missing}
        spelt = f"correct the capitals or spaces of {', '.join(sorted(alike))}, " if alike else ""
        remedy = (
            f"say [csv] with delimiter = {json.dumps(mark)} {SCHEMA_FILE}, if that is between its cells, "
            if mark
            else ""
        )
        raise DataError(
            f"{path} has no column {absent}.{meant} Its first line must hold the names of the columns, spelt as in the "
            f"schema: {remedy}{spelt}add it if the file has none, correct the name, or leave the column out of the schema"
        )


def _csv(path: Path, types: dict[str, pyarrow.DataType], csv: CsvFormat) -> Iterator[Piece]:
    del types
    names = _file_names(path, csv)
    with open_text(path, csv.encoding) as file:
        while (line := file.readline()) and not line.removeprefix(codecs.BOM_UTF8).strip():
            pass
        while piece := file.read(PIECE_BYTES):
            lines = [piece, b"" if piece.endswith(b"\n") else file.readline()]
            # An odd number of quotes: the end of the line is one within a cell. But some write 5" for five inches.
            odd, more = sum(line.count(b'"') for line in lines) % 2, 0
            while odd and more < PIECE_BYTES and (line := file.readline()):
                lines.append(line)
                odd, more = (odd + line.count(b'"')) % 2, more + len(line)
            yield path, names, b"".join(lines)


def _parquet(path: Path, types: dict[str, pyarrow.DataType], csv: CsvFormat) -> Iterator[pyarrow.RecordBatch]:
    """Categories come as they are stored, each text once; a row group's bytes are not all held, and pieces are small."""
    del csv
    stored = pyarrow.parquet.read_schema(path)
    texts = [name for name, kind in types.items() if kind == TEXTS and stored.field(name).type == pyarrow.string()]
    options = {"read_dictionary": texts, "pre_buffer": False, "buffer_size": 1 << 20}
    with pyarrow.parquet.ParquetFile(path, **options) as file:
        yield from file.iter_batches(PIECE_ROWS // 4, columns=list(types))


def _arrow(path: Path, types: dict[str, pyarrow.DataType], csv: CsvFormat) -> Iterator[pyarrow.RecordBatch]:
    del csv
    with pyarrow.memory_map(str(path)) as file:
        reader = pyarrow.ipc.open_file(file)
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index).select(list(types))
            yield from (batch.slice(first, PIECE_ROWS) for first in range(0, batch.num_rows, PIECE_ROWS))


def _parse(
    path: Path, names: list[str], piece: bytes, types: dict[str, pyarrow.DataType], schema: Schema
) -> pyarrow.Table:
    """A piece of a CSV file. If a cell is no number or no date as pyarrow reads them, its column comes as text."""
    csv = schema.csv
    if csv.date_format != PLAIN.date_format:
        types = {name: TEXTS if pyarrow.types.is_date(kind) else kind for name, kind in types.items()}
    if csv.thousands:
        types = {name: TEXTS if pyarrow.types.is_floating(kind) else kind for name, kind in types.items()}
    if piece.isspace():
        return pyarrow.table({name: pyarrow.array([], kind) for name, kind in types.items()})

    def read(types: dict[str, pyarrow.DataType]) -> pyarrow.Table:
        return pyarrow.csv.read_csv(
            pyarrow.py_buffer(piece),
            # The pieces are worked on side by side already.
            read_options=pyarrow.csv.ReadOptions(column_names=names, use_threads=False),
            parse_options=_parse_options(path, csv, newlines_in_values=b'"' in piece),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                decimal_point=csv.decimal,
                null_values=list(schema.missing_values),
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )

    try:
        return read(types)
    except pyarrow.ArrowInvalid as error:
        if "conversion error" not in str(error):
            raise
        return read(dict.fromkeys(types, TEXTS))


def _in_order(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """Yield results in the order of the items; at most two items more than cores are in memory at a time."""
    workers = min(os.cpu_count() or 1, 8)
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > workers + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


# --- bounds and categories taken from the data: not private, as every name says --------------------

MANY_CATEGORIES = 100


def infer_columns_non_private(
    source: Any,
    schema: Schema | None,
    *,
    target: str | None = None,
    target_kind: Kind | None = None,
    columns: Sequence[str] | None = None,
) -> Schema:
    """Describe the columns that the schema leaves out, by looking at the data.

    NOT PRIVATE: a smallest or largest value is one person's value, and a rare category may be one person's. No (ε, δ)
    holds for anything that depends on the result. The returned schema names these columns in `inferred`.

    Args:
        source: As in `read_table`.
        schema: The columns described already; None for none, and then the format of a CSV file is guessed: from its header, and
            decimal commas from its cells.
        target: Name of the column to explain, if the schema does not say.
        target_kind: The kind that the model needs of it.
        columns: Names of the columns to use; None for all in the file that have a name.

    Raises:
        DataError: A file that cannot be read, a column with one value only, or texts of too many kinds to be categories.
    """
    csv = sniff_csv(source) if schema is None else schema.csv
    names = list(columns) if columns is not None else [name for name in column_names(source, csv) if name]
    known = {column.name: column for column in schema.columns} if schema else {}
    missing = schema.missing_values if schema else DEFAULT_MISSING_VALUES
    files = files_of(source)
    for path in files:
        _check_present(path, _file_names(path, csv), names)
    try:
        tables = [_whole(path, names, csv, missing) for path in files] or [as_table(source)]
        if schema is None and files and (other := _decimal_commas(tables, csv, missing)) is not None:
            csv = other
            tables = [_whole(path, names, csv, missing) for path in files]
        table = pyarrow.concat_tables([each.select(names) for each in tables], promote_options="permissive")
    except DAMAGED as error:
        raise unreadable(files[0], error) from None
    except UnicodeError:
        raise _other_encoding(files[0], csv.encoding) from None
    if table.num_rows == 0:
        raise DataError(f"{files[0] if files else 'the table'} has a header but no rows")
    person = schema.person if schema else None
    looked_at = [name for name in names if name not in known and name != person]
    for name in looked_at:
        known[name] = _look(name, table.column(name), target_kind if name == target else None, csv, missing)
    described = Schema(
        columns=tuple(known.values()),
        target=target or (schema.target if schema else None),
        missing_values=missing,
        person=person,
        max_rows=schema.max_rows if schema else 1,
        each_row=schema.each_row if schema else False,
        csv=csv,
        impossible=schema.impossible if schema else (),
    )
    return dataclasses.replace(described, inferred=(*(schema.inferred if schema else ()), *looked_at))


def _whole(path: Path, names: Sequence[str], csv: CsvFormat, missing: Sequence[str]) -> pyarrow.Table:
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path)
    if path.suffix in (".arrow", ".feather"):
        return pyarrow.feather.read_table(path)
    options = {"null_values": list(missing), "strings_can_be_null": True, "decimal_point": csv.decimal}
    options["include_columns"] = list(names)
    with open_text(path, csv.encoding) as file:
        return pyarrow.csv.read_csv(
            file,
            parse_options=_parse_options(path, csv, newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(**options),
        )


def _decimal_commas(tables: list[pyarrow.Table], csv: CsvFormat, missing: Sequence[str]) -> CsvFormat | None:
    """The format with decimal commas, if all texts of a column are numbers in it, and not by commas of thousands; else None."""
    texts = [
        [text for text in column.unique().to_pylist() if text is not None and text not in missing]
        for table in tables
        for column in table.columns
        if pyarrow.types.is_string(column.type)
    ]

    def are_numbers(csv: CsvFormat) -> list[bool]:
        return [bool(column) and all(number_of(text, csv) is not None for text in column) for column in texts]

    american = are_numbers(dataclasses.replace(csv, thousands=","))
    formats = [dataclasses.replace(csv, decimal=",", thousands=thousands) for thousands in ("", ".")]
    found = [[here and not there for here, there in zip(are_numbers(x), american, strict=True)] for x in formats]
    best = max(range(len(formats)), key=lambda place: sum(found[place]))
    return formats[best] if any(found[best]) else None


def _look(name: str, values: pyarrow.ChunkedArray, kind: Kind | None, csv: CsvFormat, missing: Sequence[str]) -> Column:
    values = plain_text(values)
    if pyarrow.types.is_string(values.type) and kind is not Kind.BINARY:
        # Numbers with marks between thousands, and days in another form.
        texts = [text for text in values.unique().to_pylist() if text is not None and text not in missing]
        for read, wanted in ((number_of, pyarrow.float64()), (days_of, pyarrow.date32())):
            if texts and all(read(text, csv) is not None for text in texts):
                found = [read(text, csv) for text in texts]
                days = wanted == pyarrow.date32()
                values = pyarrow.chunked_array([pyarrow.array(found, pyarrow.int32() if days else None).cast(wanted)])
                break
    number = pyarrow.types.is_integer(values.type) or pyarrow.types.is_floating(values.type)
    number, date = number and kind is not Kind.BINARY, pyarrow.types.is_date(values.type)
    if number:
        numbers = values.drop_null().to_numpy().astype(np.float64)
        found = np.unique(numbers[np.isfinite(numbers)]).tolist()
    else:
        found = values.cast(pyarrow.date32() if date else pyarrow.string()).drop_null().unique().to_pylist()
        found = [each for each in found if each not in missing]
    if len(found) < 2:
        raise DataError(f"column '{name}' has fewer than two different values: leave it out")
    if number:
        bounds = (0.0 if kind is Kind.COUNT else min(found), max(found))
        return Column(name=name, kind=kind or Kind.REAL, bounds=bounds)
    if date:
        return Column(name=name, kind=Kind.DATE, bounds=(min(found), max(found)))
    if len(found) > MANY_CATEGORIES:
        raise DataError(
            f"column '{name}' holds texts of more than {MANY_CATEGORIES} kinds: describe it, or leave it out"
        )
    return Column(name=name, kind=Kind.BINARY if len(found) == 2 else Kind.CATEGORICAL, categories=tuple(sorted(found)))
