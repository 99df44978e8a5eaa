"""The curve of the page is an upper bound at every false-positive rate, and no idle one."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.stats import norm

import discreet as dp
from discreet.interfaces.page import _bound
from discreet.interfaces.page._bound import (
    belief,
    corners,
    odds_factor,
    profile_pairs,
    trade_off_lines,
    true_positive_rate,
)
from discreet.privacy.report import make_statement

from .made_up import PLAN, statement_of, with_figures

RATES = (0.0, 1e-6, 1e-4, 0.001, 0.01, 0.03, 0.05, 0.1, 0.25, 0.5, 0.77, 0.9, 0.999, 1.0)
GAUSSIAN = dp.PrivacyPlan(
    sampling=dp.FullBatch(), clipping_norm=1.0, noise_multiplier=4.0, num_steps=4, num_records=50
)
PLANS = {
    "sampled": PLAN,
    "gaussian": GAUSSIAN,
    # Far from any Gaussian: a few steps with a small rate.
    "few": dataclasses.replace(
        PLAN, sampling=dp.PoissonSampling(rate=0.01), noise_multiplier=0.8, num_steps=20
    ),
    "much": dataclasses.replace(PLAN, noise_multiplier=0.7),
    "replace": dp.PrivacyPlan(
        sampling=dp.FixedSizeSampling(batch_size=100),
        clipping_norm=1.0,
        noise_multiplier=6.0,
        num_steps=50,
        num_records=1_000,
        relation=dp.Relation.REPLACE_ONE,
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_no_rate_is_claimed_below_the_profiles(name: str) -> None:
    plan = PLANS[name]
    statement, profile = statement_of(plan), plan.profile()
    alone = trade_off_lines(statement)
    lines = trade_off_lines(statement, profile_pairs(plan, statement))
    for epsilon, delta in (*_bound._pairs(statement), *profile_pairs(plan, statement)):
        assert profile.delta(epsilon) <= delta
    for rate in (*RATES, *np.random.default_rng(0).random(20)):
        true = profile.true_positive_rate(float(rate))
        # The profile's own is the least over a grid, so the statement's further pairs may be a
        # little better.
        assert (
            true * (1 - 1e-3)
            <= true_positive_rate(lines, rate)
            <= true + 2e-3 * min(1, 1 - true) + 1e-9
        )
        assert true_positive_rate(lines, rate) <= true_positive_rate(alone, rate) * (1 + 1e-9)
    # The statement and the page say the same where they speak of the same rate.
    for rate, found in statement.figures.attack_power:
        assert true_positive_rate(lines, rate) == pytest.approx(found, rel=3e-4)


def test_a_gaussian_has_its_own_curve() -> None:
    """Four releases with sigma 4 are one with mu 1/2: an oracle that shares nothing with the accountant."""
    lines = trade_off_lines(statement_of(GAUSSIAN))
    for rate in RATES:
        exact = norm.cdf(norm.ppf(rate) + 0.5)
        assert exact - 1e-12 <= true_positive_rate(lines, rate) <= exact + 1e-3


@pytest.mark.parametrize("wrong", [lambda s, i: (s, i * 0.99), lambda s, i: (s * 0.98, i)])
def test_a_bound_that_claims_less_is_seen(wrong) -> None:
    """The oracle fails for lines that are a little lower."""
    lines = [wrong(*line) for line in trade_off_lines(statement_of(GAUSSIAN))]
    below = [
        true_positive_rate(lines, rate) < norm.cdf(norm.ppf(rate) + 0.5) - 1e-12 for rate in RATES
    ]
    assert any(below)


def test_corners_are_the_bound_itself() -> None:
    lines = trade_off_lines(statement_of())
    xs, ys = np.array(corners(lines)).T
    assert xs[0] == 0
    assert xs[-1] == ys[-1] == 1
    assert (np.diff(xs) >= 0).all()
    for rate in np.linspace(0, 1, 400):
        assert np.interp(rate, xs, ys) == pytest.approx(true_positive_rate(lines, rate), abs=1e-9)


def test_pairs_of_another_plan_are_not_taken() -> None:
    weaker = dataclasses.replace(PLAN, noise_multiplier=8.0)
    assert profile_pairs(weaker, statement_of()) == []
    assert profile_pairs(PLAN, statement_of(steps_completed=PLAN.num_steps + 100)) != []


def test_beliefs_are_those_of_the_statement() -> None:
    statement = statement_of()
    factor = odds_factor(statement)
    for before, after in statement.figures.posterior_beliefs:
        assert after <= belief(before, factor) <= after * (1 + 1e-9)
    certain = with_figures(statement, posterior_beliefs=((0.01, 1.0), (0.5, 1.0)))
    assert math.isinf(odds_factor(certain))
    assert belief(0.001, math.inf) == 1.0


def test_what_has_no_epsilon_promises_nothing() -> None:
    statement = make_statement(PLAN, delta=1e-40, steps_completed=200, reproducible=False)
    assert math.isinf(statement.epsilon)
    assert true_positive_rate(trade_off_lines(statement), 0.0) <= 1.0
    hopeless = with_figures(statement, profile=(), gaussian_mu=math.inf)
    assert true_positive_rate(trade_off_lines(hopeless), 0.0) == 1.0


def test_a_gaussian_that_covers_nothing() -> None:
    statement = with_figures(statement_of(), gaussian_mu=0.0, profile=(), epsilon=0.0, delta=0.0)
    assert true_positive_rate(_bound.trade_off_lines(statement), 0.3) == pytest.approx(
        0.3, abs=1e-9
    )
