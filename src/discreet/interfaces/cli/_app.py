"""The `discreet` command: all commands in one application."""

from pathlib import Path
from typing import Annotated

import typer

from discreet.interfaces.cli._account import account
from discreet.interfaces.cli._audit import audit
from discreet.interfaces.cli._check import check
from discreet.interfaces.cli._convert import convert
from discreet.interfaces.cli._demo import demo
from discreet.interfaces.cli._describe import describe
from discreet.interfaces.cli._explain import explain
from discreet.interfaces.cli._fit import fit
from discreet.interfaces.cli._ledger import ledger
from discreet.interfaces.cli._plan import plan
from discreet.interfaces.cli._predict import predict
from discreet.interfaces.cli._report import report
from discreet.interfaces.cli._run import resume
from discreet.interfaces.cli._schema import schema
from discreet.interfaces.cli._score import score
from discreet.interfaces.cli._synth import synth
from discreet.interfaces.cli._terminal import EXIT_CODES, BriefHelp, Command, Commands, settings
from discreet.interfaces.cli._verify import verify

app = typer.Typer(
    name="discreet",
    cls=Commands,
    no_args_is_help=True,
    # Tracebacks with local variables would print cells.
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"discreet {version('discreet')}")
        raise typer.Exit


@app.callback(
    epilog=f"Exit codes: {' '.join(f'{code}: {meaning}' for code, meaning in EXIT_CODES.items())}"
)
def discreet(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    compilation_cache: Annotated[
        Path | None,
        typer.Option(
            envvar="DISCREET_COMPILATION_CACHE",
            help="Folder for compiled programs, so that the next fit of the same model and shapes starts sooner. It contains "
            "shapes, so the exact number of rows, and public numbers, but no records. Programs are run from it: "
            "nobody else may "
            "write there.",
        ),
    ] = None,
) -> None:
    """Fit statistical models under differential privacy.

    Start with `discreet demo`. Then, for a table of your own:

    1. `discreet schema init survey.csv` writes a template for the public bounds and categories of
       the columns.

    2. `discreet plan` shows what a fit is good for at several ε, by a dry run on invented tables.
       It reads no data.

    3. `discreet fit` spends the budget and writes the posterior and a privacy statement.

    4. `discreet report discreet-fit` and `discreet explain` say what that means; `discreet synth`
       draws synthetic twins.

    Bad input is refused with exit code 2 before any budget is spent.
    """
    del show_version
    settings.debug = debug
    settings.compilation_cache = compilation_cache


PANELS = {
    "Fit a table": (demo, schema, describe, plan, convert, fit, resume),
    "Use the results": (report, predict, check, score, synth, explain),
    "Keep a budget and check claims": (account, ledger, verify, audit),
}
for panel, commands in PANELS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(
                command, name="schema" if command is schema else "ledger", rich_help_panel=panel
            )
        else:
            app.command(cls=BriefHelp if command is fit else Command, rich_help_panel=panel)(
                command
            )
