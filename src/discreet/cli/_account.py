"""`discreet account`: the ε of a plan, or the noise or number of steps for an ε. Touches no data."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli._options import (
    AsJson,
    BatchSize,
    Delta,
    Epsilon,
    Rate,
    RelationOption,
    Sampling,
    SamplingName,
    Steps,
    plan_of,
    sampling_of,
)
from discreet.cli._terminal import refusing, say_json, say_lines, say_text

if TYPE_CHECKING:
    from discreet.accounting import AccountantComparison
    from discreet.plan import PrivacyPlan


@refusing
def account(
    num_records: Annotated[int, typer.Option(help="Records in the table; treated as public.")],
    rate: Rate = None,
    batch_size: BatchSize = None,
    steps: Steps = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise standard deviation divided by the clipping norm, on the sum.")
    ] = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    sampling: Sampling = SamplingName.POISSON,
    relation: RelationOption = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Print what other accountants say of the plan, as a table.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compute the ε of a plan, or the noise or the steps for an ε.

    Of `--epsilon`, `--noise-multiplier` and `--steps` give two; the third is solved for. No data are read.

    The ε of a plan:
    `discreet account --num-records 100000 --rate 0.01 --steps 1000 --noise-multiplier 1 --delta 1e-6`

    The noise for ε = 1:
    `discreet account --num-records 100000 --rate 0.01 --steps 1000 --epsilon 1 --delta 1e-6`

    Batches of fixed size:
    `discreet account --num-records 60000 --sampling fixed --batch-size 128 --steps 9360 --noise-multiplier 1.5`

    Basic and advanced composition, Rényi and PLD side by side:
    `discreet account --num-records 3341 --rate 0.05 --steps 1000 --noise-multiplier 2.4 --delta 1e-3 --compare`
    """
    if num_records < 1:
        raise ValueError(f"--num-records is {num_records}: give the number of records in the table, at least 1")
    given = {"--epsilon": epsilon, "--noise-multiplier": noise_multiplier, "--steps": steps}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) != 1:
        raise ValueError(
            f"of --epsilon, --noise-multiplier and --steps exactly two must be given, to solve for the third; now "
            f"{', '.join(missing) or 'none'} {'is' if len(missing) == 1 else 'are'} left open"
        )
    plan = plan_of(
        num_records=num_records,
        epsilon=epsilon,
        delta=delta,
        steps=steps,
        noise_multiplier=noise_multiplier,
        sampling=sampling_of(sampling, rate=rate, batch_size=batch_size, num_records=num_records),
        relation=relation,
    )
    if as_json:
        say_json("account", {**facts(plan), **(compared(plan) if compare else {})})
        return
    if compare:
        say_text(str(_comparison(plan)))
        return
    say_lines(plan.explain())


def facts(plan: "PrivacyPlan") -> dict[str, Any]:
    """A calibrated plan and its price for programs; an ε that does not exist is None."""
    from discreet.report import plan_facts

    delta = plan.target_delta
    assert delta is not None
    epsilon = plan.epsilon(delta)
    return {
        "epsilon": epsilon if epsilon < float("inf") else None,
        "delta": delta,
        "relation": plan.relation.name,
        **plan_facts(plan),
        "event": str(plan.event()),
    }


def compared(plan: "PrivacyPlan") -> dict[str, Any]:
    """What each accountant says, for programs; an ε that does not exist is None."""
    rows = [dataclasses.asdict(row) for row in _comparison(plan).rows]
    return {
        "accountants": [{**row, "epsilon": row["epsilon"] if row["epsilon"] < float("inf") else None} for row in rows]
    }


def _comparison(plan: "PrivacyPlan") -> "AccountantComparison":
    from discreet.accounting import compare_accountants

    assert plan.target_delta is not None
    return compare_accountants(plan, plan.target_delta)
