"""d3p's helpers: shapes, kinds of values, and ADADP's state."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro.distributions import Normal

import discreet.interfaces.compat.d3p as d3p
from discreet.interfaces.compat.d3p import ADADP, util
from discreet.interfaces.compat.d3p.svi import get_observations_scale


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
    assert util.example_count(values) == 3
    assert util.example_count(7.0) == 1
    assert np.allclose(util.normalize(jnp.array([3.0, 4.0])), [0.6, 0.8])


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
    # The halves lead to -3; the error is sqrt(3) / 2, so that the factor, sqrt(5 / 0.87), is cut to
    # 1.1.
    assert np.allclose([x["w"][0], rate], [-3.0, 1.1])
    _, (x, rate, _, _) = optimizer.update({"w": jnp.full(3, 40.0)}, state)
    assert np.allclose([x["w"][0], rate], [0.0, 0.9]), (
        "an error above the tolerance takes the pair back"
    )
    assert ADADP(lambda i: 0.5).init(1.0)[1][1] == 0.5


@pytest.mark.parametrize(
    "name",
    [
        "dputil",
        "gmm",
        "minibatch",
        "modelling",
        "optimizers",
        "random",
        "random.debug",
        "svi",
        "util",
    ],
)
def test_d3ps_modules_are_imported_by_their_names(name):
    module = importlib.import_module(f"discreet.interfaces.compat.d3p.{name}")
    assert functools.reduce(getattr, name.split("."), d3p) is module
