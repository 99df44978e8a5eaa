import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoNormal
from numpyro.optim import Adam

import discreet as dp
from discreet.methods.inference import Trace, _loop
from discreet.methods.inference._trace import TraceRecorder, update_mean


def trace_of(iterates):
    return Trace(np.arange(1, len(iterates) + 1), np.asarray(iterates, np.float32))


def test_a_trace_that_only_fluctuates_has_converged():
    assert trace_of(np.random.default_rng(0).normal(size=(500, 20))).converged_from == 0.1


def test_a_trace_that_travels_has_not():
    time = np.arange(500)[:, None]
    travelling = trace_of(0.1 * time + np.random.default_rng(0).normal(size=(500, 20)))
    assert travelling.converged_from is None
    # Then the last tenth is averaged, close to where it has got to.
    assert travelling.average().mean() == pytest.approx(0.1 * 475, abs=1)


def test_the_tail_is_found_and_averaging_it_takes_the_noise_away():
    rng = np.random.default_rng(0)
    path = 100 * np.exp(-np.arange(1000) / 60)[:, None] + rng.normal(size=(1000, 30))
    trace = trace_of(path)
    assert trace.converged_from is not None
    assert 0.1 < trace.converged_from < 0.6
    assert np.abs(trace.average()).mean() < 0.2 * np.abs(path[-1]).mean()


def test_iterates_that_resemble_the_last_one_are_no_drift():
    """An optimizer's iterates are autocorrelated, and a regression through them all would take that for a trend."""
    rng = np.random.default_rng(1)
    path = np.zeros((4000, 20))
    for i in range(1, 4000):
        path[i] = 0.97 * path[i - 1] + rng.normal(size=20)
    assert trace_of(path).converged_from is not None


def test_coordinates_that_never_move_are_no_obstacle():
    iterates = np.random.default_rng(0).normal(size=(200, 2))
    iterates[:, 1] = 3.0
    assert trace_of(iterates).converged_from is not None
    assert trace_of(iterates).average()[1] == 3.0


def test_of_few_iterates_the_last_one_is_taken():
    assert trace_of([[1.0], [2.0], [7.0]]).average() == [7.0]


def test_the_recorder_stays_within_its_budget():
    recorder = TraceRecorder(dim=1000, num_steps=10_000, max_bytes=400_000)
    assert not recorder.every_step
    for step in range(1, 10_001):
        if recorder.steps_until_due(step) == recorder.interval:
            recorder.extend(step, np.full((1, 1000), step, np.float32))
    kept = recorder.finish()
    assert kept.iterates.nbytes <= 400_000
    assert kept.steps[-1] == 10_000
    np.testing.assert_array_equal(kept.iterates[:, 0], kept.steps)


def test_a_small_trace_keeps_every_step():
    assert TraceRecorder(dim=100, num_steps=2000).every_step


@pytest.mark.parametrize("num_steps", [1, 7, 10, 23, 100, 237])
def test_the_running_mean_is_that_of_the_last_tenth_wherever_the_fit_stops(num_steps):
    iterates = np.random.default_rng(0).normal(size=(num_steps, 3)).astype(np.float32)
    recorder = TraceRecorder(3, num_steps)
    mean = jnp.zeros((2, 3))
    step = jax.jit(update_mean, static_argnums=3)
    for done in range(1, num_steps + 1):
        mean = step(mean, iterates[done - 1], jnp.int32(done), num_steps)
        recorder.extend(done, iterates[done - 1 : done])
        trace = recorder.finish(np.asarray(mean), done)
        tenth, over = max(1, num_steps // 10), trace.mean_steps
        np.testing.assert_allclose(trace.mean, iterates[done - over : done].mean(axis=0), atol=1e-5)
        assert min(done, tenth) <= over < 2 * tenth or over == tenth
    assert over == tenth


def test_with_many_parameters_the_result_is_the_mean_of_the_tail_and_not_the_last_iterate(
    monkeypatch,
):
    """With 840,000 parameters or more the trace has room for fewer than 20 rows."""
    y = np.random.default_rng(0).normal(1.0, 1.0, (200, 3)).astype(np.float32)
    plan = dp.PrivacyPlan(
        sampling=dp.PoissonSampling(0.2),
        clipping_norm=1.0,
        noise_multiplier=20.0,
        num_steps=400,
        num_records=200,
    )

    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)

    def fit():
        dpsvi = dp.DPSVI(model, AutoNormal(model), Adam(0.05), plan=plan)
        return dpsvi.run(dp.random.key(3), y, progress_bar=False)

    whole = fit()
    for module in (_loop, _loop):
        monkeypatch.setattr(
            module, "TraceRecorder", lambda dim, n: TraceRecorder(dim, n, max_bytes=4 * dim * 7)
        )
    large = fit()
    assert len(large.trace.steps) < 10
    assert large.averaged_over == 40
    assert "averaged over 40" in repr(large)
    np.testing.assert_allclose(
        large.trace.average(), whole.trace.iterates[-40:].mean(axis=0), rtol=1e-4
    )
    # Its noise is less than the last iterate's.
    assert np.abs(large.params["mean_auto_loc"] - large.last_params["mean_auto_loc"]).max() > 1e-3
