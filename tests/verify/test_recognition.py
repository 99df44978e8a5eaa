"""Handwritten clipping: the spellings that are recognised, and those next to them that must not be."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import GaussianDpEvent

import discreet as dp

from .programs import C, M, certify, gradients, loss, noisy

Z = 1.5


def finite(g):
    """Each record whose gradient is not finite becomes zero: without this, NaN would come through the norm."""
    return jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, 0.0), g)


def norm_of(g):
    return jnp.sqrt(
        sum(jnp.sum(jnp.square(x), axis=tuple(range(1, x.ndim))) for x in jax.tree.leaves(g))
    )


def scale(g, factor):
    return jax.tree.map(lambda x: x * factor.reshape(-1, *[1] * (x.ndim - 1)), g)


def shorten(g, divisor):
    return jax.tree.map(lambda x: x / divisor.reshape(-1, *[1] * (x.ndim - 1)), g)


def one_by_one(clip):
    """For functions of one record's gradients."""
    return lambda g: jax.vmap(clip)(g)


def optax_clip(g):
    transform = optax.clip_by_global_norm(C)
    return transform.update(g, transform.init(g))[0]


def linalg(g):
    flat = jnp.concatenate([x.reshape(x.shape[0], -1) for x in jax.tree.leaves(g)], 1)
    return {"all": flat * jnp.minimum(1.0, C / jnp.linalg.norm(flat, axis=1, keepdims=True))}


CLIPPED = {
    "min of quotient": lambda g: scale(g, jnp.minimum(1.0, C / norm_of(g))),
    "quotient of max": lambda g: shorten(g, jnp.maximum(1.0, norm_of(g) / C)),
    "max of both": lambda g: scale(g, C / jnp.maximum(C, norm_of(g))),
    "where above": lambda g: scale(g, jnp.where(norm_of(g) > C, C / norm_of(g), 1.0)),
    "where below": lambda g: scale(g, jnp.where(norm_of(g) <= C, 1.0, C / norm_of(g))),
    "with an epsilon": lambda g: scale(g, jnp.minimum(1.0, C / (norm_of(g) + 1e-6))),
    "by rsqrt": lambda g: scale(g, jnp.minimum(1.0, C * jax.lax.rsqrt(_squares(g)))),
    "normalised": lambda g: scale(g, C / (norm_of(g) + 0.01)),
    "by nan_to_num": lambda g: scale(g, jnp.nan_to_num(jnp.minimum(1.0, C / norm_of(g)), nan=0.0)),
    "optax.projections.projection_l2_ball": one_by_one(
        lambda g: optax.projections.projection_l2_ball(g, C)
    ),
    "one by one": one_by_one(
        lambda g: jax.tree.map(lambda x: x * jnp.minimum(1.0, C / optax.tree.norm(g)), g)
    ),
    "one by one, ravelled": one_by_one(lambda g: _ravelled(g)),
    "jnp.linalg.norm": linalg,
    "optax.clip_by_global_norm": one_by_one(optax_clip),
}


def _half(g):
    return {"a": finite(g)["a"], "b": g["b"]}


def _squares(g):
    return sum(jnp.sum(x * x, axis=tuple(range(1, x.ndim))) for x in jax.tree.leaves(g))


def _ravelled(g):
    flat, back = jax.flatten_util.ravel_pytree(g)
    return back(flat / jnp.maximum(1.0, jnp.linalg.norm(flat) / C))


def masked(g, mask):
    return jax.tree.map(lambda x: jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)), x, 0).sum(0), g)


@pytest.mark.parametrize("name", CLIPPED)
def test_recognised(name):
    clip = CLIPPED[name]

    def step(w, xs, ys, mask, key):
        return noisy(key, masked(clip(finite(gradients(w, xs, ys))), mask), Z * C)

    event = certify(step, expect=GaussianDpEvent(Z)).event
    # The charge for rounding of the norm in float32.
    assert Z * (1 - 1e-5) <= event.noise_multiplier <= Z


def optax_sum(clip):
    def step(w, xs, ys, mask, key):
        leaves, tree = jax.tree.flatten(finite(gradients(w, xs, ys)))
        return noisy(key, tree.unflatten(clip(leaves)[0]), Z * C)

    return step


@pytest.mark.parametrize("spelling", ["global", "by layer"])
def test_sums_of_optax(spelling):
    """They take no mask, so that 2C leaves or comes where a record does."""
    clip = {
        "global": lambda leaves: optax.per_example_global_norm_clip(leaves, C),
        "by layer": lambda leaves: optax.per_example_layer_norm_clip(leaves, C, uniform=True),
    }[spelling]
    certify(optax_sum(clip), expect=GaussianDpEvent(Z / 2 * (1 - 1e-5)))
    certify(
        optax_sum(clip), expect=GaussianDpEvent(Z * (1 - 1e-5)), relation=dp.Relation.REPLACE_ONE
    )


def test_the_aggregate_of_optax_is_told_what_its_noise_lacks():
    def step(w, xs, ys, mask, key):
        aggregate = optax.contrib.differentially_private_aggregate(C, Z, key=jax.random.key(0))
        return aggregate.update(finite(gradients(w, xs, ys)), aggregate.init(w))[0]

    with pytest.raises(dp.PrivacyError, match=r"differentially_private_aggregate, end at 5\.4"):
        certify(step)


# jax_privacy calls it
@pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated:DeprecationWarning")
def test_clipped_grad_of_jax_privacy():
    jax_privacy = pytest.importorskip(
        "jax_privacy", reason="one of the peers, which are not always installed"
    )

    def step(w, xs, ys, mask, key):
        clipped = jax_privacy.clipped_grad(
            lambda w, row: loss(w, *row), l2_clip_norm=C, batch_argnums=1, keep_batch_dim=False
        )
        return noisy(key, clipped(w, (xs, ys), is_padding_example=~mask), Z * C)

    certify(step, expect=GaussianDpEvent(Z * (1 - 1e-5)))


def test_a_sum_weighted_by_factors():
    def step(w, xs, ys, mask, key):
        g = finite(gradients(w, xs, ys))
        factor = jnp.where(mask, jnp.minimum(1.0, C / norm_of(g)), 0.0)
        return noisy(key, jax.tree.map(lambda x: jnp.einsum("r,r...->...", factor, x), g), Z * C)

    certify(step, expect=GaussianDpEvent(Z))


NOT_CLIPPED = {
    "without a guard against NaN": lambda g: scale(g, jnp.minimum(1.0, C / norm_of(g))),
    "the norm of one leaf": lambda g: scale(
        finite(g), jnp.minimum(1.0, C / norm_of({"b": finite(g)["b"]}))
    ),
    "at least instead of at most": lambda g: scale(
        finite(g), jnp.maximum(1.0, C / norm_of(finite(g)))
    ),
    "a square for a norm": lambda g: scale(finite(g), jnp.minimum(1.0, C / _squares(finite(g)))),
    "a norm over the records": lambda g: shorten(
        finite(g), jnp.maximum(1.0, jnp.sqrt(_squares(finite(g)).sum()) / C) * jnp.ones(M.shape[0])
    ),
    "a minimum with infinity": lambda g: scale(
        finite(g), jnp.minimum(jnp.inf, jnp.abs(norm_of(finite(g))) / C)
    ),
    "where the other way round": lambda g: scale(
        finite(g), jnp.where(norm_of(finite(g)) < C, C / norm_of(finite(g)), 1.0)
    ),
    "a norm less something": lambda g: scale(
        finite(g), jnp.minimum(1.0, C / (norm_of(finite(g)) - 1.0))
    ),
    "NaN in another leaf": lambda g: scale(
        {"a": finite(g)["a"], "b": g["b"]},
        jnp.where(norm_of({**finite(g), "b": g["b"]}) > C, 0.0, 1.0),
    )["a"],
    "NaN in another leaf, clipped": lambda g: scale(
        {"a": finite(g)["a"]}, jnp.where(norm_of(_half(g)) > C, C / norm_of(_half(g)), 1.0)
    ),
    "a guard behind the factor": lambda g: finite(
        scale(g, jnp.where(norm_of(g) > C, C / norm_of(g), 1.0))
    ),
    "a least factor that is infinite": lambda g: scale(
        finite(g), jnp.minimum(np.where(np.arange(len(M)) > 0, np.inf, 1.0), C / norm_of(finite(g)))
    ),
    "NaN taken for one": lambda g: scale(
        g, jnp.nan_to_num(jnp.minimum(1.0, C / norm_of(g)), nan=1.0)
    ),
    "infinities left in": lambda g: scale(
        jax.tree.map(lambda x: jnp.where(x != x, 0.0, x), g),
        jnp.minimum(1.0, C / norm_of(finite(g))),
    ),
    "a mean of squares": lambda g: scale(
        finite(g), jnp.minimum(1.0, C / jnp.sqrt(_squares(finite(g)) / 4))
    ),
}


@pytest.mark.parametrize("name", NOT_CLIPPED)
def test_not_recognised(name):
    def step(w, xs, ys, mask, key):
        return noisy(key, masked(NOT_CLIPPED[name](gradients(w, xs, ys)), mask), Z * C)

    with pytest.raises(dp.PrivacyError):
        certify(step, expect=GaussianDpEvent(Z))
