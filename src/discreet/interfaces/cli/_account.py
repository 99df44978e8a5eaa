"""`discreet account`, `explain` and `ledger`: what a plan costs, what epsilon means, and what has been spent."""

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any

import typer

import discreet as dp
from discreet._validate import finite_or_none
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._options import AsJson
from discreet.interfaces.cli._report import read_json
from discreet.interfaces.cli._terminal import Commands, refusing, say, say_json, say_lines, say_text


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


PRIORS = (0.01, 0.1, 0.5)
EXPLAINED = (
    "epsilon",
    "delta",
    "relation",
    "meaning",
    "attack_power",
    "posterior_beliefs",
    "gaussian_mu",
    "warnings",
)
FALSE_POSITIVE_RATES = (0.001, 0.01, 0.05, 0.1)
# (ε, δ) says nothing of the probability that the privacy loss exceeds ε, only that it exceeds ε +
# margin seldom.
MARGIN = 0.1
LARGE_DELTA = 1e-3


@refusing
def explain(
    statement: Annotated[
        Path | None,
        typer.Argument(
            help="A statement.json that a fit wrote, or its folder.", show_default=False
        ),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="An ε, instead of a statement.")] = None,
    delta: Annotated[float | None, typer.Option(help="The δ that belongs to it.")] = None,
    num_records: Annotated[
        int | None, typer.Option(help="Number of records in the table, to judge δ.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain what ε and δ mean for one person in the table.

    For a fit: `discreet explain discreet-fit/statement.json`

    For two numbers: `discreet explain --epsilon 1 --delta 1e-6 --num-records 50000`
    """
    if statement is not None:
        if epsilon is not None or delta is not None:
            raise ValueError("give a statement or --epsilon and --delta, not both")
        _explain_statement(read_statement(statement), as_json)
        return
    if epsilon is None or delta is None:
        raise ValueError("nothing to explain: give a statement.json, or --epsilon and --delta")
    facts = meaning(epsilon, delta, num_records)
    if as_json:
        say_json("explain", facts)
    else:
        _print(facts)


def _explain_statement(content: dict[str, Any], as_json: bool) -> None:
    if as_json:
        say_json(
            "explain", {name: content[name] for name in ("is_private", "violations", *EXPLAINED)}
        )
        return
    say(f"{content['method']}, for {content['unit']}. {content['relation_in_words']}")
    say()
    if not content["is_private"]:
        say(f"NOT PRIVATE AS RUN: {' '.join(content['violations'] or [content['randomness']])}")
        say("The following would hold for a correct run.")
        say()
    say_lines(content["meaning"])


def read_statement(path: Path) -> dict[str, Any]:
    """The content of a statement file, or of the one in a fit's folder."""
    path = path / "statement.json" if path.is_dir() else path
    content = read_json(path, "give the statement.json that a fit wrote")
    if not isinstance(content, dict) or not str(content.get("format", "")).startswith(
        "discreet privacy statement"
    ):
        raise ValueError(
            f"{path} is not a discreet privacy statement: give the statement.json that a fit wrote"
        )
    needed = ("is_private", "violations", "randomness", "method", "unit", *EXPLAINED)
    lacking = [name for name in needed if name not in content]
    if lacking:
        raise ValueError(
            f"{path} lacks {', '.join(lacking)}: give the statement.json as the fit wrote it"
        )
    if content["epsilon"] is None:
        raise ValueError(
            f"{path} states no finite ε at its δ: no guarantee holds, so there is nothing to explain"
        )
    return content


def meaning(epsilon: float, delta: float, num_records: int | None) -> dict[str, Any]:
    """Bounds that follow from (ε, δ) alone, for any mechanism.

    For a test with false-positive rate α the true-positive rate is at most min(e^ε α + δ, 1 - e^-ε
    (1 - δ - α)) (Wasserman and Zhou 2010; Kairouz, Oh, Viswanath 2015). Odds and beliefs are
    bounded except with some probability only: δ ≥ E[max(0, 1 - e^(ε - L))] for the privacy loss L,
    so P(L > ε + t) ≤ δ / (1 - e^-t) for every t > 0. They are given for t = 0.1 (for δ = 0, where L
    ≤ ε always, for t = 0) with that probability beside them.

    >>> meaning(0.0, 1e-6, None)["largest_true_positive_rate"]["0.05"]
    0.050001
    """
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ValueError(f"epsilon is {epsilon}: give a finite number, 0 or more")
    if not 0 <= delta < 1:
        raise ValueError(
            f"delta is {delta}: give a number from 0 to below 1, well below 1 / number of records"
        )
    if num_records is not None and num_records < 1:
        raise ValueError(
            f"--num-records is {num_records}: give the number of records in the table, at least 1"
        )
    # Beyond e^700 a float ends; the bounds are 1 long before.
    factor = math.exp(min(epsilon, 700.0))
    odds = math.exp(min(epsilon + (MARGIN if delta > 0 else 0.0), 700.0))
    failing = min(1.0, delta / -math.expm1(-MARGIN))
    warnings = []
    if epsilon > 10:
        warnings.append(
            "ε is above 10: the bound allows near certainty about one person, so it says little by itself."
        )
    elif epsilon > 3:
        warnings.append("ε is above 3: a determined attacker may learn a lot about one person.")
    if num_records is not None and delta >= 1 / num_records:
        warnings.append(
            f"δ is at least 1 / {num_records}: even a method that publishes one random record in full would satisfy it."
        )
    elif delta > LARGE_DELTA:
        warnings.append(f"δ = {delta:g} is large: it should be well below 1 / number of records.")
    return {
        "epsilon": epsilon,
        "delta": delta,
        "odds_factor": odds,
        "odds_factor_fails_with_probability": failing,
        "largest_true_positive_rate": {
            f"{alpha:g}": round(
                min(1.0, factor * alpha + delta, 1 - (1 - delta - alpha) / factor), 9
            )
            for alpha in FALSE_POSITIVE_RATES
        },
        "largest_belief": {
            f"{prior:g}": odds * prior / (odds * prior + 1 - prior) if failing < 1 else 1.0
            for prior in PRIORS
        },
        "warnings": warnings,
    }


def _print(facts: dict[str, Any]) -> None:
    failing = facts["odds_factor_fails_with_probability"]
    say(
        f"ε = {facts['epsilon']:.4g} (epsilon) and δ = {facts['delta']:g} (delta) bound the risk to one person whose data is "
        "used."
    )
    say()
    if failing < 1:
        power = "e^ε"
        seldom = "always"
        if failing > 0:
            power = f"e^(ε + {MARGIN:g})"
            seldom = f"except with probability at most {failing:.2g}"
        say(
            f"Seeing all results multiplies the odds that this person is in the table by at most {power} = "
            f"{facts['odds_factor']:.4g}, {seldom}. How far a belief can grow:"
        )
        for prior, belief in facts["largest_belief"].items():
            say(f"  {100 * float(prior):g} % before: at most {100 * belief:.3g} % afterwards")
        say()
        say("The statement of a fit gives tighter figures than these two numbers allow.")
    else:
        say("At this δ there is no bound on what someone who sees the results may believe.")
    say()
    say("The best possible test for that person's record, by false-positive rate:")
    for wrong, right in facts["largest_true_positive_rate"].items():
        say(f"  {100 * float(wrong):g} %: true-positive rate at most {100 * right:.3g} %")
    say()
    say(
        "General facts about the population can still be learned, and they may concern people whose data was not used."
    )
    for warning in facts["warnings"]:
        say()
        say(f"Warning: {warning}")


def _say_book(book: "dp.Ledger", text: str, as_json: bool, **besides: Any) -> None:
    """Print a ledger: as facts for programs, or a text for people."""
    if not as_json:
        say_lines(text)
        return
    debits = [
        {
            "number": debit.number,
            "time": debit.time,
            "method": debit.method,
            "epsilon": debit.cost.epsilon,
            "delta": debit.delta,
            "event": str(debit.event),
            "unit": debit.unit,
        }
        for debit in book.debits
    ]
    facts = {
        **besides,
        "dataset": book.dataset,
        "relation": book.relation.name,
        "unit": book.unit,
        "cap": {"epsilon": book.cap.epsilon, "delta": book.cap.delta},
        "spent": book.spent,
        "epsilon_if_planned_together": book.epsilon_if_planned_together(book.cap.delta),
        "debits": debits,
    }
    say_json("ledger", finite_or_none(facts))


ledger = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="Track the privacy budget of a table: a cap, and what fits spent of it.",
)

LedgerFile = Annotated[Path, typer.Argument(metavar="LEDGER", help="The ledger, a file.")]
CapEpsilon = Annotated[float, typer.Option(help="Cap on ε for all fits together.")]
CapDelta = Annotated[
    float, typer.Option(help="δ of the cap; the δ of all fits must add up to at most half of it.")
]


@ledger.command("open")
@refusing
def begin(
    file: LedgerFile,
    dataset: Annotated[str, typer.Option(help="A public name of the table.")],
    epsilon: CapEpsilon,
    delta: CapDelta,
    relation: Annotated[
        options.RelationName, typer.Option(help="Which tables are neighbours, for all fits.")
    ] = options.RelationName.ADD_OR_REMOVE_ONE,
    unit: Annotated[
        str,
        typer.Option(help="Privacy unit: 'one person' if the fits' schemas name a person column."),
    ] = "one record",
    as_json: options.AsJson = False,
) -> None:
    """Create a ledger.

    `discreet ledger open survey.ledger --dataset "survey 2026" --epsilon 3 --delta 1e-5`

    A fit run with `--ledger survey.ledger` is charged before its first release, and refused if it
    would exceed the cap.
    """
    found = dp.Relation[relation.name]
    book = dp.Ledger.create(
        file, dataset=dataset, epsilon=epsilon, delta=delta, relation=found, unit=unit
    )
    text = (
        f"Created {file}. Fits of '{dataset}' run with --ledger {file} are charged to it. The unit of privacy is {book.unit}: "
        "fits of another unit are refused."
    )
    if book.unit == dp.ledger.ONE_RECORD:
        text += " If a person may have several rows, name their column in the schema, and give --unit 'one person' here."
    _say_book(book, text, as_json)


@ledger.command()
@refusing
def show(file: LedgerFile, as_json: options.AsJson = False) -> None:
    """Print what was spent, fit by fit, and what is left.

    `discreet ledger show survey.ledger --json`
    """
    book = dp.Ledger(file)
    _say_book(book, str(book), as_json)


@ledger.command()
@refusing
def verify(
    file: LedgerFile,
    entry: Annotated[
        str | None,
        typer.Option(
            "--hash", help="Hash of an entry that must be there, as in the statement of a fit."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check that no line of the ledger was changed.

    `discreet ledger verify survey.ledger`
    """
    book = dp.Ledger(file)
    entries = book.verify(entry)
    _say_book(book, f"{file} contains {entries} entries, all unchanged.", as_json, entries=entries)


@ledger.command()
@refusing
def cap(
    file: LedgerFile,
    epsilon: CapEpsilon,
    delta: CapDelta,
    raised: Annotated[
        bool,
        typer.Option(
            "--raise",
            help="Confirm that the new cap is higher: people who were promised the old one must be told.",
        ),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Change the cap.

    `discreet ledger cap survey.ledger --epsilon 2 --delta 1e-5`
    """
    book = dp.Ledger(file)
    book.set_cap(epsilon=epsilon, delta=delta, raised=raised)
    _say_book(book, f"The cap of {file} is epsilon {epsilon:g} at delta {delta:g}.", as_json)
