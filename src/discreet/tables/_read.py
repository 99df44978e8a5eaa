"""Read a table file, piece by piece, in the types that a schema asks for.

A CSV file is cut at line ends and its pieces are parsed on several cores, in order; Parquet and Arrow files come in record
batches. So a table of any size passes through in bounded memory. No message quotes the file: pyarrow's messages contain
cells, so every error is turned into our own words, and what is wrong with cells is gathered in a `Report` that holds names of
columns and rules, and no value, row or count.
"""

import dataclasses
import datetime
import gzip
import os
import re
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pyarrow.types
from tqdm import tqdm

from discreet.tables._cells import OutOfBounds, Report
from discreet.tables._schema import DEFAULT_MISSING_VALUES, EPOCH, Column, DataError, Kind, Schema

# --- files: which are read, and what is wrong with one ------------------------------------


READABLE = "a .csv, .csv.gz, .parquet, .arrow or .feather file"
ENDINGS = (".csv", ".csv.gz", ".parquet", ".arrow", ".feather")
DAMAGED = (pyarrow.ArrowException, OSError, EOFError, zlib.error)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def column_names(path: Path | str) -> list[str]:
    """The names in a file's header, in order. No cell is read.

    Raises:
        DataError: The file is missing, empty, unreadable or of an unknown type, or has a name twice.
    """
    path = existing_file(path)
    try:
        if path.suffix == ".parquet":
            names = list(pyarrow.parquet.read_schema(path).names)
        elif path.suffix in (".arrow", ".feather"):
            with pyarrow.memory_map(str(path)) as file:
                names = list(pyarrow.ipc.open_file(file).schema.names)
        else:
            with open_text(path) as file:
                names = csv_header(file)
    except DAMAGED as error:
        raise unreadable(path, error) from None
    check_names(names, str(path))
    return names


def check_names(names: list[str], what: str) -> None:
    """Refuse a name that occurs twice; the names are not shown, since without a header they are a person's record."""
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise DataError(
            f"{what} has {len(twice)} column name(s) twice. Its first line must hold the names of the columns, each once: "
            "add it if the file has none, or give each column its own name"
        )


def open_text(path: Path) -> BinaryIO:
    """Open a CSV file as uncompressed bytes."""
    return cast(BinaryIO, gzip.open(path, "rb")) if path.name.endswith(".gz") else path.open("rb")


def csv_header(file: BinaryIO) -> list[str]:
    """Read the column names in the first line that is not blank; leaves the file behind that line."""
    line = file.readline().removeprefix(BYTE_ORDER_MARK)
    while line and not line.strip():
        line = file.readline()
    if b"\r" in line.rstrip(b"\r\n"):
        raise DataError("the file ends its lines with carriage returns alone: save it with line feeds (\\n)")
    return list(pyarrow.csv.read_csv(pyarrow.py_buffer(line)).column_names)


def existing_file(path: Path | str) -> Path:
    """Check that a path is a non-empty file of a readable kind, and return it."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path} does not exist: check the path")
    if not path.is_file():
        raise DataError(f"{path} is not a file: name {READABLE}")
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
        return DataError(f"{path} is not UTF-8 text: save it as UTF-8")
    if "columns, got" in message:
        return DataError(f"{path} has rows with more or fewer cells than its header: fix the file")
    if "Empty CSV" in message:
        return DataError(f"{path} is empty: give {READABLE} with a header and rows")
    kind = {".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Feather"}.get(path.suffix, "CSV")
    return DataError(f"{path} cannot be read as {kind}: it is damaged, or its file name extension is wrong")


# --- pieces of a table, and their columns in the types of the schema ----------------------


T = TypeVar("T")
R = TypeVar("R")

# Of a CSV file, cut at line ends; and the rows of other tables. Small enough for a processor's cache to hold a few columns.
PIECE_BYTES = 1 << 23
PIECE_ROWS = 1 << 17
TEXTS = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
NUMBER = re.compile(r"\s*[+-]?((\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|inf(inity)?)\s*", re.ASCII | re.IGNORECASE)
DATE = re.compile(r"\s*\d{4}-\d\d-\d\d\s*", re.ASCII)

Piece = bytes | pyarrow.RecordBatch


def read_table(source: Any, schema: Schema, *, out_of_bounds: OutOfBounds | str = OutOfBounds.REFUSE) -> pyarrow.Table:
    """Read the schema's columns: numbers as 64-bit floats, dates as days, categories as texts.

    Args:
        source: A .csv, .csv.gz, .parquet, .arrow or .feather file with column names; a pyarrow table; or a pandas data frame.
            Dates are written 2024-12-31.
        schema: Which columns to read, and as what.
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
        function: Of a table with at least one row.
        report: Where cells that are no number or no date are noted.
        only_person: Whether to read the column that identifies persons and nothing else.
        progress_bar: What to call the bar that shows progress after two seconds; None: no bar.
    """
    types = _types(schema, only_person=only_person)
    names, pieces, what = _open(source, types)
    if progress_bar is not None:
        pieces = _watched(pieces, source, progress_bar)

    def work(piece: Piece) -> R | None:
        if isinstance(piece, bytes):
            table = _parse(piece, names, types, schema.missing_values)
        else:
            table = pyarrow.Table.from_batches([piece])
        table = _in_types(table, types, schema, report)
        return function(table) if table.num_rows else None

    empty = True
    try:
        for result in _in_order(work, pieces):
            if result is not None:
                empty = False
                yield result
    except DAMAGED as error:
        raise unreadable(Path(what), error) from None
    if empty:
        raise DataError(f"{what} has a header but no rows: there is nothing to fit")


def _watched(pieces: Iterator[Piece], source: Any, name: str) -> Iterator[Piece]:
    """Yield the pieces, with a progress bar over bytes (text) or rows."""
    text = isinstance(source, str | os.PathLike) and Path(source).name.endswith(".csv")
    total = Path(source).stat().st_size if text else None
    with tqdm(desc=name, total=total, unit="B" if text else " rows", unit_scale=True, delay=2.0) as bar:
        for piece in pieces:
            yield piece
            bar.update(len(piece) if text or isinstance(piece, pyarrow.RecordBatch) else piece.count(b"\n"))


def typed(table: pyarrow.Table, schema: Schema, report: Report) -> pyarrow.Table:
    """An in-memory table with the schema's columns in the types of `read_table`."""
    types, names = _types(schema), list(table.column_names)
    check_names(names, "the table")
    _check_present("the table", names, types)
    return _in_types(table, types, schema, report)


def _types(schema: Schema, *, only_person: bool = False) -> dict[str, pyarrow.DataType]:
    types = {}
    for column in () if only_person else schema.columns:
        date = column.kind is Kind.DATE
        types[column.name] = pyarrow.date32() if date else pyarrow.float64() if column.kind.has_bounds else TEXTS
    return types if schema.person is None else types | {schema.person: pyarrow.string()}


def _in_types(
    table: pyarrow.Table, types: dict[str, pyarrow.DataType], schema: Schema, report: Report
) -> pyarrow.Table:
    described = {column.name: column for column in schema.columns}
    columns = [_typed(table.column(name), kind, described.get(name), report) for name, kind in types.items()]
    return pyarrow.table(columns, names=list(types))


def _open(source: Any, types: dict[str, pyarrow.DataType]) -> tuple[list[str], Iterator[Piece], str]:
    """Column names, pieces, and the source's name in errors."""
    if isinstance(source, str | os.PathLike):
        path = existing_file(Path(source))
        what, names = str(path), column_names(path)
        pieces = {".parquet": _parquet, ".arrow": _arrow, ".feather": _arrow}.get(path.suffix, _csv)(path, list(types))
    else:
        what, table = "the table", _as_table(source)
        names = list(table.column_names)
        check_names(names, what)
        pieces = (batch for batch in table.to_batches(max_chunksize=PIECE_ROWS))
    _check_present(what, names, types)
    return names, pieces, what


def _check_present(what: str, names: list[str], types: dict[str, pyarrow.DataType]) -> None:
    absent = [name for name in types if name not in names]
    if absent:  # The first line is not quoted: in a file without a header it is a person's record.
        raise DataError(
            f"{what} has no column {', '.join(absent)}. Its first line must hold the names of the columns, spelt as in the "
            "schema: add it if the file has none, correct the name, or leave the column out of the schema"
        )


def _as_table(source: Any) -> pyarrow.Table:
    if isinstance(source, pyarrow.Table):
        return source
    if type(source).__module__.partition(".")[0] != "pandas":
        raise DataError(
            f"a {type(source).__name__} is no table: give the path of a file, a pyarrow table or a pandas frame"
        )
    try:
        return pyarrow.Table.from_pandas(source, preserve_index=False)
    except pyarrow.ArrowException:
        raise DataError(
            "the data frame has a column of mixed types: bring each column to one type, for example with astype(str)"
        ) from None


def _csv(path: Path, names: list[str]) -> Iterator[bytes]:
    del names
    with open_text(path) as file:
        csv_header(file)
        while piece := file.read(PIECE_BYTES):
            lines = [piece, b"" if piece.endswith(b"\n") else file.readline()]
            # An odd number of quotes: the end of the line is one within a cell. But some write 5" for five inches.
            odd, more = sum(line.count(b'"') for line in lines) % 2, 0
            while odd and more < PIECE_BYTES and (line := file.readline()):
                lines.append(line)
                odd, more = (odd + line.count(b'"')) % 2, more + len(line)
            yield b"".join(lines)


def _parquet(path: Path, names: list[str]) -> Iterator[pyarrow.RecordBatch]:
    with pyarrow.parquet.ParquetFile(path) as file:
        yield from file.iter_batches(PIECE_ROWS, columns=names)


def _arrow(path: Path, names: list[str]) -> Iterator[pyarrow.RecordBatch]:
    with pyarrow.memory_map(str(path)) as file:
        reader = pyarrow.ipc.open_file(file)
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index).select(names)
            yield from (batch.slice(first, PIECE_ROWS) for first in range(0, batch.num_rows, PIECE_ROWS))


def _parse(
    piece: bytes, names: list[str], types: dict[str, pyarrow.DataType], missing_values: tuple[str, ...]
) -> pyarrow.Table:
    """A piece of a CSV file. If a cell is no number or no date, its column comes as text."""
    if piece.isspace():
        return pyarrow.table({name: pyarrow.array([], kind) for name, kind in types.items()})

    def read(types: dict[str, pyarrow.DataType]) -> pyarrow.Table:
        return pyarrow.csv.read_csv(
            pyarrow.py_buffer(piece),
            # The pieces are worked on side by side already.
            read_options=pyarrow.csv.ReadOptions(column_names=names, use_threads=False),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=b'"' in piece),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=list(missing_values),
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


def _typed(
    values: pyarrow.ChunkedArray, wanted: pyarrow.DataType, column: Column | None, report: Report
) -> pyarrow.ChunkedArray:
    """Convert a column to a type; cells that do not convert become null, and are reported unless the rule makes them missing."""
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
            "the person column holds numbers with a point, of which NaN would be one person: write each person as a text or a "
            "integer, and leave no row without one"
        )
    text = pyarrow.types.is_string(values.type) or pyarrow.types.is_large_string(values.type)
    if text and column is not None and column.kind.has_bounds:
        return _lenient(values, wanted, column, report)
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


def _lenient(
    values: pyarrow.ChunkedArray, wanted: pyarrow.DataType, column: Column, report: Report
) -> pyarrow.ChunkedArray:
    """Parse texts as numbers or days; null where they are neither."""
    date = column.kind is Kind.DATE
    read = _days if date else _number
    chunks = []
    for chunk in values.chunks:
        coded = chunk.dictionary_encode()
        known = [None if text is None else read(text) for text in coded.dictionary.to_pylist()]
        chunks.append(
            pyarrow.array(known, pyarrow.int32() if date else pyarrow.float64()).take(coded.indices).cast(wanted)
        )
        if report.rule is not OutOfBounds.MISSING and chunks[-1].null_count > chunk.null_count:
            report.faults.add(
                f"column '{column.name}' holds something that is not a {'date such as 2024-12-31' if date else 'number'}: fix "
                "the file, list the text among the schema's missing_values, describe the column by categories, or let such "
                "cells count as missing (out_of_bounds='missing', --out-of-bounds missing)"
            )
    return pyarrow.chunked_array(chunks, wanted)


def _number(text: str) -> float | None:
    return float(text) if NUMBER.fullmatch(text) else None


def _days(text: str) -> int | None:
    try:
        return (datetime.date.fromisoformat(text.strip()) - EPOCH).days if DATE.fullmatch(text) else None
    except ValueError:
        return None


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
    path: Path | str,
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
        path: The file.
        schema: What is publicly known already; None for nothing.
        target: Name of the column to explain, if the schema does not say.
        target_kind: The kind that the model needs of it.
        columns: Names of the columns to use; None for all in the file.

    Raises:
        DataError: A file that cannot be read, a column with one value only, or texts of too many kinds to be categories.
    """
    path = existing_file(path)
    names = list(columns) if columns is not None else column_names(path)
    known = {column.name: column for column in schema.columns} if schema else {}
    try:
        if path.suffix == ".parquet":
            table = pyarrow.parquet.read_table(path)
        elif path.suffix in (".arrow", ".feather"):
            table = pyarrow.feather.read_table(path)
        else:
            missing = list(schema.missing_values if schema else DEFAULT_MISSING_VALUES)
            options = pyarrow.csv.ConvertOptions(null_values=missing, strings_can_be_null=True)
            table = pyarrow.csv.read_csv(path, convert_options=options)
    except DAMAGED as error:
        raise unreadable(path, error) from None
    person = schema.person if schema else None
    looked_at = [name for name in names if name not in known and name != person]
    for name in looked_at:
        known[name] = _look(name, table.column(name), target_kind if name == target else None)
    described = Schema(
        columns=tuple(known.values()),
        target=target or (schema.target if schema else None),
        missing_values=schema.missing_values if schema else DEFAULT_MISSING_VALUES,
        person=schema.person if schema else None,
    )
    return dataclasses.replace(described, inferred=(*(schema.inferred if schema else ()), *looked_at))


def _look(name: str, values: pyarrow.ChunkedArray, kind: Kind | None) -> Column:
    number = pyarrow.types.is_integer(values.type) or pyarrow.types.is_floating(values.type)
    number, date = number and kind is not Kind.BINARY, pyarrow.types.is_date(values.type)
    if number:
        numbers = values.drop_null().to_numpy().astype(np.float64)
        found = np.unique(numbers[np.isfinite(numbers)]).tolist()
    else:
        found = values.cast(pyarrow.date32() if date else pyarrow.string()).drop_null().unique().to_pylist()
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
