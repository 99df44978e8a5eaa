"""The estimate to predict with, and what the releases say about its use.

There are two posteriors. Intervals are of that under Normal(0, 1), which is wide: where the noise
hides a coefficient, its interval is the prior's. Its mean predicts badly there, as noise is all
that it follows. So the estimate is the mean under a prior of unknown scale, one for the intercept
and one for the weights: what does not stand out of the known noise is drawn to 0. Even so one fit
in many would predict worse than no line at all. `cautious` therefore draws the estimate further,
first of the weights to a flat line, then of the line to the middle, to where it gains the most with
nine chances in ten.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from discreet.methods.moments._posterior import FLOORS, Measurement, NormalPosterior
from discreet.methods.newton import WEIGHTS_HIDDEN
from discreet.privacy.report import COEFFICIENTS, NOT_USABLE, PREDICTION

WHICH_LINE = (
    "the intervals are for the line of least squares, with noise, sampling and clipping, as far as the noise shows how long "
    "residuals are. A few values far from all others may move it unseen"
)
_SURE = 0.5  # the lower limit of what predictions explain, over the mean, for the verdict that they are usable
_FLAT = 0.05  # share of the target's variance that is little
_SHARP = 3.0  # times the interval without noise: what coefficients are read from
_CAUTION = 1.28  # standard deviations: what is gained is that or more with nine chances in ten
_KEPT = 1.15  # of the share that gains the most then: 2 % less, and nothing is taken from an estimate that is sure


def use_of(
    wide: NormalPosterior, found: NormalPosterior, last: Measurement, weights_hidden: bool
) -> tuple[str, str]:
    """The verdict on the use of the result, and the reason, from the releases.

    The squared error of predictions is tr(S C) for second moments S of the features and the
    coefficients' covariance C; that of least squares without noise is the residuals' variance times
    (feature + 1) / N. Directions that the noise hides are in neither: there may be no records along
    them, as where indicators add up to 1. But at least half must be seen.
    """
    if weights_hidden:
        return NOT_USABLE, WEIGHTS_HIDDEN
    size = len(wide.mean)
    second = second_moments(last)
    seen = int(np.sum(last.eigenvalues > FLOORS[0] * last.noise * math.sqrt(2 * size)))
    sampling = found.variance * last.typical * max(seen, 1) / last.total
    wider = math.sqrt(np.trace(second @ wide.covariance) / sampling)
    if wider <= _SHARP and 2 * seen >= size:
        return COEFFICIENTS, WHICH_LINE
    low, middle, high = _explained(found, last)
    if low >= _SURE * middle > 0:
        return (
            PREDICTION,
            f"the noise makes intervals about {wider:.2g} times as wide as without it",
        )
    quality = (
        "hides the line: predictions are little better than one number for all"
        if high <= _FLAT
        else f"hides how good predictions are: they may explain {100 * max(low, 0):.0f} to {100 * min(high, 1):.0f} % of the "
        "target's variance"
    )
    return NOT_USABLE, (
        f"the noise {quality}. Intervals hold, but the noise makes them many times as wide. A larger epsilon, more records or "
        "fewer features help"
    )


def cautious(found: NormalPosterior, release: Measurement) -> np.ndarray:
    """The estimate, drawn towards a flat line and the middle where it may be worse than these.

    With S the features' second moments about their mean, predictions by c w instead of none change
    the squared error by c^2 w'Sw - 2 c w'S t for true weights t. That is normal. Its quantile of
    the chance asked for is c (c - 2 m) w'Sw, the least at c = m. Up to c = 2 m it is below 0; but
    where the posterior is too narrow, as in one fit of Abalone in 75 at ε = 0.03, that gave an R²
    of -1.9.
    """
    about, centre = _about(second_moments(release))
    weights = found.mean[1:]
    covariance = found.covariance

    def share(size: Any, variance: Any) -> float:
        return float(
            np.clip(_KEPT * (1 - _CAUTION * math.sqrt(max(variance, 0)) / max(size, 1e-300)), 0, 1)
        )

    along = about @ weights
    middle = centre @ found.mean
    slope = share(weights @ along, along @ covariance[1:, 1:] @ along) * weights
    level = share(middle**2, middle**2 * (centre @ covariance @ centre)) * middle
    return np.append(level - centre[1:] @ slope, slope)


def _explained(found: NormalPosterior, last: Measurement) -> tuple[float, float, float]:
    """The share of the target's variance that the estimate explains: lower limit, mean, upper limit.

    Each limit holds with nine chances in ten. With S the features' second moments about their mean,
    and v for the estimate, it is 2 v'S t - v'S v for true weights t.
    """
    about, _ = _about(second_moments(last))
    slopes = cautious(found, last)[1:]
    weights = found.mean[1:]
    along = about @ slopes
    mean = 2 * along @ weights - along @ slopes
    spread = 2 * math.sqrt(along @ found.covariance[1:, 1:] @ along)
    total = found.variance + max(weights @ about @ weights, 0)
    low, high = ((mean + place * _CAUTION * spread) / total for place in (-1, 1))
    return float(low), float(mean / total), float(high)


def second_moments(release: Measurement) -> np.ndarray:
    """The released second moments of (1, x)."""
    back = np.linalg.inv(release.to)
    return back.T @ release.features @ back / release.weight


def _about(second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Second moments of x about its mean, and (1, mean)."""
    # the constant's own is 1 but for the noise
    centre = np.append(1, second[0, 1:] / max(second[0, 0], 1))
    return second[1:, 1:] - np.outer(centre[1:], second[0, 1:]), centre
