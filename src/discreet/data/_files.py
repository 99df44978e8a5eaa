"""Which files are read, and our words for what is wrong with one: pyarrow's messages quote cells."""

import gzip
import zlib
from collections import Counter
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet

from discreet.schema import DataError

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
    """The bytes of a CSV file, unpacked."""
    return cast(BinaryIO, gzip.open(path, "rb")) if path.name.endswith(".gz") else path.open("rb")


def csv_header(file: BinaryIO) -> list[str]:
    """The names in the first line that is not blank, and the file moved behind it."""
    line = file.readline().removeprefix(BYTE_ORDER_MARK)
    while line and not line.strip():
        line = file.readline()
    if b"\r" in line.rstrip(b"\r\n"):
        raise DataError("the file ends its lines with carriage returns alone: save it with line feeds (\\n)")
    return list(pyarrow.csv.read_csv(pyarrow.py_buffer(line)).column_names)


def existing_file(path: Path | str) -> Path:
    """The path, if a readable kind of file with something in it is there."""
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
    """Our own words for what pyarrow says, since its message may quote a cell or a row."""
    message = str(error)
    if isinstance(error, PermissionError):
        return DataError(f"{path} may not be read by you: ask its owner, or have its permissions changed")
    if "UTF8" in message or "UTF-8" in message:
        return DataError(f"{path} is not UTF-8 text: save it as UTF-8")
    if "columns, got" in message:
        return DataError(f"{path} has rows with more or fewer cells than its header: mend the file")
    if "Empty CSV" in message:
        return DataError(f"{path} is empty: give {READABLE} with a header and rows")
    kind = {".parquet": "Parquet", ".arrow": "Arrow", ".feather": "Feather"}.get(path.suffix, "CSV")
    return DataError(f"{path} cannot be read as {kind}: it is damaged, or its name ends wrongly")
