import dataclasses
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discreet as dp
from discreet import mechanisms
from discreet.privacy.clipping import FixedClipping, contribution_bound
from discreet.privacy.gradients import Channels, ClippedSum

FACTS = {
    "sampling": dp.PoissonSampling(rate=0.02),
    "noise_multiplier": 1.5,
    "num_steps": 200,
    "num_records": 10_000,
}


def plan_of(clipping_norm, **changes):
    return dp.PrivacyPlan(clipping_norm=clipping_norm, **{**FACTS, **changes})


def test_a_number_stays_a_number():
    plan = plan_of(np.float32(2.0))
    assert plan.clipping_norm == 2.0
    assert type(plan.clipping_norm) is float
    assert plan.clipping == FixedClipping(2.0)
    assert plan.clipping.start == 2.0


def test_the_rule_is_the_default_of_plans():
    terms = {name: value for name, value in FACTS.items() if name != "noise_multiplier"}
    calibrated = dp.PrivacyPlan.calibrate(epsilon=1.0, delta=1e-6, **terms)
    assert (
        dp.PrivacyPlan(**FACTS).clipping_norm == calibrated.clipping_norm == dp.AdaptiveClipping()
    )


def test_plans_with_a_rule_are_values():
    rule = dp.AdaptiveClipping(initial=0.3)
    plan = plan_of(rule)
    assert plan.clipping_norm is rule
    # What is open follows from the plan's numbers.
    assert plan.clipping == dataclasses.replace(rule, quantile=0.995, learning_rate=0.2)
    again = dataclasses.replace(plan, num_steps=200)
    assert again == plan
    assert hash(again) == hash(plan)
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert plan != plan_of(1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        rule.count_share = 0.5


def test_rules_of_numpy_numbers_are_those_of_pythons():
    by_numpy = dp.AdaptiveClipping(
        quantile=np.float64(0.5), initial=np.int64(2), minimum=np.float32(0.5)
    )
    by_hand = dp.AdaptiveClipping(quantile=0.5, initial=2, minimum=0.5)
    assert by_numpy == by_hand
    assert repr(by_numpy) == repr(by_hand)


@pytest.mark.parametrize("relation", [dp.Relation.ADD_OR_REMOVE_ONE, dp.Relation.REPLACE_ONE])
def test_the_rule_changes_no_price(relation):
    """The count is charged in the same event: the plan's noise is relative to gradient, loss and count together."""
    prices = {
        plan_of(rule, relation=relation).epsilon(1e-6)
        for rule in (1.0, dp.AdaptiveClipping(), dp.AdaptiveClipping(count_share=0.5))
    }
    assert len(prices) == 1


def test_calibrate_takes_a_rule():
    rule = dp.AdaptiveClipping(quantile=0.9, initial=0.1)
    facts = {k: FACTS[k] for k in ("sampling", "num_records", "num_steps")}
    plan = dp.PrivacyPlan.calibrate(epsilon=1.0, delta=1e-6, clipping_norm=rule, **facts)
    assert plan.clipping_norm == rule
    assert (
        plan.noise_multiplier
        == dp.PrivacyPlan.calibrate(
            epsilon=1.0, delta=1e-6, clipping_norm=1.0, **facts
        ).noise_multiplier
    )


@pytest.mark.parametrize(("count_share", "loss_share"), [(0.01, 0.0), (0.01, 0.02), (0.3, 0.5)])
def test_the_release_keeps_the_papers_rule_for_splitting_noise(count_share, loss_share):
    """z_delta^-2 + sigma_c^-2 (and the loss's part) is the inverse square of what the plan pays for, as released."""
    sigma, norm, loss_bound = 1.5, 0.37, 4.0
    channels = Channels(loss_share, count_share, bound=loss_bound)
    zero = ClippedSum(
        jnp.zeros(3000), jnp.zeros(()), jnp.zeros(2), channels.joint_bound(jnp.float32(norm))
    )
    draw = jax.jit(jax.vmap(lambda key: mechanisms.release(key, zero, sigma)))
    released = draw(jax.random.split(dp.random.key(3), 3000))
    z_delta = np.std(released.gradient) / norm
    sigma_c = np.std(released.count) / float(channels.count_weight(norm))
    z_delta, sigma_c = float(z_delta), float(sigma_c)
    inverse_squares = z_delta**-2 + sigma_c**-2
    if loss_share:
        inverse_squares += (
            float(np.std(released.loss) / channels.loss_weight(norm) / loss_bound) ** -2
        )
    # A standard deviation from 3,000 draws is right to 1.3 %.
    assert inverse_squares**-0.5 == pytest.approx(sigma, rel=0.01 if count_share < 0.1 else 0.06)
    assert z_delta == pytest.approx(sigma / math.sqrt(1 - count_share - loss_share), rel=0.002)
    assert sigma_c == pytest.approx(sigma / math.sqrt(count_share), rel=0.06)
    rule = dp.AdaptiveClipping(count_share=count_share)
    assert rule.stddev_of_fraction(sigma, 50.0) == pytest.approx(sigma_c / 50, rel=0.06)


def test_c_rises_where_too_many_are_clipped_and_stays_within_its_bounds():
    rule = dp.AdaptiveClipping(
        quantile=0.5, initial=2.0, learning_rate=0.2, minimum=0.1, maximum=3.0
    )
    assert float(rule.next_norm(jnp.float32(2.0), jnp.float32(0.0))) == pytest.approx(
        2 * math.exp(-0.1)
    )
    assert float(rule.next_norm(jnp.float32(2.0), jnp.float32(1.0))) == pytest.approx(
        2 * math.exp(0.1)
    )
    assert float(rule.next_norm(jnp.float32(2.0), jnp.float32(0.5))) == 2.0
    for clipped, limit in ((-1e30, 0.1), (1e30, 3.0)):
        assert float(rule.next_norm(jnp.float32(2.0), jnp.float32(clipped))) == pytest.approx(limit)
    assert dp.AdaptiveClipping(initial=2.0).limits == pytest.approx((2e-4, 2e4))


def test_what_is_clipped_follows_from_the_noise_of_the_whole_fit():
    """The share is twice the noise in the mean of all gradients; C arrives, and wanders little where there is less noise."""

    def chosen(**numbers):
        return plan_of(dp.AdaptiveClipping(), **numbers).clipping

    # 2 sigma / (q sqrt(T) N) = 2 * 3 / (0.02 * 20 * 500)
    few = chosen(num_records=500, noise_multiplier=3.0, num_steps=400)
    assert few.quantile == pytest.approx(1 - 0.03)
    assert few.learning_rate == pytest.approx(20 / 400)
    assert chosen(num_records=20, num_steps=1).quantile == 0.9
    many = chosen(num_records=1_000_000)
    assert (many.quantile, many.learning_rate) == (0.995, 0.2)
    given = plan_of(dp.AdaptiveClipping(quantile=0.5, learning_rate=0.01)).clipping
    assert (given.quantile, given.learning_rate) == (0.5, 0.01)


def test_the_bound_of_a_contribution_is_joint():
    assert contribution_bound(FixedClipping(2.0)) == pytest.approx(2 / math.sqrt(0.981))
    assert contribution_bound(FixedClipping(2.0), 0.02) == pytest.approx(2 / math.sqrt(0.961))
    rule = dp.AdaptiveClipping(initial=2.0, count_share=0.01)
    assert contribution_bound(rule, 0.02) == pytest.approx(2 / math.sqrt(0.97))


@pytest.mark.parametrize(
    ("rule", "changes", "words"),
    [
        (dp.AdaptiveClipping, {"quantile": 0.0}, "quantile"),
        (dp.AdaptiveClipping, {"quantile": 1.0}, "quantile"),
        (dp.AdaptiveClipping, {"quantile": math.nan}, "quantile"),
        (dp.AdaptiveClipping, {"quantile": True}, "quantile"),
        (dp.AdaptiveClipping, {"initial": 0.0}, "initial"),
        (dp.AdaptiveClipping, {"initial": math.inf}, "initial"),
        (dp.AdaptiveClipping, {"initial": "1"}, "initial"),
        (dp.AdaptiveClipping, {"learning_rate": 0.0}, "learning_rate"),
        (dp.AdaptiveClipping, {"learning_rate": math.inf}, "learning_rate"),
        (dp.AdaptiveClipping, {"count_share": 0.0}, "count_share"),
        (dp.AdaptiveClipping, {"count_share": 1.0}, "count_share"),
        (dp.AdaptiveClipping, {"minimum": 0.0}, "minimum"),
        (dp.AdaptiveClipping, {"minimum": 2.0}, "Start inside"),
        (dp.AdaptiveClipping, {"maximum": 0.05}, "Start inside"),
        (dp.AdaptiveClipping, {"maximum": math.inf}, "maximum"),
    ],
)
def test_rules_out_of_range_are_refused(rule, changes, words):
    with pytest.raises(ValueError, match=words):
        rule(**changes)


def test_explain_says_what_an_adaptive_c_does():
    text = plan_of(dp.AdaptiveClipping(quantile=0.9, initial=0.5, count_share=0.01)).explain()
    for words in (
        "starts at 0.5 and follows the 0.9 quantile",
        # sigma / (sqrt(share) q N) = 1.5 / (0.1 * 200)
        "in the same event and with noise of standard deviation 0.075",
        "C exp(0.2 (c - 0.1)), between 5e-05 and 5000",
        "Counting costs 0.5 % more noise on the gradient",
        "noise of standard deviation 1.508 C, which moves with C (one person moves the sum by up to C)",
        "the rule for C, the noise",
    ):
        assert words in text, words


def test_explain_warns_where_noise_moves_c_more_than_gradients_do():
    few = plan_of(dp.AdaptiveClipping(quantile=0.95), num_records=500, noise_multiplier=3.0)
    assert "C wanders by a factor of about" in few.explain()
    assert "C wanders" not in dataclasses.replace(few, num_records=100_000).explain()


def test_explain_of_a_number_has_the_noise_of_the_counts():
    text = plan_of(2.0).explain()
    assert (
        "Each record's gradient is clipped to L2 norm C = 2, and counted as clipped or not, which costs 0.96 % more noise; the "
        "sum over the batch gets Gaussian noise of standard deviation 3.029 (1.514 C; one person moves the sum by up to C)."
    ) in text
