"""Where the iterates of a fit tend to, given the tail of its trace.

`tail_mean` looks at the iterates alone. `regress` looks at the gradients, too, and asks where the
expected gradient is zero: for each coordinate, with the iterate x_t before a step and the noisy
gradient g_t of the step,

    g_t | x_t ~ Normal(A (x_t - x*), tau^2),        unknown A > 0, x*, tau.

The next iterate is a function of x_t and g_t, whatever the optimizer, so the likelihood of the
whole trace is the product of these terms: that iterates resemble one another is no obstacle.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from numpyro.diagnostics import effective_sample_size
from scipy.special import gammainc, gammaincinv

from discreet.methods.inference._trace import Vector

_NODES = 201
# Standard deviation of the prior of log A about its guess: a factor of e either way.
_PRIOR_SPREAD = 1.0
_REACH = 6.0
_FEWEST_INDEPENDENT = 3.0
DrawFrom = Callable[[np.random.Generator, int], Float[np.ndarray, "draw dim"]]


def tail_mean(tail: Float[np.ndarray, "step dim"]) -> tuple[Vector, Vector, DrawFrom]:
    """The posterior of the iterates' limit by the mean of the tail: a t distribution for each coordinate.

    Returns:
        The mean; its standard deviation, which is that of the iterates over the root of the number
        of independent ones; and a function that draws from the posterior.
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
    # n independent values with sample variance v, taken about their own mean: that mean has
    # variance v / (n - 1).
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
        log_slopes = np.stack(
            [np.interp(uniform[:, i], below[:, i], self.log_slopes[:, i]) for i in columns], axis=1
        )
        residuals = [
            np.interp(log_slopes[:, i], self.log_slopes[:, i], self.residual[:, i]) for i in columns
        ]
        residual = np.stack(residuals, axis=1)
        slopes = np.exp(log_slopes)
        shape = (self.count - 1) / 2
        possible = _probability(shape, residual, self.least_noise)
        scaled = gammaincinv(shape, np.maximum(possible, 1e-300) * rng.random(possible.shape))
        noise = np.maximum(np.sqrt(residual / 2 / np.maximum(scaled, 1e-300)), self.least_noise)
        normal = rng.standard_normal(noise.shape)
        return (
            self.point_mean
            - self.gradient_mean / slopes
            + normal * noise / (slopes * np.sqrt(self.count))
        )


def regress(
    *,
    points: Float[np.ndarray, "step dim"],
    gradients: Float[np.ndarray, "step dim"],
    least_noise: float,
    slope_guess: Vector,
) -> LocationPosterior:
    """The posterior of x*, coordinate by coordinate, by quadrature over log A; x* and tau are integrated exactly.

    The prior of x* is flat, that of tau is 1 / tau above `least_noise` (the mechanism's; sampling
    of batches adds to it), that of log A normal about the guess with a standard deviation of 1: at
    the optimum of a Gaussian guide the curvature is the inverse of the guide's variance. `points`
    are the iterates before the steps, `gradients` the noisy gradients of these steps.
    """
    points = points.astype(np.float64)
    gradients = gradients.astype(np.float64)
    x = points - points.mean(axis=0)
    g = gradients - gradients.mean(axis=0)
    xx = np.sum(x * x, axis=0)
    xg = np.sum(x * g, axis=0)
    gg = np.sum(g * g, axis=0)
    guess = np.log(slope_guess)

    def residual_at(log_slopes: Float[np.ndarray, "node dim"]) -> Float[np.ndarray, "node dim"]:
        slopes = np.exp(log_slopes)
        return np.maximum(gg - 2 * slopes * xg + np.square(slopes) * xx, 1e-300)

    def weights_at(log_slopes: Float[np.ndarray, "node dim"]) -> Float[np.ndarray, "node dim"]:
        residual = residual_at(log_slopes)
        shape = (len(x) - 1) / 2
        possible = np.log(np.maximum(_probability(shape, residual, least_noise), 1e-300))
        prior = -0.5 * np.square((log_slopes - guess) / _PRIOR_SPREAD)
        density = prior - log_slopes - shape * np.log(residual) + possible
        density = np.exp(density - density.max(axis=0))
        return density / density.sum(axis=0)

    reach = _REACH * _PRIOR_SPREAD * np.ones_like(guess)
    center = guess
    nodes = np.zeros((_NODES, len(guess)))
    weights = np.zeros((_NODES, len(guess)))
    for _ in range(3):  # each time closer about where the mass is
        nodes = center + reach * np.linspace(-1, 1, _NODES)[:, None]
        weights = weights_at(nodes)
        center = np.sum(weights * nodes, axis=0)
        spread = np.sqrt(np.sum(weights * np.square(nodes - center), axis=0))
        reach = np.minimum(reach, _REACH * spread + 2 * reach / _NODES)
    means = points.mean(axis=0), gradients.mean(axis=0)
    return LocationPosterior(nodes, weights, *means, residual_at(nodes), len(x), least_noise)


def _probability(
    shape: float, residual: Float[np.ndarray, "..."], least_noise: float
) -> Float[np.ndarray, "..."]:
    """The probability of noise above the least, under a prior without lower bound."""
    if least_noise == 0.0:
        return np.ones_like(residual)
    return gammainc(shape, residual / (2 * least_noise**2))
