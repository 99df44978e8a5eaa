"""The older accountants against formulas worked out by other means, and what each figure may call itself."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from discreet.privacy.accounting import (
    PrivacyProfile,
    Relation,
    _compare as theorems,
    compare_accountants,
    profile,
    upper,
)
from discreet.privacy.accounting._compare import Steps

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
ABALONE, ADULT = (0.05, 1000), (0.005, 2000)
DELTA = 1e-3
BASIC, ADVANCED, ADVANCED_2017 = (
    "basic composition",
    "advanced composition",
    "advanced composition, as in UAI 2017",
)
RENYI, MOMENTS_2017 = "Renyi (moments accountant)", "moments accountant, as in UAI 2017"
PLD = "privacy loss distributions (PLD)"


@dataclass
class Plan:
    """The facts that are asked of a plan."""

    step: dp_event.DpEvent
    count: int
    relation: Relation = ADD
    slack: float = 0.0

    def event(self):
        return dp_event.SelfComposedDpEvent(self.step, self.count)

    def profile(self) -> PrivacyProfile:
        return profile(self.event(), self.relation, slack=self.slack)

    def rows(self, delta=DELTA):
        return {row.name: row for row in compare_accountants(self, delta).rows}


def poisson(rate, sigma):
    return dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma))


def fixed_size(size, batch, sigma):
    return dp_event.SampledWithoutReplacementDpEvent(size, batch, dp_event.GaussianDpEvent(sigma))


def exact_gaussian(shift, delta):
    def excess(epsilon):
        return (
            norm.cdf(shift / 2 - epsilon / shift)
            - math.exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift)
            - delta
        )

    return brentq(excess, 0, 100, xtol=1e-13) if excess(0) > 0 else 0.0


def composed(rate, count, delta, kept, step_epsilon):
    """UAI 2017's eqs. (7) and (8), with 50 digits."""
    mpmath.mp.dps = 50
    on_batch = mpmath.mpf(step_epsilon((delta - kept) / count / rate))
    step = mpmath.log(1 + rate * mpmath.expm1(on_batch))
    return float(
        mpmath.sqrt(2 * count * mpmath.log(1 / mpmath.mpf(kept))) * step
        + count * step * mpmath.expm1(step)
    )


@pytest.mark.parametrize(("rate", "count"), [ABALONE, ADULT])
@pytest.mark.parametrize(("relation", "sensitivity"), [(ADD, 1), (REPLACE, 2)])
@pytest.mark.parametrize("sigma", [3.0, 24.0])
def test_compositions_against_the_formulas(rate, count, relation, sensitivity, sigma):
    shift = sensitivity / sigma
    rows = Plan(poisson(rate, sigma), count, relation).rows()
    on_batch = exact_gaussian(shift, DELTA / count / rate)
    step = math.log(1 + rate * (math.exp(on_batch) - 1))
    assert rows[BASIC].epsilon == pytest.approx(count * step, rel=1e-6)

    def total(log_kept):
        return composed(rate, count, DELTA, math.exp(log_kept), lambda d: exact_gaussian(shift, d))

    best = minimize_scalar(total, bounds=(math.log(1e-7), math.log(0.999e-3)), method="bounded").fun
    assert best * (1 - 1e-6) <= rows[ADVANCED].epsilon <= best * 1.002


def test_a_figure_of_uai_2017_by_hand():
    # sigma = 10, noise 2 C sigma: delta' = 5e-4, delta_subs = 1e-5, epsilon_subs = 0.48450,
    # epsilon_iter = 0.030691.
    rows = Plan(poisson(0.05, 20.0), 1000, REPLACE).rows()
    assert rows[ADVANCED_2017].epsilon == pytest.approx(4.741, abs=1e-3)
    assert rows[ADVANCED_2017].upper_bound
    assert "delta' = 0.0005" in rows[ADVANCED_2017].note
    by_formula = composed(0.05, 1000, DELTA, 5e-4, lambda d: math.sqrt(2 * math.log(1.25 / d)) / 10)
    assert rows[ADVANCED_2017].epsilon == pytest.approx(by_formula, rel=1e-9)


def test_the_classical_formula_is_no_proof_above_one():
    steps = Steps(dp_event.GaussianDpEvent(0.1), 1, ADD, 0.0)
    wrong, true = theorems.classical_step(steps, 1e-5), exact_gaussian(10.0, 1e-5)
    assert wrong < 0.6 * true
    assert theorems.classical_step_where_proved(steps, 1e-5) == math.inf
    assert theorems.exact_step(steps, 1e-5) == pytest.approx(true, rel=1e-6)
    weak = Steps(dp_event.GaussianDpEvent(10.0), 1, ADD, 0.0)
    assert theorems.exact_step(weak, 1e-5) < theorems.classical_step_where_proved(weak, 1e-5) < 1
    row = Plan(poisson(0.05, 2.4), 1000).rows()[ADVANCED_2017]
    assert "needs an epsilon below 1" in row.note


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.0), (0.9, 2.0)])
def test_amplified_steps_are_above_the_steps_themselves(rate, sigma):
    for event, relation in (
        (poisson(rate, sigma), ADD),
        (poisson(rate, sigma), REPLACE),
        (fixed_size(10_000, round(rate * 10_000), sigma), REPLACE),
    ):
        steps, true = Steps(event, 1, relation, 0.0), profile(event, relation)
        for delta in (1e-2, 1e-5, 1e-9):
            assert theorems.amplified(steps, delta, theorems.exact_step) >= true.epsilon(delta) * (
                1 - 1e-3
            )


@pytest.mark.parametrize(
    ("rate", "sigma", "epsilon"), [(0.5, 1.0, 0.5), (0.9, 2.0, 0.2), (0.2, 0.5, 1.0)]
)
def test_a_replaced_record_in_a_poisson_sample_is_2c_away(rate, sigma, epsilon):
    """The laws' own hockey stick lies below q delta of the mechanism at 2C, and above that at C."""

    def law(z, sign):
        return (1 - rate) * norm.pdf(z) + rate * norm.pdf(z - sign / sigma)

    grown = math.log(1 + rate * math.expm1(epsilon))
    true = quad(
        lambda z: max(law(z, 1) - math.exp(grown) * law(z, -1), 0), -12, 12 + 1 / sigma, limit=400
    )[0]

    def bound(shift):
        return rate * profile(dp_event.GaussianDpEvent(1 / shift), ADD).delta(epsilon)

    assert bound(1 / sigma) < true <= bound(2 / sigma)


def test_a_delta_that_no_sample_exceeds_costs_nothing():
    """delta / q above 1: the record is not even drawn so often."""
    steps = Steps(poisson(1e-4, 0.1), 1, ADD, 0.0)
    assert theorems.amplified(steps, 2e-4, theorems.exact_step) == 0.0
    assert profile(steps.event, ADD).epsilon(2e-4) == 0.0
    assert theorems.amplified(steps, 2e-4, theorems.classical_step) == math.inf


@pytest.mark.parametrize("sigma", [0.05, 1e-6])
def test_amplification_of_a_huge_epsilon_does_not_overflow(sigma):
    steps = Steps(poisson(0.01, sigma), 1, ADD, 0.0)
    on_batch = theorems.exact_step(steps, 1e-3)
    expected = float(mpmath.log(1 + mpmath.mpf(0.01) * mpmath.expm1(mpmath.mpf(on_batch))))
    assert theorems.amplified(steps, 1e-5, theorems.exact_step) == pytest.approx(expected, rel=1e-9)


PLANS = {
    "Abalone": Plan(poisson(0.05, 24.0), 1000),
    "Abalone, replaced": Plan(poisson(0.05, 24.0), 1000, REPLACE),
    "Adult": Plan(poisson(0.005, 8.0), 2000),
    "Adult, replaced": Plan(poisson(0.005, 8.0), 2000, REPLACE),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_each_generation_is_tighter_where_steps_cost_little(plan):
    rows = plan.rows()
    order = [PLD, RENYI, ADVANCED, BASIC]
    epsilons = [rows[name].epsilon for name in order]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] == plan.profile().epsilon(DELTA)
    assert rows[ADVANCED].epsilon < rows[ADVANCED_2017].epsilon
    assert (MOMENTS_2017 in rows) == (plan.relation is REPLACE)


ODD = {
    "one step": Plan(dp_event.GaussianDpEvent(4.0), 1),
    "one record replaced": Plan(dp_event.GaussianDpEvent(4.0), 1, REPLACE),
    "little noise": Plan(poisson(0.05, 0.3), 3),
    "fixed size": Plan(fixed_size(1000, 20, 1.0), 50, REPLACE),
    "fixed size, all": Plan(fixed_size(1000, 500, 3.0), 5, REPLACE),
    "much noise": Plan(poisson(0.01, 1e4), 10, REPLACE),
}


@pytest.mark.parametrize("plan", ODD.values(), ids=ODD)
@pytest.mark.parametrize("delta", [1e-5, pytest.param(0.1, marks=pytest.mark.exhaustive)])
def test_no_figure_that_claims_to_be_a_bound_lies_below_the_truth(plan, delta):
    rows = plan.rows(delta)
    for row in rows.values():
        assert row.delta == delta
        assert row.epsilon >= rows[PLD].epsilon * (1 - 1e-3) or not row.upper_bound, row


def test_one_full_step_is_the_gaussian_mechanism_with_twice_the_sensitivity():
    rows = ODD["one record replaced"].rows(1e-5)
    assert rows[BASIC].epsilon == pytest.approx(1.9931, abs=1e-3)
    # dp_accounting's own reading of the multiplier would say 1.01.
    assert 1.99 < rows[RENYI].epsilon < 2.3
    assert rows[MOMENTS_2017].upper_bound


@pytest.mark.parametrize(("rate", "count"), [ABALONE, ADULT])
def test_moments_of_2017_by_integration(rate, count):
    sigma = 1.2

    z = np.linspace(-20, 60, 20_001)

    def moment(order):
        ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * z - 1) / (2 * sigma**2))
        return math.log(
            np.exp(norm.logpdf(z, scale=sigma) + (order + 1) * ratio).sum() * (z[1] - z[0])
        )

    expected = min((count * moment(order) + math.log(1 / DELTA)) / order for order in range(1, 33))
    row = Plan(poisson(rate, 2 * sigma), count, REPLACE).rows()[MOMENTS_2017]
    assert row.epsilon == pytest.approx(expected, rel=1e-4)
    assert "holds because PLD's epsilon is no larger" in row.note


def test_removed_and_added_needs_the_smaller_delta():
    shift = 0.8

    def removal(delta):
        return exact_gaussian(shift, delta)

    twice = theorems._twice(removal, 1e-5)
    delta = norm.cdf(shift / 2 - twice / 2 / shift) - math.exp(twice / 2) * norm.cdf(
        -shift / 2 - twice / 2 / shift
    )
    assert 0.9e-5 < delta * (1 + math.exp(twice / 2)) <= 1e-5 * (1 + 1e-9)
    # What is so twice is no less than the mechanism at twice the distance.
    assert twice > exact_gaussian(2 * shift, 1e-5)
    assert theorems._twice(lambda delta: 1.0, 1e-5) == 2.0
    assert theorems._twice(lambda delta: 400.0, 1e-5) == math.inf


def test_composition_by_steps_is_charged_the_slack_of_each():
    """Also where the slack of all steps together leaves no finite epsilon: a step's own epsilon is small."""
    plan = Plan(dp_event.GaussianDpEvent(1.0), 1000, slack=1e-21)
    rows, step = plan.rows(1e-5), 1e-24
    assert rows[PLD].epsilon == math.inf
    assert rows[BASIC].epsilon < math.inf
    epsilon, delta = rows[BASIC].epsilon / 1000, 1e-8
    assert (
        norm.cdf(0.5 - epsilon)
        - math.exp(epsilon) * norm.cdf(-0.5 - epsilon)
        + (1 + math.exp(epsilon)) * step
        <= delta
    )


def test_the_samplers_slack_is_charged():
    assert theorems.with_slack(lambda delta: 1.0, 1e-5, 1e-6) == 1.0
    assert theorems.with_slack(lambda delta: 3.0, 1e-5, 1e-6) == math.inf
    seen = []
    theorems.with_slack(lambda delta: seen.append(delta) or 1.0, 1e-5, 1e-6)
    assert (1 + math.e) * 1e-6 + seen[-1] <= 1e-5
    comparison = compare_accountants(Plan(poisson(0.05, 24.0), 10, REPLACE, slack=1e-2), DELTA)
    loose = {row.name: row for row in comparison.rows}
    unattainable = loose.pop(MOMENTS_2017)
    assert all(
        row.epsilon == math.inf and row.note.startswith("no finite") for row in loose.values()
    )
    assert all("slack" in row.note for row in loose.values())
    # It leaves the slack out, and nothing else vouches for it.
    assert not unattainable.upper_bound
    assert "not an upper bound here: its proof" in str(comparison)


@pytest.mark.parametrize("slack", [0.0, 1.7e-21])
def test_a_delta_below_what_the_accountant_resolves_is_the_reason(slack):
    """The slack is far smaller than this delta, and Rényi's epsilon is finite with it."""
    rows = Plan(poisson(0.01, 4.0), 1000, slack=slack).rows(1e-18)
    assert rows[PLD].epsilon == math.inf > rows[RENYI].epsilon
    assert rows[PLD].note == (
        "no finite epsilon at this delta: it is below 1e-17, the least that numerical composition resolves"
    )
    assert rows[PLD].upper_bound
    # Where the slack alone takes all of delta, it is the reason.
    assert "slack" in Plan(poisson(0.01, 4.0), 1000, slack=1e-15).rows(1e-16)[PLD].note
    resolved = Plan(dp_event.GaussianDpEvent(4.0), 1000, slack=1e-15).rows(1e-18)[PLD]
    assert (resolved.epsilon, "slack" in resolved.note) == (math.inf, True)


def test_the_table_rounds_up_and_says_what_it_is_of():
    comparison = compare_accountants(PLANS["Abalone, replaced"], DELTA)
    first, header, *lines = str(comparison).splitlines()
    assert first == "1,000 steps, q = 0.05, delta = 0.001, one record replaced"
    assert header.split() == ["accountant", "epsilon", "note"]
    for line, row in zip(lines, comparison.rows, strict=True):
        assert line.startswith(row.name)
        assert (
            float(line[len(max((r.name for r in comparison.rows), key=len)) :].split()[0])
            >= row.epsilon
        )
        assert row.source


def test_the_page_has_these_figures():
    page = (Path(__file__).parents[2] / "docs" / "choosing-epsilon.md").read_text()
    printed = re.findall(r"^\| .* \| ([\d.,]+) \| ([\d.,]+) \|$", page, re.MULTILINE)
    for column, (rate, count) in enumerate((ABALONE, ADULT)):
        rows = Plan(poisson(rate, 2.4), count, REPLACE).rows().values()
        # The last three: what is said of the others is that they are worse.
        assert [line[column].replace(",", "") for line in printed] == [
            upper(row.epsilon) for row in list(rows)[-3:]
        ]


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-6, math.nan, True, "1e-5", None])
def test_a_delta_that_is_none_is_refused(delta):
    with pytest.raises(ValueError, match="a number above 0 and below 1"):
        compare_accountants(PLANS["Adult"], delta)


@pytest.mark.parametrize(
    "step",
    [
        dp_event.LaplaceDpEvent(1.0),
        dp_event.ComposedDpEvent([poisson(0.1, 1.0), poisson(0.2, 1.0)]),
    ],
)
def test_other_events_are_refused(step):
    with pytest.raises(ValueError, match="equal steps of a Gaussian mechanism"):
        compare_accountants(Plan(step, 3), 1e-5)


def test_fixed_size_batches_are_refused_under_the_other_relation():
    with pytest.raises(ValueError, match="no sound accounting for one record added or removed"):
        compare_accountants(Plan(fixed_size(1000, 20, 1.0), 3), 1e-5)
