"""Batches of fixed size: the figures of DESIGN.md, and the wrong formula that they catch."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from scipy.optimize import brentq
from scipy.stats import norm

from discreet.privacy.accounting import Relation, profile

# rate, noise multiplier, steps, delta; then epsilon: ours, truncated event, lower bound, Poisson
# substituted (wrong)
FIGURES = [
    (1_000, 100_000, 1.0, 1000, 1e-5, 14.82, 15.16, 13.36, 2.84),
    (1_000, 10_000, 4.0, 100, 1e-5, 2.54, 4.37, 2.34, 1.99),
    (128, 60_000, 1.5, 9360, 1 / 60_000, 2.50, 2.84, 1.98, 1.01),
]


def fixed_size(size, batch, noise_multiplier, steps):
    step = dp_event.SampledWithoutReplacementDpEvent(
        size, batch, dp_event.GaussianDpEvent(noise_multiplier)
    )
    return dp_event.SelfComposedDpEvent(step, steps)


def one_sided(rate, noise_multiplier, steps, delta):
    """Epsilon of neighbours at -C, one record moved to +C: N(0) against (1-q) N(0) + q N(2C), both directions, by other means.

    Losses on a fine grid of outcomes, rounded to the nearest of 2^20 multiples, and one plain FFT:
    neither up nor down.
    """
    shift = 2 / noise_multiplier
    z = np.linspace(-13, 13 + shift, 2_000_001)
    here, there = norm.pdf(z), norm.pdf(z - shift)
    mixed = (1 - rate) * here + rate * there
    loss = np.log(mixed / here)
    worst = 0.0
    for law, signed in ((mixed, loss), (here, -loss)):
        law = law / law.sum()
        likely = law > 1e-22
        law, signed = law[likely], signed[likely]
        mean = law @ signed
        spread = math.sqrt(steps * (law @ (signed - mean) ** 2))
        reach = max(14 * spread, np.max(np.abs(signed)) * 1.5)
        points, spacing = 2**20, 2 * (reach + abs(steps * mean)) / 2**20
        index = np.rint(signed / spacing).astype(int)
        composed = np.fft.irfft(
            np.fft.rfft(np.bincount(index % points, law, points)) ** steps, points
        )
        losses = np.fft.fftfreq(points, 1 / (points * spacing))
        worst = max(
            worst,
            brentq(lambda e: _delta(losses, composed, e) - delta, 0.0, reach + steps * abs(mean)),  # noqa: B023
        )
    return worst


def _delta(losses, law, epsilon):
    beyond = losses > epsilon
    return float(np.sum(law[beyond] * -np.expm1(epsilon - losses[beyond])))


@pytest.mark.parametrize("figures", FIGURES)
def test_between_the_lower_bound_and_the_truncated_event(figures):
    batch, size, sigma, steps, delta, ours, truncated, lower, poisson = figures
    spent = profile(fixed_size(size, batch, sigma, steps), Relation.REPLACE_ONE).epsilon(delta)
    assert spent == pytest.approx(ours, abs=0.006)

    event = dp_event.SelfComposedDpEvent(
        dp_event.TruncatedSubsampledGaussianDpEvent(size, 1.0, batch, sigma), steps
    )
    loose = profile(event, Relation.REPLACE_ONE).epsilon(delta)
    assert loose == pytest.approx(truncated, abs=0.006)
    assert loose == pytest.approx(
        PLDAccountant(Relation.REPLACE_ONE).compose(event).get_epsilon(delta), rel=2e-3
    )
    assert spent <= loose

    floor = one_sided(batch / size, sigma, steps, delta)
    assert floor == pytest.approx(lower, abs=0.006)
    assert spent >= floor

    # The wrong version: the sample taken for a Poisson sample. The floor, or the next test, rejects
    # it.
    substituted = dp_event.SelfComposedDpEvent(
        dp_event.PoissonSampledDpEvent(batch / size, dp_event.GaussianDpEvent(sigma)), steps
    )
    wrong = profile(substituted, Relation.REPLACE_ONE).epsilon(delta)
    assert wrong == pytest.approx(poisson, abs=0.006)
    assert wrong < floor


@pytest.mark.parametrize("batch", [1, 10, 100, 500, 900, 999])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 5.0])
@pytest.mark.parametrize("steps", [1, 30])
def test_profile_is_ordered_at_every_epsilon(batch, sigma, steps):
    spent = profile(fixed_size(1000, batch, sigma, steps), Relation.REPLACE_ONE)
    event = dp_event.SelfComposedDpEvent(
        dp_event.TruncatedSubsampledGaussianDpEvent(1000, 1.0, batch, sigma), steps
    )
    loose = profile(event, Relation.REPLACE_ONE)
    below = profile(
        dp_event.SelfComposedDpEvent(
            dp_event.PoissonSampledDpEvent(batch / 1000, dp_event.GaussianDpEvent(sigma / 2)), steps
        ),
        Relation.ADD_OR_REMOVE_ONE,
    )
    for epsilon in (0.0, 0.05, 0.5, 2.0, 8.0):
        assert spent.delta(epsilon) <= loose.delta(epsilon) * (1 + 2e-3) + 1e-11
        assert spent.delta(epsilon) * (1 + 2e-3) + 1e-11 >= below.delta(epsilon)


def test_a_batch_of_all_records_is_the_gaussian_mechanism():
    whole = profile(fixed_size(50, 50, 3.0, 20), Relation.REPLACE_ONE)
    gaussian = profile(
        dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(3.0), 20), Relation.REPLACE_ONE
    )
    assert whole.epsilon(1e-6) == gaussian.epsilon(1e-6)


def test_refused_under_add_or_remove_one():
    with pytest.raises(
        ValueError,
        match=r"no sound accounting for one record added or removed.*REPLACE_ONE, or Poisson",
    ):
        profile(fixed_size(1000, 10, 1.0, 5), Relation.ADD_OR_REMOVE_ONE)
