"""`discreet ledger`: what has been spent on a table, and what may be."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discreet.cli import _options as options
from discreet.cli._commands import Commands
from discreet.cli._results import finite_or_none
from discreet.cli._terminal import refusing, say, say_json, say_lines

if TYPE_CHECKING:
    from discreet.ledger import Ledger

ledger = typer.Typer(
    cls=Commands, no_args_is_help=True, help="Keep the budget of a table: a cap, and what fits spent of it."
)

LedgerFile = Annotated[Path, typer.Argument(metavar="LEDGER", help="The ledger, a file.")]
CapEpsilon = Annotated[float, typer.Option(help="The cap, for all fits together.")]
CapDelta = Annotated[float, typer.Option(help="Its δ; the δ of the single fits have to fit into half of it.")]


@ledger.command("open")
@refusing
def begin(
    file: LedgerFile,
    dataset: Annotated[str, typer.Option(help="A public name of the table.")],
    epsilon: CapEpsilon,
    delta: CapDelta,
    relation: Annotated[
        options.RelationName, typer.Option(help="What neighbouring tables are, for all fits.")
    ] = options.RelationName.ADD_OR_REMOVE_ONE,
    unit: Annotated[
        str, typer.Option(help="Privacy unit: 'one person' if the fits' schemas name a person column.")
    ] = "one record",
    as_json: options.AsJson = False,
) -> None:
    """Begin a ledger.

    `discreet ledger open survey.ledger --dataset "survey 2026" --epsilon 3 --delta 1e-5`

    A fit that is given `--ledger survey.ledger` is debited before its first release, and refused where the cap does not hold it.
    """
    from discreet.accounting import Relation
    from discreet.ledger import Ledger

    found = Relation[relation.value.upper().replace("-", "_")]
    book = Ledger.create(file, dataset=dataset, epsilon=epsilon, delta=delta, relation=found, unit=unit)
    if as_json:
        say_json("ledger", _facts(book))
        return
    say(f"{file} is begun: fits of '{dataset}' that are given --ledger {file} are debited from it.")


@ledger.command()
@refusing
def show(file: LedgerFile, as_json: options.AsJson = False) -> None:
    """Say what was spent, fit by fit, and what is left.

    `discreet ledger show survey.ledger --json`
    """
    from discreet.ledger import Ledger

    book = Ledger(file)
    if not as_json:
        say_lines(str(book))
        return
    say_json("ledger", _facts(book))


def _facts(book: "Ledger") -> dict[str, Any]:
    """A ledger for programs."""
    cap = book.cap
    debits = [
        {
            "number": debit.number,
            "time": debit.time,
            "method": debit.method,
            "epsilon": finite_or_none(debit.cost.epsilon),
            "delta": debit.delta,
            "event": str(debit.event),
            "unit": debit.unit,
        }
        for debit in book.debits
    ]
    return {
        "dataset": book.dataset,
        "relation": book.relation.name,
        "unit": book.unit,
        "cap": {"epsilon": cap.epsilon, "delta": cap.delta},
        "spent": finite_or_none(book.spent),
        "epsilon_if_planned_together": finite_or_none(book.epsilon_if_planned_together(cap.delta)),
        "debits": debits,
    }


@ledger.command()
@refusing
def verify(
    file: LedgerFile,
    entry: Annotated[
        str | None, typer.Option("--hash", help="Of an entry that must be there, as a fit's statement names it.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Check that every line is the one that was written.

    `discreet ledger verify survey.ledger`
    """
    from discreet.ledger import Ledger

    book = Ledger(file)
    entries = book.verify(entry)
    if as_json:
        say_json("ledger", {"entries": entries, **_facts(book)})
        return
    say(f"{file} holds {entries} entries, each as it was written.")


@ledger.command()
@refusing
def cap(
    file: LedgerFile,
    epsilon: CapEpsilon,
    delta: CapDelta,
    raised: Annotated[
        bool, typer.Option("--raise", help="The new cap is higher, and whoever was promised the old one knows.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Change the cap.

    `discreet ledger cap survey.ledger --epsilon 2 --delta 1e-5`
    """
    from discreet.ledger import Ledger

    book = Ledger(file)
    book.set_cap(epsilon=epsilon, delta=delta, raised=raised)
    if as_json:
        say_json("ledger", _facts(book))
        return
    say(f"The cap of {file} is epsilon {epsilon:g} at delta {delta:g}.")
