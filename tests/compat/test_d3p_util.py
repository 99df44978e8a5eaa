"""d3p's helpers: shapes, kinds of values, gradients as vectors, and ADADP's state."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.distributions import Normal

import discreet.compat.d3p as d3p
from discreet.compat.d3p import ADADP, util
from discreet.compat.d3p.minibatch import poisson_sample_idxs
from discreet.compat.d3p.svi import clip_gradient, full_norm, get_observations_scale, normalize_gradient


@pytest.mark.parametrize("jit", [False, True])
def test_kinds_of_values(jit):
    one, table = jnp.ones((1, 1), int), jnp.ones((2, 3))
    facts = {
        util.has_shape: (jit, True, True),
        util.is_array: (False, True, True),
        util.is_scalar: (True, True, False),
        util.is_integer: (True, True, False),
        util.is_int_scalar: (True, True, False),
    }
    for function, expected in facts.items():
        call = jax.jit(function) if jit else function
        assert tuple(bool(call(value)) for value in (5, one, table)) == expected, function.__name__
    for function in facts:
        assert not function(None)
        assert not function((2, 3))
    assert not util.is_integer(2.0)


def test_shapes():
    values = jnp.arange(24.0).reshape(3, 2, 4)
    largest = util.map_over_secondary_dims(lambda column: column[0] + 10 * column[2])(values)
    assert np.array_equal(largest, values[0] + 10 * values[2])
    assert util.example_count(values) == 3
    assert util.example_count(7.0) == 1
    assert np.allclose(util.normalize(jnp.array([3.0, 4.0])), [0.6, 0.8])
    shapes = [f(jnp.ones(5)) for f in (util.unvectorize_shape_1d, util.unvectorize_shape_2d, util.unvectorize_shape_3d)]
    assert shapes == [(5,), (1, 5), (1, 1, 5)]
    assert util.unvectorize_shape(values, 2) == (3, 2, 4)


def test_entries_without_replacement():
    values = jnp.arange(40).reshape(2, 20)
    drawn = util.sample_from_array(d3p.random.PRNGKey(1), values, 20, 1)
    assert np.array_equal(np.sort(drawn, axis=1), values)
    assert np.array_equal(drawn[1], drawn[0] + 20), "whole columns"
    assert util.sample_from_array(d3p.random.PRNGKey(1), values, 3, 1).shape == (2, 3)
    with pytest.raises(ValueError, match="without replacement"):
        util.sample_from_array(d3p.random.PRNGKey(1), values, 3, 0)


def test_indices_of_a_poisson_batch():
    keys = d3p.random.split(d3p.random.PRNGKey(1), 200)
    chosen, counts = jax.vmap(lambda key: poisson_sample_idxs(key, 0.3, 50))(keys)
    assert np.array_equal(np.sort(chosen, axis=1), np.tile(np.arange(50), (200, 1)))
    # Five standard errors of the mean of 200 draws of Binomial(50, 0.3).
    assert abs(counts.mean() - 15) < 5 * np.sqrt(50 * 0.21 / 200)
    first = np.asarray(chosen)[np.arange(200), 0]
    assert len(set(first.tolist())) < 25, "the lowest that was selected comes first"
    short, count = poisson_sample_idxs(keys[0], 0.3, 50, cutoff_size=4)
    assert short.shape == (4,)
    assert count == counts[0]


def test_a_gradient_is_one_vector():
    parts = {"a": jnp.array([3.0]), "b": (jnp.full((2, 2), 2.0),)}
    assert full_norm(parts) == pytest.approx(5.0)
    assert full_norm(parts, ord=1) == pytest.approx(11.0)
    assert full_norm(()) == 0
    assert normalize_gradient(parts)["a"] == pytest.approx(0.6)
    assert clip_gradient(parts, 1.0)["b"][0][0, 0] == pytest.approx(0.4)
    assert clip_gradient(parts, 10.0)["a"] == 3.0
    assert clip_gradient(parts, jnp.inf)["a"] == 3.0
    assert full_norm(jax.jit(clip_gradient)(parts, 2.0)) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="above 0"):
        clip_gradient(parts, 0.0)


def test_the_scale_of_the_observations():
    def model(xs, N, twice=False):
        mu = numpyro.sample("mu", Normal(0.0, 1.0))
        with numpyro.plate("data", N, xs.shape[0]):
            numpyro.sample("xs", Normal(mu, 1.0), obs=xs)
        if twice:
            numpyro.sample("y", Normal(mu, 1.0), obs=1.0)

    assert get_observations_scale(model, (np.zeros(5),), {"N": 20}, {}) == 4.0
    with pytest.raises(ValueError, match="different factors"):
        get_observations_scale(model, (np.zeros(5),), {"N": 20, "twice": True}, {})
    assert get_observations_scale(lambda: None, (), {}, {}) == 1.0


def test_adadp_has_d3ps_state():
    """The parameters; the learning rate; the end of the whole step; the start of the pair."""
    optimizer = ADADP(1.0, tol=5.0)
    step, (x, rate, stepped, start) = optimizer.init({"w": jnp.zeros(3)})
    assert (int(step), float(rate)) == (0, 1.0)
    assert np.array_equal(x["w"], start["w"])
    gradient = {"w": jnp.full(3, 2.0)}
    state = jax.jit(optimizer.update)(gradient, (step, (x, rate, stepped, start)))
    step, (x, rate, stepped, start) = state
    assert step == 1
    assert np.allclose([x["w"][0], rate, stepped["w"][0], start["w"][0]], [-1.0, 1.0, -2.0, 0.0])
    _, (x, rate, _, _) = optimizer.update({"w": jnp.full(3, 4.0)}, state)
    # The halves lead to -3; the error is sqrt(3) / 2, so that the factor, sqrt(5 / 0.87), is cut to 1.1.
    assert np.allclose([x["w"][0], rate], [-3.0, 1.1])
    _, (x, rate, _, _) = optimizer.update({"w": jnp.full(3, 40.0)}, state)
    assert np.allclose([x["w"][0], rate], [0.0, 0.9]), "an error above the tolerance takes the pair back"
    assert ADADP(lambda i: 0.5).init(1.0)[1][1] == 0.5


@pytest.mark.parametrize(
    "name", ["dputil", "gmm", "minibatch", "modelling", "optimizers", "random", "random.debug", "svi", "util"]
)
def test_d3ps_modules_are_imported_by_their_names(name):
    module = importlib.import_module(f"discreet.compat.d3p.{name}")
    assert functools.reduce(getattr, name.split("."), d3p) is module
