"""What it takes to add a mechanism: a class, and a line in `MECHANISMS`. Nothing else in the library knows it."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from dp_accounting import GaussianDpEvent
from numpyro.infer.autoguide import AutoNormal

import discreet as dp
from discreet.mechanisms import FLOAT_GAUSSIAN, GAUSSIAN, LAPLACE, MECHANISMS, FloatMechanism, add_noise
from discreet.report import statement_from_dict

NUM_RECORDS = 60
ROWS = jnp.linspace(-1.0, 1.0, NUM_RECORDS)
MASK = jnp.ones(NUM_RECORDS, bool)


@dataclasses.dataclass(frozen=True)
class DoubledGaussian(FloatMechanism):
    """Normal noise of twice the size that is asked for, so that its event has twice the noise multiplier."""

    name: ClassVar[str] = "doubled_gaussian"
    size: ClassVar[str] = "half_stddev"
    words: ClassVar[str] = "doubled Gaussian noise of half deviation"
    norm: ClassVar[int] = 2
    adds_up: ClassVar[bool] = True

    def event(self, noise_multiplier):
        return GaussianDpEvent(2 * noise_multiplier)

    def noise(self, key, dim, dtype):
        return 2 * FLOAT_GAUSSIAN.noise(key, dim, dtype)


DOUBLED = DoubledGaussian()


def model(x):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("x", dist.Normal(mean, 1.0), obs=x)


def plan(noise_multiplier=2.0, **options):
    return dp.PrivacyPlan(
        sampling=dp.PoissonSampling(0.4),
        clipping_norm=1.0,
        noise_multiplier=noise_multiplier,
        num_steps=5,
        num_records=NUM_RECORDS,
        **options,
    )


def fit(plan):
    dpsvi = dp.DPSVI(model, AutoNormal(model), numpyro.optim.Adam(0.05), plan=plan)
    return dpsvi.run(dp.random.key(1), ROWS, progress_bar=False)


def step(key, rows, mask):
    total = dp.sum_records(dp.clip_records(rows, 1.0), mask)
    return add_noise(DOUBLED, key, total, 1.5)


@pytest.fixture
def listed():
    MECHANISMS.append(DOUBLED)
    yield
    MECHANISMS.remove(DOUBLED)


def test_a_program_with_it_is_certified(listed):
    certificate = dp.certify(step, dp.random.key(1), ROWS, MASK, records=(1,), mask=2)
    assert isinstance(certificate.event, GaussianDpEvent)
    # The rounding of the sum of 100 float32 rows is charged: 100 * 2^-23 of C.
    assert 3.0 / (1 + 2e-5) < certificate.event.noise_multiplier <= 3.0


def test_it_fits_is_proved_stated_saved_and_loaded(listed, tmp_path):
    result = fit(plan(mechanism=DOUBLED))
    gaussian = plan(4.0)
    assert result.plan.epsilon(1e-5) == gaussian.epsilon(1e-5) < plan(2.0).epsilon(1e-5)
    assert result.statement.epsilon == pytest.approx(gaussian.epsilon(result.statement.delta))
    assert any("Proved before it ran" in note for note in result.statement.notes)
    assert "doubled Gaussian noise of half deviation 2.0" in str(result.statement)
    assert "doubled Gaussian noise of half deviation 2 (2 C" in plan(mechanism=DOUBLED).explain(1e-5)
    assert statement_from_dict(result.statement.to_dict()) == result.statement
    assert dp.load_result(result.save(tmp_path / "fit")).plan == result.plan
    with pytest.raises(ValueError, match="knows the law of Gaussian noise only"):
        result.noise_aware("trace")


def test_the_noise_of_a_fit_is_its_own(listed):
    """The same bits as Gaussian noise of twice the multiplier, at parameters that hardly move."""

    def gradients(plan):
        dpsvi = dp.DPSVI(model, AutoNormal(model), numpyro.optim.SGD(1e-6), plan=plan)
        return dpsvi.run(dp.random.key(1), ROWS, progress_bar=False, keep_gradients=True).trace.gradients

    floats = [plan(x, mechanism=FLOAT_GAUSSIAN) for x in (4.0, 2.0)]
    doubled, wide, narrow = (gradients(x) for x in (plan(mechanism=DOUBLED), *floats))
    np.testing.assert_allclose(doubled, wide, rtol=1e-4)
    assert not np.allclose(doubled, narrow, rtol=0.1)


def test_calibration_asks_for_its_event():
    facts = {"sampling": dp.FullBatch(), "clipping_norm": 1.0, "num_records": 100, "num_steps": 3}
    usual, doubled = (
        dp.PrivacyPlan.calibrate(epsilon=1.0, delta=1e-5, mechanism=x, **facts) for x in (GAUSSIAN, DOUBLED)
    )
    assert doubled.noise_multiplier == pytest.approx(usual.noise_multiplier / 2, rel=1e-3)


@pytest.mark.essential
def test_one_that_is_not_listed_is_refused_for_that_reason():
    with pytest.raises(dp.PrivacyError, match=r"(?i)nothing is known of the noise of DoubledGaussian") as error:
        fit(plan(1.9, mechanism=DOUBLED))
    assert "discreet.mechanisms.MECHANISMS" in error.value.remedy
    with pytest.raises(dp.PrivacyError, match=r"(?i)nothing is known of the noise of DoubledGaussian"):
        dp.certify(step, dp.random.key(1), ROWS, MASK, records=(1,), mask=2)


@pytest.mark.parametrize("wrong", [LAPLACE, "gaussian", DoubledGaussian])
def test_a_plan_takes_mechanisms_of_the_l2_norm_only(wrong):
    with pytest.raises(TypeError, match="whose noise is relative to the L2 norm"):
        plan(mechanism=wrong)


def test_langevin_dynamics_take_gaussian_noise_only():
    with pytest.raises(ValueError, match="Langevin dynamics need Gaussian noise"):
        dp.DPSGLD(model, step_size=(1e-3, 10.0, 0.55), plan=plan(mechanism=DOUBLED))
