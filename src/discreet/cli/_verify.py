"""`discreet verify`: whether a training step of one's own is private, before any budget is spent."""

import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli._model import returned_by, run_file
from discreet.cli._options import AsJson
from discreet.cli._terminal import refusing, say_error, say_json, say_lines, write_file

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
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page here (.html) that shows the program with the status of each line."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Prove that a JAX program is private, or show where it leaks.

    The file is run, and the function in it; both see no data but what they make or read themselves. Shapes are enough:
    `jax.ShapeDtypeStruct((1000, 3), jnp.float32)` stands for a table. In the file:

    `def certificate(): return dp.certify(step, w, xs, ys, mask, key, records=(1, 2), mask=3)`

    Then, with the price at a δ, and with a page for the browser:

    `discreet verify step.py --delta 1e-5`

    `discreet verify step.py:certificate --html step.html`

    Exit code 0: proved. 1: no proof, with the lines from the record to the leak, the rule and the remedy. 2: there is
    nothing to judge, because the file or the function is absent, or fails.
    """
    from discreet.verify import PrivacyError

    if html is not None and html.suffix != ".html":
        raise ValueError(f"--html {html} does not end in .html: name the page so, lest it take the place of a program")
    if delta is not None and not 0 < delta < 1:
        raise ValueError(f"--delta is {delta}: give a number between 0 and 1, well below 1 / number of records")
    try:
        found: Any = _outcome(program)
    except PrivacyError as error:
        found = error
    except ValueError as error:
        if html is not None and error.__cause__ is not None:
            say_error(f"Page: {_write_page(html, error.__cause__)}")
        raise
    if as_json:
        files = [] if html is None else [str(_write_page(html, found))]
        facts = _leak_facts(found) if isinstance(found, PrivacyError) else _proof_facts(found, delta)
        say_json("verify", {**facts, "files": files})
    else:
        (_show_leak(found) if isinstance(found, PrivacyError) else _show_proof(found, delta))
        if html is not None:
            say_lines(f"Page: {_write_page(html, found)}")
    if isinstance(found, PrivacyError):
        raise typer.Exit(1)


def _outcome(program: str) -> "Certificate":
    """The certificate that a file's function returns.

    Raises:
        PrivacyError: no proof.
        ValueError: there is no such file or function, or it fails, or returns something else.
    """
    from discreet.verify import Certificate, PrivacyError

    file, colon, name = program.rpartition(":")
    path = Path(file if colon else program)
    try:
        module = run_file(path, "file")
    except ValueError as error:
        if isinstance(error.__cause__, PrivacyError):
            raise error.__cause__ from None
        raise
    function = _function(module, path, name if colon else "certificate")
    if isinstance(function, Certificate):
        return function
    remedy = "let the function return dp.certify(step, ...)"
    return returned_by(program, function, Certificate, remedy, passing=(PrivacyError,))


def _function(module: ModuleType, path: Path, name: str) -> Callable[[], object]:
    """A function of a file, to be called without arguments.

    Raises:
        ValueError: it is absent, or takes arguments.
    """
    function = getattr(module, name, None)
    if not callable(function):
        own = [k for k, x in vars(module).items() if inspect.isfunction(x) and x.__module__ == module.__name__]
        ready = [k for k in own if not _needed(getattr(module, k))]
        remedy = "write one: def certificate(): return dp.certify(step, ...)"
        if ready:
            remedy = f"name the one that returns dp.certify(step, ...), as in {path}:{ready[0]}"
        raise ValueError(
            f"{path} has no function {name or 'without a name'}; without arguments it has {', '.join(ready) or 'none'}: {remedy}"
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
    from discreet.verify import Certificate

    if isinstance(function, Certificate):
        return []
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [x.name for x in parameters if x.default is x.empty and x.kind not in kinds]


def _write_page(path: Path, outcome: "Certificate | BaseException") -> Path:
    from discreet.verify import html_page

    try:
        return write_file(path, html_page(outcome))
    except OSError as error:
        raise ValueError(f"--html {path} cannot be written to ({error.strerror}): choose another place") from None


def _proof_facts(certificate: "Certificate", delta: float | None) -> dict[str, Any]:
    """A proof for programs; an ε that does not exist, or that symbols are left open in, is None."""
    from discreet.cli._results import finite_or_none

    epsilon = None if delta is None or certificate.symbols else finite_or_none(certificate.epsilon(delta))
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


def _leak_facts(error: "PrivacyError") -> dict[str, Any]:
    """The same where there is no proof."""
    from discreet.verify import from_here

    chain = [from_here(line) for line in error.chain]
    leak = {"output": error.output, "rule": from_here(error.rule), "chain": chain, "remedy": error.remedy}
    return {"proved": False, **leak}


def _show_proof(certificate: "Certificate", delta: float | None) -> None:
    say_lines("Proved.", fg="green", bold=True)
    say_lines(str(certificate))
    if certificate.symbols and delta is not None:
        named = ", ".join(f"{x}=..." for x in certificate.symbols)
        say_lines(
            f"epsilon depends on what is left open: let the function return certificate.at({named}).", fg="yellow"
        )
    elif delta is not None:
        from discreet.accounting import upper

        say_lines(f"epsilon = {upper(certificate.epsilon(delta))} at delta = {delta:g}", fg="green")


def _show_leak(error: "PrivacyError") -> None:
    from discreet.verify import from_here

    leaks = f" Output {error.output} leaks:" if error.output else ""
    say_lines(f"No proof of privacy.{leaks}", fg="red", bold=True)
    say_lines(from_here(error.rule))
    for number, line in enumerate(map(from_here, error.chain)):
        place, closing, text = line.partition("): ")
        say_lines(f"  {'from' if number == 0 else '  ->'} {place}{closing[:1]}", fg="yellow")
        if text:
            say_lines(f"         {text}")
    say_lines(f"Remedy: {error.remedy}", fg="cyan")
