"""The profile against independent computations: closed forms, quadrature, dp_accounting, published figures."""

import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings, strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from discreet.privacy.accounting import PrivacyProfile, Relation, profile

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE


def poisson(rate, noise_multiplier, steps=1):
    step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise_multiplier))
    return dp_event.SelfComposedDpEvent(step, steps)


def fixed_size(size, batch, noise_multiplier, steps=1):
    step = dp_event.SampledWithoutReplacementDpEvent(
        size, batch, dp_event.GaussianDpEvent(noise_multiplier)
    )
    return dp_event.SelfComposedDpEvent(step, steps)


class Mixture:
    """(1-q) N(0, sigma) + q N(shift, sigma)."""

    def __init__(self, rate, shift, sigma):
        self.rate, self.shift, self.sigma = rate, shift, sigma

    def log_density(self, x):
        with np.errstate(divide="ignore"):
            alone = np.log1p(-self.rate) + norm.logpdf(x, 0, self.sigma)
            return np.logaddexp(alone, np.log(self.rate) + norm.logpdf(x, self.shift, self.sigma))

    def mass(self, low, high):
        parts = ((1 - self.rate, 0.0), (self.rate, self.shift))
        return sum(
            w * (norm.cdf(high, m, self.sigma) - norm.cdf(low, m, self.sigma)) for w, m in parts
        )


def hockey_stick(upper, lower, epsilon):
    """Mass of upper - e^eps lower where it is positive: the log ratio is monotone, so there is at most one sign change."""
    reach = 40 * upper.sigma

    def gap(x):
        return float(upper.log_density(x) - lower.log_density(x) - epsilon)

    if gap(-reach) * gap(reach) >= 0:
        return max(0.0, 1 - math.exp(epsilon)) if gap(reach) <= 0 else 1 - math.exp(epsilon)
    point = brentq(gap, -reach, reach, xtol=1e-14)
    low, high = (point, reach) if gap(reach) > 0 else (-reach, point)
    return upper.mass(low, high) - math.exp(epsilon) * lower.mass(low, high)


def gaussian_delta(shift, epsilon):
    above, below = (
        norm.logcdf(shift / 2 - epsilon / shift),
        norm.logcdf(-shift / 2 - epsilon / shift),
    )
    return math.exp(above) - math.exp(epsilon + below)


def test_relation_is_that_of_dp_accounting():
    assert Relation is NeighboringRelation


@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 4.0, 100.0])
@pytest.mark.parametrize("steps", [1, 7, 1000])
def test_gaussians_compose_to_one_gaussian_exactly(noise_multiplier, steps):
    event = dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(noise_multiplier), steps)
    for relation, sensitivity in ((ADD, 1), (REPLACE, 2)):
        shift = sensitivity * math.sqrt(steps) / noise_multiplier
        spent = profile(event, relation)
        for epsilon in (0.0, 0.1, 1.0):
            assert spent.delta(epsilon) == pytest.approx(gaussian_delta(shift, epsilon), rel=1e-9)
        for delta in (1e-3, 1e-6, 1e-12):
            epsilon = spent.epsilon(delta)
            assert gaussian_delta(shift, epsilon) <= delta * (1 + 1e-8)
            if epsilon > 0:
                assert gaussian_delta(shift, epsilon * (1 - 1e-6)) > delta * (1 - 1e-8)


@pytest.mark.parametrize(
    ("steps", "noise_multiplier"), [(1, 1.0), (100, 10.0), (10_000, 1000.0), (1_000_000, 30.0)]
)
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-10, 1e-13])
def test_numerical_composition_of_gaussians_is_just_above_the_closed_form(
    steps, noise_multiplier, delta
):
    from discreet.privacy.accounting._compose import compose
    from discreet.privacy.accounting._pairs import GaussianPair

    exact = profile(dp_event.GaussianDpEvent(noise_multiplier / math.sqrt(steps)), ADD).epsilon(
        delta
    )
    curve = compose([[(GaussianPair(1 / noise_multiplier), steps)]])
    numerical = PrivacyProfile(dp_event.NoOpDpEvent(), ADD, 0.0, curve).epsilon(delta)
    assert exact <= numerical <= exact * (1 + 3e-4)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_noise_multiplier_is_stddev_over_clipping_norm_under_both_relations(relation):
    # dp_accounting's PLD doubles the sensitivity inside under REPLACE_ONE, its RDP does not: 1.99
    # against 1.01.
    spent = profile(dp_event.GaussianDpEvent(4.0), relation).epsilon(1e-5)
    assert spent == pytest.approx({ADD: 0.9263, REPLACE: 1.9931}[relation], abs=1e-3)
    pld = PLDAccountant(relation).compose(dp_event.GaussianDpEvent(4.0)).get_epsilon(1e-5)
    assert spent == pytest.approx(pld, rel=1e-3)
    if relation is REPLACE:
        rdp = (
            RdpAccountant(neighboring_relation=relation)
            .compose(dp_event.GaussianDpEvent(4.0))
            .get_epsilon(1e-5)
        )
        assert rdp == pytest.approx(1.01, abs=0.01)
        assert spent > 1.9 * rdp


SINGLE = [(0.01, 1.0), (0.3, 0.6), (0.5, 3.0), (1e-3, 0.5)]


@pytest.mark.parametrize(("rate", "sigma"), SINGLE)
@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.3, 1.5])
def test_one_poisson_step_against_the_integral_at_points(rate, sigma, epsilon):
    alone, mixed = Mixture(0.0, 0.0, sigma), Mixture(rate, 1.0, sigma)
    exact = max(hockey_stick(mixed, alone, epsilon), hockey_stick(alone, mixed, epsilon))
    _check_close_above(profile(poisson(rate, sigma), ADD).delta(epsilon), exact)
    replaced = hockey_stick(mixed, Mixture(rate, -1.0, sigma), epsilon)
    _check_close_above(profile(poisson(rate, sigma), REPLACE).delta(epsilon), replaced)


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.0), (0.25, 0.6), (0.5, 3.0)])
@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.3, 1.5])
def test_one_fixed_size_step_against_the_integral_at_points(rate, sigma, epsilon):
    exact = hockey_stick(Mixture(rate, 2.0, sigma), Mixture(0.0, 0.0, sigma), epsilon)
    _check_close_above(
        profile(fixed_size(1000, round(1000 * rate), sigma), REPLACE).delta(epsilon), exact
    )


def _check_close_above(delta, exact):
    assert delta >= exact * (1 - 1e-9) - 1e-14
    assert delta <= exact * (1 + 6e-3) + 1e-9


COMPOSED = [
    (0.01, 1.0, 1000, 1e-5),
    (0.1, 4.0, 100, 1e-5),
    (1e-3, 0.7, 500, 1e-7),
    (0.7, 5.0, 30, 1e-6),
]


@pytest.mark.parametrize(("rate", "sigma", "steps", "delta"), COMPOSED)
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_composed_poisson_lies_between_the_bounds_of_dp_accounting(
    rate, sigma, steps, delta, relation
):
    ours = profile(poisson(rate, sigma, steps), relation).epsilon(delta)
    bounds = [
        privacy_loss_distribution.from_gaussian_mechanism(
            sigma,
            sampling_prob=rate,
            neighboring_relation=relation,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
            value_discretization_interval=5e-4,
        )
        .self_compose(steps)
        .get_epsilon_for_delta(delta)
        for pessimistic in (False, True)
    ]
    assert bounds[0] <= ours <= bounds[1] * (1 + 1e-4)


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta", "published"),
    [
        # Abadi et al., CCS 2016, section 5.2: moments accountant, 100 and 400 epochs.
        (0.01, 4.0, 10_000, 1e-5, 1.26),
        (0.01, 4.0, 40_000, 1e-5, 2.55),
    ],
)
def test_below_the_moments_accountant_and_not_by_much(rate, sigma, steps, delta, published):
    ours = profile(poisson(rate, sigma, steps), ADD).epsilon(delta)
    assert 0.75 * published < ours < published


def test_below_renyi_accounting_and_not_by_much():
    # The setting of TensorFlow Privacy's MNIST tutorial: sigma 1.1, batch 256 of 60,000, 60 epochs.
    event = poisson(256 / 60_000, 1.1, 60 * 60_000 // 256)
    renyi = RdpAccountant().compose(event).get_epsilon(1e-5)
    ours = profile(event, ADD).epsilon(1e-5)
    assert renyi == pytest.approx(2.6, abs=0.35)
    assert 0.8 * renyi < ours < renyi


def test_different_events_compose():
    # Two Gaussians and a no-op are one Gaussian; nested counts multiply.
    parts = dp_event.ComposedDpEvent(
        [
            dp_event.GaussianDpEvent(3.0),
            dp_event.NoOpDpEvent(),
            dp_event.SelfComposedDpEvent(
                dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(8.0), 2), 3
            ),
        ]
    )
    shift = math.sqrt(1 / 9 + 6 / 64)
    assert profile(parts, ADD).delta(0.5) == pytest.approx(gaussian_delta(shift, 0.5), rel=1e-9)
    mixed = dp_event.ComposedDpEvent(
        [dp_event.GaussianDpEvent(2.0), poisson(0.05, 1.0, 50), poisson(0.2, 3.0, 20)]
    )
    accountant = PLDAccountant(ADD, value_discretization_interval=1e-4).compose(mixed)
    assert profile(mixed, ADD).epsilon(1e-6) == pytest.approx(
        accountant.get_epsilon(1e-6), rel=1e-3
    )


def test_laplace_against_its_closed_form():
    spent = profile(dp_event.LaplaceDpEvent(2.0), ADD)
    for epsilon in (0.0, 0.1, 0.4):
        exact = 1 - math.exp((epsilon - 0.5) / 2)
        assert exact <= spent.delta(epsilon) <= exact * 1.02
    assert 0.499 < spent.epsilon(1e-9) < 0.51
    assert 0.99 < profile(dp_event.LaplaceDpEvent(2.0), REPLACE).epsilon(1e-9) < 1.02


def test_sampled_laplace_agrees_with_dp_accounting():
    event = dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(1.0)), 40
    )
    accountant = PLDAccountant(ADD).compose(event)
    assert profile(event, ADD).epsilon(1e-6) == pytest.approx(
        accountant.get_epsilon(1e-6), rel=2e-3
    )
    with pytest.raises(ValueError, match="ADD_OR_REMOVE_ONE"):
        profile(event, REPLACE)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_truncated_poisson_agrees_with_dp_accounting(relation):
    event = dp_event.SelfComposedDpEvent(
        dp_event.TruncatedSubsampledGaussianDpEvent(10_000, 0.01, 110, 2.0), 200
    )
    accountant = PLDAccountant(relation).compose(event)
    assert profile(event, relation).epsilon(1e-5) == pytest.approx(
        accountant.get_epsilon(1e-5), rel=1e-3
    )
    assert profile(event, relation).epsilon(1e-5) > profile(
        poisson(0.01, 2.0, 200), relation
    ).epsilon(1e-5)


def test_slack_enters_as_total_variation():
    plain = profile(poisson(0.01, 2.0, 100), ADD)
    loose = profile(poisson(0.01, 2.0, 100), ADD, slack=1e-7)
    for epsilon in (0.0, 0.5, 2.0):
        bound = plain.delta(epsilon) + (1 + math.exp(epsilon)) * 1e-7
        assert loose.delta(epsilon) <= bound * (1 + 1e-12)
    assert loose.delta(0.2) == pytest.approx(
        plain.delta(0.2) + (1 + math.exp(0.2)) * 1e-7, rel=1e-9
    )
    assert loose.epsilon(1e-6) > plain.epsilon(1e-6)
    # (1 + e^epsilon) slack cannot go below twice the slack
    assert loose.epsilon(1.9e-7) == math.inf
    # The bound does not rise with epsilon.
    assert loose.delta(20.0) <= loose.delta(5.0)


def test_small_epsilon_and_long_runs_stay_accurate():
    # Sampling with little signal is nearly Gaussian with shift q sqrt(T) / sigma: q = 1e-4, sigma =
    # 100, T = 10^6.
    spent = profile(poisson(1e-4, 100.0, 10**6), ADD).epsilon(1e-6)
    gaussian = profile(dp_event.GaussianDpEvent(1000.0), ADD).epsilon(1e-6)
    # Without 80-bit floats the bound on rounding is wider.
    loose = 1e-3 if np.finfo(np.longdouble).nmant == 63 else 2e-2
    assert gaussian * (1 - 1e-6) < spent < gaussian * (1 + loose)


@pytest.mark.parametrize(
    ("rate", "sigma", "steps"),
    [(1e-6, 0.05, 10), (1e-6, 1.0, 10**6), (0.999, 0.2, 10), (1e-5, 0.35, 100), (0.5, 1e6, 5)],
)
def test_extreme_plans_stay_finite_bounded_and_ordered(rate, sigma, steps):
    for relation in (ADD, REPLACE):
        spent = profile(poisson(rate, sigma, steps), relation)
        deltas = np.asarray(spent.delta(np.linspace(0, 5, 50)))
        assert np.all(np.isfinite(deltas))
        assert np.all(np.diff(deltas) <= 0)
        assert deltas[0] <= min(1.0, steps * rate * 1.01 + 1e-6)
        assert profile(poisson(rate, sigma, steps), ADD).epsilon(1e-5) <= 1.001 * profile(
            poisson(rate, sigma, steps), REPLACE
        ).epsilon(1e-5)


plans = st.tuples(
    st.floats(1e-4, 0.9),
    st.floats(0.4, 20.0),
    st.integers(1, 3000),
    st.sampled_from([1e-3, 1e-5, 1e-8]),
)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(plans, st.sampled_from([ADD, REPLACE]))
def test_epsilon_is_monotone(plan, relation):
    rate, sigma, steps, delta = plan
    base = profile(poisson(rate, sigma, steps), relation).epsilon(delta)
    grace = 1 + 2e-4
    assert profile(poisson(rate, 1.1 * sigma, steps), relation).epsilon(delta) <= base * grace
    assert profile(poisson(rate, sigma, 2 * steps), relation).epsilon(delta) * grace >= base
    assert (
        profile(poisson(min(1.0, 1.1 * rate), sigma, steps), relation).epsilon(delta) * grace
        >= base
    )
    assert profile(poisson(rate, sigma, steps), relation).epsilon(delta / 10) >= base


@settings(max_examples=20, deadline=None, derandomize=True)
@given(plans, st.integers(1, 500))
def test_composing_k_and_l_is_composing_k_plus_l(plan, more):
    rate, sigma, steps, delta = plan
    both = dp_event.ComposedDpEvent([poisson(rate, sigma, steps), poisson(rate, sigma, more)])
    assert profile(both, ADD).epsilon(delta) == profile(
        poisson(rate, sigma, steps + more), ADD
    ).epsilon(delta)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.floats(1e-3, 0.9), st.floats(0.5, 5.0), st.floats(0.0, 2.0))
def test_one_step_against_the_exact_integral(rate, sigma, epsilon):
    alone, mixed = Mixture(0.0, 0.0, sigma), Mixture(rate, 1.0, sigma)
    exact = max(hockey_stick(mixed, alone, epsilon), hockey_stick(alone, mixed, epsilon))
    _check_close_above(profile(poisson(rate, sigma), ADD).delta(epsilon), exact)


def test_arrays_and_numbers():
    spent = profile(poisson(0.01, 1.0, 10), ADD)
    assert isinstance(spent, PrivacyProfile)
    assert isinstance(spent.delta(1.0), float)
    assert np.asarray(spent.delta([[0.1, 0.2]])).shape == (1, 2)
    epsilons, deltas = spent.curve()
    assert epsilons[0] == 0
    assert len(epsilons) == len(deltas) <= 4096
    assert spent.delta(math.inf) < 1e-15
    assert spent.epsilon(1.0) == 0.0


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_no_noise_is_no_privacy_and_no_release_costs_nothing(relation):
    for event in (
        dp_event.NonPrivateDpEvent(),
        dp_event.GaussianDpEvent(0.0),
        poisson(0.1, 0.0, 3),
    ):
        spent = profile(event, relation)
        assert spent.epsilon(1e-5) == math.inf
        assert spent.delta(3.0) == 1.0
    for event in (
        dp_event.NoOpDpEvent(),
        dp_event.ComposedDpEvent([]),
        poisson(0.0, 1.0, 3),
        poisson(0.1, 1.0, 0),
    ):
        assert profile(event, relation).epsilon(1e-9) == 0.0


@pytest.mark.parametrize(
    ("event", "message"),
    [
        # dp_accounting's PLD accountant composes this once, whatever the count.
        (dp_event.SelfComposedDpEvent(dp_event.ZCDpEvent(0.5), 10), "ZCDpEvent"),
        (dp_event.UnsupportedDpEvent(), "UnsupportedDpEvent"),
        (
            dp_event.SampledWithReplacementDpEvent(100, 10, dp_event.GaussianDpEvent(1.0)),
            "SampledWithReplacement",
        ),
        (dp_event.PoissonSampledDpEvent(0.1, poisson(0.1, 1.0)), "outside the sampling"),
        (dp_event.PoissonSampledDpEvent(1.5, dp_event.GaussianDpEvent(1.0)), "between 0 and 1"),
        (dp_event.GaussianDpEvent(-1.0), "noise multiplier"),
        (dp_event.GaussianDpEvent(math.nan), "noise multiplier"),
        (dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(1.0), -1), "count"),
        (dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(1.0), 1.5), "count"),
        (dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(1.0), math.inf), "count"),
        (dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(1.0), None), "count"),
        (fixed_size(100, 101, 1.0), "smaller batch"),
    ],
)
def test_events_without_sound_accounting_are_refused(event, message):
    for relation in (ADD, REPLACE):
        with pytest.raises(ValueError, match=message):
            profile(event, relation)


def test_bad_arguments_are_refused():
    spent = profile(dp_event.GaussianDpEvent(1.0), ADD)
    for call in (
        lambda: spent.epsilon(-1e-6),
        lambda: spent.epsilon(1.1),
        lambda: spent.epsilon(math.nan),
        lambda: spent.delta(-0.1),
        lambda: spent.delta([0.1, math.nan]),
        lambda: spent.true_positive_rate(1.1),
        lambda: profile(dp_event.GaussianDpEvent(1.0), ADD, slack=-1e-3),
        lambda: profile(dp_event.GaussianDpEvent(1.0), NeighboringRelation.REPLACE_SPECIAL),
    ):
        with pytest.raises(ValueError):  # noqa: PT011  what each says is tested where it is said
            call()
