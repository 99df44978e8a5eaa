"""Files: values in one file that holds no code, and files that are there whole or not at all.

An archive is an uncompressed zip of a JSON text and NumPy arrays. No pickle: reading makes numbers,
texts, containers, arrays, and objects of the kinds that the reader names, by the checks of their
own constructors. Whatever a file says, nothing in it is run. A file is written beside its place and
renamed, so that a process that dies leaves the old file or the new one.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import io
import json
import math
import numbers
import os
import secrets
import struct
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import quote

import numpy as np

try:
    import fcntl
except ImportError:
    fcntl = None

__all__ = [
    "Kinds",
    "exclusive",
    "kept_secret",
    "kind_of",
    "read_archive",
    "replacing",
    "write_archive",
    "write_file",
]

_HELD: dict[str, int] = {}  # folders in use, and by which thread


def kept_secret(path: Path) -> bytes:
    """32 secret bytes, the same every time; in a file of its owner's alone."""
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with replacing(path, private=True) as file:
                file.write(secrets.token_bytes(32))
        return path.read_bytes()
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written ({error.strerror}): choose another folder for the checkpoint"
        ) from None


@contextmanager
def exclusive(folder: Path | str | None) -> Iterator[None]:
    """Refuse a folder that another process or thread uses; None: there is no folder, and nothing to refuse. A thread may nest it.

    The operating system ends the lock with the process, however it dies. File systems without locks
    refuse nobody.

    Raises:
        ValueError: Another process or thread uses the folder.
        OSError: The folder cannot be made.
    """
    place = "" if folder is None else os.path.realpath(folder)
    used = (
        f"{folder} is in use: another process or thread runs a fit with this checkpoint. Wait until it ends, or choose another "
        "folder for another fit."
    )
    if _HELD.get(place, threading.get_ident()) != threading.get_ident():
        raise ValueError(used)
    if folder is None or fcntl is None or place in _HELD:
        yield
        return
    made = not os.path.exists(place)
    os.makedirs(place, mode=0o700, exist_ok=True)
    handle = os.open(place, os.O_RDONLY)
    try:
        with suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(used) from None
        _HELD[place] = threading.get_ident()
        yield
    finally:
        _HELD.pop(place, None)
        os.close(handle)
        if made:
            with suppress(OSError):  # Something was kept in it
                os.rmdir(place)


@contextmanager
def replacing(path: Path | str, *, private: bool = False) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` once all is written; after an error there is what was there before.

    Folders on the way are made. A private file is for its owner alone, from the first byte.

    Raises:
        OSError: It cannot be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            # Temporary files are for their owner only; results are for those whom the umask allows.
            if not private:
                mask = os.umask(0)
                os.umask(mask)
                os.chmod(temporary, 0o666 & ~mask)
            yield cast(BinaryIO, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_file(path: Path, content: bytes | str) -> Path:
    """Write a whole file or nothing: a temporary file beside it takes its place at the end."""
    with replacing(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)
    return path


Kinds = Sequence[type]
"""Frozen dataclasses and enums that a file may hold objects of."""

_INDEX = "index.json"
_NUMBERS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
# Errors of zipfile, json and NumPy on damaged files.
_DAMAGED = (
    AttributeError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    LookupError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    RuntimeError,
    TypeError,
    ValueError,
)


def write_archive(
    path: Path | str, what: str, version: int, content: Any, kinds: Kinds, *, private: bool = False
) -> Path:
    """Write a value into one file: whole, or not at all.

    Args:
        path: The file; one that is there is replaced.
        what: Description of the content, in a few words, as for `read_archive`.
        version: Version of the content's format.
        content: None, Booleans, numbers, texts, dates, lists, tuples, mappings from texts, NumPy
            arrays of numbers, and objects of `kinds`, nested at will.
        kinds: As in `read_archive`.
        private: Permit only the owner to read it.

    Raises:
        TypeError: The content holds something else. Nothing is written.
        OSError: The file cannot be written.
    """
    arrays: dict[str, np.ndarray] = {}
    index = {"what": what, "version": version, "content": _to_json(content, "", kinds, arrays)}
    text = json.dumps(index, indent=1, ensure_ascii=False, allow_nan=False)
    with (
        replacing(path, private=private) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        # The same moment for all: a file says when it was made only through its own date.
        archive.writestr(zipfile.ZipInfo(_INDEX), text)
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
    return Path(path)


def read_archive(path: Path | str | bytes, what: str, version: int, kinds: Kinds) -> Any:
    """Read what `write_archive` wrote, to the bit.

    Guarantee: nothing that the file holds is run, and no more memory is used than a few times its
    size.

    `path` is the file or its content, `version` the newest form that the caller knows.

    Raises:
        ValueError: The file is absent, damaged, incomplete, something else, or of a newer form.
    """
    file: Any = io.BytesIO(path) if isinstance(path, bytes) else Path(path)
    path = "The file" if isinstance(path, bytes) else file
    try:
        with zipfile.ZipFile(file) as archive:
            size = file.getbuffer().nbytes if isinstance(file, io.BytesIO) else file.stat().st_size
            members = _members(archive, size)
            index = json.loads(members.pop(_INDEX))
            said = index["what"]
            form = index["version"]
        known = said == what and type(form) is int and form <= version
        # Each member is taken once, and none is left.
        content = _from_json(index["content"], kinds, members) if known else None
        if known and members:
            raise ValueError("more than the index says")
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): check the path") from None
    except _DAMAGED as error:
        if not zipfile.is_zipfile(file):
            raise ValueError(
                f"{path} is no {what}, or only a part of one: give the path of a file that discreet saved, and copy it again if "
                "it was cut off on the way"
            ) from None
        raise ValueError(
            f"{path} is damaged or no {what} ({type(error).__name__}): copy it again from where it was saved"
        ) from None
    if said != what or type(form) is not int:
        raise ValueError(
            f"{path} holds a {said}, not a {what}: load it as what it is, or give the path of a {what}"
        )
    if form > version:
        raise ValueError(
            f"{path} was written by a newer discreet (version {form} of a {what}; this one knows {version}): upgrade discreet"
        )
    return content


def kind_of(path: Path | str) -> str:
    """What a file of `write_archive` says that it holds; empty where it says nothing, as `read_archive` will explain."""
    try:
        with zipfile.ZipFile(path) as archive:
            # Compressed, a small file may hold more than the memory does.
            stored = archive.getinfo(_INDEX).compress_type == zipfile.ZIP_STORED
            return str(json.loads(archive.read(_INDEX))["what"]) if stored else ""
    except (OSError, *_DAMAGED):
        return ""


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, bytes]:
    """The members of the archive, after their checksums. Stored uncompressed, their total size is at most the file's."""
    found = archive.infolist()
    if (
        any(x.compress_type != zipfile.ZIP_STORED for x in found)
        or sum(x.file_size for x in found) > size
    ):
        raise ValueError("larger than its file")
    return {x.filename: archive.read(x) for x in found}


def _to_json(value: Any, place: str, kinds: Kinds, arrays: dict[str, np.ndarray]) -> Any:
    def of(part: Any, name: object) -> Any:
        return _to_json(part, f"{place}/{name}" if place else str(name), kinds, arrays)

    if isinstance(value, enum.Enum) and type(value) in kinds:
        return {"enum": [type(value).__name__, value.name]}
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else {"number": str(float(value))}
    if type(value) is datetime.date:
        return {"date": value.isoformat()}
    if isinstance(value, np.ndarray):
        return {"array": _keep(value, place, arrays)}
    if type(value) is list:
        return [of(part, i) for i, part in enumerate(value)]
    if type(value) is tuple:
        return {"tuple": [of(part, i) for i, part in enumerate(value)]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: of(part, quote(key, safe="")) for key, part in value.items()}}
    if dataclasses.is_dataclass(value) and type(value) in kinds:
        parts = {
            field.name: of(getattr(value, field.name), field.name)
            for field in dataclasses.fields(value)
        }
        return {"object": [type(value).__name__, parts]}
    raise TypeError(
        f"{place or 'The content'} is a {type(value).__name__}, which a file without code cannot hold."
    )


def _keep(array: np.ndarray, place: str, arrays: dict[str, np.ndarray]) -> list[str]:
    """Put an array aside and say where, and its dtype: NumPy's files do not know bfloat16 and its kin."""
    if array.dtype.kind not in "biufcV" or array.dtype.names is not None:
        raise TypeError(
            f"{place or 'The content'} is an array of {array.dtype}, and a file holds numbers only."
        )
    name = f"{place or 'array'}.npy"
    arrays[name] = array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array
    return [name, str(array.dtype)]


def _from_json(value: Any, kinds: Kinds, members: dict[str, bytes]) -> Any:
    def of(part: Any) -> Any:
        return _from_json(part, kinds, members)

    if isinstance(value, list):
        return [of(part) for part in value]
    if not isinstance(value, dict):
        return value
    ((tag, inner),) = value.items()
    match tag:
        case "number":
            return _NUMBERS[inner]
        case "date":
            return datetime.date.fromisoformat(inner)
        case "tuple":
            return tuple(of(part) for part in inner)
        case "dict":
            return {key: of(part) for key, part in inner.items()}
        case "array":
            return _array(members.pop(inner[0]), np.dtype(inner[1]))
        case "enum":
            return _kind(inner[0], kinds)[inner[1]]
        case "object":
            return _kind(inner[0], kinds)(**{key: of(part) for key, part in inner[1].items()})
    raise ValueError(f"an unknown {tag}")


def _kind(name: str, kinds: Kinds) -> Any:
    return {kind.__name__: kind for kind in kinds}[name]


def _array(content: bytes, dtype: np.dtype) -> np.ndarray:
    """The array of an .npy file. Its length is checked before memory is asked for."""
    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("another form of .npy")
    shape, _, stored = np.lib.format.read_array_header_1_0(file)
    if stored.hasobject or math.prod(shape) * stored.itemsize != len(content) - file.tell():
        raise ValueError("an array of another length")
    file.seek(0)
    array = np.lib.format.read_array(file, allow_pickle=False)
    if array.dtype == dtype:
        return array
    if dtype.kind != "V" or array.dtype != np.dtype(f"u{dtype.itemsize}"):
        raise ValueError("an array of another dtype")
    return array.view(dtype)
