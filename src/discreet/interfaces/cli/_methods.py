"""The methods of `discreet fit`: each decides which fits it takes, plans, spends, writes and prints.

`_choose.class_for` chooses one; `fit` calls it in this order:

    share                   what several processes must agree on
    prepare                 read the table, make the plan, warn; nothing is spent
    say_dry_run             with --dry-run, the end
    check_use               refuse or ask, if the result is likely not usable
    run, write in folder    spend the budget; write the statement first, before anything else can fail
    say, leave              print the result; end with the exit code

To add a method, write a class with these functions, enter it in `_choose`, and its name in
`_options.MethodName`. A fit of records in memory derives from `_of_records.OfRecords`: it adds a
plan (`plan_for`), a fit (`set_up`), and sentences.
"""

import dataclasses
import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import discreet as dp
from discreet._validate import require
from discreet.interfaces.cli._options import suggest_delta, tenth_of_cap
from discreet.interfaces.cli._run import CHECKPOINT, ROOM, budget_line
from discreet.interfaces.cli._schema import unit_of
from discreet.interfaces.cli._statement import about_words, complete_statement
from discreet.interfaces.cli._terminal import (
    folder_for_results,
    on_terminal,
    say_error,
    say_json,
    say_lines,
)

if TYPE_CHECKING:
    from discreet.interfaces.cli._fit import Asked
    from discreet.interfaces.cli._options import ChosenModel
    from discreet.interfaces.cli._own_model import Prepared

OVERCHARGED = 1.05
"""Times its ε: a fit that a ledger would charge more is not run without asking."""


@dataclasses.dataclass
class Method:
    """One way to fit a table."""

    asked: "Asked"
    members: "dp.inference.Processes"
    chosen: "ChosenModel"
    schema: "dp.tables.Schema"  # As the options describe the table, then as the model takes it
    made: "dp.tables.Conversion | None"  # How the table was converted, if it was
    own: "Prepared | None" = None  # The user's model, if it is one
    room: int = ROOM  # Bytes of the disk that are reserved for the results
    plan: Any = dataclasses.field(init=False)
    statement: "dp.Statement" = dataclasses.field(init=False)
    files: list[Path] = dataclasses.field(init=False)

    leaves_out = True  # True if records are left out where the schema drops them
    weighs = False  # True if a record counts as often as its survey weight says

    def share(self) -> None:
        """Agree with the other processes on what the next messages depend on."""

    def check_use(self) -> None:
        """Refuse to spend a budget on a result that is likely not usable, or at a δ that is too large; or ask."""
        asked = self.asked
        # One that goes on was agreed to, and is paid for.
        started = asked.checkpoint is not None and (asked.checkpoint / CHECKPOINT).exists()
        doubts = None if asked.yes or started else self.doubts()
        if doubts is None:
            return
        found, ways = doubts
        if asked.as_json or asked.distributed or not on_terminal():
            raise ValueError(f"{found} Nothing was spent. {ways} To go on all the same, add --yes.")
        say_error(f"{found} {ways}")
        if not typer.confirm("Spend the budget all the same?", err=True):
            raise ValueError("nothing was spent. " + ways)

    def doubts(self) -> tuple[str, str] | None:
        """Why the budget would be spent badly, and what would help; from public facts alone. None if it may be spent well."""
        count = getattr(self.plan, "num_records", self.asked.num_records)
        delta = self.stated_delta
        if count is not None and delta * count > 1:
            found = f"δ = {delta:g} is more than 1 / {count:,}: publishing a random record in the clear would meet it."
            return (
                found,
                f"Leave --delta out, or give --delta {suggest_delta(count, self.asked.ledger):g}.",
            )
        book = self.book()
        if book is None:
            return None
        most = tenth_of_cap(book.path)
        if delta <= most:
            return None
        try:
            charge = book.check(self.plan, delta=delta, unit=self.unit_in_ledger) - book.spent
        except (dp.SpentError, ValueError):
            return None  # refused before the first release
        epsilon, _ = self.cost
        upper = dp.accounting.upper
        if charge <= OVERCHARGED * epsilon:
            return None
        found = (
            f"The ledger would charge ε = {upper(charge)} for this fit of ε = {upper(epsilon)}, since δ = {delta:g} is more "
            f"than a tenth of its cap's, {book.cap.delta:g}."
        )
        return (
            found,
            f"Leave --delta out, or give --delta {most:g}: then it charges the fit's own ε.",
        )

    @property
    def stated_delta(self) -> float:
        """The δ of the plan."""
        return self.plan.delta

    @property
    def unit_in_ledger(self) -> str:
        """The unit of privacy, as ledgers name it."""
        return dp.ledger.ONE_RECORD if self.schema.person is None else "one person"

    @contextmanager
    def folder(self) -> Iterator[None]:
        """Make sure that results can be written, before they are paid for."""
        asked = self.asked
        members = self.members
        members.first_is_given("--checkpoint", asked.checkpoint is not None)
        members.first_is_given("--ledger", asked.ledger is not None)
        with ExitStack() as stack:
            with members.together():
                # The page is written last: what it needs must be there before anything is spent.
                require("jinja2", extra="cli", what="The statement page")
                if members.first:
                    stack.enter_context(folder_for_results(asked.out, room=self.room))
            yield

    def book(self) -> "dp.Ledger | None":
        """The ledger, from which process 0 alone debits."""
        ledger = self.asked.ledger if self.members.first else None
        return None if ledger is None else dp.Ledger(ledger)

    def leave(self) -> None:
        """End with the exit code of an interrupted command, if Ctrl-C stopped the fit."""

    @property
    def cost(self) -> tuple[float, float]:
        """The (ε, δ) of the plan."""
        return self.plan.state(reproducible=False).epsilon, self.plan.delta

    @property
    def odd_cells(self) -> str:
        """The treatment of cells that the schema does not allow."""
        return str(self.asked.out_of_bounds) if self.made is None else self.made.out_of_bounds

    def complete(self, statement: "dp.Statement") -> "dp.Statement":
        """The statement with the model, the columns and the treatment of cells."""
        asked = self.asked
        count = getattr(self.plan, "num_records", None)
        return complete_statement(
            statement,
            self.schema,
            self.odd_cells,
            counted=count is None or asked.num_records is None,
            own=self.own,
            drops=self.leaves_out,
            weighs=self.weighs,
            about=about_words(asked.model, self.schema, asked.dataset or asked.data.name, count),
            contact=asked.contact,
        )

    def _say_dry_run(self, facts: Mapping[str, Any], *, whom: str = "", cost: str = "") -> None:
        """Print the unit, the cost and what the ledger would charge."""
        ledger = self.asked.ledger
        epsilon, delta = self.cost
        budget = charge = None
        if ledger is not None:
            budget = budget_line(ledger, delta)
            book = dp.Ledger(ledger)
            cap = dp.accounting.upper(book.cap.epsilon)
            try:
                after = dp.accounting.upper(
                    book.check(self.plan, delta=delta, unit=self.unit_in_ledger)
                )
                charge = f"After it, ε = {after} of {cap} in {ledger} would be spent."
            except (dp.SpentError, ValueError) as error:
                charge = f"The ledger would refuse this fit. {error}"
        unit = unit_of(self.schema)
        if self.asked.as_json:
            price = {"dry_run": True, "epsilon": epsilon, "delta": delta, "unit": unit}
            say_json("fit", {**price, **facts, "budget": budget, "charge": charge})
            return
        say_lines(
            f"Dry run: nothing is spent, and nothing is written.\nPrivacy unit: {unit}{whom}."
        )
        say_lines(f"Cost: ε = {dp.accounting.upper(epsilon)} at δ = {delta:g}{cost}.")
        if ledger is not None:
            say_lines(f"Before it: {budget}\n{charge}")
        if doubts := self.doubts():
            say_lines(f"A fit would ask first, or refuse. {' '.join(doubts)}")


def say_unweighed(schema: "dp.tables.Schema") -> None:
    """Say before the run that survey weights are not applied, if the schema has any."""
    if schema.weight is not None:
        say_error(f"{schema.weight_words()} The column is drawn like any other.")


def synth_words(out: Path) -> str:
    """The command that draws twins of a fit."""
    return f"discreet synth {shlex.quote(str(out))} --twins 5 --out twins"
