"""`discreet resume`: a fit that died goes on."""

import hashlib
import json
import os
import secrets
import shlex
from pathlib import Path
from typing import Annotated

import typer

from discreet.cli._options import AsJson
from discreet.cli._terminal import refusing, settings, write_file

COMMAND = "command.json"
CHECKPOINT = "checkpoint.discreet"
STATEMENTS = "statements.sha256"

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="What --checkpoint named.")]


@refusing
def resume(folder: Folder, as_json: AsJson = False) -> None:
    """Continue a fit that was started with --checkpoint and stopped: by Ctrl-C, a crash or a full disk.

    `discreet resume saved`

    Runs the same command again, in the folder where it was started. The result has the same bits as that of a fit that was
    never stopped, and the budget is spent once.
    """
    from discreet.cli._app import app

    try:
        kept = json.loads((folder / COMMAND).read_text(encoding="utf-8"))
        arguments, where = [str(word) for word in kept["arguments"]], Path(kept["folder"])
    except (OSError, ValueError, LookupError, TypeError):
        raise ValueError(
            f"{folder} holds no fit that was begun with --checkpoint: check the path. A fit of a Python program "
            "goes on by running the program again."
        ) from None
    facts = (folder / COMMAND).stat()
    if hasattr(os, "getuid") and (facts.st_uid != os.getuid() or folder.stat().st_mode & 0o022):
        raise ValueError(
            f"others can write into {folder}, and what is kept there is run: run chmod 700 {folder} if it is yours"
        )
    if not where.is_dir():
        raise ValueError(
            f"{where}, where the fit was begun, is gone: run the fit's command again from where its table is"
        )
    settings.continue_with = f"discreet resume {shlex.quote(str(folder))}"
    os.chdir(where)
    if as_json and "--json" not in arguments:
        arguments.append("--json")
    settings.arguments = tuple(arguments)
    app(args=arguments, prog_name="discreet")


def remember(checkpoint: Path) -> None:
    """Keep the command that is running, for `resume`."""
    checkpoint.mkdir(mode=0o700, parents=True, exist_ok=True)
    if settings.arguments is not None and not (checkpoint / CHECKPOINT).exists():
        kept = {"arguments": settings.arguments, "folder": str(Path.cwd())}
        write_file(checkpoint / COMMAND, json.dumps(kept, indent=2, ensure_ascii=False) + "\n")
    if (checkpoint / COMMAND).exists() and settings.continue_with is None:
        settings.continue_with = f"discreet resume {shlex.quote(str(checkpoint))}"


def note_statement(checkpoint: Path | None, content: str) -> None:
    """Record the hash of a statement before it is written, so that the same fit may replace it when it continues.

    Hashes of earlier statements stay: a process can die between this and the writing of the statement itself.
    """
    if checkpoint is not None:
        write_file(
            checkpoint / STATEMENTS,
            "".join(f"{line}\n" for line in (*_statements(checkpoint), _hash(content.encode("utf-8")))),
        )


def is_own_statement(checkpoint: Path | None, file: Path) -> bool:
    """Whether the fit that is kept in the checkpoint wrote this statement."""
    return checkpoint is not None and _hash(file.read_bytes()) in _statements(checkpoint)


def _statements(checkpoint: Path) -> list[str]:
    file = checkpoint / STATEMENTS
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def kept_secret(path: Path) -> bytes:
    """32 secret bytes, the same every time; in a file of its owner's alone."""
    from discreet.storage import replacing

    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with replacing(path, private=True) as file:
                file.write(secrets.token_bytes(32))
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror}): choose another --checkpoint") from None
