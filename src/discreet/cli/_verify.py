"""`discreet verify`: whether a training step of one's own is private, before any budget is spent."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discreet.cli._model import run_file
from discreet.cli._terminal import refusing, say_lines

if TYPE_CHECKING:
    from discreet.verify import Certificate, PrivacyError


@refusing
def verify(
    program: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py[:FUNCTION]",
            help="A function without arguments that returns dp.certify(step, ...); left out, the one called certificate.",
        ),
    ],
    delta: Annotated[float | None, typer.Option(help="Say ε at this δ, too.")] = None,
) -> None:
    """Prove that a JAX program is private, or show where it leaks.

    The file is run, and the function in it; both see no data but what they make or read themselves. Shapes are enough:
    `jax.ShapeDtypeStruct((1000, 3), jnp.float32)` stands for a table.

    Exit code 0: proved. 1: no proof, with the lines from the record to the leak, the rule and the remedy.
    """
    from discreet.verify import Certificate, PrivacyError

    file, colon, name = program.rpartition(":")
    path = Path(file if colon else program)
    function = getattr(run_file(path, "file"), name if colon else "certificate", None)
    if not callable(function):
        raise ValueError(
            f"{path} has no function {name if colon else 'certificate'}: name one that returns dp.certify(...)"
        )
    try:
        found = function()
    except PrivacyError as error:
        _show_leak(error)
        raise typer.Exit(1) from None
    if not isinstance(found, Certificate):
        raise ValueError(f"{program} returned a {type(found).__name__}: let the function return dp.certify(step, ...)")
    _show_proof(found, delta)


def _show_proof(certificate: "Certificate", delta: float | None) -> None:
    typer.secho("Proved.", fg="green", bold=True)
    say_lines(str(certificate))
    if delta is not None:
        typer.echo(f"epsilon = {certificate.epsilon(delta):.4g} at delta = {delta:g}")


def _show_leak(error: "PrivacyError") -> None:
    typer.secho(
        "No proof of privacy." + (f" Output {error.output} leaks:" if error.output else ""), fg="red", bold=True
    )
    say_lines(error.rule)
    for number, line in enumerate(error.chain):
        typer.secho(f"  {'from' if number == 0 else '  ->'} {line}", fg="yellow")
    typer.secho(f"Remedy: {error.remedy}", fg="cyan")
