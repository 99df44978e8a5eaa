"""A folder of shards: arrays of records in files of bare numbers, with an index.

Each record's shard is drawn for itself, with random bits of the operating system: one more moves no
other one to another device (`mechanisms._shards`). So shards differ in length. Only the index says
how long they are, and it has the hash of each file: shards of two conversions cannot be mixed, or a
person with rows in both would count twice. Where a device has several shards their files are mapped
one behind another, equally far apart, as one array; between them are zeros that lie in no file.
"""

import ctypes
import hashlib
import json
import math
import mmap
import os
import re
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from discreet.tabular.tables._schema import DataError

INDEX = "discreet.json"
FORMAT = "records that discreet has converted, in shards, version 2"
MOST_SHARDS = 10_000
_PIECE = 1 << 26  # bytes of an array that go to shards at once


def write_shards(
    folder: Path, arrays: Mapping[str, np.ndarray], shards: int, *, progress_bar: bool = False
) -> list[int]:
    """Write the arrays of a whole table to shards, each record to a random one; returns the number of records of each."""
    count = len(arrays["x"])
    lengths = np.zeros(shards, np.int64)
    sizes = [x.nbytes // count for x in arrays.values()]
    for name in arrays:
        for number in range(shards):
            (folder / file_of(name, number)).touch(0o600)
    at_once = max(1, _PIECE // max(sizes))
    hidden = None if progress_bar else True
    with tqdm(
        desc="shards",
        total=count * sum(sizes),
        unit="B",
        unit_scale=True,
        delay=2.0,
        disable=hidden,
    ) as bar:
        for first in range(0, count, at_once):
            own = np.frombuffer(os.urandom(4 * min(at_once, count - first)), np.uint32) % np.uint32(
                shards
            )
            here = np.bincount(own, minlength=shards)
            order = np.argsort(own.astype(np.uint16), kind="stable")
            ends = np.cumsum(here)
            for name, array in arrays.items():
                rows = array[first : first + len(own)][order]
                for number in np.flatnonzero(here).tolist():
                    content = (
                        rows[ends[number] - here[number] : ends[number]]
                        .reshape(-1)
                        .view(np.uint8)
                        .data
                    )
                    with open(folder / file_of(name, number), "ab") as file:
                        file.write(content)
                    bar.update(len(content))
            lengths += here
    return lengths.tolist()


def write_index(
    folder: Path,
    arrays: Mapping[str, np.ndarray],
    facts: dict[str, Any],
    lengths: Sequence[int] | None = None,
) -> dict[str, tuple[int, ...]]:
    """Write the index of a folder with shards of these lengths (None: one with all records), as its last file.

    Returns:
        The states of the shards for which their hashes hold, for `Folder`.
    """
    count = len(arrays["x"])
    lengths = [count] if lengths is None else list(lengths)
    names = [file_of(array, number) for array in arrays for number in range(len(lengths))]
    states = {name: _state_of(folder / name) for name in names}
    index = {
        **facts,
        "num_records": count,
        "lengths": lengths,
        "rows": _rows_of_shard(max(lengths), [x.nbytes // count for x in arrays.values()]),
        "sha256": {name: _sha256(folder / name) for name in names},
    }
    text = json.dumps({"what": FORMAT, "index": index, "digest": _digest_of(index)}, indent=1)
    (folder / INDEX).touch(0o600)
    (folder / INDEX).write_text(text, encoding="utf-8")
    return states


def _state_of(path: Path) -> tuple[int, ...]:
    """What changes when a file is replaced or written to; a new name changes nothing."""
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_of(name: str, number: int) -> str:
    return f"{name}-{number:02d}"


def _digest_of(index: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(index, sort_keys=True).encode()).hexdigest()


def _rows_of_shard(rows: int, bytes_a_row: Sequence[int]) -> int:
    """The distance of shards in memory, in rows: that of the longest one, or more so that all arrays fill whole pages.

    Shards that fill pages, of any size that machines have, can be mapped one behind another;
    others, of few bytes, are copied.
    """
    for page in (1 << 16, 1 << 14, 1 << 12):
        whole = max(page // math.gcd(page, size) for size in bytes_a_row)
        if rows >= 16 * whole:
            return -(-rows // whole) * whole
    return rows


def holds_shards_alone(path: Path) -> bool:
    """True for a folder that can be replaced: it has an index, damaged or not, and no file but shards."""
    shard = re.compile(r"(x|y|weights|mask)-\d{2,}")
    return (path / INDEX).is_file() and all(
        x.name == INDEX or shard.fullmatch(x.name) for x in path.iterdir()
    )


def index_of(path: Path) -> "Folder | None":
    """The folder of shards that a path is; None: it is none."""
    return Folder(path) if (path / INDEX).is_file() else None


class Folder:
    """A folder of shards: its index, and files that are compared with it when they are first used.

    Attributes:
        facts: The metadata of the conversion, the number of records of each shard, and the hashes.
        digest: Hash of the index, and so of all records.
    """

    def __init__(self, path: Path, compared: Mapping[str, tuple[int, ...]] = {}) -> None:
        """Read the index; `compared`: the states of files that need no comparing, of `write_index`."""
        try:
            read = json.loads((path / INDEX).read_text(encoding="utf-8"))
            self.path = path
            self.facts = read["index"]
            self.digest = read["digest"]
            what = read["what"]
            right = self.digest == _digest_of(self.facts)
        except (OSError, ValueError, KeyError, TypeError):
            what = FORMAT
            right = False
        if what != FORMAT or not right:
            raise DataError(
                f"{path / INDEX} is damaged, was changed, or is of another version of discreet. The number of records is read "
                "from it, so nothing is fitted: copy the folder again, or convert the table again"
            )
        self.lengths = tuple(self.facts["lengths"])
        self.rows = self.facts["rows"]
        self.shards = len(self.lengths)
        self._compared = dict(compared)

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
                states[name] = _state_of(self.path / name)
            except OSError as error:
                raise DataError(
                    f"{self.path / name} cannot be read ({error.strerror}), which is a shard. {again}"
                ) from None
            if states[name][1] != size:
                raise DataError(
                    f"{self.path / name} has another length than in the index: it is damaged. {again}"
                )
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
            for name, found in zip(
                new, pool.map(lambda name: _sha256(self.path / name), new), strict=True
            ):
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
        digest: The identity of the whole table: the hash of the index, which has those of all
            files.
        lengths: Number of records of each shard.
    """

    def __init__(
        self,
        folder: Folder,
        name: str,
        row: tuple[int, ...],
        dtype: np.dtype,
        progress_bar: bool = False,
    ) -> None:
        """See `open_records`."""
        self._folder = folder
        self._name = name
        self._progress_bar = progress_bar
        self.shape = (folder.facts["num_records"], *row)
        self.dtype = dtype
        self.digest = f"{name} {folder.digest}"
        self.lengths = folder.lengths

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
        folder = self._folder
        rows = self._mapped(range(self._folder.shards))
        if folder.shards == 1:
            return rows[: len(self)]
        records = np.concatenate(
            [rows[i * folder.rows :][:n] for i, n in enumerate(folder.lengths)]
        )
        records.flags.writeable = False
        return records

    def _mapped(self, numbers: range) -> np.ndarray:
        folder = self._folder
        names = [file_of(self._name, number) for number in numbers]
        size = math.prod(self.shape[1:]) * self.dtype.itemsize
        lengths = [size * folder.lengths[number] for number in numbers]
        folder.compare(names, lengths, progress_bar=self._progress_bar)
        memory = _one_behind_another(
            [folder.path / name for name in names], lengths, size * folder.rows
        )
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
        system.mmap.restype = ctypes.c_void_p
        number = ctypes.c_long
        system.mmap.argtypes = ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, number
        system.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
        size, fixed = len(paths) * step, 0x10  # MAP_FIXED of Linux, macOS and the BSDs
        start = system.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANON, -1, 0)
        self.complete = start != ctypes.c_void_p(-1).value
        if not self.complete:
            return
        # Not at exit, when JAX may still be reading.
        weakref.finalize(self, system.munmap, start, size).atexit = False
        for place, path, length in zip(
            range(start, start + size, step), paths, lengths, strict=True
        ):
            if length:
                with open(path, "rb") as file:
                    found = system.mmap(
                        place, length, mmap.PROT_READ, mmap.MAP_SHARED | fixed, file.fileno(), 0
                    )
                self.complete &= found == place
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (start, True),
        }
