"""Files of tables: supported types, dialects, and what cannot be read.

Names, dialects and kinds come from a file's header and types, never from its cells. pyarrow's
messages may quote a cell or a row, so each is replaced by one of ours.
"""

import codecs
import glob
import gzip
import io
import os
import re
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import pyarrow
import pyarrow.csv
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pyarrow.types

from discreet.tabular.tables._schema import CsvFormat, DataError, Kind
from discreet.tabular.tables._typed import PLAIN, as_table, check_names

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
        DataError: The file is missing, empty, unreadable or of an unknown type, or has a name
            twice.
    """
    files = files_of(source)
    return file_names(files[0], csv) if files else list(as_table(source).column_names)


def file_names(path: Path, csv: CsvFormat) -> list[str]:
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
            names = list(pyarrow.csv.read_csv(line, alone, options_of(path, csv)).column_names)
    except DAMAGED as error:
        raise unreadable(path, error) from None
    check_names(names, str(path))
    return names


def column_kinds(source: Any) -> dict[str, Kind]:
    """The kinds that the types of a table, or Parquet or Arrow file, suggest, by name; none of a text file. No cell is read."""
    files = files_of(source)
    if files and files[0].suffix not in (".parquet", ".arrow", ".feather"):
        return {}
    if files:
        file_names(files[0], PLAIN)  # Refuses what cannot be read
    if not files:
        schema = as_table(source).schema
    elif files[0].suffix == ".parquet":
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
        field.name: [kind for kind, is_any in tests if any(test(field.type) for test in is_any)]
        for field in schema
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
    return CsvFormat(
        delimiter=None if delimiter == _usual(files[0]) else delimiter, encoding=encoding
    )


def _usual(path: Path) -> str:
    return "\t" if ".tsv" in path.suffixes[-2:] else ","


def options_of(path: Path, csv: CsvFormat, **more: Any) -> pyarrow.csv.ParseOptions:
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
    decoder = codecs.getincrementaldecoder(encoding)()
    line = ""
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
            raise other_encoding(path, encoding) from None
    line = line.lstrip("\ufeff")
    if "\r" in line.rstrip("\r\n"):
        raise DataError(
            "the file ends its lines with carriage returns alone: save it with line feeds (\\n)"
        )
    return line


def other_encoding(path: Path, encoding: str) -> DataError:
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
        raise DataError(
            f"{path} is not a file: name {READABLE}, or several by a pattern such as {path / '*.parquet'}"
        )
    if not path.name.endswith(ENDINGS):
        raise DataError(f"{path} is of a type that is not read here: give {READABLE}")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: give {READABLE} with a header and rows")
    return path


def unreadable(path: Path, error: Exception) -> DataError:
    """Translate pyarrow's error, whose message may quote a cell or a row."""
    message = str(error)
    if isinstance(error, PermissionError):
        return DataError(
            f"{path} cannot be read with your permissions: ask its owner, or have them changed"
        )
    if "UTF8" in message or "UTF-8" in message:
        return other_encoding(path, "utf-8")
    if "columns, got" in message:
        return DataError(
            f"{path} has rows with more or fewer cells than its header, for example because of a delimiter at the end of rows, "
            "a decimal comma, or a line of totals at the end: fix the file, or state the delimiter "
            '([csv] with delimiter = ";" in the schema)'
        )
    if "Empty CSV" in message:
        return DataError(
            f"{path} is empty, or has a header but no rows: give {READABLE} with a header and rows"
        )
    kind = {".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Feather"}.get(path.suffix, "CSV")
    return DataError(
        f"{path} cannot be read as {kind}: it is damaged, or its file name extension is wrong"
    )
