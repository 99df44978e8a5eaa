"""Calibration: from the safe side, close to the target, quick, and refusing what cannot be done."""

import math
import re
import time

import pytest
from dp_accounting import GaussianDpEvent, dp_event
from hypothesis import given, settings, strategies as st

from discreet.privacy.accounting import (
    Relation,
    calibrate_noise_multiplier,
    calibrate_num_steps,
    profile,
)

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE


def poisson(rate, steps):
    def event_of(noise_multiplier):
        step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise_multiplier))
        return dp_event.SelfComposedDpEvent(step, steps)

    return event_of


def fixed_size(size, batch, steps):
    def event_of(noise_multiplier):
        step = dp_event.SampledWithoutReplacementDpEvent(
            size, batch, dp_event.GaussianDpEvent(noise_multiplier)
        )
        return dp_event.SelfComposedDpEvent(step, steps)

    return event_of


def check(event_of, epsilon, delta, relation, slack=0.0):
    noise = calibrate_noise_multiplier(
        event_of, epsilon=epsilon, delta=delta, relation=relation, slack=slack
    )
    spent = profile(event_of(noise), relation, slack=slack).epsilon(delta)
    assert 0.999 * epsilon <= spent <= epsilon
    return noise


def test_reference_figure():
    # dp_accounting's PLD 4.3027, d3p's Fourier accountant 4.3229.
    noise = check(poisson(0.01, 10**4), 1.0, 1e-6, ADD)
    assert 4.302 < noise < 4.3046


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(
    ("rate", "steps"), [(1.0, 1), (1.0, 10**6), (0.01, 1), (0.01, 500), (0.5, 100), (1e-5, 100)]
)
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_safe_and_close(epsilon, rate, steps, relation):
    check(poisson(rate, steps), epsilon, 1e-6, relation)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 20.0])
def test_fixed_size(epsilon):
    check(fixed_size(500, 32, 1000), epsilon, 1e-5, REPLACE)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_a_million_steps_cost_little_more_than_a_hundred(relation):
    def seconds(steps):
        start = time.process_time()
        check(poisson(0.01, steps), 1.0, 1e-6, relation)
        return time.process_time() - start

    seconds(10)
    # Measured 3 to 5 times.
    assert seconds(10**6) < 20 * seconds(100)


def test_slack_costs_noise():
    plain = check(poisson(0.01, 100), 1.0, 1e-6, ADD)
    assert check(poisson(0.01, 100), 1.0, 1e-6, ADD, slack=1e-7) > plain


@pytest.mark.parametrize(("epsilon", "slack"), [(0.5, 4.9e-7), (50.0, 1.7e-21)])
def test_an_epsilon_between_the_largest_finite_one_and_infinity_is_refused(epsilon, slack):
    """(1 + e^epsilon) slack is above delta. Less than was asked for is not returned without a word."""
    goal = {"delta": 1e-6, "relation": ADD, "slack": slack}
    with pytest.raises(ValueError, match="ask for an epsilon of at most") as refusal:
        calibrate_noise_multiplier(GaussianDpEvent, epsilon=epsilon, **goal)
    remedy = float(re.findall(r"at most ([0-9.e-]+), or", str(refusal.value))[0])
    noise = calibrate_noise_multiplier(GaussianDpEvent, epsilon=remedy, **goal)
    assert (
        0.999 * remedy <= profile(GaussianDpEvent(noise), ADD, slack=slack).epsilon(1e-6) <= remedy
    )
    assert profile(GaussianDpEvent(0.95 * noise), ADD, slack=slack).epsilon(1e-6) == math.inf


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    st.floats(1e-3, 1.0),
    st.integers(1, 2000),
    st.floats(0.02, 30.0),
    st.sampled_from([ADD, REPLACE]),
)
def test_safe_and_close_anywhere(rate, steps, epsilon, relation):
    check(poisson(rate, steps), epsilon, 1e-7, relation)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_most_steps(epsilon):
    def event_of(steps):
        return poisson(0.01, steps)(2.0)

    steps = calibrate_num_steps(event_of, epsilon=epsilon, delta=1e-6, relation=ADD)
    assert (
        profile(event_of(steps), ADD).epsilon(1e-6)
        <= epsilon
        < profile(event_of(steps + 1), ADD).epsilon(1e-6)
    )


def test_most_steps_with_slack_are_fewer():
    def event_of(steps):
        return poisson(0.01, steps)(2.0)

    plain = calibrate_num_steps(event_of, epsilon=1.0, delta=1e-6, relation=ADD)
    slack = 2e-7 / plain
    fewer = calibrate_num_steps(
        event_of, epsilon=1.0, delta=1e-6, relation=ADD, slack_per_step=slack
    )
    assert fewer < plain
    assert profile(event_of(fewer), ADD, slack=fewer * slack).epsilon(1e-6) <= 1.0


@pytest.mark.essential
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": 0.0}, "above 0"),
        ({"epsilon": math.inf}, "finite"),
        ({"epsilon": math.nan}, "finite"),
        ({"delta": 0.0}, "delta is 0.0"),
        ({"delta": 1.0}, "below 1"),
        ({"slack": 1e-6}, "infeasible"),
        ({"slack": -1.0}, "slack"),
        ({"delta": 1e-18}, "no noise multiplier"),
        ({"delta": 0.9}, "any noise multiplier"),
    ],
)
def test_infeasible_targets_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        calibrate_noise_multiplier(
            poisson(0.01, 10),
            **({"epsilon": 1.0, "delta": 1e-6, "relation": ADD, "slack": 0.0} | arguments),
        )


def test_steps_that_cannot_be_afforded_or_cost_nothing_are_refused():
    with pytest.raises(ValueError, match="one step already"):
        calibrate_num_steps(
            lambda steps: poisson(0.5, steps)(0.5), epsilon=0.1, delta=1e-6, relation=ADD
        )
    with pytest.raises(ValueError, match="steps cost less"):
        calibrate_num_steps(
            lambda steps: poisson(1.0, steps)(1e9), epsilon=1.0, delta=1e-6, relation=ADD
        )
