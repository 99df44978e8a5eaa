"""One fit's debit, made at the last moment before its first release."""

from __future__ import annotations

from discreet.ledger._ledger import Ledger, Planned, Receipt
from discreet.report import Statement


class Spending:
    """Made before the fit is compiled, which it may refuse; called just before the first release, which it then debits.

    Args:
        ledger: the table's; None where nobody keeps one.
        plan: what is about to run.
        statement: what will be stated of it.
        run_id: of a run that may go on after a crash.

    Raises:
        SpentError: the budget does not hold the plan.
        ValueError: the fit would not be private, or the plan is for another relation.
    """

    def __init__(self, ledger: Ledger | None, plan: Planned, statement: Statement, run_id: str = "") -> None:
        self._ledger, self._plan, self._statement, self._run_id = ledger, plan, statement, run_id
        self._receipt: Receipt | None = None
        if ledger is None:
            return
        if not statement.is_private:
            why = " ".join(statement.violations) or "its epsilon is infinite"
            why = "its random bits can be repeated" if statement.reproducible else why
            raise ValueError(
                f"This fit would spend more than any ledger holds, for it is not private ({why}). For a key made from a seed, "
                "take discreet.random.key() instead; or leave the ledger out."
            )
        ledger.check(plan, delta=statement.delta, run_id=run_id)

    def __call__(self) -> None:
        """Debit; on the disk when this returns."""
        if self._ledger is not None:
            terms = {"delta": self._statement.delta, "method": self._statement.method, "run_id": self._run_id}
            terms["unit"] = f"one {self._statement.noun}"
            self._receipt = self._ledger.debit(self._plan, **terms)

    def stated(self) -> Statement:
        """The statement, with the receipt."""
        return self._statement if self._receipt is None else self._statement.with_notes(str(self._receipt))
