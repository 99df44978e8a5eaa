"""`discreet audit`: attack a method, and bound its ε from below."""

import enum
from pathlib import Path
from typing import Annotated

import typer

import discreet as dp
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._terminal import (
    check_file,
    refusing,
    say_json,
    say_lines,
    write_file,
)


class AuditedMethod(enum.StrEnum):
    """The fitting method."""

    DPSVI = "dpsvi"
    DPSGLD = "dpsgld"


@refusing
def audit(
    method: Annotated[
        AuditedMethod, typer.Option(help="The method whose steps are audited.")
    ] = AuditedMethod.DPSVI,
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
    as_json: options.AsJson = False,
) -> None:
    """Attack the private step and compare the lower bound on ε with the plan's ε.

    Fits invented tables many times, with and without one canary record, using the sampler, step and
    noise of every fit. How well the two can be distinguished gives a lower bound on ε. Reads no
    data.

    `discreet audit --rate 0.3 --steps 4 --noise-multiplier 1 --delta 1e-3`

    Exit code 0: the plan's ε is not contradicted, which proves nothing. 1: it is contradicted. 2:
    bad input.
    """
    check_file(out, endings=(".json",))
    if (noise_multiplier is None) == (epsilon is None):
        raise ValueError("give one of --noise-multiplier and --epsilon")
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
    if as_json:
        say_json("audit", verdict.to_dict())
    else:
        say_lines(str(verdict), fg="red" if verdict.contradicted else None)
    if verdict.contradicted:
        raise typer.Exit(1)
