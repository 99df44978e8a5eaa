"""Noise for a target: right where d3p's is wrong."""

import pickle
import warnings

import numpy as np
import pytest
from dp_accounting import dp_event

from discreet.interfaces.compat.d3p import dputil
from discreet.interfaces.compat.d3p.dputil import (
    D3PAccountingWarning,
    NoiseScale,
    approximate_sigma,
    approximate_sigma_remove_relation,
)
from discreet.interfaces.compat.d3p.minibatch import poisson_batchify_data
from discreet.privacy.accounting import Relation, profile


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(dputil, "_told", set())


def test_fixed_size_batches_need_more_noise_than_d3p_says():
    """The design's trap: q = 0.01, sigma = 1, 1000 steps, delta = 1e-5. d3p says 2.84; the truth is at least 13.36."""
    with pytest.warns(D3PAccountingWarning, match=r"d3p computes epsilon = 2\.84"):
        sigma, epsilon, evaluations = approximate_sigma(14.8208, 1e-5, 0.01, 1000)
    assert sigma == pytest.approx(1.0, rel=1e-3)
    assert 0.999 * 14.8208 <= epsilon <= 14.8208
    assert evaluations > 1
    # d3p's noise for epsilon = 2.84 would be sigma = 1; whatever is right must be above it for any
    # target below 13.36.
    for target in (2.84, 13.36):
        assert approximate_sigma(target, 1e-5, 0.01, 1000)[0] > 1.0


def test_the_warning_comes_once():
    with pytest.warns(D3PAccountingWarning):
        approximate_sigma(1.0, 1e-5, 0.1, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        approximate_sigma(1.0, 1e-5, 0.1, 10)


def test_full_batches_need_no_warning():
    """With q = 1 nothing is sampled: one Gaussian of sensitivity 2 (1.99 for sigma = 4)."""
    sigma, epsilon, _ = approximate_sigma(1.99, 1e-5, 1.0, 1)
    assert sigma == pytest.approx(4.0, rel=2e-3)
    assert epsilon <= 1.99


def test_poisson_batches_as_published():
    """epsilon = 1, delta = 1e-6, q = 0.01, 10^4 steps: sigma = 4.3027 by dp_accounting, 4.3229 by d3p."""
    sigma, epsilon, _ = approximate_sigma_remove_relation(1.0, 1e-6, 0.01, 10_000)
    assert sigma == pytest.approx(4.3027, rel=1e-3)
    assert 0.999 <= epsilon <= 1.0


def test_the_target_holds_for_the_batches_that_are_drawn_slack_included():
    delta = 1e-5
    # At this epsilon the sampler's slack of 2^-79 a batch, times e^epsilon, is a good part of
    # delta.
    sigma, _, _ = approximate_sigma_remove_relation(35.0, delta, 0.05, 400)
    _, get_batch = poisson_batchify_data((np.zeros(2000),), 0.05, 0.99)
    plan = get_batch.law.plan(clipping_norm=1.0, noise_multiplier=sigma, num_steps=400)
    assert 0.95 * 35.0 < plan.epsilon(delta) <= 35.0


@pytest.mark.parametrize(
    ("batch_size", "num_records"), [(128, 60_000), (1, 3), (100, 32_561), (7, 10**6 + 3)]
)
def test_a_rate_stands_for_its_batch_and_table(batch_size, num_records):
    share = dputil._fraction(batch_size / num_records)
    assert (share.numerator / share.denominator) == batch_size / num_records


def test_a_rate_that_is_no_ratio_is_rounded_up():
    for rate in (1e-9, np.pi / 10, 1e-12):
        assert float(dputil._fraction(rate)) >= rate


def test_epsilon_depends_on_the_ratio_alone():
    def epsilon(batch_size, num_records):
        step = dp_event.SampledWithoutReplacementDpEvent(
            num_records, batch_size, dp_event.GaussianDpEvent(2.0)
        )
        return profile(dp_event.SelfComposedDpEvent(step, 50), Relation.REPLACE_ONE).epsilon(1e-5)

    assert epsilon(32, 500) == epsilon(64, 1000)


def test_the_noise_remembers_what_it_is_for():
    sigma, _, _ = approximate_sigma_remove_relation(1.0, 1e-5, 0.1, np.ceil(99.5))
    assert isinstance(sigma, float)
    assert sigma.calibration is not None
    assert sigma.calibration.num_iter == 100
    assert sigma.calibration.relation == Relation.ADD_OR_REMOVE_ONE
    assert pickle.loads(pickle.dumps(sigma)).calibration == sigma.calibration
    assert not isinstance(sigma * 2, NoiseScale), "other noise, other price"


@pytest.mark.parametrize("function", [approximate_sigma, approximate_sigma_remove_relation])
def test_bad_input(function):
    for bad in (0.0, -0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="q is"):
            function(1.0, 1e-5, bad, 10)
    for bad in (0, -1, float("inf")):
        with pytest.raises(ValueError, match="iterations"):
            function(1.0, 1e-5, 0.1, bad)
    with pytest.raises(ValueError, match="epsilon"):
        function(0.0, 1e-5, 0.1, 10)
    with pytest.raises(ValueError, match="delta"):
        function(1.0, 1.0, 0.1, 10)
