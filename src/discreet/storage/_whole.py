"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast


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
