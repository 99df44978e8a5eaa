"""A method of one's own: a plan, a result, an exact sum, and a function that makes one act. Here a histogram of a column.

It is the example of CONTRIBUTING.md ("A method of inference"). Nothing in the library refers to it;
it passes the tests of all methods in test_act.py, so a copy starts complete.
"""

import dataclasses
import inspect
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests import test_act
from tests.methods import ADD, METHODS, REPLACE, SUM, Entry
from tests.test_act import ledger as ledger

import discreet as dp
from discreet._jax import one_release
from discreet._validate import RefusedError, refuse
from discreet.privacy.accounting import neighbours
from discreet.privacy.act import Act
from discreet.privacy.mechanisms import count_cells
from discreet.privacy.query import Gaussian, GaussianPlan, Query, Wording
from discreet.privacy.released import Released
from discreet.privacy.report import Statement, Unit


@dataclasses.dataclass(frozen=True, kw_only=True)
class HistogramPlan(GaussianPlan):
    """Public numbers, and what they cost. A plan for a public number of records derives from `PlanOfRecords`."""

    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.edges) < 2 or not np.all(np.diff(self.edges) > 0):
            hint = "They are public: do not compute them."
            refuse("edges", self.edges, "at least two increasing numbers", hint)

    @property
    def noise(self) -> Gaussian:
        """The noise on each count. A replaced record moves counts by sqrt(2), and other sums by `distance`, which is 2."""
        near = neighbours(self.relation)
        stddev = self.noise_multiplier * near.of_cells / near.distance
        return Gaussian(stddev, self.noise_multiplier)

    def wording(self, unit: Unit) -> Wording:
        """What the statement says."""
        return Wording(
            method="histogram",
            mechanism=f"The {unit.noun}s in each bin were counted, with Gaussian noise of {self.noise.stddev:.4g}.",
            plan={"bins": len(self.edges) - 1, "noise_multiplier": self.noise_multiplier},
            released=["The noisy counts, and what is computed from them"],
            public=["The edges of the bins and the noise"],
        )


@dataclasses.dataclass(frozen=True)
class Histogram(Released, what="histogram"):
    """Releases and public facts only."""

    counts: np.ndarray
    plan: HistogramPlan
    statement: Statement


class Counts(NamedTuple):
    """The exact counts, which the program computes. Equal ones are proved once, so this is no lambda and no partial."""

    bins: int

    def __call__(self, levels: Any, mask: Any) -> Any:
        """The counts of the records that there are."""
        return count_cells(levels, mask, (self.bins,), ((0,),), (1,))


@one_release
def private_histogram(
    key: Any,
    x: Any,
    plan: HistogramPlan,
    *,
    person: str | None = None,
    ledger: dp.Ledger | None = None,
) -> Histogram:
    """Refuse, prove, begin, run, state. `x` has one row of each person."""
    x = np.asarray(x)
    if x.ndim != 1 or not np.all((x >= plan.edges[0]) & (x <= plan.edges[-1])):
        raise RefusedError(
            "x must be one column of numbers between the first and the last edge, without NaN."
        )
    act = Act.on(plan, key, ledger=ledger, unit=Unit(person))
    levels = np.digitize(x, plan.edges[1:-1]).astype(np.int32)[:, None]
    query = Query(Counts(len(plan.edges) - 1), plan.noise, plan.relation, records=(1, 2))
    return Histogram(
        query.answer(act, levels, np.ones(len(x), bool), named=False), plan, act.statement
    )


def terms(bins: int = 3, relation: dp.Relation = ADD) -> HistogramPlan:
    edges = tuple(range(bins + 1))
    return HistogramPlan.calibrate(epsilon=1.0, delta=1e-6, edges=edges, relation=relation)


def binned(key: Any, x: Any = test_act.X, relation: dp.Relation = ADD, **options: Any) -> Histogram:
    """What tests/methods.py has of each method."""
    return private_histogram(key, x, terms(relation=relation), **options)


X = np.repeat([0.5, 1.5, 2.5], [100, 200, 300])


@pytest.mark.parametrize(
    ("check", "given"),
    [
        (test_act.test_of_two_threads_with_one_key_one_is_debited_and_released, {}),
        (
            test_act.test_the_programs_are_the_plan_and_with_less_noise_they_are_refused,
            {"relation": ADD},
        ),
        (
            test_act.test_the_programs_are_the_plan_and_with_less_noise_they_are_refused,
            {"relation": REPLACE},
        ),
        (test_act.test_settings_of_jax_that_find_faults_stop_no_method, {}),
        (test_act.test_a_person_is_named_in_the_statement_and_in_the_ledger, {}),
        (test_act.test_a_key_from_a_seed_is_charged_to_no_ledger_and_stated, {}),
        (test_act.test_a_key_that_is_none_is_refused, {"key": test_act.X}),
        (test_act.test_the_number_of_records_is_the_plans_or_secret, {}),
        (test_act.test_under_a_trace_is_refused, {}),
        (test_act.test_a_sum_is_the_same_to_the_bit_in_any_order, {}),
    ],
)
def test_what_holds_of_every_method(
    check: Any, given: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    monkeypatch = request.getfixturevalue("monkeypatch")
    monkeypatch.setitem(METHODS, binned, Entry(private_histogram, SUM))
    given = {"method": binned, **given}
    check(
        **{
            name: given[name] if name in given else request.getfixturevalue(name)
            for name in inspect.signature(check).parameters
        }
    )


def test_it_counts_is_saved_and_shown(tmp_path: Path, ledger: dp.Ledger) -> None:
    found = private_histogram(dp.random.key(), X, terms(), ledger=ledger)
    assert np.abs(found.counts - [100, 200, 300]).max() < 6 * found.plan.noise.stddev
    assert found.statement.epsilon == pytest.approx(1.0, abs=0.01)
    again = Histogram.load(found.save(tmp_path / "histogram"))
    assert again.statement == found.statement
    assert (again.counts == found.counts).all()
    page = dp.page.write_report(tmp_path / "report.html", found, ledger=ledger).read_text(
        encoding="utf-8"
    )
    assert "The records in each bin were counted" in page


@pytest.mark.parametrize("x", [X[:, None], X + 1, X - 1, np.append(X, np.nan)])
def test_wrong_records_are_refused_before_they_are_paid_for(
    x: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Act, "begin", lambda self: pytest.fail("begun"))
    with pytest.raises(ValueError, match="one column of numbers"):
        private_histogram(dp.random.key(), x, terms())
    with pytest.raises(ValueError, match="increasing"):
        HistogramPlan.calibrate(epsilon=1.0, delta=1e-6, edges=(0, 1, 1))


@pytest.mark.parametrize(("record", "other", "moved"), [([], [0], 1), ([0], [1], 2**0.5)])
def test_neighbours_attain_the_bound(record: list[int], other: list[int], moved: float) -> None:
    one, two = (
        Counts(3)(np.array([[2], *([level] for level in more)]), np.ones(1 + len(more), bool))
        for more in (record, other)
    )
    assert np.linalg.norm(np.asarray(one - two)) == pytest.approx(moved)


@pytest.mark.essential
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_half_the_noise_and_twice_the_sum_are_refused(
    relation: dp.Relation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fault has a plan of its own shape: equal queries are proved once."""
    true, counts = terms(relation=relation).noise, Counts.__call__
    monkeypatch.setattr(Act, "begin", lambda self: pytest.fail("begun"))
    with monkeypatch.context() as patch:
        patch.setattr(HistogramPlan, "noise", true._replace(stddev=true.stddev / 2))
        with pytest.raises(dp.PrivacyError, match="does more than was declared"):
            private_histogram(dp.random.key(), X, terms(4, relation))
    monkeypatch.setattr(Counts, "__call__", lambda self, *table: 2 * counts(self, *table))
    with pytest.raises(dp.PrivacyError, match="does more than was declared"):
        private_histogram(dp.random.key(), X, terms(5, relation))
