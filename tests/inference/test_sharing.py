"""A plan's numbers are inputs of the compiled fit: another plan compiles nothing, and is proved with its own numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import Adam

import discreet as dp
from discreet.methods.inference._step import PlanNumbers, PrivateStep
from discreet.privacy.verify import Given, _certify
from discreet.privacy.verify._programs import trace

N = 300
X = np.random.default_rng(0).normal(0.5, 1.0, (N, 2)).astype(np.float32)
FACTS = {
    "sampling": dp.PoissonSampling(0.1),
    "clipping_norm": 1.0,
    "noise_multiplier": 2.0,
    "num_steps": 100,
}


def model(x, width=1.0):
    mean = numpyro.sample("mean", dist.Normal(0.0, width).expand([2]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("x", dist.Normal(mean, 1.0).to_event(1), obs=x)


def make(program=model, guide=None, optim=None, options=(), **changes):
    plan = dp.PrivacyPlan(num_records=N, **{**FACTS, **changes})
    return dp.DPSVI(
        program, guide or AutoNormal(program), optim or Adam(0.05), plan=plan, **dict(options)
    )


def run(dpsvi):
    return dpsvi.run(dp.random.key(1), X, progress_bar=False)


@pytest.fixture
def compiled():
    """The seconds of each program that XLA compiles, as they come."""
    seconds = []

    def heard(event, duration, **_):
        seconds.extend([duration] * event.endswith("backend_compile_duration"))

    jax.monitoring.register_event_duration_secs_listener(heard)
    yield seconds
    jax.monitoring.unregister_event_duration_listener(heard)


OTHER = {
    "noise": {"noise_multiplier": 3.0},
    "clipping norm": {"clipping_norm": 0.5},
    "steps": {"num_steps": 150},
    "all": {"noise_multiplier": 1.5, "clipping_norm": 2.0, "num_steps": 90},
}


def test_another_plan_compiles_nothing(compiled, monkeypatch):
    run(make(num_steps=110))
    run(make(num_steps=FACTS["num_steps"]))
    assert compiled, "nothing is heard of what XLA compiles"
    compiled.clear()
    traced = []
    monkeypatch.setattr(_certify, "trace", lambda *args: traced.append(args) or trace(*args))
    for name, changes in OTHER.items():
        result = run(make(**changes))
        assert not compiled, name
        assert any(note.startswith("Proved before it ran") for note in result.statement.notes)
        # Only another number of steps is another program to the proof.
        assert len(traced) == ("num_steps" in changes), name
        traced.clear()


def test_what_is_compiled_for_another_plan_gives_what_was_compiled_for_this_one():
    first = {name: run(make(**changes)) for name, changes in OTHER.items()}
    jax.clear_caches()
    for name in reversed(OTHER):
        again = run(make(**OTHER[name]))
        for site, value in first[name].params.items():
            np.testing.assert_array_equal(again.params[site], value, err_msg=f"{name}, {site}")


def test_plans_differ_where_they_should():
    few, loud = run(make(num_steps=90)), run(make(noise_multiplier=20.0))
    assert len(few.losses) == 90
    quiet = run(make())
    assert np.std(loud.losses) > 3 * np.std(quiet.losses)
    small, large = (
        run(make(clipping_norm=c, noise_multiplier=1e-3, sampling=dp.FullBatch()))
        for c in (0.01, 1e3)
    )
    assert small.params["mean_auto_loc"] != pytest.approx(large.params["mean_auto_loc"], rel=1e-2)


def test_other_programs_are_not_shared():
    """A number that a model or an optimizer holds is part of its program, also where the function is the same."""
    width = {"now": 1e-3}

    def narrow(x):
        return model(x, width["now"])

    tight = run(make(narrow, noise_multiplier=0.1))
    width["now"] = 10.0
    wide = run(make(narrow, noise_multiplier=0.1))
    assert np.all(
        np.abs(tight.params["mean_auto_loc"]) < 0.1 * np.abs(wide.params["mean_auto_loc"])
    )
    slow, fast = (run(make(optim=Adam(size), noise_multiplier=0.1)) for size in (1e-6, 0.05))
    assert np.abs(slow.params["mean_auto_loc"] - fast.params["mean_auto_loc"]).max() > 0.1
    share = run(make(options={"loss_share": 0.0}))
    assert np.isnan(share.losses).all()


def certified(**changes):
    dpsvi = make(**changes)
    return dpsvi.plan, dpsvi.certify(X)


def test_each_plan_has_a_proof_with_its_own_numbers():
    for changes in (
        *OTHER.values(),
        {"sampling": dp.PoissonSampling(0.1001)},
        {"clipping_norm": dp.AdaptiveClipping()},
    ):
        plan, certificate = certified(**changes)
        certificate.check(plan)
        assert certificate.epsilon(1e-5) == pytest.approx(plan.epsilon(1e-5), rel=1e-4)
    quiet, loud = certified(noise_multiplier=1.0), certified(noise_multiplier=3.0)
    with pytest.raises(dp.PrivacyError, match="does more than was declared"):
        quiet[1].check(loud[0])
    assert quiet[1].fingerprint != loud[1].fingerprint


def test_the_noise_of_a_step_is_no_less_than_the_plan_s():
    for noise_multiplier in np.random.default_rng(0).uniform(0.3, 30.0, 50):
        used = float(PlanNumbers.of(make(noise_multiplier=noise_multiplier).plan).noise_multiplier)
        assert noise_multiplier <= used <= noise_multiplier * (1 + 2e-7)


def half(numbers):
    return numbers._replace(noise_multiplier=numbers.noise_multiplier / 2)


FAULTS = {
    "sigma halved inside": half,
    "sigma of a program of its own": lambda numbers: numbers._replace(
        noise_multiplier=jnp.float32(1.0)
    ),
    "sigma from the number of steps": lambda numbers: numbers._replace(
        noise_multiplier=numbers.num_steps.astype(jnp.float32)
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_that_takes_another_sigma_has_no_proof(monkeypatch, fault):
    run(make())
    move = PrivateStep.move
    monkeypatch.setattr(
        PrivateStep,
        "move",
        lambda self, state, keys, numbers, *rest: move(
            self, state, keys, FAULTS[fault](numbers), *rest
        ),
    )
    with pytest.raises(dp.PrivacyError, match="require_proof"):
        run(make())
    monkeypatch.undo()
    # Nothing of it is kept.
    assert any(note.startswith("Proved before it ran") for note in run(make()).statement.notes)


def test_a_draw_with_the_tables_of_another_rate_is_no_known_sample():
    honest, other = dp.PoissonSampling(0.1), dp.PoissonSampling(0.1001)
    drawing = honest.drawing(N)
    assert drawing == other.drawing(N)
    tables = honest.prepare(N)
    assert drawing.law(tables) == honest
    for name in tables:
        changed = {**tables, name: other.prepare(N)[name]}
        if np.array_equal(changed[name], tables[name]):
            continue
        assert drawing.law(changed) is None, name
        assert drawing.law({**tables, name: None}) is None, name
    assert honest.drawing(N + 1).law(tables) is None


def test_a_certificate_runs_with_the_values_that_it_knows():
    def release(key, x, sigma):
        return dp.gaussian_mechanism(key, jnp.sum(dp.clip_records(x, 1.0), axis=0), 2 * sigma)

    key, sigma = dp.random.key(1), np.float32(3.0)
    certificate = dp.certify(
        release, key, X, Given(sigma), records=1, relation=dp.Relation.REPLACE_ONE
    )
    assert certificate.event.noise_multiplier == pytest.approx(6.0)
    assert "3.0" in str(certificate)
    assert certificate(key, X, sigma).shape == (2,)
    with pytest.raises(ValueError, match="the certificate is for"):
        certificate(key, X, np.float32(1.0))
