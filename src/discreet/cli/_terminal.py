"""What the commands share in talking to people: errors, paragraphs, files."""

import dataclasses
import functools
import os
import shutil
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec

import typer

from discreet.storage import write_file

__all__ = [
    "Settings",
    "folder_for_results",
    "refusing",
    "say",
    "say_error",
    "say_lines",
    "settings",
    "spent",
    "width",
    "write_file",
]

P = ParamSpec("P")
WIDTH = 88


@dataclasses.dataclass
class Settings:
    """Options that come before the command's name, and how far the command has come.

    Attributes:
        debug: Show tracebacks.
        compilation_cache: Where compiled programs are kept; None: nowhere.
        spent: None while no budget is spent; then where its statement is to be found.
        arguments: The words of the command line, where it was started from one.
    """

    debug: bool = False
    compilation_cache: Path | None = None
    spent: str | None = None
    arguments: tuple[str, ...] | None = None


settings = Settings()


def spent(where: str) -> None:
    """From now on an error is no refusal: the budget is spent.

    Args:
        where: What has become of the statement, as the end of a sentence.
    """
    settings.spent = where


def refusing(command: Callable[P, None]) -> Callable[P, None]:
    """Turn errors into one paragraph on standard error and an exit code.

    ValueError and TypeError are our refusals of bad input, as long as no budget is spent: exit code 2. Anything else is a
    fault: exit code 1, and since its message may quote a cell, only its kind is shown. Ctrl-C: exit code 130. Each says
    whether the budget is spent. `--debug` shows the traceback.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        settings.spent = None
        try:
            command(*args, **kwargs)
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            if settings.spent is None:
                say_error("Stopped before the first step: nothing was spent.")
            else:
                say_error(f"Stopped by Ctrl-C. The fit ran and its budget is spent; {settings.spent}.")
            raise typer.Exit(130) from None
        except Exception as error:
            if settings.debug:
                traceback.print_exc()
            if settings.spent is not None:
                reason = error.strerror if isinstance(error, OSError) else None
                say_error(
                    f"The fit ran and its budget is spent; {settings.spent}. What failed afterwards: "
                    f"{type(error).__name__}{f' ({reason})' if reason else ''}. Add --debug to see more."
                )
                raise typer.Exit(1) from None
            if isinstance(error, ValueError | TypeError):
                say_error(f"Refused: {error}")
                raise typer.Exit(2) from None
            say_error(
                f"Stopped by an unexpected {type(error).__name__}. Its message is not shown, because it may quote the "
                "data; add --debug to see it."
            )
            raise typer.Exit(1) from None

    return wrapped


_WHOLE: Any = {"break_on_hyphens": False, "break_long_words": False}
"""Paths stay in one piece, so that they can be copied."""


def width() -> int:
    """Columns that text may fill: those of the terminal, if they are few."""
    return min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)


def say_error(text: str) -> None:
    """One wrapped paragraph on standard error."""
    typer.echo(textwrap.fill(" ".join(text.split()), width(), **_WHOLE), err=True)


def say(text: str = "") -> None:
    """Wrapped prose on standard output."""
    typer.echo(textwrap.fill(text, width(), **_WHOLE) if text else "")


def say_lines(text: str, **style: Any) -> None:
    """Each line wrapped by itself on standard output, its indentation kept.

    Args:
        text: What to say.
        style: Colour and weight, as for `typer.style`; plain where the output is no terminal, or NO_COLOR is set.
    """
    colour = False if os.environ.get("NO_COLOR") else None
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        filled = textwrap.fill(
            line,
            width(),
            subsequent_indent=indent + "  " if indent else "",
            **_WHOLE,
        )
        typer.secho(filled, color=colour, **style)


@contextmanager
def folder_for_results(path: Path) -> Iterator[None]:
    """Make sure that files can be written into a folder, before what they will hold has been paid for.

    Folders that were made here go again if an error leaves them empty.

    Raises:
        ValueError: Files cannot be written.
    """
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        try:
            write_file(path / ".discreet-was-here", "")
            (path / ".discreet-was-here").unlink()
        except OSError as error:
            raise ValueError(
                f"{path} cannot be written to ({error.strerror}): choose another folder by --out"
            ) from None
        yield
    except BaseException:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise
