"""Plans whose rate, noise and clipping norm change from step to step (q_t, c_t and sigma_t of Algorithm 1, UAI 2017)."""

import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from numpyro import distributions as dist
from numpyro.infer.autoguide import AutoDelta, AutoNormal

import discreet as dp
from discreet import accounting
from discreet.methods.inference import _proof, _step
from discreet.privacy.mechanisms import _batches
from discreet.privacy.sampling import ThinnedPoisson
from discreet.privacy.sampling._poisson import _ThinnedDrawing as ThinnedDrawing
from discreet.privacy.verify import Given

N = 200
KW = {"sampling": dp.PoissonSampling(rate=0.1), "num_records": N}
FIXED = {"sampling": dp.FixedSizeSampling(20), "relation": dp.Relation.REPLACE_ONE}
PLAN = dp.PrivacyPlan(
    **KW,
    noise_multiplier=3.0,
    noise_schedule=[1.0, 1.0, 0.5, 2.0],
    clipping_norm=lambda t: 2.0 / (1 + t),
    num_steps=4,
)
RATES = (0.1, 0.05, 0.1, 0.02)
RATED = dp.PrivacyPlan(
    **KW,
    rate_schedule=RATES,
    noise_multiplier=3.0,
    noise_schedule=[1.0, 1.0, 0.5, 2.0],
    num_steps=4,
)
X = np.random.default_rng(0).normal(size=(N, 2)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.float32)


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def dpsvi(plan):
    return dp.DPSVI(model, AutoNormal(model), numpyro.optim.Adam(1e-2), plan=plan)


def sampled(noise, count, rate=0.1):
    return SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), count)


def test_the_event_has_each_steps_noise():
    assert PLAN.event() == ComposedDpEvent([sampled(3.0, 2), sampled(1.5, 1), sampled(6.0, 1)])
    constant = dataclasses.replace(PLAN, noise_schedule=None, clipping_norm=1.0)
    assert constant.event() == sampled(3.0, 4)
    assert dataclasses.replace(PLAN, noise_schedule=(1.0,) * 4).event() == sampled(3.0, 4)
    assert PLAN.noise_multipliers == (3.0, 3.0, 1.5, 6.0)
    by_hand = accounting.profile(PLAN.event(), PLAN.relation, slack=PLAN.slack)
    assert PLAN.epsilon(1e-5) == by_hand.epsilon(1e-5) > constant.epsilon(1e-5)


def test_the_event_has_each_steps_rate():
    assert RATED.event() == ComposedDpEvent(
        [sampled(3.0, 1), sampled(3.0, 1, 0.05), sampled(1.5, 1), sampled(6.0, 1, 0.02)]
    )
    assert RATED.rates == RATES
    alike = dataclasses.replace(RATED, noise_schedule=None)
    assert alike.event() == ComposedDpEvent(
        [sampled(3.0, 2), sampled(3.0, 1, 0.05), sampled(3.0, 1, 0.02)]
    )
    by_hand = accounting.profile(alike.event(), alike.relation, slack=alike.slack)
    assert alike.epsilon(1e-5) == by_hand.epsilon(1e-5)
    # Neither the mean rate, which says too little, nor the largest.
    constant = dataclasses.replace(alike, rate_schedule=None)
    mean = dataclasses.replace(constant, sampling=dp.PoissonSampling(float(np.mean(RATES))))
    assert mean.epsilon(1e-5) < 0.9 * alike.epsilon(1e-5) < 0.9 * constant.epsilon(1e-5)
    assert (
        constant.event()
        == dataclasses.replace(alike, rate_schedule=lambda t: 0.1).event()
        == sampled(3.0, 4)
    )


def test_a_plan_with_rates_is_as_before_hashable_and_kept():
    assert pickle.loads(pickle.dumps(RATED)) == RATED
    assert hash(RATED) == hash(dataclasses.replace(RATED, rate_schedule=np.array(RATES)))
    assert "between 0.02 and 0.1" in RATED.explain()
    assert "mean sampling rate is q = 0.0675, and a batch holds 13.5 records" in RATED.explain()
    assert RATED.lengthened(6).rates == (*RATES, 0.1, 0.1)
    # The noise of a step's gradient is that of its sum, divided by its rate.
    noise = np.multiply(RATED.noise_multipliers, 0.1 / np.array(RATES))
    assert RATED.usual_noise == pytest.approx(np.sqrt(np.mean(noise**2)))


def test_noise_is_calibrated_to_the_rates():
    rated = dp.PrivacyPlan.calibrate(
        epsilon=1.0, delta=1e-5, num_steps=4, rate_schedule=RATES, **KW
    )
    assert 0.999 <= rated.epsilon(1e-5) <= 1.0
    constant = dp.PrivacyPlan.calibrate(epsilon=1.0, delta=1e-5, num_steps=4, **KW)
    assert rated.noise_multiplier < constant.noise_multiplier


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
    plan = dp.PrivacyPlan.calibrate(
        epsilon=1.0, delta=1e-5, num_steps=4, noise_schedule=[1, 1, 1, 4], **KW
    )
    assert 0.999 <= plan.epsilon(1e-5) <= 1.0
    assert plan.noise_multipliers[3] == 4 * plan.noise_multiplier
    constant = dp.PrivacyPlan.calibrate(epsilon=1.0, delta=1e-5, num_steps=4, **KW)
    assert plan.noise_multiplier < constant.noise_multiplier


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"noise_schedule": [1.0, 1.0, 1.0, 1e7]}, "at most 1,000,000"),
        ({"clipping_norm": lambda t: 1.0 - t}, "step 1"),
        ({"clipping_norm": [1.0, 1.0, 1.0, 1e-16]}, "neither vanish nor overflow"),
        (
            {"rate_schedule": [0.1, 0.05, 0.2, 0.1]},
            "step 2, is 0.2: .* at most sampling's rate, 0.1.*the largest rate",
        ),
        (
            {"rate_schedule": [0.1] * 4, "sampling": dp.FullBatch()},
            "one rate for all steps.*PoissonSampling",
        ),
        ({"rate_schedule": [0.1] * 4, **FIXED}, "one rate for all steps.*PoissonSampling"),
        ({"rate_schedule": [0.1, 1e-38, 0.1, 0.1]}, "too small or too large for 32-bit arithmetic"),
    ],
)
def test_wrong_schedules_are_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        dp.PrivacyPlan(**{**KW, "noise_multiplier": 1.0, "num_steps": 4, **wrong})


WRONG = {
    "a dict": ({0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}, "must be "),
    "bytes": (b"1111", "must be "),
    "text": ("1111", "must be "),
    "a set": ({0.1, 0.2, 0.3, 0.4}, "must be "),
    "records": (X, r"of type ndarray and shape \(200, 2\); it must be "),
    "one record's column": (X[:, 0], "has 200 numbers for 4 steps"),
    "too few": ([1.0, 2.0], "has 2 numbers for 4 steps"),
    "none": ([], "has 0 numbers for 4 steps"),
    "zero": ([0.1, 0.1, 0.0, 0.1], "step 2 is 0.0; it must be a finite number above 0"),
    "NaN": (lambda t: float("nan"), "step 0 is nan; it must be a finite number above 0"),
    "infinity": ([0.1, np.inf, 0.1, 0.1], "step 1 is inf"),
    "truths": ([True] * 4, "step 0 is True"),
    "a function of arrays": (lambda t: X, r"step 0 is of type ndarray and shape \(200, 2\)"),
    "a function of nothing": (lambda t: None, "step 0 is None"),
}


@pytest.mark.parametrize("name", ["rate_schedule", "noise_schedule", "clipping_norm"])
@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_schedule_has_one_error(name, what):
    wrong, says = WRONG[what]
    with pytest.raises(ValueError, match=f"^{name}.*{says}"):
        dp.PrivacyPlan(**{**KW, "noise_multiplier": 1.0, "num_steps": 4, name: wrong})


@pytest.mark.parametrize("name", ["rate_schedule", "noise_schedule", "clipping_norm"])
def test_a_traced_schedule_is_refused(name):
    def traced(x):
        dp.PrivacyPlan(**{**KW, "noise_multiplier": 1.0, "num_steps": 4, name: x})
        return x

    with pytest.raises(ValueError, match=f"^{name}, step 0 is of type .*Tracer"):
        jax.jit(traced)(jnp.ones(4))


@pytest.mark.parametrize("name", ["rate_schedule", "noise_schedule"])
def test_one_number_is_no_schedule(name):
    with pytest.raises(
        ValueError, match=f"^{name} is 0.1; it must be a list of numbers, one for each step"
    ):
        dp.PrivacyPlan(**{**KW, "noise_multiplier": 1.0, "num_steps": 4, name: 0.1})


def test_what_has_no_schedule_says_so():
    for name in ("noise_schedule", "clipping_norm", "rate_schedule"):
        scheduled = {name: lambda t: 0.1}
        with pytest.raises(ValueError, match="give num_steps, too"):
            dp.PrivacyPlan.calibrate(
                epsilon=1.0, delta=1e-5, noise_multiplier=1.0, **scheduled, **KW
            )
    for plan in (PLAN, RATED):
        fixed = dataclasses.replace(plan, clipping_norm=1.0)
        with pytest.raises(
            ValueError, match="Leave noise_schedule and rate_schedule out of the plan"
        ):
            dp.DPSGLD(model, step_size=(1e-4, 10.0, 0.55), plan=fixed)
        with pytest.raises(
            ValueError, match="Leave noise_schedule and rate_schedule out of the audited plan"
        ):
            dp.audit.worst_case(fixed)
    fit = dpsvi(RATED)
    state = fit.init(dp.random.key(), X, Y)
    with pytest.raises(ValueError, match=r"at which step's rate\. Fit with run"):
        fit.update(state, X, Y)


def test_a_single_number_of_numpy_is_no_schedule():
    plan = dp.PrivacyPlan.calibrate(
        epsilon=1.0, delta=1e-5, noise_multiplier=5.0, clipping_norm=np.float32(2), **KW
    )
    assert plan.clipping_norm == 2.0


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


def pulled(x):
    m = numpyro.sample("m", dist.Normal(0, 1e4).expand([1]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.factor("pull", -(x @ m))


def test_a_fit_draws_at_each_steps_rate_and_divides_by_it(tmp_path):
    """150 steps at 0.5 and 150 at 0.1 of 200 records, all of gradient C, with noise that is small beside the batch's own chance.

    The mean of 150 batches, relative to N, has a standard deviation of 0.0058 at 0.5 and 0.018 at
    0.1: a right fit fails once in a million runs. At the other rate it would be 0.2 or 5.
    """
    rates = (0.5, 0.1) * 150
    plan = dp.PrivacyPlan(
        sampling=dp.PoissonSampling(0.5),
        rate_schedule=rates,
        clipping_norm=1.0,
        noise_multiplier=1.0,
        num_steps=300,
        num_records=N,
    )
    fit = dp.DPSVI(pulled, AutoDelta(pulled), numpyro.optim.SGD(1e-6), plan=plan, loss_share=0)
    result = fit.run(
        dp.random.key(), np.full((N, 1), 2.0, np.float32), progress_bar=False, keep_gradients=True
    )
    sizes = result.trace.gradients[:, 0].reshape(-1, 2).mean(0) / N
    assert abs(sizes[0] - 1) < 5 * 0.0059
    assert abs(sizes[1] - 1) < 5 * 0.0182
    assert result.counted.value == pytest.approx(1, abs=0.1)
    assert any("Proved before it ran" in x for x in result.statement.notes)
    assert result.statement.plan["sampling_rates"] == list(rates)
    assert "between 0.1 and 0.5" in result.statement.mechanism
    result.save(tmp_path / "result")
    assert type(result).load(tmp_path / "result").plan == plan


RELATIONS = [dp.Relation.ADD_OR_REMOVE_ONE, dp.Relation.REPLACE_ONE]


@pytest.mark.parametrize("relation", RELATIONS)
def test_the_proof_is_of_each_steps_rate(relation):
    """Not of a neighbour's: the same rates in another order, the mean one, the smallest one."""
    plan = dataclasses.replace(RATED, relation=relation)
    certificate = dpsvi(plan).certify(X, Y)
    certificate.check(plan)
    assert len(certificate.event.events) == 4
    assert certificate.slack == pytest.approx(plan.slack, rel=1e-9)
    assert certificate.epsilon(1e-5) == pytest.approx(plan.epsilon(1e-5), rel=1e-4)
    one = dataclasses.replace(plan, rate_schedule=None)
    wrong = {
        "another order": dataclasses.replace(plan, rate_schedule=RATES[::-1]),
        "the mean": dataclasses.replace(one, sampling=dp.PoissonSampling(float(np.mean(RATES)))),
        "the smallest": dataclasses.replace(one, sampling=dp.PoissonSampling(min(RATES))),
        "less slack": dataclasses.replace(plan, rate_schedule=None),
    }
    for name in ("another order", "the mean", "the smallest"):
        with pytest.raises(dp.PrivacyError, match="more than was declared"):
            certificate.check(wrong[name])
    certificate.check(wrong["less slack"].event())  # the largest rate covers all


FAULTS = {
    "turned round": lambda step: 3 - step,
    "shifted": lambda step: step + 1,
    "the largest": lambda step: 0,
    "the largest, of no known step": lambda step: jnp.zeros_like(step),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_with_the_rate_of_another_step_has_no_proof(fault, monkeypatch):
    """The noise is the least where the rate is, so that another order costs more."""
    right = ThinnedDrawing.at
    monkeypatch.setattr(
        ThinnedDrawing, "at", lambda self, tables, step: right(self, tables, FAULTS[fault](step))
    )
    few = 150 + list(FAULTS).index(fault)  # JAX keeps the program of as many records
    plan = dataclasses.replace(RATED, num_records=few, noise_schedule=(2.0, 1.0, 2.0, 0.4))
    with pytest.raises(dp.PrivacyError, match="more than was declared"):
        dpsvi(plan).certify(X[:few], Y[:few]).check(plan)


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
    monkeypatch.setattr(
        _proof, "certify", lambda *args, **options: proved.append(args) or certify(*args, **options)
    )
    plan = dataclasses.replace(
        PLAN, num_steps=3, noise_schedule=(1.0, 1.0, 2.0), clipping_norm=dp.AdaptiveClipping()
    )
    for norm in (dp.AdaptiveClipping(), (2.0, 1.0, 0.5)):
        dpsvi(dataclasses.replace(plan, clipping_norm=norm)).run(
            dp.random.key(), X, Y, progress_bar=False
        )
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
        # whose values a proof does not know
        dp.certify(step, *table, sigmas, norms, records=0, mask=1)


# Draws at a rate of their own in programs of other forms.

THINNED = dp.PoissonSampling(0.1).thinned(RATES)


def drawn(key, step, xs, mask):
    drawing = THINNED.drawing(len(xs))
    tables = drawing.at(THINNED.prepare(len(xs)), step)
    _, real, batch, kept = _batches._draw(
        "poisson_subsample", drawing, key, tables, [xs, mask], mapped=False
    )
    return batch, real & kept


def released(key, step, xs, mask, noise=2.0):
    draw, key = jax.random.split(key)
    batch, real = drawn(draw, step, xs, mask)
    return dp.gaussian_mechanism(key, dp.sum_records(dp.clip_records(batch, 1.0), real), noise)


def in_turn(step_of, count=4):
    def program(xs, mask, key):
        def turn(c, now):
            step, key = now
            return c, step_of(step, key, xs, mask)

        return jax.lax.scan(turn, 0.0, (jnp.arange(count), jax.random.split(key, count)))[1]

    return program


def each_thrice(step, key, xs, mask):
    return jax.lax.map(lambda key: released(key, step, xs, mask), jax.random.split(key, 3))


def in_a_branch(step, key, xs, mask):
    return jax.lax.cond(step >= 0, lambda: released(key, step, xs, mask), lambda: jnp.zeros(2))


def before_the_last(xs, mask, key):
    """The carry has the number of the step before, which is no known number."""

    def turn(c, now):
        step, key = now
        return step, released(key, c, xs, mask)

    return jax.lax.scan(turn, 0, (jnp.arange(4), jax.random.split(key, 4)))[1]


def of_two_loops(xs, mask, key):
    """The step is a number of both loops, which no single one knows."""

    def outer(c, now):
        step, key = now
        return c, jax.lax.map(
            lambda x: released(x[1], step + 0 * x[0], xs, mask),
            (jnp.arange(2), jax.random.split(key, 2)),
        )

    return jax.lax.scan(outer, 0, (jnp.arange(4), jax.random.split(key, 4)))[1]


def rates_of(event):
    found = {}
    for part in getattr(event, "events", [event]):
        count, one = (
            (part.count, part.event) if isinstance(part, SelfComposedDpEvent) else (1, part)
        )
        count, one = (
            (count * one.count, one.event) if isinstance(one, SelfComposedDpEvent) else (count, one)
        )
        assert one.event == GaussianDpEvent(2.0)
        found[one.sampling_probability] = found.get(one.sampling_probability, 0) + count
    return found


ONCE = {0.1: 2, 0.05: 1, 0.02: 1}
FORMS = {
    "a scan": (in_turn(lambda step, *rest: released(rest[0], step, *rest[1:])), ONCE),
    "counted down": (in_turn(lambda step, *rest: released(rest[0], 3 - step, *rest[1:])), ONCE),
    "by twos": (
        in_turn(lambda step, *rest: released(rest[0], step // 2, *rest[1:])),
        {0.1: 4},
    ),  # a division is not followed
    "beyond the end": (
        in_turn(lambda step, *rest: released(rest[0], step + 9, *rest[1:])),
        {0.02: 4},
    ),
    "each rate thrice": (in_turn(each_thrice), {0.1: 6, 0.05: 3, 0.02: 3}),
    "in a branch": (in_turn(in_a_branch), ONCE),
    "a number before": (before_the_last, {0.1: 4}),
    "of two loops": (of_two_loops, {0.1: 8}),
    "one step": (lambda xs, mask, key: released(key, 3, xs, mask), {0.02: 1}),
    "an unknown one": (
        lambda xs, mask, key: released(key, jnp.int32(jnp.sum(key_numbers(key))), xs, mask),
        {0.1: 1},
    ),
}


def key_numbers(key):
    del key
    return jnp.ones((1000, 100), jnp.int32)  # too many to be known


@pytest.mark.parametrize("form", FORMS)
def test_a_draw_has_the_rate_of_its_step_or_else_the_largest(form):
    program, rates = FORMS[form]
    event = dp.certify(
        program, jnp.zeros((N, 2)), jnp.ones(N, bool), dp.random.key(0), records=0, mask=1
    ).event
    assert rates_of(event) == rates


def test_tables_of_other_coins_have_no_proof(monkeypatch):
    """Coins of one, which keep all records of the largest rate, beside the rates that are stated."""
    prepare = ThinnedPoisson.prepare
    ones = np.full((4, 3), 2**32 - 1, np.uint32)
    monkeypatch.setattr(
        ThinnedPoisson, "prepare", lambda self, count: {**prepare(self, count), "coins": ones}
    )
    with pytest.raises(dp.PrivacyError, match="sampling rate is not known"):
        dp.certify(
            FORMS["a scan"][0],
            jnp.zeros((N, 2)),
            jnp.ones(N, bool),
            dp.random.key(0),
            records=0,
            mask=1,
        )
