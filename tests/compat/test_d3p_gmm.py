"""The Gaussian mixture against NumPyro's own."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats

from discreet.interfaces.compat.d3p import GaussianMixture

LOCS = jnp.array([[-2.0, 0.0], [1.0, 3.0], [0.0, -1.0]])
SCALES = jnp.array([[0.5, 1.0], [1.5, 0.3], [1.0, 2.0]])
WEIGHTS = jnp.array([0.2, 0.5, 0.3])


def reference(scales=SCALES):
    return dist.MixtureSameFamily(
        dist.CategoricalProbs(WEIGHTS), dist.Normal(LOCS, scales).to_event(1)
    )


def test_density_is_numpyros():
    values = jax.random.normal(jax.random.key(0), (4, 7, 2)) * 3
    ours = GaussianMixture(LOCS, SCALES, WEIGHTS)
    assert ours.event_shape == (2,)
    assert ours.num_components == 3
    assert np.allclose(ours.log_prob(values), reference().log_prob(values), atol=1e-5)
    spherical = GaussianMixture(LOCS, jnp.array([0.5, 1.0, 2.0]), WEIGHTS)
    same = reference(jnp.array([0.5, 1.0, 2.0])[:, None] * jnp.ones((3, 2)))
    assert np.allclose(spherical.log_prob(values), same.log_prob(values), atol=1e-5)


def test_moments_and_draws_are_numpyros():
    ours = GaussianMixture(LOCS, SCALES, WEIGHTS)
    assert np.allclose(ours.mean, reference().mean, atol=1e-5)
    assert np.allclose(ours.variance, reference().variance, atol=1e-4)
    draws, (components,) = ours.sample_with_intermediates(jax.random.key(1), (20_000,))
    # Five standard errors; false alarm below 1e-5.
    assert np.all(np.abs(draws.mean(0) - ours.mean) < 5 * jnp.sqrt(ours.variance / 20_000))
    assert np.allclose(np.bincount(components, minlength=3) / 20_000, WEIGHTS, atol=0.02)
    assert np.allclose(draws[components == 1].mean(0), LOCS[1], atol=0.1)


def test_scalars_and_matrices_are_events_too():
    scalar = GaussianMixture(jnp.array([-1.0, 1.0]), jnp.array([1.0, 2.0]), jnp.array([0.5, 0.5]))
    values = np.linspace(-3, 3, 5)
    expected = np.log(
        0.5 * scipy.stats.norm(-1, 1).pdf(values) + 0.5 * scipy.stats.norm(1, 2).pdf(values)
    )
    assert np.allclose(scalar.log_prob(values), expected, atol=1e-6)
    assert scalar.sample(jax.random.key(0), (3,)).shape == (3,)
    matrix = GaussianMixture(jnp.zeros((2, 3, 4)), jnp.ones(2), jnp.array([0.5, 0.5]))
    assert matrix.log_prob(jnp.zeros((5, 3, 4))).shape == (5,)
    assert matrix.log_prob(jnp.zeros((3, 4))) == pytest.approx(
        12 * scipy.stats.norm.logpdf(0.0), rel=1e-5
    )


def test_it_passes_through_jax():
    density = jax.jit(lambda mixture, x: mixture.log_prob(x))
    assert np.isfinite(density(GaussianMixture(LOCS, SCALES, WEIGHTS), jnp.zeros(2)))
    gradient = jax.grad(
        lambda locs: GaussianMixture(locs, SCALES, WEIGHTS).log_prob(jnp.full(2, 40.0))
    )(LOCS)
    assert np.all(np.isfinite(gradient)), "far from all components"
    assert not GaussianMixture(LOCS, SCALES, WEIGHTS).has_rsample, "the component has no gradient"


def test_bad_shapes():
    with pytest.raises(ValueError, match="mixture_probabilities"):
        GaussianMixture(LOCS, SCALES, jnp.array([0.5, 0.5]))
    with pytest.raises(ValueError, match="scales"):
        GaussianMixture(LOCS, jnp.ones((2, 2)), WEIGHTS)
    with pytest.raises(ValueError, match="invalid"):
        GaussianMixture(LOCS, -SCALES, WEIGHTS, validate_args=True)
