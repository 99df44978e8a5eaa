"""The command line: `discreet demo | schema | plan | convert | fit | resume | synth | account | explain | utility | audit` ...

Commands import what they need when they run, so that `--help` does not wait for JAX.
"""

import sys


def main() -> None:
    """Entry point of the `discreet` command."""
    from discreet.cli._app import app
    from discreet.cli._terminal import settings

    arguments = sys.argv[1:]
    # Allowed anywhere: people add it at the end of the command that just failed.
    if "--debug" in arguments:
        arguments = ["--debug", *(argument for argument in arguments if argument != "--debug")]
    settings.arguments = tuple(arguments)
    app(args=arguments, prog_name="discreet")


__all__ = ["main"]
