"""`discreet account`: what a plan costs, before there are data."""

import dataclasses
from typing import Annotated

import typer

import discreet as dp
from discreet._validate import finite_or_none
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._options import AsJson
from discreet.interfaces.cli._terminal import refusing, say_json, say_lines, say_text


@refusing
def account(
    num_records: Annotated[int, typer.Option(help="Records in the table; treated as public.")],
    rate: options.Rate = None,
    batch_size: options.BatchSize = None,
    steps: options.Steps = None,
    noise_multiplier: Annotated[
        float | None,
        typer.Option(help="Noise standard deviation divided by the clipping norm, on the sum."),
    ] = None,
    epsilon: options.Epsilon = None,
    delta: options.Delta = None,
    sampling: options.Sampling = "poisson",
    relation: options.RelationOption = None,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Print what other accountants say of the plan, as a table."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compute the ε of a plan, or the noise or the steps for an ε.

    Of `--epsilon`, `--noise-multiplier` and `--steps` give two; the third is solved for. No data
    are read.

    The ε of a plan: `discreet account --num-records 100000 --rate 0.01 --steps 1000
    --noise-multiplier 1 --delta 1e-6`

    The noise for ε = 1:
    `discreet account --num-records 100000 --rate 0.01 --steps 1000 --epsilon 1 --delta 1e-6`

    Batches of fixed size: `discreet account --num-records 60000 --sampling fixed --batch-size 128
    --steps 9360 --noise-multiplier 1.5`

    Basic and advanced composition, Rényi and PLD side by side: `discreet account --num-records 3341
    --rate 0.05 --steps 1000 --noise-multiplier 2.4 --delta 1e-3 --compare`
    """
    if num_records < 1:
        raise ValueError(
            f"--num-records is {num_records}: give the number of records in the table, at least 1"
        )
    given = {"--epsilon": epsilon, "--noise-multiplier": noise_multiplier, "--steps": steps}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) != 1:
        raise ValueError(
            f"of --epsilon, --noise-multiplier and --steps exactly two must be given, to solve for the third; now "
            f"{', '.join(missing) or 'none'} {'is' if len(missing) == 1 else 'are'} left open"
        )
    plan = options.plan_of(
        num_records=num_records,
        epsilon=epsilon,
        delta=delta,
        num_steps=steps,
        noise_multiplier=noise_multiplier,
        sampling=options.sampling_of(
            sampling, rate=rate, batch_size=batch_size, num_records=num_records
        ),
        relation=relation,
    )
    assert plan.target_delta is not None
    compared = dp.accounting.compare_accountants(plan, plan.target_delta) if compare else None
    if as_json:
        facts = {
            "epsilon": finite_or_none(plan.epsilon(plan.target_delta)),
            "delta": plan.target_delta,
            "relation": plan.relation.name,
            **dp.report.plan_facts(plan),
            "event": str(plan.event()),
        }
        if compared is not None:
            facts["accountants"] = finite_or_none(
                [dataclasses.asdict(row) for row in compared.rows]
            )
        say_json("account", facts)
    elif compared is not None:
        say_text(str(compared))
    else:
        say_lines(plan.explain())
