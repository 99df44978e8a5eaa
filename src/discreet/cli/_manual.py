"""`discreet manual`: manual pages, from what `--help` is made of.

click-man makes such pages too, but since typer carries a click of its own it finds no options, and it escapes nothing.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from discreet.cli._terminal import EXIT_CODES, refusing, say, write_file

# What roff would take for something else; a hyphen is made a minus, so that a command can be copied.
ESCAPES = {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti", '"': r"\(dq"}
ENVIRONMENT = {
    "DISCREET_COMPILATION_CACHE": "Folder that keeps compiled programs, as --compilation-cache names it.",
    "NO_COLOR": "If it is set, nothing is printed in colour.",
    "COLUMNS": "How many columns text may fill; beyond 88, paragraphs stay at that.",
}


def _names(ctx: typer.Context, incomplete: str) -> list[str]:
    """What the words of a command can be, for the completion of them."""
    names = [name for each in contexts(ctx.find_root().command) for name in _path(each)[1:]]
    return sorted({name for name in names if name.startswith(incomplete)})


Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[COMMAND]...", help="The command, such as: ledger show.", autocompletion=_names),
]
Out = Annotated[Path | None, typer.Option(help="Folder to write all pages to, in the place of showing one.")]


@refusing
def manual(command: Words = None, out: Out = None) -> None:
    """Show the manual page of a command, or write all pages into a folder.

    `discreet manual fit`

    `discreet manual --out ~/.local/share/man/man1`

    Afterwards `man discreet-fit` finds it, where ~/.local/bin is on the PATH. In a pipe the page comes as roff:

    `discreet manual ledger show | man -l -`
    """
    from discreet.cli._app import app

    found = {"-".join(path): page for path, page in pages(typer.main.get_command(app))}
    if out is not None:
        for name, page in found.items():
            write_file(out / f"{name}.1", page)
        say(f"{len(found)} pages are in {out}: man {out / 'discreet.1'}")
        return
    name = "-".join(["discreet", *(command or [])])
    if name not in found:
        raise ValueError(f"there is no command {' '.join(command or [])}: discreet --help lists what there is")
    if sys.stdout.isatty() and shutil.which("man"):
        subprocess.run(["man", "-l", "-"], input=found[name].encode(), check=False)
    else:
        typer.echo(found[name], nl=False)


def contexts(command: Any, parent: Any = None, name: str = "discreet") -> Iterator[Any]:
    """The context of a command and of all below it, in the order of the help."""
    context = typer.Context(command, info_name=name, parent=parent)
    yield context
    for below, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            yield from contexts(child, context, below)


def pages(root: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """The words of each command, and its manual page as roff."""
    every = [context.command_path for context in contexts(root)]
    for context in contexts(root):
        yield tuple(_path(context)), "\n".join(_page(context, every)) + "\n"


def _page(context: Any, every: list[str]) -> Iterator[str]:
    from importlib.metadata import version

    words, command = _path(context), context.command
    first, *rest = (command.help or "").split("\n\n")
    title = "-".join(words)
    # Names are not to be broken, nor words stretched.
    yield f'.TH {text(title.upper())} 1 "" "discreet {version("discreet")}" "discreet"'
    yield from (".nh", ".ad l")
    yield from (".SH NAME", f"{text(title)} \\- {text(' '.join(first.split()).rstrip('.'))}")
    yield from (".SH SYNOPSIS", rf"\fB{text(' '.join(words))}\fR {text(' '.join(_usage(context)))}")
    if rest:
        yield ".SH DESCRIPTION"
        yield from list(_paragraphs(rest))[1:]  # a heading begins a paragraph by itself
    arguments, options = [], []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            if parameter.param_type_name == "argument":
                arguments.append((record[0].split(" <")[0], record[1]))
            else:
                options.append(record)
    commands = [
        (f"discreet {path}".split(maxsplit=1)[1], child.get_short_help_str(1_000))
        for name, child in getattr(command, "commands", {}).items()
        if (path := f"{context.command_path} {name}") in every
    ]
    codes = [(str(code), meaning) for code, meaning in EXIT_CODES.items()]
    parts = {"COMMANDS": commands, "ARGUMENTS": arguments, "OPTIONS": options, "EXIT STATUS": codes}
    for heading, entries in {**parts, "ENVIRONMENT": list(ENVIRONMENT.items())}.items():
        if entries:
            yield f".SH {heading}"
        for term, meaning in entries:
            yield from (".TP", rf"\fB{text(term)}\fR", marked(meaning))
    near = [path for path in every if context.command_path in (path.rpartition(" ")[0], path)]
    near = [" ".join(words[:-1]), *near] if context.parent else near
    names = [path.replace(" ", "-") for path in near if path != context.command_path]
    yield from (".SH SEE ALSO", ", ".join(rf"\fB{text(name)}\fR(1)" for name in names))


def _path(context: Any) -> list[str]:
    above = [] if context.parent is None else _path(context.parent)
    return [*above, context.info_name]


def _usage(context: Any) -> Iterator[str]:
    """Arguments and the options that a command cannot do without, then what else it takes."""
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and parameter.param_type_name == "argument":
            name = record[0].split(" <")[0]
            yield name if parameter.required or name.startswith("[") else f"[{name}]"
        elif record is not None and parameter.required:
            yield record[0]
    yield "[OPTIONS]"
    if hasattr(context.command, "commands"):
        yield "COMMAND ..."


def _paragraphs(paragraphs: Sequence[str]) -> Iterator[str]:
    """Prose; a paragraph that is all in backticks is an example, and stays in one piece."""
    for paragraph in paragraphs:
        joined = " ".join(paragraph.split())
        example = re.fullmatch("`([^`]*)`", joined)
        if example:
            yield from (".PP", ".RS 4", ".nf", rf"\fB{text(example[1])}\fR", ".fi", ".RE")
        else:
            yield from (".PP", marked(joined))


def marked(prose: str) -> str:
    """A paragraph as roff, with words in backticks bold."""
    parts = enumerate(re.split("`([^`]*)`", " ".join(prose.split())))
    return "".join(rf"\fB{text(part)}\fR" if place % 2 else text(part) for place, part in parts)


def text(words: str) -> str:
    r"""Words as roff shows them again: escaped, beyond ASCII by their numbers, and never taken for a request.

    >>> print(text(".TH 'ε' \\n --out"))
    \&.TH \(aq\[u03B5]\(aq \en \-\-out
    """
    shown = "".join(ESCAPES.get(x) or (x if x.isascii() else rf"\[u{ord(x):04X}]") for x in words)
    return rf"\&{shown}" if shown.startswith(".") else shown
