"""Plans whose noise and clipping norm change from step to step (c_t and sigma_t of Algorithm 1, UAI 2017)."""

import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from numpyro import distributions as dist
from numpyro.infer.autoguide import AutoNormal

import discreet as dp
from discreet import accounting
from discreet.methods.inference import _proof, _step
from discreet.privacy.verify import Given

N = 200
KW = {"sampling": dp.PoissonSampling(rate=0.1), "num_records": N}
PLAN = dp.PrivacyPlan(
    **KW, noise_multiplier=3.0, noise_schedule=[1.0, 1.0, 0.5, 2.0], clipping_norm=lambda t: 2.0 / (1 + t), num_steps=4
)
X = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.float32)


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def dpsvi(plan):
    return dp.DPSVI(model, AutoNormal(model), numpyro.optim.Adam(1e-2), plan=plan)


def sampled(noise, count):
    return SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(noise)), count)


def test_the_event_has_each_steps_noise():
    assert PLAN.event() == ComposedDpEvent([sampled(3.0, 2), sampled(1.5, 1), sampled(6.0, 1)])
    constant = dataclasses.replace(PLAN, noise_schedule=None, clipping_norm=1.0)
    assert constant.event() == sampled(3.0, 4)
    assert dataclasses.replace(PLAN, noise_schedule=(1.0,) * 4).event() == sampled(3.0, 4)
    assert PLAN.noise_multipliers == (3.0, 3.0, 1.5, 6.0)
    by_hand = accounting.profile(PLAN.event(), PLAN.relation, slack=PLAN.slack)
    assert PLAN.epsilon(1e-5) == by_hand.epsilon(1e-5) > constant.epsilon(1e-5)


def test_a_plan_is_as_before_hashable_and_kept():
    assert PLAN.clipping_norm == (2.0, 1.0, 2.0 / 3, 0.5)
    assert pickle.loads(pickle.dumps(PLAN)) == PLAN
    assert hash(PLAN) == hash(dataclasses.replace(PLAN, noise_schedule=np.array([1, 1, 0.5, 2])))
    assert "1.5 to 6" in PLAN.explain()
    assert "between 0.5 and 2" in PLAN.explain()


def test_steps_beyond_the_schedule_count_with_the_least_noise():
    longer = PLAN.lengthened(6)
    assert longer.noise_multipliers == (3.0, 3.0, 1.5, 6.0, 1.5, 1.5)
    assert longer.clipping_norm == (2.0, 1.0, 2.0 / 3, 0.5, 0.5, 0.5)


def test_one_factor_is_calibrated():
    plan = dp.PrivacyPlan.calibrate(epsilon=1.0, delta=1e-5, num_steps=4, noise_schedule=[1, 1, 1, 4], **KW)
    assert 0.999 <= plan.epsilon(1e-5) <= 1.0
    assert plan.noise_multipliers[3] == 4 * plan.noise_multiplier
    constant = dp.PrivacyPlan.calibrate(epsilon=1.0, delta=1e-5, num_steps=4, **KW)
    assert plan.noise_multiplier < constant.noise_multiplier


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"noise_schedule": [1.0, 2.0]}, "has 2 numbers for 4 steps"),
        ({"noise_schedule": [1.0, 1.0, 0.0, 1.0]}, "step 2"),
        ({"noise_schedule": lambda t: float("nan")}, "step 0"),
        ({"noise_schedule": [1.0, 1.0, 1.0, 1e7]}, "at most 1,000,000"),
        ({"clipping_norm": [1.0]}, "has 1 numbers for 4 steps"),
        ({"clipping_norm": lambda t: 1.0 - t}, "step 1"),
        ({"clipping_norm": [1.0, 1.0, 1.0, 1e-16]}, "neither vanish nor overflow"),
    ],
)
def test_wrong_schedules_are_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        dp.PrivacyPlan(**KW, noise_multiplier=1.0, num_steps=4, **wrong)


def test_what_has_no_schedule_says_so():
    for scheduled in ({"noise_schedule": lambda t: 1.0}, {"clipping_norm": lambda t: 1.0}):
        with pytest.raises(ValueError, match="give num_steps, too"):
            dp.PrivacyPlan.calibrate(epsilon=1.0, delta=1e-5, noise_multiplier=1.0, **scheduled, **KW)
    fixed = dataclasses.replace(PLAN, clipping_norm=1.0)
    with pytest.raises(ValueError, match="Leave noise_schedule out of the plan"):
        dp.DPSGLD(model, step_size=(1e-4, 10.0, 0.55), plan=fixed)
    with pytest.raises(ValueError, match="Leave noise_schedule out of the audited plan"):
        dp.audit.worst_case(fixed)


def test_a_fit_uses_each_steps_numbers_and_is_proved(tmp_path):
    result = dpsvi(PLAN).run(dp.random.key(), X, Y, progress_bar=False)
    assert result.clipping_norms == pytest.approx([2.0, 1.0, 2.0 / 3, 0.5])
    assert any("Proved before it ran" in x for x in result.statement.notes)
    assert result.statement.epsilon == PLAN.epsilon(result.statement.delta)
    assert "times each step's own public factor, between 0.5 and 2" in result.statement.mechanism
    assert result.statement.plan["noise_multipliers"] == [3.0, 3.0, 1.5, 6.0]
    result.save(tmp_path / "result")
    again = type(result).load(tmp_path / "result")
    assert again.statement == result.statement


def test_a_step_with_the_noise_of_another_step_has_no_proof(monkeypatch):
    """The schedule is indexed by the step: shifted by one, it has 6 where 3 is planned and the other way round."""
    right = _step.PlanNumbers.of.__func__

    def least(cls, plan):
        numbers = right(cls, plan)
        return numbers._replace(noise_multiplier=np.full_like(numbers.noise_multiplier, 1.5))

    monkeypatch.setattr(_step.PlanNumbers, "of", classmethod(least))
    plan = dataclasses.replace(PLAN, noise_multiplier=2.9)  # which no other test has had proved
    plan = dataclasses.replace(plan, noise_schedule=(1.0, 1.1, 1.0, 2.0))
    with pytest.raises(dp.PrivacyError, match="more than was declared"):
        dpsvi(plan).run(dp.random.key(), X, Y, progress_bar=False)


def test_the_proof_is_that_of_the_rule_for_the_clipping_norm(monkeypatch):
    """The steps are the same program but for the next step's norm."""
    proved = []
    certify = _proof.certify
    monkeypatch.setattr(_proof, "certify", lambda *args, **options: proved.append(args) or certify(*args, **options))
    plan = dataclasses.replace(PLAN, num_steps=3, noise_schedule=(1.0, 1.0, 2.0), clipping_norm=dp.AdaptiveClipping())
    for norm in (dp.AdaptiveClipping(), (2.0, 1.0, 0.5)):
        dpsvi(dataclasses.replace(plan, clipping_norm=norm)).run(dp.random.key(), X, Y, progress_bar=False)
    assert len(proved) == 2


@pytest.mark.parametrize("given", [True, False], ids=["given", "constant"])
def test_a_scan_over_schedules_of_noise_and_norm_is_proved(given):
    sigmas = jnp.array([1.0, 2.0, 4.0])
    norms = jnp.array([3.0, 1.0, 0.5])

    def step(xs, mask, key, sigmas, norms):
        def turn(total, now):
            key, sigma, norm = now
            released = dp.sum_records(dp.clip_records(xs, norm), mask)
            return total + dp.gaussian_mechanism(key, released, sigma * norm), None

        return jax.lax.scan(turn, jnp.zeros(2), (jax.random.split(key, 3), sigmas, norms))[0]

    table = jnp.zeros((5, 2)), jnp.ones(5, bool), dp.random.key(0)
    if given:
        event = dp.certify(step, *table, Given(sigmas), Given(norms), records=0, mask=1).event
    else:
        event = dp.certify(lambda *a: step(*a, sigmas, norms), *table, records=0, mask=1).event
    precision = sum(1 / x.noise_multiplier**2 for x in event.events)
    assert precision == pytest.approx(1 + 1 / 4 + 1 / 16, rel=1e-5)
    with pytest.raises(dp.PrivacyError, match="known multiple"):
        dp.certify(step, *table, sigmas, norms, records=0, mask=1)  # whose values a proof does not know
