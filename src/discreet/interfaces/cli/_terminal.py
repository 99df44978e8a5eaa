"""Input and output of the commands: errors, exit codes, paragraphs, JSON, files."""

import copy
import dataclasses
import errno
import functools
import importlib.util
import inspect
import io
import itertools
import json
import os
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import IO, Any, ParamSpec

import typer
from typer.core import TyperCommand, TyperGroup

import discreet as dp
from discreet._validate import MissingPackageError, RefusedError, near

P = ParamSpec("P")
WIDTH = 88
EXIT_CODES = {
    0: "Done.",
    1: "Not done, or the answer is no: no proof, a fault, a full disk, a broken pipe.",
    2: "Bad input, or budget exceeded: refused, and nothing was spent.",
    70: "One of several processes failed. The budget may be spent.",
    75: "One of several processes failed: start all of them again, with the same command.",
    130: "Stopped by Ctrl-C or SIGTERM.",
}
# Typer's usage error, which has no public name if typer includes its own click.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]


@dataclasses.dataclass
class Settings:
    """Options that come before the command's name, and how far the command has come."""

    debug: bool = False
    compilation_cache: Path | None = None  # Folder of compiled programs; None: no cache
    # None while no budget is spent; then where its statement is to be found
    spent: str | None = None
    done: str = "The fit ran"  # The action that spent it
    claimed: int = 0  # Number of claimed keys when the command started
    # The words of the command line, where it was started from one
    arguments: tuple[str, ...] | None = None
    document: IO[str] | None = None  # Stream of the JSON document, if any; None: standard output
    continue_with: str | None = None  # The command that continues the running fit, if there is one
    silent: bool = False  # True if another process prints the messages


settings = Settings()


def spent(where: str, done: str = "The fit ran") -> None:
    """From now on an error is no refusal: the budget is spent; `where` ends a sentence on what has become of the statement."""
    settings.spent = where
    settings.done = done


PLAN_IS_SPENT = "count the ε of the whole plan as spent"


def _num_claimed() -> int:
    # What is not loaded yet has claimed nothing, and `--help` loads no JAX.
    return dp.random.num_claimed() if "discreet.privacy.random" in sys.modules else 0


def has_begun() -> bool:
    """True if the command has spent a budget, or a secret key was claimed since it started, which comes just before the debit."""
    if settings.spent is None and _num_claimed() > settings.claimed:
        spent(f"no statement was written, so {PLAN_IS_SPENT}", "A release began")
    return settings.spent is not None


def continue_hint() -> str:
    """The command that continues the running fit, as a sentence; empty where there is none."""
    return f" Continue with: {settings.continue_with}" if settings.continue_with else ""


def refusing(command: Callable[P, None]) -> Callable[P, None]:
    """Turn errors into one paragraph on standard error and an exit code.

    ValueError and TypeError are our refusals of bad input, as long as no budget is spent, and so is
    a path that leads nowhere: exit code 2. A full disk, or an output that cannot be written: exit
    code 1. Anything else is a fault: exit code 1, and since its message may quote a cell, only its
    kind is shown. Ctrl-C: exit code 130. Each says whether the budget is spent: also where it ended
    between the debit and the release, of which the command knows nothing yet, and a claimed key
    does. `--debug` shows the traceback.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        settings.spent = None
        settings.claimed = _num_claimed()
        try:
            with _only_json() if kwargs.get("as_json") else nullcontext():
                command(*args, **kwargs)
        except (typer.Exit, typer.Abort):
            raise
        except KeyboardInterrupt:
            what = "Stopped before the first step: nothing was spent."
            if has_begun():
                what = (
                    f"Stopped by Ctrl-C. {settings.done} and its budget is spent; {settings.spent}."
                )
            say_error(what + continue_hint())
            raise typer.Exit(130) from None
        except Exception as error:
            if settings.debug:
                traceback.print_exc()
            raise typer.Exit(_answer(error)) from None

    return wrapped


def with_options_of(kind: type[Any]) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Let a command take its options as one object, of a dataclass whose fields are the options, annotated for typer."""

    def made(command: Callable[[Any], None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapped(**given: Any) -> None:
            command(kind(**given))

        vars(wrapped)["__signature__"] = inspect.signature(kind)
        return wrapped

    return made


@contextmanager
def _only_json() -> Iterator[None]:
    """Keep standard output for the document: what a user's model prints goes to standard error."""
    if settings.document is not None:  # `resume` runs another command
        yield
        return
    settings.document = sys.stdout
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        settings.document = None


def _answer(error: Exception) -> int:
    """Say what went wrong; the exit code."""
    reason = error.strerror if isinstance(error, OSError) else None
    # A ledger that refuses in the last moment, since another process has spent what was left,
    # debits nothing.
    refused = (
        dp.ledger.SpentError
        if settings.spent is not None
        else (dp.ledger.SpentError, dp.ledger.LedgerError)
    )
    if not isinstance(error, refused) and has_begun():
        failed = (
            f"{type(error).__name__}{f' ({reason})' if reason else ''}. Add --debug to see more."
        )
        if isinstance(error, RefusedError):
            failed = str(error)
        say_error(
            f"{settings.done} and its budget is spent; {settings.spent}. What failed afterwards: {failed}{continue_hint()}"
        )
        return 1
    if isinstance(error, UsageError):
        context = getattr(error, "ctx", None)
        command = "discreet" if context is None else context.command_path
        message = str(error.format_message()).replace("Value error, ", "")  # pyright: ignore[reportAttributeAccessIssue]
        kind = type(error).__name__
        if kind == "MissingParameter":
            message = _all_missing(context) or message
        if kind == "NoSuchOption":
            message = _no_such_option(error)
        elif (
            context is not None
            and WORDS in context.meta
            and kind in ("MissingParameter", "UsageError")
        ):
            message = _stray_table(context, message)
        not_parsed = "Input should be a valid number, unable to parse string as a number"
        message = message.replace(
            not_parsed, "give a number, with a point before its decimals, as in 1.0"
        )
        stop = "" if message.endswith((".", "?")) else "."
        say_error(f"Refused: {message}{stop} For the options, run: {command} --help")
        return 2
    if isinstance(error, ValueError | TypeError):
        # What is no RefusedError reaches other processes without its text, so this one says it.
        settings.silent = settings.silent and isinstance(error, RefusedError)
        say_error(f"Refused: {error}")
        return 2
    if isinstance(error, MissingPackageError):
        say_error(f"Stopped: {error}")
        return 1
    if isinstance(error, BrokenPipeError):
        return 1
    if isinstance(error, OSError) and reason:
        what = "the output" if error.filename is None else str(error.filename)
        if isinstance(error, _WRONG_PLACES) or error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            say_error(
                f"Refused: {what} cannot be read or written ({reason}): check the path, or choose another"
            )
            return 2
        say_error(
            f"Stopped: {what} cannot be read or written ({reason}). Nothing was spent. Fix this and run the command again."
        )
        return 1
    say_error(
        f"Stopped by an unexpected {type(error).__name__}. Its message is not shown, because it may quote the "
        "data; add --debug to see it."
    )
    return 1


def _no_such_option(error: Any) -> str:
    """Which option is not known, and which may be meant: one that begins so, or one that is spelt alike."""
    known = [] if error.ctx is None else [name for x in error.ctx.command.params for name in x.opts]
    wrong = error.option_name
    if error.ctx is not None and (instead := _instead(error.ctx, wrong)):
        return f"No such option: {wrong}. {instead}"
    begins = [name for name in known if len(wrong) > 3 and name.startswith(wrong)]
    meant = f"did you mean {' or '.join(begins)}?" if begins else near(wrong, known)
    return f"No such option: {wrong}" + (f". {meant[0].upper()}{meant[1:]}" if meant else "")


WORDS = "discreet.words"
_TABLE = ("--data", "--table")


def _instead(context: Any, wrong: str) -> str:
    """What to write for an option that is an argument of this command, or the table's under another name; empty if neither."""
    value = "FILE"
    written = f"{wrong} FILE"
    for word, following in itertools.pairwise([*context.meta.get(WORDS, []), "-"]):
        name, equals, given = word.partition("=")
        if name == wrong:
            value = given if equals else "FILE" if following.startswith("-") else following
            written = f"{wrong}{equals or ' '}{value}"
            break
    names = {x.opts[0].lstrip("-") for x in context.command.params}
    arguments = {
        (x.metavar or x.opts[0]).lower()
        for x in context.command.params
        if not x.opts[0].startswith("-")
    }
    if wrong in _TABLE and "data" in names:
        return f"Write --data {value} for {written}"
    if wrong.lstrip("-") in arguments or (wrong in _TABLE and "table" in arguments):
        return f"Write {value} alone for {written}"
    return NO_TABLE.format(written) if wrong in _TABLE and context.command.name == "plan" else ""


NO_TABLE = "discreet plan reads no table, so leave {} out"


def _stray_table(context: Any, message: str) -> str:
    """The message on a command line with a table where none is taken, after what to write."""
    _, stray, _ = context.command.make_parser(context).parse_args([*context.meta[WORDS]])
    if not stray:
        return message
    if context.command.name == "plan":
        instead = NO_TABLE.format(stray[0])
    elif any("--data" in x.opts for x in context.command.params) and not context.params.get("data"):
        instead = f"Write --data {stray[0]} for {stray[0]}"
        message = message.replace("Missing --data, ", "Missing ").replace("Missing --data", "")
    else:
        return message
    return f"{instead}. {'' if message.startswith('Got unexpected') else message}".rstrip(". ")


def _all_missing(context: Any) -> str:
    """All missing parameters of a command line; empty if none. Given ones are in the context before others are missed."""
    if context is None:
        return ""
    command = context.command
    given = context.params
    required = [x for x in command.params if x.required and x.name not in given]
    missing = [
        x.opts[0] if x.opts[0].startswith("-") else x.metavar or x.human_readable_name
        for x in required
    ]
    if not missing:
        return ""
    if command.name == "fit" and not (given.get("model") or given.get("formula")):
        missing.append("--model or --formula")
    if command.name == "fit" and not given.get("epsilon"):
        # It may be left out where the data are counts that were released.
        missing.append("--epsilon")
    if {"schema", "bounds"} <= {x.name for x in command.params} and not (
        given.get("schema") or given.get("bounds")
    ):
        missing.append("--schema or --bounds")
    return f"Missing {', '.join(missing)}"


_WRONG_PLACES = (
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)
_WHOLE: Any = {"break_on_hyphens": False, "break_long_words": False}
"""Paths stay in one piece, so that they can be copied."""


def width() -> int:
    """Columns that text may fill: those of the terminal, if they are few."""
    return min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)


def on_terminal() -> bool:
    """True if a person sees progress and can answer: not in a pipe, a log or a notebook's shell."""
    return sys.stderr.isatty() and sys.stdin is not None and sys.stdin.isatty()


def say_error(text: str) -> None:
    """One wrapped paragraph on standard error."""
    if settings.silent:
        return
    with suppress(OSError):  # nobody is there to be told
        typer.echo(textwrap.fill(" ".join(text.split()), width(), **_WHOLE), file=sys.stderr)


def say(text: str = "") -> None:
    """Wrapped prose on standard output."""
    say_text(textwrap.fill(text, width(), **_WHOLE) if text else "")


def say_text(text: str) -> None:
    """A text as it is on standard output. Left to itself typer writes UTF-8 where the terminal says that it shows ASCII."""
    typer.echo(text, file=sys.stdout)


def say_json(what: str, facts: Mapping[str, Any]) -> None:
    """One JSON document on standard output, in ASCII, so that it is the same whatever the terminal can show.

    A `format` among the facts takes the place of the command's. Paths are written as text.
    """
    content = {"format": f"discreet {what}, version 1", **facts}
    typer.echo(
        json.dumps(content, indent=2, allow_nan=False, default=os.fspath), file=settings.document
    )


def say_lines(text: str, **style: Any) -> None:
    """Each line wrapped by itself on standard output, its indentation kept.

    `style` is colour and weight, as for `typer.style`; plain where the output is no terminal, or
    NO_COLOR is set.
    """
    colour = False if os.environ.get("NO_COLOR") else None
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        filled = textwrap.fill(
            line, width(), subsequent_indent=indent + "  " if indent else "", **_WHOLE
        )
        typer.secho(filled, file=sys.stdout, color=colour, **style)


def say_files(files: Iterable[Path]) -> None:
    """Print the files written."""
    say("Files:")
    for file in files:
        say_text(f"  {file}")


def write_file(path: Path, content: bytes | str) -> Path:
    """Write a whole file or nothing."""
    return dp.storage.write_file(path, content)


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Write facts to a file."""
    return write_file(
        path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    )


PICTURES = (".png", ".pdf", ".svg")


def check_file(
    file: Path | None,
    option: str = "--out",
    endings: tuple[str, ...] = (),
    *,
    overwrite: bool = True,
    makes_folder: bool = False,
) -> None:
    """Refuse a file to be written that would only fail after minutes of work."""
    if file is None:
        return
    if endings and file.suffix not in endings:
        raise ValueError(f"{option} is {file}: give it the ending {' or '.join(endings)}")
    if file.is_dir():
        raise ValueError(f"{option} {file} is a folder: give the name of a file in it")
    if file.exists() and not overwrite:
        raise ValueError(
            f"{file} already exists: choose another {option}, or replace it with --overwrite"
        )
    if not makes_folder and not file.parent.is_dir():
        raise ValueError(
            f"{option} is {file}, but the folder {file.parent} does not exist: create it, or choose another"
        )
    if endings == PICTURES and importlib.util.find_spec("matplotlib") is None:
        raise ValueError(f"{option} needs matplotlib: pip install 'discreet[plot]'")


@contextmanager
def folder_for_results(path: Path, room: int = 0) -> Iterator[None]:
    """Make sure that files can be written into a folder, before what they will hold has been paid for.

    A file holds `room` bytes of the disk until `give_room` removes it. Folders that were made here
    go again if an error leaves them empty.
    """
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        try:
            write_file(path / _ROOM, "")
            if room:
                _reserve(path / _ROOM, room)
            else:
                give_room(path)
        except OSError as error:
            give_room(path)
            raise ValueError(
                f"{path} cannot be written to ({error.strerror}): choose another folder by --out"
            ) from None
        yield
        give_room(path)
    except BaseException:
        give_room(path)
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


_ROOM = ".discreet-was-here"


def _reserve(file: Path, room: int) -> None:
    """Make a file so long that the disk holds its bytes."""
    with file.open("wb") as handle:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle.fileno(), 0, room)
        else:
            handle.write(bytes(room))


def give_room(path: Path) -> None:
    """Remove what `folder_for_results` reserved in a folder, for the results to take its place."""
    with suppress(OSError):
        (path / _ROOM).unlink()


class Command(TyperCommand):
    """A command that keeps its words, by which an error says what to write instead."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the words, and parse them."""
        ctx.meta[WORDS] = [*args]
        return super().parse_args(ctx, args)


class BriefHelp(Command):
    """A command with many options: --help has the `common` ones on one screen, --help-all has all that there is to say."""

    common = (
        "data",
        "model",
        "formula",
        "family",
        "target",
        "bounds",
        "person",
        "schema",
        "epsilon",
        "delta",
        "ledger",
        "dry_run",
        "out",
    )

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Words for the command, or --help-all."""
        if "--help-all" in args and not ctx.resilient_parsing:
            typer.echo(super().get_help(ctx))
            ctx.exit()
        return super().parse_args(ctx, args)

    def get_help(self, ctx: Any) -> str:
        """The first sentences of the common options, after the first two paragraphs and before where the rest is."""
        whole: Any = copy.copy(self)
        whole.add_help_option = False
        whole.help = "\n\n".join((self.help or "").split("\n\n")[:2])
        others = len(self.params) - len(self.common)
        whole.epilog = (
            f"{ctx.command_path} --help-all lists {others} more options, and says more of these."
        )
        shown: list[Any] = [
            copy.copy(option) for option in self.params if option.name in self.common
        ]
        whole.params = shown
        for option in shown:
            option.help = re.split(r"(?<=\.) (?=[A-Z])", option.help or "", maxsplit=1)[0]
        return Command.get_help(whole, ctx)


class Commands(TyperGroup):
    """Commands under one name, with our errors in the place of typer's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Words for a command; without any, the help is printed and the exit code is 2."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def main(self, *args: Any, **options: Any) -> Any:
        """Run a command line and end the process with its exit code."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        code: int | None = None

        @refusing
        def run() -> None:
            nonlocal code
            code = super(Commands, self).main(*args, **{**options, "standalone_mode": False})

        try:
            run()
        except typer.Exit as stop:
            code = stop.exit_code
        for stream in (sys.stdout, sys.stderr):
            code = code or (0 if stream is None or _flush(stream) else 1)
        sys.exit(code or 0)


def _flush(stream: Any) -> bool:
    """Write what is left; False where nobody reads it, which the interpreter would otherwise complain about when it ends."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True
