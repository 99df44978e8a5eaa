"""`discreet verify`: prove a program of one's own."""

import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

import discreet as dp
from discreet._validate import finite_or_none
from discreet.interfaces.cli._options import AsJson
from discreet.interfaces.cli._own_model import failure, run_file
from discreet.interfaces.cli._terminal import (
    refusing,
    say_json,
    say_lines,
)


@refusing
def verify(
    program: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py[:FUNCTION]",
            help="A function without arguments that returns dp.certify(step, ...). Default: the one called certificate.",
        ),
    ],
    delta: Annotated[float | None, typer.Option(help="Print ε at this δ, too.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prove that a JAX program is private, or show where it leaks.

    Runs the file and the function in it. No data are needed; shapes are enough:
    `jax.ShapeDtypeStruct((1000, 3), jnp.float32)` stands for a table. In the file:

    `def certificate(): return dp.certify(step, w, xs, ys, mask, key, records=(1, 2), mask=3)`

    Then, with ε at a δ:

    `discreet verify step.py:certificate --delta 1e-5`

    Exit code 0: proved. 1: no proof; prints the lines from the record to the leak, the rule and the
    remedy. 2: the file or the function is missing or fails.
    """
    if delta is not None and not 0 < delta < 1:
        raise ValueError(
            f"--delta is {delta}: give a number between 0 and 1, well below 1 / number of records"
        )
    try:
        certificate = _certificate_of(program)
    except dp.PrivacyError as error:
        if as_json:
            say_json("verify", _leak_facts(error))
        else:
            _show_leak(error)
        raise typer.Exit(1) from None
    if as_json:
        say_json("verify", _proof_facts(certificate, delta))
    else:
        _show_proof(certificate, delta)


def _certificate_of(program: str) -> "dp.Certificate":
    """The certificate that a file's function returns; a `PrivacyError` passes."""
    file, colon, name = program.rpartition(":")
    path = Path(file if colon else program)
    try:
        function = _function(run_file(path, "file"), path, name if colon else "certificate")
        if isinstance(function, dp.Certificate):
            return function
    except ValueError as error:
        if isinstance(error.__cause__, dp.PrivacyError):
            raise error.__cause__ from None
        raise
    try:
        found = function()
    except dp.PrivacyError:
        raise
    except (Exception, SystemExit) as error:
        raise ValueError(f"{program} fails {failure(error)}") from error
    if not isinstance(found, dp.Certificate):
        raise ValueError(
            f"{program} returned an object of type {type(found).__name__}: let the function return dp.certify(step, ...)"
        )
    return found


def _function(module: ModuleType, path: Path, name: str) -> Callable[[], object]:
    """A function of a file, to be called without arguments."""
    function = getattr(module, name, None)
    if not callable(function):
        own = [
            k
            for k, x in vars(module).items()
            if inspect.isfunction(x) and x.__module__ == module.__name__
        ]
        ready = [k for k in own if not _needed(getattr(module, k))]
        remedy = "write one: def certificate(): return dp.certify(step, ...)"
        if ready:
            remedy = f"name the one that returns dp.certify(step, ...), as in {path}:{ready[0]}"
        raise ValueError(
            f"{path} has no function {name or 'without a name'}; without arguments it has "
            f"{', '.join(ready) or 'none'}: {remedy}"
        )
    needed = _needed(function)
    if needed:
        raise ValueError(
            f"{path}:{name} takes arguments ({', '.join(needed)}): name a function without any that returns "
            f"dp.certify({name}, ...), with shapes in the place of data"
        )
    return function


def _needed(function: Callable[..., object]) -> list[str]:
    """Names of the arguments that a function cannot do without."""
    if isinstance(function, dp.Certificate):
        return []
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [x.name for x in parameters if x.default is x.empty and x.kind not in kinds]


def _proof_facts(certificate: "dp.Certificate", delta: float | None) -> dict[str, Any]:
    """A proof for programs; an ε that does not exist, or that symbols are left open in, is None."""
    epsilon = (
        None if delta is None or certificate.symbols else finite_or_none(certificate.epsilon(delta))
    )
    return {
        "proved": True,
        "epsilon": epsilon,
        "delta": delta,
        "event": str(certificate.event),
        "relation": certificate.relation.name,
        "times": str(certificate.times),
        "slack": finite_or_none(certificate.slack),
        "outputs": dict(certificate.outputs),
        "assumptions": list(certificate.assumptions),
        "notes": list(certificate.notes),
        "symbols": list(certificate.symbols),
        "fingerprint": certificate.fingerprint,
        "versions": dict(certificate.versions),
    }


def _leak_facts(error: "dp.PrivacyError") -> dict[str, Any]:
    """The same where there is no proof."""
    chain = [dp.verify.from_here(line) for line in error.chain]
    rule = dp.verify.from_here(error.rule)
    return {
        "proved": False,
        "output": error.output,
        "rule": rule,
        "chain": chain,
        "remedy": error.remedy,
    }


def _show_proof(certificate: "dp.Certificate", delta: float | None) -> None:
    say_lines("Proved.", fg="green", bold=True)
    say_lines(str(certificate))
    if certificate.symbols and delta is not None:
        named = ", ".join(f"{x}=..." for x in certificate.symbols)
        say_lines(
            f"epsilon depends on what is left open: let the function return certificate.at({named}).",
            fg="yellow",
        )
    elif delta is not None:
        say_lines(
            f"epsilon = {dp.accounting.upper(certificate.epsilon(delta))} at delta = {delta:g}",
            fg="green",
        )


def _show_leak(error: "dp.PrivacyError") -> None:
    leaks = f" Output {error.output} leaks:" if error.output else ""
    say_lines(f"No proof of privacy.{leaks}", fg="red", bold=True)
    say_lines(dp.verify.from_here(error.rule))
    for number, line in enumerate(map(dp.verify.from_here, error.chain)):
        place, closing, text = line.partition("): ")
        say_lines(f"  {'from' if number == 0 else '  ->'} {place}{closing[:1]}", fg="yellow")
        if text:
            say_lines(f"         {text}")
    say_lines(f"Remedy: {error.remedy}", fg="cyan")
