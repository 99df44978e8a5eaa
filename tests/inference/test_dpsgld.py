"""Private Langevin dynamics: the right law, the right noise, the plan's privacy, and refusals before any budget is spent."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import discreet as dp
from discreet.methods.inference._langevin import Langevin, as_schedule, step_sizes
from discreet.privacy.accounting import langevin_epsilon_2015

pytestmark = pytest.mark.usefixtures("quick_compilation")

NUM_RECORDS = 40
XS = np.random.default_rng(0).normal(0.7, 1.0, NUM_RECORDS).astype(np.float32)
CONSTANT = (0.004, 1.0, 0.0)


def model(xs: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", xs.shape[0]):
        numpyro.sample("x", dist.Normal(mu, 1.0), obs=xs)


def make_plan(**changes: Any) -> dp.PrivacyPlan:
    facts = {
        "clipping_norm": 1.0,
        "noise_multiplier": 2.0,
        "num_steps": 50,
        "num_records": NUM_RECORDS,
    }
    return dp.PrivacyPlan(**{"sampling": dp.PoissonSampling(0.3), **facts, **changes})


def make(program: Callable[..., None] = model, plan: Any = None, **options: Any) -> dp.DPSGLD:
    options = {"step_size": CONSTANT, **options}
    return dp.DPSGLD(program, plan=make_plan() if plan is None else plan, **options)


# --- the law of the chain -------------------------------------------------------------------


def test_without_clipping_and_noise_the_tail_is_the_posterior(exact_plan: Any) -> None:
    """The model is conjugate. The chain is an AR(1), so that its own errors are known; five of them: alarm 1e-6."""
    num_steps = 40_000
    sgld = make(plan=exact_plan(NUM_RECORDS, num_steps), burn_in=0.1)
    result = sgld.run(dp.random.key(7), XS, progress_bar=False, require_proof=False)
    draws = result.draws["mu"].astype(np.float64)
    precision = NUM_RECORDS + 1.0
    assert draws.shape == (36_000,)
    kept = 1 - 0.5 * CONSTANT[0] * precision
    error_of_mean = np.sqrt((1 + kept) / (1 - kept) / len(draws) / precision)
    error_of_variance = np.sqrt(2 * (1 + kept**2) / (1 - kept**2) / len(draws))
    assert abs(draws.mean() - XS.sum() / precision) < 5 * error_of_mean
    # A step of finite size makes the chain hotter, by a factor that is known here: 4.3 %.
    hotter = 1 / (1 - CONSTANT[0] * precision / 4)
    assert abs(draws.var() * precision / hotter - 1) < 5 * error_of_variance
    assert 5 * error_of_variance < 0.2


SIZE = 40_000
ETA = 0.09
# Relative error of a variance from SIZE numbers: 0.7 %; five of them, false alarm 6e-7 each.
TOLERANCE = 5 * np.sqrt(2 / SIZE)


def sum_instead_of_the_larger(self: Any, i: Any, gradient: Any, state: Any) -> Any:
    key = jax.random.wrap_key_data(state.words, impl="threefry2x32")
    noise = {name: jax.random.normal(key, x.shape) for name, x in state.params.items()}
    moved = {
        n: x - 0.5 * ETA * gradient[n] + jnp.sqrt(ETA) * noise[n] for n, x in state.params.items()
    }
    return state._replace(params=moved)


def noise_of_a_step(share: float) -> dict[str, float]:
    """Variance of theta after one step, where the release's own noise brings `share` of eta."""
    stddev = 2 * np.sqrt(share / ETA)
    langevin = Langevin(as_schedule((ETA, 1.0, 0.0)), lambda: stddev)
    zeros = jnp.zeros(SIZE)
    state = langevin.first_state({"theta": zeros, "hyper": zeros}, dp.random.key(3), ["theta"])
    released = stddev * jax.random.normal(jax.random.key(4), (SIZE,))
    moved = langevin.get_params(langevin.update({"theta": released, "hyper": zeros}, state))
    return {name: float(jnp.mean(jnp.square(x))) for name, x in moved.items()}


@pytest.mark.parametrize("share", [0.01, 0.5, 1.0, 4.0])
def test_the_noise_is_the_larger_of_langevin_s_and_the_release_s(
    share: float, monkeypatch: Any
) -> None:
    variance = noise_of_a_step(share)
    assert abs(variance["theta"] / (ETA * max(1.0, share)) - 1) < TOLERANCE
    # No record reaches a hyper-parameter, so that the release brings it no noise.
    assert abs(variance["hyper"] / ETA - 1) < TOLERANCE
    monkeypatch.setattr(Langevin, "_step", sum_instead_of_the_larger)
    wrong = abs(noise_of_a_step(share)["theta"] / (ETA * max(1.0, share)) - 1) >= TOLERANCE
    assert wrong == (share >= 0.5)


@pytest.mark.parametrize("share", [0.5, pytest.param(4.0, marks=pytest.mark.exhaustive)])
def test_a_run_knows_what_noise_its_release_brings(share: float) -> None:
    """With records that contribute nothing, a step is noise alone: of a Poisson batch, and beside a private loss."""

    def wide(xs: Any) -> None:
        hyper = numpyro.sample("hyper", dist.Normal(0.0, 1e6).expand([SIZE]).to_event(1))
        theta = numpyro.sample("theta", dist.Normal(hyper, 1e6).to_event(1))
        with numpyro.plate("data", xs.shape[0]):
            numpyro.factor("pull", xs * theta.sum())

    rate, norm, loss_share = 0.3, 0.5, 0.25
    # sigma C / (q sqrt(1 - loss_share - 0.019)) is the noise of the gradient's estimate; the counts
    # have the other share.
    multiplier = 2 * np.sqrt(share / ETA) * rate * np.sqrt(1 - loss_share - 0.019) / norm
    plan = make_plan(clipping_norm=norm, noise_multiplier=float(multiplier), num_steps=1)
    sgld = make(wide, plan, step_size=(ETA, 1.0, 0.0), burn_in=0.0, loss_share=loss_share)
    assert sgld.free_noise_multiplier == pytest.approx(multiplier / np.sqrt(share), rel=1e-5)
    broken = np.full(NUM_RECORDS, np.nan, np.float32)
    result = sgld.run(dp.random.key(5), broken, progress_bar=False, require_proof=False)
    variance = {name: np.mean(np.square(x.astype(np.float64))) for name, x in result.draws.items()}
    assert abs(variance["theta"] / (ETA * max(1.0, share)) - 1) < TOLERANCE
    assert abs(variance["hyper"] / ETA - 1) < TOLERANCE
    assert np.isfinite(result.losses).all()


# --- the privacy of the run -----------------------------------------------------------------


@pytest.fixture(scope="module")
def sgld(quick_compilation: Any) -> dp.DPSGLD:
    del quick_compilation
    return make(step_size=(0.02, 5.0, 0.55), burn_in=0.2, thinning=3)


@pytest.fixture(scope="module")
def result(sgld: dp.DPSGLD) -> dp.inference.DPSGLDResult:
    return sgld.run(dp.random.key(), XS, progress_bar=False, delta=1e-3)


@pytest.mark.essential
def test_a_run_is_proved_and_costs_what_the_plan_says(
    sgld: dp.DPSGLD, result: dp.inference.DPSGLDResult
) -> None:
    statement = result.statement
    assert statement.is_private
    assert statement.method == "DPSGLD"
    assert statement.epsilon == sgld.plan.epsilon(1e-3)
    assert statement.horizon == 50
    assert any("Proved before it ran" in note for note in statement.notes)
    assert "guide" not in " ".join([*statement.released, *statement.public])
    found, planned = (
        x.event.event.noise_multiplier for x in (sgld.certify(XS).event, sgld.plan.event())
    )
    assert planned <= found < planned * (1 + 1e-6)


def test_draws_are_the_thinned_tail_and_go_on_as_dpsvi_s(result: dp.inference.DPSGLDResult) -> None:
    assert list(result.draw_steps) == list(range(11, 51, 3))
    np.testing.assert_allclose(result.draws["mu"], result.trace.iterates[10::3, 0], rtol=1e-6)
    np.testing.assert_allclose(result.step_sizes, 0.02 * (5.0 + np.arange(50)) ** -0.55, rtol=1e-5)
    assert result.diverged_at is None
    assert np.isnan(result.losses).all()
    some = result.posterior(dp.random.key(1), 14)["mu"]
    assert sorted(some) == sorted(result.draws["mu"])
    assert list(some) != list(result.draws["mu"])


@pytest.mark.parametrize(("completed", "kept"), [(48, [12, 24, 36, 48]), (10, [10])])
def test_a_trace_that_kept_every_fourth_step_is_thinned_as_well_as_it_can_be(
    completed: int, kept: list[int]
) -> None:
    """Also after Ctrl-C, when the last iterate is off the beat."""
    steps = np.array([*range(4, completed, 4), completed])
    outcome = SimpleNamespace(trace=SimpleNamespace(steps=steps), steps_completed=completed)
    assert list(steps[make(burn_in=0.2, thinning=9)._tail(outcome)]) == kept


def test_records_that_are_not_finite_change_nothing(sgld: dp.DPSGLD) -> None:
    """A NaN, a number whose square is infinite: each adds exactly zero; another record in that place adds something."""
    ends = []
    for value in (np.nan, 3e38, 5.0):
        table = np.concatenate([XS[:-1], [np.float32(value)]])
        ends.append(sgld.run(dp.random.key(2), table, progress_bar=False).trace.iterates)
    np.testing.assert_array_equal(ends[0], ends[1])
    assert np.isfinite(ends[0]).all()
    assert not np.array_equal(ends[0], ends[2])


def test_a_chain_that_leaves_the_numbers_says_so() -> None:
    def stiff(xs: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 1e-3))
        with numpyro.plate("data", xs.shape[0]):
            numpyro.sample("x", dist.Normal(mu, 1.0), obs=xs)

    chain = make(stiff, make_plan(num_steps=40), step_size=(0.01, 1.0, 0.0))
    with pytest.warns(RuntimeWarning, match="left the finite numbers"):
        result = chain.run(dp.random.key(1), XS, progress_bar=False, require_proof=False)
    assert result.diverged_at is not None
    assert 2 < result.diverged_at < 40
    # Where warnings are errors, the chain was lost.
    with pytest.raises(RuntimeWarning, match="left the finite numbers") as caught:
        chain.run(dp.random.key(1), XS, progress_bar=False, require_proof=False)
    assert caught.value.__dict__["partial_result"].statement == result.statement
    with pytest.raises(ValueError, match="smaller step_size"):
        result.posterior(dp.random.key(1), 1)


# --- what 2015 would have said --------------------------------------------------------------


def test_the_figure_of_2015_inverts_the_paper_s_noise() -> None:
    num_records, batch, passes, bound, delta, epsilon = 1000, 10, 5, 2.0, 1e-3, 0.4
    steps = passes * num_records // batch
    logs = np.log(2.5 * num_records * passes / (batch * delta)) * np.log(2 / delta)
    gradient_stddev = np.sqrt(128 * num_records * passes * bound**2 / (batch * epsilon**2) * logs)
    rate = batch / num_records
    found = langevin_epsilon_2015(
        noise_multiplier=gradient_stddev * rate / bound, rate=rate, num_steps=steps, delta=delta
    )
    assert found.epsilon == pytest.approx(epsilon)
    assert found.in_range == (passes >= epsilon**2 * num_records / (32 * batch * np.log(2 / delta)))
    with pytest.raises(ValueError, match="rate=0"):
        langevin_epsilon_2015(noise_multiplier=1.0, rate=0.0, num_steps=1, delta=0.1)


def test_the_plan_s_epsilon_is_far_below_that_of_2015() -> None:
    chain = make(plan=make_plan(noise_multiplier=20.0))
    bound = chain.epsilon_2015(1e-3)
    assert bound.in_range
    assert 5 * chain.plan.epsilon(1e-3) < bound.epsilon
    # Where Langevin's own noise is the larger one, the paper counts that.
    assert make(plan=make_plan(noise_multiplier=1e-3)).epsilon_2015(1e-3).epsilon < 1e3


# --- refusals -------------------------------------------------------------------------------


REFUSED: dict[str, tuple[Callable[[], dp.DPSGLD], Any, tuple[str, ...]]] = {
    "two numbers": (lambda: make(step_size=(0.1, 1.0)), TypeError, ("(a, b, gamma)",)),
    "a single number": (lambda: make(step_size=0.1), TypeError, ("(a, b, gamma)",)),
    "a falling a": (lambda: make(step_size=(-0.1, 1.0, 0.5)), ValueError, ("must be positive",)),
    "no b": (lambda: make(step_size=(0.1, 0.0, 0.5)), ValueError, ("must be positive",)),
    "a steep gamma": (lambda: make(step_size=(0.1, 1.0, 1.5)), ValueError, ("gamma from 0",)),
    "steps of no size": (
        lambda: make(step_size=lambda t: 1.0 - 0.25 * t),
        ValueError,
        ("at step 4",),
    ),
    "steps that branch": (
        lambda: make(step_size=lambda t: 0.1 if t < 5 else 0.01),
        TypeError,
        ("jax.numpy",),
    ),
    "steps of a vector": (
        lambda: make(step_size=lambda t: jnp.ones(2)),
        ValueError,
        ("one number",),
    ),
    "all burnt in": (lambda: make(burn_in=1.0), ValueError, ("burn_in is 1.0",)),
    "thinned away": (lambda: make(thinning=51), ValueError, ("from 1 to 50",)),
    "a half thinning": (lambda: make(thinning=0.5), ValueError, ("an integer",)),
    "a moving norm": (
        lambda: make(plan=make_plan(clipping_norm=dp.AdaptiveClipping(initial=1.0, quantile=0.9))),
        ValueError,
        ("moves with the fit", "clipping_norm"),
    ),
    "no plan": (lambda: make(plan=3), TypeError, ("PrivacyPlan",)),
}


@pytest.mark.essential
@pytest.mark.parametrize("name", REFUSED)
def test_refused_before_any_budget_is_spent(name: str, refused: Any) -> None:
    make_it, error, words = REFUSED[name]
    key = dp.random.key()
    with refused(error, *words):
        make_it().run(key, XS, progress_bar=False)


def test_options_are_fixed() -> None:
    with pytest.raises(AttributeError, match="plan"):
        make().plan = make_plan()


def test_step_sizes_are_those_of_the_schedule() -> None:
    np.testing.assert_allclose(
        step_sizes(as_schedule((1.0, 4.0, 0.5)), 3), [0.5, 1 / np.sqrt(5), 1 / np.sqrt(6)]
    )
    np.testing.assert_allclose(step_sizes(lambda t: 1.0 / (1 + t), 2), [1.0, 0.5])
