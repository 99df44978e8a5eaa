"""The command line: `discreet demo | schema | describe | plan | fit | synth | report | account | verify | audit` and more.

Commands import what they need when they run, so that `--help` and the completion of words do not
wait for JAX. Input that a function cannot take is a `ValueError` with what, why and the remedy,
which `refusing` prints.

A file for each command: `_demo`, `_schema` with `_private_schema`, `_describe`, `_plan`, `_convert`,
`_fit`, `_report`, `_predict`, `_check`, `_score`, `_synth`, `_explain`, `_account`, `_ledger`,
`_verify`, `_audit`. They share `_app` (all of them), `_options`, `_terminal` (errors, output),
`_statement` and `_run` (what surrounds a release, `resume`).

The methods of `fit`: `_choose` (which one), `_methods` (what each has), `_of_records` (of rows in
memory), `_sums`, `_steps`, `_twin`, `_formula` and `_own_model`.
"""

import atexit
import gc
import sys

# What a command imports and traces stays until the process ends. Looking for cycles in it, again and
# again and once more at the end, takes a tenth of a first fit.
_NEW_OBJECTS = 100_000


def main() -> None:
    """Entry point of the `discreet` command."""
    gc.set_threshold(_NEW_OBJECTS)
    atexit.register(gc.freeze)
    try:
        from discreet.interfaces.cli._app import app
        from discreet.interfaces.cli._terminal import settings
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(
            f"The command line needs {error.name}, which is not installed: pip install 'discreet[cli]'"
        )
    except KeyboardInterrupt:
        sys.exit(130)
    arguments = sys.argv[1:]
    # Allowed anywhere: people add it at the end of the command that just failed.
    if "--debug" in arguments:
        arguments = ["--debug", *(argument for argument in arguments if argument != "--debug")]
    settings.arguments = tuple(arguments)
    app(args=arguments, prog_name="discreet")


__all__ = ["main"]
