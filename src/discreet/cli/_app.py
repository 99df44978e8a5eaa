"""The commands under one name."""

from pathlib import Path
from typing import Annotated

import typer

from discreet.cli._account import account, explain, ledger
from discreet.cli._demo import demo
from discreet.cli._fit import fit
from discreet.cli._plan import plan
from discreet.cli._report import report
from discreet.cli._run import resume
from discreet.cli._tables import convert, schema, synth, utility
from discreet.cli._terminal import EXIT_CODES, Commands, settings
from discreet.cli._verify import audit, verify

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


@app.callback(epilog=f"Exit codes: {' '.join(f'{code}: {meaning}' for code, meaning in EXIT_CODES.items())}")
def discreet(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    compilation_cache: Annotated[
        Path | None,
        typer.Option(
            envvar="DISCREET_COMPILATION_CACHE",
            help="Folder that keeps compiled programs, so that the next fit of the same model and shapes starts sooner. "
            "It holds shapes (so the exact number of rows) and public numbers, never records: keep it to yourself. Programs are "
            "run from it: let nobody else write there.",
        ),
    ] = None,
) -> None:
    """Fit statistical models under differential privacy.

    Start with `discreet demo`, then `discreet fit --help`. Bad input is refused with exit code 2 before any
    privacy budget is spent.
    """
    del show_version
    settings.debug = debug
    settings.compilation_cache = compilation_cache


for command in (demo, plan, convert, fit, resume, synth, report, account, explain, utility, verify, audit):
    app.command()(command)
app.add_typer(schema, name="schema")
app.add_typer(ledger, name="ledger")
