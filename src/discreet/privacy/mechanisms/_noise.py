"""Noise on a tree of arrays and a choice by the exponential mechanism, each a primitive.

`dp.gaussian_mechanism` and the step of `DPSVI` bind the same `NOISE`, whose parameter is the
mechanism. All code that adds noise comes through `add_noise`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PRNGKeyArray

from discreet._jax import (
    known_number,
    marker,
    one_process,
)
from discreet._validate import RefusedError
from discreet.privacy import random
from discreet.privacy.gradients import (
    check_positive,
)
from discreet.privacy.mechanisms._integers import (
    LEAST_STDDEV,
    MOST_CHOICES,
    MOST_STDDEV,
    choose_on_grid,
)
from discreet.privacy.mechanisms._kinds import (
    CHOICE,
    FOR_SUMS,
    GAUSSIAN,
    LAPLACE,
    Mechanism,
)

REMEDY = "Without noise nothing is private: use noise_multiplier * clipping_norm of a PrivacyPlan."


class NoNoiseError(RefusedError):
    """The noise of a mechanism is zero at trace time, so its release would not be private."""


def check_leaves(mechanism: str, leaves: list[Any]) -> list[Array]:
    if not leaves:
        raise ValueError(f"{mechanism}: the tree contains no array. Pass at least one.")
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    for array in arrays:
        if array.dtype not in (jnp.float32, jnp.float64):
            raise TypeError(
                f"{mechanism}: a leaf has dtype {array.dtype}. Noise is added in float32 or float64, since "
                "coarser numbers would round it away; convert the leaf with .astype(jnp.float32)."
            )
    return arrays


def _noised(
    key: PRNGKeyArray,
    *operands: Array,
    mechanism: Mechanism,
    size: float | None,
    multiplier: float | None,
    levels: int,
    name: str,
    mapped: bool,
) -> list[Array]:
    """The leaves with noise added. A traced size, and then a traced multiplier, come last."""
    del name
    # Noise is computed here, also under certify's traces and a caller's jit: refuse releases from
    # several processes.
    one_process("The noise of a mechanism")
    leaves = list(operands)
    scale = size
    own = multiplier
    if own is None:
        own = leaves.pop()
    if scale is None:
        # A traced size that is too small or too large makes the release NaN.
        traced = leaves.pop()
        magnitude = jnp.abs(traced)
        scale = jnp.where((magnitude >= 1e-20) & (magnitude <= 1e20), traced, jnp.nan)
    key = random.check_key(key)
    if not mapped:
        # A fit claims its key. Of the public functions nobody knows whether a key serves twice, in
        # a loop for instance.
        key = random.key_for(key, [*leaves, scale, own])
        scale = scale * (1 + FOR_SUMS * mechanism.on_grid)
    return mechanism.add(key, leaves, scale, own, levels)


def _chosen(key: PRNGKeyArray, scores: Array, *, epsilon: float, name: str) -> list[Array]:
    del name
    one_process("A choice")
    key = random.key_for(random.check_key(key), [scores])
    return [choose_on_grid(key, scores, epsilon / (1 + FOR_SUMS))]


NOISE = marker(
    "noise",
    _noised,
    refuse="one event covers one draw of noise, so a mechanism cannot be mapped or differentiated. Map or differentiate the "
    "computation of the sum, and call the mechanism once, on the result.",
    keyed=True,
)
CHOOSE = marker(
    "choose",
    _chosen,
    refuse="one event covers one selection. Map the computation of the scores, and call the mechanism once, on the result.",
)


def add_noise(
    mechanism: Mechanism,
    key: PRNGKeyArray,
    tree: Any,
    size: Any,
    name: str = "",
    *,
    multiplier: Any = None,
    levels: int = 3,
) -> Any:
    """Release a tree with a mechanism's noise; the implementation of its public function.

    Args:
        mechanism: The mechanism.
        key: A key for this release alone.
        tree: As in `gaussian_mechanism`, with the same errors.
        size: Size of the noise.
        name: Name of the caller if it is part of a step, which may be mapped.
        multiplier: The largest supported ratio of `size` to the bound on one record; None: the
            mechanism's own.
        levels: Levels of integer noise: `levels_for` of that multiplier.
    """
    who = name or mechanism.name
    what = f"{who}: {mechanism.size}"
    if jnp.ndim(size) == 0 and not isinstance(size, Tracer) and float(size) == 0:
        raise NoNoiseError(f"{what} is 0. {REMEDY}")
    check_positive(what, size, REMEDY)
    if not isinstance(size, Tracer) and not LEAST_STDDEV <= float(size) <= MOST_STDDEV:
        raise ValueError(
            f"{what} is {float(size):g}; 32-bit arithmetic supports noise from {LEAST_STDDEV:g} to {MOST_STDDEV:g}. Release the "
            "sum in other units."
        )
    jax.eval_shape(random.check_key, key)
    leaves, structure = jax.tree.flatten(tree)
    one_process(who, leaves)
    leaves = check_leaves(who, leaves)
    known, operands = known_number(size)
    if multiplier is None:
        multiplier = mechanism.most_multiplier(max(1, sum(x.size for x in leaves)))
    ratio, more = known_number(multiplier)
    noised = NOISE.bind(
        key,
        *leaves,
        *operands,
        *more,
        mechanism=mechanism,
        size=known,
        multiplier=ratio,
        levels=levels,
        name=who,
        mapped=bool(name),
    )
    return jax.tree.unflatten(structure, noised)


def gaussian_mechanism(key: PRNGKeyArray, tree: Any, stddev: float | Float[Array, ""]) -> Any:
    """Add independent Gaussian noise to every coordinate of a tree of arrays.

    Guarantee: if one record changes the tree, as computed, by at most C in joint L2 norm, and
    stddev = noise_multiplier * C, the release is a `GaussianDpEvent(noise_multiplier)` within total
    variation 2**-136, rounding and last bits included. The tree is rounded to a grid, and the noise
    is a discrete Gaussian there: docs/arithmetic.md has the proof. It holds for noise multipliers
    up to 2**17 / sqrt(d) for d coordinates (above that, for this one), and fewer than 2**31
    coordinates.

    Args:
        key: A scalar key, for this call alone. Keys of `discreet.random.key` are secure.
        tree: float32 or float64 arrays; the value to release. Values beyond 2**48 stddev are
            released as that.
        stddev: Standard deviation of the noise, in the units of `tree`, from 1e-28 to 1e30; it gets
            up to 0.4 % more. Where it is known only when the program runs, and then below 1e-20 or
            above 1e20, the release is NaN.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        ValueError: `stddev`, where known while tracing, is not positive and finite, or out of that
            range.
        TypeError: A leaf is not float32 or float64.

    Reference:
        Dwork and Roth, The algorithmic foundations of differential privacy, 2014, A.1.

    >>> import jax.numpy as jnp, discreet as dp
    >>> dp.gaussian_mechanism(dp.random.key(), {"sum": jnp.zeros(3)}, 2.0)["sum"].shape
    (3,)
    """
    return add_noise(GAUSSIAN, key, tree, stddev)


def planned_gaussian(
    key: PRNGKeyArray, tree: Any, stddev: float, noise_multiplier: float, room: int = 0
) -> Any:
    """Add Gaussian noise as `gaussian_mechanism` does, also where the noise multiplier exceeds that function's limit.

    Args:
        key: As there, as are the next two.
        tree: The value to release.
        stddev: Standard deviation of the noise.
        noise_multiplier: The plan's ratio of `stddev` to the bound on one record.
        room: As in `GaussianMechanism.most_planned`: where the number of coordinates is secret.

    Raises:
        ValueError: The grid of the noise cannot hold this multiplier; and as there.
    """
    dim = max(1, sum(x.size for x in jax.tree.leaves(tree)))
    return add_noise(
        GAUSSIAN, key, tree, stddev, multiplier=GAUSSIAN.most_planned(noise_multiplier, dim, room)
    )


def laplace_mechanism(key: PRNGKeyArray, tree: Any, scale: float | Float[Array, ""]) -> Any:
    """Add independent Laplace noise to every coordinate of a tree of arrays.

    Guarantee: if one record changes the tree, as computed, by at most D in joint **L1** norm, and
    scale = noise_multiplier * D, the release is a `LaplaceDpEvent(noise_multiplier)`, rounding and
    last bits included: 1 / noise_multiplier is a pure epsilon. The tree is rounded to a grid, and
    the noise is a discrete Laplace there: docs/arithmetic.md has the proof, for noise multipliers
    up to 2**17 / d for d coordinates (above that, for this one). A bound in L2 is not enough: for d
    coordinates it understates epsilon by up to sqrt(d).

    Args:
        key: A scalar key, for this call alone. Keys of `discreet.random.key` are secure.
        tree: float32 or float64 arrays; the value to release. Values beyond 2**48 scales are
            released as that.
        scale: Scale b of the density exp(-|x| / b) / 2b, in the units of `tree`, from 1e-28 to
            1e30; it gets up to 0.9 % more. Where it is known only when the program runs, and then
            below 1e-20 or above 1e20, the release is NaN.

    Returns:
        A tree of the same structure, shapes and dtypes.

    Raises:
        ValueError: `scale`, where known while tracing, is not positive and finite, or out of that
            range.
        TypeError: A leaf is not float32 or float64.

    Reference:
        Dwork et al., Calibrating noise to sensitivity, TCC 2006.
    """
    return add_noise(LAPLACE, key, tree, scale)


def planned_laplace(key: PRNGKeyArray, tree: Any, scale: float, noise_multiplier: float) -> Any:
    """Add Laplace noise as `laplace_mechanism` does, also where the noise multiplier exceeds that function's limit.

    Args:
        key: As there, as are the next two.
        tree: The value to release.
        scale: Scale of the noise.
        noise_multiplier: The plan's ratio of `scale` to the L1 bound on one record.

    Raises:
        ValueError: The grid of the noise cannot hold this multiplier; and as there.
    """
    dim = max(1, sum(x.size for x in jax.tree.leaves(tree)))
    return add_noise(
        LAPLACE, key, tree, scale, multiplier=LAPLACE.most_planned(noise_multiplier, dim)
    )


def exponential_mechanism(
    key: PRNGKeyArray, scores: Float[Array, "answer"], epsilon: float
) -> Int[Array, ""]:
    """Choose one of several answers with probability proportional to exp(epsilon score / 2).

    Guarantee: if one record that is added or removed changes each score, as computed, by at most 1,
    the choice is a `BoundedRangeDpEvent(epsilon)` within total variation 2**-100, rounding and last
    bits included: the privacy losses of all answers lie within an interval of length epsilon. If by
    at most D, the event's epsilon is (D + g) / (1 + g) times that, g = 2**-16: scores should be
    scaled so that D is near 1. Scores may move up and down; where all of them move the same way the
    truth is half of that, which is not used.

    Args:
        key: A scalar key, for this call alone. Keys of `discreet.random.key` are secure.
        scores: At most 2**20, float32 or float64, rounded to multiples of g. NaN counts as the
            lowest, and what is more than 2**28 below the largest as that far below.
        epsilon: A number that is known while tracing, from 1e-6 to 200.

    Returns:
        The index of the answer, int32.

    Raises:
        ValueError: An epsilon out of range, or no or too many scores.
        TypeError: Scores of another type, or an epsilon that is known only when the program runs.

    References:
        McSherry and Talwar, FOCS 2007; Dong, Durfee and Rogers, ICML 2020, for the event; Ilvento,
        CCS 2020, for attacks on choices in floating point.

    >>> import jax.numpy as jnp, discreet as dp
    >>> int(dp.exponential_mechanism(dp.random.key(), jnp.array([0.0, 500.0, 3.0]), epsilon=1.0))
    1
    """
    if isinstance(epsilon, Tracer):
        raise TypeError(
            "exponential_mechanism: epsilon is traced. Pass a Python number: an epsilon that depends on data has no event."
        )
    if not 1e-6 <= float(epsilon) <= 200:
        raise ValueError(
            f"exponential_mechanism: epsilon is {epsilon}; it must be between 1e-6 and 200. 0.1 is common."
        )
    jax.eval_shape(random.check_key, key)
    one_process(CHOICE.name, [scores])
    (scores,) = check_leaves(CHOICE.name, [scores])
    if scores.ndim != 1 or not 1 <= len(scores) <= MOST_CHOICES:
        raise ValueError(
            f"exponential_mechanism: scores have the shape {scores.shape}; pass a vector of 1 to {MOST_CHOICES} of them."
        )
    return CHOOSE.bind(key, scores, epsilon=float(epsilon), name=CHOICE.name)[0]
