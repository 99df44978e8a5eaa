"""A method of one's own is a plan with its law, a result, and one act: here the histogram of a column, in integers.

The walk of CONTRIBUTING.md ("A method of inference"). Nothing in the library refers to it; what it has all the same is tested.
"""

import dataclasses
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from dp_accounting import DpEvent

import discreet as dp
from discreet._jax import one_release
from discreet._validate import RefusedError, positive, probability, refuse
from discreet.privacy.accounting import calibrate_noise_multiplier
from discreet.privacy.act import Act
from discreet.privacy.mechanisms import GAUSSIAN, count_cells
from discreet.privacy.query import Gaussian, Query
from discreet.privacy.released import Released
from discreet.privacy.report import RECORD, Statement, Unit, make_release_statement


@dataclasses.dataclass(frozen=True)
class HistogramPlan:
    """Public numbers, and what they cost."""

    edges: tuple[float, ...]
    noise_multiplier: float
    delta: float
    relation: dp.Relation = dp.Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        if len(self.edges) < 2 or not np.all(np.diff(self.edges) > 0):
            refuse(
                "edges",
                self.edges,
                "at least two increasing numbers",
                "They are public: never take them from the data.",
            )
        positive("noise_multiplier", self.noise_multiplier)
        probability("delta", self.delta)

    @classmethod
    def calibrate(cls, edges: tuple[float, ...], *, epsilon: float, delta: float) -> Self:
        """The least noise for an epsilon."""
        goal = {"epsilon": epsilon, "delta": delta, "relation": cls.relation, "slack": GAUSSIAN.slack}
        return cls(edges, calibrate_noise_multiplier(GAUSSIAN.event, **goal), delta)

    @property
    def slack(self) -> float:
        """Total variation between the run and the event."""
        return GAUSSIAN.slack

    def event(self) -> DpEvent:
        """What one record changes: one count, by one."""
        return GAUSSIAN.event(self.noise_multiplier)

    def state(self, *, reproducible: bool, unit: Unit = RECORD) -> Statement:
        """What is spent, stated before it is spent."""
        return make_release_statement(
            self.event(),
            self.relation,
            unit=unit,
            delta=self.delta,
            slack=self.slack,
            method="histogram",
            mechanism=f"The {unit.noun}s in each bin were counted, with Gaussian noise of {self.noise_multiplier:.4g}.",
            plan={"bins": len(self.edges) - 1, "noise_multiplier": self.noise_multiplier},
            num_releases=1,
            reproducible=reproducible,
            released=["The noisy counts, and what is computed from them"],
            public=["The edges of the bins and the noise"],
        )


@dataclasses.dataclass(frozen=True)
class Histogram(Released, what="histogram", parts=(HistogramPlan, dp.Relation)):
    """Releases and public facts alone."""

    counts: np.ndarray
    plan: HistogramPlan
    statement: Statement


@dataclasses.dataclass(frozen=True)
class Counts:
    """The exact counts, which the program computes. Equal ones are proved once."""

    bins: int

    def __call__(self, levels: Any, mask: Any) -> Any:
        """The counts of the records that there are."""
        return count_cells(levels, mask, (self.bins,), ((0,),), (1,))


@one_release
def private_histogram(
    key: Any, x: np.ndarray, plan: HistogramPlan, *, person: str | None = None, ledger: dp.Ledger | None = None
) -> Histogram:
    """Refuse, prove, begin, run, state."""
    if x.ndim != 1 or not np.all((x >= plan.edges[0]) & (x <= plan.edges[-1])):
        raise RefusedError("x must be one column of numbers between the first and the last edge, without NaN.")
    levels, bins = np.digitize(x, plan.edges[1:-1]).astype(np.int32)[:, None], len(plan.edges) - 1
    act = Act.on(plan, key, ledger=ledger, unit=Unit(person))
    noise = Gaussian(plan.noise_multiplier, plan.noise_multiplier)
    query = Query(Counts(bins), noise, plan.relation, records=(1, 2))
    return Histogram(query.answer(act, levels, np.ones(len(x), bool), named=False), plan, act.statement)


PLAN = HistogramPlan.calibrate((0, 1, 2, 3), epsilon=1.0, delta=1e-6)
X = np.repeat([0.5, 1.5, 2.5], [100, 200, 300])


def test_it_counts_is_stated_debited_saved_and_shown(tmp_path: Path) -> None:
    ledger = dp.Ledger.create(tmp_path / "a.ledger", dataset="a", epsilon=1.5, delta=1e-5, unit="one person")
    found = private_histogram(dp.random.key(), X, PLAN, person="id", ledger=ledger)
    assert np.abs(found.counts - [100, 200, 300]).max() < 6 * PLAN.noise_multiplier
    assert found.statement.epsilon == pytest.approx(1.0, abs=0.01)
    assert "The persons in each bin were counted" in str(found.statement)
    assert "Proved before it ran" in str(found.statement)
    assert [debit.event for debit in ledger.debits] == [PLAN.event()]
    with pytest.raises(dp.SpentError):
        private_histogram(dp.random.key(), X, PLAN, person="id", ledger=ledger)
    again = Histogram.load(found.save(tmp_path / "histogram"))
    assert again.statement == found.statement
    assert (again.counts == found.counts).all()
    assert found.to_dict()["counts"] == found.counts.tolist()
    page = dp.page.write_report(tmp_path / "report.html", found, ledger=ledger).read_text(encoding="utf-8")
    assert "The persons in each bin were counted" in page


@pytest.mark.parametrize("x", [X[:, None], X + 1, X - 1, np.append(X, np.nan)])
def test_wrong_records_are_refused_before_they_are_paid_for(x: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Act, "begin", lambda self: pytest.fail("begun"))
    with pytest.raises(ValueError, match="one column of numbers"):
        private_histogram(dp.random.key(), x, PLAN)
    with pytest.raises(ValueError, match="increasing"):
        HistogramPlan((0, 1, 1), 1.0, 1e-6)


@pytest.mark.essential
def test_half_the_noise_is_refused_before_it_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    true = Gaussian
    monkeypatch.setattr(f"{__name__}.Gaussian", lambda stddev, claimed: true(stddev / 2, claimed))
    monkeypatch.setattr(Act, "begin", lambda self: pytest.fail("begun"))
    with pytest.raises(dp.PrivacyError, match="does more than was declared"):
        private_histogram(dp.random.key(), X, PLAN)
