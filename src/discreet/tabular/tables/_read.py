"""Read a table file, piece by piece, in the types that a schema asks for.

A CSV file is cut at line ends and its pieces are parsed on several cores, in order; Parquet and
Arrow files come in record batches. So a table of any size is processed in bounded memory. No
message quotes the file: pyarrow's messages contain cells, so every error is translated, and faults
of cells are collected in a `Report` with names of columns and rules, and no value, row or count.
"""

import codecs
import json
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pyarrow.types
from tqdm.auto import tqdm

from discreet._validate import near
from discreet.tabular.tables._cells import SCHEMA_FILE, Report
from discreet.tabular.tables._files import (
    DAMAGED,
    file_names,
    files_of,
    open_text,
    options_of,
    other_encoding,
    sniff_csv,
    unreadable,
)
from discreet.tabular.tables._schema import CsvFormat, DataError, OutOfBounds, Schema
from discreet.tabular.tables._typed import PLAIN, TEXTS, as_table, chosen, in_types, types_of

T = TypeVar("T")
R = TypeVar("R")
# Of a CSV file, cut at line ends; and the rows of other tables. Small enough for a processor's
# cache to hold a few columns.
PIECE_BYTES = 1 << 23
PIECE_ROWS = 1 << 17
Piece = tuple[Path, list[str], bytes] | pyarrow.RecordBatch


def read_table(
    source: Any, schema: Schema, *, out_of_bounds: OutOfBounds | str = OutOfBounds.REFUSE
) -> pyarrow.Table:
    """Read the schema's columns: numbers as 64-bit floats, dates as days, categories as texts.

    Args:
        source: A .csv, .tsv, .csv.gz, .parquet, .arrow or .feather file with column names; several,
            as a list or by a pattern such as part-*.parquet; or a table in memory: of pyarrow,
            pandas, polars, duckdb, or whatever else has `__arrow_c_stream__`, or a dict of arrays.
            Texts are written as the schema's `csv` says.
        schema: The columns to read, and their types.
        out_of_bounds: With "missing", a cell that is no number or no date is a missing one.
            Otherwise it is refused.

    Returns:
        A table with the schema's columns in its order, then its person column, and at least one
        row.

    Raises:
        DataError: The source cannot be read, lacks a column, has no rows, or a column of numbers
            holds something else.
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
        raise other_encoding(Path(what), schema.csv.encoding) from None
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
            bar.update(
                len(piece)
                if not isinstance(piece, tuple)
                else len(piece[2])
                if text
                else piece[2].count(b"\n")
            )


def persons_of(
    source: Any, schema: Schema, report: Report, *, progress_bar: str | None = None
) -> pyarrow.ChunkedArray:
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


def _open(
    source: Any, types: dict[str, pyarrow.DataType], schema: Schema
) -> tuple[Iterator[Piece], str]:
    """Pieces, and the source's name in errors."""
    csv = schema.csv
    files = files_of(source)
    if not files:
        table = chosen(as_table(source), types)
        return (batch for batch in table.to_batches(max_chunksize=PIECE_ROWS)), "the table"
    for path in files:
        check_present(path, file_names(path, csv), types, schema.person)
    readers = {".parquet": _parquet, ".arrow": _arrow, ".feather": _arrow}
    pieces = (piece for path in files for piece in readers.get(path.suffix, _csv)(path, types, csv))
    return pieces, ", ".join(map(str, files[:3])) + (" and others" if len(files) > 3 else "")


def check_present(
    path: Path, names: list[str], wanted: Collection[str], person: str | None = None
) -> None:
    missing = [name for name in wanted if name not in names]
    absent = ", ".join(missing)
    # Where most names are there, the first line is a header, which is public, and no person's
    # record.
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
    names = file_names(path, csv)
    with open_text(path, csv.encoding) as file:
        while (line := file.readline()) and not line.removeprefix(codecs.BOM_UTF8).strip():
            pass
        while piece := file.read(PIECE_BYTES):
            lines = [piece, b"" if piece.endswith(b"\n") else file.readline()]
            # An odd number of quotes: the end of the line is one within a cell. But some write 5"
            # for five inches.
            odd = sum(map(_quotes, lines)) % 2
            more = 0
            while odd and more < PIECE_BYTES and (line := file.readline()):
                lines.append(line)
                odd = (odd + _quotes(line)) % 2
                more = more + len(line)
            yield path, names, b"".join(lines)


def _quotes(text: bytes) -> int:
    # In a seventh of the time that `text.count` takes.
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord('"')))


def _parquet(
    path: Path, types: dict[str, pyarrow.DataType], csv: CsvFormat
) -> Iterator[pyarrow.RecordBatch]:
    """Categories come as they are stored, each text once; a row group's bytes are not all held, and pieces are small."""
    del csv
    stored = pyarrow.parquet.read_schema(path)
    texts = [
        name
        for name, kind in types.items()
        if kind == TEXTS and stored.field(name).type == pyarrow.string()
    ]
    options = {"read_dictionary": texts, "pre_buffer": False, "buffer_size": 1 << 20}
    with pyarrow.parquet.ParquetFile(path, **options) as file:
        yield from file.iter_batches(PIECE_ROWS // 4, columns=list(types))


def _arrow(
    path: Path, types: dict[str, pyarrow.DataType], csv: CsvFormat
) -> Iterator[pyarrow.RecordBatch]:
    del csv
    with pyarrow.memory_map(str(path)) as file:
        reader = pyarrow.ipc.open_file(file)
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index).select(list(types))
            yield from (
                batch.slice(first, PIECE_ROWS) for first in range(0, batch.num_rows, PIECE_ROWS)
            )


def _parse(
    path: Path, names: list[str], piece: bytes, types: dict[str, pyarrow.DataType], schema: Schema
) -> pyarrow.Table:
    """A piece of a CSV file. If a cell is no number or no date as pyarrow reads them, its column comes as text."""
    csv = schema.csv
    if csv.date_format != PLAIN.date_format:
        types = {
            name: TEXTS if pyarrow.types.is_date(kind) else kind for name, kind in types.items()
        }
    if csv.thousands:
        types = {
            name: TEXTS if pyarrow.types.is_floating(kind) else kind for name, kind in types.items()
        }
    if piece.isspace():
        return pyarrow.table({name: pyarrow.array([], kind) for name, kind in types.items()})

    def read(types: dict[str, pyarrow.DataType]) -> pyarrow.Table:
        return pyarrow.csv.read_csv(
            pyarrow.py_buffer(piece),
            # The pieces are worked on side by side already.
            read_options=pyarrow.csv.ReadOptions(column_names=names, use_threads=False),
            parse_options=options_of(path, csv, newlines_in_values=b'"' in piece),
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
