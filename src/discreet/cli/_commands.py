"""The group that the commands stand in: whatever goes wrong under it ends in one paragraph and an exit code."""

import codecs
import io
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from discreet.cli._terminal import refusing

SPELT = {
    "ε": "epsilon",
    "δ": "delta",
    "σ": "sigma",
    "μ": "mu",
    "α": "alpha",
    "√": "sqrt ",
    "²": "^2",
    "·": "*",
    "×": "x",
    "≤": "<=",
    "≥": ">=",
    "±": "+-",
    "∞": "infinity",
    "…": "...",
    "–": "-",
    "→": "->",
}


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
        codecs.register_error("discreet", spell)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="discreet")
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
            code = code or (0 if _let_go_of(stream) else 1)
        sys.exit(code or 0)


def spell(error: UnicodeError) -> tuple[str, int]:
    r"""What a terminal that cannot show a character is told in its place: `codecs.register_error`.

    >>> spell(UnicodeEncodeError("ascii", "ε ≤ 1", 0, 1, "not in range"))
    ('epsilon', 1)
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(SPELT.get(x) or x.encode("ascii", "backslashreplace").decode() for x in missing), error.end


def _let_go_of(stream: Any) -> bool:
    """Whether all is written. What could not be, the interpreter would try again when it ends, and complain."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True
