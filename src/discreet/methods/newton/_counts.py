"""Where to cut the residuals of counts, from a noisy histogram of them.

A count may be far from its mean, so its residual is cut at R. A cut moves the fit, since residuals
are skewed. Two remedies: R is as large as the noise makes worth while (`reach`); and within the cut
the residual is shifted by e(m), so that its mean is 0 under a negative binomial of mean m and the
histogram's dispersion (Cantoni and Ronchetti, JASA 2001, with the shift inside the cut, so that the
bound stays R). What neither undoes is counted as noise (`excess`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

EDGES = np.append([-0.5, 0.5], 2.0 ** np.arange(0, 13) + 0.5)
"""Bins of a count: 0, and doubling ones. Larger counts are in none."""
MIDDLES = np.append(0.0, (EDGES[2:] + EDGES[1:-1]) / 2)
NUM_BINS = len(MIDDLES)
RATIOS = 2.0 ** np.arange(0, 3, 0.5)
"""Cuts over R for which there is a table: rows of small weight are cut later."""
LOG_MEANS = np.linspace(-6.0, 6.0, 61)
SHARE_LOST = 0.15
"""Of what a cut takes from the residuals' sum, the part that is not undone by the shift, in a direction."""
DISPERSIONS = 2.0 ** np.arange(-4, 6, 0.5)
HALF_STEP = 2.0 ** np.array([-0.25, 0.25])
"""What lies between two dispersions is plausible if one of them is."""
_STANDS_OUT = 3.0  # standard deviations
_DOUBTFUL = 2.7  # 0.9 quantile of a chi-squared of one degree
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)


def _below(counts: np.ndarray, dispersion: float, chance: np.ndarray) -> np.ndarray:
    """The negative binomial's distribution function. SciPy's statistics take half as long to import as JAX."""
    from scipy.stats import nbinom

    return nbinom.cdf(counts, dispersion, chance)


class Shift(NamedTuple):
    """For each cut of `RATIOS` and mean of `LOG_MEANS`, the shift of the residual, and the factor of m in the curvature."""

    shift: Float[np.ndarray, "ratio mean"]
    factor: Float[np.ndarray, "ratio mean"]


class Counts:
    """The distribution of the counts, as far as a noisy histogram shows it.

    Attributes:
        mean: Mean count.
        dispersion: k of a negative binomial, whose variance is m + m^2 / k.
        plausible: Its 90 % interval, by the ratio of likelihoods, whatever the spread of the
            records' means.
    """

    def __init__(
        self, histogram: Float[np.ndarray, " bin"], sigma: float, scatter: float = 1.0
    ) -> None:
        """Read a histogram, with noise of standard deviation `sigma`.

        Its sampling variance is `scatter` times that of as many independent rows of equal weight.
        """
        # The plan's number of records may be far from theirs.
        seen_records = float(np.clip(histogram.sum(), 1.0, None))
        self._histogram = histogram
        self._sigma = sigma
        self._scatter = scatter
        self._num_records = seen_records
        seen = histogram > _STANDS_OUT * sigma
        last = int(np.max(np.flatnonzero(seen), initial=1))
        tail = np.where(np.arange(NUM_BINS) <= last, np.maximum(histogram, 0.0), 0.0)
        tail[min(last + 1, NUM_BINS - 1)] += sigma  # what the noise may hide in the next bin
        self._tail = tail
        shown = histogram * seen
        self.mean = max(float(shown @ MIDDLES) / max(float(shown.sum()), 1.0), 0.05)
        self.dispersion = 1.0
        self.plausible = DISPERSIONS[[0, -1]]
        self.fit(0.0)

    def fit(self, spread: float) -> None:
        """Find mean and dispersion by weighted least squares of the bins.

        Args:
            spread: Standard deviation of the logarithm of the records' means, which are log-normal.
        """
        around = self.mean
        losses, means = self._losses(around, spread)
        best = int(np.argmin(losses))
        self.dispersion, self.mean = float(DISPERSIONS[best]), float(means[best])
        # Noise enlarges the spread, which then takes the dispersion's place: without it, all
        # scatter is dispersion.
        alone, _ = self._losses(around, 0.0)
        plausible = np.minimum(losses - losses.min(), alone - alone.min()) <= _DOUBTFUL
        self.plausible = DISPERSIONS[plausible][[0, -1]] * HALF_STEP

    def _losses(self, around: float, spread: float) -> tuple[np.ndarray, np.ndarray]:
        """How far the bins are from what each dispersion expects, with the mean at which they are nearest."""
        nodes = np.exp(spread * _NODES - spread**2 / 2)
        losses = []
        means = []
        for dispersion in DISPERSIONS:
            found = []
            for mean in around * np.array([0.8, 1.0, 1.25]):
                chance = dispersion / (dispersion + mean * nodes[:, None])
                shares = np.diff(_below(EDGES, dispersion, chance), axis=1)
                expected = self._num_records * (_WEIGHTS / _WEIGHTS.sum()) @ shares
                variance = self._sigma**2 + self._scatter * expected + (0.05 * expected) ** 2
                found.append(
                    (float((np.square(self._histogram - expected) / variance).sum()), mean)
                )
            loss, mean = min(found)
            losses.append(loss)
            means.append(mean)
        return np.array(losses), np.array(means)

    def excess(self, cut: float) -> float:
        """At most what a cut takes from the sum of all residuals."""
        return float(self._tail @ np.maximum(MIDDLES - self.mean - cut, 0.0))

    def reach(self, noise: float) -> float:
        """The cut with the least error: bias against noise, of which a cut of 1 makes so much in the whole gradient."""
        cuts = 2.0 ** np.arange(1, 10, 0.5)
        return float(
            min(cuts, key=lambda cut: (noise * cut) ** 2 + (SHARE_LOST * self.excess(cut)) ** 2)
        )

    def shift(self, cut: float) -> Shift:
        """The shifts that keep residuals centred, for cuts of `cut` times RATIOS; at most a quarter of the cut."""
        means = np.exp(LOG_MEANS)
        counts = np.unique(
            np.concatenate([np.arange(200), np.geomspace(200, 6000, 150).astype(int)])
        )
        chance = self.dispersion / (self.dispersion + means)
        shares = np.diff(_below(counts[None], self.dispersion, chance[:, None]), axis=1, prepend=0)
        shares[:, -1] += 1 - shares.sum(axis=1)
        residuals = counts - means[:, None]
        shifts = []
        factors = []
        for own in cut * RATIOS:
            shift = np.zeros(len(means))
            for _ in range(40):
                left = (shares * np.clip(residuals + shift[:, None], -own, own)).sum(axis=1)
                shift = np.clip(shift - left, 0, np.minimum(means, own / 4))
            inside = (shares * (np.abs(residuals + shift[:, None]) < own)).sum(axis=1)
            shifts.append(shift)
            factors.append(inside * np.clip(1 - np.gradient(shift, means), 0.1, 1))
        return Shift(np.array(shifts), np.array(factors))
