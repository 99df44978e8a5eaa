"""Draws from a prior times a normal likelihood, by generalised elliptical slice sampling. No record is seen here.

The posterior of a model's latents is prior(u) exp(pull @ u - u @ precision @ u / 2), all of it public. Each chain moves along an
ellipse through its state and a draw from a Student t that resembles the posterior (Nishihara, Murray and Adams, JMLR 2014): no
gradient, no step size, no rejection. While the chains warm up, the t is fitted to where they are; then it stands still, so that
the last sweeps leave the posterior as it is.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from discreet.newton._algebra import Matrix, Vector
from discreet.newton._model import Latents

NUM_CHAINS = 256
SWEEPS, WARM_UPS, KEPT = 12, 6, 4
"""Sweeps between two looks at the chains; looks that change the t; looks that are kept after one more."""
DEGREES = 8.0  # of freedom
_WIDER = 1.2  # of the t than the chains, in standard deviations


@functools.partial(jax.jit, static_argnums=0)
def _sweeps(
    latents: Latents,
    key: PRNGKeyArray,
    states: Float[Array, "chain latent"],
    centre: Array,
    root: Array,
    precision: Array,
    pull: Array,
) -> Float[Array, "chain latent"]:
    """Some sweeps of all chains."""
    size, touched = states.shape[1], latents.num_touched

    def log_ratio(white: Array) -> Array:
        """Log posterior less the log density of the t, at a whitened state."""
        vector = centre + root @ white
        own = vector[:touched]
        with jax.enable_x64(latents.wide):
            prior = latents.log_prior(vector.astype(jnp.float64 if latents.wide else jnp.float32))
        target = prior.astype(vector.dtype) + pull @ own - own @ precision @ own / 2
        found = target + (DEGREES + size) / 2 * jnp.log1p(white @ white / DEGREES)
        return jnp.where(jnp.isnan(found), -jnp.inf, found)

    def one(white: Array, key: PRNGKeyArray) -> Array:
        scale_key, way_key, level_key, angle_key = jax.random.split(key, 4)
        shape = (DEGREES + size) / 2
        scale = (DEGREES + white @ white) / 2 / jax.random.gamma(scale_key, shape, dtype=white.dtype)
        way = jnp.sqrt(scale) * jax.random.normal(way_key, white.shape, white.dtype)
        level = log_ratio(white) + jnp.log(jax.random.uniform(level_key, dtype=white.dtype, minval=1e-30))

        def angle_of(state: Any) -> tuple[Any, Array]:
            low, high, key = state
            key, now = jax.random.split(key)
            return key, low + (high - low) * jax.random.uniform(now, dtype=white.dtype)

        def place(angle: Array) -> Array:
            return white * jnp.cos(angle) + way * jnp.sin(angle)

        def shrink(state: Any) -> Any:
            low, high, key, angle = state
            low, high = jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle)
            key, angle = angle_of((low, high, key))
            return low, high, key, angle

        def outside(state: Any) -> Array:
            low, high, _, angle = state
            return (log_ratio(place(angle)) < level) & (high - low > 1e-9)

        key, angle = angle_of((0.0, 2 * jnp.pi, angle_key))
        *_, angle = jax.lax.while_loop(outside, shrink, (angle - 2 * jnp.pi, angle, key, angle))
        found = place(angle)
        return jnp.where(log_ratio(found) >= level, found, white)

    def sweep(whites: Array, key: PRNGKeyArray) -> tuple[Array, None]:
        return jax.vmap(one)(whites, jax.random.split(key, len(whites))), None

    whites = jnp.linalg.solve(root, (states - centre).T).T
    whites, _ = jax.lax.scan(sweep, whites, jax.random.split(key, SWEEPS))
    return centre + whites @ root.T


def draw(
    latents: Latents,
    key: PRNGKeyArray,
    mean: Vector,
    covariance: Matrix,
    precision: Matrix,
    pull: Vector,
) -> Float[np.ndarray, "draw latent"]:
    """Draws of the unconstrained vector from prior(u) exp(pull @ u - u @ precision @ u / 2), u the latents that records touch.

    Args:
        latents: The model's latents, with their prior.
        key: A key.
        mean: Of a normal that resembles the posterior.
        covariance: As above.
        precision: Of the likelihood.
        pull: As above.
    """
    keys = jax.random.split(key, WARM_UPS + KEPT + 2)
    size, first = len(mean), covariance
    root = np.linalg.cholesky(covariance)
    states = mean + np.asarray(jax.random.normal(keys[0], (NUM_CHAINS, size))) @ root.T
    found = []
    for look in range(WARM_UPS + KEPT + 1):
        states = np.asarray(_sweeps(latents, keys[look + 1], states, mean, _WIDER * root, precision, pull))
        if look < WARM_UPS:
            # Of few chains in many dimensions the covariance is not known: the first one holds it up.
            share = NUM_CHAINS / (NUM_CHAINS + 3 * size)
            mean = states.mean(axis=0)
            covariance = share * np.cov(states.T).reshape(size, size) + (1 - share) * first
            root = np.linalg.cholesky(covariance + 1e-12 * np.diag(np.diag(first)))
        elif look > WARM_UPS:
            found.append(states)
    return np.concatenate(found)
