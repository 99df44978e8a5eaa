import os
import pickle
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import Predictive
from numpyro.infer.autoguide import AutoNormal

import discreet as dp
from discreet.methods.inference import _dpsvi, _loop
from discreet.privacy.random import _claims

pytestmark = pytest.mark.usefixtures("quick_compilation")

NUM_RECORDS, DIM = 400, 3


def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_RECORDS, DIM)).astype(np.float32)
    return x, (x[:, 0] + 0.3 * rng.normal(size=NUM_RECORDS) > 0).astype(np.float32)


def make_plan(**changes):
    facts = {
        "sampling": dp.PoissonSampling(0.1),
        "clipping_norm": 1.0,
        "noise_multiplier": 1.0,
        "num_steps": 60,
        "num_records": NUM_RECORDS,
    }
    return dp.PrivacyPlan(**{**facts, **changes})


@pytest.fixture(scope="module")
def dpsvi():
    return dp.DPSVI(model, AutoNormal(model), numpyro.optim.Adam(3e-2), plan=make_plan())


@pytest.fixture(scope="module")
def result(dpsvi, table):
    return dpsvi.run(dp.random.key(3), *table, progress_bar=False)


def test_the_same_seed_gives_the_same_bits_however_the_loop_is_cut(
    dpsvi, table, result, monkeypatch
):
    monkeypatch.setattr(_loop, "_LONGEST_CHUNK", 7)
    monkeypatch.setattr(_loop, "_SHORT_CHUNK", 7)
    again = dpsvi.run(dp.random.key(3), *table, progress_bar=False)
    np.testing.assert_array_equal(again.losses, result.losses)
    np.testing.assert_array_equal(again.trace.iterates, result.trace.iterates)


def test_fresh_keys_give_other_releases(dpsvi, table, result):
    first = dpsvi.run(dp.random.key(), *table, progress_bar=False)
    second = dpsvi.run(dp.random.key(), *table, progress_bar=False)
    assert not np.any(first.losses == second.losses)
    assert not np.any(first.losses == result.losses)


def test_of_several_threads_one_gets_a_key(monkeypatch):
    """Of 12 threads with one key, several drew its noise in 77 of 400 cases."""
    digest, key, started = _claims._digest, dp.random.key(), threading.Barrier(4)

    def slowly(key):
        found = digest(key)
        time.sleep(0.02)
        return found

    def take(_):
        started.wait()
        try:
            dp.random.claim(key)
        except ValueError:
            return 0
        return 1

    monkeypatch.setattr(_claims, "_digest", slowly)
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(take, range(4))) == 1


def test_the_statement_says_how_much_noise_there_was(dpsvi, table, result):
    """The noise multiplier is relative to gradient, loss and counts together, 1.0201 C by default."""
    assert result.statement.plan["noise_standard_deviation"] == pytest.approx(1 / np.sqrt(0.961))
    assert "at most 1.02009" in result.statement.mechanism


def test_fits_the_data_with_little_noise(table):
    plan = make_plan(noise_multiplier=0.05, num_steps=600, clipping_norm=5.0)
    fit = dp.DPSVI(model, AutoNormal(model), optax.adam(3e-2), plan=plan).run(
        dp.random.key(5), *table, progress_bar=False
    )
    w = fit.posterior(dp.random.key(6), 500)["w"]
    assert w.shape == (500, DIM)
    accuracy = np.mean((table[0] @ np.asarray(w).mean(axis=0) > 0) == (table[1] > 0.5))
    assert accuracy > 0.9
    # The private loss says what the exact one says, up to its noise and its clipping.
    tail = fit.losses[-200:]
    assert tail.mean() < fit.losses[:20].mean()
    state = dp.DPSVI(model, AutoNormal(model), optax.adam(3e-2), plan=plan)
    start = state.init(dp.random.key(5), *table, init_params=fit.params)
    exact = np.mean(
        [
            state.evaluate(start._replace(rng_key=dp.random.key(i)), *table, non_private=True)
            for i in range(5)
        ]
    )
    assert tail.mean() == pytest.approx(exact, rel=0.15)


def test_posterior_draws_feed_predictive(result, table):
    draws = result.posterior(jax.random.key(1), 20)
    # Predictive itself knows only JAX's own keys.
    predicted = Predictive(model, draws)(jax.random.key(2), table[0][:7])
    assert predicted["y"].shape == (20, 7)


def test_nothing_printed_or_pickled_holds_the_key(dpsvi, table):
    key = dp.random.key(77)
    words = [str(w) for w in np.asarray(jax.random.key_data(key))]
    fit = dpsvi.run(key, *table, progress_bar=False)
    state = dpsvi.init(key, *table)
    for text in (
        repr(fit),
        str(fit),
        repr(state),
        str(state),
        str(fit.statement),
        fit.statement.to_json(),
    ):
        assert not any(re.search(rf"\b{w}\b", text) for w in words)
    stored = pickle.dumps(fit)
    assert np.asarray(jax.random.key_data(key)).tobytes() not in stored
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(state)
    restored = pickle.loads(stored)
    np.testing.assert_array_equal(restored.losses, fit.losses)
    with pytest.raises(ValueError, match="unpickled"):
        restored.posterior(key, 3)
    assert dpsvi.posterior(key, restored.params, 3)["w"].shape == (3, DIM)


def test_init_uses_no_value_of_the_records(dpsvi, table):
    one = dpsvi.init(dp.random.key(9), *table)
    other = dpsvi.init(dp.random.key(9), 100 + 0 * table[0], 1 + 0 * table[1])
    same = jax.tree.map(
        lambda a, b: bool(jnp.all(a == b)),
        (one.optim_state, one.loss_center),
        (other.optim_state, other.loss_center),
    )
    assert all(jax.tree.leaves(same))


def test_records_that_are_not_finite_change_nothing(dpsvi, table):
    """Full batches, so that both fits use the same rows and noise."""
    full = dp.DPSVI(
        model, AutoNormal(model), numpyro.optim.Adam(3e-2), plan=make_plan(sampling=dp.FullBatch())
    )
    x, y = (np.concatenate([part, part[:5]]) for part in table)
    x[-5:, 0] = [np.nan, np.inf, -np.inf, 3e38, np.nan]
    with_broken = full.run(dp.random.key(4), x, y, progress_bar=False)
    without = full.run(dp.random.key(4), *table, progress_bar=False)
    np.testing.assert_allclose(
        with_broken.trace.iterates, without.trace.iterates, rtol=2e-4, atol=2e-4
    )
    assert np.all(np.isfinite(with_broken.losses))


def test_an_empty_table_of_broken_records_still_gets_noise(table):
    plan = make_plan(num_steps=5)
    fit = dp.DPSVI(model, AutoNormal(model), numpyro.optim.SGD(1.0), plan=plan).run(
        dp.random.key(4), np.nan * table[0], table[1], progress_bar=False
    )
    assert np.std(np.diff(fit.trace.iterates, axis=0)) > 0.1
    assert len(np.unique(fit.losses)) == 5


def test_update_makes_the_steps_that_run_makes(table, dpsvi):
    """update with the whole table is run with full batches, step for step."""
    plan = make_plan(sampling=dp.FullBatch(), num_steps=4)
    full = dp.DPSVI(model, AutoNormal(model), numpyro.optim.Adam(3e-2), plan=plan)
    fit = full.run(dp.random.key(8), *table, progress_bar=False)
    state = full.init(dp.random.key(8), *table)
    update = jax.jit(full.update)
    losses = []
    for _ in range(4):
        state, loss = update(state, *table)
        losses.append(float(loss))
    np.testing.assert_allclose(losses, fit.losses, rtol=1e-4)
    for name, value in full.get_params(state).items():
        np.testing.assert_allclose(value, fit.last_params[name], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="covers 4 steps"):
        full.update(state, *table)


def test_a_mask_drops_rows(table, dpsvi):
    state = dpsvi.init(dp.random.key(8), *table)
    rows = [part[:30] for part in table]
    padded = [np.concatenate([part, np.full_like(part[:9], np.nan)]) for part in rows]
    short, _ = dpsvi.update(state, *rows)
    masked, _ = dpsvi.update(state, *padded, mask=jnp.arange(39) < 30)
    for a, b in zip(
        jax.tree.leaves(short.optim_state), jax.tree.leaves(masked.optim_state), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_the_loss_costs_what_it_says(table, share):
    """With a share s, noise on the gradient grows by 1 / sqrt(1 - s); without one there is no loss."""
    plan = make_plan(num_steps=400, sampling=dp.FullBatch(), noise_multiplier=3.0)
    fit = dp.DPSVI(
        model, AutoNormal(model), numpyro.optim.SGD(1e-6), plan=plan, loss_share=share
    ).run(dp.random.key(1), np.nan * table[0], table[1], progress_bar=False)
    # Broken records add nothing: what moves the location is noise and, by SGD, hardly the prior.
    steps = np.diff(fit.trace.iterates[:, :DIM].astype(np.float64), axis=0) / 1e-6
    expected = 3.0 / np.sqrt(1 - share)
    # iterates are float32, about 1e-7 apart: their differences carry that over the learning rate
    spread = np.sqrt(
        max(np.var(steps) - np.var(np.spacing(np.float32(1.0)) / 1e-6 / 4 * np.ones(1)), 0)
    )
    assert spread == pytest.approx(expected, rel=0.1)
    assert np.all(np.isnan(fit.losses)) == (share == 0.0)


def interrupt_soon(steps_before):
    """Send a real Ctrl-C once some chunks have run."""
    count = 0
    original = _loop.TraceRecorder.extend

    def extend(self, *args):
        nonlocal count
        count += 1
        if count == steps_before:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *args)

    return extend


def test_ctrl_c_returns_what_is_done_at_the_price_of_the_plan(dpsvi, table, result, monkeypatch):
    monkeypatch.setattr(_loop, "_LONGEST_CHUNK", 10)
    monkeypatch.setattr(_loop, "_SHORT_CHUNK", 10)
    monkeypatch.setattr(_loop.TraceRecorder, "extend", interrupt_soon(2))
    before = signal.getsignal(signal.SIGINT)
    fit = dpsvi.run(dp.random.key(3), *table, progress_bar=False)
    assert 0 < fit.steps_completed < 60
    np.testing.assert_array_equal(fit.losses, result.losses[: fit.steps_completed])
    assert fit.statement.epsilon == result.statement.epsilon
    assert fit.statement.steps_completed == fit.steps_completed
    assert signal.getsignal(signal.SIGINT) is before


def test_runs_outside_the_main_thread(dpsvi, table, result):
    fits = []
    thread = threading.Thread(
        target=lambda: fits.append(dpsvi.run(dp.random.key(3), *table, progress_bar=False))
    )
    thread.start()
    thread.join()
    np.testing.assert_array_equal(fits[0].losses, result.losses)


def test_a_table_in_a_closure_is_refused(table):
    """Used whole in every record's loss, it would never be clipped."""
    x = jnp.asarray(table[0])

    def closing_over_x(y):
        w = numpyro.sample("w", dist.Normal(0, 2).expand([DIM]).to_event(1))
        with numpyro.plate("data", y.shape[0]) as index:
            numpyro.sample("y", dist.Bernoulli(logits=x[index] @ w), obs=y)

    def taking_x(y, x):
        return closing_over_x(y)

    for fit in (
        dp.DPSVI(closing_over_x, AutoNormal(closing_over_x), optax.adam(1e-2), plan=make_plan()),
        dp.DPSVI(taking_x, AutoNormal(taking_x), optax.adam(1e-2), plan=make_plan(), x=x),
    ):
        with pytest.raises(ValueError, match="not passed as records"):
            fit.run(dp.random.key(1), table[1], progress_bar=False)


def test_what_cannot_be_accounted_for_does_not_run(dpsvi, table, monkeypatch):
    key = dp.random.key()
    with monkeypatch.context() as patch:
        patch.setattr(_dpsvi, "make_statement", lambda *args, **kwargs: 1 / 0)
        patch.setattr(_dpsvi, "run_steps", lambda *args, **kwargs: pytest.fail("released"))
        with pytest.raises(ZeroDivisionError):
            dpsvi.run(key, *table, progress_bar=False)
    dpsvi.run(key, *table, progress_bar=False)


def test_a_fit_that_diverges_stops_and_says_so(table):
    method = dp.DPSVI(model, AutoNormal(model), numpyro.optim.SGD(1e38), plan=make_plan())
    with pytest.warns(dp.inference.UseWarning, match="Not usable: The fit diverged"):
        result = method.run(dp.random.key(4), *table, progress_bar=False)
    assert not np.isfinite(result.last_params["w_auto_loc"]).all()
    assert result.steps_completed < 60
    assert "not usable" in repr(result)
    assert "diverged" in result.statement.use_reason
    assert result.statement.about.startswith("The model “model”, fitted in steps to ")


def test_an_error_of_a_signal_handler_has_the_fit_so_far(dpsvi, table, monkeypatch):
    """Such as a test's time limit: the plan is spent, and what was released is not lost."""
    seen = []

    class Late(_loop.tqdm):
        def update(self, n=1):
            seen.append(n)

        def set_postfix_str(self, s="", refresh=True):
            raise TimeoutError

    monkeypatch.setattr(_loop, "tqdm", Late)
    with pytest.raises(TimeoutError) as late:
        dpsvi.run(dp.random.key(3), *table, progress_bar=False)
    partial = late.value.partial_result
    assert (
        partial.steps_completed == len(partial.losses) == len(partial.trace.steps) == sum(seen) < 60
    )
    assert partial.statement.epsilon == dpsvi.plan.epsilon(partial.statement.delta)
    np.testing.assert_array_equal(
        partial.trace.iterates[-1][:DIM], partial.last_params["w_auto_loc"]
    )
    assert "The plan is spent" in late.value.__notes__[0]


def test_the_bias_of_the_losses_is_said(result):
    (said,) = (words for words in result.statement.released if "loss" in words)
    assert (
        "biased where losses of records differ by more than its size from an artificial one's"
        in said
    )
