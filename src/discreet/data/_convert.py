"""A table larger than memory to a file of encoded records, of which a fit sees a memory map."""

import io
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow
import pyarrow.ipc

from discreet.data._encode import Layout, Records
from discreet.data._files import DAMAGED
from discreet.data._person import keep_one_row_a_person
from discreet.data._read import over_pieces
from discreet.data._report import OutOfBounds, Report
from discreet.schema import DataError, Schema

ENDING = ".arrow"
METADATA = b"discreet"


def convert(
    source: Any,
    schema: Schema,
    out: Path | str,
    *,
    out_of_bounds: OutOfBounds | str = OutOfBounds.REFUSE,
    key: bytes | None = None,
) -> Records:
    """Encode a table piece by piece into a file, and open it.

    The file is an Arrow file of one batch with one column: a list of numbers for each record, its features and then its
    target. It holds the private records: its owner alone may read it, and it is yours to delete. It holds no person column. A
    file that exists is replaced; if the table is refused, nothing is written.

    Args:
        source: As in `read_table`.
        schema: The public description.
        out: Where to write, a name that ends with .arrow.
        out_of_bounds: As in `encode`.
        key: As in `encode`.

    Returns:
        The records of `encode(read_table(source, schema), schema)`; the arrays are views of the file.

    Raises:
        DataError: As in `read_table` and `encode`, after all pieces were looked at.
    """
    out = Path(out)
    if out.suffix != ENDING:
        raise DataError(f"{out}: converted records are an Arrow file, give a name that ends with {ENDING}")
    layout, report = Layout(schema), Report(OutOfBounds(out_of_bounds))
    keep = None
    if schema.person is not None:
        persons = over_pieces(source, schema, lambda table: table.column(schema.person), report, only_person=True)
        keep = keep_one_row_a_person(pyarrow.chunked_array([chunk for c in persons for chunk in c.chunks]), key=key)
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with open(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "w+b") as file:
            _write(file, source, layout, report, keep)
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return open_records(out)


def open_records(path: Path | str) -> Records:
    """The records in a file that `convert` wrote, as views of a memory map: what is not looked at is not read.

    Raises:
        DataError: No such file, or not one of `convert`'s.
    """
    path = Path(path)
    try:
        table = pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))
        facts = json.loads((table.schema.metadata or {})[METADATA])
        column = table.get_batch(0).column(0)
    except (*DAMAGED, KeyError, ValueError):
        raise DataError(
            f"{path} does not hold records that discreet has converted: check the path, or convert again"
        ) from None
    names = tuple(facts["feature_names"])
    matrix = column.flatten().to_numpy().reshape(len(column), -1)
    return Records(
        x=matrix[:, : len(names)],
        y=matrix[:, len(names)] if facts["target"] is not None else None,
        feature_names=names,
        target_centre=facts["target_centre"],
        target_scale=facts["target_scale"],
    )


def _write(file: BinaryIO, source: Any, layout: Layout, report: Report, keep: np.ndarray | None) -> None:
    def encoded(table: pyarrow.Table) -> np.ndarray:
        matrix = np.zeros((table.num_rows, layout.width), np.float32)
        layout.fill(table, matrix, report)
        return matrix

    start = _frame(layout, np.zeros((1, layout.width), np.float32), io.BytesIO())
    file.seek(start)
    rows = kept = 0
    for matrix in over_pieces(source, layout.schema, encoded, report):
        chosen = matrix if keep is None else matrix[keep[rows : rows + len(matrix)]]
        rows, kept = rows + len(matrix), kept + len(chosen)
        if not report.faults:
            file.write(chosen.data)
    report.refuse()
    file.flush()
    records = np.memmap(file, np.float32, "r", start, (kept, layout.width))
    file.seek(0)
    if _frame(layout, records, file) != start:
        raise AssertionError("the length of an Arrow file's head depends on the number of its records")


def _frame(layout: Layout, records: np.ndarray, file: BinaryIO) -> int:
    """Write Arrow's head and tail around records that lie in the file already, and return where they begin.

    The head says how many they are, so that it can only be written once they are counted; its length is always the same.
    """
    centre, scale = layout.target_scaling
    facts = {
        "feature_names": layout.feature_names,
        "target": layout.schema.target,
        "target_centre": centre,
        "target_scale": scale,
    }
    kind = pyarrow.list_(pyarrow.float32(), layout.width)
    schema = pyarrow.schema([("record", kind)], {METADATA: json.dumps(facts)})
    buffer = pyarrow.py_buffer(records)
    values = pyarrow.Array.from_buffers(pyarrow.float32(), records.size, [None, buffer])
    lists = pyarrow.FixedSizeListArray.from_arrays(values, type=kind)
    around = _Around(file, buffer.address)
    with pyarrow.PythonFile(around, "w") as sink, pyarrow.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pyarrow.record_batch([lists], schema=schema))
    assert around.start is not None
    return around.start


class _Around:
    """A file for Arrow to write to that steps over the one buffer that lies in it already."""

    closed = False

    def __init__(self, file: BinaryIO, address: int) -> None:
        self.file = file
        self.address = address
        self.start: int | None = None

    def write(self, data: Any) -> int:
        """Write, or step over."""
        if isinstance(data, pyarrow.Buffer) and data.address == self.address:
            self.start = self.file.tell()
            self.file.seek(data.size, io.SEEK_CUR)
            return data.size
        return self.file.write(data)

    def tell(self) -> int:
        """Where the next byte goes."""
        return self.file.tell()

    def flush(self) -> None:
        """Arrow asks for it; the file is closed soon."""

    def close(self) -> None:
        """Left to the file's owner."""
