"""Pure epsilon: randomised response as the worst of all (epsilon, 0)-private mechanisms, alone, composed and mixed."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import dp_event

from discreet.privacy.accounting import Relation, profile, pure_event
from discreet.privacy.accounting._choices import PurePair
from discreet.privacy.accounting._compose import compose

RELATIONS = (Relation.REPLACE_ONE, Relation.ADD_OR_REMOVE_ONE)


def by_enumeration(epsilons, at: float) -> float:
    """The hockey-stick divergence of randomised responses with these epsilons, over all answers."""
    total = 0.0
    for answers in itertools.product((True, False), repeat=len(epsilons)):
        p = math.prod(
            1 / (1 + math.exp(-e if right else e))
            for e, right in zip(epsilons, answers, strict=True)
        )
        q = math.prod(
            1 / (1 + math.exp(e if right else -e))
            for e, right in zip(epsilons, answers, strict=True)
        )
        total += max(0.0, p - math.exp(at) * q)
    return total


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.1, 1.0, 3.7, 20.0, 300.0])
def test_the_event_is_rounded_up_and_hardly(epsilon: float) -> None:
    for relation in RELATIONS:
        spent = profile(pure_event(epsilon), relation).epsilon(0.0)
        assert epsilon <= spent <= epsilon * (1 + 1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_composition_is_that_of_all_answers(count: int) -> None:
    event = dp_event.SelfComposedDpEvent(pure_event(0.5), count)
    spent = profile(event, Relation.REPLACE_ONE)
    for at in np.linspace(0.0, 0.5 * count, 23):
        exact = by_enumeration([0.5] * count, at)
        assert exact * (1 - 1e-9) - 1e-15 <= spent.delta(float(at)) <= exact * (1 + 1e-9) + 1e-12
    # A wrong composition that forgets the count, as dp_accounting's PLDAccountant does, stops at
    # 0.5.
    assert spent.epsilon(0.0) == pytest.approx(0.5 * count, rel=1e-9)


def test_one_use_agrees_with_dp_accounting() -> None:
    accountant = dp_accounting.pld.PLDAccountant(Relation.REPLACE_ONE)
    accountant.compose(pure_event(1.0))
    for delta in (1e-6, 1e-3, 0.1):
        ours = profile(pure_event(1.0), Relation.REPLACE_ONE).epsilon(delta)
        assert ours <= accountant.get_epsilon(delta) * (1 + 1e-9)
        assert ours == pytest.approx(accountant.get_epsilon(delta), rel=1e-3)


def test_the_pair_on_a_grid_is_an_upper_bound_near_the_closed_form() -> None:
    curve = compose([[(PurePair(0.5), 2), (PurePair(0.2), 1)]])
    for at in np.linspace(0.0, 1.1, 12):
        exact = by_enumeration([0.5, 0.5, 0.2], at)
        assert exact <= float(curve.delta(np.array([at]))[0]) <= exact + 1e-4


def test_pure_beside_gaussian_costs_more_than_either_and_less_than_the_sum() -> None:
    gaussian = dp_event.GaussianDpEvent(5.0)
    both = profile(
        dp_event.ComposedDpEvent([pure_event(0.3), gaussian]), Relation.ADD_OR_REMOVE_ONE
    ).epsilon(1e-6)
    alone = profile(gaussian, Relation.ADD_OR_REMOVE_ONE).epsilon(1e-6)
    assert max(alone, 0.3) < both <= alone + 0.3 + 1e-4


def test_edges() -> None:
    for event, epsilon in (
        (dp_event.RandomizedResponseDpEvent(1.0, 2), 0.0),
        (dp_event.RandomizedResponseDpEvent(0.0, 1), 0.0),
        (dp_event.RandomizedResponseDpEvent(0.0, 2), math.inf),
        (dp_event.RandomizedResponseDpEvent(0.5, 4), math.log(5)),
    ):
        assert profile(event, Relation.REPLACE_ONE).epsilon(0.0) == pytest.approx(
            epsilon, rel=1e-12
        )
    with pytest.raises(ValueError, match="between 0 and 1"):
        profile(dp_event.RandomizedResponseDpEvent(1.5, 2), Relation.REPLACE_ONE)
    for wrong in (0.0, -1.0, math.nan, math.inf, 1000.0):
        with pytest.raises(ValueError, match="pure epsilon lies between"):
            pure_event(wrong)
