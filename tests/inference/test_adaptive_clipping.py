"""Clipping rules in a fit: where C goes, that a bad start does not matter, and that losses and releases stay right."""

import pickle

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDelta, AutoNormal

import discreet as dp

pytestmark = pytest.mark.usefixtures("quick_compilation")

N = 2000
SLOPES = np.exp(np.random.default_rng(0).normal(size=N)).astype(np.float32)


def pull(slope):
    """Every record's gradient is its slope, wherever theta is."""
    theta = numpyro.sample("theta", dist.Normal(0.0, 1e4))
    with numpyro.plate("data", slope.shape[0]):
        numpyro.factor("pull", slope * theta)


def fit(plan, model=pull, records=(SLOPES,), seed=1, guide=AutoDelta, optim=None, **options):
    optim = optim or numpyro.optim.SGD(1e-6)
    dpsvi = dp.DPSVI(model, guide(model), optim, plan=plan, **options)
    return dpsvi.run(dp.random.key(seed), *records, progress_bar=False)


def make_plan(clipping_norm, **changes):
    facts = {
        "sampling": dp.PoissonSampling(0.1),
        "noise_multiplier": 2.0,
        "num_steps": 600,
        "num_records": N,
    }
    return dp.PrivacyPlan(clipping_norm=clipping_norm, **{**facts, **changes})


@pytest.mark.parametrize(
    ("quantile", "start"),
    [
        (0.5, 0.01),
        (0.8, 100.0),
        pytest.param(0.5, 100.0, marks=pytest.mark.exhaustive),
        pytest.param(0.8, 0.01, marks=pytest.mark.exhaustive),
    ],
)
def test_c_settles_at_the_quantile_of_the_gradients_norms(quantile, start):
    truth = np.quantile(SLOPES, quantile)
    result = fit(make_plan(dp.AdaptiveClipping(quantile=quantile, initial=start * truth)))
    path = result.clipping_norms
    assert path.shape == (600,)
    assert path[0] == pytest.approx(start * truth, rel=1e-6)
    # b has noise of standard deviation 0.05 a step, and the path averages some twenty independent
    # stretches.
    assert np.exp(np.log(path[300:]).mean()) == pytest.approx(truth, rel=0.08)
    assert np.log(path[300:]).std() < 0.2


def test_c_settles_under_replace_one_too():
    plan = make_plan(
        dp.AdaptiveClipping(quantile=0.7, initial=0.1),
        sampling=dp.FixedSizeSampling(200),
        relation=dp.Relation.REPLACE_ONE,
    )
    path = fit(plan).clipping_norms
    assert np.exp(np.log(path[300:]).mean()) == pytest.approx(np.quantile(SLOPES, 0.7), rel=0.08)


def test_c_stays_within_its_public_bounds():
    path = fit(
        make_plan(
            dp.AdaptiveClipping(quantile=0.5, initial=1.0, minimum=0.97, maximum=5.0), num_steps=200
        )
    ).clipping_norms
    # The median is 1, so that noise takes C to the lower bound now and then.
    assert path.min() == pytest.approx(0.97)
    far = fit(
        make_plan(dp.AdaptiveClipping(quantile=0.99, initial=1.0, maximum=1.5), num_steps=200)
    ).clipping_norms
    assert far[-1] == pytest.approx(1.5, rel=0.1)
    assert far.max() <= np.float32(1.5)


@pytest.mark.essential
@pytest.mark.parametrize("rule", [1.0, dp.AdaptiveClipping(quantile=0.5, initial=1.0)])
def test_shares_of_clipped_and_of_dropped_records_are_released(rule):
    """A tenth of the records has no finite gradient: they are neither clipped nor counted, and do not hide that."""
    table = np.where(np.arange(N) % 10 == 0, np.nan, SLOPES).astype(np.float32)
    result = fit(make_plan(rule, num_steps=400), records=(table,))
    assert result.shares.shape == (400, 2)
    # Noise of 2 / sqrt(0.019) records on a batch of 200, and that of sampling, over 200 steps.
    assert result.clipped.value == pytest.approx(
        np.mean(table > 1) if rule == 1.0 else 0.5, abs=0.025
    )
    assert result.counted.value == pytest.approx(0.9, abs=0.03)
    assert 0.003 < result.clipped.stderr < 0.01
    assert "had a gradient longer than C" in result.statement.notes[-1]
    assert "of the 2,000 records did not count" in " ".join(result.statement.warnings)
    assert result.statement.use == dp.report.NOT_USABLE


def test_records_without_a_finite_gradient_do_not_count():
    """Their loss is finite: the derivative of the branch that `where` does not take is infinite, times 0."""

    def rooted(x):
        theta = numpyro.sample("theta", dist.LogNormal(0.0, 1.0))
        with numpyro.plate("data", x.shape[0]):
            numpyro.factor("pull", jnp.where(x > 0, jnp.sqrt(x * theta), 0.0))

    x = np.where(np.arange(N) % 10 == 0, 0, SLOPES).astype(np.float32)
    result = fit(make_plan(1.0, num_steps=400), rooted, (x,))
    assert result.counted.value == pytest.approx(0.9, abs=0.03)
    assert "of the 2,000 records did not count" in " ".join(result.statement.warnings)


def test_records_that_do_not_count_are_said_and_few_clipped_ones_are_no_reason_for_a_warning():
    table = np.where(np.arange(N) % 10 == 0, np.nan, 0.5).astype(np.float32)
    few = fit(make_plan(1.0, num_steps=400), records=(table,)).statement
    said = " ".join(few.warnings)
    assert "shortened" not in few.use_reason
    assert "of the 2,000 records did not count" in said
    assert "or the table has fewer records" in said
    whole = fit(make_plan(1.0, num_steps=400), records=(np.full(N, 0.5, np.float32),))
    assert "did not count" not in " ".join(whole.statement.warnings)


def test_update_moves_c_as_run_does():
    rule = dp.AdaptiveClipping(quantile=0.5, initial=0.01)
    plan = make_plan(rule, sampling=dp.FullBatch(), num_steps=5)
    path = fit(plan, seed=3).clipping_norms
    dpsvi = dp.DPSVI(pull, AutoDelta(pull), numpyro.optim.SGD(1e-6), plan=plan)
    state = dpsvi.init(dp.random.key(3), SLOPES)
    norms = []
    for _ in range(5):
        norms.append(float(state.clipping_norm))
        state, _ = dpsvi.update(state, SLOPES)
    np.testing.assert_allclose(norms, path, rtol=1e-5)
    assert norms[4] > 1.4 * norms[0]


def test_a_fixed_norm_has_a_flat_path():
    result = fit(make_plan(0.7, num_steps=5))
    np.testing.assert_array_equal(result.clipping_norms, np.full(5, 0.7))
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(result)).clipping_norms, result.clipping_norms
    )


def test_the_statement_names_the_count_among_what_left_the_data():
    statement = fit(make_plan(dp.AdaptiveClipping(count_share=0.02), num_steps=5)).statement
    assert any(
        "numbers of gradients within the clipping norm and beyond it, and so" in x
        for x in statement.released
    )
    # sqrt(0.98 / 0.96), each share on top of the other.
    assert sum("costing 1.0 % more noise" in what for what in statement.released) == 2
    assert statement.epsilon == make_plan(1.0, num_steps=5).epsilon(statement.delta)
    # 1 / sqrt(1 - 0.02 - 0.02), of loss and count.
    assert "at most 1.02062 C" in statement.mechanism


def test_shares_that_leave_nothing_to_the_gradient_are_refused(refused):
    plan = make_plan(dp.AdaptiveClipping(count_share=0.5))
    with refused(ValueError, "loss_share is 0.5", "count_share 0.5", "together"):
        dp.DPSVI(pull, AutoDelta(pull), numpyro.optim.SGD(1e-6), plan=plan, loss_share=0.5)


@pytest.mark.parametrize("rule", [dp.AdaptiveClipping(initial=0.01), 0.3])
def test_the_private_loss_is_right_whatever_c_does(rule):
    def model(y):
        theta = numpyro.sample("theta", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", y.shape[0]):
            numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)

    y = np.random.default_rng(1).normal(size=N).astype(np.float32)
    plan = make_plan(rule, sampling=dp.FullBatch(), noise_multiplier=1e-4, num_steps=30)
    dpsvi = dp.DPSVI(model, AutoDelta(model), numpyro.optim.SGD(1e-9), plan=plan, loss_bound=50.0)
    result = dpsvi.run(dp.random.key(1), y, progress_bar=False)
    state = dpsvi.init(dp.random.key(1), y, init_params=result.last_params)
    exact = float(dpsvi.evaluate(state, y, non_private=True))
    np.testing.assert_allclose(result.losses, exact, rtol=1e-3)


def logistic(x, y):
    w = numpyro.sample("w", dist.Normal(0, 2).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


@pytest.fixture(scope="module")
def survey():
    """Columns of several scales, correlated and with long tails, as tables have them."""
    rng = np.random.default_rng(4)
    size, dim = 8000, 8
    x = rng.standard_t(4, size=(size, dim)) @ (np.eye(dim) + 0.3 * rng.normal(size=(dim, dim)))
    x[:, 0], x[:, 1] = 1.0, rng.random(size) < 0.2
    y = rng.random(size) < 1 / (1 + np.exp(-x @ rng.normal(size=dim)))
    return x.astype(np.float32), y.astype(np.float32)


@pytest.fixture(scope="module")
def accuracy(survey):
    def of(clipping_norm):
        x, y = survey
        plan = dp.PrivacyPlan.calibrate(
            epsilon=1.0,
            delta=1e-5,
            num_records=len(x),
            # Adam remembers the noise of a high start for a thousand steps.
            num_steps=3000,
            sampling=dp.PoissonSampling(0.03),
            clipping_norm=clipping_norm,
        )
        result = fit(plan, logistic, survey, guide=AutoNormal, optim=numpyro.optim.Adam(2e-2))
        w = np.asarray(result.posterior(dp.random.key(2), 200)["w"]).mean(axis=0)
        return np.mean((x @ w > 0) == (y > 0.5))

    return of


@pytest.mark.parametrize(
    "factor", [pytest.param(x, marks=pytest.mark.exhaustive) for x in (0.01, 100.0)]
)
def test_a_start_a_hundredfold_off_ends_near_the_tuned_norm(accuracy, factor):
    tuned = 3.0
    best = accuracy(tuned)
    adaptive = accuracy(dp.AdaptiveClipping(quantile=0.8, initial=factor * tuned))
    assert adaptive > best - 0.01
    if factor > 1:
        # A fixed norm that is as far off drowns in its own noise.
        assert accuracy(factor * tuned) < best - 0.03
