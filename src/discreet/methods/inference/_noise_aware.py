"""Noise-aware posteriors: draws that allow for the noise in the fit they come from.

`NoiseAware` carries the noise of the private fit into posterior draws, by one of two methods.
`by_trace` takes the mean of the tail, `by_regression` regresses the noisy gradients on the iterates
(`_tail` has both). Each draw of the posterior takes variational parameters from there, then latents
from the guide. All of it follows from releases and costs nothing more.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from discreet._validate import integer
from discreet.methods.inference._elbo import LATENT, Objective
from discreet.methods.inference._records import Values
from discreet.methods.inference._tail import DrawFrom, regress, tail_mean
from discreet.methods.inference._trace import Trace, Vector
from discreet.methods.inference_data import to_arviz
from discreet.privacy import random
from discreet.privacy.report import Statement

_FEWEST = 20
_SPREAD_DRAWS = 256
_ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class NoiseAware:
    """A posterior that allows for the noise of the fit it comes from; made by `DPSVIResult.noise_aware`.

    Attributes:
        method: "trace" or "regression".
        start: Start of the tail used, as a fraction of the trace.
        corrected: Mask of the coordinates of `trace.iterates` that are uncertain here: all that
            move ("trace"), or the locations ("regression").
        mean: Mean of p(psi* | trace), for each coordinate of `trace.iterates`.
        stddev: Standard deviation of p(psi* | trace); 0 where not corrected.
        statement: The fit's statement; the draws cost nothing more.
    """

    method: str
    start: float
    corrected: Bool[np.ndarray, " dim"]
    mean: Vector
    stddev: Vector
    _objective: Objective = dataclasses.field(repr=False, compare=False)
    _unravel: Callable[[Array], dict[str, Any]] = dataclasses.field(repr=False, compare=False)
    _draws: DrawFrom = dataclasses.field(repr=False, compare=False)
    statement: Statement | None = dataclasses.field(default=None, repr=False, compare=False)

    def posterior(self, key: PRNGKeyArray, num_samples: int) -> dict[str, Array]:
        """Draws of the global latents, in the form of `DPSVIResult.posterior`.

        Args:
            key: Any JAX key.
            num_samples: Number of draws, each from a guide whose parameters were drawn, too.

        Returns:
            For each global latent an array with the draws along the leading axis.

        Raises:
            ValueError: num_samples < 1.
        """
        integer("num_samples", num_samples)
        secret = random.subkey(random.check_key(key, "key"), random.Purpose.POSTERIOR)
        outer, inner = jax.random.split(secret)
        rng = np.random.default_rng(np.asarray(jax.random.bits(outer, (4,))))
        psi = jax.vmap(self._unravel)(jnp.asarray(self._draws(rng, num_samples), jnp.float32))
        return _draw_each(self._objective, psi, jax.random.split(inner, num_samples))

    def to_arviz(self, key: PRNGKeyArray, num_samples: int, **names: Any) -> Any:
        """Draws as `posterior` makes them, for ArviZ, with the fit's statement; as `DPSVIResult.to_arviz`."""
        note = (
            f"The noise of the private fit is allowed for in these draws (method {self.method!r})."
        )
        return to_arviz(
            self.posterior(key, num_samples), statement=self.statement, note=note, **names
        )

    def __getstate__(self) -> dict[str, Any]:
        """Refuse: the guide may be a local function."""
        raise TypeError(
            "A NoiseAware holds the guide, so it is not pickled. Save the draws of its posterior."
        )


@functools.partial(jax.jit, static_argnums=0)
def _draw_each(objective: Objective, psi: Values, keys: PRNGKeyArray) -> dict[str, Array]:
    def one(psi: Values, key: PRNGKeyArray) -> dict[str, Array]:
        return jax.tree.map(
            lambda x: x[0], objective.draw_posterior(objective.constrain(psi), key, 1)
        )

    return jax.vmap(one)(psi, keys)


def by_trace(
    objective: Objective, params: Values, trace: Trace, start: float | None, least_noise: float
) -> NoiseAware:
    """The mean of the tail, and how far it may be from where the iterates fluctuate about."""
    del least_noise
    start, first = _tail(trace, start, trace.converged_from)
    mean, stddev, draws = tail_mean(trace.iterates[first:])
    unravel = _unravel_for(objective, params)
    return NoiseAware("trace", start, stddev > 0, mean, stddev, objective, unravel, draws)


def by_regression(
    objective: Objective, params: Values, trace: Trace, start: float | None, least_noise: float
) -> NoiseAware:
    """Locations where the expected gradient is zero, from all released gradients of the tail."""
    if trace.gradients is None:
        raise ValueError(
            "The trace holds no gradients to regress. Fit with dpsvi.run(..., keep_gradients=True), which costs no budget, or "
            'use method="trace".'
        )
    latent, spread = locations_of(objective, objective.unconstrain(params))
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
    mean = trace.iterates[first:].mean(axis=0, dtype=np.float64)
    stddev = np.zeros(trace.iterates.shape[1])
    mean[where], stddev[where] = inferred.moments()

    def draws(rng: np.random.Generator, count: int) -> Float[np.ndarray, "draw dim"]:
        values = np.tile(mean, (count, 1))
        values[:, where] = inferred.draws(rng, count)
        return values

    corrected = np.isin(np.arange(len(mean)), where)
    unravel = _unravel_for(objective, params)
    return NoiseAware("regression", start, corrected, mean, stddev, objective, unravel, draws)


METHODS = {"trace": by_trace, "regression": by_regression}


def _tail(trace: Trace, start: float | None, converged_from: float | None) -> tuple[float, int]:
    """The start of the tail, as a fraction and as a row."""
    if start is not None and not 0.0 <= start < 1.0:
        raise ValueError(
            f"start is {start}; it is a fraction of the trace, at least 0 and below 1."
        )
    kept = len(trace.iterates)
    start = converged_from if start is None else start
    if start is None:
        raise ValueError(
            f"No tail of the {kept} iterates is free of drift, so they do not tell where the fit would have gone without "
            "noise. The estimates can still be used: params, and the draws of posterior, whose spread lacks the noise. To take "
            "the iterates from the middle on all the same, pass start=0.5."
        )
    first = int(start * kept)
    if kept - first < _FEWEST:
        raise ValueError(
            f"The tail holds {kept - first} iterates from {start:g} on; it takes {_FEWEST} at least. Plan more steps, or "
            "pass a smaller start=."
        )
    if not np.all(np.isfinite(trace.iterates[first:])):
        raise ValueError(
            "The iterates are not finite: the fit diverged. Plan again with a smaller learning rate."
        )
    return start, first


def _unravel_for(objective: Objective, params: Values) -> Callable[[Array], dict[str, Any]]:
    _, unravel = ravel_pytree(jax.tree.map(jnp.asarray, objective.unconstrain(params)))
    return unravel


def locations_of(
    objective: Objective, psi: Values
) -> tuple[Int[np.ndarray, " dim"], Float[np.ndarray, " latent"]]:
    """The dependence of a guide's draws at `psi` on its parameters, from a few draws.

    A location moves one coordinate by as much as it is moved itself, whatever the guide draws:
    pulled back through the guide, each of a set of distinct numbers arrives at its location as it
    is.

    Returns:
        For each variational parameter, the coordinate of the unconstrained latents that it is added
        to, -1 for none; and the guide's variance of each of these coordinates.
    """
    drawn = _drawn(objective, psi)
    num_latents = drawn.shape[1]
    found = []
    for round_ in range(_ROUNDS):
        numbers = np.random.default_rng(round_).permutation(num_latents) + 1.0
        key = jax.random.key(round_)
        arrived = np.asarray(
            _pulled(objective, psi, key, jnp.asarray(numbers, drawn.dtype)), np.float64
        )
        nearest = np.clip(np.nan_to_num(np.round(arrived)), 1, num_latents)
        exact = np.abs(arrived - nearest) <= np.minimum(1e-4 * nearest, 0.25)
        found.append(np.where(exact, np.argsort(numbers)[nearest.astype(int) - 1], -1))
    latent = np.where(np.all(np.equal(found, found[0]), axis=0), found[0], -1)
    return latent, np.var(np.asarray(drawn, np.float64), axis=0, ddof=1)


def _unconstrained(objective: Objective, psi: Values, key: PRNGKeyArray) -> dict[str, Array]:
    everything = objective.structure.global_latents
    whole = dataclasses.replace(
        objective, touched_latents=everything, touched_params=(), num_particles=1
    )
    return whole.link(psi, key)[0][LATENT]


@functools.partial(jax.jit, static_argnums=0)
def _pulled(objective: Objective, psi: Values, key: PRNGKeyArray, numbers: Array) -> Array:
    u, pull = jax.vjp(lambda p: _unconstrained(objective, p, key), psi)
    _, unravel = ravel_pytree(u)
    (pulled,) = pull(unravel(numbers))
    return ravel_pytree(pulled)[0]


@functools.partial(jax.jit, static_argnums=0)
def _drawn(objective: Objective, psi: Values) -> Float[Array, "draw latent"]:
    keys = jax.random.split(jax.random.key(0), _SPREAD_DRAWS)
    return jax.vmap(lambda key: ravel_pytree(_unconstrained(objective, psi, key))[0])(keys)
