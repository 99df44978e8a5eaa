"""Posteriors that know of the noise of the fit: calibrated where the answer is known, refused where there is none."""

import dataclasses
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

import discreet as dp
from discreet.methods.inference import Trace
from discreet.methods.inference._noise_aware import locations_of
from discreet.methods.inference._tail import regress, tail_mean

LEVELS = np.array([0.5, 0.8, 0.9, 0.95])
COORDINATES, STEPS, RATE, NOISE = 1200, 500, 0.02, 1.0


@pytest.fixture(scope="module")
def descent():
    """Noisy gradient descents on parabolas drawn from the regression's own prior; returns optima, iterates and gradients."""
    rng = np.random.default_rng(0)
    slopes = np.exp(rng.normal(size=COORDINATES))
    optima = 3 * rng.normal(size=COORDINATES)
    point, points, gradients = np.zeros(COORDINATES), [], []
    for _ in range(STEPS):
        gradient = slopes * (point - optima) + NOISE * rng.normal(size=COORDINATES)
        points.append(point)
        gradients.append(gradient)
        point = point - RATE * gradient
    return slopes, optima, np.stack(points), np.stack(gradients)


def is_calibrated(drawn, truth):
    """Return True if intervals hold the truth as often as stated, to within four standard errors at each level.

    For a calibrated method that fails with probability 2.5e-4 at most, four levels of two tails
    each beyond 4 sigma.
    """
    below = np.mean(drawn < truth, axis=0)
    held = np.mean(np.abs(below - 0.5)[:, None] <= LEVELS / 2, axis=0)
    return bool(np.all(np.abs(held - LEVELS) <= 4 * np.sqrt(LEVELS * (1 - LEVELS) / len(truth))))


class TestRegression:
    def posterior(self, descent, **options):
        _, _, points, gradients = descent
        given = {"least_noise": 0.8 * NOISE, "slope_guess": np.ones(COORDINATES)} | options
        return regress(points=points, gradients=gradients, **given)

    def test_it_is_calibrated(self, descent):
        drawn = self.posterior(descent).draws(np.random.default_rng(1), 400)
        assert is_calibrated(drawn, descent[1])

    def test_moments_are_those_of_the_draws(self, descent):
        """Medians over the coordinates: a mixture whose slope is hardly known has heavy tails."""
        posterior = self.posterior(descent)
        mean, stddev = posterior.moments()
        drawn = posterior.draws(np.random.default_rng(1), 400)
        assert np.median(stddev / drawn.std(axis=0)) == pytest.approx(1, abs=0.03)
        assert np.median(np.abs(mean - drawn.mean(axis=0)) / stddev) < 0.1

    def test_without_the_noise_it_is_not(self, descent):
        """Planted: the slope is uncertain, the noise that is left in the mean is left out."""
        posterior = dataclasses.replace(
            self.posterior(descent), residual=np.full((201, COORDINATES), 1e-6), least_noise=0.0
        )
        assert not is_calibrated(posterior.draws(np.random.default_rng(1), 400), descent[1])

    def test_noise_on_the_mean_gradient_alone_is_not_enough(self, descent):
        """Planted: the slope is taken for what was guessed."""
        posterior = self.posterior(descent)
        fixed = np.zeros((201, 1)) + np.linspace(-1e-6, 1e-6, 201)[:, None]
        guessed = dataclasses.replace(posterior, log_slopes=np.tile(fixed, COORDINATES))
        assert not is_calibrated(guessed.draws(np.random.default_rng(1), 400), descent[1])

    def test_the_noise_is_never_less_than_the_mechanism_added(self, descent):
        widened = (
            self.posterior(descent, least_noise=1.5).moments()[1]
            / self.posterior(descent).moments()[1]
        )
        assert np.mean(widened > 1) > 0.98
        assert np.median(widened) > 1.4

    def test_slopes_that_are_known_well_are_found(self, descent):
        posterior = self.posterior(descent, slope_guess=np.full(COORDINATES, 3.0))
        steep = descent[0] > 0.5
        found = (
            np.exp(np.sum(posterior.weights * posterior.log_slopes, axis=0))[steep]
            / descent[0][steep]
        )
        assert np.median(found) == pytest.approx(1, abs=0.1)


@pytest.fixture(scope="module")
def tail(descent):
    """Simulate coordinates that have forgotten their start; returns optima and iterates."""
    slopes, optima, points, _ = descent
    settled = slopes > 2.5
    return optima[settled], points[150:, settled]


class TestMeanOfTheTail:
    def test_it_is_calibrated(self, tail):
        optima, iterates = tail
        assert len(optima) > 150
        _, _, draws = tail_mean(iterates)
        assert is_calibrated(draws(np.random.default_rng(1), 400), optima)

    def test_iterates_taken_for_independent_are_not(self, tail):
        optima, iterates = tail
        error = iterates.std(axis=0) / np.sqrt(len(iterates))
        drawn = iterates.mean(axis=0) + error * np.random.default_rng(1).normal(
            size=(400, len(optima))
        )
        assert not is_calibrated(drawn, optima)

    def test_the_variance_of_an_iterate_is_not_that_of_the_mean(self, tail):
        """Planted: what the last iterate would need, added to the mean."""
        optima, iterates = tail
        drawn = iterates.mean(axis=0) + iterates.std(axis=0) * np.random.default_rng(1).normal(
            size=(400, len(optima))
        )
        assert not is_calibrated(drawn, optima)

    def test_coordinates_that_fluctuate_together_stay_together(self):
        rng = np.random.default_rng(0)
        one = rng.normal(size=400)
        _, _, draws = tail_mean(
            np.stack([one, 2 * one, rng.normal(size=400), np.ones(400)], axis=1)
        )
        drawn = draws(rng, 4000)
        correlations = np.corrcoef(drawn[:, :3].T)
        assert correlations[0, 1] > 0.95
        assert abs(correlations[0, 2]) < 0.2
        assert np.all(drawn[:, 3] == 1.0)

    def test_a_walk_has_no_mean(self):
        with pytest.raises(ValueError, match="fluctuation is not seen"):
            tail_mean(np.linspace(0, 1, 500)[:, None] + np.zeros((1, 3)))


# --- a fit --------------------------------------------------------------------------------

NUM_RECORDS, NUM_STEPS, LEARNING_RATE = 400, 400, 1e-3


def model(x):
    m = numpyro.sample("m", dist.Normal(0, 1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("x", dist.Normal(m, 1), obs=x)


def make(model=model, guide=None, **options):
    plan = dp.PrivacyPlan(
        sampling=dp.PoissonSampling(0.5),
        clipping_norm=4.0,
        noise_multiplier=10.0,
        num_steps=options.pop("num_steps", NUM_STEPS),
        num_records=NUM_RECORDS,
    )
    guide = AutoNormal(model, init_scale=0.05) if guide is None else guide
    return dp.DPSVI(
        model, guide, numpyro.optim.SGD(LEARNING_RATE), plan=plan, loss_share=0.0, **options
    )


@pytest.fixture(scope="module")
def table():
    return np.random.default_rng(0).normal(0.5, 1.0, size=NUM_RECORDS).astype(np.float32)


@pytest.fixture(scope="module")
def result(table):
    return make().run(dp.random.key(3), table, progress_bar=False, keep_gradients=True)


def test_the_gradients_kept_are_those_that_moved_the_parameters(result):
    """And the fit that keeps them is proved to be what its plan says."""
    trace = result.trace
    assert trace.gradients.shape == trace.iterates.shape
    np.testing.assert_allclose(
        np.diff(trace.iterates, axis=0), -LEARNING_RATE * trace.gradients[1:], rtol=1e-3, atol=1e-6
    )
    assert any(note.startswith("Proved before it ran") for note in result.statement.notes)
    assert "the noisy gradient of every step" in result.statement.released


@pytest.mark.essential
def test_the_regression_finds_the_noise_that_was_added(result, table):
    """Here all is known: curvature N + 1, optimum, noise of 10 C / q a step and that of the batches."""
    noise_aware = result.noise_aware(start=0.2)
    np.testing.assert_array_equal(noise_aware.corrected, [True, False])
    expected = 10 * 4.0 / 0.5 / (NUM_RECORDS + 1) / np.sqrt(0.8 * NUM_STEPS)
    assert 0.9 < noise_aware.stddev[0] / expected < 1.5
    assert abs(noise_aware.mean[0] - table.sum() / (NUM_RECORDS + 1)) < 4 * noise_aware.stddev[0]
    plain, aware = (x.posterior(jax.random.key(0), 4000)["m"] for x in (result, noise_aware))
    assert aware.shape == plain.shape == (4000,)
    # Five standard errors of a variance from 4000 draws, each way.
    assert float(jnp.var(aware)) == pytest.approx(
        float(jnp.var(plain)) + noise_aware.stddev[0] ** 2, rel=0.25
    )


def test_the_trace_alone_says_much_the_same(result):
    by_trace, by_regression = result.noise_aware("trace", start=0.2), result.noise_aware(start=0.2)
    np.testing.assert_array_equal(by_trace.corrected, [True, True])
    assert 0.5 < by_trace.stddev[0] / by_regression.stddev[0] < 2
    assert by_trace.mean[0] == pytest.approx(by_regression.mean[0], abs=2 * by_regression.stddev[0])
    plain, aware = (x.posterior(jax.random.key(0), 4000)["m"] for x in (result, by_trace))
    assert float(jnp.std(aware)) > float(jnp.std(plain))


def test_keys_say_what_is_drawn(result):
    noise_aware = result.noise_aware(start=0.2)
    first, same, other = (noise_aware.posterior(jax.random.key(i), 5)["m"] for i in (0, 0, 1))
    np.testing.assert_array_equal(first, same)
    assert np.all(np.asarray(first) != np.asarray(other))


def test_a_fit_that_clipping_moved_is_refused(result):
    """An adaptive C always shortens some; of a fixed one the released share says so, beyond its own noise."""
    adaptive = dataclasses.replace(result.plan, clipping_norm=dp.AdaptiveClipping())
    noise = np.random.default_rng(1).normal(0.0, 0.01, size=(len(result.losses), 2))
    few = dataclasses.replace(result, shares=np.array([0.0, 1.0]) + noise)
    many = dataclasses.replace(result, shares=np.array([0.02, 1.0]) + noise)
    assert few.noise_aware("trace", start=0.2).method == "trace"
    for fit in (dataclasses.replace(few, plan=adaptive), many):
        with pytest.raises(
            ValueError, match="gradients were shortened, which moves the parameters"
        ):
            fit.noise_aware("trace", start=0.2)
        with pytest.raises(ValueError, match="no interval would hold"):
            fit.to_arviz(jax.random.key(0), 10)


def test_what_cannot_be_known_is_refused(result):
    def traced(**changes):
        return dataclasses.replace(result, trace=dataclasses.replace(result.trace, **changes))

    moving = np.linspace(0, 1, NUM_STEPS)[:, None] * np.ones(2)
    broken = np.where(np.arange(NUM_STEPS)[:, None] < 390, result.trace.iterates, np.nan)
    few = Trace(result.trace.steps[:10], result.trace.iterates[:10], result.trace.gradients[:10])
    for fit, method, options, words in [
        (result, "magic", {}, "method is 'magic'; it must be one of 'trace', 'regression'"),
        (result, "trace", {"start": 1.0}, "a fraction of the trace"),
        (result, "trace", {"start": 0.99}, "The tail holds 4 iterates"),
        (traced(iterates=moving), "trace", {}, "free of drift"),
        (traced(iterates=moving), "regression", {}, "free of drift"),
        (traced(iterates=moving), "trace", {"start": 0.2}, "fluctuation is not seen"),
        (traced(iterates=broken), "trace", {"start": 0.2}, "not finite"),
        (
            dataclasses.replace(result, trace=few),
            "trace",
            {"start": 0.0},
            "The tail holds 10 iterates",
        ),
        (traced(gradients=None), "regression", {"start": 0.2}, "keep_gradients=True"),
        (pickle.loads(pickle.dumps(result)), "trace", {}, "unpickled"),
    ]:
        with pytest.raises(ValueError, match=words):
            fit.noise_aware(method, **options)
    assert traced(gradients=None).noise_aware(start=0.2).method == "trace"
    noise_aware = result.noise_aware(start=0.2)
    with pytest.raises(ValueError, match="num_samples is 0"):
        noise_aware.posterior(jax.random.key(0), 0)
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(noise_aware)


def test_gradients_without_room_are_refused_before_anything_is_spent(table):
    with pytest.raises(ValueError, match="keep_gradients=True needs every iterate"):
        make(num_steps=10_000_000).run(
            dp.random.key(0), table, progress_bar=False, keep_gradients=True
        )


# --- locations ----------------------------------------------------------------------------


def mixed(x):
    scale = numpyro.sample("scale", dist.LogNormal(0, 1))
    w = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("data", x.shape[0]):
        numpyro.sample("x", dist.Normal(w.sum(), scale), obs=x)


def stretched(x):
    """No parameter is added to anything."""
    numpyro.sample(
        "m", dist.Normal(0, numpyro.param("s", 0.3, constraint=dist.constraints.positive))
    )


def probed(model, guide, table):
    dpsvi = make(model, guide)
    state = dpsvi.init(dp.random.key(0), table)
    psi = dpsvi.optim.get_params(state.optim_state)
    return locations_of(dpsvi._initialised().objective, psi)


@pytest.mark.parametrize(
    "guide",
    [
        AutoNormal(mixed, init_scale=0.2),
        pytest.param(AutoMultivariateNormal(mixed, init_scale=0.2), marks=pytest.mark.exhaustive),
    ],
    ids=["normal", "multivariate normal"],
)
def test_locations_are_found_without_their_names(guide, table):
    """The fits above do the same for one latent; here are four, one of them positive."""
    latent, spread = probed(mixed, guide, table)
    assert latent[latent >= 0].tolist() == [0, 1, 2, 3]
    # Of 256 draws: four standard errors.
    np.testing.assert_allclose(spread, 0.04, rtol=0.36)


def test_a_guide_without_locations_has_none(table, result):
    latent, _ = probed(model, stretched, table)
    assert np.all(latent == -1)
    dpsvi = make(model, stretched)
    state = dpsvi.init(dp.random.key(0), table)
    shapeless = dataclasses.replace(
        result, params=dpsvi.get_params(state), _objective=dpsvi._initialised().objective
    )
    with pytest.raises(ValueError, match="The guide has no location"):
        shapeless.noise_aware(start=0.2)
