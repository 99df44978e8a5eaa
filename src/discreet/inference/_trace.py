"""The iterates of a fit, and what they tell: each is a release, so looking at them is free.

`Trace` averages the tail without drift. `NoiseAware` carries the noise of the private fit into posterior draws, by one of two
methods. `tail_mean` looks at the iterates alone. `regress` looks at the gradients, too, and asks where the expected gradient is
zero: for each coordinate, with the iterate x_t before a step and the noisy gradient g_t of the step,

    g_t | x_t ~ Normal(A (x_t - x*), tau^2),        unknown A > 0, x*, tau.

The next iterate is a function of x_t and g_t, whatever the optimizer, so the likelihood of the whole trace is the product of
these terms: that iterates resemble one another is no obstacle.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from numpyro.diagnostics import effective_sample_size
from scipy.special import gammainc, gammaincinv

from discreet import random
from discreet._validate import integer
from discreet.inference._elbo import LATENT, Objective
from discreet.inference._records import Values
from discreet.inference_data import to_arviz
from discreet.report import Statement

# --- The trace ---


Vector = Float[np.ndarray, " dim"]  # a number for each coordinate
_TAIL_STARTS = tuple(i / 10 for i in range(1, 10))
_JOURNEY = 30.0  # drift in the second half of a coordinate that still travels
_BATCHES = 10


@dataclasses.dataclass(frozen=True)
class Trace:
    """Unconstrained variational parameters along a fit, flattened.

    Attributes:
        steps: Number of releases made when each iterate was kept.
        iterates: One row for each of `steps`.
        gradients: With `run(..., keep_gradients=True)`, the noisy gradient that each step gave to the optimizer; a row
            was computed at the iterate of the row before. None: they were not kept.
        mean: Means of the iterates after each of the last `mean_steps` steps, where there are so many parameters that the trace
            has room for fewer than 20 rows; None elsewhere.
        mean_steps: The last tenth of the planned steps; of a fit that was stopped, one to two tenths, or all it made.
    """

    steps: Int[np.ndarray, "kept"]
    iterates: Float[np.ndarray, "kept dim"]
    gradients: Float[np.ndarray, "kept dim"] | None = None
    mean: Vector | None = None
    mean_steps: int = 0

    def drift(self, start: float) -> Vector:
        """Slope of a straight line through the tail of each coordinate, in its own standard errors.

        Iterates that follow one another are alike, so the line is fitted to the means of ten batches of them: about
        1 when a coordinate only fluctuates, large when it still travels; 0 where it does not move.

        Args:
            start: Start of the tail, as a fraction of the trace in [0, 1).

        Returns:
            |slope| / standard error, per coordinate.

        Raises:
            ValueError: The tail holds fewer than ten iterates.

        Reference:
            Jälkö, Prediger, Honkela and Kaski, DPVIm, 2023: convergence by the slope of a
            linear regression through the trace.
        """
        tail = self.iterates[int(start * len(self.iterates)) :].astype(np.float64)
        if len(tail) < _BATCHES:
            raise ValueError(f"The tail from {start} holds {len(tail)} iterates; a slope needs {_BATCHES} at least.")
        means = np.stack([batch.mean(axis=0) for batch in np.array_split(tail, _BATCHES)])
        time = np.arange(_BATCHES) - (_BATCHES - 1) / 2
        centered = means - means.mean(axis=0)
        slope = time @ centered / (time @ time)
        residual = np.square(centered - np.outer(time, slope)).sum(axis=0) / (_BATCHES - 2)
        error = np.sqrt(residual / (time @ time))
        return np.abs(slope) / np.where(error > 0, error, np.inf)

    @property
    def converged_from(self) -> float | None:
        """Start of the longest tail without drift, as a fraction of the trace; None: it still travels.

        A tail has no drift when the root mean square of `drift` over the coordinates is at most 2; for
        coordinates that only fluctuate it is 1.15 on average.
        """
        for start in _TAIL_STARTS:
            if len(self.iterates) * (1 - start) < 2 * _BATCHES:
                return None
            if np.sqrt(np.mean(np.square(self.drift(start)))) <= 2.0:
                return start
        return None

    @property
    def still_to_go(self) -> float:
        """The share of a coordinate's way that lies in the second half: the largest, but for one coordinate in a hundred.

        It is 0 for those that do not travel. A fit whose steps are too few or too small goes on at its speed, so that the share
        is a half. A coordinate that only fluctuates has a small drift, also where the noise moves it much: of some dozen it
        was 25 at most; of thousands in a synthetic twin, three had more than 30.
        """
        half, few = len(self.iterates) // 2, max(1, len(self.iterates) // 20)
        if half < _BATCHES:
            return 0.0
        start = self.iterates[0].astype(np.float64)
        middle = self.iterates[half : half + few].mean(axis=0, dtype=np.float64)
        end = self.iterates[-few:].mean(axis=0, dtype=np.float64)
        share = np.abs(end - middle) / np.maximum(np.abs(end - start), 1e-300)
        travels = np.where(self.drift(0.5) > _JOURNEY, share, 0.0)
        return float(np.sort(travels)[-1 - len(travels) // 100])

    @property
    def averaged_from(self) -> int:
        """The first row that `average` takes: where the tail without drift begins, or the last tenth, or the last row."""
        if len(self.iterates) < 2 * _BATCHES:
            return max(0, len(self.iterates) - 1)
        start = self.converged_from
        return int((0.9 if start is None else start) * len(self.iterates))

    def average(self) -> Vector:
        """Mean of the tail without drift, or of the last tenth where there is none.

        Of fewer than 20 iterates it is `mean`; where a fit made fewer than 20 steps, it is the last iterate.
        """
        if len(self.iterates) >= 2 * _BATCHES:
            return self.iterates[self.averaged_from :].mean(axis=0, dtype=np.float64).astype(self.iterates.dtype)
        return self.iterates[-1] if self.mean is None else self.mean

    @property
    def averaged_over(self) -> int:
        """The number of iterates in `average`."""
        if len(self.iterates) < 2 * _BATCHES and self.mean is not None:
            return self.mean_steps
        return len(self.iterates) - self.averaged_from


def start_mean(dim: int, keep: bool) -> Float[Array, "two dim"]:
    """The initial value for `update_mean`; empty if no mean is kept."""
    return jnp.zeros((2, dim) if keep else (0, dim))


def update_mean(
    mean: Float[Array, "two dim"], iterate: Float[Array, " dim"], step: Int[Array, ""], num_steps: int | Int[Array, ""]
) -> Float[Array, "two dim"]:
    """The running mean of the tail after one more step, in the memory of two iterates.

    The planned steps are cut into tenths, counted from the end. One row is the mean of the tenth that is under way, the other
    that of the tenth before, so that a fit which is stopped anywhere has the mean of one tenth at least.
    """
    place = _place(step, num_steps)
    before, current = jnp.where(place == 1, jnp.stack([mean[1], jnp.zeros_like(iterate)]), mean)
    return jnp.stack([before, current + (iterate - current) / place])


def _place(step: Any, num_steps: Any) -> Any:
    """The number of a step within its tenth, from 1; the first tenth may be a short one."""
    place = (step - 1 - num_steps) % _tenth(num_steps) + 1
    return min(place, step) if isinstance(step, int) else jnp.minimum(place, step)


def _tenth(num_steps: Any) -> Any:
    return num_steps // 10 + (num_steps < 10)


class TraceRecorder:
    """Collects iterates within a budget of memory, every step or every so many."""

    def __init__(self, dim: int, num_steps: int, *, max_bytes: int = 64 * 2**20) -> None:
        """Decide how often iterates of `dim` float32 numbers are kept in `num_steps` steps."""
        most = max(2, max_bytes // (4 * max(dim, 1)))
        self.dim, self.num_steps = dim, num_steps
        self.interval = -(-num_steps // most)
        self.every_step = self.interval == 1  # the compiled loop returns each iterate
        # So few iterates are kept that the compiled loop averages the tail itself.
        self.keeps_mean = not self.every_step and -(-num_steps // self.interval) < 2 * _BATCHES
        self._steps: list[np.ndarray] = []
        self._rows: list[np.ndarray] = []
        self._gradients: list[np.ndarray] = []

    def steps_until_due(self, step: int) -> int:
        """The number of steps from `step` to the next kept iterate, at each multiple of `interval`."""
        return sys.maxsize if self.every_step else self.interval - step % self.interval

    def extend(
        self,
        first_step: int,
        rows: Float[np.ndarray, "kept dim"],
        gradients: Float[np.ndarray, "kept dim"] | None = None,
    ) -> None:
        """Keep the iterates after steps `first_step`, `first_step + 1`, ..., and the gradients of these steps."""
        self._steps.append(np.arange(first_step, first_step + len(rows)))
        self._rows.append(rows)
        if gradients is not None:
            self._gradients.append(gradients)

    def restore(self, trace: Trace) -> None:
        """Go on from what `finish` gave."""
        if len(trace.steps):
            self._steps, self._rows = [trace.steps], [trace.iterates]
            self._gradients = [] if trace.gradients is None else [trace.gradients]

    def finish(self, mean: Float[np.ndarray, "two dim"] | None = None, done: int = 0) -> Trace:
        """The trace of what was kept."""
        if not self._rows:
            return Trace(np.zeros(0, np.int64), np.zeros((0, self.dim), np.float32))
        gradients = np.concatenate(self._gradients) if self._gradients else None
        trace = Trace(np.concatenate(self._steps), np.concatenate(self._rows), gradients)
        if mean is None or not len(mean):
            return trace
        place, tenth = _place(done, self.num_steps), _tenth(self.num_steps)
        # A whole tenth stands alone; a part of one is joined to the tenth before, which is shorter where it is the first.
        before = 0 if place == tenth else min(tenth, done - place)
        joined = (before * mean[0].astype(np.float64) + place * mean[1]) / (before + place)
        return dataclasses.replace(trace, mean=joined.astype(mean.dtype), mean_steps=before + place)


# --- Statistics of the tail ---


_NODES = 201
# Standard deviation of the prior of log A about its guess: a factor of e either way.
_PRIOR_SPREAD = 1.0
_REACH = 6.0
_FEWEST_INDEPENDENT = 3.0


Draws = Callable[[np.random.Generator, int], Float[np.ndarray, "draw dim"]]


def tail_mean(tail: Float[np.ndarray, "step dim"]) -> tuple[Vector, Vector, Draws]:
    """The posterior of the iterates' limit by the mean of the tail: a t distribution for each coordinate.

    Returns:
        The mean; its standard deviation, which is that of the iterates over the root of the number of independent ones; and a
        function that draws from the posterior.
    """
    tail = tail.astype(np.float64)
    mean = tail.mean(axis=0)
    centered = tail - mean
    variance = np.square(centered).mean(axis=0)
    moves = variance > 0
    # How many independent iterates the tail is worth; infinite where it does not move.
    independent = np.full(variance.shape, np.inf)
    independent[moves] = np.minimum(effective_sample_size(tail[None, :, moves]), len(tail))
    if moves.any() and (typical := np.median(independent[moves])) < _FEWEST_INDEPENDENT:
        raise ValueError(
            f"The tail's {len(tail)} iterates are worth {typical:.1f} independent ones, and it takes {_FEWEST_INDEPENDENT:g}: "
            'their fluctuation is not seen. Plan more steps or a larger learning rate, or use method="regression".'
        )
    independent = np.maximum(independent, _FEWEST_INDEPENDENT)
    # n independent values with sample variance v, taken about their own mean: that mean has variance v / (n - 1).
    stddev = np.sqrt(np.where(moves, variance / (independent - 1), 0.0))

    def draws(rng: np.random.Generator, count: int) -> Float[np.ndarray, "draw dim"]:
        """Draws, mixed from the iterates themselves: coordinates that fluctuate together stay together."""
        scale = np.divide(stddev, centered.std(axis=0), out=np.zeros_like(stddev), where=stddev > 0)
        together = rng.standard_normal((count, len(tail))) @ (centered * scale) / np.sqrt(len(tail))
        freedom = np.where(stddev > 0, independent - 1, 1.0)
        return mean + together * np.sqrt(freedom / rng.chisquare(freedom, (count, len(freedom))))

    return mean, stddev, draws


@dataclasses.dataclass(frozen=True)
class LocationPosterior:
    """The posterior of x*, for each coordinate: a mixture over A of distributions that are normal given A and tau.

    Attributes:
        log_slopes: Nodes of log A.
        weights: Their posterior probabilities, with sums of 1.
        point_mean, gradient_mean: Over the trace.
        residual: Sum of squared residuals at each node.
        count: Number of pairs.
        least_noise: Lower bound of tau.
    """

    log_slopes: Float[np.ndarray, "node dim"]
    weights: Float[np.ndarray, "node dim"]
    point_mean: Vector
    gradient_mean: Vector
    residual: Float[np.ndarray, "node dim"]
    count: int
    least_noise: float

    def moments(self) -> tuple[Vector, Vector]:
        """Mean and standard deviation of x*."""
        slopes = np.exp(self.log_slopes)
        means = self.point_mean - self.gradient_mean / slopes
        # The mean of tau^2, to within what 1 / count matters.
        noise = np.maximum(self.residual / (self.count - 3), self.least_noise**2)
        mean = np.sum(self.weights * means, axis=0)
        within = noise / (self.count * np.square(slopes))
        return mean, np.sqrt(np.sum(self.weights * (within + np.square(means - mean)), axis=0))

    def draws(self, rng: np.random.Generator, count: int) -> Float[np.ndarray, "draw dim"]:
        """Draws of x*: A from its nodes, tau given A, x* given both."""
        uniform = rng.random((count, len(self.point_mean)))
        below = np.cumsum(self.weights, axis=0) - self.weights / 2
        columns = range(len(self.point_mean))
        log_slopes = np.stack([np.interp(uniform[:, i], below[:, i], self.log_slopes[:, i]) for i in columns], axis=1)
        residuals = [np.interp(log_slopes[:, i], self.log_slopes[:, i], self.residual[:, i]) for i in columns]
        residual, slopes = np.stack(residuals, axis=1), np.exp(log_slopes)
        shape = (self.count - 1) / 2
        possible = _probability(shape, residual, self.least_noise)
        scaled = gammaincinv(shape, np.maximum(possible, 1e-300) * rng.random(possible.shape))
        noise = np.maximum(np.sqrt(residual / 2 / np.maximum(scaled, 1e-300)), self.least_noise)
        normal = rng.standard_normal(noise.shape)
        return self.point_mean - self.gradient_mean / slopes + normal * noise / (slopes * np.sqrt(self.count))


def regress(
    *,
    points: Float[np.ndarray, "step dim"],
    gradients: Float[np.ndarray, "step dim"],
    least_noise: float,
    slope_guess: Vector,
) -> LocationPosterior:
    """The posterior of x*, coordinate by coordinate, by quadrature over log A; x* and tau are integrated exactly.

    The prior of x* is flat, that of tau is 1 / tau above `least_noise` (the mechanism's; sampling of batches adds to it),
    that of log A normal about the guess with a standard deviation of 1: at the optimum of a Gaussian guide the curvature
    is the inverse of the guide's variance. `points` are the iterates before the steps, `gradients` the noisy gradients of
    these steps.
    """
    points, gradients = points.astype(np.float64), gradients.astype(np.float64)
    x, g = points - points.mean(axis=0), gradients - gradients.mean(axis=0)
    xx, xg, gg = np.sum(x * x, axis=0), np.sum(x * g, axis=0), np.sum(g * g, axis=0)
    guess = np.log(slope_guess)

    def residual_at(log_slopes: Float[np.ndarray, "node dim"]) -> Float[np.ndarray, "node dim"]:
        slopes = np.exp(log_slopes)
        return np.maximum(gg - 2 * slopes * xg + np.square(slopes) * xx, 1e-300)

    def weights_at(log_slopes: Float[np.ndarray, "node dim"]) -> Float[np.ndarray, "node dim"]:
        residual, shape = residual_at(log_slopes), (len(x) - 1) / 2
        possible = np.log(np.maximum(_probability(shape, residual, least_noise), 1e-300))
        prior = -0.5 * np.square((log_slopes - guess) / _PRIOR_SPREAD)
        density = prior - log_slopes - shape * np.log(residual) + possible
        density = np.exp(density - density.max(axis=0))
        return density / density.sum(axis=0)

    reach = _REACH * _PRIOR_SPREAD * np.ones_like(guess)
    center, nodes, weights = guess, np.zeros((_NODES, len(guess))), np.zeros((_NODES, len(guess)))
    for _ in range(3):  # each time closer about where the mass is
        nodes = center + reach * np.linspace(-1, 1, _NODES)[:, None]
        weights = weights_at(nodes)
        center = np.sum(weights * nodes, axis=0)
        spread = np.sqrt(np.sum(weights * np.square(nodes - center), axis=0))
        reach = np.minimum(reach, _REACH * spread + 2 * reach / _NODES)
    means = points.mean(axis=0), gradients.mean(axis=0)
    return LocationPosterior(nodes, weights, *means, residual_at(nodes), len(x), least_noise)


def _probability(shape: float, residual: Float[np.ndarray, "..."], least_noise: float) -> Float[np.ndarray, "..."]:
    """The probability of noise above the least, under a prior without lower bound."""
    if least_noise == 0.0:
        return np.ones_like(residual)
    return gammainc(shape, residual / (2 * least_noise**2))


# --- Noise-aware posteriors ---


_FEWEST = 20
_SPREAD_DRAWS = 256
_ROUNDS = 3


@dataclasses.dataclass(frozen=True)
class NoiseAware:
    """A posterior that allows for the noise of the fit it comes from; made by `DPSVIResult.noise_aware`.

    Attributes:
        method: "trace" or "regression".
        start: Start of the tail used, as a fraction of the trace.
        corrected: Mask of the coordinates of `trace.iterates` that are uncertain here: all that move ("trace"), or the locations
            ("regression").
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
    _draws: Draws = dataclasses.field(repr=False, compare=False)
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
        note = f"The noise of the private fit is allowed for in these draws (method {self.method!r})."
        return to_arviz(self.posterior(key, num_samples), statement=self.statement, note=note, **names)

    def __getstate__(self) -> dict[str, Any]:
        """Refuse: the guide may be a local function."""
        raise TypeError("A NoiseAware holds the guide, so it is not pickled. Save the draws of its posterior.")


@functools.partial(jax.jit, static_argnums=0)
def _draw_each(objective: Objective, psi: Values, keys: PRNGKeyArray) -> dict[str, Array]:
    def one(psi: Values, key: PRNGKeyArray) -> dict[str, Array]:
        return jax.tree.map(lambda x: x[0], objective.draw_posterior(objective.constrain(psi), key, 1))

    return jax.vmap(one)(psi, keys)


def by_trace(objective: Objective, params: Values, trace: Trace, start: float | None, least_noise: float) -> NoiseAware:
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
    mean, stddev = trace.iterates[first:].mean(axis=0, dtype=np.float64), np.zeros(trace.iterates.shape[1])
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
        raise ValueError(f"start is {start}; it is a fraction of the trace, at least 0 and below 1.")
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
        raise ValueError("The iterates are not finite: the fit diverged. Plan again with a smaller learning rate.")
    return start, first


def _unravel_for(objective: Objective, params: Values) -> Callable[[Array], dict[str, Any]]:
    _, unravel = ravel_pytree(jax.tree.map(jnp.asarray, objective.unconstrain(params)))
    return unravel


def locations_of(objective: Objective, psi: Values) -> tuple[Int[np.ndarray, " dim"], Float[np.ndarray, " latent"]]:
    """The dependence of a guide's draws at `psi` on its parameters, from a few draws.

    A location moves one coordinate by as much as it is moved itself, whatever the guide draws: pulled back through
    the guide, each of a set of distinct numbers arrives at its location as it is.

    Returns:
        For each variational parameter, the coordinate of the unconstrained latents that it is added to, -1 for none; and the
        guide's variance of each of these coordinates.
    """
    drawn = _drawn(objective, psi)
    num_latents, found = drawn.shape[1], []
    for round_ in range(_ROUNDS):
        numbers = np.random.default_rng(round_).permutation(num_latents) + 1.0
        key = jax.random.key(round_)
        arrived = np.asarray(_pulled(objective, psi, key, jnp.asarray(numbers, drawn.dtype)), np.float64)
        nearest = np.clip(np.nan_to_num(np.round(arrived)), 1, num_latents)
        exact = np.abs(arrived - nearest) <= np.minimum(1e-4 * nearest, 0.25)
        found.append(np.where(exact, np.argsort(numbers)[nearest.astype(int) - 1], -1))
    latent = np.where(np.all(np.equal(found, found[0]), axis=0), found[0], -1)
    return latent, np.var(np.asarray(drawn, np.float64), axis=0, ddof=1)


def _unconstrained(objective: Objective, psi: Values, key: PRNGKeyArray) -> dict[str, Array]:
    everything = objective.structure.global_latents
    whole = dataclasses.replace(objective, touched_latents=everything, touched_params=(), num_particles=1)
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
