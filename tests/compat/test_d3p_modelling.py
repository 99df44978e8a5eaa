"""Predictive samples."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import param, sample
from numpyro.distributions import Normal, Poisson

import discreet.interfaces.compat.d3p as d3p
from discreet.interfaces.compat.d3p.modelling import map_args_obs_to_shape

KEY = d3p.random.PRNGKey(4)


def model(n, scale=1.0):
    mu = sample("mu", Normal(0.0, 10.0))
    with numpyro.plate("data", n):
        sample("x", Normal(mu, scale))


def guide(n, scale=1.0):
    del n, scale
    sample("mu", Normal(param("loc", 0.0), 0.1))


def test_prior_predictive():
    once = d3p.sample_prior_predictive(KEY, model, (3,), scale=0.01)
    assert once["x"].shape == (3,)
    assert abs(once["x"][0] - once["mu"]) < 0.1
    fixed = d3p.sample_prior_predictive(KEY, model, (3,), {"mu": 5.0}, scale=0.01)
    assert np.allclose(fixed["x"], 5, atol=0.1)
    many = d3p.sample_multi_prior_predictive(KEY, 500, model, (3,))
    assert many["x"].shape == (500, 3)
    assert np.std(many["mu"]) == pytest.approx(10, rel=0.2)
    assert not np.array_equal(many["x"][0], many["x"][1])


def test_posterior_predictive():
    params = {"loc": jnp.array(2.0)}
    once = d3p.sample_posterior_predictive(KEY, model, (3,), guide, (3,), params)
    assert set(once) == {"mu", "x"}
    many = d3p.sample_multi_posterior_predictive(
        KEY, 500, model, (3,), guide, (3,), params, scale=0.1
    )
    assert np.mean(many["mu"]) == pytest.approx(2.0, abs=0.05)
    assert np.std(many["mu"]) == pytest.approx(0.1, rel=0.2)
    # Each draw of x belongs to its draw of mu.
    assert np.std(many["x"].mean(1) - many["mu"]) == pytest.approx(0.1 / np.sqrt(3), rel=0.2)
    pairs = d3p.sample_posterior_predictive(
        KEY, model, (3,), guide, (3,), params, with_intermediates=True
    )
    assert pairs["mu"][1] == []
    with pytest.raises(ValueError, match="n is 0"):
        d3p.sample_multi_posterior_predictive(KEY, 0, model, (3,), guide, (3,), params)


def test_keys_of_any_kind_reach_samplers_that_want_threefry():
    def counts():
        sample("k", Poisson(3.0))

    for key in (KEY, jax.random.PRNGKey(0), jax.random.key(0), d3p.random.PRNGKey()):
        assert d3p.sample_multi_prior_predictive(key, 4, counts, ())["k"].shape == (4,)


def test_a_generative_model_with_observations():
    observed = d3p.make_observed_model(
        lambda n, d: sample("obs", Normal(jnp.zeros((n, d)), 1.0)), map_args_obs_to_shape
    )
    with numpyro.handlers.seed(rng_seed=0):
        trace = numpyro.handlers.trace(observed).get_trace(jnp.array([1.0, 2.0]))
    assert trace["obs"]["is_observed"]
    assert np.array_equal(trace["obs"]["value"], [1.0, 2.0])
    assert trace["obs"]["fn"].batch_shape == (1, 2)
