"""The one place where noise is added, to sums whose L2 bound travels with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from discreet import random
from discreet.gradients import ClippedSum, check_positive, clip_records, sum_records

__all__ = [
    "Release",
    "clip_records",
    "gaussian_mechanism",
    "laplace_mechanism",
    "release",
    "sum_records",
]

_REMEDY = "Without noise nothing is private: use noise_multiplier * clipping_norm of a PrivacyPlan."


def _add(mechanism: str, tree: Any, make_noise: Callable[[int, Any], Float[Array, " dim"]]) -> Any:
    """The tree with noise added: one draw for all coordinates, in the order of the leaves.

    Each leaf is added to its own part of the draw; the tree is never copied into one vector.
    """
    leaves, structure = jax.tree.flatten(tree)
    if not leaves:
        raise ValueError(f"{mechanism}: the tree holds no array, so there is nothing to release.")
    for leaf in leaves:
        dtype = jnp.asarray(leaf).dtype
        if dtype not in (jnp.float32, jnp.float64):
            raise TypeError(
                f"{mechanism}: a leaf has dtype {dtype}. Noise is added in float32 or float64, since "
                "coarser numbers would round it away; convert the leaf with .astype(jnp.float32)."
            )
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    noise = make_noise(sum(leaf.size for leaf in leaves), jnp.result_type(*leaves))
    noised, start = [], 0
    for leaf in leaves:
        own = noise[start : start + leaf.size].reshape(leaf.shape)
        noised.append((leaf + own).astype(leaf.dtype))
        start += leaf.size
    return jax.tree.unflatten(structure, noised)


def gaussian_mechanism(key: PRNGKeyArray, tree: Any, stddev: float | Float[Array, ""]) -> Any:
    """Add independent Gaussian noise to every coordinate of a tree of arrays.

    Guarantee: if one record changes the tree by at most C in joint L2 norm and
    stddev = noise_multiplier * C, the release is a `GaussianDpEvent(noise_multiplier)`, up
    to floating-point rounding of the sum. The noise has no cut tail (`discreet.random.normal`).

    Args:
        key: a scalar key, for this call alone. Keys of `discreet.random.key` are secure.
        tree: float32 or float64 arrays; the value to release.
        stddev: standard deviation of the noise, in the units of `tree`; positive and finite.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        ValueError: `stddev`, where known while tracing, is not positive and finite.
        TypeError: a leaf is not float32 or float64.

    Reference:
        Dwork and Roth, The algorithmic foundations of differential privacy, 2014, A.1.

    >>> import jax.numpy as jnp, discreet as dp
    >>> dp.gaussian_mechanism(dp.random.key(), {"sum": jnp.zeros(3)}, 2.0)["sum"].shape
    (3,)
    """
    check_positive("gaussian_mechanism: stddev", stddev, _REMEDY)
    key = random.check_key(key)
    return _add("gaussian_mechanism", tree, lambda dim, dtype: stddev * random.normal(key, (dim,), dtype))


def laplace_mechanism(key: PRNGKeyArray, tree: Any, scale: float | Float[Array, ""]) -> Any:
    """Add independent Laplace noise to every coordinate of a tree of arrays.

    Guarantee: if one record changes the tree by at most D in joint **L1** norm and
    scale = noise_multiplier * D, the release is a `LaplaceDpEvent(noise_multiplier)`. A bound
    in L2 does not do: for d coordinates it understates epsilon by up to sqrt(d).

    A Laplace variable is drawn as the difference of two exponential ones, each half the sum
    of two squared Gaussians, so that its tails are as long as theirs: beyond 40 scales.

    Args:
        key: a scalar key, for this call alone.
        tree: float32 or float64 arrays; the value to release.
        scale: scale b of the density exp(-|x| / b) / 2b, in the units of `tree`.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        ValueError: `scale`, where known while tracing, is not positive and finite.
        TypeError: a leaf is not float32 or float64.

    Reference:
        Dwork et al., Calibrating noise to sensitivity, TCC 2006.
    """
    check_positive("laplace_mechanism: scale", scale, _REMEDY)
    key = random.check_key(key)

    def noise(dim, dtype):
        squares = jnp.square(random.normal(key, (4, dim), dtype))
        return scale * 0.5 * (squares[0] + squares[1] - squares[2] - squares[3])

    return _add("laplace_mechanism", tree, noise)


class Release(NamedTuple):
    """A clipped sum after the Gaussian mechanism: it may leave the data.

    Attributes:
        gradient: tree like the parameters: the noised sum of the clipped gradients.
        loss: scalar: the noised sum of the weighted, clipped losses.
        count: scalar: the noised, weighted count of gradients within C, less half of all.
    """

    gradient: Any
    loss: Float[Array, ""]
    count: Float[Array, ""]


def release(key: PRNGKeyArray, total: ClippedSum, noise_multiplier: float) -> Release:
    """Release a clipped sum, gradient, loss and count together, as one Gaussian mechanism.

    Guarantee: one `GaussianDpEvent(noise_multiplier)`: the noise is scaled to the joint L2
    bound that `total` carries.

    Args:
        key: a scalar key, for this release alone.
        total: what a gradient engine returned.
        noise_multiplier: noise standard deviation divided by the joint bound.
    """
    stddev = noise_multiplier * total.l2_bound
    return Release(*gaussian_mechanism(key, (total.gradient, total.loss, total.count), stddev))
