"""The posterior with the noise of the private fit in it: post-processing of the released trace, and of nothing else.

Let psi* be the variational parameters that a fit without noise would have found. The released trace tells of them with an
uncertainty of its own, p(psi* | trace), and a noise-aware draw is theta ~ q(theta | psi*) with psi* ~ p(psi* | trace).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from numpyro.diagnostics import effective_sample_size

from discreet import random
from discreet.inference._location_posterior import regress
from discreet.inference._objective import LATENT, Objective
from discreet.inference._trace import Trace

_FEWEST = 20
_FEWEST_INDEPENDENT = 3.0
_SPREAD_DRAWS = 256
_ROUNDS = 3

Draws = Callable[[np.random.Generator, int], Float[np.ndarray, "draw dim"]]


@dataclasses.dataclass(frozen=True)
class NoiseAware:
    """A posterior that allows for the noise of the fit it comes from; made by `DPSVIResult.noise_aware`.

    Attributes:
        method: "trace" or "regression".
        start: where the tail that it rests on begins, as a fraction of the trace.
        corrected: which coordinates of `trace.iterates` are uncertain here: all ("trace"), or the locations ("regression").
        mean: of p(psi* | trace), for each coordinate of `trace.iterates`.
        stddev: of p(psi* | trace); 0 where it is not corrected.
    """

    method: str
    start: float
    corrected: Bool[np.ndarray, " dim"]
    mean: Float[np.ndarray, " dim"]
    stddev: Float[np.ndarray, " dim"]
    _objective: Objective = dataclasses.field(repr=False, compare=False)
    _unravel: Callable[[Array], dict[str, Any]] = dataclasses.field(repr=False, compare=False)
    _draws: Draws = dataclasses.field(repr=False, compare=False)

    def posterior(self, key: PRNGKeyArray, num_samples: int) -> dict[str, Array]:
        """Draws of the global latents, in the form of `DPSVIResult.posterior`.

        Args:
            key: any JAX key.
            num_samples: number of draws, each from a guide whose parameters were drawn, too.

        Returns:
            For each global latent an array with the draws along the leading axis.

        Raises:
            ValueError: num_samples < 1.
        """
        if num_samples < 1:
            raise ValueError(f"num_samples is {num_samples}; draw at least one.")
        secret = random.subkey(random.check_key(key, "key"), random.Purpose.POSTERIOR)
        outer, inner = jax.random.split(secret)
        rng = np.random.default_rng(np.asarray(jax.random.bits(outer, (4,))))
        psi = jax.vmap(self._unravel)(jnp.asarray(self._draws(rng, num_samples), jnp.float32))
        return _draw_each(self._objective, psi, jax.random.split(inner, num_samples))

    def __getstate__(self) -> dict[str, Any]:
        """Refuse: the guide may be a local function."""
        raise TypeError("A NoiseAware holds the guide, so it is not pickled. Save the draws of its posterior.")


@functools.partial(jax.jit, static_argnums=0)
def _draw_each(objective: Objective, psi: Mapping[str, Any], keys: PRNGKeyArray) -> dict[str, Array]:
    def one(psi: Mapping[str, Any], key: PRNGKeyArray) -> dict[str, Array]:
        return jax.tree.map(lambda x: x[0], objective.draw_posterior(objective.constrain(psi), key, 1))

    return jax.vmap(one)(psi, keys)


# --- the variance of the tail's mean ------------------------------------------------------


def by_trace(
    objective: Objective, params: Mapping[str, Any], trace: Trace, start: float | None, least_noise: float
) -> NoiseAware:
    """The mean of the tail, and how far it may be from where the iterates fluctuate about."""
    del least_noise
    start, first = _tail(trace, start, trace.converged_from)
    tail = trace.iterates[first:].astype(np.float64)
    mean, centered = tail.mean(axis=0), tail - tail.mean(axis=0)
    variance = np.square(centered).mean(axis=0)
    moves = variance > 0
    independent = np.full(variance.shape, np.inf)
    independent[moves] = np.minimum(effective_sample_size(tail[None, :, moves]), len(tail))
    if np.any(fewer := independent < _FEWEST_INDEPENDENT):
        raise ValueError(
            f"{np.sum(fewer)} of {len(mean)} coordinates travel so slowly that the tail, {len(tail)} iterates from {start:g} "
            f"on, is worth fewer than {_FEWEST_INDEPENDENT:g} independent ones: their fluctuation is not seen. Plan more "
            'steps or a larger learning rate, or use method="regression".'
        )
    # The sample variance is small by 1 - 1/n for n independent iterates, and their mean has 1/n of it.
    squared_error = np.where(moves, variance / (independent - 1), 0.0)
    weight = np.sqrt(np.divide(squared_error, variance, out=np.zeros_like(variance), where=moves) / len(tail))

    def draws(rng: np.random.Generator, count: int) -> Float[np.ndarray, "draw dim"]:
        # Mixed from the iterates themselves, so that coordinates that fluctuate together stay together.
        together = rng.standard_normal((count, len(tail))) @ (centered * weight)
        freedom = np.where(moves, independent - 1, 1.0)
        return mean + together * np.sqrt(freedom / rng.chisquare(freedom, (count, len(mean))))

    unravel = _unravel_for(objective, params)
    return NoiseAware("trace", start, moves, mean, np.sqrt(squared_error), objective, unravel, draws)


# --- gradients regressed on iterates ------------------------------------------------------


def by_regression(
    objective: Objective, params: Mapping[str, Any], trace: Trace, start: float | None, least_noise: float
) -> NoiseAware:
    """Locations where the expected gradient is zero, from all released gradients of the tail."""
    if trace.gradients is None:
        raise ValueError(
            "The trace holds no gradients to regress. Fit with dpsvi.run(..., keep_gradients=True), which costs no budget, or "
            'use method="trace".'
        )
    psi, unravel = objective.unconstrain(params), _unravel_for(objective, params)
    latent, spread = find_locations(objective, psi), _spread(objective, psi)
    where = np.flatnonzero(np.isin(latent, np.flatnonzero(spread > 0)))
    if not len(where):
        raise ValueError(
            "The guide has no location: a parameter that is added to a latent's unconstrained value, as in AutoNormal or "
            'AutoMultivariateNormal. Use method="trace", which takes any guide.'
        )
    locations = Trace(trace.steps, trace.iterates[:, where])
    start, first = _tail(trace, start, locations.converged_from)
    first = max(first, 1)
    inferred = regress(
        points=trace.iterates[first - 1 : -1, where],
        gradients=trace.gradients[first:, where],
        least_noise=least_noise,
        slope_guess=1.0 / spread[latent[where]],
    )
    mean, stddev = trace.iterates[first:].mean(axis=0, dtype=np.float64), np.zeros(trace.iterates.shape[1])
    mean[where], stddev[where] = inferred.moments()

    def draws(rng: np.random.Generator, count: int) -> Float[np.ndarray, "draw dim"]:
        values = np.tile(mean, (count, 1))
        values[:, where] = inferred.draws(rng, count)
        return values

    corrected = np.isin(np.arange(len(mean)), where)
    return NoiseAware("regression", start, corrected, mean, stddev, objective, unravel, draws)


METHODS = {"trace": by_trace, "regression": by_regression}


# --- what both need -----------------------------------------------------------------------


def _tail(trace: Trace, start: float | None, converged_from: float | None) -> tuple[float, int]:
    """Where the tail begins, as a fraction and as a row."""
    if start is not None and not 0.0 <= start < 1.0:
        raise ValueError(f"start is {start}; it is a fraction of the trace, at least 0 and below 1.")
    kept = len(trace.iterates)
    start = converged_from if start is None else start
    if start is None:
        raise ValueError(
            f"No tail of the {kept} iterates is free of drift, so they do not tell where the fit would have gone without "
            "noise. Plan more steps or a larger learning rate; or pass start=, such as 0.5, where you know better."
        )
    first = int(start * kept)
    if kept - first < _FEWEST:
        raise ValueError(
            f"The tail holds {kept - first} iterates from {start:g} on; it takes {_FEWEST} at least. Plan more steps, or "
            "pass a smaller start=."
        )
    if not np.all(np.isfinite(trace.iterates[first:])):
        raise ValueError("The iterates are not finite: the fit diverged. Plan again with a smaller learning rate.")
    return start, first


def _unravel_for(objective: Objective, params: Mapping[str, Any]) -> Callable[[Array], dict[str, Any]]:
    _, unravel = ravel_pytree(jax.tree.map(jnp.asarray, objective.unconstrain(params)))
    return unravel


def _all_latents(objective: Objective) -> Objective:
    everything = objective.structure.global_latents
    return dataclasses.replace(objective, touched_latents=everything, touched_params=(), num_particles=1)


def find_locations(objective: Objective, psi: Mapping[str, Any]) -> Int[np.ndarray, " dim"]:
    """For each variational parameter, the coordinate of the unconstrained latents that it is added to; -1 where none is.

    A location moves one coordinate by as much as it is moved itself, whatever the guide draws: pulled back through the
    guide, each of a set of distinct numbers arrives at its location as it is.
    """
    objective, found = _all_latents(objective), None
    for seed in range(_ROUNDS):
        (u, free), pull = jax.vjp(lambda p, seed=seed: objective.link(p, jax.random.key(seed)), dict(psi))
        flat, unravel = ravel_pytree(u)
        numbers = np.random.default_rng(seed).permutation(flat.size) + 1.0
        (pulled,) = pull((unravel(jnp.asarray(numbers, flat.dtype)), jnp.zeros_like(free)))
        arrived = np.asarray(ravel_pytree(pulled)[0], np.float64)
        with np.errstate(invalid="ignore"):
            nearest = np.clip(np.nan_to_num(np.round(arrived)), 1, flat.size)
            exact = np.abs(arrived - nearest) <= np.minimum(1e-4 * nearest, 0.25)
        latent = np.where(exact, np.argsort(numbers)[nearest.astype(int) - 1], -1)
        found = latent if found is None else np.where(found == latent, found, -1)
    assert found is not None
    return found


def _spread(objective: Objective, psi: Mapping[str, Any]) -> Float[np.ndarray, " latent"]:
    """The guide's variance of each unconstrained latent coordinate, from a few hundred draws."""
    objective = _all_latents(objective)

    def one(key: PRNGKeyArray) -> Array:
        return ravel_pytree(objective.link(psi, key)[0][LATENT])[0]

    drawn = jax.vmap(one)(jax.random.split(jax.random.key(0), _SPREAD_DRAWS))
    return np.var(np.asarray(drawn, np.float64), axis=0, ddof=1)
