"""A ledger's history as rows, and whether the statement's fit is in it."""

from __future__ import annotations

import dataclasses
import re

from discreet.accounting import upper
from discreet.ledger import Ledger
from discreet.report import Statement

_RECEIPT = re.compile(r"Debited as entry (\d+) of the ledger .* \(hash ([0-9a-f]{16})\)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Spent:
    """One debit.

    Attributes:
        day: when, in UTC.
        clock: the time of that day.
        epsilon: its own, at its own `delta`.
        after: of the epsilon of the cap that is in force now, by its filter, with all debits before it.
        share: `after` as a part of the cap, at most 1.
        here: whether it is the fit that the page is about.
    """

    number: int
    day: str
    clock: str
    method: str
    epsilon: str
    delta: str
    after: str
    share: float
    unit: str
    here: bool


@dataclasses.dataclass(frozen=True)
class Budget:
    """What was spent on a table, by its ledger."""

    dataset: str
    unit: str
    relation: str
    cap_epsilon: str
    cap_delta: str
    spent: str
    share: float
    together: str
    rows: tuple[Spent, ...]
    remark: str
    changes: tuple[str, ...]


def budget_of(ledger: Ledger, statement: Statement) -> Budget:
    """What a ledger holds, beside a fit's statement.

    Raises:
        LedgerError: The ledger cannot be read or was changed.
    """
    cap, debits, entries = ledger.cap, ledger.debits, ledger.entries
    here, remark = _place(ledger, statement)
    rows, spent = [], 0.0
    for count, debit in enumerate(debits, 1):
        spent = cap.spent([x.cost for x in debits[:count]])
        rows.append(
            Spent(
                debit.number,
                *_when(debit.time),
                debit.method,
                upper(debit.cost.epsilon),
                _small(debit.delta),
                upper(spent),
                min(1.0, spent / cap.epsilon),
                debit.unit,
                debit.number == here,
            )
        )
    return Budget(
        ledger.dataset,
        ledger.unit,
        ledger.relation.name,
        upper(cap.epsilon),
        _small(cap.delta),
        upper(spent),
        min(1.0, spent / cap.epsilon),
        upper(ledger.epsilon_if_planned_together(cap.delta)) if debits else "",
        tuple(rows),
        remark,
        tuple(
            f"{' '.join(_when(x['time']))}: the cap was set to ε = {upper(x['epsilon'])} at δ = {_small(x['delta'])}."
            for x in entries
            if x["kind"] == "cap"
        ),
    )


def _small(delta: float) -> str:
    return upper(delta).replace("e-0", "e-").replace("-", "−")


def _when(time: str) -> tuple[str, str]:
    day, _, clock = time.replace("+00:00", "").partition("T")
    return day, clock


def _place(ledger: Ledger, statement: Statement) -> tuple[int | None, str]:
    """The number of the statement's entry, if it is there; and what to say if it is not."""
    receipt = next((found for note in statement.notes if (found := _RECEIPT.search(note))), None)
    if receipt is None:
        return None, (
            "The fit of this page was not debited from this ledger: its statement names no entry. What it spent comes on top of "
            "what is shown here."
        )
    number, digest = int(receipt[1]), receipt[2]
    debits = [x for x in ledger.entries if x["kind"] == "debit"]
    if not any(x["number"] == number and x["hash"].startswith(digest) for x in debits):
        return None, (
            f"The statement names entry {number} (hash {digest}), which this ledger does not have: it is another ledger, or "
            "lines were cut off at its end."
        )
    return number, ""
