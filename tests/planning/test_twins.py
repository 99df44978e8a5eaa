import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discreet.gradients import Channels, ReferenceEngine
from discreet.models import MixtureOfProducts
from discreet.planning import default_grid
from discreet.planning._fits import clipped_sum, is_bare
from discreet.tables import schema_from_bounds

TWIN = MixtureOfProducts(schema_from_bounds("a=x|y|z,b=no|yes,c=0:1"), components=3, slices=4)


def test_the_clipped_sum_in_closed_form_is_the_engines(quick_compilation) -> None:
    rng = np.random.default_rng(0)
    sizes = TWIN.levels.sizes
    shapes = {"component": (1, 3), "base": (1, sum(sizes)), "deviations": (1, 3, sum(sizes))}
    latent = {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    u = {"latent": latent, "param": {}}
    records = jnp.asarray(np.stack([rng.integers(size, size=50) for size in sizes], axis=1), jnp.int32)
    mask = jnp.arange(50) < 40

    def loss(u, record):
        component, base, deviations = (u["latent"][name][0] for name in ("component", "base", "deviations"))
        blocks = jnp.split(base + deviations, np.cumsum(sizes)[:-1], axis=1)
        inside = sum(jax.nn.log_softmax(block, axis=1)[:, record[i]] for i, block in enumerate(blocks))
        return -jax.nn.logsumexp(jax.nn.log_softmax(component) + inside)

    @jax.jit
    def by_reference(norm):
        return ReferenceEngine()(loss, u, records, mask, norm, Channels()).gradient

    # Of all rows, of some and of none is the gradient longer than this.
    for norm in (0.1, 2.0, 1e6):
        sums, expected = clipped_sum(sizes, u, records, mask, norm), by_reference(norm)
        for name, value in expected["latent"].items():
            np.testing.assert_allclose(sums["latent"][name], value, rtol=1e-4, atol=1e-4 * np.abs(value).max())
    twice = jax.tree.map(lambda x: 2 * x, clipped_sum(sizes, u, records, mask, 0.1))
    assert not np.allclose(twice["latent"]["base"], by_reference(0.1)["latent"]["base"], rtol=0.1)


def test_the_closed_form_is_for_the_mixture_alone() -> None:
    latent = {"component": np.zeros((1, 3)), "base": np.zeros((1, 9)), "deviations": np.zeros((1, 3, 9))}
    assert is_bare({"latent": latent, "param": {}})
    assert not is_bare({"latent": latent, "param": {"weights": np.zeros(3)}})
    assert not is_bare({"latent": {**latent, "more": np.zeros((1, 3))}, "param": {}})
    assert not is_bare({"latent": {**latent, "base": np.zeros((2, 9))}, "param": {}})


def test_the_clipping_norms_of_a_twin_are_shares_of_the_longest_gradient() -> None:
    norms = default_grid(TWIN).clipping_norms
    assert norms is not None
    assert np.array(norms) / TWIN.gradient_bound == pytest.approx([0.5, 0.25, 0.125], rel=0.05)
