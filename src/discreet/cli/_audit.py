"""`discreet audit`: whether an attack on the private step that is installed here finds more than a plan's ε allows."""

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discreet.cli import _options as options
from discreet.cli._model import returned_by, run_file
from discreet.cli._terminal import refusing, say_json, say_lines, write_file

if TYPE_CHECKING:
    from discreet.audit import Verdict
    from discreet.plan import PrivacyPlan


class MethodName(enum.StrEnum):
    """What is fitted."""

    DPSVI = "dpsvi"
    DPSGLD = "dpsgld"


Program = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE.py:FUNCTION",
        help="A function without arguments that returns the verdict of an audit of one's own, as of dp.audit.audit_fit. "
        "Left out: the worst case of the plan that the options describe.",
    ),
]
Method = Annotated[MethodName, typer.Option(help="The method whose steps are audited.")]
NumRecords = Annotated[
    int, typer.Option(help="The plan's number of records; with replace-one and fixed, that of the audited tables, too.")
]
Noise = Annotated[
    float | None, typer.Option(help="Noise standard deviation divided by the clipping norm; or give --epsilon.")
]
Steps = Annotated[int, typer.Option(max=options.MOST_STEPS, help="Steps of each fit.")]
Runs = Annotated[int, typer.Option(help="Fits with the canary, and as many without it.")]
Others = Annotated[int, typer.Option(help="Records beside the canary, with add-or-remove-one.")]
OneRun = Annotated[bool, typer.Option("--one-run", help="One fit of many canaries instead of many fits of one.")]
Canaries = Annotated[int, typer.Option(help="Canaries of --one-run.")]
Confidence = Annotated[float, typer.Option(help="Probability that the lower bound is one.")]
Seed = Annotated[int, typer.Option(help="Seed of all fits. Another one is another audit.")]
Report = Annotated[Path | None, typer.Option("--out", help="Write the verdict here (.json).")]
Picture = Annotated[Path | None, typer.Option("--plot", help="Draw lower bound and claim here (.png, .pdf, .svg).")]


@refusing
def audit(
    context: typer.Context,
    program: Program = None,
    method: Method = MethodName.DPSVI,
    num_records: NumRecords = 100,
    sampling: options.Sampling = options.SamplingName.POISSON,
    rate: options.Rate = None,
    batch_size: options.BatchSize = None,
    steps: Steps = 4,
    noise_multiplier: Noise = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    clip: options.Clip = None,
    relation: options.RelationOption = None,
    runs: Runs = 4000,
    others: Others = 7,
    one_run: OneRun = False,
    canaries: Canaries = 1000,
    confidence: Confidence = 0.99,
    seed: Seed = 0,
    out: Report = None,
    plot: Picture = None,
    as_json: options.AsJson = False,
) -> None:
    """Attack the private step, and hold what the attack finds against the plan's ε.

    Fits made-up tables many times, with one canary record and without it, by the sampler, the step and the noise that every
    fit has; or once, with many canaries. From how well the two can be told apart follows a lower bound on ε. No data are read.

    `discreet audit --rate 0.3 --steps 4 --noise-multiplier 1 --delta 1e-3`

    A model of one's own, in a file with `def check(): return dp.audit.audit_fit(...)`:

    `discreet audit mine.py:check`

    Exit code 0: the plan's ε is not contradicted, which proves nothing. 1: it is contradicted. 2: bad input.
    """
    for option, path, endings in (("--out", out, (".json",)), ("--plot", plot, (".png", ".pdf", ".svg"))):
        _check_file(option, path, endings)
    given = {name for name in context.params if _is_given(context, name)}
    if program is not None:
        if described := sorted(given - {"program", "out", "plot", "as_json"}):
            raise ValueError(f"{program} says itself what is audited, and how: leave out {_flags(described)}")
        _conclude(_verdict_of(program), out, plot, as_json=as_json)
        return
    if unused := sorted(given & ({"runs", "others"} if one_run else {"canaries"})):
        raise ValueError(f"{_flags(unused)} says nothing {'with' if one_run else 'without'} --one-run: leave it out")
    if (noise_multiplier is None) == (epsilon is None):
        raise ValueError("a plan follows from its noise or from its ε: give one of --noise-multiplier and --epsilon")
    plan = options.plan_of(
        num_records=num_records,
        epsilon=epsilon,
        delta=delta,
        steps=steps,
        noise_multiplier=noise_multiplier,
        clipping_norm=options.clipping_of(clip or "1"),
        sampling=options.sampling_of(sampling, rate=rate, batch_size=batch_size, num_records=num_records),
        relation=relation,
    )
    size = canaries if one_run else runs
    verdict = _verdict(plan, method.name, size, others, confidence, seed, one_run=one_run, quiet=as_json)
    _conclude(verdict, out, plot, as_json=as_json)


def _is_given(context: typer.Context, name: str) -> bool:
    # By name: typer brings a click of its own.
    return getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"


def _flags(names: list[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _conclude(verdict: "Verdict", out: Path | None, plot: Path | None, *, as_json: bool) -> None:
    if out is not None:
        write_file(out, verdict.to_json())
    if plot is not None:
        verdict.plot(plot)
    if as_json:
        say_json("audit", verdict.to_dict())
    else:
        say_lines(str(verdict), **({"fg": "red"} if verdict.contradicted else {}))
    if verdict.contradicted:
        raise typer.Exit(1)


def _verdict_of(program: str) -> "Verdict":
    """The verdict that a file's function returns.

    Raises:
        ValueError: there is no such file or function, or it fails, or returns something else.
    """
    from discreet.audit import Verdict

    file, colon, name = program.rpartition(":")
    path = Path(file if colon else program)
    function = getattr(run_file(path, "file"), name, None) if colon else None
    if not callable(function):
        raise ValueError(
            f"{program} names no function: write def check(): return dp.audit.audit_fit(...), and pass {path}:check"
        )
    return returned_by(program, function, Verdict, "let it return what dp.audit.audit_fit returns")


def _verdict(
    plan: "PrivacyPlan",
    method: str,
    size: int,
    others: int,
    confidence: float,
    seed: int,
    *,
    one_run: bool,
    quiet: bool,
) -> "Verdict":
    from discreet.audit import audit_one_run, canary_fit, worst_case

    if not one_run:
        worst = worst_case(plan, method, others=others)
        return worst.audit(runs=size, confidence=confidence, seed=seed, progress_bar=not quiet)
    assert plan.target_delta is not None
    return audit_one_run(
        canary_fit(plan, size, method),
        size,
        claim=plan,
        delta=plan.target_delta,
        confidence=confidence,
        seed=seed,
        target=f"{method}, {plan.sampling!r}, {plan.num_steps} steps, by one run",
    )


def _check_file(option: str, path: Path | None, endings: tuple[str, ...]) -> None:
    """Refuse what would only fail after minutes of work."""
    if path is None:
        return
    if path.suffix not in endings:
        raise ValueError(f"{option} is {path}: give it the ending {' or '.join(endings)}")
    if not path.parent.is_dir():
        raise ValueError(f"{option} is {path}, but there is no folder {path.parent}: make it, or choose another")
    if option == "--plot":
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            raise ValueError("--plot is drawn by matplotlib: install it with pip install 'discreet[plot]'") from None
