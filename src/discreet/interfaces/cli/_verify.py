"""`discreet verify` and `audit`: prove that a program is private, or attack it."""

import enum
import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar

import typer

import discreet as dp
from discreet._validate import finite_or_none
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._options import AsJson
from discreet.interfaces.cli._own_model import failure, run_file
from discreet.interfaces.cli._terminal import (
    PICTURES,
    check_file,
    refusing,
    say_json,
    say_lines,
    write_file,
)

T = TypeVar("T")


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
        return _returned_by(
            program, function, dp.Certificate, "let the function return dp.certify(step, ...)"
        )
    except ValueError as error:
        if isinstance(error.__cause__, dp.PrivacyError):
            raise error.__cause__ from None
        raise


def _returned_by(program: str, function: Callable[[], object], kind: type[T], remedy: str) -> T:
    """Call the user's function."""
    try:
        found = function()
    except (Exception, SystemExit) as error:
        raise ValueError(f"{program} fails {failure(error)}") from error
    if not isinstance(found, kind):
        raise ValueError(f"{program} returned an object of type {type(found).__name__}: {remedy}")
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


class MethodName(enum.StrEnum):
    """The fitting method."""

    DPSVI = "dpsvi"
    DPSGLD = "dpsgld"


@refusing
def audit(
    context: typer.Context,
    program: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE.py:FUNCTION",
            help="A function without arguments that returns the verdict of your own audit, from dp.audit.audit_fit for example. "
            "Default: the worst case of the plan that the options describe.",
        ),
    ] = None,
    method: Annotated[
        MethodName, typer.Option(help="The method whose steps are audited.")
    ] = MethodName.DPSVI,
    num_records: Annotated[
        int,
        typer.Option(
            help="The plan's number of records; with replace-one and fixed, that of the audited tables, too."
        ),
    ] = 100,
    sampling: options.Sampling = "poisson",
    rate: options.Rate = None,
    batch_size: options.BatchSize = None,
    steps: Annotated[
        int, typer.Option(max=options.MOST_STEPS, metavar="<int>", help="Steps of each fit.")
    ] = 4,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            help="Noise standard deviation divided by the clipping norm; or give --epsilon."
        ),
    ] = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    clip: Annotated[
        str, typer.Option("--clip", "--clipping-norm", help="Clipping norm C, or adaptive.")
    ] = "1",
    relation: options.RelationOption = None,
    runs: Annotated[int, typer.Option(help="Fits with the canary, and as many without it.")] = 4000,
    others: Annotated[
        int, typer.Option(help="Records beside the canary, with add-or-remove-one.")
    ] = 7,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bound.")] = 0.99,
    seed: Annotated[int, typer.Option(help="Seed of all fits; another seed is another audit.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the verdict to this file (.json).")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw lower bound and claim to this file (.png, .pdf, .svg)."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Attack the private step and compare the lower bound on ε with the plan's ε.

    Fits invented tables many times, with and without one canary record, using the sampler, step and
    noise of every fit. How well the two can be distinguished gives a lower bound on ε. Reads no
    data.

    `discreet audit --rate 0.3 --steps 4 --noise-multiplier 1 --delta 1e-3`

    Your own model, in a file with `def check(): return dp.audit.audit_fit(...)`:

    `discreet audit mine.py:check`

    Exit code 0: the plan's ε is not contradicted, which proves nothing. 1: it is contradicted. 2:
    bad input.
    """
    check_file(out, endings=(".json",))
    check_file(plot, "--plot", PICTURES)
    # By name: typer brings a click of its own.
    sources = {
        name: getattr(context.get_parameter_source(name), "name", "") for name in context.params
    }
    given = {name for name, source in sources.items() if source == "COMMANDLINE"}
    if program is not None:
        if described := sorted(given - {"program", "out", "plot", "as_json"}):
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in described)
            raise ValueError(f"{program} defines the audit: omit {flags}")
        verdict = _verdict_of(program)
    elif (noise_multiplier is None) == (epsilon is None):
        raise ValueError("give one of --noise-multiplier and --epsilon")
    else:
        plan = options.plan_of(
            num_records=num_records,
            epsilon=epsilon,
            delta=delta,
            num_steps=steps,
            noise_multiplier=noise_multiplier,
            clipping_norm=options.clipping_of(clip),
            sampling=options.sampling_of(
                sampling, rate=rate, batch_size=batch_size, num_records=num_records
            ),
            relation=relation,
        )
        worst = dp.audit.worst_case(plan, method.name, others=others)
        verdict = worst.audit(runs=runs, confidence=confidence, seed=seed, progress_bar=not as_json)
    if out is not None:
        write_file(out, verdict.to_json())
    if plot is not None:
        verdict.plot(plot)
    if as_json:
        say_json("audit", verdict.to_dict())
    else:
        say_lines(str(verdict), fg="red" if verdict.contradicted else None)
    if verdict.contradicted:
        raise typer.Exit(1)


def _verdict_of(program: str) -> "dp.audit.Verdict":
    """The verdict that a file's function returns."""
    file, colon, name = program.rpartition(":")
    path = Path(file if colon else program)
    function = getattr(run_file(path, "file"), name, None) if colon else None
    if not callable(function):
        raise ValueError(
            f"{program} names no function: write def check(): return dp.audit.audit_fit(...), and pass {path}:check"
        )
    return _returned_by(
        program, function, dp.audit.Verdict, "let it return what dp.audit.audit_fit returns"
    )
