"""Arrow's head and tail around records that lie in a file already."""

import io
import json
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
import pyarrow
import pyarrow.ipc


def frame(x: np.ndarray, y: np.ndarray | None, name: bytes, facts: Mapping[str, Any], file: BinaryIO) -> int:
    """Write an Arrow file of one batch around features that lie in it already.

    The head says how many records there are, so that it can only be written once they are counted; its length is always
    the same.

    Args:
        x: Features, as they lie in the file.
        y: Targets, which are written.
        name: What the facts are called in the file.
        facts: What to write beside the records, as JSON.
        file: Where to write, from its beginning.

    Returns:
        Where the features begin.
    """
    kind = pyarrow.list_(pyarrow.float32(), x.shape[1])
    fields, buffer = [("x", kind)], pyarrow.py_buffer(x)
    values = pyarrow.Array.from_buffers(pyarrow.float32(), x.size, [None, buffer])
    columns: list[pyarrow.Array] = [pyarrow.FixedSizeListArray.from_arrays(values, type=kind)]
    if y is not None:
        fields.append(("y", pyarrow.float32()))
        columns.append(pyarrow.Array.from_buffers(pyarrow.float32(), len(y), [None, pyarrow.py_buffer(y)]))
    schema = pyarrow.schema(fields, {name: json.dumps(facts)})
    around = _Around(file, buffer.address)
    with pyarrow.PythonFile(around, "w") as sink, pyarrow.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pyarrow.record_batch(columns, schema=schema))
    assert around.start is not None
    return around.start


def find_start(width: int, has_target: bool, name: bytes, facts: Mapping[str, Any], alignment: int) -> tuple[int, str]:
    """Where the features will begin, a multiple of `alignment`, and the blanks that must stand among the facts as "padding"."""
    x, y = np.zeros((1, width), np.float32), np.zeros(1, np.float32) if has_target else None
    for blanks in range(2 * alignment):
        start = frame(x, y, name, {**facts, "padding": " " * blanks}, io.BytesIO())
        if start % alignment == 0:
            return start, " " * blanks
    raise AssertionError("blanks in an Arrow file's head do not move what follows")


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
