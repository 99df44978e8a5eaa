"""What the commands share in talking to people: errors, paragraphs, files."""

import dataclasses
import functools
import os
import tempfile
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

import typer

P = ParamSpec("P")
WIDTH = 88


@dataclasses.dataclass
class Settings:
    """Options that come before the command's name."""

    debug: bool = False


settings = Settings()


def refusing(command: Callable[P, None]) -> Callable[P, None]:
    """Turn errors into one paragraph on standard error and an exit code.

    ValueError and TypeError are our refusals of bad input: exit code 2. Anything else is a fault: exit code 1, and since
    its message may quote a cell, only its kind is shown. `--debug` shows the traceback of either.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (typer.Exit, typer.Abort, KeyboardInterrupt):
            raise
        except Exception as error:
            if settings.debug:
                traceback.print_exc()
            if isinstance(error, ValueError | TypeError):
                say_error(f"Refused: {error}")
                raise typer.Exit(2) from None
            say_error(
                f"Stopped by an unexpected {type(error).__name__}. Its message is not shown, because it may quote the "
                "data; add --debug to see it."
            )
            raise typer.Exit(1) from None

    return wrapped


def say_error(text: str) -> None:
    """One wrapped paragraph on standard error."""
    typer.echo(textwrap.fill(" ".join(text.split()), WIDTH), err=True)


def say(text: str = "") -> None:
    """Wrapped prose on standard output."""
    typer.echo(textwrap.fill(text, WIDTH) if text else "")


def say_lines(text: str) -> None:
    """Each line wrapped by itself on standard output, its indentation kept."""
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        typer.echo(textwrap.fill(line, WIDTH, subsequent_indent=indent + "  " if indent else ""))


def make_folder(path: Path) -> None:
    """Make sure that files can be written into a folder, before what they will hold has been paid for.

    Raises:
        ValueError: They cannot.
    """
    try:
        write_file(path / ".discreet-was-here", "")
        (path / ".discreet-was-here").unlink()
    except OSError as error:
        raise ValueError(f"{path} cannot be written to ({error.strerror}): choose another folder by --out") from None


def write_file(path: Path, content: bytes | str) -> Path:
    """Write a whole file or nothing: a temporary file beside it takes its place at the end."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path
