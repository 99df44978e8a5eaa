"""ADADP against its own definition in NumPy, and in a private fit."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDelta

import discreet as dp
from discreet.interfaces.compat.d3p import ADADP


def by_definition(
    x, gradients, rate, *, tolerance=1.0, low=0.9, high=1.1, check=True, scale=np.abs
):
    """Positions and learning rates after each gradient; `scale` as in max(1, scale(y))."""
    positions, rates = [], []
    for first, second in zip(gradients[::2], gradients[1::2], strict=True):
        whole = x - rate * first
        middle = x - rate / 2 * first
        end = middle - rate / 2 * second
        error = math.sqrt(np.sum(((whole - end) / np.maximum(1, scale(whole))) ** 2))
        rates += [rate]
        rate *= min(max(math.sqrt(tolerance / error) if error else math.inf, low), high)
        x = x if check and error > tolerance else end
        positions += [middle, x]
        rates += [rate]
    return np.array(positions), np.array(rates)


def run(optimizer, x, gradients):
    """The same of the real one, over a tree of two arrays."""
    tree = {"a": jnp.asarray(x[:2], jnp.float32), "b": jnp.asarray(x[2:], jnp.float32)}
    state, update = optimizer.init(tree), jax.jit(optimizer.update)
    positions, rates = [], []
    for gradient in gradients:
        part = {
            "a": jnp.asarray(gradient[:2], jnp.float32),
            "b": jnp.asarray(gradient[2:], jnp.float32),
        }
        updates, state = update(part, state, tree)
        tree = optax.apply_updates(tree, updates)
        positions.append(np.concatenate([tree["a"], tree["b"]]))
        rates.append(float(state.learning_rate))
    return np.array(positions), np.array(rates)


START = np.array([-3.0, 0.5, -40.0, 7.0, 0.0])
GRADIENTS = np.random.default_rng(5).normal(size=(20, 5)) * np.array([3, 1, 20, 4, 2])
SETTINGS = {
    "the paper's": {},
    "one tolerance among the errors": {"tolerance": 0.2},
    "pairs taken back": {"tolerance": 0.02},
    "no pair taken back": {"tolerance": 0.02, "check": False},
    "wide factors": {"tolerance": 0.1, "low": 0.3, "high": 3.0},
    "factors that hold the rate": {"low": 1.0, "high": 1.0},
}


def named(settings):
    names = {
        "low": "min_factor",
        "high": "max_factor",
        "check": "stability_check",
        "tolerance": "tolerance",
    }
    return {names[name]: value for name, value in settings.items()}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_it_is_its_definition(settings):
    positions, rates = run(dp.optimizers.adadp(0.1, **named(settings)), START, GRADIENTS)
    expected, expected_rates = by_definition(START, GRADIENTS, 0.1, **settings)
    np.testing.assert_allclose(rates, expected_rates, rtol=1e-5)
    np.testing.assert_allclose(positions, expected, rtol=1e-4, atol=1e-4)


def test_both_bounds_are_reached_and_kept():
    factors = []
    for settings in (
        SETTINGS["the paper's"],
        SETTINGS["one tolerance among the errors"],
        SETTINGS["wide factors"],
    ):
        _, rates = run(dp.optimizers.adadp(0.1, **named(settings)), START, GRADIENTS)
        factors.append(rates[1::2] / np.concatenate([[0.1], rates[1:-1:2]]))
    paper, close, wide = factors
    assert paper.max() == pytest.approx(1.1)
    assert close.min() == pytest.approx(0.9)
    # d3p's own would keep to 0.9 and 1.1 here.
    assert wide.min() < 0.85
    assert wide.max() > 1.2


def test_negative_parameters_are_scaled_by_their_size():
    """d3p's own takes max(1, x): an error at x = -40 then counts forty times."""
    _, rates = run(dp.optimizers.adadp(0.1, tolerance=0.2), START, GRADIENTS)
    _, signed = by_definition(START, GRADIENTS, 0.1, tolerance=0.2, scale=lambda x: x)
    assert abs(rates[-1] / signed[-1] - 1) > 0.1
    mirrored, mirrored_rates = run(dp.optimizers.adadp(0.1, tolerance=0.2), -START, -GRADIENTS)
    positions, rates = run(dp.optimizers.adadp(0.1, tolerance=0.2), START, GRADIENTS)
    np.testing.assert_array_equal(mirrored, -positions)
    np.testing.assert_array_equal(mirrored_rates, rates)


def test_no_error_raises_the_rate_by_the_largest_factor():
    positions, rates = run(dp.optimizers.adadp(0.5, max_factor=1.25), START, np.zeros((4, 5)))
    np.testing.assert_array_equal(positions, np.tile(START, (4, 1)))
    np.testing.assert_allclose(rates, [0.5, 0.625, 0.625, 0.78125])


def test_what_is_no_number_stays_none():
    for number in (0, 1):
        gradients = np.ones((4, 5))
        gradients[number, 0] = math.nan
        positions, _ = run(dp.optimizers.adadp(0.1), START, gradients)
        assert np.isnan(positions[-1][0])


@pytest.mark.parametrize("bad", [math.inf, 3e38])
def test_an_error_without_a_size_lowers_the_rate(bad):
    gradients = np.ones((2, 5))
    gradients[1, 0] = bad
    _, rates = run(dp.optimizers.adadp(3.0, stability_check=False), START, gradients)
    assert rates[-1] == pytest.approx(2.7)
    positions, _ = run(
        dp.optimizers.adadp(3.0), START, [np.ones(5), np.where(np.arange(5) == 0, bad, 1.0)]
    )
    np.testing.assert_allclose(positions[-1], START, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"learning_rate": math.nan}, "learning_rate is nan"),
        ({"learning_rate": lambda step: 0.1}, "finite number above 0"),
        ({"learning_rate": 0.1, "tolerance": -1.0}, "tolerance is -1.0"),
        ({"learning_rate": 0.1, "min_factor": 0.0}, "min_factor is 0.0"),
        ({"learning_rate": 0.1, "max_factor": math.inf}, "max_factor is inf"),
        ({"learning_rate": 0.1, "min_factor": 1.05}, "1 lies between"),
        ({"learning_rate": 0.1, "max_factor": 0.95}, "1 lies between"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        dp.optimizers.adadp(**arguments)


def test_it_asks_for_the_parameters():
    optimizer = dp.optimizers.adadp(0.1)
    with pytest.raises(ValueError, match="needs the parameters"):
        optimizer.update(jnp.ones(2), optimizer.init(jnp.ones(2)))


def mean_model(x):
    m = numpyro.sample("m", dist.Normal(0, 10))
    with numpyro.plate("d", len(x)):
        numpyro.sample("x", dist.Normal(m, 1), obs=x)


N, STEPS = 200, 100
X = np.random.default_rng(3).normal(4.0, 1.0, N).astype(np.float32)


def fit(optimizer, *, proved, num_steps=STEPS):
    plan = dp.PrivacyPlan(
        sampling=dp.PoissonSampling(0.5),
        clipping_norm=4.0,
        noise_multiplier=1.0,
        num_steps=num_steps,
        num_records=N,
    )
    dpsvi = dp.DPSVI(mean_model, AutoDelta(mean_model), optimizer, plan=plan)
    return dpsvi.run(dp.random.key(11), X, progress_bar=False, require_proof=proved)


def was_proved(result):
    return any(note.startswith("Proved before it ran") for note in result.statement.notes)


def test_a_private_fit_finds_its_rate_and_is_proved():
    """From a learning rate a hundredth of what this posterior needs (1 / N)."""
    small = 5e-5
    found = fit(dp.optimizers.adadp(small), proved=True)
    assert was_proved(found)
    away = {
        name: abs(float(result.params["m_auto_loc"]) - X.mean())
        for name, result in {
            "adadp": found,
            "sgd": fit(optax.sgd(small), proved=False),
            "adam": fit(optax.adam(small), proved=False),
        }.items()
    }
    assert away["adadp"] < 0.5
    assert away["sgd"] > 1.0
    assert away["adam"] > 3.0


def test_adagrad_of_optax_is_proved():
    assert was_proved(fit(optax.adagrad(0.1), proved=True, num_steps=5))


def test_under_d3ps_name_it_is_the_same_optimizer():
    ours, theirs = (
        dp.optimizers.adadp(0.01, tolerance=0.1, max_factor=1.5),
        ADADP(0.01, tol=0.1, alpha_max=1.5),
    )
    svi = SVI(mean_model, AutoDelta(mean_model), theirs, Trace_ELBO())
    result = svi.run(jax.random.key(0), 200, X, progress_bar=False)
    assert abs(float(result.params["m_auto_loc"]) - X.mean()) < 0.3
    x, state, their_state = (
        jnp.array([3.0, -2.0]),
        ours.init(jnp.array([3.0, -2.0])),
        theirs.init(jnp.array([3.0, -2.0])),
    )
    for _ in range(6):
        updates, state = ours.update(2 * x, state, x)
        x = optax.apply_updates(x, updates)
        their_state = theirs.update(2 * theirs.get_params(their_state), their_state)
    np.testing.assert_array_equal(theirs.get_params(their_state), x)
