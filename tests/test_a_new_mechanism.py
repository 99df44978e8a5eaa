"""Adding a mechanism takes a class and a line in `MECHANISMS`; nothing else in the library refers to it."""

import dataclasses
import math
from typing import ClassVar

import attr
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from dp_accounting import DpEvent, GaussianDpEvent
from numpyro.infer.autoguide import AutoNormal

import discreet as dp
from discreet.methods.audit import worst_case
from discreet.privacy.accounting import NOISES, event_from_dict, event_to_dict
from discreet.privacy.accounting._choices import PurePair
from discreet.privacy.mechanisms import (
    FLOAT_GAUSSIAN,
    GAUSSIAN,
    LAPLACE,
    MECHANISMS,
    FloatMechanism,
    add_noise,
)
from discreet.privacy.report import make_statement, statement_from_dict

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
    # With the counts' and the loss's share of the release: 2 / sqrt(0.961), and 2 / sqrt(0.981).
    assert "doubled Gaussian noise of half deviation 2.04" in str(result.statement)
    assert "doubled Gaussian noise of half deviation 2.019 (2.019 C" in plan(
        mechanism=DOUBLED
    ).explain(1e-5)
    assert statement_from_dict(result.statement.to_dict()) == result.statement
    assert dp.load_result(result.save(tmp_path / "fit")).plan == result.plan
    with pytest.raises(ValueError, match="supports Gaussian noise only"):
        result.noise_aware("trace")


def test_the_noise_of_a_fit_is_its_own(listed):
    """The same bits as Gaussian noise of twice the multiplier, at parameters that hardly move."""

    def gradients(plan):
        dpsvi = dp.DPSVI(model, AutoNormal(model), numpyro.optim.SGD(1e-6), plan=plan)
        return dpsvi.run(
            dp.random.key(1), ROWS, progress_bar=False, keep_gradients=True
        ).trace.gradients

    floats = [plan(x, mechanism=FLOAT_GAUSSIAN) for x in (4.0, 2.0)]
    doubled, wide, narrow = (gradients(x) for x in (plan(mechanism=DOUBLED), *floats))
    np.testing.assert_allclose(doubled, wide, rtol=1e-4)
    assert not np.allclose(doubled, narrow, rtol=0.1)


def test_calibration_asks_for_its_event():
    facts = {"sampling": dp.FullBatch(), "clipping_norm": 1.0, "num_records": 100, "num_steps": 3}
    usual, doubled = (
        dp.PrivacyPlan.calibrate(epsilon=1.0, delta=1e-5, mechanism=x, **facts)
        for x in (GAUSSIAN, DOUBLED)
    )
    assert doubled.noise_multiplier == pytest.approx(usual.noise_multiplier / 2, rel=1e-3)


@pytest.mark.essential
def test_one_that_is_not_listed_is_refused_for_that_reason():
    with pytest.raises(
        dp.PrivacyError, match=r"(?i)the noise of DoubledGaussian is not on the list"
    ) as error:
        fit(plan(1.9, mechanism=DOUBLED))
    assert "discreet.mechanisms.MECHANISMS" in error.value.remedy
    with pytest.raises(
        dp.PrivacyError, match=r"(?i)the noise of DoubledGaussian is not on the list"
    ):
        dp.certify(step, dp.random.key(1), ROWS, MASK, records=(1,), mask=2)


class RoundingGaussian(DoubledGaussian):
    """Its sums are rounded, nobody knows how coarsely."""

    def rounding(self, dim):
        return float(dim)


def test_one_that_rounds_says_how_much_of_its_noise_that_is(monkeypatch):
    def step(key, rows, mask):
        return add_noise(
            rounding,
            key,
            dp.sum_records(dp.clip_records(rows, 1.0), mask),
            1.5,
            multiplier=multiplier,
        )

    rounding, multiplier = RoundingGaussian(), 2.0
    MECHANISMS.append(rounding)
    try:
        with pytest.raises(dp.PrivacyError, match=r"RoundingGaussian rounds sums.*`cell`") as error:
            dp.certify(step, dp.random.key(1), ROWS, MASK, records=(1,), mask=2)
        assert "discreet.mechanisms.MECHANISMS" in error.value.remedy
        monkeypatch.setattr(RoundingGaussian, "cell", lambda *_: 0.25)
        certificate = dp.certify(step, dp.random.key(1), ROWS, MASK, records=(1,), mask=2)
        assert certificate.event.noise_multiplier == pytest.approx(3.0, rel=1e-4)
    finally:
        MECHANISMS.remove(rounding)


@pytest.mark.parametrize("wrong", [LAPLACE, "gaussian", DoubledGaussian])
def test_a_plan_takes_mechanisms_of_the_l2_norm_only(wrong):
    with pytest.raises(TypeError, match="whose noise is relative to the L2 norm"):
        plan(mechanism=wrong)


def test_langevin_dynamics_take_gaussian_noise_only():
    with pytest.raises(ValueError, match="Langevin dynamics need Gaussian noise"):
        dp.DPSGLD(model, step_size=(1e-3, 10.0, 0.55), plan=plan(mechanism=DOUBLED))


@attr.s(frozen=True, slots=True, auto_attribs=True)
class NormDpEvent(DpEvent):
    """Noise of density in proportion to exp(-|x| / scale) with the Euclidean norm: pure, of epsilon = sensitivity / scale."""

    noise_multiplier: float


@dataclasses.dataclass(frozen=True)
class NormNoise(FloatMechanism):
    """The K-norm mechanism (Hardt and Talwar, STOC 2010) of the Euclidean norm."""

    name: ClassVar[str] = "norm_mechanism"
    size: ClassVar[str] = "scale"
    words: ClassVar[str] = "K-norm noise of scale"
    hidden: ClassVar[str] = "the sum as a whole"
    norm: ClassVar[int] = 2

    def event(self, noise_multiplier):
        return NormDpEvent(noise_multiplier)

    def noise(self, key, dim, dtype):
        direction = FLOAT_GAUSSIAN.noise(key, dim, dtype)
        return (
            direction
            / jnp.linalg.norm(direction)
            * jax.random.gamma(jax.random.fold_in(key, 1), dim, dtype=dtype)
        )


class HalfNoise(NormNoise):
    """A planted fault: half of the noise that its event speaks of."""

    def noise(self, key, dim, dtype):
        return super().noise(key, dim, dtype) / 2


NORM = NormNoise()


@pytest.fixture
def with_event(monkeypatch):
    monkeypatch.setitem(NOISES, NormDpEvent, PurePair)
    MECHANISMS.extend([NORM, HalfNoise()])
    yield
    del MECHANISMS[-2:]


def noised(key, rows, mask, scale):
    return add_noise(NORM, key, dp.sum_records(dp.clip_records(rows, 1.0), mask), scale)


def certified(*scale, **options):
    step = noised if scale else lambda *arguments: noised(*arguments, 2.0)
    return dp.certify(step, dp.random.key(1), ROWS, MASK, *scale, records=(1,), mask=2, **options)


def test_a_new_event_is_one_entry(with_event):
    """Accounted for under both relations and on samples, open in its numbers, calibrated, stated and written to files."""
    for relation, epsilon in ((dp.Relation.ADD_OR_REMOVE_ONE, 0.5), (dp.Relation.REPLACE_ONE, 1.0)):
        assert certified(relation=relation).epsilon(1e-9) == pytest.approx(epsilon, rel=1e-4)
    opened = certified(dp.symbol("scale"))
    assert opened.symbols == ("scale",)
    assert opened.at(scale=2.0).event == certified().event

    facts = {
        "sampling": dp.PoissonSampling(0.4),
        "clipping_norm": 1.0,
        "num_records": 100,
        "num_steps": 2,
    }
    calibrated = dp.PrivacyPlan.calibrate(epsilon=1.0, delta=1e-5, mechanism=NORM, **facts)
    # Two steps of at most 1/2 each, amplified: log(1 + q (e^x - 1)) = 1/2.
    assert 1 / calibrated.noise_multiplier == pytest.approx(
        math.log(1 + math.expm1(0.5) / 0.4), rel=1e-2
    )
    assert event_from_dict(event_to_dict(calibrated.event())) == calibrated.event()
    assert "K-norm noise of scale" in calibrated.explain(1e-5)
    stated = make_statement(calibrated, steps_completed=2, reproducible=False)
    assert "was added to the sum as a whole." in " ".join(str(stated).split())
    with pytest.raises(ValueError, match="NormDpEvent on a Poisson sample has no dominating pair"):
        dp.PrivacyPlan(
            **facts, noise_multiplier=2.0, mechanism=NORM, relation=dp.Relation.REPLACE_ONE
        ).epsilon(1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("mechanism", "found"), [(NORM, False), (HalfNoise(), True)])
def test_an_audit_finds_half_the_noise(with_event, mechanism, found):
    """Half the noise has epsilon 4, and 2 is claimed."""
    facts = {
        "sampling": dp.FullBatch(),
        "clipping_norm": 1.0,
        "num_records": 8,
        "num_steps": 1,
        "target_delta": 1e-3,
    }
    claimed = worst_case(dp.PrivacyPlan(**facts, noise_multiplier=0.5, mechanism=mechanism))
    assert claimed.audit(delta=1e-3, runs=4000, progress_bar=False).contradicted == found


def test_an_unknown_norm_is_refused(with_event, monkeypatch):
    """It was taken for the Euclidean one."""
    monkeypatch.setattr(NormNoise, "norm", 3)
    with pytest.raises(ValueError, match=r"norm_mechanism: .* not in the norm 3"):
        certified()
    monkeypatch.setattr(type(GAUSSIAN), "norm", 0)
    with pytest.raises(ValueError, match=r"gaussian_mechanism: rounding .* not in the norm 0"):
        GAUSSIAN.rounding(4)


def test_an_event_without_a_pair_is_refused_for_that_reason():
    with pytest.raises(
        ValueError, match=r"NormDpEvent cannot be accounted for.*discreet\.accounting\.NOISES"
    ):
        dp.PrivacyPlan(
            sampling=dp.FullBatch(),
            clipping_norm=1.0,
            noise_multiplier=2.0,
            num_steps=1,
            num_records=9,
            mechanism=NORM,
        ).epsilon(1e-5)
