"""`discreet ledger`: open, show, verify and cap the budget of a table."""

from pathlib import Path
from typing import Annotated, Any

import typer

import discreet as dp
from discreet._validate import finite_or_none
from discreet.interfaces.cli import _options as options
from discreet.interfaces.cli._terminal import Commands, refusing, say_json, say_lines


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
