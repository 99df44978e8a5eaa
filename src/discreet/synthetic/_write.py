"""Twins as files, piece by piece, so that a twin may be larger than memory."""

from __future__ import annotations

import csv
import enum
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from jaxtyping import PRNGKeyArray

from discreet.storage import replacing
from discreet.synthetic._draw import Model, Posterior, rows_of, start_twins
from discreet.tables import Missing, Schema

if TYPE_CHECKING:
    import pyarrow

PIECE_ROWS = 1 << 17


class TwinFormat(enum.StrEnum):
    """What kind of file a twin becomes."""

    CSV = "csv"
    PARQUET = "parquet"


def write_twins(
    key: PRNGKeyArray,
    result: Posterior | Mapping[str, Any],
    model: Model,
    schema: Schema,
    folder: Path | str,
    *,
    num_twins: int = 5,
    num_records: int | None = None,
    file_format: TwinFormat | str = TwinFormat.CSV,
    on_rows: Callable[[int], object] = lambda rows: None,
) -> list[Path]:
    """Draw twins as `synthesize` does, each into a file of its own: whole, or not there.

    Guarantee: as of `synthesize`. A file holds what `discreet.tables.read_table` takes for a table of this schema.

    Args:
        key: Any JAX key.
        result: As in `synthesize`.
        model: As in `synthesize`.
        schema: Of the twins: that of the model, without a person column.
        folder: Where to write `twin-1.csv` and so on; files of that name are replaced.
        num_twins: As in `synthesize`.
        num_records: As in `synthesize`.
        file_format: "csv" or "parquet".
        on_rows: Told the number of rows of each piece that was written.

    Returns:
        The files.

    Raises:
        ValueError: As `synthesize`; another format; or, for CSV, missing cells that no text stands for.
        OSError: A file cannot be written.
    """
    check_format(schema, file_format)
    write = {TwinFormat.CSV: _write_csv, TwinFormat.PARQUET: _write_parquet}[TwinFormat(file_format)]
    rows, files = rows_of(result, num_records), []
    for number, (latents, rng) in enumerate(start_twins(key, result, num_twins), start=1):
        pieces = (model.draw(latents, min(PIECE_ROWS, rows - first), rng) for first in range(0, rows, PIECE_ROWS))
        path = Path(folder) / f"twin-{number:0{len(str(num_twins))}d}.{TwinFormat(file_format)}"
        with replacing(path) as file:
            for written in write(file, pieces, schema):
                on_rows(written)
        files.append(path)
    return files


def check_format(schema: Schema, file_format: TwinFormat | str) -> None:
    """Whether twins of this schema can be written so.

    Raises:
        ValueError: Another format; or, for CSV, missing cells that no text stands for.
    """
    if TwinFormat(file_format) is TwinFormat.CSV:
        _missing_text(schema)


def _write_parquet(file: BinaryIO, pieces: Iterator[pyarrow.Table], schema: Schema) -> Iterator[int]:
    import pyarrow.parquet

    del schema
    first = next(pieces)
    with pyarrow.parquet.ParquetWriter(file, first.schema) as writer:
        for piece in _and_the_others(first, pieces):
            writer.write_table(piece)
            yield len(piece)


def _write_csv(file: BinaryIO, pieces: Iterator[pyarrow.Table], schema: Schema) -> Iterator[int]:
    import pyarrow.csv

    missing = _missing_text(schema)
    texts = [text for column in schema.columns for text in column.categories] + (
        [missing] if missing is not None else []
    )
    # Where no text needs quotes, none has any.
    style = "none" if all(map(_is_plain, texts)) else "needed"
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style=style)
    header = io.StringIO()
    csv.writer(header, lineterminator="\n").writerow([column.name for column in schema.columns])
    file.write(header.getvalue().encode("utf-8"))
    first = _for_csv(next(pieces), schema, missing)
    with pyarrow.csv.CSVWriter(file, first.schema, write_options=options) as writer:
        for piece in _and_the_others(first, (_for_csv(piece, schema, missing) for piece in pieces)):
            writer.write_table(piece)
            yield len(piece)


def _and_the_others(first: pyarrow.Table, others: Iterator[pyarrow.Table]) -> Iterator[pyarrow.Table]:
    yield first
    yield from others


def _is_plain(text: str) -> bool:
    return bool(text) and text == text.strip() and not set(text) & set('",\n\r')


def _missing_text(schema: Schema) -> str | None:
    """What a missing cell is written as; None: nothing, as that reads as missing or there are none.

    Raises:
        ValueError: Cells may be missing, and the schema has no text for that.
    """
    if all(column.missing is Missing.REFUSE for column in schema.columns):
        return None
    if not schema.missing_values:
        raise ValueError(
            "The schema lets cells be missing and has no text that stands for one, so a CSV file cannot hold them: write "
            'Parquet, or give the schema missing_values = [""].'
        )
    # A line with nothing on it would be no row.
    if "" in schema.missing_values and len(schema.columns) > 1:
        return None
    return schema.missing_values[0]


def _for_csv(table: pyarrow.Table, schema: Schema, missing: str | None) -> pyarrow.Table:
    """The table with the schema's word for missing cells in them."""
    if missing is None:
        return table
    for place, column in enumerate(schema.columns):
        if column.missing is Missing.INDICATOR:
            texts = table.column(place).cast("string").fill_null(missing)
            table = table.set_column(place, column.name, texts)
    return table
