"""The private act: one plan carried out on one table, in one order, whatever the method.

1. Refuse: the key drew its noise before, the result could not be private, the ledger does not hold
   it (`Act`).
2. Prove: the programs that will run are together no more than the plan's event (`Act.prove`).
3. Begin: claim the key, then debit (`Act.begin`). Only behind it may noise be drawn for a release,
   or anything be computed of the records that is kept: what is computed before, to compile a
   program or to refuse a table, is thrown away.
4. Run, and state: `Act.statement` has the proof and the receipt.

Refusals cost nothing, since they come first. The key is claimed before the debit: of two threads
with one key, one is refused and nothing is debited for it; a debit that is refused leaves a claimed
key, and keys cost nothing. Nothing else in discreet claims a key for a whole release or debits a
ledger; tests/test_house.py checks it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxtyping import PRNGKeyArray

from discreet._dp_accounting import ComposedDpEvent, SelfComposedDpEvent
from discreet.privacy import random
from discreet.privacy.accounting import Planned, profile
from discreet.privacy.report import Receipt, Statement
from discreet.privacy.verify import Certificate, check_expected

if TYPE_CHECKING:
    from discreet.privacy.ledger import Ledger

__all__ = ["Act", "stated"]

PROVED = "Proved before it ran: the program itself was found to release no more than the plan says"


def stated(plan: Any, reproducible: bool, **told: Any) -> Statement:
    """The statement of a plan that states itself: `plan.state(reproducible=..., **told)`.

    Raises:
        ValueError: The statement is not of what the plan was told, or of less than it costs.
    """
    statement = plan.state(reproducible=reproducible, **told)
    if (statement.reproducible, statement.unit) != (
        reproducible,
        told.get("unit", statement.unit),
    ):
        raise ValueError(
            "The plan's state must pass reproducible and unit on to its statement: a ledger refuses by them."
        )
    spent = profile(plan.event(), plan.relation, slack=plan.slack)
    if not statement.epsilon >= spent.epsilon(statement.delta):
        raise ValueError(
            f"The plan's state says ε = {statement.epsilon:.6g} at δ = {statement.delta:g}, and its event and slack cost "
            "more: make the statement from the plan's own."
        )
    return statement


class Act:
    """What one plan does to one table, from its refusals to its statement.

    Guarantee: once `begin` has returned, no other act of this process that is given `key` begins,
    and the debit is on the disk.

    Args:
        plan: Its event, slack and relation are proved and debited.
        key: The key of all its noise; None: it draws none any more.
        statement: What it will have spent, stated before it is spent.
        ledger: The table's budget; None: nothing is debited.
        run_id: Names a run that may continue after a crash: it is debited once.
        again: It continues after a crash, with the same noise for the same states.

    Raises:
        ValueError: The key was used, a ledger is given for what is not private, or the statement is
            not the plan's.
        SpentError: The ledger does not hold it.
    """

    def __init__(
        self,
        plan: Planned,
        key: PRNGKeyArray | None,
        statement: Statement,
        *,
        ledger: Ledger | None = None,
        run_id: str = "",
        again: bool = False,
    ) -> None:
        if (statement.figures.event, statement.relation) != (str(plan.event()), plan.relation.name):
            raise ValueError(
                "The statement is of another event or relation than the plan: what is debited must be stated."
            )
        if not 0 <= plan.slack < 1:
            raise ValueError(
                f"The plan's slack is {plan.slack}; it must be a total variation of at least 0 and below 1."
            )
        self._key = key
        self._begun = False
        self._plan = plan
        self._stated = statement
        self._ledger = ledger
        self._run_id = run_id
        self._again = again
        self.receipt: Receipt | None = None
        if key is not None and not again:
            random.check_unused(key)
        if ledger is None:
            return
        ledger.refuse_unless_private(statement)
        ledger.check(plan, delta=statement.delta, run_id=run_id, unit=statement.unit.brief)

    @classmethod
    def on(
        cls,
        plan: Any,
        key: PRNGKeyArray,
        purpose: random.Purpose | None = None,
        *,
        ledger: Ledger | None = None,
        **told: Any,
    ) -> Act:
        """The act of a plan that states itself (`stated`).

        Args:
            plan: The plan.
            key: The caller's key. The act has its subkey for the purpose; None: the key itself.
            purpose: What a key is for that has several uses.
            ledger: As in `Act`.
            told: What `plan.state` is told besides, such as `unit`.

        Raises:
            TypeError, ValueError: As `random.check_key`, `stated` and `Act`.
        """
        key = random.check_key(key)
        noise = key if purpose is None else random.subkey(key, purpose)
        return cls(plan, noise, stated(plan, random.is_reproducible(key), **told), ledger=ledger)

    @property
    def key(self) -> PRNGKeyArray:
        """The key of its noise."""
        assert self._key is not None
        return self._key

    @property
    def reproducible(self) -> bool:
        """True if the noise can be repeated."""
        return self._stated.reproducible

    def prove(self, *programs: Certificate, times: Sequence[int] = (), named: bool = True) -> None:
        """Check that programs are together no more than the plan, and say so in the statement.

        Args:
            programs: Their certificates.
            times: How often each runs; empty: once.
            named: Put their fingerprints into the statement; not where these follow the number of
                records.

        Raises:
            PrivacyError: They are more, or proved for another relation than the plan's.
        """
        assert programs, "Nothing was proved."
        runs = list(zip(programs, times or [1] * len(programs), strict=True))
        event = ComposedDpEvent(
            [SelfComposedDpEvent(program.event, count) for program, count in runs]
        )
        slack = sum(program.slack * count for program, count in runs)
        notes = tuple(note for program in programs for note in program.notes)
        for relation in {program.relation for program in programs}:
            check_expected(event, slack, self._plan, relation, notes)
        prints = (
            f" (SHA-256 {', '.join(program.fingerprint for program in programs)})" if named else ""
        )
        self._stated = self._stated.with_notes(f"{PROVED}{prints}.")

    def begin(self) -> None:
        """Claim the key's noise, then debit; on the disk when this returns.

        Raises:
            ValueError: Another act claimed the key meanwhile. Nothing was debited.
            SpentError: Another one spent the budget meanwhile. Nothing was debited.
        """
        if self._begun:
            raise ValueError("An act begins once: make another one for another release.")
        self._begun = True
        if self._key is not None:
            random.claim(self._key, run_id=self._run_id, again=self._again)
        if self._ledger is not None:
            stated = self._stated
            terms = {"delta": stated.delta, "method": stated.method, "unit": stated.unit.brief}
            self.receipt = self._ledger.debit(self._plan, **terms, run_id=self._run_id)

    @property
    def statement(self) -> Statement:
        """The statement; after `begin` with the receipt."""
        return dataclasses.replace(self._stated, receipt=self.receipt)
