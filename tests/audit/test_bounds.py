"""The statistics alone: what is called a lower bound is one as often as it says, and not by being empty."""

import numpy as np
import pytest
from dp_accounting import dp_event
from scipy import stats

from discreet.methods.audit import (
    Rates,
    clopper_pearson,
    epsilon_lower_bound,
    judge,
    one_run_epsilon,
    one_run_p_value,
)
from discreet.privacy.accounting import Relation, profile

EPSILON = 1.0
HONEST = 1 / (1 + np.exp(-EPSILON))


@pytest.mark.parametrize("successes", [0, 3, 50])
def test_clopper_pearson_is_scipys(successes):
    low, high = clopper_pearson(successes, 50, 0.025)
    exact = stats.binomtest(successes, 50).proportion_ci(0.95, "exact")
    np.testing.assert_allclose([low, high], [exact.low, exact.high], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("probability", [0.01, 0.3, 0.97])
def test_each_bound_is_wrong_as_rarely_as_it_says(probability):
    """Exactly: over all outcomes, no simulation."""
    counts = np.arange(201)
    low, high = clopper_pearson(counts, 200, 0.05)
    chance = stats.binom.pmf(counts, 200, probability)
    assert chance[low > probability].sum() <= 0.05
    assert chance[high < probability].sum() <= 0.05


def test_both_directions():
    there, gone = 0.999, 0.5
    assert float(epsilon_lower_bound(there, gone, 0.0)) < 0.7
    # The test that guesses the opposite, with the canary's absence as what is to be found.
    assert float(epsilon_lower_bound(1 - gone, 1 - there, 0.0)) == pytest.approx(np.log(500))
    rng = np.random.default_rng(0)
    present, absent = rng.random(4000) < there, rng.random(4000) < gone
    rates = judge({"bit": present}, {"bit": absent}, delta=0.0, confidence=0.95)
    assert rates.says == "without"
    assert rates.epsilon(0.0) > 4.5


def test_delta_is_taken_off():
    assert float(epsilon_lower_bound(0.3, 0.1, 0.1)) == pytest.approx(np.log(2))
    assert float(epsilon_lower_bound(0.05, 0.0, 0.1)) == 0.0
    assert float(epsilon_lower_bound(0.2, 0.0, 0.1)) == np.inf


def randomised_response(rng, runs):
    present, absent = rng.random(runs) < HONEST, rng.random(runs) < 1 - HONEST
    return present.astype(float), absent.astype(float)


def test_the_lower_bound_on_randomised_response():
    """Wrong in 10 % of 500 audits at most. False alarm 1e-6: more than 85 of 500 at a rate of 0.1."""
    rng = np.random.default_rng(1)
    found, naive = [], []
    for _ in range(500):
        present, absent = randomised_response(rng, 200)
        found.append(judge({"x": present}, {"x": absent}, delta=0.0, confidence=0.9).epsilon(0.0))
        naive.append(float(epsilon_lower_bound(present.mean(), absent.mean(), 0.0)))
    most = stats.binom.ppf(1 - 1e-6, 500, 0.1)
    assert np.sum(np.array(found) > EPSILON) <= most
    assert np.mean(found) > 0.4
    # Rates in the place of their bounds are wrong in half of all audits, and the test would see it.
    assert np.sum(np.array(naive) > EPSILON) > most


def test_the_lower_bound_on_a_gaussian_mechanism_with_a_choice_of_thresholds():
    """Likewise, for the best of all thresholds of two scores: the choice is made on other runs."""
    delta, rng = 0.02, np.random.default_rng(2)
    claim = profile(dp_event.GaussianDpEvent(1.0), Relation.ADD_OR_REMOVE_ONE)
    found, reused, power = [], [], []
    for _ in range(100):
        present, absent = rng.normal(1, 1, (2, 200)), rng.normal(0, 1, (2, 200))
        scores = ({"right": x[0], "useless": rng.normal(size=200)} for x in (present, absent))
        rates = judge(*scores, delta=delta, confidence=0.9)
        found.append(rates.epsilon(delta))
        power.append(rates.true_positive_rate > claim.true_positive_rate(rates.false_positive_rate))
        # Judged by the runs that it was chosen on.
        thresholds = np.sort(np.concatenate([present[0], absent[0]]))
        rates = [
            Rates.of("", "", np.sum(present[0] > t), np.sum(absent[0] > t), 200, 0.1)
            for t in thresholds[-60::5]
        ]
        reused.append(max(x.epsilon(delta) for x in rates))
    most = stats.binom.ppf(1 - 1e-6, 100, 0.1)
    assert np.sum(np.array(found) > claim.epsilon(delta)) <= most
    assert np.sum(power) <= most
    assert np.mean(found) > 0.25
    assert np.mean(reused) > np.mean(found)


def test_the_runs_that_choose_the_test_do_not_judge_it():
    """A score that tells the first half of the runs apart and knows nothing of the second: luck must not pass for an attack."""
    present, absent = np.random.default_rng(5).normal(size=(2, 2_000))
    present[:1_000] += 10.0
    rates = judge({"x": present}, {"x": absent}, delta=0.0, confidence=0.99)
    assert rates.trials == 1_000
    assert rates.epsilon(0.0) == 0.0


def test_mu_is_the_difference_of_quantiles():
    rates = Rates("", "", 0, 0, 1, stats.norm.cdf(0.5), stats.norm.cdf(-1.0))
    assert rates.mu == pytest.approx(1.5)
    assert Rates("", "", 0, 0, 1, 0.2, 0.3).mu == 0.0


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("delta", [0.0, 0.01])
def test_one_run_is_wrong_as_rarely_as_it_says(epsilon, delta):
    """Exactly, for randomised response that tells the truth outright with probability δ."""
    counts = np.arange(201)
    found = np.array([one_run_epsilon(200, 200, v, delta, 0.95) for v in counts])
    accuracy = delta + (1 - delta) / (1 + np.exp(-epsilon))
    wrong = stats.binom.pmf(counts, 200, accuracy)[found > epsilon].sum()
    assert wrong <= 0.05
    # At δ = 0 the bound is sharp: the next count that would be taken for a refutation is too many.
    assert delta > 0 or wrong > 0.02
    assert np.all(np.diff(found) >= 0)


def test_one_run_p_value_by_its_definition():
    m, r, v, epsilon, delta = 60, 40, 33, 1.0, 1e-3
    accuracy = 1 / (1 + np.exp(-epsilon))

    def tail(k):
        return stats.binom.sf(k - 1, r, accuracy)

    worst = max((tail(v - i) - tail(v)) / i for i in range(1, m + 1))
    assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(
        tail(v) + 2 * m * delta * worst
    )
    assert one_run_p_value(m, r, v, epsilon, 0.0) < one_run_p_value(m, r, v, epsilon, delta)
    assert one_run_p_value(m, r, 0, epsilon, delta) == 1.0


@pytest.mark.parametrize("score", [np.inf, -np.inf])
def test_infinite_scores_are_on_their_side(score):
    present, absent = np.where(np.arange(400) % 2, score, 0.0), np.zeros(400)
    rates = judge({"x": present}, {"x": absent}, delta=0.0, confidence=0.95)
    assert (rates.caught, rates.false_alarms) == (100, 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"delta": 1.0}, "delta is 1.0"),
        ({"confidence": 1.0}, "confidence is 1.0"),
        ({"present": {"x": np.full(8, np.nan)}}, "NaN in some runs"),
        ({"present": {"x": np.zeros(7)}}, "one number for each run"),
    ],
)
def test_refusals(change, says):
    arguments = {
        "present": {"x": np.zeros(8)},
        "absent": {"x": np.zeros(8)},
        "delta": 0.0,
        "confidence": 0.9,
    } | change
    with pytest.raises(ValueError, match=says):
        judge(arguments.pop("present"), arguments.pop("absent"), **arguments)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: clopper_pearson(3, 2, 0.1), "between 0 and the trials"),
        (lambda: clopper_pearson(1, 2, 0.0), "level is"),
        (lambda: one_run_p_value(5, 6, 1, 1.0, 0.0), "impossible"),
        (lambda: one_run_p_value(5, 5, 1, -1.0, 0.0), "epsilon is -1"),
        (lambda: one_run_epsilon(5, 5, 1, 0.0, 1.0), "confidence is"),
    ],
)
def test_impossible_numbers(call, says):
    with pytest.raises(ValueError, match=says):
        call()
