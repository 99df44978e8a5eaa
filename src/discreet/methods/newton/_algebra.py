"""What follows from the releases of a private Newton fit: spectra, priors, the posterior. No record is seen here.

Coordinates. The features x (with a leading 1) are mapped to z = x @ to, in which their second
moments are near a multiple of the identity; theta = inverse(to) @ coefficients. A released gradient
at the point theta_t is J (theta - theta_t) plus noise, where J is the curvature and theta what the
exact fit would find, so a few of them give theta by regression. Two noises lie on it: that of the
releases, and that of the records' drawing, V, which a fit without privacy has too. `likelihood` has
both; priors come on top, one for intervals and one for predictions.

Noisy matrices overstate their largest eigenvalues and understate the smallest. `gathered` undoes
that, for steps and predictions; `spectrum` and `soft` shrink what does not stand out of the noise,
for intervals. What is left of it is counted as noise of the gradients (`Evidence.extra`).
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import eigh, solve_triangular
from threadpoolctl import threadpool_limits

if TYPE_CHECKING:
    from discreet.methods.newton._bend import Along

Matrix = Float[np.ndarray, "latent latent"]
Vector = Float[np.ndarray, " latent"]

_in_turn = threading.Lock()
_inside = 0
_limits: list[threadpool_limits] = []


@contextmanager
def one_thread() -> Iterator[None]:
    """Context in which NumPy's and SciPy's linear algebra has one thread, in all of this process.

    Matrices here are small: threads wait for each other longer than they multiply, on a busy machine
    many times as long. Of fits at the same time the last one to end sets the number back.
    """
    global _inside
    with _in_turn:
        if not _inside:
            _limits.append(threadpool_limits(1, user_api="blas"))
        _inside += 1
    try:
        yield
    finally:
        with _in_turn:
            _inside -= 1
            if not _inside:
                _limits.pop().restore_original_limits()


SCALES = 2.0 ** -np.arange(8)
"""Standard deviations of the coefficients' prior, over the stated ones. Steps use all, predictions the first four."""
NUM_PREDICTIVE = 4
NUM_DRAWS = 500
BURN_IN = 60
TRUST = 1.0  # a gradient counts as far as the step that it asks for is short
FARTHEST = 1.0  # step of theta in a round, where the curvature changes
SECANT_TRUST = 0.3
SECANT_ERROR = 0.1  # standard deviation of an entry of J, over its mean eigenvalue, before the gradients are looked at
SCALE_ERROR, LEAST_SCALE = (
    0.3,
    0.1,
)  # of `scale_of`: its standard deviation before the gradients, and its least value
LEAST_CURVATURE = 0.003  # of the largest possible one
DOUBTED_NOISE = 3.0
DOUBTED_SHARE = 0.15
"""An eigenvalue of the curvature that counts half: in deviations of the noise; of own models at most this share of their mean."""
KEPT = 0.65
HIDING = 0.8
"""A usable fit keeps that share of the gain, unless there is less noise than sampling: then there is little to gain."""


def rebuilt(matrix: Matrix, change: Callable[[Vector], Vector]) -> Matrix:
    """A symmetric matrix with changed eigenvalues."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * change(values)) @ vectors.T


def sure_part(curvature: Matrix, doubt: float) -> Matrix:
    """A curvature, less in directions in which it may be noise: there records may say nearly nothing.

    Args:
        curvature: The curvature.
        doubt: An eigenvalue that counts half.
    """
    return rebuilt(curvature, lambda values: values**3 / (values**2 + doubt**2))


Shrinkage = Callable[[Vector, float], Vector]


def soft(values: Vector, sigma: float) -> Vector:
    """Shrink eigenvalues that the noise of a symmetric matrix may have made: its edge is sigma sqrt(2 size).

    What lies within the edge is kept in part: directions that the noise hides stay uncertain, as
    intervals need it.
    """
    return values**3 / (values**2 + sigma**2 * len(values) + 1e-300)


def hard(values: Vector, sigma: float) -> Vector:
    """Shrink eigenvalues within the edge to 0 where the matrix is mostly noise, and as `soft` where it stands out.

    The two rules are weighted by the share of the sum of squares that is not noise. The first is
    the best in the Frobenius norm (Gavish and Donoho, IEEE Trans. IT 2017); without it, maps and
    steps follow the noise of wide matrices.
    """
    size = len(values)
    edge = 2 * sigma**2 * size
    of_noise = sigma**2 * size * (size - 1) / 2
    squares = np.square(values)
    beyond = max(float(squares.sum()) - of_noise, 0.0)
    share = beyond / (beyond + of_noise + 1e-300)
    kept = np.sign(values) * np.sqrt(np.maximum(squares - edge, 0))
    return share * soft(values, sigma) + (1 - share) * kept


def gathered(values: Vector, sigma: float) -> Vector:
    """Eigenvalues as they were without the noise of a symmetric matrix, which drives them apart; hidden ones become their mean.

    The noise adds to each, on average, sigma^2 times the sum of the inverse distances from the
    others. Less that, a value is what the matrix without noise has in the noisy direction (Bun,
    Allez, Bouchaud and Potters, IEEE Trans. IT 2016). Of few values that is uncertain: their
    distances from the mean count by the root of the share of squares that is not noise.
    """
    size = len(values)
    away = values - values.mean()
    apart = away[:, None] - away
    found = away - sigma**2 * np.sum(apart / (apart**2 + 2 * sigma**2 + 1e-300), axis=1)
    of_noise = sigma**2 * size * (size - 1) / 2
    beyond = max(float(np.square(away).sum()) - of_noise, 0.0)
    return values.mean() + np.sqrt(beyond / (beyond + of_noise + 1e-300)) * found


def lowered(values: Vector, least: float, total: float) -> Vector:
    """Values of at least `least`, all others lowered by one number if they would add up to more than `total`."""
    size = len(values)
    counts = np.arange(1, size + 1)
    sums = np.cumsum(np.sort(values)[::-1]) + (size - counts) * least
    shift = max(float(np.max((sums - total) / counts)), 0.0)
    return np.maximum(values - shift, least)


def spectrum(
    raw: Matrix,
    sigma: float,
    least: float,
    farthest: float = np.inf,
    shrinkage: Shrinkage = soft,
    total: float = np.inf,
) -> tuple[Vector, Matrix]:
    """Eigenvalues and vectors of a positive estimate of a noisy second-moment matrix, of a trace of at most `total`.

    The noise of wide matrices has many large eigenvalues of both signs. Without the negative ones,
    the trace would be far more than what was released: so all are lowered (as in Smolin, Gambetta
    and Smith, PRL 2012).

    The diagonal is shrunk towards its mean, the rest by eigenvalue: where noise hides correlations,
    a diagonal is left. One entry that is unlike the others is moved by at most `farthest` standard
    deviations of the noise (Efron and Morris, JASA 1972).
    """
    diagonal = np.diag(raw)
    mean = max(float(diagonal.mean()), least)
    between = max(float(diagonal.var()) - sigma**2, 0.0)
    gain = between / (between + sigma**2 + 1e-300)
    off = diagonal - mean
    moved = np.maximum(np.abs(off) * gain, np.abs(off) - farthest * sigma)
    kept = np.maximum(mean + np.sign(off) * moved, least)
    rest = rebuilt(raw - np.diag(diagonal), lambda values: shrinkage(values, sigma))
    values, vectors = np.linalg.eigh(np.diag(kept) + rest)
    return lowered(values, least, total), vectors


class NormalLikelihood(NamedTuple):
    """A normal likelihood of theta: exp(-theta @ precision @ theta / 2 + pull @ theta)."""

    precision: Matrix
    pull: Vector


@dataclasses.dataclass(frozen=True)
class Prior:
    """Independent normals for the weights, and one for the intercept at the mean of the features.

    Attributes:
        precisions: Of the intercept and the weights, under the stated scale.
        centred: From theta to the predictor at the features' mean, and the weights.
        outputs: Numbers of a predictor; each has an intercept and weights, one after another.
    """

    precisions: Vector
    centred: Matrix
    outputs: int = 1

    @classmethod
    def of(
        cls, intercept: float, weights: Vector, centre: Vector, to: Matrix, outputs: int = 1
    ) -> Prior:
        """From standard deviations, the features' mean (with a leading 1), and the map of the features."""
        shift = np.eye(len(to))
        shift[0] = centre
        precisions = np.tile(np.append(intercept, weights) ** -2.0, outputs)
        return cls(precisions, np.kron(np.eye(outputs), shift @ to), outputs)

    def matrix(self, scale: float) -> Matrix:
        """Precision of theta where all weights have this scale."""
        precisions = self.precisions.copy()
        precisions.reshape(self.outputs, -1)[:, 1:] /= scale**2
        return (self.centred.T * precisions) @ self.centred

    @functools.cached_property
    def _of_scales(self) -> list[tuple[Matrix, float]]:
        """The same matrices of all scales, and the logarithms of their determinants: a fit asks for each some sixty times."""
        matrices = [self.matrix(float(scale)) for scale in SCALES]
        return [(matrix, np.linalg.slogdet(matrix)[1]) for matrix in matrices]

    def mixture(self, likelihood: NormalLikelihood, num_scales: int) -> tuple[Vector, Matrix]:
        """Mean and covariance of theta where all weights have one scale of so many, equally likely before."""
        evidence = []
        means = []
        covariances = []
        for precision, size in self._of_scales[:num_scales]:
            covariance = np.linalg.inv(likelihood.precision + precision)
            mean = covariance @ likelihood.pull
            sizes = size + np.linalg.slogdet(covariance)[1]
            evidence.append((sizes + mean @ likelihood.pull) / 2)
            means.append(mean)
            covariances.append(covariance)
        return _mixed(evidence, means, covariances)

    def draws(
        self, likelihood: NormalLikelihood, rng: np.random.Generator
    ) -> Float[np.ndarray, "draw latent"]:
        """Draws of theta where each weight has a scale of its own, the same for all outputs, by Gibbs sampling.

        Weight j has the scale SCALES[k] with probability p[k], and p is uniform (a local scale for
        each, as in Stephens, False discovery rates, Biostatistics 2017).
        """
        size = len(self.precisions) // self.outputs
        scales = SCALES[:NUM_PREDICTIVE]
        back = np.linalg.inv(self.centred)
        precision = back.T @ likelihood.precision @ back
        pull = back.T @ likelihood.pull
        of_scale = self.precisions[1:size, None] * scales**-2.0
        chosen = np.full(size - 1, len(scales) // 3)
        chances = np.full(len(scales), 1 / len(scales))
        own = self.precisions.copy()
        found = np.empty((NUM_DRAWS, len(own)))
        for sweep in range(BURN_IN + NUM_DRAWS):
            own.reshape(self.outputs, size)[:, 1:] = of_scale[np.arange(size - 1), chosen]
            unit = 1 / np.sqrt(np.diag(precision) + own)
            root = np.linalg.cholesky((precision + np.diag(own)) * unit * unit[:, None])
            white = solve_triangular(root, pull * unit, lower=True) + rng.normal(size=len(own))
            beta = unit * solve_triangular(root.T, white)
            squares = np.square(beta.reshape(self.outputs, size)[:, 1:]).sum(axis=0)
            fit = (self.outputs * np.log(of_scale) - of_scale * squares[:, None]) / 2 + np.log(
                chances
            )
            odds = np.exp(fit - fit.max(axis=1, keepdims=True)).cumsum(axis=1)
            chosen = (odds < rng.random(size - 1)[:, None] * odds[:, -1:]).sum(axis=1)
            chances = rng.dirichlet(1 + np.bincount(chosen, minlength=len(scales))) + 1e-12
            if sweep >= BURN_IN:
                found[sweep - BURN_IN] = beta
        return found @ back.T


class NormalPrior(NamedTuple):
    """One of some normals, equally likely before.

    Attributes:
        means: Their means.
        precisions: Their precisions.
    """

    means: Float[np.ndarray, "scale latent"]
    precisions: Float[np.ndarray, "scale latent latent"]

    def mixture(self, likelihood: NormalLikelihood, num_scales: int) -> tuple[Vector, Matrix]:
        """Mean and covariance of theta."""
        del num_scales
        evidence = []
        means = []
        covariances = []
        for before, precision in zip(self.means, self.precisions, strict=True):
            covariance = np.linalg.inv(likelihood.precision + precision)
            pull = likelihood.pull + precision @ before
            mean = covariance @ pull
            sizes = np.linalg.slogdet(precision)[1] + np.linalg.slogdet(covariance)[1]
            evidence.append((sizes + mean @ pull - before @ precision @ before) / 2)
            means.append(mean)
            covariances.append(covariance)
        return _mixed(evidence, means, covariances)


def _mixed(
    evidence: list[float], means: list[Vector], covariances: list[Matrix]
) -> tuple[Vector, Matrix]:
    """Mean and covariance of a mixture, by the logarithm of each part's evidence."""
    chances = np.exp(np.array(evidence) - max(evidence))
    chances /= chances.sum()
    mean = chances @ np.array(means)
    off = np.array(means) - mean
    spread = (off.T * chances) @ off
    return mean, np.einsum("k,kij->ij", chances, np.array(covariances)) + spread


class Gradients(NamedTuple):
    """Released gradients, the points that they were taken at, and the standard deviation of their noise."""

    points: Float[np.ndarray, "step latent"]
    values: Float[np.ndarray, "step latent"]
    sigma: float | Float[np.ndarray, " step"]

    def weights(
        self, curvature: Matrix, around: Vector, trust: float
    ) -> Float[np.ndarray, " step"]:
        """The precision with which each tells of theta near a point: the curvature changes on the way."""
        steps = (around - self.points) @ curvature
        return 1 / (self.sigma**2 + trust**2 * np.square(steps).sum(axis=1) / len(around))


class Evidence(NamedTuple):
    """A likelihood with the parts of its noise.

    Attributes:
        likelihood: The likelihood of theta.
        noise: Variance of a coordinate of the gradients' mean, from privacy.
        more: Covariance of the same from the error of the curvature, and from what cutting
            residuals may have moved.
    """

    likelihood: NormalLikelihood
    noise: float
    more: Matrix

    @property
    def extra(self) -> float:
        """The mean variance in `more`."""
        return float(np.diag(self.more).mean())


def settle(
    gradients: Gradients,
    curvature: Matrix,
    sampling: Matrix,
    prior: Prior | NormalPrior,
    start: Vector,
    *,
    num_scales: int = 1,
    rounds: int,
    extra: Callable[[Vector, Vector], Matrix] | None = None,
    spread: Vector | None = None,
    trust: float = TRUST,
    shown: Matrix | None = None,
    near: Callable[[Vector], tuple[Matrix, Matrix, Gradients]] | None = None,
    outward: Callable[[Vector, Matrix, Matrix], Vector] | None = None,
) -> tuple[Vector, Matrix, Evidence]:
    """The fixed point of theta and the evidence near it: mean and covariance of theta, and the evidence.

    Args:
        gradients: The released gradients.
        curvature: J.
        sampling: V.
        prior: The prior.
        start: Where to begin.
        num_scales: As in `Prior.mixture`.
        rounds: Rounds at most.
        extra: Covariance beside that of the releases, from the squared distance of theta from the
            mean of the gradients' points, and from its variance, both by coordinate.
        spread: That variance, to begin with.
        trust: How much less a gradient counts that was released far away.
        shown: Projection to the directions in which the likelihood may change; only along these
            does `extra` grow. None: all.
        near: J, V and the gradients near a point, if J is not the same everywhere. Rounds then go
            no farther than `FARTHEST` each, and less far once they go back.
        outward: A pull beside that of the gradients, from a point, the other noise and V.
    """
    around = start
    farthest = FARTHEST
    last_way = np.zeros_like(start)
    ones = np.eye(len(start))
    shown = ones if shown is None else shown
    more = np.zeros_like(ones)
    variance = np.zeros_like(start) if spread is None else spread
    for _ in range(rounds):
        if near is not None:
            curvature, sampling, gradients = near(around)
        weights = gradients.weights(curvature, around, trust)
        noise = 1 / weights.sum()
        middle = noise * (weights @ gradients.points)
        seen = curvature @ middle + noise * (weights @ gradients.values)
        if extra is not None:
            more = extra(np.square(shown @ (around - middle)), variance)
        # seen = curvature @ theta + Normal(0, sampling + noise I + more).
        solved = np.linalg.solve(sampling + noise * ones + more, curvature)
        pull = solved.T @ seen
        if outward is not None:
            pull = pull + outward(around, noise * ones + more, sampling)
        likelihood = NormalLikelihood(curvature @ solved, pull)
        found = Evidence(likelihood, noise, more)
        mean, covariance = prior.mixture(found.likelihood, num_scales)
        variance = np.diag(shown @ covariance @ shown)
        way = mean - around
        moved = np.abs(way).max()
        if near is not None:
            if last_way @ way < 0:
                farthest = min(farthest, float(np.linalg.norm(last_way))) / 2
            way = way * min(1.0, farthest / max(float(np.linalg.norm(way)), 1e-12))
            last_way = way
            mean = around + way
        around = mean
        if moved < 1e-5:
            break
    return around, covariance, found


def _about_last(
    gradients: Gradients, curvature: Matrix
) -> tuple[Float[np.ndarray, " step"], np.ndarray, np.ndarray]:
    """The gradients' weights near their last point; points and values, less their weighted means."""
    weights = gradients.weights(curvature, gradients.points[-1], SECANT_TRUST)
    shares = weights / weights.sum()
    return (
        weights,
        gradients.points - shares @ gradients.points,
        gradients.values - shares @ gradients.values,
    )


def secant(
    curvature: Matrix,
    gradients: Gradients,
    least: float,
    most: float = np.inf,
    along: Along | None = None,
) -> Matrix:
    """The curvature regressed on the gradients at their points; `curvature` is its mean before, the rest bounds eigenvalues.

    Where it is far less `along` a direction, its error before is less there, too.
    """
    size = len(curvature)
    variance = (SECANT_ERROR * np.trace(curvature) / size) ** 2
    weights, points, values = _about_last(gradients, curvature)
    lack = -values - points @ curvature
    weighted = points * weights[:, None]
    told = weighted.T @ points, weighted.T @ lack
    if along is None:
        change = np.linalg.solve(told[0] + np.eye(size) / variance, told[1])
    else:
        known, wanted = (along.basis.T @ matrix @ along.basis for matrix in told)
        errors = along.errors(variance, curvature)
        columns = [
            np.linalg.solve(known + np.diag(1 / errors[min(place, 1)]), wanted[:, part])
            for place, part in enumerate((slice(0, 1), slice(1, size)))
        ]
        change = along.basis @ np.concatenate(columns, axis=1) @ along.basis.T
    found = curvature + (change + change.T) / 2
    values = np.linalg.eigvalsh(found)
    if least <= values[0] and values[-1] <= most:
        return found
    return rebuilt(found, lambda values: np.clip(values, least, most))


def scale_of(curvature: Matrix, gradients: Gradients, most: float) -> float:
    """How many times the curvature is what the gradients show at their points: at most `most`, with the prior Normal(1, 0.3^2).

    The second moment of records' gradients is the curvature where the model is right. Where records
    vary more than the model says, as real counts do, the curvature is a part of it; where they vary
    less, as about a line with too large a scale, it is more, and steps would be too long.
    """
    weights, points, values = _about_last(gradients, curvature)
    said = points @ curvature
    before = SCALE_ERROR**-2
    found = weights @ (said * -values).sum(axis=1) + before
    return float(
        np.clip(found / (weights @ np.square(said).sum(axis=1) + before), LEAST_SCALE, most)
    )


class Diagnosis(NamedTuple):
    """What the releases say about a fit.

    Attributes:
        kept: The share of what the model gains in log-likelihood over its intercept that the
            estimate keeps.
        ratio: Standard deviation of the releases' noise over that of sampling.
        moved: Distance of the estimate from the mean of the last third of the points, over its own
            spread.
        lack: By how many standard deviations the last third of the gradients misses what the
            curvature says.
    """

    kept: float
    ratio: float
    moved: float
    lack: float


def hides(kept: float, ratio: float) -> bool:
    """True if the noise hides what the features add, from `Diagnosis.kept` and `ratio`."""
    return kept < KEPT and ratio > HIDING


def known_less(
    precision: Matrix, pull: Vector, place: int, moved: float, deviation: float
) -> tuple[Matrix, Vector]:
    """A normal likelihood whose estimate of one coordinate is too large by Normal(moved, deviation^2)."""
    own = precision[place]
    left = 1 / (1 + deviation**2 * own[place])
    wider = precision - deviation**2 * left * np.outer(own, own)
    return wider, pull - own * left * (deviation**2 * pull[place] + moved)


def is_settled(moved: float, lack: float) -> bool:
    """True if more gradients would hardly move the estimate, and agree with the curvature."""
    return lack <= 3 and moved <= 0.5


def agreement(
    gradients: Gradients,
    curvature: Matrix,
    theta: Vector,
    spread: float,
    num_flat: int = 0,
) -> tuple[float, float]:
    """`Diagnosis.moved` and `lack` of an estimate.

    Args:
        gradients: The released gradients.
        curvature: The curvature.
        theta: The estimate.
        spread: The trace of its covariance in units of the curvature.
        num_flat: Number of directions in which the gradients are known to be 0.
    """
    size = len(theta) - num_flat
    last = max(len(gradients.points) // 3, 1)
    away = theta - gradients.points[-last:].mean(axis=0)
    missed = gradients.values[-last:].mean(axis=0) - curvature @ away
    sigma = np.broadcast_to(gradients.sigma, len(gradients.points))[-last:]
    lack = np.square(missed).sum() / (np.square(sigma).mean() / last) - size
    return float(np.sqrt(away @ curvature @ away / spread)), float(lack / np.sqrt(2 * size))


def least_ratio(curvature: Matrix, sampling: Matrix) -> float:
    """The least of v'Jv / v'Vv over all directions v, for the curvature J and the gradients' second moment V."""
    return float(eigh(curvature, sampling, eigvals_only=True)[0])


def ratio_of(noise: float, sampling: Matrix) -> float:
    """`Diagnosis.ratio`, from the variance of a coordinate of the gradients' mean."""
    return float(np.sqrt(noise * len(sampling) / np.trace(sampling)))


def diagnose(
    gradients: Gradients,
    curvature: Matrix,
    sampling: Matrix,
    noise: float,
    draws: Float[np.ndarray, "draw latent"],
    ones: Float[np.ndarray, "latent output"],
    halfway: Matrix | None = None,
) -> Diagnosis:
    """Judge a fit by its releases; `draws` are the predictive's, `ones` are the intercepts in theta's coordinates.

    The gain is by the curvature `halfway` to 0, if it is not the same everywhere.
    """
    theta = draws.mean(axis=0)
    spread = float(np.trace(curvature @ np.cov(draws.T)))
    mean = curvature if halfway is None else halfway
    along = theta @ mean @ ones
    gain = theta @ mean @ theta - along @ np.linalg.solve(ones.T @ mean @ ones, along)
    moved, lack = agreement(gradients, curvature, theta, spread)
    return Diagnosis(float(gain / (gain + spread)), ratio_of(noise, sampling), moved, lack)
