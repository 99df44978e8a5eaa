"""Convert a table larger than memory to a file of encoded records, which a fit reads through a memory map.

The file is an Arrow file of one batch. Its features are written first, at an aligned offset, while the table is read piece by
piece; how many records there are is known only at the end, so Arrow's head and tail are written around the features
afterwards (`frame`). The head's length does not depend on the number of records, which `find_start` relies on. With a person
column the table is read twice: the first pass says to whom each row belongs, and so where in the file it belongs.
"""

import dataclasses
import io
import json
import os
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow
import pyarrow.ipc

from discreet.tables._cells import OutOfBounds, Report, rows_of_persons
from discreet.tables._encode import Layout, Records
from discreet.tables._read import DAMAGED, over_pieces
from discreet.tables._schema import DataError, Schema
from discreet.tables._schema_text import schema_from_dict, schema_to_toml

ENDING = ".arrow"
METADATA = b"discreet"
ALIGNMENT = 64
"""Bytes. XLA on a CPU uses an array in place if it starts at a multiple of this, and copies any other array."""


@dataclasses.dataclass(frozen=True)
class Conversion:
    """How a file of records was made. Public.

    Attributes:
        schema: The description of the table.
        out_of_bounds: What was done with cells that it does not allow.
    """

    schema: Schema
    out_of_bounds: OutOfBounds


def convert(
    source: Any,
    schema: Schema,
    out: Path | str,
    *,
    out_of_bounds: OutOfBounds | str = OutOfBounds.REFUSE,
    key: bytes | None = None,
    progress_bar: bool = False,
) -> Records:
    """Encode a table piece by piece into a file, and open it.

    The file is an Arrow file of one batch: column x, a list of numbers for each record, with a target column y, and where a
    person may have several rows column mask; x then has the numbers of all rows, and y those of each. It holds the private
    records, so only its owner may read it, and you should delete it when it is no longer needed. It has no person column. An
    existing file is replaced; if the table is refused, nothing is written.

    Args:
        source: As in `read_table`.
        schema: The public description.
        out: Where to write, a name that ends with .arrow.
        out_of_bounds: As in `encode`.
        key: As in `encode`.
        progress_bar: Show progress after two seconds.

    Returns:
        The records of `encode(read_table(source, schema), schema)`; the arrays are views of the file.

    Raises:
        DataError: As in `read_table` and `encode`, after all pieces were checked; or the file cannot be written.
    """
    out = Path(out)
    if out.suffix != ENDING:
        raise DataError(f"{out}: converted records are an Arrow file, give a name that ends with {ENDING}")
    if isinstance(source, str | os.PathLike) and out.exists() and out.samefile(source):
        raise DataError(f"{out} is the table itself, which the records would replace: choose another name for them")
    layout, report = Layout(schema), Report(OutOfBounds(out_of_bounds))
    with _atomic(out) as file:
        rows = None
        if schema.person is not None:
            persons = over_pieces(
                source,
                schema,
                lambda table: table.column(schema.person),
                report,
                only_person=True,
                progress_bar="persons" if progress_bar else None,
            )
            chunks = pyarrow.chunked_array([chunk for c in persons for chunk in c.chunks])
            rows = rows_of_persons(chunks, schema.max_rows, key=key)
        # The file holds all features before all targets, so the targets wait in a temporary file.
        with tempfile.TemporaryFile(dir=out.parent) as targets:
            _write(file, targets, source, layout, report, rows, "records" if progress_bar else None)
    return open_records(out)


@contextmanager
def _atomic(out: Path) -> Iterator[BinaryIO]:
    """Open a file with permissions for its owner only, which gets its name at the end and is deleted on an error."""
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        try:
            descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as error:
            raise DataError(f"{out} cannot be written ({error.strerror}): choose another place for it") from None
        with os.fdopen(descriptor, "w+b") as file:
            yield file
        try:
            partial.replace(out)
        except OSError as error:
            raise DataError(f"{out} cannot be written ({error.strerror}): choose another place for it") from None
    finally:
        with suppress(OSError):
            partial.unlink()


def open_records(path: Path | str, schema: Schema | None = None) -> Records:
    """Open the records in a file that `convert` wrote, as views of a memory map: only what is used is read.

    On a CPU, a fit uses the features in place and reads the rows that it samples; it may copy the targets.

    Args:
        path: The file.
        schema: The description that the file must have been made with; None: any.

    Raises:
        DataError: No such file, not one of `convert`'s, or made with another description.
    """
    path = Path(path)
    facts, batch = _open(path)
    if facts is None:
        raise DataError(
            f"{path} does not hold records that discreet has converted: check the path, or convert the table (again)"
        )
    if schema is not None:
        _check_same(path, _conversion(facts).schema, schema)
    names, several = tuple(facts["feature_names"]), _conversion(facts).schema.max_rows > 1

    def values(name: str, *shape: int) -> np.ndarray | None:
        if name not in batch.schema.names:
            return None
        column = batch.column(name)
        column = column.flatten() if pyarrow.types.is_fixed_size_list(column.type) else column
        return column.to_numpy().reshape(batch.num_rows, *shape)

    x, y, mask = values("x", *(-1,) * several, len(names)), values("y", *(-1,) * several), values("mask", -1)
    assert x is not None
    return Records(
        x=x,
        y=y,
        feature_names=names,
        target_centre=facts["target_centre"],
        target_scale=facts["target_scale"],
        mask=None if mask is None else mask.view(bool),
    )


def conversion_of(path: Path | str) -> Conversion | None:
    """Say how a file was made, if `convert` made it. No record is read.

    Returns:
        None for any other file, and for none.
    """
    facts, _ = _open(Path(path)) if Path(path).suffix == ENDING else (None, None)
    return None if facts is None else _conversion(facts)


def _conversion(facts: dict[str, Any]) -> Conversion:
    return Conversion(schema_from_dict(tomllib.loads(facts["schema"])), OutOfBounds(facts["out_of_bounds"]))


def _open(path: Path) -> tuple[dict[str, Any] | None, Any]:
    """A file's metadata and its records; None if `convert` did not write it."""
    try:
        table = pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))
        facts = json.loads((table.schema.metadata or {})[METADATA])
        return (facts, table.get_batch(0)) if "schema" in facts else (None, None)
    except (*DAMAGED, KeyError, ValueError):
        return None, None


def _check_same(path: Path, made: Schema, asked: Schema) -> None:
    """Refuse records that were encoded by another schema than the one that the statement will name."""
    if made == asked:
        return
    old, new = ({column.name: column for column in schema.columns} for schema in (made, asked))
    different = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    what = (
        f"differs in {', '.join(different)}" if different else "differs in its target, its person or its missing values"
    )
    raise DataError(
        f"{path} was converted with another schema, which {what}: give the schema that it was converted with (or none, since "
        "the file knows it), or convert the table again"
    )


def _write(
    file: BinaryIO,
    targets: BinaryIO,
    source: Any,
    layout: Layout,
    report: Report,
    rows: np.ndarray | None,
    progress_bar: str | None,
) -> None:
    def encoded(table: pyarrow.Table) -> np.ndarray:
        matrix = np.zeros((table.num_rows, layout.width), np.float32)
        layout.fill(table, matrix, report)
        return matrix

    width, has_target = len(layout.feature_names), layout.schema.target is not None
    max_rows, facts = layout.schema.max_rows, _facts(layout, report)
    start, facts["padding"] = find_start(width, has_target, max_rows, METADATA, facts, ALIGNMENT)
    file.seek(start)
    pieces = over_pieces(source, layout.schema, encoded, report, progress_bar=progress_bar)
    kept = (
        _append(file, targets, pieces, width, report)
        if rows is None
        else _place(file, targets, pieces, start, width, rows, report)
    )
    report.refuse()
    file.flush()
    targets.flush()
    shape = (kept,) if max_rows == 1 else (kept, max_rows)
    x = np.memmap(file, np.float32, "r", start, (*shape, width))
    y = np.memmap(targets, np.float32, "r", 0, shape) if has_target else None
    mask = rows >= 0 if rows is not None and max_rows > 1 else None
    file.seek(0)
    if frame(x, y, mask, METADATA, facts, file) != start:
        raise AssertionError("the length of an Arrow file's head depends on the number of its records")


def _append(file: BinaryIO, targets: BinaryIO, pieces: Iterator[np.ndarray], width: int, report: Report) -> int:
    """Write each row as a record, in order; returns their number."""
    kept = 0
    for matrix in pieces:
        kept += len(matrix)
        if not report.faults:
            file.write(np.ascontiguousarray(matrix[:, :width]).data)
            targets.write(np.ascontiguousarray(matrix[:, width:]).data)
    return kept


def _place(
    file: BinaryIO,
    targets: BinaryIO,
    pieces: Iterator[np.ndarray],
    start: int,
    width: int,
    rows: np.ndarray,
    report: Report,
) -> int:
    """Write the rows of each person, as `rows_of_persons` numbers them, into the person's place; returns the persons' number."""
    used = rows.ravel() >= 0
    order = np.argsort(rows.ravel()[used])
    numbers, places = rows.ravel()[used][order], np.flatnonzero(used)[order]
    x = np.memmap(file, np.float32, "r+", start, (rows.size, width))
    y = np.memmap(targets, np.float32, "r+", 0, (rows.size, 1))
    row = 0
    for matrix in pieces:
        here = slice(*np.searchsorted(numbers, (row, row + len(matrix))))
        if not report.faults:
            found = matrix[numbers[here] - row]
            x[places[here]] = found[:, :width]
            if found.shape[1] > width:
                y[places[here], 0] = found[:, width]
        row += len(matrix)
    x.flush()
    y.flush()
    return len(rows)


def _facts(layout: Layout, report: Report) -> dict[str, Any]:
    """The file's metadata. Public."""
    centre, scale = layout.target_scaling
    return {
        "feature_names": layout.feature_names,
        "target_centre": centre,
        "target_scale": scale,
        "schema": schema_to_toml(layout.schema),
        "out_of_bounds": str(report.rule),
    }


# --- Arrow's head and tail, written around records that are in the file already -----------


def frame(
    x: np.ndarray, y: np.ndarray | None, mask: np.ndarray | None, name: bytes, facts: Mapping[str, Any], file: BinaryIO
) -> int:
    """Write an Arrow file of one batch around features that are in it already.

    The head holds the number of records, so it can only be written once they are counted; its length is always the same.

    Args:
        x: Features, as they lie in the file.
        y: Targets, which are written.
        mask: Which rows a person has, which is written.
        name: What the facts are called in the file.
        facts: What to write beside the records, as JSON.
        file: Where to write, from its beginning.

    Returns:
        Offset of the features.
    """
    buffer = pyarrow.py_buffer(x)
    columns = {"x": _column(x, buffer)}
    if y is not None:
        columns["y"] = _column(y, pyarrow.py_buffer(y))
    if mask is not None:
        columns["mask"] = _column(mask.astype(np.uint8), pyarrow.py_buffer(mask.astype(np.uint8)))
    schema = pyarrow.schema([(key, column.type) for key, column in columns.items()], {name: json.dumps(facts)})
    around = _Around(file, buffer.address)
    with pyarrow.PythonFile(around, "w") as sink, pyarrow.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pyarrow.record_batch(list(columns.values()), schema=schema))
    assert around.start is not None
    return around.start


def _column(array: np.ndarray, buffer: pyarrow.Buffer) -> pyarrow.Array:
    """One value a record, or one list of all its values, from a buffer that holds the array."""
    values = pyarrow.Array.from_buffers(pyarrow.from_numpy_dtype(array.dtype), array.size, [None, buffer])
    if array.ndim == 1:
        return values
    return pyarrow.FixedSizeListArray.from_arrays(values, int(np.prod(array.shape[1:])))


def find_start(
    width: int, has_target: bool, max_rows: int, name: bytes, facts: Mapping[str, Any], alignment: int
) -> tuple[int, str]:
    """Offset of the features, a multiple of `alignment`, and the blanks to add to the facts as "padding"."""
    shape = (1,) if max_rows == 1 else (1, max_rows)
    x, y = np.zeros((*shape, width), np.float32), np.zeros(shape, np.float32) if has_target else None
    mask = np.zeros(shape, bool) if max_rows > 1 else None
    for blanks in range(2 * alignment):
        start = frame(x, y, mask, name, {**facts, "padding": " " * blanks}, io.BytesIO())
        if start % alignment == 0:
            return start, " " * blanks
    raise AssertionError("blanks in an Arrow file's head do not move what follows")


class _Around:
    """A file for Arrow to write to, which skips the one buffer that is in it already."""

    closed = False

    def __init__(self, file: BinaryIO, address: int) -> None:
        self.file = file
        self.address = address
        self.start: int | None = None

    def write(self, data: Any) -> int:
        """Write, or skip."""
        if isinstance(data, pyarrow.Buffer) and data.address == self.address:
            self.start = self.file.tell()
            self.file.seek(data.size, io.SEEK_CUR)
            return data.size
        return self.file.write(data)

    def tell(self) -> int:
        """Where the next byte goes."""
        return self.file.tell()

    def flush(self) -> None:
        """Arrow calls it; the file is closed soon."""

    def close(self) -> None:
        """The owner of the file closes it."""
