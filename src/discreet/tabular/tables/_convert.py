"""Convert a table larger than memory to a folder of encoded records, which a fit maps into memory.

A folder has the arrays of all records in shards, each a file of bare numbers, and an index. The
table is read piece by piece; with a person column it is read twice: the first pass says to whom
each row belongs, and so at which place. `_shards` has the format of the folder.
"""

import dataclasses
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.ipc

from discreet._validate import integer
from discreet.tabular.tables._cells import Report
from discreet.tabular.tables._encode import Layout, Records, is_dropped
from discreet.tabular.tables._files import files_of
from discreet.tabular.tables._persons import rows_of_persons
from discreet.tabular.tables._read import over_pieces, persons_of
from discreet.tabular.tables._schema import DataError, OutOfBounds, Schema
from discreet.tabular.tables._schema_text import schema_from_dict, schema_to_toml
from discreet.tabular.tables._shards import (
    MOST_SHARDS,
    Folder,
    ShardedArray,
    file_of,
    holds_shards_alone,
    index_of,
    write_index,
    write_shards,
)
from discreet.tabular.tables._typed import as_table


@dataclasses.dataclass(frozen=True)
class Conversion:
    """The settings of a conversion. Public.

    Attributes:
        schema: The description of the table.
        out_of_bounds: The rule for cells that it does not allow.
    """

    schema: Schema
    out_of_bounds: OutOfBounds


def convert(
    source: Any,
    schema: Schema,
    out: Path | str,
    *,
    out_of_bounds: OutOfBounds | str = OutOfBounds.REFUSE,
    shards: int = 1,
    key: bytes | None = None,
    progress_bar: bool = False,
) -> Records:
    """Encode a table piece by piece into a folder, and open it.

    The folder has a column x, a list of numbers for each record, with a target column y, and where
    a person may have several rows column mask; x then has the numbers of all rows, and y those of
    each. Survey weights are a column weights, like y. Each column is in shards, for devices and
    processes that each map their own: files x-00, y-00, mask-00 and so on (float32, mask uint8,
    little-endian, row by row), beside discreet.json with the number of records, the schema and the
    hash of each file. One shard has the records in their order; of several, each record goes to a
    random one, so that they differ in length. Which rows a person has is decided over the whole
    table, so shards of several conversions cannot be combined.

    These are the private records, so only their owner may read them, and you should delete them
    when they are no longer needed. There is no person column. An earlier folder is replaced; if the
    table is refused, nothing is written. Several shards take twice their space while they are
    written.

    Args:
        source: As in `read_table`.
        schema: The public description.
        out: The folder.
        out_of_bounds: As in `encode`.
        shards: Number of shards: a multiple of the devices that will fit them.
        key: As in `encode`.
        progress_bar: Show progress after two seconds.

    Returns:
        The records of `encode(read_table(source, schema), schema)`: views of the file of one shard;
        of several, `ShardedArray`s as of `open_records` with a mesh.

    Raises:
        DataError: As in `read_table` and `encode`, after all pieces were checked; or the files
            cannot be written.
        ValueError: No such number of shards.
    """
    out = Path(out)
    integer("shards", shards, 1, MOST_SHARDS, hint="Take a multiple of the number of devices.")
    if out.exists() and not holds_shards_alone(out):
        raise DataError(
            f"{out} is not a folder of converted records and nothing else, so it is not replaced: choose another name"
        )
    source = files_of(source) or as_table(source)  # which can be read twice
    layout = Layout(schema)
    report = Report(OutOfBounds(out_of_bounds))
    with _atomic_folder(out) as written:
        rows = None
        if schema.person is not None:
            persons = persons_of(
                source, schema, report, progress_bar="persons" if progress_bar else None
            )
            rows = rows_of_persons(persons, schema.max_rows, key=key)
        bar = "records" if progress_bar else None
        if shards == 1:
            arrays = _encode(written, source, layout, report, rows, bar)
            lengths = None
            for name in arrays:
                (written / name).rename(written / file_of(name, 0))
        else:
            with tempfile.TemporaryDirectory(dir=written) as whole:
                arrays = _encode(Path(whole), source, layout, report, rows, bar)
                lengths = write_shards(written, arrays, shards, progress_bar=progress_bar)
        states = write_index(written, arrays, _facts(layout, report), lengths)
    return _opened(Folder(out, states), None, sharded=True, progress_bar=progress_bar)


@contextmanager
def _atomic_folder(out: Path) -> Iterator[Path]:
    """Make a folder for its owner alone, which gets its name at the end and is deleted on an error."""
    partial, former = (out.with_name(f".{out.name}.{os.getpid()}{end}") for end in ("", ".former"))
    try:
        partial.mkdir(0o700)
        yield partial
        if out.exists():
            out.rename(former)
        partial.rename(out)
    except OSError as error:
        raise DataError(
            f"{out} cannot be written ({error.strerror}): choose another place for it"
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if former.exists() and not out.exists():
            former.rename(out)
        shutil.rmtree(former, ignore_errors=True)


def open_records(
    path: Path | str, schema: Schema | None = None, *, mesh: Any = None, progress_bar: bool = False
) -> Records:
    """Open the records that `convert` wrote, as views of a memory map: only what is used stays in memory.

    On a CPU, a fit uses the features in place and reads the rows that it samples; it may copy the
    targets. The files are compared with their hashes first, which reads each once.

    With a mesh the arrays of several shards are `ShardedArray`s for `run(..., mesh=)`, which maps
    and compares the shards of this process's devices alone. The other ones need not be on this
    machine. Without a mesh several shards are copied to memory.

    Args:
        path: The folder.
        schema: The description that it must have been made with; None: any.
        mesh: Devices along one axis, whose number divides that of the shards; None: all records are
            for this process. One shard is for all devices, with or without a mesh; but each of
            several devices copies its records to memory.
        progress_bar: Show progress of comparing the hashes after two seconds.

    Raises:
        DataError: Nothing there, not `convert`'s, made with another description, or damaged,
            changed or mixed since.
        ValueError: The shards cannot be shared out among the devices.
    """
    folder = index_of(Path(path))
    if folder is None:
        raise DataError(
            f"{path} does not hold records that discreet has converted: check the path, or convert the table (again)"
        )
    records = _opened(folder, schema, sharded=mesh is not None, progress_bar=progress_bar)
    folder.check_devices(mesh)
    return records


def _opened(
    folder: "Folder", schema: Schema | None, *, sharded: bool, progress_bar: bool
) -> Records:
    """The records, those of several shards as `ShardedArray`s or whole."""
    facts = folder.facts
    made = _conversion(facts).schema
    if schema is not None:
        _check_same(folder.path, made, schema)
    names = tuple(facts["feature_names"])
    arrays: dict[str, Any] = {"y": None}
    for name, (shape, dtype) in _shapes(made, len(names)).items():
        array = ShardedArray(folder, name, shape, dtype, progress_bar)
        arrays[name] = array if sharded and folder.shards > 1 else array.whole()
    return Records(
        **arrays,
        feature_names=names,
        target_centre=facts["target_centre"],
        target_scale=facts["target_scale"],
    )


def _shapes(schema: Schema, width: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape of a record and type, of each array."""
    rows = (schema.max_rows,) * (schema.max_rows > 1)
    found: dict[str, tuple[tuple[int, ...], np.dtype]] = {"x": ((*rows, width), np.dtype("<f4"))}
    for name, column in (("y", schema.target), ("weights", schema.weight)):
        if column is not None:
            found[name] = rows, np.dtype("<f4")
    if rows:
        found["mask"] = rows, np.dtype(bool)
    return found


def conversion_of(path: Path | str) -> Conversion | None:
    """Say how a folder was made, if `convert` made it. No record is read.

    Returns:
        None for any other folder, for a file, and for none.

    Raises:
        DataError: The index of a folder is damaged.
    """
    folder = index_of(Path(path))
    return None if folder is None else _conversion(folder.facts)


def _conversion(facts: dict[str, Any]) -> Conversion:
    return Conversion(
        schema_from_dict(tomllib.loads(facts["schema"])), OutOfBounds(facts["out_of_bounds"])
    )


def _check_same(path: Path, made: Schema, asked: Schema) -> None:
    """Refuse records that were encoded by another schema than the one that the statement will name."""
    if made == asked:
        return
    old, new = ({column.name: column for column in schema.columns} for schema in (made, asked))
    different = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    what = (
        f"differs in {', '.join(different)}"
        if different
        else "differs in its target, person, missing values or [csv]"
    )
    raise DataError(
        f"{path} was converted with another schema, which {what}: give the schema that it was converted with (or none, since "
        "the folder knows it), or convert the table again"
    )


def _encode(
    folder: Path,
    source: Any,
    layout: Layout,
    report: Report,
    rows: np.ndarray | None,
    progress_bar: str | None,
) -> dict[str, np.ndarray]:
    """Write the arrays of all records into files of a folder, each by its name; returns maps of them."""

    def encoded(table: pyarrow.Table) -> np.ndarray:
        matrix = np.zeros((table.num_rows, layout.width), np.float32)
        layout.fill(table, matrix, report)
        return matrix

    shapes = _shapes(layout.schema, len(layout.feature_names))
    for name in shapes:
        (folder / name).touch(0o600)
    pieces = over_pieces(source, layout.schema, encoded, report, progress_bar=progress_bar)
    kept = (
        _append(folder, pieces, layout, report)
        if rows is None
        else _place(folder, pieces, layout, rows, report)
    )
    report.refuse()
    return {
        name: np.memmap(folder / name, dtype, "r", shape=(kept, *shape))
        for name, (shape, dtype) in shapes.items()
    }


def _append(folder: Path, pieces: Iterator[np.ndarray], layout: Layout, report: Report) -> int:
    """Write each row as a record, in order; returns their number."""
    kept = 0
    with ExitStack() as stack:
        files = {name: stack.enter_context(open(folder / name, "r+b")) for name in layout.parts}
        for matrix in pieces:
            kept += len(matrix)
            if not report.faults:
                for name, place in layout.parts.items():
                    files[name].write(np.ascontiguousarray(matrix[:, place]).data)
    return kept


def _place(
    folder: Path, pieces: Iterator[np.ndarray], layout: Layout, rows: np.ndarray, report: Report
) -> int:
    """Write the rows of each person, as `rows_of_persons` numbers them, into the person's place; returns the persons' number."""
    used = rows.ravel() >= 0
    order = np.argsort(rows.ravel()[used])
    numbers = rows.ravel()[used][order]
    places = np.flatnonzero(used)[order]
    parts = layout.parts
    shapes = {
        name: (rows.size, len(layout.feature_names)) if name == "x" else (rows.size,)
        for name in parts
    }
    maps = {
        name: np.memmap(folder / name, np.float32, "r+", shape=shape)
        for name, shape in shapes.items()
    }
    row = 0
    mask = used.copy()
    for matrix in pieces:
        here = slice(*np.searchsorted(numbers, (row, row + len(matrix))))
        if not report.faults:
            found = matrix[numbers[here] - row]
            if rows.shape[1] > 1:
                dropped = is_dropped(found)
                found[dropped] = 0
                mask[places[here]] = ~dropped
            for name, place in parts.items():
                maps[name][places[here]] = found[:, place]
        row += len(matrix)
    for written in maps.values():
        written.flush()
    if rows.shape[1] > 1:
        mask.tofile(folder / "mask")
    return len(rows)


def _facts(layout: Layout, report: Report) -> dict[str, Any]:
    """The metadata of the index. Public."""
    centre, scale = layout.target_scaling
    return {
        "feature_names": layout.feature_names,
        "target_centre": centre,
        "target_scale": scale,
        "schema": schema_to_toml(layout.schema),
        "out_of_bounds": str(report.rule),
    }
