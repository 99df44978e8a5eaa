"""Selection of the best of several private fits.

`select` runs a private program K times, K random and secret, and gives the best result alone.
Papernot and Steinke (ICLR 2022) bound what this reveals by the Rényi divergences of one run,
whatever K turns out to be; a fixed number of runs has no such bound. `accounting` has their
Theorems 2 and 6, and `SelectionPlan` the laws of K.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, localcontext
from typing import Any, Self, cast

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from discreet._dp_accounting import ComposedDpEvent, DpEvent, RepeatAndSelectDpEvent
from discreet._jax import one_release
from discreet._validate import probability
from discreet.privacy import random
from discreet.privacy.accounting import (
    FINE_ORDERS,
    Planned,
    Relation,
    composed,
    profile,
    renyi_bound,
    repetitions,
    upper,
)
from discreet.privacy.act import Act
from discreet.privacy.ledger import Ledger, SpentError, check_terms
from discreet.privacy.released import Released
from discreet.privacy.report import RECORD, Receipt, Statement, Unit, make_release_statement
from discreet.storage import Kinds


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelectionPlan:
    """The privacy plan for the best of a secret, random number of runs of a program. Public.

    Attributes:
        costs: The plans of all releases in one run, such as its fit and its score.
        delta: The delta at which epsilon is stated.
        mean_runs: Expected number of runs, above 1.
        shape: Shape of the runs' law: 0: logarithmic, the cheapest, whose numbers vary most; 1:
            geometric; others from 1e-6 to 100: negative binomial; infinity: Poisson, the dearest,
            which may be 0 runs. None but the last is ever 0.

    Raises:
        ValueError: No costs, costs under different relations, or a number out of range.

    >>> from discreet.tabular.scores import ScorePlan
    >>> plan = ScorePlan.calibrate(epsilon=0.5, delta=1e-6)
    >>> round(SelectionPlan(costs=(plan,), delta=1e-5, mean_runs=20).epsilon(), 2)
    0.92
    """

    costs: tuple[Planned, ...]
    delta: float
    mean_runs: float = 20.0
    shape: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "costs", tuple(self.costs))
        if not self.costs or len({cost.relation for cost in self.costs}) > 1:
            raise ValueError(
                "costs must be the plans of all that one run does to the records, under one relation: for example (plan, "
                "ScorePlan.calibrate(...))."
            )
        probability(
            "delta", self.delta, hint="It should be well below one over the number of records."
        )
        repetitions(self.mean_runs, self.shape)

    @property
    def relation(self) -> Relation:
        """The neighbouring relation."""
        return self.costs[0].relation

    def one_run(self) -> DpEvent:
        """The event of one run."""
        return ComposedDpEvent([cost.event() for cost in self.costs])

    def event(self) -> DpEvent:
        """The event of the selection."""
        return RepeatAndSelectDpEvent(self.one_run(), float(self.mean_runs), float(self.shape))

    @property
    def slack(self) -> float:
        """Total variation between what runs and the event: at most that of each run, times the expected number of them."""
        return self.mean_runs * sum(cost.slack for cost in self.costs)

    def epsilon(self, delta: float | None = None) -> float:
        """Price of the whole selection at `delta`; None: the plan's."""
        spent = profile(self.event(), self.relation, slack=self.slack)
        return spent.epsilon(self.delta if delta is None else delta)

    def draw(self, key: PRNGKeyArray) -> int:
        """Draw the number of runs, exact to 2^-250. Secret: epsilon does not cover its disclosure."""
        words = np.asarray(jax.random.bits(key, (8,), np.uint32)).tolist()
        uniform = sum(word << (32 * place) for place, word in enumerate(words))
        with localcontext(prec=110):
            left = Decimal(2 * uniform + 1) / 2**257
            for number, chance in self._law():
                left -= chance
                if left < 0:
                    return number
        raise AssertionError("the probabilities of all numbers add up to 1")

    def _law(self) -> Iterator[tuple[int, Decimal]]:
        """Numbers of runs with their probabilities."""
        if self.shape == math.inf:
            mean = Decimal(self.mean_runs)
            number = 0
            chance = (-mean).exp()
            while chance > Decimal(2) ** -300 or number < mean:
                yield number, chance
                number += 1
                chance *= mean / number
            return
        gamma = Decimal(repetitions(self.mean_runs, self.shape))
        shape = Decimal(self.shape)
        whole = -gamma.ln() if not shape else ((-shape * gamma.ln()).exp() - 1) / shape
        chance = (1 - gamma) / whole
        number = 1
        while chance > Decimal(2) ** -300 or number < self.mean_runs:
            yield number, chance
            chance *= (1 - gamma) * (number + shape) / (number + 1)
            number += 1

    def state(self, *, reproducible: bool, unit: Unit = RECORD) -> Statement:
        """Make the statement of a selection by this plan, for a unit of privacy."""
        names = {0: "logarithmic", 1: "geometric", math.inf: "Poisson"}
        law = names.get(self.shape, f"truncated negative binomial (shape {self.shape:g})")
        one = composed(*self.costs).epsilon(self.delta)
        return make_release_statement(
            self.event(),
            self.relation,
            unit=unit,
            delta=self.delta,
            slack=self.slack,
            method="selection",
            mechanism=(
                f"A private program (one run alone: ε = {one:.4g} at this δ) was run a random number of times, each time with a "
                f"candidate drawn at random. The number has a {law} law with mean {self.mean_runs:g}, and is secret. Only the "
                "result with the best score left the data. ε is by Papernot and Steinke, ICLR 2022."
            ),
            accountant=(
                "ε is an upper bound, from discreet's own accountant: from the Rényi divergences of one run and the law of "
                "the number of runs, rounded upward."
            ),
            sums=False,
            plan={
                "mean_runs": self.mean_runs,
                "shape": "infinity" if self.shape == math.inf else self.shape,
            },
            num_releases=1,
            reproducible=reproducible,
            released=["The result of the best run, its score and its candidate"],
            public=["The candidates, the plan of a run, and the law of the number of runs"],
            not_covered=[
                "How many runs there were: whoever saw the time that the selection took, its memory, or messages of its runs, "
                "learns more than ε says."
            ],
        )


@dataclasses.dataclass(frozen=True)
class _PaidBySelection:
    """The receipt of a run of a selection, with the statement of the `whole`, whose figures are those of the run."""

    method: str
    whole: Statement

    def on(self, statement: Statement) -> Statement:
        """The statement of the run, with the figures of the selection."""
        return statement.as_part_of(self.whole).with_notes(str(self))

    def __str__(self) -> str:
        cost = f"ε = {upper(self.whole.epsilon)} at δ = {upper(self.whole.delta)}"
        return (
            f"This release ({self.method}) was paid for by the selection that it was a run of, the best of a secret number of "
            f"runs. The figures of this statement are those of the selection, {cost}, which whoever sees this release learns "
            "of a person at most. One run alone would cost less."
        )


class _Run(Ledger):
    """The budget of one run: its plan. Nothing is debited, since the selection was debited for all runs.

    There is one of it: it is not copied, reaches no other process, and takes nothing after its run.
    """

    def __init__(self, plan: SelectionPlan, statement: Statement) -> None:
        self._plan = plan
        self._statement = statement
        about = {
            "dataset": "one run of a selection",
            "relation": plan.relation.name,
            "unit": statement.unit.brief,
        }
        self._entries: list[Mapping[str, Any]] = [{"number": 0, "kind": "open", **about}]
        self._paid = list[DpEvent]()
        self._slack = sum(cost.slack for cost in plan.costs) * (1 + 1e-9)
        self._lock, self._process, self._open = threading.RLock(), os.getpid(), True

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            "The ledger of a run cannot go to another process or into a file, as a copy would be a second budget. Make the fit "
            "and the score in the process that calls select."
        )

    def _read(self) -> list[Mapping[str, Any]]:
        return list(self._entries)

    def refuse_unless_private(self, statement: Statement) -> None:
        """Refuse as a table's ledger does; but all of a selection by a seed can be repeated."""
        rehearsed = self._statement.reproducible
        super().refuse_unless_private(
            dataclasses.replace(statement, reproducible=False) if rehearsed else statement
        )

    def check(
        self, plan: Planned, *, delta: float, run_id: str = "", unit: str = "one record"
    ) -> float:
        """Refuse what the plan of a run does not hold."""
        del delta
        self._refuse_more(plan, unit, run_id)
        return 0.0

    def debit(
        self,
        plan: Planned,
        *,
        delta: float,
        method: str,
        run_id: str = "",
        unit: str = "one record",
    ) -> Receipt:
        """Note what the run has spent."""
        del delta
        with self._lock:
            self._refuse_more(plan, unit, run_id)
            self._entries.append({"number": len(self._entries), "kind": "debit", "method": method})
            self._paid.append(plan.event())
            self._slack -= plan.slack
        return cast(Receipt, _PaidBySelection(method, self._statement))

    def close(self) -> None:
        """The run is over."""
        with self._lock:
            self._open = False

    def _refuse_more(self, plan: Planned, unit: str, run_id: str) -> None:
        """Refuse what the plan of a run does not hold."""
        if run_id:
            # Runs that repeat earlier ones are fewer than were drawn, and a number that is fixed
            # has no such bound.
            raise ValueError(
                "A run of a selection takes no checkpoint: a later run would continue it, and the price holds for runs that are "
                "independent. Leave checkpoint= out."
            )
        if not self._open or os.getpid() != self._process:
            raise SpentError(
                "This ledger belonged to a run of a selection that is over, or to another process: a release now is not covered. "
                "Make all releases of a run within it, with its own ledger."
            )
        check_terms(self._entries, plan, unit)
        if unit != self._statement.unit.brief:
            raise ValueError(
                f"A run protects {unit}, and the selection is stated for {self._statement.unit.brief}: give select the person= "
                "and max_rows= of its runs."
            )
        asked = renyi_bound(
            ComposedDpEvent([*self._paid, plan.event()]), plan.relation, orders=FINE_ORDERS
        )
        held = renyi_bound(self._plan.one_run(), plan.relation, orders=FINE_ORDERS)
        more = np.any(
            asked.divergences > held.divergences * (1 + 1e-9)
        ) or asked.slack > held.slack * (1 + 1e-9)
        if more or plan.slack > self._slack:
            raise SpentError(
                "A run spends more than the costs of the SelectionPlan, which the selection has paid for: name the plans of all "
                "releases of a run in costs, also that of its score."
            )

    def run(
        self, candidate: Callable[[PRNGKeyArray, Ledger], tuple[float, Any]], key: PRNGKeyArray
    ) -> tuple[float, Any]:
        """Score and result of a candidate, without its messages; refuse one that debited nothing."""
        with (
            open(os.devnull, "w", encoding="utf-8") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
            warnings.catch_warnings(action="ignore"),
        ):
            try:
                score, result = candidate(key, self)
            finally:
                self.close()
        if not self._paid:
            raise ValueError(
                "it debited nothing from the ledger that it was given: pass it to the fit and to the score, as ledger=ledger."
            )
        return float(score), result


def _parts() -> Kinds:
    """The plans that a selection may have paid for: those of all methods."""
    from discreet.methods import inference, moments, newton  # noqa: F401  # a file may come before they are used
    from discreet.tabular import standardise  # noqa: F401  # a file may come before they are used

    made = (result for result in Released.__subclasses__() if result is not Selection)
    return SelectionPlan, *(kind for result in made for kind in result._kinds())


@dataclasses.dataclass(frozen=True)
class Selection(Released, what="selection of a private run", parts=_parts):
    """The best of a secret number of runs. Made by `select`.

    Attributes:
        result: The result of the best run; None if there was none (Poisson numbers of runs, or no
            score that is a number). A file holds plain values and arrays: save another result by
            itself.
        score: Its score; NaN without a result.
        candidate: Place of its candidate.
        plan: The plan of the selection.
        statement: The statement of the whole selection. The result's own statement, if it has one,
            has the same figures.
    """

    result: Any
    score: float
    candidate: int | None
    plan: SelectionPlan
    statement: Statement


@one_release
def select(
    rng_key: PRNGKeyArray,
    candidates: Sequence[Callable[[PRNGKeyArray, Ledger], tuple[float, Any]]],
    plan: SelectionPlan,
    *,
    person: str | None = None,
    max_rows: int = 1,
    ledger: Ledger | None = None,
    non_private_seed: bool = False,
) -> Selection:
    """Run candidates a random number of times, and release the result with the best score alone.

    Each run draws one of the candidates, with replacement, and calls it with a key and a ledger of
    its own. The candidate makes a private fit and a private score, both with this ledger, and
    returns (score, result). What the runs release together with the score of the best costs
    `plan.epsilon()`, which is far less than all runs; fits that did not win are never shown.

    Guarantee: the selection is one `plan.event()`, but for its slack, if candidates reach the
    records through releases that are given the run's ledger alone: it refuses what exceeds
    `plan.costs`. Scores must be releases, too. How many runs there were is secret, so a candidate
    must write nothing. What it prints, and its warnings, are not shown.

    Args:
        rng_key: `discreet.random.key()`, for this selection alone.
        candidates: Functions of (key, ledger) that return (score, result); larger scores are
            better, NaN is the worst.
        plan: The plan of the selection.
        person: Name of the column that identifies persons, where the runs protect persons.
        max_rows: Rows of a person, as in the fits.
        ledger: The table's budget, debited for all runs together before the first.
        non_private_seed: Allow a key made from a seed, with which nothing is private; the keys of
            its runs are then seeded too, so what they call must allow such keys.

    Returns:
        The best run.

    Raises:
        ValueError: Wrong input; nothing was spent.
        SpentError: The ledger does not hold the selection.
        RuntimeError: A candidate failed, exceeded the plan of a run, or did not debit its ledger
            alone; the budget is spent.

    >>> import numpy as np, discreet as dp
    >>> from discreet.tabular.scores import ScorePlan, SelectionPlan, private_metrics, select
    >>> x, score = np.linspace(0, 1, 4_000), ScorePlan.calibrate(epsilon=0.5, delta=1e-7)
    >>> def at(threshold):
    ...     def run(key, ledger):
    ...         rule = lambda rows: (rows > threshold) * 0.8 + 0.1
    ...         found = private_metrics(key, rule, x, x > 0.5, plan=score, ledger=ledger)
    ...         return found.accuracy.value, threshold
    ...     return run
    >>> plan = SelectionPlan(costs=(score,), delta=1e-6, mean_runs=4)
    >>> best = select(dp.random.key(), [at(0.3), at(0.5)], plan)
    >>> best.result in (0.3, 0.5), best.statement.epsilon < 1
    (True, True)

    Reference:
        Papernot and Steinke, Hyperparameter tuning with Rényi differential privacy, ICLR 2022.
    """
    key = random.secret_key(rng_key, "select", non_private_seed)
    candidates = list(candidates)
    if not candidates or not all(callable(candidate) for candidate in candidates):
        raise ValueError("candidates must be functions of (key, ledger), at least one.")
    act = Act.on(plan, key, random.Purpose.SELECTION, ledger=ledger, unit=Unit(person, max_rows))
    many, which, runs = jax.random.split(act.key, 3)
    times = plan.draw(many)
    act.begin()
    entries = None if ledger is None else len(ledger.entries)
    best: tuple[float, Any, int | None] = (-math.inf, None, None)
    for number in range(times):
        place = int(jax.random.randint(jax.random.fold_in(which, number), (), 0, len(candidates)))
        try:
            score, result = _Run(plan, act.statement).run(
                candidates[place], jax.random.fold_in(runs, number)
            )
            if ledger is not None and len(ledger.entries) != entries:
                raise ValueError(
                    "the selection's own ledger was debited meanwhile: give the fit and the score the ledger of the run, and let "
                    "no other process use the selection's."
                )
        except BaseException as error:
            # A debugger, or a notebook, keeps this frame.
            best = (-math.inf, None, None)
            number = 0
            times = 0
            score = 0.0
            result = None
            if not isinstance(error, Exception):
                raise
            raise RuntimeError(
                f"Candidate {place} failed ({type(error).__name__}: {error}). The budget of the selection is spent."
            ) from error
        if score > best[0]:
            best = score, result, place
    score = best[0] if best[2] is not None else math.nan
    return Selection(best[1], score, best[2], plan, act.statement)
