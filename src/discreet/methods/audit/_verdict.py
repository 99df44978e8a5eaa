"""The statistics of an audit: lower bounds on ε from counts and scores of runs, compared with the claim.

A test on the releases has a true-positive and a false-positive rate, and an (ε, δ)-private program
has TPR <= e^ε FPR + δ. So Clopper-Pearson bounds on both rates give a lower bound on ε. The test is
chosen on one half of the runs and judged by the other (`judge`), so the choice needs no correction.
"""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats

from discreet._validate import finite_or_none, fraction, probability


def clopper_pearson(
    successes: ArrayLike, trials: int, level: float
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """One-sided bounds on a probability: each of the two is wrong with probability at most `level`.

    Args:
        successes: Number of successes, an array or a number.
        trials: Number of independent trials.
        level: In (0, 1).

    Returns:
        Lower and upper bounds; 0 where nothing happened, 1 where it always did.

    Raises:
        ValueError: Counts outside [0, trials], or a level outside (0, 1).

    Reference:
        Clopper and Pearson, The use of confidence or fiducial limits, Biometrika 26(4), 1934.

    >>> low, high = clopper_pearson(0, 100, 0.05)
    >>> round(float(low), 3), round(float(high), 3)
    (0.0, 0.03)
    """
    counts = np.asarray(successes)
    if trials < 1 or (counts < 0).any() or (counts > trials).any():
        raise ValueError(
            f"Of {trials} trials {successes} were successes; give counts between 0 and the trials."
        )
    probability("level", level, hint="It is the probability that a bound is wrong, such as 0.01.")
    low = np.where(
        counts == 0, 0.0, stats.beta.ppf(level, np.maximum(counts, 1), trials - counts + 1)
    )
    high = np.where(
        counts == trials, 1.0, stats.beta.isf(level, counts + 1, np.maximum(trials - counts, 1))
    )
    return low, high


def epsilon_lower_bound(
    true_positive_rate: ArrayLike, false_positive_rate: ArrayLike, delta: float
) -> Float[np.ndarray, "..."]:
    """Compute the least ε consistent with the two rates of one test at δ: log((TPR - δ) / FPR), and at least 0.

    With a lower bound on the first rate and an upper bound on the second it is a lower bound on ε,
    with their joint confidence. The other direction, log((1 - FPR - δ) / (1 - TPR)), is the same
    for the test that guesses the opposite.

    Args:
        true_positive_rate: Probability that a test reports the canary if it is present.
        false_positive_rate: Probability that it reports the canary if it is absent.
        delta: The δ of the bound.

    Reference:
        Kairouz, Oh and Viswanath, The composition theorem for differential privacy, ICML 2015,
        Theorem 2.1; as an audit: Jagielski, Ullman and Oprea, NeurIPS 2020.

    >>> round(float(epsilon_lower_bound(0.5, 0.1, 0.0)), 3)
    1.609
    """
    top = np.maximum(np.asarray(true_positive_rate, float) - delta, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.log(top) - np.log(np.asarray(false_positive_rate, float))
    return np.maximum(np.where(top > 0, ratio, 0.0), 0.0)


# Selection favours lucky tests; bounds of higher confidence in the selection counteract that.
_SURER = 10.0
_ENDS = 512
_BETWEEN = 512


@dataclasses.dataclass(frozen=True)
class Rates:
    """The rates of one test, on runs that were not used to choose it.

    Attributes:
        score: Name of the score whose tail is the test.
        says: The test's answer in that tail: "with" the canary, or "without".
        caught: Number of times that answer was right.
        false_alarms: Number of times that answer was wrong.
        trials: Runs of each kind.
        true_positive_rate: Lower bound on the probability of `caught`.
        false_positive_rate: Upper bound on that of `false_alarms`. Both hold jointly at the
            requested confidence.
    """

    score: str
    says: str
    caught: int
    false_alarms: int
    trials: int
    true_positive_rate: float
    false_positive_rate: float

    @classmethod
    def of(
        cls, score: str, says: str, caught: int, false_alarms: int, trials: int, confidence: float
    ) -> Rates:
        """The rates of a test, with half of the error probability for each of its two bounds."""
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
            Dong, Roth and Su, Gaussian differential privacy, JRSS B 84(1), 2022; as an audit: Nasr
            et al., USENIX Security 2023.
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

    Guarantee: if the runs are independent, the returned bounds hold jointly with probability
    `confidence`, so `Rates.epsilon` exceeds the true ε with probability at most 1 - confidence, at
    all δ jointly. Only one test is applied to the second half, so the choice needs no correction. A
    score may depend on the first half, not on the second.

    Args:
        present: Values of each score in runs with the canary.
        absent: Equally many values without it.
        delta: The δ for which the test should be good.
        confidence: Such as 0.99.

    Raises:
        ValueError: Fewer than four runs of each kind, different numbers of them, or a score that is
            NaN.
    """
    probability("confidence", confidence, hint="0.99 is a common choice.")
    fraction("delta", delta, hint="It should be well below 1 / number of records.")
    level = (1 - confidence) / 2 / _SURER
    best: tuple[float, Rates | None] = (-1.0, None)
    for name in present:
        there, gone = _checked(name, present[name], absent[name])
        half = len(there) // 2
        for says, top, bottom in (("with", there, gone), ("without", gone, there)):
            for sign in (1.0, -1.0):
                found, threshold = _best_threshold(
                    sign * top[:half], sign * bottom[:half], delta, level
                )
                if found > best[0]:
                    caught, wrong = (
                        int(np.sum(sign * x[half:] > threshold)) for x in (top, bottom)
                    )
                    best = found, Rates.of(name, says, caught, wrong, len(there) - half, confidence)
    assert best[1] is not None
    return best[1]


def _checked(name: str, there: Any, gone: Any) -> tuple[np.ndarray, np.ndarray]:
    there = np.asarray(there, np.float64)
    gone = np.asarray(gone, np.float64)
    if there.ndim != 1 or there.shape != gone.shape or len(there) < 4:
        raise ValueError(
            f"The score {name!r} has shapes {there.shape} and {gone.shape}; give one number for each run, at least four runs "
            "with the canary and as many without."
        )
    if np.isnan(there).any() or np.isnan(gone).any():
        raise ValueError(f"The score {name!r} is NaN in some runs. Score such runs as infinity.")
    return there, gone


def _best_threshold(
    top: np.ndarray, bottom: np.ndarray, delta: float, level: float
) -> tuple[float, float]:
    """The largest lower bound on ε over thresholds between values, and the threshold that attains it."""
    values = np.unique(np.concatenate([top, bottom]))
    with np.errstate(invalid="ignore", over="ignore"):
        between = values[:-1] + (values[1:] - values[:-1]) / 2
    # If one end is infinite, any number beyond the other serves.
    between = np.where(np.isfinite(between), between, np.clip(values[:-1], -1e300, 1e300))
    if len(between) == 0:
        return 0.0, math.inf
    if len(between) > 2 * _ENDS + _BETWEEN:
        inner = np.linspace(_ENDS, len(between) - _ENDS - 1, _BETWEEN).astype(int)
        between = np.concatenate([between[:_ENDS], between[inner], between[-_ENDS:]])
    caught, wrong = (
        len(x) - np.searchsorted(np.sort(x), between, side="right") for x in (top, bottom)
    )
    low, _ = clopper_pearson(caught, len(top), level)
    _, high = clopper_pearson(wrong, len(bottom), level)
    found = epsilon_lower_bound(low, high, delta)
    chosen = int(np.argmax(found))
    return float(found[chosen]), float(between[chosen])


FORMAT = "discreet audit, version 1"
WIDTH = 88
NOT_PRIVATE = "Not private: the noise of these runs can be reproduced. Audit artificial records.\n"
IN_WORDS = {
    "ADD_OR_REMOVE_ONE": "with the canary and without it",
    "REPLACE_ONE": "with the canary and with another record in its place",
}


class Claim(Protocol):
    """A claim for all δ at once: a `PrivacyPlan`, or a `PrivacyProfile`."""

    def epsilon(self, delta: float) -> float:
        """Upper bound on ε at δ."""
        ...


def claimed_epsilon(claim: Claim | float, delta: float) -> float:
    """The claimed ε at δ."""
    return float(claim) if isinstance(claim, int | float | np.number) else claim.epsilon(delta)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of an audit. Not private: the noise of its runs can be reproduced from a seed.

    Attributes:
        target: Description of the audited program.
        epsilon_lower: Lower bound on ε at `delta`. For a program whose ε is the claimed one it
            exceeds that with probability at most 1 - confidence.
        claimed_epsilon: The claimed upper bound at `delta`; infinite if there is none.
        delta: The δ of both bounds.
        confidence: Probability that the lower bound is valid.
        runs: Number of releases, with and without the canary together.
        relation: Name of the relation between the two tables.
        score: The statistic that the attacker uses.
        power: Lower bound on the attacker's true-positive rate at a false-positive rate of at most
            `false_alarm`; NaN after one run.
        false_alarm: Upper bound on the false-positive rate; NaN after one run.
        allowed_power: The largest true-positive rate that the claim, at all δ, permits at that
            false-positive rate; NaN if ε is claimed at one δ only.
        mu_lower: The program is not μ-Gaussian private below this μ; NaN after one run. Not a bound
            on ε.
        evidence: The counts behind the bounds.
    """

    target: str
    epsilon_lower: float
    claimed_epsilon: float
    delta: float
    confidence: float
    runs: int
    relation: str
    score: str
    power: float = math.nan
    false_alarm: float = math.nan
    allowed_power: float = math.nan
    mu_lower: float = math.nan
    evidence: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def gap(self) -> float:
        """The claimed ε minus the lower bound. Negative: contradicted."""
        return self.claimed_epsilon - self.epsilon_lower

    @property
    def contradicted(self) -> bool:
        """True if the claim is refuted at this confidence: at `delta`, or at another δ by the same counts."""
        return self.epsilon_lower > self.claimed_epsilon or self.power > self.allowed_power

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings; missing numbers are None."""
        content = {
            "format": FORMAT,
            "is_private": False,
            "contradicted": self.contradicted,
            "gap": self.gap,
        }
        content |= dataclasses.asdict(self)
        return finite_or_none(content)

    def to_json(self) -> str:
        """`to_dict` as indented, strict JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def __str__(self) -> str:
        title = f"Audit of {self.target}"
        claimed = (
            f"ε = {self.claimed_epsilon:.4g}" if math.isfinite(self.claimed_epsilon) else "no ε"
        )
        sure = f"{100 * self.confidence:g} %"
        counts = ", ".join(
            f"{name.replace('_', ' ')} {count:,}" for name, count in self.evidence.items()
        )
        lines = [
            f"ε is at least {self.epsilon_lower:.4g} at δ = {self.delta:g} ({sure} confidence); the claim is {claimed}.",
            f"Neighbours: {IN_WORDS.get(self.relation, self.relation)}. Runs: {self.runs:,}.",
            f"Score: {self.score}. {counts}.",
        ]
        if not math.isnan(self.power):
            allowed = (
                "."
                if math.isnan(self.allowed_power)
                else f"; the claim allows {self.allowed_power:.4g}."
            )
            lines.append(
                f"The attacker is right in at least {self.power:.4g} of cases at a false-positive rate of at most "
                f"{self.false_alarm:.4g}{allowed}"
            )
            lines.append(f"It is not μ-Gaussian private for a μ below {self.mu_lower:.4g}.")
        wrapped = [textwrap.fill(x, WIDTH) for x in (*lines, self._conclusion())]
        return "\n".join(
            [title, "=" * len(title), "", *wrapped[:-1], "", f"{wrapped[-1]}\n", NOT_PRIVATE]
        )

    def _conclusion(self) -> str:
        by_chance = (
            f"a true claim is contradicted with probability {1 - self.confidence:.2g} at most."
        )
        if self.epsilon_lower > self.claimed_epsilon:
            return (
                "CONTRADICTED: the program reveals more about one record than is claimed. Either the claim is wrong, or it is "
                f"about another program; {by_chance}"
            )
        if self.contradicted:
            return (
                f"CONTRADICTED: not at δ = {self.delta:g}, but the attacker is right more often than the claim allows at "
                f"another δ; {by_chance}"
            )
        weak = (
            "Stronger ones have a canary whose gradient is longer than C beside records with short ones, larger batches or more "
            "runs. "
        )
        return (
            "Not contradicted. This proves nothing: an attack that finds little may be a weak attack. "
            f"{weak * (self.epsilon_lower < self.claimed_epsilon / 4)}"
            f"The true ε may lie anywhere between {self.epsilon_lower:.4g} and {self.claimed_epsilon:.4g}."
        )
