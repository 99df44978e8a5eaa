"""Choices by the exponential mechanism: the best adversary's profile beside brute force, the paper's bounds, and real choices."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from scipy.special import log_softmax
from scipy.stats import binom

from discreet.privacy.accounting import (
    BoundedRangeDpEvent,
    PrivacyFilter,
    PrivacyProfile,
    Relation,
    cost_of,
    event_from_dict,
    event_to_dict,
    profile,
)
from discreet.privacy.accounting._choices import SelectionPair
from discreet.privacy.accounting._compose import compose

ADD = Relation.ADD_OR_REMOVE_ONE


def spent(width, count=1, relation=ADD):
    return profile(dp_event.SelfComposedDpEvent(BoundedRangeDpEvent(width), count), relation)


def chance(width, t):
    return math.expm1(t - width) / math.expm1(-width)


def fixed_in_advance(width, count, epsilon):
    """The best of adversaries who choose one t for all: Dong, Durfee, Rogers, ICML 2020, the formula of Theorem 2."""
    best, high = 0.0, np.arange(count + 1)
    for t in np.linspace(0, width, 401):
        losses = high * t + (count - high) * (t - width)
        probs = binom.pmf(high, count, chance(width, t))
        best = max(best, float(probs @ np.maximum(0, -np.expm1(np.minimum(epsilon - losses, 0)))))
    return best


@pytest.mark.parametrize("width", [1e-4, 0.1, 1.0, 5.0, 100.0])
def test_one_choice_has_its_closed_form(width):
    """The best t is at e^t = sqrt(e^(width + epsilon)), which half of the range in the place of the range does not survive."""
    found = spent(width)
    knots, _ = found.curve()
    for epsilon in knots[:: max(1, len(knots) // 7)]:
        exact = (
            math.exp(epsilon - width) * math.expm1((width - epsilon) / 2) ** 2 / -math.expm1(-width)
        )
        assert exact * (1 - 1e-11) <= found.delta(epsilon) <= exact * (1 + 1e-9) + 1e-15
        assert spent(width / 2).delta(epsilon) < exact or epsilon == width


def test_the_best_of_two_adaptive_choices_is_covered():
    """By brute force over the first t and, for either answer, the second."""
    width, ts = 1.0, np.linspace(0.0, 1.0, 201)
    p = np.array([chance(width, t) for t in ts])

    def one(alpha):
        return np.max(
            np.maximum(
                0,
                p * (1 - alpha * np.exp(-ts))
                + (1 - p) * np.maximum(0, 1 - alpha * np.exp(width - ts)),
            )
        )

    for epsilon in (0.0, 0.3, 0.9, 1.5):
        alpha = math.exp(epsilon)
        brute = max(
            q * one(alpha * math.exp(-t)) + (1 - q) * one(alpha * math.exp(width - t))
            for t, q in zip(ts, p, strict=True)
        )
        assert brute * (1 - 1e-12) <= spent(width, 2).delta(epsilon)


@pytest.mark.parametrize(("width", "count"), [(1.0, 2), (0.5, 10), (0.1, 60), (5.0, 3)])
def test_compositions_cover_the_formula_of_the_paper(width, count):
    found = spent(width, count)
    for epsilon in np.linspace(0.0, 3 * math.sqrt(count) * width / 2, 6):
        assert found.delta(epsilon) >= fixed_in_advance(width, count, epsilon) * (1 - 1e-9)


def test_real_choices_are_covered_and_those_with_half_the_range_are_not():
    """Three answers whose scores move by 1, up and down: P in proportion to exp(epsilon score / 2)."""
    width, broken = 1.0, 0
    for scores, moves in itertools.product(
        itertools.product((0.0, 2.0, 9.0), repeat=3), itertools.product((-1, 1), repeat=3)
    ):
        before, after = (np.exp(log_softmax(width / 2 * np.add(scores, x))) for x in (0, moves))
        for epsilon in (0.0, 0.2, 0.45):
            real = np.maximum(0, before - math.exp(epsilon) * after).sum()
            assert real <= spent(width).delta(epsilon) * (1 + 1e-9)
            broken += real > spent(width / 2).delta(epsilon)
    assert broken


def test_as_a_pair_the_profile_is_the_same():
    for delta in (1e-2, 1e-6):
        curve = compose([[(SelectionPair(0.3), 1)]])
        pair = PrivacyProfile(dp_event.NoOpDpEvent(), ADD, 0.0, curve).epsilon(delta)
        assert (
            spent(0.3).epsilon(delta) * (1 - 1e-9) <= pair <= spent(0.3).epsilon(delta) * (1 + 1e-3)
        )


def test_ranges_of_two_kinds_cost_more_than_either_and_less_than_all_alike():
    def of(*ranges):
        return profile(
            dp_event.ComposedDpEvent([BoundedRangeDpEvent(x) for x in ranges]), ADD
        ).epsilon(1e-6)

    assert of(0.2, 0.2, 0.2) < of(0.2, 0.2, 0.2, 0.1) < of(0.2, 0.2, 0.2, 0.2)


@pytest.mark.parametrize(("width", "count"), [(0.01, 2500), (0.1, 60)])
def test_many_cost_a_gaussian_of_half_their_range_and_little_more(width, count):
    gaussian = profile(dp_event.GaussianDpEvent(2 / (width * math.sqrt(count))), ADD).epsilon(1e-5)
    assert gaussian < spent(width, count).epsilon(1e-5) < 1.2 * gaussian


def test_a_replaced_record_moves_scores_twice():
    assert spent(0.25, 4, Relation.REPLACE_ONE).epsilon(1e-5) == spent(0.5, 4).epsilon(1e-5)


def test_a_filter_adds_them_as_gaussians_of_half_their_range():
    alone, gaussian = (
        cost_of(x, ADD, delta=1e-6)
        for x in (BoundedRangeDpEvent(0.2), dp_event.GaussianDpEvent(10.0))
    )
    np.testing.assert_allclose(alone.renyi.divergences, gaussian.renyi.divergences)
    orders = 1 + np.geomspace(0.5, 2000.0, 24)
    for t, order in itertools.product(np.linspace(0.0, 0.2, 21), range(24)):
        p, a = chance(0.2, t), orders[order]
        real = math.log(p * math.exp((a - 1) * t) + (1 - p) * math.exp((a - 1) * (t - 0.2))) / (
            a - 1
        )
        assert real <= alone.renyi.divergences[order] * (1 + 1e-12) + 1e-15
    assert PrivacyFilter(epsilon=1.0, delta=1e-5).admits([alone] * 3)


def test_it_is_written_and_read():
    event = dp_event.SelfComposedDpEvent(BoundedRangeDpEvent(0.125), 3)
    assert event_from_dict(event_to_dict(event)) == event


def test_edges():
    assert profile(BoundedRangeDpEvent(0.0), ADD).epsilon(0.0) == 0
    assert profile(BoundedRangeDpEvent(250.0), ADD).delta(100.0) == 1
    with pytest.raises(ValueError, match="0 or more"):
        spent(-1.0)
    with pytest.raises(ValueError, match="amplification by sampling"):
        profile(dp_event.PoissonSampledDpEvent(0.1, BoundedRangeDpEvent(1.0)), ADD)
