"""The file: one JSON object a line, each with the hash of the line before; appended under a lock and on disk before it counts."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

Entry = Mapping[str, Any]


class LedgerError(ValueError):
    """A ledger that cannot be read, is not one, or was changed."""


def create(path: Path, content: Entry) -> None:
    """Begin a file with its first entry.

    Raises:
        LedgerError: the file is there already.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
    except FileExistsError:
        raise LedgerError(
            f"{path} exists already: a ledger is begun once. Go on with it, or choose another name."
        ) from None
    except OSError as error:
        raise LedgerError(
            f"{path} cannot be written ({error.strerror}). Choose a folder that is there and yours."
        ) from None
    try:
        with _locked(handle, path):
            _write(handle, _line([], content))
    finally:
        os.close(handle)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read(path: Path) -> list[Entry]:
    """All entries, checked.

    Raises:
        LedgerError: a line that is no entry, or not the one that was written.
    """
    with contextlib.closing(_Opened(path, os.O_RDONLY)) as file:
        return file.entries()


@contextlib.contextmanager
def appending(path: Path) -> Iterator[_Opened]:
    """The file, locked against everybody else who appends."""
    with contextlib.closing(_Opened(path, os.O_RDWR | os.O_APPEND)) as file, _locked(file.handle, path):
        if not os.path.samestat(os.fstat(file.handle), os.stat(path)):
            raise LedgerError(f"{path} was replaced by another file while this one waited. Try again.")
        yield file


class _Opened:
    def __init__(self, path: Path, how: int) -> None:
        self.path = path
        if path.is_dir():
            raise LedgerError(
                f"{path} is a folder, and a ledger is a file. Name one that `discreet ledger open` began."
            )
        try:
            self.handle = os.open(path, how)
        except OSError as error:
            remedy = (
                "Begin one by Ledger.create or `discreet ledger open`" if not path.exists() else "Check its permissions"
            )
            raise LedgerError(f"The ledger {path} cannot be opened ({error.strerror}). {remedy}.") from None

    def close(self) -> None:
        os.close(self.handle)

    def entries(self) -> list[Entry]:
        text = self._bytes()
        # What does not end in a new line was being written when its writer died, before it counted.
        lines = text[: text.rfind(b"\n") + 1].splitlines()
        if not lines:
            raise LedgerError(
                f"{self.path} is empty: it is no ledger. Begin one by Ledger.create or `discreet ledger open`."
            )
        found: list[Entry] = []
        for number, line in enumerate(lines):
            found.append(self._checked(number, line, found))
        return found

    def append(self, entries: Sequence[Entry], content: Entry) -> Entry:
        """One more, after the `entries` that are there; on the disk when this returns."""
        text = self._bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            os.ftruncate(self.handle, whole)
        line = _line(entries, content)
        _write(self.handle, line)
        return json.loads(line)

    def _bytes(self) -> bytes:
        parts, place = [], 0
        while part := os.pread(self.handle, 2**20, place):
            parts.append(part)
            place += len(part)
        return b"".join(parts)

    def _checked(self, number: int, line: bytes, before: Sequence[Entry]) -> Entry:
        remedy = "Restore the file from a copy: what was spent cannot be told from a changed one."
        try:
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise TypeError
        except (ValueError, TypeError):
            raise LedgerError(f"Line {number + 1} of {self.path} is no entry of a ledger. {remedy}") from None
        rest = {name: value for name, value in entry.items() if name != "hash"}
        previous = before[-1]["hash"] if before else ""
        if entry.get("number") != number or entry.get("previous") != previous or entry.get("hash") != _hash(rest):
            raise LedgerError(
                f"Line {number + 1} of {self.path} is not the one that was written: its hash, or that of the line before, does "
                f"not fit. {remedy}"
            )
        return entry


@contextlib.contextmanager
def _locked(handle: int, path: Path) -> Iterator[None]:
    if fcntl is None:
        raise LedgerError(f"{path} cannot be locked on this system, so two processes could both spend the last of it.")
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)


def _line(entries: Sequence[Entry], content: Entry) -> bytes:
    rest = {
        "number": len(entries),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **content,
        "previous": entries[-1]["hash"] if entries else "",
    }
    return _canonical({**rest, "hash": _hash(rest)}) + b"\n"


def _hash(rest: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(rest)).hexdigest()


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _write(handle: int, line: bytes) -> None:
    while line:
        line = line[os.write(handle, line) :]
    os.fsync(handle)
