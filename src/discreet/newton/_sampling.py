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
from jaxtyping import Array, Float, Int, PRNGKeyArray

from discreet.inference import Latents
from discreet.newton._algebra import Matrix, Vector

NUM_CHAINS = 256
SWEEPS, WARM_UPS, KEPT = 12, 6, 4
"""Sweeps between two looks at the chains; looks that change the t; looks that are kept after one more."""
DEGREES = 8  # of freedom
_WIDER = 1.2  # of the t than the chains, in standard deviations


@functools.partial(jax.jit, static_argnums=0)
def _sweeps(
    latents: Latents,
    words: Array,
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

    def one(white: Array, height: Array, key: PRNGKeyArray) -> tuple[Array, Array]:
        normal_key, shrink_key = jax.random.split(key)
        normals = jax.random.normal(normal_key, (2 * size + DEGREES + 2,)).astype(white.dtype)
        way, rest, last = normals[:size], normals[size:-2], normals[-2:]
        # Given the state, the scale of the t is inverse gamma.
        way = way * jnp.sqrt((DEGREES + white @ white) / jnp.sum(jnp.square(rest)))
        level_share, angle_share = jax.scipy.special.ndtr(last)
        level = height + jnp.log(level_share)

        def looking(state: Any) -> Array:
            low, high, *_, there = state
            return (there < level) & (high - low > 1e-9)

        def look(state: Any) -> Any:
            """The next place on the ellipse, between angles that shrink towards the state's own, which is 0."""
            low, high, key, _, _ = state
            key, now = jax.random.split(key)
            angle = low + (high - low) * jax.random.uniform(now).astype(white.dtype)
            place = white * jnp.cos(angle) + way * jnp.sin(angle)
            low, high = jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle)
            return low, high, key, place, log_ratio(place)

        top = 2 * jnp.pi * angle_share
        begin = (top - 2 * jnp.pi, top, shrink_key, white, jnp.full_like(height, -jnp.inf))
        *_, place, there = jax.lax.while_loop(looking, look, begin)
        accepted = there >= level
        return jnp.where(accepted, place, white), jnp.where(accepted, there, height)

    def sweep(state: tuple[Array, Array], key: PRNGKeyArray) -> tuple[tuple[Array, Array], None]:
        return jax.vmap(one)(*state, jax.random.split(key, len(states))), None

    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    whites = jax.scipy.linalg.solve_triangular(root, (states - centre).T, lower=True).T
    heights = jax.lax.map(log_ratio, whites)
    (whites, _), _ = jax.lax.scan(sweep, (whites, heights), jax.random.split(key, SWEEPS))
    return centre + whites @ root.T


def draw(
    latents: Latents,
    words: Int[np.ndarray, " word"],
    mean: Vector,
    covariance: Matrix,
    precision: Matrix,
    pull: Vector,
) -> Float[np.ndarray, "draw latent"]:
    """Draws of the unconstrained vector from prior(u) exp(pull @ u - u @ precision @ u / 2), u the latents that records touch.

    Args:
        latents: The model's latents, with their prior.
        words: The seed.
        mean: Of a normal that resembles the posterior.
        covariance: As above.
        precision: Of the likelihood.
        pull: As above.
    """
    rng = np.random.default_rng(words)
    size, first = len(mean), covariance
    root = np.linalg.cholesky(covariance)
    states = mean + rng.normal(size=(NUM_CHAINS, size)) @ root.T
    found = []
    for look in range(WARM_UPS + KEPT + 1):
        key = rng.integers(2**32, size=2, dtype=np.uint32)
        states = np.asarray(_sweeps(latents, key, states, mean, _WIDER * root, precision, pull))
        if look < WARM_UPS:
            # Of few chains in many dimensions the covariance is not known: the first one holds it up.
            share = NUM_CHAINS / (NUM_CHAINS + 3 * size)
            mean = states.mean(axis=0)
            covariance = share * np.cov(states.T).reshape(size, size) + (1 - share) * first
            root = np.linalg.cholesky(covariance + 1e-12 * np.diag(np.diag(first)))
        elif look > WARM_UPS:
            found.append(states)
    return np.concatenate(found)
