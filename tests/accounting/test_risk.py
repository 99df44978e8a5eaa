"""Attackers simulated and in closed form against the bounds that a risk states."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from scipy.stats import norm

from discreet.privacy.accounting import Relation, profile, risk, suggest

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE


@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
def test_gaussian_trade_off_in_closed_form(sigma):
    spent = profile(dp_event.GaussianDpEvent(sigma), ADD)
    rates = np.array([0.0, 1e-3, 0.01, 0.05, 0.1, 0.5, 1.0])
    best = norm.cdf(norm.ppf(rates) + 1 / sigma)
    ours = np.asarray(spent.true_positive_rate(rates))
    assert np.all(ours >= best - 1e-12)
    np.testing.assert_allclose(ours, best, rtol=2e-3, atol=1e-6)
    meaning = risk(spent, 1e-5)
    assert meaning.gaussian_mu == pytest.approx(1 / sigma, rel=1e-6)
    assert meaning.right_guesses == pytest.approx(norm.cdf(0.5 / sigma), rel=1e-9)


@pytest.mark.parametrize("delta", [1e-2, 1e-4])
def test_posterior_is_exceeded_with_probability_at_most_delta(delta):
    # The loss of the Gaussian mechanism with shift mu is N(mu^2/2, mu^2) under the true hypothesis.
    for mu in (0.2, 1.0, 3.0):
        meaning = risk(profile(dp_event.GaussianDpEvent(1 / mu), ADD), delta)
        for prior, posterior in meaning.posterior_beliefs:
            loss = math.log(posterior / (1 - posterior)) - math.log(prior / (1 - prior))
            assert norm.sf(loss, mu**2 / 2, mu) <= delta
            # and not idle: at most a sixth of a standard deviation or so above the exact quantile
            assert loss < norm.isf(delta, mu**2 / 2, mu) + 0.5 * mu
            # e^epsilon alone, the usual reading, is exceeded more often than delta
            assert loss > meaning.epsilon


def test_simulated_attacker_on_a_sampled_run_stays_below_the_bound():
    rng = np.random.default_rng(20261120)
    rate, sigma, steps, runs = 0.2, 1.0, 20, 200_000
    out = rng.normal(0.0, sigma, (runs, steps))
    member = out + (rng.random((runs, steps)) < rate)

    def score(x):
        return np.log(1 - rate + rate * np.exp((x - 0.5) / sigma**2)).sum(axis=1)

    without, with_ = score(out), score(rng.permuted(member, axis=0))
    step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(sigma))
    spent = profile(dp_event.SelfComposedDpEvent(step, steps), ADD)
    for fpr in (0.01, 0.05, 0.1):
        reached = float(np.mean(with_ > np.quantile(without, 1 - fpr)))
        bound = float(spent.true_positive_rate(fpr))
        # Five standard errors of either quantile: a false alarm in a million.
        error = 5 * math.sqrt(0.25 / runs) + 5 * math.sqrt(fpr / runs) * bound / fpr
        assert reached <= bound + error
        assert reached >= 0.9 * bound - error


def test_true_positive_rates_are_monotone_and_above_chance():
    spent = profile(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(8.0), 100), REPLACE)
    rates = np.linspace(0, 1, 101)
    reached = np.asarray(spent.true_positive_rate(rates))
    assert np.all(np.diff(reached) >= 0)
    assert np.all(reached >= rates)


def test_a_release_without_noise_promises_nothing():
    meaning = risk(profile(dp_event.NonPrivateDpEvent(), ADD), 1e-5)
    assert meaning.epsilon == math.inf
    assert meaning.gaussian_mu == math.inf
    assert all(rate == 1.0 for _, rate in meaning.true_positive_rates)
    assert all(posterior == 1.0 for _, posterior in meaning.posterior_beliefs)
    assert "promise nothing" in str(meaning)


def test_nothing_released_teaches_nothing():
    meaning = risk(profile(dp_event.NoOpDpEvent(), ADD), 1e-5)
    assert meaning.gaussian_mu == 0.0
    assert meaning.right_guesses == 0.5
    assert [rate for _, rate in meaning.true_positive_rates] == [0.001, 0.01, 0.05, 0.1]
    assert [posterior for _, posterior in meaning.posterior_beliefs] == pytest.approx([0.01, 0.5])


def test_warnings():
    strong = risk(profile(dp_event.GaussianDpEvent(10.0), ADD), 1e-6, num_records=10_000)
    assert strong.warnings == ()
    assert any(
        "above 10" in w for w in risk(profile(dp_event.GaussianDpEvent(0.2), ADD), 1e-6).warnings
    )
    assert any(
        "above 3" in w for w in risk(profile(dp_event.GaussianDpEvent(1.0), ADD), 1e-6).warnings
    )
    careless = risk(profile(dp_event.GaussianDpEvent(10.0), ADD), 1e-3, num_records=1000)
    assert any("one over the number of records" in w for w in careless.warnings)
    assert any(
        "precision" in w
        for w in risk(profile(dp_event.GaussianDpEvent(9.0), ADD, slack=1e-7), 1e-6).warnings
    )
    with pytest.raises(ValueError, match="delta is 0"):
        risk(profile(dp_event.GaussianDpEvent(1.0), ADD), 0)


def test_text_rounds_bounds_upward():
    from discreet.privacy.accounting import upper

    assert upper(1.00001) == "1.001"
    assert upper(1.0) == "1"
    assert upper(0.00123451) == "0.001235"
    text = str(risk(profile(dp_event.GaussianDpEvent(4.0), REPLACE), 1e-5))
    assert "epsilon = 1.994" in text
    assert "replacing one record" in text


@pytest.mark.parametrize(
    ("num_records", "delta"),
    [(10, 1e-5), (569, 1e-5), (10_000, 1e-5), (32_561, 3e-6), (10**6, 1e-7), (7 * 10**6, 1e-8)],
)
def test_suggestion(num_records, delta):
    proposal = suggest(num_records=num_records)
    assert proposal.epsilon == 1.0
    assert proposal.delta == delta
    assert proposal.delta * num_records <= 0.1
    assert "number of records is treated as public" in str(proposal)
    assert ("simple model" in proposal.why) == (num_records < 1000)


@pytest.mark.parametrize("num_records", [0, -1, 1.5, True, "10"])
def test_suggestion_needs_a_count(num_records):
    with pytest.raises(ValueError, match="an integer of at least 1"):
        suggest(num_records=num_records)
