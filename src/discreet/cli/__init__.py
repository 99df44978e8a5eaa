"""The command line: `discreet demo | schema | plan | fit | synth | report | account | explain | verify | audit` and more.

Commands import what they need when they run, so that `--help` and the completion of words do not wait for JAX.
"""

import os
import sys


def main() -> None:
    """Entry point of the `discreet` command."""
    try:
        _keep_streams()
        from discreet.cli._app import app
        from discreet.cli._terminal import settings

        arguments = sys.argv[1:]
        # Allowed anywhere: people add it at the end of the command that just failed.
        if "--debug" in arguments:
            arguments = ["--debug", *(argument for argument in arguments if argument != "--debug")]
        settings.arguments = tuple(arguments)
        app(args=arguments, prog_name="discreet")
    except KeyboardInterrupt:  # while this was being loaded
        sys.exit(130)


def _keep_streams() -> None:
    """Point what the caller has closed at nothing, lest a file that is opened later takes its number, and what JAX logs."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))


__all__ = ["main"]
