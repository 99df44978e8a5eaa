"""From the scores of two sets of runs to a test, chosen on one half of them and judged by the other."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from discreet.audit._bounds import clopper_pearson, epsilon_lower_bound

# A test that is chosen is one that luck has favoured: choosing by surer bounds favours those that will hold up.
_SURER = 10.0
_ENDS = 512
_BETWEEN = 512


@dataclasses.dataclass(frozen=True)
class Rates:
    """What one test reached on runs that had no part in choosing it.

    Attributes:
        score: name of the score whose tail is the test.
        says: what the test says in that tail: "with", that the canary is there, or "without".
        caught: how often it said so where it is true.
        false_alarms: how often where it is not.
        trials: runs of each kind.
        true_positive_rate: lower bound on the first's probability.
        false_positive_rate: upper bound on the second's. Both hold together with the confidence asked for.
    """

    score: str
    says: str
    caught: int
    false_alarms: int
    trials: int
    true_positive_rate: float
    false_positive_rate: float

    @classmethod
    def of(cls, score: str, says: str, caught: int, false_alarms: int, trials: int, confidence: float) -> Rates:
        """The rates of a test, half of the error left to each of its two bounds."""
        level = (1 - confidence) / 2
        low, _ = clopper_pearson(caught, trials, level)
        _, high = clopper_pearson(false_alarms, trials, level)
        return cls(score, says, int(caught), int(false_alarms), trials, float(low), float(high))

    def epsilon(self, delta: float) -> float:
        """Lower bound on ε at δ: log((TPR - δ) / FPR). It holds for all δ at once."""
        return float(epsilon_lower_bound(self.true_positive_rate, self.false_positive_rate, delta))

    @property
    def mu(self) -> float:
        """The program is not μ-Gaussian private for any μ below this: the difference of the rates' normal quantiles.

        Reference:
            Dong, Roth and Su, Gaussian differential privacy, JRSS B 84(1), 2022; as an audit: Nasr et al., USENIX Security 2023.
        """
        rates = np.array([self.true_positive_rate, self.false_positive_rate])
        if rates[0] <= rates[1]:
            return 0.0
        return max(0.0, float(np.subtract(*stats.norm.ppf(rates))))


def judge(
    present: Mapping[str, Float[np.ndarray, " run"]],
    absent: Mapping[str, Float[np.ndarray, " run"]],
    *,
    delta: float,
    confidence: float,
) -> Rates:
    """Choose the best test among the tails of all scores on the first half of the runs, and judge it by the second.

    Guarantee: if the runs are independent, the bounds of what is returned hold together with probability `confidence`, so
    `Rates.epsilon` exceeds the true ε with probability at most 1 - confidence, at all δ together. The second half sees one test
    only, so nothing is paid for the choice. A score may have been made with the first half too, not with the second.

    Args:
        present: for each score its values in runs with the canary.
        absent: the same without it; as many.
        delta: the δ for which the test should be good.
        confidence: such as 0.99.

    Raises:
        ValueError: fewer than four runs of each kind, different numbers, or a score that is no number.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; it is a probability below 1, such as 0.99.")
    if not 0 <= delta < 1:
        raise ValueError(f"delta is {delta}; give a number from 0 up to 1, well below 1 / number of records.")
    level = (1 - confidence) / 2 / _SURER
    best: tuple[float, Rates | None] = (-1.0, None)
    for name in present:
        there, gone = _checked(name, present[name], absent[name])
        half = len(there) // 2
        for says, top, bottom in (("with", there, gone), ("without", gone, there)):
            for sign in (1.0, -1.0):
                found, threshold = _best_threshold(sign * top[:half], sign * bottom[:half], delta, level)
                if found > best[0]:
                    caught, wrong = (int(np.sum(sign * x[half:] > threshold)) for x in (top, bottom))
                    best = found, Rates.of(name, says, caught, wrong, len(there) - half, confidence)
    assert best[1] is not None
    return best[1]


def _checked(name: str, there: Any, gone: Any) -> tuple[np.ndarray, np.ndarray]:
    there, gone = np.asarray(there, np.float64), np.asarray(gone, np.float64)
    if there.ndim != 1 or there.shape != gone.shape or len(there) < 4:
        raise ValueError(
            f"The score {name!r} has shapes {there.shape} and {gone.shape}; give one number for each run, at least four runs "
            "with the canary and as many without."
        )
    if np.isnan(there).any() or np.isnan(gone).any():
        raise ValueError(
            f"The score {name!r} is not a number in some runs. Give those that cannot be scored an infinity."
        )
    return there, gone


def _best_threshold(top: np.ndarray, bottom: np.ndarray, delta: float, level: float) -> tuple[float, float]:
    """The largest lower bound on ε over thresholds that lie between values, and where it is reached."""
    values = np.unique(np.concatenate([top, bottom]))
    with np.errstate(invalid="ignore", over="ignore"):
        between = values[:-1] + (values[1:] - values[:-1]) / 2
    # Where one end is infinite, any number beyond the other will do.
    between = np.where(np.isfinite(between), between, np.clip(values[:-1], -1e300, 1e300))
    if len(between) == 0:
        return 0.0, math.inf
    if len(between) > 2 * _ENDS + _BETWEEN:
        inner = np.linspace(_ENDS, len(between) - _ENDS - 1, _BETWEEN).astype(int)
        between = np.concatenate([between[:_ENDS], between[inner], between[-_ENDS:]])
    caught, wrong = (len(x) - np.searchsorted(np.sort(x), between, side="right") for x in (top, bottom))
    low, _ = clopper_pearson(caught, len(top), level)
    _, high = clopper_pearson(wrong, len(bottom), level)
    found = epsilon_lower_bound(low, high, delta)
    chosen = int(np.argmax(found))
    return float(found[chosen]), float(between[chosen])
