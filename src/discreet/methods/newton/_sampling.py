"""Draws from a prior times a normal likelihood, by generalised elliptical slice sampling. No record is seen here.

The posterior of a model's latents is prior(u) exp(pull @ u - u @ precision @ u / 2), all of it
public. Each chain moves along an ellipse through its state and a draw from a Student t that
resembles the posterior (Nishihara, Murray and Adams, JMLR 2014): no gradient, no step size, no
rejection. While the chains warm up, the t is fitted to where they are; then it stands still, so
that the last sweeps leave the posterior as it is.

Where the scale of a latent's prior is a latent, sweeps alternate between the vector and standard
latents (as Yu and Meng, JCGS 2011, interweave): where records say much, an effect hardly depends on
its scale; where they say little, a standard effect does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from discreet._jax import run_once
from discreet.methods.inference import Latents
from discreet.methods.newton._algebra import Matrix, Vector

Chains = Float[np.ndarray, "chain latent"]

NUM_CHAINS = 256
SWEEPS = 12
WARM_UPS = 6
KEPT = 4
"""Sweeps between two looks at the chains; looks that change the t; looks that are kept after one more."""
DEGREES = 8  # of freedom
_WIDER = 1.2  # of the t than the chains, in standard deviations


@functools.partial(run_once, static_argnums=(0, 1))
def of_each(method: Callable[..., Any], latents: Latents, vectors: Array) -> Any:
    """What a method of the latents makes of each vector."""
    return jax.vmap(functools.partial(method, latents))(vectors)


@functools.partial(run_once, static_argnums=0)
def _looked_at(
    latents: Latents, way: Array, precision: Array, pull: Array, own: Array
) -> tuple[Array, Array]:
    """What a target's own vectors are in the other coordinates, and the log density of each, but for a constant.

    One program for all ways, since what compiles longest, the prior, is of all: from the vector to
    itself, from standard latents to the vector, and back, where the density is of no use.
    """

    def together(own: Array) -> tuple[Array, Array]:
        vectors, volume = jax.vmap(latents.together)(own)
        return vectors.astype(own.dtype), volume.astype(own.dtype)

    vectors, volume = jax.lax.switch(
        way,
        [
            lambda own: (own, jnp.zeros(len(own))),
            together,
            lambda own: (jax.vmap(latents.apart)(own).astype(own.dtype), jnp.zeros(len(own))),
        ][: 3 if latents.products or latents.scaled else 1],
        own,
    )
    with jax.enable_x64(latents.wide):
        prior = jax.vmap(latents.log_prior)(
            vectors.astype(np.float64 if latents.wide else np.float32)
        )
    touched = vectors[:, : len(pull)]
    likelihood = touched @ pull - jnp.sum((touched @ precision) * touched, axis=1) / 2
    return vectors, prior.astype(np.float64) + likelihood + volume


class _Target(NamedTuple):
    """The posterior, of the vector or of standard latents."""

    latents: Latents
    precision: Matrix
    pull: Vector
    apart: bool = False

    def _looked_at(self, way: int, vectors: Chains) -> tuple[Array, Array]:
        with jax.enable_x64(True):
            return _looked_at(self.latents, np.int32(way), self.precision, self.pull, vectors)

    def log_density(self, own: Chains) -> Float[np.ndarray, " chain"]:
        """The logarithm of the density of each of the target's own vectors, but for a constant."""
        return np.asarray(self._looked_at(self.apart, own)[1])

    def vectors(self, own: Chains) -> Chains:
        """The vectors of the target's own ones."""
        return np.asarray(self._looked_at(1, own)[0]) if self.apart else own

    def own(self, vectors: Chains) -> Chains:
        """The inverse."""
        return np.asarray(self._looked_at(2, vectors)[0]) if self.apart else vectors


def _sweeps(
    target: _Target, states: Chains, centre: Vector, root: Matrix, rng: np.random.Generator
) -> Chains:
    """Some sweeps of all chains. Compiled is the prior alone, which XLA does in a tenth of the time of a whole sweep."""
    count, size = states.shape

    def log_ratio(white: Chains) -> np.ndarray:
        """Log posterior less the log density of the t, at whitened states."""
        lengths = np.sum(np.square(white), axis=1)
        found = target.log_density(centre + white @ root.T) + (DEGREES + size) / 2 * np.log1p(
            lengths / DEGREES
        )
        return np.where(np.isnan(found), -np.inf, found)

    # Not `solve_triangular`, whose threads wait for the next call at the processor's cost.
    white = (states - centre) @ np.linalg.inv(root).T
    height = log_ratio(white)
    left = np.full(count, SWEEPS)
    way = np.empty_like(white)
    level, low, high = np.empty((3, count))
    # No chain waits for another before its last sweep: the slowest of all takes three times as long
    # as most.
    begins = np.full(count, True)
    while left.any():
        new = int(begins.sum())
        # Given the state, the scale of the t is inverse gamma.
        lengths = np.sum(np.square(white[begins]), axis=1)
        scale = (DEGREES + lengths) / rng.chisquare(DEGREES + size, new)
        way[begins] = rng.standard_normal((new, size)) * np.sqrt(scale)[:, None]
        level[begins] = height[begins] + np.log(rng.random(new))
        high[begins] = 2 * np.pi * rng.random(new)
        low[begins] = high[begins] - 2 * np.pi
        # The next place on the ellipse, between angles that shrink towards the state's own, which
        # is 0.
        angle = low + (high - low) * rng.random(count)
        place = white * np.cos(angle)[:, None] + way * np.sin(angle)[:, None]
        there = log_ratio(place)
        moves = (there >= level) & (left > 0)
        white[moves] = place[moves]
        height[moves] = there[moves]
        low = np.where(angle < 0, angle, low)
        high = np.where(angle >= 0, angle, high)
        # A chain that finds no other place stays.
        over = (moves | (high - low <= 1e-9)) & (left > 0)
        left -= over
        begins = over & (left > 0)
    return centre + white @ root.T


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
    root = np.linalg.cholesky(covariance)
    states = mean + rng.normal(size=(NUM_CHAINS, len(mean))) @ root.T
    frames = [_Frame(_Target(latents, precision, pull), mean, covariance)]
    if latents.products or latents.scaled:
        target = _Target(latents, precision, pull, apart=True)
        found = target.own(states)
        inside = np.clip(found, *np.quantile(found, [0.05, 0.95], axis=0))
        frames.append(_Frame(target, inside.mean(axis=0), np.diag(inside.var(axis=0) + 1e-6)))
    kept = []
    for look in range(WARM_UPS + KEPT + 1):
        for frame in frames:
            states = frame.moved(states, rng)
        if look < WARM_UPS:
            for frame in frames:
                frame.fit(states)
        elif look > WARM_UPS:
            kept.append(states)
    return np.concatenate(kept)


class _Frame:
    """Coordinates of the chains, and the t that resembles the posterior in them."""

    def __init__(self, target: _Target, mean: Vector, covariance: Matrix) -> None:
        self.target = target
        self.mean = mean
        self.first = covariance
        self.root = np.linalg.cholesky(covariance)

    def moved(self, states: Chains, rng: np.random.Generator) -> Chains:
        """The chains after some sweeps."""
        found = _sweeps(self.target, self.target.own(states), self.mean, _WIDER * self.root, rng)
        return self.target.vectors(found)

    def fit(self, states: Chains) -> None:
        """Fit the t to where the chains are."""
        own = self.target.own(states)
        size = own.shape[1]
        # Of few chains in many dimensions the covariance is not known: the first one holds it up.
        share = NUM_CHAINS / (NUM_CHAINS + 3 * size)
        self.mean = own.mean(axis=0)
        covariance = share * np.cov(own.T).reshape(size, size) + (1 - share) * self.first
        self.root = np.linalg.cholesky(covariance + 1e-12 * np.diag(np.diag(self.first)))
