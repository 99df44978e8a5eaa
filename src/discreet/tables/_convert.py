"""Convert a table larger than memory to a folder of encoded records, which a fit maps into memory.

A folder has the arrays of all records in shards, each a file of bare numbers, and an index. The table is read piece by piece;
with a person column it is read twice: the first pass says to whom each row belongs, and so at which place. Each record's shard
is drawn for itself, with random bits of the operating system: one more moves no other one to another device
(`mechanisms._shards`). So shards differ in length. Only the index says how long they are, and it has the hash of each file:
shards of two conversions cannot be mixed, or a person with rows in both would count twice. Where a device has several shards
their files are mapped one behind another, equally far apart, as one array; between them are zeros that lie in no file.
"""

import ctypes
import dataclasses
import hashlib
import json
import math
import mmap
import os
import re
import shutil
import tempfile
import tomllib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.ipc
from tqdm.auto import tqdm

from discreet._validate import integer
from discreet.tables._cells import Report, rows_of_persons
from discreet.tables._encode import Layout, Records, as_table, is_dropped
from discreet.tables._read import files_of, over_pieces, persons_of
from discreet.tables._schema import DataError, OutOfBounds, Schema
from discreet.tables._schema_text import schema_from_dict, schema_to_toml


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

    The folder has a column x, a list of numbers for each record, with a target column y, and where a person may have several
    rows column mask; x then has the numbers of all rows, and y those of each. Each column is in shards, for devices and processes
    that each map their own: files x-00, y-00, mask-00 and so on (float32, mask uint8, little-endian, row by row), beside
    discreet.json with the number of records, the schema and the hash of each file. One shard has the records in their order; of
    several, each record goes to a random one, so that they differ in length. Which rows a person has is decided over the whole
    table, so shards of several conversions cannot be combined.

    These are the private records, so only their owner may read them, and you should delete them when they are no longer needed.
    There is no person column. An earlier folder is replaced; if the table is refused, nothing is written. Several shards take
    twice their space while they are written.

    Args:
        source: As in `read_table`.
        schema: The public description.
        out: The folder.
        out_of_bounds: As in `encode`.
        shards: Number of shards: a multiple of the devices that will fit them.
        key: As in `encode`.
        progress_bar: Show progress after two seconds.

    Returns:
        The records of `encode(read_table(source, schema), schema)`: views of the file of one shard; of several, `ShardedArray`s
        as of `open_records` with a mesh.

    Raises:
        DataError: As in `read_table` and `encode`, after all pieces were checked; or the files cannot be written.
        ValueError: No such number of shards.
    """
    out = Path(out)
    integer("shards", shards, 1, MOST_SHARDS, hint="Take a multiple of the number of devices.")
    if out.exists() and not _holds_shards_alone(out):
        raise DataError(
            f"{out} is not a folder of converted records and nothing else, so it is not replaced: choose another name"
        )
    source = files_of(source) or as_table(source)  # which can be read twice
    layout, report = Layout(schema), Report(OutOfBounds(out_of_bounds))
    with _atomic_folder(out) as written:
        rows = None
        if schema.person is not None:
            persons = persons_of(source, schema, report, progress_bar="persons" if progress_bar else None)
            rows = rows_of_persons(persons, schema.max_rows, key=key)
        bar = "records" if progress_bar else None
        if shards == 1:
            arrays, lengths = _encode(written, source, layout, report, rows, bar), None
            for name in arrays:
                (written / name).rename(written / _file_of(name, 0))
        else:
            with tempfile.TemporaryDirectory(dir=written) as whole:
                arrays = _encode(Path(whole), source, layout, report, rows, bar)
                lengths = write_shards(written, arrays, shards, progress_bar=progress_bar)
        write_index(written, arrays, _facts(layout, report), lengths)
    return _opened(_Folder(out), None, sharded=True, progress_bar=progress_bar)


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
        raise DataError(f"{out} cannot be written ({error.strerror}): choose another place for it") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if former.exists() and not out.exists():
            former.rename(out)
        shutil.rmtree(former, ignore_errors=True)


def open_records(
    path: Path | str, schema: Schema | None = None, *, mesh: Any = None, progress_bar: bool = False
) -> Records:
    """Open the records that `convert` wrote, as views of a memory map: only what is used stays in memory.

    On a CPU, a fit uses the features in place and reads the rows that it samples; it may copy the targets. The files are compared
    with their hashes first, which reads each once.

    With a mesh the arrays of several shards are `ShardedArray`s for `run(..., mesh=)`, which maps and compares the shards of this
    process's devices alone. The other ones need not be on this machine. Without a mesh several shards are copied to memory.

    Args:
        path: The folder.
        schema: The description that it must have been made with; None: any.
        mesh: Devices along one axis, whose number divides that of the shards; None: all records are for this process. One shard
            is for all devices, with or without a mesh; but each of several devices copies its records to memory.
        progress_bar: Show progress of comparing the hashes after two seconds.

    Raises:
        DataError: Nothing there, not `convert`'s, made with another description, or damaged, changed or mixed since.
        ValueError: The shards cannot be shared out among the devices.
    """
    folder = _index_of(Path(path))
    if folder is None:
        raise DataError(
            f"{path} does not hold records that discreet has converted: check the path, or convert the table (again)"
        )
    records = _opened(folder, schema, sharded=mesh is not None, progress_bar=progress_bar)
    folder.check_devices(mesh)
    return records


def _opened(folder: "_Folder", schema: Schema | None, *, sharded: bool, progress_bar: bool) -> Records:
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
        **arrays, feature_names=names, target_centre=facts["target_centre"], target_scale=facts["target_scale"]
    )


def _shapes(schema: Schema, width: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape of a record and type, of each array."""
    rows = (schema.max_rows,) * (schema.max_rows > 1)
    found: dict[str, tuple[tuple[int, ...], np.dtype]] = {"x": ((*rows, width), np.dtype("<f4"))}
    if schema.target is not None:
        found["y"] = rows, np.dtype("<f4")
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
    folder = _index_of(Path(path))
    return None if folder is None else _conversion(folder.facts)


def _conversion(facts: dict[str, Any]) -> Conversion:
    return Conversion(schema_from_dict(tomllib.loads(facts["schema"])), OutOfBounds(facts["out_of_bounds"]))


def _check_same(path: Path, made: Schema, asked: Schema) -> None:
    """Refuse records that were encoded by another schema than the one that the statement will name."""
    if made == asked:
        return
    old, new = ({column.name: column for column in schema.columns} for schema in (made, asked))
    different = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    what = (
        f"differs in {', '.join(different)}" if different else "differs in its target, person, missing values or [csv]"
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

    shapes, width = _shapes(layout.schema, len(layout.feature_names)), len(layout.feature_names)
    for name in shapes:
        (folder / name).touch(0o600)
    pieces = over_pieces(source, layout.schema, encoded, report, progress_bar=progress_bar)
    kept = _append(folder, pieces, width, report) if rows is None else _place(folder, pieces, width, rows, report)
    report.refuse()
    return {name: np.memmap(folder / name, dtype, "r", shape=(kept, *shape)) for name, (shape, dtype) in shapes.items()}


def _append(folder: Path, pieces: Iterator[np.ndarray], width: int, report: Report) -> int:
    """Write each row as a record, in order; returns their number."""
    kept = 0
    with open(folder / "x", "r+b") as x, open(folder / "y", "r+b") if (folder / "y").exists() else nullcontext() as y:
        for matrix in pieces:
            kept += len(matrix)
            if not report.faults:
                x.write(np.ascontiguousarray(matrix[:, :width]).data)
                if y is not None:
                    y.write(np.ascontiguousarray(matrix[:, width:]).data)
    return kept


def _place(folder: Path, pieces: Iterator[np.ndarray], width: int, rows: np.ndarray, report: Report) -> int:
    """Write the rows of each person, as `rows_of_persons` numbers them, into the person's place; returns the persons' number."""
    used = rows.ravel() >= 0
    order = np.argsort(rows.ravel()[used])
    numbers, places = rows.ravel()[used][order], np.flatnonzero(used)[order]
    x = np.memmap(folder / "x", np.float32, "r+", shape=(rows.size, width))
    y = np.memmap(folder / "y", np.float32, "r+", shape=rows.size) if (folder / "y").exists() else None
    row, mask = 0, used.copy()
    for matrix in pieces:
        here = slice(*np.searchsorted(numbers, (row, row + len(matrix))))
        if not report.faults:
            found = matrix[numbers[here] - row]
            if rows.shape[1] > 1:
                dropped = is_dropped(found)
                found[dropped] = 0
                mask[places[here]] = ~dropped
            x[places[here]] = found[:, :width]
            if y is not None:
                y[places[here]] = found[:, width]
        row += len(matrix)
    x.flush()
    if y is not None:
        y.flush()
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


# --- A folder of shards -------------------------------------------------------------------


INDEX, FORMAT, MOST_SHARDS = "discreet.json", "records that discreet has converted, in shards, version 2", 10_000
_PIECE = 1 << 26  # bytes of an array that go to shards at once


def write_shards(
    folder: Path, arrays: Mapping[str, np.ndarray], shards: int, *, progress_bar: bool = False
) -> list[int]:
    """Write the arrays of a whole table to shards, each record to a random one; returns the number of records of each."""
    count, lengths = len(arrays["x"]), np.zeros(shards, np.int64)
    sizes = [x.nbytes // count for x in arrays.values()]
    for name in arrays:
        for number in range(shards):
            (folder / _file_of(name, number)).touch(0o600)
    at_once = max(1, _PIECE // max(sizes))
    hidden = None if progress_bar else True
    with tqdm(desc="shards", total=count * sum(sizes), unit="B", unit_scale=True, delay=2.0, disable=hidden) as bar:
        for first in range(0, count, at_once):
            own = np.frombuffer(os.urandom(4 * min(at_once, count - first)), np.uint32) % np.uint32(shards)
            here = np.bincount(own, minlength=shards)
            order, ends = np.argsort(own.astype(np.uint16), kind="stable"), np.cumsum(here)
            for name, array in arrays.items():
                rows = array[first : first + len(own)][order]
                for number in np.flatnonzero(here).tolist():
                    content = rows[ends[number] - here[number] : ends[number]].reshape(-1).view(np.uint8).data
                    with open(folder / _file_of(name, number), "ab") as file:
                        file.write(content)
                    bar.update(len(content))
            lengths += here
    return lengths.tolist()


def write_index(
    folder: Path, arrays: Mapping[str, np.ndarray], facts: dict[str, Any], lengths: Sequence[int] | None = None
) -> None:
    """Write the index of a folder with shards of these lengths (None: one with all records), as its last file."""
    count = len(arrays["x"])
    lengths = [count] if lengths is None else list(lengths)
    index = {
        **facts,
        "num_records": count,
        "lengths": lengths,
        "rows": _rows_of_shard(max(lengths), [x.nbytes // count for x in arrays.values()]),
        "sha256": {
            name: _sha256(folder / name)
            for name in (_file_of(array, number) for array in arrays for number in range(len(lengths)))
        },
    }
    text = json.dumps({"what": FORMAT, "index": index, "digest": _digest_of(index)}, indent=1)
    (folder / INDEX).touch(0o600)
    (folder / INDEX).write_text(text, encoding="utf-8")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _file_of(name: str, number: int) -> str:
    return f"{name}-{number:02d}"


def _digest_of(index: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def _rows_of_shard(rows: int, bytes_a_row: Sequence[int]) -> int:
    """The distance of shards in memory, in rows: that of the longest one, or more so that all arrays fill whole pages.

    Shards that fill pages, of any size that machines have, can be mapped one behind another; others, of few bytes, are copied.
    """
    for page in (1 << 16, 1 << 14, 1 << 12):
        whole = max(page // math.gcd(page, size) for size in bytes_a_row)
        if rows >= 16 * whole:
            return -(-rows // whole) * whole
    return rows


def _holds_shards_alone(path: Path) -> bool:
    """True for a folder that can be replaced: it has an index, damaged or not, and no file but shards."""
    shard = re.compile(r"(x|y|mask)-\d{2,}")
    return (path / INDEX).is_file() and all(x.name == INDEX or shard.fullmatch(x.name) for x in path.iterdir())


def _index_of(path: Path) -> "_Folder | None":
    """The folder of shards that a path is; None: it is none."""
    return _Folder(path) if (path / INDEX).is_file() else None


class _Folder:
    """A folder of shards: its index, and files that are compared with it when they are first used.

    Attributes:
        facts: The metadata of the conversion, the number of records of each shard, and the hashes.
        digest: Hash of the index, and so of all records.
    """

    def __init__(self, path: Path) -> None:
        try:
            read = json.loads((path / INDEX).read_text(encoding="utf-8"))
            self.path, self.facts, self.digest = path, read["index"], read["digest"]
            what, right = read["what"], self.digest == _digest_of(self.facts)
        except (OSError, ValueError, KeyError, TypeError):
            what, right = FORMAT, False
        if what != FORMAT or not right:
            raise DataError(
                f"{path / INDEX} is damaged, was changed, or is of another version of discreet. The number of records is read "
                "from it, so nothing is fitted: copy the folder again, or convert the table again"
            )
        self.lengths, self.rows = tuple(self.facts["lengths"]), self.facts["rows"]
        self.shards = len(self.lengths)
        self._compared: dict[str, tuple[int, ...]] = {}

    def check_devices(self, mesh: Any) -> None:
        """Refuse a mesh whose devices cannot have whole shards of several."""
        if mesh is None:
            return
        if not isinstance(getattr(mesh, "devices", None), np.ndarray):
            raise TypeError(
                f"mesh is a {type(mesh).__name__}. Pass a mesh of one axis, as "
                'jax.make_mesh((jax.device_count(),), ("records",)).'
            )
        if self.shards > 1:
            self.shards_of_device(mesh.devices.size)

    def shards_of_device(self, devices: int) -> int:
        """The number of shards of each device."""
        if self.shards % devices:
            raise ValueError(
                f"{self.path} has {self.shards} shards, which cannot be shared out among {devices} devices. Convert the table "
                f"again with shards={devices * max(1, round(self.shards / devices))}, or use a number of devices that divides "
                f"{self.shards}. In one process, open_records without mesh= has no such limit."
            )
        return self.shards // devices

    def compare(self, names: Sequence[str], sizes: Sequence[int], *, progress_bar: bool) -> None:
        """Compare files with the index, unless they were compared and have not been changed since.

        Raises:
            DataError: A file is absent or another one.
        """
        again = "Copy it again from where the table was converted, or convert the whole table again"
        states: dict[str, tuple[int, ...]] = {}
        for name, size in zip(names, sizes, strict=True):
            try:
                state = os.stat(self.path / name)
            except OSError as error:
                raise DataError(
                    f"{self.path / name} cannot be read ({error.strerror}), which is a shard. {again}"
                ) from None
            if state.st_size != size:
                raise DataError(f"{self.path / name} has another length than in the index: it is damaged. {again}")
            states[name] = state.st_ino, state.st_size, state.st_mtime_ns
        new = [name for name in names if self._compared.get(name) != states[name]]
        total = sum(states[name][1] for name in new)
        with (
            ThreadPoolExecutor(os.cpu_count()) as pool,
            tqdm(
                desc="checking",
                total=total,
                unit="B",
                unit_scale=True,
                delay=2.0,
                disable=None if progress_bar else True,
            ) as bar,
        ):
            for name, found in zip(new, pool.map(lambda name: _sha256(self.path / name), new), strict=True):
                bar.update(states[name][1])
                if found != self.facts["sha256"].get(name):
                    raise DataError(
                        f"{self.path / name} is not the file that the index names: it is damaged, was changed, or comes from "
                        "another conversion. Shards of several conversions cannot be combined, since a person with rows in both "
                        f"would count twice. {again}"
                    )
                self._compared[name] = states[name]


class ShardedArray:
    """An array of all records, of which this process maps the shards of its own devices; for `run(..., mesh=)`.

    Attributes:
        shape: The first number is that of all records.
        dtype: As NumPy's.
        digest: The identity of the whole table: the hash of the index, which has those of all files.
        lengths: Number of records of each shard.
    """

    def __init__(
        self, folder: _Folder, name: str, row: tuple[int, ...], dtype: np.dtype, progress_bar: bool = False
    ) -> None:
        """See `open_records`."""
        self._folder, self._name, self._progress_bar = folder, name, progress_bar
        self.shape, self.dtype = (folder.facts["num_records"], *row), dtype
        self.digest, self.lengths = f"{name} {folder.digest}", folder.lengths

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        """Number of records, of all processes."""
        return self.shape[0]

    def __repr__(self) -> str:
        return f"ShardedArray({self._folder.path / self._name}, shape={self.shape}, dtype={self.dtype})"

    def rows_of_part(self, parts: int) -> int:
        """Number of rows of each of so many parts, with those that hold no record.

        Raises:
            ValueError: The shards cannot be shared out so.
        """
        return self._folder.shards_of_device(parts) * self._folder.rows

    def part(self, number: int, parts: int) -> np.ndarray:
        """A map of one of so many parts, each of equally many shards; rows behind the last record of a shard are zeros.

        Raises:
            DataError: A file is damaged, changed or absent.
            ValueError: As `rows_of_part`.
        """
        each = self._folder.shards_of_device(parts)
        return self._mapped(range(number * each, (number + 1) * each))

    def whole(self) -> np.ndarray:
        """All records: a map of one shard, a copy of several."""
        folder, rows = self._folder, self._mapped(range(self._folder.shards))
        if folder.shards == 1:
            return rows[: len(self)]
        records = np.concatenate([rows[i * folder.rows :][:n] for i, n in enumerate(folder.lengths)])
        records.flags.writeable = False
        return records

    def _mapped(self, numbers: range) -> np.ndarray:
        folder, names = self._folder, [_file_of(self._name, number) for number in numbers]
        size = math.prod(self.shape[1:]) * self.dtype.itemsize
        lengths = [size * folder.lengths[number] for number in numbers]
        folder.compare(names, lengths, progress_bar=self._progress_bar)
        memory = _one_behind_another([folder.path / name for name in names], lengths, size * folder.rows)
        return memory.view(self.dtype).reshape(len(names) * folder.rows, *self.shape[1:])


def _one_behind_another(paths: Sequence[Path], lengths: Sequence[int], step: int) -> np.ndarray:
    """The bytes of files, `step` bytes from the beginning of each to that of the next, with zeros between; not writeable."""
    if os.name == "posix" and (len(paths) == 1 or step % mmap.PAGESIZE == 0):
        mapped = _Mapped(paths, lengths, step)
        if mapped.complete:
            return np.asarray(mapped)
    whole = np.zeros(len(paths) * step, np.uint8)
    for number, path in enumerate(paths):
        whole[number * step : number * step + lengths[number]] = np.fromfile(path, np.uint8)
    whole.flags.writeable = False
    return whole


class _Mapped:
    """Memory of zeros that is never written to, over parts of which files are mapped: Python's mmap chooses the place itself."""

    in_files = True

    def __init__(self, paths: Sequence[Path], lengths: Sequence[int], step: int) -> None:
        system = ctypes.CDLL(None, use_errno=True)
        system.mmap.restype, number = ctypes.c_void_p, ctypes.c_long
        system.mmap.argtypes = ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, number
        system.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
        size, fixed = len(paths) * step, 0x10  # MAP_FIXED of Linux, macOS and the BSDs
        start = system.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANON, -1, 0)
        self.complete = start != ctypes.c_void_p(-1).value
        if not self.complete:
            return
        # Not at exit, when JAX may still be reading.
        weakref.finalize(self, system.munmap, start, size).atexit = False
        for place, path, length in zip(range(start, start + size, step), paths, lengths, strict=True):
            if length:
                with open(path, "rb") as file:
                    found = system.mmap(place, length, mmap.PROT_READ, mmap.MAP_SHARED | fixed, file.fileno(), 0)
                self.complete &= found == place
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (start, True)}
